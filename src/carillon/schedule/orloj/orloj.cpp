#include "carillon/schedule/orloj/orloj.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "carillon/schedule/orloj/split.h"

namespace carillon::schedule {
namespace {

constexpr double base_exponent = 30;  // the base moves when b * t has grown to it
constexpr std::size_t all_levels = 8;
// Of what has no deadline: after all others.
constexpr TimePoint last_candidate = TimePoint::max() - Duration{1};
constexpr double as_learned = 1.5;  // a trial that takes within so many times what was learned confirms it

// The places of the batch sizes that have a queue: all, or where they are many, each about twice the last.
std::vector<int> levels_of(const std::vector<BatchProfile>& batches) {
  std::vector<int> levels;
  const auto count = static_cast<int>(batches.size());
  for (int i = 0; i < count; ++i) {
    const auto& last = levels.empty() ? batches.front() : batches[static_cast<std::size_t>(levels.back())];
    const bool far = batches[static_cast<std::size_t>(i)].batch >= 2 * last.batch;
    if (batches.size() <= all_levels || i == 0 || far || i == count - 1) levels.push_back(i);
  }
  return levels;
}

}  // namespace

void Orloj::add_model(const ModelInfo& model) {
  const std::vector<int> levels = levels_of(model.batches);
  std::vector<int> sizes, level_at(model.batches.size(), -1);
  for (const int place : levels) {
    level_at[static_cast<std::size_t>(place)] = static_cast<int>(sizes.size());
    sizes.push_back(model.batches[static_cast<std::size_t>(place)].batch);
  }
  Model made{.estimates = orloj::Estimates(model, options_, std::move(sizes)),
             .seeds = model.batches,
             .levels = levels,
             .level_at = std::move(level_at),
             .queues = std::vector<Queue>(levels.size()),
             .waiting = {},
             .free = {},
             .slots = {},
             .arrivals = {},
             .by_deadline = {}};
  if (model.id.index() == models_.size()) {
    models_.push_back(std::move(made));
    return;
  }
  std::erase(sweeping_, model.id);
  at(model.id) = std::move(made);
}

void Orloj::profiled(const RequestProfiled& sample, TimePoint now) {
  at(sample.model).estimates.sampled(sample.app, sample.solo, now);
  touched_.push_back(sample.model);
}

void Orloj::reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint now) {
  if (flight.outdated) return;
  touched_.push_back(flight.model);
  if (done.status == ActionStatus::success)
    for (const Request& request : flight.requests) profiler_.answered(request.id);
  const bool tried = trying_ && trying_->action == done.id;
  // Of one that a client has left meanwhile not all members are known.
  const int size = fleet_.batch_size(flight.model, flight.batch_index);
  if (done.status == ActionStatus::success && !flight.other_times &&
      static_cast<int>(flight.requests.size()) == size) {
    members_.clear();
    for (const Request& request : flight.requests) members_.push_back(request.app);
    heed_threads(flight, done);
    orloj::Estimates& estimates = at(flight.model).estimates;
    estimates.ran(members_, done.duration, now);
    if (tried) {
      const double ratio = to_ms(done.duration) / std::max(1e-6, to_ms(trying_->expected));
      estimates.tried(members_.front(), ratio < as_learned && ratio * as_learned > 1);
    }
  }
  if (!tried) return;
  const Duration pause = from_ns(static_cast<double>(done.duration.count()) * (1 / options_.trial_share - 1) /
                                 static_cast<double>(std::max<std::size_t>(1, fleet_.alive_count())));
  trial_not_before_ = saturating_add(now, pause);
  trying_.reset();
}

// Scores of all that waits are made anew at once: it may go in larger batches now.
void Orloj::times_changed(ModelId id, TimePoint now) {
  Model& m = at(id);
  const ModelInfo& info = fleet_.model(id);
  if (m.seeds == info.batches) return;
  const Duration before = m.seeds.front().exec, one = info.batches.front().exec;
  const double factor = before == one ? 1
                                      : static_cast<double>(std::max(Duration{1}, one).count()) /
                                            static_cast<double>(std::max(Duration{1}, before).count());
  m.seeds = info.batches;
  if (before != one) profiler_.changed(id);
  m.estimates.change_times(info, factor, now);
  for (std::uint32_t slot = 0; slot < m.waiting.size(); ++slot)
    if (m.waiting[slot].used) score(m, slot, std::max(now, base_));
  settle(id);
}

