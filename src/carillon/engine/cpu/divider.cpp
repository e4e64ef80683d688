#include "carillon/engine/cpu/divider.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <ranges>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/trial.h"

namespace carillon::engine::cpu {

namespace {

using std::chrono::milliseconds;

constexpr int most_tries = 5;  // each with about half as much to spend as the one before

}  // namespace

std::vector<std::size_t> choose_options(std::span<const KernelTimes> kernels, Duration budget) {
  const auto wait = [](const KernelTimes::Option& option) {
    const double time = to_us(option.time), part = time / option.parts;
    return time * part * part;
  };
  std::vector<std::size_t> chosen(kernels.size(), 0);
  for (;;) {
    double best = 0;
    std::size_t best_kernel = 0, best_option = 0;
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      const auto& options = kernels[k].options;
      for (std::size_t o = chosen[k] + 1; o < options.size(); ++o) {
        const auto &now = options[chosen[k]], &then = options[o];
        const Duration price = then.time - now.time;
        const double gain = wait(now) - wait(then);
        if (gain <= 0 || price > budget) continue;
        // What costs nothing comes first.
        const double worth = gain / std::max(to_us(price), 1e-3);
        if (worth <= best) continue;
        best = worth;
        best_kernel = k;
        best_option = o;
      }
    }
    if (best == 0) return chosen;
    const auto& options = kernels[best_kernel].options;
    budget -= options[best_option].time - options[chosen[best_kernel]].time;
    chosen[best_kernel] = best_option;
  }
}

Result<PlanParts> Divider::divide(PlanParts whole, const Make& make,
                                  const std::function<const std::byte*()>& weights) {
  TrialMemory memory;
  const auto kernels = whole.kernels.size();
  std::vector<std::unique_ptr<Trial>> trials;
  trials.push_back(std::make_unique<Trial>(std::move(whole), engine_));
  Trial& first = *trials.front();
  const bool guards = std::ranges::any_of(std::views::iota(0, first.plan().kernels()),
                                          [&](int k) { return first.plan().is_guarded(k); });
  for (int i = 0; i < 3; ++i) first.run(memory, weights());
  if (guards)
    for (int i = 0; i < 2; ++i) first.run_all(memory, weights());
  // Whether kernel k runs where all inputs are zeros.
  const auto usual = [&](std::size_t k) { return first.times()[k] != Trial::never; };
  const auto time_of = [&](const Trial& trial, std::size_t k) {
    return usual(k) ? trial.times()[k] : trial.guarded()[k];
  };

  // Parts are of a length or up to twice that.
  for (const Duration length : {4 * least_part_, 2 * least_part_, least_part_}) {
    std::vector<int> parts(kernels, 0);
    for (std::size_t k = 0; k < kernels; ++k)
      if (const Duration took = time_of(first, k); took != Trial::never && took >= 2 * length)
        parts[k] = static_cast<int>(
            std::bit_floor(static_cast<std::uint64_t>(std::min<std::int64_t>(most_parts, took / length))));
    if (std::ranges::all_of(parts, [](int p) { return p == 0; })) continue;
    Result<PlanParts> divided = make(parts);
    if (!divided) return divided;
    CARILLON_ASSERT(divided->kernels.size() == kernels);
    trials.push_back(std::make_unique<Trial>(std::move(*divided), engine_));
    trials.back()->run(memory, weights());  // touches its memory
    if (guards) trials.back()->run_all(memory, weights());
  }
  if (trials.size() == 1) return make({});
  Duration spent{0};
  for (int round = 0; goes_on(round, spent, {.least = 4, .most = 30, .at_least = milliseconds{1500}});
       ++round)
    for (const auto& trial : trials) {
      spent += sum(trial->run(memory, weights()));
      if (guards && round < 4) trial->run_all(memory, weights());
    }

  std::vector<KernelTimes> usually, otherwise;
  for (std::size_t k = 0; k < kernels; ++k) {
    KernelTimes times;
    for (const auto& trial : trials) {
      const int parts = trial->plan().kernel_parts(static_cast<int>(k));
      if (time_of(*trial, k) == Trial::never) continue;
      if (times.options.empty() || parts > times.options.back().parts)
        times.options.push_back({parts, time_of(*trial, k)});
    }
    if (times.options.empty()) times.options.push_back({});
    (usual(k) ? usually : otherwise).push_back(std::move(times));
  }
  const auto total = [](const std::vector<KernelTimes>& all) {
    Duration sum{0};
    for (const KernelTimes& times : all) sum += times.options.front().time;
    return sum;
  };
  const auto share = [](Duration of, double part) { return from_ns(static_cast<double>(of.count()) * part); };

  // The sum of what kernels cost need not be what the run costs, which is what counts.
  double allowed = cost_;
  const std::vector<std::size_t> for_others = choose_options(otherwise, share(total(otherwise), cost_));
  for (int tries = 0;; ++tries) {
    const std::vector<std::size_t> chosen = choose_options(usually, share(total(usually), allowed));
    std::vector<int> parts(kernels, 0);
    std::size_t u = 0, o = 0;
    for (std::size_t k = 0; k < kernels; ++k) {
      const auto& option = usual(k) ? usually[u].options[chosen[u]] : otherwise[o].options[for_others[o]];
      parts[k] = option.parts;
      ++(usual(k) ? u : o);
    }
    Result<PlanParts> made = make(parts);
    if (!made || tries == most_tries) return made;
    Trial divided(std::move(*made), engine_);
    divided.run(memory, weights());
    std::vector<std::vector<Duration>> undivided_runs, divided_runs;
    spent = Duration{0};
    for (int round = 0; goes_on(round, spent, {.least = 12, .most = 40, .at_least = milliseconds{500}});
         ++round) {
      undivided_runs.push_back(first.run(memory, weights()));
      divided_runs.push_back(divided.run(memory, weights()));
      spent += sum(undivided_runs.back()) + sum(divided_runs.back());
    }
    const double cost = least_time(divided_runs) / least_time(undivided_runs) - 1;
    if (cost <= cost_) return make(parts);
    allowed = std::max(allowed / 2, allowed - (cost - cost_));
  }
}

}  // namespace carillon::engine::cpu
