#include "carillon/schedule/baselines/shepherd.h"

#include <algorithm>
#include <tuple>

namespace carillon::schedule::baselines {

void Shepherd::queue_changed(ModelId model) {
  const RequestQueue& requests = queue(model);
  Order order;
  if (!requests.empty())
    order = {-fleet_.batch_size(model, fleet_.batch_index(model, requests.size())), requests.front().deadline,
             model};
  Order& listed = order_[model.index()];
  if (order == listed) return;
  if (listed.size != 0) by_size_.erase(listed);
  if (order.size != 0) by_size_.insert(order);
  listed = order;
}

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
  for (auto next = ready_devices().begin(); next != ready_devices().end();) {
    const DeviceId device = *next;
    if (ready(device, now)) {
      if (waiting().empty()) {
        all_busy = false;
        break;
      }
      const TimePoint start = start_on(device, now);
      std::optional<ModelId> best;
      int best_index = -1, best_size = 0;
      for (auto next_model = by_size_.begin(); next_model != by_size_.end();) {
        const Order order = *next_model;
        const ModelId model = order.model;
        if (best && std::tuple(-best_size, queue(*best).front().deadline, *best) <
                        std::tuple(order.size, order.deadline, model))
          break;  // nobody who follows can have a larger one, or as large a one that is due sooner
        if (fleet_.loaded(device, model)) {
          const int index = candidate(model, start, now, out);
          const int size = index < 0 ? 0 : fleet_.batch_size(model, index);
          // Among equals the one with the nearest deadline.
          const auto urgency = [this](ModelId m) { return std::pair(queue(m).front().deadline, m); };
          if (size > best_size || (size > 0 && size == best_size && urgency(model) < urgency(*best))) {
            best = model;
            best_index = index;
            best_size = size;
          }
        }
        next_model = by_size_.upper_bound(order);
      }
      if (best) {
        const TimePoint latest = queue(*best).front().deadline - fleet_.span(*best, best_index);
        const ActionId id = send_first(device, *best, best_index, latest, now, out);
        running_.insert({static_cast<std::size_t>(best_size), id});
      } else {
        all_busy = false;
      }
    }
    next = ready_devices().upper_bound(device);
  }
  if (arrived_ && all_busy && !running_.empty()) {
    const ModelId model = *arrived_;
    const auto [smallest, id] = *running_.begin();
    const SentAction* flight = fleet_.sent(id);
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
