#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/eltwise.h"
#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

using graph::PostOp;

Eltwise eltwise_of(const PostOp& op) {
  using Algorithm = dnnl::algorithm;
  switch (op.kind) {
    case PostOp::Kind::relu:
      return {Algorithm::eltwise_relu};
    case PostOp::Kind::leaky_relu:
      return {Algorithm::eltwise_relu, op.alpha};
    case PostOp::Kind::clip:
      return {Algorithm::eltwise_clip, op.alpha, op.beta};
    case PostOp::Kind::sigmoid:
      return {Algorithm::eltwise_logistic};
    case PostOp::Kind::tanh:
      return {Algorithm::eltwise_tanh};
    case PostOp::Kind::elu:
      return {Algorithm::eltwise_elu, op.alpha};
    case PostOp::Kind::gelu_erf:
      return {Algorithm::eltwise_gelu_erf};
    case PostOp::Kind::gelu_tanh:
      return {Algorithm::eltwise_gelu_tanh};
    case PostOp::Kind::hard_sigmoid:
      return {Algorithm::eltwise_hardsigmoid, op.alpha, op.beta};
    case PostOp::Kind::hard_swish:
      return {Algorithm::eltwise_hardswish, 1.0F / 6, 0.5F};
    case PostOp::Kind::silu:
      return {Algorithm::eltwise_swish, 1};
    case PostOp::Kind::linear:
      return {Algorithm::eltwise_linear, op.alpha, op.beta};
    case PostOp::Kind::add:
    case PostOp::Kind::mul:
    case PostOp::Kind::at_most:
    case PostOp::Kind::at_least:
      break;
  }
  CARILLON_ASSERT(!"those that have operands are binary");
  return {};
}

namespace {

// oneDNN's min and max give their second operand where the first is NaN, as at_most and at_least have it.
bool bounds(const PostOp& op) {
  return op.kind == PostOp::Kind::at_most || op.kind == PostOp::Kind::at_least;
}
dnnl::algorithm binary_of(const PostOp& op) {
  return op.kind == PostOp::Kind::add       ? dnnl::algorithm::binary_add
         : op.kind == PostOp::Kind::mul     ? dnnl::algorithm::binary_mul
         : op.kind == PostOp::Kind::at_most ? dnnl::algorithm::binary_min
                                            : dnnl::algorithm::binary_max;
}
std::string_view plain_name_of(const PostOp& op) {
  return op.kind == PostOp::Kind::add       ? "Add"
         : op.kind == PostOp::Kind::mul     ? "Mul"
         : op.kind == PostOp::Kind::at_most ? "AtMost"
                                            : "AtLeast";
}

// The operand of a binary post-op as a tensor that broadcasts to `dims`; an empty descriptor: it cannot be.
Operand operand_for(PlanBuilder& builder, const graph::Node& node, graph::ValueId id, const Dims& dims) {
  const graph::Shape& full = builder.shape(node.outputs.front());
  const graph::Shape& shape = builder.shape(id);
  if (!builder.is_real(id) || shape.size() > full.size()) return {};
  Operand operand = builder.dense(id);
  const bool flattened = !std::ranges::equal(dims, full) && !(full.empty() && dims == Dims{1});
  if (!flattened) {
    operand.desc = reshaped(operand.desc, with_rank(shape, dims.size()));
    return operand;
  }
  // The result is seen as rows of the last dimension.
  if (dims.size() != 2) return {};
  const std::int64_t elements = builder.type(id).elements();
  Dims seen;
  if (elements == 1) {
    seen = {1, 1};
  } else if (elements == dims[0] * dims[1]) {
    seen = dims;
  } else if (elements == dims[1] && shape.back() == dims[1]) {
    seen = {1, dims[1]};
  } else if (elements == dims[0] && shape.size() == full.size() && shape.back() == 1) {
    seen = {dims[0], 1};
  } else {
    return {};
  }
  operand.desc = reshaped(operand.desc, seen);
  return operand;
}

}  // namespace

