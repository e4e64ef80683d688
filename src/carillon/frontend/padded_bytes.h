#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace carillon::frontend {

// Bytes with room behind them: the JSON parser reads whole vector registers and may look past the end. The
// content is uninitialised until written, so that memory is taken only as data arrives.
class PaddedBytes {
 public:
  static constexpr std::size_t padding = 64;

  PaddedBytes() : PaddedBytes(0) {}
  explicit PaddedBytes(std::size_t size)
      : data_(std::make_unique_for_overwrite<char[]>(size + padding)), size_(size) {
    std::memset(data_.get() + size, 0, padding);
  }
  explicit PaddedBytes(std::string_view text) : PaddedBytes(text.size()) {
    if (!text.empty()) std::memcpy(data_.get(), text.data(), text.size());
  }

  char* data() { return data_.get(); }
  std::size_t size() const { return size_; }
  std::string_view text() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<char[]> data_;
  std::size_t size_ = 0;
};

}  // namespace carillon::frontend
