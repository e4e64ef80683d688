#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"

namespace carillon::engine {

// How much memory this process may still take: what the kernel holds for available, or less where a control
// group (version 1 or 2), its own or one above it, sets a limit. File pages that can be dropped count as
// available in both. `root` stands before /proc and /sys (tests). An error where /proc/meminfo does not say.
Result<Bytes> available_memory(const std::filesystem::path& root = "/");

// The words of a kernel setting such as "always [madvise] never": the one in brackets. Empty where the file
// cannot be read.
std::string selected(const std::filesystem::path& setting);

inline constexpr std::uint64_t huge_page = 2ULL << 20;

// Private anonymous memory of `size` bytes at an address that is a multiple of huge_page; nothing is behind
// it until it is touched. `protection` as for mmap. Give it back with munmap. Error: no address space.
Result<std::byte*> map_aligned(std::uint64_t size, int protection);

// Takes the memory behind writable addresses, so that no access faults. No byte changes: the memory may be in
// use meanwhile. Error (resource_exhausted): the system has none left; `what` names it.
Result<> populate(std::byte* data, Bytes size, std::string_view what);

// One piece of memory: zero, aligned to huge_page, in huge pages where the system gives them (else a note
// says so). A forked child does not have it, so that a fork never makes its pages copy-on-write here.
// Movable; given back when destroyed.
class Arena {
 public:
  enum class Taken : std::uint8_t {
    at_once,    // it is there from the start
    as_used,    // it is addresses until it is touched or populated
    addresses,  // likewise; no huge pages are asked for, and no note is made
  };
  // `size` > 0, rounded up to whole system pages; `what` names it in errors and notes.
  static Result<Arena> take(Bytes size, std::string_view what, std::vector<std::string>& notes,
                            Taken taken = Taken::at_once);

  Arena() = default;  // none
  Arena(Arena&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, {})) {}
  Arena& operator=(Arena&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Arena();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  Arena(std::byte* data, Bytes size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace carillon::engine
