#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"

namespace carillon {

// The number in a control group's file; none: "max", or no number.
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
