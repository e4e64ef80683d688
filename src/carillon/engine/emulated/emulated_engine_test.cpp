#include "carillon/engine/emulated/emulated_engine.h"

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

namespace carillon::engine {
namespace {

class Toy final : public graph::Model {
 public:
  const std::string& name() const override { return name_; }
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  bool batched() const override { return true; }
  Result<graph::Graph> specialize(std::int64_t, std::int64_t) const override {
    return invalid("never asked");
  }

 private:
  std::string name_ = "toy";
  std::vector<graph::TensorSpec> inputs_{{"x", graph::DataType::f32, {graph::batch_dimension, 4}}};
  std::vector<graph::TensorSpec> outputs_{{"y", graph::DataType::f32, {graph::batch_dimension, 2}}};
};

TEST(EmulatedDuration, InterpolatesAndExtends) {
  const EmulatedModel table{.execution = {{2, 10ms}, {4, 14ms}, {8, 30ms}}};
  const struct {
    int batch;
    Duration want;
  } rows[] = {{1, 10ms}, {2, 10ms}, {3, 12ms}, {4, 14ms}, {6, 22ms}, {8, 30ms}, {16, 62ms}};
  for (const auto& [batch, want] : rows) EXPECT_EQ(emulated_duration(table, batch), want) << batch;
  EXPECT_EQ(emulated_duration({.execution = {{4, 8ms}}}, 8), 16ms);
}

TEST(EmulatedDuration, FollowsTheLength) {
  const EmulatedModel alone{.execution = {{1, 8ms}, {2, 12ms}}};
  EXPECT_EQ(emulated_duration(alone, 2, 64, 64), 12ms);
  EXPECT_EQ(emulated_duration(alone, 2, 16, 64), 3ms);
  const EmulatedModel tables{.execution = {{1, 8ms}}, .by_length = {{16, {{1, 3ms}}}, {64, {{1, 7ms}}}}};
  EXPECT_EQ(emulated_duration(tables, 1, 16, 128), 3ms);
  EXPECT_EQ(emulated_duration(tables, 1, 17, 128), 7ms);
  EXPECT_EQ(emulated_duration(tables, 1, 128, 128), 7ms);
}

struct EmulatedEngineTest : ::testing::Test {
  ManualClock clock;
  EmulatedOptions options{.models = {{"toy", {.weights = kib(3), .execution = {{1, 4ms}, {2, 6ms}}}}},
                          .kernels = 4,
                          .wait = [this](const Clock&, TimePoint until) {
                            if (clock.now() < until) clock.set(until);
                          }};
  std::array<float, 4> output{1, 1, 1, 1};
  std::array<float, 8> input{};
  const std::byte* in = reinterpret_cast<const std::byte*>(input.data());
  std::byte* out = reinterpret_cast<std::byte*>(output.data());

