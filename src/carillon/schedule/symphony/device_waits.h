#pragma once

#include <algorithm>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/decaying_tail.h"

namespace carillon::schedule::symphony {

// How long batches wait for a device once they ask for one, measured while serving, by model and over all
// models. From it follows how early a batch has to ask so that a device comes in time (lead), and how long
// after one batch of a model its next can start (mean). O(1) a call, but for a search through 513 buckets at
// every sixteenth batch. Not thread-safe.
class DeviceWaits {
 public:
  // `exceeded` in (0, 1]: the share of requests whose batch may have to wait longer than the lead; at 1 the
  // lead is always zero. `horizon`: after that time a wait counts e times less. `known_after`: for how many
  // requests beyond it a tail has to have room before it is believed.
  DeviceWaits(double exceeded, Duration horizon, double known_after)
      : exceeded_(exceeded),
        horizon_(horizon),
        known_after_(known_after / exceeded),
        all_{exceeded, horizon} {}

  void add_model() { models_.emplace_back(exceeded_, horizon_); }

  // The model's next batch will ask at `at`; or asks already, and goes on.
  void asks(ModelId model, TimePoint at, TimePoint now) {
    Model& m = models_[model.index()];
    if (m.since > now) m.since = at;
  }
  // It got its device, for `requests` of them.
  void answered(ModelId model, int requests, TimePoint now) { answered(model, requests, now, now); }
  // All that asked were lost; a device would have come at `device_at`, as far as is known.
  void lost(ModelId model, TimePoint device_at, TimePoint now) {
    answered(model, 1, std::max(device_at, now), now);
  }

  // How early before its latest start a batch of the model has better ask. As long as too few requests have
  // waited to know, no less than `guess`; but zero as long as no batch of any model ever had to wait.
  Duration lead(ModelId model, Duration guess, TimePoint now);
  // Of the model's latest batches, about 32.
  Duration mean(ModelId model) const { return from_ns(models_[model.index()].mean_ns); }

 private:
  struct Waits {
    Waits(double exceeded, Duration horizon) : times(exceeded, horizon) {}
    void add(Duration wait, int requests, TimePoint now);
    DecayingTail times;
    Duration tail_at(TimePoint now);  // of `times`; O(1) but for once a second
    void search(TimePoint now);
    Duration tail{0};   // when it was last searched for
    TimePoint found{};  // that was then
    int added = 0;      // since then
  };
  struct Model : Waits {
    using Waits::Waits;
    TimePoint since = TimePoint::max();  // when it began to ask; in the future or max(): it does not
    double mean_ns = 0;
  };

  void answered(ModelId model, int requests, TimePoint at, TimePoint now);

  double exceeded_;
  Duration horizon_;
  double known_after_;
  Waits all_;
  std::vector<Model> models_;
};

}  // namespace carillon::schedule::symphony
