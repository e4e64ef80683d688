#include <string>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"

namespace carillon::engine {
namespace {

using namespace testing;
using graph::DataType;

// Graphs whose middle is bytes: x is rounded to them, the result is real again.
struct QuantizedLayers {
  GraphMaker m;
  Random random{5};

  ValueId scalar(float value) {
    auto tensor = std::make_shared<graph::Tensor>(TensorType{DataType::f32, {}});
    tensor->as<float>()[0] = value;
    return m.constant(std::move(tensor));
  }
  ValueId zero(DataType type, int value) {
    auto tensor = std::make_shared<graph::Tensor>(TensorType{type, {}});
    tensor->bytes()[0] = static_cast<std::byte>(value);
    return m.constant(std::move(tensor));
  }
  ValueId byte_node(std::string op, std::vector<ValueId> inputs, Shape shape, DataType type,
                    Attributes attributes = {}) {
    const ValueId out = m.node(std::move(op), std::move(inputs), std::move(shape), std::move(attributes));
    m.g.value(out).type.type = type;
    return out;
  }
  ValueId whole(Shape shape, DataType type, int least, int most) {
    auto tensor = std::make_shared<graph::Tensor>(TensorType{type, std::move(shape)});
    for (std::int64_t i = 0; i < tensor->type().elements(); ++i) {
      const int value = least + static_cast<int>(random.below(static_cast<std::uint64_t>(most - least + 1)));
      if (type == DataType::i32)
        tensor->as<std::int32_t>()[static_cast<std::size_t>(i)] = value;
      else
        tensor->bytes()[static_cast<std::size_t>(i)] = static_cast<std::byte>(value);
    }
    return m.constant(std::move(tensor));
  }
  ValueId scales(std::int64_t count) {
    auto tensor = std::make_shared<graph::Tensor>(TensorType{DataType::f32, {count}});
    for (float& scale : tensor->as<float>()) scale = static_cast<float>(0.001 + 0.002 * random.uniform());
    return m.constant(std::move(tensor));
  }
  ValueId quantize(ValueId x, DataType type, int at_zero) {
    return byte_node("QuantizeLinear", {x, scalar(0.02F), zero(type, at_zero)}, m.shape(x), type);
  }
  // The result is seen in steps of 1: a sum between two may be rounded either way.
  ValueId steps(ValueId q, int at_zero) {
    return m.node("DequantizeLinear", {q, scalar(1), zero(m.g.value(q).type.type, at_zero)}, m.shape(q));
  }
};

struct ConvolutionCase {
  std::string name;
  Shape x;  // without the batch
  std::int64_t channels = 16, kernel = 3, stride = 1, groups = 1;
  DataType input = DataType::u8, weights = DataType::i8;
  int x_zero = 120, y_zero = 128, w_zero = 0, least = -127, most = 127;
  bool real = false;   // the result
  bool exact = false;  // sums are scaled by 2^-4, so many lie in the middle between two steps
};

Graph convolution(const ConvolutionCase& c, std::int64_t batch) {
  QuantizedLayers l;
  Shape shape = c.x;
  shape.insert(shape.begin(), batch);
  const std::size_t pixels = shape.size() - 2;
  const auto x = l.quantize(l.m.input(shape), c.input, c.x_zero);
  Shape w{c.channels, shape[1] / c.groups}, y{batch, c.channels};
  const std::int64_t pad = c.kernel / 2;
  for (std::size_t d = 0; d < pixels; ++d) {
    w.push_back(c.kernel);
    y.push_back((shape[d + 2] + 2 * pad - c.kernel) / c.stride + 1);
  }
  using V = std::vector<std::int64_t>;
  const Attributes attributes{{"kernel_shape", V(pixels, c.kernel)},
                              {"strides", V(pixels, c.stride)},
                              {"dilations", V(pixels, 1)},
                              {"pads", V(2 * pixels, pad)},
                              {"group", c.groups}};
  std::vector<ValueId> inputs{x,
                              l.scalar(c.exact ? 0x1p-4F : 0.02F),
                              l.zero(c.input, c.x_zero),
                              l.whole(w, c.weights, c.least, c.most),
                              c.exact ? l.scalar(1) : l.scales(c.channels),
                              l.zero(c.weights, c.w_zero)};
  if (c.real) {
    inputs.insert(inputs.end(), {graph::no_value, graph::no_value});
  } else {
    inputs.insert(inputs.end(), {l.scalar(c.exact ? 1.0F : 0.05F), l.zero(c.input, c.y_zero)});
  }
  inputs.push_back(l.whole({c.channels}, DataType::i32, c.exact ? -99 : -3000, c.exact ? 99 : 3000));
  if (c.real) {
    const PostOp relu{.kind = PostOp::Kind::relu};
    l.m.g.outputs = {l.m.node("QLinearConv", inputs, y, attributes, {relu})};
  } else {
    l.m.g.outputs = {l.steps(l.byte_node("QLinearConv", inputs, y, c.input, attributes), c.y_zero)};
  }
  return std::move(l.m.g);
}

std::string kernels_of(const Plan& plan) {
  std::string text;
  for (int k = 0; k < plan.kernels(); ++k) text += std::string(plan.kernel_name(k)) + "\n";
  return text;
}

// As the plain kernels compute it, but for `tolerance`; and the kernels' names.
std::string expect_agrees(const std::function<Graph(std::int64_t)>& make, double tolerance) {
  const auto engine = make_cpu_engine({.threads = 2});
  const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = {1, 3}});
  EXPECT_TRUE(compiled.has_value()) << (compiled ? "" : compiled.error().message);
  if (!compiled) return {};
  std::string kernels;
  for (const int batch : {1, 3}) {
    const Graph g = make(batch);
    const Plan& plan = *(*compiled)->plan(batch);
    kernels = kernels_of(plan);
    SCOPED_TRACE(kernels);
    const Buffers inputs = random_inputs(g, 7);
    const Buffers want = reference(g, inputs);
    const auto team = engine->make_team({.threads = 2});
    const Bound bound(**compiled, plan, inputs, team->get());
    EXPECT_TRUE(plan.run({0, plan.kernels()}, bound.binding(), {}).has_value());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto a = bound.outputs()[i]->as<float>(), b = want[i]->as<float>();
      float most = 0;
      for (std::size_t k = 0; k < a.size(); ++k) most = std::max(most, std::abs(a[k] - b[k]));
      EXPECT_LE(most, tolerance) << "output " << i << " at batch " << batch;
    }
  }
  return kernels;
}

