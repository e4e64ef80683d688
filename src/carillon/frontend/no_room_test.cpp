// Each refusal for want of room says when to come back, over HTTP and over gRPC.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grpc_service.grpc.pb.h"
#include "health.pb.h"
#include "reflection_v1.pb.h"
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/grpc/grpc_server.h"
#include "carillon/frontend/testing/http_server_fixture.h"
#include "carillon/frontend/testing/lent_object.h"

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;
using Stub = inference::GRPCInferenceService::Stub;

// Takes no order, or fails those that it takes.
class FullControl final : public controller::ModelControl {
 public:
  bool full = true;
  void load(std::string, Brought, Done done) override { refuse(std::move(done)); }
  void unload(std::string, bool, Done done) override { refuse(std::move(done)); }

 private:
  void refuse(Done done) const {
    done(fail(ErrorCode::resource_exhausted, full ? "256 orders wait" : "it needs more memory"), full);
  }
};

class NoRoomTest : public HttpServerTest {
 protected:
  ~NoRoomTest() override {
    service.hold(false);
    service.release();
    if (grpc_server) grpc_server->stop();
  }

  void start_grpc(std::size_t most_calls = 1 << 16) {
    auto started = GrpcServer::start(
        service, {.address = {"127.0.0.1", 0}, .most_calls = most_calls, .commons = &commons});
    ASSERT_TRUE(started) << started.error().message;
    grpc_server = std::move(*started);
    channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(grpc_server->port()),
                                  grpc::InsecureChannelCredentials());
    stub = inference::GRPCInferenceService::NewStub(channel);
  }

  // A call with more metadata than what always finds room.
  static std::unique_ptr<grpc::ClientContext> wordy() {
    auto context = std::make_unique<grpc::ClientContext>();
    for (int i = 0; i < 20; ++i) context->AddMetadata("a", "b");
    return context;
  }

  static void expect_hint(const grpc::ClientContext& context, const grpc::Status& status,
                          const std::string& what, bool hint = true) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << what << status.error_message();
    const auto& told = context.GetServerTrailingMetadata();
    ASSERT_EQ(told.count(retry_metadata), hint ? 1U : 0U) << what << ": " << status.error_message();
    if (hint) {
      EXPECT_EQ(told.find(retry_metadata)->second, "1000") << what;
    }
  }
  template <typename Request, typename Response>
  void expect_hint(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, bool hint = true) {
    const auto context = wordy();
    Response response;
    const auto status = (stub.get()->*method)(context.get(), request, &response);
    expect_hint(*context, status, request.GetTypeName(), hint);
  }
  // A stream, or what is answered by one.
  template <typename Request, typename Response>
  void expect_stream_hint(const char* method) {
    const auto context = wordy();
    const std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream(
        grpc::internal::ClientReaderWriterFactory<Request, Response>::Create(
            channel.get(), grpc::internal::RpcMethod(method, grpc::internal::RpcMethod::BIDI_STREAMING),
            context.get()));
    stream->Write({});
    stream->WritesDone();
    Response response;
    while (stream->Read(&response)) continue;
    expect_hint(*context, stream->Finish(), method);
  }

  void expect_http_hint(const std::string& target, const std::string& body, bool hint = true) {
    const auto response = client().ask("POST", target, body);
    EXPECT_EQ(response.result_int(), 503U) << target << ": " << response.body();
    EXPECT_EQ(response["Retry-After"], hint ? "1" : "") << target;
    EXPECT_EQ(response[retry_key], hint ? "1000" : "") << target;
    EXPECT_EQ(nlohmann::json::parse(response.body()).contains("retry_after_ms"), hint) << target;
  }

  std::unique_ptr<GrpcServer> grpc_server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Stub> stub;
};

