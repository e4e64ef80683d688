#pragma once

#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"

namespace carillon::graph {

// What kernels found in the data of one row of a batch that they cannot use: an index out of range, a divisor
// that is zero.
struct Fault {
  int row = 0;  // of the batch; Faults::unknown where the kernel cannot tell
  Error error;  // invalid_argument: names the node, the value, and what would be right
};

// The faults of one run, at most one a row: the first that was found. A kernel that adds one goes on with
// some harmless value in its place, so that the other rows get their results; those of the row mean nothing.
// Not thread-safe. Allocates only where there is a fault.
class Faults {
 public:
  static constexpr int unknown = -1;  // a row, but nobody knows which

  // Whether nothing is known against the row yet, so that add() is worth a text.
  bool is_news(int row) const;
  // Requires is_news(row).
  void add(int row, Error error) { all_.push_back({row, std::move(error)}); }
  // Those of another run (or of another part of one) that are news here.
  void add(const Faults& others);
  void clear() { all_.clear(); }

  bool empty() const { return all_.empty(); }
  std::span<const Fault> all() const { return all_; }
  // What is known against the row; nullptr for nothing.
  const Fault* of(int row) const;

  // Whoever runs kernels stops at a fault whose row is unknown, unless this is true: for made-up data, whose
  // results nobody wants.
  bool results_unwanted = false;

 private:
  std::vector<Fault> all_;
};

}  // namespace carillon::graph