bool append_post_ops(PlanBuilder& builder, const graph::Node& node, std::size_t first, std::size_t last,
                     const Dims& dims, FusedPostOps& fused) {
  for (std::size_t i = first; i < last; ++i) {
    const PostOp& op = node.post_ops[i];
    if (!takes_operand(op.kind)) {
      const Eltwise eltwise = eltwise_of(op);
      fused.ops.append_eltwise(eltwise.algorithm, eltwise.alpha, eltwise.beta);
      continue;
    }
    const Operand operand = operand_for(builder, node, op.operand, dims);
    if (operand.buffer < 0 || operand.desc.is_zero()) return false;
    const int place = fused.ops.len();
    fused.ops.append_binary(binary_of(op), operand.desc);
    fused.arguments.emplace_back(DNNL_ARG_ATTR_MULTIPLE_POST_OP(place) | DNNL_ARG_SRC_1, operand);
  }
  return true;
}

void describe(const FusedPostOps& fused, Looks& looks) {
  const auto add = [&](auto value) {
    looks.what.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (int i = 0; i < fused.ops.len(); ++i) {
    dnnl::algorithm algorithm{};
    const bool eltwise = fused.ops.kind(i) == dnnl::primitive::kind::eltwise;
    if (eltwise) {
      float alpha = 0, beta = 0;
      fused.ops.get_params_eltwise(i, algorithm, alpha, beta);
      add(alpha);
      add(beta);
    } else {
      fused.ops.get_params_binary(i, algorithm, looks.descs.emplace_back());
    }
    add(eltwise);
    add(algorithm);
  }
}

std::string to_text(const FusedPostOps& fused) {
  std::string text;
  for (int i = 0; i < fused.ops.len(); ++i) {
    dnnl::algorithm algorithm{};
    if (fused.ops.kind(i) == dnnl::primitive::kind::eltwise) {
      float alpha = 0, beta = 0;
      fused.ops.get_params_eltwise(i, algorithm, alpha, beta);
      text += " then " + std::to_string(static_cast<int>(algorithm));
    } else {
      Desc operand;
      fused.ops.get_params_binary(i, algorithm, operand);
      text += " then " + std::to_string(static_cast<int>(algorithm)) + " " + to_text(operand);
    }
  }
  return text;
}

std::size_t first_that_loses_nan(PlanBuilder& builder, const graph::Node& node, std::size_t first) {
  std::size_t i = first;
  while (i < node.post_ops.size() && !(builder.keeps_nan() && builder.loses_nan(node.post_ops[i]))) ++i;
  return i;
}

void emit_keeping_nan(PlanBuilder& builder, const graph::Node& node, PostOpRange post_ops,
                      const Operand& result, const std::function<void()>& fused,
                      const std::function<void()>& part) {
  if (post_ops.first == post_ops.last) return fused();
  const int ordinary = builder.careful(false), careful = builder.careful(true);
  const int around = builder.enter(ordinary);
  fused();
  builder.enter(careful);
  builder.begin_sequence();
  part();
  // In place, which alone would not be idempotent.
  const Elements elements = elements_of(result.desc);
  const Operand lost = builder.temporary(
      row_major(std::array{static_cast<std::int64_t>(NoteNanKernel::bytes(elements))}, DnnlType::u8));
  bool noted = false;
  for (std::size_t i = post_ops.first; i < post_ops.last; ++i) {
    const PostOp& op = node.post_ops[i];
    if (bounds(op) && std::exchange(noted, false))
      builder.append("", std::make_unique<RestoreNanKernel>(elements), {lost, result});
    if (takes_operand(op.kind)) {
      const Operand operand = operand_for(builder, node, op.operand, result.desc.get_dims());
      const dnnl::binary::primitive_desc desc(builder.engine(), binary_of(op), result.desc, operand.desc,
                                              result.desc, PlanBuilder::attributes());
      builder.emit(node.name, desc, dnnl::binary(desc),
                   PlanBuilder::Arguments{
                       {DNNL_ARG_SRC_0, result}, {DNNL_ARG_SRC_1, operand}, {DNNL_ARG_DST, result}});
      continue;
    }
    if (builder.loses_nan(op))
      builder.append("", std::make_unique<NoteNanKernel>(elements, /*more=*/std::exchange(noted, true)),
                     {result, lost});
    const Eltwise eltwise = eltwise_of(op);
    const dnnl::eltwise_forward::primitive_desc desc(builder.engine(), dnnl::prop_kind::forward_inference,
                                                     eltwise.algorithm, result.desc, result.desc,
                                                     eltwise.alpha, eltwise.beta, PlanBuilder::attributes());
    builder.emit(node.name, desc, dnnl::eltwise_forward(desc),
                 PlanBuilder::Arguments{{DNNL_ARG_SRC, result}, {DNNL_ARG_DST, result}});
  }
  if (noted) builder.append("", std::make_unique<RestoreNanKernel>(elements), {lost, result});
  builder.end_sequence(node.name + " keeping NaN");
  builder.enter(around);
}

void spread_nan(PlanBuilder& builder, const std::string& node, std::unique_ptr<Kernel> kernel,
                const Operand& from, const Operand& to) {
  const int around = builder.enter(builder.careful(true));
  builder.append(node + " keeping NaN", std::move(kernel), {from, to});
  builder.enter(around);
}

void apply_separately(PlanBuilder& builder, const graph::Node& node, std::size_t first, Operand value) {
  const auto output = node.outputs.front();
  if (first == node.post_ops.size()) {
    builder.alias(output, value);
    return;
  }
  for (std::size_t i = first; i < node.post_ops.size(); ++i) {
    const PostOp& op = node.post_ops[i];
    const bool last = i + 1 == node.post_ops.size();
    if (takes_operand(op.kind)) {
      const Dims dims = value.desc.get_dims();
      const Operand operand = operand_for(builder, node, op.operand, dims);
      if (operand.buffer < 0 || operand.desc.is_zero())
        throw dnnl::error(dnnl_unimplemented, "an operand does not broadcast to its node's result");
      const dnnl::binary::primitive_desc desc(builder.engine(), binary_of(op), value.desc, operand.desc,
                                              value.desc, PlanBuilder::attributes());
      if (is_slow(desc.impl_info_str())) {
        const Desc plain = row_major(dims, DnnlType::f32);
        Operand right = builder.row_major(op.operand);
        right.desc = row_major(with_rank(builder.shape(op.operand), dims.size()), DnnlType::f32);
        if (!same_layout(value.desc, plain)) value = builder.reordered(node.name, value, plain);
        const Operand result = last ? builder.define(output, plain) : builder.temporary(plain);
        builder.emit_plain_binary(node, plain_name_of(op), value, right, result);
        value = result;
        continue;
      }
      const dnnl::binary primitive(desc);
      const Operand result = last ? builder.define(output, value.desc) : builder.temporary(value.desc);
      builder.emit(
          node.name, desc, primitive,
          PlanBuilder::Arguments{{DNNL_ARG_SRC_0, value}, {DNNL_ARG_SRC_1, operand}, {DNNL_ARG_DST, result}});
      value = result;
    } else {
      const Eltwise eltwise = eltwise_of(op);
      const dnnl::eltwise_forward::primitive_desc desc(
          builder.engine(), dnnl::prop_kind::forward_inference, eltwise.algorithm, value.desc, value.desc,
          eltwise.alpha, eltwise.beta, PlanBuilder::attributes());
      const dnnl::eltwise_forward primitive(desc);
      const Operand result = last ? builder.define(output, value.desc) : builder.temporary(value.desc);
      builder.emit(node.name, desc, primitive,
                   PlanBuilder::Arguments{{DNNL_ARG_SRC, value}, {DNNL_ARG_DST, result}});
      if (builder.keeps_nan() && builder.loses_nan(op))
        spread_nan(builder, node.name, SpreadNanKernel::elementwise(value.desc, value.desc), value, result);
      value = result;
    }
  }
}

}  // namespace carillon::engine::cpu
