#include "carillon/schedule/orloj/orloj.h"

#include <algorithm>
#include <cmath>

#include "carillon/schedule/orloj/split.h"

namespace carillon::schedule {
namespace {

constexpr double base_exponent = 30;  // the base moves when b * t has grown to it

}  // namespace

void Orloj::add_model(const ModelInfo& model) {
  Central::add_model(model);
  models_.push_back({.estimates = orloj::Estimates(model, options_),
                     .queues = std::vector<Queue>(model.batches.size()),
                     .waiting = {},
                     .free = {},
                     .slots = {},
                     .by_arrival = {}});
}

Duration Orloj::expected_batch(ModelId id, AppId app, int size) const {
  const auto index = static_cast<std::size_t>(fleet_.batch_index(id, static_cast<std::size_t>(size)));
  return from_ms(models_[id.index()].estimates.batch(app, index).mean);
}

void Orloj::profiled(const RequestProfiled& sample, TimePoint now) {
  models_[sample.model.index()].estimates.sampled(sample.app, sample.solo, now);
}

void Orloj::reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint) {
  // Of one that a client has left meanwhile not all members are known.
  const int size = fleet_.batch_size(flight.model, flight.batch_index);
  if (done.status != ActionStatus::success || static_cast<int>(flight.requests.size()) != size) return;
  members_.clear();
  for (const Request& request : flight.requests) members_.push_back(request.app);
  models_[flight.model.index()].estimates.ran(members_, done.duration);
}

void Orloj::refresh(ModelId id, TimePoint now) {
  if (models_[id.index()].estimates.refresh(now)) rebuild(id, now);
}

void Orloj::put(ModelId id, std::uint32_t slot, int index, TimePoint start) {
  Model& m = models_[id.index()];
  Waiting& w = m.waiting[slot];
  const auto i = static_cast<std::size_t>(index);
  Queue& queue = m.queues[i];
  InQueue& in = w.queues[i];
  const orloj::Estimates::BatchTime& time = m.estimates.batch(w.request.app, i);
  // Without a deadline there is nothing to lose, and no hurry.
  const bool endless = w.request.deadline == TimePoint::max();
  in.last_start = saturating_add(w.request.deadline, -time.estimate - fleet_.environment().answer);
  orloj::Score score{.point = {0, 0}, .until = HUGE_VAL};
  if (!endless) {
    const orloj::CostStep step{ms(w.request.deadline), 1};
    score = orloj::score_of(time.bins, time.mean, {&step, 1}, options_.b, ms(start));
  }
  in.until = score.until;
  in.there = true;
  queue.hull.insert(slot, score.point);
  queue.by_last_start.emplace(in.last_start, slot);
  queue.by_deadline.emplace(w.request.deadline, slot);
  if (in.until < HUGE_VAL) queue.milestones.emplace(in.until, slot);
}

void Orloj::take_out(Model& m, std::uint32_t slot, int index) {
  const auto i = static_cast<std::size_t>(index);
  Waiting& w = m.waiting[slot];
  InQueue& in = w.queues[i];
  if (!in.there) return;
  in.there = false;
  Queue& queue = m.queues[i];
  queue.hull.erase(slot);
  queue.by_last_start.erase({in.last_start, slot});
  queue.by_deadline.erase({w.request.deadline, slot});
  if (in.until < HUGE_VAL) queue.milestones.erase({in.until, slot});
}

void Orloj::insert(ModelId id, std::uint32_t slot, TimePoint start) {
  Model& m = models_[id.index()];
  m.waiting[slot].queues.assign(m.queues.size(), {});
  for (int i = 0; i < static_cast<int>(m.queues.size()); ++i) put(id, slot, i, start);
}

void Orloj::forget(Model& m, std::uint32_t slot) {
  for (int i = 0; i < static_cast<int>(m.queues.size()); ++i) take_out(m, slot, i);
  Waiting& w = m.waiting[slot];
  m.by_arrival.erase({w.request.arrival, slot});
  m.slots.erase(w.request.id);
  w.used = false;
  m.free.push_back(slot);
}

