#include "carillon/transport/stream.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <grpcpp/alarm.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>

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

// One stream, whichever side opened it. The virtual functions differ by side.
//
// gRPC forbids that an operation begins once the stream was finished. So whoever begins one counts itself in
// `starting_` under the mutex and begins it without the mutex, as its end may be heard within the call.
// finish() is called once, when nobody begins an operation any more and no frame is being written.
class End : public Stream {
 public:
  End(Hello self, StreamOwner& owner, const StreamLimits& limits)
      : self_(std::move(self)), owner_(owner), limits_(limits), encoder_(limits.frame) {}

  const Hello& peer() const final { return *peer_; }
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
    lock.unlock();
    start_read(&heard_);
    started();
  }

  // A frame has come; not ok: none will, as the peer or gRPC has ended the stream.
  void on_read(bool ok) {
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
    const bool writing = writing_;
    settle(std::move(lock));
    if (!writing || pending == Pending::leave) return;
    if (pending == Pending::cancel) return cancel_now();
    lingers_.Set(std::chrono::system_clock::now() +
                     std::chrono::duration_cast<std::chrono::system_clock::duration>(limits_.linger),
                 [weak = std::weak_ptr<End>(shared())](bool) {
                   if (const auto end = weak.lock()) end->cancel_now();
                 });
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

  // With mutex_, until over_ is set.
  int starting_ = 0;
  bool ours_ = false;  // this side has ended it, for this reason
  Error why_;

 private:
  struct Waiting {
    std::uint64_t epoch = 0;
    Message message;
  };
  virtual void start_read(grpc::ByteBuffer* to) = 0;
  virtual void start_write(const grpc::ByteBuffer* from) = 0;
  virtual void finish() = 0;
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
      encoder_.begin(0, self_, bytes_);
    } else {
      const std::uint64_t epoch = sending_[next_].epoch;
      encoder_.begin(epoch, std::nullopt, bytes_);
      // No message takes half of a frame.
      for (; next_ < sending_.size() && sending_[next_].epoch == epoch &&
             bytes_.size() < limits_.frame.bytes / 2 && sent < limits_.frame.messages;
           ++next_, ++sent)
        encoder_.add(sending_[next_].message, bytes_);
    }
    writes_ = buffer_of(bytes_);
    lock.lock();
    unsent_ -= sent;
    ++counts_.frames_sent;
    counts_.messages_sent += sent;
    lock.unlock();
    start_write(&writes_);
    started();
  }

  void settle(std::unique_lock<std::mutex> lock) {
    if (starting_ > 0 || writing_ || finished_) return;
    finished_ = true;
    lock.unlock();
    finish();
  }

  Result<> take() {
    grpc::Slice slice;
    if (!heard_.DumpToSingleSlice(&slice).ok())
      return fail(ErrorCode::resource_exhausted, "no memory for a frame");
    auto frame = decode({reinterpret_cast<const char*>(slice.begin()), slice.size()}, limits_.frame);
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
  // Of the thread that reads.
  std::optional<Hello> peer_;
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
  bool writing_ = false, broken_ = false;
  bool over_ = false, finished_ = false;
  Counts counts_;
  grpc::Alarm lingers_;
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

class Answering final : public End,
                        public grpc::ServerGenericBidiReactor,
                        public std::enable_shared_from_this<Answering> {
 public:
  Answering(grpc::GenericCallbackServerContext& context, Hello self, StreamOwner& owner,
            const StreamLimits& limits, Census& census)
      : End(std::move(self), owner, limits), context_(context), census_(census) {
    census_.born();
  }
  void begin(std::shared_ptr<Answering> self) {
    alive_ = std::move(self);
    read();
  }
  void OnReadDone(bool ok) override { on_read(ok); }
  void OnWriteDone(bool ok) override { on_written(ok); }
  void OnCancel() override { close({}, Pending::leave, false); }
  void OnDone() override {
    on_done("");
    Census& census = census_;
    { const auto last = std::move(alive_); }
    census.gone();
  }

 private:
  void start_read(grpc::ByteBuffer* to) override { StartRead(to); }
  void start_write(const grpc::ByteBuffer* from) override { StartWrite(from); }
  void finish() override {
    Finish(ours_ ? grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, why_.message) : grpc::Status::OK);
  }
  void cancel() override { context_.TryCancel(); }
  bool is_caller() const override { return false; }
  std::shared_ptr<const grpc::AuthContext> security() const override { return context_.auth_context(); }
  std::shared_ptr<End> shared() override { return shared_from_this(); }

  grpc::GenericCallbackServerContext& context_;
  Census& census_;
  std::shared_ptr<Answering> alive_;  // until OnDone()
};

class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const std::string& name) {
    Finish({grpc::StatusCode::UNIMPLEMENTED, fmt::format("{} is not served here, but {}", name, method)});
  }
  void OnDone() override { delete this; }
};

