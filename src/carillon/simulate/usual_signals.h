#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::simulate {

// What autoscalers of serving systems usually go by, to compare with provision::Wanted.
enum class UsualSignal : std::uint8_t {
  concurrency,  // open requests (without an outcome yet) for each device (Knative, Ray Serve)
  utilization,  // the share of the time that devices run something (Kubernetes' HPA)
  queue_time,   // seconds from a request's arrival until it runs, of those that were answered (Triton's
                // metric)
};

struct UsualOptions {
  UsualSignal signal{};
  double target = 1;  // above 0: requests a device, a share, or seconds
  int most = 1;       // devices; at least 1
  // The largest number within this time counts (HPA's stabilization window before it scales down).
  Duration quiet = std::chrono::minutes{5};
  double tolerance = 0.1;  // HPA's
};
// "concurrency:4", "utilization:0.7" or "queue:10" (milliseconds). Errors name the text.
Result<UsualOptions> parse_usual(std::string_view text);

// How many devices such an autoscaler wants, by HPA's formula: desired = ceil(current * ratio), where the
// ratio is the measured signal over its target. A ratio within the tolerance of 1 changes nothing. Pure.
class UsualScaler {
 public:
  // All of these only grow.
  struct Counters {
    double open_seconds = 0;     // of requests from their arrival to their outcome
    double busy_seconds = 0;     // of devices
    double waited_seconds = 0;   // of the answered requests, until they ran
    std::uint64_t answered = 0;  // requests
  };
  explicit UsualScaler(const UsualOptions& options) : options_(options) {}

  // `present`: devices that are there; `asked`: what was wanted before. `now` does not go back.
  int look(TimePoint now, int present, int asked, const Counters& counters);

 private:
  UsualOptions options_;
  TimePoint last_{};
  bool begun_ = false;
  Counters before_;
  std::deque<std::pair<TimePoint, int>> numbers_;  // of the quiet time: descending
};

}  // namespace carillon::simulate