// Distributions or the base have changed: everything that waits is scored anew.
void Orloj::rebuild(ModelId id, TimePoint start) {
  Model& m = models_[id.index()];
  for (Queue& queue : m.queues) queue = Queue{};
  for (std::uint32_t slot = 0; slot < m.waiting.size(); ++slot)
    if (m.waiting[slot].used) insert(id, slot, start);
}

void Orloj::enqueue(const Request& request, TimePoint now) {
  Model& m = models_[request.model.index()];
  if (m.estimates.arrived(request.app)) refresh(request.model, now);
  std::uint32_t slot = 0;
  if (m.free.empty()) {
    slot = static_cast<std::uint32_t>(m.waiting.size());
    m.waiting.emplace_back();
  } else {
    slot = m.free.back();
    m.free.pop_back();
  }
  m.waiting[slot].request = request;
  m.waiting[slot].used = true;
  m.by_arrival.emplace(request.arrival, slot);
  m.slots.insert(request.id, slot);
  insert(request.model, slot, std::max(now, base_));
}

bool Orloj::remove(RequestId id, ModelId model) {
  Model& m = models_[model.index()];
  const std::uint32_t* slot = m.slots.find(id);
  if (slot == nullptr) return false;
  forget(m, *slot);
  return true;
}

void Orloj::take_all(ModelId model, std::vector<Request>& taken) {
  Model& m = models_[model.index()];
  for (std::uint32_t slot = 0; slot < m.waiting.size(); ++slot)
    if (m.waiting[slot].used) {
      taken.push_back(m.waiting[slot].request);
      forget(m, slot);
    }
}

TimePoint Orloj::waiting_since(ModelId model) const {
  const auto& by_arrival = models_[model.index()].by_arrival;
  return by_arrival.empty() ? TimePoint::max() : by_arrival.begin()->first;
}

// Scores whose milestones have passed are made anew, and what is too late for a batch size leaves its queue.
void Orloj::bring_up_to_date(ModelId id, TimePoint start, TimePoint now, Actions& out) {
  Model& m = models_[id.index()];
  const double at = ms(start);
  for (int i = static_cast<int>(m.queues.size()); i-- > 0;) {
    Queue& queue = m.queues[static_cast<std::size_t>(i)];
    while (!queue.by_last_start.empty() && queue.by_last_start.begin()->first < start) {
      const std::uint32_t slot = queue.by_last_start.begin()->second;
      if (i > 0) {
        take_out(m, slot, i);
        continue;
      }
      const Request request = m.waiting[slot].request;
      forget(m, slot);
      refuse(request, now, out);
    }
    while (!queue.milestones.empty() && queue.milestones.begin()->first <= at) {
      const std::uint32_t slot = queue.milestones.begin()->second;
      take_out(m, slot, i);
      put(id, slot, i, start);
    }
  }
}

Orloj::Candidate Orloj::candidate(ModelId id) const {
  const Model& m = models_[id.index()];
  Candidate best{.model = id, .index = -1, .deadline = {}};
  for (int i = 0; i < static_cast<int>(m.queues.size()); ++i) {
    const Queue& queue = m.queues[static_cast<std::size_t>(i)];
    if (queue.hull.size() < static_cast<std::size_t>(fleet_.batch_size(id, i))) continue;
    const TimePoint deadline = queue.by_deadline.begin()->first;
    const bool better = best.index < 0 || deadline == best.deadline ||
                        (options_.urgent_first ? deadline < best.deadline : deadline > best.deadline);
    if (better) {
      best.index = i;
      best.deadline = deadline;
    }
  }
  return best;
}

