#include "carillon/engine/cpu/cpu_engine.h"

#include <array>
#include <latch>
#include <set>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "carillon/engine/cpu/test_support.h"

namespace carillon::engine {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsNan;
using Make = std::function<Graph(std::int64_t)>;

Engine& the_engine() {
  static const auto engine = make_cpu_engine({.threads = 2});
  return *engine;
}

std::shared_ptr<const CompiledModel> compile(const Make& make, std::vector<int> batches,
                                             Precision precision = Precision::f32) {
  Engine* const engine = &the_engine();
  auto compiled =
      engine->compile(MadeModel(make), {.batch_sizes = std::move(batches), .precision = precision});
  EXPECT_TRUE(compiled.has_value()) << (compiled ? "" : compiled.error().message);
  return compiled ? *compiled : nullptr;
}

std::string kernels_of(const Plan& plan) {
  std::string text;
  for (int k = 0; k < plan.kernels(); ++k) text += std::string(plan.kernel_name(k)) + "\n";
  return text;
}

bool has_kernel(const Plan& plan, std::string_view part) {
  return kernels_of(plan).find(part) != std::string::npos;
}

// Runs the graph in both worlds, at every batch size, and compares; then again from kernel to kernel, each
// kernel twice.
void expect_agrees(const Make& make, double tolerance, const std::vector<int>& batches = {1, 2, 7, 16},
                   Precision precision = Precision::f32) {
  const auto model = compile(make, batches, precision);
  ASSERT_NE(model, nullptr);
  for (const int batch : batches) {
    SCOPED_TRACE("batch " + std::to_string(batch));
    const Graph g = make(batch);
    const Plan* plan = model->plan(batch);
    ASSERT_NE(plan, nullptr);
    SCOPED_TRACE(kernels_of(*plan));
    const Buffers inputs = random_inputs(g, 7);
    const Buffers want = reference(g, inputs);
    const Bound whole(*model, *plan, inputs);
    const auto done = plan->run({0, plan->kernels()}, whole.binding(), {});
    ASSERT_TRUE(done.has_value()) << done.error().message;
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(relative_error(*whole.outputs()[i], *want[i]), tolerance) << "output " << i;
    const auto team = the_engine().make_team({.threads = 2});
    ASSERT_TRUE(team.has_value()) << team.error().message;
    const Bound helped(*model, *plan, inputs, team->get());
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(plan->run({0, plan->kernels()}, helped.binding(), {}).has_value());
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(std::ranges::equal(helped.outputs()[i]->bytes(), whole.outputs()[i]->bytes()))
            << "output " << i << " by two threads";
    }
    const Bound parts(*model, *plan, inputs);
    for (int k = 0; k < plan->kernels(); ++k)
      for (int again = 0; again < 2; ++again)
        ASSERT_TRUE(plan->run({k, k + 1}, parts.binding(), {}).has_value());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(relative_error(*parts.outputs()[i], *whole.outputs()[i]), 0) << "output " << i;
    StopSignal stop{.wanted = 5, .run = 5};
    ASSERT_TRUE(plan->run({1, plan->kernels()}, parts.binding(), {}, &stop).has_value());
    EXPECT_EQ(stop.next, 1) << "ended before its first kernel";
    stop.run = 6;
    ASSERT_TRUE(plan->run({0, plan->kernels()}, parts.binding(), {}, &stop).has_value());
    EXPECT_EQ(stop.next, plan->kernels()) << "another run is not meant";
  }
}

struct Layers {
  GraphMaker m;
  Random random{11};

  ValueId conv(ValueId x, std::int64_t channels, std::int64_t kernel, std::int64_t stride,
               std::int64_t groups = 1, std::vector<PostOp> post_ops = {}) {
    const Shape in = m.shape(x);
    const std::int64_t pad = kernel / 2;
    const auto extent = [&](std::int64_t n) { return (n + 2 * pad - kernel) / stride + 1; };
    auto attributes = window(kernel, stride, pad);
    attributes["group"] = groups;
    const float scale = 1 / std::sqrt(static_cast<float>(in[1] / groups * kernel * kernel));
    const auto w = m.constant(random_tensor({channels, in[1] / groups, kernel, kernel}, random, scale));
    const auto b = m.constant(random_tensor({channels}, random));
    return m.node("Conv", {x, w, b}, {in[0], channels, extent(in[2]), extent(in[3])}, attributes,
                  std::move(post_ops));
  }
  ValueId dense(ValueId x, std::int64_t width, std::vector<PostOp> post_ops = {}) {
    Shape shape = m.shape(x);
    const float scale = 1 / std::sqrt(static_cast<float>(shape.back()));
    const auto w = m.constant(random_tensor({shape.back(), width}, random, scale));
    shape.back() = width;
    return m.node("MatMul", {x, w}, shape, {}, std::move(post_ops));
  }
};
const PostOp relu{.kind = PostOp::Kind::relu};

