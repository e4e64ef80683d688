#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/base/assert.h"

namespace carillon {

// From ids that are never used twice to slab indices: open addressing with linear probing in one block, which
// is taken at the start and doubles only when it is more than half full. Not thread-safe.
class IndexTable {
 public:
  // Room for `expected` entries without growing.
  explicit IndexTable(std::size_t expected = 64);

  void insert(std::uint64_t key, std::uint32_t index) {  // requires a key that is not there, index < 2^32 - 1
    const bool inserted = try_insert(key, index);
    CARILLON_ASSERT(inserted);
  }
  bool try_insert(std::uint64_t key, std::uint32_t index) {  // false, and no change, where the key is there
    CARILLON_ASSERT(index != empty_);
    if (2 * (size_ + 1) > entries_.size()) grow();
    Entry& entry = entries_[position(key)];
    if (entry.index != empty_) return false;
    entry = {key, index};
    ++size_;
    return true;
  }
  std::optional<std::uint32_t> find(std::uint64_t key) const {
    const Entry& entry = entries_[position(key)];
    if (entry.index == empty_) return std::nullopt;
    return entry.index;
  }
  bool erase(std::uint64_t key) { return take(key).has_value(); }  // whether it was there
  // The same where it leads to that index.
  bool erase(std::uint64_t key, std::uint32_t index) {
    const std::size_t at = position(key);
    if (entries_[at].index != index || index == empty_) return false;
    close(at);
    return true;
  }
  // Erases it, and returns where it led.
  std::optional<std::uint32_t> take(std::uint64_t key) {
    const std::size_t at = position(key);
    const std::uint32_t index = entries_[at].index;
    if (index == empty_) return std::nullopt;
    close(at);
    return index;
  }
  std::size_t size() const { return size_; }

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::uint32_t index = empty_;
  };
  static constexpr std::uint32_t empty_ = 0xffffffffU;

  // Ids come in sequence. By their low bits alone all would stand in one run, and closing a hole passes all
  // of the run behind it.
  std::size_t home(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> shift_);
  }
  std::size_t position(std::uint64_t key) const {  // of the key, or of the hole where it would go
    std::size_t at = home(key);
    while (entries_[at].index != empty_ && entries_[at].key != key) at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  // Moves back every later entry of the run whose home does not lie after the hole.
  void close(std::size_t hole) {
    const std::size_t mask = entries_.size() - 1;
    for (std::size_t at = (hole + 1) & mask; entries_[at].index != empty_; at = (at + 1) & mask) {
      const std::size_t distance_home = (at - home(entries_[at].key)) & mask;
      const std::size_t distance_hole = (at - hole) & mask;
      if (distance_home < distance_hole) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole].index = empty_;
    --size_;
  }
  void grow();

  std::vector<Entry> entries_;
  int shift_;  // leaves as many bits as index `entries_`
  std::size_t size_ = 0;
};

}  // namespace carillon
