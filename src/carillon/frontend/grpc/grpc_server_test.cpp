#include "carillon/frontend/grpc/grpc_server.h"

#include <mutex>
#include <thread>

#include "grpc_service.grpc.pb.h"
#include "health.grpc.pb.h"
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <gtest/gtest.h>

#include "carillon/frontend/codec/parameters.h"
#include "carillon/frontend/testing/fake_service.h"
#include "carillon/frontend/testing/grpc_pair.h"
#include "carillon/frontend/testing/lent_object.h"

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;

class GrpcServerTest : public ::testing::Test {
 protected:
  GrpcServerTest() {
    service.all_models = {pair_model()};
    auto started =
        GrpcServer::start(service, {.address = {"127.0.0.1", 0}, .max_body = largest, .commons = &commons});
    EXPECT_TRUE(started) << started.error().message;
    server = std::move(*started);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server->port()),
                                        grpc::InsecureChannelCredentials(), arguments);
    stub = inference::GRPCInferenceService::NewStub(channel);
  }
  ~GrpcServerTest() override {
    service.hold(false);
    service.release();
    server->stop();
  }

  template <typename Request, typename Response>
  grpc::Status call(StubMethod<Request, Response> method, const Request& request, Response& response) {
    return call_stub(*stub, method, request, response);
  }

  grpc::Status raw_call(const char* method, grpc::ClientContext& context, const grpc::ByteBuffer& request) {
    grpc::ByteBuffer response;
    return grpc::internal::BlockingUnaryCall(
        channel.get(), grpc::internal::RpcMethod(method, grpc::internal::RpcMethod::NORMAL_RPC, channel),
        &context, request, &response);
  }

  static constexpr std::size_t largest = std::size_t{16} << 20;

  FakeService service;
  std::mutex log_mutex;  // the log is told on gRPC's threads
  std::vector<std::string> log;
  LogLevels levels;
  Commons commons{{.inflight = 64 << 20,
                   .max_body = largest,
                   .log =
                       [this](const std::string& line) {
                         const std::lock_guard lock(log_mutex);
                         log.push_back(line);
                       },
                   .log_control = {.levels = [this] { return levels; },
                                   .set = [this](const LogLevels& now) { levels = now; }}}};
  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub;
};

using Stub = inference::GRPCInferenceService::Stub;

TEST_F(GrpcServerTest, Infers) {
  inference::ModelInferResponse response;
  auto request = pair_request();
  (*request.mutable_parameters())["timeout"].set_int64_param(40000);
  const auto status = call(&Stub::ModelInfer, request, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.id(), "g1");
  EXPECT_EQ(response.model_version(), "2");
  ASSERT_EQ(response.raw_output_contents_size(), 2);
  EXPECT_EQ(response.raw_output_contents(0).size(), 12U);
  EXPECT_EQ(response.raw_output_contents(0)[3], 3);
  EXPECT_EQ(service.last_deadline(), service.now() + 40ms);
}

TEST_F(GrpcServerTest, TheCallsDeadlineCountsWhereNoTimeoutIsGiven) {
  inference::ModelInferResponse response;
  ASSERT_TRUE(call(&Stub::ModelInfer, pair_request(), response).ok());
  EXPECT_EQ(service.last_deadline(), TimePoint::max());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  ASSERT_TRUE(stub->ModelInfer(&context, pair_request(), &response).ok());
  EXPECT_GT(service.last_deadline(), service.now() + std::chrono::minutes(50));
  EXPECT_LE(service.last_deadline(), service.now() + std::chrono::minutes(61));
}

TEST_F(GrpcServerTest, ADeadlineFarAwayIsTheFarthestThereMayBe) {
  inference::ModelInferResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(24 * 365));
  ASSERT_TRUE(stub->ModelInfer(&context, pair_request(), &response).ok());
  EXPECT_GT(service.last_deadline(), service.now() + std::chrono::hours(23));
  EXPECT_LE(service.last_deadline(), service.now() + longest_timeout);
}