// A residual network in small: everything that ResNet has.
Graph residual(std::int64_t batch, std::int64_t width = 32) {
  Layers l;
  auto x = l.m.input({batch, 3, 32, 32});
  x = l.conv(x, width, 7, 2, 1, {relu});
  x = l.m.node("MaxPool", {x}, {batch, width, 8, 8}, window(3, 2, 1));
  auto y = l.conv(x, width, 3, 1, 1, {relu});
  y = l.conv(y, width, 3, 1, 1, {{.kind = PostOp::Kind::add, .operand = x}, relu});
  const auto shortcut = l.conv(y, 2 * width, 1, 2);
  y = l.conv(y, 2 * width, 3, 2, 1, {{.kind = PostOp::Kind::add, .operand = shortcut}, relu});
  y = l.m.node("GlobalAveragePool", {y}, {batch, 2 * width, 1, 1});
  y = l.m.node("Reshape", {y}, {batch, 2 * width});
  const auto w = l.m.constant(random_tensor({10, 2 * width}, l.random, 0.1F));
  const auto b = l.m.constant(random_tensor({10}, l.random));
  y = l.m.node("Gemm", {y, w, b}, {batch, 10}, {{"transB", std::int64_t{1}}});
  l.m.g.outputs = {y};
  return std::move(l.m.g);
}

// Constants must be the same objects at every batch size, as Model::specialize promises.
Make sharing(const Make& make) {
  auto first = std::make_shared<Graph>(make(1));
  return [make, first](std::int64_t batch) {
    Graph g = make(batch);
    for (std::size_t i = 0; i < g.values.size(); ++i)
      if (g.values[i].constant) g.values[i].constant = first->values[i].constant;
    return g;
  };
}

TEST(CpuEngine, ResidualNetworkAgrees) {
  expect_agrees([](std::int64_t n) { return residual(n); }, 1e-5);
}

TEST(CpuEngine, OddChannelsAgree) {
  expect_agrees([](std::int64_t n) { return residual(n, 13); }, 1e-5, {1, 2});
}

TEST(CpuEngine, Bf16StaysNearAndKeepsOneTypeBetweenConvolutions) {
  const auto make = sharing([](std::int64_t n) { return residual(n); });
  expect_agrees(make, 3e-2, {1, 2, 7, 16}, Precision::bf16);
  const auto model = compile(make, {4}, Precision::bf16);
  int reorders = 0;
  for (int k = 0; k < model->plan(4)->kernels(); ++k)
    reorders += model->plan(4)->kernel_name(k).find(" reorder ") != std::string_view::npos;
  EXPECT_LE(reorders, 2) << kernels_of(*model->plan(4));  // the input's type, the first pool's layout
}

TEST(CpuEngine, BatchSizesShareTheirWeights) {
  const auto make = sharing([](std::int64_t n) { return residual(n); });
  const auto one = compile(make, {16}), five = compile(make, {1, 2, 4, 8, 16});
  // On some processors oneDNN has another implementation for the last, small convolutions of a small batch.
  EXPECT_LE(five->weights().count, one->weights().count * 3 / 2);
}

TEST(CpuEngine, DepthwiseAndClipAgree) {
  const Make make = [](std::int64_t n) {
    Layers l;
    auto x = l.m.input({n, 24, 14, 14});
    const PostOp relu6{.kind = PostOp::Kind::clip, .alpha = 0, .beta = 6};
    auto y = l.conv(x, 96, 1, 1, 1, {relu6});
    y = l.conv(y, 96, 3, 1, 96, {relu6});
    y = l.conv(y, 24, 1, 1, 1, {{.kind = PostOp::Kind::add, .operand = x}});
    const auto axes = std::vector<std::int64_t>{2, 3};
    const auto a = l.m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_i64({2}, axes)));
    y = l.m.node("ReduceMean", {y, a}, {n, 24}, {{"keepdims", std::int64_t{0}}});
    l.m.g.outputs = {y};
    return std::move(l.m.g);
  };
  expect_agrees(make, 1e-5);
}

