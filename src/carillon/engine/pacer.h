#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

#include "carillon/base/time.h"

namespace carillon::engine {

// Holds a run to a share of its cores: after a kernel it rests until the CPU time that the running thread has
// used for kernels is at most `share` of the time since the run began. So a plan takes 1/share times as long
// as on its own, evenly, whatever else runs: a share of the device in time, as iGniter's shares are in space.
// A quota of the operating system will not do, since its clock ticks only every few milliseconds.
//
// Going to sleep and waking up is not the plan's time. If it were, a rest would ask for another after it,
// which at a share below a percent, or on a machine that is busy, is the longer one.
//
// begin() and rest() are the running thread's; set_share() is anybody's, and counts from the next run.
class Pacer {
 public:
  // In (0, 1]; 1: no rest.
  explicit Pacer(double share = 1) : share_(share) {}
  void set_share(double share) { share_.store(share, std::memory_order_relaxed); }
  double share() const { return share_.load(std::memory_order_relaxed); }

  void begin();
  // Between two kernels; short rests are put together until they are worth a sleep. Ends early where
  // `stopped` comes true, which is asked every millisecond.
  template <typename Stopped>
  void rest(Stopped stopped) {
    rest_for(worth_a_sleep, stopped);
  }
  // After the last kernel: all that is due.
  template <typename Stopped>
  void end(Stopped stopped) {
    rest_for(Duration{0}, stopped);
  }

 private:
  static constexpr Duration worth_a_sleep = std::chrono::microseconds{100};
  static constexpr Duration slice = std::chrono::milliseconds{1};

  // Until when the run is to rest, and now, on the machine's clock; and the CPU time that the thread has
  // used.
  Duration rest_until(Duration cpu) const;
  static Duration now();
  static Duration cpu_time();
  static void sleep(Duration time);
  template <typename Stopped>
  void rest_for(Duration least, Stopped stopped) {
    if (now_ >= 1) return;
    const Duration cpu = cpu_time();
    const Duration until = rest_until(cpu);
    Duration left = until - now();
    if (left <= least) return;
    for (; left > Duration{0} && !stopped(); left = until - now()) sleep(std::min(left, slice));
    cpu_ += cpu_time() - cpu;
  }

  std::atomic<double> share_;
  double now_ = 1;    // the share of this run
  Duration wall_{0};  // when it began
  Duration cpu_{0};   // the thread's CPU time that is not its kernels': before it, and while it rested
};

}  // namespace carillon::engine
