#include "carillon/frontend/grpc_server.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "grpc_service.grpc.pb.h"
#include "health.grpc.pb.h"
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/grpcpp.h>

#include "carillon/frontend/answers.h"
#include "carillon/frontend/infer_codec_grpc.h"
#include "carillon/frontend/messages.h"
#include "carillon/frontend/status.h"

namespace carillon::frontend {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

grpc::Status status_of(const Error& error) {
  // gRPC carries the text in a header, which servers and proxies bound.
  constexpr std::size_t longest = 4096;
  return {static_cast<grpc::StatusCode>(grpc_status(error.code)), error.message.substr(0, longest)};
}

grpc::Status no_memory() {
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "out of memory for this request"};
}

ServerUnaryReactor* finish(CallbackServerContext* context, const grpc::Status& status) {
  auto* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

template <typename Message>
ServerUnaryReactor* finish(CallbackServerContext* context, Result<Message> message, Message* response) {
  if (!message) return finish(context, status_of(message.error()));
  *response = std::move(*message);
  return finish(context, grpc::Status::OK);
}

// Answers are encoded and sent from here: the service's thread, which brings them, has a schedule to keep.
class AnswerThread {
 public:
  using Work = std::move_only_function<void()>;

  AnswerThread() : thread_([this] { run(); }) {}
  // Runs what was posted before. Requires that nothing posts any more.
  ~AnswerThread() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void post(Work work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
  }

 private:
  void run() {
    std::vector<Work> batch;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return ending_ || !queue_.empty(); });
        if (queue_.empty()) return;
        batch.swap(queue_);
      }
      for (auto& work : batch) work();
      batch.clear();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Work> queue_;
  bool ending_ = false;
  std::thread thread_;
};

// One ModelInfer call. It deletes itself when gRPC is done with it, which may be while submit() is still
// returning: what the two share lives in Open.
class InferReactor final : public ServerUnaryReactor {
 public:
  struct Open {
    static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
    std::atomic<std::uint64_t> ticket = none;
    std::atomic<bool> cancelled = false;
  };

  InferReactor(controller::Service& service, AnswerThread& answers, CallbackServerContext& context,
               const inference::ModelInferRequest& message, inference::ModelInferResponse& response)
      : service_(service), context_(context), response_(response) {
    begin(answers, message);
  }

  void OnCancel() override {
    open_->cancelled = true;
    if (const std::uint64_t ticket = open_->ticket; ticket != Open::none) service_.cancel(ticket);
  }
  void OnDone() override { delete this; }

 private:
  void begin(AnswerThread& answers, const inference::ModelInferRequest& message) {
    const auto open = open_;
    auto& service = service_;
    const TimePoint arrival = service.now();
    auto view = ready_model(service, message.model_name(), message.model_version());
    if (!view) return Finish(status_of(view.error()));
    try {
      auto request = parse_infer_grpc(**view, message, arrival, deadline_of(context_, arrival));
      if (!request) return Finish(status_of(request.error()));
      request_ = std::move(*request);
    } catch (const std::bad_alloc&) {
      return Finish(no_memory());
    }
    view_ = std::move(*view);
    const auto ticket =
        service.submit(std::move(request_.call), [this, &answers](controller::InferAnswer answer) {
          answers.post([this, answer = std::move(answer)]() mutable { send(std::move(answer)); });
        });
    // The call may have ended: only what is shared is touched from here on.
    open->ticket = ticket;
    if (open->cancelled) service.cancel(ticket);
  }

  // The wall clock's deadline on the service's timeline.
  static TimePoint deadline_of(const CallbackServerContext& context, TimePoint arrival) {
    const auto deadline = context.deadline();
    if (deadline == std::chrono::system_clock::time_point::max()) return TimePoint::max();
    const auto left = deadline - std::chrono::system_clock::now();
    return saturating_add(arrival, std::chrono::duration_cast<Duration>(left));
  }

  void send(controller::InferAnswer answer) {
    if (const auto checked = check_answer(*view_, answer); !checked) {
      if (answer.would_take)
        context_.AddTrailingMetadata(
            would_take_key,
            std::to_string(
                std::chrono::duration_cast<std::chrono::microseconds>(*answer.would_take).count()));
      return Finish(status_of(checked.error()));
    }
    try {
      write_infer_grpc(*view_, request_, *answer.call, response_);
    } catch (const std::bad_alloc&) {
      return Finish(no_memory());
    }
    Finish(grpc::Status::OK);
  }

