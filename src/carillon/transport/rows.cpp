#include "carillon/transport/rows.h"

#include <array>
#include <atomic>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <openssl/rand.h>
#include <pthread.h>

#include "carillon/base/assert.h"
#include "carillon/base/clock.h"
#include "carillon/transport/resolve.h"
#include "carillon/transport/row_frames.h"
#include "carillon/transport/row_wire.h"
#include "carillon/transport/tls.h"

namespace carillon::transport {

struct RowStore::Row {
  std::mutex guard;  // of all below
  bool closed = false;
  bool taken = false;  // a push was
  const RequestId id;
  const RowTensors tensors;
  Row(RequestId row, RowTensors with) : id(row), tensors(std::move(with)) {}
};

RowStore::RowStore() {
  rows_.reserve(1U << 16);  // so that no open() moves all of them
}
RowStore::~RowStore() = default;

std::uint64_t RowStore::draw() {
  if (drawn_.empty()) {
    drawn_.resize(512);
    const auto bytes = std::as_writable_bytes(std::span(drawn_));
    const int done =
        RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
    CARILLON_ASSERT(done == 1);
  }
  const std::uint64_t key = drawn_.back();
  drawn_.pop_back();
  return key;
}

std::uint64_t RowStore::open(RequestId row, RowTensors tensors) {
  CARILLON_ASSERT(tensors.inputs.size() <= rows::most_tensors &&
                  tensors.outputs.size() <= rows::most_tensors);
  auto opened = std::make_shared<Row>(row, std::move(tensors));
  const std::lock_guard lock(mutex_);
  for (;;) {
    const std::uint64_t key = draw();
    if (key != 0 && rows_.try_emplace(key, std::move(opened)).second) return key;
  }
}

void RowStore::close(std::uint64_t key) {
  std::unique_lock lock(mutex_);
  const auto node = rows_.extract(key);
  lock.unlock();
  if (node.empty()) return;
  const std::lock_guard guard(node.mapped()->guard);
  node.mapped()->closed = true;
}

std::shared_ptr<RowStore::Row> RowStore::find(std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = rows_.find(key);
  return found == rows_.end() ? nullptr : found->second;
}

namespace rows {

namespace asio = boost::asio;
using asio::ip::tcp;

// Who has pushes beyond the bounds under way.
class Pusher {
 public:
  virtual ~Pusher() = default;
  // Ends the push if it stalls, and says whether.
  virtual bool makes_way(std::uint64_t tag) = 0;
};

constexpr char tls_handshake = 22;  // the first byte of whoever speaks TLS

// What connections share; on the server's thread.
class Serving {
 public:
  Serving(RowServer::Options options, RowStore& store, RowServer::OnOutputs told)
      : cluster(options.cluster),
        hello(hello_of(options.cluster)),
        limits(options.limits),
        speaks(options.speaks),
        tls(std::move(options.tls)),
        on_outputs(std::move(told)),
        store_(store) {}

  using Row = RowStore::Row;
  // Calls `use` with the row under its guard. False: it is gone.
  template <typename Use>
  bool with(std::uint64_t key, Use use) {
    const std::shared_ptr<Row> row = store_.find(key);
    if (row == nullptr) return false;
    const std::lock_guard guard(row->guard);
    if (row->closed) return false;
    use(*row);
    return true;
  }

  void answered(std::uint64_t key) { answered_[place_of(key)] = key; }
  // Nobody wants outputs that came for the row.
  void refused(std::uint64_t key) {
    if (key != 0 && answered_[place_of(key)] == key) doubled.fetch_add(1, std::memory_order_relaxed);
  }

  const std::string cluster;
  const Hello hello;
  const RowLimits limits;
  const cluster::Protocols speaks;
  const std::shared_ptr<Tls> tls;
  const RowServer::OnOutputs on_outputs;
  const SteadyClock clock;
  std::uint64_t push_bytes = 0;    // of pushes that have not come whole
  std::uint64_t beyond_bytes = 0;  // of those beyond the bounds
  std::unordered_map<std::uint64_t, std::pair<Pusher*, std::uint64_t>>
      beyond;  // these, with their tags, by key
  std::atomic<std::uint64_t> doubled{0};

 private:
  // Keys are random, so their last bits are a place. A later row takes the place of an earlier one.
  static constexpr std::size_t remembered = 1U << 15;
  static std::size_t place_of(std::uint64_t key) { return key % remembered; }

