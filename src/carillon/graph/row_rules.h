#pragma once

#include <string_view>

#include "carillon/graph/row_view.h"

namespace carillon::graph {

// How rows go through the operator `op`; null where nobody has said so, and none are kept.
using RowRule = void (*)(RowView&);
RowRule find_row_rule(std::string_view op);

}  // namespace carillon::graph
