#include "carillon/schedule/orloj/split.h"

#include <algorithm>
#include <vector>

#include "carillon/base/assert.h"

namespace carillon::schedule::orloj {

Company quickest_company(std::span<const double> solos, const CompanyCost& cost) {
  CARILLON_ASSERT(!solos.empty());
  const auto time = [&](std::size_t size, double longest) {
    return cost.of(static_cast<int>(size), longest);
  };
  std::vector<double> sorted(solos.begin(), solos.end());
  std::sort(sorted.begin(), sorted.end());
  Company company{sorted.front(), sorted.back()};
  double least = time(sorted.size(), sorted.back());
  for (std::size_t k = 1; k < sorted.size(); ++k) {
    if (sorted[k] == sorted[k - 1]) continue;
    const double both = time(k, sorted[k - 1]) + time(sorted.size() - k, sorted.back());
    if (both >= least) continue;
    least = both;
    company = solos.front() < sorted[k] ? Company{sorted.front(), sorted[k - 1]}
                                        : Company{sorted[k], sorted.back()};
  }
  return company;
}

}  // namespace carillon::schedule::orloj