// Images of one column, whose convolutions are of rows; one with groups, one that another is added to, one of
// a stride.
TEST(CpuEngine, OneColumnAgrees) {
  const Make make = [](std::int64_t n) {
    Layers l;
    const auto along = [&](ValueId x, std::int64_t channels, std::int64_t taps, std::int64_t stride,
                           std::int64_t groups, std::vector<PostOp> post_ops) {
      const Shape in = l.m.shape(x);
      const std::int64_t pad = taps / 2;
      const auto w = l.m.constant(random_tensor({channels, in[1] / groups, taps, 1}, l.random, 0.1F));
      const auto b = l.m.constant(random_tensor({channels}, l.random));
      using Integers = std::vector<std::int64_t>;
      return l.m.node("Conv", {x, w, b}, {in[0], channels, (in[2] + 2 * pad - taps) / stride + 1, 1},
                      {{"kernel_shape", Integers{taps, 1}},
                       {"strides", Integers{stride, 1}},
                       {"dilations", Integers{1, 1}},
                       {"pads", Integers{pad, 0, pad, 0}},
                       {"group", groups}},
                      std::move(post_ops));
    };
    auto x = along(l.m.input({n, 17, 40, 1}), 32, 5, 1, 1, {relu});
    x = along(x, 32, 3, 1, 32, {relu});
    x = along(x, 32, 5, 1, 1, {{.kind = PostOp::Kind::add, .operand = x}});
    x = along(x, 24, 4, 2, 1, {});
    l.m.g.outputs = {l.m.node("MaxPool", {x}, {n, 24, 10, 1},
                              {{"kernel_shape", std::vector<std::int64_t>{2, 1}},
                               {"strides", std::vector<std::int64_t>{2, 1}},
                               {"dilations", std::vector<std::int64_t>{1, 1}},
                               {"pads", std::vector<std::int64_t>{0, 0, 0, 0}},
                               {"ceil_mode", std::int64_t{0}}})};
    return std::move(l.m.g);
  };
  expect_agrees(make, 1e-5);
}

TEST(CpuEngine, SqueezeAndExciteAgrees) {
  const Make make = [](std::int64_t n) {
    Layers l;
    const auto x = l.conv(l.m.input({n, 16, 9, 9}), 32, 3, 1);
    auto s = l.m.node("GlobalAveragePool", {x}, {n, 32, 1, 1});
    s = l.conv(s, 8, 1, 1, 1, {relu});
    s = l.conv(s, 32, 1, 1, 1, {{.kind = PostOp::Kind::hard_sigmoid, .alpha = 1.0F / 6, .beta = 0.5F}});
    auto y = l.m.node("Mul", {s, x}, {n, 32, 9, 9});
    y = l.conv(y, 32, 1, 1, 1, {{.kind = PostOp::Kind::mul, .operand = s}, relu});
    l.m.g.outputs = {y};
    return std::move(l.m.g);
  };
  expect_agrees(make, 1e-5, {1, 3});
}

// Numbers by channel of what has no other extents, as pooled features have none: oneDNN would take the first.
TEST(CpuEngine, NumbersByChannelBehindSumsAgree) {
  const Make make = [](std::int64_t n) {
    Layers l;
    for (const Shape& shape : {Shape{n, 17, 1}, Shape{n, 16, 1, 1}, Shape{n, 3, 1, 1, 1}, Shape{n, 4, 2}}) {
      Shape by_channel(shape.size(), 1);
      by_channel[1] = shape[1];
      const ValueId x = l.m.input(shape), half = l.m.constant(random_tensor({}, l.random)),
                    p = l.m.constant(random_tensor(by_channel, l.random));
      using Kind = PostOp::Kind;
      for (const ValueId other : {half, p, x}) {
        l.m.g.outputs.push_back(
            l.m.node("Add", {x, other}, shape, {}, {{.kind = Kind::add, .operand = p}, relu}));
        l.m.g.outputs.push_back(l.m.node("Mul", {x, other}, shape, {}, {{.kind = Kind::mul, .operand = p}}));
      }
    }
    return std::move(l.m.g);
  };
  expect_agrees(make, 1e-5, {1, 3});
}

TEST(CpuEngine, DenseBlockAgrees) {
  const Make make = [](std::int64_t n) {
    Layers l;
    auto x = l.m.input({n, 16, 8, 8});
    std::vector<ValueId> features{x};
    for (int i = 0; i < 4; ++i) {
      const std::int64_t channels = 16 + 12 * i;
      auto y = features.size() == 1
                   ? x
                   : l.m.node("Concat", features, {n, channels, 8, 8}, {{"axis", std::int64_t{1}}});
      std::vector<ValueId> inputs{y};
      for (int k = 0; k < 3; ++k) inputs.push_back(l.m.constant(random_tensor({channels}, l.random)));
      auto variance = std::make_shared<graph::Tensor>(TensorType{graph::DataType::f32, {channels}});
      for (float& v : variance->as<float>()) v = 0.5F + static_cast<float>(l.random.uniform());
      inputs.push_back(l.m.constant(variance));
      y = l.m.node("BatchNormalization", inputs, {n, channels, 8, 8}, {{"epsilon", 1e-5F}}, {relu});
      features.push_back(l.conv(y, 12, 3, 1));
    }
    l.m.g.outputs = {features.back()};
    return std::move(l.m.g);
  };
  expect_agrees(make, 1e-5);
  expect_agrees(make, 3e-2, {1, 4}, Precision::bf16);
}