// The first batch, of members_, that the device ran with another number of threads tells by how much all is
// slower or quicker from now on. One run may be odd: no more than twice what the numbers of threads account
// for is believed (as Mirror::begin_other_pace() has it); the Pace finds the rest. O(models); numbers change
// seldom.
void Orloj::heed_threads(const Fleet::Flight& flight, const ActionDone& done) {
  if (done.threads <= 0) return;
  threads_.resize(std::max(threads_.size(), flight.device.index() + 1));
  int& threads = threads_[flight.device.index()];
  // One of requests that are hardly known tells nothing: the next may.
  const bool tells = threads != 0 && threads != done.threads && at(flight.model).estimates.knows(members_);
  if (threads != 0 && threads != done.threads && !tells) return;
  const int before = std::exchange(threads, done.threads);
  if (!tells) return;
  const double most = 2.0 * std::max(before, done.threads) / std::min(before, done.threads);
  const double factor =
      std::clamp(at(flight.model).estimates.slowdown(members_, done.duration), 1 / most, most);
  for (std::size_t i = 0; i < models_.size(); ++i) {
    models_[i].estimates.rescale(factor);
    touched_.push_back(ModelId{static_cast<std::uint32_t>(i)});
  }
}

// -- queues

void Orloj::put(Model& m, std::uint32_t slot, int level, TimePoint start) {
  const auto i = static_cast<std::size_t>(level);
  Waiting& w = m.waiting[slot];
  Queue& queue = m.queues[i];
  InQueue& in = w.queues[i];
  const orloj::Estimates::BatchTime& time = m.estimates.batch(w.request.app, i);
  in.last_start = saturating_add(w.request.deadline, -time.estimate - fleet_.environment().answer);
  if (level > 0 && in.last_start < start) return;
  // Without a deadline there is nothing to lose, and no hurry.
  orloj::Score score{.point = {0, 0}, .until = HUGE_VAL};
  if (w.request.deadline < TimePoint::max()) {
    const orloj::CostStep step{ms(w.request.deadline), 1};
    score = orloj::score_of(time.bins, time.mean, {&step, 1}, options_.b, ms(start));
  }
  in.until =
      score.until < HUGE_VAL ? saturating_add(base_, from_ms(score.until) + Duration{1}) : TimePoint::max();
  in.there = true;
  queue.hull.insert(slot, score.point);
  queue.last_starts.set(slot, in.last_start);
  queue.deadlines.set(slot, w.request.deadline);
  if (in.until < TimePoint::max()) queue.milestones.set(slot, in.until);
}

void Orloj::take_out(Model& m, std::uint32_t slot, int level) {
  const auto i = static_cast<std::size_t>(level);
  Waiting& w = m.waiting[slot];
  InQueue& in = w.queues[i];
  if (!in.there) return;
  in.there = false;
  Queue& queue = m.queues[i];
  queue.hull.erase(slot);
  queue.last_starts.remove(slot);
  queue.deadlines.remove(slot);
  queue.milestones.remove(slot);
}

// By what is known now, in all queues.
void Orloj::score(Model& m, std::uint32_t slot, TimePoint start) {
  const auto levels = static_cast<int>(m.queues.size());
  for (int i = 0; i < levels; ++i) take_out(m, slot, i);
  for (int i = 0; i < levels; ++i) put(m, slot, i, start);
  m.waiting[slot].scored = m.estimates.version();
}

void Orloj::forget(Model& m, std::uint32_t slot) {
  for (int i = 0; i < static_cast<int>(m.queues.size()); ++i) take_out(m, slot, i);
  Waiting& w = m.waiting[slot];
  m.arrivals.remove(slot);
  m.by_deadline.erase({w.request.deadline, slot});
  m.slots.erase(w.request.id);
  w.used = false;
  --waiting_;
  m.free.push_back(slot);
}

