#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"

// What is not a number stays so, and stays in its row.
namespace carillon::engine {
namespace {

using namespace testing;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

struct Case {
  std::string name;
  std::function<ValueId(GraphMaker&, Random&, ValueId x)> make;  // x is [batch, 16, 9, 9]
  // The largest error beside the largest value; where the two worlds add up in another order.
  double tolerance = 1e-5;
  // oneDNN's GELU by erf makes NaN of an infinity where the processor has AVX-512; a number it never makes.
  bool infinity_or_nan = false;
};

ValueId conv(GraphMaker& m, Random& random, ValueId x, std::int64_t channels, std::int64_t kernel,
             std::int64_t groups, std::vector<PostOp> post_ops) {
  const Shape in = m.shape(x);
  auto attributes = window(kernel, 1, kernel / 2);
  attributes["group"] = groups;
  const auto w = m.constant(random_tensor({channels, in[1] / groups, kernel, kernel}, random, 0.2F));
  const auto b = m.constant(random_tensor({channels}, random));
  return m.node("Conv", {x, w, b}, {in[0], channels, in[2], in[3]}, attributes, std::move(post_ops));
}

ValueId scalar(GraphMaker& m, float value) {
  const auto values = std::vector<float>{value};
  return m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_f32({}, values)));
}

