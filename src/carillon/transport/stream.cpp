#include "carillon/transport/stream.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>
#include <pthread.h>

#include "carillon/base/clock.h"
#include "carillon/transport/tls.h"

namespace carillon::transport {
namespace {

constexpr const char* method = "/carillon.hosts.Hosts/Speak";

// A host that died or stands still is noticed within two seconds, as it answers no ping. (Members that do not
// beat are missed far sooner; but whoever waits for a stream must not wait for good.)
constexpr std::pair<const char*, int> keepalive[] = {{GRPC_ARG_KEEPALIVE_TIME_MS, 1000},
                                                     {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 1000},
                                                     {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
                                                     {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
                                                     {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0}};

grpc::ByteBuffer buffer_of(std::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return {&slice, 1};
}

// An operation of gRPC, of which whoever waits at its queue hears the end.
struct Operation {
  std::function<void(bool ok)> ended;
};

// A thread that waits at a queue. (gRPC has threads of its own for this, of which two take turns at each
// queue. A frame then wakes several of them.)
class Poller {
 public:
  explicit Poller(std::unique_ptr<grpc::CompletionQueue> queue)
      : queue_(std::move(queue)), thread_([this] {
          pthread_setname_np(pthread_self(), "carillon-hear");
          void* operation = nullptr;
          bool ok = false;
          while (queue_->Next(&operation, &ok)) static_cast<Operation*>(operation)->ended(ok);
        }) {}
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  // Nothing may begin any more. Not from its thread.
  ~Poller() {
    queue_->Shutdown();
    thread_.join();
  }
  grpc::CompletionQueue& queue() { return *queue_; }

 private:
  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::thread thread_;
};

// One stream, whichever side opened it. The virtual functions differ by side.
//
// gRPC forbids that an operation begins once the stream was finished. So whoever begins one counts itself in
// `starting_` under the mutex, and begins it without the mutex. finish() is called once, when nobody begins
// an operation any more, no frame is being written, and a caller does not read. over() follows when all
// operations have ended.
class End : public Stream {
 public:
  End(Hello self, StreamOwner& owner, const StreamLimits& limits, grpc::CompletionQueue& queue)
      : self_(std::move(self)),
        owner_(owner),
        limits_(limits),
        queue_(queue),
        encoder_(limits.frame),
        read_{[this](bool ok) { on_read(ok), ended(); }},
        written_{[this](bool ok) { on_written(ok), ended(); }},
        lingered_{[this](bool) { cancel_now(), ended(); }},
        finish_{[this](bool) {
          {
            const std::lock_guard lock(mutex_);
            all_said_ = true;
          }
          ended();
        }} {}

  const Hello& peer() const final { return *peer_; }
  std::uint32_t protocol() const final { return protocol_; }
  bool opened() const { return opened_; }

  bool queue(std::uint64_t epoch, Message message) final {
    std::unique_lock lock(mutex_);
    if (over_ || broken_) return false;
    if (unsent_ >= limits_.waiting) {
      lock.unlock();
      close({ErrorCode::unavailable, fmt::format("takes nothing: {} messages wait", limits_.waiting)});
      return false;
    }
    ++unsent_;
    waiting_.push_back({epoch, std::move(message)});
    return true;
  }

  void flush() final { write_next(std::unique_lock(mutex_)); }

  void close(const Error& why) final {
    close({why.code, why.message.empty() ? "no reason was given" : why.message},
          is_caller() ? Pending::cancel : Pending::linger, true);
  }

  Counts counts() const final {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 protected:
  // The first frame of this side.
  void greet() {
    std::unique_lock lock(mutex_);
    greets_ = true;
    write_next(std::move(lock));
  }
  void read() {
    std::unique_lock lock(mutex_);
    if (over_) return;
    ++starting_;
    ++running_;
    reading_ = true;
    lock.unlock();
    start_read(&heard_, &read_);
    started();
  }

  // A frame has come; not ok: none will, as the peer or gRPC has ended the stream.
  void on_read(bool ok) {
    {
      std::unique_lock lock(mutex_);
      reading_ = false;
      if (over_) return settle(std::move(lock));
    }
    if (!ok) return close({}, is_caller() ? Pending::leave : Pending::cancel, false);
    if (const auto heard = take(); !heard) return close(heard.error());
    read();
  }
  void on_written(bool ok) {
    std::unique_lock lock(mutex_);
    writing_ = false;
    // What fails to be written says that the call is over. What has come must still be read: before that gRPC
    // does not tell a caller how it ended.
    broken_ = broken_ || !ok;
    if (over_) return settle(std::move(lock));
    write_next(std::move(lock));
  }
  void started() {
    std::unique_lock lock(mutex_);
    --starting_;
    if (over_) settle(std::move(lock));
  }
  // What becomes of a frame that is being written when the stream is to end.
  enum class Pending : std::uint8_t {
    cancel,
    linger,  // it has time to arrive, so that the peer is told why
    leave,   // gRPC ends it
  };
  // `ours`: this side ends it; else gRPC or the peer did.
  void close(const Error& why, Pending pending, bool ours) {
    std::unique_lock lock(mutex_);
    if (over_) return;
    over_ = true;
    ours_ = ours;
    why_ = why;
    waiting_ = {};
    const bool waits = writing_ || (is_caller() && reading_);
    if (waits && pending == Pending::linger) {
      ++running_;
      lingers_ = std::make_unique<grpc::Alarm>();
      lingers_->Set(&queue_,
                    std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(limits_.linger),
                    &lingered_);
    }
    settle(std::move(lock));
    if (pending == Pending::cancel) cancel_now();
  }
  // Of an operation that was counted as running: its end has been heard, and all that followed is done.
  void ended() {
    std::unique_lock lock(mutex_);
    if (--running_ > 0 || !all_said_) return;
    lock.unlock();
    over();
  }
  // Everything is over. `said`: by the peer or gRPC.
  Error on_done(const std::string& said) {
    Error why;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
      why = ours_ ? why_
                  : Error{ErrorCode::unavailable, said.empty() ? "it has ended the stream" : explained(said)};
    }
    if (peer_) why.message = fmt::format("host {}: {}", peer_->id, why.message);
    if (opened_) owner_.ended(*this, why);
    return why;
  }

  grpc::CompletionQueue& queue() const { return queue_; }

  // With mutex_, until over_ is set.
  int starting_ = 0;
  int running_ = 0;    // operations; always with mutex_
  bool ours_ = false;  // this side has ended it, for this reason
  Error why_;

 private:
  struct Waiting {
    std::uint64_t epoch = 0;
    Message message;
  };
  virtual void start_read(grpc::ByteBuffer* to, Operation* operation) = 0;
  virtual void start_write(const grpc::ByteBuffer& from, Operation* operation) = 0;
  virtual void finish(Operation* operation) = 0;
  virtual void over() = 0;
  virtual void cancel() = 0;
  virtual bool is_caller() const = 0;
  virtual std::shared_ptr<const grpc::AuthContext> security() const = 0;
  virtual std::shared_ptr<End> shared() = 0;

  void cancel_now() {
    std::unique_lock lock(mutex_);
    if (finished_) return;
    ++starting_;
    lock.unlock();
    cancel();
    started();
  }

  // Where nothing is being written and something waits: the next frame, of messages of one epoch.
  void write_next(std::unique_lock<std::mutex> lock) {
    if (over_ || broken_ || writing_ || (unsent_ == 0 && !greets_)) return;
    writing_ = true;
    ++starting_;
    ++running_;
    const bool greets = std::exchange(greets_, false);
    if (next_ == sending_.size()) {
      sending_.clear();
      next_ = 0;
      std::swap(waiting_, sending_);
    }
    lock.unlock();
    bytes_.clear();
    std::size_t sent = 0;
    if (greets) {
      encoder_.begin(self_.protocols.oldest, 0, self_, bytes_);
    } else {
      const std::uint64_t epoch = sending_[next_].epoch;
      encoder_.begin(protocol_, epoch, std::nullopt, bytes_);
      // No message takes half of a frame.
      for (; next_ < sending_.size() && sending_[next_].epoch == epoch &&
             bytes_.size() < limits_.frame.bytes / 2 && sent < limits_.frame.messages;
           ++next_, ++sent) {
        // A leader is heard from the beginning of a frame.
        if (sent > 0 && std::holds_alternative<Leads>(sending_[next_].message)) break;
        encoder_.add(sending_[next_].message, bytes_);
      }
    }
    writes_ = buffer_of(bytes_);
    lock.lock();
    unsent_ -= sent;
    ++counts_.frames_sent;
    counts_.messages_sent += sent;
    lock.unlock();
    start_write(writes_, &written_);
    started();
  }

  void settle(std::unique_lock<std::mutex> lock) {
    if (starting_ > 0 || writing_ || (is_caller() && reading_) || finished_) return;
    finished_ = true;
    ++running_;
    if (lingers_) lingers_->Cancel();
    lock.unlock();
    finish(&finish_);
  }

  Result<> take() {
    grpc::Slice slice;
    if (!heard_.DumpToSingleSlice(&slice).ok())
      return fail(ErrorCode::resource_exhausted, "no memory for a frame");
    const std::uint32_t settled = protocol_;
    auto frame = decode({reinterpret_cast<const char*>(slice.begin()), slice.size()}, limits_.frame,
                        settled > 0 ? Protocols{settled, settled} : self_.protocols);
    if (!frame) return std::unexpected(std::move(frame.error()));
    {
      const std::lock_guard lock(mutex_);
      ++counts_.frames_heard;
    }
    if (!opened_) {
      if (!frame->hello) return invalid("the first frame has no hello");
      if (frame->hello->cluster != self_.cluster)
        return invalid(
            fmt::format("it is of cluster {}, and this is {}", frame->hello->cluster, self_.cluster));
      const auto certified = identity_of(*security());
      if (!certified) return std::unexpected(certified.error());
      if (*certified) {
        const Hello& said = *frame->hello;
        if (auto same = check_member(**certified, said.cluster, said.role, said.id); !same) return same;
      }
      const std::string self = fmt::format("'{}'", self_.id), peer = fmt::format("'{}'", frame->hello->id);
      const auto both = cluster::settle({self, self_.protocols}, {peer, frame->hello->protocols});
      if (!both) return std::unexpected(both.error());
      protocol_ = *both;
      peer_ = std::move(frame->hello);
      frame->hello.reset();
      if (auto welcome = owner_.greets(*peer_); !welcome) return welcome;
      if (!is_caller()) greet();
      opened_ = true;
      owner_.opened(shared());
      if (frame->messages.empty()) return {};
    }
    if (frame->hello) return invalid("a second hello");
    owner_.heard(*this, std::move(*frame));
    return {};
  }

  const Hello self_;
  StreamOwner& owner_;
  const StreamLimits limits_;
  grpc::CompletionQueue& queue_;
  // Of the thread that reads.
  std::optional<Hello> peer_;
  std::atomic<std::uint32_t> protocol_ = 0;  // once it is settled
  std::atomic<bool> opened_ = false;
  grpc::ByteBuffer heard_;
  // Of whoever has set writing_.
  Encoder encoder_;
  std::string bytes_;
  std::vector<Waiting> sending_;
  std::size_t next_ = 0;  // of them
  grpc::ByteBuffer writes_;

  mutable std::mutex mutex_;
  std::vector<Waiting> waiting_;  // behind those in sending_
  std::size_t unsent_ = 0;        // in both
  bool greets_ = false;           // is to send its hello
  bool reading_ = false, writing_ = false, broken_ = false;
  bool over_ = false, finished_ = false;
  bool all_said_ = false;  // finish() has ended
  Counts counts_;
  std::unique_ptr<grpc::Alarm> lingers_;
  Operation read_, written_, lingered_, finish_;
};

// How many ends there are, for those who wait until there is none.
class Census {
 public:
  void born() {
    const std::lock_guard lock(mutex_);
    ++alive_;
  }
  void gone() {
    const std::lock_guard lock(mutex_);
    if (--alive_ == 0) nobody_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    nobody_.wait(lock, [this] { return alive_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable nobody_;
  int alive_ = 0;
};

// ---- the side that was called

// A call as gRPC has it.
struct Called {
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream{&context};
  Operation accepted, ended;  // `ended`: the peer has cancelled it, or it was finished
};

class Answering final : public End, public std::enable_shared_from_this<Answering> {
 public:
  Answering(std::unique_ptr<Called> call, grpc::CompletionQueue& queue, Hello self, StreamOwner& owner,
            const StreamLimits& limits, Census& census)
      : End(std::move(self), owner, limits, queue), call_(std::move(call)), census_(census) {
    census_.born();
    running_ = 1;
    call_->ended.ended = [this](bool) { close({}, Pending::leave, false), ended(); };
  }
  void begin(std::shared_ptr<Answering> self) {
    alive_ = std::move(self);
    read();
  }

 private:
  void start_read(grpc::ByteBuffer* to, Operation* operation) override { call_->stream.Read(to, operation); }
  void start_write(const grpc::ByteBuffer& from, Operation* operation) override {
    call_->stream.Write(from, operation);
  }
  void finish(Operation* operation) override {
    call_->stream.Finish(
        ours_ ? grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, why_.message) : grpc::Status::OK,
        operation);
  }
  void over() override {
    on_done("");
    Census& census = census_;
    { const auto last = std::move(alive_); }
    census.gone();
  }
  void cancel() override { call_->context.TryCancel(); }
  bool is_caller() const override { return false; }
  std::shared_ptr<const grpc::AuthContext> security() const override { return call_->context.auth_context(); }
  std::shared_ptr<End> shared() override { return shared_from_this(); }

  const std::unique_ptr<Called> call_;
  Census& census_;
  std::shared_ptr<Answering> alive_;  // until over()
};

// A call that gets one answer at most. Deletes itself.
class Brief {
 public:
  Brief(std::unique_ptr<Called> call, Census& census) : call_(std::move(call)), census_(census) {
    census_.born();
    call_->ended.ended = [this](bool) { ended(); };
  }
  Brief(const Brief&) = delete;
  Brief& operator=(const Brief&) = delete;

  void refuse(const grpc::Status& status) {
    answered_.ended = [this](bool) { ended(); };
    call_->stream.Finish(status, &answered_);
  }
  // Reads what is asked. `then` answers or refuses.
  void ask(std::function<void(const grpc::Slice&)> then) {
    asked_.ended = [this, then = std::move(then)](bool ok) {
      grpc::Slice slice;
      if (!ok || !request_.DumpToSingleSlice(&slice).ok())
        return refuse({grpc::StatusCode::INVALID_ARGUMENT, "there is no request"});
      then(slice);
    };
    call_->stream.Read(&request_, &asked_);
  }
  void answer(std::string_view bytes) {
    reply_ = buffer_of(bytes);
    answered_.ended = [this](bool) { ended(); };
    call_->stream.WriteAndFinish(reply_, {}, grpc::Status::OK, &answered_);
  }
  const grpc::GenericServerContext& context() const { return call_->context; }

 private:
  ~Brief() = default;
  // The call is over when gRPC says so, and the answer is out.
  void ended() {
    if (--waits_ > 0) return;
    Census& census = census_;
    delete this;
    census.gone();
  }

  const std::unique_ptr<Called> call_;
  Census& census_;
  int waits_ = 2;  // of the queue's thread
  Operation asked_, answered_;
  grpc::ByteBuffer request_, reply_;
};

// Does what may take a while, in order.
class Clerk {
 public:
  ~Clerk() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void tell(std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    questions_.push_back(std::move(what));
    wake_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return closing_ || !questions_.empty(); });
      if (questions_.empty()) return;
      const auto what = std::move(questions_.front());
      questions_.pop_front();
      lock.unlock();
      what();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> questions_;
  bool closing_ = false;
  std::thread thread_{[this] { run(); }};
};

class Listener final : public StreamListener {
 public:
  Listener(Hello self, StreamOwner& owner, const StreamLimits& limits, Desk* desk)
      : self_(std::move(self)), owner_(owner), limits_(limits), desk_(desk) {}
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  bool start(const std::string& address, std::shared_ptr<grpc::ServerCredentials> credentials) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, std::move(credentials), &port_);
    builder.RegisterAsyncGenericService(&service_);
    builder.SetMaxReceiveMessageSize(static_cast<int>(limits_.frame.bytes));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);  // of a connection; a host opens one
    for (const auto& [name, value] : keepalive) builder.AddChannelArgument(name, value);
    auto queue = builder.AddCompletionQueue();
    queue_ = queue.get();
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) return false;
    poller_ = std::make_unique<Poller>(std::move(queue));
    accept();
    return true;
  }
  ~Listener() override {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now());
    census_.wait();
    server_->Wait();
  }
  int port() const override { return port_; }

