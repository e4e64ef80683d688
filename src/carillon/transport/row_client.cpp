#include "carillon/transport/row_client.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <pthread.h>

#include "carillon/base/assert.h"
#include "carillon/base/clock.h"
#include "carillon/transport/resolve.h"
#include "carillon/transport/row_frames.h"
#include "carillon/transport/row_wire.h"
#include "carillon/transport/tls.h"

namespace carillon::transport {
namespace rows {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

class Peer;

// Pushes of so many bytes at most are copied, so that many go at once.
constexpr std::size_t small_push = 4096;

// Connections are the business of one thread at a time: the client's, or whoever flushes. A thread that has
// the turn may take it once more.
class Turn {
 public:
  virtual ~Turn() = default;
  virtual void await() = 0;
  virtual void end() = 0;
};

struct PullJob {
  RowClient::Pull asked;
  RowClient::Pulled done;
  std::optional<Cursor<std::byte>> place;  // once the sizes are known
  std::int64_t length = 0;
};
struct PushJob {
  RowClient::Push asked;
  RowClient::Pushed done;
  std::optional<Cursor<const std::byte>> left;  // once it has begun
};
struct Job {
  std::variant<PullJob, PushJob> what;
  Peer* peer = nullptr;
  const std::string& address() const {
    return std::visit([](const auto& job) -> const std::string& { return job.asked.address; }, what);
  }
  void fail(const Error& why) {
    std::visit([&](auto& job) { job.done(std::unexpected(why)); }, what);
  }
};
using Jobs = std::unordered_map<std::uint64_t, Job>;  // by ticket, which is the tag, too

// The connection with a frontend. All of it in a turn.
class Peer {
 public:
  Peer(asio::io_context& context, std::string address, const RowClient::Options& options, Jobs& jobs,
       Turn& turn)
      : context_(context), address_(std::move(address)), options_(options), jobs_(jobs), turn_(turn) {}

  // Ahead of need.
  void open() {
    if (state_ == State::none && clock_.now() >= not_before_) connect();
  }
  // In connections that are opened from now on.
  void speak(std::uint32_t protocol) {
    if (std::exchange(protocol_, protocol) != protocol) not_before_ = TimePoint::min();
  }
  // `job` was added to the jobs. flush() must follow.
  void begin(std::uint64_t ticket, Job& job) {
    if (state_ == State::none) {
      if (clock_.now() < not_before_) return fail(ticket, why_);
      job.peer = this;
      return connect();
    }
    job.peer = this;
    if (state_ == State::there) ask(ticket, job);
  }
  // `job` is no longer one.
  void cancelled(std::uint64_t ticket) {
    if (state_ == State::there) put(out_, Header{Kind::cancel, 0, ticket});
  }
  // Sends what waits, as far as the kernel takes it, in so many chunks at most. The rest is the client's
  // thread's.
  void flush(int most_chunks = 16) {
    for (int chunks = 0; state_ == State::there;) {
      std::size_t count = 0;
      boost::system::error_code error;
      if (!out_.empty()) {
        const asio::const_buffer rest(out_.data() + sent_, out_.size() - sent_);
        count = wire_.write_some({&rest, 1}, error);
        sent_ += count;
        if (sent_ == out_.size()) out_.clear(), sent_ = 0;
      } else if (++chunks > most_chunks) {
        return await_write();  // others have their turn
      } else if (!next_chunk()) {
        return;
      } else if (!chunk_.empty()) {
        count = wire_.write_some(chunk_, error);
        // The rest is copied, as a caller's memory is not used once its handler was called.
        for (const asio::const_buffer& part : chunk_) {
          const std::size_t skipped = std::min(count, part.size());
          count -= skipped;
          out_.append(static_cast<const char*>(part.data()) + skipped, part.size() - skipped);
        }
      }
      if (would_block(error)) return await_write();
      if (error) return broke(error_of(error));
    }
  }

