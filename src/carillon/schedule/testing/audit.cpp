#include "carillon/schedule/testing/audit.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "carillon/schedule/by_size.h"
#include "carillon/schedule/classes.h"
#include "carillon/schedule/state/mirror.h"

namespace carillon::schedule::testing {
namespace {

using ledger::Ledger;

std::string number(std::uint64_t value) {
  return std::to_string(value);
}
auto of_action(ActionId id) {
  return [id] { return "action " + number(id.value); };
}
auto of_device(DeviceId id) {
  return [id] { return "device " + number(id.value); };
}
auto of_copy(DeviceId device, ModelId model) {
  return [device, model] { return "model " + number(model.value) + " on device " + number(device.value); };
}
DeviceId device_of(std::size_t place) {
  return DeviceId{static_cast<std::uint32_t>(place)};
}
ModelId model_of(std::size_t place) {
  return ModelId{static_cast<std::uint32_t>(place)};
}

// Those whose clients are there.
std::vector<RequestId> wanted(const Ledger& ledger, const Ledger::Action& action) {
  std::vector<RequestId> out;
  for (const RequestId id : action.requests)
    if (const auto* request = ledger.request(id); request != nullptr && request->withdrawn == 0)
      out.push_back(id);
  return out;
}

std::span<const std::uint32_t> lane(const Ledger::Device& device, Lane which) {
  return device.under_way[static_cast<std::size_t>(which)];
}

bool same_version(const Ledger& ledger, const Ledger::Action& action) {
  return action.version == ledger.model(action.model).version;
}

}  // namespace

std::string Findings::text() const {
  std::string out;
  for (const auto& [kind, detail] : all_) out += kind + ": " + detail + "\n";
  return out;
}

namespace {

// What stands between the driver and the policy, as far as it is there.
struct Parts {
  const Classed* classed = nullptr;
  const BySize* by_size = nullptr;
  const Mirror* mirror = nullptr;
};

Parts parts_of(const Scheduler& scheduler) {
  Parts parts;
  for (const Scheduler* each = &scheduler; each != nullptr; each = each->within()) {
    if (const auto* classed = dynamic_cast<const Classed*>(each)) parts.classed = classed;
    if (const auto* by_size = dynamic_cast<const BySize*>(each)) parts.by_size = by_size;
    if (each->mirror() != nullptr) parts.mirror = each->mirror();
  }
  return parts;
}

}  // namespace

void Audit::check(const Ledger& ledger, const Scheduler& scheduler, std::set<ActionId>& once_held,
                  Findings& found) {
  const Parts parts = parts_of(scheduler);
  // What Classed holds back is ordered for those within it, and not for the ledger.
  std::set<ActionId> held;
  std::set<std::pair<DeviceId, ModelId>> held_there;  // by home
  if (parts.classed != nullptr)
    for (std::size_t d = 0; d < parts.classed->devices_.size(); ++d)
      for (const Action& action : parts.classed->devices_[d].held)
        std::visit(
            [&](const auto& what) {
              if constexpr (requires { what.model; }) {
                held.insert(what.id);
                once_held.insert(what.id);
                held_there.emplace(device_of(d), what.model);
              }
            },
            action);

  if (parts.classed != nullptr && parts.classed->begun_) {
    const Classed& classed = *parts.classed;
    for (std::size_t i = 0; i < classed.devices_.size(); ++i) {
      const DeviceId id = device_of(i);
      const Classed::Device& its = classed.devices_[i];
      const Ledger::Device& device = ledger.device(id);
      found.expect(its.alive == device.alive, "classes: alive", of_device(id));
      if (!device.alive) continue;
      found.expect(its.pages == device.pages && its.best_effort == device.best_effort, "classes: device",
                   of_device(id));
      std::vector<ActionId> runs, ordered;
      for (const auto& run : its.urgent_runs) runs.push_back(run.id);
      for (const std::uint32_t place : lane(device, Lane::real_time)) ordered.push_back(ledger.at(place).id);
      found.expect(runs == ordered, "classes: real-time runs", of_device(id));
      for (const auto& [model, c] : its.copies) {
        static const Ledger::Copy nowhere;
        const Ledger::Copy* const there = ledger.copy(id, model);
        const Ledger::Copy& copy = there != nullptr ? *there : nowhere;
        const bool held_back = held_there.contains({id, model});
        // On a smaller device than those before, some models are pinned no more: their copies leave.
        const bool unpinned = c.pin && !classed.models_[model.index()].pinned;
        Residence residence = copy.residence;
        if (residence == Residence::leaving && copy.arriving) residence = Residence::loading;
        found.expect(c.residence == residence || ((held_back || unpinned) && residence == Residence::loaded &&
                                                  c.residence == Residence::leaving),
                     "classes: residence", [&] {
                       return of_copy(id, model)() + ": " + number(static_cast<std::uint64_t>(c.residence)) +
                              ", in the ledger " + number(static_cast<std::uint64_t>(residence));
                     });
        if (residence == Residence::absent) continue;
        found.expect(copy.brought || c.pin == Classed::owns(copy.load), "classes: pin", of_copy(id, model));
        found.expect(!c.pin || c.pages == copy.pages, "classes: pages", of_copy(id, model));
      }
    }
    for (std::size_t m = 0; m < classed.models_.size(); ++m) {
      const Classed::Model& its = classed.models_[m];
      const Ledger::Model& model = ledger.model(model_of(m));
      found.expect(its.served == model.served, "classes: served", [&] { return "model " + number(m); });
      // A copy whose UNLOAD is held back is no place to send to.
      std::vector<DeviceId> places = model.places;
      std::erase_if(places, [&](DeviceId id) {
        const Classed::Copy* const c = classed.find(classed.devices_[id.index()], model_of(m));
        return c != nullptr && c->residence == Residence::leaving &&
               (c->pin || held_there.contains({id, model_of(m)}));
      });
      found.expect(its.places == places, "classes: places", [&] { return "model " + number(m); });
      if (its.info != nullptr && model.info != nullptr)
        found.expect(its.info->batches == model.info->batches && its.info->pages == model.info->pages,
                     "classes: model", [&] { return "model " + number(m); });
      if (its.handed)
        found.expect(ledger.request(*its.handed) != nullptr, "classes: handed over",
                     [&] { return "request " + number(its.handed->value); });
    }
    std::size_t waiting = 0, queued = 0;
    for (const Classed::Model& its : classed.models_) queued += its.cold.size() + its.patient.size();
    for (const Classed::Device& its : classed.devices_) queued += its.urgent.size();
    for (std::uint32_t i = 0; i < classed.kept_.size(); ++i) {
      const Classed::Kept& kept = classed.kept_[i];
      const std::uint32_t* const place = classed.kept_by_id_.find(kept.request.id);
      if (place == nullptr || *place != i) continue;
      const auto detail = [&] { return "request " + number(kept.request.id.value); };
      const Ledger::OpenRequest* const request = ledger.request(kept.request.id);
      found.expect(request != nullptr, "classes: open", detail);
      if (request == nullptr) continue;
      found.expect(request->told == kept.request, "classes: request", detail);
      waiting += request->action == Ledger::none ? 1 : 0;
    }
    found.expect(waiting == queued, "classes: what waits",
                 [&] { return number(waiting) + " wait, " + number(queued) + " in queues"; });
  }

  if (parts.by_size != nullptr) {
    const BySize& by_size = *parts.by_size;
    for (const auto& [id, flight] : by_size.flights_) {
      if (held.contains(id)) continue;
      const Ledger::Action* const action = ledger.action(id);
      found.expect(action != nullptr, "sizes: under way", of_action(id));
      if (action == nullptr) continue;
      found.expect(action->device == flight.device && action->requests == flight.requests,
                   "sizes: what is under way", of_action(id));
      Effort effort;
      for (const RequestId request : action->requests)
        if (const auto* open = ledger.request(request); open != nullptr) effort += open->told.effort;
      found.expect(effort == flight.run.effort, "sizes: effort", of_action(id));
      const BySize::Model& model = by_size.models_[action->model.index()];
      if (model.info == nullptr || model.info->cls == Class::normal)
        found.expect((flight.version == model.version) == same_version(ledger, *action), "sizes: version",
                     of_action(id));
    }
  }

  if (parts.mirror != nullptr) {
    const Mirror& mirror = *parts.mirror;
    const auto outer = [&](ModelId inner) {
      return parts.by_size != nullptr ? parts.by_size->origins_[inner.index()].model : inner;
    };
    const auto own = [&](ActionId id) { return parts.classed != nullptr && Classed::owns(id); };
    const auto layers = [&](DeviceId id, ModelId model, const Ledger::Copy& copy) {
      if (!copy.brought) return own(copy.load);
      return parts.classed != nullptr &&
             (parts.classed->pinned(model) ||
              parts.classed->find(parts.classed->devices_[id.index()], model)->pin);
    };
    for (std::size_t i = 0; i < mirror.devices_.size(); ++i) {
      const DeviceId id = device_of(i);
      const Mirror::Device& its = mirror.devices_[i];
      const Ledger::Device& device = ledger.device(id);
      found.expect(its.alive == device.alive, "mirror: alive", of_device(id));
      std::vector<ActionId> runs, ordered;
      for (const Executor::Pending& pending : its.exec.pending()) {
        if (held.contains(pending.id)) continue;
        runs.push_back(pending.id);
        const Ledger::Action* const action = ledger.action(pending.id);
        const SentAction* const sent = mirror.sent(pending.id);
        found.expect(action != nullptr && sent != nullptr, "mirror: under way", of_action(pending.id));
        if (action == nullptr || sent == nullptr) continue;
        found.expect(action->kind == sent->kind && action->model == outer(sent->model), "mirror: model",
                     of_action(pending.id));
        found.expect(static_cast<std::size_t>(sent->batch) == action->requests.size(), "mirror: batch",
                     of_action(pending.id));
        if (!sent->requests.empty())
          found.expect(sent->requests == action->requests, "mirror: requests", of_action(pending.id));
        if (!sent->members.empty()) {
          std::vector<RequestId> members;
          for (const Request& member : sent->members) members.push_back(member.id);
          found.expect(members == wanted(ledger, *action), "mirror: members", of_action(pending.id));
        }
        found.expect(sent->expected == action->expected, "mirror: expected", of_action(pending.id));
        found.expect(action->run.model == sent->model &&
                         action->run.index == static_cast<std::uint32_t>(sent->batch_index),
                     "mirror: whose times", of_action(pending.id));
        // One that was held back left later than the mirror takes it to, and a Preempt in between came to
        // nothing.
        if (once_held.contains(pending.id)) continue;
        found.expect(action->order == pending.order, "mirror: place in the order", of_action(pending.id));
        found.expect(static_cast<std::uint32_t>(sent->preempted) == action->preempted, "mirror: preempted",
                     of_action(pending.id));
        const Ledger::Copy* const copy = ledger.copy(id, action->model);
        if (copy == nullptr || !layers(id, action->model, *copy)) {
          found.expect(sent->sent == action->sent, "mirror: sent", of_action(pending.id));
          found.expect(sent->sent_cold == action->cold, "mirror: cold", of_action(pending.id));
          found.expect(sent->uses_copy == action->uses_copy, "mirror: uses a copy", of_action(pending.id));
          found.expect(mirror.current(pending.id) == same_version(ledger, *action), "mirror: version",
                       of_action(pending.id));
        }
      }
      for (const std::uint32_t place : lane(device, Lane::exec))
        if (!ledger.at(place).profiled) ordered.push_back(ledger.at(place).id);
      // To the mirror the first action runs and stays first, whatever is to go before it. Of two actions that
      // overtake at one instant the mirror puts the second first; a device goes by their ids.
      const auto device_order = [](const Executor::Pending& each) { return std::pair(each.order, each.id); };
      if (!std::ranges::is_sorted(its.exec.pending(), {}, device_order)) {
        std::ranges::sort(runs);
        std::ranges::sort(ordered);
      }
      found.expect(runs == ordered, "mirror: runs in their order", [&] {
        std::string text = of_device(id)() + ":";
        for (const ActionId each : runs) text += " " + number(each.value);
        text += ", in the ledger";
        for (const ActionId each : ordered) text += " " + number(each.value);
        for (const Executor::Pending& each : its.exec.pending())
          text += " (" + number(each.id.value) + " at " +
                  std::to_string(each.order.time_since_epoch().count()) + ")";
        return text;
      });
      runs.clear();
      ordered.clear();
      for (const Executor::Pending& pending : its.load.pending())
        if (!held.contains(pending.id)) runs.push_back(pending.id);
      for (const std::uint32_t place : lane(device, Lane::load))
        if (ledger.at(place).kind == ActionKind::load && !own(ledger.at(place).id))
          ordered.push_back(ledger.at(place).id);
      found.expect(runs == ordered, "mirror: LOADs in their order", of_device(id));
      // Of what the device has, the mirror knows all but the copies that Classed pins.
      std::uint64_t pages = device.taken, freeing = device.freeing;
      bool all = device.alive;
      for (const auto& [model, copy] : device.copies) {
        if (!layers(id, model, copy)) continue;
        if (copy.residence != Residence::absent) pages -= copy.pages;
        if (copy.residence == Residence::unloading) freeing -= copy.pages;
      }
      for (const auto& [at, model] : held_there) all = all && at != id;
      if (all) {
        found.expect(its.total_pages - its.free_pages == pages, "mirror: pages", of_device(id));
        found.expect(its.freeing_pages == freeing, "mirror: pages that are freed", of_device(id));
      }
      for (std::size_t inner = 0; inner < its.slot_of.size(); ++inner) {
        if (its.slot_of[inner] == Mirror::no_slot || mirror.home(model_of(inner)) != model_of(inner))
          continue;
        const Mirror::OnDevice& on = its.slots[its.slot_of[inner]];
        const ModelId model = outer(model_of(inner));
        static const Ledger::Copy nowhere;
        const Ledger::Copy* const there = ledger.copy(id, model);
        const Ledger::Copy& copy = there != nullptr ? *there : nowhere;
        if (held_there.contains({id, model}) ||
            (copy.residence != Residence::absent && layers(id, model, copy)))
          continue;
        found.expect(on.residence == copy.residence, "mirror: residence", [&] {
          return of_copy(id, model)() + ": " + number(static_cast<std::uint64_t>(on.residence)) +
                 ", in the ledger " + number(static_cast<std::uint64_t>(copy.residence));
        });
        // Runs that were sent while the model was pinned use no copy that the mirror knows.
        if (parts.classed == nullptr || parts.classed->models_[model.index()].info->cls == Class::normal)
          found.expect(static_cast<std::uint32_t>(on.pending_infers) == copy.users[1], "mirror: users",
                       of_copy(id, model));
        if (on.residence == Residence::absent) continue;
        found.expect(on.pages == copy.pages, "mirror: pages of a copy", of_copy(id, model));
        found.expect(on.arriving == copy.arriving, "mirror: arriving", of_copy(id, model));
        // A LOAD that was held back was ordered earlier for the mirror than for the ledger.
        if (on.residence == Residence::loaded)
          found.expect(on.last_use == copy.last_use, "mirror: last use", [&] {
            return of_copy(id, model)() + ": " +
                   number(static_cast<std::uint64_t>(on.last_use.time_since_epoch().count())) +
                   ", in the ledger " +
                   number(static_cast<std::uint64_t>(copy.last_use.time_since_epoch().count()));
          });
      }
    }
  }
}

TimePoint Shadowed::decide(const Event& event, TimePoint now, Actions& out) {
  const std::size_t seen = out.size();
  ledger_.apply(event, now);
  const TimePoint wake = shadowed_.decide(event, now, out);
  const std::span said(out.begin() + static_cast<std::ptrdiff_t>(seen), out.end());
  for (const Action& action : said) ledger_.book(action, now);
  if (every_ == 0 || events_++ % every_ != 0) return wake;
  findings_.at("event " + std::to_string(events_) + " of kind " + std::to_string(event.index()));
  Audit::check(ledger_, shadowed_, held_, findings_);
  return wake;
}

}  // namespace carillon::schedule::testing