class QuantizedConvolution : public ::testing::TestWithParam<ConvolutionCase> {};

TEST_P(QuantizedConvolution, Agrees) {
  const ConvolutionCase& c = GetParam();
  const std::string kernels =
      expect_agrees([&](std::int64_t n) { return convolution(c, n); }, c.real ? 1e-4 : 1.001);
  EXPECT_EQ(kernels.find("plain:QLinearConv"), std::string::npos) << kernels;
  EXPECT_EQ(kernels.find(" ref"), std::string::npos) << kernels;
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantizedConvolution,
    ::testing::Values(
        ConvolutionCase{.name = "Usual", .x = {16, 9, 9}},
        ConvolutionCase{.name = "FewChannels", .x = {3, 12, 12}, .channels = 5, .kernel = 7, .stride = 2},
        ConvolutionCase{.name = "OnePixel", .x = {32, 6, 6}, .channels = 40, .kernel = 1},
        ConvolutionCase{.name = "Depthwise", .x = {24, 8, 8}, .channels = 24, .groups = 24},
        ConvolutionCase{.name = "DepthwiseOfSigned",
                        .x = {40, 9, 9},
                        .channels = 40,
                        .kernel = 5,
                        .stride = 2,
                        .groups = 40,
                        .input = DataType::i8,
                        .x_zero = -3,
                        .y_zero = 5},
        ConvolutionCase{.name = "DepthwiseOfFew", .x = {8, 8, 8}, .channels = 8, .groups = 8},
        ConvolutionCase{.name = "DepthwiseLine",
                        .x = {33, 30},
                        .channels = 33,
                        .groups = 33,
                        .weights = DataType::u8,
                        .w_zero = 30,
                        .least = 0,
                        .most = 255},
        ConvolutionCase{.name = "Groups", .x = {12, 8, 8}, .channels = 12, .groups = 3},
        ConvolutionCase{.name = "Line", .x = {16, 30}, .channels = 32, .kernel = 5, .stride = 2},
        ConvolutionCase{.name = "Volume", .x = {8, 4, 5, 5}},
        ConvolutionCase{.name = "Signed", .x = {16, 9, 9}, .input = DataType::i8, .x_zero = -3, .y_zero = 5},
        // Weights that, without their zero point, are no bytes with a sign.
        ConvolutionCase{.name = "WideWeights",
                        .x = {16, 9, 9},
                        .weights = DataType::u8,
                        .w_zero = 30,
                        .least = 0,
                        .most = 255},
        ConvolutionCase{.name = "UnsignedWeights",
                        .x = {16, 9, 9},
                        .weights = DataType::u8,
                        .w_zero = 128,
                        .least = 1,
                        .most = 255},
        ConvolutionCase{.name = "RealResult", .x = {16, 9, 9}, .real = true}),
    [](const auto& each) { return each.param.name; });

