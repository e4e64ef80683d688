#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <dnnl.hpp>

#include "carillon/engine/cpu/kernel.h"
#include "carillon/engine/cpu/weight_store.h"
#include "carillon/engine/engine.h"

namespace carillon::engine::cpu {

// Everything that a finished plan consists of.
struct PlanParts {
  struct Patch {  // operand `operand` of kernel `kernel` lies at `slot`
    int kernel = 0;
    int operand = 0;
    Slot slot;
  };
  int batch = 1;
  std::vector<graph::TensorSpec> inputs, outputs;
  std::uint64_t workspace = 0;
  Effort effort;
  HostBlock own;  // constants beside the model's weights
  // A kernel runs only if the byte at `condition` is (not 0) == when, and the parent guard holds. The byte is
  // written by an earlier kernel, and stays until the last kernel under the guard.
  struct Guard {
    Slot condition;
    bool when = true;
    int parent = -1;  // an earlier guard; -1: none
  };
  std::vector<Guard> guards;
  bool branches = false;      // some of them are the model's own
  std::vector<int> guard_of;  // by kernel; -1: it always runs
  std::vector<int> parts;     // by kernel: of the arena that it is made for; 0: it is not divided
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<std::string> names;  // as many as kernels
  std::vector<Patch> patches;
};

class CpuPlan final : public Plan {
 public:
  CpuPlan(PlanParts parts, const dnnl::engine& engine);

  int batch() const override { return parts_.batch; }
  std::span<const graph::TensorSpec> inputs() const override { return parts_.inputs; }
  std::span<const graph::TensorSpec> outputs() const override { return parts_.outputs; }
  Bytes workspace() const override { return {parts_.workspace}; }
  Effort effort() const override { return parts_.effort; }
  Bytes memory() const override;
  int kernels() const override { return static_cast<int>(parts_.kernels.size()); }
  std::string_view kernel_name(int index) const override {
    return parts_.names[static_cast<std::size_t>(index)];
  }
  int kernel_parts(int index) const override {
    return std::max(1, parts_.parts[static_cast<std::size_t>(index)]);
  }
  std::unique_ptr<RunState> make_state(Team* team) const override;
  // Runs with it pass over no kernel, whatever guards say: to measure all of them. What they compute means
  // nothing.
  std::unique_ptr<RunState> make_thorough_state() const;
  // Whether runs may pass over the kernel.
  bool is_guarded(int index) const { return parts_.guard_of[static_cast<std::size_t>(index)] >= 0; }
  Result<> run(KernelRange range, const Binding& binding, std::span<Duration> durations,
               StopSignal* stop = nullptr, Pacer* pacer = nullptr) const override;

 private:
  class State;
  class Run;
  bool holds(int guard, State& state) const;
  Result<> check_memories(const Binding& binding) const;
  Result<> heed_faults(int kernel, const graph::Faults& found, const graph::Faults* to) const;

  PlanParts parts_;
  dnnl::engine engine_;
  std::vector<PlanParts::Patch> workspace_patches_, weight_patches_, own_patches_;
  std::vector<std::vector<PlanParts::Patch>> input_patches_, output_patches_;
};

}  // namespace carillon::engine::cpu
