#include "carillon/roles/offer_queue.h"

#include <algorithm>

namespace carillon::roles {

void OfferQueue::add_model(Duration shortest) {
  shortest_.push_back(shortest);
  door_.add_model(shortest);
}

void OfferQueue::set_shortest(ModelId model, Duration shortest) {
  shortest_[model.index()] = shortest;
  door_.set_shortest(model, shortest);
}

void OfferQueue::begin() {
  door_ = schedule::Door();
  for (const Duration each : shortest_) door_.add_model(each);
  under_way_ = most_ = 0;
}

void OfferQueue::credit(const transport::OfferCredit& credit) {
  under_way_ -= std::min<std::size_t>(under_way_, credit.taken);
  most_ = credit.most;
}

OfferQueue::Answer OfferQueue::arrive(const Request& row, TimePoint now) {
  if (door_.empty() && room() > 0) {
    ++under_way_;
    return {.goes = true};
  }
  const auto answer = door_.arrive(
      {.key = row.id.value, .model = row.model, .cls = row.cls, .rows = 1, .deadline = row.deadline}, now);
  Answer out{.in = answer.in, .hurried = answer.hurried};
  if (answer.displaced) out.displaced = RequestId{*answer.displaced};
  return out;
}

std::vector<OfferQueue::Next> OfferQueue::next(TimePoint now) {
  std::vector<schedule::Door::Taken> taken;
  if (room() > 0) door_.take(room(), now, taken);
  std::vector<Next> out;
  for (const auto& each : taken) {
    out.push_back({RequestId{each.key}, each.turned_away, each.hurried});
    under_way_ += each.turned_away ? 0 : 1;
  }
  return out;
}

}  // namespace carillon::roles
