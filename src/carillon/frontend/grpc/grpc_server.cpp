#include "carillon/frontend/grpc/grpc_server.h"

#include <algorithm>
#include <atomic>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "grpc_service.pb.h"
#include "health.pb.h"
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "carillon/frontend/api/model_orders.h"
#include "carillon/frontend/doors/messages.h"
#include "carillon/frontend/grpc/answer_thread.h"
#include "carillon/frontend/grpc/grpc_access.h"
#include "carillon/frontend/grpc/grpc_credentials.h"
#include "carillon/frontend/grpc/grpc_health.h"
#include "carillon/frontend/grpc/grpc_infer.h"
#include "carillon/frontend/grpc/grpc_raw.h"
#include "carillon/frontend/grpc/grpc_reflection.h"
#include "carillon/frontend/grpc/grpc_stream.h"
#include "carillon/frontend/net/listener.h"

namespace carillon::frontend {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// HPACK's tables do not survive a header that gRPC refuses: beyond this the connection and all its calls end.
// So it is eight times gRPC's own default; but as small as HTTP's, since gRPC holds a header that never ends,
// or whose message does not come, outside every bound of ours.
constexpr int longest_metadata = 1 << 16;
constexpr int handshake_ms = 15'000;

// What the answer of a call that is no inference, and its metadata, hold of the bytes in flight until the
// client has the answer.
class AnsweredRoom {
 public:
  AnsweredRoom(InferDoor& door, CallbackServerContext& context)
      : connection_(door.side_shares.of(context.peer())),
        room_(door.commons.side, connection_.share()),
        metadata_(metadata_cost(context)),
        context_(context) {}

  // Where there is no room for the answer it goes, and the status says why.
  grpc::Status take(grpc::ByteBuffer& answer) {
    const std::size_t bytes = answer.Length();
    if (room_.hold(bytes + metadata_)) return grpc::Status::OK;
    answer.Clear();
    return refuse_full(context_,
                       "there is no room now for the answer's " + std::to_string(bytes) +
                           " bytes: too many answers have not been taken yet, of this connection or of all");
  }

 private:
  const CallOfConnection connection_;
  SideRoom room_;
  const std::size_t metadata_;
  CallbackServerContext& context_;
};

// A call that is answered as it comes. Its answer counts as bytes in flight until the client has it. Deletes
// itself when gRPC is done with it.
class AnsweredReactor final : public ServerUnaryReactor {
 public:
  AnsweredReactor(InferDoor& door, CallbackServerContext& context, grpc::ByteBuffer& answer,
                  std::unique_ptr<AccessRecord> record, grpc::Status status)
      : counted_(door), room_(door, context) {
    if (status.ok() && !counted_.fits()) status = too_many_calls(door, context);
    if (status.ok()) status = room_.take(answer);
    const std::size_t size = status.ok() ? answer.Length() : 0;
    end_record(door.commons, std::move(record), status.error_code(), size);
    counted_.begin_taking(context, size);
    Finish(status);
  }
  void OnDone() override { delete this; }

 private:
  CountedCall counted_;
  AnsweredRoom room_;
};

// An order that takes its time. Deletes itself when gRPC is done with it.
class OrderReactor final : public ServerUnaryReactor {
 public:
  OrderReactor(InferDoor& door, CallbackServerContext& context, ModelOrder order, Reservation room,
               std::unique_ptr<AccessRecord> record)
      : door_(door), counted_(door), context_(context), room_(std::move(room)), record_(std::move(record)) {
    door_.open.fetch_add(1);
    if (!counted_.fits()) {
      state_->finish([this] { end(too_many_calls(door_, context_)); });
      return;
    }
    carry_out(door.service, std::move(order), [state = state_, this](Result<> result, bool full) {
      state->finish([&] {
        if (result) return end(grpc::Status::OK);
        end(full ? refuse_full(context_, result.error().message) : status_of(result.error()));
      });
    });
  }
  ~OrderReactor() override { door_.open.fetch_sub(1); }

