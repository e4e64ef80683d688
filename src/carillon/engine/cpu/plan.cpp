#include "carillon/engine/cpu/plan.h"

#include <algorithm>
#include <chrono>

#include <omp.h>
#include <pmmintrin.h>
#include <xmmintrin.h>

#include "carillon/base/assert.h"

namespace carillon::engine::cpu {

void enter_team(int threads) {
  omp_set_num_threads(threads);
  thread_local int ready = 0;  // team members that already flush denormals; they live as long as this thread
  if (ready >= threads) return;
#pragma omp parallel num_threads(threads)
  {
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
    _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
  }
  ready = threads;
}

CpuPlan::CpuPlan(PlanParts parts, const dnnl::engine& engine, int threads)
    : parts_(std::move(parts)), threads_(threads), state_{.stream = dnnl::stream(engine)} {
  CARILLON_ASSERT(parts_.names.size() == parts_.kernels.size());
  CARILLON_ASSERT(parts_.guard_of.size() == parts_.kernels.size());
  state_.guards.resize(parts_.guards.size());
  input_patches_.resize(parts_.inputs.size());
  output_patches_.resize(parts_.outputs.size());
  state_.inputs.resize(parts_.inputs.size());
  state_.outputs.resize(parts_.outputs.size());
  for (const auto& patch : parts_.patches) {
    const auto index = static_cast<std::size_t>(patch.slot.index);
    switch (patch.slot.where) {
      case Where::workspace:
        workspace_patches_.push_back(patch);
        break;
      case Where::weights:
        weight_patches_.push_back(patch);
        break;
      case Where::input:
        input_patches_[index].push_back(patch);
        break;
      case Where::output:
        output_patches_[index].push_back(patch);
        break;
    }
  }
  parts_.patches = {};
}

void CpuPlan::place(const std::vector<PlanParts::Patch>& patches, std::byte* base) const {
  for (const auto& patch : patches)
    parts_.kernels[static_cast<std::size_t>(patch.kernel)]->place(patch.operand, base + patch.slot.offset);
}

void CpuPlan::bind(const Binding& binding) const {
  if (binding.workspace != state_.workspace) {
    place(workspace_patches_, binding.workspace);
    state_.workspace = binding.workspace;
  }
  if (binding.weights != state_.weights) {
    // Kernels only read weights and inputs; oneDNN's memory objects do not know const.
    place(weight_patches_, const_cast<std::byte*>(binding.weights));
    state_.weights = binding.weights;
  }
  for (std::size_t i = 0; i < input_patches_.size(); ++i) {
    if (binding.inputs[i] == state_.inputs[i]) continue;
    place(input_patches_[i], const_cast<std::byte*>(binding.inputs[i]));
    state_.inputs[i] = binding.inputs[i];
  }
  for (std::size_t i = 0; i < output_patches_.size(); ++i) {
    if (binding.outputs[i] == state_.outputs[i]) continue;
    place(output_patches_[i], binding.outputs[i]);
    state_.outputs[i] = binding.outputs[i];
  }
}

// A condition does not change between the first and the last kernel under its guard, so that one look a run
// is enough.
bool CpuPlan::holds(int guard) const {
  std::int8_t& known = state_.guards[static_cast<std::size_t>(guard)];
  if (known >= 0) return known != 0;
  const auto& [slot, when, parent] = parts_.guards[static_cast<std::size_t>(guard)];
  // Where the parent does not hold, nobody has made the condition.
  bool result = parent < 0 || holds(parent);
  if (result) {
    const auto index = static_cast<std::size_t>(slot.index);
    const std::byte* base = slot.where == Where::workspace ? state_.workspace
                            : slot.where == Where::weights ? state_.weights
                            : slot.where == Where::input   ? state_.inputs[index]
                                                           : state_.outputs[index];
    result = (base[slot.offset] != std::byte{0}) == when;
  }
  known = result ? 1 : 0;
  return result;
}

// What kernel `kernel` (or one before it) has noted.
Result<> CpuPlan::heed_faults(int kernel, graph::Faults* to) const {
  const graph::Faults& found = *parts_.faults;
  const graph::Fault* stops = nullptr;
  if (to == nullptr)
    stops = &found.all().front();
  else if (!to->results_unwanted)
    stops = found.of(graph::Faults::unknown);
  if (stops == nullptr) return {};
  return in_context(
      "kernel " + std::to_string(kernel) + " (" + parts_.names[static_cast<std::size_t>(kernel)] + ")",
      stops->error);
}

Result<> CpuPlan::run(KernelRange range, const Binding& binding, std::span<Duration> durations,
                      StopSignal* stop, Pacer* pacer) const {
  CARILLON_ASSERT(0 <= range.first && range.first <= range.last && range.last <= kernels());
  CARILLON_ASSERT(binding.inputs.size() == parts_.inputs.size());
  CARILLON_ASSERT(binding.outputs.size() == parts_.outputs.size());
  CARILLON_ASSERT(durations.empty() || durations.size() == parts_.kernels.size());
  try {
    enter_team(threads_);
    bind(binding);
  } catch (const dnnl::error& e) {
    return fail(ErrorCode::internal, std::string("oneDNN: ") + e.what());
  }
  std::ranges::fill(state_.guards, std::int8_t{-1});
  graph::Faults& faults = *parts_.faults;
  faults.clear();
  const auto stopped = [stop] { return stop != nullptr && stop->requested(); };
  if (pacer != nullptr) pacer->begin();
  using SystemClock = std::chrono::steady_clock;
  auto before = durations.empty() ? SystemClock::time_point{} : SystemClock::now();
  for (int k = range.first; k < range.last; ++k) {
    const auto i = static_cast<std::size_t>(k);
    if (stopped()) {
      // What was found belongs to the run, which may go on from here.
      if (!faults.empty() && binding.faults != nullptr) binding.faults->add(faults);
      stop->next = k;
      return {};
    }
    if (parts_.guard_of[i] >= 0 && !holds(parts_.guard_of[i])) {
      if (!durations.empty()) durations[i] = {};
      continue;
    }
    if (auto done = parts_.kernels[i]->run(state_.stream); !done)
      return in_context("kernel " + std::to_string(k) + " (" + parts_.names[i] + ")", done.error());
    if (!faults.empty())
      if (auto heeded = heed_faults(k, binding.faults); !heeded) return heeded;
    if (pacer != nullptr) pacer->rest(stopped);
    if (!durations.empty()) {
      const auto after = SystemClock::now();
      durations[i] = std::chrono::duration_cast<Duration>(after - before);
      before = after;
    }
  }
  if (!faults.empty()) binding.faults->add(faults);
  if (pacer != nullptr) pacer->end([] { return false; });
  if (stop != nullptr) stop->next = range.last;
  return {};
}

}  // namespace carillon::engine::cpu
