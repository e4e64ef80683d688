#include <algorithm>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

namespace {

using Seen = PlanBuilder::Seen;

std::int64_t elements_in(const Desc& desc) {
  std::int64_t count = 1;
  for (const std::int64_t extent : desc.get_dims()) count *= extent;
  return count;
}

// Without blocks, whose padding would be counted.
Operand unblocked(PlanBuilder& builder, graph::ValueId id) {
  Operand dense = builder.dense(id);
  if (dense.desc.get_inner_nblks() == 0) return dense;
  const Dims dims = dense.desc.get_dims();
  const DnnlType type = builder.current_type(id);
  return builder.in_layout(id, dims.size() > 2 ? channels_last(dims, type) : row_major(dims, type));
}

Seen flat(PlanBuilder& builder, graph::ValueId id, const Operand& operand) {
  return {operand, {builder.type(id).type, {elements_in(operand.desc)}}};
}

// As the node has it: scales, zero points, tables.
Seen as_it_is(PlanBuilder& builder, graph::ValueId id) {
  if (id == graph::no_value) return {};
  return {builder.row_major(id), builder.type(id)};
}

Operand define_like(PlanBuilder& builder, graph::ValueId id, const Desc& layout) {
  return builder.define(id, with_type(layout, builder.plain_desc(id).get_data_type()));
}

bool is_one(PlanBuilder& builder, graph::ValueId id) {
  return id == graph::no_value || builder.type(id).elements() == 1;
}

// Element by element, so wherever they lie: to bytes, from bytes, and by a table.
bool lower_elements(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  if (!builder.is_laid_out(input) || !builder.is_laid_out(output)) return false;
  const bool table = node.op == "ByteLookup";
  for (std::size_t i = 1; i < node.inputs.size() && !table; ++i)
    if (!is_one(builder, node.inputs[i])) return false;
  Operand source = unblocked(builder, input);
  if (builder.is_real(input) && source.desc.get_data_type() != DnnlType::f32)
    source = builder.in_layout(input, with_type(source.desc, DnnlType::f32));
  std::vector<Seen> inputs{flat(builder, input, source)};
  for (std::size_t i = 1; i < node.inputs.size(); ++i) inputs.push_back(as_it_is(builder, node.inputs[i]));
  const Operand result = define_like(builder, output, source.desc);
  return builder.emit_plain_as(node, node.op, inputs, {flat(builder, output, result)});
}

// Of all elements' range; their order does not matter.
bool lower_dynamic(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0];
  if (!builder.is_real(input) || node.outputs.size() != 3) return false;
  if (std::ranges::find(node.outputs, graph::no_value) != node.outputs.end()) return false;
  Operand source = unblocked(builder, input);
  source = builder.in_layout(input, with_type(source.desc, DnnlType::f32));
  const Operand bytes = define_like(builder, node.outputs[0], source.desc);
  std::vector<Seen> outputs{flat(builder, node.outputs[0], bytes)};
  for (const std::size_t i : {1, 2}) {
    const auto id = node.outputs[i];
    outputs.push_back({builder.define(id, builder.plain_desc(id)), builder.type(id)});
  }
  return builder.emit_plain_as(node, node.op, {flat(builder, input, source)}, outputs);
}

// Sums and products; operand 3 may broadcast.
bool lower_arithmetic(PlanBuilder& builder, const graph::Node& node) {
  const auto a = node.inputs[0], b = node.inputs[3], output = node.outputs[0];
  if (!builder.is_byte(a) || !builder.is_laid_out(b) || !builder.is_byte(output)) return false;
  const graph::Shape& y = builder.shape(output);
  if (builder.shape(a) != y) return false;
  Operand left = unblocked(builder, a), right;
  graph::TensorType left_type{builder.type(a).type, {}}, right_type{builder.type(b).type, {}};
  const Dims across = builder.shape(b).size() <= y.size() ? with_rank(builder.shape(b), y.size()) : Dims();
  const auto by_channel = [&] {
    return y.size() > 2 && across.size() == y.size() && across[1] == y[1] &&
           (across[0] == y[0] || across[0] == 1) &&
           std::all_of(across.begin() + 2, across.end(), [](std::int64_t extent) { return extent == 1; });
  };
  if (builder.shape(b) == y) {
    right = builder.in_layout(b, with_type(left.desc, builder.current_type(b)));
    left_type.shape = right_type.shape = {elements_in(left.desc)};
  } else if (builder.type(b).elements() == 1) {
    right = builder.row_major(b);
    left_type.shape = {elements_in(left.desc)};
    right_type.shape = {1};
  } else if (by_channel() &&
             same_layout(left.desc, channels_last(left.desc.get_dims(), left.desc.get_data_type()))) {
    right = builder.row_major(b);
    left_type.shape = {y[0], elements_in(left.desc) / (y[0] * y[1]), y[1]};
    right_type.shape = {across[0], 1, y[1]};
  } else {
    left = builder.row_major(a);
    right = builder.row_major(b);
    left_type.shape = y;
    right_type.shape = builder.shape(b);
  }
  std::vector<Seen> inputs{{left, left_type},
                           as_it_is(builder, node.inputs[1]),
                           as_it_is(builder, node.inputs[2]),
                           {right, right_type}};
  for (const std::size_t i : {4, 5, 6, 7}) inputs.push_back(as_it_is(builder, node.inputs[i]));
  const Operand result = define_like(builder, output, left.desc);
  return builder.emit_plain_as(node, node.op, inputs,
                               {{result, {builder.type(output).type, left_type.shape}}});
}

bool lower_mean(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  if (!builder.is_byte(input) || !builder.is_byte(output) || builder.shape(input).size() < 3) return false;
  const graph::Shape& x = builder.shape(input);
  Operand source = unblocked(builder, input);
  const std::int64_t pixels = elements_in(source.desc) / (x[0] * x[1]);
  const bool last =
      !is_row_major(source.desc) &&
      same_layout(source.desc, channels_last(source.desc.get_dims(), source.desc.get_data_type()));
  if (!last) source = builder.row_major(input);
  graph::Node seen{.name = node.name, .op = node.op, .outputs = node.outputs};
  if (last) seen.attributes.insert_or_assign("channels_last", graph::Attribute{std::int64_t{1}});
  std::vector<Seen> inputs{{source,
                            {builder.type(input).type,
                             last ? graph::Shape{x[0], pixels, x[1]} : graph::Shape{x[0], x[1], pixels}}}};
  for (std::size_t i = 1; i < 5; ++i) inputs.push_back(as_it_is(builder, node.inputs[i]));
  const Operand result = builder.define(output, builder.plain_desc(output));
  return builder.emit_plain_as(
      seen, seen.op, inputs,
      {{result,
        {builder.type(output).type, last ? graph::Shape{x[0], 1, x[1]} : graph::Shape{x[0], x[1], 1}}}});
}

}  // namespace

bool lower_bytes(PlanBuilder& builder, const graph::Node& node) {
  if (builder.is_constant(node.inputs[0])) return false;
  if (node.op == "DynamicQuantizeLinear") return lower_dynamic(builder, node);
  if (node.op == "QLinearAdd" || node.op == "QLinearMul") return lower_arithmetic(builder, node);
  if (node.op == "QLinearGlobalAveragePool") return lower_mean(builder, node);
  return lower_elements(builder, node);
}

}  // namespace carillon::engine::cpu
