#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace carillon {

// From ids that are never used twice to slab indices: open addressing with linear probing in one block, which
// is taken at the start and doubles only when it is more than half full. Not thread-safe.
class IndexTable {
 public:
  // Room for `expected` entries without growing.
  explicit IndexTable(std::size_t expected = 64);

  void insert(std::uint64_t key, std::uint32_t index);  // requires a key that is not there, index < 2^32 - 1
  bool try_insert(std::uint64_t key, std::uint32_t index);  // false, and no change, where the key is there
  std::optional<std::uint32_t> find(std::uint64_t key) const;
  bool erase(std::uint64_t key) { return erase_at(position(key)); }  // whether it was there
  // The same where it leads to that index.
  bool erase(std::uint64_t key, std::uint32_t index) {
    const std::size_t at = position(key);
    return entries_[at].index == index && erase_at(at);
  }
  std::size_t size() const { return size_; }

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::uint32_t index = empty_;
  };
  static constexpr std::uint32_t empty_ = 0xffffffffU;

  std::size_t home(std::uint64_t key) const;
  std::size_t position(std::uint64_t key) const;  // of the key, or of the hole where it would go
  bool erase_at(std::size_t hole);
  void grow();

  std::vector<Entry> entries_;
  std::size_t size_ = 0;
};

}  // namespace carillon
