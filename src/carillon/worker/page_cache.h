#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/worker/memory.h"

namespace carillon::worker {

// Physical memory for weights in pages of 16 MiB, taken once (Clockwork, section 5.2: PageCache), and for
// each model a range of addresses of its own. map() puts free pages, in any order, behind the whole range, so
// a tensor may span pages and a model's weights are at the same address whenever they are there. The number
// of free pages says all about whether a model fits.
//
// A page is moved with mremap: the kernel hands its page tables over whole, 2 MiB an entry, which takes
// microseconds however large the pages behind it are. (Mapping pieces of a shared memory file instead fills
// and clears every 4 KiB entry: as long as a third of the copy itself, at LOAD and again at UNLOAD.)
//
// map() and unmap() belong to one thread at a time; the counts may be read by any. Nothing is allocated but
// in make() and reserve(). Ranges must not be used after their cache is gone. Needs Linux 5.7.
class PageCache {
 public:
  // Addresses for one model; while nothing is mapped, any access is a fault.
  class Range {
   public:
    Range() = default;
    Range(Range&& other) noexcept { swap(other); }
    Range& operator=(Range&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Range();

    std::byte* data() const { return data_; }  // aligned to 2 MiB; nullptr where pages() is 0
    std::uint64_t pages() const { return pages_; }
    bool mapped() const { return mapped_; }

   private:
    friend class PageCache;
    void swap(Range& other) noexcept {
      std::swap(data_, other.data_);
      std::swap(pages_, other.pages_);
      std::swap(held_, other.held_);
      std::swap(mapped_, other.mapped_);
    }
    std::byte* data_ = nullptr;
    std::uint64_t pages_ = 0;
    std::vector<std::uint32_t> held_;  // while mapped: the physical page behind each page of the range
    bool mapped_ = false;
  };

  // Takes and touches `pages` (>= 1) pages: huge ones where the system has them, else a note says what was
  // had. Error: the system does not give the memory. Not `populated`: they are not touched, so take none yet.
  static Result<std::unique_ptr<PageCache>> make(std::uint64_t pages, std::vector<std::string>& notes,
                                                 bool populated = true);
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  // Addresses for `weights` bytes; takes no memory. Safe from any thread. Error: no address space.
  Result<Range> reserve(Bytes weights) const;

  enum class Outcome : std::uint8_t {
    mapped,
    no_pages,  // fewer are free than the range has; nothing was taken
    refused    // the kernel refused (errno says why); nothing was taken
  };
  // Requires an unmapped range. No access to it faults from here on. The pages hold what their last user
  // left.
  Outcome map(Range& range);
  // Requires a mapped range. Any access to it is a fault from here on.
  void unmap(Range& range);

  std::uint64_t total_pages() const { return total_; }
  std::uint64_t free_pages() const { return free_count_.load(std::memory_order_relaxed); }

 private:
  PageCache(Arena home, std::uint64_t pages);
  std::byte* home(std::uint32_t page) const;
  void give_back(Range& range);

  Arena home_;  // where each page is while it is free; a page that is elsewhere leaves a hole nobody touches
  std::uint64_t total_;
  std::vector<std::uint32_t> free_;  // a stack
  std::atomic<std::uint64_t> free_count_;
};

}  // namespace carillon::worker
