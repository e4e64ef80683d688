#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "carillon/engine/cpu/eltwise.h"
#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

namespace {

using Algorithm = dnnl::algorithm;

// Of a descriptor, where that is not empty.
template <typename Primitive>
struct MadePrimitive {
  explicit MadePrimitive(typename Primitive::primitive_desc of)
      : desc(std::move(of)), primitive(desc ? Primitive(desc) : Primitive()) {}
  typename Primitive::primitive_desc desc;
  Primitive primitive;
};

std::optional<float> constant_scalar(PlanBuilder& builder, graph::ValueId id) {
  if (!builder.is_constant(id) || !builder.is_real(id) || builder.type(id).elements() != 1)
    return std::nullopt;
  return builder.constant(id)->as<float>()[0];
}

std::optional<Eltwise> eltwise_of(PlanBuilder& builder, const graph::Node& node) {
  const std::string_view op = node.op;
  if (op == "Relu") return Eltwise{Algorithm::eltwise_relu};
  if (op == "LeakyRelu") return Eltwise{Algorithm::eltwise_relu, node.real("alpha", 0.01F)};
  if (op == "Sigmoid") return Eltwise{Algorithm::eltwise_logistic};
  if (op == "Tanh") return Eltwise{Algorithm::eltwise_tanh};
  if (op == "Elu") return Eltwise{Algorithm::eltwise_elu, node.real("alpha", 1)};
  if (op == "HardSigmoid")
    return Eltwise{Algorithm::eltwise_hardsigmoid, node.real("alpha", 0.2F), node.real("beta", 0.5F)};
  if (op == "HardSwish") return Eltwise{Algorithm::eltwise_hardswish, 1.0F / 6, 0.5F};
  if (op == "Gelu")
    return Eltwise{node.text("approximate", "none") == "tanh" ? Algorithm::eltwise_gelu_tanh
                                                              : Algorithm::eltwise_gelu_erf};
  if (op == "Sqrt") return Eltwise{Algorithm::eltwise_sqrt};
  if (op == "Abs") return Eltwise{Algorithm::eltwise_abs};
  if (op == "Neg") return Eltwise{Algorithm::eltwise_linear, -1, 0};
  if (op == "Clip") {
    float low = std::numeric_limits<float>::lowest(), high = std::numeric_limits<float>::max();
    for (std::size_t i = 1; i < std::min<std::size_t>(node.inputs.size(), 3); ++i) {
      if (node.inputs[i] == graph::no_value) continue;
      const auto bound = constant_scalar(builder, node.inputs[i]);
      if (!bound) return std::nullopt;
      (i == 1 ? low : high) = *bound;
    }
    if (!(low <= high)) return std::nullopt;
    return Eltwise{Algorithm::eltwise_clip, low, high};
  }
  return std::nullopt;
}

// Only products read the value (perhaps through views), and not as a post-op's operand.
bool only_products_read(PlanBuilder& builder, graph::ValueId id, int depth = 0) {
  if (builder.is_output(id) || builder.consumers(id).empty() || depth > 4) return false;
  return std::ranges::all_of(builder.consumers(id), [&](int n) {
    const graph::Node& reader = builder.node(n);
    if (reader.op == "Reshape" || reader.op == "Transpose")
      return only_products_read(builder, reader.outputs[0], depth + 1);
    if (reader.op != "MatMul") return false;
    return std::ranges::none_of(reader.post_ops, [&](const auto& op) { return op.operand == id; });
  });
}

// A product of matrices takes a scalar factor along for nothing, so Mul and Div by one become no kernel.
bool absorb_scale(PlanBuilder& builder, const graph::Node& node) {
  if ((node.op != "Mul" && node.op != "Div") || !node.post_ops.empty()) return false;
  auto value = node.inputs[0], scalar = node.inputs[1];
  if (node.op == "Mul" && builder.is_constant(value)) std::swap(value, scalar);
  const auto factor = constant_scalar(builder, scalar);
  if (!factor || *factor == 0 || builder.is_constant(value) || !builder.is_real(value)) return false;
  if (builder.shape(value) != builder.shape(node.outputs[0])) return false;
  if (!only_products_read(builder, node.outputs[0])) return false;
  Operand operand = builder.current(value);
  operand.factor *= node.op == "Mul" ? *factor : 1 / *factor;
  builder.alias(node.outputs[0], operand);
  return true;
}

// Whether oneDNN would take the first channel's number of a post-op's operand for every channel. Its binary
// operators do so where all extents behind the channels are 1 and the operand is smaller than the result.
bool loses_channels(const FusedPostOps& fused, const Dims& dims) {
  if (dims.size() < 3 || std::ranges::any_of(dims.begin() + 2, dims.end(), [](auto d) { return d != 1; }))
    return false;
  for (int i = 0; i < fused.ops.len(); ++i) {
    if (fused.ops.kind(i) != dnnl::primitive::kind::binary) continue;
    Algorithm algorithm{};
    Desc operand;
    fused.ops.get_params_binary(i, algorithm, operand);
    if (operand.get_dims() != dims && operand.get_dims()[1] != 1) return true;
  }
  return false;
}

}  // namespace

