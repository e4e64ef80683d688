#include "carillon/worker/page_cache.h"

#include <cerrno>
#include <fstream>

#include <sys/mman.h>

#include "carillon/base/assert.h"
#include "carillon/worker/worker.h"

namespace carillon::worker {
namespace {

static_assert(page_size.count % huge_page == 0);

// Puts the page at `from` behind the addresses at `to`, whatever was there. The addresses at `from` stay
// taken, with nothing behind them: no other thread's mapping can slip in.
bool move_page(std::byte* from, std::byte* to) {
  return mremap(from, page_size.count, page_size.count, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
                to) != MAP_FAILED;
}

}  // namespace

PageCache::PageCache(Arena home, std::uint64_t pages)
    : home_(std::move(home)), total_(pages), free_count_(pages) {
  free_.reserve(pages);
  for (std::uint64_t page = pages; page > 0; --page) free_.push_back(static_cast<std::uint32_t>(page - 1));
}

std::byte* PageCache::home(std::uint32_t page) const {
  return home_.data() + page * page_size.count;
}

Result<std::unique_ptr<PageCache>> PageCache::make(std::uint64_t pages, std::vector<std::string>& notes,
                                                   bool populated) {
  CARILLON_ASSERT(pages >= 1 && pages < (1ULL << 32));
  // A page away from home is a mapping, and splits two others. With room for all of them at once, and for the
  // rest of the process, unmap() cannot fail.
  const std::uint64_t mappings = 3 * pages + 16384;
  std::uint64_t allowed = mappings;
  std::ifstream("/proc/sys/vm/max_map_count") >> allowed;
  if (allowed < mappings)
    return fail(ErrorCode::resource_exhausted, "page cache: " + std::to_string(pages) +
                                                   " pages of 16 MiB need vm.max_map_count to be at least " +
                                                   std::to_string(mappings) + ", and it is " +
                                                   std::to_string(allowed));
  auto home = Arena::take(page_size * pages, "page cache", notes, populated);
  if (!home) return std::unexpected(home.error());
  return std::unique_ptr<PageCache>(new PageCache(std::move(*home), pages));
}

PageCache::Range::~Range() {
  if (data_ != nullptr) munmap(data_, pages_ * page_size.count);
}

Result<PageCache::Range> PageCache::reserve(Bytes weights) const {
  Range range;
  const std::uint64_t pages = Worker::pages_for(weights);
  if (pages == 0) return range;
  const auto data = map_aligned(pages * page_size.count, PROT_NONE);
  if (!data) return std::unexpected(data.error());
  range.data_ = *data;
  range.pages_ = pages;
  range.held_.reserve(pages);
  return range;
}

PageCache::Outcome PageCache::map(Range& range) {
  CARILLON_ASSERT(!range.mapped_);
  if (range.pages_ > free_.size()) return Outcome::no_pages;
  for (std::uint64_t i = 0; i < range.pages_; ++i) {
    if (!move_page(home(free_.back()), range.data_ + i * page_size.count)) {
      const int why = errno;
      give_back(range);
      errno = why;
      return Outcome::refused;
    }
    range.held_.push_back(free_.back());
    free_.pop_back();
  }
  range.mapped_ = true;
  free_count_.store(free_.size(), std::memory_order_relaxed);
  return Outcome::mapped;
}

void PageCache::unmap(Range& range) {
  CARILLON_ASSERT(range.mapped_);
  give_back(range);
  range.mapped_ = false;
  free_count_.store(free_.size(), std::memory_order_relaxed);
}

void PageCache::give_back(Range& range) {
  // Last first, so that the next map() takes them in the order of their addresses again.
  while (!range.held_.empty()) {
    const std::uint32_t page = range.held_.back();
    range.held_.pop_back();
    CARILLON_ASSERT(move_page(range.data_ + range.held_.size() * page_size.count, home(page)));
    free_.push_back(page);
  }
  if (range.pages_ == 0) return;
  // What is left would quietly give zeros to a stale reader: make it fault.
  CARILLON_ASSERT(mmap(range.data_, range.pages_ * page_size.count, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
}

}  // namespace carillon::worker
