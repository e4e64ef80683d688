#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "carillon/simulate/simulation.h"

namespace carillon::simulate::testing {

// A run's figures, counted anew from what an observer sees of it.
class Tally {
 public:
  Tally(const workload::Scenario& scenario, const Options& options);

  void sent(const Request& request);
  void outcome(const Request& request, Observer::Outcome outcome, TimePoint at);
  void decided() { ++figures_.decisions; }
  // An INFER that left the device: it ended, was stopped, or went with its device.
  void ran(const Execution& execution, Duration busy, bool success);  // of it, it was busy so long
  void loaded(TimePoint start);
  void unloaded() { ++figures_.unloads; }
  void stopped() { ++figures_.stopped; }
  void too_late() { ++figures_.too_late; }

  // What differs from `told`, in words; empty where nothing does. Not wall_s, events and decision_times.
  std::vector<std::string> differences(const Figures& told) const;

 private:
  IntervalFigures* interval(TimePoint at);

  TimePoint warm_, end_;
  Duration interval_;
  std::size_t timeline_;
  Figures figures_;
  std::set<std::pair<std::size_t, DeviceId>> used_;  // devices by interval
};

}  // namespace carillon::simulate::testing
