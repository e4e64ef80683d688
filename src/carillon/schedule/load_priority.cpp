#include "carillon/schedule/load_priority.h"

#include <algorithm>
#include <utility>

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
  auto entry = m.listed ? wanted_.extract({-m.priority, id}) : decltype(wanted_)::node_type{};
  const auto demand = static_cast<double>(m.demand.count());
  double weights = 0;
  for (Share& s : m.shares) {
    double& load = device_load_[s.device.index()];
    load = std::max(0.0, load - s.allocation);
    s.allocation = 1 / std::max(load, least_load);
    weights += s.allocation;
  }
  double served = 0;
  for (Share& s : m.shares) {
    double& load = device_load_[s.device.index()];
    s.allocation = demand * s.allocation / weights;
    load += s.allocation;
    if (load > 0) served += s.allocation * capacity_ / load;
  }
  m.priority = demand - served;
  m.listed = m.priority > 0 && m.shares.size() < alive_;
  set_everywhere(id, m.priority > 0 && !m.listed);
  if (!m.listed) return;
  if (entry.empty()) {
    wanted_.emplace(-m.priority, id);
    return;
  }
  entry.value() = {-m.priority, id};
  wanted_.insert(std::move(entry));
}

void LoadPriority::set_everywhere(ModelId model, bool everywhere) {
  if (std::exchange(models_[model.index()].everywhere, everywhere) == everywhere) return;
  if (everywhere)
    everywhere_.insert(model);
  else
    everywhere_.erase(model);
}

void LoadPriority::set_alive(std::size_t devices) {
  const bool more = devices > alive_;
  alive_ = devices;
  std::vector<ModelId> changed;
  if (more) {
    for (const ModelId id : everywhere_)
      if (models_[id.index()].shares.size() < alive_) changed.push_back(id);
  } else {
    for (const auto& [priority, id] : wanted_)
      if (models_[id.index()].shares.size() >= alive_) changed.push_back(id);
  }
  for (const ModelId id : changed) {
    Model& m = models_[id.index()];
    m.listed = more;
    set_everywhere(id, !more);
    if (more)
      wanted_.emplace(-m.priority, id);
    else
      wanted_.erase({-m.priority, id});
  }
}

}  // namespace carillon::schedule