 private:
  void accept() {
    census_.born();  // one that waits for a call is one, too
    auto call = std::make_unique<Called>();
    Called& waits = *call;
    waits.context.AsyncNotifyWhenDone(&waits.ended);
    waits.accepted.ended = [this, call = call.release()](bool ok) {
      accepted(std::unique_ptr<Called>(call), ok);
    };
    service_.RequestCall(&waits.context, &waits.stream, queue_, queue_, &waits.accepted);
  }
  // Not ok: the server ends.
  void accepted(std::unique_ptr<Called> call, bool ok) {
    if (ok) {
      accept();
      begin(std::move(call));
    }
    call.reset();
    census_.gone();
  }
  void begin(std::unique_ptr<Called> call) {
    const std::string name = call->context.method();
    if (const auto asks = desk_call_of(name); asks && desk_ != nullptr) {
      auto* const brief = new Brief(std::move(call), census_);
      return brief->ask([this, brief, asks = *asks](const grpc::Slice& slice) {
        clerk_.tell([this, brief, asks, slice] { reply(*brief, asks, slice); });
      });
    }
    if (name != method)
      return (new Brief(std::move(call), census_))
          ->refuse(
              {grpc::StatusCode::UNIMPLEMENTED, fmt::format("{} is not served here, but {}", name, method)});
    const auto end = std::make_shared<Answering>(std::move(call), *queue_, self_, owner_, limits_, census_);
    end->begin(end);
  }
  // A question of people.
  void reply(Brief& brief, DeskCall asks, const grpc::Slice& slice) {
    const auto asker = identity_of(*brief.context().auth_context());
    if (!asker) return brief.refuse({grpc::StatusCode::UNAUTHENTICATED, asker.error().message});
    brief.answer(reply_to(asks, {reinterpret_cast<const char*>(slice.begin()), slice.size()}, *desk_,
                          self_.cluster, *asker));
  }