  controller::Service& service_;
  CallbackServerContext& context_;
  inference::ModelInferResponse& response_;
  const std::shared_ptr<Open> open_ = std::make_shared<Open>();
  std::shared_ptr<const controller::ModelView> view_;
  InferRequest request_;
};

class RefusedStream final
    : public grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class InferenceService final : public inference::GRPCInferenceService::CallbackService {
 public:
  InferenceService(controller::Service& service, AnswerThread& answers)
      : service_(service), answers_(answers) {}

  ServerUnaryReactor* ServerLive(CallbackServerContext* context, const inference::ServerLiveRequest*,
                                 inference::ServerLiveResponse* response) override {
    response->set_live(true);
    return finish(context, grpc::Status::OK);
  }

  ServerUnaryReactor* ServerReady(CallbackServerContext* context, const inference::ServerReadyRequest*,
                                  inference::ServerReadyResponse* response) override {
    response->set_ready(service_.ready());
    return finish(context, grpc::Status::OK);
  }

  ServerUnaryReactor* ModelReady(CallbackServerContext* context, const inference::ModelReadyRequest* request,
                                 inference::ModelReadyResponse* response) override {
    // As Triton has it, a model that is not there is not ready: clients ask this to wait for one.
    const auto view = service_.find(request->name(), request->version());
    if (!view && view.error().code != ErrorCode::not_found) return finish(context, status_of(view.error()));
    response->set_ready(view && (*view)->ready);
    return finish(context, grpc::Status::OK);
  }

  ServerUnaryReactor* ServerMetadata(CallbackServerContext* context, const inference::ServerMetadataRequest*,
                                     inference::ServerMetadataResponse* response) override {
    *response = server_metadata();
    return finish(context, grpc::Status::OK);
  }

  ServerUnaryReactor* ModelMetadata(CallbackServerContext* context,
                                    const inference::ModelMetadataRequest* request,
                                    inference::ModelMetadataResponse* response) override {
    return finish(context, model_metadata(service_, request->name(), request->version()), response);
  }

  ServerUnaryReactor* ModelConfig(CallbackServerContext* context,
                                  const inference::ModelConfigRequest* request,
                                  inference::ModelConfigResponse* response) override {
    return finish(context, model_config(service_, request->name(), request->version()),
                  response->mutable_config());
  }

  ServerUnaryReactor* ModelStatistics(CallbackServerContext* context,
                                      const inference::ModelStatisticsRequest* request,
                                      inference::ModelStatisticsResponse* response) override {
    return finish(context, model_statistics(service_, request->name(), request->version()), response);
  }

  ServerUnaryReactor* RepositoryIndex(CallbackServerContext* context,
                                      const inference::RepositoryIndexRequest* request,
                                      inference::RepositoryIndexResponse* response) override {
    *response = repository_index(service_, request->ready());
    return finish(context, grpc::Status::OK);
  }

  ServerUnaryReactor* ModelInfer(CallbackServerContext* context, const inference::ModelInferRequest* request,
                                 inference::ModelInferResponse* response) override {
    return new InferReactor(service_, answers_, *context, *request, *response);
  }

  grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
  ModelStreamInfer(CallbackServerContext*) override {
    return new RefusedStream(refusal("ModelStreamInfer"));
  }

  ServerUnaryReactor* RepositoryModelLoad(CallbackServerContext* context,
                                          const inference::RepositoryModelLoadRequest*,
                                          inference::RepositoryModelLoadResponse*) override {
    return finish(context, refusal("RepositoryModelLoad"));
  }
  ServerUnaryReactor* RepositoryModelUnload(CallbackServerContext* context,
                                            const inference::RepositoryModelUnloadRequest*,
                                            inference::RepositoryModelUnloadResponse*) override {
    return finish(context, refusal("RepositoryModelUnload"));
  }
  ServerUnaryReactor* SystemSharedMemoryStatus(CallbackServerContext* context,
                                               const inference::SystemSharedMemoryStatusRequest*,
                                               inference::SystemSharedMemoryStatusResponse*) override {
    return finish(context, refusal("SystemSharedMemoryStatus"));
  }
  ServerUnaryReactor* SystemSharedMemoryRegister(CallbackServerContext* context,
                                                 const inference::SystemSharedMemoryRegisterRequest*,
                                                 inference::SystemSharedMemoryRegisterResponse*) override {
    return finish(context, refusal("SystemSharedMemoryRegister"));
  }
  ServerUnaryReactor* SystemSharedMemoryUnregister(
      CallbackServerContext* context, const inference::SystemSharedMemoryUnregisterRequest*,
      inference::SystemSharedMemoryUnregisterResponse*) override {
    return finish(context, refusal("SystemSharedMemoryUnregister"));
  }
  ServerUnaryReactor* CudaSharedMemoryStatus(CallbackServerContext* context,
                                             const inference::CudaSharedMemoryStatusRequest*,
                                             inference::CudaSharedMemoryStatusResponse*) override {
    return finish(context, refusal("CudaSharedMemoryStatus"));
  }
  ServerUnaryReactor* CudaSharedMemoryRegister(CallbackServerContext* context,
                                               const inference::CudaSharedMemoryRegisterRequest*,
                                               inference::CudaSharedMemoryRegisterResponse*) override {
    return finish(context, refusal("CudaSharedMemoryRegister"));
  }
  ServerUnaryReactor* CudaSharedMemoryUnregister(CallbackServerContext* context,
                                                 const inference::CudaSharedMemoryUnregisterRequest*,
                                                 inference::CudaSharedMemoryUnregisterResponse*) override {
    return finish(context, refusal("CudaSharedMemoryUnregister"));
  }
  ServerUnaryReactor* TraceSetting(CallbackServerContext* context, const inference::TraceSettingRequest*,
                                   inference::TraceSettingResponse*) override {
    return finish(context, refusal("TraceSetting"));
  }
  ServerUnaryReactor* LogSettings(CallbackServerContext* context, const inference::LogSettingsRequest*,
                                  inference::LogSettingsResponse*) override {
    return finish(context, refusal("LogSettings"));
  }

 private:
  static grpc::Status refusal(std::string_view method) {
    return {grpc::StatusCode::UNIMPLEMENTED, "this server does not implement " + std::string(method)};
  }

  controller::Service& service_;
  AnswerThread& answers_;
};

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(const controller::Service& service) : service_(service) {}

  ServerUnaryReactor* Check(CallbackServerContext* context,
                            const grpc::health::v1::HealthCheckRequest* request,
                            grpc::health::v1::HealthCheckResponse* response) override {
    if (!request->service().empty() && request->service() != "inference.GRPCInferenceService")
      return finish(context, {grpc::StatusCode::NOT_FOUND,
                              "no such service here: '" + request->service().substr(0, 256) +
                                  "'; ask for inference.GRPCInferenceService, or for none"});
    response->set_status(service_.ready() ? grpc::health::v1::HealthCheckResponse::SERVING
                                          : grpc::health::v1::HealthCheckResponse::NOT_SERVING);
    return finish(context, grpc::Status::OK);
  }

 private:
  const controller::Service& service_;
};

