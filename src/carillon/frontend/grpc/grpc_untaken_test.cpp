// Answers over gRPC that their clients do not take: how much of them there is, and for how long.

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpc_service.grpc.pb.h"
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "carillon/frontend/grpc/grpc_server.h"
#include "carillon/frontend/testing/fake_service.h"

namespace carillon::frontend {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t mebi = std::size_t{1} << 20;
constexpr std::size_t large = 4 * mebi;

// A call whose client reads only where it is told to: its window stays closed.
template <typename Response>
struct Call {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<ModelInferRequest, Response>> stream;

  Call(grpc::Channel& channel, const char* method)
      : stream(grpc::internal::ClientReaderWriterFactory<ModelInferRequest, Response>::Create(
            &channel, grpc::internal::RpcMethod(method, grpc::internal::RpcMethod::BIDI_STREAMING),
            &context)) {}
  ~Call() { context.TryCancel(); }

  grpc::Status end() {
    Response ignored;
    while (stream->Read(&ignored)) continue;
    return stream->Finish();
  }
};

class GrpcUntaken : public ::testing::Test {
 protected:
  // 1 byte in, and 4 MiB, or 1 MiB, out; "ordered" has 4 bytes.
  GrpcUntaken() {
    const auto add = [&](const char* name, std::size_t bytes, ModelId id) {
      auto view = model_of(graph::DataType::u8, {1}, name);
      view.id = id;
      view.config.outputs[0].shape = {static_cast<std::int64_t>(bytes)};
      view.config.preserve_ordering = std::string_view(name) == "ordered";
      service.all_models.push_back(view);
    };
    add("large", large, ModelId{21});
    add("middle", mebi, ModelId{22});
    add("ordered", 4, ModelId{23});
    add("free", 4, ModelId{24});
  }
  ~GrpcUntaken() override {
    service.hold(false);
    service.release();
    if (server) server->stop();
  }

  void start(GrpcOptions options = {}) {
    options.address = {"127.0.0.1", 0};
    options.max_body = large;
    options.commons = &commons;
    auto started = GrpcServer::start(service, std::move(options));
    ASSERT_TRUE(started) << started.error().message;
    server = std::move(*started);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // each a connection of its own
    for (auto* each : {&channel, &other})
      *each = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server->port()),
                                        grpc::InsecureChannelCredentials(), arguments);
  }

  static ModelInferRequest request(const std::string& model, const std::string& id = "") {
    ModelInferRequest made;
    made.set_model_name(model);
    made.set_id(id);
    auto& x = *made.add_inputs();
    x.set_name("x");
    x.set_datatype("UINT8");
    x.add_shape(1);
    made.add_raw_input_contents("a");
    return made;
  }

  // By turns over two connections, as one has no more than its share.
  std::unique_ptr<Call<ModelInferResponse>> infer(const std::string& model) {
    turn = !turn;
    return infer_by(turn ? *channel : *other, model);
  }
  static std::unique_ptr<Call<ModelInferResponse>> infer_by(grpc::Channel& by, const std::string& model) {
    auto call = std::make_unique<Call<ModelInferResponse>>(by, unary);
    EXPECT_TRUE(call->stream->Write(request(model)));
    EXPECT_TRUE(call->stream->WritesDone());
    return call;
  }
  auto open_stream() { return std::make_unique<Call<ModelStreamInferResponse>>(*channel, streaming); }

  void wait_for_nothing_in_flight() {
    while (commons.bodies->used() > 0) std::this_thread::yield();
  }

  static constexpr const char* unary = "/inference.GRPCInferenceService/ModelInfer";
  static constexpr const char* streaming = "/inference.GRPCInferenceService/ModelStreamInfer";

  FakeService service;
  Commons commons{{.inflight = 64 * mebi, .max_body = large, .strict_readiness = false}};
  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel, other;
  bool turn = false;
};

