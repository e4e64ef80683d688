#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace carillon {

// A control group (cgroup) that limits this process, as far as it can be seen.
struct ControlGroup {
  std::filesystem::path folder;  // of its files, such as /sys/fs/cgroup/a/b
  bool v2 = false;               // which version's files the folder has

  friend bool operator==(const ControlGroup&, const ControlGroup&) = default;
};

// The group of a process for `controller` ("memory", "cpu") and all groups above it that its mounts show, the
// innermost first. Pure: `cgroup` is the text of /proc/self/cgroup, `mountinfo` that of /proc/self/mountinfo.
// Where the latter names no mount of the groups, they are looked for where systems have them: /sys/fs/cgroup,
// and /sys/fs/cgroup/CONTROLLER of version 1. A container may see its own group as the mount's root; then
// that is all there is.
std::vector<ControlGroup> control_groups(std::string_view cgroup, std::string_view mountinfo,
                                         std::string_view controller);
// Those of this process, with `root` before /proc and /sys (tests).
std::vector<ControlGroup> control_groups(std::string_view controller, const std::filesystem::path& root);

// What the file holds; empty where it cannot be read.
std::string text_of(const std::filesystem::path& file);

}  // namespace carillon
