#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace carillon {

// 128 bits by which files of unlike content differ (XXH3; not safe against who wants two to be alike). Reads
// the whole file, in pieces. Nothing where that fails.
using FileDigest = std::pair<std::uint64_t, std::uint64_t>;
std::optional<FileDigest> digest_of(const std::filesystem::path& file);
FileDigest digest_of_text(std::string_view text);
// 32 hexadecimal digits.
std::string to_text(const FileDigest& digest);

}  // namespace carillon
