#include "carillon/schedule/parts/keep_off.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace carillon::schedule::parts {
namespace {

// Those behind quick requests are at most so long: what is not twice as long is no other kind.
constexpr int much_longer = 2;

// Fewer devices than that are all tried; of more, some, and then those around the best.
constexpr std::size_t tried_at_once = 64;
// At a time: about so many devices are looked at.
constexpr std::size_t most_looked_at = 1024;

Duration longest_run(const ledger::Ledger& ledger, DeviceId device) {
  Duration longest{0};
  for (const std::uint32_t run :
       ledger.device(device).under_way[static_cast<std::size_t>(ledger::Lane::exec)])
    longest = std::max(longest, ledger.at(run).expected);
  return longest;
}

}  // namespace

// The share that comes too late, by the number of devices.
std::vector<double> KeepOff::late_on(std::size_t devices, const Kind& kind) {
  std::vector<double> late(devices + 1, 1);
  double blocked = 1;  // Erlang's B formula, by its recursion
  for (std::size_t i = 1; i <= devices; ++i) {
    const auto room = static_cast<double>(i);
    blocked = kind.demand * blocked / (room + kind.demand * blocked);
    if (kind.demand >= room) {
      late[i] = 1 - room / kind.demand;
      continue;
    }
    // Who waits, waits so much longer with that chance.
    const double waits = blocked / (1 - kind.demand / room * (1 - blocked));
    late[i] = waits * std::exp(-(room - kind.demand) * to_seconds(kind.least_slack) / kind.exec);
  }
  return late;
}

// Answers a second that are lost where the long ones keep off all devices but `may`, of so many; `late`: of
// the quick ones, by the number of devices.
double KeepOff::lost(std::size_t may, std::size_t devices, const std::vector<double>& late, const Kind& quick,
                     const Kind& rest) {
  const double room = static_cast<double>(may), busy = std::min(1.0, rest.demand / room);
  double share = 0;
  if (busy >= 1) {
    share = late[devices - may];
  } else {  // so many are busy with long runs: a binomial law, summed from its peak on
    constexpr double least = 1e-9;
    const double odds = std::max(busy, 1e-12) / (1 - busy);
    const auto peak = static_cast<std::size_t>(std::min(room, (room + 1) * busy));
    const double of = static_cast<double>(peak);
    const double at_peak = std::exp(std::lgamma(room + 1) - std::lgamma(of + 1) - std::lgamma(room - of + 1) +
                                    of * std::log(std::max(busy, 1e-12)) + (room - of) * std::log(1 - busy));
    double chance = at_peak;
    for (std::size_t k = peak; k <= may && chance > least; ++k) {
      share += chance * late[devices - k];
      chance *= static_cast<double>(may - k) / static_cast<double>(k + 1) * odds;
    }
    chance = at_peak;
    for (std::size_t k = peak; k > 0; --k) {
      chance *= static_cast<double>(k) / static_cast<double>(may - k + 1) / odds;
      if (chance <= least) break;
      share += chance * late[devices - k + 1];
    }
  }
  return rest.rate * std::max(0.0, 1 - room / rest.demand) + quick.rate * share;
}

void KeepOff::begin(const Plan& plan) {
  coming_.assign(plan.models(), {});
  coming_any_ = false;
  others_.clear();
  long_.clear();
  all_ = quick_ = {};
  quick_time_ = 0;
  next_ = 0;
  tightest_ = Duration::max();
  same_ = false;
  planning_ = true;
}

void KeepOff::collect(const Plan& plan, ModelId model) {
  if (!plan.known(model)) return;
  const Duration one = plan.times(model).exec(0), slack = plan.slo(model) - plan.times(model).span(0);
  const double rate = plan.rate(model), demand = plan.demand(model);
  long_.emplace_back(one, model);
  std::ranges::push_heap(long_, std::greater{});
  all_.rate += rate;
  all_.demand += demand;
  if (slack <= Duration{0}) return;
  tightest_ = std::min(tightest_, slack);
  others_.push_back({std::max(slack, much_longer * one), slack, one, rate, demand});
  std::ranges::push_heap(others_, std::greater{}, &Other::waits);
}

