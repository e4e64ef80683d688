#include "carillon/schedule/state/stragglers.h"

#include <algorithm>

#include "carillon/base/assert.h"
#include "carillon/schedule/clockwork/clockwork.h"

namespace carillon::schedule {
namespace {

// Stragglers that are looked at for one device with room, and counted before one is taken in: bounds the
// work. Where more wait, the device has no time to spare.
constexpr std::size_t most_looked_at = 32;

}  // namespace

// From the start of EXEC until the answer, where all goes as usual.
Duration Clockwork::usual_span(DeviceId device, ModelId model, int batch_index) const {
  return std::min(state_.margins().usual(device).span(state_.usual_exec(device, model, batch_index)),
                  state_.margins().at(device).span(state_.exec_estimate(device, model, batch_index)));
}

// Calls visit(device) for devices that have the model, until it returns false: for all of them, or, of a wide
// model, for a few that are free first.
template <typename Visit>
void Clockwork::visit_loaded(ModelId model, Visit&& visit) const {
  if (!models_[model.index()].wide) {
    for (const Place& p : models_[model.index()].places)
      if (state_.alive(p.device) && !visit(p.device)) return;
    return;
  }
  std::size_t looked_at = 0;
  for (auto at = by_end_.begin(); at != by_end_.end() && looked_at < few_places; ++at) {
    if (!placed(at->second, model)) continue;
    ++looked_at;
    if (!visit(at->second)) return;
  }
}

// When the request must start alone at the latest, on the best of the devices that have its model; none where
// none has, or where it has no deadline.
std::optional<TimePoint> Clockwork::last_usual_start(const Request& request) const {
  if (!has_deadline(request)) return std::nullopt;
  std::optional<Duration> shortest;
  visit_loaded(request.model, [&](DeviceId device) {
    const Duration span = usual_span(device, request.model, 0);
    shortest = shortest ? std::min(*shortest, span) : span;
    return true;
  });
  if (!shortest) return std::nullopt;
  return saturating_add(request.deadline, -*shortest);
}

// No request waits for it.
bool Clockwork::unwanted(DeviceId device) const {
  return nobody_waits(ports_[device.index()].ready) && nobody_waits(wide_);
}

// Some device could have it in time, behind what the device was sent and behind the other stragglers. The
// device has the model, and nobody waits for it.
bool Clockwork::usually_in_time(const Request& request, TimePoint now) const {
  if (!has_deadline(request) || stragglers_.size() >= most_looked_at) return false;
  bool found = false;
  visit_loaded(request.model, [&](DeviceId device) {
    if (state_.residence(device, request.model) != Residence::loaded || !unwanted(device)) return true;
    TimePoint start = std::max(state_.usual_free_at(device, now),
                               saturating_add(now, state_.margins().usual(device).dispatch));
    // Those of its own model share its batch.
    for (const auto& other : stragglers_)
      if (other.request.model != request.model && state_.loaded(device, other.request.model))
        start = saturating_add(start, state_.usual_exec(device, other.request.model, 0));
    const auto& batches = state_.model(request.model).batches;
    const auto rows = static_cast<int>(stragglers_.of(request.model)) + 1;
    int size = 0;
    while (size + 1 < static_cast<int>(batches.size()) &&
           batches[static_cast<std::size_t>(size)].batch < rows)
      ++size;
    found = saturating_add(start, usual_span(device, request.model, size)) <= request.deadline;
    return !found;
  });
  return found;
}

// The request waits for a device's leisure from now on.
void Clockwork::straggle(OpenRequest& open, TimePoint last_start) {
  open.demand = Duration{0};
  open.waiting = true;
  stragglers_.insert({last_start, open.sequence, open.request});
}

// Sends the batch of the nearest last start that the device has in time, if there is one.
bool Clockwork::send_stragglers(DeviceId device, TimePoint now, Actions& out) {
  if (stragglers_.empty()) return false;
  const TimePoint soonest = std::max(state_.usual_free_at(device, now),
                                     saturating_add(now, state_.margins().usual(device).dispatch));
  const TimePoint earliest = std::max(now, state_.exec(device).last_order());
  const auto batch = stragglers_.first_batch(
      std::max(soonest, earliest), most_looked_at,
      [&](ModelId model) -> std::span<const BatchProfile> {
        if (state_.residence(device, model) != Residence::loaded) return {};
        return state_.model(model).batches;
      },
      [&](ModelId model, int index) { return usual_span(device, model, index); });
  if (!batch) return false;
  std::vector<RequestId> members;
  for (const Request& request : batch->requests) {
    requests_.find(request.id)->waiting = false;
    members.push_back(request.id);
  }
  const Duration expected = state_.exec_estimate(device, batch->model, batch->index);
  const ActionId id = state_.begin_infer(device, batch->model, batch->index, members, earliest, expected, now,
                                         state_.margins().at(device).dispatch, batch->latest);
  update_end(device);
  out.emplace_back(Infer{id, device, batch->model, std::move(members), {earliest, batch->latest}, expected});
  return true;
}

// Those that would be late on all devices even if all went as usual are refused.
void Clockwork::expire_stragglers(TimePoint now, Actions& out) {
  while (const auto late = stragglers_.expire(now)) {
    OpenRequest& open = *requests_.find(late->request.id);
    // Estimates may have fallen since.
    if (const auto last = last_usual_start(open.request); last && *last > now) {
      straggle(open, *last);
      continue;
    }
    refuse_late(late->request, now, out);
  }
}

}  // namespace carillon::schedule
