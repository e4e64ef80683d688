#include "carillon/frontend/grpc/grpc_stream.h"

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc_service.grpc.pb.h"
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "carillon/frontend/grpc/grpc_server.h"
#include "carillon/frontend/testing/fake_service.h"
#include "carillon/frontend/testing/lent_object.h"

namespace carillon::frontend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class GrpcStream : public ::testing::Test {
 protected:
  using Messages =
      grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>;

  GrpcStream() {
    service.all_models = {model_of(graph::DataType::u8, {4}, "echo")};
    auto started = GrpcServer::start(
        service, {.address = {"127.0.0.1", 0}, .max_body = std::size_t{4} << 20, .commons = &commons});
    EXPECT_TRUE(started) << started.error().message;
    server = std::move(*started);
    channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()),
                                  grpc::InsecureChannelCredentials());
    stub = inference::GRPCInferenceService::NewStub(channel);
    stream = stub->ModelStreamInfer(&context);
  }
  ~GrpcStream() override {
    service.hold(false);
    service.release();
    context.TryCancel();
    stream.reset();
    server->stop();
  }

  static inference::ModelInferRequest request(const std::string& id, const std::string& bytes = "abcd") {
    inference::ModelInferRequest made;
    made.set_model_name("echo");
    made.set_id(id);
    auto& x = *made.add_inputs();
    x.set_name("x");
    x.set_datatype("UINT8");
    x.add_shape(4);
    made.add_raw_input_contents(bytes);
    return made;
  }

  bool ask(const std::string& id, const std::string& bytes = "abcd") {
    return stream->Write(request(id, bytes));
  }

  inference::ModelStreamInferResponse next() {
    inference::ModelStreamInferResponse response;
    EXPECT_TRUE(stream->Read(&response));
    const auto& parameters = response.infer_response().parameters();
    const auto final = parameters.find("triton_final_response");
    EXPECT_TRUE(final != parameters.end() && final->second.bool_param());
    return response;
  }

  std::string next_id() {
    const auto response = next();
    EXPECT_EQ(response.error_message(), "");
    EXPECT_EQ(response.infer_response().raw_output_contents(0), std::string("\0\1\2\3", 4));
    return response.infer_response().id();
  }

  FakeService service;
  Commons commons{{.inflight = std::size_t{64} << 20, .max_body = std::size_t{4} << 20}};
  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<Messages> stream;
};

TEST_F(GrpcStream, AnswersEachRequestAsItFinishes) {
  service.hold(true);
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(ask(id));
  service.wait_for_held(3);
  service.release(true);
  // All three wait on one thread, in the order in which they finished.
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(next_id());
  EXPECT_THAT(ids, ElementsAre("c", "b", "a"));
  service.hold(false);
  ASSERT_TRUE(ask("d"));
  EXPECT_EQ(next_id(), "d");
  EXPECT_TRUE(stream->WritesDone());
  inference::ModelStreamInferResponse none;
  EXPECT_FALSE(stream->Read(&none));
  EXPECT_TRUE(stream->Finish().ok());
  // Given back when the call has ended, which its client does not see.
  while (commons.bodies->used() > 0) std::this_thread::yield();
}