// The largest numbers that there are: sums of two products do not fit 16 bits.
TEST(QuantizedConvolution, DoesNotSaturate) {
  const auto make = [](std::int64_t n) {
    QuantizedLayers l;
    const auto x = l.quantize(l.m.input({n, 64, 4, 4}), DataType::u8, 0);
    // Every element at the byte's end, whatever the input is.
    auto table = std::make_shared<graph::Tensor>(TensorType{DataType::u8, {256}});
    std::ranges::fill(table->bytes(), std::byte{255});
    const auto full = l.byte_node("ByteLookup", {x, l.m.constant(table)}, {n, 64, 4, 4}, DataType::u8);
    using V = std::vector<std::int64_t>;
    const Attributes attributes{{"kernel_shape", V{1, 1}},
                                {"strides", V{1, 1}},
                                {"dilations", V{1, 1}},
                                {"pads", V{0, 0, 0, 0}},
                                {"group", std::int64_t{1}}};
    l.m.g.outputs = {
        l.m.node("QLinearConv",
                 {full, l.scalar(1), l.zero(DataType::u8, 0), l.whole({16, 64, 1, 1}, DataType::i8, 127, 127),
                  l.scalar(1), l.zero(DataType::i8, 0), graph::no_value, graph::no_value},
                 {n, 16, 4, 4}, attributes)};
    return std::move(l.m.g);
  };
  expect_agrees(make, 0);
}

TEST(QuantizedMatMul, Agrees) {
  for (const bool real : {false, true}) {
    const auto make = [real](std::int64_t n) {
      QuantizedLayers l;
      const auto x = l.quantize(l.m.input({n, 7, 48}), DataType::u8, 120);
      std::vector<ValueId> inputs{x,
                                  l.scalar(0.02F),
                                  l.zero(DataType::u8, 120),
                                  l.whole({48, 33}, DataType::i8, -127, 127),
                                  l.scales(33),
                                  l.zero(DataType::i8, 0)};
      if (real) {
        inputs.insert(inputs.end(), {graph::no_value, graph::no_value});
        const auto bias = l.m.constant(random_tensor({33}, l.random));
        l.m.g.outputs = {
            l.m.node("QLinearMatMul", inputs, {n, 7, 33}, {},
                     {{.kind = PostOp::Kind::add, .operand = bias}, {.kind = PostOp::Kind::gelu_erf}})};
      } else {
        inputs.insert(inputs.end(),
                      {l.scalar(0.05F), l.zero(DataType::u8, 128), l.whole({33}, DataType::i32, -999, 999)});
        l.m.g.outputs = {l.steps(l.byte_node("QLinearMatMul", inputs, {n, 7, 33}, DataType::u8), 128)};
      }
      return std::move(l.m.g);
    };
    const std::string kernels = expect_agrees(make, real ? 1e-4 : 1.001);
    EXPECT_EQ(kernels.find("plain:QLinearMatMul"), std::string::npos) << kernels;
  }
}

