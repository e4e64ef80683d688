#include <array>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

namespace {

// The layout that the values have already, as far as they agree.
Desc merged_layout(PlanBuilder& builder, const graph::Node& node) {
  const auto output = node.outputs[0];
  Desc plain = builder.plain_desc(output);
  if (builder.is_output(output)) return plain;
  Desc first;
  for (const auto id : {node.inputs[1], node.inputs[2]}) {
    if (builder.is_constant(id)) continue;
    const Desc desc = builder.current(id).desc;
    if (!is_dense(desc) || desc.get_submemory_offset() != 0) continue;
    if (first.is_zero()) first = desc;
    if (first.get_data_type() != desc.get_data_type()) return plain;
  }
  return first.is_zero() ? plain : first;
}

}  // namespace

// A value goes to where the result is wanted if its branch was taken: two kernels, of which one runs. Where a
// value is read by nobody else the result lies in its place, and one kernel brings the other value there.
bool lower_merge(PlanBuilder& builder, const graph::Node& node) {
  const auto condition = node.inputs[0], output = node.outputs[0];
  const std::array values{node.inputs[2], node.inputs[1]};  // by the condition
  if (values[0] == values[1]) return false;                 // nothing to choose, but never its own copy
  const Desc desc = builder.is_laid_out(output) ? merged_layout(builder, node) : Desc();
  int stays = -1;
  for (const int when : {0, 1}) {
    const auto id = values[static_cast<std::size_t>(when)];
    if (builder.is_output(output) || !builder.is_last_reader(node, id)) continue;
    if (!builder.is_laid_out(output) || same_layout(builder.current(id).desc, desc)) stays = when;
  }
  Operand to;
  if (stays >= 0) {
    builder.take_over(output, values[static_cast<std::size_t>(stays)]);
    to = builder.current(output);
  } else {
    to = builder.define(output, desc);
  }
  for (const int when : {1, 0}) {
    if (when == stays) continue;
    const int around = builder.enter(builder.under(condition, when != 0));
    builder.copy(node.name, values[static_cast<std::size_t>(when)], to);
    builder.enter(around);
  }
  return true;
}

}  // namespace carillon::engine::cpu
