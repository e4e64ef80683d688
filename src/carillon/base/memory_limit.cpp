#include "carillon/base/memory_limit.h"

#include <charconv>
#include <fstream>
#include <sstream>

#include "carillon/base/control_groups.h"

namespace carillon {
namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() || *end == '\n' || *end == ' ';
  if (error != std::errc{} || !whole) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> read_number(const fs::path& file) {
  return number_in(text_of(file));
}

std::optional<std::uint64_t> read_number(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

Result<MemoryLimit> memory_limit(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const auto kilobytes = read_number(meminfo, "MemTotal:");
  if (!kilobytes) return fail(ErrorCode::unavailable, meminfo.string() + " has no line MemTotal");
  MemoryLimit least{.bytes = {*kilobytes * 1024}, .from = "the machine's memory"};
  const auto heed = [&](const fs::path& file, std::optional<std::uint64_t> limit) {
    if (limit && *limit < least.bytes.count) least = {.bytes = {*limit}, .from = file.string()};
  };
  for (const ControlGroup& group : control_groups("memory", root)) {
    if (group.v2) {
      for (const char* name : {"memory.max", "memory.high"})
        heed(group.folder / name, read_number(group.folder / name));
      continue;
    }
    const fs::path limit = group.folder / "memory.limit_in_bytes";
    heed(limit, read_number(limit));
    // Groups above what is mounted here have limits, too.
    const fs::path all = group.folder / "memory.stat";
    heed(all, read_number(all, "hierarchical_memory_limit"));
  }
  return least;
}

}  // namespace carillon