// One attention layer, as torch exports it.
Graph attention(std::int64_t n) {
  constexpr std::int64_t seq = 24, width = 64, heads = 4;
  Layers l;
  const auto x = l.m.input({n, seq, width});
  const auto mask = l.m.input({n, 1, 1, seq});
  const auto projected = [&](std::vector<std::int64_t> perm) {
    const auto bias = l.m.constant(random_tensor({width}, l.random));
    auto y = l.dense(x, width, {{.kind = PostOp::Kind::add, .operand = bias}});
    y = l.m.node("Reshape", {y}, {n, seq, heads, width / heads});
    Shape shape;
    for (const auto p : perm) shape.push_back(l.m.shape(y)[static_cast<std::size_t>(p)]);
    return l.m.node("Transpose", {y}, shape, {{"perm", perm}});
  };
  auto q = projected({0, 2, 1, 3});
  const auto eight = std::vector<float>{4};
  q = l.m.node("Div", {q, l.m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_f32({}, eight)))},
               l.m.shape(q));
  const auto k = projected({0, 2, 3, 1});
  const auto v = projected({0, 2, 1, 3});
  auto s =
      l.m.node("MatMul", {q, k}, {n, heads, seq, seq}, {}, {{.kind = PostOp::Kind::add, .operand = mask}});
  s = l.m.node("Softmax", {s}, l.m.shape(s), {{"axis", std::int64_t{-1}}});
  auto y = l.m.node("MatMul", {s, v}, {n, heads, seq, width / heads});
  y = l.m.node("Transpose", {y}, {n, seq, heads, width / heads},
               {{"perm", std::vector<std::int64_t>{0, 2, 1, 3}}});
  y = l.m.node("Reshape", {y}, {n, seq, width});
  y = l.dense(y, width, {{.kind = PostOp::Kind::add, .operand = x}});
  const auto scale = l.m.constant(random_tensor({width}, l.random));
  const auto shift = l.m.constant(random_tensor({width}, l.random));
  y = l.m.node("LayerNormalization", {y, scale, shift}, l.m.shape(y), {{"axis", std::int64_t{-1}}});
  y = l.dense(y, 4 * width, {{.kind = PostOp::Kind::gelu_erf}});
  y = l.dense(y, width);
  l.m.g.outputs = {y};
  return std::move(l.m.g);
}

TEST(CpuEngine, AttentionAgrees) {
  expect_agrees(attention, 2e-5);
  expect_agrees(attention, 3e-2, {1, 4}, Precision::bf16);
}

TEST(CpuEngine, AttentionNeedsNoTransposes) {
  const auto model = compile(attention, {2});
  EXPECT_FALSE(has_kernel(*model->plan(2), "Transpose")) << kernels_of(*model->plan(2));
  EXPECT_FALSE(has_kernel(*model->plan(2), "reorder")) << kernels_of(*model->plan(2));
  EXPECT_FALSE(has_kernel(*model->plan(2), "Div")) << kernels_of(*model->plan(2));
}

TEST(CpuEngine, FlattensPixelsInTheRightOrder) {
  const Make make = [](std::int64_t n) {
    Layers l;
    auto y = l.conv(l.m.input({n, 8, 6, 6}), 16, 3, 1, 1, {relu});
    y = l.m.node("MaxPool", {y}, {n, 16, 3, 3}, window(2, 2, 0));
    y = l.m.node("Reshape", {y}, {n, std::int64_t{16} * 9});
    l.m.g.outputs = {l.dense(y, 5)};
    return std::move(l.m.g);
  };
  expect_agrees(make, 1e-5, {1, 4});
  EXPECT_FALSE(has_kernel(*compile(make, {4})->plan(4), "plain:"));
}

TEST(CpuEngine, OutputsMayBeInputsConstantsViewsAndTwins) {
  const Make make = [](std::int64_t n) {
    Layers l;
    const auto x = l.m.input({n, 6});
    const auto y = l.m.node("Relu", {x}, {n, 6});
    const auto z = l.m.node("Reshape", {y}, {n, 2, 3});
    const auto t = l.m.node("Transpose", {z}, {n, 3, 2}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
    l.m.g.outputs = {x, y, z, t, y};
    return std::move(l.m.g);
  };
  expect_agrees(make, 0, {1, 3});
}

// The steps of a sequence, as an unrolled loop takes them; also from behind, along other axes, and of a view.
TEST(CpuEngine, OneElementAlongAnAxisIsAView) {
  const Make make = [](std::int64_t n) {
    Layers l;
    const auto at = [&](std::int64_t index) {
      return l.m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_i64({}, std::span(&index, 1))));
    };
    const auto x = l.m.input({n, 3, 5, 4});
    const auto turned =
        l.m.node("Transpose", {x}, {n, 5, 3, 4}, {{"perm", std::vector<std::int64_t>{0, 2, 1, 3}}});
    const auto a = l.m.node("Gather", {x, at(1)}, {n, 5, 4}, {{"axis", std::int64_t{1}}});
    const auto b = l.m.node("Gather", {x, at(-1)}, {n, 3, 5}, {{"axis", std::int64_t{3}}});
    const auto c = l.m.node("Gather", {turned, at(4)}, {n, 3, 4}, {{"axis", std::int64_t{-3}}});
    l.m.g.outputs = {l.dense(a, 8, {relu}), l.m.node("Relu", {b}, {n, 3, 5}), l.dense(c, 8), c};
    return std::move(l.m.g);
  };
  expect_agrees(make, 1e-5, {1, 3});
  const auto model = compile(make, {3});
  EXPECT_FALSE(has_kernel(*model->plan(3), "plain:Gather")) << kernels_of(*model->plan(3));
}

