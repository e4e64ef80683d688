#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "carillon/profile/interference.h"

namespace carillon::profile {

enum class FitMethod {
  // As in the paper: plain least squares of milliseconds. Long times decide; a wild sample moves everything.
  igniter,
  // Least squares of relative errors, without samples that do not belong, and within what can be: times
  // are positive, grow with the batch as far as was measured, and end at every share.
  robust,
};

// GPU active time alone at full frequency.
struct ActiveSample {
  int batch = 1;
  double share_pct = 100;
  double active_ms = 0;
};

// k1 to k5 of equation 11. Terms that the samples cannot tell apart are 0: k1 and k2 need three and two batch
// sizes, k4 and k5 three and two shares.
struct ActiveFit {
  double k1 = 0, k2 = 0, k3 = 0, k4 = 0, k5 = 0;
  std::size_t terms = 0;          // that were fitted
  std::vector<std::size_t> kept;  // samples that belong, ascending
};

// For each k4 the other coefficients are linear: one-dimensional search (variable projection, Golub and
// Pereyra 1973). Finds the global minimum as long as the 64 steps of its scan see its valley.
// `share_unit_pct` is the least share that will be asked for (robust only: k4 stays above minus half of it).
//
// Requires samples with positive, finite values. With fewer samples than terms the fit goes through them and
// says nothing: see `terms`.
ActiveFit fit_active(std::span<const ActiveSample> samples, FitMethod method, double share_unit_pct);

}  // namespace carillon::profile