bool lower_eltwise(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  if (!builder.is_real(input) || !builder.is_real(output) || builder.is_constant(input)) return false;
  if (!node.post_ops.empty()) return false;
  const std::optional<Eltwise> eltwise = eltwise_of(builder, node);
  if (!eltwise) return false;
  const Operand source = builder.dense(input);
  using Made = MadePrimitive<dnnl::eltwise_forward>;
  Looks looks{.what = "eltwise", .descs = {source.desc}};
  FusedPostOps alone;  // what the operator does, as a post-op would
  alone.ops.append_eltwise(eltwise->algorithm, eltwise->alpha, eltwise->beta);
  describe(alone, looks);
  const auto& [desc, primitive] = builder.once<Made>(looks, [&] {
    return Made(dnnl::eltwise_forward::primitive_desc(
        builder.engine(), dnnl::prop_kind::forward_inference, eltwise->algorithm, source.desc, source.desc,
        eltwise->alpha, eltwise->beta, PlanBuilder::attributes()));
  });
  const Operand result = builder.define(output, source.desc);
  builder.emit(node.name, desc, primitive,
               PlanBuilder::Arguments{{DNNL_ARG_SRC, source}, {DNNL_ARG_DST, result}});
  if (builder.keeps_nan() && loses_nan(builder.engine(), *eltwise))
    spread_nan(builder, node.name, SpreadNanKernel::elementwise(source.desc, source.desc), source, result);
  return true;
}

bool lower_binary(PlanBuilder& builder, const graph::Node& node) {
  if (node.inputs.size() != 2) return false;
  auto a = node.inputs[0], b = node.inputs[1];
  const auto output = node.outputs[0];
  if (!builder.is_real(a) || !builder.is_real(b) || !builder.is_real(output)) return false;
  if (absorb_scale(builder, node)) return true;
  const graph::Shape& y = builder.shape(output);
  const bool commutes = node.op == "Add" || node.op == "Mul" || node.op == "Max" || node.op == "Min";
  if (commutes && (builder.shape(a) != y || builder.is_constant(a))) std::swap(a, b);
  if (builder.shape(a) != y || builder.is_constant(a)) return false;
  // Of bounds: see binary_of() of post-ops.
  const Algorithm algorithm = node.op == "Add"                           ? Algorithm::binary_add
                              : node.op == "Sub"                         ? Algorithm::binary_sub
                              : node.op == "Mul"                         ? Algorithm::binary_mul
                              : node.op == "Div"                         ? Algorithm::binary_div
                              : node.op == "Max" || node.op == "AtLeast" ? Algorithm::binary_max
                                                                         : Algorithm::binary_min;
  const Operand left = builder.dense(a);
  Operand right;
  if (builder.shape(b) == y) {
    const DnnlType type = builder.is_constant(b) ? DnnlType::f32 : builder.current_type(b);
    const bool blocked = left.desc.get_inner_nblks() != 0;
    right = builder.in_layout(
        b, blocked && type != left.desc.get_data_type() ? left.desc : with_type(left.desc, type));
  } else {
    right = builder.dense(b);
    right.desc = reshaped(right.desc, with_rank(builder.shape(b), std::max<std::size_t>(y.size(), 1)));
    if (right.desc.is_zero()) return false;
  }
  const Dims dims = left.desc.get_dims();
  FusedPostOps fused, kept;
  bool fuse =
      append_post_ops(builder, node, 0, node.post_ops.size(), dims, fused) && !loses_channels(fused, dims);
  using Made = MadePrimitive<dnnl::binary>;
  const auto make = [&](const FusedPostOps& ops) -> const Made& {
    Looks looks{.what = "binary" + std::to_string(static_cast<int>(algorithm)),
                .descs = {left.desc, right.desc}};
    describe(ops, looks);
    return builder.once<Made>(looks, [&] {
      dnnl::primitive_attr attributes = PlanBuilder::attributes();
      attributes.set_post_ops(ops.ops);
      return Made(dnnl::binary::primitive_desc(builder.engine(), algorithm, left.desc, right.desc, left.desc,
                                               attributes, /*allow_empty=*/true));
    });
  };
  const Made* made = &make(fuse ? fused : FusedPostOps());
  if (fuse && !node.post_ops.empty() && (!made->desc || is_slow(made->desc.impl_info_str()))) {
    fuse = false;
    made = &make({});
  }
  if (!made->desc || is_slow(made->desc.impl_info_str())) return false;
  // Up to what would lose NaN, for runs that must not.
  const std::size_t split = fuse ? first_that_loses_nan(builder, node, 0) : node.post_ops.size();
  append_post_ops(builder, node, 0, fuse ? split : 0, dims, kept);
  const Made& part = make(kept);
  if (!part.desc) return false;
  const Operand result = fuse ? builder.define(output, left.desc) : builder.temporary(left.desc);
  const PlanBuilder::Arguments arguments{
      {DNNL_ARG_SRC_0, left}, {DNNL_ARG_SRC_1, right}, {DNNL_ARG_DST, result}};
  if (!fuse) {
    builder.emit(node.name, made->desc, made->primitive, arguments);
    apply_separately(builder, node, 0, result);
    return true;
  }
  const auto with = [&](const FusedPostOps& ops) {
    PlanBuilder::Arguments all = arguments;
    all.insert(all.end(), ops.arguments.begin(), ops.arguments.end());
    return all;
  };
  emit_keeping_nan(
      builder, node, {.first = split, .last = node.post_ops.size()}, result,
      [&] { builder.emit(node.name, made->desc, made->primitive, with(fused)); },
      [&] { builder.emit(node.name, part.desc, part.primitive, with(kept)); });
  if (builder.keeps_nan() && (node.op == "Max" || node.op == "Min"))
    for (const Operand& operand : {left, right})
      spread_nan(builder, node.name, SpreadNanKernel::elementwise(operand.desc, result.desc), operand,
                 result);
  return true;
}

}  // namespace carillon::engine::cpu