  const Hello self_;
  StreamOwner& owner_;
  const StreamLimits limits_;
  Desk* const desk_;
  Census census_;
  grpc::AsyncGenericService service_;
  grpc::ServerCompletionQueue* queue_ = nullptr;  // the poller's
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Poller> poller_;  // ends before the server goes
  Clerk clerk_;
  int port_ = 0;
};

// ---- the side that calls

class Dialer;

class Calling final : public End, public std::enable_shared_from_this<Calling> {
 public:
  Calling(Dialer& dialer, grpc::CompletionQueue& queue, Hello self, StreamOwner& owner,
          const StreamLimits& limits)
      : End(std::move(self), owner, limits, queue), dialer_(dialer) {
    starting_ = running_ = 1;  // nothing is finished before the call has begun
    begun_.ended = [this](bool ok) {
      if (ok) {
        greet();
        read();
      } else {
        close({}, Pending::leave, false);
      }
      started();
      ended();
    };
  }
  void begin(grpc::GenericStub& stub, std::shared_ptr<Calling> self) {
    alive_ = std::move(self);
    call_ = stub.PrepareCall(context_.get(), method, &queue());
    call_->StartCall(&begun_);
  }

 private:
  void start_read(grpc::ByteBuffer* to, Operation* operation) override { call_->Read(to, operation); }
  void start_write(const grpc::ByteBuffer& from, Operation* operation) override {
    call_->Write(from, operation);
  }
  void finish(Operation* operation) override {
    if (ours_) context_->TryCancel();  // else the peer's own words come by themselves
    call_->Finish(&status_, operation);
  }
  void over() override;
  void cancel() override { context_->TryCancel(); }
  bool is_caller() const override { return true; }
  std::shared_ptr<const grpc::AuthContext> security() const override { return context_->auth_context(); }
  std::shared_ptr<End> shared() override { return shared_from_this(); }

