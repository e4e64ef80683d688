#include "carillon/frontend/grpc/external_scaler.h"

#include <atomic>
#include <barrier>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "externalscaler.grpc.pb.h"
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "carillon/frontend/testing/fake_service.h"

namespace carillon::frontend {
namespace {

namespace keda = ::externalscaler;
using ::testing::HasSubstr;

class ExternalScalerTest : public ::testing::Test {
 protected:
  ExternalScalerTest() { start(64); }
  void start(std::size_t most_streams, int highest_descriptor = 1 << 20) {
    server.reset();
    auto started = ScalerServer::start(
        [this]() -> Result<std::vector<provision::WantedFigures>> {
          ++looks;
          const std::lock_guard lock(mutex);
          return told;
        },
        {.address = "127.0.0.1:0",
         .most_streams = most_streams,
         .highest_descriptor = highest_descriptor,
         .log = [this](const std::string& text) {
           const std::lock_guard lock(mutex);
           logged = text;
         }});
    EXPECT_TRUE(started) << started.error().message;
    server = std::move(*started);
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub = keda::ExternalScaler::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials(), arguments));
  }
  using Metadata = std::map<std::string, std::string>;
  static keda::ScaledObjectRef object(const Metadata& metadata) {
    keda::ScaledObjectRef out;
    out.set_name("workers");
    out.set_namespace_("serving");
    (*out.mutable_scalermetadata())["scalerAddress"] = "carillon-scheduler:9090";
    for (const auto& [key, value] : metadata) (*out.mutable_scalermetadata())[key] = value;
    return out;
  }
  grpc::Status metrics(const Metadata& metadata, keda::GetMetricsResponse& answer,
                       const std::string& metric = "carillon_devices_wanted") {
    grpc::ClientContext context;
    keda::GetMetricsRequest request;
    *request.mutable_scaledobjectref() = object(metadata);
    request.set_metricname(metric);
    return stub->GetMetrics(&context, request, &answer);
  }
  // The number, or what is said in place of it.
  std::string number(const Metadata& metadata, const std::string& metric = "carillon_devices_wanted") {
    keda::GetMetricsResponse answer;
    const grpc::Status status = metrics(metadata, answer, metric);
    if (!status.ok()) return std::to_string(status.error_code()) + ": " + status.error_message();
    EXPECT_EQ(answer.metricvalues_size(), 1);
    EXPECT_EQ(answer.metricvalues(0).metricname(), "carillon_devices_wanted");
    EXPECT_EQ(answer.metricvalues(0).metricvaluefloat(),
              static_cast<double>(answer.metricvalues(0).metricvalue()));
    return std::to_string(answer.metricvalues(0).metricvalue());
  }

  std::mutex mutex;
  Result<std::vector<provision::WantedFigures>> told{
      std::vector<provision::WantedFigures>{{.group = "0", .wanted = 6, .present = 4}}};
  std::atomic<int> looks = 0;
  std::string logged;
  std::unique_ptr<ScalerServer> server;
  std::unique_ptr<keda::ExternalScaler::Stub> stub;
};

TEST_F(ExternalScalerTest, TheMetricIsTheWantedDevicesAndItsTargetThoseOfAWorker) {
  EXPECT_EQ(number({}), "6");
  EXPECT_EQ(number({{"subcluster", "0"}}), "6");
  for (const auto& [metadata, target] :
       {std::pair{Metadata{}, 1}, std::pair{Metadata{{"devicesPerWorker", "8"}}, 8}}) {
    grpc::ClientContext context;
    keda::GetMetricSpecResponse spec;
    ASSERT_TRUE(stub->GetMetricSpec(&context, object(metadata), &spec).ok());
    ASSERT_EQ(spec.metricspecs_size(), 1);
    EXPECT_EQ(spec.metricspecs(0).metricname(), "carillon_devices_wanted");
    EXPECT_EQ(spec.metricspecs(0).targetsize(), target);
    EXPECT_EQ(spec.metricspecs(0).targetsizefloat(), target);
  }
  grpc::ClientContext context;
  keda::IsActiveResponse active;
  ASSERT_TRUE(stub->IsActive(&context, object({}), &active).ok());
  EXPECT_TRUE(active.result());
}

