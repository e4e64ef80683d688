#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/worker/memory.h"

namespace carillon::worker {

// Memory for the inputs and outputs of batches, taken once (Clockwork, section 5.2: IOCache). Cut into whole
// granules; a piece is contiguous. Best fit over the free runs, which are merged as they are released, so the
// cost is bounded by the number of pieces in use. Thread-safe; allocates only when made.
class IoCache {
 public:
  static constexpr std::uint64_t granule = 4096;

  struct Piece {
    std::byte* data = nullptr;  // aligned to 64 bytes (indeed to a granule); nullptr: there was no room
    std::uint32_t first = 0;    // granules
    std::uint32_t count = 0;
  };

  explicit IoCache(Arena arena);

  // At least `bytes` in one piece (one granule for none).
  Piece allocate(std::uint64_t bytes);
  // Requires a piece that allocate() gave and that has not been released since.
  void release(const Piece& piece);

  Bytes capacity() const { return {granule * runs_.size()}; }
  Bytes free() const;

 private:
  static constexpr std::uint32_t none = 0xffffffffU;
  // Kept at the first granule of each run; `length` and `is_free` also at the last, so that a neighbour is
  // found from either side.
  struct Run {
    std::uint32_t length = 0;
    bool is_free = false;
    std::uint32_t next = none, previous = none;  // of the free list
  };

  void mark(std::uint32_t first, std::uint32_t length, bool is_free);
  void link(std::uint32_t first);
  void unlink(std::uint32_t first);

  Arena arena_;
  mutable std::mutex mutex_;
  std::vector<Run> runs_;  // by granule
  std::uint32_t free_head_ = none;
  std::uint64_t free_granules_ = 0;
};

}  // namespace carillon::worker
