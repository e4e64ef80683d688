#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"

namespace carillon {

// A control group that limits this process's memory, as far as it can be seen.
struct MemoryGroup {
  std::filesystem::path folder;  // of its files, such as /sys/fs/cgroup/a/b
  bool v2 = false;  // memory.max and memory.current; else memory.limit_in_bytes and ..usage_in_bytes

  friend bool operator==(const MemoryGroup&, const MemoryGroup&) = default;
};

// The group of a process and all above it that its mounts show, the innermost first. Pure: `cgroup` is the
// text of /proc/self/cgroup, `mountinfo` that of /proc/self/mountinfo. Where the latter names no mount of the
// groups, they are looked for where systems have them: /sys/fs/cgroup, and /sys/fs/cgroup/memory of
// version 1. A container may see its own group as the mount's root; then that is all there is.
std::vector<MemoryGroup> memory_groups(std::string_view cgroup, std::string_view mountinfo);
// Those of this process, with `root` before /proc and /sys (tests).
std::vector<MemoryGroup> memory_groups(const std::filesystem::path& root = "/");

// The number in such a file; none: "max", or no number.
std::optional<std::uint64_t> number_in(std::string_view text);
std::optional<std::uint64_t> read_number(const std::filesystem::path& file);
// The number behind `key` in a file of lines "key value".
std::optional<std::uint64_t> read_number(const std::filesystem::path& file, std::string_view key);

// The most memory that this process may ever have: the machine's, or less where a control group, its own or
// one above it, has a limit (memory.max, memory.high; memory.limit_in_bytes, hierarchical_memory_limit).
struct MemoryLimit {
  Bytes bytes;
  std::string from;  // what sets it: "the machine's memory", or the file
};
// Error (unavailable): /proc/meminfo does not say how much the machine has.
Result<MemoryLimit> memory_limit(const std::filesystem::path& root = "/");

}  // namespace carillon
