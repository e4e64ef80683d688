#include "carillon/graph/origin.h"

#include <optional>

#include "carillon/graph/faults.h"
#include "carillon/graph/rows.h"

namespace carillon::graph {
namespace {

constexpr int none = -1, several = -2;

// Of each value: the index of the input that it is made of, or one of the two above.
std::vector<int> inputs_of(const Graph& graph) {
  std::vector<int> out(graph.values.size(), none);
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) out[graph.inputs[i].index()] = static_cast<int>(i);
  for (const Node& node : graph.nodes) {
    int from = none;
    const auto add = [&](ValueId id) {
      if (id == no_value || out[id.index()] == none) return;
      from = from == none || from == out[id.index()] ? out[id.index()] : several;
    };
    for (const ValueId id : node.inputs) add(id);
    for (const PostOp& post : node.post_ops) add(post.operand);
    for (const ValueId id : node.outputs)
      if (id != no_value) out[id.index()] = from;
  }
  return out;
}

// Whether the rows are the first digit of an element's place.
bool in_order(const RowState& state, const Shape& shape) {
  if (state.kind != RowState::Kind::rows) return false;
  std::int64_t before = state.layout.outer;
  for (int d = 0; d < state.layout.axis; ++d) before *= shape[static_cast<std::size_t>(d)];
  return before == 1;
}

}  // namespace

int Origin::row_of(std::int64_t at, std::int64_t elements) const {
  if (rows < 1 || elements < rows || elements % rows != 0) return rows == 1 ? 0 : Faults::unknown;
  return static_cast<int>(at / (elements / rows));
}

std::vector<Origin> origins(const Graph& graph, int batch) {
  std::vector<Origin> out(graph.values.size());
  std::optional<RowTrace> trace;
  if (batch > 1) trace.emplace(graph, batch);
  const std::vector<int> inputs = inputs_of(graph);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const ValueId id{static_cast<std::uint32_t>(i)};
    if (batch == 1 && graph.values[i].constant == nullptr) out[i].rows = 1;
    if (trace && in_order(trace->of(id), graph.value(id).type.shape)) out[i].rows = batch;
    if (inputs[i] >= 0) out[i].input = graph.value(graph.inputs[static_cast<std::size_t>(inputs[i])]).name;
  }
  return out;
}

}  // namespace carillon::graph
