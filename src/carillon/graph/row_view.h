#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/graph/rows.h"

namespace carillon::graph {

// One node, as a rule of row_rules.cpp sees it. The rule says here how the node's results are laid out; a
// result that it leaves out is mixed. No operand is mixed, and one at least has rows.
class RowView {
 public:
  RowView(const RowTrace& trace, int index);

  const Node& node() const { return node_; }
  std::int64_t batch() const { return trace_.batch(); }
  std::size_t inputs() const { return node_.inputs.size(); }
  std::size_t outputs() const { return node_.outputs.size(); }
  bool present(std::size_t i) const { return i < node_.inputs.size() && node_.inputs[i] != no_value; }
  const Shape& shape(std::size_t i) const;      // of an operand; requires present(i)
  const Shape& out_shape(std::size_t i) const;  // of a result that is there
  std::int64_t elements(std::size_t i) const;   // of an operand

  // The rows of operand `i`; null where it has none.
  const RowLayout* rows(std::size_t i) const;
  // Whether the operand is absent, or the same for all rows.
  bool fixed(std::size_t i) const;
  bool fixed_from(std::size_t first) const;  // operand `first` and all behind it
  // Whether the operand has these rows, be it as a constant that repeats for each.
  bool has(std::size_t i, const RowLayout& layout) const;
  // The whole numbers of a constant operand; nothing where it is none.
  std::optional<std::vector<std::int64_t>> numbers(std::size_t i) const;
  // The same operand where one row is alone; without that graph, as here.
  std::optional<std::vector<std::int64_t>> numbers_alone(std::size_t i) const;
  const Shape& shape_alone(std::size_t i) const;
  // Of operand `i`, a constant of indices into a dimension that has rows as `data` says: where its own rows
  // are, if each of them points into the same row of the data alone, and there at what it points at where one
  // row is alone. So exporters write a look-up within rows: row times length and place, in one list of all
  // rows. `coordinate`: the last dimension holds coordinates, of which that one is the index, and the others
  // are to be as they are alone; -1: all elements are indices.
  std::optional<RowLayout> own_rows(std::size_t i, const RowLayout& data, int coordinate = -1) const;
  std::optional<std::vector<float>> reals(std::size_t i) const;  // of a constant operand of floats
  // Whether the operand broadcasts to a result of `rank` dimensions with these rows, each row to its own.
  bool broadcasts(std::size_t i, const RowLayout& result, std::size_t rank) const;
  std::vector<const TensorType*> types() const;  // of all operands; null where absent
  bool proves() const { return trace_.alone() != nullptr; }

  void set(std::size_t output, const RowLayout& layout) { results_[output] = layout; }
  void set_all(const RowLayout& layout) {
    for (auto& result : results_) result = layout;
  }
  const std::vector<std::optional<RowLayout>>& results() const { return results_; }

 private:
  bool points_at_own(std::size_t i, const RowLayout& own, const RowLayout& data, int coordinate) const;
  std::optional<std::vector<std::int64_t>> numbers_of(const Graph& graph, std::size_t i) const;

  const RowTrace& trace_;
  const Node& node_;
  std::vector<std::optional<RowLayout>> results_;  // of each output
};

// Whether rows stay apart where an operand broadcasts to a result of `rank` dimensions with this layout: each
// row gets its own part of the operand, or all rows get the same.
bool broadcasts_by_rows(const RowTrace& trace, ValueId operand, const RowLayout& result, std::size_t rank);

}  // namespace carillon::graph