  // For Reader.
  Result<> greeted(const Hello&) { return {}; }
  Result<> heard(const Header& header, std::span<const std::byte> body) {
    if (header.kind == Kind::refused) {
      if (body.size() < sizeof(std::uint32_t)) return invalid("a refusal of a wrong size");
      const auto code = take<std::uint32_t>(body);
      if (code > static_cast<std::uint32_t>(ErrorCode::internal)) return invalid("an unknown kind of error");
      const Error why{static_cast<ErrorCode>(code), text_of(body)};
      if (header.tag == 0) return std::unexpected(why);
      if (find(header.tag) != nullptr) fail(header.tag, why);
      return {};
    }
    if (header.kind != Kind::sizes && !body.empty()) return invalid("an answer with a body");
    Job* const job = find(header.tag);
    if (job == nullptr) return {};  // it was cancelled
    worked_ = true;
    auto* pull = std::get_if<PullJob>(&job->what);
    switch (header.kind) {
      case Kind::sizes:
        if (pull == nullptr || pull->place) break;
        return make_room(header.tag, *pull, body);
      case Kind::gone:
        if (pull != nullptr) {
          fail(header.tag, {ErrorCode::not_found, "the row is closed"});
          return {};
        }
        finish(header.tag, false);
        return {};
      case Kind::taken:
        if (pull != nullptr) break;
        finish(header.tag, true);
        return {};
      case Kind::pull:
      case Kind::push:
      case Kind::cancel:
      case Kind::data:
      case Kind::refused:
        break;
    }
    return invalid("an answer to what was not asked");
  }
  Result<> begins(const Header& header) {
    const Cursor<std::byte>* place = place_of(header.tag);
    if (place == nullptr ? find(header.tag) == nullptr : header.size <= place->left()) return {};
    return invalid("more bytes than were asked for");
  }
  Cursor<std::byte>* place_of(std::uint64_t tag) {
    Job* const job = find(tag);
    auto* pull = job == nullptr ? nullptr : std::get_if<PullJob>(&job->what);
    return pull == nullptr || !pull->place ? nullptr : &*pull->place;
  }
  Result<> ended(std::uint64_t tag) {
    if (const Cursor<std::byte>* place = place_of(tag); place != nullptr && place->left() == 0) pulled(tag);
    return {};
  }

 private:
  enum class State : std::uint8_t { none, connecting, there };

  // Null: it was cancelled, or is another frontend's.
  Job* find(std::uint64_t tag) {
    const auto found = jobs_.find(tag);
    return found == jobs_.end() || found->second.peer != this ? nullptr : &found->second;
  }
  Job extract(std::uint64_t ticket) { return std::move(jobs_.extract(ticket).mapped()); }
  void fail(std::uint64_t ticket, const Error& why) {
    if (!jobs_.contains(ticket)) return;
    extract(ticket).fail({why.code, fmt::format("frontend {}: {}", address_, why.message)});
  }
  void pulled(std::uint64_t tag) {
    Job job = extract(tag);
    auto& pull = std::get<PullJob>(job.what);
    pull.done(pull.length);
  }
  void finish(std::uint64_t tag, bool taken) { std::get<PushJob>(extract(tag).what).done(taken); }

  Result<> make_room(std::uint64_t tag, PullJob& pull, std::span<const std::byte> body) {
    if (body.size() < sizeof(SizesBody)) return invalid("sizes of a wrong size");
    const auto said = take<SizesBody>(body);
    if (said.inputs > most_tensors || body.size() != said.inputs * sizeof(std::uint64_t))
      return invalid("sizes of a wrong size");
    const auto sizes = take_sizes(body, said.inputs);
    if (!sizes) return std::unexpected(sizes.error());
    auto room = pull.asked.room(said.length, *sizes);
    if (room && !std::ranges::equal(*room, *sizes, {}, [](auto input) { return input.size(); }))
      room = invalid("the inputs of the row have other sizes");
    if (!room) {
      cancelled(tag);
      fail(tag, room.error());
      return {};
    }
    pull.length = said.length;
    pull.place.emplace(std::move(*room));
    if (pull.place->left() == 0) pulled(tag);
    return {};
  }

