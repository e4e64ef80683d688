#pragma once

#include "carillon/base/effort.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// What a run of the graph takes by its shapes. Nodes under guards count as if they ran. O(nodes).
Effort effort_of(const Graph& graph);

}  // namespace carillon::graph
