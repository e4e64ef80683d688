#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "carillon/engine/device_memory.h"
#include "carillon/engine/engine.h"

namespace carillon::worker {

// Where one tensor of a batch lies in the batch's piece of the I/O cache: row after row, from `offset`.
struct TensorPlace {
  std::uint64_t offset = 0;  // a multiple of 64
  std::uint64_t row_bytes = 0;
  // Where the tensor varies, a row is `pieces` times length * `unit` bytes; else `unit` is 0.
  std::uint64_t pieces = 1;
  std::uint64_t unit = 0;
};

// Copies a row of its own `length` (which matters only where the tensor varies) to where the plan's row lies,
// the rest zeros, and back.
void put_row(const TensorPlace& place, std::int64_t length, const std::byte* from, std::byte* to);
void take_row(const TensorPlace& place, std::int64_t length, const std::byte* from, std::byte* to);

// One plan, and where its inputs and outputs go: inputs first, then outputs, nothing overlaps.
struct PlanLayout {
  const engine::Plan* plan = nullptr;
  int batch = 0;
  std::int64_t length = 0;  // 0: the model has no lengths
  std::vector<TensorPlace> inputs;
  std::vector<TensorPlace> outputs;
  std::uint64_t outputs_at = 0;  // inputs lie before, outputs from here on
  std::uint64_t io_bytes = 0;
  // Room for a launch's Binding, by stream: touched by its thread only.
  struct Pointers {
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    std::unique_ptr<engine::RunState> state;  // from make_states() on, or the first run there
  };
  std::vector<Pointers> pointers;
};

// Lays out every plan that `model` has, batches ascending, then lengths. Errors (what is needed, what there
// is): a tensor that does not divide into rows or holds strings, a batch above max_batch, more workspace than
// `workspace` or more I/O than `io`.
Result<std::vector<PlanLayout>> lay_out(const engine::CompiledModel& model, Bytes workspace, Bytes io,
                                        std::size_t streams = 1);

// The same for plans that were made later: of an open model at further extents, `size` in their layouts'
// lengths, or of larger batches (`size` is 0).
Result<std::vector<PlanLayout>> lay_out(const engine::CompiledModel& model, std::int64_t size,
                                        std::span<const std::unique_ptr<const engine::Plan>> plans,
                                        Bytes workspace, Bytes io, std::size_t streams);

// Where runs of a stream are, as far as is known before.
struct RunPlace {
  engine::Team* team = nullptr;    // nullptr: the stream has none
  std::byte* workspace = nullptr;  // of most of its runs
};
// Which streams: bit i is stream i.
using StreamSet = std::uint64_t;
// Makes the run states of these plans for the streams in `wanted`, where there are none yet.
Result<> make_states(std::vector<PlanLayout>& layouts, std::span<const RunPlace> streams, StreamSet wanted,
                     const std::byte* weights);

// Plans that were made later: of an open model at further extents, or of larger batches. Actions that use
// them hold them.
struct SizedPlans {
  std::int64_t size = 0;  // 0: of larger batches
  std::vector<std::unique_ptr<const engine::Plan>> plans;
  std::vector<PlanLayout> layouts;  // batches ascending
};

// A model in the host store.
struct HostModel {
  std::shared_ptr<const engine::CompiledModel> compiled;
  std::vector<PlanLayout> layouts;  // of an open model: at its reference
  engine::WeightRange range;
  StreamSet streams = 0;  // whose states are there before the first run; of who adds models
  std::atomic<bool> gone{false};
  mutable std::mutex sizes_mutex;
  std::vector<std::shared_ptr<SizedPlans>> sizes;    // under it
  std::vector<std::shared_ptr<SizedPlans>> leaving;  // likewise: that actions may still hold

  bool varies() const { return layouts.front().length > 0; }
  // Of plans that were made later: that for `batch` rows of that size, and who holds it.
  std::pair<PlanLayout*, std::shared_ptr<SizedPlans>> sized(int batch, std::int64_t size) const;
  // Lets those go that no action holds any more; whether that is all of them. Actions only ever let go of
  // what is still held here, so that no plan ends on their threads.
  bool sweep();
  // The plans of larger batches, where there are any.
  std::shared_ptr<SizedPlans> larger() const;
  // For rows up to `length` where the model pads; for exactly that length where it does not.
  PlanLayout* layout(int batch, std::int64_t length = 0) {
    for (PlanLayout& candidate : layouts)
      if (candidate.batch == batch &&
          (candidate.length == length || (candidate.length > length && compiled->pads())))
        return &candidate;
    return nullptr;
  }
};

}  // namespace carillon::worker
