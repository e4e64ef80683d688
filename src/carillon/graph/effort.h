#pragma once

#include <cstdint>

#include "carillon/base/effort.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// What a run of the graph takes by its shapes. Nodes under guards count as if they ran. O(nodes).
Effort effort_of(const Graph& graph);

// The multiplications and additions of a product, a convolution or a recurrent layer by its shapes; 0 of any
// other node. The node belongs to the graph.
std::uint64_t operations_of(const Graph& graph, const Node& node);

}  // namespace carillon::graph