bool KeepOff::go_on(const Plan& plan, const ledger::Ledger& ledger) {
  const std::size_t devices = ledger.alive();
  std::size_t looked_at = 0;
  for (; next_ < coming_.size(); ++next_) {
    if (++looked_at > most_looked_at) return false;
    collect(plan, ModelId{static_cast<std::uint32_t>(next_)});
  }
  while (!long_.empty()) {
    const auto [one, model] = long_.front();
    while (one > tightest_ && !others_.empty() && others_.front().waits < one) {
      if (++looked_at > most_looked_at) return false;
      std::ranges::pop_heap(others_, std::greater{}, &Other::waits);
      const Other& other = others_.back();
      quick_.rate += other.rate;
      quick_.demand += other.demand;
      quick_time_ += other.rate * to_seconds(other.one);
      quick_.least_slack = std::min(quick_.least_slack, other.slack);
      quick_.most_slack = std::max(quick_.most_slack, other.slack);
      others_.pop_back();
      same_ = false;
    }
    if (++looked_at > most_looked_at) return false;
    std::ranges::pop_heap(long_, std::greater{});
    long_.pop_back();
    if (one <= tightest_) continue;
    if (quick_.rate <= 0 || quick_time_ <= 0) continue;
    if (!std::exchange(same_, true)) {
      planned_ = keeps_off(devices);
      looked_at += devices;
    }
    coming_[model.index()] = planned_;
    coming_any_ = coming_any_ || planned_.devices > 0;
  }
  planning_ = false;
  models_.swap(coming_);
  any_ = coming_any_;
  if (any_) count_busy(ledger);
  return true;
}

// For what is long beside quick_.
KeepOff::Model KeepOff::keeps_off(std::size_t devices) const {
  Kind quick = quick_;
  quick.exec = quick_time_ / quick_.rate;
  const Kind rest{.rate = std::max(0.0, all_.rate - quick.rate),
                  .demand = std::max(1e-12, all_.demand - quick.demand)};
  const std::vector<double> late = late_on(devices, quick);
  Model best{.devices = 0, .longer = quick.most_slack};
  double least = lost(devices, devices, late, quick, rest);
  const auto look = [&](std::size_t off) {
    const double there = lost(devices - off, devices, late, quick, rest);
    if (there > least || (there == least && off >= best.devices)) return;
    least = there;
    best.devices = off;
  };
  std::size_t low = 1, high = devices;
  for (std::size_t step = 1; low < high; high = std::min(devices, best.devices + step),
                   low = best.devices < step ? 1 : best.devices - step + 1) {
    step = (high - low + tried_at_once - 1) / tried_at_once;
    for (std::size_t off = low; off < high; off += step) look(off);
    if (step == 1) break;
  }
  return best;
}

void KeepOff::count_busy(const ledger::Ledger& ledger) {
  longest_.clear();
  busy_.clear();
  for (std::uint32_t i = 0; i < ledger.devices(); ++i) {
    longest_.push_back(ledger.device(DeviceId{i}).alive ? longest_run(ledger, DeviceId{i}) : Duration{0});
    if (longest_.back() > Duration{0}) busy_.push_back(longest_.back());
  }
  std::ranges::sort(busy_);
}

bool KeepOff::hear(const ledger::Ledger& ledger, DeviceId device) {
  if (!any_) return false;
  if (device.index() >= longest_.size()) longest_.resize(device.index() + 1);
  const Duration now = ledger.device(device).alive ? longest_run(ledger, device) : Duration{0};
  const Duration before = std::exchange(longest_[device.index()], now);
  if (before == now) return false;
  if (before > Duration{0}) busy_.erase(std::ranges::lower_bound(busy_, before));
  if (now > Duration{0}) busy_.insert(std::ranges::upper_bound(busy_, now), now);
  return now < before;
}

bool KeepOff::may_run(const ledger::Ledger& ledger, DeviceId device, ModelId model) const {
  if (model.index() >= models_.size() || models_[model.index()].devices == 0) return true;
  const Model& own = models_[model.index()];
  auto busy = static_cast<std::size_t>(busy_.end() - std::ranges::upper_bound(busy_, own.longer));
  if (device.index() < longest_.size() && longest_[device.index()] > own.longer) --busy;
  return busy + 1 + own.devices <= ledger.alive();
}

}  // namespace carillon::schedule::parts