TEST(QuantizedMatMul, OfTwoThatChange) {
  const auto make = [](std::int64_t n) {
    QuantizedLayers l;
    const auto x = l.quantize(l.m.input({n, 3, 7, 8}), DataType::u8, 120);
    const auto t = l.byte_node("Transpose", {x}, {n, 3, 8, 7}, DataType::u8,
                               {{"perm", std::vector<std::int64_t>{0, 1, 3, 2}}});
    const auto scale = [&] { return l.scalar(0.02F); };
    const auto at_zero = [&] { return l.zero(DataType::u8, 120); };
    l.m.g.outputs = {
        l.steps(l.byte_node("QLinearMatMul",
                            {x, scale(), at_zero(), t, scale(), at_zero(), l.scalar(0.1F), at_zero()},
                            {n, 3, 7, 7}, DataType::u8),
                120)};
    return std::move(l.m.g);
  };
  const std::string kernels = expect_agrees(make, 1.001);
  EXPECT_EQ(kernels.find("plain:QLinearMatMul"), std::string::npos) << kernels;
}

// A range found at run time: the scale and the zero point are not known when the plan is made. Also with
// weights of eight bits, which not every processor multiplies as bytes.
TEST(QuantizedMatMul, AgreesWithARangeFoundAtRunTime) {
  for (const int most : {60, 127}) {
    const auto make = [most](std::int64_t n) {
      QuantizedLayers l;
      const auto x = l.m.input({n, 5, 32});
      const auto q = l.m.value({n, 5, 32}, DataType::u8), s = l.m.value({}), z = l.m.value({}, DataType::u8);
      l.m.g.nodes.push_back(
          {.name = "range", .op = "DynamicQuantizeLinear", .inputs = {x}, .outputs = {q, s, z}});
      l.m.g.outputs = {l.m.node("QLinearMatMul",
                                {q, s, z, l.whole({32, 16}, DataType::i8, -most, most), l.scales(16),
                                 l.zero(DataType::i8, 0), graph::no_value, graph::no_value},
                                {n, 5, 16})};
      return std::move(l.m.g);
    };
    const std::string kernels = expect_agrees(make, 1e-4);
    EXPECT_EQ(kernels.find("plain:QLinearMatMul"), std::string::npos) << kernels;
  }
}

// Sums that lie between two steps: they go to the even one before the zero point is added. All numbers are
// exact.
TEST(QuantizedConvolution, RoundsToEvenBeforeTheZeroPoint) {
  const ConvolutionCase cases[] = {
      {.name = "Usual", .x = {16, 9, 9}},
      {.name = "FewChannels", .x = {3, 12, 12}, .channels = 5, .kernel = 7, .stride = 2},
      {.name = "OnePixel", .x = {32, 6, 6}, .channels = 40, .kernel = 1},
      {.name = "Depthwise", .x = {24, 8, 8}, .channels = 24, .groups = 24},
      {.name = "Groups", .x = {12, 8, 8}, .channels = 12, .groups = 3},
      {.name = "Line", .x = {16, 30}, .channels = 32, .kernel = 5, .stride = 2},
      {.name = "Volume", .x = {8, 4, 5, 5}},
  };
  for (ConvolutionCase c : cases) {
    c.exact = true;
    c.least = -2;
    c.most = 2;
    for (const auto& [type, y_zero] :
         {std::pair(DataType::u8, 127), {DataType::u8, 128}, {DataType::i8, -3}, {DataType::i8, 0}}) {
      c.input = type;
      c.x_zero = type == DataType::u8 ? 120 : -3;
      c.y_zero = y_zero;
      SCOPED_TRACE(c.name + " " + std::to_string(y_zero));
      const std::string kernels = expect_agrees([&](std::int64_t n) { return convolution(c, n); }, 0);
      EXPECT_EQ(kernels.find("plain:QLinearConv"), std::string::npos) << kernels;
      EXPECT_EQ(kernels.find(" ref"), std::string::npos) << kernels;
    }
  }
}