TEST_F(GrpcServerTest, ALooserTimeoutHidesNoCallsDeadline) {
  inference::ModelInferResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  auto request = pair_request();
  (*request.mutable_parameters())["timeout"].set_int64_param(3'600'000'000);
  ASSERT_TRUE(stub->ModelInfer(&context, request, &response).ok());
  EXPECT_LE(service.last_deadline(), service.now() + std::chrono::minutes(2));
}

TEST_F(GrpcServerTest, WhatIsNoMessageIsAnsweredWithWords) {
  const std::string text = "\xff\xff\xff\xff no protobuf";
  const grpc::Slice slice(text);
  const grpc::ByteBuffer bytes(&slice, 1);
  const struct {
    const char* method;
    const char* type;
  } rows[] = {{"/inference.GRPCInferenceService/ModelInfer", "inference.ModelInferRequest"},
              {"/inference.GRPCInferenceService/ModelMetadata", "inference.ModelMetadataRequest"},
              {"/inference.GRPCInferenceService/ServerReady", "inference.ServerReadyRequest"},
              {"/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckRequest"}};
  for (const auto& [method, type] : rows)
    for (const auto algorithm : {GRPC_COMPRESS_NONE, GRPC_COMPRESS_GZIP}) {
      grpc::ClientContext context;
      context.set_compression_algorithm(algorithm);
      const auto status = raw_call(method, context, bytes);
      EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << method;
      EXPECT_THAT(status.error_message(), HasSubstr(type)) << method;
    }
}

TEST_F(GrpcServerTest, MuchMetadataIsNobodyElsesMatter) {
  service.hold(true);
  std::thread other([&] {
    inference::ModelInferResponse response;
    const auto status = call(&Stub::ModelInfer, pair_request(), response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  });
  service.wait_for_held(1);
  const auto ask_with = [&](int pieces) {
    inference::ServerLiveResponse response;
    grpc::ClientContext context;
    for (int i = 0; i < pieces; ++i) context.AddMetadata("big-" + std::to_string(i), std::string(500, 'm'));
    return stub->ServerLive(&context, {}, &response);
  };
  for (const int pieces : {20, 50, 110}) {
    const auto status = ask_with(pieces);
    EXPECT_TRUE(status.ok()) << pieces << ": " << status.error_message();
  }
  service.release();
  other.join();
  // Beyond the bound gRPC ends the connection. There are others.
  EXPECT_FALSE(ask_with(200).ok());
  stub = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials()));
  EXPECT_TRUE(ask_with(0).ok());
}

// A field of metadata takes more than its bytes: many small ones are no way round the bound.
TEST_F(GrpcServerTest, EachFieldOfMetadataIsInFlight) {
  service.hold(true);
  std::thread other([&] {
    grpc::ClientContext context;
    for (int i = 0; i < 1000; ++i) context.AddMetadata("a", "b");
    inference::ModelInferResponse response;
    const auto status = stub->ModelInfer(&context, pair_request(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  });
  service.wait_for_held(1);
  EXPECT_GT(commons.bodies->used(), std::size_t{200} << 10);
  service.release();
  other.join();
}

TEST_F(GrpcServerTest, MessagesInFlightAreBounded) {
  Reservation rest(commons.bodies);
  while (rest.grow(1 << 20)) continue;  // leaves an eighth for small ones
  Reservation small[128];
  for (auto& each : small) {
    each = Reservation(commons.bodies);
    ASSERT_TRUE(each.grow(ByteBudget::small));
  }
  inference::ModelInferResponse response;
  {
    grpc::ClientContext context;
    const auto status = stub->ModelInfer(&context, pair_request(), &response);
    EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("too many are in flight"));
    EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1U);
  }
  rest.shrink_to(0);
  service.hold(true);
  std::thread held([&] { EXPECT_TRUE(call(&Stub::ModelInfer, pair_request(), response).ok()); });
  service.wait_for_held(1);
  EXPECT_GT(commons.bodies->used(), 128U * ByteBudget::small);
  service.release();
  held.join();
  while (commons.bodies->used() > 128U * ByteBudget::small) std::this_thread::yield();
}

TEST_F(GrpcServerTest, MessagesThatAreTooLargeAreRefused) {
  auto request = pair_request();
  request.add_raw_input_contents(std::string(largest + 1, '\0'));
  for (const auto algorithm : {GRPC_COMPRESS_NONE, GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    inference::ModelInferResponse response;
    const auto status = stub->ModelInfer(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED) << status.error_message();
    if (algorithm != GRPC_COMPRESS_NONE) {
      EXPECT_THAT(status.error_message(), HasSubstr("more than " + std::to_string(largest)));
    }
  }
}

TEST_F(GrpcServerTest, WhileDrainingNewCallsAreRefused) {
  service.hold(true);
  std::thread held([&] {
    inference::ModelInferResponse response;
    EXPECT_TRUE(call(&Stub::ModelInfer, pair_request(), response).ok());
  });
  service.wait_for_held(1);
  std::thread stopping([&] { server->stop(); });
  while (!commons.draining) std::this_thread::yield();
  inference::ModelInferResponse response;
  const auto status = call(&Stub::ModelInfer, pair_request(), response);
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("going away"));
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(call(&Stub::ServerReady, inference::ServerReadyRequest(), ready).ok());
  EXPECT_FALSE(ready.ready());
  service.release();
  held.join();
  stopping.join();
}

