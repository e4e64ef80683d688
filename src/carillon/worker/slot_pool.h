#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "carillon/base/assert.h"

namespace carillon::worker {

// Room for a fixed number of actions; queues hold indices into it. Taking and giving back is O(1), allocates
// nothing and may be done by any thread. A slot's content belongs to whoever took it.
template <typename T>
class SlotPool {
 public:
  static constexpr std::uint32_t none = 0xffffffffU;

  explicit SlotPool(std::size_t size) : slots_(std::make_unique<T[]>(size)) {
    free_.reserve(size);
    for (std::size_t slot = size; slot > 0; --slot) free_.push_back(static_cast<std::uint32_t>(slot - 1));
  }

  std::uint32_t take() {  // none where all are taken
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return none;
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(std::uint32_t slot) {
    const std::lock_guard lock(mutex_);
    CARILLON_ASSERT(free_.size() < free_.capacity());
    free_.push_back(slot);
  }
  T& operator[](std::uint32_t slot) { return slots_[slot]; }

 private:
  std::unique_ptr<T[]> slots_;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
};

}  // namespace carillon::worker
