#pragma once

// For tests only: a shared memory object of its own name, as a client makes one. It goes with this.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "carillon/frontend/net/descriptor.h"

namespace carillon::frontend {

class LentObject {
 public:
  explicit LentObject(std::size_t size) {
    static int made = 0;
    key_ = "/carillon_test_" + std::to_string(getpid()) + "_" + std::to_string(++made);
    object_ = Descriptor(shm_open(key_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    EXPECT_TRUE(object_.open());
    cut(size);
  }
  ~LentObject() { shm_unlink(key_.c_str()); }
  LentObject(const LentObject&) = delete;
  LentObject& operator=(const LentObject&) = delete;

  const std::string& key() const { return key_; }
  void cut(std::size_t size) { EXPECT_EQ(ftruncate(object_.number(), static_cast<off_t>(size)), 0); }
  void put(std::size_t at, std::string_view bytes) {
    EXPECT_EQ(pwrite(object_.number(), bytes.data(), bytes.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes.size()));
  }
  std::string get(std::size_t at, std::size_t size) const {
    std::string bytes(size, '\0');
    EXPECT_EQ(pread(object_.number(), bytes.data(), size, static_cast<off_t>(at)),
              static_cast<ssize_t>(size));
    return bytes;
  }

 private:
  std::string key_;
  Descriptor object_;
};

}  // namespace carillon::frontend
