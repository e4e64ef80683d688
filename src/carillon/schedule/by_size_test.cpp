#include "carillon/schedule/by_size.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/sim_world.h"

namespace carillon::schedule {
namespace {

using testing::Outcome;
using testing::SimWorld;

constexpr Effort row_of(std::uint64_t length) {
  return {.operations = 100'000 * length, .bytes = 2'000 * length};
}

// 10 us a unit of length for each row and no gain by batches; measured at 64.
ModelInfo encoder(std::uint32_t id = 0, std::uint64_t pages = 0) {
  ModelInfo model = testing::linear_model(id, 640us, Duration{0}, pages, 5ms, {1, 2, 4});
  for (const BatchProfile& b : model.batches)
    model.sizes.push_back({.row = row_of(64), .batch = b.batch, .exec = b.exec});
  return model;
}

struct Served {
  explicit Served(const std::string& policy, std::vector<ModelInfo> models,
                  const SimWorld::Options& options = {})
      : scheduler(
            *make_scheduler(policy, Environment{.dispatch = Duration{0}, .answer = 50us, .overrun = 0})),
        world(*scheduler, options, std::move(models)) {}
  RequestId ask(TimePoint at, std::uint64_t length, Duration slo, std::uint32_t model = 0) {
    const RequestId id = world.next_id();
    Request request{.model = ModelId{model}, .deadline = at + slo};
    if (length > 0) request.effort = row_of(length);
    world.arrive(request, at);
    return id;
  }
  const SimWorld::RequestLog& of(RequestId id) const { return world.requests()[id.value]; }

