#pragma once

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// Rewrites `node`, as a file of `opset` has it, to the newest form of its operator: attributes that have
// become inputs turn into constants of `graph`, renamed operators take their new names, defaults that have
// changed are written out. What needs the operands' types (auto_pad, Clip's bounds) is left to inference.
// Errors: an operand that every form needs is missing.
Result<> to_newest_form(Graph& graph, Node& node, int opset);

// The axis from which a Softmax, LogSoftmax or Hardmax of before opset 13 treats its input as a matrix.
inline constexpr const char* matrix_axis = "matrix_axis";

}  // namespace carillon::graph
