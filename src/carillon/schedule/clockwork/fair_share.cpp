#include "carillon/schedule/clockwork/fair_share.h"

#include <algorithm>
#include <cmath>

namespace carillon::schedule {
namespace {

constexpr int renewals = 4;            // a window
constexpr double served_memory = 128;  // requests of a model over which its share is averaged
constexpr Duration longest_slo = std::chrono::minutes{1};  // a deadline further away is as good as none

}  // namespace

void FairShare::count(ModelId model, double answered) {
  double& served = models_[model.index()].served;
  served += (answered - served) / served_memory;
}

void FairShare::asked(ModelId model, Duration slo, std::size_t devices, TimePoint now) {
  if (renewed_ == TimePoint::min()) renewed_ = now;
  if (now - renewed_ >= window_ / renewals && now > renewed_) renew(devices, now);
  Model& m = models_[model.index()];
  ++m.asked;
  m.slos += to_seconds(std::clamp(slo, Duration{0}, longest_slo));
}

void FairShare::renew(std::size_t devices, TimePoint now) {
  const double seconds = to_seconds(now - renewed_);
  const double fresh = known_ ? 1 - std::exp(-seconds / to_seconds(window_)) : 1;
  renewed_ = now;
  known_ = true;
  double needed = 0;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    Model& m = models_[i];
    m.rate += (m.asked / seconds - m.rate) * fresh;
    if (m.asked > 0) m.slo = from_seconds(m.slos / m.asked);
    m.asked = m.slos = 0;
    if (m.rate > 0) needed += needs_(ModelId{static_cast<std::uint32_t>(i)}, m.rate, m.slo);
  }
  enough_ = needed <= static_cast<double>(devices);
}

}  // namespace carillon::schedule
