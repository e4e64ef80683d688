#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

namespace carillon::frontend {

// Bytes with room behind them: the JSON parser reads whole vector registers and may look past the end. The
// content is uninitialised until written, so that memory is taken only as data arrives.
class PaddedBytes {
 public:
  static constexpr std::size_t padding = 64;

  PaddedBytes() = default;
  explicit PaddedBytes(std::size_t size) { resize(size); }
  explicit PaddedBytes(std::string_view text) : PaddedBytes(text.size()) {
    if (!text.empty()) std::memcpy(data_.get(), text.data(), text.size());
  }

  // What is there stays, as far as it fits. Large ones move without being copied (realloc's mremap). Throws
  // std::bad_alloc.
  void resize(std::size_t size) {
    if (size > capacity_) {
      const std::size_t capacity = std::max(size, capacity_ == 0 ? size : capacity_ * 2);
      auto* const moved = static_cast<char*>(std::realloc(data_.get(), capacity + padding));
      if (moved == nullptr) throw std::bad_alloc();
      (void)data_.release();
      data_.reset(moved);
      capacity_ = capacity;
    }
    size_ = size;
    if (data_) std::memset(data_.get() + size, 0, padding);
  }

  char* data() { return data_.get(); }
  std::size_t size() const { return size_; }
  std::string_view text() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace carillon::frontend
