#include "carillon/base/index_table.h"

#include <bit>
#include <utility>

namespace carillon {

IndexTable::IndexTable(std::size_t expected)
    : entries_(std::bit_ceil(expected < 8 ? 16 : 2 * expected)),
      shift_(std::countl_zero(entries_.size()) + 1) {}

void IndexTable::grow() {
  const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(entries_.size() * 2));
  --shift_;
  for (const Entry& entry : old)
    if (entry.index != empty_) entries_[position(entry.key)] = entry;
}

}  // namespace carillon