  Dialer& dialer_;
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  Operation begun_;
  grpc::Status status_;
  std::shared_ptr<Calling> alive_;  // until over()
};

grpc::ChannelArguments arguments_of(const StreamDialer::Options& options) {
  grpc::ChannelArguments arguments;
  const auto ms = [](Duration pause) {
    return static_cast<int>(
        std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(pause).count()));
  };
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, ms(options.first_pause));
  // So long has a connection to come about. With TLS, on a busy host, that is no matter of milliseconds.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, ms(options.longest_pause));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  for (const auto& [name, value] : keepalive) arguments.SetInt(name, value);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.limits.frame.bytes));
  return arguments;
}

class Dialer final : public StreamDialer {
 public:
  Dialer(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials, Hello self,
         StreamOwner& owner, const Options& options)
      : self_(std::move(self)),
        owner_(owner),
        options_(options),
        stub_(grpc::CreateCustomChannel(address, credentials, arguments_of(options))),
        thread_([this] { run(); }) {}
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  ~Dialer() override {
    std::shared_ptr<Calling> current;
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      current = current_;
    }
    changed_.notify_all();
    if (current) current->close({ErrorCode::cancelled, "this host has ended the stream"});
    thread_.join();
  }

  void ended(const Error& why) {
    const std::lock_guard lock(mutex_);
    last_error_ = why.message;
    ended_ = true;
    changed_.notify_all();
  }

  std::string last_error() const override {
    const std::lock_guard lock(mutex_);
    return last_error_;
  }
  bool is_open() const override {
    const std::lock_guard lock(mutex_);
    return current_ != nullptr && !ended_ && current_->opened();
  }

 private:
  void run() {
    Duration pause{0};
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, pause, [this] { return closing_; })) {
      const auto end = std::make_shared<Calling>(*this, poller_.queue(), self_, owner_, options_.limits);
      current_ = end;
      ended_ = false;
      lock.unlock();
      const TimePoint begun = clock_.now();
      end->begin(stub_, end);
      lock.lock();
      changed_.wait(lock, [this] { return ended_; });
      current_.reset();
      const bool lasted = end->opened() && clock_.now() - begun > options_.longest_pause;
      pause =
          lasted ? options_.first_pause : std::clamp(2 * pause, options_.first_pause, options_.longest_pause);
    }
  }

  const Hello self_;
  StreamOwner& owner_;
  const Options options_;
  const SteadyClock clock_;
  grpc::GenericStub stub_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Calling> current_;
  std::string last_error_;
  bool ended_ = false, closing_ = false;
  Poller poller_{std::make_unique<grpc::CompletionQueue>()};
  std::thread thread_;  // last: it uses all of the above
};

