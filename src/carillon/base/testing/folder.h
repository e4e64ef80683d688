#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <stdlib.h>
#include <unistd.h>

namespace carillon::testing {

// A folder that goes away with the test.
class Folder {
 public:
  Folder() {
    // In memory where there is such a place: the fuzz tests write thousands of files.
    const std::filesystem::path memory = "/dev/shm";
    const bool there = ::access(memory.c_str(), W_OK) == 0;
    std::string pattern =
        ((there ? memory : std::filesystem::temp_directory_path()) / "carillon-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const auto file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace carillon::testing
