#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>

#include "carillon/engine/cpu/convolution.h"

namespace carillon::engine::cpu {

namespace {

using dnnl::memory;
using graph::SharedTensor;
using Seen = PlanBuilder::Seen;

// Operands of QLinearConv and QLinearMatMul.
struct Quantized {
  graph::ValueId x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias;

  explicit Quantized(const graph::Node& node)
      : x(node.inputs[0]),
        x_scale(node.inputs[1]),
        x_zero(node.inputs[2]),
        w(node.inputs[3]),
        w_scale(node.inputs[4]),
        w_zero(node.inputs[5]),
        y_scale(node.inputs[6]),
        y_zero(node.inputs[7]),
        bias(node.inputs.size() > 8 ? node.inputs[8] : graph::no_value) {}
  bool real_result() const { return y_scale == graph::no_value; }
};

// Whether the processor adds products of bytes in 32 bits. Others add two of them in 16, which saturate.
bool multiplies_bytes_exactly() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [isa](dnnl::cpu_isa wanted) {
    const auto bits = static_cast<unsigned>(wanted);
    return (isa & bits) == bits;
  };
  return has(dnnl::cpu_isa::avx512_core_vnni) || has(dnnl::cpu_isa::avx2_vnni);
}

std::int32_t byte_at(const graph::Tensor& tensor, std::size_t i) {
  return tensor.type().type == graph::DataType::i8 ? tensor.as<std::int8_t>()[i]
                                                   : tensor.as<std::uint8_t>()[i];
}

// Calls use(element, weight without its zero point, channel); the channels are dimension `axis`.
template <typename Use>
void for_each_weight(const graph::Tensor& w, const graph::Tensor& zero, std::size_t axis, Use&& use) {
  const graph::Shape& shape = w.type().shape;
  std::size_t inner = 1;
  for (std::size_t d = axis + 1; d < shape.size(); ++d) inner *= static_cast<std::size_t>(shape[d]);
  const auto channels = static_cast<std::size_t>(shape[axis]);
  const bool one = zero.type().elements() == 1;
  const auto count = static_cast<std::size_t>(w.type().elements());
  for (std::size_t first = 0, run = 0; first < count; first += inner, ++run) {
    const std::size_t channel = run % channels;
    const std::int32_t less = byte_at(zero, one ? 0 : channel);
    for (std::size_t i = first; i < first + inner; ++i) use(i, byte_at(w, i) - less, channel);
  }
}

// One product of bytes, as oneDNN is asked for it.
template <typename Primitive>
struct Asked {
  using PrimitiveDesc = typename Primitive::primitive_desc;

  std::size_t axis = 0;  // of the weights' channels
  std::int64_t channels = 0;
  Dims x, y;
  Desc w;                // the weights as they are, f32
  int channel_mask = 0;  // of the weights' dimensions as oneDNN has them
  Dims bias;
  std::vector<std::function<Desc(const Dims&, DnnlType)>> layouts;  // in the order in which they are tried
  std::function<PrimitiveDesc(const Desc& x, const Desc& w, const Desc& bias, const Desc& y,
                              const dnnl::primitive_attr&)>
      make;
  std::function<bool()> exactly;  // a way of our own in bytes, where oneDNN has none; may be empty
};

template <typename Primitive>
class QuantizedProduct {
 public:
  using PrimitiveDesc = typename Primitive::primitive_desc;

  QuantizedProduct(PlanBuilder& builder, const graph::Node& node, const Asked<Primitive>& asked)
      : builder_(builder), node_(node), q_(node), asked_(asked), output_(node.outputs[0]) {}

