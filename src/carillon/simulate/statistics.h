#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/ledger.h"
#include "carillon/provision/autoscale.h"
#include "carillon/simulate/simulation.h"
#include "carillon/workload/scenario.h"

namespace carillon::simulate {

// Collects the figures of a run. Requests count where they were sent, executions where they began.
class Statistics {
 public:
  Statistics(const workload::Scenario& scenario, const Options& options);

  void sent(ModelId model, Class cls, TimePoint at);
  void ended(ModelId model, Class cls, TimePoint sent, Observer::Outcome outcome, TimePoint at);
  void shed(TimePoint sent) { figures.shed += sent >= warm_ ? 1U : 0U; }
  // An INFER was on the device from `start` to `end`, and ran for `busy` of that.
  void occupied(DeviceId device, ModelId model, std::size_t batch, TimePoint start, TimePoint end,
                Duration busy);
  void served(ModelId model, std::size_t batch, TimePoint start);  // it succeeded
  void loaded(TimePoint start);
  void kept(ModelId model, const ledger::Ledger::Kept& kept);

  TimePoint warm() const { return warm_; }
  TimePoint end() const { return end_; }

  // From time 0 on, the warm-up included; a run counts once it has ended.
  // A request counts for as many as its model's device time is the mean of all models' times: where heavy
  // models are refused, few requests are bad, and much work is missing.
  provision::AutoscaleWindow::Counters so_far() const {
    return {.requests = static_cast<std::uint64_t>(requests_),
            .bad = static_cast<std::uint64_t>(bad_),
            .busy = busy_};
  }

  Figures figures;

 private:
  // The interval that a time is in, where intervals are kept and it is before the end; else nullptr.
  IntervalFigures* interval(TimePoint at) {
    if (figures.intervals.empty() || at >= end_) return nullptr;
    return &figures.intervals[interval_index(at)];
  }
  std::size_t interval_index(TimePoint at) const {
    return static_cast<std::size_t>((at - TimePoint{}) / length_);
  }

  std::vector<double> weights_;  // by model
  double requests_ = 0, bad_ = 0;
  Duration busy_{0};
  TimePoint warm_, end_;
  Duration length_;                         // of an interval
  std::size_t timeline_;                    // executions to keep
  std::vector<std::vector<bool>> used_in_;  // by device and interval: it ran something
};

}  // namespace carillon::simulate