TEST_F(GrpcUntaken, AnswersAreBytesInFlight) {
  start();
  std::vector<std::unique_ptr<Call<ModelInferResponse>>> calls;
  // 14 find room in seven eighths of 64 MiB.
  while (commons.bodies->refusals() == 0) {
    ASSERT_LT(calls.size(), 20U);
    // The call before may give a little back yet.
    const std::size_t before = commons.bodies->used();
    calls.push_back(infer("large"));
    while (commons.bodies->refusals() == 0 && commons.bodies->used() < before + large / 2)
      std::this_thread::yield();
  }
  EXPECT_GE(calls.size(), 13U);
  EXPECT_LE(commons.bodies->used(), 64 * mebi);
  const grpc::Status refused = calls.back()->end();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("no room now for the 4194304 bytes that answering takes"));
  // Small ones find room all the same.
  EXPECT_TRUE(infer("free")->end().ok());
  // One that is taken makes room for another, once the server hears of it.
  const std::size_t full = commons.bodies->used();
  EXPECT_TRUE(calls.front()->end().ok());
  while (commons.bodies->used() > full - large / 2) std::this_thread::yield();
  EXPECT_TRUE(infer("large")->end().ok());
  calls.clear();
  wait_for_nothing_in_flight();
}

// 56 MiB for what is large, less a message of 4 MiB.
TEST_F(GrpcUntaken, OneConnectionHoldsNoMoreThanItsShare) {
  start();
  std::vector<std::unique_ptr<Call<ModelInferResponse>>> calls;
  grpc::Status refused;
  for (;;) {
    ASSERT_LT(calls.size(), 20U);
    const std::size_t before = commons.bodies->used();
    auto call = infer_by(*channel, "large");
    // Its answer lies there and is not taken, or it is refused: then it ends.
    const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    while (commons.bodies->used() < before + large / 2 && std::chrono::steady_clock::now() < soon)
      std::this_thread::yield();
    if (commons.bodies->used() < before + large / 2) {
      refused = call->end();
      break;
    }
    calls.push_back(std::move(call));
  }
  EXPECT_GE(calls.size(), 12U);
  EXPECT_LE(commons.bodies->used(), 52 * mebi + large / 2);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("at most 54525952 are a connection's"));
  EXPECT_EQ(commons.bodies->refusals(), 0U);
  // Another connection is served.
  EXPECT_TRUE(infer_by(*other, "large")->end().ok());
  calls.clear();
  wait_for_nothing_in_flight();
  EXPECT_TRUE(infer_by(*channel, "large")->end().ok());
}

// A sixteenth of 64 MiB is for answers of other methods than inference, an eighth of that a connection's.
TEST_F(GrpcUntaken, AnswersOfOtherMethodsLeaveTheRestToInferences) {
  auto wordy = model_of(graph::DataType::u8, {1}, "wordy");
  wordy.config.inputs[0].name.assign(std::size_t{100} << 10, 'x');
  service.all_models.push_back(wordy);
  start();
  using Metadata = Call<inference::ModelMetadataResponse>;
  const auto ask = [&](grpc::Channel& by) {
    auto call = std::make_unique<Metadata>(by, "/inference.GRPCInferenceService/ModelMetadata");
    ModelInferRequest named;  // whose first field is the model's name, as in a question for metadata
    named.set_model_name("wordy");
    EXPECT_TRUE(call->stream->Write(named));
    EXPECT_TRUE(call->stream->WritesDone());
    return call;
  };
  std::vector<std::unique_ptr<Metadata>> calls;
  grpc::Status refused;
  for (;;) {
    ASSERT_LT(calls.size(), 10U);
    const std::size_t before = commons.bodies->used();
    auto call = ask(*channel);
    const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    while (commons.bodies->used() < before + (std::size_t{100} << 10) &&
           std::chrono::steady_clock::now() < soon)
      std::this_thread::yield();
    if (commons.bodies->used() < before + (std::size_t{100} << 10)) {
      refused = call->end();
      break;
    }
    calls.push_back(std::move(call));
  }
  EXPECT_GE(calls.size(), 4U);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("there is no room now for the answer's"));
  // Its inferences go on, and so do other connections, and health in any case.
  const std::size_t held = commons.bodies->used();
  EXPECT_TRUE(infer_by(*channel, "free")->end().ok());
  EXPECT_TRUE(ask(*other)->end().ok());
  while (commons.bodies->used() > held) std::this_thread::yield();
  SideRoom rest(commons.side);
  for (std::size_t size = commons.side.limit(); !rest.hold(size); size -= 1024) continue;
  EXPECT_EQ(ask(*other)->end().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (auto* each : {&channel, &other}) {
    const auto stub = inference::GRPCInferenceService::NewStub(*each);
    grpc::ClientContext context;
    inference::ServerLiveResponse live;
    EXPECT_TRUE(stub->ServerLive(&context, {}, &live).ok());
    EXPECT_TRUE(infer_by(**each, "free")->end().ok());
  }
}

