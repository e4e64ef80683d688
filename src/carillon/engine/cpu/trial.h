#pragma once

#include <memory>
#include <vector>

#include <dnnl.hpp>

#include "carillon/base/time.h"
#include "carillon/engine/cpu/plan.h"
#include "carillon/engine/cpu/weight_store.h"

// Plans that run while a model is compiled, to be measured.
namespace carillon::engine::cpu {

// Memory that they run in, one after the other.
class TrialMemory {
 public:
  void fit(const Plan& plan);
  Binding binding(const std::byte* weights, RunState& state, graph::Faults& faults);

 private:
  static std::uint64_t size_of(const graph::TensorSpec& spec);
  static void fit(HostBlock& block, std::uint64_t size);

  HostBlock workspace_;
  std::vector<HostBlock> inputs_, outputs_;
  std::vector<const std::byte*> input_pointers_;
  std::vector<std::byte*> output_pointers_;
};

// A plan that runs to be measured, on zeros and on the calling thread alone.
class Trial {
 public:
  static constexpr Duration never = Duration::max();

  Trial(PlanParts parts, const dnnl::engine& engine);

  const CpuPlan& plan() const { return plan_; }
  // The least time of each kernel in the runs so far; `never` where it was passed over.
  const std::vector<Duration>& times() const { return times_; }
  // Likewise, in runs that passed over none.
  const std::vector<Duration>& guarded() const { return guarded_; }

  // Gives back how long each kernel took; 0 where it was passed over.
  std::vector<Duration> run(TrialMemory& memory, const std::byte* weights);
  // Each kernel by itself, whether or not its guard holds.
  void run_all(TrialMemory& memory, const std::byte* weights);

 private:
  CpuPlan plan_;
  std::unique_ptr<RunState> state_, everything_;
  graph::Faults faults_;
  StopSignal stop_;  // never asked for, but runs are as those that it could be asked of
  std::vector<Duration> times_, guarded_;
};

// How many rounds there are of what is measured: at least and at most so many, and until it took so long; and
// of long runs two, where these take longer than that alone.
struct Rounds {
  int least, most;
  Duration at_least;
};
bool goes_on(int round, Duration spent, const Rounds& rounds);

Duration sum(const std::vector<Duration>& times);

// Of a run, in us, where each kernel takes the least that it took in any: a median of whole runs differs by
// several percent where anything else runs on the machine, this by less than one.
double least_time(const std::vector<std::vector<Duration>>& runs);

}  // namespace carillon::engine::cpu
