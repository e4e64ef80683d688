#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "grpc_service.grpc.pb.h"
#include <grpcpp/grpcpp.h>

#include "carillon/cli/load/client.h"
#include "carillon/cli/load/http_get.h"

namespace carillon::cli {
namespace {

class GrpcClient final : public Client {
 public:
  GrpcClient(const Address& address, const Access& access) : address_(address), access_(access) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    const auto credentials = address.tls ? grpc::SslCredentials({.pem_root_certs = access.ca,
                                                                 .pem_private_key = access.private_key,
                                                                 .pem_cert_chain = access.certificate})
                                         : grpc::InsecureChannelCredentials();
    stub_ = inference::GRPCInferenceService::NewStub(
        grpc::CreateCustomChannel(address.authority(), credentials, arguments));
  }

  ~GrpcClient() override {
    std::unique_lock lock(mutex_);
    for (Call* call : open_) call->context.TryCancel();
    given_up_ = true;
    none_open_.wait(lock, [this] { return open_.empty(); });
  }

  Result<Metadata> metadata(const std::string& model) override {
    grpc::ClientContext context;
    prepare(context, std::chrono::seconds(10));
    inference::ModelMetadataRequest request;
    request.set_name(model);
    inference::ModelMetadataResponse response;
    const grpc::Status status = stub_->ModelMetadata(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE)
      // It says little of handshakes: a connection of our own says why.
      if (const auto tried = try_connection(address_, access_); !tried) return std::unexpected(tried.error());
    if (!status.ok()) return fail(ErrorCode::unavailable, address_.authority() + ": " + text_of(status));
    Metadata metadata;
    metadata.slo_ms = slo_of(model);
    for (const auto& input : response.inputs())
      metadata.inputs.push_back(
          {input.name(), input.datatype(), {input.shape().begin(), input.shape().end()}});
    return metadata;
  }

  void send(const Template& what, Duration timeout, std::function<void(Reply)> on_reply) override {
    auto* call = new Call;
    call->on_reply = std::move(on_reply);
    // A net for lost answers only; the deadline itself travels as the parameter.
    prepare(call->context, std::chrono::minutes(2));
    call->request.set_model_name(what.model);
    if (timeout.count() != 0)
      (*call->request.mutable_parameters())["timeout"].set_int64_param(timeout.count() / 1000);
    if (!what.application.empty())
      (*call->request.mutable_parameters())["application"].set_string_param(what.application);
    if (what.priority != 0) (*call->request.mutable_parameters())["priority"].set_int64_param(what.priority);
    for (const InputSpec& input : what.inputs) {
      auto* tensor = call->request.add_inputs();
      tensor->set_name(input.name);
      tensor->set_datatype(input.datatype);
      tensor->mutable_shape()->Add(input.shape.begin(), input.shape.end());
      call->request.add_raw_input_contents(input.data.data(), input.data.size());
    }
    {
      const std::scoped_lock lock(mutex_);
      open_.push_back(call);
    }
    stub_->async()->ModelInfer(&call->context, &call->request, &call->response,
                               [this, call](const grpc::Status& status) { finished(call, status); });
  }

 private:
  struct Call {
    grpc::ClientContext context;
    inference::ModelInferRequest request;
    inference::ModelInferResponse response;
    std::function<void(Reply)> on_reply;
  };

  void prepare(grpc::ClientContext& context, std::chrono::seconds longest) const {
    context.set_deadline(std::chrono::system_clock::now() + longest);
    if (!access_.secret.empty()) context.AddMetadata("authorization", authorization_of(access_));
  }

  std::string text_of(const grpc::Status& status) const {
    std::string text = status.error_message();
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED)
      text += key_advice(KeyRefusal::unknown, access_);
    if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED)
      text += key_advice(KeyRefusal::forbidden, access_);
    return text;
  }

  std::optional<double> slo_of(const std::string& model) {
    grpc::ClientContext context;
    prepare(context, std::chrono::seconds(10));
    inference::ModelConfigRequest request;
    request.set_name(model);
    inference::ModelConfigResponse response;
    if (!stub_->ModelConfig(&context, request, &response).ok()) return std::nullopt;
    const auto& parameters = response.config().parameters();
    const auto slo = parameters.find("slo_ms");
    return slo == parameters.end() ? std::nullopt : number_in(slo->second.string_value());
  }

  void finished(Call* call, const grpc::Status& status) {
    Reply reply{Reply::Kind::result, {}};
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      reply = {Reply::Kind::refused, status.error_message()};
    else if (!status.ok())
      reply = {Reply::Kind::error, "gRPC " + std::to_string(status.error_code()) + ": " + text_of(status)};
    bool deliver = false;
    {
      const std::scoped_lock lock(mutex_);
      deliver = !given_up_;
    }
    if (deliver) call->on_reply(std::move(reply));
    const std::scoped_lock lock(mutex_);
    std::erase(open_, call);
    delete call;
    if (open_.empty()) none_open_.notify_all();
  }

  const Address address_;
  const Access access_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
  std::mutex mutex_;
  std::condition_variable none_open_;
  std::vector<Call*> open_;
  bool given_up_ = false;
};

}  // namespace

std::unique_ptr<Client> make_grpc_client(const Address& address, const Access& access) {
  return std::make_unique<GrpcClient>(address, access);
}

}  // namespace carillon::cli
