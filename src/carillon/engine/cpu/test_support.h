#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/guards.h"
#include "carillon/graph/kernel.h"

// Graphs made by hand, the same graphs run by plain kernels, and the memory that a plan needs. For tests
// only.
namespace carillon::engine::testing {

using graph::Graph;
using graph::Node;
using graph::PostOp;
using graph::Shape;
using graph::TensorType;
using graph::ValueId;

inline graph::SharedTensor random_tensor(const Shape& shape, Random& random, float scale = 1) {
  auto tensor = std::make_shared<graph::Tensor>(TensorType{graph::DataType::f32, shape});
  for (float& x : tensor->as<float>()) x = static_cast<float>(random.normal()) * scale;
  return tensor;
}

// Adds values and nodes; shapes of results are given by the test.
struct GraphMaker {
  Graph g;

  ValueId value(Shape shape, graph::DataType type = graph::DataType::f32) {
    g.values.push_back(
        {.name = std::string("v").append(std::to_string(g.values.size())), .type = {type, std::move(shape)}});
    return {static_cast<std::uint32_t>(g.values.size() - 1)};
  }
  ValueId input(Shape shape) {
    g.inputs.push_back(value(std::move(shape)));
    return g.inputs.back();
  }
  ValueId constant(graph::SharedTensor tensor) {
    const ValueId id = value(tensor->type().shape, tensor->type().type);
    g.value(id).constant = std::move(tensor);
    return id;
  }
  ValueId node(std::string op, std::vector<ValueId> inputs, Shape result,
               std::map<std::string, graph::Attribute, std::less<>> attributes = {},
               std::vector<PostOp> post_ops = {}) {
    const ValueId out = value(std::move(result));
    g.nodes.push_back({.name = op + "_" + std::to_string(g.nodes.size()),
                       .op = std::move(op),
                       .inputs = std::move(inputs),
                       .outputs = {out},
                       .attributes = std::move(attributes),
                       .post_ops = std::move(post_ops)});
    return out;
  }
  const Shape& shape(ValueId id) const { return g.value(id).type.shape; }
};

using Attributes = std::map<std::string, graph::Attribute, std::less<>>;
inline Attributes window(std::int64_t kernel, std::int64_t stride, std::int64_t pad,
                         std::int64_t dilation = 1) {
  using V = std::vector<std::int64_t>;
  return {{"kernel_shape", V{kernel, kernel}},
          {"strides", V{stride, stride}},
          {"dilations", V{dilation, dilation}},
          {"pads", V{pad, pad, pad, pad}}};
}

// A model whose graph at a batch size is what `make` says; every input and output has a batch in front.
class MadeModel final : public graph::Model {
 public:
  explicit MadeModel(std::function<Graph(std::int64_t)> make) : make_(std::move(make)) {
    const Graph one = make_(1);
    const auto spec = [&](ValueId id) {
      graph::TensorSpec made{one.value(id).name, one.value(id).type.type, one.value(id).type.shape};
      made.shape.front() = graph::batch_dimension;
      return made;
    };
    for (const auto id : one.inputs) inputs_.push_back(spec(id));
    for (const auto id : one.outputs) outputs_.push_back(spec(id));
  }
  const std::string& name() const override { return name_; }
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  bool batched() const override { return true; }
  Result<Graph> specialize(std::int64_t batch, std::int64_t) const override { return make_(batch); }

