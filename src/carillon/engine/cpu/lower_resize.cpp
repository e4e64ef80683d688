#include <algorithm>
#include <string_view>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

namespace {

// Whether the result's pixels are where oneDNN has them: it knows no coordinates but half_pixel, by the ratio
// of the extents.
bool is_resampling(PlanBuilder& builder, const graph::Node& node, bool linear) {
  const graph::Shape &x = builder.shape(node.inputs[0]), &y = builder.shape(node.outputs[0]);
  if (x.size() < 3 || x.size() > 5 || y.size() != x.size() || x[0] != y[0] || x[1] != y[1]) return false;
  if (!node.integers("axes").empty() || node.integer("antialias", 0) != 0) return false;
  const std::string_view coordinates = node.text("coordinate_transformation_mode", "half_pixel");
  const bool half = coordinates == "half_pixel" || coordinates == "pytorch_half_pixel";
  const std::string_view rounding = node.text("nearest_mode", "round_prefer_floor");
  const bool rounds = half && rounding.starts_with("round_prefer_");
  // Below, only axes that grow are taken, and there these two round alike.
  const bool floor = coordinates == "asymmetric" && (rounding == "floor" || rounding == "ceil_of_less");
  if (linear ? !half : !rounds && !floor) return false;
  for (std::size_t d = 2; d < x.size(); ++d) {
    // Of whole factors both forms of rounding give the same.
    if (!linear && y[d] % x[d] != 0) return false;
    if (coordinates == "pytorch_half_pixel" && y[d] == 1) return false;
  }
  if (node.inputs.size() < 3 || node.inputs[2] == graph::no_value ||
      builder.type(node.inputs[2]).elements() == 0)
    return true;
  if (!builder.is_constant(node.inputs[2]) || !builder.is_real(node.inputs[2])) return false;
  const auto scales = builder.constant(node.inputs[2])->as<float>();
  if (scales.size() != x.size()) return false;
  for (std::size_t d = 0; d < x.size(); ++d)
    if (scales[d] * static_cast<float>(x[d]) != static_cast<float>(y[d])) return false;
  return true;
}

}  // namespace

bool lower_resize(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  const std::string_view mode = node.text("mode", "nearest");
  const bool linear = mode == "linear";
  if ((!linear && mode != "nearest") || !node.post_ops.empty() || builder.is_constant(input)) return false;
  if (!builder.is_laid_out(input) || !builder.is_laid_out(output) || (linear && !builder.is_real(input)))
    return false;
  if (!is_resampling(builder, node, linear)) return false;
  const DnnlType type = builder.current_type(input);
  const graph::Shape &x = builder.shape(input), &y = builder.shape(output);
  const Desc from = channels_last(with_rank(x, x.size()), type),
             to = channels_last(with_rank(y, y.size()), type);
  const auto make = [&] {
    return dnnl::resampling_forward::primitive_desc(
        builder.engine(), dnnl::prop_kind::forward_inference,
        linear ? dnnl::algorithm::resampling_linear : dnnl::algorithm::resampling_nearest, from, to,
        PlanBuilder::attributes());
  };
  const auto desc = make();
  if (is_slow(desc.impl_info_str())) return false;
  const Operand source = builder.in_layout(input, from);
  const Operand result = builder.define(output, to);
  builder.emit(node.name, desc, dnnl::resampling_forward(desc),
               PlanBuilder::Arguments{{DNNL_ARG_SRC, source}, {DNNL_ARG_DST, result}}, make);
  return true;
}

}  // namespace carillon::engine::cpu
