#include "carillon/schedule/symphony/device_waits.h"

#include <algorithm>

namespace carillon::schedule::symphony {
namespace {

constexpr int search_every = 16;
constexpr Duration search_after = 1s;  // where nothing comes: what was seen is forgotten
constexpr double mean_over = 32;

}  // namespace

void DeviceWaits::Waits::add(Duration wait, int requests, TimePoint now) {
  times.add(wait, requests, now);
  if (++added >= search_every || wait > tail) search(now);
}

Duration DeviceWaits::Waits::tail_at(TimePoint now) {
  if (tail > Duration{0} && now - found >= search_after) search(now);
  return tail;
}

void DeviceWaits::Waits::search(TimePoint now) {
  added = 0;
  found = now;
  tail = times.tail(now);
}

void DeviceWaits::answered(ModelId model, int requests, TimePoint at, TimePoint now) {
  Model& m = models_[model.index()];
  if (m.since == TimePoint::max()) return;
  const Duration wait = std::max(Duration{0}, at - m.since);
  m.since = TimePoint::max();
  m.mean_ns += (static_cast<double>(wait.count()) - m.mean_ns) / mean_over;
  m.add(wait, requests, now);
  all_.add(wait, requests, now);
}

Duration DeviceWaits::lead(ModelId model, Duration guess, TimePoint now) {
  Model& m = models_[model.index()];
  const Duration measured = std::max(m.tail_at(now), all_.tail_at(now));
  // A device was there at once whenever one was asked for: that many cannot all have been lucky.
  if (measured == Duration{0} || m.times.cases(now) >= known_after_) return measured;
  return std::max(measured, guess);
}

}  // namespace carillon::schedule::symphony