// All that waits for the model would be on time, by the estimates of batches, if it ran in the order of
// deadlines from `start` on, first in a batch of the chosen size. Costs O(options' most_in_order).
bool Orloj::can_go_in_order(const Candidate& chosen, TimePoint start) const {
  const Model& m = models_[chosen.model.index()];
  const auto& waiting = m.queues.front().by_deadline;
  if (waiting.size() > options_.most_in_order) return false;
  std::size_t left = waiting.size();
  for (auto next = waiting.begin(); left > 0;) {
    const int index = left == waiting.size() ? chosen.index : fleet_.batch_index(chosen.model, left);
    const auto size = static_cast<std::size_t>(fleet_.batch_size(chosen.model, index));
    const TimePoint deadline = next->first;
    Duration longest{0};
    for (std::size_t k = 0; k < size; ++k, ++next) {
      const AppId app = m.waiting[next->second].request.app;
      longest = std::max(longest, m.estimates.batch(app, static_cast<std::size_t>(index)).estimate);
    }
    start += longest;
    if (saturating_add(start, fleet_.environment().answer) > deadline) return false;
    left -= size;
  }
  return true;
}

std::vector<std::uint32_t> Orloj::most_urgent(const Candidate& chosen) const {
  const Queue& queue = models_[chosen.model.index()].queues[static_cast<std::size_t>(chosen.index)];
  std::vector<std::uint32_t> urgent;
  const auto size = static_cast<std::size_t>(fleet_.batch_size(chosen.model, chosen.index));
  for (auto next = queue.by_deadline.begin(); urgent.size() < size; ++next) urgent.push_back(next->second);
  return urgent;
}

std::vector<std::uint32_t> Orloj::highest_scores(const Candidate& chosen, TimePoint start) {
  Queue& queue = models_[chosen.model.index()].queues[static_cast<std::size_t>(chosen.index)];
  const double x = std::exp(options_.b * ms(start));
  std::vector<std::uint32_t> best;
  std::vector<orloj::DynamicHull::Point> points;
  for (int k = 0; k < fleet_.batch_size(chosen.model, chosen.index); ++k) {
    best.push_back(*queue.hull.top(x));
    points.push_back(queue.hull.at(best.back()));
    queue.hull.erase(best.back());
  }
  for (std::size_t k = 0; k < best.size(); ++k) queue.hull.insert(best[k], points[k]);
  return best;
}

// `best` are the most urgent, the first of all in front. Keeps those that go with the first where two batches
// are quicker than one, and returns the place of their number.
int Orloj::of_a_kind(ModelId id, std::vector<std::uint32_t>& best) const {
  const Model& m = models_[id.index()];
  const auto solo = [&](std::uint32_t slot) { return m.estimates.solo(m.waiting[slot].request.app); };
  std::vector<double> solos;
  for (const std::uint32_t slot : best) solos.push_back(solo(slot));
  const orloj::Company company = orloj::quickest_company(solos, m.estimates.cost());
  std::erase_if(best, [&](std::uint32_t slot) { return !company.admits(solo(slot)); });
  const int index = fleet_.batch_index(id, best.size());
  best.resize(static_cast<std::size_t>(fleet_.batch_size(id, index)));
  return index;
}

// `best` are the requests of the highest scores, the best first. Longer requests than the first may hold up
// the others more than they are worth, and shorter ones may wait for a batch of their own: keeps those, the
// first among them, that make the most answers a second, and returns the place of their number.
int Orloj::without_stragglers(ModelId id, int index, std::vector<std::uint32_t>& best) const {
  const Model& m = models_[id.index()];
  const auto solo = [&](std::uint32_t slot) { return m.estimates.solo(m.waiting[slot].request.app); };
  if (best.size() == 1) return index;
  const double own = solo(best.front());
  std::vector<double> limits;  // the longest that may come along
  for (const std::uint32_t slot : best)
    if (solo(slot) >= own) limits.push_back(solo(slot));
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  double most = 0;
  int most_index = index;
  double most_limit = limits.back();
  for (const double limit : limits) {
    const auto fitting = static_cast<std::size_t>(
        std::count_if(best.begin(), best.end(), [&](std::uint32_t slot) { return solo(slot) <= limit; }));
    const int place = fleet_.batch_index(id, fitting);
    const double size = fleet_.batch_size(id, place);
    const double time =
        static_cast<double>(m.estimates.cost().c0.count()) + m.estimates.cost().c1 * size * limit;
    if (size / time > most * 1.0001) {
      most = size / time;
      most_index = place;
      most_limit = limit;
    }
  }
  std::erase_if(best, [&](std::uint32_t slot) { return solo(slot) > most_limit; });
  best.resize(static_cast<std::size_t>(fleet_.batch_size(id, most_index)));
  return most_index;
}

