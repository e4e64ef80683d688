#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>

#include "carillon/base/assert.h"

namespace carillon::frontend {

// A queue of a fixed size that many threads fill and one empties, without a lock or a wait: where it is full,
// what comes is not taken. Each cell counts the turns in which it was filled and emptied (D. Vyukov's bounded
// queue). T is copied.
template <typename T>
class BoundedRing {
 public:
  // At least `room` fit in.
  explicit BoundedRing(std::size_t room) : mask_(std::bit_ceil(room) - 1), cells_(new Cell[mask_ + 1]) {
    CARILLON_ASSERT(room >= 2);
    for (std::size_t i = 0; i <= mask_; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  // Any thread. False: it is full.
  bool push(const T& value) {
    std::size_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at & mask_];
      const std::size_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == at) {
        if (!tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
        cell.value = value;
        cell.turn.store(at + 1, std::memory_order_release);
        return true;
      }
      if (turn < at) return false;  // not yet emptied since the last time round
      at = tail_.load(std::memory_order_relaxed);
    }
  }

  // One thread's. Null: there is none. It stays until pop().
  const T* front() const {
    const Cell& cell = cells_[head_ & mask_];
    return cell.turn.load(std::memory_order_acquire) == head_ + 1 ? &cell.value : nullptr;
  }
  void pop() {
    cells_[head_ & mask_].turn.store(head_ + mask_ + 1, std::memory_order_release);
    ++head_;
  }

 private:
  struct Cell {
    std::atomic<std::size_t> turn{0};
    T value{};
  };
  const std::size_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<std::size_t> tail_{0};
  alignas(64) std::size_t head_ = 0;  // the reader's
};

}  // namespace carillon::frontend
