// What goes wrong happens as often, and is as bad, as Faults says.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/statistics.h"
#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/watchdog.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {
namespace {

using schedule::ActionStatus;

// Four devices that always have work: one model, batches of one that take `exec`.
workload::Scenario busy(Duration exec, Duration duration) {
  workload::Scenario s;
  s.name = "busy";
  s.seed = 3;
  s.devices = 4;
  s.duration = duration;
  s.process = {.kind = workload::ArrivalKind::uniform};
  s.rate = 8 / to_seconds(exec);
  workload::ScenarioModel m{.name = "m", .slo = 20 * exec, .max_batch = 1};
  m.latency.linear = true;
  m.latency.beta = exec;
  s.models.push_back(std::move(m));
  return s;
}

// Keeps two INFERs on each device, and answers nothing that it need not.
class Feeder final : public schedule::Scheduler {
 public:
  std::string_view name() const override { return "feeder"; }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
      std::erase_if(on_, [&](const auto& entry) { return entry.second == change->device; });
      alive_[change->device] = change->alive;
    } else if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
      waiting_.push_back(arrival->request.id);
    } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
      on_.erase(done->id);
    } else if (const auto* gone = std::get_if<schedule::RequestCancelled>(&event)) {
      std::erase(waiting_, gone->request);
    }
    for (const auto& [device, alive] : alive_)
      while (alive && !waiting_.empty() &&
             std::count_if(on_.begin(), on_.end(), [&](const auto& e) { return e.second == device; }) < 2) {
        const ActionId id{next_++};
        on_[id] = device;
        out.emplace_back(schedule::Infer{
            id, device, ModelId{0}, {waiting_.back()}, {TimePoint::min(), TimePoint::max()}, Duration{0}});
        waiting_.pop_back();
      }
    for (; waiting_.size() > 20; waiting_.erase(waiting_.begin()))
      out.emplace_back(schedule::Refuse{waiting_.front(), schedule::Reason::deadline_passed, now});
    return TimePoint::max();
  }

 private:
  std::map<DeviceId, bool> alive_;
  std::map<ActionId, DeviceId> on_;
  std::vector<RequestId> waiting_;
  std::uint64_t next_ = 0;
};

// Loads and unloads the one model without end.
class Loader final : public schedule::Scheduler {
 public:
  std::string_view name() const override { return "loader"; }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
      out.emplace_back(schedule::Refuse{arrival->request.id, schedule::Reason::cannot_finish, now});
      return TimePoint::max();
    }
    DeviceId device;
    bool loaded = false;
    if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
      device = change->device;
    } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
      device = DeviceId{static_cast<std::uint32_t>(done->id.value % 4)};
      loaded = done->id.value % 8 < 4 && done->status == ActionStatus::success;
    } else {
      return TimePoint::max();
    }
    // An id says which device it is of, and whether it is a LOAD.
    next_ = (next_ / 8 + 1) * 8 + device.value;
    if (loaded)
      out.emplace_back(schedule::Unload{ActionId{next_ + 4}, device, ModelId{0}});
    else
      out.emplace_back(schedule::Load{
          ActionId{next_}, device, ModelId{0}, {TimePoint::min(), TimePoint::max()}, Duration{0}});
    return TimePoint::max();
  }

 private:
  std::uint64_t next_ = 0;
};

// Never says a word.
class Silent final : public schedule::Scheduler {
 public:
  std::string_view name() const override { return "silent"; }
  TimePoint decide(const schedule::Event&, TimePoint, schedule::Actions&) override {
    return TimePoint::max();
  }
};

struct Ran {
  DeviceId device;
  TimePoint start, end;
  ActionStatus status{};
  bool ended = false;
};

struct Recorder final : Observer {
  std::map<ActionId, Ran> ran;
  std::map<ActionId, std::vector<TimePoint>> heard;
  std::vector<Duration> cancelled;                // after they were sent
  std::size_t sent = 0, unanswered = 0, odd = 0;  // requests, and reports that came twice
  struct Change {
    DeviceId device;
    bool alive = false;
    Duration clock{0};
    TimePoint at;
  };
  std::vector<Change> changes;