  bool lower() {
    dynamic_ = !builder_.is_constant(q_.x_scale);
    for (const auto id : {q_.x_scale, q_.y_scale})
      if (id != graph::no_value &&
          (builder_.type(id).elements() != 1 || builder_.type(id).type != graph::DataType::f32))
        return false;
    if (builder_.type(q_.x_zero).elements() != 1) return false;
    for (const auto id : {q_.w, q_.w_scale, q_.w_zero})
      if (!builder_.is_constant(id)) return false;
    if (!dynamic_ && !builder_.is_constant(q_.x_zero)) return false;
    if (!q_.real_result() &&
        (dynamic_ || !builder_.is_constant(q_.y_scale) || !builder_.is_constant(q_.y_zero)))
      return false;
    if (q_.bias != graph::no_value && (dynamic_ || !builder_.is_constant(q_.bias))) return false;
    const std::int64_t scales = builder_.type(q_.w_scale).elements(),
                       zeros = builder_.type(q_.w_zero).elements();
    if ((scales != 1 && scales != asked_.channels) || (zeros != 1 && zeros != asked_.channels)) return false;
    return lower_in_bytes() || (asked_.exactly && asked_.exactly()) || lower_in_reals();
  }

 private:
  // --- In bytes

  bool lower_in_bytes() {
    std::int32_t least = 0, most = 0;
    for_each_weight(*builder_.constant(q_.w), *builder_.constant(q_.w_zero), asked_.axis,
                    [&](std::size_t, std::int32_t value, std::size_t) {
                      least = std::min(least, value);
                      most = std::max(most, value);
                    });
    // Two products of a byte and seven bits fit 16 bits; and only without a sign is a source left as it is.
    const bool exact = multiplies_bytes_exactly();
    if (!exact && (least < -64 || most > 64 || builder_.type(q_.x).type != graph::DataType::u8)) return false;
    if (least < -128 || most > 127) return false;
    FusedPostOps fused;
    bool fuse = append_post_ops(builder_, node_, 0, node_.post_ops.size(), asked_.y, fused);
    // oneDNN rounds what it has added the zero point to, which takes a sum in the middle between two steps to
    // another one where the zero point is odd. So the sum is rounded before.
    const auto round_first = [&](dnnl::post_ops ops) {
      if (!q_.real_result() && shifted(q_.y_zero)) ops.append_eltwise(dnnl::algorithm::eltwise_round, 0, 0);
      return ops;
    };
    dnnl::post_ops ops = round_first(fuse ? fused.ops : dnnl::post_ops());
    auto desc = choose(ops);
    if (!desc && fuse && !node_.post_ops.empty()) {
      fuse = false;
      ops = round_first({});
      desc = choose(ops);
    }
    if (!desc) return false;

    const SharedTensor w = weights();
    const Desc source = with_type(asked_.w, DnnlType::s8);
    if (const Desc* known = builder_.known_layout(w, asked_.w.get_dims(), DnnlType::s8);
        known != nullptr && *known != desc->weights_desc()) {
      auto same = attempt(desc->src_desc(), *known, desc->dst_desc(), ops);
      if (same && std::string_view(same->impl_info_str()) == desc->impl_info_str()) desc = same;
    }
    Operand x = source_in(desc->src_desc());
    const SharedTensor scales = channel_scales();
    const Desc by_channel = row_major(Dims{asked_.channels}, DnnlType::f32),
               one = row_major(Dims{1}, DnnlType::s32);
    PlanBuilder::Arguments arguments{
        {DNNL_ARG_SRC, x},
        {DNNL_ARG_WEIGHTS, builder_.packed(w, source, desc->weights_desc())},
        {DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, builder_.raw(scales, by_channel)}};
    if (dynamic_) {
      Operand scale = builder_.current(q_.x_scale);
      scale.desc = row_major(Dims{1}, DnnlType::f32);
      arguments.emplace_back(DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC, scale);
    }
    if (shifted(q_.x_zero))
      arguments.emplace_back(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, zero_point(q_.x_zero, one));
    if (!q_.real_result() && shifted(q_.y_zero))
      arguments.emplace_back(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_DST, zero_point(q_.y_zero, one));
    if (q_.bias != graph::no_value)
      arguments.emplace_back(DNNL_ARG_BIAS,
                             builder_.raw(real_bias(scales), row_major(asked_.bias, DnnlType::f32)));
    const Operand result = fuse ? defined(desc->dst_desc()) : builder_.temporary(desc->dst_desc());
    arguments.emplace_back(DNNL_ARG_DST, result);
    if (fuse) arguments.insert(arguments.end(), fused.arguments.begin(), fused.arguments.end());
    builder_.emit(node_.name, *desc, Primitive(*desc), arguments);
    if (!fuse) finish_real(result);
    return true;
  }

