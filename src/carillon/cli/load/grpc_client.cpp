#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "grpc_service.grpc.pb.h"
#include <grpcpp/grpcpp.h>

#include "carillon/cli/load/client.h"

namespace carillon::cli {
namespace {

class GrpcClient final : public Client {
 public:
  explicit GrpcClient(const Address& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    const std::string host =
        address.host.find(':') == std::string::npos ? address.host : "[" + address.host + "]";
    name_ = host + ":" + address.port;
    stub_ = inference::GRPCInferenceService::NewStub(
        grpc::CreateCustomChannel(name_, grpc::InsecureChannelCredentials(), arguments));
  }

  ~GrpcClient() override {
    std::unique_lock lock(mutex_);
    for (Call* call : open_) call->context.TryCancel();
    given_up_ = true;
    none_open_.wait(lock, [this] { return open_.empty(); });
  }

  Result<Metadata> metadata(const std::string& model) override {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    inference::ModelMetadataRequest request;
    request.set_name(model);
    inference::ModelMetadataResponse response;
    const grpc::Status status = stub_->ModelMetadata(&context, request, &response);
    if (!status.ok()) return fail(ErrorCode::unavailable, name_ + ": " + status.error_message());
    Metadata metadata;
    for (const auto& input : response.inputs())
      metadata.inputs.push_back(
          {input.name(), input.datatype(), {input.shape().begin(), input.shape().end()}});
    return metadata;
  }

  void send(const Template& what, Duration timeout, std::function<void(Reply)> on_reply) override {
    auto* call = new Call;
    call->on_reply = std::move(on_reply);
    // A net for lost answers only; the deadline itself travels as the parameter.
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
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

  void finished(Call* call, const grpc::Status& status) {
    Reply reply{Reply::Kind::result, {}};
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      reply = {Reply::Kind::refused, status.error_message()};
    else if (!status.ok())
      reply = {Reply::Kind::error,
               "gRPC " + std::to_string(status.error_code()) + ": " + status.error_message()};
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

  std::string name_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
  std::mutex mutex_;
  std::condition_variable none_open_;
  std::vector<Call*> open_;
  bool given_up_ = false;
};

}  // namespace

std::unique_ptr<Client> make_grpc_client(const Address& address) {
  return std::make_unique<GrpcClient>(address);
}

}  // namespace carillon::cli