  void on_sent(const Request&, Duration, TimePoint) override { ++sent; }
  void on_device(DeviceId id, bool alive, Duration clock, TimePoint at) override {
    changes.push_back({id, alive, clock, at});
  }
  void on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions&,
                   TimePoint) override {
    if (const auto* done = std::get_if<schedule::ActionDone>(&event)) heard[done->id].push_back(now);
  }
  void on_odd_report(DeviceId, TimePoint) override { ++odd; }
  void on_outcome(const Request& request, Outcome outcome, TimePoint at) override {
    if (outcome == Outcome::cancelled) cancelled.push_back(at - request.arrival);
    unanswered += outcome == Outcome::unanswered ? 1 : 0;
  }
  void on_start(ActionId id, DeviceId device, TimePoint at) override { ran[id] = {device, at, at}; }
  void on_end(ActionId id, DeviceId, ActionStatus status, TimePoint at) override {
    Ran& r = ran.try_emplace(id, Ran{{}, at, at}).first->second;  // an UNLOAD has no start
    r.end = at;
    r.status = status;
    r.ended = true;
  }

  double share(ActionStatus status) const {
    return static_cast<double>(std::count_if(ran.begin(), ran.end(),
                                             [=](const auto& r) { return r.second.status == status; })) /
           static_cast<double>(ran.size());
  }
  // How long what ran took, as multiples of `time`.
  std::vector<double> factors(Duration time) const {
    std::vector<double> found;
    for (const auto& [id, r] : ran)
      if (r.end > r.start) found.push_back(to_seconds(r.end - r.start) / to_seconds(time));
    return found;
  }
};