TEST_F(GrpcStream, WhatWasAskedForIsAnsweredAlsoWhenNoMoreIsAsked) {
  service.hold(true);
  for (const char* id : {"a", "b"}) ASSERT_TRUE(ask(id));
  EXPECT_TRUE(stream->WritesDone());
  service.wait_for_held(2);
  service.release();
  std::vector<std::string> ids{next_id(), next_id()};
  EXPECT_THAT(ids, UnorderedElementsAre("a", "b"));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(GrpcStream, ErrorsAreMessagesAndTheStreamGoesOn) {
  ASSERT_TRUE(ask("short", "abc"));
  auto response = next();
  EXPECT_THAT(response.error_message(), HasSubstr("has 3 bytes"));
  EXPECT_EQ(response.infer_response().id(), "short");

  auto unknown = request("unknown");
  unknown.set_model_name("nobody");
  ASSERT_TRUE(stream->Write(unknown));
  response = next();
  EXPECT_THAT(response.error_message(), HasSubstr("nobody"));
  EXPECT_EQ(response.infer_response().id(), "unknown");

  auto wrong = request("wrong");
  (*wrong.mutable_parameters())["triton_enable_empty_final_response"].set_string_param("yes");
  ASSERT_TRUE(stream->Write(wrong));
  EXPECT_THAT(next().error_message(), HasSubstr("triton_enable_empty_final_response"));

  service.fail_with(Error{ErrorCode::deadline_exceeded, "too late"});
  ASSERT_TRUE(ask("late"));
  response = next();
  EXPECT_EQ(response.error_message(), "too late");
  EXPECT_EQ(response.infer_response().id(), "late");
  EXPECT_EQ(response.infer_response().parameters().at("carillon-would-take-us").int64_param(), 31200);
  EXPECT_EQ(response.infer_response().parameters().at("retry-after-ms").int64_param(), 1201);

  service.fail_with(std::nullopt);
  auto good = request("good");
  (*good.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  ASSERT_TRUE(stream->Write(good));
  EXPECT_EQ(next_id(), "good");
}

TEST_F(GrpcStream, WhatIsNoRequestIsAnErrorLikeAnother) {
  // Field 1 is a model's name in a request, and an id in another message: as bytes, too long for what
  // follows.
  grpc::ClientContext other;
  grpc::GenericStub generic(channel);
  grpc::CompletionQueue queue;
  const auto call = generic.PrepareCall(&other, "/inference.GRPCInferenceService/ModelStreamInfer", &queue);
  void* tag = nullptr;
  bool ok = false;
  const auto done = [&] { return queue.Next(&tag, &ok) && ok; };
  call->StartCall(nullptr);
  ASSERT_TRUE(done());
  const grpc::Slice slice("\xff\xff\xff\xff no protobuf");
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  ASSERT_TRUE(done());
  grpc::ByteBuffer bytes;
  call->Read(&bytes, nullptr);
  ASSERT_TRUE(done());
  grpc::Slice all;
  ASSERT_TRUE(bytes.DumpToSingleSlice(&all).ok());
  inference::ModelStreamInferResponse response;
  ASSERT_TRUE(response.ParseFromArray(all.begin(), static_cast<int>(all.size())));
  EXPECT_THAT(response.error_message(), HasSubstr("cannot be read"));
  other.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

TEST_F(GrpcStream, EachFieldOfMetadataIsInFlight) {
  grpc::ClientContext many;
  for (int i = 0; i < 1000; ++i) many.AddMetadata("a", "b");
  const auto other = stub->ModelStreamInfer(&many);
  ASSERT_TRUE(other->Write(request("a")));
  inference::ModelStreamInferResponse response;
  ASSERT_TRUE(other->Read(&response));
  EXPECT_GT(commons.bodies->used(), std::size_t{200} << 10);
  many.TryCancel();
}

TEST_F(GrpcStream, AClientThatGoesCancelsWhatItAskedFor) {
  service.hold(true);
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(ask(id));
  service.wait_for_held(3);
  context.TryCancel();
  service.wait_for_cancelled(3);
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
}

// What is sent beyond the bound waits in the connection until something is answered.
TEST_F(GrpcStream, NoMoreIsReadThanMayBeOpen) {
  constexpr std::size_t sent = stream_requests_most + 72;
  service.hold(true);
  std::thread writer([&] {
    for (std::size_t i = 0; i < sent; ++i) EXPECT_TRUE(ask(std::to_string(i)));
  });
  service.wait_for_held(stream_requests_most);
  // Other calls go on.
  grpc::ClientContext beside;
  inference::ServerLiveResponse live;
  EXPECT_TRUE(stub->ServerLive(&beside, {}, &live).ok());
  EXPECT_EQ(service.held(), stream_requests_most);
  service.hold(false);
  service.release();
  std::set<std::string> ids;
  for (std::size_t i = 0; i < sent; ++i) ids.insert(next_id());
  EXPECT_EQ(ids.size(), sent);
  writer.join();
}

TEST_F(GrpcStream, AClientThatReadsNothingIsLetGo) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(ask("unread"));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
}

TEST_F(GrpcStream, PackedMessages) {
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext packing;
    packing.set_compression_algorithm(algorithm);
    const auto packed = stub->ModelStreamInfer(&packing);
    auto small = request("small");
    // Packs to more than the reading thread unpacks itself.
    auto large = request("large");
    std::string noise(100'000, '\0');
    for (std::size_t i = 0; i < noise.size(); ++i)
      noise[i] = static_cast<char>('a' + (i * i * 31 + i / 7) % 26);
    large.set_id("large" + noise);
    for (const auto& message : {small, large}) {
      ASSERT_TRUE(packed->Write(message));
      inference::ModelStreamInferResponse response;
      ASSERT_TRUE(packed->Read(&response));
      EXPECT_EQ(response.error_message(), "");
      EXPECT_EQ(response.infer_response().id(), message.id());
    }
    packed->WritesDone();
    EXPECT_TRUE(packed->Finish().ok());
  }
}

TEST_F(GrpcStream, OutputsGoToSharedMemory) {
  LentObject object(16);
  ASSERT_TRUE(commons.regions.add({.name = "r", .key = object.key(), .byte_size = 16}));
  auto shared = request("shared");
  auto& y = *shared.add_outputs();
  y.set_name("y");
  (*y.mutable_parameters())["shared_memory_region"].set_string_param("r");
  (*y.mutable_parameters())["shared_memory_byte_size"].set_int64_param(4);
  ASSERT_TRUE(stream->Write(shared));
  const auto response = next();
  EXPECT_EQ(response.error_message(), "");
  EXPECT_EQ(response.infer_response().raw_output_contents(0), "");
  EXPECT_EQ(object.get(0, 4), std::string("\0\1\2\3", 4));
}

TEST_F(GrpcStream, ADrainWaitsForRequestsAndRefusesNewOnes) {
  service.hold(true);
  ASSERT_TRUE(ask("before"));
  service.wait_for_held(1);
  commons.draining = true;
  ASSERT_TRUE(ask("after"));
  auto response = next();
  EXPECT_THAT(response.error_message(), HasSubstr("going away"));
  service.hold(false);
  service.release();
  EXPECT_EQ(next_id(), "before");
  server->wait_drained(10s);
  grpc::ClientContext late;
  const auto refused = stub->ModelStreamInfer(&late);
  inference::ModelStreamInferResponse none;
  EXPECT_FALSE(refused->Read(&none));
  EXPECT_EQ(refused->Finish().error_code(), grpc::UNAVAILABLE);
}

}  // namespace
}  // namespace carillon::frontend