TEST_F(GrpcServerTest, UnknownParametersAreToldOnce) {
  auto request = pair_request();
  (*request.mutable_parameters())["sequence_id"].set_int64_param(7);
  (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  for (int i = 0; i < 2; ++i) {
    inference::ModelInferResponse response;
    EXPECT_TRUE(call(&Stub::ModelInfer, request, response).ok());
  }
  const std::lock_guard lock(log_mutex);
  EXPECT_THAT(log, ::testing::ElementsAre(HasSubstr(
                       "'sequence_id (of a model without sequence_batching)', which is not heeded")));
}

TEST_F(GrpcServerTest, MapsFailures) {
  const struct {
    ErrorCode code;
    grpc::StatusCode status;
  } rows[] = {{ErrorCode::deadline_exceeded, grpc::DEADLINE_EXCEEDED},
              {ErrorCode::unavailable, grpc::UNAVAILABLE},
              {ErrorCode::resource_exhausted, grpc::RESOURCE_EXHAUSTED},
              {ErrorCode::internal, grpc::INTERNAL},
              {ErrorCode::not_found, grpc::NOT_FOUND}};
  for (const auto& [code, wanted] : rows) {
    service.fail_with(Error{code, "because"});
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    const auto status = stub->ModelInfer(&context, pair_request(), &response);
    EXPECT_EQ(status.error_code(), wanted);
    EXPECT_EQ(status.error_message(), "because");
    const auto& trailing = context.GetServerTrailingMetadata();
    const auto it = trailing.find("carillon-would-take-us");
    EXPECT_EQ(it != trailing.end(), code == ErrorCode::deadline_exceeded);
    if (it != trailing.end()) {
      EXPECT_EQ(it->second, "31200");
    }
    const auto retry = trailing.find("grpc-retry-pushback-ms");
    ASSERT_EQ(retry != trailing.end(), code == ErrorCode::deadline_exceeded);
    if (retry != trailing.end()) {
      EXPECT_EQ(retry->second, "1201");
    }
    EXPECT_FALSE(trailing.contains("carillon-request"));
  }
}

TEST_F(GrpcServerTest, AnswersNameTheirNumberInTheJournal) {
  service.kept = std::make_shared<controller::Journal>(10, Duration{0});
  const auto number = [&](bool good) -> std::string {
    service.fail_with(good ? std::nullopt : std::optional(Error{ErrorCode::internal, "it broke"}));
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    EXPECT_EQ(stub->ModelInfer(&context, pair_request(), &response).ok(), good);
    const auto& trailing = context.GetServerTrailingMetadata();
    const auto it = trailing.find("carillon-request");
    return it == trailing.end() ? "" : std::string(it->second.data(), it->second.size());
  };
  EXPECT_EQ(number(true), "1");
  EXPECT_EQ(number(false), "2");
}

TEST_F(GrpcServerTest, BadRequestsSayWhatIsWrong) {
  inference::ModelInferResponse response;
  auto request = pair_request();
  request.set_model_name("nobody");
  auto status = call(&Stub::ModelInfer, request, response);
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("nobody"));
  request = pair_request();
  request.mutable_inputs(0)->set_shape(0, 99);
  status = call(&Stub::ModelInfer, request, response);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("[99,3]"));
}

TEST_F(GrpcServerTest, ACancelledCallIsCancelled) {
  service.hold(true);
  grpc::ClientContext context;
  inference::ModelInferResponse response;
  std::thread calling([&] {
    EXPECT_EQ(stub->ModelInfer(&context, pair_request(), &response).error_code(), grpc::CANCELLED);
  });
  service.wait_for_held(1);
  context.TryCancel();
  calling.join();
  service.wait_for_cancelled(1);
  EXPECT_EQ(service.cancelled(), 1);
}