// A model's queues have changed: so may its place among the models.
void Orloj::settle(ModelId id) {
  Model& m = at(id);
  const TimerHeap& first = m.queues.front().last_starts;
  if (first.empty())
    due_.remove(id.value);
  else
    due_.set(id.value, saturating_add(first.top_at(), Duration{1} - fleet_.environment().dispatch));
  const Candidate own = candidate(id);
  const TimePoint deadline = own.level < 0 ? TimePoint::max() : std::min(own.deadline, last_candidate);
  if (deadline != m.candidate) {
    if (m.candidate < TimePoint::max()) candidates_.erase({m.candidate, id});
    if (deadline < TimePoint::max()) candidates_.emplace(deadline, id);
    m.candidate = deadline;
  }
  tell_waiting(id);
}

Orloj::Candidate Orloj::candidate(ModelId id) const {
  const Model& m = models_[id.index()];
  Candidate best;
  for (int i = 0; i < static_cast<int>(m.queues.size()); ++i) {
    const Queue& queue = m.queues[static_cast<std::size_t>(i)];
    if (queue.hull.size() < static_cast<std::size_t>(size_of(id, i))) continue;
    const TimePoint deadline = queue.deadlines.top_at();
    const bool better = best.level < 0 || deadline == best.deadline ||
                        (options_.urgent_first ? deadline < best.deadline : deadline > best.deadline);
    if (better) best = {i, deadline};
  }
  return best;
}

void Orloj::enqueue(const Request& request, TimePoint now) {
  Model& m = at(request.model);
  m.estimates.arrived(request.app);
  std::uint32_t slot = 0;
  if (m.free.empty()) {
    slot = static_cast<std::uint32_t>(m.waiting.size());
    m.waiting.emplace_back().queues.resize(m.queues.size());
  } else {
    slot = m.free.back();
    m.free.pop_back();
  }
  m.waiting[slot].request = request;
  m.waiting[slot].used = true;
  ++waiting_;
  m.arrivals.set(slot, request.arrival);
  m.by_deadline.emplace(request.deadline, slot);
  m.slots.insert(request.id, slot);
  score(m, slot, std::max(now, base_));
  settle(request.model);
}

bool Orloj::remove(RequestId id, ModelId model) {
  profiler_.gone(id);
  if (trial_ && trial_->id == id) {
    trial_.reset();
    return true;
  }
  Model& m = at(model);
  const std::uint32_t* slot = m.slots.find(id);
  if (slot == nullptr) return false;
  forget(m, *slot);
  settle(model);
  return true;
}

void Orloj::take_all(ModelId model, std::vector<Request>& taken) {
  profiler_.changed(model);
  Model& m = at(model);
  for (std::uint32_t slot = 0; slot < m.waiting.size(); ++slot)
    if (m.waiting[slot].used) {
      taken.push_back(m.waiting[slot].request);
      forget(m, slot);
    }
  if (trial_ && trial_->model == model) {
    taken.push_back(*trial_);
    trial_.reset();
  }
  settle(model);
}

TimePoint Orloj::waiting_since(ModelId model) const {
  const TimePoint oldest = models_[model.index()].arrivals.top_at();
  return trial_ && trial_->model == model ? std::min(oldest, trial_->arrival) : oldest;
}

// -- what is done a little at a time

// By a power of two, which leaves the hulls as they are. After a long time without an event nothing waits, or
// nothing of which the scores are worth keeping.
void Orloj::move_base(TimePoint now) {
  if (options_.b * ms(now) <= base_exponent) return;
  const double doublings = std::floor(options_.b * ms(now) / std::numbers::ln2);
  const bool anew = doublings > 4 * base_exponent;
  base_ = anew ? now : base_ + from_ms(doublings * std::numbers::ln2 / options_.b);
  for (Model& m : models_) {
    if (m.slots.size() == 0) continue;
    if (!anew)
      for (Queue& queue : m.queues) queue.hull.scale_alpha(std::ldexp(1.0, static_cast<int>(doublings)));
    else
      for (std::uint32_t slot = 0; slot < m.waiting.size(); ++slot)
        if (m.waiting[slot].used) score(m, slot, now);
  }
}

