#include "carillon/engine/cpu/plan.h"

#include <algorithm>
#include <chrono>

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/team.h"
#include "carillon/graph/bounded.h"

namespace carillon::engine::cpu {

// What runs of the plan with one set of memories keep.
class CpuPlan::State final : public RunState, public Interruptible {
 public:
  State(const CpuPlan& of, CpuTeam* helped_by, bool is_thorough);
  void bind(const Binding& binding);
  const std::byte* at(const Slot& slot) const;
  void interrupt() override { context.cancel_group_execution(); }

  const CpuPlan& plan;
  const bool thorough;             // all kernels run
  std::unique_ptr<CpuTeam> alone;  // where no other is given
  CpuTeam& team;
  dnnl::stream stream;
  std::vector<std::unique_ptr<Kernel>> kernels;  // the plan's, with the addresses below
  std::vector<Arena*> arenas;                    // in which they run; nullptr: in any, or none
  bool stops_inside = false;                     // one of them has several parts
  // All parts belong to it, so that those that have not begun never do once it is cancelled.
  tbb::task_group_context context{tbb::task_group_context::isolated};
  // What a run takes that nothing disturbs, as far as is known.
  struct Usual {
    int most = 0;       // threads
    int first_few = 0;  // that touch memory and wake threads: not counted
    Duration least{0};  // 0: not known yet
  };
  Usual usual;
  void took(Duration time, int threads, TimePoint at);
  graph::Faults faults;             // what they note in this run
  std::vector<std::int8_t> guards;  // of this run: -1 not looked at yet, else whether it holds

 private:
  void place(const std::vector<PlanParts::Patch>& patches, std::byte* base);
  // Read only; oneDNN's memory objects do not know const.
  std::byte* own() const { return const_cast<std::byte*>(plan.parts_.own.bytes().data()); }

