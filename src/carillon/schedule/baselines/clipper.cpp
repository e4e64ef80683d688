#include "carillon/schedule/baselines/clipper.h"

#include <algorithm>

namespace carillon::schedule::baselines {

void Clipper::step(TimePoint now, Actions& out) {
  expire(now, out);
  for (auto next = ready_devices().begin(); next != ready_devices().end() && !waiting().empty();) {
    const DeviceId device = *next;
    if (ready(device, now)) {
      const auto oldest = std::ranges::find_if(
          waiting(), [&](const auto& entry) { return fleet_.loaded(device, entry.second); });
      if (oldest != waiting().end()) {
        const ModelId model = oldest->second;
        const int index =
            fleet_.batch_index(model, std::min(queue(model).size(), static_cast<std::size_t>(limit(model))));
        send_first(device, model, index, TimePoint::max(), now, out);
      }
    }
    next = ready_devices().upper_bound(device);
  }
}

void Clipper::reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint) {
  if (done.status != ActionStatus::success || flight.outdated || flight.other_times ||
      flight.requests.empty())
    return;
  double& limit = limits_[flight.model.index()];
  const int size = fleet_.batch_size(flight.model, flight.batch_index);
  const Request& head = flight.requests.front();
  const Duration objective =
      head.deadline == TimePoint::max() ? Duration::max() : head.deadline - head.arrival;
  const double largest = fleet_.batch_size(flight.model, fleet_.batch_count(flight.model) - 1);
  if (done.duration > objective)
    limit = std::max(1.0, limit * 0.9);
  else if (size >=
           fleet_.batch_size(flight.model, fleet_.batch_index(flight.model, static_cast<std::size_t>(limit))))
    limit = std::min(largest, limit + 1);
}

}  // namespace carillon::schedule::baselines
