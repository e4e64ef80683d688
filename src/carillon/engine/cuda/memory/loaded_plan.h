#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/memory/cuda_memory.h"
#include "carillon/engine/engine.h"

namespace carillon::engine::cuda {

// The model's weights as they lie on the device: its own packed copy, else what it writes into `written`,
// which outlives them. Errors: as of write_weights().
Result<std::span<const std::byte>> weights_of(const CompiledModel& model, std::vector<std::byte>& written);

// Memory of a device for runs of one plan alone: its model's weights are there, and places for its inputs and
// outputs. For whoever runs a plan without a worker: tools and tests. Outlives the plan's states.
class LoadedPlan {
 public:
  // `model` and `plan` are of an engine of that device; they outlive it.
  static Result<std::unique_ptr<LoadedPlan>> make(const std::shared_ptr<const Driver>& driver,
                                                  DeviceNumber device, const CompiledModel& model,
                                                  const Plan& plan);
  ~LoadedPlan();
  LoadedPlan(const LoadedPlan&) = delete;
  LoadedPlan& operator=(const LoadedPlan&) = delete;

  Binding binding(RunState* state) const;  // good as long as this lives
  void set_input(std::size_t index, std::span<const std::byte> bytes);
  std::vector<std::byte> output(std::size_t index) const;  // what the last run gave
  DeviceMemory& memory() const { return *memory_; }
  const WeightRange& range() const { return range_; }

 private:
  explicit LoadedPlan(const Plan& plan) : plan_(plan) {}

  const Plan& plan_;
  std::unique_ptr<CudaMemory> memory_;
  WeightRange range_;
  std::vector<std::uint32_t> pages_;  // mapped
  std::vector<const std::byte*> from_;
  std::vector<std::byte*> to_;
};

}  // namespace carillon::engine::cuda
