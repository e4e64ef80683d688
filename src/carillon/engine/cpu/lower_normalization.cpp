#include <algorithm>
#include <functional>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

namespace {

constexpr auto inference = dnnl::prop_kind::forward_inference;
using Flags = dnnl::normalization_flags;

std::int64_t positive_axis(std::int64_t axis, std::size_t rank) {
  return axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis;
}

// A vector of `size` floats, constant or not, as oneDNN takes scales and shifts.
bool is_vector(PlanBuilder& builder, graph::ValueId id, std::int64_t size) {
  return builder.is_real(id) && builder.type(id).elements() == size;
}

Operand vector_of(PlanBuilder& builder, graph::ValueId id) {
  Operand operand = builder.row_major(id);
  operand.desc = row_major(Dims{builder.type(id).elements()}, DnnlType::f32);
  return operand;
}

bool lower_batch_norm(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  const graph::Shape& x = builder.shape(input);
  if (x.size() < 2 || x.size() > 5 || node.inputs.size() != 5 || node.integer("training_mode", 0) != 0)
    return false;
  for (std::size_t i = 1; i < 5; ++i)
    if (!is_vector(builder, node.inputs[i], x[1])) return false;
  const bool relu = !node.post_ops.empty() && node.post_ops[0].kind == graph::PostOp::Kind::relu;
  const Operand source = builder.dense(input);
  using NormalizationDesc = dnnl::batch_normalization_forward::primitive_desc;
  const auto make = [&](bool with_relu) {
    Flags flags = Flags::use_global_stats | Flags::use_scale | Flags::use_shift;
    if (with_relu) flags = flags | Flags::fuse_norm_relu;
    return NormalizationDesc(builder.engine(), inference, source.desc, source.desc,
                             node.real("epsilon", 1e-5F), flags, PlanBuilder::attributes());
  };
  const std::size_t done = relu ? 1 : 0;
  const bool whole = node.post_ops.size() == done;
  const Operand result = whole ? builder.define(output, source.desc) : builder.temporary(source.desc);
  const PlanBuilder::Arguments arguments{{DNNL_ARG_SRC, source},
                                         {DNNL_ARG_SCALE, vector_of(builder, node.inputs[1])},
                                         {DNNL_ARG_SHIFT, vector_of(builder, node.inputs[2])},
                                         {DNNL_ARG_MEAN, vector_of(builder, node.inputs[3])},
                                         {DNNL_ARG_VARIANCE, vector_of(builder, node.inputs[4])},
                                         {DNNL_ARG_DST, result}};
  const auto emit = [&](bool with_relu) {
    const NormalizationDesc desc = make(with_relu);
    builder.emit(node.name, desc, dnnl::batch_normalization_forward(desc), arguments);
  };
  // The ReLU that is in it, and no other post-op.
  emit_keeping_nan(
      builder, node, {.first = builder.keeps_nan() ? 0 : done, .last = done}, result, [&] { emit(relu); },
      [&] { emit(false); });
  if (!whole) apply_separately(builder, node, done, result);
  return true;
}

bool lower_layer_norm(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  const graph::Shape& x = builder.shape(input);
  if (x.empty()) return false;
  for (std::size_t i = 1; i < node.outputs.size(); ++i)
    if (node.outputs[i] != graph::no_value) return false;  // mean and deviation
  const std::int64_t axis = positive_axis(node.integer("axis", -1), x.size());
  std::int64_t rows = 1, columns = 1;
  for (std::size_t i = 0; i < x.size(); ++i) (static_cast<std::int64_t>(i) < axis ? rows : columns) *= x[i];
  const auto scale = node.inputs[1];
  const auto shift = node.inputs.size() > 2 ? node.inputs[2] : graph::no_value;
  if (!is_vector(builder, scale, columns)) return false;
  if (shift != graph::no_value && !is_vector(builder, shift, columns)) return false;
  Flags flags = Flags::use_scale;
  if (shift != graph::no_value) flags = flags | Flags::use_shift;

  const DnnlType type = builder.current_type(input);
  Operand source = builder.in_layout(input, row_major(x, type));
  source.desc = row_major(Dims{rows, columns}, type);
  const dnnl::layer_normalization_forward::primitive_desc desc(builder.engine(), inference, source.desc,
                                                               source.desc, node.real("epsilon", 1e-5F),
                                                               flags, PlanBuilder::attributes());
  const dnnl::layer_normalization_forward primitive(desc);
  const bool whole = node.post_ops.empty();
  const Operand result =
      whole ? builder.define(output, row_major(x, type)) : builder.temporary(row_major(x, type));
  Operand flat = result;
  flat.desc = source.desc;
  PlanBuilder::Arguments arguments{
      {DNNL_ARG_SRC, source}, {DNNL_ARG_SCALE, vector_of(builder, scale)}, {DNNL_ARG_DST, flat}};
  if (shift != graph::no_value) arguments.emplace_back(DNNL_ARG_SHIFT, vector_of(builder, shift));
  builder.emit(node.name, desc, primitive, arguments);
  if (!whole) apply_separately(builder, node, 0, result);
  return true;
}

bool lower_lrn(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0];
  if (builder.shape(input).size() < 3 || builder.shape(input).size() > 5 || !node.post_ops.empty())
    return false;
  // Of a window of an even size ONNX has one channel more behind than before, oneDNN as many.
  if (node.integer("size", 1) % 2 == 0) return false;
  const Operand source = builder.dense(input);
  const auto make = [&] {
    return dnnl::lrn_forward::primitive_desc(
        builder.engine(), inference, dnnl::algorithm::lrn_across_channels, source.desc, source.desc,
        node.integer("size", 1), node.real("alpha", 1e-4F), node.real("beta", 0.75F), node.real("bias", 1),
        PlanBuilder::attributes());
  };
  const dnnl::lrn_forward::primitive_desc desc = make();
  const dnnl::lrn_forward primitive(desc);
  const Operand result = builder.define(node.outputs[0], source.desc);
  builder.emit(node.name, desc, primitive,
               PlanBuilder::Arguments{{DNNL_ARG_SRC, source}, {DNNL_ARG_DST, result}}, make);
  return true;
}

