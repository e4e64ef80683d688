#include "carillon/provision/autoscale.h"

#include <algorithm>
#include <cmath>

namespace carillon::provision {

AutoscaleAdvice autoscale_advice(int devices, double bad_rate, double idle_fraction, double threshold) {
  AutoscaleAdvice advice{.bad_rate = bad_rate, .idle_fraction = idle_fraction};
  if (bad_rate > threshold) {
    // Beyond a half, r/(1-r) says more about the reach of the formula than about the need; the next look will
    // tell.
    const double more = devices * bad_rate / std::max(0.5, 1 - bad_rate);
    advice.add_devices = std::max(1, static_cast<int>(std::ceil(more - 1e-9)));
  } else {
    advice.release_devices =
        std::clamp(static_cast<int>(std::floor(devices * idle_fraction + 1e-9)), 0, std::max(0, devices - 1));
  }
  return advice;
}

AutoscaleAdvice AutoscaleWindow::observe(TimePoint now, int devices, const Counters& counters) {
  while (samples_.size() > 1 && now - samples_[1].at >= span_) samples_.pop_front();
  // When within the time since the last call the number changed, nobody knows: it counts as changing now.
  if (!samples_.empty()) device_seconds_ += to_seconds(now - last_) * last_devices_;
  last_ = now;
  last_devices_ = devices;
  AutoscaleAdvice advice;
  if (!samples_.empty() && now > samples_.front().at && devices > 0) {
    const Sample& from = samples_.front();
    const auto grown = [](std::uint64_t then, std::uint64_t now_is) {
      return now_is > then ? now_is - then : std::uint64_t{0};
    };
    const std::uint64_t requests = grown(from.counters.requests, counters.requests);
    // Counters are read one after another: of few requests, more may seem bad than there were.
    const std::uint64_t bad_ones = std::min(requests, grown(from.counters.bad, counters.bad));
    const double bad = requests == 0 ? 0 : static_cast<double>(bad_ones) / static_cast<double>(requests);
    const double there = device_seconds_ - from.device_seconds;
    const double busy = there > 0 ? to_seconds(counters.busy - from.counters.busy) / there : 0;
    advice = autoscale_advice(devices, bad, std::clamp(1 - busy, 0.0, 1.0));
    advice.period = now - from.at;
    advice.requests = requests;
    advice.devices = there / to_seconds(advice.period);
  }
  if (samples_.empty() || now - samples_.back().at >= span_ / 64)
    samples_.push_back({now, counters, device_seconds_});
  return advice;
}

}  // namespace carillon::provision
