// What bench/fluid.py cannot ask of the program: how far policies are from the best static plan of random
// groups (by exhaustive search), and how long a plan and an event take. One JSON object.
//
//   carillon_fluid_bench optimum [--groups 20000] [--seed 2]
//   carillon_fluid_bench speed [--trials 10000] [--devices 1000]
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <deque>
#include <iostream>
#include <unordered_set>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "carillon/base/random.h"
#include "carillon/simulate/study.h"
#include "carillon/tune/plan.h"
#include "carillon/tune/tuning.h"

namespace {

using namespace carillon;

struct Group {
  std::vector<double> seconds;
  int devices = 1, c = 1, d = 4;
};

// For a handful; the standard one warns of arrays so short.
template <typename It, typename Less = std::less<>>
void sort_few(It first, It last, Less less = {}) {
  for (It i = first; i != last; ++i)
    for (It j = i; j != first && less(*j, *(j - 1)); --j) std::swap(*j, *(j - 1));
}

// The makespan of the best static plan: every order and every width, each trial in its turn to the devices
// that are free first; alpha = beta = 1. A device is all one trial's, or has c shares.
class Optimum {
 public:
  explicit Optimum(const Group& group, double known) : group_(group), best_(known) {
    std::sort(group_.seconds.begin(), group_.seconds.end(), std::greater<>());
    used_.assign(group.seconds.size(), false);
    widest_ = std::min(group.d, group.devices);
  }
  double find() {
    search(group_.seconds.size(), 0, {});
    return best_;
  }

 private:
  static constexpr std::size_t most_devices = 5, most_shares = 3;
  using Slots = std::array<std::array<double, most_shares>, most_devices>;

  double first(const Slots& s, int d) const {
    return *std::min_element(s[d].begin(), s[d].begin() + group_.c);
  }
  double all(const Slots& s, int d) const { return *std::max_element(s[d].begin(), s[d].begin() + group_.c); }

  void search(std::size_t left, double end, const Slots& slots) {
    if (left == 0) {
      best_ = std::min(best_, end);
      return;
    }
    if (!seen_.insert(hash_of(slots)).second) return;
    // Devices by when all of them is free, and the first share that is.
    std::array<int, most_devices> order{};
    for (int d = 0; d < group_.devices; ++d) order[d] = d;
    sort_few(order.begin(), order.begin() + group_.devices, [&](int a, int b) {
      return all(slots, a) != all(slots, b) ? all(slots, a) < all(slots, b) : a < b;
    });
    int soonest = 0;
    for (int d = 1; d < group_.devices; ++d)
      if (first(slots, d) < first(slots, soonest)) soonest = d;
    const auto ends = [&](double h, int w) {
      return w == 0 ? first(slots, soonest) + h : all(slots, order[w - 1]) + h / w;
    };
    // What is free of all shares until the best end must hold those that are left: a trial that is too long
    // for a share takes all shares of its devices.
    double free = 0, need = 0;
    for (int d = 0; d < group_.devices; ++d)
      for (int k = 0; k < group_.c; ++k) free += best_ - slots[d][k];
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      const bool fits = group_.c > 1 && first(slots, soonest) + group_.seconds[i] < best_;
      need += fits ? group_.seconds[i] : group_.c * group_.seconds[i];
    }
    if (need >= free * (1 - 1e-12)) return;
    // Devices only fill: no trial that is left can end sooner than it would now.
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      double least = best_;
      for (int w = 0; w <= widest_; ++w) least = std::min(least, ends(group_.seconds[i], w));
      if (least >= best_ * (1 - 1e-12)) return;
    }
    for (std::size_t i = 0; i < used_.size(); ++i) {
      // Of equal trials the first.
      if (used_[i] || (i > 0 && group_.seconds[i] == group_.seconds[i - 1] && !used_[i - 1])) continue;
      used_[i] = true;
      for (int w = 0; w <= widest_; ++w) {
        if (w == 0 && group_.c == 1) continue;  // a share is all of a device
        const double e = ends(group_.seconds[i], w);
        if (e >= best_ * (1 - 1e-12)) continue;
        Slots next = slots;
        if (w == 0) {
          *std::min_element(next[soonest].begin(), next[soonest].begin() + group_.c) = e;
        } else {
          for (int k = 0; k < w; ++k) next[order[k]].fill(e);
        }
        search(left - 1, std::max(end, e), next);
      }
      used_[i] = false;
    }
  }

  // Of the trials that are left and of what is taken, whichever device and share it is: other orders lead
  // there, too. Two states of one hash among the some thousands of a group would be a matter of 10^-12.
  std::uint64_t hash_of(Slots slots) const {
    for (int d = 0; d < group_.devices; ++d) sort_few(slots[d].begin(), slots[d].begin() + group_.c);
    sort_few(slots.begin(), slots.begin() + group_.devices);
    std::uint64_t h = 0x9e3779b97f4a7c15ULL;
    const auto mix = [&](std::uint64_t x) {
      h = (h ^ x) * 0xff51afd7ed558ccdULL;
      h ^= h >> 32;
    };
    for (const bool used : used_) mix(used ? 1 : 2);
    for (int d = 0; d < group_.devices; ++d)
      for (int k = 0; k < group_.c; ++k) mix(std::bit_cast<std::uint64_t>(slots[d][k] + 0.0));
    return h;
  }

  Group group_;
  double best_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<bool> used_;
  int widest_ = 1;
};

