#include "carillon/engine/cpu/trial.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "carillon/graph/bounded.h"

namespace carillon::engine::cpu {

void TrialMemory::fit(const Plan& plan) {
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

Binding TrialMemory::binding(const std::byte* weights, RunState& state, graph::Faults& faults) {
  return {.inputs = input_pointers_,
          .outputs = output_pointers_,
          .workspace = workspace_.bytes().data(),
          .weights = weights,
          .faults = &faults,
          .state = &state};
}

std::uint64_t TrialMemory::size_of(const graph::TensorSpec& spec) {
  return graph::memory_of(spec.type, spec.shape).count;
}

void TrialMemory::fit(HostBlock& block, std::uint64_t size) {
  const std::uint64_t wanted = std::max<std::uint64_t>(size, 1);
  if (block.bytes().size() >= wanted) return;
  block.append(wanted - block.bytes().size());
  std::ranges::fill(block.bytes(), std::byte{0});
}

Trial::Trial(PlanParts parts, const dnnl::engine& engine)
    : plan_(std::move(parts), engine),
      state_(plan_.make_state(nullptr)),
      everything_(plan_.make_thorough_state()),
      times_(static_cast<std::size_t>(plan_.kernels()), never),
      guarded_(times_.size(), never) {
  faults_.results_unwanted = true;
  stop_.run = 1;
}

std::vector<Duration> Trial::run(TrialMemory& memory, const std::byte* weights) {
  memory.fit(plan_);
  std::vector<Duration> took(times_.size(), Duration{0});
  // A model that finds fault with zeros is measured as far as it gets.
  (void)plan_.run({0, plan_.kernels()}, memory.binding(weights, *state_, faults_), took, &stop_);
  faults_.clear();
  for (std::size_t k = 0; k < took.size(); ++k)
    if (took[k] > Duration{0}) times_[k] = std::min(times_[k], took[k]);
  return took;
}

void Trial::run_all(TrialMemory& memory, const std::byte* weights) {
  memory.fit(plan_);
  std::vector<Duration> took(times_.size(), Duration{0});
  for (int k = 0; k < plan_.kernels(); ++k) {
    (void)plan_.run({k, k + 1}, memory.binding(weights, *everything_, faults_), took);
    faults_.clear();
    const auto i = static_cast<std::size_t>(k);
    if (took[i] > Duration{0}) guarded_[i] = std::min(guarded_[i], took[i]);
  }
}

bool goes_on(int round, Duration spent, const Rounds& rounds) {
  constexpr Duration longest = std::chrono::milliseconds{4000};
  if (round < 2) return true;
  if (round < rounds.least) return spent < longest;
  return round < rounds.most && spent < rounds.at_least;
}

Duration sum(const std::vector<Duration>& times) {
  return std::accumulate(times.begin(), times.end(), Duration{0});
}

double least_time(const std::vector<std::vector<Duration>>& runs) {
  std::vector<Duration> least = runs.front();
  for (const auto& run : runs)
    for (std::size_t k = 0; k < run.size(); ++k) least[k] = std::min(least[k], run[k]);
  return to_us(sum(least));
}

}  // namespace carillon::engine::cpu