template <typename Policy = Feeder>
Recorder recorded(const workload::Scenario& scenario, const Faults& faults,
                  Duration hangs_after = Duration{0}) {
  Recorder recorder;
  schedule::Ledgered policy(std::make_unique<schedule::Watched>(std::make_unique<Policy>(), hangs_after));
  Options options;
  options.faults = faults;
  options.observer = &recorder;
  run(scenario, policy, options);
  return recorder;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

TEST(Dealt, TimesAreLongerByWhatFaultsSay) {
  const auto scenario = busy(10ms, 50s);  // 20,000 INFERs
  for (const double f : recorded(scenario, {.speed = 1.5}).factors(10ms)) ASSERT_DOUBLE_EQ(f, 1.5);

  const auto noisy = recorded(scenario, {.noise = 0.2}).factors(10ms);
  EXPECT_GT(noisy.size(), 15'000U);
  EXPECT_GE(*std::min_element(noisy.begin(), noisy.end()), 1);
  EXPECT_NEAR(mean(noisy), 1 + 0.2 * std::sqrt(2 / std::numbers::pi), 0.005);

  const auto hiccups = recorded(scenario, {.hiccups = 0.1}).factors(10ms);
  std::size_t long_ones = 0;
  for (const double f : hiccups) {
    ASSERT_TRUE(f == 1 || f == 10) << f;
    long_ones += f == 10 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(long_ones) / static_cast<double>(hiccups.size()), 0.1, 0.015);
}

TEST(Dealt, TheShareThatFailsFails) {
  const auto scenario = busy(10ms, 50s);
  const Recorder failing = recorded(scenario, {.infer_failures = 0.2, .lost_inputs = 0.1});
  EXPECT_NEAR(failing.share(ActionStatus::failed), 0.2, 0.015);
  EXPECT_NEAR(failing.share(ActionStatus::no_memory), 0.1, 0.01);
  for (const auto& [id, r] : failing.ran)
    ASSERT_EQ(r.end - r.start, r.status == ActionStatus::no_memory ? 0ms : 10ms) << "failed ones have run";

  auto loading = busy(1s, 20s);
  loading.memory = mib(16);
  loading.models[0].weights = mib(16);
  loading.models[0].load = 10ms;
  EXPECT_EQ(recorded<Loader>(loading, {.infer_failures = 0.9}).share(ActionStatus::failed), 0);
  const Recorder loads = recorded<Loader>(loading, {.load_failures = 0.3});
  std::size_t all = 0, failed = 0;
  for (const auto& [id, r] : loads.ran) {
    if (id.value % 8 >= 4 || !r.ended) continue;
    ++all;
    failed += r.status == ActionStatus::failed ? 1 : 0;
    EXPECT_EQ(r.end - r.start, 10ms);
  }
  EXPECT_GT(all, 5000U);
  EXPECT_NEAR(static_cast<double>(failed) / static_cast<double>(all), 0.3, 0.03);
}

TEST(Dealt, ReportsAreLateDoubledOrLost) {
  auto scenario = busy(10ms, 50s);
  scenario.network_delay = 1ms;
  const Recorder late = recorded(scenario, {.late_reports = 0.3});
  std::vector<double> after;
  for (const auto& [id, at] : late.heard) {
    ASSERT_EQ(at.size(), 1U);
    const Duration by = at[0] - (late.ran.at(id).end + 1ms);
    ASSERT_GE(by, Duration{0});
    if (by > Duration{0}) after.push_back(to_ms(by));
  }
  EXPECT_NEAR(static_cast<double>(after.size()) / static_cast<double>(late.heard.size()), 0.3, 0.02);
  EXPECT_NEAR(mean(after), 10, 0.4);
  const auto [least, most] = std::minmax_element(after.begin(), after.end());
  EXPECT_LT(*least, 0.1);
  EXPECT_GT(*most, 19.9);
  EXPECT_LE(*most, 20);

  const Recorder twice = recorded(scenario, {.doubled_reports = 0.2});
  for (const auto& [id, at] : twice.heard) ASSERT_EQ(at.size(), 1U);
  EXPECT_NEAR(static_cast<double>(twice.odd) / static_cast<double>(twice.heard.size()), 0.2, 0.02);

  // A device that does not say that an INFER, of 10 ms, has ended is given up a second after its last report
  // at the earliest; none dies otherwise.
  const Recorder lost = recorded(scenario, {.lost_reports = 0.02}, 1s);
  std::size_t unheard = 0, deaths = 0;
  std::map<DeviceId, std::set<TimePoint>> ends;
  for (const auto& [id, r] : lost.ran) {
    if (lost.heard.contains(id) || r.end == r.start) continue;
    ++unheard;
    ends[r.device].insert(r.end);
  }
  EXPECT_NEAR(static_cast<double>(unheard) / static_cast<double>(lost.ran.size()), 0.02, 0.01);
  for (const auto& change : lost.changes) {
    if (change.alive) continue;
    ++deaths;
    const auto& of = ends[change.device];
    EXPECT_NE(of.upper_bound(change.at - 1500ms), of.upper_bound(change.at - 990ms));
  }
  EXPECT_GT(deaths, 40U);
}

TEST(Dealt, ClientsGoWithinTwiceTheirSlo) {
  auto scenario = busy(10ms, 20s);
  scenario.rate = 500;
  for (const Duration slo : {Duration{300ms}, Duration::max()}) {
    scenario.models[0].slo = slo;
    const Recorder r = recorded<Silent>(scenario, {.cancels = 0.3});
    EXPECT_EQ(r.cancelled.size() + r.unanswered, r.sent);
    EXPECT_NEAR(static_cast<double>(r.cancelled.size()) / static_cast<double>(r.sent), 0.3, 0.02);
    std::vector<double> after;
    for (const Duration d : r.cancelled) after.push_back(to_ms(d));
    const double most = slo == Duration::max() ? 120'000 : 600;
    EXPECT_NEAR(mean(after), most / 2, most / 40);
    EXPECT_LE(*std::max_element(after.begin(), after.end()), most);
    EXPECT_GT(*std::max_element(after.begin(), after.end()), 0.99 * most);
  }
}

TEST(Dealt, DevicesDieAndComeBack) {
  auto scenario = busy(1s, 1000s);
  scenario.rate = 1;
  const Recorder r = recorded<Silent>(scenario, {.deaths_per_s = 0.5});
  std::map<DeviceId, TimePoint> died;
  std::vector<double> away;
  std::map<DeviceId, int> deaths;
  for (const auto& change : r.changes) {
    if (!change.alive) {
      died[change.device] = change.at;
      ++deaths[change.device];
    } else if (change.at > TimePoint{}) {
      away.push_back(to_seconds(change.at - died.at(change.device)));
    }
  }
  EXPECT_EQ(deaths.size(), 4U);
  // Alive for two seconds in the mean, away for one.
  for (const auto& [device, times] : deaths) EXPECT_NEAR(times, 333, 60);
  EXPECT_NEAR(mean(away), 1.001, 0.06);
  EXPECT_GE(*std::min_element(away.begin(), away.end()), 0.001);
  EXPECT_LT(*std::min_element(away.begin(), away.end()), 0.02);
  EXPECT_LE(*std::max_element(away.begin(), away.end()), 2.001);
  EXPECT_GT(*std::max_element(away.begin(), away.end()), 1.98);
}

TEST(Dealt, WhatRunsIsStalled) {
  // Twice a second, by 100 ms in the mean, whatever runs then, the time that was added included.
  const auto stalled = recorded(busy(1s, 1000s), {.stalls_per_s = 2}).factors(1s);
  EXPECT_GE(*std::min_element(stalled.begin(), stalled.end()), 1);
  EXPECT_NEAR(mean(stalled), 1 / (1 - 0.2), 0.01);
  const auto rarely = recorded(busy(1s, 1000s), {.stalls_per_s = 0.05}).factors(1s);
  EXPECT_LE(*std::max_element(rarely.begin(), rarely.end()), 1.45) << "two of up to 200 ms at the most";
  EXPECT_GT(*std::max_element(rarely.begin(), rarely.end()), 1.19);
  auto loading = busy(1s, 1000s);
  loading.memory = mib(16);
  loading.models[0].weights = mib(16);
  loading.models[0].load = 1s;
  EXPECT_NEAR(mean(recorded<Loader>(loading, {.stalls_per_s = 2}).factors(1s)), 1.25, 0.01);
}

TEST(Dealt, SlowdownsPass) {
  const Recorder r = recorded(busy(10ms, 1000s), {.slowdowns_per_s = 0.1});
  std::map<DeviceId, std::pair<double, TimePoint>> slow;  // by how much, and since when
  std::vector<double> by, lengths;
  for (const auto& [id, ran] : r.ran) {
    const double f = to_seconds(ran.end - ran.start) / 0.01;
    ASSERT_GE(f, 1);
    ASSERT_LE(f, 4 + 1e-6);
    auto& [factor, since] = slow[ran.device];
    if (std::abs(f - factor) > 1e-6) {
      if (factor > 1) lengths.push_back(to_seconds(ran.start - since));
      if (f > 1) by.push_back(f);
      factor = f;
      since = ran.start;
    }
  }
  // 400 times, for half a second in the mean, to 2.5 times as slow in the mean.
  EXPECT_NEAR(static_cast<double>(by.size()), 400, 60);
  EXPECT_NEAR(mean(by), 2.5, 0.15);
  EXPECT_GT(*std::max_element(by.begin(), by.end()), 3.9);
  EXPECT_NEAR(mean(lengths), 0.5, 0.05);
  EXPECT_LE(*std::max_element(lengths.begin(), lengths.end()), 1.05);
}

TEST(Dealt, ClocksAreOffEitherWay) {
  auto scenario = busy(1s, 1s);
  scenario.devices = 2000;
  scenario.rate = 1;
  std::vector<double> off;
  for (const auto& change : recorded<Silent>(scenario, {.clock_offset = 3ms}).changes)
    off.push_back(to_ms(change.clock));
  EXPECT_EQ(off.size(), 2000U);
  EXPECT_NEAR(mean(off), 0, 0.2);
  const auto [least, most] = std::minmax_element(off.begin(), off.end());
  EXPECT_TRUE(*least >= -3 && *least < -2.98 && *most <= 3 && *most > 2.98) << *least << " " << *most;
}

}  // namespace
}  // namespace carillon::simulate
