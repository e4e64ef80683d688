#include "carillon/workload/disb_client.h"

#include <utility>

#include "carillon/base/assert.h"

namespace carillon::workload {

TimePoint DisbArrivals::next() {
  const auto k = count_++;
  switch (client_->arrivals) {
    case DisbClient::Arrivals::periodic:
      return TimePoint{} + client_->phase + from_seconds(static_cast<double>(k) / client_->rate);
    case DisbClient::Arrivals::poisson:
      last_ += from_seconds(random_.exponential(1 / client_->rate));
      return last_;
    case DisbClient::Arrivals::closed_loop:
      return k == 0 ? TimePoint{} : TimePoint::max();
    case DisbClient::Arrivals::trace:
      return k < client_->trace.size() ? TimePoint{} + client_->trace[k] : TimePoint::max();
  }
  return TimePoint::max();
}

bool DisbSender::planned(TimePoint at) {
  ++requests_;
  if (!busy_) {
    busy_ = true;
    return true;
  }
  if (late_) ++dropped_;
  late_ = at;
  return false;
}

std::optional<TimePoint> DisbSender::answered(TimePoint now) {
  CARILLON_ASSERT(busy_);
  if (closed_loop_) {
    ++requests_;
    return now;
  }
  busy_ = late_.has_value();
  return std::exchange(late_, std::nullopt);
}

}  // namespace carillon::workload
