#include "carillon/engine/cuda/library/code_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/mix.h"
#include "carillon/base/replace_file.h"

namespace carillon::engine::cuda {

namespace {

namespace fs = std::filesystem;

// 128 bits in which each byte and its place count.
std::string checksum(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 2> sums{0x9e3779b97f4a7c15ULL, 0xd1b54a32d192ed03ULL};
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    sums[0] = mix(sums[0] ^ word);
    sums[1] = mix(std::rotl(sums[1], 29) + word) + sums[1];
  }
  for (std::uint64_t& each : sums) each = mix(each ^ bytes.size());
  return fmt::format("{:016x}{:016x}", sums[0], sums[1]);
}
std::string checksum(const std::string& text) {
  return checksum(std::as_bytes(std::span(text)));
}

}  // namespace

CodeCache::CodeCache(fs::path folder, std::string header, std::string* problem, std::string_view what)
    : folder_(std::move(folder)), header_(std::move(header)) {
  const std::string named = folder_.string();
  std::error_code error;
  fs::create_directory(folder_, error);
  const std::string not_made = error ? ": " + error.message() : "";
  std::string why;
  if (!fs::is_directory(folder_, error)) {
    why = "is not a folder, and none can be made" + not_made;
    folder_.clear();
  } else if (::access(folder_.c_str(), W_OK | X_OK) != 0) {
    why = "cannot be written to: " + std::generic_category().message(errno);
  } else {
    std::size_t entries = 0;
    for (fs::directory_iterator at(folder_, error), end; !error && at != end && entries < most;
         at.increment(error))
      ++entries;
    writes_ = !error && entries < most;
    if (!writes_) why = error ? error.message() : fmt::format("has {} entries, and no more are kept", most);
  }
  if (!why.empty() && problem != nullptr)
    *problem = fmt::format("{} {}: {}: what is compiled is not kept", what, named, why);
}

// Another version's code for the same source has the same name, and goes when this one is kept.
fs::path CodeCache::file_of(const std::string& source) const {
  return folder_ / (checksum(source) + ".cubin");
}

std::string CodeCache::head_of(const std::string& source, std::span<const std::byte> code) const {
  return fmt::format("{}\nsource of {} bytes, {}\ncode of {} bytes, {}\n", header_, source.size(),
                     checksum(source), code.size(), checksum(code));
}

std::optional<std::vector<std::byte>> CodeCache::find(const std::string& source) const {
  if (folder_.empty()) return std::nullopt;
  const fs::path file = file_of(source);
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  const std::uintmax_t size = fs::file_size(file, error);
  if (error || size > largest) return std::nullopt;
  std::vector<std::byte> all(static_cast<std::size_t>(size));
  std::ifstream in(file, std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(all.data()), static_cast<std::streamsize>(all.size())))
    return std::nullopt;
  // The code is what follows the third line; the lines have to be those that it would be kept with.
  auto at = all.begin();
  for (int line = 0; line < 3; ++line) {
    at = std::find(at, all.end(), std::byte{'\n'});
    if (at == all.end()) return std::nullopt;
    ++at;
  }
  const std::span<const std::byte> code(at, all.end());
  const std::string head = head_of(source, code);
  if (code.empty() || head.size() != static_cast<std::size_t>(at - all.begin()) ||
      std::memcmp(head.data(), all.data(), head.size()) != 0)
    return std::nullopt;
  const std::lock_guard lock(mutex_);
  ++found_;
  return std::vector<std::byte>(code.begin(), code.end());
}

void CodeCache::keep(const std::string& source, std::span<const std::byte> code) {
  const std::string head = head_of(source, code);
  if (!writes_ || code.empty() || head.size() + code.size() > largest) return;
  const std::lock_guard lock(mutex_);
  if (!replace_file(file_of(source), {head, {reinterpret_cast<const char*>(code.data()), code.size()}}))
    ++kept_;
}

std::uint64_t CodeCache::found() const {
  const std::lock_guard lock(mutex_);
  return found_;
}

std::uint64_t CodeCache::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace carillon::engine::cuda