// Kernels that look alike are one primitive; these differ in their numbers or their operands alone.
TEST(CpuEngine, KernelsThatAreNearlyAlikeStayApart) {
  const Make make = [](std::int64_t n) {
    Layers l;
    const auto x = l.m.input({n, 24}), y = l.m.input({n, 24});
    const auto row = l.m.constant(random_tensor({1, 24}, l.random));
    const auto w = l.m.constant(random_tensor({24, 24}, l.random)),
               v = l.m.constant(random_tensor({24, 24}, l.random));
    using Kind = PostOp::Kind;
    std::vector<ValueId>& outputs = l.m.g.outputs;
    const std::vector<std::vector<PostOp>> behind{{},
                                                  {{.kind = Kind::leaky_relu, .alpha = 0.1F}},
                                                  {{.kind = Kind::leaky_relu, .alpha = 0.2F}},
                                                  {{.kind = Kind::linear, .alpha = 2, .beta = 1}},
                                                  {{.kind = Kind::linear, .alpha = 2, .beta = 3}},
                                                  {{.kind = Kind::add, .operand = y}},
                                                  {{.kind = Kind::add, .operand = row}},
                                                  {{.kind = Kind::mul, .operand = row}}};
    for (const auto& ops : behind) {
      outputs.push_back(l.m.node("Add", {x, y}, {n, 24}, {}, ops));
      outputs.push_back(l.m.node("Add", {x, row}, {n, 24}, {}, ops));
      outputs.push_back(l.m.node("Mul", {x, y}, {n, 24}, {}, ops));
      outputs.push_back(l.m.node("MatMul", {x, w}, {n, 24}, {}, ops));
      outputs.push_back(l.m.node("MatMul", {x, v}, {n, 24}, {}, ops));
    }
    for (const float alpha : {0.1F, 0.3F})
      outputs.push_back(l.m.node("LeakyRelu", {x}, {n, 24}, {{"alpha", alpha}}));
    return std::move(l.m.g);
  };
  expect_agrees(sharing(make), 1e-5, {1, 5});
}

// Random graphs of convolutions, sums and concatenations: values live long and short, are read often and
// late.
TEST(CpuEngine, RandomGraphsAgree) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Make make = [seed](std::int64_t n) {
      Random choice(seed);
      Layers l;
      std::vector<ValueId> made{l.m.input({n, 8, 6, 6})};
      const auto any = [&] { return made[choice.below(made.size())]; };
      for (int i = 0; i < 14; ++i) {
        const auto a = any(), b = any();
        const std::int64_t ca = l.m.shape(a)[1], cb = l.m.shape(b)[1];
        switch (choice.below(6)) {
          case 0:
            made.push_back(l.conv(a, 1 + static_cast<std::int64_t>(choice.below(40)), 3, 1, 1, {relu}));
            break;
          case 1:
            made.push_back(l.conv(a, 16, 1, 1));
            break;
          case 2:
            if (ca == cb) made.push_back(l.m.node("Add", {a, b}, l.m.shape(a), {}, {relu}));
            break;
          case 3:
            if (ca + cb < 80)
              made.push_back(l.m.node("Concat", {a, b}, {n, ca + cb, 6, 6}, {{"axis", std::int64_t{1}}}));
            break;
          case 4:
            made.push_back(l.m.node("Tanh", {a}, l.m.shape(a)));
            break;
          case 5:
            made.push_back(l.conv(a, cb, 3, 1, 1, {{.kind = PostOp::Kind::add, .operand = b}, relu}));
            break;
        }
      }
      l.m.g.outputs = {made.back(), made[made.size() / 2]};
      if (l.m.g.outputs[0] == l.m.g.outputs[1]) l.m.g.outputs.pop_back();
      return std::move(l.m.g);
    };
    expect_agrees(make, 2e-5, {1, 3});
  }
}

// x[batch, length, 8] through two layers, and a sum over the length.
class Sequences final : public graph::Model {
 public:
  // At the length `odd` its graph is for another.
  explicit Sequences(std::int64_t odd = 0) : odd_(odd) {}
  static Graph make(std::int64_t batch, std::int64_t length) {
    GraphMaker m;
    static Random random(5);
    static const auto up = random_tensor({8, 16}, random, 0.3F), down = random_tensor({16, 8}, random, 0.3F);
    const auto x = m.input({batch, length, 8});
    const auto w = m.constant(up);
    const auto v = m.constant(down);
    const auto hidden = m.node("MatMul", {x, w}, {batch, length, 16}, {}, {{.kind = PostOp::Kind::relu}});
    const auto y = m.node("MatMul", {hidden, v}, {batch, length, 8});
    const auto s = m.node("Softmax", {y}, {batch, length, 8}, {{"axis", std::int64_t{1}}});
    m.g.outputs = {y, s};
    return std::move(m.g);
  }
  const std::string& name() const override { return name_; }
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  bool batched() const override { return true; }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  Result<Graph> specialize(std::int64_t batch, std::int64_t length) const override {
    return make(batch, length == odd_ ? length + 1 : length);
  }

