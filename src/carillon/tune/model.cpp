#include "carillon/tune/model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

namespace carillon::tune {

double height(double width, double alpha, double beta) {
  if (width < 1) return std::pow(alpha, 1 / width - 1);
  return std::pow(beta, width - 1) / width;
}

int sharers_of(double width) {
  return width < 1 ? static_cast<int>(std::lround(1 / width)) : 1;
}

int packing_limit(double alpha, double threshold, int most) {
  int c = 1;
  while (c < most && 1 - static_cast<double>(c) / (c + 1) * alpha > threshold) ++c;
  return c;
}

int packing_limit(std::span<const double> times, double threshold, int most) {
  int c = 1;
  while (c < most && static_cast<std::size_t>(c) < times.size() &&
         1 - static_cast<double>(c) / (c + 1) * times[static_cast<std::size_t>(c)] /
                     times[static_cast<std::size_t>(c) - 1] >
             threshold)
    ++c;
  return c;
}

int scaling_limit(double beta, int most) {
  int d = 1;
  while (d < most && beta * d < d + 1) ++d;
  return d;
}

Result<> check_overheads(double alpha, double beta, std::optional<int> c, std::optional<int> d) {
  if (!(alpha >= 1)) return invalid(fmt::format("alpha is {:g}, but must be at least 1", alpha));
  if (!(beta >= 1)) return invalid(fmt::format("beta is {:g}, but must be at least 1", beta));
  if (c && *c > 1 && !(alpha < static_cast<double>(*c) / (*c - 1)))
    return invalid(
        fmt::format("alpha is {:g}, but with c = {} must be below c/(c-1) = {:g}: else one trial "
                    "fewer on a device is faster",
                    alpha, *c, static_cast<double>(*c) / (*c - 1)));
  if (d && *d > 1 && !(beta < 1 + 1.0 / *d))
    return invalid(
        fmt::format("beta is {:g}, but with d = {} must be below 1 + 1/d = {:g}: else one device "
                    "fewer is faster",
                    beta, *d, 1 + 1.0 / *d));
  return {};
}

}  // namespace carillon::tune
