#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "carillon/graph/graph.h"

namespace carillon::graph {

// Where the rows of a batch are in a tensor: dimension `axis` counts `outer` times `batch` times `inner`, in
// that order, and the middle one is the row. A batch [N,3,8] has {0, 1, 1}; as [N*3,8] it has {0, 1, 3}, and
// transposed to [3,N,8] {1, 1, 1}.
struct RowLayout {
  int axis = 0;
  std::int64_t outer = 1;
  std::int64_t inner = 1;

  friend bool operator==(const RowLayout&, const RowLayout&) = default;
};

// What is known of one value of a graph at a batch of several rows, beside what the same file makes of one
// row alone.
struct RowState {
  enum class Kind : std::uint8_t {
    shared,  // it is the same for every row, and for a row alone
    rows,    // the part of each row is what the graph makes of that row alone; `layout` says where it is
    varies,  // a constant that is another at another batch size
    mixed    // nobody knows: node `culprit` made it, or what it is made of
  };
  Kind kind = Kind::mixed;
  RowLayout layout;
  int culprit = -1;  // index in Graph::nodes; -1: an input that is not led by rows
};

// How the rows of a batch go through `together`, the graph of a model at `batch` rows (>= 2): for each value,
// by the table in row_rules.cpp. What that table does not have is mixed. The inputs' dimension 0 is the rows
// where it is a multiple of `batch`.
//
// With `alone`, the same model's graph at one row, both as infer_types() leaves them: a proof. By induction
// over the nodes, a value of kind `rows` holds in each row's part exactly what `alone` makes of that row, and
// one of kind `shared` is the same there. For that the two graphs must be alike, node by node: operators,
// attributes, operands, and constants, but for those that repeat one thing for each row, and those that only
// say shapes. So nothing that a model makes of its batch size (its shape, loops over it, conditions on it)
// passes. It holds for this batch size and these extents alone; who uses others asks again.
//
// Without `alone` only this is meant: the part of a row is made of that row and of constants. Then graphs may
// be fused, and constants may be anything.
//
// Rows are told apart as far as a kernel computes what its operator says. That 0 times another row's infinity
// is not added is the kernel's affair.
class RowTrace {
 public:
  RowTrace(const Graph& together, std::int64_t batch, const Graph* alone = nullptr);

  const RowState& of(ValueId id) const { return states_[id.index()]; }

  // Of a proof, whether `id` is a batch as clients have it: rows in dimension 0, one after the other.
  bool is_batch(ValueId id) const;
  // Why it is not: which node is in the way, and of what kind it is. Requires !is_batch(id).
  std::string why_not(ValueId id) const;

  // A constant whose contents have this layout: repeated for each row. Without `alone` any constant is.
  bool constant_has(ValueId id, const RowLayout& layout) const;

  const Graph& together() const { return together_; }
  const Graph* alone() const { return alone_; }
  std::int64_t batch() const { return batch_; }

 private:
  void start();
  void enter(int index);
  bool alike(const Node& node, int index) const;
  RowState constant_state(std::size_t id) const;
  RowState state_of_nothing(ValueId id) const;
  bool fits(ValueId id, const RowLayout& layout) const;

  const Graph& together_;
  const Graph* alone_;
  std::int64_t batch_;
  std::vector<RowState> states_;
  int unlike_ = -1;  // the first node at which the two graphs differ
};

// Whether `together`, a model's graph at `batch` rows, makes of each row what `alone`, its graph at one row,
// makes of it: empty where that is proven, else which node is in the way of an output, in words.
std::string why_not_row_by_row(const Graph& alone, const Graph& together, std::int64_t batch);

}  // namespace carillon::graph
