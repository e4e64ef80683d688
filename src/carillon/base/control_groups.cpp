#include "carillon/base/control_groups.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

namespace carillon {
namespace {

namespace fs = std::filesystem;

// Whether `list` has `word` among its words, which commas divide.
bool lists(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// Spaces and the like in paths of mountinfo: "\040".
std::string unescaped(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '7'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && digit(text[i + 1]) && digit(text[i + 2]) &&
        digit(text[i + 3])) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

struct Mount {
  std::string root;  // which group is seen at `point`
  std::string point;
};

// Where the groups of a version are mounted.
std::optional<Mount> mount_of(std::string_view mountinfo, std::string_view controller, bool v2) {
  std::istringstream lines{std::string(mountinfo)};
  // "35 31 0:32 /root /point options... - type source options"
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream behind(line.substr(dash + 3));
    std::string id, parent, device, root, point, type, source, options;
    if (!(before >> id >> parent >> device >> root >> point)) continue;
    if (!(behind >> type >> source >> options)) continue;
    if (v2 ? type == "cgroup2" : type == "cgroup" && lists(options, controller))
      return Mount{.root = unescaped(root), .point = unescaped(point)};
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

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<ControlGroup> control_groups(std::string_view cgroup, std::string_view mountinfo,
                                         std::string_view controller) {
  std::vector<ControlGroup> groups;
  std::istringstream lines{std::string(cgroup)};
  // "0::/a/b", or "5:memory:/a/b" in version 1.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && !lists(controllers, controller)) continue;
    const Mount mount =
        mount_of(mountinfo, controller, v2)
            .value_or(Mount{.root = "/",
                            .point = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + std::string(controller)});
    for (fs::path group = below(std::string_view(line).substr(second + 1), mount.root);;
         group = group.parent_path()) {
      groups.push_back({.folder = group.empty() ? fs::path(mount.point) : mount.point / group, .v2 = v2});
      if (group.empty()) break;
    }
  }
  return groups;
}

std::vector<ControlGroup> control_groups(std::string_view controller, const fs::path& root) {
  auto groups =
      control_groups(text_of(root / "proc/self/cgroup"), text_of(root / "proc/self/mountinfo"), controller);
  for (ControlGroup& group : groups) group.folder = root / group.folder.relative_path();
  return groups;
}

}  // namespace carillon
