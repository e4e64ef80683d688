#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "carillon/engine/engine.h"
#include "carillon/worker/page_cache.h"
#include "carillon/worker/worker.h"

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
  std::uint64_t io_bytes = 0;
  // Room for EXEC's Binding; touched by its thread only.
  std::vector<const std::byte*> input_pointers;
  std::vector<std::byte*> output_pointers;
};

// Lays out every plan of `model`, batches ascending, then lengths. Errors (what is needed, what there is): a
// tensor that does not divide into rows or holds strings, a batch above max_batch, more workspace than
// `workspace` or more I/O than `io`.
Result<std::vector<PlanLayout>> lay_out(const engine::CompiledModel& model, Bytes workspace, Bytes io);

// A model in the host store.
struct HostModel {
  std::shared_ptr<const engine::CompiledModel> compiled;
  std::vector<PlanLayout> layouts;
  PageCache::Range range;  // the LOAD thread's

  // Guarded by the worker's state mutex. LOAD sets `loaded`; UNLOAD takes it away at once and returns the
  // pages when `executing` is over, until when it and what follows it wait in the list of parked slots.
  bool loaded = false;
  bool executing = false;
  std::uint32_t first_parked = 0xffffffffU;
  std::uint32_t last_parked = 0xffffffffU;

  bool varies() const { return layouts.front().length > 0; }
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
