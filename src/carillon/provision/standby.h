#pragma once

#include <cstdint>
#include <deque>

#include "carillon/base/time.h"

namespace carillon::provision {

struct StandbyOptions {
  Duration slo{0};                          // above 0
  double quantile = 0.99;                   // of requests that must be within the SLO
  Duration look = std::chrono::seconds{1};  // between two looks, each over the time since the last
  Duration second_look = std::chrono::milliseconds{500};  // after a look that found the SLO broken
  std::uint64_t least = 20;  // requests that a look needs; with fewer it waits a while for them
};

// When the standby of a workload takes over from it: where the P99 of the last second broke the SLO, and that
// of the next half a second does so again (iGniter, section 5.3, figure 17). A request that got no answer
// counts as later than any. Once; what comes afterwards is for whoever plans. Pure; not thread-safe.
class StandbyWatch {
 public:
  explicit StandbyWatch(const StandbyOptions& options) : options_(options) {}

  // A request had its outcome: its latency, or max() where it was refused or failed.
  void answered(Duration latency);
  // True where the standby is to take over now. `now` does not go back.
  bool look(TimePoint now);
  // When look() wants to be called next.
  TimePoint next_look() const { return next_; }

  bool suspicious() const { return suspicious_; }
  bool taken_over() const { return taken_over_; }

 private:
  StandbyOptions options_;
  std::uint64_t seen_ = 0, late_ = 0;
  TimePoint next_ = TimePoint::min();
  bool suspicious_ = false;
  bool taken_over_ = false;
};

}  // namespace carillon::provision
