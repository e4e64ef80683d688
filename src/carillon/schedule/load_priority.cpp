#include "carillon/schedule/load_priority.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

constexpr double least_load = 1000;  // a microsecond: an idle device has a finite weight

}  // namespace

void LoadPriority::add_demand(ModelId model, Duration work) {
  Model& m = models_[model.index()];
  m.demand += work;
  CARILLON_ASSERT(m.demand >= Duration{0});
  renew(model);
}

void LoadPriority::placed(ModelId model, DeviceId device) {
  models_[model.index()].shares.push_back({device, 0});
  renew(model);
}

void LoadPriority::removed(ModelId model, DeviceId device) {
  auto& shares = models_[model.index()].shares;
  const auto share =
      std::find_if(shares.begin(), shares.end(), [device](const Share& s) { return s.device == device; });
  CARILLON_ASSERT(share != shares.end());
  double& load = device_load_[device.index()];
  load = std::max(0.0, load - share->allocation);
  shares.erase(share);
  renew(model);
}

void LoadPriority::renew(ModelId id) {
  Model& m = models_[id.index()];
  if (m.listed) wanted_.erase({-m.priority, id});
  const auto demand = static_cast<double>(m.demand.count());
  double weights = 0;
  for (Share& s : m.shares) {
    double& load = device_load_[s.device.index()];
    load = std::max(0.0, load - s.allocation);
    weights += 1 / std::max(load, least_load);
  }
  double served = 0;
  for (Share& s : m.shares) {
    double& load = device_load_[s.device.index()];
    s.allocation = demand * (1 / std::max(load, least_load)) / weights;
    load += s.allocation;
    if (load > 0) served += s.allocation * capacity_ / load;
  }
  m.priority = demand - served;
  m.listed = m.priority > 0 && m.shares.size() < alive_;
  if (m.listed) wanted_.insert({-m.priority, id});
}

void LoadPriority::set_alive(std::size_t devices) {
  alive_ = devices;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    Model& m = models_[i];
    const bool listed = m.priority > 0 && m.shares.size() < alive_;
    if (listed == m.listed) continue;
    const std::pair key{-m.priority, ModelId{static_cast<std::uint32_t>(i)}};
    if (listed)
      wanted_.insert(key);
    else
      wanted_.erase(key);
    m.listed = listed;
  }
}

}  // namespace carillon::schedule
