#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/library/plain.h"
#include "carillon/engine/cuda/memory/loaded_plan.h"
#include "carillon/engine/cuda/plan/cuda_engine.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/tensor.h"

namespace carillon::engine::cuda::testing {

// An engine on an emulated device, the one of the process; for tests and tools.
class OnEmulated {
 public:
  explicit OnEmulated(EmulatedOptions options = {}) : host_(std::move(options)) {}

  Emulated& device() { return host_.device; }
  const Driver& driver() const { return host_.driver; }

  Result<std::unique_ptr<Engine>> engine(const CudaOptions& options, DeviceNumber device = 0) const {
    const std::shared_ptr<const Driver> driver(std::shared_ptr<void>(), &host_.driver);  // which outlives all
    auto library = make_plain_library(driver, device);
    if (!library) return std::unexpected(library.error());
    if (wrap) *library = wrap(std::move(*library));
    std::unique_ptr<ChainLibrary> chains;
    if (make_chains) {
      auto made = make_chains(driver, device);
      if (!made) return std::unexpected(made.error());
      chains = std::move(*made);
    }
    return make_cuda_engine(driver, device, "emulated", std::move(*library), options, std::move(chains));
  }
  // What stands before the library of engines to come.
  std::function<std::unique_ptr<MathLibrary>(std::unique_ptr<MathLibrary>)> wrap;
  // Who makes kernels of chains for them: the interpreter; without it each step is a kernel.
  std::function<Result<std::unique_ptr<ChainLibrary>>(std::shared_ptr<const Driver>, DeviceNumber)>
      make_chains = make_interpreted_chains;

  // The names of what a model's plan runs at batch 1, each step by itself.
  Result<std::vector<std::string>> step_names(const graph::Model& model, Number number = Number::f32) const {
    const auto made = engine({.number = number, .longest_segment = 1});
    if (!made) return std::unexpected(made.error());
    const auto compiled = (*made)->compile(model, {.batch_sizes = {1}});
    if (!compiled) return std::unexpected(compiled.error());
    const Plan& plan = *(*compiled)->plan(1);
    std::vector<std::string> out;
    for (int i = 0; i < plan.kernels(); ++i) out.emplace_back(plan.kernel_name(i));
    return out;
  }

  // The outputs of one run of `plan`, in as many runs as it has segments where `cut`; and what the device
  // found wrong since it was made.
  Result<std::vector<std::vector<std::byte>>> run(const CompiledModel& model, const Plan& plan,
                                                  std::span<const std::span<const std::byte>> inputs,
                                                  bool cut) {
    auto loaded =
        LoadedPlan::make(std::shared_ptr<const Driver>(std::shared_ptr<void>(), &driver()), 0, model, plan);
    if (!loaded) return std::unexpected(loaded.error());
    for (std::size_t i = 0; i < plan.inputs().size(); ++i) (*loaded)->set_input(i, inputs[i]);
    std::vector<std::vector<std::byte>> out;
    Result<> ran;
    {
      const auto state = plan.make_state();
      const Binding binding = (*loaded)->binding(state.get());
      if (cut)
        for (int k = 0; ran && k < plan.kernels(); ++k)
          for (int again = 0; ran && again < 2; ++again) ran = plan.run({k, k + 1}, binding, {});
      else
        ran = plan.run({0, plan.kernels()}, binding, {});
      for (std::size_t i = 0; ran && i < plan.outputs().size(); ++i) out.push_back((*loaded)->output(i));
    }
    loaded->reset();
    if (!ran) return std::unexpected(ran.error());
    const auto violations = device().violations();
    if (!violations.empty()) return fail(ErrorCode::internal, "the device: " + violations.front());
    return out;
  }

 private:
  EmulatedHost host_;
};

}  // namespace carillon::engine::cuda::testing
