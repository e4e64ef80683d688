#include "carillon/roles/elsewhere.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace carillon::roles {
namespace {

using ledger::Ledger;
using ledger::Residence;

// The devices that stay, and what may be asked of them.
class Staying {
 public:
  // `latest`: when a model that is to come was last used, at the latest.
  Staying(const Ledger& ledger, const std::set<DeviceId>& leaving, TimePoint latest)
      : ledger_(ledger), copies_(ledger.models()) {
    for (std::uint32_t i = 0; i < ledger.devices(); ++i)
      if (const DeviceId device{i}; ledger.device(device).alive && !leaving.contains(device))
        devices_.push_back({.id = device, .busy = !lane_of(device).empty()});
    for (const Device& device : devices_)
      for (const auto& [model, copy] : ledger.device(device.id).copies)
        copies_[model.index()] += copy.residence == Residence::loaded ? 1 : 0;
    for (Device& device : devices_) {
      device.may_free = free_pages(device.id) + ledger.device(device.id).freeing;
      for (const auto& [model, copy] : ledger.device(device.id).copies)
        if (may_go(model, copy, latest)) device.may_free += copy.pages;
    }
  }

  // Whether the model is on one of them, or on its way to one.
  bool has(ModelId model) const { return copies_[model.index()] > 0; }
  bool comes(ModelId model) const {
    return std::ranges::any_of(devices_, [&](const Device& device) {
      return ledger_.residence(device.id, model) == Residence::loading;
    });
  }

  enum class Found : std::uint8_t { load, later, none };
  // Asks for a LOAD of it, if there is room. `used`: when it was last used.
  Found place(ModelId model, TimePoint used, const std::function<bool(DeviceId, ModelId)>& may_run,
              std::vector<schedule::LoadAhead>& out) {
    Device* best = nullptr;
    std::vector<ModelId> best_instead;
    bool later = false;
    for (Device& device : devices_) {
      if (device.may_free < ledger_.model(model).info->pages || !may_run(device.id, model) ||
          failed(device.id, model))
        continue;
      if (device.busy) {
        later = true;  // it is looked at more closely then
        continue;
      }
      auto instead = room(device.id, model, used);
      if (!instead) continue;
      const auto cost = [&](DeviceId id, const std::vector<ModelId>& what) {
        return std::pair(what.size(), -static_cast<std::int64_t>(free_pages(id)));
      };
      if (best != nullptr && cost(best->id, best_instead) <= cost(device.id, *instead)) continue;
      best = &device;
      best_instead = std::move(*instead);
    }
    if (best == nullptr) return later ? Found::later : Found::none;
    best->busy = true;
    for (const ModelId other : best_instead) --copies_[other.index()];
    out.push_back({model, best->id, std::move(best_instead)});
    return Found::load;
  }

 private:
  struct Device {
    DeviceId id;
    bool busy = false;           // LOADs or UNLOADs are under way there
    std::uint64_t may_free = 0;  // pages that are free, or may be made so, at most
  };
  const std::vector<std::uint32_t>& lane_of(DeviceId device) const {
    return ledger_.device(device).under_way[static_cast<std::size_t>(ledger::Lane::load)];
  }
  std::uint64_t free_pages(DeviceId device) const {
    return ledger_.device(device).pages - ledger_.device(device).taken;
  }
  bool may_go(ModelId model, const Ledger::Copy& copy, TimePoint used) const {
    return copy.residence == Residence::loaded && copy.using_it() == 0 &&
           (copies_[model.index()] > 1 || saturating_add(copy.last_use, unused_before) <= used);
  }
  bool failed(DeviceId device, ModelId model) const {
    const Ledger::Copy* const copy = ledger_.copy(device, model);
    return copy != nullptr && copy->failures > 0;
  }
  // What has to go there for it; none: there is not as much that may.
  std::optional<std::vector<ModelId>> room(DeviceId id, ModelId model, TimePoint used) const {
    const std::uint64_t needs = ledger_.model(model).info->pages;
    std::uint64_t freed = free_pages(id) + ledger_.device(id).freeing;
    std::vector<std::tuple<TimePoint, ModelId, std::uint64_t>> leaves;
    if (freed < needs)
      for (const auto& [other, copy] : ledger_.device(id).copies)
        if (may_go(other, copy, used)) leaves.emplace_back(copy.last_use, other, copy.pages);
    std::ranges::sort(leaves);
    std::vector<ModelId> instead;
    for (const auto& [last_use, other, pages] : leaves) {
      if (freed >= needs) break;
      freed += pages;
      instead.push_back(other);
    }
    return freed >= needs ? std::optional(std::move(instead)) : std::nullopt;
  }

  const Ledger& ledger_;
  std::vector<std::size_t> copies_;  // by model: of these devices, without what goes
  std::vector<Device> devices_;
};

}  // namespace

Elsewhere load_elsewhere(const Ledger& ledger, const std::set<DeviceId>& leaving,
                         const std::function<bool(DeviceId, ModelId)>& may_run) {
  std::map<ModelId, TimePoint> held;  // when each was last used
  for (const DeviceId device : leaving) {
    if (device.index() >= ledger.devices() || !ledger.device(device).alive) continue;
    for (const auto& [model, copy] : ledger.device(device).copies)
      if (copy.residence == Residence::loaded && ledger.model(model).served && copy.pages > 0) {
        TimePoint& used = held.try_emplace(model, copy.last_use).first->second;
        used = std::max(used, copy.last_use);
      }
  }
  std::vector<std::pair<TimePoint, ModelId>> order;
  for (const auto& [model, used] : held) order.emplace_back(used, model);
  std::ranges::stable_sort(order, std::greater{}, [](const auto& each) { return each.first; });

  Elsewhere out;
  if (order.empty()) return out;
  Staying staying(ledger, leaving, order.front().first);
  for (const auto& [used, model] : order) {
    if (staying.has(model)) continue;
    if (staying.comes(model)) {
      out.waiting.push_back(model);
      continue;
    }
    switch (staying.place(model, used, may_run, out.loads)) {
      case Staying::Found::load:
        break;
      case Staying::Found::later:
        out.waiting.push_back(model);
        break;
      case Staying::Found::none:
        out.without.push_back(model);
        break;
    }
  }
  return out;
}

}  // namespace carillon::roles
