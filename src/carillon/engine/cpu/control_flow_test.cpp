#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/graph/random_control_flow.h"

namespace carillon::engine {
namespace {

using graph::DataType;
using graph::SharedTensor;
using graph::Tensor;
using graph::testing::Onnx;
using testing::Bound;
using testing::Buffers;
using testing::Graph;
using testing::Shape;
using testing::TensorType;

// A model compiled without a batch, with its graph beside it.
struct Ready {
  Graph graph;
  std::shared_ptr<const CompiledModel> model;

  const Plan& plan() const { return *model->plan(1); }
  std::string text() const {
    std::string text = to_text(graph);
    for (int k = 0; k < plan().kernels(); ++k) text += std::string(plan().kernel_name(k)) + "\n";
    return text;
  }
};

Ready ready(const Onnx& m, Precision precision = Precision::f32) {
  static const auto engine = make_cpu_engine({.threads = 1});
  const auto model = m.import({.batched = false});
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
  if (!model) return {};
  auto graph = (*model)->specialize(1);
  auto compiled = engine->compile(**model, {.batch_sizes = {1}, .precision = precision});
  EXPECT_TRUE(compiled.has_value()) << (compiled ? "" : compiled.error().message);
  if (!compiled) return {};
  return {*std::move(graph), *std::move(compiled)};
}

Buffers buffers(const std::vector<SharedTensor>& tensors) {
  Buffers made;
  for (const auto& tensor : tensors) {
    made.push_back(std::make_shared<Tensor>(tensor->type()));
    std::ranges::copy(tensor->bytes(), made.back()->bytes().begin());
  }
  return made;
}

// Runs all kernels at once, then in two parts for every place of the cut, in the same memory and in fresh
// memory, then kernel by kernel, each twice. Gives how many kernels were passed over.
int expect_agrees(const Ready& r, const std::vector<SharedTensor>& inputs, double tolerance) {
  const Plan& plan = r.plan();
  const int n = plan.kernels();
  const auto want = graph::testing::run_plainly(r.graph, inputs);
  EXPECT_TRUE(want.has_value()) << (want ? "" : want.error().message);
  if (!want) return 0;
  const Bound whole(*r.model, plan, buffers(inputs));
  std::vector<Duration> durations(static_cast<std::size_t>(n), Duration{-1});
  const auto done = plan.run({0, n}, whole.binding(), durations);
  EXPECT_TRUE(done.has_value()) << (done ? "" : done.error().message);
  for (std::size_t i = 0; i < want->size(); ++i)
    EXPECT_LE(testing::relative_error(*whole.outputs()[i], *(*want)[i]), tolerance) << "output " << i << "\n"
                                                                                    << r.text();

  const auto same = [&](const Bound& other, const std::string& how) {
    for (std::size_t i = 0; i < want->size(); ++i)
      EXPECT_TRUE(std::ranges::equal(other.outputs()[i]->bytes(), whole.outputs()[i]->bytes()))
          << how << ", output " << i << "\n"
          << r.text();
  };
  const Bound again(*r.model, plan, buffers(inputs));
  for (int cut = 0; cut <= n; ++cut) {
    const Bound parts(*r.model, plan, buffers(inputs));
    for (const Bound* memory : {&parts, &again}) {
      EXPECT_TRUE(plan.run({0, cut}, memory->binding(), {}).has_value());
      EXPECT_TRUE(plan.run({cut, n}, memory->binding(), {}).has_value());
      same(*memory, "cut before kernel " + std::to_string(cut));
    }
  }
  const Bound single(*r.model, plan, buffers(inputs));
  for (int k = 0; k < n; ++k)
    for (int twice = 0; twice < 2; ++twice)
      EXPECT_TRUE(plan.run({k, k + 1}, single.binding(), {}).has_value());
  same(single, "kernel by kernel");

  StopSignal stop{.wanted = 5, .run = 5};
  const int middle = n / 2;
  EXPECT_TRUE(plan.run({middle, n}, single.binding(), {}, &stop).has_value());
  EXPECT_EQ(stop.next, middle);
  int passed_over = 0;  // by the model's own conditions
  for (int k = 0; k < n; ++k)
    passed_over += durations[static_cast<std::size_t>(k)] == Duration{0} &&
                   plan.kernel_name(k).find("keeping NaN") == std::string_view::npos;
  return passed_over;
}

SharedTensor floats(Shape shape, const std::vector<float>& values) {
  return std::make_shared<const Tensor>(Tensor::of_f32(std::move(shape), values));
}

// An image network with an exit after its first part: the rest runs only where the exit's best score is low.
Onnx early_exit() {
  Onnx m(17), exit(17), rest(17, 8);
  m.input("x", {"1", "3", "16", "16"}).random("w1", {16, 3, 3, 3}).random("w2", {10, 16});
  const std::vector<std::int64_t> pads{1, 1, 1, 1}, two{2, 2};
  m.node("Conv", {"x", "w1"}, {"c"}).set("pads", pads).node("Relu", {"c"}, {"features"});
  m.node("GlobalAveragePool", {"features"}, {"g"}).node("Flatten", {"g"}, {"f"});
  m.node("Gemm", {"f", "w2"}, {"early"}).set("transB", 1).node("Softmax", {"early"}, {"p"});
  m.f32("enough", {}, {0.3F}).node("ReduceMax", {"p"}, {"best"}).set("keepdims", 0);
  m.node("Greater", {"best", "enough"}, {"sure"});
  exit.node("Identity", {"early"}, {"first"}).output("first");
  rest.random("w3", {32, 16, 3, 3}).random("w4", {32, 32, 3, 3}).random("w5", {10, 32});
  rest.node("Conv", {"features", "w3"}, {"d"}, "late").set("pads", pads).set("strides", two);
  rest.node("Relu", {"d"}, {"e"}).node("Conv", {"e", "w4"}, {"h"}).set("pads", pads);
  rest.node("Add", {"h", "e"}, {"k"}).node("GlobalAveragePool", {"k"}, {"l"}).node("Flatten", {"l"}, {"n"});
  rest.node("Gemm", {"n", "w5"}, {"last"}).set("transB", 1).output("last");
  m.node("If", {"sure"}, {"y"}, "exit").set("then_branch", exit).set("else_branch", rest).output("y");
  return m;
}

TEST(ControlFlow, AnEarlyExitPassesOverTheRest) {
  for (const auto precision : {Precision::f32, Precision::bf16}) {
    const Ready r = ready(early_exit(), precision);
    ASSERT_NE(r.model, nullptr);
    const double tolerance = precision == Precision::f32 ? 1e-4 : 5e-2;
    Random random(3);
    const auto image = graph::testing::random_tensor({DataType::f32, {1, 3, 16, 16}}, random);
    Tensor dark(image->type());
    const int late = expect_agrees(r, {image}, tolerance);
    // Of a dark image all scores are the same: far from sure.
    const int sooner = expect_agrees(r, {std::make_shared<const Tensor>(std::move(dark))}, tolerance);
    EXPECT_NE(late, sooner) << r.text();
    EXPECT_EQ(std::min(late, sooner), 1) << r.text();  // the exit's copy
    EXPECT_GE(std::max(late, sooner), 4) << r.text();  // two convolutions, a pool, a product
  }
}

// The branch that is not taken would read outside its table.
TEST(ControlFlow, BadDataInTheOtherBranchIsNoError) {
  Onnx yes, no, m;
  yes.node("Gather", {"x", "i"}, {"yes"}).output("yes");
  no.f32("zero", {}, {0}).output("zero");
  m.input("x", {"3"}).input("i", {}, DataType::i64).i64("three", {}, {3}).node("Less", {"i", "three"}, {"c"});
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
  m.output("c", DataType::boolean);  // the condition lies where the client wants it
  const Ready r = ready(m);
  ASSERT_NE(r.model, nullptr);
  for (const std::int64_t i : {0, 2, 3, 1000000})
    expect_agrees(r, {floats({3}, {5, 6, 7}), std::make_shared<const Tensor>(Tensor::of_i64({}, {&i, 1}))},
                  0);
}

// Both branches and what follows want the same value in another layout: a copy that one branch made is not
// there for the others.
TEST(ControlFlow, CopiesOfABranchAreItsOwn) {
  Onnx yes, no, m;
  const std::vector<std::int64_t> perm{0, 2, 1};
  yes.node("Sin", {"t"}, {"yes"}).output("yes");
  no.node("Cos", {"t"}, {"no"}).output("no");
  m.input("x", {"1", "3", "5"}).input("c", {}, DataType::boolean);
  m.node("Exp", {"x"}, {"e"}).node("Transpose", {"e"}, {"t"}).set("perm", perm);
  m.node("If", {"c"}, {"s"}).set("then_branch", yes).set("else_branch", no);
  m.node("Sin", {"t"}, {"u"}).node("Add", {"u", "s"}, {"y"}).output("y").output("s");
  const Ready r = ready(m);
  ASSERT_NE(r.model, nullptr);
  Random random(5);
  const auto x = graph::testing::random_tensor({DataType::f32, {1, 3, 5}}, random);
  for (const int c : {0, 1, 255}) {
    Tensor condition(TensorType{DataType::boolean, {}});
    condition.bytes()[0] = static_cast<std::byte>(c);
    expect_agrees(r, {x, std::make_shared<const Tensor>(std::move(condition))}, 1e-6);
  }
}

// What other values look at, inputs, outputs and constants are not merged in place.
TEST(ControlFlow, AMergeTakesOverOnlyWhatIsItsOwn) {
  Onnx yes, no, m;
  yes.node("Neg", {"x"}, {"n"}).node("Reshape", {"n", "flat"}, {"v"});
  yes.node("Identity", {"n"}, {"a1"}).node("Identity", {"x"}, {"b1"}).node("Sin", {"v"}, {"d1"});
  yes.node("Reshape", {"x", "flat"}, {"e1"});
  yes.output("a1").output("b1").output("z").output("d1").output("e1");
  no.f32("k", {2, 3}, {1, 2, 3, 4, 5, 6}).node("Tanh", {"z"}, {"t"}).node("Reshape", {"t", "flat"}, {"d2"});
  no.node("Reshape", {"q", "flat"}, {"e2"});
  no.output("k").output("t").output("x").output("d2").output("e2");
  m.input("x", {"2", "3"}).input("c", {}, DataType::boolean).i64("flat", {1}, {6}).node("Exp", {"x"}, {"z"});
  m.node("Sin", {"x"}, {"q"});
  m.node("If", {"c"}, {"a", "b", "o", "d", "e"}).set("then_branch", yes).set("else_branch", no);
  for (const std::string v : {"a", "b", "o", "d", "e", "q"}) m.node("Abs", {v}, {v + "y"}).output(v + "y");
  m.output("z").output("a");
  const Ready r = ready(m);
  ASSERT_NE(r.model, nullptr);
  Random random(6);
  const auto x = graph::testing::random_tensor({DataType::f32, {2, 3}}, random);
  for (const int c : {0, 1}) {
    Tensor condition(TensorType{DataType::boolean, {}});
    condition.bytes()[0] = static_cast<std::byte>(c);
    expect_agrees(r, {x, std::make_shared<const Tensor>(std::move(condition))}, 1e-6);
  }
}

// Between convolutions a merged value stays in their layout and type, whatever its branches made of it.
TEST(ControlFlow, AMergeInTheMiddleOfANetwork) {
  const std::vector<std::int64_t> pads{1, 1, 1, 1}, three{3, 3};
  for (const std::string other : {"pool", "constant", "itself", "transposed"}) {
    Onnx yes(17, 9), no(17, 10), m;
    yes.random("w2", {16, 16, 3, 3}).node("Conv", {"f", "w2"}, {"a"}).set("pads", pads);
    yes.node("Relu", {"a"}, {"y1"}).output("y1");
    if (other == "pool") no.node("MaxPool", {"f"}, {"y2"}).set("kernel_shape", three).set("pads", pads);
    if (other == "constant") no.random("y2", {1, 16, 12, 12});
    if (other == "itself") no.node("Identity", {"f"}, {"y2"});
    if (other == "transposed") {
      no.node("Transpose", {"f"}, {"y2"}).set("perm", std::vector<std::int64_t>{0, 1, 3, 2});
    }
    no.output("y2");
    m.input("x", {"1", "3", "12", "12"}).input("c", {}, DataType::boolean);
    m.random("w1", {16, 3, 3, 3}).random("w3", {8, 16, 3, 3});
    m.node("Conv", {"x", "w1"}, {"f"}).set("pads", pads);
    m.node("If", {"c"}, {"g"}).set("then_branch", yes).set("else_branch", no);
    m.node("Conv", {"g", "w3"}, {"h"}).set("pads", pads).node("Add", {"h", "h"}, {"y"}).output("y");
    for (const auto precision : {Precision::f32, Precision::bf16}) {
      const Ready r = ready(m, precision);
      ASSERT_NE(r.model, nullptr);
      Random random(4);
      const auto x = graph::testing::random_tensor({DataType::f32, {1, 3, 12, 12}}, random);
      for (const int c : {0, 1}) {
        SCOPED_TRACE(other);
        Tensor condition(TensorType{DataType::boolean, {}});
        condition.bytes()[0] = static_cast<std::byte>(c);
        const double tolerance = precision == Precision::f32 ? 1e-4 : 3e-2;
        expect_agrees(r, {x, std::make_shared<const Tensor>(std::move(condition))}, tolerance);
      }
    }
  }
}

TEST(ControlFlow, RandomModelsAgree) {
  int guarded = 0, passed_over = 0;
  for (std::uint64_t seed = 100; seed < 160; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Ready r = ready(graph::testing::random_control_flow(seed));
    ASSERT_NE(r.model, nullptr);
    guarded += r.graph.guards.empty() ? 0 : 1;
    Random random(seed);
    for (const float scale : {-1.0F, 0.1F, 3.0F})
      passed_over += expect_agrees(r, {graph::testing::control_flow_input(scale, random)}, 1e-4);
    if (HasFailure()) return;
  }
  EXPECT_GT(guarded, 40);
  EXPECT_GT(passed_over, 500);
}

// The longest loop that is unrolled, left after a few iterations.
TEST(ControlFlow, ALongLoopIsLeftEarly) {
  Onnx body, m;
  body.input("i", {}, DataType::i64).input("on", {}, DataType::boolean).input("s", {"1", "64"});
  body.f32("limit", {}, {1000})
      .node("Add", {"s", "s"}, {"t"})
      .node("ReduceMax", {"t"}, {"most"})
      .set("keepdims", 0);
  body.node("Less", {"most", "limit"}, {"next"}).output("next", DataType::boolean).output("t");
  m.input("x", {"1", "64"})
      .i64("trips", {}, {256})
      .node("Loop", {"trips", "", "x"}, {"s_out"})
      .set("body", body);
  m.node("Neg", {"s_out"}, {"y"}).output("y");
  const Ready r = ready(m);
  ASSERT_NE(r.model, nullptr);
  EXPECT_GT(r.plan().kernels(), 3 * 255);
  const Bound memory(*r.model, r.plan(), buffers({floats({1, 64}, std::vector<float>(64, 3))}));
  std::vector<Duration> durations(static_cast<std::size_t>(r.plan().kernels()), Duration{-1});
  ASSERT_TRUE(r.plan().run({0, r.plan().kernels()}, memory.binding(), durations).has_value());
  EXPECT_EQ(memory.outputs()[0]->as<float>()[5], -3 * 512);
  EXPECT_GT(std::ranges::count(durations, Duration{0}), 3 * 240);
}

}  // namespace
}  // namespace carillon::engine