 private:
  std::function<Graph(std::int64_t)> make_;
  std::string name_ = "made";
  std::vector<graph::TensorSpec> inputs_, outputs_;
};

using Buffers = std::vector<std::shared_ptr<graph::Tensor>>;

inline Buffers random_inputs(const Graph& g, std::uint64_t seed) {
  Random random(seed);
  Buffers made;
  for (const auto id : g.inputs) {
    made.push_back(std::make_shared<graph::Tensor>(g.value(id).type));
    if (g.value(id).type.type != graph::DataType::f32) continue;  // zeros
    for (float& x : made.back()->as<float>()) x = static_cast<float>(random.normal());
  }
  return made;
}

// What plain kernels make of the graph, node by node, each value in memory of its own; what is not made is
// filled with ones.
inline Buffers reference(const Graph& g, const Buffers& inputs) {
  Buffers values(g.values.size());
  for (std::size_t i = 0; i < g.values.size(); ++i) {
    values[i] = std::make_shared<graph::Tensor>(g.values[i].type);
    if (g.values[i].constant) std::ranges::copy(g.values[i].constant->bytes(), values[i]->bytes().begin());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) values[g.inputs[i].index()] = inputs[i];
  const auto is_true = [&](ValueId id) { return values[id.index()]->bytes()[0] != std::byte{0}; };
  for (const Node& node : g.nodes) {
    if (!graph::holds(g.guards, node.guard, is_true)) {
      for (const auto id : node.outputs)
        if (id != graph::no_value) std::ranges::fill(values[id.index()]->bytes(), std::byte{0xff});
      continue;
    }
    std::vector<const TensorType*> types;
    std::vector<graph::ConstView> in, extra;
    std::vector<graph::MutableView> out;
    for (const auto id : node.inputs) {
      if (id == graph::no_value) {
        types.push_back(nullptr);
        in.emplace_back();
        continue;
      }
      types.push_back(&g.value(id).type);
      in.push_back({types.back(), values[id.index()]->bytes().data()});
    }
    for (const auto id : node.outputs)
      out.push_back(id == graph::no_value
                        ? graph::MutableView{}
                        : graph::MutableView{&g.value(id).type, values[id.index()]->bytes().data()});
    for (const auto& op : node.post_ops)
      extra.push_back(
          op.operand == graph::no_value
              ? graph::ConstView{}
              : graph::ConstView{&g.value(op.operand).type, values[op.operand.index()]->bytes().data()});
    const auto kernel = graph::find_plain_kernel(node, types);
    CARILLON_ASSERT(kernel != nullptr);
    CARILLON_ASSERT(kernel(node, in, out).has_value());
    if (!node.post_ops.empty()) graph::apply_post_ops(node, extra, out.front());
  }
  Buffers outputs;
  for (const auto id : g.outputs) outputs.push_back(values[id.index()]);
  return outputs;
}

// The memory of one plan: workspace and outputs start as NaNs, so that reading what nobody wrote shows.
class Bound {
 public:
  Bound(const CompiledModel& model, const Plan& plan, Buffers inputs, Team* team = nullptr)
      : inputs_(std::move(inputs)), state_(plan.make_state(team)) {
    weights_ = block(model.weights().count);
    CARILLON_ASSERT(model.write_weights(0, weights_->bytes().first(model.weights().count)).has_value());
    workspace_ = block(plan.workspace().count);
    std::memset(workspace_->bytes().data(), 0xff, workspace_->bytes().size());
    for (const auto& input : inputs_) input_pointers_.push_back(input->bytes().data());
    for (const auto& spec : plan.outputs()) {
      outputs_.push_back(std::make_shared<graph::Tensor>(TensorType{spec.type, spec.shape}));
      std::memset(outputs_.back()->bytes().data(), 0xff, outputs_.back()->bytes().size());
      output_pointers_.push_back(outputs_.back()->bytes().data());
    }
  }
  Binding binding() const {
    return {.inputs = input_pointers_,
            .outputs = output_pointers_,
            .workspace = workspace_->bytes().data(),
            .weights = weights_->bytes().data(),
            .state = state_.get()};
  }
  const Buffers& outputs() const { return outputs_; }

 private:
  static std::shared_ptr<graph::Tensor> block(std::uint64_t size) {
    return std::make_shared<graph::Tensor>(
        TensorType{graph::DataType::u8, {static_cast<std::int64_t>(std::max<std::uint64_t>(size, 64))}});
  }
  Buffers inputs_, outputs_;
  std::shared_ptr<graph::Tensor> weights_, workspace_;
  std::unique_ptr<RunState> state_;
  std::vector<const std::byte*> input_pointers_;
  std::vector<std::byte*> output_pointers_;
};

// Largest difference over the largest value wanted; NaN where a NaN is in the way.
inline double relative_error(const graph::Tensor& got, const graph::Tensor& want) {
  double difference = 0, largest = 0;
  const auto a = got.as<float>(), b = want.as<float>();
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (std::isnan(d)) return d;
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return largest == 0 ? difference : difference / largest;
}

}  // namespace carillon::engine::testing