// True where that took its time.
bool Orloj::refresh(ModelId id, TimePoint now) {
  Model& m = at(id);
  const bool renewed = m.estimates.refresh(now);
  if (m.estimates.version() == m.sweep_of) return renewed;
  m.sweep_of = m.estimates.version();
  m.sweep_left = m.waiting.size();
  if (m.sweeping || m.slots.size() == 0) return renewed;
  m.sweeping = true;
  sweeping_.push_back(id);
  return renewed;
}

// Scores of a few that wait are made anew.
void Orloj::sweep(TimePoint now) {
  int scores = options_.most_scored;
  int looks = 4 * options_.most_scored;
  while (!sweeping_.empty() && scores > 0 && looks > 0) {
    const ModelId id = sweeping_.front();
    Model& m = at(id);
    for (; m.sweep_left > 0 && scores > 0 && looks > 0; --m.sweep_left, --looks) {
      const auto slot = static_cast<std::uint32_t>(m.sweep_at++ % m.waiting.size());
      if (!m.waiting[slot].used || m.waiting[slot].scored == m.estimates.version()) continue;
      score(m, slot, std::max(now, base_));
      --scores;
    }
    settle(id);
    if (m.sweep_left > 0) continue;
    m.sweeping = false;
    sweeping_.pop_front();
  }
}

// Refuses what could not be on time on any device, a bounded number at once.
void Orloj::expire(TimePoint now, Actions& out) {
  const TimePoint soonest = now + fleet_.environment().dispatch;
  int left = options_.most_refused;
  while (due_.top_at() <= now && left > 0) {
    const ModelId id{due_.top()};
    const TimerHeap& first = at(id).queues.front().last_starts;
    for (; left > 0 && first.top_at() < soonest; --left) drop(id, first.top(), now, out);
    settle(id);
  }
}

// Scores whose milestones have passed are made anew, and what is too late for a batch size leaves its queue.
void Orloj::bring_up_to_date(ModelId id, TimePoint start, TimePoint now, Actions& out) {
  Model& m = at(id);
  int left = options_.most_scored;
  for (int i = static_cast<int>(m.queues.size()); i-- > 0;) {
    Queue& queue = m.queues[static_cast<std::size_t>(i)];
    for (; left > 0 && queue.last_starts.top_at() < start; --left) {
      const std::uint32_t slot = queue.last_starts.top();
      if (i == 0)
        drop(id, slot, now, out);
      else if (m.waiting[slot].scored != m.estimates.version())
        score(m, slot, std::max(now, base_));
      else
        take_out(m, slot, i);
    }
    for (; left > 0 && queue.milestones.top_at() <= start; --left) {
      const std::uint32_t slot = queue.milestones.top();
      take_out(m, slot, i);
      put(m, slot, i, start);
    }
  }
  settle(id);
}

// By its scores it is too late for a request: it is refused, if it is by what is known now.
void Orloj::drop(ModelId id, std::uint32_t slot, TimePoint now, Actions& out) {
  Model& m = at(id);
  if (m.waiting[slot].scored != m.estimates.version()) {
    score(m, slot, std::max(now, base_));
    if (m.waiting[slot].queues.front().last_start >= now + fleet_.environment().dispatch) return;
  }
  const Request request = m.waiting[slot].request;
  forget(m, slot);
  if (worth_a_trial(request, now))
    trial_ = request;
  else
    refuse(request, now, out);
}

bool Orloj::worth_a_trial(const Request& request, TimePoint now) const {
  return !trial_ && !trying_ && now >= trial_not_before_ && request.deadline > now &&
         models_[request.model.index()].estimates.worth_a_trial(request.app, now);
}