 private:
  std::int64_t odd_;
  static graph::TensorSpec spec(const char* name) {
    return {name, graph::DataType::f32, {graph::batch_dimension, graph::length_dimension, 8}};
  }
  std::string name_ = "sequences";
  std::vector<std::int64_t> lengths_{3, 16, 40};
  std::vector<graph::TensorSpec> inputs_{spec("x")}, outputs_{spec("y"), spec("s")};
};

TEST(CpuEngine, MakesAPlanForEveryLengthAndSharesWeights) {
  const auto engine = make_cpu_engine({.threads = 2});
  const auto compiled = engine->compile(Sequences(), {.batch_sizes = {1, 4}, .pads = true});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  const CompiledModel& model = **compiled;
  EXPECT_TRUE(model.pads() && model.time_varies());
  EXPECT_EQ(model.plan(1), nullptr);
  EXPECT_EQ(model.plan(1, 4), nullptr);
  EXPECT_EQ(model.plan(2, 16), nullptr);
  const auto one =
      engine->compile(MadeModel([](std::int64_t n) { return Sequences::make(n, 40); }), {.batch_sizes = {4}});
  ASSERT_TRUE(one.has_value());
  // Six plans, fewer layouts: a tall product has another kernel than a flat one.
  EXPECT_LE(model.weights().count, 2 * (*one)->weights().count);
  for (const int batch : {1, 4})
    for (const std::int64_t length : {3, 16, 40}) {
      SCOPED_TRACE("batch " + std::to_string(batch) + ", length " + std::to_string(length));
      const Plan* plan = model.plan(batch, length);
      ASSERT_NE(plan, nullptr);
      EXPECT_EQ(plan->outputs()[0].shape, (graph::Shape{batch, length, 8}));
      const Graph g = Sequences::make(batch, length);
      const Buffers inputs = random_inputs(g, 3);
      const Buffers want = reference(g, inputs);
      const Bound bound(model, *plan, inputs);
      ASSERT_TRUE(plan->run({0, plan->kernels()}, bound.binding(), {}).has_value());
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(relative_error(*bound.outputs()[i], *want[i]), 1e-5) << "output " << i;
    }
}

// Memory is sized by what the model says, so a plan whose graph says otherwise must not be made.
TEST(CpuEngine, RefusesAPlanWhoseShapesAreNotTheModels) {
  const auto compiled = make_cpu_engine({})->compile(Sequences(16), {.batch_sizes = {1, 2}});
  ASSERT_FALSE(compiled.has_value());
  EXPECT_EQ(compiled.error().code, ErrorCode::unsupported);
  for (const char* part : {"batch 2", "length 16", "'x' is [2,17,8]", "should be [2,16,8]"})
    EXPECT_NE(compiled.error().message.find(part), std::string::npos) << compiled.error().message;
}

// A plan does not change while it runs, so that threads share it; states and memories are their own.
TEST(CpuEngine, OnePlanRunsOnTwoThreadsAtOnce) {
  const Make make = [](std::int64_t n) { return residual(n); };
  const auto model = compile(make, {2});
  const Plan& plan = *model->plan(2);
  const Graph g = make(2);
  constexpr int threads = 2, rounds = 30;
  std::vector<std::unique_ptr<Bound>> memories;
  std::vector<std::vector<graph::SharedTensor>> want;
  for (int t = 0; t < threads; ++t) {
    const Buffers inputs = random_inputs(g, static_cast<std::uint64_t>(20 + t));
    const Bound alone(*model, plan, inputs);
    ASSERT_TRUE(plan.run({0, plan.kernels()}, alone.binding(), {}).has_value());
    want.emplace_back(alone.outputs().begin(), alone.outputs().end());
    memories.push_back(std::make_unique<Bound>(*model, plan, inputs));
  }
  std::latch together(threads);
  std::vector<int> wrong(threads, 0);
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      const Bound& memory = *memories[t];
      together.arrive_and_wait();
      for (int round = 0; round < rounds; ++round) {
        for (const auto& output : memory.outputs()) std::ranges::fill(output->bytes(), std::byte{0xff});
        const int cut = round % (plan.kernels() + 1);
        if (!plan.run({0, cut}, memory.binding(), {}) ||
            !plan.run({cut, plan.kernels()}, memory.binding(), {}))
          ++wrong[t];
        for (std::size_t i = 0; i < want[t].size(); ++i)
          if (!std::ranges::equal(memory.outputs()[i]->bytes(), want[t][i]->bytes())) ++wrong[t];
      }
    });
  for (std::thread& thread : running) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(threads, 0));
}

