#include "carillon/schedule/symphony/rank_machine.h"

namespace carillon::schedule::symphony {

void RankMachine::inform_candidate(ModelId model, const std::optional<Candidate>& candidate) {
  const auto key = model.value;
  if (!candidate) {
    waiting_.remove(key);
    ready_.remove(key);
    return;
  }
  if (key >= order_.size()) order_.resize(key + 1);
  order_[key] = candidate->order;
  ready_.remove(key);
  waiting_.set(key, candidate->exec_at - dispatch_);
}

void RankMachine::inform_device(DeviceId device, TimePoint free_at) {
  const auto key = device.value;
  if (key >= free_at_.size()) free_at_.resize(key + 1, TimePoint::max());
  free_at_[key] = free_at;
  free_.remove(key);
  if (free_at == TimePoint::max())
    busy_.remove(key);
  else
    busy_.set(key, free_at - dispatch_);
}

TimePoint RankMachine::wake_at() const {
  TimePoint at = waiting_.top_at();
  // Devices matter only to candidates that wait for one.
  if (!ready_.empty()) at = std::min(at, busy_.top_at());
  return at;
}

}  // namespace carillon::schedule::symphony
