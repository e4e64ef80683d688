#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "carillon/base/assert.h"

namespace carillon::device {

// Which pages of a device's page cache are free (Clockwork, section 5.2: a stack). Not thread-safe; allocates
// only when made.
class PageLedger {
 public:
  explicit PageLedger(std::uint64_t pages) : total_(pages) {
    free_.reserve(pages);
    for (std::uint64_t page = pages; page > 0; --page) free_.push_back(static_cast<std::uint32_t>(page - 1));
  }

  std::uint64_t total() const { return total_; }
  std::uint64_t free() const { return free_.size(); }

  // Fills `pages` with free ones; false where there are fewer, and then takes none.
  bool take(std::span<std::uint32_t> pages) {
    if (pages.size() > free_.size()) return false;
    for (std::uint32_t& page : pages) {
      page = free_.back();
      free_.pop_back();
    }
    return true;
  }
  // Requires pages that take() gave and that were not given back since.
  void give_back(std::span<const std::uint32_t> pages) {
    CARILLON_ASSERT(free_.size() + pages.size() <= total_);
    for (std::size_t i = pages.size(); i > 0; --i) free_.push_back(pages[i - 1]);
  }

 private:
  std::uint64_t total_;
  std::vector<std::uint32_t> free_;
};

}  // namespace carillon::device