double makespan(const Group& group, const char* policy) {
  workload::Study study;
  study.devices.assign(static_cast<std::size_t>(group.devices),
                       {.speed = 1, .memory = device::most_job_bytes, .supply = {}});
  study.seconds = group.seconds;
  study.trials = static_cast<std::uint32_t>(group.seconds.size());
  study.iterations = 0;  // as in the paper's figures: widths change at any time
  study.c = group.c;
  study.d = group.d;
  const auto tuning = tune::make_tuning(policy, simulate::tune_options(study));
  const auto figures = simulate::run_study(study, **tuning);
  if (!figures) {
    std::cerr << policy << ": " << figures.error().message << "\n";
    std::exit(1);
  }
  return to_seconds(figures->last - TimePoint{});
}

int optimum(std::uint64_t groups, std::uint64_t seed) {
  Random random(seed);
  nlohmann::ordered_json out{{"groups", groups}, {"seed", seed}};
  const std::vector<const char*> policies{"fifo", "static", "dynamic", "best"};
  std::vector<double> sum(policies.size()), worst(policies.size());
  std::vector<Group> worst_group(policies.size());
  std::uint64_t worse_than_static = 0;
  double most_worse = 1;
  for (std::uint64_t g = 0; g < groups; ++g) {
    // As experiments that found Theorem 1 to fail drew them.
    Group group;
    group.devices = static_cast<int>(1 + random.below(5));
    group.c = static_cast<int>(1 + random.below(3));
    const std::size_t trials = 1 + random.below(5);
    const double known[] = {1, 2, 3, 5, 8, 10};
    for (std::size_t i = 0; i < trials; ++i) {
      const std::uint64_t which = random.below(7);
      group.seconds.push_back(which < 6 ? known[which] : 0.5 + 9.5 * random.uniform());
    }
    std::vector<double> takes;
    for (const char* policy : policies) takes.push_back(makespan(group, policy));
    // A bound to begin with: StaticFluid's, and the plan that `best` makes, which is static, too.
    std::vector<tune::PlanTrial> plain;
    for (const double s : group.seconds) plain.push_back({.work = s});
    const tune::PlanModel model{.c = group.c, .d = group.d};
    const double planned =
        tune::make_plan(plain, std::vector<tune::PlanDevice>(static_cast<std::size_t>(group.devices)), model,
                        nullptr, 20'000)
            .makespan;
    const double best = Optimum(group, std::min(takes[1], planned)).find();
    for (std::size_t p = 0; p < policies.size(); ++p) {
      const double ratio = takes[p] / best;
      sum[p] += ratio;
      if (ratio > worst[p]) {
        worst[p] = ratio;
        worst_group[p] = group;
      }
    }
    if (takes[3] > takes[1] * (1 + 1e-6)) {
      ++worse_than_static;
      most_worse = std::max(most_worse, takes[3] / takes[1]);
      if (worse_than_static <= 3) {
        std::cerr << "best " << takes[3] << ", static " << takes[1] << ": " << group.devices << " devices, c "
                  << group.c << ", trials";
        for (const double s : group.seconds) std::cerr << " " << s;
        std::cerr << "\n";
      }
    }
  }
  for (std::size_t p = 0; p < policies.size(); ++p)
    out[policies[p]] = {{"mean_ratio", sum[p] / static_cast<double>(groups)},
                        {"worst_ratio", worst[p]},
                        {"worst_devices", worst_group[p].devices},
                        {"worst_c", worst_group[p].c},
                        {"worst_trials", worst_group[p].seconds}};
  out["best_worse_than_static"] = worse_than_static;
  out["most_worse"] = most_worse;
  std::cout << out.dump(2) << "\n";
  return 0;
}

// Trials of many lengths come at once to idle devices, and then end one after the other, report, settle.
int speed(std::uint32_t trials, std::uint32_t devices) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  };
  nlohmann::ordered_json out{{"trials", trials}, {"devices", devices}};
  for (const char* policy : {"fifo", "static", "dynamic", "best"}) {
    std::vector<double> plans, events;
    for (int round = 0; round < 5; ++round) {
      Random random(static_cast<std::uint64_t>(round) + 1);
      tune::TuneOptions options;
      options.alpha = 1.1;
      options.beta = 1.05;
      options.c = 2;
      options.d = 4;
      options.move = from_seconds(0.1);
      const auto tuning = *tune::make_tuning(policy, options);
      tune::TuneOrders orders;
      TimePoint at;
      for (std::uint32_t d = 0; d < devices; ++d) tuning->on(tune::DeviceCame{DeviceId{d}}, at, orders);
      tune::GroupCame group{tune::GroupId{0}, {}};
      for (std::uint32_t t = 0; t < trials; ++t)
        group.trials.push_back(
            {.trial = tune::TrialId{t}, .budget = 10, .iteration = from_seconds(std::exp(random.normal()))});
      orders.clear();
      const auto begin = Clock::now();
      tuning->on(group, at, orders);
      plans.push_back(since(begin));
      // Trials that run, in the order in which they were placed: each reports, and then ends.
      std::deque<std::uint32_t> running;
      bool wakes = false;
      const auto take = [&] {
        std::vector<std::uint32_t> settle;
        for (const tune::TuneOrder& order : orders) {
          if (order.kind == tune::TuneOrder::Kind::wake_at) {
            wakes = true;
            continue;
          }
          if (order.kind == tune::TuneOrder::Kind::place) running.push_back(order.trial.value);
          settle.push_back(order.trial.value);
        }
        return settle;
      };
      const auto tell = [&](const tune::TuneEvent& event) {
        orders.clear();
        const auto start = Clock::now();
        tuning->on(event, at, orders);
        events.push_back(since(start));
      };
      std::vector<std::uint32_t> open = take();
      for (std::size_t i = 0; i < open.size(); ++i) {
        tell(tune::TrialSettled{tune::TrialId{open[i]}});
        for (const std::uint32_t t : take()) open.push_back(t);
      }
      while (!running.empty()) {
        at += from_seconds(0.001);
        const std::uint32_t trial = running.front();
        running.pop_front();
        tell(tune::TrialReported{tune::TrialId{trial}, 9.5, from_seconds(9.5), {}});
        open = take();
        tell(tune::TrialEnded{tune::TrialId{trial}});
        for (const std::uint32_t t : take()) open.push_back(t);
        if (std::exchange(wakes, false)) {
          tell(tune::TuneWake{});
          for (const std::uint32_t t : take()) open.push_back(t);
        }
        for (std::size_t i = 0; i < open.size(); ++i) {
          tell(tune::TrialSettled{tune::TrialId{open[i]}});
          for (const std::uint32_t t : take()) open.push_back(t);
        }
      }
    }
    std::sort(plans.begin(), plans.end());
    std::sort(events.begin(), events.end());
    const auto at = [&](double q) {
      return events[static_cast<std::size_t>(q * static_cast<double>(events.size() - 1))];
    };
    double sum = 0;
    for (const double e : events) sum += e;
    out[policy] = {{"plan_ms", plans[plans.size() / 2] / 1e3},
                   {"plan_most_ms", plans.back() / 1e3},
                   {"events", events.size()},
                   {"event_mean_us", sum / static_cast<double>(events.size())},
                   {"event_p50_us", at(0.5)},
                   {"event_p99_us", at(0.99)},
                   {"event_p999_us", at(0.999)},
                   {"event_most_us", events.back()}};
  }
  std::cout << out.dump(2) << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How good plans of trials are, and how fast"};
  app.require_subcommand(1);
  std::uint64_t groups = 20'000, seed = 2;
  std::uint32_t trials = 10'000, devices = 1000;
  int status = 0;
  CLI::App& best = *app.add_subcommand("optimum", "Policies against the best static plan of random groups");
  best.add_option("--groups", groups)->check(CLI::Range(1, 10'000'000));
  best.add_option("--seed", seed);
  best.callback([&] { status = optimum(groups, seed); });
  CLI::App& fast = *app.add_subcommand("speed", "How long a plan and an event take");
  fast.add_option("--trials", trials)->check(CLI::Range(1, 100'000));
  fast.add_option("--devices", devices)->check(CLI::Range(1, 10'000));
  fast.callback([&] { status = speed(trials, devices); });
  CLI11_PARSE(app, argc, argv);
  return status;
}
