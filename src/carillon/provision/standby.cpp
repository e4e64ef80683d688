#include "carillon/provision/standby.h"

#include <utility>

namespace carillon::provision {

void StandbyWatch::answered(Duration latency) {
  ++seen_;
  if (latency > options_.slo) ++late_;
}

bool StandbyWatch::look(TimePoint now) {
  if (taken_over_ || now < next_) return false;
  if (next_ == TimePoint::min()) {  // the first second begins
    next_ = now + options_.look;
    seen_ = late_ = 0;
    return false;
  }
  if (now - next_ > 4 * options_.look) {  // what was counted is of long ago
    next_ = now + options_.look;
    seen_ = late_ = 0;
    suspicious_ = false;
    return false;
  }
  if (seen_ < options_.least) return false;
  next_ = now + options_.look;
  const std::uint64_t seen = std::exchange(seen_, 0), late = std::exchange(late_, 0);
  // The P99 is above the SLO where more than one in a hundred are.
  const bool broken = static_cast<double>(late) > (1 - options_.quantile) * static_cast<double>(seen);
  taken_over_ = broken && suspicious_;
  suspicious_ = broken;
  if (broken) next_ = now + options_.second_look;
  return taken_over_;
}

}  // namespace carillon::provision