TEST_F(NoRoomTest, OfRegions) {
  start();
  start_grpc();
  const LentObject object(64);
  Result<> added;
  for (int i = 0; added && i < 2000; ++i)
    added =
        commons.regions.add({.name = std::to_string(i), .key = object.key(), .offset = 0, .byte_size = 64});
  ASSERT_FALSE(added);
  ASSERT_EQ(added.error().code, ErrorCode::resource_exhausted) << added.error().message;
  expect_http_hint("/v2/systemsharedmemory/region/more/register",
                   nlohmann::json{{"key", object.key()}, {"byte_size", 64}}.dump());
  inference::SystemSharedMemoryRegisterRequest request;
  request.set_name("more");
  request.set_key(object.key());
  request.set_byte_size(64);
  expect_hint(&Stub::SystemSharedMemoryRegister, request);
}

TEST_F(NoRoomTest, OfOrders) {
  FullControl control;
  service.orders = &control;
  start();
  start_grpc();
  // An order that was carried out and failed has no use of being given again soon.
  for (const bool full : {true, false}) {
    control.full = full;
    expect_http_hint("/v2/repository/models/pair/load", "", full);
    expect_http_hint("/v2/repository/models/pair/unload", "", full);
    inference::RepositoryModelLoadRequest load;
    load.set_model_name("pair");
    expect_hint(&Stub::RepositoryModelLoad, load, full);
    inference::RepositoryModelUnloadRequest unload;
    unload.set_model_name("pair");
    expect_hint(&Stub::RepositoryModelUnload, unload, full);
  }
}

TEST_F(NoRoomTest, OfCalls) {
  FullControl control;
  service.orders = &control;
  start_grpc(0);
  expect_hint(&Stub::ServerLive, inference::ServerLiveRequest());
  expect_hint(&Stub::ModelInfer, inference::ModelInferRequest());
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("pair");
  expect_hint(&Stub::RepositoryModelLoad, load);
}

TEST_F(NoRoomTest, OfBytesInFlight) {
  start_grpc();
  Reservation rest(commons.bodies);
  for (const std::size_t size : {std::size_t{1} << 20, ByteBudget::small, std::size_t{1024}, std::size_t{1}})
    while (rest.grow(size)) continue;
  std::vector<Reservation> small;  // of the part that large ones leave
  do small.emplace_back(commons.bodies);
  while (small.back().grow(1024));
  expect_hint(&Stub::ModelInfer, inference::ModelInferRequest());
  expect_hint(&Stub::RepositoryModelLoad, inference::RepositoryModelLoadRequest());
  expect_stream_hint<inference::ModelInferRequest, inference::ModelStreamInferResponse>(
      "/inference.GRPCInferenceService/ModelStreamInfer");
}

TEST_F(NoRoomTest, OfBytesThatAreNoInference) {
  start_grpc();
  SideRoom rest(commons.side);
  for (std::size_t size = commons.side.limit(); !rest.hold(size); size -= 1024) continue;
  expect_hint(&Stub::ServerMetadata, inference::ServerMetadataRequest());
  expect_stream_hint<grpc::health::v1::HealthCheckRequest, grpc::health::v1::HealthCheckResponse>(
      "/grpc.health.v1.Health/Watch");
  using grpc::reflection::v1::ServerReflectionRequest;
  expect_stream_hint<ServerReflectionRequest, grpc::reflection::v1::ServerReflectionResponse>(
      "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
}

TEST_F(NoRoomTest, OfWatches) {
  using namespace grpc::health::v1;
  start_grpc();
  const char* const method = "/grpc.health.v1.Health/Watch";
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<HealthCheckRequest, HealthCheckResponse>> stream;
  };
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 256; ++i) {
    auto& watch = *watches.emplace_back(std::make_unique<Watch>());
    watch.stream.reset(
        grpc::internal::ClientReaderWriterFactory<HealthCheckRequest, HealthCheckResponse>::Create(
            channel.get(), grpc::internal::RpcMethod(method, grpc::internal::RpcMethod::BIDI_STREAMING),
            &watch.context));
    watch.stream->Write({});
    watch.stream->WritesDone();
    HealthCheckResponse response;
    ASSERT_TRUE(watch.stream->Read(&response)) << i;
  }
  expect_stream_hint<HealthCheckRequest, HealthCheckResponse>(method);
  for (const auto& watch : watches) watch->context.TryCancel();
}

}  // namespace
}  // namespace carillon::frontend
