#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/cuda/library/library.h"

// Small networks as the known ones are built, and how near to a reference their outputs are.
namespace carillon::engine::cuda::testing::networks {

using engine::testing::Attributes;
using engine::testing::GraphMaker;
using engine::testing::random_tensor;
using engine::testing::window;
using graph::PostOp;
using graph::ValueId;
using V = std::vector<std::int64_t>;

inline const PostOp relu{.kind = PostOp::Kind::relu};
inline PostOp add(ValueId id) {
  return {.kind = PostOp::Kind::add, .operand = id};
}

// Appends layers whose weights are random by a seed.
class Net : public GraphMaker {
 public:
  explicit Net(std::uint64_t seed) : random_(seed) {}

  ValueId conv(ValueId x, std::int64_t filters, std::int64_t kernel, std::int64_t stride = 1,
               std::int64_t groups = 1, std::vector<PostOp> post_ops = {}, bool bias = true) {
    const graph::Shape in = shape(x);
    const std::int64_t inner = in[1] / groups, pad = kernel / 2;
    const auto extent = [&](std::int64_t e) { return (e + 2 * pad - kernel) / stride + 1; };
    std::vector<ValueId> inputs{
        x, constant(random_tensor({filters, inner, kernel, kernel}, random_,
                                  1 / std::sqrt(static_cast<float>(inner * kernel * kernel))))};
    if (bias) inputs.push_back(constant(random_tensor({filters}, random_)));
    Attributes attributes = window(kernel, stride, pad);
    attributes["group"] = groups;
    return node("Conv", inputs, {in[0], filters, extent(in[2]), extent(in[3])}, attributes,
                std::move(post_ops));
  }
  ValueId pool(const char* op, ValueId x, std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
    const graph::Shape in = shape(x);
    const auto extent = [&](std::int64_t e) { return (e + 2 * pad - kernel) / stride + 1; };
    return node(op, {x}, {in[0], in[1], extent(in[2]), extent(in[3])}, window(kernel, stride, pad));
  }
  ValueId same(const char* op, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return node(op, inputs, shape(inputs[0]), std::move(attributes));
  }
  ValueId concat(std::vector<ValueId> inputs, std::int64_t axis) {
    graph::Shape out = shape(inputs[0]);
    for (std::size_t i = 1; i < inputs.size(); ++i)
      out[static_cast<std::size_t>(axis)] += shape(inputs[i])[static_cast<std::size_t>(axis)];
    return node("Concat", std::move(inputs), out, {{"axis", axis}});
  }
  ValueId transpose(ValueId x, V order) {
    graph::Shape out;
    for (const std::int64_t i : order) out.push_back(shape(x)[static_cast<std::size_t>(i)]);
    return node("Transpose", {x}, out, {{"perm", std::move(order)}});
  }
  ValueId random_constant(const graph::Shape& of, float scale = 1) {
    return constant(random_tensor(of, random_, scale));
  }
  ValueId integers(V values) {
    return constant(std::make_shared<graph::Tensor>(
        graph::Tensor::of_i64({static_cast<std::int64_t>(values.size())}, values)));
  }
  Random& random() { return random_; }
  engine::testing::Graph finish(std::vector<ValueId> outputs) {
    g.outputs = std::move(outputs);
    return std::move(g);
  }

