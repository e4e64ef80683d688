#pragma once

#include "carillon/graph/graph.h"

namespace carillon::graph {

// Whether one of the node's results has no elements, or one of the operands that it computes with. An empty
// list of axes, or an empty operand that counts as absent (Resize's roi), is no such operand.
//
// Few nodes have any: a value without elements is a constant, nodes that make nothing else are gone, and
// those that read nothing else are folded. What is left are parts of a Concat, an LSTM of no steps with a
// state, and the like. Their plain kernels know all forms of them; kernels of other libraries do not.
bool has_empty(const Graph& graph, const Node& node);

}  // namespace carillon::graph
