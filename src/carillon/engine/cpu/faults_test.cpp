#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/graph/testing.h"

// Bad data in some rows of a batch: the others' results are those that they have without it.
namespace carillon::engine {
namespace {

using graph::DataType;
using graph::Faults;
using graph::Tensor;
using graph::testing::Onnx;
using testing::Bound;
using testing::Buffers;
using testing::TensorType;

constexpr int batch = 4;

std::shared_ptr<const CompiledModel> compile(const Onnx& onnx) {
  static const auto engine = make_cpu_engine({.threads = 1});
  const auto model = onnx.import({.batched = true});
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
  if (!model) return nullptr;
  auto compiled = engine->compile(**model, {.batch_sizes = {1, batch}});
  EXPECT_TRUE(compiled.has_value()) << (compiled ? "" : compiled.error().message);
  return compiled ? *compiled : nullptr;
}

// ids [B, 3] name rows of a table of 5; with `mixing`, on a way on which the engine loses sight of the rows.
Onnx lookup(bool mixing) {
  Onnx o;
  o.input("ids", {"B", "3"}, DataType::i64).output("y");
  o.f32("table", {5}, {0, 10, 20, 30, 40}).i64("zero", {}, {0});
  const std::vector<std::int64_t> swapped{1, 0};
  if (mixing) o.node("Transpose", {"ids"}, {"turned"}).set("perm", swapped);
  o.node("Gather", {"table", mixing ? "turned" : "ids"}, {mixing ? "found" : "y"}, "look");
  if (mixing) o.node("Transpose", {"found"}, {"y"}).set("perm", swapped);
  return o;
}

Buffers ids_of(const std::vector<std::int64_t>& values) {
  const auto rows = static_cast<std::int64_t>(values.size()) / 3;
  auto tensor = std::make_shared<Tensor>(TensorType{DataType::i64, {rows, 3}});
  std::ranges::copy(values, tensor->as<std::int64_t>().begin());
  return {tensor};
}

Result<> run(const Plan& plan, const Bound& bound, Faults* faults, StopSignal* stop = nullptr) {
  Binding binding = bound.binding();
  binding.faults = faults;
  return plan.run({0, plan.kernels()}, binding, {}, stop);
}

TEST(PlanFaults, CostTheRowsThatHaveThem) {
  const auto model = compile(lookup(false));
  ASSERT_NE(model, nullptr);
  const Plan& plan = *model->plan(batch);
  const Bound bound(*model, plan, ids_of({0, 1, 2, 3, 5, 1, -5, 4, 0, 1, 1, -6}));
  Faults faults;
  ASSERT_TRUE(run(plan, bound, &faults).has_value());
  ASSERT_EQ(faults.all().size(), 2U);
  EXPECT_EQ(faults.all()[0].row, 1);
  EXPECT_EQ(faults.all()[0].error,
            (Error{ErrorCode::invalid_argument,
                   "node 'look' (Gather): index 5, which comes from input 'ids', is outside an axis of 5 "
                   "elements: it must be -5 to 4"}));
  EXPECT_EQ(faults.all()[1].row, 3);
  const auto y = bound.outputs()[0]->as<float>();
  EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + 3), (std::vector<float>{0, 10, 20}));
  EXPECT_EQ(std::vector<float>(y.begin() + 6, y.begin() + 9), (std::vector<float>{0, 40, 0}));

  const auto failed = run(plan, bound, nullptr);
  ASSERT_FALSE(failed.has_value()) << "nobody wants to know which";
  EXPECT_EQ(failed.error().code, ErrorCode::invalid_argument);

  const Bound good(*model, plan, ids_of({0, 1, 2, 3, 4, 1, -5, 4, 0, 1, 1, 2}));
  faults.clear();
  ASSERT_TRUE(run(plan, good, &faults).has_value());
  EXPECT_TRUE(faults.empty()) << "what an earlier run has found is not of this one";
}

TEST(PlanFaults, ARowThatIsUnknownFailsTheRun) {
  const auto model = compile(lookup(true));
  ASSERT_NE(model, nullptr);
  const Plan& plan = *model->plan(batch);
  const Bound bound(*model, plan, ids_of({0, 1, 2, 3, 5, 1, 0, 4, 0, 1, 1, 1}));
  Faults faults;
  const auto done = run(plan, bound, &faults);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, ErrorCode::invalid_argument);

  faults.results_unwanted = true;
  StopSignal stop;
  ASSERT_TRUE(run(plan, bound, &faults, &stop).has_value());
  EXPECT_EQ(stop.next, plan.kernels()) << "all of it has run";

  const Plan& alone = *model->plan(1);
  const Bound one(*model, alone, ids_of({0, 5, 2}));
  Faults of_one;
  ASSERT_TRUE(run(alone, one, &of_one).has_value());
  ASSERT_EQ(of_one.all().size(), 1U) << "alone, a row is known";
  EXPECT_EQ(of_one.all()[0].row, 0);
}

TEST(PlanFaults, DivisionsByAnInput) {
  Onnx o;
  o.input("a", {"B", "2"}, DataType::i32).input("b", {"B", "2"}, DataType::i32).output("y", DataType::i32);
  o.node("Div", {"a", "b"}, {"q"}, "divide").node("Mod", {"a", "b"}, {"r"}).node("Add", {"q", "r"}, {"y"});
  const auto model = compile(o);
  ASSERT_NE(model, nullptr);
  const Plan& plan = *model->plan(batch);
  constexpr auto least = std::numeric_limits<std::int32_t>::min();
  Buffers inputs;
  for (const std::vector<std::int32_t>& values : {std::vector<std::int32_t>{7, 8, 7, 8, least, -9, 1, 1},
                                                  std::vector<std::int32_t>{2, 3, 0, 3, -1, 2, 1, 0}}) {
    inputs.push_back(std::make_shared<Tensor>(TensorType{DataType::i32, {batch, 2}}));
    std::ranges::copy(values, inputs.back()->as<std::int32_t>().begin());
  }
  const Bound bound(*model, plan, inputs);
  Faults faults;
  ASSERT_TRUE(run(plan, bound, &faults).has_value());
  ASSERT_EQ(faults.all().size(), 2U);
  EXPECT_EQ(faults.all()[0].row, 1);
  EXPECT_EQ(faults.all()[1].row, 3);
  EXPECT_NE(faults.all()[0].error.message.find("'divide' (Div): division of integers by zero"),
            std::string::npos);
  EXPECT_NE(faults.all()[0].error.message.find("input 'b'"), std::string::npos);
  const auto y = bound.outputs()[0]->as<std::int32_t>();
  EXPECT_EQ((std::vector<std::int32_t>{y[0], y[1], y[4], y[5]}),
            (std::vector<std::int32_t>{4, 4, least, -3}));
}

}  // namespace
}  // namespace carillon::engine
