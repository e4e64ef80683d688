#include "carillon/schedule/door.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

// A shorter time to spare counts an eighth, a longer one a thousandth: hurried requests are seen even where
// they are few, and those who have gone are forgotten after some thousand others.
constexpr std::int64_t shorter_weighs = 8, longer_weighs = 1024;
// Decision times are averaged over about sixteen; one (the thread was away) counts at most eight times the
// mean.
constexpr std::int64_t decisions_averaged = 16, longest_decision = 8;

}  // namespace

TimePoint Door::useful_until(const Arrival& arrival) const {
  if (arrival.deadline == TimePoint::max()) return TimePoint::max();
  return saturating_add(arrival.deadline, -models_[arrival.model.index()].shortest);
}

std::optional<Door::Answer> Door::knock(const Arrival& arrival, TimePoint now) {
  CARILLON_ASSERT(arrival.model.index() < models_.size() && arrival.rows >= 1);
  const TimePoint useful_until = this->useful_until(arrival);
  if (useful_until > now)
    observe_spare(useful_until >= saturating_add(now, options_.patience) ? options_.patience
                                                                         : useful_until - now);
  note_lag(now);
  const Duration lag = each_ * static_cast<std::int64_t>(rows_ + in_hand_);
  if (rows_ > 0 && useful_until >= now && saturating_add(now, lag) > useful_until)
    return Answer{.in = false, .hurried = rows_ + in_hand_ <= options_.least};
  if (full_for(arrival) && !to_displace(arrival)) return Answer{.in = false};
  return std::nullopt;
}

Door::Answer Door::enter(const Arrival& arrival, TimePoint now) {
  Answer answer;
  if (full_for(arrival)) {
    answer.displaced = displace(arrival);
    if (!answer.displaced) return {.in = false};
  }
  queue_.push_back({arrival.key, arrival.model, arrival.cls, arrival.rows, now, useful_until(arrival)});
  add(arrival.model, arrival.cls, arrival.rows);
  return answer;
}

void Door::take(std::size_t most, TimePoint now, std::vector<Taken>& out) {
  if (taken_at_ && in_hand_ > 0) {
    Duration each = (now - *taken_at_) / static_cast<std::int64_t>(in_hand_);
    if (each_ == Duration{0}) {
      each_ = each;
    } else {
      each = std::min(each, longest_decision * each_);
      each_ += (each - each_) / decisions_averaged;
    }
  }
  in_hand_ = 0;
  note_lag(now);
  bool any = false;
  const bool few = rows_ <= options_.least;
  for (std::size_t i = 0; i < most && rows_ > 0; ++i) {
    const Waiting next = queue_.front();
    queue_.pop_front();
    remove(next.model, next.cls, next.rows);
    drop_gone();
    const bool late = next.came <= next.useful_until && next.useful_until < now;
    out.push_back({next.key, late, late && few});
    if (!late) in_hand_ += next.rows;
    any = true;
  }
  if (any) {
    taken_at_ = now;
  } else {  // it idles
    taken_at_.reset();
    overloaded_ = false;
  }
}

// The most rows that may wait while decisions fall behind.
std::size_t Door::limit() const {
  if (each_ <= Duration{0}) return options_.most;
  return std::clamp(static_cast<std::size_t>(target() / each_), options_.least, options_.most);
}

void Door::observe_spare(Duration spare) {
  if (spare_ == Duration{0})
    spare_ = spare;
  else
    spare_ += (spare - spare_) / (spare < spare_ ? shorter_weighs : longer_weighs);
}

void Door::note_lag(TimePoint now) {
  if (rows_ == 0 || now - queue_.front().came <= target()) kept_up_at_ = now;
  if (overloaded_ || spare_ == Duration{0} || now - kept_up_at_ <= spare_) return;
  overloaded_ = true;
  for (TimerHeap& heap : most_waiting_) heap = {};
  for (std::size_t m = 0; m < models_.size(); ++m)
    for (std::size_t cls = 0; cls < classes; ++cls)
      if (models_[m].rows[cls] > 0) list(ModelId{static_cast<std::uint32_t>(m)}, cls);
}

// A model and a class whose newest may lose its place to the arrival: a lower class, or a model with more
// rows.
std::optional<std::pair<ModelId, std::size_t>> Door::to_displace(const Arrival& arrival) const {
  if (!overloaded_) return std::nullopt;
  const auto own = static_cast<std::size_t>(arrival.cls);
  std::size_t cls = classes - 1;
  while (cls > own && rows_of_[cls] == 0) --cls;
  if (rows_of_[cls] == 0) return std::nullopt;
  const ModelId model{most_waiting_[cls].top()};
  const std::size_t has = models_[model.index()].rows[cls];
  if (cls == own && has < models_[arrival.model.index()].rows[own] + arrival.rows + 1) return std::nullopt;
  return std::pair(model, cls);
}

std::optional<Door::Key> Door::displace(const Arrival& arrival) {
  const auto found = to_displace(arrival);
  if (!found) return std::nullopt;
  const auto [model, cls] = *found;
  for (auto waiting = queue_.rbegin(); waiting != queue_.rend(); ++waiting) {
    if (waiting->rows == 0 || waiting->model != model || static_cast<std::size_t>(waiting->cls) != cls)
      continue;
    models_[model.index()].displaced_at[cls] = ++displacements_;
    remove(model, waiting->cls, std::exchange(waiting->rows, 0));
    const Key key = waiting->key;
    drop_gone();
    return key;
  }
  CARILLON_ASSERT(!"a model that has rows waiting has an arrival");
}

void Door::add(ModelId model, Class cls, std::size_t rows) {
  const auto c = static_cast<std::size_t>(cls);
  models_[model.index()].rows[c] += rows;
  rows_of_[c] += rows;
  rows_ += rows;
  if (overloaded_) list(model, c);
}

void Door::remove(ModelId model, Class cls, std::size_t rows) {
  const auto c = static_cast<std::size_t>(cls);
  models_[model.index()].rows[c] -= rows;
  rows_of_[c] -= rows;
  rows_ -= rows;
  if (overloaded_) list(model, c);
}

void Door::list(ModelId model, std::size_t cls) {
  const std::size_t rows = models_[model.index()].rows[cls];
  if (rows == 0)
    most_waiting_[cls].remove(model.value);
  else
    most_waiting_[cls].set(model.value, TimePoint{Duration{models_[model.index()].displaced_at[cls] -
                                                           (static_cast<std::int64_t>(rows) << 32)}});
}

// The front of the queue, where there is one, waits.
void Door::drop_gone() {
  while (!queue_.empty() && queue_.front().rows == 0) queue_.pop_front();
}

}  // namespace carillon::schedule
