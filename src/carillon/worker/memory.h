#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"

namespace carillon::worker {

// How much memory this process may still take: what the kernel holds for available, or less where a control
// group (version 1 or 2), its own or one above it, sets a limit. File pages that can be dropped count as
// available in both. `root` stands before /proc and /sys (tests). An error where /proc/meminfo does not say.
Result<Bytes> available_memory(const std::filesystem::path& root = "/");

// The words of a kernel setting such as "always [madvise] never": the one in brackets. Empty where the file
// cannot be read.
std::string selected(const std::filesystem::path& setting);

// Makes the pages behind a writable mapping present, so that no later touch faults in new memory. An error
// instead of a signal where the system has none left.
Result<> populate(std::byte* data, Bytes size, std::string_view what);

// Anonymous memory that is there from the start: populated when taken, zero, page-aligned, in huge pages
// where the system gives them (else a note says so). Movable; given back when destroyed.
class Arena {
 public:
  // `size` > 0, rounded up to whole system pages; `what` names it in errors and notes.
  static Result<Arena> take(Bytes size, std::string_view what, std::vector<std::string>& notes);

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

}  // namespace carillon::worker
