#pragma once

#include <span>

#include "carillon/schedule/orloj/company_cost.h"

namespace carillon::schedule::orloj {

// Who may share a batch with a request: those whose solo times lie in [shortest, longest].
struct Company {
  double shortest = 0, longest = 0;

  bool admits(double solo) const { return solo >= shortest && solo <= longest; }
};

// A batch takes as long as if all its requests were as long as its longest, so that short requests may be
// done sooner in a batch of their own: splits requests by their solo times into at most two batches so that
// both together take the least time, and gives the company of the first request. At least one; equal times
// stay together.
Company quickest_company(std::span<const double> solos, const CompanyCost& cost);

}  // namespace carillon::schedule::orloj
