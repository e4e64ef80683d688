#pragma once

#include <cstdint>
#include <vector>

#include "carillon/base/bytes.h"

namespace carillon::device {

// Who has which part of a block of memory that was taken once: the I/O cache (Clockwork, section 5.2), and
// the workspaces of runs. Cut into whole granules; a piece is contiguous. Best fit over the free runs, which
// are merged as they are released, so the cost is bounded by the number of pieces in use. It knows offsets
// only. Not thread-safe; allocates only when made.
class RangeLedger {
 public:
  static constexpr std::uint64_t granule = 4096;

  struct Piece {
    std::uint32_t first = 0;  // granules
    std::uint32_t count = 0;  // 0: there was no room
    bool there() const { return count > 0; }
    std::uint64_t offset() const { return granule * first; }  // bytes
  };

  // Of the first whole granules of `size` bytes; none at all is allowed.
  explicit RangeLedger(Bytes size);

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

  std::vector<Run> runs_;  // by granule
  std::uint32_t free_head_ = none;
  std::uint64_t free_granules_ = 0;
};

}  // namespace carillon::device