  void ask(std::uint64_t ticket, const Job& job) {
    if (const auto* pull = std::get_if<PullJob>(&job.what)) {
      put(out_, Header{Kind::pull, sizeof(PullBody), ticket});
      put(out_, PullBody{pull->asked.key, pull->asked.urgency.time_since_epoch().count()});
    } else {
      pushing_.push_back(ticket);
    }
  }
  // Puts small pushes into `out_`, or the next part of the first push into `chunk_`. False: there is none.
  bool next_chunk() {
    chunk_.clear();
    while (!pushing_.empty()) {
      const std::uint64_t ticket = pushing_.front();
      const auto found = jobs_.find(ticket);
      auto* push = found == jobs_.end() ? nullptr : std::get_if<PushJob>(&found->second.what);
      if (push == nullptr || (push->left && push->left->left() == 0)) {
        pushing_.pop_front();  // all is sent, or it has been answered or cancelled
        continue;
      }
      const bool begins = !push->left;
      if (begins) push->left.emplace(push->asked.outputs);
      const std::uint64_t left = push->left->left();
      const std::size_t fields = begins
                                     ? sizeof(PushBody) + push->asked.outputs.size() * sizeof(std::uint64_t) +
                                           push->asked.report.size()
                                     : 0;
      std::size_t size = 0;  // of data in this frame
      if (!begins)
        size = std::min<std::uint64_t>(left, longest_body);
      else if (fields + left <= longest_body)
        size = left;
      head_.clear();
      put(head_, Header{begins ? Kind::push : Kind::data, static_cast<std::uint32_t>(fields + size), ticket});
      if (begins) put_fields(push->asked);
      const auto each_part = [&](auto use) {
        push->left->peek(size, [&](auto part) { use(part.data(), part.size()); });
        push->left->skip(size);
      };
      if (begins && size == left && head_.size() + size <= small_push) {
        out_.append(head_);
        each_part([&](const auto* data, std::size_t bytes) {
          out_.append(reinterpret_cast<const char*>(data), bytes);
        });
        if (out_.size() < longest_body) continue;
        return true;
      }
      if (!out_.empty()) {  // small ones go first
        if (begins) push->left.reset();
        return true;
      }
      chunk_.emplace_back(head_.data(), head_.size());
      each_part([&](const auto* data, std::size_t bytes) { chunk_.emplace_back(data, bytes); });
      return true;
    }
    return !out_.empty();
  }
  void put_fields(const RowClient::Push& asked) {
    put(head_, PushBody{asked.key, asked.epoch, static_cast<std::uint32_t>(asked.outputs.size()),
                        static_cast<std::uint32_t>(asked.report.size())});
    for (const auto& output : asked.outputs) put(head_, std::uint64_t{output.size()});
    head_.append(asked.report);
  }

