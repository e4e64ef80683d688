#include "carillon/workload/arrivals.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "carillon/base/assert.h"

namespace carillon::workload {
namespace {

constexpr double longest_gap_ns = 1e18;  // some thirty years: keeps sums of a few gaps within the timeline

std::unexpected<Error> bad_arrivals(std::string_view text, std::string_view why) {
  return invalid("arrival process '" + std::string(text) + "': " + std::string(why) +
                 "; write poisson, gamma:SHAPE (such as gamma:0.1), uniform, or closed:CLIENTS (such as "
                 "closed:16)");
}

template <typename Number>
bool parse_number(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

}  // namespace

Result<ArrivalSpec> parse_arrivals(std::string_view text) {
  ArrivalSpec spec;
  const auto colon = text.find(':');
  const auto kind = text.substr(0, colon);
  const bool has_value = colon != std::string_view::npos;
  const auto value = has_value ? text.substr(colon + 1) : std::string_view{};
  if (kind == "poisson" || kind == "uniform") {
    if (has_value) return bad_arrivals(text, "takes no value");
    spec.kind = kind == "poisson" ? ArrivalKind::poisson : ArrivalKind::uniform;
    return spec;
  }
  if (kind == "gamma") {
    spec.kind = ArrivalKind::gamma;
    if (!parse_number(value, spec.shape)) return bad_arrivals(text, "the shape is not a number");
    if (!(spec.shape >= 1e-3 && spec.shape <= 1e6))
      return bad_arrivals(text, "the shape must lie in 0.001..1000000");
    return spec;
  }
  if (kind == "closed") {
    spec.kind = ArrivalKind::closed;
    if (!parse_number(value, spec.clients))
      return bad_arrivals(text, "the number of clients is not a whole number");
    if (spec.clients < 1 || spec.clients > 1'000'000)
      return bad_arrivals(text, "the number of clients must lie in 1..1000000");
    return spec;
  }
  return bad_arrivals(text, "no such process");
}

std::string to_text(const ArrivalSpec& spec) {
  switch (spec.kind) {
    case ArrivalKind::poisson:
      return "poisson";
    case ArrivalKind::gamma: {
      char shape[32];
      std::snprintf(shape, sizeof shape, "gamma:%g", spec.shape);
      return shape;
    }
    case ArrivalKind::uniform:
      return "uniform";
    case ArrivalKind::closed:
      return "closed:" + std::to_string(spec.clients);
  }
  CARILLON_ASSERT(!"an arrival kind outside the enumeration");
}

ArrivalProcess::ArrivalProcess(const ArrivalSpec& spec, double requests_per_s, std::uint64_t seed)
    : spec_(spec), mean_ns_(1e9 / requests_per_s), random_(seed) {
  CARILLON_ASSERT(spec.kind != ArrivalKind::closed);
  CARILLON_ASSERT(requests_per_s > 0 && requests_per_s <= 1e9);
}

Duration ArrivalProcess::next_gap() {
  double gap = mean_ns_;
  switch (spec_.kind) {
    case ArrivalKind::poisson:
      gap = random_.exponential(mean_ns_);
      break;
    case ArrivalKind::gamma:
      gap = random_.gamma(spec_.shape, mean_ns_ / spec_.shape);
      break;
    case ArrivalKind::uniform:
    case ArrivalKind::closed:
      break;
  }
  gap = std::min(gap, longest_gap_ns) + carry_ns_;
  const double whole = std::floor(gap);
  carry_ns_ = gap - whole;
  return Duration{static_cast<std::int64_t>(whole)};
}

}  // namespace carillon::workload
