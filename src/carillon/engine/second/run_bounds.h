#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/graph/tensor.h"
#include "carillon/profile/rolling.h"

namespace carillon::engine::second {

struct RunBoundOptions {
  Duration least = std::chrono::seconds{10};
  Duration first = std::chrono::seconds{10};  // the least of a size that has not run
};

// How long a run of one model may take before it counts as one that hangs: ten times what runs of its size
// take, by the rule that schedulers predict by (profile::RollingWindow), but at least `least`, and beyond a
// minute only twice. schedule::Watchdog gives a device up that reports nothing for twenty times what it was
// predicted to: as long as `least` is less than the watchdog's, too, a run that hangs is given up before
// that.
//
// The rule alone; has no clock. Not thread-safe.
class RunBounds {
 public:
  explicit RunBounds(const RunBoundOptions& options) : options_(options) {}

  // `inputs`: their shapes, which are the run's size.
  Duration of(std::span<const graph::Shape> inputs) const {
    const auto known = sizes_.find(inputs);
    if (known == sizes_.end()) return bound(longest_, std::max(options_.first, options_.least));
    return bound(known->second.takes.estimate(), options_.least);
  }

  // A run came back, at about `at`.
  void took(std::span<const graph::Shape> inputs, Duration run, TimePoint at) {
    auto known = sizes_.find(inputs);
    if (known == sizes_.end()) {
      if (sizes_.size() >= most_sizes) sizes_.clear();
      known = sizes_.emplace(Key(inputs.begin(), inputs.end()), Size{}).first;
    }
    Size& size = known->second;
    // The first makes what later ones find made.
    if (size.runs++ < 2)
      size.takes = profile::RollingWindow(std::max(run, Duration{1}));
    else
      size.takes.add(run, at);
    longest_ = std::max(longest_, size.takes.estimate());
  }

 private:
  static constexpr std::size_t most_sizes = 4096;
  using Key = std::vector<graph::Shape>;
  struct Less {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return std::ranges::lexicographical_compare(a, b);
    }
  };
  struct Size {
    profile::RollingWindow takes{Duration{0}};
    std::size_t runs = 0;
  };
  static Duration bound(Duration takes, Duration least) {
    constexpr Duration minute = std::chrono::minutes{1};
    return std::max({least, std::min(10 * std::min(takes, minute), minute), 2 * takes});
  }

  const RunBoundOptions options_;
  std::map<Key, Size, Less> sizes_;
  Duration longest_{0};
};

}  // namespace carillon::engine::second