void Orloj::run(DeviceId device, const Candidate& chosen, TimePoint now, Actions& out) {
  Model& m = models_[chosen.model.index()];
  const TimePoint start = start_on(device, now);
  const bool in_order = can_go_in_order(chosen, start);
  std::vector<std::uint32_t> best = in_order ? most_urgent(chosen) : highest_scores(chosen, start);
  const int index =
      in_order ? of_a_kind(chosen.model, best) : without_stragglers(chosen.model, chosen.index, best);
  std::vector<Request> requests;
  TimePoint latest = TimePoint::max();
  for (const std::uint32_t slot : best) {
    requests.push_back(m.waiting[slot].request);
    latest = std::min(latest, m.waiting[slot].queues[static_cast<std::size_t>(index)].last_start);
    forget(m, slot);
  }
  const TimePoint earliest = std::max(now, start - fleet_.environment().dispatch);
  fleet_.send(device, chosen.model, index, std::move(requests), {earliest, std::max(latest, earliest)}, now,
              out);
  fleet_.set_waiting(chosen.model, waiting_since(chosen.model));
}

void Orloj::step(TimePoint now, Actions& out) {
  if (options_.b * ms(now) > base_exponent) {
    base_ = now;
    for (std::size_t i = 0; i < models_.size(); ++i) rebuild(ModelId{static_cast<std::uint32_t>(i)}, now);
  }
  const TimePoint soonest = now + fleet_.environment().dispatch;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const ModelId id{static_cast<std::uint32_t>(i)};
    if (models_[i].by_arrival.empty()) continue;
    refresh(id, now);
    bring_up_to_date(id, soonest, now, out);
    fleet_.set_waiting(id, waiting_since(id));
  }
  for (std::size_t d = 0; d < fleet_.device_count(); ++d) {
    const DeviceId device{static_cast<std::uint32_t>(d)};
    while (ready(device, now)) {
      Candidate best{.model = {}, .index = -1, .deadline = {}};
      for (std::size_t i = 0; i < models_.size(); ++i) {
        const ModelId id{static_cast<std::uint32_t>(i)};
        if (models_[i].by_arrival.empty() || !fleet_.loaded(device, id)) continue;
        bring_up_to_date(id, start_on(device, now), now, out);
        const Candidate own = candidate(id);
        if (own.index >= 0 && (best.index < 0 || own.deadline < best.deadline)) best = own;
      }
      if (best.index < 0) break;
      run(device, best, now, out);
    }
  }
}

TimePoint Orloj::wake_at(TimePoint now) const {
  TimePoint at = TimePoint::max();
  bool anything = false;
  for (const Model& m : models_) {
    if (m.by_arrival.empty()) continue;
    anything = true;
    if (!m.queues.front().by_last_start.empty())
      at = std::min(at, saturating_add(m.queues.front().by_last_start.begin()->first,
                                       Duration{1} - fleet_.environment().dispatch));
  }
  if (anything && fleet_.environment().dispatch > Duration{0})
    for (std::size_t i = 0; i < fleet_.device_count(); ++i)
      at = std::min(at, ready_at(DeviceId{static_cast<std::uint32_t>(i)}, now));
  return at;
}

}  // namespace carillon::schedule
