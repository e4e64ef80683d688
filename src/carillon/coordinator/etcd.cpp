#include "carillon/coordinator/etcd.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "etcd.grpc.pb.h"
#include <grpc/grpc.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include "carillon/base/clock.h"
#include "carillon/base/files.h"

namespace carillon::coordinator {
namespace {

namespace pb = etcdserverpb;
namespace etcd = cluster::etcd;

// By the monotonic clock: deadlines hold where the wall clock is set.
gpr_timespec deadline_after(Duration wait) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(std::max(wait, Duration{0}).count(), GPR_TIMESPAN));
}

etcd::Header header_of(const pb::ResponseHeader& header) {
  return {.cluster_id = header.cluster_id(), .revision = header.revision()};
}

etcd::KeyValue value_of(const pb::KeyValue& kv) {
  return {.key = kv.key(), .value = kv.value(), .mod_revision = kv.mod_revision(), .lease = kv.lease()};
}

std::vector<etcd::KeyValue> values_of(const pb::RangeResponse& reply) {
  std::vector<etcd::KeyValue> values;
  for (const pb::KeyValue& kv : reply.kvs()) values.push_back(value_of(kv));
  return values;
}

etcd::Answer answer_of(const pb::RangeResponse& reply) {
  return etcd::RangeAnswer{header_of(reply.header()), values_of(reply), reply.more()};
}
etcd::Answer answer_of(const pb::TxnResponse& reply) {
  etcd::TxnAnswer answer{.header = header_of(reply.header()), .succeeded = reply.succeeded(), .kvs = {}};
  if (!reply.succeeded() && reply.responses_size() > 0)
    answer.kvs = values_of(reply.responses(0).response_range());
  return answer;
}
etcd::Answer answer_of(const pb::LeaseGrantResponse& reply) {
  return etcd::LeaseAnswer{header_of(reply.header()), reply.id(), reply.ttl()};
}
etcd::Answer answer_of(const pb::LeaseKeepAliveResponse& reply) {
  return etcd::LeaseAnswer{header_of(reply.header()), reply.id(), reply.ttl()};
}
etcd::Answer answer_of(const pb::LeaseRevokeResponse& reply) {
  return etcd::LeaseAnswer{.header = header_of(reply.header())};
}
etcd::Answer answer_of(const pb::WatchResponse& reply) {
  etcd::WatchAnswer answer{.header = header_of(reply.header()),
                           .created = reply.created(),
                           .canceled = reply.canceled(),
                           .compact_revision = reply.compact_revision(),
                           .cancel_reason = reply.cancel_reason(),
                           .events = {}};
  for (const pb::Event& event : reply.events())
    answer.events.push_back({event.type() == pb::Event::DELETE, value_of(event.kv())});
  return answer;
}

void compare(pb::TxnRequest& message, const std::string& key, std::int64_t mod_revision) {
  pb::Compare& compare = *message.add_compare();
  compare.set_result(pb::Compare::EQUAL);
  compare.set_target(pb::Compare::MOD);
  compare.set_key(key);
  compare.set_mod_revision(mod_revision);
}

pb::TxnRequest message_of(const etcd::Txn& txn) {
  pb::TxnRequest message;
  if (txn.mod_revision) compare(message, txn.key, *txn.mod_revision);
  if (txn.also) compare(message, txn.also->key, txn.also->mod_revision);
  pb::RequestOp& write = *message.add_success();
  if (txn.value) {
    write.mutable_request_put()->set_key(txn.key);
    write.mutable_request_put()->set_value(*txn.value);
    write.mutable_request_put()->set_lease(txn.lease);
  } else {
    write.mutable_request_delete_range()->set_key(txn.key);
  }
  message.add_failure()->mutable_request_range()->set_key(txn.key);
  return message;
}

etcd::Failure failure_of(const grpc::Status& status, bool tls) {
  etcd::Failure failure{.kind = etcd::Failure::Kind::unreachable,
                        .text = cluster::words_of_connection(status.error_message()).substr(0, 400)};
  if (tls && failure.text.find("Socket closed") != std::string::npos)
    failure.text += ": does etcd speak TLS? Without it the address begins with etcd://";
  if (failure.text.empty()) failure.text = "gRPC status " + std::to_string(status.error_code());
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::OK:  // a stream that ended
      break;
    case grpc::StatusCode::NOT_FOUND:
      failure.kind = etcd::Failure::Kind::not_found;
      break;
    default:
      failure.kind = etcd::Failure::Kind::refused;
  }
  return failure;
}

