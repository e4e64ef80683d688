#pragma once

#include <algorithm>

namespace carillon::schedule::orloj {

// What a batch costs: as much as its longest request alone, and for each further request so much more, which
// grows with the longest, since all are padded to it. Times in any one unit.
//
// The paper has c0 + c1 * k * max(l) (equation 4.3) with l measured alone, by which a batch of one would not
// take what it takes alone. Where a device takes c0 + c1 * k * max(n) for inputs of size n, a request alone
// takes s = c0 + c1 * n, and this is the same thing with extra = -c0 and growth = 1: in terms that can be
// measured.
struct CompanyCost {
  double extra = 0;
  double growth = 1;

  double of(int size, double longest) const {
    return longest + (size - 1) * std::max(0.0, extra + growth * longest);
  }
};

}  // namespace carillon::schedule::orloj
