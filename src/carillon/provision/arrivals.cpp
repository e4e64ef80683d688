#include "carillon/provision/arrivals.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "carillon/base/random.h"
#include "carillon/profile/json_fields.h"

namespace carillon::provision {
namespace {

constexpr std::size_t sampled = 200'000;
constexpr std::uint64_t sample_seed = 0xca11ab1e;
constexpr double least_span_s = 1e-9;
constexpr double least_shape = 0.1, most_shape = 1000;

// Moves the times so that they begin at 0 and have a mean gap of 1.
void normalise(std::vector<double>& times) {
  const double first = times.front();
  const double mean = (times.back() - first) / static_cast<double>(times.size() - 1);
  for (double& t : times) t = (t - first) / mean;
}

template <typename Gap>
Arrivals sample(const std::string& text, Gap gap) {
  Arrivals arrivals{.text = text, .times = {}};
  arrivals.times.reserve(sampled);
  double at = 0;
  for (std::size_t i = 0; i < sampled; ++i) {
    arrivals.times.push_back(at);
    at += gap();
  }
  normalise(arrivals.times);
  return arrivals;
}

bool parse_double(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

std::string_view trimmed(std::string_view line) {
  const auto first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

Result<Arrivals> parse_arrival_times(std::string_view text, std::string_view where) {
  Arrivals arrivals{.text = std::string(where), .times = {}, .recorded = true};
  const auto wrong = [&](std::size_t line, const std::string& what) {
    return invalid(std::string(where) + ":" + std::to_string(line) + ": " + what);
  };
  std::size_t number = 0;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.empty() || line.front() == '#') continue;
    double at = 0;
    const bool read = parse_double(line, at);
    if (!read && line.find("HashFunction") != std::string_view::npos)
      return wrong(number, "holds invocations a minute, but should hold arrival times, one a line");
    if (!read || !(std::abs(at) <= 1e12))
      return wrong(number, "is '" + profile::JsonFields::brief(std::string(line)) +
                               "', but should be an arrival time in seconds, such as 12.75");
    if (!arrivals.times.empty() && at < arrivals.times.back())
      return wrong(number, "is " + std::string(line) +
                               ", which is before the time above; times should be in ascending order");
    if (arrivals.times.size() == most_arrivals)
      return wrong(number, "is one more than 1000000 arrival times; take a part of them");
    arrivals.times.push_back(at);
  }
  if (arrivals.times.size() < least_arrivals)
    return invalid(std::string(where) + ": has " + std::to_string(arrivals.times.size()) +
                   " arrival times, but should have at least " + std::to_string(least_arrivals));
  if (!(arrivals.times.back() - arrivals.times.front() >= least_span_s))
    return invalid(std::string(where) + ": all arrivals are within a nanosecond, so there is no rate");
  normalise(arrivals.times);
  return arrivals;
}

Result<Arrivals> read_arrivals(const std::string& text) {
  if (text == "constant") return sample(text, [] { return 1.0; });
  Random random(sample_seed);
  if (text == "poisson") return sample(text, [&] { return random.exponential(1); });
  if (text.starts_with("gamma:")) {
    double shape = 0;
    if (!parse_double(std::string_view(text).substr(6), shape) ||
        !(shape >= least_shape && shape <= most_shape))
      return invalid("'" + profile::JsonFields::brief(text) +
                     "': the shape should be a number in 0.1..1000, such as gamma:0.5");
    return sample(text, [&] { return random.gamma(shape, 1 / shape); });
  }
  const auto read = profile::read_text(text, "constant, poisson, gamma:SHAPE or a file of arrival times");
  if (!read) return std::unexpected(read.error());
  return parse_arrival_times(*read, text);
}

}  // namespace carillon::provision
