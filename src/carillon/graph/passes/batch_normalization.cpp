#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

// What is done to each channel after the weights: y * scale + shift, from constants.
struct Affine {
  enum class Kind : std::uint8_t { batch_normalization, multiply, add } kind{};
  std::vector<SharedTensor> parameters;
  float epsilon = 0;

  double scale(std::size_t c) const {
    if (kind == Kind::add) return 1;
    const double gain = at(0, c);
    return kind == Kind::multiply ? gain : gain / std::sqrt(at(3, c) + static_cast<double>(epsilon));
  }
  double shift(std::size_t c) const {
    if (kind == Kind::multiply) return 0;
    return kind == Kind::add ? at(0, c) : at(1, c) - at(2, c) * scale(c);
  }

 private:
  double at(std::size_t parameter, std::size_t c) const {
    const auto values = parameters[parameter]->as<float>();
    return static_cast<double>(values.size() == 1 ? values[0] : values[c]);
  }
};

bool is_float_constant(const Graph& graph, ValueId id) {
  return graph.is_constant(id) && graph.value(id).type.type == DataType::f32;
}

// Whether a constant of shape `from` is one number, or one a channel (dimension 1) of `to`.
bool is_by_channel(const Shape& from, const Shape& to) {
  if (from.size() > to.size() || to.size() < 2) return false;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::size_t dimension = to.size() - from.size() + i;
    if (from[i] != 1 && (dimension != 1 || from[i] != to[1])) return false;
  }
  return true;
}

std::optional<Affine> read_affine(const Editor& editor, const Graph& graph, const Node& node,
                                  std::size_t& operand) {
  Affine affine;
  operand = 0;
  if (node.op == "BatchNormalization") {
    affine.kind = Affine::Kind::batch_normalization;
    affine.epsilon = node.real("epsilon", 1e-5F);
    for (std::size_t i = 1; i < 5; ++i) {
      if (!is_float_constant(graph, node.inputs[i])) return std::nullopt;
      affine.parameters.push_back(graph.value(node.inputs[i]).constant);
    }
    return affine;
  }
  if (node.op != "Mul" && node.op != "Add") return std::nullopt;
  affine.kind = node.op == "Mul" ? Affine::Kind::multiply : Affine::Kind::add;
  operand = graph.is_constant(node.inputs[0]) ? 1 : 0;
  const ValueId constant = node.inputs[1 - operand];
  const TensorType& type = editor.type(node.outputs[0]);
  if (!is_float_constant(graph, constant) || editor.type(node.inputs[operand]) != type ||
      !is_by_channel(editor.type(constant).shape, type.shape))
    return std::nullopt;
  affine.parameters.push_back(graph.value(constant).constant);
  return affine;
}

// The output channel that element `i` of the weights belongs to.
class ChannelOf {
 public:
  ChannelOf(const Node& node, const Shape& weight, std::int64_t channels) {
    const auto all =
        static_cast<std::size_t>(std::max<std::int64_t>(1, TensorType{DataType::f32, weight}.elements()));
    channels_ = static_cast<std::size_t>(channels);
    if (node.op == "ConvTranspose") {
      const auto group = static_cast<std::size_t>(node.integer("group", 1));
      per_group_ = static_cast<std::size_t>(weight[1]);
      rows_per_group_ = std::max<std::size_t>(1, static_cast<std::size_t>(weight[0]) / group);
      inner_ = all / std::max<std::size_t>(1, static_cast<std::size_t>(weight[0] * weight[1]));
      kind_ = 1;
    } else if (node.op == "Gemm" && node.integer("transB", 0) == 0) {
      kind_ = 2;
    } else {
      inner_ = std::max<std::size_t>(1, all / channels_);
    }
  }
  std::size_t operator()(std::size_t i) const {
    if (kind_ == 2) return i % channels_;
    if (kind_ == 0) return i / inner_;
    const std::size_t row = i / inner_ / per_group_;
    return row / rows_per_group_ * per_group_ + i / inner_ % per_group_;
  }

 private:
  int kind_ = 0;
  std::size_t channels_ = 1, inner_ = 1, per_group_ = 1, rows_per_group_ = 1;
};