// What the calls of one loop share.
struct Hearer {
  std::function<void(std::uint64_t id, etcd::Answer)> answered;
  std::function<void(std::uint64_t id, const grpc::Status&)> failed;
};

// A call in progress; the tag of its operations, of which one is out at a time.
class Call {
 public:
  Call(std::uint64_t request, const Hearer& hearer) : id(request), hearer_(hearer) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // The operation has ended. Whether the call has.
  virtual bool proceed(bool ok) = 0;

  const std::uint64_t id;
  grpc::ClientContext context;

 protected:
  const Hearer& hearer_;
};

template <typename Reply>
class OneAnswer final : public Call {
 public:
  using Call::Call;
  void start(std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> reader) {
    reader_ = std::move(reader);
    reader_->StartCall();
    reader_->Finish(&reply_, &status_, this);
  }
  bool proceed(bool) override {
    if (status_.ok())
      hearer_.answered(id, answer_of(reply_));
    else
      hearer_.failed(id, status_);
    return true;
  }

 private:
  std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> reader_;
  Reply reply_;
  grpc::Status status_;
};

// Sends one message, and reads answers: one, or all that come.
template <typename Message, typename Reply>
class Stream final : public Call {
 public:
  Stream(std::uint64_t request, const Hearer& hearer, Message message, bool one)
      : Call(request, hearer), message_(std::move(message)), one_(one) {}
  void start(std::unique_ptr<grpc::ClientAsyncReaderWriter<Message, Reply>> stream) {
    stream_ = std::move(stream);
    stream_->StartCall(this);
  }
  bool proceed(bool ok) override {
    if (step_ == Step::finish) {
      if (!heard_) hearer_.failed(id, status_);
      return true;
    }
    if (step_ == Step::read && ok) {
      hearer_.answered(id, answer_of(reply_));
      heard_ = one_;
      if (one_) context.TryCancel();
    }
    if (!ok || heard_) {
      step_ = Step::finish;
      stream_->Finish(&status_, this);
    } else if (step_ == Step::start) {
      step_ = Step::write;
      stream_->Write(message_, this);
    } else {
      step_ = Step::read;
      reply_.Clear();
      stream_->Read(&reply_, this);
    }
    return false;
  }

 private:
  enum class Step : std::uint8_t { start, write, read, finish };
  std::unique_ptr<grpc::ClientAsyncReaderWriter<Message, Reply>> stream_;
  const Message message_;
  const bool one_;
  Step step_ = Step::start;
  bool heard_ = false;  // the one answer
  Reply reply_;
  grpc::Status status_;
};

struct Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : kv(channel), lease(channel), watch(channel) {}
  pb::KV::Stub kv;
  pb::Lease::Stub lease;
  pb::Watch::Stub watch;
};

}  // namespace