  std::optional<PrimitiveDesc> choose(const dnnl::post_ops& ops) {
    const Desc w(asked_.w.get_dims(), DnnlType::s8, memory::format_tag::any);
    std::optional<PrimitiveDesc> second;
    for (const auto& layout : asked_.layouts) {
      auto desc = attempt(layout(asked_.x, byte_type(q_.x)), w, layout(asked_.y, result_type()), ops);
      if (desc && !is_by_gemm(desc->impl_info_str())) return desc;
      if (desc && !second) second = desc;
    }
    return second;
  }
  std::optional<PrimitiveDesc> attempt(const Desc& x, const Desc& w, const Desc& y,
                                       const dnnl::post_ops& ops) {
    dnnl::primitive_attr attributes = PlanBuilder::attributes();
    attributes.set_scales_mask(DNNL_ARG_WEIGHTS, asked_.channel_mask);
    if (dynamic_) attributes.set_scales_mask(DNNL_ARG_SRC, 0);
    if (shifted(q_.x_zero)) attributes.set_zero_points_mask(DNNL_ARG_SRC, 0);
    if (!q_.real_result() && shifted(q_.y_zero)) attributes.set_zero_points_mask(DNNL_ARG_DST, 0);
    if (ops.len() > 0) attributes.set_post_ops(ops);
    const Desc bias = q_.bias == graph::no_value ? Desc() : row_major(asked_.bias, DnnlType::f32);
    PrimitiveDesc desc = asked_.make(x, w, bias, y, attributes);
    if (!desc || is_slow(desc.impl_info_str())) return std::nullopt;
    return desc;
  }

  DnnlType byte_type(graph::ValueId id) const { return builder_.plain_desc(id).get_data_type(); }
  DnnlType result_type() const { return byte_type(output_); }
  // Whether the zero point may be another than 0.
  bool shifted(graph::ValueId id) const {
    return !builder_.is_constant(id) || byte_at(*builder_.constant(id), 0) != 0;
  }

  SharedTensor weights() {
    const SharedTensor w = builder_.constant(q_.w), zero = builder_.constant(q_.w_zero);
    return builder_.derive(
        "weights without zero points of axis " + std::to_string(asked_.axis), {w, zero}, [&] {
          graph::Tensor made({graph::DataType::i8, w->type().shape});
          const auto to = made.as<std::int8_t>();
          for_each_weight(*w, *zero, asked_.axis, [&](std::size_t i, std::int32_t value, std::size_t) {
            to[i] = static_cast<std::int8_t>(value);
          });
          return made;
        });
  }
  // What a sum is multiplied by: the weights' scales, and the others as far as they are known.
  SharedTensor channel_scales() {
    std::vector<SharedTensor> from{builder_.constant(q_.w_scale)};
    if (!dynamic_) from.push_back(builder_.constant(q_.x_scale));
    if (!q_.real_result()) from.push_back(builder_.constant(q_.y_scale));
    return builder_.derive(std::to_string(asked_.channels) + " scales of sums", from, [&] {
      graph::Tensor made({graph::DataType::f32, {asked_.channels}});
      const auto to = made.as<float>();
      const auto w = from[0]->as<float>();
      for (std::size_t i = 0; i < to.size(); ++i) {
        to[i] = w[w.size() == 1 ? 0 : i];
        if (!dynamic_) to[i] *= from[1]->as<float>()[0];
        if (!q_.real_result()) to[i] /= from.back()->as<float>()[0];
      }
      return made;
    });
  }
  SharedTensor real_bias(const SharedTensor& scales) {
    const SharedTensor whole = builder_.constant(q_.bias);
    return builder_.derive("bias of sums", {whole, scales}, [&] {
      graph::Tensor made(scales->type());
      const auto to = made.as<float>();
      const auto from = whole->as<std::int32_t>();
      for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = static_cast<float>(from[from.size() == 1 ? 0 : i]) * scales->as<float>()[i];
      return made;
    });
  }
  // In 32 bits, as oneDNN wants it.
  Operand zero_point(graph::ValueId id, const Desc& one) {
    if (builder_.is_constant(id)) {
      const SharedTensor zero = builder_.constant(id);
      const SharedTensor wide = builder_.derive("zero point in 32 bits", {zero}, [&] {
        graph::Tensor made({graph::DataType::i32, {1}});
        made.as<std::int32_t>()[0] = byte_at(*zero, 0);
        return made;
      });
      return builder_.raw(wide, one);
    }
    const Operand wide = builder_.temporary(one);
    constexpr std::int64_t to_i32 = 6;  // TensorProto.DataType
    graph::Node cast{.name = node_.name, .op = "Cast", .outputs = node_.outputs};
    cast.attributes.insert_or_assign("to", graph::Attribute{to_i32});
    if (!builder_.emit_plain_as(cast, "Cast", {{builder_.row_major(id), {builder_.type(id).type, {1}}}},
                                {{wide, {graph::DataType::i32, {1}}}}))
      throw dnnl::error(dnnl_unimplemented, "a zero point is of no type that can be converted");
    return wide;
  }