  std::byte* workspace_ = nullptr;
  const std::byte* weights_ = nullptr;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

CpuPlan::State::State(const CpuPlan& of, CpuTeam* helped_by, bool is_thorough)
    : plan(of),
      thorough(is_thorough),
      alone(helped_by == nullptr ? std::make_unique<CpuTeam>(TeamOptions{}) : nullptr),
      team(helped_by == nullptr ? *alone : *helped_by),
      stream(of.engine_),
      guards(of.parts_.guards.size()),
      inputs_(of.parts_.inputs.size()),
      outputs_(of.parts_.outputs.size()) {
  kernels.reserve(of.parts_.kernels.size());
  for (const auto& kernel : of.parts_.kernels) kernels.push_back(kernel->copy(faults));
  for (const int parts : of.parts_.parts) {
    arenas.push_back(parts == 0 ? nullptr : &team.arena(parts));
    stops_inside = stops_inside || parts > 1;
  }
  place(of.own_patches_, own());
}

CpuPlan::CpuPlan(PlanParts parts, const dnnl::engine& engine) : parts_(std::move(parts)), engine_(engine) {
  CARILLON_ASSERT(parts_.names.size() == parts_.kernels.size());
  CARILLON_ASSERT(parts_.guard_of.size() == parts_.kernels.size());
  CARILLON_ASSERT(parts_.parts.size() == parts_.kernels.size());
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
      case Where::own:
        own_patches_.push_back(patch);
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

// Beside its constants, what a kernel has: its primitive, the code that was generated for it, and its
// arguments in the state of each stream. Nobody tells how much that is: it is taken for so much.
Bytes CpuPlan::memory() const {
  constexpr std::uint64_t a_kernel = 32 << 10;
  return {parts_.own.bytes().size() + a_kernel * parts_.kernels.size()};
}

std::unique_ptr<RunState> CpuPlan::make_state(Team* team) const {
  return std::make_unique<State>(*this, static_cast<CpuTeam*>(team), false);
}

std::unique_ptr<RunState> CpuPlan::make_thorough_state() const {
  return std::make_unique<State>(*this, nullptr, true);
}

void CpuPlan::State::place(const std::vector<PlanParts::Patch>& patches, std::byte* base) {
  for (const auto& patch : patches)
    kernels[static_cast<std::size_t>(patch.kernel)]->place(patch.operand, base + patch.slot.offset);
}

void CpuPlan::State::bind(const Binding& binding) {
  // Where a memory of no bytes is: it may lack an address, and kernels' operands do not.
  alignas(64) static std::byte nothing[64];
  const auto there = [](auto* at) { return at == nullptr ? nothing : at; };
  if (std::byte* const at = there(binding.workspace); at != workspace_) {
    place(plan.workspace_patches_, at);
    workspace_ = at;
  }
  if (binding.weights != weights_) {
    // Kernels only read weights and inputs; oneDNN's memory objects do not know const.
    place(plan.weight_patches_, const_cast<std::byte*>(binding.weights));
    weights_ = binding.weights;
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const std::byte* const at = there(binding.inputs[i]);
    if (at == inputs_[i]) continue;
    place(plan.input_patches_[i], const_cast<std::byte*>(at));
    inputs_[i] = at;
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    std::byte* const at = there(binding.outputs[i]);
    if (at == outputs_[i]) continue;
    place(plan.output_patches_[i], at);
    outputs_[i] = at;
  }
  std::ranges::fill(guards, std::int8_t{-1});
  faults.clear();
}

// A whole run, undisturbed or not.
void CpuPlan::State::took(Duration time, int threads, TimePoint at) {
  constexpr int not_counted = 3;
  if (usual.most != team.most()) usual = {.most = team.most()};
  if (usual.first_few < not_counted) {
    ++usual.first_few;
    return;
  }
  const bool all = threads == usual.most;
  // The least of long ago counts less and less: the machine, or the data, may be others by now.
  if (all) usual.least += usual.least / 1024;
  if (time > Duration{0} && (usual.least == Duration{0} ? all : time < usual.least)) usual.least = time;
  if (usual.least > Duration{0}) team.ran(time, usual.least, at);
}

const std::byte* CpuPlan::State::at(const Slot& slot) const {
  const auto index = static_cast<std::size_t>(slot.index);
  const std::byte* base = slot.where == Where::workspace ? workspace_
                          : slot.where == Where::weights ? weights_
                          : slot.where == Where::own     ? own()
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
  const bool result = (parent < 0 || holds(parent, state)) && (*state.at(slot) != std::byte{0}) == when;
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

// One run of some kernels.
class CpuPlan::Run {
 public:
  Run(const CpuPlan& plan, const Binding& binding, std::span<Duration> durations, StopSignal* stop,
      Pacer* pacer)
      : plan_(plan),
        state_(static_cast<State&>(*binding.state)),
        noted_(binding.faults),
        durations_(durations),
        stop_(stop),
        pacer_(pacer) {
    if (stop_ != nullptr && state_.stops_inside) stop_->set_inside(&state_);
  }
  ~Run() {
    if (stop_ == nullptr || !state_.stops_inside) return;
    stop_->set_inside(nullptr);  // nobody cancels from here on
    if (cut()) state_.context.reset();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Result<> all(KernelRange range);
  bool whole() const { return !ended_; }  // nobody ended it early

 private:
  using SystemClock = std::chrono::steady_clock;

  bool stopped() const { return stop_ != nullptr && stop_->requested(); }
  bool cut() const { return state_.context.is_group_execution_cancelled(); }
  void go_on(const Arena* here);
  Result<> step(std::size_t kernel);

  const CpuPlan& plan_;
  State& state_;
  graph::Faults* noted_;
  std::span<Duration> durations_;
  StopSignal* stop_;
  Pacer* pacer_;
  int next_ = 0, last_ = 0;
  bool ended_ = false;               // before `last_`
  SystemClock::time_point begun_{};  // the kernel that may be stopped inside
  Result<> result_;
  SystemClock::time_point before_{};
};

// The kernel ran, and what it noted allows the run to go on.
Result<> CpuPlan::Run::step(std::size_t kernel) {
  if (auto done = state_.kernels[kernel]->run(state_.stream); !done)
    return in_context("kernel " + std::to_string(kernel) + " (" + plan_.parts_.names[kernel] + ")",
                      done.error());
  if (state_.faults.empty()) return {};
  return plan_.heed_faults(static_cast<int>(kernel), state_.faults, noted_);
}

// Runs kernels up to the first that must be run in another arena than `here`.
void CpuPlan::Run::go_on(const Arena* here) {
  for (; next_ < last_; ++next_) {
    const auto i = static_cast<std::size_t>(next_);
    const Arena* const wanted = state_.arenas[i];
    if (wanted != nullptr && wanted != here) return;
    ended_ = stopped();
    if (ended_) return;
    if (stop_ != nullptr) stop_->step();
    if (const int guard = plan_.parts_.guard_of[i];
        guard >= 0 && !state_.thorough && !plan_.holds(guard, state_)) {
      if (!durations_.empty()) durations_[i] = {};
      continue;
    }
    const bool may_stop = wanted != nullptr && wanted->parts() > 1 && stop_ != nullptr;
    if (may_stop) begun_ = SystemClock::now();
    result_ = step(i);
    // Where the run was cut the kernel may lack parts; and all that is behind it.
    const bool stopped_inside = result_ && may_stop && cut();
    if (stopped_inside) stop_->lost = std::chrono::duration_cast<Duration>(SystemClock::now() - begun_);
    ended_ = !result_ || stopped_inside;
    if (ended_) return;
    if (pacer_ != nullptr) pacer_->rest([this] { return stopped(); });
    if (!durations_.empty()) {
      const auto after = SystemClock::now();
      durations_[i] = std::chrono::duration_cast<Duration>(after - before_);
      before_ = after;
    }
  }
}

Result<> CpuPlan::Run::all(KernelRange range) {
  next_ = range.first;
  last_ = range.last;
  if (pacer_ != nullptr) pacer_->begin();
  if (!durations_.empty()) before_ = SystemClock::now();
  while (!ended_ && next_ < last_) {
    Arena* const arena = state_.arenas[static_cast<std::size_t>(next_)];
    if (arena == nullptr) {
      go_on(nullptr);
    } else if (arena->parts() == 1 || stop_ == nullptr) {
      state_.team.run(*arena, [&] { go_on(arena); });
    } else {
      state_.team.run(*arena, [&] {
        tbb::parallel_for(
            0, 1, [&](int) { go_on(arena); }, tbb::simple_partitioner{}, state_.context);
        ended_ = ended_ || cut();
      });
    }
  }
  if (!result_) return result_;
  // What was found belongs to the run, which may go on from here.
  if (!state_.faults.empty() && noted_ != nullptr) noted_->add(state_.faults);
  if (pacer_ != nullptr && !ended_) pacer_->end([] { return false; });
  if (stop_ != nullptr) stop_->next = next_;
  return {};
}

// That each memory that kernels have operands in is there. One without any bytes may lack an address.
Result<> CpuPlan::check_memories(const Binding& binding) const {
  const auto lacks = [](std::string_view what) {
    return fail(ErrorCode::internal, "a run is given no memory for " + std::string(what));
  };
  if (binding.workspace == nullptr && parts_.workspace > 0) return lacks("its workspace");
  if (binding.weights == nullptr && !weight_patches_.empty()) return lacks("the weights");
  const auto missing = [](const graph::TensorSpec& spec, const std::byte* at) {
    return at == nullptr && graph::memory_of(spec.type, spec.shape).count > 0;
  };
  for (std::size_t i = 0; i < parts_.inputs.size(); ++i)
    if (missing(parts_.inputs[i], binding.inputs[i])) return lacks("input '" + parts_.inputs[i].name + "'");
  for (std::size_t i = 0; i < parts_.outputs.size(); ++i)
    if (missing(parts_.outputs[i], binding.outputs[i]))
      return lacks("output '" + parts_.outputs[i].name + "'");
  return {};
}

Result<> CpuPlan::run(KernelRange range, const Binding& binding, std::span<Duration> durations,
                      StopSignal* stop, Pacer* pacer) const {
  CARILLON_ASSERT(0 <= range.first && range.first <= range.last && range.last <= kernels());
  CARILLON_ASSERT(binding.inputs.size() == parts_.inputs.size());
  CARILLON_ASSERT(binding.outputs.size() == parts_.outputs.size());
  CARILLON_ASSERT(durations.empty() || durations.size() == parts_.kernels.size());
  CARILLON_ASSERT(binding.state != nullptr && &static_cast<State*>(binding.state)->plan == this);
  const FlushDenormals here;
  if (auto there = check_memories(binding); !there) return there;
  try {
    static_cast<State*>(binding.state)->bind(binding);
  } catch (const dnnl::error& e) {
    return fail(ErrorCode::internal, std::string("oneDNN: ") + e.what());
  }
  State& state = *static_cast<State*>(binding.state);
  const int threads = state.team.adapt();
  const bool rests = pacer != nullptr && pacer->share() < 1;
  const bool told = state.team.adapts() && state.stops_inside && range.first == 0 &&
                    range.last == kernels() && durations.empty() && !rests;
  if (!told) return Run(*this, binding, durations, stop, pacer).all(range);
  const auto began = std::chrono::steady_clock::now();
  Run run(*this, binding, durations, stop, pacer);
  auto done = run.all(range);
  const auto ended = std::chrono::steady_clock::now();
  if (done && run.whole())
    state.took(std::chrono::duration_cast<Duration>(ended - began), threads,
               TimePoint{std::chrono::duration_cast<Duration>(ended.time_since_epoch())});
  return done;
}

}  // namespace carillon::engine::cpu