class EtcdLoop {
 public:
  EtcdLoop(const cluster::CoordinatorOptions& options, bool tls,
           const std::shared_ptr<grpc::ChannelCredentials>& credentials, Coordinator::Tell tell)
      : tls_(tls), tell_(std::move(tell)), client_(options, clock_.now()) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // what is sent twice may be done twice
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // The client waits between its tries; a longer wait here would fail them without a try.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetMaxReceiveMessageSize(32 << 20);
    for (const std::string& endpoint : options.endpoints)
      stubs_.push_back(
          std::make_unique<Stubs>(grpc::CreateCustomChannel("dns:///" + endpoint, credentials, arguments)));
    hearer_.answered = [this](std::uint64_t id, const etcd::Answer& answer) {
      const std::lock_guard lock(mutex_);
      client_.answered(id, answer, clock_.now());
    };
    hearer_.failed = [this](std::uint64_t id, const grpc::Status& status) {
      const std::lock_guard lock(mutex_);
      client_.failed(id, failure_of(status, tls_), clock_.now());
    };
    thread_ = std::thread([this] { run(); });
  }

  ~EtcdLoop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      wake();
    }
    thread_.join();
  }

  // Calls `use` with the client, and then lets the thread look at it.
  template <typename Use>
  auto with_client(const Use& use) {
    const std::lock_guard lock(mutex_);
    auto result = use(client_, clock_.now());
    wake();
    return result;
  }
  template <typename Use>
  auto look(const Use& use) const {
    const std::lock_guard lock(mutex_);
    return use(client_);
  }

 private:
  // With the lock held.
  void wake() {
    if (!std::exchange(woken_, true)) alarm_.Set(&queue_, gpr_now(GPR_CLOCK_MONOTONIC), nullptr);
  }

  void run() {
    while (true) {
      TimePoint due;
      std::vector<etcd::Request> requests;
      std::vector<cluster::CoordinatorNews> news;
      {
        const std::lock_guard lock(mutex_);
        if (stop_) break;
        if (client_.due() <= clock_.now()) client_.tick(clock_.now());
        requests = client_.take_requests();
        news = client_.take_news();
        due = client_.due();
      }
      for (etcd::Request& request : requests) start(request);
      for (const cluster::CoordinatorNews& each : news) tell_(each);
      next(due == TimePoint::max() ? gpr_inf_future(GPR_CLOCK_MONOTONIC)
                                   : deadline_after(due - clock_.now()));
    }
    // Cancelled calls end here, without etcd.
    for (const auto& [tag, call] : calls_) call->context.TryCancel();
    while (!calls_.empty()) next(gpr_inf_future(GPR_CLOCK_MONOTONIC));
    queue_.Shutdown();
    while (next(gpr_inf_future(GPR_CLOCK_MONOTONIC))) {
    }
  }

  // One operation that ended, if one does before the deadline. False: there are no more.
  bool next(gpr_timespec deadline) {
    void* tag = nullptr;
    bool ok = false;
    const auto status = queue_.AsyncNext(&tag, &ok, deadline);
    if (status == grpc::CompletionQueue::SHUTDOWN) return false;
    if (status == grpc::CompletionQueue::TIMEOUT) return true;
    if (tag == nullptr) {
      const std::lock_guard lock(mutex_);
      woken_ = false;
    } else if (static_cast<Call*>(tag)->proceed(ok)) {
      calls_.erase(static_cast<Call*>(tag));
    }
    return true;
  }

  template <typename MadeCall>
  MadeCall& keep(std::unique_ptr<MadeCall> call, const etcd::Request& request) {
    MadeCall& made = *call;
    if (!std::holds_alternative<etcd::WatchCreate>(request.body))
      made.context.set_deadline(deadline_after(request.timeout));
    calls_.emplace(&made, std::move(call));
    return made;
  }
  template <typename Reply>
  OneAnswer<Reply>& one(const etcd::Request& request) {
    return keep(std::make_unique<OneAnswer<Reply>>(request.id, hearer_), request);
  }

  void start(const etcd::Request& request) {
    Stubs& stubs = *stubs_[request.endpoint];
    if (const auto* range = std::get_if<etcd::Range>(&request.body)) {
      pb::RangeRequest message;
      message.set_key(range->key);
      message.set_range_end(range->range_end);
      message.set_limit(range->limit);
      auto& call = one<pb::RangeResponse>(request);
      call.start(stubs.kv.PrepareAsyncRange(&call.context, message, &queue_));
    } else if (const auto* txn = std::get_if<etcd::Txn>(&request.body)) {
      auto& call = one<pb::TxnResponse>(request);
      call.start(stubs.kv.PrepareAsyncTxn(&call.context, message_of(*txn), &queue_));
    } else if (const auto* grant = std::get_if<etcd::LeaseGrant>(&request.body)) {
      pb::LeaseGrantRequest message;
      message.set_ttl(grant->ttl_s);
      auto& call = one<pb::LeaseGrantResponse>(request);
      call.start(stubs.lease.PrepareAsyncLeaseGrant(&call.context, message, &queue_));
    } else if (const auto* revoke = std::get_if<etcd::LeaseRevoke>(&request.body)) {
      pb::LeaseRevokeRequest message;
      message.set_id(revoke->id);
      auto& call = one<pb::LeaseRevokeResponse>(request);
      call.start(stubs.lease.PrepareAsyncLeaseRevoke(&call.context, message, &queue_));
    } else if (const auto* renew = std::get_if<etcd::LeaseKeepAlive>(&request.body)) {
      pb::LeaseKeepAliveRequest message;
      message.set_id(renew->id);
      auto& call = keep(std::make_unique<Stream<pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse>>(
                            request.id, hearer_, message, true),
                        request);
      call.start(stubs.lease.PrepareAsyncLeaseKeepAlive(&call.context, &queue_));
    } else if (const auto* create = std::get_if<etcd::WatchCreate>(&request.body)) {
      pb::WatchRequest message;
      message.mutable_create_request()->set_key(create->key);
      message.mutable_create_request()->set_range_end(create->range_end);
      message.mutable_create_request()->set_start_revision(create->start_revision);
      auto& call = keep(
          std::make_unique<Stream<pb::WatchRequest, pb::WatchResponse>>(request.id, hearer_, message, false),
          request);
      call.start(stubs.watch.PrepareAsyncWatch(&call.context, &queue_));
    } else {
      for (const auto& [tag, call] : calls_)
        if (call->id == request.id) call->context.TryCancel();
    }
  }

  const SteadyClock clock_;
  const bool tls_;
  const Coordinator::Tell tell_;
  Hearer hearer_;
  std::vector<std::unique_ptr<Stubs>> stubs_;
  grpc::CompletionQueue queue_;
  std::map<Call*, std::unique_ptr<Call>> calls_;  // the thread's own

  mutable std::mutex mutex_;  // of all that follows
  cluster::CoordinatorClient client_;
  bool stop_ = false, woken_ = false;
  grpc::Alarm alarm_;
  std::thread thread_;
};