void Orloj::try_out(TimePoint now, Actions& out) {
  if (trying_ && !fleet_.current(trying_->action))
    trying_.reset();  // it went with its device, or its model changed
  if (!trial_) return;
  const Request request = *trial_;
  if (request.deadline <= now) {
    trial_.reset();
    tell_waiting(request.model);
    return refuse(request, now, out);
  }
  for (std::size_t d = 0; d < fleet_.device_count(); ++d) {
    const DeviceId device{static_cast<std::uint32_t>(d)};
    if (!ready(device, now) || !fleet_.loaded(device, request.model)) continue;
    trial_.reset();
    const TimePoint earliest = std::max(now, start_on(device, now) - fleet_.environment().dispatch);
    const Duration expected = estimate(request.model, request.app, 0);
    if (fleet_.model(request.model).time_varies) profiler_.sent(request, out);
    trying_ = {fleet_.send(device, request.model, 0, {request},
                           {earliest, std::max(request.deadline, earliest)}, now, out),
               expected};
    tell_waiting(request.model);
    return;
  }
}

// -- what runs

Duration Orloj::estimate(ModelId id, AppId app, int index) {
  Model& m = at(id);
  const int level = m.level_at[static_cast<std::size_t>(index)];
  return level < 0 ? m.estimates.estimate(app, fleet_.batch_size(id, index))
                   : m.estimates.batch(app, static_cast<std::size_t>(level)).estimate;
}

bool Orloj::in_time(ModelId id, std::uint32_t slot, int index, TimePoint start) {
  const Request& request = at(id).waiting[slot].request;
  return saturating_add(start + estimate(id, request.app, index), fleet_.environment().answer) <=
         request.deadline;
}

// All that waits for the model would be on time, by the estimates of batches, if it ran in the order of
// deadlines from `start` on, first in a batch of the chosen size. Costs O(options' most_in_order).
bool Orloj::can_go_in_order(ModelId id, int index, TimePoint start) {
  Model& m = at(id);
  const auto& waiting = m.by_deadline;
  if (waiting.size() > options_.most_in_order) return false;
  std::size_t left = waiting.size();
  for (auto next = waiting.begin(); left > 0;) {
    if (left < waiting.size()) index = fleet_.batch_index(id, left);
    const auto size = std::min(left, static_cast<std::size_t>(fleet_.batch_size(id, index)));
    const TimePoint deadline = next->first;
    Duration longest{0};
    AppId last{~std::uint32_t{0}};
    for (std::size_t k = 0; k < size; ++k, ++next) {
      const AppId app = m.waiting[next->second].request.app;
      if (app != last) longest = std::max(longest, estimate(id, app, index));
      last = app;
    }
    start += longest;
    if (saturating_add(start, fleet_.environment().answer) > deadline) return false;
    left -= size;
  }
  return true;
}

// Into best_, at most `count`, those that would be on time at this level.
void Orloj::most_urgent(ModelId id, int level, std::size_t count, TimePoint start) {
  const Model& m = at(id);
  const auto i = static_cast<std::size_t>(level);
  for (const auto& [_, slot] : m.by_deadline) {
    const InQueue& in = m.waiting[slot].queues[i];
    if (in.there && in.last_start >= start) best_.push_back(slot);
    if (best_.size() == count) break;
  }
}

// Likewise. What is too late leaves the queue.
void Orloj::highest_scores(ModelId id, int level, std::size_t count, TimePoint start) {
  Model& m = at(id);
  const auto i = static_cast<std::size_t>(level);
  Queue& queue = m.queues[i];
  const double x = std::exp(options_.b * ms(start));
  std::vector<orloj::DynamicHull::Point> points;
  while (best_.size() < count && !queue.hull.empty()) {
    const std::uint32_t slot = *queue.hull.top(x);
    if (m.waiting[slot].queues[i].last_start < start && level > 0) {
      take_out(m, slot, level);
      continue;
    }
    best_.push_back(slot);
    points.push_back(queue.hull.at(slot));
    queue.hull.erase(slot);
  }
  for (std::size_t k = 0; k < best_.size(); ++k) queue.hull.insert(best_[k], points[k]);
}

