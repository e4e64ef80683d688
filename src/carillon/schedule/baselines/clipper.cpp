#include "carillon/schedule/baselines/clipper.h"

#include <algorithm>
#include <optional>

namespace carillon::schedule::baselines {

void Clipper::step(TimePoint now, Actions& out) {
  expire(now, out);
  for (std::size_t i = 0; i < fleet_.device_count() && waiting_models() > 0; ++i) {
    const DeviceId device{static_cast<std::uint32_t>(i)};
    if (!ready(device, now)) continue;
    std::optional<ModelId> oldest;
    for (std::size_t m = 0; m < fleet_.model_count(); ++m) {
      const ModelId model{static_cast<std::uint32_t>(m)};
      if (queue(model).empty() || !fleet_.loaded(device, model)) continue;
      if (!oldest || waiting_since(model) < waiting_since(*oldest)) oldest = model;
    }
    if (!oldest) continue;
    const int index = fleet_.batch_index(
        *oldest, std::min(queue(*oldest).size(), static_cast<std::size_t>(limit(*oldest))));
    send(device, *oldest, index, TimePoint::max(), now, out);
  }
}

void Clipper::reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint) {
  if (done.status != ActionStatus::success || flight.requests.empty()) return;
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
