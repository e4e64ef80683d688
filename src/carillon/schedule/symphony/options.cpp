#include "carillon/schedule/symphony/options.h"

#include <charconv>
#include <cstdio>

namespace carillon::schedule {
namespace {

struct Setting {
  std::string_view name;
  double SymphonyOptions::*value;
  double low, high;
};
constexpr Setting settings[] = {
    {"hold", &SymphonyOptions::hold, 0, 1},
    {"least_gain", &SymphonyOptions::least_gain, 0, 10},
    {"leisure", &SymphonyOptions::leisure, 0, 1},
    {"waste", &SymphonyOptions::waste, 0, 1e6},
    {"value", &SymphonyOptions::value, 0, 1e6},
    {"spare", &SymphonyOptions::spare, 0, 1},
    {"fill", &SymphonyOptions::fill, 0, 1},
    {"weigh", &SymphonyOptions::weigh, 0, 1},
    {"limit", &SymphonyOptions::limit, 0, 1},
    {"exceeded", &SymphonyOptions::exceeded, 1e-6, 1},
    {"known_after", &SymphonyOptions::known_after, 0, 1e6},
};

}  // namespace

Result<SymphonyOptions> symphony_options(std::string_view text) {
  SymphonyOptions options;
  const auto complain = [&] {
    std::string known;
    for (const Setting& s : settings) {
      char range[48];
      std::snprintf(range, sizeof range, " (%g to %g)", s.low, s.high);
      known += (known.empty() ? "" : ", ") + std::string(s.name) + range;
    }
    return invalid("scheduler 'symphony:" + std::string(text) +
                   "': write symphony or symphony:NAME=NUMBER,..., where the names are " + known);
  };
  if (text.empty()) return options;
  options.name += ":" + std::string(text);
  for (std::string_view left = text; !left.empty();) {
    const std::string_view one = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), one.size() + 1));
    const auto equals = one.find('=');
    if (equals == std::string_view::npos) return complain();
    const std::string_view number = one.substr(equals + 1);
    const Setting* found = nullptr;
    for (const Setting& s : settings)
      if (s.name == one.substr(0, equals)) found = &s;
    if (found == nullptr) return complain();
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc{} || end != number.data() + number.size() ||
        !(value >= found->low && value <= found->high))
      return complain();
    options.*found->value = value;
  }
  return options;
}

}  // namespace carillon::schedule