TEST_F(ExternalScalerTest, OfSeveralSubclustersTheMetadataNameOne) {
  told = std::vector<provision::WantedFigures>{{.group = "0", .wanted = 6}, {.group = "1", .wanted = 2}};
  EXPECT_EQ(number({{"subcluster", "1"}}), "2");
  EXPECT_EQ(number({}), "3: metadata: subcluster must name one of several: 0, 1");
}

TEST_F(ExternalScalerTest, WrongMetadataAreNamed) {
  const struct {
    Metadata metadata;
    std::string says;
  } rows[] = {
      {{{"subcluster", "7"}}, "metadata: there is no subcluster '7'; there is: 0"},
      {{{"subcluster", ""}}, "metadata: subcluster is empty; leave it out, or name one"},
      {{{"subCluster", "0"}}, "metadata: 'subCluster' is called subcluster"},
      {{{"devicesperworker", "2"}}, "metadata: 'devicesperworker' is called devicesPerWorker"},
      {{{"devicesPerWorker", "0"}}, "metadata: devicesPerWorker is '0': it must be a number from 1 to 4096"},
      {{{"devicesPerWorker", "-1"}},
       "metadata: devicesPerWorker is '-1': it must be a number from 1 to 4096"},
      {{{"devicesPerWorker", "nan"}},
       "metadata: devicesPerWorker is 'nan': it must be a number from 1 to 4096"},
      {{{"devicesPerWorker", "1.5"}},
       "metadata: devicesPerWorker is '1.5': it must be a number from 1 to 4096"},
      {{{"devicesPerWorker", ""}}, "metadata: devicesPerWorker is '': it must be a number from 1 to 4096"},
      {{{"devicesPerWorker", "99999999999999999999"}},
       "metadata: devicesPerWorker is '99999999999999999999': it must be a number from 1 to 4096"},
  };
  for (const auto& [metadata, says] : rows) {
    EXPECT_EQ(number(metadata), "3: " + says);
    grpc::ClientContext active, spec, stream;
    keda::IsActiveResponse is_active;
    keda::GetMetricSpecResponse told_spec;
    EXPECT_EQ(stub->IsActive(&active, object(metadata), &is_active).error_message(), says);
    EXPECT_EQ(stub->GetMetricSpec(&spec, object(metadata), &told_spec).error_message(), says);
    const auto reader = stub->StreamIsActive(&stream, object(metadata));
    EXPECT_FALSE(reader->Read(&is_active));
    EXPECT_EQ(reader->Finish().error_message(), says);
  }
  EXPECT_EQ(number({}, "queue_length"),
            "3: there is no metric 'queue_length'; there is: carillon_devices_wanted");
  EXPECT_EQ(number({}, ""), "3: there is no metric ''; there is: carillon_devices_wanted");
}

