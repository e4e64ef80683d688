#include <algorithm>
#include <optional>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

namespace {

struct Pool {
  dnnl::algorithm algorithm = dnnl::algorithm::undef;
  Dims kernel, strides, dilations, pads_begin, pads_end;
};

Pool over_everything(dnnl::algorithm algorithm, const graph::Shape& x) {
  const std::size_t pixels = x.size() - 2;
  return {.algorithm = algorithm,
          .kernel = Dims(x.begin() + 2, x.end()),
          .strides = Dims(pixels, 1),
          .dilations = Dims(pixels, 0),
          .pads_begin = Dims(pixels, 0),
          .pads_end = Dims(pixels, 0)};
}

std::optional<Pool> windowed(const graph::Node& node, const graph::Shape& x, const graph::Shape& y) {
  const std::size_t pixels = x.size() - 2;
  const bool average = node.op == "AveragePool";
  const bool with_pads = node.integer("count_include_pad", 0) != 0;
  Pool p;
  p.algorithm = !average    ? dnnl::algorithm::pooling_max
                : with_pads ? dnnl::algorithm::pooling_avg_include_padding
                            : dnnl::algorithm::pooling_avg_exclude_padding;
  const auto kernel = node.integers("kernel_shape"), strides = node.integers("strides"),
             dilations = node.integers("dilations"), pads = node.integers("pads");
  if (kernel.size() != pixels || strides.size() != pixels || pads.size() != 2 * pixels) return std::nullopt;
  if (!dilations.empty() && dilations.size() != pixels) return std::nullopt;
  p.kernel.assign(kernel.begin(), kernel.end());
  p.strides.assign(strides.begin(), strides.end());
  p.dilations.assign(pixels, 0);
  for (std::size_t i = 0; i < dilations.size(); ++i) p.dilations[i] = dilations[i] - 1;
  p.pads_begin.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(pixels));
  p.pads_end.assign(pads.begin() + static_cast<std::ptrdiff_t>(pixels), pads.end());
  for (std::size_t i = 0; i < pixels; ++i) {
    const std::int64_t reach = (p.dilations[i] + 1) * (p.kernel[i] - 1) + 1;
    const std::int64_t needed = (y[i + 2] - 1) * p.strides[i] + reach - x[i + 2] - p.pads_begin[i];
    if (needed > p.pads_end[i]) {                     // ceil_mode: the last window hangs over
      if (average && with_pads) return std::nullopt;  // ONNX does not count what hangs over
      p.pads_end[i] = needed;
    }
    if (p.pads_begin[i] >= reach || p.pads_end[i] >= reach) return std::nullopt;
  }
  return p;
}

bool is_spatial_mean(PlanBuilder& builder, const graph::Node& node, std::size_t rank) {
  if (node.inputs.size() < 2 || node.inputs[1] == graph::no_value || !builder.is_constant(node.inputs[1]))
    return false;
  const auto given = builder.constant(node.inputs[1])->as<std::int64_t>();
  std::vector<std::int64_t> axes(given.begin(), given.end());
  for (auto& axis : axes)
    if (axis < 0) axis += static_cast<std::int64_t>(rank);
  std::ranges::sort(axes);
  if (axes.size() != rank - 2) return false;
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != static_cast<std::int64_t>(i) + 2) return false;
  return true;
}

}  // namespace

bool lower_pooling(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  const bool bytes = builder.is_byte(input) && builder.is_byte(output) && node.op == "MaxPool";
  if (!bytes && (!builder.is_real(input) || !builder.is_real(output))) return false;
  if (builder.is_constant(input) || !node.post_ops.empty()) return false;
  if (node.outputs.size() > 1 && node.outputs[1] != graph::no_value) return false;  // MaxPool's indices
  const graph::Shape &x = builder.shape(input), &y = builder.shape(output);
  if (x.size() < 3 || x.size() > 5) return false;

  std::optional<Pool> pool;
  if (node.op == "GlobalAveragePool") {
    pool = over_everything(dnnl::algorithm::pooling_avg_exclude_padding, x);
  } else if (node.op == "GlobalMaxPool") {
    pool = over_everything(dnnl::algorithm::pooling_max, x);
  } else if (node.op == "ReduceMean") {
    if (!is_spatial_mean(builder, node, x.size())) return false;
    pool = over_everything(dnnl::algorithm::pooling_avg_exclude_padding, x);
  } else {
    pool = windowed(node, x, y);
  }
  if (!pool) return false;

  Dims full(x.begin(), x.begin() + 2);  // the result before ReduceMean drops dimensions
  if (node.op == "ReduceMean") {
    full.resize(x.size(), 1);
  } else {
    full.assign(y.begin(), y.end());
  }
  const Operand source =
      bytes ? builder.in_layout(input, channels_last(with_rank(x, x.size()), builder.current_type(input)))
            : builder.dense(input);
  const dnnl::pooling_forward::primitive_desc desc(
      builder.engine(), dnnl::prop_kind::forward_inference, pool->algorithm, source.desc,
      Desc(full, source.desc.get_data_type(), dnnl::memory::format_tag::any), pool->strides, pool->kernel,
      pool->dilations, pool->pads_begin, pool->pads_end, PlanBuilder::attributes());
  if (bytes && is_slow(desc.impl_info_str())) return false;
  const dnnl::pooling_forward primitive(desc);
  const Desc made = desc.dst_desc();
  const bool same_shape = std::ranges::equal(full, y);
  const Desc seen = reshaped(made, y);
  if (!seen.is_zero()) {
    Operand result = builder.define(output, is_row_major(made) ? row_major(y, made.get_data_type()) : seen);
    result.desc = made;
    builder.emit(node.name, desc, primitive,
                 PlanBuilder::Arguments{{DNNL_ARG_SRC, source}, {DNNL_ARG_DST, result}});
    if (!bytes && builder.keeps_nan() && pool->algorithm == dnnl::algorithm::pooling_max)
      spread_nan(builder, node.name,
                 SpreadNanKernel::pool(source.desc, made,
                                       {.kernel = pool->kernel,
                                        .strides = pool->strides,
                                        .dilations = pool->dilations,
                                        .pads = pool->pads_begin}),
                 source, result);
    return true;
  }
  if (same_shape) return false;
  const Operand raw = builder.temporary(made);
  builder.emit(node.name, desc, primitive,
               PlanBuilder::Arguments{{DNNL_ARG_SRC, source}, {DNNL_ARG_DST, raw}});
  Operand plain = builder.reordered(node.name, raw, row_major(full, made.get_data_type()));
  plain.desc = row_major(y, made.get_data_type());
  builder.alias(output, plain);
  return true;
}

}  // namespace carillon::engine::cpu