  std::unique_ptr<Scheduler> scheduler;
  SimWorld world;
};

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

class BySizePolicies : public ::testing::TestWithParam<const char*> {};

// A large request ran; a small one that has little time is admitted, and a large one of as little is not.
TEST_P(BySizePolicies, EachSizeIsExpectedToTakeItsOwnTime) {
  Served served(GetParam(), {encoder()});
  for (int i = 0; i < 12; ++i) served.ask(at(i * 50ms), i % 2 == 0 ? 512 : 8, 30ms);
  const RequestId small = served.ask(at(1s), 8, 1ms);
  const RequestId large = served.ask(at(1100ms), 512, 4ms);
  const RequestId fits = served.ask(at(1200ms), 512, 6ms);
  served.world.run();
  EXPECT_TRUE(served.world.problems().empty()) << served.world.problems_text();
  EXPECT_EQ(served.of(small).outcome, Outcome::on_time);
  EXPECT_EQ(served.of(fits).outcome, Outcome::on_time);
  EXPECT_EQ(served.of(large).outcome, Outcome::refused);
  EXPECT_EQ(served.of(large).answered, at(1100ms)) << "at once";
}

// Nothing of its size ever ran: it goes by what ran of others.
TEST_P(BySizePolicies, TheFirstOfASizeIsPredicted) {
  Served served(GetParam(), {encoder()});
  const RequestId late = served.ask(at(10ms), 1024, 9ms);  // takes 10.24 ms
  const RequestId fits = served.ask(at(30ms), 1024, 13ms);
  const RequestId small = served.ask(at(60ms), 4, 300us);  // takes 40 us
  served.world.run();
  EXPECT_EQ(served.of(late).outcome, Outcome::refused);
  EXPECT_EQ(served.of(fits).outcome, Outcome::on_time);
  EXPECT_EQ(served.of(small).outcome, Outcome::on_time);
}

// All sizes run with one copy of the weights, on every device.
TEST_P(BySizePolicies, WeightsAreLoadedOnce) {
  Served served(GetParam(), {encoder(0, 3), encoder(1, 3)}, {.pages = {6}});
  for (int i = 0; i < 60; ++i)
    served.ask(at(50ms + i * 10ms), 4U << (i % 7), 100ms, static_cast<std::uint32_t>(i % 2));
  served.world.run();
  EXPECT_TRUE(served.world.problems().empty()) << served.world.problems_text();
  EXPECT_EQ(served.world.loads(), 2);
  EXPECT_EQ(served.world.unloads(), 0);
  EXPECT_GE(served.world.count().on_time, 58);
}

// Memory is for one model at a time: its sizes come and go together.
TEST_P(BySizePolicies, WeightsMakeRoomForOthers) {
  Served served(GetParam(), {encoder(0, 3), encoder(1, 3)}, {.pages = {4}});
  for (int phase = 0; phase < 4; ++phase)
    for (int i = 0; i < 40; ++i)
      served.ask(at(phase * 4s + 2s * (phase % 2) + i * 20ms), 4U << (i % 7), 150ms,
                 static_cast<std::uint32_t>(phase % 2));
  served.world.run();
  EXPECT_TRUE(served.world.problems().empty()) << served.world.problems_text();
  EXPECT_GE(served.world.unloads(), 2);
  EXPECT_GE(served.world.count().on_time, 100);
}

// More sizes than are told apart.
TEST_P(BySizePolicies, ClassesAreTakenOver) {
  Served served(GetParam(), {encoder()});
  for (int i = 0; i < 200; ++i) served.ask(at(i * 40ms), 1 + static_cast<std::uint64_t>(i) * 7 % 1999, 60ms);
  served.world.run();
  EXPECT_TRUE(served.world.problems().empty()) << served.world.problems_text();
  EXPECT_GE(served.world.count().on_time, 196);
}

INSTANTIATE_TEST_SUITE_P(All, BySizePolicies,
                         ::testing::Values("clockwork", "symphony", "shepherd", "nexus"));

// What has no sizes passes as it is: ids, and nothing is told twice.
class Recorder final : public Scheduler {
 public:
  std::string_view name() const override { return "recorder"; }
  TimePoint decide(const Event& event, TimePoint, Actions& out) override {
    events.push_back(event);
    for (Action& action : next) out.push_back(std::move(action));
    next.clear();
    return TimePoint::max();
  }
  std::vector<Event> events;
  Actions next;
};

TEST(BySize, ModelsWithoutSizesPass) {
  auto inner = std::make_unique<Recorder>();
  Recorder& heard = *inner;
  BySize by_size(std::move(inner));
  Actions out;
  by_size.decide(model_comes(testing::linear_model(0, 1ms, 1ms)), {}, out);
  by_size.decide(model_comes(testing::linear_model(1, 1ms, 1ms)), {}, out);
  const Request request{.id = {5}, .model = {1}, .deadline = at(1s), .effort = row_of(3)};
  by_size.decide(RequestArrived{request}, {}, out);
  heard.next = {Load{.id = {1}, .device = {}, .model = {1}, .window = {}, .expected = {}}};
  by_size.decide(Wake{}, {}, out);
  EXPECT_EQ(heard.events.size(), 4U);
  EXPECT_EQ(std::get<RequestArrived>(heard.events[2]).request, request);
  EXPECT_EQ(std::get<Load>(out.back()).model, ModelId{1});
}

TEST(BySize, AClassIsAModelOfTheSameWeights) {
  auto inner = std::make_unique<Recorder>();
  Recorder& heard = *inner;
  BySize by_size(std::move(inner));
  Actions out;
  by_size.decide(model_comes(encoder()), {}, out);
  by_size.decide(model_comes(testing::linear_model(1, 1ms, 1ms)), {}, out);
  by_size.decide(RequestArrived{{.id = {7}, .model = {0}, .effort = row_of(128)}}, {}, out);
  ASSERT_EQ(heard.events.size(), 4U);
  const auto& told = *std::get<ModelChanged>(heard.events[2]).info;
  EXPECT_EQ(told.id, ModelId{2});
  EXPECT_EQ(told.weights_of, ModelId{0});
  EXPECT_NEAR(to_ms(told.batches[0].exec), 1.28, 0.02);
  EXPECT_NEAR(to_ms(told.batches[2].exec), 5.12, 0.06);
  EXPECT_EQ(std::get<RequestArrived>(heard.events[3]).request.model, ModelId{2});

  heard.next = {
      Infer{.id = {1}, .device = {}, .model = {2}, .requests = {{7}}, .window = {}, .expected = 1ms}};
  by_size.decide(Wake{}, {}, out);
  EXPECT_EQ(std::get<Infer>(out.back()).model, ModelId{0});
  by_size.decide(RequestCancelled{{7}, {0}}, {}, out);
  EXPECT_EQ(std::get<RequestCancelled>(heard.events.back()).model, ModelId{2});
  by_size.decide(ModelChanged{ModelId{0}, nullptr}, {}, out);
  ASSERT_EQ(heard.events.size(), 8U);
  EXPECT_EQ(std::get<ModelChanged>(heard.events[6]).model, ModelId{0});
  EXPECT_EQ(std::get<ModelChanged>(heard.events[7]).model, ModelId{2});
}

// The model and each class of it are told; of sizes whose times are as they were, what was told before.
TEST(BySize, TimesThatChangeAreThoseOfEachClass) {
  auto inner = std::make_unique<Recorder>();
  Recorder& heard = *inner;
  BySize by_size(std::move(inner));
  Actions out;
  by_size.decide(model_comes(encoder()), {}, out);
  by_size.decide(RequestArrived{{.id = {7}, .model = {0}, .effort = row_of(128)}}, {}, out);
  const auto before = std::get<ModelChanged>(heard.events[1]).info->batches;
  heard.events.clear();
  heard.next = {
      Infer{.id = {1}, .device = {}, .model = {1}, .requests = {{7}}, .window = {}, .expected = 1ms}};
  by_size.decide(TimesChanged{{0}, {{1, 640us}, {2, 1280us}, {4, 1000us}}}, {}, out);
  ASSERT_EQ(heard.events.size(), 2U);
  const auto& own = std::get<TimesChanged>(heard.events[0]);
  EXPECT_EQ(own.model, ModelId{0});
  EXPECT_EQ(own.batches[2].exec, 1ms);
  const auto& of_class = std::get<TimesChanged>(heard.events[1]);
  EXPECT_EQ(of_class.model, ModelId{1});
  EXPECT_EQ(of_class.batches[0], before[0]);
  EXPECT_EQ(of_class.batches[1], before[1]);
  EXPECT_LT(of_class.batches[2].exec, before[2].exec);
  EXPECT_EQ(std::get<Infer>(out.back()).model, ModelId{0}) << "what the policy says to it passes";

  heard.events.clear();
  by_size.decide(ModelChanged{{0}, nullptr}, {}, out);
  heard.events.clear();
  by_size.decide(TimesChanged{{0}, {{1, 640us}, {2, 1280us}, {4, 2560us}}}, {}, out);
  EXPECT_TRUE(heard.events.empty()) << "it went";
}

}  // namespace
}  // namespace carillon::schedule