  // --- In real numbers, where there is no way in bytes that is fast and right: whole numbers of 24 bits are
  // exact.

  bool lower_in_reals() {
    const auto& layout = asked_.layouts.front();
    const Desc x_bytes = layout(asked_.x, byte_type(q_.x)), x_real = with_type(x_bytes, DnnlType::f32);
    const Desc w(asked_.w.get_dims(), DnnlType::f32, memory::format_tag::any);
    const Desc y_real = layout(asked_.y, DnnlType::f32);
    const Desc bias = q_.bias == graph::no_value ? Desc() : row_major(asked_.bias, DnnlType::f32);
    const PrimitiveDesc desc = asked_.make(x_real, w, bias, y_real, PlanBuilder::attributes());
    if (!desc || is_slow(desc.impl_info_str())) return false;

    const Operand bytes = source_in(x_bytes), real = builder_.temporary(x_real);
    const std::int64_t count = builder_.type(q_.x).elements();
    const auto as_it_is = [&](graph::ValueId id) { return Seen{builder_.row_major(id), builder_.type(id)}; };
    if (!builder_.emit_plain_as(
            named("DequantizeLinear"), "DequantizeLinear",
            {{bytes, {builder_.type(q_.x).type, {count}}}, as_it_is(q_.x_scale), as_it_is(q_.x_zero)},
            {{real, {graph::DataType::f32, {count}}}}))
      return false;
    PlanBuilder::Arguments arguments{
        {DNNL_ARG_SRC, real},
        {DNNL_ARG_WEIGHTS, builder_.packed(real_weights(), asked_.w, desc.weights_desc())}};
    if (q_.bias != graph::no_value) {
      const SharedTensor whole = builder_.constant(q_.bias), w_scale = builder_.constant(q_.w_scale),
                         x_scale = builder_.constant(q_.x_scale);
      const SharedTensor made = builder_.derive("real bias", {whole, w_scale, x_scale}, [&] {
        graph::Tensor tensor({graph::DataType::f32, {asked_.channels}});
        const auto to = tensor.as<float>();
        const auto scales = w_scale->as<float>();
        const auto from = whole->as<std::int32_t>();
        for (std::size_t i = 0; i < to.size(); ++i)
          to[i] = static_cast<float>(from[from.size() == 1 ? 0 : i]) * scales[scales.size() == 1 ? 0 : i] *
                  x_scale->as<float>()[0];
        return tensor;
      });
      arguments.emplace_back(DNNL_ARG_BIAS, builder_.raw(made, bias));
    }
    const bool whole = q_.real_result() && node_.post_ops.empty();
    const Operand result = whole ? defined(y_real) : builder_.temporary(y_real);
    arguments.emplace_back(DNNL_ARG_DST, result);
    builder_.emit(node_.name, desc, Primitive(desc), arguments);
    if (whole) return true;
    if (q_.real_result()) {
      finish_real(result);
      return true;
    }
    const std::int64_t made = builder_.type(output_).elements();
    const Operand rounded = defined(layout(asked_.y, result_type()));
    return builder_.emit_plain_as(
        named("QuantizeLinear"), "QuantizeLinear",
        {{result, {graph::DataType::f32, {made}}}, as_it_is(q_.y_scale), as_it_is(q_.y_zero)},
        {{rounded, {builder_.type(output_).type, {made}}}});
  }
  graph::Node named(std::string op) const {
    return {.name = node_.name, .op = std::move(op), .outputs = node_.outputs};
  }
  SharedTensor real_weights() {
    const SharedTensor w = builder_.constant(q_.w), zero = builder_.constant(q_.w_zero),
                       scale = builder_.constant(q_.w_scale);
    return builder_.derive("real weights of axis " + std::to_string(asked_.axis), {w, zero, scale}, [&] {
      graph::Tensor made({graph::DataType::f32, w->type().shape});
      const auto to = made.as<float>();
      const auto scales = scale->as<float>();
      for_each_weight(*w, *zero, asked_.axis, [&](std::size_t i, std::int32_t value, std::size_t channel) {
        to[i] = static_cast<float>(value) * scales[scales.size() == 1 ? 0 : channel];
      });
      return made;
    });
  }

