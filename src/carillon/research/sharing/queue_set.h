#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "carillon/research/sharing/sharing.h"

namespace carillon::research {

// Some of at most 1,024 queues; visited in their order, at a cost that goes by how many there are, not by how
// many there could be.
class QueueSet {
 public:
  void set(Queue queue, bool in) {
    std::uint64_t& word = words_[queue / 64U];
    const std::uint64_t bit = 1ULL << (queue % 64U);
    if (((word & bit) != 0) == in) return;
    word ^= bit;
    size_ += in ? 1 : -1;
  }
  bool has(Queue queue) const { return (words_[queue / 64U] >> (queue % 64U) & 1U) != 0; }
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Calls `visit` with each from `first` on, then with those before it, until it returns false. `visit` may
  // take out the one that it is called with.
  template <typename Visit>
  void each_from(Queue first, Visit&& visit) const {
    if (empty()) return;
    const std::size_t start = first / 64U;
    const std::uint64_t from_first = ~0ULL << (first % 64U);
    for (std::size_t i = 0; i <= words_.size(); ++i) {
      const std::size_t word = (start + i) % words_.size();
      std::uint64_t bits = words_[word];
      if (i == 0) bits &= from_first;
      if (i == words_.size()) bits &= ~from_first;
      for (; bits != 0; bits &= bits - 1)
        if (!visit(static_cast<Queue>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits))))) return;
    }
  }
  template <typename Visit>
  void each(Visit&& visit) const {
    each_from(0, [&](Queue queue) {
      visit(queue);
      return true;
    });
  }

 private:
  std::array<std::uint64_t, 16> words_{};
  int size_ = 0;
};

}  // namespace carillon::research
