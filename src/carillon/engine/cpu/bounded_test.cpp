#include "carillon/graph/bounded.h"

#include <cstring>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/zero_operands.h"
#include "carillon/graph/random_control_flow.h"
#include "carillon/graph/testing.h"

// Tensors whose extents the data of a run decide, compiled, against the plain kernels.
namespace carillon::engine {
namespace {

using graph::DataType;
using graph::SharedTensor;
using graph::Tensor;
using graph::TensorType;
using graph::testing::Onnx;

// A plan with memory of its own, all of it 0xff at first.
class Runner {
 public:
  explicit Runner(const Onnx& onnx) {
    auto imported = onnx.import({.batched = false});
    EXPECT_TRUE(imported.has_value()) << imported.error().message;
    source = *imported;
    auto compiled = make_cpu_engine({.threads = 2})->compile(*source, {.batch_sizes = {1}});
    EXPECT_TRUE(compiled.has_value()) << compiled.error().message;
    model_ = *compiled;
    plan = model_->plan(1);
    state_ = plan->make_state();
    weights_ = zero_block(model_->weights());
    EXPECT_TRUE(model_->write_weights(0, weights_->bytes().first(model_->weights().count)).has_value());
    workspace_ = zero_block(plan->workspace());
    std::ranges::fill(workspace_->bytes(), std::byte{0xff});
    for (const auto& spec : plan->outputs()) {
      outputs_.push_back(zero_block(graph::memory_of(spec.type, spec.shape)));
      std::ranges::fill(outputs_.back().bytes(), std::byte{0xff});
    }
  }

  Result<> run(const std::vector<SharedTensor>& inputs, KernelRange range, graph::Faults* faults = nullptr) {
    std::vector<const std::byte*> from;
    for (const auto& input : inputs) from.push_back(input->bytes().data());
    std::vector<std::byte*> to;
    for (Tensor& output : outputs_) to.push_back(output.bytes().data());
    return plan->run(range,
                     {.inputs = from,
                      .outputs = to,
                      .workspace = workspace_->bytes().data(),
                      .weights = weights_->bytes().data(),
                      .faults = faults,
                      .state = state_.get()},
                     {});
  }
  Tensor output(std::size_t i) {
    const auto& spec = plan->outputs()[i];
    const auto shape = graph::shape_in(
        spec.type, spec.shape, outputs_[i].bytes().first(graph::memory_of(spec.type, spec.shape).count));
    EXPECT_TRUE(shape.has_value()) << shape.error().message;
    Tensor out(TensorType{spec.type, *shape});
    std::ranges::copy(outputs_[i].bytes().first(out.bytes().size()), out.bytes().begin());
    return out;
  }
  void expect_agrees(const std::vector<SharedTensor>& inputs) {
    const auto graph = source->specialize(1);
    ASSERT_TRUE(graph.has_value());
    const auto want = graph::testing::run_plainly(*graph, inputs);
    ASSERT_TRUE(want.has_value()) << want.error().message;
    for (std::size_t i = 0; i < want->size(); ++i) {
      const Tensor got = output(i);
      ASSERT_EQ(got.type(), (*want)[i]->type()) << "output " << i;
      for (std::size_t k = 0; k < got.bytes().size(); ++k)
        ASSERT_EQ(got.bytes()[k], (*want)[i]->bytes()[k]) << "output " << i << ", byte " << k;
    }
  }

  std::shared_ptr<const graph::Model> source;
  const Plan* plan = nullptr;