TEST(QuantizedMatMul, RoundsToEvenBeforeTheZeroPoint) {
  for (const auto& [type, y_zero] :
       {std::pair(DataType::u8, 127), {DataType::u8, 128}, {DataType::i8, -3}, {DataType::i8, 0}})
    for (const std::int64_t columns : {1, 33, 64}) {
      SCOPED_TRACE(std::to_string(columns) + " columns, " + std::to_string(y_zero));
      const int x_zero = type == DataType::u8 ? 120 : -3;
      const auto make = [&, type = type, y_zero = y_zero](std::int64_t n) {
        QuantizedLayers l;
        const auto x = l.quantize(l.m.input({n, 7, 48}), type, x_zero);
        const auto y =
            l.byte_node("QLinearMatMul",
                        {x, l.scalar(0x1p-4F), l.zero(type, x_zero),
                         l.whole({48, columns}, DataType::i8, -2, 2), l.scalar(1), l.zero(DataType::i8, 0),
                         l.scalar(1), l.zero(type, y_zero), l.whole({columns}, DataType::i32, -99, 99)},
                        {n, 7, columns}, type);
        l.m.g.outputs = {l.steps(y, y_zero)};
        return std::move(l.m.g);
      };
      const std::string kernels = expect_agrees(make, 0);
      EXPECT_EQ(kernels.find("plain:QLinearMatMul"), std::string::npos) << kernels;
    }
}

// Bytes in channels-last from convolution to convolution, whatever lies between.
TEST(QuantizedPlan, BytesStayInTheirLayout) {
  const auto make = [](std::int64_t n) {
    QuantizedLayers l;
    const auto conv = [&](ValueId x) {
      using V = std::vector<std::int64_t>;
      const Attributes attributes{{"kernel_shape", V{1, 1}},
                                  {"strides", V{1, 1}},
                                  {"dilations", V{1, 1}},
                                  {"pads", V{0, 0, 0, 0}},
                                  {"group", std::int64_t{1}}};
      return l.byte_node(
          "QLinearConv",
          {x, l.scalar(0.02F), l.zero(DataType::u8, 120), l.whole({16, 16, 1, 1}, DataType::i8, -99, 99),
           l.scales(16), l.zero(DataType::i8, 0), l.scalar(0.02F), l.zero(DataType::u8, 120)},
          {n, 16, 6, 6}, DataType::u8, attributes);
    };
    const auto scale = [&] { return l.scalar(0.02F); };
    const auto at_zero = [&] { return l.zero(DataType::u8, 120); };
    const auto a = conv(l.quantize(l.m.input({n, 16, 6, 6}), DataType::u8, 120));
    const auto sum =
        l.byte_node("QLinearAdd", {a, scale(), at_zero(), conv(a), scale(), at_zero(), scale(), at_zero()},
                    {n, 16, 6, 6}, DataType::u8);
    const auto mean = l.byte_node("QLinearGlobalAveragePool", {sum, scale(), at_zero(), scale(), at_zero()},
                                  {n, 16, 1, 1}, DataType::u8);
    const auto gated = l.byte_node(
        "QLinearMul", {sum, scale(), at_zero(), mean, scale(), at_zero(), l.scalar(0.01F), at_zero()},
        {n, 16, 6, 6}, DataType::u8);
    const auto pooled = l.byte_node("MaxPool", {gated}, {n, 16, 3, 3}, DataType::u8, window(2, 2, 0));
    const auto both =
        l.byte_node("Concat", {pooled, pooled}, {n, 32, 3, 3}, DataType::u8, {{"axis", std::int64_t{1}}});
    l.m.g.outputs = {l.steps(both, 120)};
    return std::move(l.m.g);
  };
  // A step that is one off in the mean becomes a few in the product.
  const std::string kernels = expect_agrees(make, 4.001);
  std::size_t reorders = 0;
  for (std::size_t at = 0; (at = kernels.find("reorder", at)) != std::string::npos; ++at) ++reorders;
  EXPECT_LE(reorders, 2U) << "at the input, and at the end\n" << kernels;
  for (const char* slow : {"plain:QLinearConv", "plain:MaxPool", "plain:Concat"})
    EXPECT_EQ(kernels.find(slow), std::string::npos) << kernels;
}

}  // namespace
}  // namespace carillon::engine
