#include "carillon/worker/page_cache.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "carillon/base/assert.h"
#include "carillon/worker/memory.h"
#include "carillon/worker/worker.h"

namespace carillon::worker {
namespace {

constexpr std::uint64_t huge_page = 2ULL << 20;

// An address range that faults on any access and takes no memory.
void* reserve_at(void* address, std::uint64_t size) {
  const int fixed = address == nullptr ? 0 : MAP_FIXED;
  return mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

// 2 MiB pages that the administrator has set aside and nobody uses.
std::uint64_t free_reserved_huge_pages() {
  std::ifstream in("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  std::uint64_t count = 0;
  in >> count;
  return count;
}

// Gives `file` its size and touches every byte once. `huge`: ask for transparent huge pages.
Result<> fill(int file, Bytes size, bool huge) {
  const std::string what = "page cache";
  // Small pages are taken before they are touched, so that want of memory is an error and not a signal even
  // where populate() has to touch. Huge ones come only with a touch through a mapping that asks for them.
  if (ftruncate(file, static_cast<off_t>(size.count)) != 0 ||
      (!huge && fallocate(file, 0, 0, static_cast<off_t>(size.count)) != 0))
    return fail(ErrorCode::resource_exhausted,
                what + ": cannot take " + to_text(size) + ": " + std::strerror(errno));
  void* all = mmap(nullptr, size.count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (all == MAP_FAILED)
    return fail(ErrorCode::resource_exhausted,
                what + ": cannot map " + to_text(size) + ": " + std::strerror(errno));
  if (huge) madvise(all, size.count, MADV_HUGEPAGE);
  auto done = populate(static_cast<std::byte*>(all), size, what);
  munmap(all, size.count);
  return done;
}

}  // namespace

PageCache::PageCache(int file, std::uint64_t pages) : file_(file), total_(pages), free_count_(pages) {
  free_.reserve(pages);
  for (std::uint64_t page = pages; page > 0; --page) free_.push_back(static_cast<std::uint32_t>(page - 1));
}

PageCache::~PageCache() {
  close(file_);
}

Result<std::unique_ptr<PageCache>> PageCache::make(std::uint64_t pages, std::vector<std::string>& notes) {
  CARILLON_ASSERT(pages >= 1 && pages < (1ULL << 32));
  const Bytes size = page_size * pages;

  if (free_reserved_huge_pages() * huge_page >= size.count) {
    const int file = memfd_create("carillon-weights", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
    if (file >= 0) {
      if (fill(file, size, false)) return std::unique_ptr<PageCache>(new PageCache(file, pages));
      close(file);  // somebody else was faster
    }
  }

  const int file = memfd_create("carillon-weights", MFD_CLOEXEC);
  if (file < 0)
    return fail(ErrorCode::resource_exhausted,
                std::string("page cache: memfd_create: ") + std::strerror(errno));
  const std::string mode = selected("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const bool huge = mode == "advise" || mode == "always" || mode == "within_size" || mode == "force";
  if (!huge)
    notes.push_back(
        "page cache: no huge pages (none of 2 MiB reserved, and transparent_hugepage/shmem_enabled is \"" +
        mode + "\", not \"advise\"); small pages are used, which makes LOAD slower");
  if (auto done = fill(file, size, huge); !done) {
    close(file);
    return std::unexpected(done.error());
  }
  return std::unique_ptr<PageCache>(new PageCache(file, pages));
}

PageCache::Range::~Range() {
  if (data_ != nullptr) munmap(data_, pages_ * page_size.count);
}

Result<PageCache::Range> PageCache::reserve(Bytes weights) const {
  Range range;
  range.pages_ = Worker::pages_for(weights);
  if (range.pages_ == 0) return range;
  range.held_.reserve(range.pages_);
  // A huge page needs an address that is a multiple of its size: reserve more and give the ends back.
  const std::uint64_t size = range.pages_ * page_size.count;
  void* start = reserve_at(nullptr, size + huge_page);
  if (start == MAP_FAILED) {
    range.pages_ = 0;
    return fail(ErrorCode::resource_exhausted,
                "cannot reserve " + to_text(Bytes{size}) + " of addresses: " + std::strerror(errno));
  }
  auto* first = static_cast<std::byte*>(start);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(start);
  const std::uint64_t before = round_up(address, huge_page) - address;
  if (before > 0) munmap(first, before);
  range.data_ = first + before;
  munmap(range.data_ + size, huge_page - before);
  return range;
}

PageCache::Outcome PageCache::map(Range& range) {
  CARILLON_ASSERT(!range.mapped_);
  if (range.pages_ > free_.size()) return Outcome::no_pages;
  for (std::uint64_t i = 0; i < range.pages_; ++i) {
    range.held_.push_back(free_.back());
    free_.pop_back();
  }
  // Neighbours in the file become one mapping: fewer calls, and fewer of the kernel's limited areas.
  for (std::uint64_t i = 0; i < range.pages_;) {
    std::uint64_t run = 1;
    while (i + run < range.pages_ && range.held_[i + run] == range.held_[i] + run) ++run;
    void* at = mmap(range.data_ + i * page_size.count, run * page_size.count, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_POPULATE, file_,
                    static_cast<off_t>(range.held_[i] * page_size.count));
    if (at == MAP_FAILED) {
      const int why = errno;
      give_back(range);
      errno = why;
      return Outcome::refused;
    }
    i += run;
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
  // Cannot fail for want of areas: it makes one of what were one or more.
  if (range.pages_ > 0)
    CARILLON_ASSERT(reserve_at(range.data_, range.pages_ * page_size.count) != MAP_FAILED);
  // Last first, so that the next map() finds neighbours in order again.
  while (!range.held_.empty()) {
    free_.push_back(range.held_.back());
    range.held_.pop_back();
  }
}

}  // namespace carillon::worker
