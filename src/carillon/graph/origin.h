#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "carillon/graph/graph.h"

namespace carillon::graph {

// Whose data a value is made of.
struct Origin {
  // The value's elements fall into so many equal parts, in order, and part r is made of row r of the inputs
  // and of constants alone. 0: that is not so, or nobody knows.
  int rows = 0;
  // The name of the one graph input that it is made of; empty where there are several, or none.
  std::string input;

  // The row that element `at` of a tensor of `elements` belongs to, or Faults::unknown.
  int row_of(std::int64_t at, std::int64_t elements) const;
};

// Of each value of `graph`, which is at a batch of `batch` rows (every input's dimension 0, unless it is 1).
// Errs to one side: rows is 0 wherever an operator is not known to keep rows apart (RowTrace), or a branch of
// the model decides whether the value is made. Of a batch of one everything is row 0's.
std::vector<Origin> origins(const Graph& graph, int batch);

}  // namespace carillon::graph