  // It goes on; but nobody waits for it any more, nor does the server's end.
  void OnCancel() override {
    state_->finish([this] { end({grpc::StatusCode::CANCELLED, "the client has gone"}); });
  }
  void OnDone() override {
    end_record(door_.commons, std::move(record_), code_, 0);
    delete this;
  }

 private:
  void end(const grpc::Status& status) {
    code_ = status.error_code();
    counted_.begin_taking(context_, 0);
    Finish(status);
  }

  // Whoever comes first answers; the other may find no reactor any more.
  struct State {
    std::atomic<bool> finished{false};
    template <typename Answer>
    void finish(const Answer& answer) {
      if (!finished.exchange(true)) answer();
    }
  };
  InferDoor& door_;
  CountedCall counted_;
  CallbackServerContext& context_;
  const Reservation room_;  // for the order
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::unique_ptr<AccessRecord> record_;
  int code_ = grpc::StatusCode::OK;
};

// A call whose answer somebody else makes, and which nothing cancels. Deletes itself when gRPC is done with
// it.
class WaitingReactor final : public ServerUnaryReactor {
 public:
  WaitingReactor(InferDoor& door, CallbackServerContext& context, grpc::ByteBuffer& answer,
                 std::unique_ptr<AccessRecord> record)
      : door_(door),
        counted_(door),
        context_(context),
        answer_(answer),
        record_(std::move(record)),
        room_(door, context) {
    door_.open.fetch_add(1);
  }
  ~WaitingReactor() override { door_.open.fetch_sub(1); }

  bool fits() const { return counted_.fits(); }
  // Once; the reactor may be gone behind it.
  void end(grpc::Status status) {
    if (status.ok()) status = room_.take(answer_);
    const std::size_t size = status.ok() ? answer_.Length() : 0;
    end_record(door_.commons, std::move(record_), status.error_code(), size);
    counted_.begin_taking(context_, size);
    Finish(status);
  }
  void OnDone() override { delete this; }

 private:
  InferDoor& door_;
  CountedCall counted_;
  CallbackServerContext& context_;
  grpc::ByteBuffer& answer_;
  std::unique_ptr<AccessRecord> record_;
  AnsweredRoom room_;
};

// The model that a request names, where it names one.
template <typename Request>
std::string_view model_named(const Request& request) {
  using namespace inference;
  if constexpr (std::is_same_v<Request, ModelReadyRequest> || std::is_same_v<Request, ModelMetadataRequest> ||
                std::is_same_v<Request, ModelConfigRequest> ||
                std::is_same_v<Request, ModelStatisticsRequest>)
    return request.name();
  else if constexpr (requires { request.model_name(); })
    return request.model_name();
  else
    return {};
}

std::optional<Denial> check_named(const Caller* caller, std::string_view model) {
  if (model.empty()) return std::nullopt;
  return Guard::check_model(caller, model);
}

// A service with methods that answer at once.
class AnsweringService : public RawService {
 protected:
  AnsweringService(std::string name, InferDoor& door) : door_(door), name_(std::move(name)) {}

  std::string path(const char* method) const { return "/" + name_ + "/" + method; }

  // `caller`: null where nobody needs a key.
  template <typename Request, typename Response>
  using Answer = std::function<Result<Response>(const Request&, const Caller* caller)>;

  template <typename Request, typename Response>
  void add(const char* method, Need need, Answer<Request, Response> answer) {
    add_unary(path(method), [this, need, name = path(method), answer = std::move(answer)](
                                CallbackServerContext* context, RawMessage& message, grpc::ByteBuffer& out) {
      auto record = recorded(door_, *context, name, message);
      Request request;
      const auto caller = begin(*context, message, need, record.get(), request);
      const grpc::Status status =
          caller ? respond(answer, request, caller->get(), *context, out) : caller.error();
      return new AnsweredReactor(door_, *context, out, std::move(record), status);
    });
  }