  Binding binding() { return {.inputs = {&in, 1}, .outputs = {&out, 1}}; }
};

TEST_F(EmulatedEngineTest, PlansTakeTheirTimeInEqualParts) {
  const auto model = make_emulated_engine(options, clock)->compile(Toy(), {.batch_sizes = {1, 2}});
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ((*model)->weights(), kib(3));
  EXPECT_EQ((*model)->plan(3), nullptr);
  const Plan* plan = (*model)->plan(2);
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->outputs()[0].shape, (graph::Shape{2, 2}));
  std::array<Duration, 4> durations{};
  ASSERT_TRUE(plan->run({0, 3}, binding(), durations).has_value());
  EXPECT_EQ(clock.now(), TimePoint{4500us});
  EXPECT_EQ(output[0], 1);  // the last kernel writes them
  ASSERT_TRUE(plan->run({3, 4}, binding(), durations).has_value());
  EXPECT_EQ(clock.now(), TimePoint{6ms});
  EXPECT_EQ(output, (std::array<float, 4>{}));
  for (const Duration d : durations) EXPECT_EQ(d, 1500us);
}

TEST_F(EmulatedEngineTest, AShareMakesARunThatMuchLonger) {
  const auto model = make_emulated_engine(options, clock)->compile(Toy(), {.batch_sizes = {1, 2}});
  ASSERT_TRUE(model.has_value());
  Pacer half(0.5);
  ASSERT_TRUE((*model)->plan(2)->run({0, 4}, binding(), {}, nullptr, &half).has_value());
  EXPECT_EQ(clock.now(), TimePoint{12ms});
}

TEST_F(EmulatedEngineTest, NoiseIsSeededAndBounded) {
  options.noise = 0.1;
  options.kernels = 1;
  std::vector<Duration> first;
  for (int repeat = 0; repeat < 2; ++repeat) {
    clock.set({});
    const auto model = make_emulated_engine(options, clock)->compile(Toy(), {.batch_sizes = {1}});
    std::vector<Duration> took;
    for (int i = 0; i < 200; ++i) {
      const TimePoint before = clock.now();
      ASSERT_TRUE((*model)->plan(1)->run({0, 1}, binding(), {}).has_value());
      took.push_back(clock.now() - before);
      EXPECT_GE(took.back(), 2800us);
      EXPECT_LE(took.back(), 5200us);
    }
    EXPECT_NE(took[0], took[1]);
    if (repeat == 0)
      first = took;
    else
      EXPECT_EQ(took, first);
  }
}

TEST_F(EmulatedEngineTest, WeightsAreZerosOfTheRightSize) {
  const auto model = make_emulated_engine(options, clock)->compile(Toy(), {.batch_sizes = {1}});
  std::vector<std::byte> page(1024, std::byte{7});
  EXPECT_TRUE((*model)->write_weights(2048, page).has_value());
  EXPECT_EQ(page, std::vector<std::byte>(1024));
}

TEST_F(EmulatedEngineTest, WeightsTakeTheirTimeWhereItIsKnown) {
  options.models["toy"].load = 6ms;
  const auto model = make_emulated_engine(options, clock)->compile(Toy(), {.batch_sizes = {1}});
  std::vector<std::byte> page(1024, std::byte{7});
  EXPECT_TRUE((*model)->write_weights(0, page).has_value());
  EXPECT_EQ(clock.now(), TimePoint{2ms});
  EXPECT_EQ(page, std::vector<std::byte>(1024, std::byte{7}));
}

TEST_F(EmulatedEngineTest, FailsWhileItIsBroken) {
  options.breaker = std::make_shared<Breaker>(clock);
  const auto engine = make_emulated_engine(options, clock);
  const auto model = engine->compile(Toy(), {.batch_sizes = {1}});
  const auto run = [&] { return (*model)->plan(1)->run({0, 4}, binding(), {}); };
  ASSERT_TRUE(run().has_value());
  EXPECT_TRUE(engine->probe().has_value());

  clock.set(TimePoint{10ms});
  options.breaker->fail();
  const Result<> failed = run();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::unavailable);
  EXPECT_EQ(clock.now(), TimePoint{10ms});  // at once
  EXPECT_FALSE(engine->probe().has_value());

  clock.set(TimePoint{20ms});
  options.breaker->mend();
  EXPECT_TRUE(run().has_value());
  // A failure that comes and goes within a run is the run's.
  options.breaker->plan({Breaker::Fault::failure, TimePoint{25ms}, TimePoint{26ms}});
  EXPECT_FALSE(run().has_value());
  clock.set(TimePoint{26ms});
  EXPECT_TRUE(run().has_value());
}

TEST_F(EmulatedEngineTest, HangsUntilItIsMended) {
  options.breaker = std::make_shared<Breaker>(clock);
  const auto engine = make_emulated_engine(options, clock);
  options.breaker->hang();
  std::atomic<bool> mended{false};
  std::thread prober([&] {
    EXPECT_TRUE(engine->probe().has_value());
    EXPECT_TRUE(mended);
  });
  mended = true;
  options.breaker->mend();
  prober.join();
}

TEST_F(EmulatedEngineTest, RefusesWhatItCannotEmulate) {
  const auto code = [&](EmulatedOptions o, std::vector<int> sizes = {1}) {
    const auto model =
        make_emulated_engine(std::move(o), clock)->compile(Toy(), {.batch_sizes = std::move(sizes)});
    EXPECT_FALSE(model.has_value());
    return model ? ErrorCode::internal : model.error().code;
  };
  auto unknown = options;
  unknown.models = {{"other", options.models.begin()->second}};
  EXPECT_EQ(code(unknown), ErrorCode::not_found);
  unknown.other_models = options.models.begin()->second;
  EXPECT_TRUE(make_emulated_engine(unknown, clock)->compile(Toy(), {.batch_sizes = {1}}).has_value());
  auto empty = options;
  empty.models["toy"].execution.clear();
  EXPECT_EQ(code(empty), ErrorCode::invalid_argument);
  auto loud = options;
  loud.noise = 1;
  EXPECT_EQ(code(loud), ErrorCode::invalid_argument);
  auto none = options;
  none.kernels = 0;
  EXPECT_EQ(code(none), ErrorCode::invalid_argument);
  EXPECT_EQ(code(options, {2, 2}), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace carillon::engine
