#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/weight_files.h"
#include "carillon/graph/testing.h"

// Models that have the plan of their smallest batch alone, and get the others when they are asked for.
namespace carillon::engine {
namespace {

using namespace testing;

using Products = std::shared_ptr<const graph::Model>;

// Products whose layout the largest batch decides, convolutions, and a product of half the width, so that
// files of unlike seeds differ in their weights alone.
Products products(std::uint64_t seed) {
  graph::testing::Onnx m(17, seed);
  m.input("x", {"batch", "3", "12", "12"});
  m.random("w", {16, 3, 3, 3}).random("v", {16, 300}).random("u", {300, 10});
  m.node("Conv", {"x", "w"}, {"c"}).node("Relu", {"c"}, {"r"}).node("GlobalAveragePool", {"r"}, {"p"});
  m.node("Flatten", {"p"}, {"f"}).node("MatMul", {"f", "v"}, {"h"}).node("Tanh", {"h"}, {"t"});
  m.node("MatMul", {"t", "u"}, {"y"});
  auto model = m.output("y").import();
  EXPECT_TRUE(model.has_value()) << model.error().message;
  return *model;
}

struct FewOptions {
  std::uint64_t again = 1;  // the seed of what is read then
  std::shared_ptr<WeightFiles> files{};
};
std::shared_ptr<const CompiledModel> compile_few(FewOptions options = {}) {
  const auto compiled =
      make_cpu_engine({.threads = 2, .weights = options.files})
          ->compile(*products(1), {.batch_sizes = {1, 2, 4, 16}, .reread = [options]() -> Result<Products> {
                                     if (options.again == 0)
                                       return fail(ErrorCode::not_found, "it is not there");
                                     return products(options.again);
                                   }});
  EXPECT_TRUE(compiled.has_value()) << compiled.error().message;
  return *compiled;
}

void expect_plan_agrees(const CompiledModel& model, const Plan& plan) {
  SCOPED_TRACE("batch " + std::to_string(plan.batch()));
  const auto graph = products(1)->specialize(plan.batch(), 0);
  ASSERT_TRUE(graph.has_value());
  const Buffers inputs = random_inputs(*graph, 3);
  const Buffers want = reference(*graph, inputs);
  const Bound bound(model, plan, inputs);
  ASSERT_TRUE(plan.run({0, plan.kernels()}, bound.binding(), {}).has_value());
  EXPECT_EQ(plan.outputs()[0].shape, want[0]->type().shape);
  EXPECT_LE(relative_error(*bound.outputs()[0], *want[0]), 1e-5);
}

TEST(LaterPlans, TheSmallestIsThereAndTheOthersAreMade) {
  const auto model = compile_few();
  EXPECT_TRUE(model->makes_later());
  EXPECT_TRUE(std::ranges::equal(model->batch_sizes(), std::array{1, 2, 4, 16}));
  ASSERT_NE(model->plan(1), nullptr);
  expect_plan_agrees(*model, *model->plan(1));
  for (const int batch : {2, 4, 16}) EXPECT_EQ(model->plan(batch), nullptr);
  EXPECT_EQ(model->plan(1, 5), nullptr);
  EXPECT_EQ(model->plan(3), nullptr);
  for (const std::vector<int>& batches : {std::vector{2, 4, 16}, std::vector{4}, std::vector{16}}) {
    const auto plans = model->make_plans({}, batches, nullptr);
    ASSERT_TRUE(plans.has_value()) << plans.error().message;
    ASSERT_EQ(plans->size(), batches.size());
    for (std::size_t i = 0; i < batches.size(); ++i) {
      EXPECT_EQ((*plans)[i]->batch(), batches[i]);
      expect_plan_agrees(*model, *(*plans)[i]);
    }
  }
}

TEST(LaterPlans, TheyTakeWhatAllPlansAtOnceTake) {
  const auto all = make_cpu_engine({.threads = 2})->compile(*products(1), {.batch_sizes = {1, 2, 4, 16}});
  ASSERT_TRUE(all.has_value());
  const auto few = compile_few();
  EXPECT_LT(few->memory().plans.count * 2, (*all)->memory().plans.count);
  EXPECT_LE(few->weights(), (*all)->weights());
  const auto plans = few->make_plans({}, std::array{2, 4, 16}, nullptr);
  ASSERT_TRUE(plans.has_value());
  for (const auto& plan : *plans) {
    const Plan& same = *(*all)->plan(plan->batch());
    EXPECT_EQ(plan->memory(), same.memory());
    EXPECT_EQ(plan->workspace(), same.workspace());
    ASSERT_EQ(plan->kernels(), same.kernels());
    for (int kernel = 0; kernel < plan->kernels(); ++kernel)
      EXPECT_EQ(plan->kernel_name(kernel), same.kernel_name(kernel));
  }
}

TEST(LaterPlans, ThePackedWeightsMayBeInAStore) {
  const carillon::testing::Folder folder;
  const auto files = WeightFiles::open({.directory = folder.path() / "store", .limit = mib(64)});
  ASSERT_TRUE(files.has_value()) << files.error().message;
  const auto model = compile_few({.files = *files});
  EXPECT_EQ(model->memory().weights, Bytes{});
  const auto plans = model->make_plans({}, std::array{2, 16}, nullptr);
  ASSERT_TRUE(plans.has_value()) << plans.error().message;
  for (const auto& plan : *plans) expect_plan_agrees(*model, *plan);
}

TEST(LaterPlans, AnotherFileIsNotTaken) {
  const auto other = compile_few({.again = 2})->make_plans({}, std::array{4}, nullptr);
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::unavailable);
  EXPECT_NE(other.error().message.find("are packed otherwise"), std::string::npos) << other.error().message;

  const auto none = compile_few({.again = 0})->make_plans({}, std::array{4}, nullptr);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().message, "to make more plans of it: it is not there");
}

TEST(LaterPlans, APlanThatNobodyWantsEndsEarly) {
  const std::atomic<bool> ended{true};
  const auto plans = compile_few()->make_plans({}, std::array{4}, &ended);
  ASSERT_FALSE(plans.has_value());
  EXPECT_EQ(plans.error().code, ErrorCode::cancelled);
}

TEST(LaterPlans, ModelsWithoutABatchOfOneHaveAllOfThem) {
  const auto model =
      make_cpu_engine({.threads = 1})
          ->compile(*products(1),
                    {.batch_sizes = {2, 3}, .reread = []() -> Result<Products> { return products(1); }});
  ASSERT_TRUE(model.has_value());
  EXPECT_FALSE((*model)->makes_later());
  EXPECT_NE((*model)->plan(2), nullptr);
  EXPECT_NE((*model)->plan(3), nullptr);
}

}  // namespace
}  // namespace carillon::engine