  // One that may have to wait for a device.
  template <typename Request, typename Response>
  void add_waiting(const char* method, Need need, Answer<Request, Response> answer) {
    add_unary(
        path(method),
        [this, need, name = path(method), answer = std::move(answer)](
            CallbackServerContext* context, RawMessage& message,
            grpc::ByteBuffer& out) -> ServerUnaryReactor* {
          auto record = recorded(door_, *context, name, message);
          auto request = std::make_shared<Request>();
          auto caller = begin(*context, message, need, record.get(), *request);
          WorkPool* const copies = door_.commons.copies.get();
          if (!caller || copies == nullptr) {
            const grpc::Status status =
                caller ? respond(answer, *request, caller->get(), *context, out) : caller.error();
            return new AnsweredReactor(door_, *context, out, std::move(record), status);
          }
          auto* const reactor = new WaitingReactor(door_, *context, out, std::move(record));
          if (!reactor->fits())
            reactor->end(too_many_calls(door_, *context));
          else if (!copies->post([reactor, answer, request, caller = std::move(*caller), context, &out] {
                     reactor->end(respond(answer, *request, caller.get(), *context, out));
                   }))
            reactor->end(refuse_call(*context, too_many_copies()));
          return reactor;
        });
  }

  // Of a call that has just come: it joins its trace.
  static std::unique_ptr<AccessRecord> recorded(InferDoor& door, CallbackServerContext& context,
                                                std::string_view name, const RawMessage& message) {
    const TraceContext trace = join_trace(context, door.commons.options.trace_share);
    return begin_record(door.commons, context, name, message.bytes.Length(), trace);
  }

  InferDoor& door_;

 private:
  // Reads the request of a call that may be made, and says whose it is; or the status that refuses it.
  template <typename Request>
  std::expected<std::shared_ptr<Caller>, grpc::Status> begin(CallbackServerContext& context,
                                                             RawMessage& message, Need need,
                                                             AccessRecord* record, Request& request) {
    auto caller = admit_grpc(*door_.commons.guard, context, need, door_.service.now());
    if (!caller) return std::unexpected(refuse_call(context, caller.error()));
    if (record != nullptr && *caller) record->key = (*caller)->key.name;
    // None of these methods takes much. Read, a message may take a hundred times as much.
    if (auto read = read_message(message, ByteBudget::small, nullptr, request); !read.ok())
      return std::unexpected(read);
    if (const auto wrong = check_named(caller->get(), model_named(request)))
      return std::unexpected(refuse_call(context, *wrong));
    return std::move(*caller);
  }

  template <typename Request, typename Response>
  static grpc::Status respond(const Answer<Request, Response>& answer, const Request& request,
                              const Caller* caller, CallbackServerContext& context, grpc::ByteBuffer& out) {
    const Result<Response> response = answer(request, caller);
    if (!response) return refuse_call(context, response.error());
    write_message(*response, out);
    return grpc::Status::OK;
  }

