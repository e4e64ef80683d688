#pragma once

#include <atomic>

#include "carillon/base/time.h"

namespace carillon::engine {

// Holds a run to a share of its cores: after a kernel it rests until the CPU time that the running thread has
// used is at most `share` of the time since the run began. So a plan takes 1/share times as long as on its
// own, evenly, whatever else runs: a share of the device in time, as iGniter's shares are in space. A quota
// of the operating system will not do, since its clock ticks only every few milliseconds.
//
// begin() and rest() are the running thread's; set_share() is anybody's, and counts from the next run.
class Pacer {
 public:
  // In (0, 1]; 1: no rest.
  explicit Pacer(double share = 1) : share_(share) {}
  void set_share(double share) { share_.store(share, std::memory_order_relaxed); }
  double share() const { return share_.load(std::memory_order_relaxed); }

  void begin();
  // Between two kernels; short rests are put together until they are worth a sleep.
  void rest();
  // After the last kernel: all that is due.
  void end();

 private:
  void rest(Duration least);

  std::atomic<double> share_;
  double now_ = 1;  // the share of this run
  Duration wall_{0}, cpu_{0};
};

}  // namespace carillon::engine