TEST_F(GrpcUntaken, OutputsOfRequestsThatWaitAreBytesInFlight) {
  start();
  service.hold(true);
  std::vector<std::unique_ptr<Call<ModelInferResponse>>> calls;
  while (commons.bodies->refusals() == 0) {
    ASSERT_LT(calls.size(), 20U);
    // The call before may give a little back yet.
    const std::size_t before = commons.bodies->used();
    calls.push_back(infer("large"));
    while (commons.bodies->refusals() == 0 && commons.bodies->used() < before + large / 2)
      std::this_thread::yield();
  }
  EXPECT_EQ(calls.back()->end().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // One whose bytes are counted may still be on its way to the service.
  while (service.held() < calls.size() - 1) std::this_thread::yield();
  EXPECT_EQ(service.held(), calls.size() - 1);
  calls.clear();
  wait_for_nothing_in_flight();
}

TEST_F(GrpcUntaken, AClientThatTakesTooLongLosesItsCall) {
  start({.take_timeout = 20ms});
  const auto call = infer("large");
  // That has 16 s for its 4 MiB, and an answer of the stream 4 s.
  const auto stream = open_stream();
  for (int i = 0; i < 400; ++i)
    if (!stream->stream->Write(request("middle"))) break;
  while (commons.bodies->used() < large + mebi / 2) std::this_thread::yield();
  while (commons.bodies->used() > large + mebi / 2) std::this_thread::yield();
  call->context.TryCancel();
  wait_for_nothing_in_flight();
  const grpc::Status ended = stream->end();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(ended.error_message(), HasSubstr("did not take its answer"));
}

TEST_F(GrpcUntaken, AStreamIsNotReadWhileItsAnswersWait) {
  start();
  const auto stream = open_stream();
  constexpr int requests = 100;
  for (int i = 0; i < requests; ++i) ASSERT_TRUE(stream->stream->Write(request("middle", std::to_string(i))));
  // A sixteenth of what may be in flight, and what was read beside it.
  while (commons.bodies->used() < 4 * mebi) std::this_thread::yield();
  // Read without a bound there would be no room for the last.
  for (int i = 0; i < requests; ++i) {
    ModelStreamInferResponse response;
    ASSERT_TRUE(stream->stream->Read(&response));
    ASSERT_EQ(response.error_message(), "");
    EXPECT_LE(commons.bodies->used(), 16 * mebi);
  }
  EXPECT_EQ(commons.bodies->refusals(), 0U);
  EXPECT_TRUE(stream->stream->WritesDone());
  EXPECT_TRUE(stream->end().ok());
  wait_for_nothing_in_flight();
}

TEST_F(GrpcUntaken, AnswersOfAStreamKeepOrderWhereTheModelWantsIt) {
  start();
  service.hold(true);
  const auto stream = open_stream();
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(stream->stream->Write(request("ordered", id)));
  for (const char* id : {"x", "y"}) ASSERT_TRUE(stream->stream->Write(request("free", id)));
  service.wait_for_held(5);
  service.release(true);
  std::vector<std::string> ordered, free;
  for (int i = 0; i < 5; ++i) {
    ModelStreamInferResponse response;
    ASSERT_TRUE(stream->stream->Read(&response));
    ASSERT_EQ(response.error_message(), "");
    (response.infer_response().model_name() == "ordered" ? ordered : free)
        .push_back(response.infer_response().id());
  }
  EXPECT_THAT(ordered, ElementsAre("a", "b", "c"));
  EXPECT_THAT(free, ElementsAre("y", "x"));
}

// Also what is refused before the service hears of it, as far as it is of that model.
TEST_F(GrpcUntaken, RefusalsOfAStreamKeepOrderWhereTheModelWantsIt) {
  start();
  service.hold(true);
  const auto stream = open_stream();
  const auto ask = [&](const ModelInferRequest& made) { ASSERT_TRUE(stream->stream->Write(made)); };
  ask(request("ordered", "good"));
  auto shape = request("ordered", "shape");
  shape.mutable_inputs(0)->set_shape(0, 2);
  ask(shape);
  auto input = request("ordered", "input");
  input.mutable_inputs(0)->set_name("zz");
  ask(input);
  auto version = request("ordered", "version");
  version.set_model_version("9");
  ask(version);
  auto timeout = request("ordered", "timeout");
  (*timeout.mutable_parameters())["timeout"].set_int64_param(-1);
  ask(timeout);
  ask(request("ordered", "last"));
  auto free = request("free", "free");
  free.mutable_inputs(0)->set_shape(0, 2);
  ask(free);
  auto nobody = request("nobody", "nobody");
  ask(nobody);
  const auto next = [&] {
    ModelStreamInferResponse response;
    EXPECT_TRUE(stream->stream->Read(&response));
    const std::string& id = response.infer_response().id();
    EXPECT_EQ(response.error_message().empty(), id == "good" || id == "last") << response.error_message();
    return id;
  };
  EXPECT_EQ(next(), "free");
  EXPECT_EQ(next(), "nobody");
  service.wait_for_held(2);
  service.release(true);
  std::vector<std::string> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(next());
  EXPECT_THAT(ids, ElementsAre("good", "shape", "input", "version", "timeout", "last"));
}

// A model that is loaded anew has another id.
TEST_F(GrpcUntaken, AnswersKeepOrderWhateverTheModelsIdIs) {
  auto anew = service.all_models[2];
  ASSERT_EQ(anew.name, "ordered");
  anew.version = 2;
  anew.id = ModelId{25};
  service.all_models.push_back(anew);
  start();
  service.hold(true);
  const auto stream = open_stream();
  for (const char* version : {"1", "2", "1"}) {
    auto made = request("ordered", version);
    made.set_model_version(version);
    ASSERT_TRUE(stream->stream->Write(made));
  }
  service.wait_for_held(3);
  service.release(true);
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    ModelStreamInferResponse response;
    ASSERT_TRUE(stream->stream->Read(&response));
    ids.push_back(response.infer_response().id());
  }
  EXPECT_THAT(ids, ElementsAre("1", "2", "1"));
}

TEST_F(GrpcUntaken, WhatWaitsForItsTurnEndsWithTheStream) {
  start();
  service.hold(true);
  auto stream = open_stream();
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(stream->stream->Write(request("ordered", id)));
  service.wait_for_held(3);
  stream->context.TryCancel();
  service.wait_for_cancelled(3);
  stream.reset();
  wait_for_nothing_in_flight();
  server->wait_drained(std::chrono::minutes(1));
}

TEST_F(GrpcUntaken, CallsAreBounded) {
  start({.most_calls = 3});
  std::vector<std::unique_ptr<Call<ModelInferResponse>>> calls;
  service.hold(true);
  for (int i = 0; i < 3; ++i) calls.push_back(infer("free"));
  service.wait_for_held(3);
  const auto stub = inference::GRPCInferenceService::NewStub(channel);
  grpc::ClientContext context;
  inference::ServerLiveResponse live;
  const grpc::Status refused = stub->ServerLive(&context, {}, &live);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("there are 3 calls"));
  EXPECT_EQ(infer("free")->end().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  service.hold(false);
  service.release();
  for (const auto& call : calls) EXPECT_TRUE(call->end().ok());
}

}  // namespace
}  // namespace carillon::frontend
