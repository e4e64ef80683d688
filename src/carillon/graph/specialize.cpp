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

bool is_zero(const Tensor& tensor, std::size_t i) {
  const std::size_t size = size_of(tensor.type().type);
  auto bytes = tensor.bytes().subspan(i * size, size);
  // The sign of a floating-point zero is in its last byte.
  const bool floating = belongs(tensor.type().type, TypeClass::floating);
  const std::byte last = floating ? bytes.back() & std::byte{0x7f} : bytes.back();
  return last == std::byte{0} &&
         std::all_of(bytes.begin(), bytes.end() - 1, [](std::byte b) { return b == std::byte{0}; });
}

// Indices of the elements that are not zero, one row a dimension.
Tensor non_zero(const Tensor& tensor) {
  const Shape& shape = tensor.type().shape;
  const auto all = static_cast<std::size_t>(tensor.type().elements());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < all; ++i)
    if (!is_zero(tensor, i)) found.push_back(i);
  const std::size_t rank = shape.size();
  Tensor out(
      TensorType{DataType::i64, {static_cast<std::int64_t>(rank), static_cast<std::int64_t>(found.size())}});
  const auto to = out.as<std::int64_t>();
  for (std::size_t k = 0; k < found.size(); ++k) {
    std::size_t rest = found[k];
    for (std::size_t d = rank; d-- > 0;) {
      const auto extent = static_cast<std::size_t>(shape[d]);
      to[d * found.size() + k] = static_cast<std::int64_t>(rest % extent);
      rest /= extent;
    }
  }
  return out;
}

}  // namespace

Specializer::Specializer(const OnnxGraph& source, Folder& folder) : source_(source), folder_(folder) {
  graph_.values = source.graph.values;
  graph_.inputs = source.graph.inputs;
  graph_.outputs = source.graph.outputs;
  for (std::size_t i = 0; i < graph_.values.size(); ++i)
    now_.push_back(ValueId{static_cast<std::uint32_t>(i)});
  entered_.resize(graph_.values.size(), false);
}

Result<Graph> Specializer::run(const std::vector<Shape>& shapes) {
  CARILLON_ASSERT(shapes.size() == source_.inputs.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Value& value = graph_.value(source_.inputs[i].id);
    value.type = {source_.inputs[i].type, shapes[i]};
    if (auto count = element_count(shapes[i]); !count)
      return in_context("input '" + value.name + "'", count.error());
  }
  for (const Node& node : source_.graph.nodes)
    if (auto ok = enter_source(node); !ok) return std::unexpected(ok.error());
  for (const OnnxGraph::Output& output : source_.outputs) {
    const Value& value = graph_.value(output.id);
    if (output.typed && output.type != value.type.type)
      return invalid("output '" + value.name + "' is declared as " + std::string(onnx_name(output.type)) +
                     ", but the graph makes it " + std::string(onnx_name(value.type.type)));
  }
  return std::move(graph_);
}

Result<> Specializer::enter(Node node) {
  if (node.op == "NonZero" && graph_.is_constant(node.inputs[0])) {
    set_constant(node.outputs[0], non_zero(*graph_.value(node.inputs[0]).constant));
    return {};
  }
  if (node.has(matrix_axis)) return enter_matrix_softmax(std::move(node));
  return infer(std::move(node));
}

Result<> Specializer::infer(Node node) {
  const Operator* op = find_operator(node.op);
  if (op == nullptr) op = find_own_operator(node.op);
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

// Folds the node, or keeps it.
Result<> Specializer::settle(Node node) {
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