// The context keeps the channel. So it goes before the dialer hears of the end, whoever keeps the stream.
void Calling::over() {
  const Error why = on_done(status_.error_message());
  call_.reset();
  context_.reset();
  Dialer& dialer = dialer_;
  { const auto last = std::move(alive_); }
  dialer.ended(why);
}

}  // namespace

void wait_at_own_sockets() {
  ::setenv("GRPC_POLL_STRATEGY", "poll", 0);
  // Nobody waits at a connection that is yet to come about, but gRPC itself, every 5 s if it is not told.
  ::setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "20", 0);
}

Result<std::unique_ptr<StreamListener>> StreamListener::open(
    const std::string& address, std::shared_ptr<grpc::ServerCredentials> credentials, Hello self,
    StreamOwner& owner, const StreamLimits& limits, Desk* desk) {
  auto listener = std::make_unique<Listener>(std::move(self), owner, limits, desk);
  if (!listener->start(address, std::move(credentials)))
    return fail(ErrorCode::unavailable, fmt::format("cannot listen at {}", address));
  return listener;
}

std::unique_ptr<StreamDialer> StreamDialer::open(const std::string& address,
                                                 std::shared_ptr<grpc::ChannelCredentials> credentials,
                                                 Hello self, StreamOwner& owner, const Options& options) {
  return std::make_unique<Dialer>(address, credentials, std::move(self), owner, options);
}

}  // namespace carillon::transport
