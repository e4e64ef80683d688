#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/effort.h"
#include "carillon/base/time.h"

namespace carillon::workload {

// One mode of a model whose time depends on its input: a request's own time is drawn from a normal
// distribution (held above zero), the mode by its weight; `app` names the application that such requests come
// from.
struct LatencyMode {
  Duration mean;
  Duration deviation{0};
  double weight = 1;
  std::string app;
};

// How long a batch takes on a device: a table by batch size (linear between its sizes and beyond the last),
// or, with modes, c0 + c1 * k * max of the requests' own times.
struct LatencyModel {
  std::vector<std::pair<int, Duration>> table;  // ascending by batch; one entry at least, or modes
  Duration alpha{0}, beta{0};                   // alpha * k + beta, where `linear`
  bool linear = false;
  std::vector<LatencyMode> modes;
  Duration c0{0};
  double c1 = 1;
  bool sized = false;  // requests tell what they take alone, as those of an open model tell their size

  // Of a batch of `k` >= 1 whose longest request takes `longest` by itself (ignored without modes).
  Duration batch_time(int k, Duration longest = Duration{0}) const;
  // The size of a request that takes so long alone, where requests tell it.
  static Effort effort_of(Duration alone) {
    return {.operations = 0, .bytes = static_cast<std::uint64_t>(alone.count())};
  }
  // What a scheduler is told before it has seen a request: with modes, `longest` is the mean of the modes.
  Duration expected(int k) const;
  // The 99th percentile of one request's time: with modes, of its own time; else, of a batch of one.
  Duration p99_of_one() const;
};

}  // namespace carillon::workload
