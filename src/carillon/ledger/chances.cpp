#include "carillon/ledger/chances.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "carillon/ledger/measured_times.h"

namespace carillon::ledger {
namespace {

// What is known before anything ran counts as so many runs; and what other models' runs on the device, and
// the model's on other devices, tell of the model on the device.
constexpr double prior_runs = 16, pooled_runs = 8;
constexpr std::uint32_t own_after = 16;  // runs of a model on a device: until then others tell
constexpr double prior_outliers = 0.002;
// What is expected follows the last few runs, so that a slow spell is followed; what one size takes beside
// the others changes seldom.
constexpr int pace_over = 6, size_over = 32;
constexpr double ways_over = 16;
constexpr int size_odd = 4;  // odd runs of a size in a row, while others are not: it is unlike its seed
// So many odd runs in a row are no chance where chance would make them more seldom than that.
constexpr double no_chance = 1e-4;
constexpr std::uint32_t find_every = 16;  // runs
constexpr int most_trials = 4;
// After a trial a model rests for so many times what that is likely to take, over the devices where it ran:
// trials cost them a tenth of their time. And for no longer than that.
constexpr double rest = 9;
constexpr Duration longest_rest = 60s;
constexpr Duration seed_stale_after = 4s;
constexpr double most_seed_lies = 8;

// A tail is found anew at each of the first runs, and then seldom.
bool due(std::uint32_t& since, double count) {
  return count < find_every || ++since >= find_every ? (since = 0, true) : false;
}

// Outliers are accepted as they are; the rest of the promise is the body's, and at least half of it. Where
// outliers are more, half as many may be late besides: to allow for these would not keep the promise either.
double accepted(double promised, double outliers) {
  return outliers + std::max(promised - outliers, std::max(promised, outliers) / 2);
}

}  // namespace

Chances::Chances(const Environment& told) : told_(told), least_scale_(std::max(ns(told.shortest), 1.0)) {
  const auto& edges = Spread::edges();
  for (std::size_t i = 0; i < Spread::bins; ++i) {
    if (!told.measured) {
      prior_[i] = edges[i] < 1 ? 1 : 0;
      continue;
    }
    // Of the body, one run of two hundred outlasts what was told.
    const double over = std::max(told.overrun, 1e-3) / std::log(100.0);
    const double body = edges[i] < 1 ? 1 : 0.5 * std::exp(-(edges[i] - 1) / over);
    const double odd = edges[i] < Spread::odd ? 1 : Spread::odd / edges[i];
    prior_[i] = (1 - prior_outliers) * body + prior_outliers * odd;
  }
  prior_.back() = 0;
  prior_quick_ = quick_edge(nullptr);
}

void Chances::start(DeviceId device, bool alive) {
  if (device.index() >= devices_.size()) devices_.resize(device.index() + 1);
  Device& d = devices_[device.index()];
  d = Device{};
  d.alive = alive;
  d.dispatch = ns(told_.dispatch);
  d.answer = ns(std::max(Duration{0}, told_.answer - told_.client));
  ways_since_ = 0;
  ++started_;
}

void Chances::model_changed(ModelId model, std::shared_ptr<const ModelInfo> info, bool anew) {
  if (model.index() >= models_.size()) models_.resize(model.index() + 1);
  Model& m = models_[model.index()];
  if (anew || info == nullptr || m.info == nullptr || !same_sizes(m.info->batches, info->batches)) {
    m = Model{};
  } else {
    for (Pair& pair : m.on)
      for (std::size_t i = 0; i < pair.sizes.size(); ++i)
        if (m.info->batches[i].exec != info->batches[i].exec) pair.sizes[i] = {};
  }
  m.info = std::move(info);
  m.least_pace = -1;
}

Chances::Pair& Chances::get(Model& m, DeviceId device) {
  if (device.index() >= m.on_at.size()) m.on_at.resize(device.index() + 1, none);
  std::uint32_t& at = m.on_at[device.index()];
  if (at != none) return m.on[at];
  at = static_cast<std::uint32_t>(m.on.size());
  Pair& pair = m.on.emplace_back();
  pair.device = device;
  pair.sizes.resize(m.info->batches.size());
  return pair;
}

double Chances::promised(const Model& m) const {
  return m.info->miss_rate > 0 ? m.info->miss_rate : told_.miss_rate;
}

double Chances::promised(ModelId model) const {
  return model.index() < models_.size() && models_[model.index()].info ? promised(models_[model.index()])
                                                                       : told_.miss_rate;
}

double Chances::outliers(DeviceId device, ModelId model) const {
  const Model& m = models_[model.index()];
  return beyond(devices_[device.index()], m, find(m, device), Spread::odd_bin());
}

Duration Chances::exec(DeviceId device, ModelId model, std::size_t index, double prior) const {
  return there(device, model, prior).exec(index);
}

Duration Chances::most(DeviceId device, ModelId model, std::size_t index, double prior) const {
  return there(device, model, prior).most(index);
}

Duration Chances::most(DeviceId device, ModelId model, std::size_t index, double prior, double late) const {
  return there(device, model, prior, late).most(index);
}

double Chances::late(DeviceId device, ModelId model, std::size_t index, Duration slack, double prior) const {
  return there(device, model, prior).late(index, slack);
}

double Chances::There::find_edge() const {
  if (late_ > 0) {
    const double told = late_ / (late_ + device_->worse * (1 - late_));  // see late()
    return edge_with(told, [&](std::size_t edge) { return beyond(edge); });
  }
  if (pair() != nullptr && pair()->own) return pair()->own->most;
  // The longer of both is near to what both together tell, and known.
  if (const Own* const there = device_->all.get(); there && model_->all && model_->info->miss_rate <= 0)
    return std::max(there->most, model_->all->most);
  const auto beyond = [&](std::size_t edge) { return all_->pooled(*device_, *model_, edge); };
  return edge_with(accepted(all_->promised(*model_), beyond(Spread::odd_bin())), beyond);
}

double Chances::There::late(const Expected& e, Duration slack) const {
  const double left = ns(slack) - device_->answer;
  const Pair* const pair = this->pair();
  // Within a nanosecond it is as expected: usual ways are means.
  const auto chance = [&](double exec) {
    const double value = 1 + (left - exec + 1) / std::max(e.scale, exec);
    const double told =
        pair != nullptr && pair->own
            ? chance_beyond(value, [&](std::size_t edge) { return pair->own->tail.beyond(edge); })
            : chance_beyond(value, [&](std::size_t edge) { return beyond(edge); });
    return std::clamp(told, 0.0, 1.0);
  };
  double told = chance(e.exec);
  // A trial has even odds.
  if (pair != nullptr && pair->on_trial) [[unlikely]]
    told = (told + chance(e.exec * pair->before / pair->pace)) / 2;
  if (told <= 0) return 0;
  const double worse = device_->worse;  // odds
  return told * worse / (1 - told + told * worse);
}

Duration Chances::least(ModelId model) const {
  const Model& m = models_[model.index()];
  if (m.least_pace < 0 || m.started != started_) {
    m.started = started_;
    std::size_t ran = 0, alive = 0;
    m.least_pace = longest;
    for (const Pair& pair : m.on)
      if (devices_[pair.device.index()].alive && (pair.runs > 0 || pair.on_trial)) {
        m.least_pace = std::min(m.least_pace, pair.pace * static_cast<double>(pair.sizes.front().times));
        ++ran;
      }
    for (const Device& d : devices_) alive += d.alive ? 1 : 0;
    if (ran < alive || ran == 0) m.least_pace = std::min(m.least_pace, 1.0);
  }
  if (ways_since_ == 0) find_least_ways();
  if (m.all && m.all->quick < 0) m.all->quick = quick_edge(m.all.get());
  const double quick = m.all ? m.all->quick : prior_quick_;
  const double exec = std::min(longest, ns(m.info->batches.front().exec) * m.least_pace);
  const double scale = std::max(exec, ns(told_.shortest));
  const Duration shortest = from_ns(std::max(0.0, exec + (quick - 1) * scale));
  if (!told_.measured) return told_.dispatch + told_.span(shortest);
  return from_ns(least_dispatch_ + least_answer_) + told_.client + shortest;
}

Duration Chances::least_beside() const {
  if (!told_.measured) return told_.dispatch + told_.answer;
  if (ways_since_ == 0) find_least_ways();
  return from_ns(least_dispatch_ + least_answer_) + told_.client;
}

double Chances::quick_edge(const Own* own) const {
  constexpr double hardly_any = 0.1;  // of runs are as quick
  return std::min(1.0, edge_with(1 - hardly_any, [&](std::size_t edge) { return tail_of(own, edge); }));
}

void Chances::find_least_ways() const {
  bool first = true;
  least_dispatch_ = ns(told_.dispatch);
  least_answer_ = ns(std::max(Duration{0}, told_.answer - told_.client));
  for (const Device& d : devices_) {
    if (!d.alive) continue;
    least_dispatch_ = first ? d.dispatch : std::min(least_dispatch_, d.dispatch);
    least_answer_ = first ? d.answer : std::min(least_answer_, d.answer);
    first = false;
  }
  ways_since_ = 1;
}

void Chances::judge(DeviceId device, double expected, std::uint64_t late) {
  constexpr double enough = 24, doubted = 6, most_worse = 16;
  Device& d = devices_[device.index()];
  d.expected_late += expected;
  d.late += static_cast<double>(late);
  if (d.expected_late + d.late < enough) return;
  d.worse =
      std::clamp(d.worse * (d.late + doubted) / (d.expected_late + doubted), 1 / most_worse, most_worse);
  d.expected_late = d.late = 0;
}

void Chances::observe(DeviceId device, const Execution& run) {
  if (run.model.index() >= models_.size() || device.index() >= devices_.size()) return;
  Model& m = models_[run.model.index()];
  if (m.info == nullptr || run.index >= m.info->batches.size()) return;
  Device& d = devices_[device.index()];
  Pair& pair = get(m, device);
  const Expected e = expected(&pair, m, run.index, 1);
  // No report is believed that says more than what passed here; but a clock may stand still.
  const double passed = std::max(0.0, ns(run.heard - run.sent));
  const double took = std::clamp(ns(run.took), 0.0, std::max(passed, e.exec));
  const double total = std::max(took, std::min(ns(run.heard - run.start), passed));
  const double dispatch = std::clamp(ns(run.start - run.sent), 0.0, passed);
  double excess = total - e.exec - d.answer;
  if (run.at_once) excess += dispatch - d.dispatch;
  const auto follow = [](double& usual, double value) {
    constexpr double some = 1e5;  // nanoseconds
    usual += (std::min(value, 2 * usual + some) - usual) / ways_over;
  };
  follow(d.answer, total - took);
  if (run.at_once) follow(d.dispatch, dispatch);
  d.heard = run.heard;
  if (++ways_since_ > find_every) ways_since_ = 0;
  if (++m.seen % find_every == 0) m.least_pace = -1;
  // Where ways are told, they are as they were told.
  const double took_lies = 1 + (took - e.exec) / e.scale;
  const double lies = told_.measured ? 1 + excess / e.scale : took_lies;
  learn(m, pair, device, run.index, took, lies, took_lies, run.heard);
}

void Chances::recall(DeviceId device, ModelId model, std::size_t index, Duration took, TimePoint end) {
  if (model.index() >= models_.size() || device.index() >= devices_.size()) return;
  Model& m = models_[model.index()];
  if (m.info == nullptr || index >= m.info->batches.size()) return;
  Pair& pair = get(m, device);
  const Expected e = expected(&pair, m, index, 1);
  const double lies = 1 + (std::clamp(ns(took), 0.0, longest) - e.exec) / e.scale;
  learn(m, pair, device, index, std::clamp(ns(took), 0.0, longest), lies, lies, end);
}

void Chances::learn(Model& m, Pair& pair, DeviceId device, std::size_t index, double took, double lies,
                    double took_lies, TimePoint now) {
  Size& size = pair.sizes[index];
  const double seed = std::max(1.0, ns(m.info->batches[index].exec));
  const double pace = std::clamp(took / (seed * static_cast<double>(size.times)), 1e-3, longest);
  pair.ran = now;
  m.seed_from = now + seed_pause(m);
  const bool known = pair.runs > 0;
  if (!known) {  // what was guessed tells nothing of where this one lies
    if (std::exchange(pair.on_trial, false) && took_lies <= Spread::odd) {
      pair.trials = 0;
      m.rests_until = now;
    }
    pair.pace = pace;
    pair.runs = 1;
    size.runs = std::max<std::uint8_t>(size.runs, 1);
    m.least_pace = -1;
    return;
  }
  devices_[device.index()].used = std::max(devices_[device.index()].used, now);
  const bool longer = took_lies > Spread::odd, shorter = took * Spread::odd < took / pace * pair.pace;
  const auto tell_streak = [&] {
    for (int i = 0; i < pair.streak; ++i)
      count(m, pair, device, static_cast<double>(pair.lie[static_cast<std::size_t>(i)]), now);
    pair.streak = 0;
  };
  if (longer || shorter) {
    if (pair.longer != longer || pair.streak == most_in_a_row) tell_streak();
    pair.longer = longer;
    const auto which = static_cast<std::uint32_t>(index);
    if (pair.streak == 0) {
      pair.streak_pace = pace;
      pair.streak_size = which;
    } else {
      pair.streak_pace = longer ? std::min(pair.streak_pace, pace) : std::max(pair.streak_pace, pace);
      if (pair.streak_size != which) pair.streak_size = none;
    }
    pair.lie[static_cast<std::size_t>(pair.streak++)] = static_cast<float>(lies);
    Device& d = devices_[device.index()];
    const double times = pace / pair.pace;
    if (d.streak == 0 || d.longer != longer) {
      d.streak = 0;
      d.longer = longer;
      d.several = false;
      d.times = times;
      d.since = now;
      d.first = m.info.get();
    }
    ++d.streak;
    d.several = d.several || d.first != m.info.get();
    d.times = longer ? std::min(d.times, times) : std::max(d.times, times);
    const double share = longer ? beyond(d, m, &pair, Spread::odd_bin()) : 1 - beyond(d, m, &pair, 0);
    const bool in_a_row = std::pow(std::max(share, prior_outliers), pair.streak) <= no_chance;
    // The model had become slow here, and now this run took what its runs took before.
    const bool again = shorter && pace > pair.before / 1.5 && pace < pair.before * 1.5;
    const double share_there = longer ? tail_of(d.all.get(), Spread::odd_bin()) : 1 - tail_of(d.all.get(), 0);
    if (!in_a_row && !again && d.several &&
        std::pow(std::max(share_there, prior_outliers), d.streak) <= no_chance) {
      tell_streak();
      return slow_down(device, d.times, now);
    }
    if (!in_a_row && !again) {
      // Or it is the size alone.
      size.odd =
          static_cast<std::int8_t>(longer ? std::max<int>(size.odd, 0) + 1 : std::min<int>(size.odd, 0) - 1);
      if (std::abs(size.odd) < size_odd) return;
      size = {.times = static_cast<float>(std::clamp(took / (seed * pair.pace), 1e-3, 1e3)), .runs = 1};
      pair.streak = 0;
      return;
    }
    tell_streak();  // nobody expected them
    if (!in_a_row && pair.jump_size < pair.sizes.size() && pair.jump_size != which)
      pair.sizes[pair.jump_size].times *= static_cast<float>(pair.pace / pace);
    pair.jump_size = in_a_row ? pair.streak_size : none;
    const bool all = again && pair.with_device;
    jump(m, pair, pair.streak_pace, now);
    size.odd = 0;
    if (all) recover(device, now);
    return;
  }
  tell_streak();
  devices_[device.index()].streak = 0;
  size.odd = 0;
  const double clipped = std::clamp(pace, pair.pace / 2, pair.pace * 2);
  if (size.runs > 0) {
    pair.runs = std::min(pair.runs + 1, pace_over);
    pair.pace += (clipped - pair.pace) / pair.runs;
  }
  const double times = std::clamp(took / (seed * pair.pace), 1e-3, 1e3);
  size.runs = static_cast<std::uint8_t>(std::min(size.runs + 1, size_over));
  size.times += static_cast<float>((times - static_cast<double>(size.times)) / size.runs);
  count(m, pair, device, lies, now);
}

void Chances::jump(Model& m, Pair& pair, double pace, TimePoint now) {
  pair.before = std::exchange(pair.pace, std::clamp(pace, 1e-3, longest));
  pair.runs = 1;
  pair.streak = 0;
  pair.jumped = now;
  pair.with_device = false;
  m.least_pace = -1;
}

// Runs of several models were odd, so that it is the device: its other models take as many times as long.
void Chances::slow_down(DeviceId device, double times, TimePoint now) {
  Device& d = devices_[device.index()];
  for (Model& m : models_) {
    if (find(m, device) == nullptr) continue;
    Pair& pair = get(m, device);
    if (pair.runs == 0 || pair.jumped >= d.since) continue;
    jump(m, pair, pair.pace * times, now);
    pair.with_device = true;
  }
  d.streak = 0;
}

// One of the models that slowed down with the device is as it was, and so are the others.
void Chances::recover(DeviceId device, TimePoint now) {
  for (Model& m : models_) {
    if (find(m, device) == nullptr) continue;
    Pair& pair = get(m, device);
    if (pair.with_device && pair.runs > 0) jump(m, pair, pair.before, now);
  }
  devices_[device.index()].streak = 0;
}

void Chances::count(Model& m, Pair& pair, DeviceId device, double lies, TimePoint now) {
  const auto prior = [&](std::size_t edge) { return prior_[edge]; };
  const auto add = [&](std::unique_ptr<Own>& own, double weight, double promise, auto&& expect) {
    if (!own) own = std::make_unique<Own>();
    own->spread.add(lies, now);
    if (!due(own->since, own->spread.count())) return;
    own->tail.find(own->spread, weight, expect);
    const auto beyond = [&](std::size_t edge) { return own->tail.beyond(edge); };
    own->most = edge_with(accepted(promise, beyond(Spread::odd_bin())), beyond);
    own->quick = -1;
  };
  add(devices_[device.index()].all, prior_runs, told_.miss_rate, prior);
  add(m.all, prior_runs, promised(m), prior);
  if (++pair.seen > own_after)
    add(pair.own, pooled_runs, promised(m),
        [&](std::size_t edge) { return pooled(devices_[device.index()], m, edge); });
}

void Chances::other_pace(DeviceId device, double times) {
  for (Model& m : models_) {
    m.least_pace = -1;
    if (find(m, device) == nullptr) continue;
    Pair& pair = get(m, device);
    pair.before = pair.pace;
    pair.pace *= times;
    pair.runs = std::min(pair.runs, 1);
    pair.streak = 0;
  }
}

bool Chances::try_again(Model& m, Pair& pair, TimePoint now, bool idles) {
  const Duration pause = idles ? std::min(stale_after, idle_stale_after * (1 << pair.trials)) : stale_after;
  const TimePoint used = devices_[pair.device.index()].used;
  const double takes = ns(m.info->batches.front().exec) * pair.pace;
  // Nothing else can run while the trial does.
  const bool useful = used != TimePoint::min() && now - used < std::max(stale_after, from_ns(takes));
  if (pair.on_trial || (useful && now < m.rests_until) ||
      (pair.ran != TimePoint::min() && now - pair.ran < pause))
    return false;
  pair.before = std::exchange(pair.pace, 1);
  m.rests_until = now + std::min(longest_rest, from_ns(rest * takes / static_cast<double>(m.on.size())));
  pair.sizes.front() = {};
  pair.runs = 0;
  pair.streak = 0;
  pair.on_trial = true;
  pair.ran = now;
  pair.trials = std::min(pair.trials + 1, most_trials);
  m.least_pace = -1;
  return true;
}

// Not where requests waited too long for what runs, and ran lately; nor at the first that is refused.
bool Chances::seed_may_lie(Model& m, Duration left, TimePoint now) {
  const Duration seed = m.info->batches.front().exec;
  if (!told_.measured || seed <= left || ns(seed) > most_seed_lies * ns(left)) return false;
  if (m.seed_from == TimePoint::min()) m.seed_from = now + stale_after;
  return m.seed_from <= now;
}

// What it takes is not known then. Half of what is left leaves room for margins.
bool Chances::try_without_seed(Model& m, DeviceId device, Duration left, TimePoint now) {
  Pair& pair = get(m, device);
  if (pair.on_trial) return false;
  pair.before = std::exchange(pair.pace, ns(left) / 2 / ns(m.info->batches.front().exec));
  pair.sizes.front() = {};
  pair.runs = 0;
  pair.streak = 0;
  pair.on_trial = true;
  pair.ran = now;
  m.seed_trials = std::min(m.seed_trials + 1, most_trials);
  m.seed_from = now + seed_pause(m);
  m.least_pace = -1;
  return true;
}

Duration Chances::seed_pause(const Model& m) {
  return seed_stale_after * (1 << m.seed_trials);
}

// What the ways there and back usually take counts no more where nothing was heard for long.
bool Chances::doubt_ways(DeviceId device, TimePoint now) {
  Device& d = devices_[device.index()];
  const double dispatch = ns(told_.dispatch);
  const double answer = ns(std::max(Duration{0}, told_.answer - told_.client));
  if (!told_.measured || (d.dispatch <= dispatch && d.answer <= answer) || d.heard == TimePoint::min() ||
      now - d.heard < stale_after)
    return false;
  d.dispatch = std::min(d.dispatch, dispatch);
  d.answer = std::min(d.answer, answer);
  d.heard = now;
  ways_since_ = 0;
  return true;
}

}  // namespace carillon::ledger