  // --- Either way

  // The source, seen with other dimensions where the primitive sees it so.
  Operand source_in(const Desc& wanted) {
    if (asked_.x == builder_.shape(q_.x)) return builder_.in_layout(q_.x, wanted);
    Operand x = builder_.in_layout(q_.x, builder_.plain_desc(q_.x));
    x.desc = wanted;
    return x;
  }
  Operand defined(const Desc& desc) {
    if (asked_.y == builder_.shape(output_)) return builder_.define(output_, desc);
    Operand y = builder_.define(output_, row_major(builder_.shape(output_), desc.get_data_type()));
    y.desc = desc;
    return y;
  }
  void finish_real(Operand result) {
    if (asked_.y != builder_.shape(output_)) result.desc = row_major(builder_.shape(output_), DnnlType::f32);
    apply_separately(builder_, node_, 0, result);
  }

  PlanBuilder& builder_;
  const graph::Node& node_;
  Quantized q_;
  const Asked<Primitive>& asked_;
  graph::ValueId output_;
  bool dynamic_ = false;  // the source's scale is found at run time
};

// Of two operands that change, as in attention: in real numbers, since there is nothing to pack.
bool lower_changing(PlanBuilder& builder, const graph::Node& node, const Quantized& q) {
  const auto output = node.outputs[0];
  const graph::Shape &x = builder.shape(q.x), &w = builder.shape(q.w), &y = builder.shape(output);
  if (x.size() < 2 || w.size() < 2 || y.size() != std::max(x.size(), w.size()) || q.bias != graph::no_value ||
      q.real_result() || !node.post_ops.empty())
    return false;
  for (const auto id : {q.x_scale, q.x_zero, q.w_scale, q.w_zero, q.y_scale, q.y_zero})
    if (builder.type(id).elements() != 1) return false;
  const auto real = [&](const graph::Shape& shape) {
    return row_major(with_rank(shape, y.size()), DnnlType::f32);
  };
  const dnnl::matmul::primitive_desc desc(builder.engine(), real(x), real(w), real(y),
                                          PlanBuilder::attributes(),
                                          /*allow_empty=*/true);
  if (!desc || is_slow(desc.impl_info_str())) return false;
  const auto flat = [&](graph::ValueId id, const Operand& operand, graph::DataType type) {
    return Seen{operand, {type, {builder.type(id).elements()}}};
  };
  const auto as_it_is = [&](graph::ValueId id) { return Seen{builder.row_major(id), builder.type(id)}; };
  const auto emit = [&](const char* op, const Seen& from, graph::ValueId scale, graph::ValueId zero,
                        const Seen& to) {
    const graph::Node part{.name = node.name, .op = op, .outputs = node.outputs};
    if (!builder.emit_plain_as(part, op, {from, as_it_is(scale), as_it_is(zero)}, {to}))
      throw dnnl::error(dnnl_unimplemented, "bytes of a type that is not converted");
  };
  const Operand left = builder.temporary(real(x)), right = builder.temporary(real(w)),
                sums = builder.temporary(real(y));
  using graph::DataType;
  emit("DequantizeLinear", flat(q.x, builder.row_major(q.x), builder.type(q.x).type), q.x_scale, q.x_zero,
       flat(q.x, left, DataType::f32));
  emit("DequantizeLinear", flat(q.w, builder.row_major(q.w), builder.type(q.w).type), q.w_scale, q.w_zero,
       flat(q.w, right, DataType::f32));
  builder.emit(node.name, desc, dnnl::matmul(desc),
               PlanBuilder::Arguments{{DNNL_ARG_SRC, left}, {DNNL_ARG_WEIGHTS, right}, {DNNL_ARG_DST, sums}});
  const Operand result = builder.define(output, builder.plain_desc(output));
  emit("QuantizeLinear", flat(output, sums, DataType::f32), q.y_scale, q.y_zero,
       flat(output, result, builder.type(output).type));
  return true;
}

}  // namespace

