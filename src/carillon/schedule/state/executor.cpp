#include "carillon/schedule/state/executor.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {

void Executor::push(ActionId id, ModelId model, TimePoint earliest, Duration expected) {
  auto place = pending_.end();
  while (place != pending_.begin() && (place - 1)->earliest > earliest) --place;
  pending_.insert(place, Pending{id, model, earliest, expected, {}});
  recompute();
}

void Executor::remove(ActionId id, TimePoint free) {
  const auto found =
      std::find_if(pending_.begin(), pending_.end(), [id](const Pending& p) { return p.id == id; });
  CARILLON_ASSERT(found != pending_.end());
  pending_.erase(found);
  free_from_ = free;
  recompute();
}

void Executor::recompute() {
  TimePoint t = free_from_;
  for (Pending& p : pending_) {
    t = saturating_add(std::max(t, p.earliest), p.expected);
    p.end = t;
  }
}

TimePoint Executor::end_of(std::size_t count, TimePoint now) const {
  if (count == 0) return now;
  if (pending_.front().end >= now) return pending_[count - 1].end;
  TimePoint t = now;
  for (std::size_t i = 1; i < count; ++i)
    t = saturating_add(std::max(t, pending_[i].earliest), pending_[i].expected);
  return t;
}

TimePoint Executor::end_of(ActionId id, TimePoint now) const {
  for (std::size_t i = 0; i < pending_.size(); ++i)
    if (pending_[i].id == id) return end_of(i + 1, now);
  CARILLON_ASSERT(!"an action that is not pending");
}

}  // namespace carillon::schedule