// best_ are the most urgent, the first of all in front. Keeps those that go with the first where two batches
// are quicker than one, and returns the place of their number.
int Orloj::of_a_kind(ModelId id) {
  const Model& m = at(id);
  const auto solo = [&](std::uint32_t slot) { return m.estimates.solo(m.waiting[slot].request.app); };
  solos_.clear();
  for (const std::uint32_t slot : best_) solos_.push_back(solo(slot));
  const orloj::Company company = orloj::quickest_company(solos_, m.estimates.cost());
  std::erase_if(best_, [&](std::uint32_t slot) { return !company.admits(solo(slot)); });
  const int index = fleet_.batch_index(id, best_.size());
  best_.resize(static_cast<std::size_t>(fleet_.batch_size(id, index)));
  return index;
}

// best_ are the requests of the highest scores, the best first. Longer requests than the first may hold up
// the others more than they are worth, and shorter ones may wait for a batch of their own: keeps those, the
// first among them, that make the most answers a second, and returns the place of their number.
int Orloj::without_stragglers(ModelId id, int index) {
  const Model& m = at(id);
  const auto solo = [&](std::uint32_t slot) { return m.estimates.solo(m.waiting[slot].request.app); };
  if (best_.size() == 1) return index;
  const double own = solo(best_.front());
  std::vector<double>& limits = solos_;  // the longest that may come along
  limits.clear();
  for (const std::uint32_t slot : best_)
    if (solo(slot) >= own) limits.push_back(solo(slot));
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  double most = 0;
  int most_index = index;
  double most_limit = limits.back();
  for (const double limit : limits) {
    const auto fitting = static_cast<std::size_t>(
        std::count_if(best_.begin(), best_.end(), [&](std::uint32_t slot) { return solo(slot) <= limit; }));
    const int place = fleet_.batch_index(id, fitting);
    const int size = fleet_.batch_size(id, place);
    const double each = size / m.estimates.cost().of(size, limit);
    if (each > most * 1.0001) {
      most = each;
      most_index = place;
      most_limit = limit;
    }
  }
  std::erase_if(best_, [&](std::uint32_t slot) { return solo(slot) > most_limit; });
  best_.resize(static_cast<std::size_t>(fleet_.batch_size(id, most_index)));
  return most_index;
}

// False where nothing that waits for the model would be on time by now.
bool Orloj::run(DeviceId device, ModelId id, TimePoint now, Actions& out) {
  Model& m = at(id);
  const Candidate chosen = candidate(id);
  if (chosen.level < 0) return false;
  const TimePoint start = start_on(device, now);
  // Up to the next level there may be batch sizes without a queue.
  const auto level = static_cast<std::size_t>(chosen.level);
  const int own = m.levels[level];
  const int beyond = level + 1 < m.levels.size() ? m.levels[level + 1] : own + 1;
  const std::size_t there = m.queues[level].hull.size();
  int index = std::min(fleet_.batch_index(id, there), beyond - 1);
  const bool in_order = can_go_in_order(id, index, start);
  const auto pick = [&](int place) {
    best_.clear();
    const auto count = static_cast<std::size_t>(fleet_.batch_size(id, place));
    in_order ? most_urgent(id, chosen.level, count, start) : highest_scores(id, chosen.level, count, start);
  };
  pick(index);
  if (index > own && !std::all_of(best_.begin(), best_.end(),
                                  [&](std::uint32_t slot) { return in_time(id, slot, index, start); })) {
    index = own;
    pick(index);
  }
  if (best_.empty()) return false;
  index = fleet_.batch_index(id, best_.size());
  best_.resize(static_cast<std::size_t>(fleet_.batch_size(id, index)));
  index = in_order ? of_a_kind(id) : without_stragglers(id, index);
  std::vector<Request> requests;
  TimePoint latest = TimePoint::max();
  for (const std::uint32_t slot : best_) {
    const Request& request = requests.emplace_back(m.waiting[slot].request);
    latest = std::min(latest, saturating_add(request.deadline, -estimate(id, request.app, index) -
                                                                   fleet_.environment().answer));
    forget(m, slot);
  }
  if (fleet_.model(id).time_varies)
    for (const Request& request : requests) profiler_.sent(request, out);
  const TimePoint earliest = std::max(now, start - fleet_.environment().dispatch);
  fleet_.send(device, id, index, std::move(requests), {earliest, std::max(latest, earliest)}, now, out);
  settle(id);
  return true;
}

