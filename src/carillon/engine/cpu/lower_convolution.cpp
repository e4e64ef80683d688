#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/engine/cpu/convolution.h"

namespace carillon::engine::cpu {

namespace {

using dnnl::memory;

Dims dims_of(std::span<const std::int64_t> values) {
  return {values.begin(), values.end()};
}

// Whether a convolution of images with such extents may have its channels in blocks: there are enough to fill
// one, or what fills it up goes to other convolutions only.
bool suits_blocks(PlanBuilder& builder, const graph::Node& node, const Dims& x, const Dims& y) {
  if (builder.heavy_type() != DnnlType::f32 || x.size() < 3 || x.size() > 5) return false;
  if (y[1] % 16 == 0) return true;
  if (y[1] < 16 || builder.is_output(node.outputs[0])) return false;
  return std::ranges::all_of(builder.consumers(node.outputs[0]), [&](int n) {
    const std::string& op = builder.node(n).op;
    return op == "Conv" || op == "Add";
  });
}

// "jit:avx512_core" and "brgconv:avx512_core", say.
bool same_instructions(std::string_view a, std::string_view b) {
  return a.substr(std::min(a.size(), a.rfind(':'))) == b.substr(std::min(b.size(), b.rfind(':')));
}

// What decides how long the convolution takes, but for the machine.
template <typename PrimitiveDesc>
std::string key_of(PlanBuilder& builder, const graph::Node& node, const Convolution& c,
                   const PrimitiveDesc& desc, const Desc& weights, const FusedPostOps* fused) {
  std::string key = node.op + " parts " + std::to_string(builder.threads());
  const auto add = [&](const char* name, const Dims& values) {
    key.append(" ").append(name);
    for (const auto value : values) key.append(" ").append(std::to_string(value));
  };
  key += " x " + to_text(desc.src_desc()) + " y " + to_text(desc.dst_desc());
  add("w", c.weight_dims);
  if (weights.get_format_kind() == dnnl::memory::format_kind::blocked) key += " as " + to_text(weights);
  add("strides", c.strides);
  add("dilations", c.dilations);
  add("pads", c.pads_begin);
  if (c.bias != graph::no_value) key += " bias";
  if (fused != nullptr) key += to_text(*fused);
  return key;
}

// An image of one column, as converters write convolutions along one axis, lies in memory as one of one row
// does, and oneDNN's kernels go along rows: they take half the time (AVX-512, 512 channels, 5 taps).
bool is_one_column(const PlanBuilder& builder, const graph::Node& node, const Convolution& c) {
  const graph::Shape &x = builder.shape(node.inputs[0]), &y = builder.shape(node.outputs[0]);
  return !c.transpose && x.size() == 4 && x[2] > 1 && x[3] == 1 && y[3] == 1 && c.weight_dims.back() == 1 &&
         c.pads_begin[1] == 0 && c.pads_end[1] == 0 &&
         std::ranges::all_of(node.post_ops,
                             [](const graph::PostOp& op) { return op.operand == graph::no_value; });
}

void turn_around(Convolution& c) {
  for (Dims* dims : {&c.strides, &c.dilations, &c.pads_begin, &c.pads_end}) std::swap((*dims)[0], (*dims)[1]);
  const std::size_t rank = c.weight_dims.size();
  std::swap(c.weight_dims[rank - 2], c.weight_dims[rank - 1]);
  Dims strides = c.weight_source.get_strides();
  std::swap(strides[rank - 2], strides[rank - 1]);
  c.weight_source = Desc(c.weight_dims, DnnlType::f32, strides);
  c.turned = true;
}

template <typename Primitive, typename Make>
bool lower(PlanBuilder& builder, const graph::Node& node, const Convolution& c, const Make& make) {
  using PrimitiveDesc = typename Primitive::primitive_desc;
  const auto input = node.inputs[0], weight = node.inputs[1], output = node.outputs[0];
  const DnnlType type = builder.heavy_type(), result = builder.result_type(output);
  Dims y = with_rank(builder.shape(output), builder.shape(output).size());
  Dims x = with_rank(builder.shape(input), y.size());
  if (c.turned)
    for (Dims* dims : {&x, &y}) std::swap((*dims)[2], (*dims)[3]);
  // The same bytes in the graph's own shape. An image turned around has its channels last, here and there.
  const auto in_graph = [&](const Desc& desc) {
    Dims dims = desc.get_dims();
    if (!c.turned) return desc;
    std::swap(dims[2], dims[3]);
    return channels_last(dims, desc.get_data_type());
  };
  const Desc any_w(c.weight_dims, type, memory::format_tag::any);

  FusedPostOps fused;
  bool fuse = append_post_ops(builder, node, 0, node.post_ops.size(), y, fused);
  const auto with_ops = [&](const Desc& from, const Desc& w, const Desc& to, const dnnl::post_ops* ops) {
    dnnl::primitive_attr attributes = PlanBuilder::attributes();
    if (ops != nullptr) attributes.set_post_ops(*ops);
    return make(from, w, to, attributes);
  };
  const auto attempt = [&](const Desc& from, const Desc& w, const Desc& to) -> std::optional<PrimitiveDesc> {
    PrimitiveDesc desc = with_ops(from, w, to, fuse ? &fused.ops : nullptr);
    if (!desc || is_slow(desc.impl_info_str())) return std::nullopt;
    return desc;
  };
  // Channels last first: where that is fast it is as fast as any other layout (measured on AVX-512 machines,
  // convolutions of ResNet-50 and MobileNetV2), and one layout throughout needs no reorders.
  const auto choose = [&]() -> std::optional<PrimitiveDesc> {
    if (!c.turned && builder.ways().blocked && suits_blocks(builder, node, x, y)) {
      // A picture's few channels are taken as they lie.
      const bool few = c.weight_dims.size() == x.size() && x[1] < 4;
      auto blocks = attempt(few ? row_major(x, type) : in_blocks(x, type), any_w, in_blocks(y, result));
      if (blocks && !is_by_gemm(blocks->impl_info_str())) return blocks;
    }
    auto last = attempt(channels_last(x, type), any_w, channels_last(y, result));
    if (c.turned || (last && !is_by_gemm(last->impl_info_str()))) return last;
    auto free =
        attempt(Desc(x, type, memory::format_tag::any), any_w, Desc(y, result, memory::format_tag::any));
    return free && !is_by_gemm(free->impl_info_str()) ? free : last ? last : free;
  };
  std::optional<PrimitiveDesc> chosen = choose();
  if (!chosen && fuse && !node.post_ops.empty()) {
    fuse = false;  // an operand that no fast implementation takes
    chosen = choose();
  }
  if (!chosen) return false;
  // The weights as another batch size has them, if that runs the same implementation.
  if (const Desc* known = builder.known_layout(weight, c.weight_dims, type);
      known != nullptr && *known != chosen->weights_desc()) {
    if (auto same = attempt(chosen->src_desc(), *known, chosen->dst_desc());
        same && std::string_view(same->impl_info_str()) == chosen->impl_info_str())
      chosen = same;
  }
  if (Chooser* chooser = builder.ways().chooser; chooser != nullptr && type == DnnlType::f32) {
    const Desc* known = builder.known_layout(weight, c.weight_dims, type);
    const Desc w = known != nullptr && *known == chosen->weights_desc() ? *known : any_w;
    const auto first = [&] {
      return with_ops(chosen->src_desc(), w, chosen->dst_desc(), fuse ? &fused.ops : nullptr);
    };
    const PlanBuilder::Arguments operands = fuse ? fused.arguments : PlanBuilder::Arguments();
    const std::string name = chooser->choose(
        node.name, key_of(builder, node, c, *chosen, w, fuse ? &fused : nullptr), [&] {
          std::vector<Candidate> all{
              builder.candidate<Primitive>(chosen->impl_info_str(), *chosen, operands)};
          PrimitiveDesc desc = first();
          for (bool more = static_cast<bool>(desc); more; more = desc.next_impl()) {
            const std::string_view impl = desc.impl_info_str();
            // Not those of lesser instruction sets: each takes some 20 ms to make, and hardly one ever won.
            if (impl == chosen->impl_info_str() || is_slow(impl) || is_by_gemm(impl) ||
                !same_instructions(impl, chosen->impl_info_str()))
              continue;
            all.push_back(builder.candidate<Primitive>(std::string(impl), desc, operands));
          }
          return all;
        });
    if (PrimitiveDesc desc = first(); !name.empty() && desc && seek(desc, name)) chosen = desc;
  }
  // Up to what would lose NaN, for runs that must not.
  const std::size_t split = fuse ? first_that_loses_nan(builder, node, 0) : node.post_ops.size();
  FusedPostOps kept;
  PrimitiveDesc part;
  if (split < node.post_ops.size()) {
    append_post_ops(builder, node, 0, split, y, kept);
    part = with_ops(chosen->src_desc(), chosen->weights_desc(), chosen->dst_desc(), &kept.ops);
    if (!part) return false;
    (void)seek(part, chosen->impl_info_str());
  }

  Operand from = builder.in_layout(input, in_graph(chosen->src_desc()));
  from.desc = chosen->src_desc();
  PlanBuilder::Arguments arguments{
      {DNNL_ARG_SRC, from},
      {DNNL_ARG_WEIGHTS, builder.packed(weight, c.weight_source, chosen->weights_desc())}};
  if (c.bias != graph::no_value) {
    Operand bias = builder.current(c.bias);
    arguments.emplace_back(DNNL_ARG_BIAS, bias);
  }
  if (!fuse) {
    const Operand raw = builder.temporary(in_graph(chosen->dst_desc()));
    Operand seen = raw;
    seen.desc = chosen->dst_desc();
    arguments.emplace_back(DNNL_ARG_DST, seen);
    builder.emit(node.name, *chosen, Primitive(*chosen), arguments);
    apply_separately(builder, node, 0, raw);
    return true;
  }
  const Operand to = builder.define(output, in_graph(chosen->dst_desc()));
  Operand seen = to;
  seen.desc = chosen->dst_desc();
  arguments.emplace_back(DNNL_ARG_DST, seen);
  const auto with = [&](const FusedPostOps& ops) {
    PlanBuilder::Arguments all = arguments;
    all.insert(all.end(), ops.arguments.begin(), ops.arguments.end());
    return all;
  };
  emit_keeping_nan(
      builder, node, {.first = split, .last = node.post_ops.size()}, to,
      [&] { builder.emit(node.name, *chosen, Primitive(*chosen), with(fused)); },
      [&] { builder.emit(node.name, part, Primitive(part), with(kept)); });
  return true;
}

}  // namespace

std::optional<Convolution> read_convolution(PlanBuilder& builder, const graph::Node& node,
                                            graph::ValueId input, graph::ValueId weight) {
  Convolution c;
  c.transpose = node.op == "ConvTranspose";
  const auto output = node.outputs[0];
  const graph::Shape &x = builder.shape(input), &w = builder.shape(weight), &y = builder.shape(output);
  if (x.size() < 3 || x.size() > 5) return std::nullopt;
  const std::size_t pixels = x.size() - 2;  // spatial dimensions
  const std::int64_t groups = node.integer("group", 1);
  const auto strides = node.integers("strides"), dilations = node.integers("dilations"),
             pads = node.integers("pads");
  if (strides.size() != pixels || dilations.size() != pixels || pads.size() != 2 * pixels)
    return std::nullopt;
  c.strides = dims_of(strides);
  c.dilations = dims_of(dilations);
  for (auto& d : c.dilations) --d;
  c.pads_begin = dims_of(pads.first(pixels));
  c.pads_end = dims_of(pads.last(pixels));

  // Row-major extents of one channel's kernel, then the ONNX order: Conv (O, I/G, kernel), ConvTranspose (I,
  // O/G, kernel).
  Dims kernel(w.begin() + 2, w.end());
  Dims kernel_strides(pixels);
  std::int64_t window = 1;
  for (std::size_t i = pixels; i-- > 0;) {
    kernel_strides[i] = window;
    window *= kernel[i];
  }
  const std::int64_t out = c.transpose ? w[1] : w[0] / groups;  // a group's
  const std::int64_t in = c.transpose ? w[0] / groups : w[1];
  Dims source_strides;
  if (groups > 1) {
    c.weight_dims = {groups, out, in};
    source_strides = c.transpose ? Dims{in * out * window, window, out * window}
                                 : Dims{out * in * window, in * window, window};
  } else {
    c.weight_dims = {out, in};
    source_strides = c.transpose ? Dims{window, out * window} : Dims{in * window, window};
  }
  c.weight_dims.insert(c.weight_dims.end(), kernel.begin(), kernel.end());
  source_strides.insert(source_strides.end(), kernel_strides.begin(), kernel_strides.end());
  c.weight_source = Desc(c.weight_dims, DnnlType::f32, source_strides);

  if (c.transpose) {
    // oneDNN has no output_padding; it is what the end's padding lacks.
    for (std::size_t i = 0; i < pixels; ++i) {
      const std::int64_t reach = (c.dilations[i] + 1) * (kernel[i] - 1) + 1;
      c.pads_end[i] = (x[i + 2] - 1) * c.strides[i] + reach - y[i + 2] - c.pads_begin[i];
    }
  }
  return c;
}

bool lower_convolution(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], weight = node.inputs[1], output = node.outputs[0];
  if (!builder.is_real(input) || !builder.is_real(weight) || !builder.is_real(output)) return false;
  if (!builder.is_constant(weight) || builder.is_constant(input)) return false;
  std::optional<Convolution> c = read_convolution(builder, node, input, weight);
  if (!c) return false;
  if (node.inputs.size() > 2) c->bias = node.inputs[2];
  if (c->bias != graph::no_value && (!builder.is_real(c->bias) || !builder.is_constant(c->bias)))
    return false;
  constexpr auto inference = dnnl::prop_kind::forward_inference;
  const Desc bias = c->bias == graph::no_value ? Desc() : row_major(builder.shape(c->bias), DnnlType::f32);
  if (c->transpose)
    return lower<dnnl::deconvolution_forward>(
        builder, node, *c,
        [&](const Desc& x, const Desc& w, const Desc& y, const dnnl::primitive_attr& attr) {
          return dnnl::deconvolution_forward::primitive_desc(
              builder.engine(), inference, dnnl::algorithm::deconvolution_direct, x, w, bias, y, c->strides,
              c->dilations, c->pads_begin, c->pads_end, attr, /*allow_empty=*/true);
        });
  const auto direct = [&](const Convolution& seen) {
    return lower<dnnl::convolution_forward>(
        builder, node, seen,
        [&](const Desc& x, const Desc& w, const Desc& y, const dnnl::primitive_attr& attr) {
          return dnnl::convolution_forward::primitive_desc(
              builder.engine(), inference, dnnl::algorithm::convolution_direct, x, w, bias, y, seen.strides,
              seen.dilations, seen.pads_begin, seen.pads_end, attr, /*allow_empty=*/true);
        });
  };
  if (is_one_column(builder, node, *c)) {
    Convolution row = *c;
    turn_around(row);
    if (direct(row)) return true;
  }
  return direct(*c);
}

}  // namespace carillon::engine::cpu
