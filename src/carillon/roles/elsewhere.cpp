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
  Staying(const Ledger& ledger, const std::set<DeviceId>& leaving) : ledger_(ledger) {
    for (std::uint32_t i = 0; i < ledger.devices(); ++i)
      if (const DeviceId device{i}; ledger.device(device).alive && !leaving.contains(device))
        devices_.push_back({device, !lane_of(device).empty()});
  }

  // Whether the model is on one of them, or on its way to one.
  bool has(ModelId model) const { return copies(model) > 0; }
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
      if (!may_run(device.id, model) || failed(device.id, model)) continue;
      auto instead = room(device.id, model, used);
      if (!instead) continue;
      later = later || device.busy;
      if (device.busy) continue;
      const auto cost = [&](DeviceId id, const std::vector<ModelId>& what) {
        return std::pair(what.size(), -static_cast<std::int64_t>(free_pages(id)));
      };
      if (best != nullptr && cost(best->id, best_instead) <= cost(device.id, *instead)) continue;
      best = &device;
      best_instead = std::move(*instead);
    }
    if (best == nullptr) return later ? Found::later : Found::none;
    best->busy = true;
    for (const ModelId other : best_instead) ++going_[other];
    out.push_back({model, best->id, std::move(best_instead)});
    return Found::load;
  }

 private:
  struct Device {
    DeviceId id;
    bool busy = false;  // LOADs or UNLOADs are under way there
  };
  const std::vector<std::uint32_t>& lane_of(DeviceId device) const {
    return ledger_.device(device).under_way[static_cast<std::size_t>(ledger::Lane::load)];
  }
  std::uint64_t free_pages(DeviceId device) const {
    return ledger_.device(device).pages - ledger_.device(device).taken;
  }
  // That stay.
  std::size_t copies(ModelId model) const {
    const auto all = std::ranges::count_if(devices_, [&](const Device& device) {
      return ledger_.residence(device.id, model) == Residence::loaded;
    });
    const auto going = going_.find(model);
    return static_cast<std::size_t>(all) - (going == going_.end() ? 0 : going->second);
  }
  bool failed(DeviceId device, ModelId model) const {
    const Ledger::Copy* const copy = ledger_.copy(device, model);
    return copy != nullptr && copy->failures > 0;
  }
  // What has to go there for it; none: there is not as much that may.
  std::optional<std::vector<ModelId>> room(DeviceId id, ModelId model, TimePoint used) const {
    const std::uint64_t needs = ledger_.model(model).info->pages;
    if (needs > ledger_.device(id).pages) return std::nullopt;
    std::uint64_t freed = free_pages(id) + ledger_.device(id).freeing;
    std::vector<std::tuple<TimePoint, ModelId, std::uint64_t>> may_go;
    for (const auto& [other, copy] : ledger_.device(id).copies) {
      if (copy.residence != Residence::loaded || copy.using_it() > 0) continue;
      if (copies(other) > 1 || saturating_add(copy.last_use, unused_before) <= used)
        may_go.emplace_back(copy.last_use, other, copy.pages);
    }
    std::ranges::sort(may_go);
    std::vector<ModelId> instead;
    for (const auto& [last_use, other, pages] : may_go) {
      if (freed >= needs) break;
      freed += pages;
      instead.push_back(other);
    }
    return freed >= needs ? std::optional(std::move(instead)) : std::nullopt;
  }

  const Ledger& ledger_;
  std::vector<Device> devices_;
  std::map<ModelId, std::size_t> going_;  // copies, for what was asked for
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
  Staying staying(ledger, leaving);
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