  RowStore& store_;
  std::vector<std::uint64_t> answered_ = std::vector<std::uint64_t>(remembered);  // keys; 0: none
};

namespace {

class Connection final : public std::enable_shared_from_this<Connection>, Pusher {
 public:
  Connection(tcp::socket socket, Serving& serving)
      : timer_(socket.get_executor()),
        push_timer_(socket.get_executor()),
        serving_(serving),
        wire_(std::move(socket)) {
    prepare(wire_.socket());
  }
  void start() {
    await_end();
    if (serving_.tls == nullptr) return await_read();
    wire_.greet(serving_.tls->context(), true, [self = shared_from_this()](const Result<Identity>& peer) {
      if (self->over()) return;
      if (!peer) return self->drop(peer.error());
      const auto worker = check_role(*peer, self->serving_.cluster, cluster::Role::worker);
      if (!worker) return self->drop(worker.error());
      self->await_read();
    });
  }
  // Before start().
  void refuse(const Error& why) {
    if (serving_.tls != nullptr) return end();  // words would cost a handshake
    drop(why);
  }
  bool over() { return !wire_.socket().is_open(); }

  // For Reader.
  Result<> greeted(const Hello& hello) {
    if (hello.magic[0] == tls_handshake)
      return invalid(
          "it speaks TLS, and this frontend does not: start all members with --cluster-cert, or none");
    if (hello.magic != serving_.hello.magic) return invalid("this is no worker of Carillon");
    const auto both =
        cluster::settle({"the frontend", serving_.speaks}, {"the worker", {hello.protocol, hello.protocol}});
    if (!both) return std::unexpected(both.error());
    if (hello.cluster != serving_.hello.cluster) return invalid("a worker of another cluster");
    greeted_ = true;
    timer_.cancel();
    return {};
  }
  Result<> heard(const Header& header, std::span<const std::byte> body) {
    switch (header.kind) {
      case Kind::pull:
        return pull(header.tag, body);
      case Kind::push:
        return push(header.tag, body);
      case Kind::cancel:
        if (!body.empty()) return invalid("a cancel with a body");
        std::erase_if(pulls_, [&](const auto& pull) { return pull.second.tag == header.tag; });
        forget(header.tag);
        return {};
      case Kind::data:
      case Kind::sizes:
      case Kind::gone:
      case Kind::taken:
      case Kind::refused:
        break;
    }
    return invalid("a frame that only frontends send");
  }
  Result<> begins(const Header& header) {
    const auto push = pushes_.find(header.tag);  // none: it was answered already
    if (push == pushes_.end()) return {};
    if (header.size > push->second.place.left()) return invalid("a push with more bytes than it said");
    if (!drop_closed(push)) push->second.heard = serving_.clock.now();
    return {};
  }
  Cursor<std::byte>* place_of(std::uint64_t tag) {
    const auto found = pushes_.find(tag);
    if (found == pushes_.end()) return nullptr;
    Push& push = found->second;
    if (push.beyond && std::exchange(push.left, push.place.left()) != push.place.left())
      push.heard = serving_.clock.now();
    return &push.place;
  }
  Result<> ended(std::uint64_t tag) {
    const auto push = pushes_.find(tag);
    if (push == pushes_.end() || push->second.place.left() > 0) return {};
    const Push whole = std::move(push->second);
    forget(push);
    finish(tag, whole.key, whole.epoch, whole.report, {whole.bytes.get(), whole.size});
    return {};
  }

 private:
  struct Pull {
    std::uint64_t tag = 0, key = 0;
    std::optional<Cursor<const std::byte>> left;  // none: nothing was sent yet
  };
  struct Push {
    std::uint64_t key = 0, epoch = 0;
    std::string report;
    std::uint64_t size = 0;
    bool beyond = false;  // the bounds of such memory
    std::unique_ptr<std::byte[]> bytes;
    Cursor<std::byte> place;
    TimePoint heard;         // of it, last
    std::uint64_t left = 0;  // of `place` then
  };
  using Pushes = std::map<std::uint64_t, Push>;