namespace {

Result<std::shared_ptr<grpc::ChannelCredentials>> credentials_of(const EtcdTls& tls, bool wanted) {
  if (!wanted) {
    if (!tls.ca.empty() || !tls.certificate.empty() || !tls.key.empty())
      return invalid("certificates for etcd have no use with etcd://; the address must begin with etcds://");
    return grpc::InsecureChannelCredentials();
  }
  if (tls.certificate.empty() != tls.key.empty())
    return invalid("a certificate for etcd needs its key, and a key its certificate");
  grpc::SslCredentialsOptions options;
  const std::tuple<const char*, const std::filesystem::path&, std::string&> files[] = {
      {"the CA of etcd", tls.ca, options.pem_root_certs},
      {"the certificate for etcd", tls.certificate, options.pem_cert_chain},
      {"the key for etcd", tls.key, options.pem_private_key}};
  for (const auto& [what, file, text] : files) {
    if (file.empty()) continue;
    auto read = read_file(what, file);
    if (!read) return std::unexpected(read.error());
    if (!read->contains("-----BEGIN "))
      return invalid(std::string(what) + " '" + file.string() + "' is no file of PEM");
    text = std::move(*read);
  }
  return grpc::SslCredentials(options);
}

}  // namespace

Result<std::unique_ptr<Etcd>> Etcd::open(const cluster::CoordinatorAddress& address, const EtcdTls& tls,
                                         cluster::CoordinatorOptions options, Tell tell) {
  const auto credentials = credentials_of(tls, address.tls);
  if (!credentials) return std::unexpected(credentials.error());
  options.name = address.name;
  options.endpoints = address.endpoints;
  return std::unique_ptr<Etcd>(
      new Etcd(std::make_unique<EtcdLoop>(options, address.tls, *credentials, std::move(tell))));
}

Etcd::Etcd(std::unique_ptr<EtcdLoop> loop) : OfLoop(std::move(loop)) {}
Etcd::~Etcd() = default;

Result<> Etcd::set(std::uint64_t token, const std::string& key, std::optional<std::string> value) {
  return loop_->with_client(
      [&](auto& client, TimePoint now) { return client.set(token, key, std::move(value), now); });
}
std::map<std::string, std::string> Etcd::values() const {
  return loop_->look([](const auto& client) { return client.values(); });
}

}  // namespace carillon::coordinator
