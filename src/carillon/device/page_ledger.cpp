#include "carillon/device/page_ledger.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::device {

PageLedger::PageLedger(std::uint64_t pages, std::uint32_t group)
    : total_(pages), group_(group), free_(pages) {
  CARILLON_ASSERT(group >= 1 && group <= 64 && pages <= UINT32_MAX);
  const std::uint64_t groups = (pages + group - 1) / group;
  pages_.resize(groups);
  begun_at_.assign(groups, none);
  whole_.reserve(groups);
  begun_.reserve(groups);
  for (std::uint64_t i = groups; i > 0; --i) {
    const auto at = static_cast<std::uint32_t>(i - 1);
    pages_[at] = whole(at);
    whole_.push_back(at);
  }
}

std::uint64_t PageLedger::whole(std::uint32_t group) const {
  const std::uint64_t count = std::min<std::uint64_t>(group_, total_ - std::uint64_t{group} * group_);
  return count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// What is left of `pages`.
std::span<std::uint32_t> PageLedger::take_from(std::uint32_t group, std::span<std::uint32_t> pages) {
  std::uint64_t& free = pages_[group];
  while (free != 0 && !pages.empty()) {
    pages.front() = group * group_ + static_cast<std::uint32_t>(std::countr_zero(free));
    pages = pages.subspan(1);
    free &= free - 1;
  }
  return pages;
}

void PageLedger::begin(std::uint32_t group) {
  begun_at_[group] = static_cast<std::uint32_t>(begun_.size());
  begun_.push_back(group);
}

void PageLedger::leave(std::uint32_t group) {
  const std::uint32_t at = std::exchange(begun_at_[group], none);
  begun_[at] = begun_.back();
  begun_at_[begun_[at]] = at;
  begun_.pop_back();
  begun_at_[group] = none;  // where it was the last itself
}

bool PageLedger::take(std::span<std::uint32_t> pages) {
  if (pages.size() > free_) return false;
  free_ -= pages.size();
  while (!pages.empty()) {
    const bool from_whole = !whole_.empty() && (pages.size() >= group_ || begun_.empty());
    const std::uint32_t group = from_whole ? whole_.back() : begun_.back();
    if (from_whole) whole_.pop_back();
    pages = take_from(group, pages);
    if (from_whole && pages_[group] != 0) begin(group);
    if (!from_whole && pages_[group] == 0) leave(group);
  }
  return true;
}

void PageLedger::give_back(std::span<const std::uint32_t> pages) {
  CARILLON_ASSERT(free_ + pages.size() <= total_);
  free_ += pages.size();
  // The last first: with a group of 1 the first is the next to be taken.
  for (std::size_t i = pages.size(); i > 0; --i) {
    const std::uint32_t page = pages[i - 1], group = page / group_;
    const std::uint64_t bit = std::uint64_t{1} << page % group_;
    CARILLON_ASSERT(page < total_ && (pages_[group] & bit) == 0);
    pages_[group] |= bit;
    if (pages_[group] == whole(group)) {
      if (begun_at_[group] != none) leave(group);
      whole_.push_back(group);
    } else if (begun_at_[group] == none) {
      begin(group);
    }
  }
}

}  // namespace carillon::device