bool lower_quantized_convolution(PlanBuilder& builder, const graph::Node& node) {
  const Quantized q(node);
  const auto output = node.outputs[0];
  if (!builder.is_byte(q.x) || !builder.is_byte(q.w) || !builder.is_laid_out(output) ||
      builder.is_constant(q.x) || !builder.is_constant(q.w))
    return false;
  const auto c = read_convolution(builder, node, q.x, q.w);
  if (!c) return false;
  Asked<dnnl::convolution_forward> asked;
  asked.channels = builder.shape(q.w)[0];
  asked.x = with_rank(builder.shape(q.x), builder.shape(q.x).size());
  asked.y = with_rank(builder.shape(output), asked.x.size());
  asked.w = c->weight_source;
  asked.channel_mask = c->weight_dims.size() > asked.x.size() ? 3 : 1;  // groups come first
  asked.bias = {asked.channels};
  asked.layouts = {[](const Dims& dims, DnnlType type) { return channels_last(dims, type); },
                   [](const Dims& dims, DnnlType type) { return Desc(dims, type, memory::format_tag::any); }};
  asked.make = [&](const Desc& x, const Desc& w, const Desc& bias, const Desc& y,
                   const dnnl::primitive_attr& attr) {
    return dnnl::convolution_forward::primitive_desc(
        builder.engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, x, w, bias,
        y, c->strides, c->dilations, c->pads_begin, c->pads_end, attr, /*allow_empty=*/true);
  };
  asked.exactly = [&] { return lower_byte_product(builder, node); };
  return QuantizedProduct<dnnl::convolution_forward>(builder, node, asked).lower();
}

bool lower_quantized_matmul(PlanBuilder& builder, const graph::Node& node) {
  const Quantized q(node);
  const auto output = node.outputs[0];
  if (!builder.is_byte(q.x) || !builder.is_byte(q.w) || !builder.is_laid_out(output)) return false;
  if (!builder.is_constant(q.w)) return lower_changing(builder, node, q);
  if (builder.is_constant(q.x)) return false;
  // Without VNNI oneDNN's product of bytes saturates, and is slower where it is allowed.
  if (!multiplies_bytes_exactly() && lower_byte_product(builder, node)) return true;
  const graph::Shape &x = builder.shape(q.x), &w = builder.shape(q.w);
  if (w.size() != 2 || x.size() < 2) return false;
  const std::int64_t inner = w[0], columns = w[1], rows = builder.type(q.x).elements() / inner;
  Asked<dnnl::matmul> asked;
  asked.axis = 1;
  asked.channels = columns;
  asked.x = {rows, inner};
  asked.y = {rows, columns};
  asked.w = row_major(w, DnnlType::f32);
  asked.channel_mask = 1 << 1;
  asked.bias = {1, columns};
  asked.layouts = {[](const Dims& dims, DnnlType type) { return row_major(dims, type); }};
  asked.make = [&](const Desc& a, const Desc& b, const Desc& bias, const Desc& y,
                   const dnnl::primitive_attr& attr) {
    return bias.is_zero() ? dnnl::matmul::primitive_desc(builder.engine(), a, b, y, attr, true)
                          : dnnl::matmul::primitive_desc(builder.engine(), a, b, bias, y, attr, true);
  };
  asked.exactly = [&] { return lower_byte_product(builder, node); };
  return QuantizedProduct<dnnl::matmul>(builder, node, asked).lower();
}

}  // namespace carillon::engine::cpu
