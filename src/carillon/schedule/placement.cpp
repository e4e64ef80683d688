#include "carillon/schedule/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

// A level that is found anew after this share of the window differs by at most as much from the last.
constexpr double renew_every = 0.05;
// Differences within so many standard deviations are taken for chance.
constexpr double deviations = 2;
// More devices than that are looked at a few times instead of sorted.
constexpr std::size_t sorted_at_most = 16;

}  // namespace

void Placement::add_model(Duration each) {
  Model m;
  m.each = std::max(1e-9, to_seconds(each));
  models_.push_back(std::move(m));
}

void Placement::renew_model(ModelId model, Duration each) {
  Model& m = models_[model.index()];
  m.each = std::max(1e-9, to_seconds(each));
  m.served = m.served_time = 0;
}

void Placement::add_device() {
  by_load_.set(static_cast<std::uint32_t>(load_.size()), 0);
  load_.push_back(0);
}

void Placement::decay(Model& m, TimePoint now) const {
  if (m.seen != TimePoint::min() && now > m.seen) {
    const double keep = std::exp(-to_seconds(now - m.seen) / window_);
    m.arrivals *= keep;
    m.served *= keep;
    m.served_time *= keep;
  }
  m.seen = now;
}

// One request of the time alone counts beside what was seen, so that the first short batches do not rule.
double Placement::each(const Model& m) const {
  return (m.each + m.served_time) / (1 + m.served);
}

double Placement::rate(ModelId model, TimePoint now) const {
  const Model& m = models_[model.index()];
  if (m.seen == TimePoint::min()) return 0;
  return m.arrivals / window_ * std::exp(-to_seconds(now - m.seen) / window_);
}

void Placement::set_load(DeviceId device, double load) {
  double& old = load_[device.index()];
  load = std::max(0.0, load);
  if (load == old) return;
  by_load_.set(device.value, load);
  old = load;
}

double Placement::level_of(double work, std::vector<double>& floors) {
  if (floors.size() > sorted_at_most) {
    // Down from the level at which all are filled: some of them are higher than that.
    double level = std::numeric_limits<double>::max();
    for (std::size_t below = floors.size() + 1;;) {
      double sum = 0;
      std::size_t count = 0;  // the first of floors: those that are below the level
      for (std::size_t i = 0; i < std::min(below, floors.size()); ++i)
        if (const double floor = floors[i]; floor < level) {
          sum += floor;
          floors[count++] = floor;
        }
      if (count == 0 || count >= below) return level;
      below = count;
      level = (work + sum) / static_cast<double>(count);
    }
  }
  std::sort(floors.begin(), floors.end());
  double sum = 0;
  for (std::size_t i = 0; i < floors.size(); ++i) {
    sum += floors[i];
    const double level = (work + sum) / static_cast<double>(i + 1);
    if (i + 1 == floors.size() || level <= floors[i + 1]) return level;
  }
  return 0;
}

void Placement::renew(Model& m, TimePoint now) {
  decay(m, now);
  m.renewed = now;
  m.work = m.arrivals / window_ * each(m);
  if (m.shares.empty()) return;
  floors_.clear();
  for (const Share& s : m.shares) floors_.push_back(load_[s.device.index()] - s.work);
  const double level = level_of(m.work, floors_);
  for (Share& s : m.shares) {
    const double floor = load_[s.device.index()] - s.work;
    s.work = std::max(0.0, level - floor);
    set_load(s.device, floor + s.work);
  }
}

void Placement::placed(ModelId model, DeviceId device, TimePoint now) {
  Model& m = models_[model.index()];
  m.shares.push_back({device, 0});
  renew(m, now);
}

void Placement::removed(ModelId model, DeviceId device, TimePoint now) {
  Model& m = models_[model.index()];
  const auto share =
      std::find_if(m.shares.begin(), m.shares.end(), [device](const Share& s) { return s.device == device; });
  CARILLON_ASSERT(share != m.shares.end());
  set_load(device, load_[device.index()] - share->work);
  m.shares.erase(share);
  renew(m, now);
}

bool Placement::arrived(ModelId model, TimePoint now) {
  Model& m = models_[model.index()];
  decay(m, now);
  m.arrivals += 1;
  if (m.renewed != TimePoint::min() && to_seconds(now - m.renewed) < renew_every * window_) return false;
  renew(m, now);
  hand_ = (hand_ + 1) % models_.size();
  if (Model& other = models_[hand_]; other.work > 0) renew(other, now);
  return true;
}

void Placement::served(ModelId model, std::size_t requests, Duration took, TimePoint now) {
  Model& m = models_[model.index()];
  decay(m, now);
  m.served += static_cast<double>(requests);
  m.served_time += to_seconds(took);
}

double Placement::gain_of_copy(ModelId model, DeviceId device) const {
  const Model& m = models_[model.index()];
  const double there = load_[device.index()];
  double level = load_[m.shares.front().device.index()];  // where more of its work would go
  for (const Share& s : m.shares) level = std::min(level, load_[s.device.index()]);
  const double each_takes = each(m);
  // A load that consists of requests of `e` seconds, counted over an exponential window, has the variance
  // load * e / (2 * window).
  const double chance = deviations * std::sqrt((level + there) * each_takes / (2 * window_));
  const double difference = level - there;
  if (difference <= chance) return 0;
  return std::min(m.work, difference / 2) / each_takes * std::min(1.0, difference);
}

double Placement::cost_of_removal(ModelId model, DeviceId device, TimePoint now) const {
  const Model& m = models_[model.index()];
  if (m.shares.size() <= 1) return rate(model, now);
  double own = 0;
  for (const Share& s : m.shares) {
    if (s.device != device) continue;
    own = s.work;
    break;
  }
  if (own == 0) return 0;
  floors_.clear();
  for (const Share& s : m.shares)
    if (s.device != device) floors_.push_back(load_[s.device.index()] - s.work);
  const double level = level_of(m.work, floors_);
  const double worse = level - (load_[device.index()] - own);
  return own / each(m) * std::clamp(worse, 0.0, 1.0);
}

}  // namespace carillon::schedule
