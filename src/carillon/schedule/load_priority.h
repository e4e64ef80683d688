#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::schedule {

// How much each model's waiting work lacks devices (Clockwork, appendix B): demand d of each model, in
// whatever unit the capacity is in (Clockwork: what its requests take of a device to be in time), shared
// out over the devices where it is loaded in inverse proportion to their load, and the load priority
// p = d - sum over devices of a * capacity / l. As in the paper, a model's share and priority are renewed
// when something happens to that model, not when another model changes the load of a device they share.
class LoadPriority {
 public:
  // `capacity`: the work that may wait for a device before it counts as overloaded.
  explicit LoadPriority(Duration capacity) : capacity_(static_cast<double>(capacity.count())) {}

  void add_model() { models_.emplace_back(); }
  void add_device() { device_load_.push_back(0); }
  // How many devices are alive: a model that is placed on so many is not wanted anywhere else. O(models of
  // positive priority).
  void set_alive(std::size_t devices);

  // O(devices where the model is, log models) each.
  void add_demand(ModelId model, Duration work);  // negative: requests were sent off, answered or refused
  void placed(ModelId model, DeviceId device);    // LOAD was sent
  void removed(ModelId model, DeviceId device);   // UNLOAD was sent, or LOAD failed

  Duration demand(ModelId model) const { return models_[model.index()].demand; }
  double priority(ModelId model) const { return models_[model.index()].priority; }  // nanoseconds
  double device_load(DeviceId device) const { return device_load_[device.index()]; }

  // Models with a positive priority that are not on all devices, the highest first, then by id: {-priority,
  // model}.
  const std::set<std::pair<double, ModelId>>& wanted() const { return wanted_; }

 private:
  struct Share {
    DeviceId device;
    double allocation = 0;
  };
  struct Model {
    Duration demand{0};
    double priority = 0;
    bool listed = false;      // in wanted_
    bool everywhere = false;  // in everywhere_
    std::vector<Share> shares;
  };
  void renew(ModelId model);
  void set_everywhere(ModelId model, bool everywhere);

  double capacity_;
  std::size_t alive_ = 0;
  std::vector<Model> models_;
  std::vector<double> device_load_;
  std::set<std::pair<double, ModelId>> wanted_;
  std::set<ModelId> everywhere_;  // of positive priority, but on as many devices as are alive
};

}  // namespace carillon::schedule