const PostOp relu{.kind = PostOp::Kind::relu};
const PostOp relu6{.kind = PostOp::Kind::clip, .alpha = 0, .beta = 6};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const auto& make) {
    all.push_back({.name = name, .make = make});
  };
  // Each elementwise function behind a convolution, and as a node.
  using Kind = PostOp::Kind;
  for (const auto& [name, op] : std::initializer_list<std::pair<const char*, PostOp>>{
           {"Relu", relu},
           {"Relu6", relu6},
           {"LeakyRelu", {.kind = Kind::leaky_relu, .alpha = 0.1F}},
           {"Sigmoid", {.kind = Kind::sigmoid}},
           {"Tanh", {.kind = Kind::tanh}},
           {"Elu", {.kind = Kind::elu, .alpha = 1}},
           {"Gelu", {.kind = Kind::gelu_erf}},
           {"GeluTanh", {.kind = Kind::gelu_tanh}},
           {"HardSigmoid", {.kind = Kind::hard_sigmoid, .alpha = 0.2F, .beta = 0.5F}},
           {"HardSwish", {.kind = Kind::hard_swish}},
           {"Silu", {.kind = Kind::silu}}}) {
    add(std::string("Conv") + name,
        [op = op](GraphMaker& m, Random& r, ValueId x) { return conv(m, r, x, 24, 3, 1, {op}); });
    all.back().tolerance = 2e-5;
    all.back().infinity_or_nan = op.kind == Kind::gelu_erf;
  }
  for (const std::string name :
       {"Relu", "Sigmoid", "Tanh", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Gelu"}) {
    add("Node" + name, [name](GraphMaker& m, Random&, ValueId x) { return m.node(name, {x}, m.shape(x)); });
    all.back().infinity_or_nan = name == "Gelu";
  }
  add("NodeClip", [](GraphMaker& m, Random&, ValueId x) {
    return m.node("Clip", {x, scalar(m, -1), scalar(m, 1)}, m.shape(x));
  });
  add("Pointwise", [](GraphMaker& m, Random& r, ValueId x) { return conv(m, r, x, 32, 1, 1, {relu}); });
  add("Depthwise", [](GraphMaker& m, Random& r, ValueId x) { return conv(m, r, x, 16, 3, 16, {relu6}); });
  add("OddChannels", [](GraphMaker& m, Random& r, ValueId x) { return conv(m, r, x, 5, 3, 1, {relu}); });
  add("Residual", [](GraphMaker& m, Random& r, ValueId x) {
    return conv(m, r, x, 16, 3, 1, {{.kind = Kind::add, .operand = x}, relu});
  });
  add("SumBehindRelu", [](GraphMaker& m, Random& r, ValueId x) {
    return conv(m, r, x, 16, 3, 1, {relu, {.kind = Kind::add, .operand = x}, relu6});
  });
  add("Network", [](GraphMaker& m, Random& r, ValueId x) {
    auto y = conv(m, r, x, 24, 3, 1, {relu6});
    y = conv(m, r, y, 24, 3, 24, {relu6});
    y = conv(m, r, y, 16, 1, 1, {{.kind = Kind::add, .operand = x}, relu});
    const std::int64_t n = m.shape(x)[0];
    y = m.node("MaxPool", {y}, {n, 16, 5, 5}, window(3, 2, 1));
    y = m.node("GlobalAveragePool", {y}, {n, 16, 1, 1});
    y = m.node("Reshape", {y}, {n, 16});
    const auto w = m.constant(random_tensor({16, 8}, r, 0.3F));
    y = m.node("MatMul", {y, w}, {n, 8}, {}, {relu});
    const auto v = m.constant(random_tensor({8, 7}, r, 0.3F));
    y = m.node("Gemm", {y, v}, {n, 7}, {}, {relu});
    return m.node("Softmax", {y}, {n, 7}, {{"axis", std::int64_t{1}}});
  });
  add("BatchNormalization", [](GraphMaker& m, Random& r, ValueId x) {
    std::vector<ValueId> inputs{x};
    for (int k = 0; k < 3; ++k) inputs.push_back(m.constant(random_tensor({16}, r)));
    auto variance = std::make_shared<graph::Tensor>(TensorType{graph::DataType::f32, {16}});
    for (float& v : variance->as<float>()) v = 0.5F + static_cast<float>(r.uniform());
    inputs.push_back(m.constant(variance));
    return m.node("BatchNormalization", inputs, m.shape(x), {{"epsilon", 1e-5F}}, {relu, relu6});
  });
  for (const std::string name : {"Add", "Mul", "Sub"})
    add(name + "Relu", [name](GraphMaker& m, Random& r, ValueId x) {
      const auto c = m.constant(random_tensor({16, 1, 1}, r));
      return m.node(name, {x, c}, m.shape(x), {}, {relu});
    });
  for (const std::string name : {"Max", "Min"}) {
    add(name, [name](GraphMaker& m, Random&, ValueId x) {
      return m.node(name, {m.node("Neg", {x}, m.shape(x)), x}, m.shape(x));
    });
    add(name + "Broadcasts", [name](GraphMaker& m, Random& r, ValueId x) {
      const std::int64_t n = m.shape(x)[0];
      const auto y = m.node("GlobalAveragePool", {x}, {n, 16, 1, 1});
      return m.node(name, {conv(m, r, x, 16, 1, 1, {}), y}, m.shape(x));
    });
  }
  for (const auto& [kernel, stride, pad, dilation] : std::initializer_list<std::array<std::int64_t, 4>>{
           {2, 2, 0, 1}, {3, 2, 1, 1}, {3, 1, 1, 1}, {2, 3, 0, 1}, {3, 2, 2, 2}, {2, 1, 1, 3}, {3, 1, 0, 4}})
    add("MaxPool" + std::to_string(kernel) + std::to_string(stride) + std::to_string(pad) +
            std::to_string(dilation),
        [=](GraphMaker& m, Random& r, ValueId x) {
          const std::int64_t extent = (9 + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
          return m.node("MaxPool", {stride == 1 ? x : conv(m, r, x, 16, 3, 1, {})},
                        {m.shape(x)[0], 16, extent, extent}, window(kernel, stride, pad, dilation));
        });
  add("GlobalMaxPool", [](GraphMaker& m, Random&, ValueId x) {
    return m.node("GlobalMaxPool", {x}, {m.shape(x)[0], 16, 1, 1});
  });
  for (const std::int64_t axis : {1, 3})
    for (const std::string name : {"Softmax", "LogSoftmax"})
      add(name + std::to_string(axis), [=](GraphMaker& m, Random&, ValueId x) {
        return m.node(name, {x}, m.shape(x), {{"axis", axis}});
      });
  // Scores of keys, of which a mask hides each third whatever it is.
  const auto bound = [](GraphMaker& m, float shown, float hidden) {
    std::vector<float> values(9, shown);
    for (std::size_t i = 1; i < values.size(); i += 3) values[i] = hidden;
    return m.constant(std::make_shared<graph::Tensor>(graph::Tensor::of_f32({1, 1, 1, 9}, values)));
  };
  const auto softmax = [](GraphMaker& m, ValueId y) {
    return m.node("Softmax", {y}, m.shape(y), {{"axis", std::int64_t{3}}});
  };
  const auto scores = [](GraphMaker& m, Random& r, ValueId x, std::vector<PostOp> post_ops) {
    return m.node("MatMul", {x, m.constant(random_tensor({9, 9}, r))}, m.shape(x), {}, std::move(post_ops));
  };
  for (const float hidden : {-infinity, -1e38F}) {
    const std::string name = hidden == -infinity ? "ByInfinity" : "ByANumber";
    add("Masked" + name, [=](GraphMaker& m, Random& r, ValueId x) {
      return softmax(m, scores(m, r, x,
                               {{.kind = Kind::linear, .alpha = 0.5F},
                                {.kind = Kind::at_most, .operand = bound(m, infinity, hidden)},
                                {.kind = Kind::at_least, .operand = bound(m, -infinity, hidden)}}));
    });
    add("MaskedBehindTanh" + name, [=](GraphMaker& m, Random& r, ValueId x) {
      return softmax(m, scores(m, r, x,
                               {{.kind = Kind::tanh},
                                {.kind = Kind::at_most, .operand = bound(m, infinity, hidden)},
                                {.kind = Kind::at_least, .operand = bound(m, -infinity, hidden)}}));
    });
    add("MaskedNode" + name, [=](GraphMaker& m, Random& r, ValueId x) {
      auto y = m.node("Reshape", {scores(m, r, x, {})}, m.shape(x));
      y = m.node("AtMost", {y, bound(m, infinity, hidden)}, m.shape(x));
      return softmax(m, m.node("AtLeast", {y, bound(m, -infinity, hidden)}, m.shape(x)));
    });
  }
  for (const std::string name : {"LSTM", "GRU", "RNN"})
    add(name, [name](GraphMaker& m, Random& r, ValueId x) {
      const std::int64_t n = m.shape(x)[0], gates = name == "LSTM" ? 4 : name == "GRU" ? 3 : 1;
      const auto w = m.constant(random_tensor({1, gates * 32, 81}, r, 0.1F));
      const auto h = m.constant(random_tensor({1, gates * 32, 32}, r, 0.1F));
      const auto y = m.node(name, {m.node("Reshape", {x}, {n, 16, 81}), w, h}, {n, 16, 1, 32},
                            {{"layout", std::int64_t{1}}});
      return m.node("Relu", {y}, {n, 16, 1, 32});
    });
  add("RnnRelu", [](GraphMaker& m, Random& r, ValueId x) {
    const std::int64_t n = m.shape(x)[0];
    const auto w = m.constant(random_tensor({1, 32, 81}, r, 0.1F));
    const auto h = m.constant(random_tensor({1, 32, 32}, r, 0.1F));
    return m.node("RNN", {m.node("Reshape", {x}, {n, 16, 81}), w, h}, {n, 16, 1, 32},
                  {{"layout", std::int64_t{1}}, {"activations", std::vector<std::string>{"Relu"}}});
  });
  // NaN that an operator makes of numbers.
  for (const std::string name : {"Sqrt", "Log"})
    add(name + "Relu", [name](GraphMaker& m, Random& r, ValueId x) {
      return conv(m, r, m.node(name, {x}, m.shape(x)), 16, 1, 1, {relu});
    });
  add("DivRelu", [](GraphMaker& m, Random& r, ValueId x) {
    const auto zero = m.node("Sub", {x, x}, m.shape(x));
    return conv(m, r, m.node("Div", {zero, zero}, m.shape(x)), 16, 1, 1, {relu});
  });
  add("NanWeight", [](GraphMaker& m, Random& r, ValueId x) {
    auto weights = random_tensor({16, 16, 1, 1}, r);
    const_cast<graph::Tensor&>(*weights).as<float>()[37] = nan;
    return m.node("Conv", {x, m.constant(weights)}, m.shape(x), window(1, 1, 0), {relu});
  });
  return all;
}

void PrintTo(const Case& test, std::ostream* out) {
  *out << test.name;
}

class KeepsNan : public ::testing::TestWithParam<Case> {};

// NaN in the same places, infinities too, numbers nearly so. oneDNN's max pools start from the least number,
// as onnxruntime's do, and not from -infinity.
void expect_same(const graph::Tensor& got, const graph::Tensor& want, const Case& test) {
  const auto a = got.as<float>(), b = want.as<float>();
  ASSERT_EQ(a.size(), b.size());
  double largest = 0;
  for (const float y : b)
    if (std::isfinite(y)) largest = std::max(largest, std::abs(static_cast<double>(y)));
  for (std::size_t i = 0; i < b.size(); ++i) {
    const bool same = std::isnan(b[i])   ? std::isnan(a[i])
                      : std::isinf(b[i]) ? a[i] == b[i] || (test.infinity_or_nan && std::isnan(a[i])) ||
                                               (b[i] < 0 && a[i] == std::numeric_limits<float>::lowest())
                                         : std::abs(a[i] - b[i]) <= test.tolerance * largest;
    ASSERT_TRUE(same) << "element " << i << " is " << a[i] << ", and should be " << b[i];
  }
}

TEST_P(KeepsNan, InItsRowAndNowhereElse) {
  constexpr std::int64_t batch = 3, bad_row = 1;
  const Case& test = GetParam();
  const auto make = [&](std::int64_t n) {
    Random random(17);
    GraphMaker m;
    const auto x = m.input({n, 16, 9, 9});
    m.g.outputs = {test.make(m, random, x)};
    return std::move(m.g);
  };
  static const auto engine = make_cpu_engine({.threads = 2});
  const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = {batch}});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  const Plan& plan = *(*compiled)->plan(batch);
  std::string kernels;
  for (int k = 0; k < plan.kernels(); ++k) kernels += std::string(plan.kernel_name(k)) + "\n";
  SCOPED_TRACE(kernels);
  const Graph g = make(batch);
  const Buffers ordinary = random_inputs(g, 7);
  const Bound usual(**compiled, plan, ordinary);
  ASSERT_TRUE(plan.run({0, plan.kernels()}, usual.binding(), {}).has_value());
  const Buffers usual_want = reference(g, ordinary);
  expect_same(*usual.outputs()[0], *usual_want[0], test);

  for (const float value : {nan, infinity, -infinity}) {
    for (const bool everywhere : {false, true}) {
      SCOPED_TRACE(std::to_string(value) + (everywhere ? " everywhere" : " in one place"));
      Buffers inputs = random_inputs(g, 7);
      const std::size_t row = inputs[0]->as<float>().size() / batch;
      auto bad = inputs[0]->as<float>().subspan(bad_row * row, row);
      if (everywhere)
        std::ranges::fill(bad, value);
      else
        bad[3 * 81 + 4 * 9 + 4] = value;
      const Buffers want = reference(g, inputs);
      const Bound whole(**compiled, plan, inputs);
      ASSERT_TRUE(plan.run({0, plan.kernels()}, whole.binding(), {}).has_value());
      expect_same(*whole.outputs()[0], *want[0], test);
      const auto got = whole.outputs()[0]->as<float>(), before = usual.outputs()[0]->as<float>();
      const std::size_t size = got.size() / batch;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const bool same = got[i] == before[i] || std::isnan(before[i]);
        ASSERT_TRUE(i / size == bad_row || same) << "element " << i << ", of a row without it";
      }
      // The same from kernel to kernel, each twice.
      const Bound parts(**compiled, plan, inputs);
      for (int k = 0; k < plan.kernels(); ++k)
        for (int again = 0; again < 2; ++again)
          ASSERT_TRUE(plan.run({k, k + 1}, parts.binding(), {}).has_value());
      expect_same(*parts.outputs()[0], *whole.outputs()[0], {.name = {}, .make = {}, .tolerance = 0});
    }
  }
  // And gone with the run.
  ASSERT_TRUE(plan.run({0, plan.kernels()}, usual.binding(), {}).has_value());
  expect_same(*usual.outputs()[0], *usual_want[0], test);
}
INSTANTIATE_TEST_SUITE_P(Nan, KeepsNan, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

// Keys and values that come in, of which a step of attention makes far fewer products, show there that they
// had any, and are not read for it.
TEST(Nan, OfLargeInputsShowsInTheirProducts) {
  static const auto engine = make_cpu_engine({.threads = 2});
  constexpr std::int64_t batch = 2, heads = 2, length = 96, width = 32;
  const auto make = [](std::int64_t n) {
    GraphMaker m;
    const auto q = m.input({n, heads, 1, width}), k = m.input({n, heads, length, width}),
               v = m.input({n, heads, length, width}), more = m.input({n, heads, 1, width});
    const auto keys = m.node("Concat", {k, more}, {n, heads, length + 1, width}, {{"axis", std::int64_t{2}}});
    const auto turned = m.node("Transpose", {keys}, {n, heads, width, length + 1},
                               {{"perm", std::vector<std::int64_t>{0, 1, 3, 2}}});
    const auto values =
        m.node("Concat", {v, more}, {n, heads, length + 1, width}, {{"axis", std::int64_t{2}}});
    auto y = m.node("MatMul", {q, turned}, {n, heads, 1, length + 1});
    y = m.node("Softmax", {y}, {n, heads, 1, length + 1}, {{"axis", std::int64_t{3}}});
    y = m.node("MatMul", {y, values}, {n, heads, 1, width});
    m.g.outputs = {m.node("Relu", {y}, {n, heads, 1, width}), keys};
    return std::move(m.g);
  };
  const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = {batch}});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  const Plan& plan = *(*compiled)->plan(batch);
  const Graph g = make(batch);
  for (const std::size_t input : {0, 1, 2, 3})
    for (const float value : {0.0F, nan, infinity, -infinity, 1e30F}) {
      SCOPED_TRACE("input " + std::to_string(input) + " has " + std::to_string(value));
      Buffers inputs = random_inputs(g, 7);
      inputs[input]->as<float>()[5] = value;
      const Buffers want = reference(g, inputs);
      const Bound whole(**compiled, plan, inputs);
      ASSERT_TRUE(plan.run({0, plan.kernels()}, whole.binding(), {}).has_value());
      for (std::size_t o = 0; o < want.size(); ++o)
        expect_same(*whole.outputs()[o], *want[o], {.name = {}, .make = {}, .tolerance = 1e-5});
    }
}

// Nothing is added to a plan in which it cannot come to that.
TEST(Nan, CostsNothingWhereItCannotBeLost) {
  static const auto engine = make_cpu_engine({.threads = 2});
  const auto make = [](std::int64_t n) {
    Random random(17);
    GraphMaker m;
    m.g.outputs = {conv(m, random, m.input({n, 16, 9, 9}), 8, 3, 1,
                        {{.kind = PostOp::Kind::leaky_relu, .alpha = 0.1F}})};
    return std::move(m.g);
  };
  const auto compiled = engine->compile(MadeModel(make), {.batch_sizes = {2}});
  ASSERT_TRUE(compiled.has_value());
  const Plan& plan = *(*compiled)->plan(2);
  for (int k = 0; k < plan.kernels(); ++k)
    EXPECT_EQ(plan.kernel_name(k).find("NaN"), std::string_view::npos) << plan.kernel_name(k);
  EXPECT_FALSE((*compiled)->time_varies());
}

}  // namespace
}  // namespace carillon::engine
