#pragma once

#include <optional>

#include "carillon/cluster/partition/problem.h"

namespace carillon::cluster {

struct Proof {
  std::optional<Division> division{};  // feasible
  double bound = 0;                    // no division's objective is below
  bool infeasible = false;             // there is no feasible division
};

// Solves appendix A's mixed integer program with COIN-OR's CBC, starting from a feasible division where one
// is known. Without a division in force groups are alike: the n-th largest model is in one of the first n.
//
// Where CBC is not on the machine (Cbc::find()), nothing is proved. CBC reads the clock. Where it reaches the
// limit of `seconds`, division and bound are what it has by then. It counts to a ten millionth of a mean, so
// a bound is exact to less than `tolerance`. Programs of more than `most_cells` models times groups are
// beyond it, and are given back unsolved.
Proof prove(const Problem& problem, const std::optional<Division>& from, double seconds);

inline constexpr std::size_t most_cells = 50'000;

}  // namespace carillon::cluster
