#include "carillon/schedule/symphony/batch_plan.h"

#include <algorithm>
#include <cmath>

namespace carillon::schedule::symphony {

// The place of the largest batch size that can be gathered at `rate` and still run in time.
int BatchPlan::largest(const ModelMachine& machine, double rate, Duration slo) {
  const auto fits = [&](int index) {
    return (machine.batch_size(index) - 1) / rate + to_seconds(machine.span(index)) <= to_seconds(slo);
  };
  int low = 0, high = machine.batch_count() - 1;
  if (fits(high)) return high;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

double BatchPlan::needed(double scale, const std::vector<ModelMachine>& machines) {
  double total = 0;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    Model& m = models_[i];
    const double rate = m.rate * scale;
    if (rate <= 0) {
      m.size = 0;
      continue;
    }
    const int index = largest(machines[i], rate, m.slo);
    m.size = machines[i].batch_size(index);
    total += rate * to_seconds(machines[i].exec(index)) / m.size;
  }
  return total;
}

void BatchPlan::plan(TimePoint now, std::size_t devices, const std::vector<ModelMachine>& machines) {
  if (last_ != TimePoint::min()) {
    const double seconds = to_seconds(now - last_);
    const double keep = std::exp(-seconds / to_seconds(window_));
    for (Model& m : models_) {
      const double seen = static_cast<double>(m.arrived) / seconds;
      m.rate = m.rate == 0 ? seen : keep * m.rate + (1 - keep) * seen;
      if (m.rate * to_seconds(window_) < 0.01) m.rate = 0;
      m.arrived = 0;
    }
  } else {
    for (Model& m : models_) m.arrived = 0;
  }
  last_ = now;
  const auto room = static_cast<double>(devices);
  const double all = needed(1, machines);
  demand_ = devices == 0 ? 0 : all / room;
  if (all <= room || devices == 0) return;
  double low = 0, high = 1;
  for (int i = 0; i < 12; ++i) {
    const double middle = (low + high) / 2;
    (needed(middle, machines) <= room ? low : high) = middle;
  }
  needed(high, machines);
}

}  // namespace carillon::schedule::symphony
