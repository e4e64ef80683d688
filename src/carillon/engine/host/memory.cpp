#include "carillon/engine/host/memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include <sys/mman.h>
#include <unistd.h>

namespace carillon::engine {
namespace {

namespace fs = std::filesystem;

// The number after `key` in a file of "key value" lines.
std::optional<std::uint64_t> find_number(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> read_number(const fs::path& file) {
  std::ifstream in(file);
  std::uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;  // also "max"
}

// What is left in the group at `folder`, where it sets a limit.
std::optional<std::uint64_t> left_in_group(const fs::path& folder, bool v2) {
  const auto limit = read_number(folder / (v2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = read_number(folder / (v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const std::uint64_t droppable =
      find_number(folder / "memory.stat", v2 ? "inactive_file" : "total_inactive_file").value_or(0);
  const std::uint64_t held = *used - std::min(*used, droppable);
  return *limit - std::min(*limit, held);
}

// Makes the pages behind a writable mapping present, with an error instead of a signal where the system has
// none left.
Result<> populate(std::byte* data, Bytes size, std::string_view what) {
  const std::uint64_t step = mib(64).count;
  for (std::uint64_t at = 0; at < size.count; at += step) {
    const std::uint64_t length = std::min(step, size.count - at);
    int error = 0;
    do {
      error = madvise(data + at, length, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (error == EINTR || error == EAGAIN);
    if (error == EINVAL) {  // before Linux 5.14
      for (std::uint64_t byte = 0; byte < length; byte += 4096)
        *static_cast<volatile std::byte*>(data + at + byte) = std::byte{0};
    } else if (error != 0) {
      return fail(ErrorCode::resource_exhausted, std::string(what) + ": the system gave " +
                                                     to_text(Bytes{at}) + " of " + to_text(size) + ": " +
                                                     std::strerror(error));
    }
  }
  return {};
}

}  // namespace

Result<Bytes> available_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const auto kilobytes = find_number(meminfo, "MemAvailable:");
  if (!kilobytes)
    return fail(ErrorCode::unavailable,
                meminfo.string() + " has no line MemAvailable: Linux 3.14 or later is needed");
  std::uint64_t least = *kilobytes * 1024;

  std::ifstream groups(root / "proc/self/cgroup");  // "0::/a/b", or "5:memory:/a/b" in version 1
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",memory,") == std::string::npos) continue;
    const fs::path mount = root / (v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (;; group = group.parent_path()) {
      if (const auto left = left_in_group(mount / group, v2)) least = std::min(least, *left);
      if (group.empty()) break;
    }
  }
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

Result<Arena> Arena::take(Bytes size, std::string_view what, std::vector<std::string>& notes,
                          bool populated) {
  size.count = round_up(size.count, static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  const auto data = map_aligned(size.count, PROT_READ | PROT_WRITE);
  if (!data) return in_context(what, data.error());
  Arena arena(*data, size);
  madvise(*data, size.count, MADV_DONTFORK);
  if (!populated) return arena;
  const std::string huge = selected("/sys/kernel/mm/transparent_hugepage/enabled");
  if (madvise(*data, size.count, MADV_HUGEPAGE) != 0 || (huge != "always" && huge != "madvise"))
    notes.push_back(std::string(what) + ": no huge pages (transparent_hugepage/enabled is \"" + huge +
                    "\"); small pages are used");
  if (auto done = populate(*data, size, what); !done) return std::unexpected(done.error());
  return arena;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_.count);
}

}  // namespace carillon::engine
