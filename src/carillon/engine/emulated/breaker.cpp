#include "carillon/engine/emulated/breaker.h"

#include <algorithm>

namespace carillon::engine {

void Breaker::plan(const Outage& outage) {
  const std::lock_guard lock(mutex_);
  outages_.push_back(outage);
  changed_.notify_all();
}

void Breaker::mend() {
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  for (Outage& outage : outages_)
    if (outage.from <= now) outage.until = std::min(outage.until, now);
  changed_.notify_all();
}

// At some time of [from, until].
bool Breaker::broken(Fault fault, TimePoint from, TimePoint until) const {
  return std::ranges::any_of(outages_, [&](const Outage& outage) {
    return outage.fault == fault && outage.from <= until && outage.until > from;
  });
}

Result<> Breaker::pass(TimePoint since) {
  constexpr std::chrono::milliseconds look_again{2};  // planned ends pass without a notice
  std::unique_lock lock(mutex_);
  TimePoint now = clock_.now();
  for (; broken(Fault::hang, now, now); now = clock_.now()) changed_.wait_for(lock, look_again);
  if (broken(Fault::failure, since, now))
    return carillon::fail(ErrorCode::unavailable, "the emulated device has failed");
  return {};
}

}  // namespace carillon::engine
