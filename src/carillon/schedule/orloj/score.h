#pragma once

#include <span>

#include "carillon/profile/distribution.h"
#include "carillon/schedule/orloj/dynamic_hull.h"

namespace carillon::schedule::orloj {

// The priority of a request at time t as alpha * e^(b*t) + beta (equation 4.2; section 4.4.4), good until the
// time `until`, after which a bin edge is crossed and it has to be made anew. Times are milliseconds from a
// common base.
struct Score {
  DynamicHull::Point point;
  double until = 0;

  double at(double exp_bt) const { return point.alpha * exp_bt + point.beta; }
};

// One step of a cost function: missing `deadline` costs `cost` >= 0 more.
struct CostStep {
  double deadline = 0;
  double cost = 1;
};

// The expected cost that is saved by running at `now` rather than after a delay that is Exp(b), per expected
// millisecond of device time: equation 4.1 for a batch that takes `bins` (milliseconds, by Distribution's
// rules), `mean` on average. A cost function of several steps is the sum of its steps (appendix C.2). b > 0.
//
// For a bin of probability h over [l1, l2) and what is left, s = D - t:
//   s >= l2       adds  c h / ((l2-l1) b mean) * (e^(b(l2-D)) - e^(b(l1-D))) * e^(bt)
//   l1 < s < l2   adds  c h / ((l2-l1) b mean) * (1 - e^(b(l1-D)) * e^(bt))
//   s <= l1       adds  nothing.
Score score_of(std::span<const profile::Distribution::Bin> bins, double mean, std::span<const CostStep> costs,
               double b, double now);

}  // namespace carillon::schedule::orloj
