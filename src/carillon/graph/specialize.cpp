#include "carillon/graph/specialize.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/operators.h"
#include "carillon/graph/opset.h"
#include "carillon/graph/shape_inference.h"
#include "carillon/graph/specializer.h"

namespace carillon::graph {
namespace {

constexpr std::size_t most_dimensions = 64;

}  // namespace

Specializer::Specializer(const OnnxGraph& source, Folder& folder) : source_(source), folder_(folder) {
  graph_.values = source.graph.values;
  graph_.inputs = source.graph.inputs;
  graph_.outputs = source.graph.outputs;
  for (std::size_t i = 0; i < graph_.values.size(); ++i)
    now_.push_back(ValueId{static_cast<std::uint32_t>(i)});
  entered_.resize(graph_.values.size(), false);
  find_weights();
}

void Specializer::find_weights() {
  std::vector<bool> otherwise(graph_.values.size(), false);
  only_weights_.resize(graph_.values.size(), false);
  const auto note = [&](auto& self, const Node& node) -> void {
    const bool product = node.op == "Conv" || node.op == "MatMul" || node.op == "Gemm";
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] != no_value)
        (product && i == 1 ? only_weights_ : otherwise)[node.inputs[i].index()] = true;
    for (const Subgraph& body : node.subgraphs) {
      for (const Node& inner : body.nodes) self(self, inner);
      for (const ValueId id : body.outputs) otherwise[id.index()] = true;
    }
  };
  for (const Node& node : source_.graph.nodes) note(note, node);
  for (const ValueId id : source_.graph.outputs) otherwise[id.index()] = true;
  for (std::size_t i = 0; i < otherwise.size(); ++i) only_weights_[i] = only_weights_[i] && !otherwise[i];
}

Result<Graph> Specializer::run(const std::vector<Shape>& shapes) {
  CARILLON_ASSERT(shapes.size() == source_.inputs.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Value& value = graph_.value(source_.inputs[i].id);
    value.type = {source_.inputs[i].type, shapes[i]};
    auto count = element_count(shapes[i]);
    if (!count) return in_context("input '" + value.name + "'", count.error());
    if (*count > 0) continue;
    // Nodes read a constant in its place: what it holds is known.
    const ValueId known = new_value(graph_.value(source_.inputs[i].id).name + ".empty");
    set_constant(known, Tensor({source_.inputs[i].type, shapes[i]}));
    now_[source_.inputs[i].id.index()] = known;
  }
  for (const Node& node : source_.graph.nodes)
    if (auto ok = enter_source(node); !ok) return std::unexpected(ok.error());
  for (const ValueId id : graph_.outputs)
    if (auto ok = choose(id); !ok) return std::unexpected(ok.error());
  for (const OnnxGraph::Output& output : source_.outputs) {
    const Value& value = graph_.value(output.id);
    if (output.typed && output.type != value.type.type)
      return invalid("output '" + value.name + "' is declared as " + std::string(onnx_name(output.type)) +
                     ", but the graph makes it " + std::string(onnx_name(value.type.type)));
  }
  return std::move(graph_);
}

Result<> Specializer::enter(Node node) {
  for (ValueId& id : node.inputs) id = resolved(id);
  if (const ValueId id = find_split(node.inputs); id != no_value)
    return enter_sides(std::move(node), id, true);
  if (node.has(matrix_axis)) return enter_matrix_softmax(std::move(node));
  return infer(std::move(node));
}

Result<> Specializer::infer(Node node) {
  for (ValueId& id : node.inputs) id = resolved(id);
  if (const ValueId id = find_split(node.inputs); id != no_value)
    return enter_sides(std::move(node), id, false);
  if (needs_bounds(node)) return enter_bounded(std::move(node));
  const Operator* op = find_any_operator(node.op);
  CARILLON_ASSERT(op != nullptr && op->infer != nullptr);
  const std::size_t before = graph_.values.size();
  Inference inference(graph_, node);
  if (auto ok = op->infer(inference); !ok) return ok;
  for (std::size_t i = before; i < graph_.values.size(); ++i)
    graph_.values[i].constant = folder_.store().intern(std::move(graph_.values[i].constant));
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == no_value) continue;
    const TensorType& type = inference.results()[i];
    if (auto count = element_count(type.shape); !count) return in_context(describe(node), count.error());
    if (type.shape.size() > most_dimensions)
      return invalid(describe(node) + ": its result has " + std::to_string(type.shape.size()) +
                     " dimensions; at most " + std::to_string(most_dimensions) + " are supported");
    graph_.value(node.outputs[i]).type = type;
  }
  return settle(std::move(node));
}

// Makes constants of the node's results that have no elements. Returns whether the node makes other results as
// well. Such a node still runs, and writes its empty results to values that nothing reads.
bool Specializer::settle_empty(Node& node) {
  const auto empty = [this](ValueId id) { return id != no_value && type_of(id).elements() == 0; };
  const bool others =
      !std::ranges::all_of(node.outputs, [&](ValueId id) { return id == no_value || empty(id); });
  for (ValueId& id : node.outputs) {
    if (!empty(id)) continue;
    const TensorType type = type_of(id);
    const std::string name = graph_.value(id).name;
    set_constant(id, Tensor(type));
    if (!others) continue;
    id = new_value(name + ".empty");
    graph_.value(id).type = type;
  }
  return others;
}

