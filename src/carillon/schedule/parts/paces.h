#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <variant>
#include <vector>

#include "carillon/ledger/ledger.h"

namespace carillon::schedule::parts {

// How many times its seed a batch takes on a device, on average over the last runs: what devices have to do.
// Times tells instead what a batch takes at most, so that it is in time. O(1). Not thread-safe.
class Paces {
 public:
  // What a report says of a run, or an event of a model. O(runs that ended).
  void hear(const ledger::Event& event, const ledger::Ledger& ledger, TimePoint now) {
    if (const auto* change = std::get_if<ledger::ModelChanged>(&event)) {
      for (auto& device : devices_)
        if (change->model.index() < device.models.size()) device.models[change->model.index()] = {};
      return;
    }
    const auto* done = std::get_if<ledger::ActionDone>(&event);
    if (done == nullptr || done->status != ledger::ActionStatus::success) return;
    for (const std::uint32_t place : ledger.changes().ended) {
      const auto& run = ledger.at(place);
      if (run.kind != device::ActionKind::infer) continue;
      const auto& batches = ledger.model(run.model).info->batches;
      if (run.run.index >= batches.size() || batches[run.run.index].exec <= Duration{0}) continue;
      const double times = to_seconds(done->duration) / to_seconds(batches[run.run.index].exec);
      if (run.device.index() >= devices_.size()) devices_.resize(run.device.index() + 1);
      Device& device = devices_[run.device.index()];
      if (run.model.index() >= device.models.size()) device.models.resize(run.model.index() + 1);
      device.models[run.model.index()].add(times);
      device.all.add(times);
      device.seen = now;
      device.step = static_cast<int>(std::lround(std::log(std::max(1e-9, device.all.usual)) / step_of));
    }
  }
  double of(DeviceId device, ModelId model) const {
    if (device.index() >= devices_.size()) return 1;
    const auto& models = devices_[device.index()].models;
    return model.index() < models.size() ? models[model.index()].mean : 1;
  }
  // Over all models, and as if none took more than twice as long as the others: one odd run tells nothing.
  double of(DeviceId device, TimePoint now) const {
    return fresh(device, now) ? devices_[device.index()].all.usual : 1;
  }
  // What to expect of a batch size that never ran there: 1 while the device is about as fast as the seeds
  // say, and where nothing ran of late, as what made it slow may be over.
  double prior(DeviceId device, ModelId model, TimePoint now) const {
    if (step(device) == 0 || !fresh(device, now)) return 1;
    const auto& models = devices_[device.index()].models;
    const bool ran = model.index() < models.size() && models[model.index()].runs > 0;
    return ran ? models[model.index()].usual : of(device, now);
  }
  // In steps of a tenth, so that devices of one kind are alike: 0 as the seeds say, more for a slow device.
  int step(DeviceId device) const {
    return device.index() < devices_.size() ? devices_[device.index()].step : 0;
  }

 private:
  bool fresh(DeviceId device, TimePoint now) const {
    return device.index() < devices_.size() && now - devices_[device.index()].seen < ledger::stale_after;
  }
  // Long enough that one odd run is not taken for the pace, short enough to follow a slow spell.
  static constexpr double mean_over = 64;
  // What is expected follows sooner: a slow spell that is over must not keep anything from running.
  static constexpr double usual_over = 8;
  // What the seeds count as.
  static constexpr double seeds = 4;
  static constexpr double step_of = 0.1;
  struct Mean {
    double mean = 1, usual = 1, runs = 0;
    void add(double value) {
      ++runs;
      mean += (value - mean) / std::min(runs + seeds, mean_over);
      usual += (std::min(value, usual * 2) - usual) / std::min(runs + seeds, usual_over);
    }
  };
  struct Device {
    Mean all;
    int step = 0;
    TimePoint seen{};  // when something last ran
    std::vector<Mean> models;
  };
  std::vector<Device> devices_;
};

}  // namespace carillon::schedule::parts
