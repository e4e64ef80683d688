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

// What runs of the plan with one set of memories keep.
class CpuPlan::State final : public RunState {
 public:
  explicit State(const CpuPlan& of);
  void bind(const Binding& binding);
  const std::byte* at(const Slot& slot) const;

  const CpuPlan& plan;
  dnnl::stream stream;
  std::vector<std::unique_ptr<Kernel>> kernels;  // the plan's, with the addresses below
  graph::Faults faults;                          // what they note in this run
  std::vector<std::int8_t> guards;  // of this run: -1 not looked at yet, else whether it holds

 private:
  void place(const std::vector<PlanParts::Patch>& patches, std::byte* base);

  std::byte* workspace_ = nullptr;
  const std::byte* weights_ = nullptr;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

CpuPlan::State::State(const CpuPlan& of)
    : plan(of),
      stream(of.engine_),
      guards(of.parts_.guards.size()),
      inputs_(of.parts_.inputs.size()),
      outputs_(of.parts_.outputs.size()) {
  kernels.reserve(of.parts_.kernels.size());
  for (const auto& kernel : of.parts_.kernels) kernels.push_back(kernel->copy(faults));
}

CpuPlan::CpuPlan(PlanParts parts, const dnnl::engine& engine, int threads)
    : parts_(std::move(parts)), engine_(engine), threads_(threads) {
  CARILLON_ASSERT(parts_.names.size() == parts_.kernels.size());
  CARILLON_ASSERT(parts_.guard_of.size() == parts_.kernels.size());
  input_patches_.resize(parts_.inputs.size());
  output_patches_.resize(parts_.outputs.size());
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

std::unique_ptr<RunState> CpuPlan::make_state() const {
  return std::make_unique<State>(*this);
}

void CpuPlan::State::place(const std::vector<PlanParts::Patch>& patches, std::byte* base) {
  for (const auto& patch : patches)
    kernels[static_cast<std::size_t>(patch.kernel)]->place(patch.operand, base + patch.slot.offset);
}

void CpuPlan::State::bind(const Binding& binding) {
  if (binding.workspace != workspace_) {
    place(plan.workspace_patches_, binding.workspace);
    workspace_ = binding.workspace;
  }
  if (binding.weights != weights_) {
    // Kernels only read weights and inputs; oneDNN's memory objects do not know const.
    place(plan.weight_patches_, const_cast<std::byte*>(binding.weights));
    weights_ = binding.weights;
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (binding.inputs[i] == inputs_[i]) continue;
    place(plan.input_patches_[i], const_cast<std::byte*>(binding.inputs[i]));
    inputs_[i] = binding.inputs[i];
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (binding.outputs[i] == outputs_[i]) continue;
    place(plan.output_patches_[i], binding.outputs[i]);
    outputs_[i] = binding.outputs[i];
  }
  std::ranges::fill(guards, std::int8_t{-1});
  faults.clear();
}

const std::byte* CpuPlan::State::at(const Slot& slot) const {
  const auto index = static_cast<std::size_t>(slot.index);
  const std::byte* base = slot.where == Where::workspace ? workspace_
                          : slot.where == Where::weights ? weights_
                          : slot.where == Where::input   ? inputs_[index]
                                                         : outputs_[index];
  return base + slot.offset;
}

// A condition does not change between the first and the last kernel under its guard, so that one look a run
// is enough.
bool CpuPlan::holds(int guard, State& state) const {
  std::int8_t& known = state.guards[static_cast<std::size_t>(guard)];
  if (known >= 0) return known != 0;
  const auto& [slot, when, parent] = parts_.guards[static_cast<std::size_t>(guard)];
  // Where the parent does not hold, nobody has made the condition.
  const bool result =
      (parent < 0 || holds(parent, state)) && (*state.at(slot) != std::byte{0}) == when;
  known = result ? 1 : 0;
  return result;
}

// What kernel `kernel` (or one before it) has noted.
Result<> CpuPlan::heed_faults(int kernel, const graph::Faults& found, const graph::Faults* to) const {
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
  CARILLON_ASSERT(binding.state != nullptr);
  State& state = static_cast<State&>(*binding.state);
  CARILLON_ASSERT(&state.plan == this);
  try {
    enter_team(threads_);
    state.bind(binding);
  } catch (const dnnl::error& e) {
    return fail(ErrorCode::internal, std::string("oneDNN: ") + e.what());
  }
  const graph::Faults& faults = state.faults;
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
    if (parts_.guard_of[i] >= 0 && !holds(parts_.guard_of[i], state)) {
      if (!durations.empty()) durations[i] = {};
      continue;
    }
    if (auto done = state.kernels[i]->run(state.stream); !done)
      return in_context("kernel " + std::to_string(k) + " (" + parts_.names[i] + ")", done.error());
    if (!faults.empty())
      if (auto heeded = heed_faults(k, faults, binding.faults); !heeded) return heeded;
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
