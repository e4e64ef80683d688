#include "carillon/base/index_table.h"

#include <bit>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon {

IndexTable::IndexTable(std::size_t expected) : entries_(std::bit_ceil(expected < 8 ? 16 : 2 * expected)) {}

std::size_t IndexTable::home(std::uint64_t key) const {
  // Ids come in sequence: their low bits alone spread them perfectly.
  return static_cast<std::size_t>(key) & (entries_.size() - 1);
}

std::size_t IndexTable::position(std::uint64_t key) const {
  std::size_t at = home(key);
  while (entries_[at].index != empty_ && entries_[at].key != key) at = (at + 1) & (entries_.size() - 1);
  return at;
}

void IndexTable::insert(std::uint64_t key, std::uint32_t index) {
  const bool inserted = try_insert(key, index);
  CARILLON_ASSERT(inserted);
}

bool IndexTable::try_insert(std::uint64_t key, std::uint32_t index) {
  CARILLON_ASSERT(index != empty_);
  if (2 * (size_ + 1) > entries_.size()) grow();
  Entry& entry = entries_[position(key)];
  if (entry.index != empty_) return false;
  entry = {key, index};
  ++size_;
  return true;
}

std::optional<std::uint32_t> IndexTable::find(std::uint64_t key) const {
  const Entry& entry = entries_[position(key)];
  if (entry.index == empty_) return std::nullopt;
  return entry.index;
}

bool IndexTable::erase_at(std::size_t hole) {
  if (entries_[hole].index == empty_) return false;
  // Close the hole: move back every later entry of the run whose home does not lie after the hole.
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
  return true;
}

void IndexTable::grow() {
  const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(entries_.size() * 2));
  for (const Entry& entry : old)
    if (entry.index != empty_) entries_[position(entry.key)] = entry;
}

}  // namespace carillon
