#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carillon::engine::cuda {

// Code that was compiled, by its source: each entry a file of a folder, in which processes that name it find
// it again. An entry tells what it is of (`header`: compiler, its version, architecture, options), the
// source, and how long it is, with checksums of source and code; one that does not agree in all of it is
// none, and is replaced by what is compiled anew. Checksums find damage and mistakes, no forger who knows
// them: the folder belongs to whoever runs the process, as the program itself does. From any thread.
class CodeCache {
 public:
  static constexpr std::uintmax_t largest = 4 << 20;  // of an entry, in bytes; none larger is read or kept
  static constexpr std::size_t most = 4096;           // entries; where there are more, none is added

  // Keeps nothing.
  CodeCache() = default;
  // In `folder`, which is made where its parent is there. `problem` says why nothing can be kept there;
  // `what` is kept, for people.
  CodeCache(std::filesystem::path folder, std::string header, std::string* problem = nullptr,
            std::string_view what = "code of chains");

  std::optional<std::vector<std::byte>> find(const std::string& source) const;
  // Whole or not at all; what cannot be written is compiled again the next time.
  void keep(const std::string& source, std::span<const std::byte> code);

  std::uint64_t found() const;  // how often find() had something
  std::uint64_t kept() const;   // how many were written

 private:
  std::filesystem::path file_of(const std::string& source) const;
  std::string head_of(const std::string& source, std::span<const std::byte> code) const;

  std::filesystem::path folder_;  // empty: nothing is kept
  std::string header_;
  bool writes_ = false;
  mutable std::mutex mutex_;  // of what follows
  mutable std::uint64_t found_ = 0;
  std::uint64_t kept_ = 0;
};

}  // namespace carillon::engine::cuda