TEST(CpuEngine, TellsDurationsOfTheKernelsThatRan) {
  const Make make = [](std::int64_t n) { return residual(n); };
  const auto model = compile(make, {2});
  const Plan& plan = *model->plan(2);
  const Bound memory(*model, plan, random_inputs(make(2), 1));
  std::vector<Duration> durations(static_cast<std::size_t>(plan.kernels()), Duration{-1});
  ASSERT_TRUE(plan.run({0, 2}, memory.binding(), durations).has_value());
  EXPECT_GT(durations[0], Duration{0});
  EXPECT_GT(durations[1], Duration{0});
  EXPECT_EQ(durations[2], Duration{-1});
}

#if defined(__x86_64__)
// The thread may run code of others next, in which whole numbers are denormals.
TEST(CpuEngine, LeavesTheThreadsFloatsAsTheyWere) {
  constexpr unsigned flushes = 0x8040;  // to zero, and denormals are zeros
  ASSERT_EQ(_mm_getcsr() & flushes, 0U);
  const Make make = [](std::int64_t n) { return residual(n); };
  const auto model = compile(make, {2});
  EXPECT_EQ(_mm_getcsr() & flushes, 0U) << "compiling";
  const Plan& plan = *model->plan(2);
  const Bound memory(*model, plan, random_inputs(make(2), 1));
  ASSERT_TRUE(plan.run({0, plan.kernels()}, memory.binding(), {}).has_value());
  EXPECT_EQ(_mm_getcsr() & flushes, 0U) << "running";
}
#endif

// As docs/engines.md says it, by oneDNN and by plain code.
TEST(CpuEngine, TakesDenormalsForZerosAndMakesNone) {
  const Make make = [](std::int64_t n) {
    GraphMaker m;
    const auto x = m.input({n, 4});
    auto large = std::make_shared<graph::Tensor>(TensorType{graph::DataType::f32, {4}});
    std::ranges::fill(large->as<float>(), 1e38F);
    const auto c = m.constant(large);
    m.g.outputs = {m.node("Sqrt", {x}, {n, 4}),   m.node("Mul", {x, c}, {n, 4}),
                   m.node("Sign", {x}, {n, 4}),   m.node("Mul", {x, x}, {n, 4}),
                   m.node("Div", {x, x}, {n, 4}), m.node("Identity", {x}, {n, 4})};
    const auto above = m.value({n, 4}, graph::DataType::boolean);
    m.g.nodes.push_back(
        {.name = "above",
         .op = "Greater",
         .inputs = {x, m.constant(std::make_shared<graph::Tensor>(TensorType{graph::DataType::f32, {1}}))},
         .outputs = {above}});
    m.g.outputs.push_back(above);
    return std::move(m.g);
  };
  const auto model = compile(make, {1});
  const Plan& plan = *model->plan(1);
  auto given = std::make_shared<graph::Tensor>(TensorType{graph::DataType::f32, {1, 4}});
  const std::array x{1e-39F, 5e-39F, 0x1p-126F, 0x1p-70F};  // two denormals, the least that is none
  std::ranges::copy(x, given->as<float>().begin());
  const Bound memory(*model, plan, {given});
  ASSERT_TRUE(plan.run({0, plan.kernels()}, memory.binding(), {}).has_value());
  const auto is = [&](std::size_t output) {
    const auto all = memory.outputs()[output]->as<float>();
    return std::vector<float>(all.begin(), all.end());
  };
  EXPECT_THAT(is(0), ElementsAre(0, 0, 0x1p-63F, 0x1p-35F)) << "Sqrt";
  EXPECT_THAT(is(1), ElementsAre(0, 0, 0x1p-126F * 1e38F, 0x1p-70F * 1e38F)) << "Mul";
  EXPECT_THAT(is(2), ElementsAre(0, 0, 1, 1)) << "Sign";
  EXPECT_THAT(is(3), ElementsAre(0, 0, 0, 0)) << "x * x: 2^-140 is none";
  EXPECT_THAT(is(4), ElementsAre(IsNan(), IsNan(), 1, 1)) << "Div";
  EXPECT_THAT(is(5), ElementsAre(x[0], x[1], x[2], x[3])) << "what only moves keeps them";
  const auto above = memory.outputs()[6]->bytes();
  EXPECT_THAT(std::vector<std::byte>(above.begin(), above.end()),
              ElementsAre(std::byte{0}, std::byte{0}, std::byte{1}, std::byte{1}))
      << "Greater";
}

TEST(CpuEngine, SaysWhichNodeHasNoKernel) {
  const Make make = [](std::int64_t n) {
    GraphMaker m;
    const auto x = m.input({n, 4});
    m.g.outputs = {m.node("Frobnicate", {x}, {n, 4})};
    m.g.nodes[0].name = "odd one";
    return std::move(m.g);
  };
  const auto compiled = make_cpu_engine({})->compile(MadeModel(make), {.batch_sizes = {1}});
  ASSERT_FALSE(compiled.has_value());
  EXPECT_EQ(compiled.error().code, ErrorCode::unsupported);
  for (const char* part : {"odd one", "Frobnicate", "float[1,4]", "batch 1"})
    EXPECT_NE(compiled.error().message.find(part), std::string::npos) << compiled.error().message;
}