class Server final : public GrpcServer {
 public:
  Server(controller::Service& service, GrpcOptions options)
      : options_(std::move(options)), inference_(service, answers_), health_(service) {}
  ~Server() override { stop(); }

  Result<> listen() {
    // gRPC says only that it failed, and more on standard error: ask the system first.
    if (auto free = try_bind(options_.address, options_.option); !free) return free;
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options_.address.text(), grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // two servers must not share a port unnoticed
    builder.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
    builder.SetMaxSendMessageSize(std::numeric_limits<int>::max());
    builder.RegisterService(&inference_);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0)
      return fail(ErrorCode::unavailable, "cannot listen on " + options_.address.text() +
                                              ": gRPC could not bind it; choose another with " +
                                              options_.option);
    port_ = static_cast<std::uint16_t>(port);
    return {};
  }

  std::uint16_t port() const override { return port_; }

  void stop() override {
    if (!server_) return;
    // At the deadline open calls are cancelled, and the service answers each.
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::duration_cast<std::chrono::system_clock::duration>(options_.stop_grace));
    server_->Wait();
    server_.reset();
  }

 private:
  const GrpcOptions options_;
  AnswerThread answers_;
  InferenceService inference_;
  HealthService health_;
  std::unique_ptr<grpc::Server> server_;
  std::uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(controller::Service& service, GrpcOptions options) {
  // protobuf logs every message whose text is not UTF-8, so that clients could fill the log.
  google::protobuf::SetLogHandler(nullptr);
  auto server = std::make_unique<Server>(service, std::move(options));
  if (auto listening = server->listen(); !listening) return std::unexpected(std::move(listening.error()));
  return server;
}

}  // namespace carillon::frontend