 private:
  Random random_;
};

using Make = std::function<engine::testing::Graph(std::int64_t batch)>;

inline engine::testing::Graph layers(std::int64_t batch) {
  Net m(5);
  auto x = m.input({batch, 40});
  for (int layer = 0; layer < 6; ++layer)
    x = m.same("Tanh", {m.node("MatMul", {x, m.random_constant({40, 40}, 0.2F)}, {batch, 40})});
  return m.finish({x});
}

// As in ResNet: a shortcut that is added before the ReLU.
inline engine::testing::Graph residual(std::int64_t batch) {
  Net m(1);
  const auto x = m.input({batch, 3, 13, 9});
  auto y = m.pool("MaxPool", m.conv(x, 16, 3, 2, 1, {relu}), 3, 2, 1);
  const auto inside = m.conv(y, 16, 3, 1, 1, {relu});
  y = m.conv(inside, 16, 3, 1, 1, {add(y), relu});
  const auto pooled = m.node("GlobalAveragePool", {y}, {batch, 16, 1, 1});
  const auto flat = m.node("Reshape", {pooled}, {batch, 16});
  return m.finish({m.node("Gemm", {flat, m.random_constant({10, 16}), m.random_constant({10})}, {batch, 10},
                          {{"transB", std::int64_t{1}}})});
}

// As in DenseNet: each layer reads all before it.
inline engine::testing::Graph dense_block(std::int64_t batch) {
  Net m(2);
  std::vector<ValueId> parts{m.conv(m.input({batch, 3, 8, 8}), 8, 3)};
  for (int layer = 0; layer < 4; ++layer) {
    const auto whole = parts.size() == 1 ? parts[0] : m.concat(parts, 1);
    const std::int64_t channels = m.shape(whole)[1];
    std::vector<ValueId> norm{whole};
    for (int i = 0; i < 3; ++i) norm.push_back(m.random_constant({channels}));
    auto variance = random_tensor({channels}, m.random());
    for (float& each : const_cast<graph::Tensor&>(*variance).as<float>()) each = 0.5F + each * each;
    norm.push_back(m.constant(std::move(variance)));
    const auto normed = m.node("BatchNormalization", norm, m.shape(whole), {}, {relu});
    parts.push_back(m.conv(m.conv(normed, 16, 1, 1, 1, {relu}), 4, 3, 1, 1, {}, false));
  }
  return m.finish({m.node("ReduceMean", {m.concat(parts, 1), m.integers({2, 3})}, {batch, 24},
                          {{"keepdims", std::int64_t{0}}})});
}

// As in MobileNet: depthwise between pointwise, up to 6, and a gate of the whole image.
inline engine::testing::Graph inverted(std::int64_t batch) {
  Net m(3);
  const PostOp six{.kind = PostOp::Kind::clip, .alpha = 0, .beta = 6};
  const auto x = m.conv(m.input({batch, 4, 10, 12}), 8, 1);
  auto y = m.conv(x, 24, 1, 1, 1, {six});
  y = m.conv(y, 24, 3, 1, 24, {six});
  auto gate =
      m.node("ReduceMean", {y, m.integers({2, 3})}, {batch, 24, 1, 1}, {{"keepdims", std::int64_t{1}}});
  gate = m.conv(m.conv(gate, 6, 1, 1, 1, {{.kind = PostOp::Kind::silu}}), 24, 1, 1, 1,
                {{.kind = PostOp::Kind::sigmoid}});
  y = m.node("Mul", {y, gate}, m.shape(y));
  y = m.conv(y, 8, 1, 1, 1, {add(x)});
  y = m.conv(y, 16, 3, 2, 2, {{.kind = PostOp::Kind::leaky_relu, .alpha = 0.1F}});
  return m.finish({m.pool("AveragePool", y, 2, 2, 0)});
}

// As in BERT: attention with a mask, and a feed-forward layer.
inline engine::testing::Graph encoder(std::int64_t batch) {
  Net m(4);
  const std::int64_t length = 7, heads = 3, size = 8, width = heads * size;
  const auto x = m.input({batch, length, width});
  const auto mask = m.input({batch, 1, 1, length});
  const auto project = [&](ValueId of) {
    return m.node("MatMul", {of, m.random_constant({width, width}, 0.2F)}, {batch, length, width}, {},
                  {add(m.random_constant({width}))});
  };
  const auto split = [&](ValueId of, V order) {
    return m.transpose(m.node("Reshape", {of}, {batch, length, heads, size}), std::move(order));
  };
  const auto q = split(project(x), {0, 2, 1, 3}), k = split(project(x), {0, 2, 3, 1}),
             v = split(project(x), {0, 2, 1, 3});
  const auto scores = m.node("MatMul", {q, k}, {batch, heads, length, length}, {},
                             {{.kind = PostOp::Kind::linear, .alpha = 0.35F}, add(mask)});
  const auto weights = m.same("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  const auto mixed = m.transpose(m.node("MatMul", {weights, v}, {batch, heads, length, size}), {0, 2, 1, 3});
  auto y = project(m.node("Reshape", {mixed}, {batch, length, width}));
  y = m.node("Add", {y, x}, m.shape(x));
  const auto norm = [&](ValueId of) {
    return m.node("LayerNormalization", {of, m.random_constant({width}), m.random_constant({width})},
                  m.shape(of), {{"axis", std::int64_t{-1}}});
  };
  y = norm(y);
  const auto up =
      m.node("MatMul", {y, m.random_constant({width, 2 * width}, 0.2F)}, {batch, length, 2 * width}, {},
             {add(m.random_constant({2 * width})), {.kind = PostOp::Kind::gelu_erf}});
  const auto down = m.node("MatMul", {up, m.random_constant({2 * width, width}, 0.2F)},
                           {batch, length, width}, {}, {add(m.random_constant({width})), add(y)});
  return m.finish({norm(down)});
}

// Views of views: parts, turned, joined along other axes, repeated.
inline engine::testing::Graph views(std::int64_t batch) {
  Net m(6);
  const auto x = m.input({batch, 6, 5, 4});
  const auto turned = m.transpose(x, {0, 3, 1, 2});  // batch, 4, 6, 5
  const auto part = m.node(
      "Slice", {turned, m.integers({1, 0}), m.integers({4, 6}), m.integers({1, 2}), m.integers({1, 2})},
      {batch, 3, 3, 5});
  const auto soft = m.same("Softmax", {part}, {{"axis", std::int64_t{1}}});
  const auto joined = m.concat({part, soft, part}, 2);  // batch, 3, 9, 5
  const auto flat = m.node("Reshape", {joined}, {batch, 27, 5});
  const auto row = m.node("Slice", {flat, m.integers({3}), m.integers({4}), m.integers({1})}, {batch, 1, 5});
  const auto sum = m.node("Add", {flat, row}, {batch, 27, 5});
  const auto more = m.node("Max", {sum, m.random_constant({27, 1}), m.random_constant({5})}, {batch, 27, 5});
  const auto exponent = m.same("LogSoftmax", {more}, {{"axis", std::int64_t{1}}});
  return m.finish(
      {m.node("ReduceMax", {exponent, m.integers({1})}, {batch, 5}, {{"keepdims", std::int64_t{0}}}), sum,
       turned});
}

inline double apart(const graph::Tensor& want, const std::vector<std::byte>& got) {
  const auto wanted = want.as<float>();
  double most = 1e-6, worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    float value = 0;
    std::memcpy(&value, got.data() + i * sizeof value, sizeof value);
    most = std::max(most, std::abs(static_cast<double>(wanted[i])));
    worst =
        std::isfinite(value) ? std::max(worst, std::abs(static_cast<double>(wanted[i]) - value)) : INFINITY;
  }
  return worst / most;
}

inline double allowed(Number number) {
  return number == Number::f32 || number == Number::tf32 ? 1e-4 : 3e-2;
}

}  // namespace carillon::engine::cuda::testing::networks
