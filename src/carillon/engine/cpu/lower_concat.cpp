#include <algorithm>
#include <numeric>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

namespace {

// The layout of `desc` for other extents; row-major where its blocks do not divide them.
Desc layout_like(const Desc& desc, const Dims& dims) {
  using Tag = dnnl::memory::format_tag;
  const DnnlType type = desc.get_data_type();
  const Dims own = desc.get_dims();
  if (desc.get_inner_nblks() != 0) {
    for (const Tag tag : {Tag::nCw16c, Tag::nChw16c, Tag::nCdhw16c}) {
      const std::size_t rank = tag == Tag::nCw16c ? 3 : tag == Tag::nChw16c ? 4 : 5;
      if (own.size() == rank && dims[1] % 16 == 0 && desc == Desc(own, type, tag))
        return Desc(dims, type, tag);
    }
    return row_major(dims, type);
  }
  std::vector<std::size_t> order(dims.size());  // outermost first
  std::iota(order.begin(), order.end(), std::size_t{0});
  const Dims strides = desc.get_strides();
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  Dims made(dims.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    made[order[i]] = stride;
    stride *= dims[order[i]];
  }
  return Desc(dims, type, made);
}

}  // namespace

bool lower_concat(PlanBuilder& builder, const graph::Node& node) {
  const auto output = node.outputs[0];
  if (!builder.is_real(output) || !node.post_ops.empty()) return false;
  const graph::Shape& y = builder.shape(output);
  std::vector<graph::ValueId> parts;
  for (const auto id : node.inputs)
    if (builder.type(id).elements() > 0) parts.push_back(id);
  if (!std::ranges::all_of(parts, [&](auto id) { return builder.is_real(id); })) return false;
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
