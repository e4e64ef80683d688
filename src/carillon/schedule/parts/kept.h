#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace carillon::schedule::parts {

// Lines that long runs kept from a device (KeepOff), until they may be tried again. O(1) but where said. Not
// thread-safe.
class Kept {
 public:
  void keep(std::uint32_t line) {
    if (line >= is_.size()) is_.resize(line + 1);
    if (!is_[line]) lines_.push_back(line);
    is_[line] = true;
  }
  // Fewer devices are busy with long runs, or more are there: all lines may be tried again.
  void relieve() { relieved_ = lines_.size(); }
  bool relieved() const { return relieved_ > 0; }
  // Calls again(line) for lines that may be tried again, `most` at most; the others may be next time.
  // O(those).
  template <typename Again>
  void take(std::size_t most, Again&& again) {
    for (std::size_t i = std::min(relieved_, most); i > 0; --i, --relieved_) {
      const std::uint32_t line = lines_.front();
      lines_.pop_front();
      is_[line] = false;
      again(line);
    }
  }

 private:
  std::deque<std::uint32_t> lines_;
  std::vector<bool> is_;      // by line: it is in lines_
  std::size_t relieved_ = 0;  // of lines_, the first
};

}  // namespace carillon::schedule::parts
