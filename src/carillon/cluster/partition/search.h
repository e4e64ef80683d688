#pragma once

#include <cstdint>

#include "carillon/cluster/partition/problem.h"

namespace carillon::cluster {

struct SearchOptions {
  // How many exchanges may be weighed. This is the search's only limit, so the same problem, seed and effort
  // give the same division.
  std::int64_t effort = 20'000'000;
  std::uint64_t seed = 1;
};

// A division that is balanced as well as the search can. It starts from the division in force or else places
// the largest models first. Then pairs of groups exchange up to four models each, as long as that helps:
// first what breaks a bound of memory or rate becomes smaller, then the sum of squared deviations, then
// Figures::objective. Where no exchange helps, a few models change places at random, and the search goes on.
//
// Moves cost at most problem.max_move at every step. Where measure() finds the division not feasible, the
// search found none that is.
Division search(const Problem& problem, const SearchOptions& options);

}  // namespace carillon::cluster