 private:
  std::shared_ptr<const CompiledModel> model_;
  std::unique_ptr<RunState> state_;
  std::optional<Tensor> weights_, workspace_;
  std::vector<Tensor> outputs_;
};

// Rows of x whose first element is above a threshold, worked on; one of the outputs is used by the other.
Onnx rows_above() {
  Onnx m;
  m.input("x", {"40", "8"})
      .input("least", {"1"})
      .random("w", {8, 5})
      .i64("column", {}, {0})
      .i64("axis", {1}, {1});
  m.node("Gather", {"x", "column"}, {"first"}).set("axis", 1);
  m.node("Greater", {"first", "least"}, {"mask"}).node("Compress", {"x", "mask"}, {"rows"}).set("axis", 0);
  m.node("MatMul", {"rows", "w"}, {"p"}).node("Softmax", {"p"}, {"y"}).set("axis", -1);
  m.node("ReduceMax", {"y", "axis"}, {"best"}).node("NonZero", {"mask"}, {"where"});
  return std::move(m.output("rows").output("y").output("best").output("where", DataType::i64));
}

std::vector<SharedTensor> rows_at(float least, std::uint64_t seed) {
  Random random(seed);
  const std::vector<float> threshold{least};
  return {graph::testing::random_tensor({DataType::f32, {40, 8}}, random),
          std::make_shared<const Tensor>(Tensor::of_f32({1}, threshold))};
}

TEST(BoundedPlan, AgreesWithPlainKernelsHoweverMuchIsFound) {
  Runner runner(rows_above());
  EXPECT_EQ(runner.plan->outputs()[0].shape, (graph::Shape{graph::bounded_dimension(40), 8}));
  // All, none, and what is between; one after the other in the same memory.
  for (const float least : {0.0F, -3.0F, 1.5F, 3.0F, -1.0F}) {
    SCOPED_TRACE(least);
    const auto inputs = rows_at(least, 11);
    ASSERT_TRUE(runner.run(inputs, {0, runner.plan->kernels()}).has_value());
    runner.expect_agrees(inputs);
  }
}

TEST(BoundedPlan, ARunMayEndAndGoOnAnywhere) {
  Runner runner(rows_above());
  const auto inputs = rows_at(0.5, 4), others = rows_at(-3, 5);
  Runner other(rows_above());
  for (int cut = 0; cut <= runner.plan->kernels(); ++cut) {
    SCOPED_TRACE(cut);
    ASSERT_TRUE(runner.run(inputs, {0, cut}).has_value());
    // A kernel may be run again.
    ASSERT_TRUE(runner.run(inputs, {std::max(0, cut - 1), runner.plan->kernels()}).has_value());
    runner.expect_agrees(inputs);
  }
}

// More rows than there are would be too many; the run says so, and made-up data go on.
TEST(BoundedPlan, DataThatDoNotFitAreAFault) {
  Onnx m;
  m.input("x", {"4"}).node("NonZero", {"x"}, {"places"}).i64("pairs", {2}, {2, -1});
  m.node("Reshape", {"places", "pairs"}, {"y"}, "pairs_of").node("Neg", {"y"}, {"z"});
  Runner runner(m.output("z", DataType::i64));
  const auto input = [](std::vector<float> values) {
    return std::vector<SharedTensor>{std::make_shared<const Tensor>(Tensor::of_f32({4}, values))};
  };
  const KernelRange all{0, runner.plan->kernels()};
  const auto failed = runner.run(input({1, 1, 1, 0}), all);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(failed.error().message.find("pairs_of"), std::string::npos) << failed.error().message;
  graph::Faults faults;
  EXPECT_FALSE(runner.run(input({1, 1, 1, 0}), all, &faults));
  faults.clear();
  faults.results_unwanted = true;
  EXPECT_TRUE(runner.run(input({1, 1, 1, 0}), all, &faults));
  EXPECT_NE(faults.of(graph::Faults::unknown), nullptr);
  EXPECT_EQ(runner.output(0).type().elements(), 0);
  ASSERT_TRUE(runner.run(input({1, 0, 1, 0}), all).has_value());
  EXPECT_EQ(runner.output(0).type().shape, (graph::Shape{2, 1}));
}

// One value that is two outputs, and one that is an input of the rest.
TEST(BoundedPlan, EachOutputHasItsExtents) {
  Onnx m;
  m.input("x", {"6"}).node("NonZero", {"x"}, {"places"}).node("Identity", {"places"}, {"same"});
  m.node("Abs", {"places"}, {"y"});
  Runner runner(m.output("places", DataType::i64).output("same", DataType::i64).output("y", DataType::i64));
  const std::vector<float> values{0, 1, 0, 2, 3, 0};
  const std::vector<SharedTensor> inputs{std::make_shared<const Tensor>(Tensor::of_f32({6}, values))};
  ASSERT_TRUE(runner.run(inputs, {0, runner.plan->kernels()}).has_value());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(runner.output(i).type().shape, (graph::Shape{1, 3}));
  runner.expect_agrees(inputs);
}

// Branches of unlike shapes: plans against plain kernels, cut somewhere.
TEST(BoundedPlan, UnlikeBranchesAgree) {
  int bounded = 0, compared = 0;
  for (std::uint64_t seed = 300; seed < 360; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Onnx m = graph::testing::random_unlike_branches(seed);
    if (!m.import({.batched = false})) continue;  // no way through it fits
    Runner runner(m);
    for (const auto& spec : runner.plan->outputs()) bounded += graph::has_bounded(spec.shape) ? 1 : 0;
    const auto graph = runner.source->specialize(1);
    ASSERT_TRUE(graph.has_value()) << graph.error().message;
    Random random(seed);
    for (const float scale : {-1.0F, 0.1F, 3.0F}) {
      const auto x = graph::testing::control_flow_input(scale, random);
      const auto want = graph::testing::run_plainly(*graph, {x});
      const int cut = static_cast<int>(random.below(static_cast<std::uint64_t>(runner.plan->kernels()) + 1));
      auto done = runner.run({x}, {0, cut});
      if (done) done = runner.run({x}, {cut, runner.plan->kernels()});
      ASSERT_EQ(done.has_value(), want.has_value()) << (done ? "" : done.error().message);
      if (!want) continue;
      ++compared;
      for (std::size_t i = 0; i < want->size(); ++i)
        EXPECT_LE(graph::testing::furthest(std::make_shared<const Tensor>(runner.output(i)), (*want)[i]),
                  1e-4)
            << "output " << i << "\n"
            << to_text(*graph);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(bounded, 40);
  EXPECT_GT(compared, 100);
}

// Plans that are divided for stops are measured with all of their kernels on zeros: nothing is found there.
TEST(BoundedPlan, IsMeasuredOnZeros) {
  const auto imported = rows_above().import({.batched = false});
  const auto compiled =
      make_cpu_engine({.threads = 1})->compile(**imported, {.batch_sizes = {1}, .stop_cost = 0.5});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  const Plan& plan = *(*compiled)->plan(1);
  Tensor weights = zero_block((*compiled)->weights());
  EXPECT_TRUE((*compiled)->write_weights(0, weights.bytes().first((*compiled)->weights().count)).has_value());
  ZeroOperands zeros(plan, weights.bytes().data(), nullptr);
  EXPECT_TRUE(plan.run({0, plan.kernels()}, zeros.binding(), {}).has_value());
}

}  // namespace
}  // namespace carillon::engine