  // A handler, on the client's thread, that does nothing once the connection is another.
  template <typename Then>
  auto guarded(Then then) {
    return [ this, life = life_, then ](
        const boost::system::error_code& error,
        const auto&... found) requires std::invocable<const Then&, decltype(error), decltype(found)...> {
      turn_.await();
      if (life == life_) then(error, found...);
      turn_.end();
    };
  }
  void connect() {
    state_ = State::connecting;
    ++life_;
    const auto [host, port] = split(address_);
    timer_.expires_after(options_.connect_within);
    timer_.async_wait(guarded([this](const boost::system::error_code& error) {
      if (!error && state_ == State::connecting) broke({ErrorCode::unavailable, "no connection in time"});
    }));
    const auto numeric = tcp::resolver::numeric_host | tcp::resolver::numeric_service;
    boost::system::error_code error;
    if (const auto found = resolver_.resolve(host, port, numeric, error); !error) return connect_to(found);
    resolver_.async_resolve(host, port,
                            guarded([this](const boost::system::error_code& failed, const auto& found) {
                              if (state_ != State::connecting) return;
                              if (failed) return broke({ErrorCode::unavailable, failed.message()});
                              connect_to(found);
                            }));
  }
  void connect_to(const tcp::resolver::results_type& found) {
    asio::async_connect(
        wire_.socket(), found, guarded([this](const boost::system::error_code& error, const tcp::endpoint&) {
          if (state_ != State::connecting) return;
          if (error) return broke({ErrorCode::unavailable, error.message()});
          prepare(wire_.socket());
          if (options_.tls == nullptr) return connected();
          wire_.greet(options_.tls->context(), false, [this, life = life_](const Result<Identity>& peer) {
            turn_.await();
            if (life == life_) greeted_by(peer);
            turn_.end();
          });
        }));
  }
  void greeted_by(const Result<Identity>& peer) {
    if (!peer) return broke(peer.error());
    const auto frontend = check_role(*peer, options_.cluster, cluster::Role::frontend);
    if (!frontend) return broke(frontend.error());
    connected();
  }
  void connected() {
    state_ = State::there;
    timer_.cancel();
    reader_.emplace(false);
    put(out_, hello_of(options_.cluster, protocol_));
    std::vector<std::uint64_t> mine;
    for (const auto& [ticket, job] : jobs_)
      if (job.peer == this) mine.push_back(ticket);
    std::ranges::sort(mine);
    for (const std::uint64_t ticket : mine) ask(ticket, jobs_.at(ticket));
    await_read();
    flush();
  }
  // The connection is over, or none was to be had.
  void broke(Error why) {
    ++life_;
    wire_.close();
    resolver_.cancel();
    timer_.cancel();
    state_ = State::none;
    pause_ = worked_ ? Duration{0} : std::clamp(2 * pause_, options_.first_pause, options_.longest_pause);
    worked_ = false;
    not_before_ = clock_.now() + pause_;
    why_ = std::move(why);
    out_.clear();
    sent_ = 0;
    pushing_.clear();
    std::vector<std::uint64_t> mine;
    for (const auto& [ticket, job] : jobs_)
      if (job.peer == this) mine.push_back(ticket);
    std::ranges::sort(mine);
    for (const std::uint64_t ticket : mine) fail(ticket, why_);
  }

  void await_read() {
    wire_.wait_read(guarded([this](const boost::system::error_code& error) {
      if (!error) read();
    }));
  }
  void read() {
    for (int turn = 0; turn < 16; ++turn) {
      const auto more = reader_->read(wire_, *this);
      if (!more) return broke(more.error());
      if (!*more) break;
    }
    await_read();
    flush();  // cancels
  }
  void await_write() {
    if (std::exchange(writing_, life_) == life_) return;
    wire_.wait_write(guarded([this](const boost::system::error_code& error) {
      writing_ = 0;
      if (!error) flush();
    }));
  }

