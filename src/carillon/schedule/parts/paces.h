#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/ledger/ledger.h"
#include "carillon/schedule/parts/worth.h"

namespace carillon::schedule::parts {

// How many times its seed a batch takes on a device, on average over the last runs: what devices have to do.
// Times tells instead what a batch takes at most, so that it is in time. O(1) but where said. Not
// thread-safe.
class Paces {
 public:
  // What a report says of a run. O(runs that ended), O(devices) for a ModelChanged, and O(models that ran
  // there) for a DeviceChanged.
  void hear(const ledger::Event& event, const ledger::Ledger& ledger, TimePoint now) {
    if (const auto* change = std::get_if<ledger::ModelChanged>(&event)) {
      for (auto& device : devices_)
        if (change->model.index() < device.models.size()) device.models[change->model.index()] = {};
      worth_.forget(change->model);
      if (change->model.index() < speeds_.size()) speeds_[change->model.index()] = 0;
      return;
    }
    if (const auto* change = std::get_if<ledger::DeviceChanged>(&event)) {
      if (change->device.index() >= devices_.size()) devices_.resize(change->device.index() + 1);
      Device& device = devices_[change->device.index()];
      if (std::exchange(device.alive, change->alive) == change->alive) return;
      for (std::size_t m = 0; m < device.models.size(); ++m)
        if (device.models[m].runs > 0) speeds_[m] += (change->alive ? 1 : -1) * device.models[m].speed();
      return;
    }
    const auto* done = std::get_if<ledger::ActionDone>(&event);
    if (done == nullptr || done->status != ledger::ActionStatus::success) return;
    for (const std::uint32_t place : ledger.changes().ended) {
      const auto& run = ledger.at(place);
      if (run.kind != device::ActionKind::infer) continue;
      const auto& times = ledger.times(run.cls);
      if (!times.knows(run.run)) continue;
      const ModelId id = run.run.model;
      const auto& batches = times.info(id)->batches;
      if (run.run.index >= batches.size() || batches[run.run.index].exec <= Duration{0}) continue;
      const double took = to_seconds(done->duration) / to_seconds(batches[run.run.index].exec);
      if (run.device.index() >= devices_.size()) devices_.resize(run.device.index() + 1);
      Device& device = devices_[run.device.index()];
      if (id.index() >= device.models.size()) device.models.resize(id.index() + 1);
      if (id.index() >= speeds_.size()) speeds_.resize(id.index() + 1);
      Mean& model = device.models[id.index()];
      if (device.alive) speeds_[id.index()] -= model.speed();
      model.add(took);
      if (device.alive) speeds_[id.index()] += model.speed();
      device.all.add(took);
      if (times.info(id)->time_varies)
        worth_.ran(id, batches[run.run.index].batch, took / std::max(1e-9, model.mean));
      device.seen = now;
      const int step = step_of(device);
      if (std::exchange(device.step, step) != step) stepped_.push_back(run.device);
    }
  }
  double of(DeviceId device, ModelId model) const {
    if (device.index() >= devices_.size()) return 1;
    const auto& models = devices_[device.index()].models;
    return model.index() < models.size() ? models[model.index()].mean : 1;
  }
  // Over the devices that are alive, of which there are so many: one that takes twice as long does half as
  // much.
  double mean(ModelId model, std::size_t alive) const {
    if (alive == 0 || model.index() >= speeds_.size()) return 1;
    const auto devices = static_cast<double>(alive);
    return devices / std::max(1e-9 * devices, devices + speeds_[model.index()]);
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
  // Of models whose time varies.
  const Worth& worth() const { return worth_; }
  // Devices whose step() has changed since they were taken; some may be there twice.
  std::vector<DeviceId> take_stepped() { return std::exchange(stepped_, {}); }

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
  static constexpr double wide = 0.1;  // a step, as a logarithm
  struct Mean {
    double mean = 1, usual = 1, runs = 0;
    // That of its seed is 0.
    double speed() const { return 1 / std::max(1e-9, mean) - 1; }
    void add(double value) {
      ++runs;
      mean += (value - mean) / std::min(runs + seeds, mean_over);
      usual += (std::min(value, usual * 2) - usual) / std::min(runs + seeds, usual_over);
    }
  };
  struct Device {
    bool alive = false;
    Mean all;
    int step = 0;
    double least = 1, most = 1;  // of all.usual: what was seen to be of that step
    TimePoint seen{};            // when something last ran
    std::vector<Mean> models;
  };
  // A logarithm grows with its argument: between two values of one step all are of that step.
  static int step_of(Device& device) {
    const double usual = device.all.usual;
    if (device.least <= usual && usual <= device.most) return device.step;
    const int step = static_cast<int>(std::lround(std::log(std::max(1e-9, usual)) / wide));
    device.least = step == device.step ? std::min(device.least, usual) : usual;
    device.most = step == device.step ? std::max(device.most, usual) : usual;
    return step;
  }
  std::vector<Device> devices_;
  std::vector<double> speeds_;  // by model: the sum of Mean::speed() over devices that are alive
  std::vector<DeviceId> stepped_;
  Worth worth_;
};

}  // namespace carillon::schedule::parts
