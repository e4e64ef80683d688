#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "carillon/base/result.h"

namespace carillon::schedule {

// One of a policy's numbers, as its options have it.
template <typename Options>
struct Number {
  std::string_view name;
  double Options::*value;
  double low, high;
};

// "hold=0.8,exceeded=1": sets these. The error says what `policy` takes.
template <typename Options>
Result<> set_numbers(std::string_view policy, std::string_view text, std::span<const Number<Options>> numbers,
                     Options& options) {
  const auto complain = [&] {
    std::string known;
    for (const auto& n : numbers) {
      char range[48];
      std::snprintf(range, sizeof range, " (%g to %g)", n.low, n.high);
      known += (known.empty() ? "" : ", ") + std::string(n.name) + range;
    }
    const std::string name(policy);
    return invalid("scheduler '" + name + ":" + std::string(text) + "': write " + name + " or " + name +
                   ":NAME=NUMBER,..., where the names are " + known);
  };
  for (std::string_view left = text; !left.empty();) {
    const std::string_view one = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), one.size() + 1));
    const auto equals = one.find('=');
    if (equals == std::string_view::npos) return complain();
    const std::string_view number = one.substr(equals + 1);
    const auto found = std::ranges::find(numbers, one.substr(0, equals), &Number<Options>::name);
    if (found == numbers.end()) return complain();
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc{} || end != number.data() + number.size() ||
        !(value >= found->low && value <= found->high))
      return complain();
    options.*found->value = value;
  }
  return {};
}

}  // namespace carillon::schedule