// A question of people. It is answered at once.
class Asked final : public grpc::ServerGenericBidiReactor {
 public:
  Asked(DeskCall call, Desk& desk, std::string_view cluster, Census& census,
        Result<std::optional<Identity>> asker)
      : call_(call), desk_(desk), cluster_(cluster), census_(census), asker_(std::move(asker)) {
    census_.born();
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    grpc::Slice slice;
    if (!ok || !request_.DumpToSingleSlice(&slice).ok())
      return Finish({grpc::StatusCode::INVALID_ARGUMENT, "there is no request"});
    if (!asker_) return Finish({grpc::StatusCode::UNAUTHENTICATED, asker_.error().message});
    reply_ = buffer_of(reply_to(call_, {reinterpret_cast<const char*>(slice.begin()), slice.size()}, desk_,
                                cluster_, *asker_));
    StartWriteAndFinish(&reply_, {}, grpc::Status::OK);
  }
  void OnDone() override {
    Census& census = census_;
    delete this;
    census.gone();
  }

 private:
  const DeskCall call_;
  Desk& desk_;
  const std::string cluster_;
  Census& census_;
  const Result<std::optional<Identity>> asker_;
  grpc::ByteBuffer request_, reply_;
};

class Listener final : public StreamListener, grpc::CallbackGenericService {
 public:
  Listener(Hello self, StreamOwner& owner, const StreamLimits& limits, Desk* desk)
      : self_(std::move(self)), owner_(owner), limits_(limits), desk_(desk) {}
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  bool start(const std::string& address, std::shared_ptr<grpc::ServerCredentials> credentials) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, std::move(credentials), &port_);
    builder.RegisterCallbackGenericService(this);
    builder.SetMaxReceiveMessageSize(static_cast<int>(limits_.frame.bytes));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);  // of a connection; a host opens one
    for (const auto& [name, value] : keepalive) builder.AddChannelArgument(name, value);
    server_ = builder.BuildAndStart();
    return server_ != nullptr && port_ != 0;
  }
  ~Listener() override {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now());
    census_.wait();
    server_->Wait();
  }
  int port() const override { return port_; }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    if (const auto call = desk_call_of(context->method()); call && desk_ != nullptr)
      return new Asked(*call, *desk_, self_.cluster, census_, identity_of(*context->auth_context()));
    if (context->method() != method) return new Refusal(context->method());
    const auto end = std::make_shared<Answering>(*context, self_, owner_, limits_, census_);
    end->begin(end);
    return end.get();
  }

  const Hello self_;
  StreamOwner& owner_;
  const StreamLimits limits_;
  Desk* const desk_;
  Census census_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

// ---- the side that calls

class Dialer;

class Calling final : public End,
                      public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                      public std::enable_shared_from_this<Calling> {
 public:
  Calling(Dialer& dialer, Hello self, StreamOwner& owner, const StreamLimits& limits)
      : End(std::move(self), owner, limits), dialer_(dialer) {
    starting_ = 1;  // nothing is finished before begin() is done
  }
  void begin(grpc::GenericStub& stub, std::shared_ptr<Calling> self) {
    alive_ = std::move(self);
    stub.PrepareBidiStreamingCall(context_.get(), method, {}, this);
    AddHold();  // until finish(): operations begin from any thread
    StartCall();
    greet();
    read();
    started();
  }
  void OnReadDone(bool ok) override { on_read(ok); }
  void OnWriteDone(bool ok) override { on_written(ok); }
  void OnDone(const grpc::Status& status) override;

 private:
  void start_read(grpc::ByteBuffer* to) override { StartRead(to); }
  void start_write(const grpc::ByteBuffer* from) override { StartWrite(from); }
  void finish() override {
    if (ours_) context_->TryCancel();  // else the peer's own words come by themselves
    RemoveHold();
  }
  void cancel() override { context_->TryCancel(); }
  bool is_caller() const override { return true; }
  std::shared_ptr<const grpc::AuthContext> security() const override { return context_->auth_context(); }
  std::shared_ptr<End> shared() override { return shared_from_this(); }

  Dialer& dialer_;
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  std::shared_ptr<Calling> alive_;  // until OnDone()
};

grpc::ChannelArguments arguments_of(const StreamDialer::Options& options) {
  grpc::ChannelArguments arguments;
  const auto ms = [](Duration pause) {
    return static_cast<int>(
        std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(pause).count()));
  };
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, ms(options.first_pause));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, ms(options.longest_pause));
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
      const auto end = std::make_shared<Calling>(*this, self_, owner_, options_.limits);
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
  std::thread thread_;  // last: it uses all of the above
};

// The context keeps the channel, which must not end on a thread of its own: gRPC would wait there for itself.
// So it goes before the dialer hears of the end, whoever keeps the stream.
void Calling::OnDone(const grpc::Status& status) {
  const Error why = on_done(status.error_message());
  context_.reset();
  Dialer& dialer = dialer_;
  { const auto last = std::move(alive_); }
  dialer.ended(why);
}

}  // namespace

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
