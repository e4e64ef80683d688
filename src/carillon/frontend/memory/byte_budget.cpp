#include "carillon/frontend/memory/byte_budget.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::frontend {

ByteBudget::ByteBudget(std::size_t limit, std::size_t largest)
    : limit_(limit), limit_of_large_(std::max(limit - limit / 8, largest)) {
  CARILLON_ASSERT(largest <= limit);
}

bool ByteBudget::take(std::size_t bytes, std::size_t held) {
  const std::size_t limit = bytes <= small && held <= small - bytes ? limit_ : limit_of_large_;
  const std::size_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
  if (bytes <= limit && before <= limit - bytes) return true;
  give_back(bytes);
  refusals_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

bool Reservation::grow(std::size_t more) {
  if (more == 0) return true;
  if (!budget_) return false;
  // The client's first: what it may not have anyway takes nothing from others meanwhile.
  share_refused_ = false;
  own_refused_ = own_ && !own_->take(more, bytes_);
  if (own_refused_) return false;
  share_refused_ = share_ && !share_->take(more);
  if (share_refused_ || !budget_->take(more, bytes_)) {
    if (own_) own_->give_back(more);
    if (share_ && !share_refused_) share_->give_back(more);
    return false;
  }
  bytes_ += more;
  return true;
}

bool Reservation::grow_within(std::size_t more, std::size_t besides) {
  if (!budget_) return more == 0;
  return grow(std::min(more, most_beside(bytes_ + besides)));
}

std::size_t Reservation::most() const {
  const std::size_t most = most_beside(0);
  return own_ ? std::min(most, own_->largest()) : most;
}

void Reservation::overdraw(std::size_t more) {
  if (!budget_) return;
  budget_->overdraw(more);
  if (own_) own_->overdraw(more);
  if (share_) share_->overdraw(more);
  bytes_ += more;
}

void Reservation::shrink_to(std::size_t bytes) {
  if (bytes >= bytes_) return;
  budget_->give_back(bytes_ - bytes);
  if (own_) own_->give_back(bytes_ - bytes);
  if (share_) share_->give_back(bytes_ - bytes);
  bytes_ = bytes;
}

}  // namespace carillon::frontend
