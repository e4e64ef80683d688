#include "carillon/device/range_ledger.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::device {

RangeLedger::RangeLedger(Bytes size) : runs_(size.count / granule) {
  CARILLON_ASSERT(runs_.size() < none);
  if (runs_.empty()) return;
  const auto all = static_cast<std::uint32_t>(runs_.size());
  mark(0, all, true);
  link(0);
  free_granules_ = all;
}

void RangeLedger::mark(std::uint32_t first, std::uint32_t length, bool is_free) {
  for (Run* run : {&runs_[first], &runs_[first + length - 1]}) {
    run->length = length;
    run->is_free = is_free;
  }
}

void RangeLedger::link(std::uint32_t first) {
  runs_[first].previous = none;
  runs_[first].next = free_head_;
  if (free_head_ != none) runs_[free_head_].previous = first;
  free_head_ = first;
}

void RangeLedger::unlink(std::uint32_t first) {
  const Run& run = runs_[first];
  (run.previous == none ? free_head_ : runs_[run.previous].next) = run.next;
  if (run.next != none) runs_[run.next].previous = run.previous;
}

RangeLedger::Piece RangeLedger::allocate(std::uint64_t bytes) {
  if (bytes > capacity().count) return {};
  const auto count = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (bytes + granule - 1) / granule));
  std::uint32_t best = none;
  for (std::uint32_t at = free_head_; at != none; at = runs_[at].next) {
    const std::uint32_t length = runs_[at].length;
    if (length < count || (best != none && length >= runs_[best].length)) continue;
    best = at;
    if (length == count) break;
  }
  if (best == none) return {};
  const std::uint32_t left = runs_[best].length - count;
  unlink(best);
  mark(best, count, false);
  if (left > 0) {
    mark(best + count, left, true);
    link(best + count);
  }
  free_granules_ -= count;
  return {best, count};
}

void RangeLedger::release(const Piece& piece) {
  std::uint32_t first = piece.first;
  std::uint32_t length = piece.count;
  CARILLON_ASSERT(first < runs_.size() && length > 0 && length <= runs_.size() - first);
  CARILLON_ASSERT(!runs_[first].is_free && runs_[first].length == length);
  free_granules_ += length;
  if (const std::uint32_t after = first + length; after < runs_.size() && runs_[after].is_free) {
    unlink(after);
    length += runs_[after].length;
  }
  if (first > 0 && runs_[first - 1].is_free) {
    const std::uint32_t before = first - runs_[first - 1].length;
    unlink(before);
    // The old border is now inside a run: it must no longer pass for the start of a piece in use.
    runs_[first].is_free = true;
    length += first - before;
    first = before;
  }
  mark(first, length, true);
  link(first);
}

Bytes RangeLedger::free() const {
  return {free_granules_ * granule};
}

}  // namespace carillon::device