TEST_F(GrpcServerTest, ACallWhoseDeadlinePassesIsCancelled) {
  service.hold(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  inference::ModelInferResponse response;
  EXPECT_EQ(stub->ModelInfer(&context, pair_request(), &response).error_code(), grpc::DEADLINE_EXCEEDED);
  service.wait_for_cancelled(1);
}

TEST_F(GrpcServerTest, TellsAboutItself) {
  inference::ServerLiveResponse live;
  EXPECT_TRUE(call(&Stub::ServerLive, inference::ServerLiveRequest(), live).ok());
  EXPECT_TRUE(live.live());
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(call(&Stub::ServerReady, inference::ServerReadyRequest(), ready).ok());
  EXPECT_TRUE(ready.ready());
  inference::ServerMetadataResponse metadata;
  EXPECT_TRUE(call(&Stub::ServerMetadata, inference::ServerMetadataRequest(), metadata).ok());
  EXPECT_EQ(metadata.name(), "carillon");
  inference::ModelMetadataRequest of_pair;
  of_pair.set_name("pair");
  inference::ModelMetadataResponse model;
  EXPECT_TRUE(call(&Stub::ModelMetadata, of_pair, model).ok());
  EXPECT_EQ(model.inputs(0).shape(0), -1);
  EXPECT_EQ(model.versions(0), "2");
  inference::RepositoryIndexResponse index;
  EXPECT_TRUE(call(&Stub::RepositoryIndex, inference::RepositoryIndexRequest(), index).ok());
  EXPECT_EQ(index.models(0).state(), "READY");
  of_pair.set_name("nobody");
  EXPECT_EQ(call(&Stub::ModelMetadata, of_pair, model).error_code(), grpc::NOT_FOUND);
  inference::ModelReadyRequest is_ready;
  is_ready.set_name("pair");
  inference::ModelReadyResponse model_ready;
  EXPECT_TRUE(call(&Stub::ModelReady, is_ready, model_ready).ok());
  EXPECT_TRUE(model_ready.ready());
  is_ready.set_name("nobody");
  EXPECT_TRUE(call(&Stub::ModelReady, is_ready, model_ready).ok());
  EXPECT_FALSE(model_ready.ready());
}

TEST_F(GrpcServerTest, WhatIsNotServedSaysSo) {
  inference::RepositoryModelLoadResponse load;
  auto status = call(&Stub::RepositoryModelLoad, inference::RepositoryModelLoadRequest(), load);
  EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("loading models"));
  inference::CudaSharedMemoryRegisterResponse cuda;
  status = call(&Stub::CudaSharedMemoryRegister, inference::CudaSharedMemoryRegisterRequest(), cuda);
  EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("system shared memory"));
}

TEST_F(GrpcServerTest, Settings) {
  inference::LogSettingsRequest log;
  inference::LogSettingsResponse logs;
  ASSERT_TRUE(call(&Stub::LogSettings, log, logs).ok());
  EXPECT_TRUE(logs.settings().at("log_info").bool_param());
  (*log.mutable_settings())["log_verbose_level"].set_uint32_param(2);
  (*log.mutable_settings())["log_file"].set_string_param("");
  ASSERT_TRUE(call(&Stub::LogSettings, log, logs).ok());
  EXPECT_EQ(logs.settings().at("log_verbose_level").uint32_param(), 2U);
  EXPECT_EQ(levels.verbose, 2U);
  (*log.mutable_settings())["log_error"];
  EXPECT_THAT(call(&Stub::LogSettings, log, logs).error_message(), HasSubstr("'log_error' has no value"));

  inference::TraceSettingRequest trace;
  inference::TraceSettingResponse traces;
  trace.set_model_name("pair");
  (*trace.mutable_settings())["trace_rate"].add_value("5");
  ASSERT_TRUE(call(&Stub::TraceSetting, trace, traces).ok());
  EXPECT_EQ(traces.settings().at("trace_rate").value(0), "5");
  (*trace.mutable_settings())["trace_level"].add_value("TENSORS");
  EXPECT_EQ(call(&Stub::TraceSetting, trace, traces).error_code(), grpc::UNIMPLEMENTED);
  trace.set_model_name("nobody");
  EXPECT_EQ(call(&Stub::TraceSetting, trace, traces).error_code(), grpc::NOT_FOUND);
  ASSERT_TRUE(call(&Stub::TraceSetting, {}, traces).ok());
  EXPECT_EQ(traces.settings().at("trace_rate").value(0), "1000");
}