// Sends one batch, of the model whose candidate has the earliest deadline; false where there is none.
bool Orloj::serve(DeviceId device, TimePoint now, Actions& out) {
  for (auto next = candidates_.begin(); next != candidates_.end();) {
    const auto [deadline, id] = *next;
    if (!fleet_.loaded(device, id)) {
      ++next;
      continue;
    }
    bring_up_to_date(id, start_on(device, now), now, out);
    // One that is later now may not be the first any more: its turn comes.
    if (at(id).candidate <= deadline) {
      if (run(device, id, now, out)) return true;
      settle(id);
    }
    next = candidates_.upper_bound({deadline, id});
  }
  return false;
}

void Orloj::step(TimePoint now, Actions& out) {
  if (profiler_.running() && (waiting_ > 0 || trial_)) profiler_.stop(out);
  decide_what_runs(now, out);
  if (profiler_.keeps())
    for (const Action& action : out)
      if (const auto* refused = std::get_if<Refuse>(&action)) profiler_.gone(refused->request);
  profile(now, out);
}

void Orloj::decide_what_runs(TimePoint now, Actions& out) {
  move_base(now);
  expire(now, out);
  try_out(now, out);
  bool sent = false;
  if (!candidates_.empty())
    for (std::size_t d = 0; d < fleet_.device_count(); ++d) {
      const DeviceId device{static_cast<std::uint32_t>(d)};
      while (ready(device, now) && serve(device, now, out)) sent = true;
    }
  // One thing at a time: a decision that has a batch to send leaves the rest to the next.
  if (sent) return;
  while (!touched_.empty()) {
    const ModelId id = touched_.back();
    touched_.pop_back();
    if (refresh(id, now)) return;
  }
  sweep(now);
}

// -- what is run again

bool Orloj::anything_else_to_do() const {
  if (waiting_ > 0 || trial_) return true;
  for (std::size_t d = 0; d < fleet_.device_count(); ++d)
    if (fleet_.pending(DeviceId{static_cast<std::uint32_t>(d)}) > 0) return true;
  return false;
}

void Orloj::profile(TimePoint now, Actions& out) {
  constexpr Duration within = 1ms;  // else it comes too late, and has another turn
  if (profiler_.waits() && !profiler_.running() && !anything_else_to_do()) {
    const orloj::Profiler::Sample sample = profiler_.next();
    const std::size_t count = fleet_.device_count();
    std::size_t tried = 0;
    while (tried < count &&
           !fleet_.loaded(DeviceId{static_cast<std::uint32_t>(profile_on_ % count)}, sample.model)) {
      ++profile_on_;
      ++tried;
    }
    if (tried < count) {
      const DeviceId device{static_cast<std::uint32_t>(profile_on_++ % count)};
      const ActionId id = fleet_.new_action();
      profiler_.begin(id, device);
      out.emplace_back(Profile{.id = id,
                               .device = device,
                               .model = sample.model,
                               .request = sample.request,
                               .window = {now, now + fleet_.environment().dispatch + within},
                               .expected = estimate(sample.model, sample.app, 0)});
    } else {
      profiler_.drop();  // its model is nowhere
    }
  }
  profiler_.tidy(out);
}

bool Orloj::reported_otherwise(const ActionDone& done, TimePoint now) {
  if (!profiler_.runs(done.id)) return false;
  if (const auto sample = profiler_.ended(done.status))
    profiled({sample->model, sample->app, done.duration}, now);
  return true;
}

void Orloj::device_changed(DeviceId device, TimePoint) {
  profiler_.restarted(device);
}

TimePoint Orloj::wake_at(TimePoint now) const {
  TimePoint at = due_.top_at();
  if (trial_) at = std::min(at, trial_->deadline);
  if ((trial_ || !candidates_.empty()) && fleet_.environment().dispatch > Duration{0})
    for (std::size_t i = 0; i < fleet_.device_count(); ++i)
      at = std::min(at, ready_at(DeviceId{static_cast<std::uint32_t>(i)}, now));
  return at;
}

}  // namespace carillon::schedule
