#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "carillon/ledger/model_info.h"
#include "carillon/profile/rolling.h"

namespace carillon::ledger {

// Where estimates come from, and how long each counts. Only what runs is measured, and estimates decide what
// runs: what a slow spell did to them has to be forgotten by time.
constexpr Duration stale_after = 1s;       // it may be doubted, and an outlier among it goes
constexpr Duration forgotten_after = 10s;  // it counts no more

// What a model's batches take, by batch index: of one device, or of all alike. Its seeds until something ran;
// memory grows with the batch sizes that ran. Not thread-safe.
class MeasuredTimes {
 public:
  // By batch index; empty until something ran: the seeds count.
  std::span<const Duration> all() const { return estimates_; }
  Duration of(const ModelInfo& model, std::size_t index) const {
    return estimates_.empty() ? model.batches[index].exec : estimates_[index];
  }

  // A batch took so long. Batch sizes that a slow spell keeps from being chosen while others run are not
  // measured: theirs lose their outliers, and are in the end taken to be as far from their seeds as the size
  // that was just measured. Those are looked at every `look_every`: O(batch sizes that ran). Calls
  // changed(index) for each estimate that may be another.
  template <typename Changed>
  void add(const ModelInfo& model, std::size_t index, Duration took, TimePoint now, Duration look_every,
           Changed&& changed) {
    if (estimates_.empty())
      for (const BatchProfile& b : model.batches) estimates_.push_back(b.exec);
    auto found = at(index);
    if (found == windows_.end() || found->first != index)
      found = windows_.emplace(found, index, profile::RollingWindow(model.batches[index].exec));
    found->second.add(took, now);
    set(index, found->second.estimate(), changed);
    oldest_ = std::min(oldest_, now);
    if (looked_at_ != TimePoint::min() && now - looked_at_ < look_every) return;
    looked_at_ = now;
    if (saturating_add(oldest_, stale_after) > now) return;
    oldest_ = now;
    for (auto& [i, window] : windows_) {
      if (i == index) continue;
      const Duration age = now - window.newest_at();
      if (age < stale_after) {
        oldest_ = std::min(oldest_, window.newest_at());
        continue;
      }
      if (age >= forgotten_after) {
        const double speed = times_seed(estimates_[index], model.batches[index].exec);
        window.reset(from_ns(static_cast<double>(model.batches[i].exec.count()) * speed), now);
      } else {
        window.forget_outlier(now);
      }
      set(i, window.estimate(), changed);
    }
  }

  // The medians of what of() gives the largest of.
  Duration usual(const ModelInfo& model, std::size_t index) const {
    const auto found = const_cast<MeasuredTimes*>(this)->at(index);
    return found == windows_.end() || found->first != index ? of(model, index) : found->second.usual();
  }
  // A batch of that size ran since its seed last counted.
  bool ran(std::size_t index) const {
    const auto found = const_cast<MeasuredTimes*>(this)->at(index);
    return found != windows_.end() && found->first == index && found->second.measured();
  }
  // When a batch size was measured last, TimePoint::min() where it never was; and its seed counts again.
  TimePoint newest_at(std::size_t index) const {
    const auto found = const_cast<MeasuredTimes*>(this)->at(index);
    return found == windows_.end() || found->first != index ? TimePoint::min() : found->second.newest_at();
  }
  template <typename Changed>
  void reset(const ModelInfo& model, std::size_t index, TimePoint now, Changed&& changed) {
    const auto found = at(index);
    if (found != windows_.end() && found->first == index) found->second.reset(model.batches[index].exec, now);
    set(index, model.batches[index].exec, changed);
  }
  // How many times its seed the smallest batch is expected to take.
  double pace(const ModelInfo& model) const { return times_seed(of(model, 0), model.batches.front().exec); }
  // How many times `seed` >= 0 that is.
  static double times_seed(Duration time, Duration seed) {
    return static_cast<double>(time.count()) / static_cast<double>(std::max<std::int64_t>(1, seed.count()));
  }
  // Everything takes `speed` times its seed from now on, whatever was measured before.
  void rescale(const ModelInfo& model, double speed, TimePoint now) {
    const auto scaled = [&](std::size_t i) {
      return from_ns(static_cast<double>(model.batches[i].exec.count()) * speed);
    };
    if (estimates_.empty()) estimates_.resize(model.batches.size());
    for (auto& [i, window] : windows_) window.reset(scaled(i), now);
    for (std::size_t i = 0; i < estimates_.size(); ++i) estimates_[i] = scaled(i);
  }
  // The seeds were `before`, and are `after` from now on, of the same sizes. What was measured of a size
  // whose seed changed is forgotten: it is taken to be as far from its new seed as the size that was measured
  // last is from its old one. The others stay as they are.
  void change_seeds(std::span<const BatchProfile> before, std::span<const BatchProfile> after,
                    TimePoint now) {
    const double pace = latest_pace(before);
    for (std::size_t i = 0; i < estimates_.size(); ++i) {
      if (before[i].exec == after[i].exec) continue;
      estimates_[i] = from_ns(static_cast<double>(after[i].exec.count()) * pace);
      if (const auto found = at(i); found != windows_.end() && found->first == i)
        found->second.reset(estimates_[i], now);
    }
  }
  // All that were not measured for long enough to be doubted, or never, have their seeds again.
  void reset_stale(const ModelInfo& model, TimePoint now) {
    auto next = windows_.begin();
    for (std::size_t i = 0; i < estimates_.size(); ++i) {
      const bool ran = next != windows_.end() && next->first == i;
      if (ran) {
        profile::RollingWindow& window = next++->second;
        if (now - window.newest_at() < stale_after) continue;
        window.reset(model.batches[i].exec, now);
      }
      estimates_[i] = model.batches[i].exec;
    }
  }

 private:
  using Windows = std::vector<std::pair<std::size_t, profile::RollingWindow>>;
  Windows::iterator at(std::size_t index) {
    return std::lower_bound(windows_.begin(), windows_.end(), index,
                            [](const auto& window, std::size_t i) { return window.first < i; });
  }
  // How many times its seed the size takes that was measured last, or, where none was, what rescale() said.
  // 1 where nothing is known, or the seed says nothing.
  double latest_pace(std::span<const BatchProfile> seeds) const {
    if (estimates_.empty()) return 1;
    const auto latest =
        std::ranges::max_element(windows_, {}, [](const auto& window) { return window.second.newest_at(); });
    const std::size_t index = latest == windows_.end() ? 0 : latest->first;
    return seeds[index].exec <= Duration{0} ? 1 : times_seed(estimates_[index], seeds[index].exec);
  }
  template <typename Changed>
  void set(std::size_t index, Duration estimate, Changed&& changed) {
    if (estimates_[index] == estimate) return;
    estimates_[index] = estimate;
    changed(index);
  }

  Windows windows_;  // of the batch sizes that ran, ascending
  std::vector<Duration> estimates_;
  TimePoint looked_at_ = TimePoint::min();
  TimePoint oldest_ = TimePoint::max();  // no window was added to, or reset, before
};

}  // namespace carillon::ledger
