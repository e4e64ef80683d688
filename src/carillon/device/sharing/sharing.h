#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::device {

struct SharingOptions {
  int units = 1;      // of the device: 1..1024
  // What a best-effort stream may have in flight: as many launches, and no further one while those take longer
  // than `in_flight_time`. (REEF: 4, section 4.1.)
  int in_flight = 4;              // 1..512
  Duration in_flight_time{20'000};
  // What a launch into a stream that has nothing takes before its kernel starts.
  Duration dispatch{2'000};
  // After an eviction it is known which kernel was the first not to end; else the stream goes back by at most
  // `in_flight` (section 4.3).
  bool knows_kernel = false;
  // Best-effort kernels may outlast the real-time kernel beside which they start, where those after it leave them
  // their units. Without, rule 1 of section 5.2 to the letter.
  bool look_ahead = true;
  bool padding = true;  // best-effort kernels beside real-time ones at all
  // What a kernel may take longer than its table says, relative to it, where a plan depends on it.
  double margin = 0.02;
  // The part of the device's time that best-effort work is given where it has that much to do; 0: none. In [0, 0.9].
  double best_effort_share = 0;
};

// "reef", "rt-only", "sequential", "streams", "wait".
std::span<const std::string_view> sharing_names();

}  // namespace carillon::device
