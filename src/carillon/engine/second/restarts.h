#pragma once

#include <algorithm>
#include <deque>
#include <optional>

#include "carillon/base/time.h"

namespace carillon::engine::second {

// How often, and after which pause, what has ended is started again.
struct RestartOptions {
  int most = 3;  // within `window`; >= 0
  Duration window = std::chrono::minutes{10};
  Duration pause = std::chrono::seconds{1};  // before the first; doubled for each further one of the window
};

// The rule alone; has no clock.
class Restarts {
 public:
  explicit Restarts(const RestartOptions& options) : options_(options) {}

  // It ended at `now`: how long to wait before it is started again, or nothing where it is not any more.
  std::optional<Duration> ended(TimePoint now) {
    std::erase_if(ends_, [&](TimePoint at) { return now - at >= options_.window; });
    if (static_cast<int>(ends_.size()) >= options_.most) return std::nullopt;
    ends_.push_back(now);
    return options_.pause * (std::int64_t{1} << std::min<std::size_t>(ends_.size() - 1, 20));
  }

 private:
  const RestartOptions options_;
  std::deque<TimePoint> ends_;
};

}  // namespace carillon::engine::second
