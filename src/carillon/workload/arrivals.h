#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "carillon/base/random.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::workload {

enum class ArrivalKind : std::uint8_t {
  poisson,  // exponential gaps
  gamma,    // gaps with a Gamma distribution of a given shape: below 1 bursty, 1 is poisson, above 1 regular
  uniform,  // equal gaps
  closed,   // not a process in time: N clients, each sends when its last request was answered
};

// How requests arrive, apart from their rate.
struct ArrivalSpec {
  ArrivalKind kind = ArrivalKind::poisson;
  double shape = 1;  // gamma: > 0; the gaps' coefficient of variation is 1/sqrt(shape)
  int clients = 0;   // closed: 1..1,000,000

  friend bool operator==(const ArrivalSpec&, const ArrivalSpec&) = default;
};

// "poisson", "gamma:0.1", "uniform", "closed:16". The error names the text and the forms there are.
Result<ArrivalSpec> parse_arrivals(std::string_view text);
std::string to_text(const ArrivalSpec& spec);

// The gaps between the requests of an open-loop process; the same spec, rate and seed give the same gaps.
//
//   ArrivalProcess arrivals(spec, 200, seed);
//   for (TimePoint at = start + arrivals.next_gap(); at < end; at += arrivals.next_gap()) send(at);
class ArrivalProcess {
 public:
  // Requires an open-loop kind and 0 < requests_per_s <= 1e9.
  ArrivalProcess(const ArrivalSpec& spec, double requests_per_s, std::uint64_t seed);

  // Time from the last request (at first: from the start) to the next; >= 0. Fractions of a nanosecond carry
  // over to the next gap, so a long run keeps its rate.
  Duration next_gap();

 private:
  ArrivalSpec spec_;
  double mean_ns_;
  double carry_ns_ = 0;
  Random random_;
};

}  // namespace carillon::workload
