#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

// Reshape and Transpose only change how bytes are seen; who cannot read them so gets a reorder in front of
// it.
bool lower_view(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  if (builder.is_constant(input) || !node.post_ops.empty()) return false;
  Operand operand = builder.current(input);
  if (node.op == "Reshape") {
    if (builder.is_real(input) != builder.is_real(output)) return false;  // rank out of oneDNN's range
    if (builder.is_real(input)) {
      Desc seen = reshaped(operand.desc, builder.shape(output));
      if (seen.is_zero()) {
        operand = builder.in_layout(input, row_major(builder.shape(input), operand.desc.get_data_type()));
        seen = reshaped(operand.desc, builder.shape(output));
      }
      operand.desc = seen;
    }
    builder.alias(output, operand);
    return true;
  }
  if (!builder.is_real(input) || builder.shape(input).empty()) return false;
  const auto perm = node.integers("perm");
  std::vector<std::int64_t> order(perm.begin(), perm.end());
  if (order.empty())  // ONNX: all dimensions turned round
    for (std::size_t i = builder.shape(input).size(); i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
  if (order.size() != builder.shape(input).size()) return false;
  const Desc seen = transposed(operand.desc, order);
  if (seen.is_zero()) return false;
  operand.desc = seen;
  builder.alias(output, operand);
  return true;
}

}  // namespace carillon::engine::cpu
