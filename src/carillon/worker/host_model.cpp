#include "carillon/worker/host_model.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "carillon/graph/bounded.h"
#include "carillon/graph/tensor.h"
#include "carillon/worker/row_buffers.h"

namespace carillon::worker {
namespace {

// Appends a place for each of `specs` from `end` on, and moves `end` behind them. `open` are the same tensors
// as the model has them.
Result<> place(std::span<const graph::TensorSpec> specs, std::span<const graph::TensorSpec> open, int batch,
               std::int64_t length, std::vector<TensorPlace>& places, std::uint64_t& end) {
  for (const graph::TensorSpec& spec : specs) {
    const graph::Shape most = graph::bounds_of(spec.shape);
    const std::string what = "tensor \"" + spec.name + "\" " + graph::to_text(most);
    const auto elements = graph::element_count(most);
    if (!elements) return in_context(what, elements.error());
    if (batch > 1 && (spec.shape.empty() || spec.shape.front() != batch || graph::has_bounded(spec.shape)))
      return invalid(what + " does not divide into rows: its first extent must be the batch");
    const std::uint64_t bytes = graph::memory_of(spec.type, spec.shape).count;
    TensorPlace& added = places.emplace_back(
        TensorPlace{.offset = end, .row_bytes = bytes / static_cast<std::uint64_t>(batch)});
    const graph::Shape& shape = open[static_cast<std::size_t>(&spec - specs.data())].shape;
    const auto varying = std::ranges::find(shape, graph::length_dimension);
    if (varying != shape.end()) {
      if (std::find(varying + 1, shape.end(), graph::length_dimension) != shape.end())
        return fail(ErrorCode::unsupported, what + " varies in two dimensions");
      for (auto extent = shape.begin(); extent != varying; ++extent)
        if (*extent != graph::batch_dimension) added.pieces *= static_cast<std::uint64_t>(*extent);
      if (added.pieces > 0) added.unit = added.row_bytes / added.pieces / static_cast<std::uint64_t>(length);
    }
    end = round_up(end + bytes, 64);
  }
  return {};
}

Result<PlanLayout> lay_out_plan(const engine::CompiledModel& model, const engine::Plan* plan, int batch,
                                std::int64_t length, Bytes workspace, Bytes io, std::size_t streams) {
  const std::string what = "batch " + std::to_string(batch) +
                           (length > 0 && !model.open() ? " at length " + std::to_string(length) : "");
  PlanLayout layout{.plan = plan, .batch = batch, .length = length};
  if (layout.plan == nullptr) return fail(ErrorCode::internal, what + " is listed but has no plan");
  if (auto placed =
          place(layout.plan->inputs(), model.inputs(), batch, length, layout.inputs, layout.io_bytes);
      !placed)
    return in_context(what, placed.error());
  layout.outputs_at = layout.io_bytes;
  if (auto placed =
          place(layout.plan->outputs(), model.outputs(), batch, length, layout.outputs, layout.io_bytes);
      !placed)
    return in_context(what, placed.error());
  if (layout.plan->workspace() > workspace)
    return fail(ErrorCode::resource_exhausted, what + " needs " + to_text(layout.plan->workspace()) +
                                                   " of workspace, and the worker has " + to_text(workspace));
  if (layout.io_bytes > io.count)
    return fail(ErrorCode::resource_exhausted,
                what + " needs " + to_text(Bytes{layout.io_bytes}) +
                    " for inputs and outputs, and the worker's I/O cache has " + to_text(io));
  layout.pointers.resize(streams);
  for (PlanLayout::Pointers& pointers : layout.pointers) {
    pointers.inputs.resize(layout.inputs.size());
    pointers.outputs.resize(layout.outputs.size());
  }
  return layout;
}

}  // namespace

void put_row(const TensorPlace& place, std::int64_t length, const std::byte* from, std::byte* to) {
  if (place.row_bytes == 0) return;
  const std::uint64_t own = place.unit * static_cast<std::uint64_t>(length);
  const std::uint64_t whole = place.row_bytes / place.pieces;
  if (place.unit == 0 || own == whole) {
    std::memcpy(to, from, place.row_bytes);
    return;
  }
  for (std::uint64_t i = 0; i < place.pieces; ++i, from += own, to += whole) {
    std::memcpy(to, from, own);
    std::memset(to + own, 0, whole - own);
  }
}

void take_row(const TensorPlace& place, std::int64_t length, const std::byte* from, std::byte* to) {
  if (place.row_bytes == 0) return;
  const std::uint64_t own = place.unit * static_cast<std::uint64_t>(length);
  const std::uint64_t whole = place.row_bytes / place.pieces;
  if (place.unit == 0 || own == whole) {
    std::memcpy(to, from, place.row_bytes);
    return;
  }
  for (std::uint64_t i = 0; i < place.pieces; ++i, from += whole, to += own) std::memcpy(to, from, own);
}

Result<std::vector<PlanLayout>> lay_out(const engine::CompiledModel& model, Bytes workspace, Bytes io,
                                        std::size_t streams) {
  std::vector<PlanLayout> layouts;
  std::vector<std::int64_t> lengths(model.lengths().begin(), model.lengths().end());
  if (lengths.empty()) lengths.push_back(0);
  for (const int batch : model.batch_sizes()) {
    if (batch < 1 || batch > max_batch)
      return invalid("batch " + std::to_string(batch) + " is out of range: a worker takes 1 to " +
                     std::to_string(max_batch));
    for (const std::int64_t length : lengths) {
      const engine::Plan* const plan = model.plan(batch, length);
      if (plan == nullptr && model.has_one_plan()) continue;
      auto layout = lay_out_plan(model, plan, batch, length, workspace, io, streams);
      if (!layout) return std::unexpected(layout.error());
      layouts.push_back(std::move(*layout));
    }
  }
  if (layouts.empty()) return invalid("the model has no plan for any batch size");
  // Batches without a plan run by others, with as much for each row at most.
  if (model.has_one_plan()) {
    const std::uint64_t row = round_up(layouts.front().io_bytes, 64);
    for (const int batch : model.batch_sizes())
      if (const std::uint64_t needed = static_cast<std::uint64_t>(batch) * row; needed > io.count)
        return fail(ErrorCode::resource_exhausted,
                    "batch " + std::to_string(batch) + " needs " + to_text(Bytes{needed}) +
                        " for inputs and outputs, and the worker's I/O cache has " + to_text(io));
  }
  return layouts;
}

Result<std::vector<PlanLayout>> lay_out(const engine::CompiledModel& model, std::int64_t size,
                                        std::span<const std::unique_ptr<const engine::Plan>> plans,
                                        Bytes workspace, Bytes io, std::size_t streams) {
  std::vector<PlanLayout> layouts;
  for (const auto& plan : plans) {
    auto layout = lay_out_plan(model, plan.get(), plan->batch(), size, workspace, io, streams);
    if (!layout) return std::unexpected(layout.error());
    layouts.push_back(std::move(*layout));
  }
  return layouts;
}

std::pair<PlanLayout*, std::shared_ptr<SizedPlans>> HostModel::sized(int batch, std::int64_t size) const {
  const std::lock_guard lock(sizes_mutex);
  for (const auto& each : sizes) {
    if (each->size != size) continue;
    for (PlanLayout& layout : each->layouts)
      if (layout.batch == batch) return {&layout, each};
  }
  return {};
}

std::shared_ptr<SizedPlans> HostModel::larger() const {
  const std::lock_guard lock(sizes_mutex);
  const auto found = std::ranges::find(sizes, 0, &SizedPlans::size);
  return found == sizes.end() ? nullptr : *found;
}

bool HostModel::sweep() {
  std::vector<std::shared_ptr<SizedPlans>> unused;  // end without the lock
  const std::lock_guard lock(sizes_mutex);
  for (auto& each : leaving)
    if (each.use_count() == 1) unused.push_back(std::move(each));
  std::erase(leaving, nullptr);
  return leaving.empty();
}

Result<> make_states(std::vector<PlanLayout>& layouts, std::span<const RunPlace> streams, StreamSet wanted,
                     const std::byte* weights) {
  for (PlanLayout& layout : layouts)
    for (std::size_t s = 0; s < layout.pointers.size(); ++s) {
      auto& state = layout.pointers[s].state;
      if (state != nullptr || (wanted >> s & 1U) == 0) continue;
      state = layout.plan->make_state(streams[s].team);
      if (state == nullptr) continue;
      if (auto prepared = layout.plan->prepare(*state, streams[s].workspace, weights); !prepared)
        return prepared;
    }
  return {};
}

}  // namespace carillon::worker
