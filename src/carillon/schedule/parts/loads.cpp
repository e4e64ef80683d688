#include "carillon/schedule/parts/loads.h"

#include <algorithm>
#include <variant>

#include "carillon/schedule/parts/memory.h"

namespace carillon::schedule::parts {
namespace {

using ledger::Lane;
using ledger::Ledger;
using ledger::Residence;

// LOADs that a device has to do at a time: one runs, one waits, so that none has to wait for the way there
// and what becomes urgent does not wait behind many.
constexpr std::size_t loads_ahead = 2;
// What was used within so many times the time that a LOAD of it takes is kept from models that are elsewhere.
constexpr int loads_unused = 10;

DeviceId device_of(std::size_t place) {
  return DeviceId{static_cast<std::uint32_t>(place)};
}
std::size_t loads(const Ledger& ledger, DeviceId device) {
  return ledger.device(device).under_way[static_cast<std::size_t>(Lane::load)].size();
}
bool nothing_to_run(const Ledger& ledger, DeviceId device) {
  return ledger.device(device).runs == 0;
}

}  // namespace

void Loads::hear(const Event& event, Life& life, Orders& out) {
  const Ledger& ledger = out.ledger();
  if (std::holds_alternative<RequestArrived>(event)) {
    give_up(std::get<RequestArrived>(event).request.model, life, out);
  } else if (const auto* change = std::get_if<ModelChanged>(&event)) {
    filled_.assign(ledger.devices(), false);
    std::erase_if(failed_, [&](const auto& each) { return each.first.second == change->model; });
    for (std::size_t i = 0; i < ledger.devices(); ++i) unload_if_left(device_of(i), change->model, out);
    give_up(change->model, life, out);
  } else if (const auto* device = std::get_if<DeviceChanged>(&event)) {
    filled_.assign(ledger.devices(), false);
    std::erase_if(failed_, [&](const auto& each) { return each.first.first == device->device; });
    for (std::uint32_t m = 0; m < ledger.models(); ++m) give_up(ModelId{m}, life, out);
  }
  for (const RequestId id : ledger.changes().back)
    if (const auto* const request = ledger.request(id)) give_up(request->told.model, life, out);
  for (const std::uint32_t place : ledger.changes().ended) ended(ledger.at(place), life, out);
}

void Loads::ended(const Ledger::Action& action, Life& life, Orders& out) {
  const auto where = std::pair(action.device, action.model);
  if (action.kind == ActionKind::load && out.ledger().copy(action.device, action.model)->failures == 0) {
    failed_.erase(where);
  } else if (action.kind == ActionKind::load) {
    Failed& failed = failed_[where];
    failed.retry = out.time() + first_retry * (1 << std::min(failed.times, 7U));
    ++failed.times;
    give_up(action.model, life, out);
  }
  filled_[action.device.index()] = false;
  unload_if_left(action.device, action.model, out);
}

// Where nobody should wait for the model any more: refuses all who do.
void Loads::give_up(ModelId id, Life& life, Orders& out) {
  const Ledger& ledger = out.ledger();
  const auto& model = ledger.model(id);
  if (life.waiting().size(id) == 0 || !model.places.empty() || model.coming > 0) return;
  bool possible = false, held = false;
  for (std::size_t i = 0; i < ledger.devices(); ++i) {
    if (!holds_ever(ledger, device_of(i), *model.info)) continue;
    held = true;
    const auto failed = failed_.find({device_of(i), id});
    possible = possible || failed == failed_.end() || failed->second.times < most_failed_loads ||
               failed->second.retry <= out.time();
  }
  if (!possible) life.refuse_all(id, held ? Reason::device_failed : Reason::no_device, out);
}

void Loads::step(const Waiting& waiting, Orders& out) {
  const Ledger& ledger = out.ledger();
  wake_ = TimePoint::max();
  taken_.assign(ledger.devices(), false);
  filled_.resize(ledger.devices(), false);
  if (!wanted_.empty()) load_wanted(out);
  for (const Waiting::Head& head : waiting.heads()) load_somewhere(head, waiting, out);
  for (std::size_t i = 0; i < ledger.devices(); ++i)
    if (!taken_[i] && !filled_[i]) fill(device_of(i), out);
}

// The model of a line that waits: somewhere, where it is nowhere; else only where nothing is to be run, and
// nobody misses what makes room.
void Loads::load_somewhere(const Waiting::Head& head, const Waiting& waiting, Orders& out) {
  const Ledger& ledger = out.ledger();
  const auto& model = ledger.model(head.model);
  if (model.info->pages == 0) return;
  const bool spare = !model.places.empty() || model.coming > 0;
  std::optional<DeviceId> best;
  Room best_room;
  for (std::size_t i = 0; i < ledger.devices(); ++i) {
    const DeviceId device = device_of(i);
    if (taken_[i] || (spare && !nothing_to_run(ledger, device)) ||
        !may_load(ledger, device, head.model, out.time()))
      continue;
    auto there = room(ledger, device, head, waiting, spare, out.time());
    if (!there || (best && best_room.cost() <= there->cost())) continue;
    best = device;
    best_room = std::move(*there);
  }
  if (best) make_room(*best, head.model, best_room, out);
}

bool Loads::may_load(const Ledger& ledger, DeviceId device, ModelId model, TimePoint now) {
  if (!holds_ever(ledger, device, *ledger.model(model).info) || loads(ledger, device) >= loads_ahead ||
      ledger.residence(device, model) != Residence::absent)
    return false;
  const auto failed = failed_.find({device, model});
  if (failed == failed_.end() || failed->second.retry <= now) return true;
  wake_ = std::min(wake_, failed->second.retry);
  return false;
}

// What has to go for the model; none where there is not as much. `spare`: only what nobody misses.
std::optional<Loads::Room> Loads::room(const Ledger& ledger, DeviceId device, const Waiting::Head& head,
                                       const Waiting& waiting, bool spare, TimePoint now) const {
  const Ledger::Device& d = ledger.device(device);
  const std::uint64_t needs = ledger.model(head.model).info->pages;
  Room found{.loads = loads(ledger, device)};
  std::uint64_t freed = free_pages(ledger, device) + d.freeing;
  if (freed >= needs) return found;
  struct Victim {
    bool waited_for;
    TimePoint last_use;
    ModelId model;
    std::uint64_t pages;
    auto operator<=>(const Victim&) const = default;
  };
  std::vector<Victim> victims;
  for (const auto& [model, copy] : d.copies) {
    if (copy.residence != Residence::loaded || copy.using_it() > 0) continue;
    const Waiting::Head* const other = waiting.head(model);
    if (other != nullptr && (spare || *other < head)) continue;
    if (spare && saturating_add(copy.last_use, loads_unused * ledger.model(model).info->load) > now) continue;
    victims.push_back({other != nullptr, copy.last_use, model, copy.pages});
  }
  std::ranges::sort(victims);
  for (const Victim& victim : victims) {
    if (freed >= needs) break;
    freed += victim.pages;
    found.waited_for += victim.waited_for ? 1 : 0;
    found.victims.push_back(victim.model);
  }
  return freed >= needs ? std::optional(std::move(found)) : std::nullopt;
}

void Loads::make_room(DeviceId device, ModelId model, const Room& room, Orders& out) {
  for (const ModelId victim : room.victims) out.unload(device, victim);
  if (free_pages(out.ledger(), device) >= out.ledger().model(model).info->pages)
    out.load(device, model, out.ledger().model(model).info->load);
  else
    taken_[device.index()] = true;  // until the UNLOADs are reported
}

void Loads::load_ahead(const LoadAhead& wanted, Orders& out) {
  const auto& [model, device, instead] = wanted;
  const Ledger& ledger = out.ledger();
  taken_.resize(ledger.devices(), false);
  if (!ledger.model(model).served || !may_load(ledger, device, model, out.time()) ||
      std::ranges::count(wanted_, device, &std::pair<DeviceId, ModelId>::first) > 0)
    return;
  const auto victims = room_ahead(ledger, wanted);
  if (!victims) return;
  make_room(device, model, {.victims = *victims}, out);
  if (ledger.residence(device, model) == Residence::absent) wanted_.emplace_back(device, model);
}

// Before anything else takes the pages.
void Loads::load_wanted(Orders& out) {
  std::erase_if(wanted_, [&](const auto& each) {
    const auto& [device, model] = each;
    const Ledger& ledger = out.ledger();
    if (!ledger.model(model).served || !may_load(ledger, device, model, out.time())) return true;
    if (free_pages(ledger, device) >= ledger.model(model).info->pages) {
      out.load(device, model, ledger.model(model).info->load);
      return true;
    }
    if (ledger.device(device).freeing == 0) return true;
    taken_[device.index()] = true;
    return false;
  });
}

// What has the fewest copies first.
void Loads::fill(DeviceId device, Orders& out) {
  const Ledger& ledger = out.ledger();
  while (loads(ledger, device) < loads_ahead) {
    std::optional<ModelId> best;
    const auto copies = [&](ModelId model) {
      return ledger.model(model).places.size() + ledger.model(model).coming;
    };
    for (std::uint32_t m = 0; m < ledger.models(); ++m) {
      const auto& model = ledger.model(ModelId{m});
      if (model.served && model.info->pages > 0 && model.info->pages <= free_pages(ledger, device) &&
          may_load(ledger, device, ModelId{m}, out.time()) && (!best || copies(ModelId{m}) < copies(*best)))
        best = ModelId{m};
    }
    if (!best) {
      filled_[device.index()] = true;
      return;
    }
    out.load(device, *best, ledger.model(*best).info->load);
  }
}

}  // namespace carillon::schedule::parts