  const std::string name_;
};

class InferenceService final : public AnsweringService {
 public:
  explicit InferenceService(InferDoor& door) : AnsweringService("inference.GRPCInferenceService", door) {
    using namespace inference;
    auto& service = door.service;
    add_unary(path("ModelInfer"),
              [&door](CallbackServerContext* context, RawMessage& message, grpc::ByteBuffer& out) {
                return infer(door, context, message, out);
              });
    add<ServerLiveRequest, ServerLiveResponse>("ServerLive", Need::nothing, [](const auto&, auto) {
      ServerLiveResponse response;
      response.set_live(true);
      return response;
    });
    add<ServerReadyRequest, ServerReadyResponse>("ServerReady", Need::nothing, [&door](const auto&, auto) {
      ServerReadyResponse response;
      response.set_ready(server_ready(door.service, door.commons).has_value());
      return response;
    });
    add<ModelReadyRequest, ModelReadyResponse>(
        "ModelReady", Need::reading, [&service](const auto& request, auto) -> Result<ModelReadyResponse> {
          // As Triton has it, a model that is not there is not ready: clients ask this to wait for one.
          const auto view = service.find(request.name(), request.version());
          if (!view && view.error().code != ErrorCode::not_found &&
              view.error().code != ErrorCode::unavailable)
            return std::unexpected(view.error());
          ModelReadyResponse response;
          response.set_ready(view && (*view)->ready);
          return response;
        });
    add<ServerMetadataRequest, ServerMetadataResponse>(
        "ServerMetadata", Need::reading,
        [&door](const auto&, auto) { return server_metadata(door.commons); });
    add<ModelMetadataRequest, ModelMetadataResponse>(
        "ModelMetadata", Need::reading, [&service](const auto& request, auto) {
          return model_metadata(service, request.name(), request.version());
        });
    add<ModelConfigRequest, ModelConfigResponse>(
        "ModelConfig", Need::reading, [&service](const auto& request, auto) -> Result<ModelConfigResponse> {
          auto config = model_config(service, request.name(), request.version());
          if (!config) return std::unexpected(std::move(config.error()));
          ModelConfigResponse response;
          *response.mutable_config() = std::move(*config);
          return response;
        });
    add<ModelStatisticsRequest, ModelStatisticsResponse>(
        "ModelStatistics", Need::reading, [&service](const auto& request, const Caller* caller) {
          return model_statistics(service, request.name(), request.version(), caller);
        });
    add<RepositoryIndexRequest, RepositoryIndexResponse>(
        "RepositoryIndex", Need::reading,
        [&service](const auto& request, const Caller* caller) -> Result<RepositoryIndexResponse> {
          if (!request.repository_name().empty())
            return fail(ErrorCode::unsupported,
                        "repository_name: this server has one repository, without a name; leave it out");
          return repository_index(service, request.ready(), caller);
        });
    add_shared_memory(door.commons.regions);
    add<LogSettingsRequest, LogSettingsResponse>(
        "LogSettings", Need::admin,
        [&door](const auto& request, auto) { return log_settings(door.commons.log_settings, request); });
    add<TraceSettingRequest, TraceSettingResponse>(
        "TraceSetting", Need::admin, [&door](const auto& request, auto) {
          return trace_settings(door.service, door.commons.trace_settings, request);
        });
    add_order<RepositoryModelLoadRequest, RepositoryModelLoadResponse>("RepositoryModelLoad", door);
    add_order<RepositoryModelUnloadRequest, RepositoryModelUnloadResponse>("RepositoryModelUnload", door);
    add_stream(path("ModelStreamInfer"),
               [&door](CallbackServerContext* context) { return infer_stream(door, *context); });
  }

 private:
  template <typename Request, typename Response>
  void add_order(const char* method, InferDoor& door) {
    add_unary(
        path(method),
        [&door, name = path(method)](CallbackServerContext* context, RawMessage& message,
                                     grpc::ByteBuffer& out) -> ServerUnaryReactor* {
          auto record = recorded(door, *context, name, message);
          const auto refuse = [&](const grpc::Status& status) {
            return new AnsweredReactor(door, *context, out, std::move(record), status);
          };
          const auto caller = admit_grpc(*door.commons.guard, *context, Need::admin, door.service.now());
          if (!caller) return refuse(refuse_call(*context, caller.error()));
          if (record && *caller) record->key = (*caller)->key.name;
          Request request;
          // It may bring a config, or a model's files.
          const CallOfConnection connection(door.shares.of(context->peer()));
          Reservation room(door.commons.bodies, *caller ? (*caller)->bytes : nullptr, connection.share());
          Reservation reading;
          if (const std::size_t size = message.bytes.Length() + metadata_cost(*context); !room.grow(size)) {
            const Error error = no_room_error(room, caller->get(), size);
            // Coming back is in vain where it could never fit.
            const bool never = room.own_refused() && size > (*caller)->key.bytes;
            return refuse(never ? status_of(error) : refuse_call(*context, error));
          }
          if (auto read = read_message(message, door.max_body, &room, request, &reading); !read.ok())
            return refuse(read.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED
                              ? refuse_full(*context, read.error_message())
                              : read);
          auto order = order_of(request);
          if (!order) return refuse(status_of(order.error()));
          if (const auto wrong = check_order(door.service, caller->get(), *order))
            return refuse(refuse_call(*context, *wrong));
          write_message(Response(), out);
          return new OrderReactor(door, *context, *std::move(order), std::move(room), std::move(record));
        });
  }