bool lower_softmax(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0];
  const graph::Shape& x = builder.shape(input);
  if (x.empty() || !node.post_ops.empty()) return false;
  const auto axis = static_cast<std::size_t>(positive_axis(node.integer("axis", -1), x.size()));
  const DnnlType type = builder.current_type(input);
  // oneDNN is fast along what lies together: rows of a matrix. A convolution behind it wants no other layout.
  const Desc layout = innermost(with_rank(x, x.size()), type, axis);
  const std::int64_t extent = x[axis], rows = builder.type(input).elements() / extent;
  const Desc matrix = row_major(Dims{rows, extent}, type);
  Operand source = builder.in_layout(input, layout);
  source.desc = matrix;
  const dnnl::softmax_forward::primitive_desc desc(
      builder.engine(), inference,
      node.op == "LogSoftmax" ? dnnl::algorithm::softmax_log : dnnl::algorithm::softmax_accurate, matrix,
      matrix, 1, PlanBuilder::attributes());
  const dnnl::softmax_forward primitive(desc);
  Operand result = builder.define(node.outputs[0], layout);
  result.desc = matrix;
  builder.emit(node.name, desc, primitive,
               PlanBuilder::Arguments{{DNNL_ARG_SRC, source}, {DNNL_ARG_DST, result}});
  if (builder.keeps_nan())
    spread_nan(builder, node.name,
               std::make_unique<SoftmaxNanKernel>(elements_of(matrix).type, rows, extent, /*inner=*/1),
               source, result);
  return true;
}

}  // namespace

bool lower_normalization(PlanBuilder& builder, const graph::Node& node) {
  if (!builder.is_real(node.inputs[0]) || !builder.is_real(node.outputs[0])) return false;
  if (builder.is_constant(node.inputs[0])) return false;
  if (node.op == "BatchNormalization") return lower_batch_norm(builder, node);
  if (node.op == "LayerNormalization") return lower_layer_norm(builder, node);
  if (node.op == "LRN") return lower_lrn(builder, node);
  return lower_softmax(builder, node);
}

}  // namespace carillon::engine::cpu