// The bias of `node` where it is absent or a constant by channel.
bool bias_fits(const Graph& graph, const Node& node, std::int64_t channels) {
  if (node.inputs.size() < 3 || node.inputs[2] == no_value) return true;
  if (!is_float_constant(graph, node.inputs[2])) return false;
  const Shape& shape = graph.value(node.inputs[2]).type.shape;
  const std::int64_t count = graph.value(node.inputs[2]).type.elements();
  return count == 1 || (count == channels && !shape.empty() && shape.back() == channels);
}

Result<bool> fold_into(Editor& editor, Folder& folder, std::size_t index, const Affine& affine,
                       std::size_t operand) {
  Graph& graph = editor.graph();
  const Node& node = editor.node(index);
  const ValueId between = node.inputs[operand];
  const std::int64_t made = editor.maker(between);
  if (made < 0 || editor.uses(between) != 1 || editor.type(between).shape.size() < 2) return false;
  Node maker = editor.node(static_cast<std::size_t>(made));
  if ((maker.op != "Conv" && maker.op != "ConvTranspose" && maker.op != "Gemm") || !maker.post_ops.empty())
    return false;
  const std::int64_t channels = editor.type(between).shape[1];
  const ValueId weight = maker.inputs[1];
  if (!is_float_constant(graph, weight) || channels < 1 || !bias_fits(graph, maker, channels)) return false;

  const bool has_bias = maker.inputs.size() > 2 && maker.inputs[2] != no_value;
  const SharedTensor weights = graph.value(weight).constant;
  const SharedTensor bias = has_bias ? graph.value(maker.inputs[2]).constant : nullptr;
  const bool gemm = maker.op == "Gemm";
  const double beta = gemm ? static_cast<double>(maker.real("beta", 1)) : 1;
  const bool scales = affine.kind != Affine::Kind::add;

  ConstantStore::Tensors inputs{weights, bias};
  inputs.insert(inputs.end(), affine.parameters.begin(), affine.parameters.end());
  std::vector<TensorType> types{{DataType::f32, {channels}}};
  if (scales) types.push_back(weights->type());
  std::string what = "affine " + std::to_string(static_cast<int>(affine.kind)) + " " +
                     std::to_string(std::bit_cast<std::uint32_t>(affine.epsilon)) + " ";
  Node key = maker;
  key.inputs.clear();
  what += signature(key);
  auto folded = folder.derive(what, inputs, types, [&](std::span<Tensor> out) -> Result<> {
    const auto to = out[0].as<float>();
    for (std::size_t c = 0; c < to.size(); ++c) {
      double value = 0;
      if (bias != nullptr)
        value = beta * static_cast<double>(bias->as<float>()[bias->as<float>().size() == 1 ? 0 : c]);
      to[c] = static_cast<float>(value * affine.scale(c) + affine.shift(c));
    }
    if (!scales) return {};
    std::vector<double> scale(to.size());
    for (std::size_t c = 0; c < scale.size(); ++c) scale[c] = affine.scale(c);
    const ChannelOf channel_of(maker, weights->type().shape, channels);
    const auto from = weights->as<float>();
    const auto scaled = out[1].as<float>();
    for (std::size_t i = 0; i < from.size(); ++i)
      scaled[i] = static_cast<float>(static_cast<double>(from[i]) * scale[channel_of(i)]);
    return {};
  });
  // Where the budget does not allow it, the operator simply stays.
  if (!folded) return false;
  maker.inputs.resize(3, no_value);
  maker.inputs[2] = editor.add_value(maker.name + ".bias", types[0], (*folded)[0]);
  if (scales) maker.inputs[1] = editor.add_value(maker.name + ".weight", types[1], (*folded)[1]);
  if (gemm) maker.attributes.insert_or_assign("beta", Attribute{1.0F});
  editor.replace(index, std::move(maker));
  return true;
}

}  // namespace

Result<> fold_batch_normalization(Graph& graph, Folder& folder) {
  Editor editor(graph);
  for (std::size_t i = 0; i < editor.nodes(); ++i) {
    if (!editor.alive(i) || !editor.node(i).post_ops.empty()) continue;
    std::size_t operand = 0;
    const auto affine = read_affine(editor, graph, editor.node(i), operand);
    if (!affine) continue;
    if (auto done = fold_into(editor, folder, i, *affine, operand); !done)
      return std::unexpected(done.error());
  }
  editor.finish();
  return {};
}

}  // namespace carillon::graph
