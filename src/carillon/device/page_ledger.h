#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace carillon::device {

// Which pages of a device's page cache are free (Clockwork, section 5.2). Not thread-safe; allocates only
// when made.
//
// Pages fall into groups of neighbours: group i has pages i * group to (i + 1) * group - 1. Whoever takes a
// group's worth of pages gets whole groups while there are some, and the rest from groups that others have
// begun, so that whole groups last. With a group of 1 it is a stack.
class PageLedger {
 public:
  // `group`: 1 to 64.
  explicit PageLedger(std::uint64_t pages, std::uint32_t group = 1);

  std::uint64_t total() const { return total_; }
  std::uint64_t free() const { return free_; }

  // Fills `pages` with free ones; false where there are fewer, and then takes none.
  bool take(std::span<std::uint32_t> pages);
  // Requires pages that take() gave and that were not given back since.
  void give_back(std::span<const std::uint32_t> pages);

 private:
  static constexpr std::uint32_t none = UINT32_MAX;

  std::uint64_t whole(std::uint32_t group) const;  // the bits of its pages
  std::span<std::uint32_t> take_from(std::uint32_t group, std::span<std::uint32_t> pages);
  void begin(std::uint32_t group);
  void leave(std::uint32_t group);

  std::uint64_t total_;
  std::uint32_t group_;
  std::uint64_t free_;
  std::vector<std::uint64_t> pages_;     // by group: a bit for each that is free
  std::vector<std::uint32_t> whole_;     // groups of which all pages are free: a stack
  std::vector<std::uint32_t> begun_;     // groups of which some are, in any order
  std::vector<std::uint32_t> begun_at_;  // by group: where it is in these
};

}  // namespace carillon::device