// Folds the node, or keeps it.
Result<> Specializer::settle(Node node) {
  // An Only checks its condition, whatever it passes on, and an Unfit is there to be met.
  if (node.op != "Only" && node.op != "Unfit" && !settle_empty(node)) return {};
  // What joins others without adding to them is left out, so that every engine's own kernel takes the rest.
  if (node.op == "Concat")
    std::erase_if(node.inputs, [this](ValueId id) { return type_of(id).elements() == 0; });
  if (node.op == "Dropout") {
    if (node.outputs.size() > 1 && node.outputs[1] != no_value)
      if (auto ok = enter_mask(node.outputs[1]); !ok) return ok;
    if (node.outputs[0] == no_value) return {};
    node.op = "Identity";
    node.inputs.resize(1);
    node.outputs.resize(1);
  }
  const bool same =
      node.op == "Identity" || (node.op == "Reshape" && type_of(node.inputs[0]) == type_of(node.outputs[0]));
  if (same && graph_.is_constant(node.inputs[0])) {
    graph_.value(node.outputs[0]).constant = graph_.value(node.inputs[0]).constant;
    return {};
  }
  // Products may want the bytes as they are (passes/quantised.cpp).
  if (node.op == "DequantizeLinear" && guard_ < 0 && loops_ == 0 &&
      node.outputs[0].index() < only_weights_.size() && only_weights_[node.outputs[0].index()]) {
    graph_.nodes.push_back(std::move(node));
    return {};
  }
  auto folded = folder_.fold(graph_, node);
  // Bad data matters only where it is used: a branch that is never taken may hold it.
  const bool later = !folded && guard_ >= 0 && folded.error().code == ErrorCode::invalid_argument;
  if (!folded && !later) return std::unexpected(folded.error());
  if (later || !*folded) {
    node.guard = guard_;
    graph_.nodes.push_back(std::move(node));
  }
  return {};
}

void Specializer::set_constant(ValueId id, Tensor tensor) {
  graph_.value(id).type = tensor.type();
  graph_.value(id).constant = folder_.store().intern(std::make_shared<const Tensor>(std::move(tensor)));
}

// At inference a Dropout keeps everything: its mask is true everywhere.
Result<> Specializer::enter_mask(ValueId mask) {
  Node node{.name = graph_.value(mask).name, .op = "Expand", .outputs = {mask}};
  node.inputs = {new_value(node.name + ".one"), new_value(node.name + ".shape")};
  const Shape shape = graph_.value(mask).type.shape;
  set_constant(node.inputs[0], scalar_of(DataType::boolean, 1));
  set_constant(node.inputs[1], Tensor::of_i64({static_cast<std::int64_t>(shape.size())}, shape));
  return infer(std::move(node));
}

ValueId Specializer::new_value(std::string name) {
  graph_.values.push_back({std::move(name), {}, nullptr});
  return ValueId{static_cast<std::uint32_t>(graph_.values.size() - 1)};
}

// Before opset 13: softmax over all dimensions from an axis on, as if they were one.
Result<> Specializer::enter_matrix_softmax(Node node) {
  const Shape shape = type_of(node.inputs[0]).shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  std::int64_t axis = node.integer(matrix_axis, 1);
  node.attributes.erase(matrix_axis);
  if (axis < -rank || axis > rank)
    return invalid(describe(node) + ": axis " + std::to_string(axis) + " is out of range for " +
                   std::to_string(rank) + " dimensions");
  if (axis < 0) axis += rank;
  node.attributes.insert_or_assign("axis", Attribute{std::int64_t{-1}});
  if (axis == rank - 1) return infer(std::move(node));
  if (is_bounded(node.inputs[0]))
    return fail(ErrorCode::unsupported,
                describe(node) + ": data decide the extents of its input, and before opset 13 it takes " +
                    "several dimensions as one; export the model with opset 13 or later");
  // Extents of 1 after the axis do not matter, but it is not worth a case of its own.
  const ValueId flat = new_value(node.name + ".matrix");
  const ValueId result = new_value(node.name + ".result");
  Node before{.name = node.name + "_flatten", .op = "Flatten", .inputs = {node.inputs[0]}, .outputs = {flat}};
  before.attributes.insert_or_assign("axis", Attribute{axis});
  Node after{.name = node.name + "_shape", .op = "Reshape", .inputs = {result}, .outputs = {node.outputs[0]}};
  after.inputs.push_back(new_value(node.name + ".shape"));
  set_constant(after.inputs[1], Tensor::of_i64({rank}, shape));
  after.attributes.insert_or_assign("allowzero", Attribute{std::int64_t{1}});
  node.inputs = {flat};
  node.outputs = {result};
  if (auto ok = infer(std::move(before)); !ok) return ok;
  if (auto ok = infer(std::move(node)); !ok) return ok;
  return infer(std::move(after));
}

Result<Graph> infer_types(const OnnxGraph& source, const std::vector<Shape>& input_shapes, Folder& folder) {
  return Specializer(source, folder).run(input_shapes);
}

}  // namespace carillon::graph