  Result<> may_wait() const {
    if (pulls_.size() + pushes_.size() < serving_.limits.waiting) return {};
    return fail(ErrorCode::resource_exhausted,
                fmt::format("more than {} requests wait", serving_.limits.waiting));
  }
  Result<> pull(std::uint64_t tag, std::span<const std::byte> body) {
    if (body.size() != sizeof(PullBody)) return invalid("a pull of a wrong size");
    if (auto may = may_wait(); !may) return may;
    const auto asked = take<PullBody>(body);
    pulls_.emplace(std::pair(asked.urgency, ++asked_), Pull{.tag = tag, .key = asked.key, .left = {}});
    return {};
  }
  Result<> push(std::uint64_t tag, std::span<const std::byte> body) {
    if (body.size() < sizeof(PushBody)) return invalid("a push of a wrong size");
    const auto said = take<PushBody>(body);
    if (said.outputs > most_tensors || said.report > longest_report ||
        body.size() < sizeof(std::uint64_t) * said.outputs + said.report)
      return invalid("a push of a wrong size");
    const auto sizes = take_sizes(body, said.outputs);
    if (!sizes) return std::unexpected(sizes.error());
    const auto report = take(body, said.report);
    std::uint64_t sum = 0;
    for (const std::uint64_t size : *sizes) sum += size;
    if (!body.empty() && body.size() != sum) return invalid("a push of a wrong size");
    if (pushes_.contains(tag)) return invalid("two pushes of one tag");

    bool taken = false, fits = false;
    const bool whole = body.size() == sum;
    const bool beyond = !whole && (push_bytes_ + sum > serving_.limits.push_bytes ||
                                   serving_.push_bytes + sum > serving_.limits.all_push_bytes);
    const bool there = serving_.with(said.key, [&](const Serving::Row& row) {
      taken = row.taken;
      fits = sizes->size() == row.tensors.outputs.size();
      for (std::size_t i = 0; fits && i < sizes->size(); ++i)
        fits = (*sizes)[i] == row.tensors.output_bytes(i);
    });
    if (!there || taken) {
      serving_.refused(said.key);
      answer(Kind::gone, tag);
    } else if (!fits) {
      refuse(tag, {ErrorCode::invalid_argument, "the outputs of the row have other sizes"});
    } else if (whole) {
      finish(tag, said.key, said.epoch, text_of(report), body);
    } else if (auto room = beyond ? may_go_beyond(said.key, sum) : Result<>{}; !room) {
      refuse(tag, room.error());
    } else if (std::unique_ptr<std::byte[]> bytes(new (std::nothrow) std::byte[sum]); bytes == nullptr) {
      refuse(tag, {ErrorCode::resource_exhausted, fmt::format("no memory for outputs of {} bytes", sum)});
    } else {
      if (auto may = may_wait(); !may) return may;
      if (beyond) {
        serving_.beyond.emplace(said.key, std::pair(static_cast<Pusher*>(this), tag));
        serving_.beyond_bytes += sum;
      }
      push_bytes_ += sum;
      serving_.push_bytes += sum;
      Push begun{.key = said.key,
                 .epoch = said.epoch,
                 .report = text_of(report),
                 .size = sum,
                 .beyond = beyond,
                 .bytes = std::move(bytes),
                 .place = {},
                 .heard = serving_.clock.now(),
                 .left = sum};
      begun.place = Cursor<std::byte>({{begun.bytes.get(), sum}});
      pushes_.emplace(tag, std::move(begun));
      ++pushes_begun_;
      if (!std::exchange(pushes_watched_, true)) watch_pushes();
    }
    return {};
  }
  // Beyond the bounds of memory.
  Result<> may_go_beyond(std::uint64_t key, std::uint64_t bytes) {
    const auto no = [](std::string why) {
      return fail(ErrorCode::resource_exhausted, "no memory for outputs: " + std::move(why));
    };
    if (!pushes_.empty()) return no("too many are under way");
    if (const auto other = serving_.beyond.find(key); other != serving_.beyond.end()) {
      const auto [pusher, tag] = other->second;
      if (!pusher->makes_way(tag)) return no("others of the row are under way");
    }
    const std::uint64_t most = serving_.limits.beyond_bytes;
    if (serving_.beyond_bytes > 0 && serving_.beyond_bytes + bytes > most)
      return no(fmt::format("{} bytes are under way beyond the bounds, and these have {}; at most {} may be",
                            serving_.beyond_bytes, bytes, most));
    return {};
  }
  bool makes_way(std::uint64_t tag) override {
    const auto push = pushes_.find(tag);
    if (serving_.clock.now() < saturating_add(push->second.heard, serving_.limits.push_stalls)) return false;
    forget(push);
    refuse(tag, {ErrorCode::unavailable, "the outputs stalled, and others of the row came"});
    step_later();
    return true;
  }
  // True where nobody wants the push any more.
  bool drop_closed(Pushes::iterator push) {
    bool wanted = false;
    serving_.with(push->second.key, [&](const Serving::Row& row) { wanted = !row.taken; });
    if (wanted) return false;
    serving_.refused(push->second.key);
    answer(Kind::gone, push->first);
    forget(push);
    return true;
  }
  void watch_pushes() {
    push_timer_.expires_after(serving_.limits.push_pause);
    push_timer_.async_wait([self = shared_from_this(), before = pushes_so_far()](const auto& error) {
      if (error || self->over() || self->ending_) return;
      const bool stalls = self->pushes_so_far() == before;
      for (auto push = self->pushes_.begin(); push != self->pushes_.end();) self->drop_closed(push++);
      if (!self->out_.empty()) self->step_later();
      self->pushes_watched_ = !self->pushes_.empty();
      if (!self->pushes_watched_) return;
      if (stalls)
        return self->drop({ErrorCode::deadline_exceeded, "the rest of a row's outputs has not come in time"});
      self->watch_pushes();
    });
  }
  // Changes with whatever comes of a push.
  std::pair<std::uint64_t, std::uint64_t> pushes_so_far() const {
    std::uint64_t left = 0;
    for (const auto& [tag, push] : pushes_) left += push.place.left();
    return {pushes_begun_, left};
  }
  void finish(std::uint64_t tag, std::uint64_t key, std::uint64_t epoch, std::string report,
              std::span<const std::byte> bytes) {
    std::optional<RequestId> taken;
    serving_.with(key, [&](Serving::Row& row) {
      if (std::exchange(row.taken, true)) return;
      taken = row.id;
      for (std::size_t i = 0; i < row.tensors.outputs.size(); ++i) {
        const auto from = take(bytes, row.tensors.output_bytes(i));
        if (const auto to = row.tensors.outputs[i]; !to.empty())
          std::memcpy(to.data(), from.data(), to.size());
      }
    });
    if (taken) {
      serving_.answered(key);
      serving_.on_outputs(*taken, epoch, std::move(report));
    } else {
      serving_.refused(key);
    }
    answer(taken ? Kind::taken : Kind::gone, tag);
  }
  void forget(Pushes::iterator push) {
    push_bytes_ -= push->second.size;
    serving_.push_bytes -= push->second.size;
    if (push->second.beyond) {
      serving_.beyond_bytes -= push->second.size;
      serving_.beyond.erase(push->second.key);
    }
    pushes_.erase(push);
  }
  void forget(std::uint64_t tag) {
    if (const auto push = pushes_.find(tag); push != pushes_.end()) forget(push);
  }

