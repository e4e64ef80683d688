#pragma once

#include <algorithm>
#include <cstddef>

#include "carillon/base/time.h"

namespace carillon::schedule::parts {

// The longest run that immodest tenants may have, so that modest ones find a device in time. It is learnt.
// A refused request of a modest tenant makes the limit shorter, and a sent one makes it a little longer. So
// the limit settles where the share `lost_at_most` is refused, or where shorter runs would gain nothing.
// O(1). Not thread-safe.
class GiveWay {
 public:
  static constexpr double lost_at_most = 0.0075;

  // A run of those that get what is left was sent.
  void ran(Duration exec) { longest_ = std::max(forgets * longest_, to_seconds(exec)); }
  // A request that goes first was refused. Runs shorter than `least` would have gained it nothing.
  void lost(Duration least) {
    if (longest_ <= 0) return;
    const double most = std::min(most_, longest_);
    most_ = std::max((1 - step) * most, std::min(most, to_seconds(least)));
  }
  // So many requests that go first were sent.
  void sent(std::size_t requests) {
    constexpr double each = step * lost_at_most / (1 - lost_at_most);
    most_ = std::min(unlimited, most_ * (1 + each * static_cast<double>(requests)));
  }
  // At most so long; max() where nobody has to give way.
  Duration most() const { return most_ > longest_ ? Duration::max() : from_seconds(most_); }

 private:
  static constexpr double unlimited = 1e9, step = 0.05, forgets = 0.999;
  double longest_ = 0;  // of the runs of late, seconds
  double most_ = unlimited;
};

}  // namespace carillon::schedule::parts
