#include "carillon/base/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

namespace carillon {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Whether `list` has `word` among its words, which commas divide.
bool lists(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

struct Mount {
  std::string root;  // which group is seen at `point`
  std::string point;
};

// Where the groups of a version are mounted.
std::optional<Mount> mount_of(std::string_view mountinfo, bool v2) {
  std::istringstream lines{std::string(mountinfo)};
  // "35 31 0:32 /root /point options... - type source options"
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream behind(line.substr(dash + 3));
    std::string id, parent, device, type, source, options;
    Mount mount;
    if (!(before >> id >> parent >> device >> mount.root >> mount.point)) continue;
    if (!(behind >> type >> source >> options)) continue;
    if (v2 ? type == "cgroup2" : type == "cgroup" && lists(options, "memory")) return mount;
  }
  return std::nullopt;
}

// `path` as it is seen below a mount whose root is `root`; empty: the mount itself, also where the path is
// not below it (a namespace's "/../..").
fs::path below(std::string_view path, std::string_view root) {
  if (root != "/") {
    if (!path.starts_with(root)) return {};
    path.remove_prefix(root.size());
    if (!path.empty() && path.front() != '/') return {};
  }
  const fs::path inner = fs::path(path).relative_path();
  for (const fs::path& part : inner)
    if (part == "..") return {};
  return inner;
}

}  // namespace

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

std::vector<MemoryGroup> memory_groups(std::string_view cgroup, std::string_view mountinfo) {
  std::vector<MemoryGroup> groups;
  std::istringstream lines{std::string(cgroup)};
  // "0::/a/b", or "5:memory:/a/b" in version 1.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && !lists(controllers, "memory")) continue;
    const Mount mount =
        mount_of(mountinfo, v2)
            .value_or(Mount{.root = "/", .point = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory"});
    for (fs::path group = below(std::string_view(line).substr(second + 1), mount.root);;
         group = group.parent_path()) {
      groups.push_back({.folder = group.empty() ? fs::path(mount.point) : mount.point / group, .v2 = v2});
      if (group.empty()) break;
    }
  }
  return groups;
}

std::vector<MemoryGroup> memory_groups(const fs::path& root) {
  auto groups = memory_groups(text_of(root / "proc/self/cgroup"), text_of(root / "proc/self/mountinfo"));
  for (MemoryGroup& group : groups) group.folder = root / group.folder.relative_path();
  return groups;
}

Result<MemoryLimit> memory_limit(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const auto kilobytes = read_number(meminfo, "MemTotal:");
  if (!kilobytes) return fail(ErrorCode::unavailable, meminfo.string() + " has no line MemTotal");
  MemoryLimit least{.bytes = {*kilobytes * 1024}, .from = "the machine's memory"};
  const auto heed = [&](const fs::path& file, std::optional<std::uint64_t> limit) {
    if (limit && *limit < least.bytes.count) least = {.bytes = {*limit}, .from = file.string()};
  };
  for (const MemoryGroup& group : memory_groups(root)) {
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
