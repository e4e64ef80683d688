#include "carillon/simulate/decisions.h"

#include <algorithm>
#include <utility>

namespace carillon::simulate {

void Decisions::hear(Heard what, TimePoint now) {
  const std::uint64_t place = next_place_++;
  if (const auto* arrival = std::get_if<schedule::RequestArrived>(&what)) {
    const Request& request = arrival->request;
    const auto answer = door_.arrive(
        {.key = request.id.value, .model = request.model, .cls = request.cls, .deadline = request.deadline},
        now);
    if (answer.displaced) turn_away(RequestId{*answer.displaced});
    if (answer.in)
      arrivals_.insert(request.id, {std::move(what), place});
    else
      turn_away(request.id);
  } else {
    const bool cancel = std::holds_alternative<schedule::RequestCancelled>(what);
    (cancel ? cancels_ : reports_).push_back({std::move(what), place});
  }
  if (!thinking_) think(now);
}

// What the dispatcher hears next, of all that waits: in order; but where arrivals wait too long, first what
// others report, since work that is done, and devices that are free, wait for that.
std::optional<Heard> Decisions::next(TimePoint now) {
  const auto take = [](std::deque<Mail>& from) {
    Heard what = std::move(from.front().what);
    from.pop_front();
    return what;
  };
  constexpr std::uint64_t never = ~std::uint64_t{0};
  const auto place_in = [](const std::deque<Mail>& mail) {
    return mail.empty() ? never : mail.front().place;
  };
  while (true) {
    const std::uint64_t arrival = door_.empty() ? never : arrivals_.find(RequestId{door_.oldest()})->place;
    const std::uint64_t report = place_in(reports_), cancel = place_in(cancels_);
    if (report != never && (report < std::min(arrival, cancel) || door_.lagging(now))) return take(reports_);
    if (cancel < arrival) return take(cancels_);
    taken_.clear();
    door_.take(1, now, taken_);
    if (taken_.empty()) return std::nullopt;
    const RequestId id{taken_.front().key};
    if (taken_.front().turned_away) {
      turn_away(id);
      continue;
    }
    return arrivals_.erase(id)->what;
  }
}

// The dispatcher never hears of it.
void Decisions::turn_away(RequestId id) {
  owed_ += shed_time_;
  arrivals_.erase(id);
  std::erase_if(cancels_, [id](const Mail& mail) {
    return std::get<schedule::RequestCancelled>(mail.what).request == id;
  });
  if (owner_.open(id)) owner_.turned_away(id);
}

// Takes the next; decided() follows when that has taken its time.
void Decisions::think(TimePoint now) {
  const auto what = next(now);
  if (!what) return;
  thinking_ = true;
  owner_.decided_at(now + owner_.decide(*what) + std::exchange(owed_, Duration{0}));
}

}  // namespace carillon::simulate
