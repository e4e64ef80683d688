#include "carillon/engine/host/host_memory.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <sys/mman.h>

#include "carillon/base/assert.h"

namespace carillon::engine {
namespace {

constexpr Bytes smallest_page = kib(64);

}  // namespace

Result<std::unique_ptr<HostMemory>> HostMemory::make(const Sizes& sizes, std::vector<std::string>& notes) {
  CARILLON_ASSERT(sizes.pages >= 1 && sizes.pages < (1ULL << 32));
  CARILLON_ASSERT(std::has_single_bit(sizes.page.count) && sizes.page >= smallest_page);
  // A page away from home is a mapping, and splits two others. With room for all of them at once, and for the
  // rest of the process, unmap() cannot fail.
  const std::uint64_t mappings = 3 * sizes.pages + 16384;
  std::uint64_t allowed = mappings;
  std::ifstream("/proc/sys/vm/max_map_count") >> allowed;
  if (allowed < mappings)
    return fail(ErrorCode::resource_exhausted,
                "page cache: " + std::to_string(sizes.pages) + " pages of " + to_text(sizes.page) +
                    " need vm.max_map_count to be at least " + std::to_string(mappings) + ", and it is " +
                    std::to_string(allowed));
  const Arena::Taken taken = sizes.used ? Arena::Taken::as_used : Arena::Taken::addresses;
  auto home = Arena::take(sizes.page * sizes.pages, "page cache", notes, taken);
  if (!home) return std::unexpected(home.error());
  auto io = Arena::take(sizes.io, "I/O cache", notes, taken);
  if (!io) return std::unexpected(io.error());
  auto workspace = Arena::take(sizes.workspace, "workspace", notes, taken);
  if (!workspace) return std::unexpected(workspace.error());
  Arena spare;
  if (sizes.spare_workspace > Bytes{}) {
    auto more = Arena::take(sizes.spare_workspace, "workspace", notes, Arena::Taken::addresses);
    if (!more) return std::unexpected(more.error());
    spare = std::move(*more);
  }
  return std::unique_ptr<HostMemory>(new HostMemory(std::move(*home), sizes.pages, sizes.page, std::move(*io),
                                                    std::move(*workspace), std::move(spare)));
}

Result<WeightRange> HostMemory::reserve(std::uint64_t pages) {
  if (pages == 0) return WeightRange{};
  const auto data = map_aligned(pages * page_.count, PROT_NONE);
  if (!data) return std::unexpected(data.error());
  return WeightRange{*data, pages};
}

void HostMemory::release(const WeightRange& range) {
  if (range.data != nullptr) munmap(range.data, range.pages * page_.count);
}

// Puts `pages` pages at `from` behind the addresses at `to`, whatever was there. The addresses at `from` stay
// taken, with nothing behind them: no other thread's mapping can slip in. All must be of one mapping: else
// the kernel takes away what is at `to` before it refuses, and another thread's mapping may come there.
bool HostMemory::move(std::byte* from, std::byte* to, std::uint64_t pages) const {
  const std::uint64_t size = pages * page_.count;
  return mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED;
}

// How many of these, from the first on, may move as one: neighbours in one huge page. So the huge page stays
// whole, and the kernel needs one mapping for all of them.
std::uint64_t HostMemory::run(std::span<const std::uint32_t> pages) const {
  const std::uint64_t group = std::max<std::uint64_t>(1, huge_page / page_.count);
  std::uint64_t count = 1;
  while (count < pages.size() && pages[count] == pages[0] + count && pages[count] % group != 0 &&
         !begins_[pages[count]].load(std::memory_order_relaxed))
    ++count;
  return count;
}

Result<> HostMemory::map(const WeightRange& range, std::span<const std::uint32_t> pages) {
  CARILLON_ASSERT(pages.size() == range.pages);
  for (std::uint64_t i = 0, count = 0; i < range.pages; i += count) {
    count = run(pages.subspan(i));
    begins_[pages[i]].store(true, std::memory_order_relaxed);
    begins_[pages[i] + count].store(true, std::memory_order_relaxed);
    if (move(home(pages[i]), range.data + i * page_.count, count)) continue;
    const int why = errno;
    unmap({range.data, i}, pages.first(i));
    return fail(ErrorCode::resource_exhausted,
                std::string("the system refused to map the pages: ") + std::strerror(why));
  }
  return {};
}

void HostMemory::unmap(const WeightRange& range, std::span<const std::uint32_t> pages) {
  CARILLON_ASSERT(pages.size() == range.pages);
  for (std::uint64_t i = 0, count = 0; i < range.pages; i += count) {
    count = run(pages.subspan(i));
    CARILLON_ASSERT(move(range.data + i * page_.count, home(pages[i]), count));
  }
  if (range.pages == 0) return;
  // What is left would quietly give zeros to a stale reader: make it fault.
  CARILLON_ASSERT(mmap(range.data, range.pages * page_.count, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
}

Result<> HostMemory::prepare_workspace(std::uint64_t offset, Bytes size) {
  CARILLON_ASSERT(offset + size.count <= workspace_size().count);
  if (size.count == 0) return {};
  if (const auto left = available_memory(); left && *left < size)
    return fail(ErrorCode::resource_exhausted,
                "its runs work in " + to_text(size) + " of memory, and " + to_text(*left) + " are left");
  return populate(workspace(offset), size, "workspace");
}

void HostMemory::copy_in(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
}

void HostMemory::copy_out(std::span<std::byte> to, const std::byte* from) {
  std::memcpy(to.data(), from, to.size());
}

}  // namespace carillon::engine
