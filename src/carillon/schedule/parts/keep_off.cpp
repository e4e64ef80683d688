#include "carillon/schedule/parts/keep_off.h"

#include <algorithm>
#include <array>
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

// The share that comes too late on so many devices. `waits`: the chance to wait for one.
double late_on(std::size_t devices, double waits, double demand, double exec, Duration slack) {
  if (devices == 0) return 1;
  const auto room = static_cast<double>(devices);
  if (demand >= room) return 1 - room / demand;
  if (exec <= 0) return 0;
  // Who waits, waits so much longer with that chance.
  return waits * std::exp(-(room - demand) * to_seconds(slack) / exec);
}

// The mean of what a quick request finds, where long runs ask for `demand` of the `may` devices that they may
// use, of so many. `late`: what it finds on a number of devices.
double beside_long(std::size_t may, std::size_t devices, const std::vector<double>& late, double demand) {
  const double room = static_cast<double>(may), busy = std::min(1.0, demand / room);
  if (busy >= 1) return late[devices - may];
  // So many are busy with long runs: a binomial law, summed from its peak on.
  constexpr double least = 1e-9;
  const double odds = std::max(busy, 1e-12) / (1 - busy);
  const auto peak = static_cast<std::size_t>(std::min(room, (room + 1) * busy));
  const double of = static_cast<double>(peak);
  const double at_peak = std::exp(std::lgamma(room + 1) - std::lgamma(of + 1) - std::lgamma(room - of + 1) +
                                  of * std::log(std::max(busy, 1e-12)) + (room - of) * std::log(1 - busy));
  double share = 0, chance = at_peak;
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
  return share;
}

}  // namespace

// In batches of several sizes, each half of the one before. They grow while they wait, up to the largest of
// which two in a row fit into the SLO.
KeepOff::Sizes KeepOff::in_sizes(const Plan& plan, ModelId model) {
  const auto& times = plan.times(model);
  int largest = 0;
  for (int beyond = times.batch_count(); largest + 1 < beyond;) {
    const int middle = (largest + beyond) / 2;
    (2 * times.span(middle) <= plan.slo(model) ? largest : beyond) = middle;
  }
  Sizes found;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const int at = std::max(0, times.index_for(static_cast<std::size_t>(times.batch_size(largest)) >> i));
    found[i] = {.demand = plan.rate(model) * times.each(at),
                .runs = plan.rate(model) / times.batch_size(at),
                .slack = std::max(Duration{0}, plan.slo(model) - times.span(at))};
  }
  return found;
}

void KeepOff::begin(const Plan& plan) {
  coming_.resize(plan.models());
  in_sizes_.resize(plan.models());
  coming_any_ = false;
  others_.clear();
  long_.clear();
  all_ = quick_ = {};
  rest_ = {};
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
  const Sizes& own = in_sizes_[model.index()] = in_sizes(plan, model);
  for (std::size_t i = 0; i < own.size(); ++i) {
    rest_[i].demand += own[i].demand;
    rest_[i].runs += own[i].runs;
  }
  if (slack <= Duration{0}) return;
  tightest_ = std::min(tightest_, slack);
  others_.push_back({std::max(slack, much_longer * one), slack, one, model, rate, demand});
  std::ranges::push_heap(others_, std::greater{}, &Other::waits);
}

bool KeepOff::go_on(const Plan& plan, const ledger::Ledger& ledger) {
  const std::size_t devices = ledger.alive();
  std::size_t looked_at = 0;
  for (; next_ < coming_.size(); ++next_) {
    if (++looked_at > most_looked_at) return false;
    coming_[next_] = {};
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
      const Sizes& sizes = in_sizes_[other.model.index()];
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        rest_[i].demand = std::max(0.0, rest_[i].demand - sizes[i].demand);
        rest_[i].runs = std::max(0.0, rest_[i].runs - sizes[i].runs);
      }
      others_.pop_back();
      same_ = false;
    }
    if (++looked_at > most_looked_at) return false;
    std::ranges::pop_heap(long_, std::greater{});
    long_.pop_back();
    if (one <= tightest_) continue;
    if (quick_.rate <= 0 || quick_time_ <= 0) continue;
    if (!std::exchange(same_, true) || beside_.late.size() != devices + 1) {
      split(devices);
      looked_at += devices * (1 + rest_.size());
    }
    Model& own = coming_[model.index()];
    looked_at += keeps_off(model, devices, own);
    coming_any_ = coming_any_ || own.devices > 0;
  }
  planning_ = false;
  models_.swap(coming_);
  any_ = coming_any_;
  if (any_) count_busy(ledger);
  return true;
}

// The models into quick_ and the rest.
void KeepOff::split(std::size_t devices) {
  const double exec = quick_time_ / quick_.rate;
  beside_.late = symphony::chances_to_wait(quick_.demand, devices);
  for (std::size_t i = 0; i <= devices; ++i)
    beside_.late[i] = late_on(i, beside_.late[i], quick_.demand, exec, quick_.least_slack);
  beside_.share.assign(devices + 1, -1);
  for (std::size_t i = 0; i < rest_.size(); ++i)
    beside_.waits[i] = symphony::chances_to_wait(rest_[i].demand, devices);
}

// Answers a second that are lost where what is long beside quick_ may use so many devices.
double KeepOff::lost(std::size_t may, std::size_t devices, const Sizes& own) {
  double& share = beside_.share[may];
  if (share < 0)
    share = beside_long(may, devices, beside_.late, std::max(1e-12, all_.demand - quick_.demand));
  double rest_late = 1;
  for (std::size_t i = 0; i < rest_.size(); ++i) {
    const auto& [demand, runs, _] = rest_[i];
    // Batches of one size take equally long: by the M/D/c queue, waits are half of those of Erlang's formula.
    const double exec = runs > 0 ? demand / runs / 2 : 0;
    rest_late = std::min(rest_late, late_on(may, beside_.waits[i][may], demand, exec, own[i].slack));
  }
  return std::max(0.0, all_.rate - quick_.rate) * rest_late + quick_.rate * share;
}

// For a model that is long beside quick_. Returns how many numbers of devices it tried.
std::size_t KeepOff::keeps_off(ModelId model, std::size_t devices, Model& best) {
  const Sizes& own = in_sizes_[model.index()];
  best = {.devices = 0, .longer = quick_.most_slack};
  std::size_t tried = 1;
  double least = lost(devices, devices, own);
  const auto look = [&](std::size_t off) {
    ++tried;
    const double there = lost(devices - off, devices, own);
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
  return tried;
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
  const std::size_t off = devices(model);
  if (off == 0) return true;
  const Model& own = models_[model.index()];
  auto busy = static_cast<std::size_t>(busy_.end() - std::ranges::upper_bound(busy_, own.longer));
  if (device.index() < longest_.size() && longest_[device.index()] > own.longer) --busy;
  return busy + 1 + off <= ledger.alive();
}

}  // namespace carillon::schedule::parts
