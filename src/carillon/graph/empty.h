#pragma once

#include "carillon/graph/graph.h"

namespace carillon::graph {

// Takes tensors without elements out of a graph, for engines whose kernels do not expect them: what is empty
// becomes a constant, unless it is an input; nodes that make nothing else go; a Concat goes without its empty
// inputs, and sums over nothing (MatMul, ReduceSum) become zeros. An error (`unsupported`) names another node
// that makes something of an empty tensor. O(nodes); a graph without such tensors stays as it is.
Result<> drop_empty(Graph& graph);

}  // namespace carillon::graph
