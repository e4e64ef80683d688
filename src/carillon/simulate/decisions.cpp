#include "carillon/simulate/decisions.h"

#include <algorithm>
#include <utility>

#include "carillon/base/cpu_time.h"

namespace carillon::simulate {

void Decisions::add_model(const schedule::ModelInfo& info, Duration shortest) {
  schedule::Actions none;  // there is no device yet
  scheduler_.decide(schedule::model_comes(info), TimePoint{}, none);
  door_.add_model(shortest);
}

void Decisions::call(const schedule::Event& event, TimePoint now, schedule::Actions& actions) {
  ++figures_.decisions;
  const TimePoint wake = scheduler_.decide(event, now, actions);
  if (std::holds_alternative<schedule::Wake>(event)) asked_wake_ = TimePoint::max();
  if (wake != asked_wake_) asks_wake_ = asked_wake_ = wake;
  if (options_.observer != nullptr) options_.observer->on_decision(event, now, actions, wake);
}

// Where decisions take time, the wake that one asks for counts when it is made.
void Decisions::carry_out(schedule::Actions& actions) {
  owner_.carry_out(actions);
  if (const auto wake = std::exchange(asks_wake_, std::nullopt)) owner_.wake_at(*wake);
  actions.clear();
}

void Decisions::hear(const schedule::Event& event, TimePoint now) {
  if (charged_) return queue(event, now);
  schedule::Actions actions = std::move(spare_);  // a decision may come of another's actions
  call(event, now, actions);
  carry_out(actions);
  spare_ = std::move(actions);
}

void Decisions::queue(const schedule::Event& event, TimePoint now) {
  const std::uint64_t place = next_place_++;
  if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
    const Request& request = arrival->request;
    const auto answer = door_.arrive(
        {.key = request.id.value, .model = request.model, .cls = request.cls, .deadline = request.deadline},
        now);
    if (answer.displaced) turn_away(RequestId{*answer.displaced});
    if (answer.in)
      arrivals_.insert(request.id, {event, place});
    else
      turn_away(request.id);
  } else {
    const bool cancel = std::holds_alternative<schedule::RequestCancelled>(event);
    (cancel ? cancels_ : reports_).push_back({event, place});
  }
  if (!thinking_) think(now);
}

// What the scheduler hears next, of all that waits: in order; but where arrivals wait too long, first what
// others report, since work that is done, and devices that are free, wait for that.
std::optional<schedule::Event> Decisions::next(TimePoint now) {
  const auto take = [](std::deque<Mail>& from) {
    schedule::Event event = std::move(from.front().event);
    from.pop_front();
    return event;
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
    return arrivals_.erase(id)->event;
  }
}

// The scheduler never hears of it.
void Decisions::turn_away(RequestId id) {
  owed_ += options_.shed_time;
  arrivals_.erase(id);
  std::erase_if(cancels_, [id](const Mail& mail) {
    return std::get<schedule::RequestCancelled>(mail.event).request == id;
  });
  if (owner_.open(id)) owner_.turned_away(id);
}

// Takes the next event; decided() follows when the decision has taken its time.
void Decisions::think(TimePoint now) {
  const auto event = next(now);
  if (!event) return;
  Duration cost = options_.decision_time;
  if (options_.measured_decisions) {
    const Duration before = thread_cpu_time();
    call(*event, now, thought_);
    cost = thread_cpu_time() - before;
    figures_.decision_times.add(cost);
  } else {
    call(*event, now, thought_);
  }
  thinking_ = true;
  owner_.decided_at(now + cost + std::exchange(owed_, Duration{0}));
}

void Decisions::decided(TimePoint now) {
  if (options_.observer != nullptr) options_.observer->on_decided(now);
  carry_out(thought_);
  thinking_ = false;
  think(now);
}

}  // namespace carillon::simulate
