#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "carillon/base/time.h"

namespace carillon::engine::second {

struct LineLimitOptions {
  std::size_t most = 60;  // within `window`
  Duration window = std::chrono::minutes{1};
};

// How many lines the log gets of what may happen again and again. The rule alone; has no clock.
class LineLimit {
 public:
  explicit LineLimit(const LineLimitOptions& options) : options_(options) {}

  // Whether a line may be written at `now`: then how many were left out since the last that was; else
  // nothing.
  std::optional<std::uint64_t> line(TimePoint now) {
    while (!lines_.empty() && now - lines_.front() >= options_.window) lines_.pop_front();
    if (lines_.size() >= options_.most) {
      ++left_out_;
      return std::nullopt;
    }
    lines_.push_back(now);
    return std::exchange(left_out_, 0);
  }

 private:
  const LineLimitOptions options_;
  std::deque<TimePoint> lines_;
  std::uint64_t left_out_ = 0;
};

}  // namespace carillon::engine::second
