#include "carillon/engine/cpu/divider.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <numeric>
#include <ranges>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/bounded.h"

namespace carillon::engine::cpu {

namespace {

using std::chrono::milliseconds;

constexpr Duration never = Duration::max();
constexpr int most_tries = 5;  // each with about half as much to spend as the one before

// Memory that plans run in, one after the other.
class TrialMemory {
 public:
  void fit(const Plan& plan) {
    // All of it is written to: what never was lies in one page of zeros, and so in the nearest cache.
    fit(workspace_, plan.workspace().count);
    inputs_.resize(plan.inputs().size());
    outputs_.resize(plan.outputs().size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) fit(inputs_[i], size_of(plan.inputs()[i]));
    for (std::size_t i = 0; i < outputs_.size(); ++i) fit(outputs_[i], size_of(plan.outputs()[i]));
    input_pointers_.clear();
    output_pointers_.clear();
    for (HostBlock& block : inputs_) input_pointers_.push_back(block.bytes().data());
    for (HostBlock& block : outputs_) output_pointers_.push_back(block.bytes().data());
  }
  Binding binding(const std::byte* weights, RunState& state, graph::Faults& faults) {
    return {.inputs = input_pointers_,
            .outputs = output_pointers_,
            .workspace = workspace_.bytes().data(),
            .weights = weights,
            .faults = &faults,
            .state = &state};
  }

 private:
  static std::uint64_t size_of(const graph::TensorSpec& spec) {
    return graph::memory_of(spec.type, spec.shape).count;
  }
  static void fit(HostBlock& block, std::uint64_t size) {
    const std::uint64_t wanted = std::max<std::uint64_t>(size, 1);
    if (block.bytes().size() >= wanted) return;
    block.append(wanted - block.bytes().size());
    std::ranges::fill(block.bytes(), std::byte{0});
  }

  HostBlock workspace_;
  std::vector<HostBlock> inputs_, outputs_;
  std::vector<const std::byte*> input_pointers_;
  std::vector<std::byte*> output_pointers_;
};

// How many rounds there are of what is measured: at least and at most so many, and until it took so long; and
// of long runs two, where these take longer than that alone.
struct Rounds {
  int least, most;
  Duration at_least;
};
bool goes_on(int round, Duration spent, const Rounds& rounds) {
  constexpr Duration longest = milliseconds{4000};
  if (round < 2) return true;
  if (round < rounds.least) return spent < longest;
  return round < rounds.most && spent < rounds.at_least;
}

Duration sum(const std::vector<Duration>& times) {
  return std::accumulate(times.begin(), times.end(), Duration{0});
}

// Of a run, in us, where each kernel takes the least that it took in any: a median of whole runs differs by
// several percent where anything else runs on the machine, this by less than one.
double least_time(const std::vector<std::vector<Duration>>& runs) {
  std::vector<Duration> least = runs.front();
  for (const auto& run : runs)
    for (std::size_t k = 0; k < run.size(); ++k) least[k] = std::min(least[k], run[k]);
  return to_us(sum(least));
}

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

// A plan that runs to be measured.
class Divider::Trial {
 public:
  Trial(PlanParts parts, const dnnl::engine& engine)
      : plan_(std::move(parts), engine),
        state_(plan_.make_state(nullptr)),
        everything_(plan_.make_thorough_state()),
        times_(static_cast<std::size_t>(plan_.kernels()), never),
        guarded_(times_.size(), never) {
    faults_.results_unwanted = true;
    stop_.run = 1;
  }

  const CpuPlan& plan() const { return plan_; }
  // The least time of each kernel in the runs so far; `never` where it was passed over.
  const std::vector<Duration>& times() const { return times_; }
  // Likewise, in runs that passed over none.
  const std::vector<Duration>& guarded() const { return guarded_; }

  // Gives back how long each kernel took; 0 where it was passed over.
  std::vector<Duration> run(TrialMemory& memory, const std::byte* weights) {
    memory.fit(plan_);
    std::vector<Duration> took(times_.size(), Duration{0});
    // A model that finds fault with zeros is measured as far as it gets.
    (void)plan_.run({0, plan_.kernels()}, memory.binding(weights, *state_, faults_), took, &stop_);
    faults_.clear();
    for (std::size_t k = 0; k < took.size(); ++k)
      if (took[k] > Duration{0}) times_[k] = std::min(times_[k], took[k]);
    return took;
  }
  // Each kernel by itself, whether or not its guard holds.
  void run_all(TrialMemory& memory, const std::byte* weights) {
    memory.fit(plan_);
    std::vector<Duration> took(times_.size(), Duration{0});
    for (int k = 0; k < plan_.kernels(); ++k) {
      (void)plan_.run({k, k + 1}, memory.binding(weights, *everything_, faults_), took);
      faults_.clear();
      const auto i = static_cast<std::size_t>(k);
      if (took[i] > Duration{0}) guarded_[i] = std::min(guarded_[i], took[i]);
    }
  }

 private:
  CpuPlan plan_;
  std::unique_ptr<RunState> state_, everything_;
  graph::Faults faults_;
  StopSignal stop_;  // never asked for, but runs are as those that it could be asked of
  std::vector<Duration> times_, guarded_;
};

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
  const auto usual = [&](std::size_t k) { return first.times()[k] != never; };
  const auto time_of = [&](const Trial& trial, std::size_t k) {
    return usual(k) ? trial.times()[k] : trial.guarded()[k];
  };

  // Parts are of a length or up to twice that.
  for (const Duration length : {4 * least_part_, 2 * least_part_, least_part_}) {
    std::vector<int> parts(kernels, 0);
    for (std::size_t k = 0; k < kernels; ++k)
      if (const Duration took = time_of(first, k); took != never && took >= 2 * length)
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
      if (time_of(*trial, k) == never) continue;
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
