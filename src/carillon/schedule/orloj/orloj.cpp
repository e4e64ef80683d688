#include "carillon/schedule/orloj/orloj.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

constexpr std::size_t most_apps = 4096;  // names of applications come from outside: the rest are one
constexpr double base_exponent = 30;     // the base moves when b * t has grown to it
constexpr Duration share_memory = std::chrono::seconds{10};

}  // namespace

void Orloj::add_model(const ModelInfo& model) {
  Central::add_model(model);
  Model& m = models_.emplace_back();
  m.queues.resize(model.batches.size());
  // The line through the batch times that are known: they were measured on requests of the mean.
  double mk = 0, mt = 0, kk = 0, kt = 0;
  const auto n = static_cast<double>(model.batches.size());
  for (const BatchProfile& b : model.batches) {
    mk += b.batch / n;
    mt += static_cast<double>(b.exec.count()) / n;
  }
  for (const BatchProfile& b : model.batches) {
    kk += (b.batch - mk) * (b.batch - mk);
    kt += (b.batch - mk) * (static_cast<double>(b.exec.count()) - mt);
  }
  m.slope = kk > 0 ? std::max(1.0, kt / kk) : mt / mk;
  m.c0 = from_ns(std::max(0.0, mt - m.slope * mk));
  m.seed = from_ns(m.slope);
}

Orloj::App& Orloj::app_of(Model& model, AppId id) {
  const std::size_t index = std::min<std::size_t>(id.index(), most_apps);
  while (model.apps.size() <= index) {
    model.apps.push_back({.samples = {}, .solo = profile::Distribution::constant(model.seed), .times = {}});
    model.stale = true;
  }
  return model.apps[index];
}

Duration Orloj::expected_batch(ModelId id, AppId app, int size) {
  Model& m = models_[id.index()];
  app_of(m, app);
  if (app_of(m, app).times.empty()) make_times(id);
  return from_ms(app_of(m, app)
                     .times[static_cast<std::size_t>(fleet_.batch_index(id, static_cast<std::size_t>(size)))]
                     .mean);
}

void Orloj::profiled(const RequestProfiled& sample, TimePoint now) {
  Model& m = models_[sample.model.index()];
  App& app = app_of(m, sample.app);
  app.samples.emplace_back(now, std::max(sample.solo, Duration{0}));
  if (app.samples.size() > static_cast<std::size_t>(options_.window)) app.samples.pop_front();
  m.stale = true;
}

void Orloj::refresh(ModelId id, TimePoint now) {
  Model& m = models_[id.index()];
  if (!m.stale || (m.refreshed != TimePoint::min() && now - m.refreshed < options_.refresh_every)) return;
  const double keep = m.refreshed == TimePoint::min()
                          ? 1
                          : std::exp(-to_seconds(now - m.refreshed) / to_seconds(share_memory));
  m.refreshed = now;
  m.stale = false;
  std::vector<Duration> samples;
  for (App& app : m.apps) {
    app.arrivals *= keep;
    while (app.samples.size() > 1 && now - app.samples.front().first > options_.window_span)
      app.samples.pop_front();
    if (app.samples.empty()) continue;
    samples.clear();
    for (const auto& [_, solo] : app.samples) samples.push_back(solo);
    app.solo = profile::Distribution::from_samples(samples, options_.solo_bins);
  }
  make_times(id);
  rebuild(id, now);
}

// The times of batches from the applications' solo times: off the critical path, as they depend on no
// request.
void Orloj::make_times(ModelId id) {
  Model& m = models_[id.index()];
  std::vector<std::pair<const profile::Distribution*, double>> parts;
  double mean = 0, weights = 0;
  for (const App& app : m.apps) {
    const double weight = app.arrivals + 1e-3;
    parts.emplace_back(&app.solo, weight);
    mean += weight * static_cast<double>(app.solo.mean().count());
    weights += weight;
  }
  const profile::Distribution mixture = profile::Distribution::mixture(parts).coarser(2 * options_.solo_bins);
  m.c1 = m.slope / std::max(1.0, mean / weights);
  for (App& app : m.apps) {
    app.times.clear();
    for (int i = 0; i < fleet_.batch_count(id); ++i) {
      const int size = fleet_.batch_size(id, i);
      std::vector<std::pair<const profile::Distribution*, int>> members{{&app.solo, 1}};
      if (size > 1) members.emplace_back(&mixture, size - 1);
      const profile::Distribution batch =
          profile::Distribution::largest_of(members, 2).scaled(m.c0, m.c1 * static_cast<double>(size));
      BatchTime time;
      time.mean = std::max(1e-6, to_ms(batch.mean()));
      time.estimate = batch.quantile(options_.quantile);
      time.bins = batch.coarser(options_.score_bins).bins();
      for (auto& bin : time.bins) {
        bin.low /= 1e6;
        bin.high /= 1e6;
      }
      app.times.push_back(std::move(time));
    }
  }
}

void Orloj::put(ModelId id, std::uint32_t slot, int index, TimePoint start) {
  Model& m = models_[id.index()];
  Waiting& w = m.waiting[slot];
  const auto i = static_cast<std::size_t>(index);
  Queue& queue = m.queues[i];
  InQueue& in = w.queues[i];
  const BatchTime& time = app_of(m, w.request.app).times[i];
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
  App& app = app_of(m, request.app);
  app.arrivals += 1;
  if (app.times.empty()) {
    m.refreshed = TimePoint::min();
    refresh(request.model, now);
  }
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
  insert(request.model, slot, std::max(now, base_));
}

bool Orloj::remove(RequestId id, ModelId model) {
  Model& m = models_[model.index()];
  for (std::uint32_t slot = 0; slot < m.waiting.size(); ++slot)
    if (m.waiting[slot].used && m.waiting[slot].request.id == id) {
      forget(m, slot);
      return true;
    }
  return false;
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

// `best` are the requests of the highest scores, the best first. Longer requests than the first may hold up
// the others more than they are worth, and shorter ones may wait for a batch of their own: keeps those, the
// first among them, that make the most answers a second, and returns the place of their number.
int Orloj::without_stragglers(ModelId id, int index, std::vector<std::uint32_t>& best) {
  Model& m = models_[id.index()];
  const auto solo = [&](std::uint32_t slot) {
    return static_cast<double>(app_of(m, m.waiting[slot].request.app).solo.mean().count());
  };
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
    const double time = static_cast<double>(m.c0.count()) + m.c1 * size * limit;
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
  const double x = std::exp(options_.b * ms(start));
  const int size = fleet_.batch_size(chosen.model, chosen.index);
  Queue& queue = m.queues[static_cast<std::size_t>(chosen.index)];
  std::vector<std::uint32_t> best;
  std::vector<orloj::DynamicHull::Point> points;
  for (int k = 0; k < size; ++k) {
    best.push_back(*queue.hull.top(x));
    points.push_back(queue.hull.at(best.back()));
    queue.hull.erase(best.back());
  }
  for (std::size_t k = 0; k < best.size(); ++k) queue.hull.insert(best[k], points[k]);
  const int index = without_stragglers(chosen.model, chosen.index, best);
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
