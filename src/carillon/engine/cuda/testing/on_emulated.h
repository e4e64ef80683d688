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
#include "carillon/engine/cuda/memory/cuda_memory.h"
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

  // The outputs of one run of `plan`, in as many runs as it has segments where `cut`; and what the device
  // found wrong since it was made.
  Result<std::vector<std::vector<std::byte>>> run(const CompiledModel& model, const Plan& plan,
                                                  std::span<const std::span<const std::byte>> inputs,
                                                  bool cut) {
    Bytes io{};
    for (const auto specs : {plan.inputs(), plan.outputs()})
      for (const graph::TensorSpec& spec : specs)
        io = io + Bytes{round_up(graph::TensorType{spec.type, spec.shape}.bytes().count, 256)};
    auto memory = CudaMemory::make(driver(), 0,
                                   {.pages = std::max<std::uint64_t>(1, pages_for(model.weights())),
                                    .io = std::max(io, kib(1)),
                                    .workspace = std::max(plan.workspace(), kib(1))});
    if (!memory) return std::unexpected(memory.error());
    std::uint64_t at = 0;
    const auto place = [&](const graph::TensorSpec& spec) {
      std::byte* const to = (*memory)->io(at);
      at += round_up(graph::TensorType{spec.type, spec.shape}.bytes().count, 256);
      return to;
    };
    std::vector<const std::byte*> from;
    for (std::size_t i = 0; i < plan.inputs().size(); ++i) {
      std::byte* const to = place(plan.inputs()[i]);
      (*memory)->copy_in(to, inputs[i]);
      from.push_back(to);
    }
    std::vector<std::byte*> to;
    for (const graph::TensorSpec& spec : plan.outputs()) to.push_back(place(spec));
    const auto range = (*memory)->reserve(pages_for(model.weights()));
    if (!range) return std::unexpected(range.error());
    std::vector<std::uint32_t> pages;
    for (std::uint32_t page = 0; page < range->pages; ++page) pages.push_back(page);
    if (auto mapped = (*memory)->map(*range, pages); !mapped) return std::unexpected(mapped.error());
    std::vector<std::byte> weights(model.weights().count);
    model.write_weights(0, weights);
    if (!weights.empty()) (*memory)->copy_in(range->data, weights);
    std::vector<std::vector<std::byte>> out;
    Result<> ran;
    {
      const auto state = plan.make_state();
      const Binding binding{.inputs = from,
                            .outputs = to,
                            .workspace = (*memory)->workspace(0),
                            .weights = range->data,
                            .state = state.get()};
      if (cut)
        for (int k = 0; ran && k < plan.kernels(); ++k)
          for (int again = 0; ran && again < 2; ++again) ran = plan.run({k, k + 1}, binding, {});
      else
        ran = plan.run({0, plan.kernels()}, binding, {});
      for (std::size_t i = 0; ran && i < to.size(); ++i) {
        const graph::TensorSpec& spec = plan.outputs()[i];
        out.emplace_back(graph::TensorType{spec.type, spec.shape}.bytes().count);
        (*memory)->copy_out(out.back(), to[i]);
      }
    }
    (*memory)->unmap(*range, pages);
    (*memory)->release(*range);
    if (!ran) return std::unexpected(ran.error());
    const auto violations = device().violations();
    if (!violations.empty()) return fail(ErrorCode::internal, "the device: " + violations.front());
    return out;
  }

 private:
  EmulatedHost host_;
};

}  // namespace carillon::engine::cuda::testing