  void add_shared_memory(SharedMemory& regions) {
    using namespace inference;
    add<SystemSharedMemoryStatusRequest, SystemSharedMemoryStatusResponse>(
        "SystemSharedMemoryStatus", Need::admin,
        [&regions](const auto& request, auto) { return shared_memory_status(regions, request.name()); });
    add<SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse>(
        "SystemSharedMemoryRegister", Need::admin,
        [&regions](const auto& request, const Caller* caller) -> Result<SystemSharedMemoryRegisterResponse> {
          if (auto added = regions.add({.name = request.name(),
                                        .key = request.key(),
                                        .offset = request.offset(),
                                        .byte_size = request.byte_size(),
                                        .owner = caller != nullptr ? caller->key.name : std::string()});
              !added)
            return std::unexpected(std::move(added.error()));
          return SystemSharedMemoryRegisterResponse();
        });
    add<SystemSharedMemoryUnregisterRequest, SystemSharedMemoryUnregisterResponse>(
        "SystemSharedMemoryUnregister", Need::admin, [&regions](const auto& request, auto) {
          if (request.name().empty())
            regions.remove_all();
          else
            regions.remove(request.name());
          return SystemSharedMemoryUnregisterResponse();
        });
    add<CudaSharedMemoryStatusRequest, CudaSharedMemoryStatusResponse>(
        "CudaSharedMemoryStatus", Need::admin,
        [&regions](const auto& request, auto) { return device_memory_status(regions, request.name()); });
    add_waiting<CudaSharedMemoryRegisterRequest, CudaSharedMemoryRegisterResponse>(
        "CudaSharedMemoryRegister", Need::admin,
        [&regions](const auto& request, const Caller* caller) -> Result<CudaSharedMemoryRegisterResponse> {
          if (auto added =
                  regions.add_on_device({.name = request.name(),
                                         .device = request.device_id(),
                                         .byte_size = request.byte_size(),
                                         .owner = caller != nullptr ? caller->key.name : std::string()},
                                        std::as_bytes(std::span(request.raw_handle())));
              !added)
            return std::unexpected(std::move(added.error()));
          return CudaSharedMemoryRegisterResponse();
        });
    add_waiting<CudaSharedMemoryUnregisterRequest, CudaSharedMemoryUnregisterResponse>(
        "CudaSharedMemoryUnregister", Need::admin, [&regions](const auto& request, auto) {
          if (request.name().empty())
            regions.remove_all(RegionKind::device);
          else
            regions.remove(request.name(), RegionKind::device);
          return CudaSharedMemoryUnregisterResponse();
        });
  }
};

class HealthService final : public AnsweringService {
 public:
  explicit HealthService(InferDoor& door) : AnsweringService("grpc.health.v1.Health", door) {
    using namespace grpc::health::v1;
    add<HealthCheckRequest, HealthCheckResponse>(
        "Check", Need::nothing, [&door](const auto& request, auto) -> Result<HealthCheckResponse> {
          if (!has_health(request.service()))
            return fail(ErrorCode::not_found, "no such service here: '" + request.service().substr(0, 256) +
                                                  "'; ask for inference.GRPCInferenceService, or for none");
          HealthCheckResponse response;
          response.set_status(server_ready(door.service, door.commons) ? HealthCheckResponse::SERVING
                                                                       : HealthCheckResponse::NOT_SERVING);
          return response;
        });
    add_answers(path("Watch"), [&door](CallbackServerContext* context, RawMessage& message) {
      return watch_health(door, *context, message);
    });
  }
};

class Server final : public GrpcServer {
 public:
  Server(controller::Service& service, GrpcOptions options, std::unique_ptr<Commons> own)
      : own_(std::move(own)),
        options_(std::move(options)),
        times_(options_.take_timeout),
        door_{.service = service,
              .commons = *options_.commons,
              .answers = answers_,
              .times = times_,
              .max_body = std::min<std::size_t>(options_.max_body, std::numeric_limits<int>::max()),
              .most_calls = options_.most_calls,
              .most_unread = std::min(stream_unread_most, options_.commons->bodies->limit() / 16),
              .shares = ConnectionShares(options_.commons->bodies->largest(), options_.max_body),
              .side_shares = ConnectionShares(options_.commons->side.of_connection())},
        inference_(door_),
        health_(door_),
        reflection_(door_, {"inference.GRPCInferenceService", "grpc.health.v1.Health"}) {}
  ~Server() override { stop(); }