TEST_F(ExternalScalerTest, LongNamesAreCut) {
  EXPECT_EQ(number({{"subcluster", std::string(5000, 'x')}}),
            "3: metadata: there is no subcluster '" + std::string(64, 'x') + "'; there is: 0");
  EXPECT_THAT(number({{"subcluster", std::string(100'000, 'x')}}), HasSubstr("8: ")) << "RESOURCE_EXHAUSTED";
}

TEST_F(ExternalScalerTest, WithoutANumberCallsAreUnavailableButTheMetricIsKnown) {
  told = fail(ErrorCode::unavailable, "the scheduler 's2' leads, and has told this one no number");
  EXPECT_EQ(number({}), "14: the scheduler 's2' leads, and has told this one no number");
  grpc::ClientContext active, spec, stream;
  keda::IsActiveResponse is_active;
  keda::GetMetricSpecResponse told_spec;
  EXPECT_EQ(stub->IsActive(&active, object({}), &is_active).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(stub->GetMetricSpec(&spec, object({{"subcluster", "4"}}), &told_spec).ok());
  EXPECT_EQ(told_spec.metricspecs_size(), 1);
  const auto reader = stub->StreamIsActive(&stream, object({}));
  EXPECT_FALSE(reader->Read(&is_active));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  told = std::vector<provision::WantedFigures>{};
  EXPECT_EQ(number({}), "14: no number of devices is known yet");
}

TEST_F(ExternalScalerTest, AStreamSaysThatItIsActiveUntilTheEnd) {
  start(1);
  grpc::ClientContext context, another;
  keda::IsActiveResponse active;
  const auto reader = stub->StreamIsActive(&context, object({}));
  ASSERT_TRUE(reader->Read(&active));
  EXPECT_TRUE(active.result());
  keda::IsActiveResponse refused;
  const auto second = stub->StreamIsActive(&another, object({}));
  EXPECT_FALSE(second->Read(&refused));
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  std::thread ends([&] { server.reset(); });
  EXPECT_FALSE(reader->Read(&active));
  EXPECT_FALSE(reader->Finish().ok());
  ends.join();
}

TEST_F(ExternalScalerTest, AStreamWhoseClientGoesMakesRoom) {
  start(1);
  for (int i = 0; i < 3; ++i) {
    // The server sees that the earlier one has gone at its next look.
    for (bool open = false; !open;) {
      grpc::ClientContext context;
      keda::IsActiveResponse active;
      const auto reader = stub->StreamIsActive(&context, object({}));
      open = reader->Read(&active);
      context.TryCancel();
      (void)reader->Finish();
    }
  }
}

TEST_F(ExternalScalerTest, TenCallersAtOnceHaveOneAnswer) {
  std::barrier begins(10);
  std::atomic<int> right = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 10; ++i)
    callers.emplace_back([&] {
      begins.arrive_and_wait();
      for (int k = 0; k < 20; ++k) right += number({}) == "6" ? 1 : 0;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right, 200);
}

TEST_F(ExternalScalerTest, ConnectionsLeaveDescriptorsToOthers) {
  start(64, 0);  // none is as low
  EXPECT_THAT(number({}), HasSubstr("14: ")) << "UNAVAILABLE";
  EXPECT_EQ(looks, 0);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(logged, HasSubstr(" are refused until others close"));
}

TEST_F(ExternalScalerTest, ErrorsNameTheOption) {
  const auto taken = ScalerServer::start([] { return std::vector<provision::WantedFigures>{}; },
                                         {.address = "127.0.0.1:" + std::to_string(server->port())});
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message, HasSubstr("--keda"));
  const auto wrong =
      ScalerServer::start([] { return std::vector<provision::WantedFigures>{}; }, {.address = "somewhere"});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr("--keda"));
}

TEST(LookOnceASecond, ManyCallersAreOneLook) {
  struct Counting final : FakeService {
    controller::ServerStatistics statistics() const override {
      ++count;
      return all_statistics;
    }
    TimePoint now() const override { return at; }
    mutable std::atomic<int> count = 0;
    TimePoint at{};
  };
  Counting service;
  const LookAtWanted look = look_once_a_second(service);
  EXPECT_EQ(look().error(),
            (Error{ErrorCode::unavailable, "the server is starting, and has no number of devices yet"}));
  service.all_statistics.wanted = {{.group = "0", .wanted = 3}};
  service.at += 1s;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(look()->at(0).wanted, 3);
  EXPECT_EQ(service.count, 2);
  service.all_statistics.wanted[0].wanted = 4;
  service.at += 999ms;
  EXPECT_EQ(look()->at(0).wanted, 3);
  service.at += 1ms;
  EXPECT_EQ(look()->at(0).wanted, 4);
}

}  // namespace
}  // namespace carillon::frontend
