#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/research/sharing/sharing.h"
#include "carillon/research/unit_device.h"

namespace carillon::research::testing {

// Watches what units do, and says which promise was broken first. It keeps its own account, from what it is
// told of rounds alone:
// - units are never over-booked, and a launch never has more than it was given, nor deeper;
// - launches of a stream run one after the other, in the order in which they were made;
// - each kernel's blocks run to their end exactly once since the run was last evicted, in order; an eviction
// goes back
//   by no more than it may;
// - each run that was asked for finishes exactly once, after its last kernel's last block, one at a time in
// its queue;
// - what is killed was being evicted, and nothing of a stream runs while it has been evicted;
// - (one_real_time) no two real-time runs are on the device at a time.
class UnitChecker final : public UnitObserver {
 public:
  struct Rules {
    int units = 1;
    int back = 0;  // kernels that an eviction may go back from the last that was launched
    bool one_real_time = true;
  };
  // `plans`: of the sharing that is watched, by id.
  UnitChecker(const Rules& rules, std::vector<KernelPlan> plans);

  void run_asked(Queue, const RunSpec&, Class, TimePoint) override;
  void run_finished(Queue, std::uint64_t run, TimePoint) override;
  void evicting(Queue, bool kill, TimePoint) override;
  void evicted(Queue, TimePoint) override;
  void round_started(Queue, const ShareCommand&, int units, int blocks, TimePoint at, TimePoint end) override;
  void round_ended(Queue, const ShareCommand&, int units, int blocks, TimePoint started,
                   TimePoint at) override;
  void round_killed(Queue, const ShareCommand&, int units, int blocks, TimePoint started,
                    TimePoint at) override;
  void launch_ended(Queue, const ShareCommand&, TimePoint at) override;
  void launch_killed(Queue, const ShareCommand&, TimePoint at) override;

  // The first that was broken, with the time; empty: none.
  const std::string& broken() const { return broken_; }
  std::uint64_t finished() const { return finished_; }
  std::uint64_t kills() const { return kills_; }

 private:
  struct Account {
    bool asked = false;  // a run is open
    bool on_device = false;
    Class cls{};
    RunSpec spec;
    int kernel = 0, first = 0;  // where it is
    bool was_evicted = false;   // since its last launch ended or began
    bool evicting = false, killing = false;
    bool runs = false;  // a launch is under way:
    ShareCommand launch;
    int units = 0, started = 0, ended = 0;  // of it: units that run it, blocks
  };
  void check(bool holds, TimePoint at, Queue queue, std::string_view promise);
  Account& of(Queue queue);

  Rules rules_;
  std::vector<KernelPlan> plans_;
  std::vector<Account> accounts_;
  int used_ = 0;
  int real_time_ = 0;  // runs on the device
  std::uint64_t finished_ = 0, kills_ = 0;
  std::string broken_;
};

}  // namespace carillon::research::testing
