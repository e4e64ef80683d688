#include "carillon/engine/cuda/memory/loaded_plan.h"

#include <algorithm>
#include <numeric>

namespace carillon::engine::cuda {
namespace {

std::uint64_t bytes_of(const graph::TensorSpec& spec) {
  return graph::TensorType{spec.type, spec.shape}.bytes().count;
}

}  // namespace

Result<std::span<const std::byte>> weights_of(const CompiledModel& model, std::vector<std::byte>& written) {
  if (const auto packed = model.packed(); !packed.empty()) return packed;
  written.resize(model.weights().count);
  if (auto ok = model.write_weights(0, written); !ok) return std::unexpected(ok.error());
  return std::span<const std::byte>(written);
}

Result<std::unique_ptr<LoadedPlan>> LoadedPlan::make(const std::shared_ptr<const Driver>& driver,
                                                     DeviceNumber device, const CompiledModel& model,
                                                     const Plan& plan) {
  std::unique_ptr<LoadedPlan> out(new LoadedPlan(plan));
  std::uint64_t io = 0;
  std::vector<std::uint64_t> places;
  for (const auto specs : {plan.inputs(), plan.outputs()})
    for (const graph::TensorSpec& spec : specs) {
      places.push_back(io);
      io += round_up(bytes_of(spec), 256);
    }
  const std::uint64_t pages = pages_for(model.weights());
  auto memory = CudaMemory::make(driver, device,
                                 {.pages = std::max<std::uint64_t>(1, pages),
                                  .io = std::max(Bytes{io}, kib(1)),
                                  .workspace = std::max(plan.workspace(), kib(1))});
  if (!memory) return std::unexpected(memory.error());
  out->memory_ = std::move(*memory);
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::byte* const at = out->memory_->io(places[i]);
    if (i < plan.inputs().size())
      out->from_.push_back(at);
    else
      out->to_.push_back(at);
  }
  const auto range = out->memory_->reserve(pages);
  if (!range) return std::unexpected(range.error());
  out->range_ = *range;
  std::vector<std::uint32_t> all(pages);
  std::iota(all.begin(), all.end(), 0U);
  if (auto mapped = out->memory_->map(*range, all); !mapped) return std::unexpected(mapped.error());
  out->pages_ = std::move(all);
  std::vector<std::byte> written;
  const auto weights = weights_of(model, written);
  if (!weights) return std::unexpected(weights.error());
  if (!weights->empty()) out->memory_->copy_in(range->data, *weights);
  return out;
}

LoadedPlan::~LoadedPlan() {
  if (memory_ == nullptr) return;
  if (!pages_.empty()) memory_->unmap(range_, pages_);
  memory_->release(range_);
}

Binding LoadedPlan::binding(RunState* state) const {
  return {.inputs = from_,
          .outputs = to_,
          .workspace = memory_->workspace(0),
          .weights = range_.data,
          .state = state};
}

void LoadedPlan::set_input(std::size_t index, std::span<const std::byte> bytes) {
  memory_->copy_in(const_cast<std::byte*>(from_[index]), bytes);
}

std::vector<std::byte> LoadedPlan::output(std::size_t index) const {
  std::vector<std::byte> out(bytes_of(plan_.outputs()[index]));
  memory_->copy_out(out, to_[index]);
  return out;
}

}  // namespace carillon::engine::cuda
