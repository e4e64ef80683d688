#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <unistd.h>

#include "carillon/base/result.h"

// What the targets share. Each is one LLVMFuzzerTestOneInput(): clang's libFuzzer calls it with bytes that it
// makes up, replay.cpp with those of files.
namespace carillon::fuzz {

// Ends the program where a promise does not hold, so that the fuzzer keeps the input.
inline void must(bool holds, std::string_view promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %.*s\n", static_cast<int>(promise.size()), promise.data());
  std::abort();
}

// Whatever the input is, the parser takes it, or says what is wrong with it.
template <typename T>
bool taken(const Result<T>& result) {
  if (result) return true;
  must(!result.error().message.empty(), "an error says what is wrong");
  must(result.error().code != ErrorCode::internal, "bad input is no internal error");
  return false;
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// For parsers that take a file: one in a folder of its own, so that what an input names beside it is not
// there.
class InputFile {
 public:
  explicit InputFile(std::string_view name) {
    const char* const memory = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    std::string pattern = std::string(memory) + "/carillon-fuzz-XXXXXX";
    must(::mkdtemp(pattern.data()) != nullptr, "a folder for the input can be made");
    folder_ = pattern;
    file_ = folder_ / name;
  }
  ~InputFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& write(std::string_view bytes) const {
    std::ofstream(file_, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file_;
  }
  const std::filesystem::path& path() const { return file_; }

 private:
  std::filesystem::path folder_, file_;
};

}  // namespace carillon::fuzz

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