  asio::io_context& context_;
  const std::string address_;
  const RowClient::Options& options_;
  Jobs& jobs_;
  Turn& turn_;
  const SteadyClock clock_;
  Wire wire_{tcp::socket(context_)};
  tcp::resolver resolver_{context_};
  asio::steady_timer timer_{context_};
  State state_ = State::none;
  std::uint32_t protocol_ = cluster::own_protocols.oldest;
  std::uint64_t life_ = 1;     // of the connection
  std::uint64_t writing_ = 0;  // the life in which it waits until it can write
  std::optional<Reader> reader_;
  bool worked_ = false;  // the peer has answered
  Duration pause_{0};
  TimePoint not_before_ = TimePoint::min();
  Error why_;        // the last connection is over
  std::string out_;  // what is to be sent first, `sent_` bytes of it are
  std::size_t sent_ = 0;
  std::deque<std::uint64_t> pushing_;  // in their order; the first is under way
  std::string head_;
  std::vector<asio::const_buffer> chunk_;
};

class Client final : public RowClient, Turn {
 public:
  explicit Client(Options options) : options_(std::move(options)) {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "carillon-pull");
      context_.run();
    });
  }
  ~Client() override {
    asio::post(context_, [this] {
      await();
      const Error why{ErrorCode::cancelled, "the client ends"};
      work();
      while (!jobs_.empty()) {
        for (Jobs all = std::exchange(jobs_, {}); auto& [ticket, job] : all) job.fail(why);
        work();
      }
      context_.stop();  // the turn is not given back
    });
    thread_.join();
  }

  std::uint64_t pull(Pull pull, Pulled pulled) override {
    return add({.what = PullJob{std::move(pull), std::move(pulled), {}, 0}});
  }
  std::uint64_t push(Push push, Pushed pushed) override {
    CARILLON_ASSERT(push.report.size() <= longest_report && push.outputs.size() <= most_tensors);
    return add({.what = PushJob{std::move(push), std::move(pushed), {}}});
  }
  void connect(const std::string& address, std::uint32_t protocol) override {
    const std::lock_guard lock(mutex_);
    openings_.emplace_back(address, protocol);
  }
  void cancel(std::uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    wishes_.emplace_back(ticket, std::nullopt);
  }
  void flush() override {
    {
      const std::lock_guard lock(mutex_);
      if (!wanted() || std::exchange(taken_, true)) return;
      holder_ = std::this_thread::get_id();
    }
    end();
  }

 private:
  using Wish = std::pair<std::uint64_t, std::optional<Job>>;  // no job: it is cancelled
  using Openings = std::vector<std::pair<std::string, std::uint32_t>>;

  bool wanted() const { return !wishes_.empty() || !openings_.empty(); }
  std::uint64_t add(Job job) {
    const std::lock_guard lock(mutex_);
    wishes_.emplace_back(++tickets_, std::move(job));
    return tickets_;
  }

  // Turn.
  void await() override {
    std::unique_lock lock(mutex_);
    if (taken_ && holder_ == std::this_thread::get_id()) {
      ++again_;
      return;
    }
    free_.wait(lock, [&] { return !taken_; });
    taken_ = true;
    holder_ = std::this_thread::get_id();
  }
  // What was asked for meanwhile has nobody else who begins it.
  void end() override {
    std::unique_lock lock(mutex_);
    if (again_ > 0) {
      --again_;
      return;
    }
    while (wanted()) {
      lock.unlock();
      work();
      lock.lock();
    }
    taken_ = false;
    free_.notify_one();
  }

  Peer& at(const std::string& address) {
    auto& kept = peers_[address];
    if (kept == nullptr)
      kept = std::make_unique<Peer>(context_, address, options_, jobs_, static_cast<Turn&>(*this));
    return *kept;
  }
  void work() {
    Openings openings;
    {
      const std::lock_guard lock(mutex_);
      wishes_.swap(working_);
      openings.swap(openings_);
    }
    for (const auto& [address, protocol] : openings) {
      at(address).speak(protocol);
      at(address).open();
    }
    std::vector<Peer*> touched;
    for (auto& [ticket, job] : working_) {
      Peer* peer = nullptr;
      if (job) {
        peer = &at(job->address());
        peer->begin(ticket, jobs_.emplace(ticket, std::move(*job)).first->second);
      } else if (auto node = jobs_.extract(ticket); !node.empty()) {
        peer = node.mapped().peer;
        peer->cancelled(ticket);
        node.mapped().fail({ErrorCode::cancelled, "the caller has cancelled it"});
      }
      if (peer != nullptr && std::ranges::find(touched, peer) == touched.end()) touched.push_back(peer);
    }
    working_.clear();
    // Whoever flushes has other things to do than to send much.
    const bool ours = std::this_thread::get_id() == thread_.get_id();
    for (Peer* peer : touched) peer->flush(ours ? 16 : 1);
  }

  const Options options_;
  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;        // somebody has the turn
  std::thread::id holder_;    // who has it
  int again_ = 0;             // times that it was taken once more
  std::vector<Wish> wishes_;  // with mutex_, as these six
  Openings openings_;
  std::uint64_t tickets_ = 0;
  // Of whoever has the turn, as all below.
  std::vector<Wish> working_;
  asio::io_context context_{1};
  const asio::executor_work_guard<asio::io_context::executor_type> works_{context_.get_executor()};
  Jobs jobs_;
  std::map<std::string, std::unique_ptr<Peer>> peers_;
  std::thread thread_;
};

}  // namespace
}  // namespace rows

std::unique_ptr<RowClient> RowClient::make(Options options) {
  return std::make_unique<rows::Client>(std::move(options));
}

RowClient::Room RowClient::room_of(std::vector<std::span<std::byte>> inputs) {
  return [inputs = std::move(inputs)](std::int64_t, std::span<const std::uint64_t>) { return inputs; };
}

}  // namespace carillon::transport
