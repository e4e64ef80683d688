#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"

namespace carillon::provision {

// How requests of a workload arrive, apart from their rate.
struct Arrivals {
  std::string text;           // as it was asked for: "poisson", "gamma:0.5", "constant", a file's name
  std::vector<double> times;  // ascending from 0, with a mean gap of 1; at least `least_arrivals`
  // The times are all that there will be (a file), and not a sample of a process.
  bool recorded = false;
};

// Fewer arrivals do not tell a P99.
inline constexpr std::size_t least_arrivals = 100;
inline constexpr std::size_t most_arrivals = 1'000'000;

// A sample of a process: "constant" (equal gaps), "poisson", or "gamma:SHAPE", whose gaps have a Gamma
// distribution of shape 0.1 to 1000 (1 is poisson, below 1 is bursty). The seed is fixed, so that the same
// text gives the same times. Any other text names a file of arrival times: read_arrival_times().
Result<Arrivals> read_arrivals(const std::string& text);

// Arrival times in seconds from any origin, one a line in ascending order; empty lines and lines that begin
// with '#' are left out. 100 to 1,000,000 of them, which take some time. Errors name the file, the line, what
// was there and what would be right.
Result<Arrivals> parse_arrival_times(std::string_view text, std::string_view where);

}  // namespace carillon::provision
