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
};

// One plan, and where its inputs and outputs go: inputs first, then outputs, nothing overlaps.
struct PlanLayout {
  const engine::Plan* plan = nullptr;
  int batch = 0;
  std::vector<TensorPlace> inputs;
  std::vector<TensorPlace> outputs;
  std::uint64_t io_bytes = 0;
  // Room for EXEC's Binding; touched by its thread only.
  std::vector<const std::byte*> input_pointers;
  std::vector<std::byte*> output_pointers;
};

// Lays out every plan of `model`, batches ascending. Errors (what is needed, what there is): a tensor that
// does not divide into rows or holds strings, a batch above max_batch, more workspace than `workspace` or
// more I/O than `io`.
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

  PlanLayout* layout(int batch) {
    for (PlanLayout& candidate : layouts)
      if (candidate.batch == batch) return &candidate;
    return nullptr;
  }
};

}  // namespace carillon::worker