  void answer(Kind kind, std::uint64_t tag, std::string_view body = {}) {
    put(out_, Header{kind, static_cast<std::uint32_t>(body.size()), tag});
    out_.append(body);
  }
  void refuse(std::uint64_t tag, const Error& why) {
    std::string body;
    put(body, static_cast<std::uint32_t>(why.code));
    answer(Kind::refused, tag, body + why.message);
  }
  // The next chunk of the most urgent pull.
  void answer_next() {
    const auto next = pulls_.begin();
    Pull& pull = next->second;
    const bool there = serving_.with(pull.key, [&](const Serving::Row& row) {
      if (!pull.left) {
        std::string body;
        put(body, SizesBody{row.tensors.length, row.tensors.inputs.size()});
        for (const auto& input : row.tensors.inputs) put(body, std::uint64_t{input.size()});
        answer(Kind::sizes, pull.tag, body);
        pull.left.emplace(row.tensors.inputs);
      }
      const std::size_t size = std::min<std::uint64_t>(pull.left->left(), longest_body);
      if (size == 0) return;
      put(out_, Header{Kind::data, static_cast<std::uint32_t>(size), pull.tag});
      pull.left->peek(size, [&](std::span<const std::byte> part) {
        out_.append(reinterpret_cast<const char*>(part.data()), part.size());
      });
      pull.left->skip(size);
    });
    if (!there) answer(Kind::gone, pull.tag);
    if (!there || pull.left->left() == 0) pulls_.erase(next);
  }

