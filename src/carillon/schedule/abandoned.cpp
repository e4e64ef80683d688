#include "carillon/schedule/abandoned.h"

#include <algorithm>
#include <variant>

namespace carillon::schedule {

TimePoint EndsAbandoned::decide(const Event& event, TimePoint now, Actions& out) {
  if (const auto* done = std::get_if<ActionDone>(&event))
    ended(done->id);
  else if (const auto* change = std::get_if<DeviceChanged>(&event))
    lost(change->device);
  const std::size_t seen = out.size();
  const TimePoint wake = policy_->decide(event, now, out);
  for (std::size_t i = seen; i < out.size(); ++i) {
    if (const auto* infer = std::get_if<Infer>(&out[i]))
      sent(*infer);
    else if (const auto* up = std::get_if<GiveUp>(&out[i]))
      lost(up->device);
  }
  // After the policy, which may have given the device up or stopped the INFER itself.
  if (const auto* gone = std::get_if<RequestCancelled>(&event)) left(*gone, out);
  return wake;
}

void EndsAbandoned::sent(const Infer& infer) {
  const std::uint32_t index = flights_.take();
  Flight& flight = flights_[index];
  flight.id = infer.id;
  flight.device = infer.device;
  flight.model = infer.model;
  flight.requests.assign(infer.requests.begin(), infer.requests.end());
  by_id_.insert(infer.id, index);
  if (infer.model.index() >= by_model_.size()) by_model_.resize(infer.model.index() + 1);
  by_model_[infer.model.index()].push_back(index);
}

void EndsAbandoned::ended(ActionId id) {
  if (const auto index = by_id_.erase(id)) forget(*index);
}

void EndsAbandoned::forget(std::uint32_t flight) {
  std::erase(by_model_[flights_[flight].model.index()], flight);
  flights_.give_back(flight);
}

// What a device had that went, or starts anew, is not reported.
void EndsAbandoned::lost(DeviceId device) {
  for (auto& flights : by_model_)
    std::erase_if(flights, [&](std::uint32_t index) {
      if (flights_[index].device != device) return false;
      by_id_.erase(flights_[index].id);
      flights_.give_back(index);
      return true;
    });
}

void EndsAbandoned::left(const RequestCancelled& gone, Actions& out) {
  if (gone.model.index() >= by_model_.size()) return;
  for (const std::uint32_t index : by_model_[gone.model.index()]) {
    Flight& flight = flights_[index];
    if (std::erase(flight.requests, gone.request) == 0) continue;
    if (flight.requests.empty()) out.emplace_back(Stop{flight.id, flight.device});
    return;  // a request is in one INFER at a time
  }
}

}  // namespace carillon::schedule
