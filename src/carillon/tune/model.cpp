#include "carillon/tune/model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

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

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

Result<> check_overheads(double alpha, double beta, std::optional<int> c, std::optional<int> d) {
  if (!(alpha >= 1)) return invalid("alpha is " + number_text(alpha) + ", but must be at least 1");
  if (!(beta >= 1)) return invalid("beta is " + number_text(beta) + ", but must be at least 1");
  const double alpha_end = c && *c > 1 ? static_cast<double>(*c) / (*c - 1) : alpha + 1;
  if (!(alpha < alpha_end))
    return invalid("alpha is " + number_text(alpha) + ", but with c = " + std::to_string(*c) +
                   " must be below c/(c-1) = " + number_text(alpha_end) +
                   ": else one trial fewer on a device is faster");
  const double beta_end = d && *d > 1 ? 1 + 1.0 / *d : beta + 1;
  if (!(beta < beta_end))
    return invalid("beta is " + number_text(beta) + ", but with d = " + std::to_string(*d) +
                   " must be below 1 + 1/d = " + number_text(beta_end) + ": else one device fewer is faster");
  return {};
}

}  // namespace carillon::tune
