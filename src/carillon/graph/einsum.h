#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// What an Einsum of one or two operands asks for, as nested loops: one a label, those of the result first, in
// its order, then those that are summed over. A label of an ellipsis's dimension counts as any other.
struct Einsum {
  static constexpr int most_labels = 16;

  struct Label {
    std::int64_t extent = 1;
    std::array<std::int64_t, 2>
        stride{};  // of each operand, in elements; 0 where it lacks the label or repeats along it
  };
  std::array<Label, most_labels> labels{};
  int kept = 0;   // labels of the result
  int count = 0;  // all labels

  Shape result() const;
};

// Reads the attribute `equation` of `node` with operands of `types`. Allocates nothing unless it fails.
// Errors: an equation that is not one, operands that it does not fit, more than two of them, more than 16
// labels.
Result<Einsum> einsum_of(const Node& node, std::span<const TensorType* const> types);

}  // namespace carillon::graph
