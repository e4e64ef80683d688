#include "carillon/graph/edge_reshape.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "carillon/graph/onnx_import.h"

namespace carillon::graph {
namespace {

ValueId add_value(Graph& graph, std::string name, const TensorType& type) {
  graph.values.push_back({.name = std::move(name), .type = type, .constant = nullptr});
  return ValueId{static_cast<std::uint32_t>(graph.values.size() - 1)};
}

// Reshape(from) -> to, which keeps the batch dimension where there is one.
Node reshape_node(Graph& graph, ValueId from, ValueId to, const EdgeReshape& edge, bool batched) {
  Shape target = edge.is_input ? edge.file : edge.client;
  if (batched) target.insert(target.begin(), 0);  // 0: as it is
  const auto rank = static_cast<std::int64_t>(target.size());
  const ValueId shape = add_value(graph, edge.name + ":shape", {DataType::i64, {rank}});
  graph.value(shape).constant = std::make_shared<const Tensor>(Tensor::of_i64({rank}, target));
  return {.name = "reshape of '" + edge.name + "'", .op = "Reshape", .inputs = {from, shape}, .outputs = {to}};
}

// What the file says of an input, against what the config says that the file has.
Result<> check_rank(const OnnxGraph::Input& input, const EdgeReshape& edge, bool batched) {
  if (!input.ranked) return {};
  const std::size_t skip = batched ? 1 : 0;
  bool fits = input.dimensions.size() == edge.file.size() + skip;
  for (std::size_t d = 0; fits && d < edge.file.size(); ++d) {
    const std::int64_t there = input.dimensions[d + skip].extent;
    fits = there <= 0 || edge.file[d] == -1 || there == edge.file[d];
  }
  if (fits) return {};
  Shape file;
  for (const Dimension& dimension : input.dimensions) file.push_back(dimension.extent);
  return invalid("input '" + edge.name + "': reshape gives the model " + to_text(edge.file) +
                 (batched ? " without the batch dimension" : "") + ", but the file has " + to_text(file) +
                 (batched ? " with it" : ""));
}

Result<> reshape_input(OnnxGraph& source, const EdgeReshape& edge, bool batched) {
  Graph& graph = source.graph;
  const auto at = std::ranges::find_if(
      source.inputs, [&](const OnnxGraph::Input& input) { return graph.value(input.id).name == edge.name; });
  if (at == source.inputs.end())
    return invalid("input '" + edge.name + "' of the config, which has a reshape, is not in the file");
  if (auto ok = check_rank(*at, edge, batched); !ok) return ok;
  // The file's value keeps its place among the nodes that read it, and gives its name to the client's.
  const ValueId inner = at->id;
  const ValueId outer = add_value(graph, edge.name, graph.value(inner).type);
  graph.value(inner).name += ":file";
  std::ranges::replace(graph.inputs, inner, outer);
  std::vector<Dimension> dimensions;
  if (batched) dimensions.push_back(at->ranked ? at->dimensions.front() : Dimension{});
  for (const std::int64_t extent : edge.client) dimensions.push_back({.extent = extent, .symbol = ""});
  at->id = outer;
  at->ranked = true;
  at->dimensions = std::move(dimensions);
  graph.nodes.insert(graph.nodes.begin(), reshape_node(graph, outer, inner, edge, batched));
  return {};
}

Result<> reshape_output(OnnxGraph& source, const EdgeReshape& edge, bool batched) {
  Graph& graph = source.graph;
  const auto at = std::ranges::find_if(source.outputs, [&](const OnnxGraph::Output& output) {
    return graph.value(output.id).name == edge.name;
  });
  if (at == source.outputs.end())
    return invalid("output '" + edge.name + "' of the config, which has a reshape, is not in the file");
  const ValueId inner = at->id;
  const ValueId outer = add_value(graph, edge.name, graph.value(inner).type);
  // An output that is an input as well keeps the name there: clients send it.
  if (std::ranges::find(graph.inputs, inner) == graph.inputs.end()) graph.value(inner).name += ":file";
  std::ranges::replace(graph.outputs, inner, outer);
  at->id = outer;
  graph.nodes.push_back(reshape_node(graph, inner, outer, edge, batched));
  return {};
}

}  // namespace

Result<> reshape_edges(OnnxGraph& source, std::span<const EdgeReshape> edges, bool batched) {
  for (const EdgeReshape& edge : edges)
    if (auto ok = edge.is_input ? reshape_input(source, edge, batched) : reshape_output(source, edge, batched);
        !ok)
      return ok;
  return {};
}

}  // namespace carillon::graph
