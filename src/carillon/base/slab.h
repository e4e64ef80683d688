#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "carillon/base/assert.h"

namespace carillon {

// Objects that are used again and again, named by a small index: once as many exist as are ever open at the
// same time, taking and giving back allocates nothing. An object keeps its state (and the memory of its
// vectors) between uses; whoever takes one resets it. References are good until the next take(). Not
// thread-safe.
template <typename T>
class Slab {
 public:
  void reserve(std::size_t count) {
    items_.reserve(count);
    free_.reserve(count);
  }

  std::uint32_t take() {
    ++used_;
    if (!free_.empty()) {
      const std::uint32_t index = free_.back();
      free_.pop_back();
      return index;
    }
    items_.emplace_back();
    if (free_.capacity() < items_.capacity()) free_.reserve(items_.capacity());
    return static_cast<std::uint32_t>(items_.size() - 1);
  }
  // `index` is one that take() gave and that was not given back since.
  void give_back(std::uint32_t index) {
    CARILLON_ASSERT(used_ > 0 && index < items_.size());
    --used_;
    free_.push_back(index);
  }

  T& operator[](std::uint32_t index) { return items_[index]; }
  const T& operator[](std::uint32_t index) const { return items_[index]; }
  std::size_t used() const { return used_; }
  // Every index below it may have been taken at some time.
  std::size_t size() const { return items_.size(); }

 private:
  std::vector<T> items_;
  std::vector<std::uint32_t> free_;
  std::size_t used_ = 0;
};

}  // namespace carillon
