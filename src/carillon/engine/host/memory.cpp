#include "carillon/engine/host/memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include <sys/mman.h>
#include <unistd.h>

#include "carillon/base/control_groups.h"
#include "carillon/base/memory_limit.h"

namespace carillon::engine {
namespace {

namespace fs = std::filesystem;

// What the kernel drops of a group's files before it kills anybody: all but what is mapped now. What a server
// that ran here before read, and used more than once, is on the active list.
std::uint64_t droppable_in(const fs::path& statistics, bool v2) {
  const auto number = [&](const char* v2_name, const char* v1_name) {
    return read_number(statistics, v2 ? v2_name : v1_name).value_or(0);
  };
  const std::uint64_t inactive = number("inactive_file", "total_inactive_file");
  const std::uint64_t files = inactive + number("active_file", "total_active_file");
  const std::uint64_t mapped = number("file_mapped", "total_mapped_file");
  return std::max(inactive, files - std::min(files, mapped));
}

// What is left in a group, where it sets a limit.
std::optional<std::uint64_t> left_in(const ControlGroup& group) {
  const auto& [folder, v2] = group;
  const auto limit = read_number(folder / (v2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = read_number(folder / (v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const std::uint64_t droppable = droppable_in(folder / "memory.stat", v2);
  const std::uint64_t held = *used - std::min(*used, droppable);
  return *limit - std::min(*limit, held);
}

}  // namespace

Result<Bytes> available_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const auto kilobytes = read_number(meminfo, "MemAvailable:");
  if (!kilobytes)
    return fail(ErrorCode::unavailable,
                meminfo.string() + " has no line MemAvailable: Linux 3.14 or later is needed");
  std::uint64_t least = *kilobytes * 1024;

  for (const ControlGroup& group : control_groups("memory", root))
    if (const auto left = left_in(group)) least = std::min(least, *left);
  return Bytes{least};
}

std::string selected(const fs::path& setting) {
  std::ifstream in(setting);
  for (std::string word; in >> word;)
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  return {};
}

Result<std::byte*> map_aligned(std::uint64_t size, int protection) {
  // More than is needed; then the ends go back.
  void* start =
      mmap(nullptr, size + huge_page, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED)
    return fail(ErrorCode::resource_exhausted,
                "cannot have " + to_text(Bytes{size}) + " of addresses: " + std::strerror(errno));
  auto* first = static_cast<std::byte*>(start);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(start);
  const std::uint64_t before = round_up(address, huge_page) - address;
  if (before > 0) munmap(first, before);
  munmap(first + before + size, huge_page - before);
  return first + before;
}

Result<> populate(std::byte* data, Bytes size, std::string_view what) {
  const std::uint64_t page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t before = reinterpret_cast<std::uintptr_t>(data) % page;
  data -= before;
  size.count = round_up(size.count + before, page);
  const std::uint64_t step = mib(64).count;
  for (std::uint64_t at = 0; at < size.count; at += step) {
    const std::uint64_t length = std::min(step, size.count - at);
    int error = 0;
    do {
      error = madvise(data + at, length, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (error == EINTR || error == EAGAIN);
    if (error == EINVAL) {  // before Linux 5.14
      for (std::uint64_t byte = 0; byte < length; byte += page)
        __atomic_fetch_or(reinterpret_cast<unsigned char*>(data + at + byte), 0, __ATOMIC_RELAXED);
    } else if (error != 0) {
      return fail(ErrorCode::resource_exhausted, std::string(what) + ": the system gave " +
                                                     to_text(Bytes{at}) + " of " + to_text(size) + ": " +
                                                     std::strerror(error));
    }
  }
  return {};
}

Result<Arena> Arena::take(Bytes size, std::string_view what, std::vector<std::string>& notes, Taken taken) {
  size.count = round_up(size.count, static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  const auto data = map_aligned(size.count, PROT_READ | PROT_WRITE);
  if (!data) return in_context(what, data.error());
  Arena arena(*data, size);
  madvise(*data, size.count, MADV_DONTFORK);
  if (taken == Taken::addresses) return arena;
  const std::string huge = selected("/sys/kernel/mm/transparent_hugepage/enabled");
  if (madvise(*data, size.count, MADV_HUGEPAGE) != 0 || (huge != "always" && huge != "madvise"))
    notes.push_back(std::string(what) + ": no huge pages (transparent_hugepage/enabled is \"" + huge +
                    "\"); small pages are used");
  if (taken == Taken::at_once)
    if (auto done = populate(*data, size, what); !done) return std::unexpected(done.error());
  return arena;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_.count);
}

}  // namespace carillon::engine