TEST_F(GrpcServerTest, InfersInSharedMemory) {
  LentObject object(64);
  object.put(0, "abcdefghijkl");
  inference::SystemSharedMemoryRegisterRequest lend;
  lend.set_name("r");
  lend.set_key(object.key());
  lend.set_byte_size(64);
  inference::SystemSharedMemoryRegisterResponse lent;
  ASSERT_TRUE(call(&Stub::SystemSharedMemoryRegister, lend, lent).ok());
  EXPECT_EQ(call(&Stub::SystemSharedMemoryRegister, lend, lent).error_code(), grpc::INVALID_ARGUMENT);
  inference::SystemSharedMemoryStatusRequest which;
  inference::SystemSharedMemoryStatusResponse regions;
  ASSERT_TRUE(call(&Stub::SystemSharedMemoryStatus, which, regions).ok());
  EXPECT_EQ(regions.regions().at("r").key(), object.key());
  EXPECT_EQ(regions.regions().at("r").byte_size(), 64U);

  auto request = pair_request();
  request.clear_raw_input_contents();
  request.add_raw_input_contents(std::string(8, '\0'));
  const auto in_memory = [](auto& tensor, std::int64_t offset) {
    (*tensor.mutable_parameters())["shared_memory_region"].set_string_param("r");
    (*tensor.mutable_parameters())["shared_memory_byte_size"].set_int64_param(12);
    (*tensor.mutable_parameters())["shared_memory_offset"].set_int64_param(offset);
  };
  in_memory(*request.mutable_inputs(0), 0);
  auto& y = *request.add_outputs();
  y.set_name("y");
  in_memory(y, 32);

  // The region goes while the request is open: whoever holds it goes on with it.
  service.hold(true);
  inference::ModelInferResponse response;
  grpc::Status status;
  std::thread caller([&] { status = call(&Stub::ModelInfer, request, response); });
  service.wait_for_held(1);
  inference::SystemSharedMemoryUnregisterResponse gone;
  EXPECT_TRUE(call(&Stub::SystemSharedMemoryUnregister, {}, gone).ok());
  service.hold(false);
  service.release();
  caller.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.raw_output_contents_size(), 1);
  EXPECT_EQ(response.raw_output_contents(0), "");
  EXPECT_EQ(object.get(32, 4), std::string("\0\1\2\3", 4));
  // Given back when the call has ended, which its client does not see.
  while (commons.bodies->used() > 0) std::this_thread::yield();

  EXPECT_EQ(call(&Stub::ModelInfer, request, response).error_code(), grpc::INVALID_ARGUMENT);
  which.set_name("r");
  EXPECT_EQ(call(&Stub::SystemSharedMemoryStatus, which, regions).error_code(), grpc::NOT_FOUND);
  inference::CudaSharedMemoryUnregisterResponse none;
  EXPECT_TRUE(call(&Stub::CudaSharedMemoryUnregister, {}, none).ok());
  inference::CudaSharedMemoryStatusResponse cuda;
  EXPECT_TRUE(call(&Stub::CudaSharedMemoryStatus, {}, cuda).ok());
}

TEST_F(GrpcServerTest, Health) {
  const auto health = grpc::health::v1::Health::NewStub(channel);
  grpc::health::v1::HealthCheckResponse response;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(health->Check(&context, {}, &response).ok());
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  }
  service.set_ready(false);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(health->Check(&context, {}, &response).ok());
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  }
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("other");
  EXPECT_EQ(health->Check(&context, request, &response).error_code(), grpc::NOT_FOUND);
}

TEST_F(GrpcServerTest, LargeMessages) {
  auto big = model_of(graph::DataType::u8, {8000000}, "big");
  big.id = ModelId{3};
  service.all_models.push_back(big);
  inference::ModelInferRequest request;
  request.set_model_name("big");
  auto& x = *request.add_inputs();
  x.set_name("x");
  x.set_datatype("UINT8");
  x.add_shape(8000000);
  request.add_raw_input_contents(std::string(8000000, 'x'));
  inference::ModelInferResponse response;
  for (const auto algorithm : {GRPC_COMPRESS_NONE, GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    const auto status = stub->ModelInfer(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.raw_output_contents(0).size(), 8000000U);
  }
}

TEST_F(GrpcServerTest, APortInUse) {
  const auto second = GrpcServer::start(service, {.address = {"127.0.0.1", server->port()}});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("port in use; choose another with --grpc"));
}

}  // namespace
}  // namespace carillon::frontend