  // All is told to the peer, if it still listens.
  void drop(const Error& why) {
    if (std::exchange(ending_, true)) return;
    pulls_.clear();
    while (!pushes_.empty()) forget(pushes_.begin());
    refuse(0, why);
    await_end();
    step();
  }
  void end() {
    wire_.close();
    timer_.cancel();
    push_timer_.cancel();
    pulls_.clear();
    while (!pushes_.empty()) forget(pushes_.begin());
  }
  void await_end() {
    timer_.expires_after(serving_.limits.greeting);
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || self->over()) return;
      if (self->ending_) return self->end();
      if (!self->greeted_) self->drop({ErrorCode::deadline_exceeded, "nothing was said in time"});
    });
  }
  void await_read() {
    if (reading_ || over() || out_.size() > most_unsent) return;
    reading_ = true;
    wire_.wait_read([self = shared_from_this()](const boost::system::error_code& error) {
      self->reading_ = false;
      if (!error && !self->over()) self->step();
    });
  }
  void await_write() {
    if (std::exchange(writing_, true)) return;
    wire_.wait_write([self = shared_from_this()](const boost::system::error_code& error) {
      self->writing_ = false;
      if (!error && !self->over()) self->step();
    });
  }
  void step_later() {
    asio::post(wire_.socket().get_executor(), [self = shared_from_this()] {
      if (!self->over()) self->step();
    });
  }
  // Reads and writes some; others have their turn after that.
  void step() {
    if (!ending_ && out_.size() <= most_unsent) {
      if (auto read = reader_.read(wire_, *this); !read) {
        if (read.error().code == ErrorCode::unavailable) return end();
        return drop(read.error());
      }
    }
    if (ending_ && !drain()) return end();
    for (int chunks = 0; !over();) {
      if (out_.empty() && chunks++ == 4) {  // a read comes in between
        step_later();
        return;
      }
      if (out_.empty())
        while (!pulls_.empty() && out_.size() < 2 * longest_body) answer_next();
      if (out_.empty()) break;
      boost::system::error_code error;
      const asio::const_buffer rest(out_.data() + sent_, out_.size() - sent_);
      sent_ += wire_.write_some({&rest, 1}, error);
      if (would_block(error)) {
        await_write();
        break;
      }
      if (error) return end();
      if (sent_ == out_.size()) out_.clear(), sent_ = 0;
    }
    if (ending_ && out_.empty()) wire_.shutdown();
    await_read();
  }
  // A peer that is refused is read until it hangs up, as else the refusal would be lost. False: it has.
  bool drain() {
    std::array<std::byte, 4096> bytes;
    boost::system::error_code error;
    const asio::mutable_buffer into(bytes.data(), bytes.size());
    wire_.read_some({&into, 1}, error);
    return !error || would_block(error);
  }

  static constexpr std::size_t most_unsent = 4 * longest_body;

  asio::steady_timer timer_, push_timer_;
  Serving& serving_;
  Wire wire_;
  Reader reader_{true};
  bool greeted_ = false;
  bool ending_ = false;  // the peer is told why
  bool reading_ = false, writing_ = false;
  std::map<std::pair<std::int64_t, std::uint64_t>, Pull> pulls_;  // by urgency, then as they were asked
  std::uint64_t asked_ = 0;
  Pushes pushes_;  // that have not come whole, by tag
  std::uint64_t push_bytes_ = 0, pushes_begun_ = 0;
  bool pushes_watched_ = false;
  std::string out_;  // what is to be sent, `sent_` bytes of it are
  std::size_t sent_ = 0;
};

class Server final : public RowServer {
 public:
  Server(Options options, RowStore& store, OnOutputs on_outputs)
      : serving_(std::move(options), store, std::move(on_outputs)) {}
  ~Server() override {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }
  int port() const override { return port_; }
  std::uint64_t doubled() const override { return serving_.doubled.load(std::memory_order_relaxed); }

  Result<> open(const std::string& address) {
    const auto self = resolve<tcp>(address);
    if (!self) return std::unexpected(self.error());
    boost::system::error_code error;
    acceptor_.open(self->protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(*self, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (error)
      return fail(ErrorCode::unavailable, fmt::format("cannot listen at {}: {}", address, error.message()));
    accept();
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "carillon-rows");
      context_.run();
    });
    return {};
  }

 private:
  void accept() {
    acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      std::erase_if(connections_, [](const auto& connection) { return connection.expired(); });
      if (!error) {
        const auto connection = std::make_shared<Connection>(std::move(socket), serving_);
        if (connections_.size() < serving_.limits.connections) {
          connections_.push_back(connection);
          connection->start();
        } else {
          connection->refuse({ErrorCode::resource_exhausted, "too many connections"});
        }
        return accept();
      }
      timer_.expires_after(std::chrono::milliseconds{50});  // no descriptor is left, perhaps
      timer_.async_wait([this](const boost::system::error_code& stopped) {
        if (!stopped) accept();
      });
    });
  }

  Serving serving_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  asio::steady_timer timer_{context_};
  std::vector<std::weak_ptr<Connection>> connections_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace
}  // namespace rows

Result<std::unique_ptr<RowServer>> RowServer::open(const std::string& address, Options options,
                                                   RowStore& store, OnOutputs on_outputs) {
  auto server = std::make_unique<rows::Server>(std::move(options), store, std::move(on_outputs));
  if (auto opened = server->open(address); !opened) return std::unexpected(std::move(opened.error()));
  return server;
}

}  // namespace carillon::transport
