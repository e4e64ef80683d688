#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace carillon::schedule::parts {

// A set of small numbers. A search passes over 64 empty words, of 64 numbers each, at a time: over 4,096
// numbers it costs O(1). Not thread-safe.
class Bits {
 public:
  bool test(std::size_t i) const { return i / 64 < words_.size() && (words_[i / 64] & mask(i % 64)) != 0; }
  // True: it was not there.
  bool set(std::size_t i) {
    if (test(i)) return false;
    if (i / 64 >= words_.size()) {
      words_.resize(i / 64 + 1);
      filled_.resize(i / 64 / 64 + 1);
    }
    words_[i / 64] |= mask(i % 64);
    filled_[i / 64 / 64] |= mask(i / 64 % 64);
    ++size_;
    return true;
  }
  // True: it was there.
  bool clear(std::size_t i) {
    if (!test(i)) return false;
    words_[i / 64] &= ~mask(i % 64);
    if (words_[i / 64] == 0) filled_[i / 64 / 64] &= ~mask(i / 64 % 64);
    --size_;
    return true;
  }
  std::size_t size() const { return size_; }
  // All below `end`, and no others.
  void fill(std::size_t end) {
    words_.assign((end + 63) / 64, ~std::uint64_t{0});
    if (end % 64 != 0) words_.back() = mask(end % 64) - 1;
    filled_.assign((words_.size() + 63) / 64, ~std::uint64_t{0});
    if (words_.size() % 64 != 0) filled_.back() = mask(words_.size() % 64) - 1;
    size_ = end;
  }
  // Calls see(i), ascending, for each that is in `also`, too, where that is given; until it returns true. It
  // may take out what it sees. True: it was stopped.
  template <typename See>
  bool visit(const Bits* also, See&& see) const {
    for (std::size_t f = 0; f < filled_.size(); ++f) {
      std::uint64_t filled = filled_[f];
      if (also != nullptr) filled &= f < also->filled_.size() ? also->filled_[f] : 0;
      for (; filled != 0; filled &= filled - 1) {
        const std::size_t w = f * 64 + static_cast<std::size_t>(std::countr_zero(filled));
        std::uint64_t word = also != nullptr ? words_[w] & also->words_[w] : words_[w];
        for (; word != 0; word &= word - 1)
          if (see(w * 64 + static_cast<std::size_t>(std::countr_zero(word)))) return true;
      }
    }
    return false;
  }

 private:
  static constexpr std::uint64_t mask(std::size_t bit) { return std::uint64_t{1} << bit; }
  std::vector<std::uint64_t> words_, filled_;  // filled_: words that are not zero
  std::size_t size_ = 0;
};

}  // namespace carillon::schedule::parts
