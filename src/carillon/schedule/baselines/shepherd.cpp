#include "carillon/schedule/baselines/shepherd.h"

#include <algorithm>

namespace carillon::schedule::baselines {

int Shepherd::candidate(ModelId model, TimePoint start, TimePoint now, Actions& out) {
  while (!queue(model).empty()) {
    const Request& head = queue(model).front();
    const int index = fitting(model, queue(model).size(), start, head.deadline);
    if (index >= 0) return index;
    // Another device may be free sooner.
    if (fitting(model, 1, now + fleet_.environment().dispatch, head.deadline) >= 0) return -1;
    refuse_head(model, now, out);
  }
  return -1;
}

void Shepherd::step(TimePoint now, Actions& out) {
  expire(now, out);
  bool all_busy = true;
  for (std::size_t i = 0; i < fleet_.device_count(); ++i) {
    const DeviceId device{static_cast<std::uint32_t>(i)};
    if (!ready(device, now)) continue;
    if (waiting_models() == 0) {
      all_busy = false;
      break;
    }
    const TimePoint start = start_on(device, now);
    std::optional<ModelId> best;
    int best_index = -1, best_size = 0;
    for (std::size_t m = 0; m < fleet_.model_count(); ++m) {
      const ModelId model{static_cast<std::uint32_t>(m)};
      if (queue(model).empty() || !fleet_.loaded(device, model)) continue;
      const int index = candidate(model, start, now, out);
      if (index < 0) continue;
      const int size = fleet_.batch_size(model, index);
      // Among equals the one with the nearest deadline.
      if (size > best_size ||
          (size == best_size && queue(model).front().deadline < queue(*best).front().deadline)) {
        best = model;
        best_index = index;
        best_size = size;
      }
    }
    if (!best) {
      all_busy = false;
      continue;
    }
    const TimePoint latest = queue(*best).front().deadline - fleet_.span(*best, best_index);
    const ActionId id = send(device, *best, best_index, latest, now, out);
    running_.insert({static_cast<std::size_t>(best_size), id});
  }
  if (arrived_ && all_busy && !running_.empty()) {
    const ModelId model = *arrived_;
    const auto [smallest, id] = *running_.begin();
    const Fleet::Flight* flight = fleet_.flight(id);
    // The stop takes as long to get there as the batch that follows it.
    const int index =
        queue(model).empty() ? -1 : candidate(model, now + 2 * fleet_.environment().dispatch, now, out);
    if (index >= 0 && flight != nullptr && fleet_.loaded(flight->device, model) &&
        fleet_.batch_size(model, index) >= preempt_ * static_cast<double>(smallest)) {
      running_.erase(running_.begin());  // its device is filled when it reports
      fleet_.stop(id, out);
    }
  }
  arrived_.reset();
}

}  // namespace carillon::schedule::baselines
