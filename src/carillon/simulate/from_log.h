#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/action.h"
#include "carillon/schedule/environment.h"
#include "carillon/workload/scenario.h"

namespace carillon::simulate {

// A log of decisions as a scenario: the same arrivals, deadlines, devices and models (of one that changed,
// its last version), with the execution times that the log measured, of a batch size whose times changed from
// then on; one that never ran takes what the scheduler started from. docs/replay.md says what is left out.
class FromLog {
 public:
  // `until`: what arrives later is left out, and all else of the log is heeded.
  FromLog(std::string name, const schedule::Environment& environment, TimePoint until = TimePoint::max());

  // Each record of the log, in order.
  void add(const schedule::Event& event, TimePoint now, const schedule::Actions& actions);

  bool any() const { return requests_ > 0; }
  // The scenario, from its first arrival on, and the environment that policies had. Once.
  workload::Scenario scenario();
  schedule::Environment environment(const workload::Scenario& scenario) const;
  // When the first request came: the scenario's time 0.
  TimePoint first() const { return first_; }

 private:
  void add_model(const schedule::ModelInfo& info);
  void change_times(const schedule::TimesChanged& times);

  const TimePoint until_;
  workload::Scenario scenario_;
  schedule::Preemption preemption_;
  // Sum and count by model and batch.
  std::map<std::pair<std::uint32_t, int>, std::pair<Duration, int>> measured_;
  std::unordered_map<std::uint64_t, std::pair<std::uint32_t, int>> flights_;  // model and batch
  std::unordered_set<std::uint64_t> refused_;                                 // requests
  std::uint64_t requests_ = 0;
  std::uint32_t devices_ = 0;
  std::uint64_t pages_ = 0;
  TimePoint first_ = TimePoint::max(), last_ = TimePoint::min();
};

}  // namespace carillon::simulate
