#include "carillon/transport/row_client.h"

#include <algorithm>
#include <array>
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

namespace carillon::transport {
namespace rows {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

class Peer;

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

// The connection with a frontend. On the client's thread.
class Peer {
 public:
  Peer(asio::io_context& context, std::string address, const RowClient::Options& options, Jobs& jobs)
      : context_(context), address_(std::move(address)), options_(options), jobs_(jobs) {}

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
  // Sends what waits, as far as the kernel takes it.
  void flush() {
    for (int chunks = 0; state_ == State::there;) {
      std::size_t count = 0;
      boost::system::error_code error;
      if (!out_.empty()) {
        count = socket_.write_some(asio::buffer(out_.data() + sent_, out_.size() - sent_), error);
        sent_ += count;
        if (sent_ == out_.size()) out_.clear(), sent_ = 0;
      } else if (++chunks > 16) {
        return await_write();  // others have their turn
      } else if (!next_chunk()) {
        return;
      } else {
        count = socket_.write_some(chunk_, error);
        // The rest is copied, as a caller's memory is not used once its handler was called.
        for (const asio::const_buffer& part : chunk_) {
          const std::size_t skipped = std::min(count, part.size());
          count -= skipped;
          out_.append(static_cast<const char*>(part.data()) + skipped, part.size() - skipped);
        }
      }
      if (would_block(error)) return await_write();
      if (error) return broke({ErrorCode::unavailable, error.message()});
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
  // Puts the next part of the first push into `chunk_`. False: there is none.
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
      const RowClient::Push& asked = push->asked;
      head_.clear();
      std::size_t size = 0;  // of data in this frame
      if (!push->left) {
        push->left.emplace(asked.outputs);
        const std::size_t fields = sizeof(PushBody) + asked.outputs.size() * sizeof(std::uint64_t);
        if (fields + asked.report.size() + push->left->left() <= longest_body) size = push->left->left();
        put(head_,
            Header{Kind::push, static_cast<std::uint32_t>(fields + asked.report.size() + size), ticket});
        put(head_, PushBody{asked.key, asked.epoch, static_cast<std::uint32_t>(asked.outputs.size()),
                            static_cast<std::uint32_t>(asked.report.size())});
        for (const auto& output : asked.outputs) put(head_, std::uint64_t{output.size()});
        head_.append(asked.report);
      } else {
        size = std::min<std::uint64_t>(push->left->left(), longest_body);
        put(head_, Header{Kind::data, static_cast<std::uint32_t>(size), ticket});
      }
      chunk_.emplace_back(head_.data(), head_.size());
      push->left->peek(size, [&](auto part) { chunk_.emplace_back(part.data(), part.size()); });
      push->left->skip(size);
      return true;
    }
    return false;
  }

  // A handler that does nothing once the connection is another.
  template <typename Then>
  auto guarded(Then then) {
    return [this, life = life_, then](const boost::system::error_code& error) {
      if (life == life_) then(error);
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
                            [this, life = life_](const boost::system::error_code& failed, auto found) {
                              if (life != life_ || state_ != State::connecting) return;
                              if (failed) return broke({ErrorCode::unavailable, failed.message()});
                              connect_to(found);
                            });
  }
  void connect_to(const tcp::resolver::results_type& found) {
    asio::async_connect(socket_, found,
                        [this, life = life_](const boost::system::error_code& error, const tcp::endpoint&) {
                          if (life != life_ || state_ != State::connecting) return;
                          if (error) return broke({ErrorCode::unavailable, error.message()});
                          connected();
                        });
  }
  void connected() {
    state_ = State::there;
    timer_.cancel();
    prepare(socket_);
    reader_.emplace(false);
    put(out_, hello_of(options_.cluster));
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
    boost::system::error_code error;
    socket_.close(error);
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
    socket_.async_wait(tcp::socket::wait_read, guarded([this](const boost::system::error_code& error) {
                         if (!error) read();
                       }));
  }
  void read() {
    for (int turn = 0; turn < 16; ++turn) {
      const auto more = reader_->read(socket_, *this);
      if (!more) return broke(more.error());
      if (!*more) break;
    }
    await_read();
    flush();  // cancels
  }
  void await_write() {
    if (std::exchange(writing_, life_) == life_) return;
    socket_.async_wait(tcp::socket::wait_write, guarded([this](const boost::system::error_code& error) {
                         writing_ = 0;
                         if (!error) flush();
                       }));
  }

  asio::io_context& context_;
  const std::string address_;
  const RowClient::Options& options_;
  Jobs& jobs_;
  const SteadyClock clock_;
  tcp::socket socket_{context_};
  tcp::resolver resolver_{context_};
  asio::steady_timer timer_{context_};
  State state_ = State::none;
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

class Client final : public RowClient {
 public:
  explicit Client(Options options) : options_(std::move(options)) {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "carillon-pull");
      context_.run();
    });
  }
  ~Client() override {
    asio::post(context_, [this] {
      const Error why{ErrorCode::cancelled, "the client ends"};
      work();
      while (!jobs_.empty()) {
        for (Jobs all = std::exchange(jobs_, {}); auto& [ticket, job] : all) job.fail(why);
        work();
      }
      context_.stop();
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
  void cancel(std::uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    tell({ticket, std::nullopt});
  }

 private:
  using Wish = std::pair<std::uint64_t, std::optional<Job>>;  // no job: it is cancelled

  std::uint64_t add(Job job) {
    const std::lock_guard lock(mutex_);
    tell({++tickets_, std::move(job)});
    return tickets_;
  }
  void tell(Wish wish) {  // with the mutex
    wishes_.push_back(std::move(wish));
    if (wishes_.size() == 1) asio::post(context_, [this] { work(); });
  }
  void work() {
    {
      const std::lock_guard lock(mutex_);
      wishes_.swap(working_);
    }
    std::vector<Peer*> touched;
    for (auto& [ticket, job] : working_) {
      Peer* peer = nullptr;
      if (job) {
        auto& kept = peers_[job->address()];
        if (kept == nullptr) kept = std::make_unique<Peer>(context_, job->address(), options_, jobs_);
        peer = kept.get();
        peer->begin(ticket, jobs_.emplace(ticket, std::move(*job)).first->second);
      } else if (auto node = jobs_.extract(ticket); !node.empty()) {
        peer = node.mapped().peer;
        peer->cancelled(ticket);
        node.mapped().fail({ErrorCode::cancelled, "the caller has cancelled it"});
      }
      if (peer != nullptr && std::ranges::find(touched, peer) == touched.end()) touched.push_back(peer);
    }
    working_.clear();
    for (Peer* peer : touched) peer->flush();
  }

  const Options options_;
  std::mutex mutex_;
  std::vector<Wish> wishes_;   // with mutex_
  std::uint64_t tickets_ = 0;  // likewise
  std::vector<Wish> working_;  // of the thread, as all below
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
