#include "carillon/worker/host_model.h"

#include <span>

#include "carillon/graph/tensor.h"

namespace carillon::worker {
namespace {

// Appends a place for each of `specs` from `end` on, and moves `end` behind them.
Result<> place(std::span<const graph::TensorSpec> specs, int batch, std::vector<TensorPlace>& places,
               std::uint64_t& end) {
  for (const graph::TensorSpec& spec : specs) {
    const std::string what = "tensor \"" + spec.name + "\" " + graph::to_text(spec.shape);
    if (spec.type == graph::DataType::string)
      return fail(ErrorCode::unsupported, what + " holds strings, which the worker does not serve");
    const auto elements = graph::element_count(spec.shape);
    if (!elements) return in_context(what, elements.error());
    if (batch > 1 && (spec.shape.empty() || spec.shape.front() != batch))
      return invalid(what + " does not divide into rows: its first extent must be the batch");
    const std::uint64_t bytes = graph::size_of(spec.type) * static_cast<std::uint64_t>(*elements);
    places.push_back({end, bytes / static_cast<std::uint64_t>(batch)});
    end = round_up(end + bytes, 64);
  }
  return {};
}

}  // namespace

Result<std::vector<PlanLayout>> lay_out(const engine::CompiledModel& model, Bytes workspace, Bytes io) {
  std::vector<PlanLayout> layouts;
  for (const int batch : model.batch_sizes()) {
    const std::string context = "batch " + std::to_string(batch);
    if (batch < 1 || batch > max_batch)
      return invalid(context + " is out of range: a worker takes 1 to " + std::to_string(max_batch));
    PlanLayout layout{.plan = model.plan(batch), .batch = batch};
    if (layout.plan == nullptr) return fail(ErrorCode::internal, context + " is listed but has no plan");
    for (const auto& [specs, places] : {std::pair{layout.plan->inputs(), &layout.inputs},
                                        std::pair{layout.plan->outputs(), &layout.outputs}})
      if (auto placed = place(specs, batch, *places, layout.io_bytes); !placed)
        return in_context(context, placed.error());
    if (layout.plan->workspace() > workspace)
      return fail(ErrorCode::resource_exhausted, context + " needs " + to_text(layout.plan->workspace()) +
                                                     " of workspace, and the worker has " +
                                                     to_text(workspace));
    if (layout.io_bytes > io.count)
      return fail(ErrorCode::resource_exhausted,
                  context + " needs " + to_text(Bytes{layout.io_bytes}) +
                      " for inputs and outputs, and the worker's I/O cache has " + to_text(io));
    layout.input_pointers.resize(layout.inputs.size());
    layout.output_pointers.resize(layout.outputs.size());
    layouts.push_back(std::move(layout));
  }
  if (layouts.empty()) return invalid("the model has no plan for any batch size");
  return layouts;
}

}  // namespace carillon::worker