// oneDNN's last resorts are orders of magnitude slower: what is known to have come to them has another way.
TEST(CpuEngine, HasNoReferenceKernelWhereThereIsAnotherWay) {
  const struct {
    const char* what;
    Make make;
  } rows[] = {
      {"softmax over channels",
       [](std::int64_t n) {
         GraphMaker m;
         const auto x = m.input({n, 16, 4, 30});
         m.g.outputs = {m.node("Softmax", {x}, {n, 16, 4, 30}, {{"axis", std::int64_t{1}}})};
         return std::move(m.g);
       }},
      {"softmax over the middle, behind a transposition",
       [](std::int64_t n) {
         GraphMaker m;
         const auto x = m.input({n, 4, 16, 30});
         const auto t =
             m.node("Transpose", {x}, {n, 16, 4, 30}, {{"perm", std::vector<std::int64_t>{0, 2, 1, 3}}});
         m.g.outputs = {m.node("LogSoftmax", {t}, {n, 16, 4, 30}, {{"axis", std::int64_t{2}}})};
         return std::move(m.g);
       }},
      {"convolution of one dimension",
       [](std::int64_t n) {
         Layers l;
         const auto x = l.m.input({n, 16, 64});
         using V = std::vector<std::int64_t>;
         const auto w = l.m.constant(random_tensor({32, 16, 5}, l.random, 0.1F));
         l.m.g.outputs = {l.m.node("Conv", {x, w}, {n, 32, 32},
                                   {{"kernel_shape", V{5}},
                                    {"strides", V{2}},
                                    {"dilations", V{1}},
                                    {"pads", V{2, 2}},
                                    {"group", std::int64_t{1}}},
                                   {relu})};
         return std::move(l.m.g);
       }},
      {"pixels that are doubled",
       [](std::int64_t n) {
         Layers l;
         const auto x = l.conv(l.m.input({n, 3, 6, 6}), 16, 3, 1);
         const auto none = l.m.constant(random_tensor({0}, l.random));
         auto two = std::make_shared<graph::Tensor>(TensorType{graph::DataType::f32, {4}});
         std::ranges::copy(std::array{1.0F, 1.0F, 2.0F, 2.0F}, two->as<float>().begin());
         const auto scales = l.m.constant(two);
         const auto a = l.m.node("Resize", {x, none, scales}, {n, 16, 12, 12},
                                 {{"mode", std::string("nearest")},
                                  {"coordinate_transformation_mode", std::string("asymmetric")},
                                  {"nearest_mode", std::string("floor")}});
         const auto b = l.m.node("Resize", {x, none, scales}, {n, 16, 12, 12},
                                 {{"mode", std::string("linear")},
                                  {"coordinate_transformation_mode", std::string("half_pixel")}});
         l.m.g.outputs = {l.conv(a, 8, 3, 1), l.conv(b, 8, 1, 1)};
         return std::move(l.m.g);
       }},
      {"halves of channels", [](std::int64_t n) {
         Layers l;
         const auto x = l.conv(l.m.input({n, 8, 6, 6}), 32, 3, 1);
         const auto a = l.m.value({n, 16, 6, 6}), b = l.m.value({n, 16, 6, 6});
         l.m.g.nodes.push_back({.name = "split",
                                .op = "Split",
                                .inputs = {x},
                                .outputs = {a, b},
                                .attributes = {{"axis", std::int64_t{1}}}});
         const auto c = l.conv(b, 16, 3, 1, 1, {{.kind = PostOp::Kind::add, .operand = a}});
         l.m.g.outputs = {l.m.node("Concat", {a, c, b}, {n, 48, 6, 6}, {{"axis", std::int64_t{1}}}), b};
         return std::move(l.m.g);
       }}};
  for (const auto& [what, make] : rows) {
    SCOPED_TRACE(what);
    expect_agrees(make, 2e-5);
    const auto model = compile(make, {2});
    EXPECT_FALSE(has_kernel(*model->plan(2), " ref")) << kernels_of(*model->plan(2));
    EXPECT_FALSE(has_kernel(*model->plan(2), "plain:")) << kernels_of(*model->plan(2));
  }
}

TEST(CpuEngine, RefusesBatchSizesOutOfOrder) {
  const Make make = [](std::int64_t n) { return residual(n); };
  for (const std::vector<int>& sizes : {std::vector<int>{}, {0, 1}, {2, 1}, {1, 1}}) {
    const auto compiled = make_cpu_engine({})->compile(MadeModel(make), {.batch_sizes = sizes});
    ASSERT_FALSE(compiled.has_value());
    EXPECT_EQ(compiled.error().code, ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace carillon::engine
