#pragma once

#include <cstdint>
#include <string>

#include "carillon/base/result.h"
#include "carillon/base/statistics.h"

namespace carillon::cli {

struct SchedulerLoad {
  int models = 64;
  int devices = 64;
  std::int64_t requests = 2'000'000;
  double share = 0.85;     // of what the devices could serve in batches of 16
  double fit = 0;          // the share of the models that a device can hold; 0: all, and nothing needs a LOAD
  bool each = false;       // measure each decision
  int threads = 1;         // of measure_symphony_threads()
  double round_us = 1000;  // likewise
};

struct SchedulerFigures {
  int models = 0, devices = 0;
  std::uint64_t requests = 0, on_time = 0, dropped = 0, decisions = 0, batches = 0;
  double seconds = 0;         // on the wall
  double policy_seconds = 0;  // of them, in the scheduler; 0: not told
  double cpu_seconds = 0;     // of all threads, waiting for each other included
  LatencyHistogram each;      // of thread time, where each decision was measured
};

// Drives a scheduler as a server does, by a dispatch::Dispatch, but in virtual time: Poisson arrivals at
// `share` of what the devices could serve in batches of 16 (l(b) = 1.053 b + 5.072 ms, SLO 25 ms: Symphony's
// ResNet50), everything prepared before the clock starts but the events that follow from the decisions.
// Devices cost no time of their own. The first tenth is not measured. What the scheduler takes by itself is
// measured in a second run. The only error: there is no such policy.
Result<SchedulerFigures> measure_scheduler(const std::string& name, const SchedulerLoad& wanted);

// Symphony on many threads, likewise: a round is `round_us` of virtual time, and follows the last as soon as
// all threads are done.
SchedulerFigures measure_symphony_threads(const SchedulerLoad& wanted);

}  // namespace carillon::cli