  Result<> listen() {
    // Connections are accepted by our own listener: gRPC's stops for good when descriptors run out.
    auto listener = Listener::open({.address = options_.address,
                                    .option = options_.option,
                                    .highest_descriptor = options_.highest_descriptor,
                                    .log = door_.commons.options.log});
    if (!listener) return std::unexpected(std::move(listener.error()));
    credentials_ = options_.tls ? tls_credentials(options_.tls) : grpc::InsecureServerCredentials();
    grpc::ServerBuilder builder;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials_);
    grpc::ResourceQuota quota("carillon");
    quota.Resize(options_.buffers > Bytes{}
                     ? options_.buffers.count
                     : std::max(door_.commons.bodies->limit() / 2, door_.max_body) + (std::size_t{64} << 20));
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(static_cast<int>(door_.max_body));
    builder.SetMaxSendMessageSize(std::numeric_limits<int>::max());
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, longest_metadata);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, handshake_ms);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options_.most_of_connection);
    add_keepalive(builder);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                               static_cast<int>(to_ms(options_.idle_timeout)));
    // gRPC would unpack without a limit, on the threads that read from all connections.
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.RegisterService(&inference_);
    builder.RegisterService(&health_);
    builder.RegisterService(&reflection_);
    server_ = builder.BuildAndStart();
    if (!server_) return fail(ErrorCode::unavailable, "gRPC does not start");
    listener_ = std::move(*listener);
    listener_->start({.on_connection = [this](Descriptor connection) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.listener_fd = listener_->descriptor();
      parameters.fd = connection.release();
      acceptor_->HandleNewConnection(&parameters);
    }});
    return {};
  }

  std::uint16_t port() const override { return listener_->port(); }

  void wait_drained(Duration longest) const override {
    const auto until = std::chrono::steady_clock::now() + longest;
    while (door_.open.load() > 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(2ms);
  }

  void stop() override {
    if (!server_) return;
    door_.commons.draining = true;
    wait_drained(options_.stop_grace);
    listener_->close();
    door_.ending = true;
    // At the deadline open calls are cancelled, and the service answers each.
    const bool drained = door_.open.load() == 0;
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(drained ? 1 : 0));
    server_->Wait();
    server_.reset();
  }

 private:
  void add_keepalive(grpc::ServerBuilder& builder) const {
    const GrpcKeepalive& keepalive = options_.keepalive;
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive.time_ms);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive.timeout_ms);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS,
                               keepalive.permit_without_calls ? 1 : 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, keepalive.max_pings_without_data);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               keepalive.min_recv_ping_interval_without_data_ms);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, keepalive.max_ping_strikes);
    if (keepalive.max_connection_age_ms > 0)
      builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, keepalive.max_connection_age_ms);
    if (keepalive.max_connection_age_grace_ms > 0)
      builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, keepalive.max_connection_age_grace_ms);
  }

  const std::unique_ptr<Commons> own_;
  const GrpcOptions options_;
  AnswerThread answers_;
  AnswerTimes times_;
  InferDoor door_;
  InferenceService inference_;
  HealthService health_;
  ReflectionService reflection_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(controller::Service& service, GrpcOptions options) {
  // protobuf logs every message whose text is not UTF-8, so that clients could fill the log.
  google::protobuf::SetLogHandler(nullptr);
  std::unique_ptr<Commons> own;
  if (options.commons == nullptr) {
    CommonsOptions of_its_own{.max_body = options.max_body};
    of_its_own.inflight = std::max(of_its_own.inflight, of_its_own.max_body);
    own = std::make_unique<Commons>(of_its_own);
    options.commons = own.get();
  }
  auto server = std::make_unique<Server>(service, std::move(options), std::move(own));
  if (auto listening = server->listen(); !listening) return std::unexpected(std::move(listening.error()));
  return server;
}

}  // namespace carillon::frontend
