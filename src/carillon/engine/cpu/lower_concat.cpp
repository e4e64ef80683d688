#include <algorithm>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

bool lower_concat(PlanBuilder& builder, const graph::Node& node) {
  const auto output = node.outputs[0];
  if (!builder.is_laid_out(output) || !node.post_ops.empty()) return false;
  const graph::Shape& y = builder.shape(output);
  std::vector<graph::ValueId> parts;
  for (const auto id : node.inputs)
    if (builder.type(id).elements() > 0) parts.push_back(id);
  if (!std::ranges::all_of(parts, [&](auto id) { return builder.is_laid_out(id); })) return false;
  // The largest part's layout is everyone's, unless blocks get in the way.
  const auto largest = *std::ranges::max_element(
      parts, {}, [&](auto id) { return builder.is_constant(id) ? -1 : builder.type(id).elements(); });
  if (builder.is_constant(largest)) return false;
  Desc model = builder.dense(largest).desc;
  const auto fits = [&](auto id) {
    return layout_like(model, with_rank(builder.shape(id), y.size())).get_inner_nblks() ==
           model.get_inner_nblks();
  };
  if (!std::ranges::all_of(parts, fits)) model = row_major(model.get_dims(), model.get_data_type());

  std::vector<Operand> operands;
  std::vector<Desc> sources;
  for (const auto id : parts) {
    operands.push_back(builder.in_layout(id, layout_like(model, with_rank(builder.shape(id), y.size()))));
    sources.push_back(operands.back().desc);
  }
  std::int64_t axis = node.integer("axis", 0);
  if (axis < 0) axis += static_cast<std::int64_t>(y.size());
  const Desc target = layout_like(model, with_rank(y, y.size()));
  const auto make = [&] {
    return dnnl::concat::primitive_desc(builder.engine(), target, static_cast<int>(axis), sources,
                                        PlanBuilder::attributes());
  };
  const dnnl::concat::primitive_desc desc = make();
  const dnnl::concat primitive(desc);
  PlanBuilder::Arguments arguments;
  for (std::size_t i = 0; i < operands.size(); ++i)
    arguments.emplace_back(DNNL_ARG_MULTIPLE_SRC + static_cast<int>(i), operands[i]);
  arguments.emplace_back(DNNL_ARG_DST, builder.define(output, target));
  builder.emit(node.name, desc, primitive, arguments, make);
  return true;
}

}  // namespace carillon::engine::cpu
