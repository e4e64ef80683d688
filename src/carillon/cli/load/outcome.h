#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "carillon/base/statistics.h"
#include "carillon/base/time.h"

namespace carillon::cli {

// How one request ended, as its client saw it.
enum class Outcome : std::uint8_t {
  on_time,     // a result, by the deadline
  late,        // a result, after it
  refused,     // told that it cannot be on time (HTTP 504, gRPC DEADLINE_EXCEEDED)
  failed,      // any other error
  unanswered,  // none when the run ended
};

struct Answered {
  std::uint32_t model = 0;  // index into the run's models
  Outcome outcome{};
  Duration planned{0};   // planned send time, from the run's start
  Duration sent{0};      // when it really left, from the run's start
  Duration answered{0};  // from the run's start
  Duration latency() const { return answered - planned; }
};

// What is said about one model (or all together) after a run. Latency counts from the planned send time, so
// that a client that falls behind does not hide it.
struct Summary {
  std::string name;
  std::uint64_t sent = 0, on_time = 0, late = 0, refused = 0, failed = 0, unanswered = 0;
  std::uint64_t refused_in_time = 0;  // refusals that came before the deadline
  Duration deadline{0};
  std::vector<Duration> latencies;          // of results
  std::vector<Duration> refusal_latencies;  // of refusals
  std::string first_error;

  void add(const Answered& answered);
};

}  // namespace carillon::cli
