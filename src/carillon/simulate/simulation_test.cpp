#include "carillon/simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/test_name.h"
#include "carillon/simulate/from_log.h"
#include "carillon/simulate/goodput.h"
#include "carillon/simulate/plot.h"
#include "carillon/simulate/report.h"

namespace carillon::simulate {
namespace {

constexpr std::uint64_t page_bytes = 16ULL << 20;

workload::Scenario scenario(double rate, int devices = 2, int models = 1) {
  workload::Scenario s;
  s.name = "t";
  s.devices = devices;
  s.duration = 10s;
  s.rate = rate;
  for (int i = 0; i < models; ++i) {
    workload::ScenarioModel m{.name = "m" + std::to_string(i), .slo = 25ms};
    m.latency.linear = true;
    m.latency.alpha = 1ms;
    m.latency.beta = 5ms;
    s.models.push_back(std::move(m));
  }
  return s;
}

Figures simulated(const workload::Scenario& s, const std::string& scheduler, const Options& options = {}) {
  const auto policy = *schedule::make_scheduler(scheduler, environment(s));
  return run(s, *policy, options);
}

TEST(Symphony, ASlowModelDoesNotSpoilAQuickOneOnOneDevice) {
  auto s = scenario(120, 1, 2);
  s.models[0].slo = 30ms;
  s.models[0].latency.alpha = s.models[0].latency.beta = Duration{10'000};
  s.models[1].slo = 150ms;
  s.models[1].latency.alpha = 16ms;
  s.models[1].latency.beta = 6ms;
  s.models[0].rate = {{Duration{0}, 100}};
  s.models[1].rate = {{Duration{0}, 20}};
  Figures f = simulated(s, "symphony");
  const Report r = make_report(s, "symphony", f);
  EXPECT_GT(r.finish_rate, 0.97);
}

TEST(Symphony, DoesNotWaitWhereBatchingGainsNothing) {
  auto s = scenario(40, 2);
  s.warmup = 1s;
  s.models[0].slo = 60ms;
  s.models[0].latency.alpha = 7ms;
  s.models[0].latency.beta = Duration{50'000};
  Figures weak = simulated(s, "symphony");
  EXPECT_LT(make_report(s, "symphony", weak).p50_ms, 8);
  s.models[0].latency.alpha = 1ms;
  s.models[0].latency.beta = 6ms;
  Figures strong = simulated(s, "symphony:leisure=0");
  EXPECT_GT(make_report(s, "symphony", strong).p50_ms, 12) << "here a larger batch is worth waiting for";
  Figures leisurely = simulated(s, "symphony");
  EXPECT_LT(make_report(s, "symphony", leisurely).p50_ms, 8) << "but nobody needs what it would save";
}

class EveryScheduler : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryScheduler, AnswersAllUnderLightLoadAndRepeatsItself) {
  auto s = scenario(100, 2, 3);
  Figures a = simulated(s, GetParam()), b = simulated(s, GetParam());
  const Report ra = make_report(s, GetParam(), a), rb = make_report(s, GetParam(), b);
  EXPECT_GT(ra.finish_rate, 0.99);
  EXPECT_NEAR(ra.offered_rps, 100, 15);
  auto ja = to_json(ra), jb = to_json(rb);
  ja.erase("wall_s");
  jb.erase("wall_s");
  EXPECT_EQ(ja.dump(), jb.dump());
}

TEST_P(EveryScheduler, WorksWithLittleMemory) {
  auto s = scenario(50, 2, 12);
  s.memory = gib(1);
  s.duration = 20s;
  for (auto& m : s.models) {
    m.weights = mib(200);  // five of twelve fit
    m.slo = 2s;
  }
  Figures f = simulated(s, GetParam());
  const Report r = make_report(s, GetParam(), f);
  EXPECT_GT(r.finish_rate, 0.9);
  EXPECT_GT(r.loads, 10U);
}

INSTANTIATE_TEST_SUITE_P(All, EveryScheduler, ::testing::ValuesIn(schedule::scheduler_names()),
                         [](const auto& tested) { return schedule::testing::test_name(tested.param); });

// Batches as they were sent.
struct Batches final : Observer {
  std::vector<std::size_t> sizes;
  void on_decision(const schedule::Event&, TimePoint, const schedule::Actions& actions, TimePoint) override {
    for (const schedule::Action& action : actions)
      if (const auto* infer = std::get_if<schedule::Infer>(&action)) sizes.push_back(infer->requests.size());
  }
};

// A log tells which requests came together, such as the rows of one call.
TEST(FromLog, RequestsThatCameTogetherDoSoAgain) {
  for (const bool together : {true, false})
    for (const Duration decisions : {Duration{0}, Duration{1000}}) {
      FromLog log("log", {});
      schedule::ModelInfo model{.id = ModelId{0}, .name = "m"};
      for (int b = 1; b <= 16; ++b) model.batches.push_back({b, b * 1ms + 5ms});
      log.add(schedule::model_comes(model), TimePoint{}, {});
      log.add(schedule::DeviceChanged{DeviceId{0}, true, 0}, TimePoint{}, {});
      for (std::uint64_t i = 0; i < 16; ++i)
        log.add(schedule::RequestArrived{{.id = RequestId{i}, .deadline = TimePoint{5s}}, together},
                TimePoint{1ms}, {});
      if (together) log.add(schedule::AllArrived{}, TimePoint{1ms}, {});
      const workload::Scenario s = log.scenario();
      const auto policy = *schedule::make_scheduler("eager", log.environment(s));
      Batches batches;
      Options options;
      options.observer = &batches;
      options.decision_time = decisions;
      Figures figures = run(s, *policy, options);
      EXPECT_EQ(make_report(s, "eager", figures).finish_rate, 1);
      // Where decisions take time they wait for it one by one.
      if (together && decisions == Duration{0}) {
        EXPECT_EQ(batches.sizes, std::vector<std::size_t>{16});
      } else {
        EXPECT_EQ(batches.sizes.front(), 1U);
      }
    }
}

// Of a batch size whose times changed, what was measured since; else all that was.
TEST(FromLog, TimesThatChangedAreThoseOfTheSimulation) {
  FromLog log("log", {});
  const schedule::ModelInfo model{
      .id = ModelId{0}, .name = "m", .batches = {{1, 10ms}, {2, 20ms}, {4, 40ms}}};
  log.add(schedule::model_comes(model), TimePoint{}, {});
  log.add(schedule::DeviceChanged{DeviceId{0}, true, 0}, TimePoint{}, {});
  std::uint64_t next = 0;
  const auto infer = [&](std::size_t size) {
    std::vector<RequestId> requests;
    for (std::size_t i = 0; i < size; ++i) requests.push_back(RequestId{i});
    return schedule::Infer{ActionId{next++}, DeviceId{0}, ModelId{0}, requests, {}, 1ms};
  };
  const auto done = [&](std::uint64_t id, Duration took) {
    log.add(schedule::ActionDone{ActionId{id}, schedule::ActionStatus::success, {}, {}, took}, TimePoint{3ms},
            {});
  };
  log.add(schedule::RequestArrived{{.id = RequestId{0}, .deadline = TimePoint{5s}}}, TimePoint{1ms},
          {infer(1), infer(2), infer(2), infer(4)});
  done(0, 12ms);
  done(1, 24ms);
  log.add(schedule::TimesChanged{ModelId{0}, {{1, 10ms}, {2, 11ms}, {4, 13ms}}}, TimePoint{2ms},
          {infer(2), infer(1)});
  done(2, 24ms);  // sent before
  done(3, 48ms);
  done(4, 12ms);
  done(5, 14ms);
  const workload::Scenario s = log.scenario();
  const auto& table = s.models[0].latency.table;
  ASSERT_EQ(table.size(), 3U);
  EXPECT_EQ(table[0].second, 13ms);
  EXPECT_EQ(table[1].second, 12ms);
  EXPECT_EQ(table[2].second, 13ms) << "none ran since";
}

TEST(Simulation, RequestsOfOneModelMayHaveSeveralSlos) {
  // A batch takes at least 6 ms: who has 5 ms is refused, the others are answered.
  auto s = scenario(20, 1);
  s.duration = 60s;
  s.models[0].slos = {5ms, 500ms, 500ms};
  s.models[0].slo = 5ms;
  Figures f = simulated(s, "symphony");
  EXPECT_NEAR(make_report(s, "symphony", f).finish_rate, 2.0 / 3, 0.05);
}

// When runs began and how long they took, by device.
class Runs final : public Observer {
 public:
  void on_start(ActionId id, DeviceId, TimePoint at) override { begun_[id] = at; }
  void on_end(ActionId id, DeviceId device, schedule::ActionStatus status, TimePoint at) override {
    if (status == schedule::ActionStatus::success)
      took[device].emplace_back(begun_[id] - TimePoint{}, at - begun_[id]);
  }
  std::map<DeviceId, std::vector<std::pair<Duration, Duration>>> took;

 private:
  std::map<ActionId, TimePoint> begun_;
};

TEST(Simulation, DevicesDifferInSpeedAndFailAsPlanned) {
  auto s = scenario(300, 3);
  s.models[0].slo = 100ms;
  s.models[0].max_batch = 1;
  s.speeds = {1, 2, 1};
  using Kind = workload::DeviceFault::Kind;
  s.faults = {{Kind::slow, 0, 2s, 1s, 3}, {Kind::hangs, 1, 4s, 200ms, 1}, {Kind::dies, 2, 5s, 1s, 1}};
  Runs runs;
  const Figures figures = simulated(s, "fcfs", {.observer = &runs});
  for (const auto& [begun, took] : runs.took[DeviceId{0}])
    ASSERT_EQ(took, 2s <= begun && begun < 3s ? 18ms : 6ms);
  int hung = 0;
  for (const auto& [begun, took] : runs.took[DeviceId{1}]) {
    hung += took > 3ms ? 1 : 0;
    ASSERT_TRUE(took == 3ms || (took == 203ms && begun > 3990ms && begun < 4s) ||
                (begun >= 4s && begun + took == 4203ms))
        << to_ms(begun) << " " << to_ms(took);
  }
  EXPECT_EQ(hung, 1);
  bool back = false;
  for (const auto& [begun, took] : runs.took[DeviceId{2}]) {
    ASSERT_TRUE(begun + took <= 5s || begun >= 6s);
    back = back || begun >= 6s;
  }
  EXPECT_TRUE(back);
  EXPECT_GT(figures.models[0].on_time, figures.models[0].offered / 2);
}

TEST(Simulation, AShareOfAModelsBatchesMayBeOutliers) {
  auto s = scenario(40, 1, 2);
  s.duration = 100s;
  s.models[1].outliers = {.share = 0.1, .factor = 5};
  for (auto& model : s.models) {
    model.slo = 200ms;
    model.max_batch = 1;
  }
  Runs runs;
  simulated(s, "fcfs", {.observer = &runs});
  double odd = 0;
  for (const auto& [begun, took] : runs.took[DeviceId{0}]) {
    ASSERT_TRUE(took == 6ms || took == 30ms);
    odd += took == 30ms ? 1 : 0;
  }
  EXPECT_NEAR(odd / static_cast<double>(runs.took[DeviceId{0}].size()), 0.05, 0.01);
}

TEST(Simulation, TheNetworksDelayIsPaidOnTheWayThereAndBack) {
  auto s = scenario(1, 1);
  s.network_delay = 1ms;
  s.process.kind = workload::ArrivalKind::uniform;
  Figures f = simulated(s, "fcfs");
  ASSERT_GT(f.models[0].latencies.size(), 1U);
  // To the scheduler, to the device, the inputs, EXEC of 6 ms, and back; a model without pages needs no LOAD.
  EXPECT_EQ(f.models[0].latencies[0], 10ms);
  EXPECT_EQ(f.models[0].latencies[1], 10ms);
}

TEST(Simulation, LoadsTakeTheirTimeOverPcie) {
  auto s = scenario(1, 1);
  s.memory = gib(1);
  s.pcie_bytes_per_s = 1e9;
  s.models[0].weights = Bytes{100'000'000};
  s.models[0].slo = 1s;
  s.process.kind = workload::ArrivalKind::uniform;
  const auto clockwork = schedule::make_scheduler("clockwork", environment(s));
  Figures f = run(s, **clockwork);
  EXPECT_EQ(f.loads, 1U);
  ASSERT_FALSE(f.models[0].latencies.empty());
  EXPECT_GE(f.models[0].latencies.front(), 106ms);
  EXPECT_LT(f.models[0].latencies.front(), 110ms);
}

TEST(Simulation, ClosedLoopsKeepTheirClients) {
  auto s = scenario(0, 1);
  s.process = {.kind = workload::ArrivalKind::closed, .clients = 4};
  s.models[0].slo = 1s;
  Figures f = simulated(s, "fcfs");
  // Two batches under way, two clients each, or one of four: 4 clients need 7 to 9 ms a turn.
  EXPECT_GT(f.models[0].on_time, 10 * 4 * 1000 / 20);
  EXPECT_EQ(f.models[0].late + f.models[0].refused, 0U);
}

TEST(Simulation, TheWarmUpIsLeftOut) {
  auto s = scenario(200);
  s.warmup = 5s;
  const Figures f = simulated(s, "symphony");
  EXPECT_NEAR(static_cast<double>(f.models[0].offered), 1000, 130);
  EXPECT_EQ(f.span, 5s);
}

TEST(Goodput, FindsWhereOneModelBegins) {
  auto s = scenario(300, 1);
  s.duration = 20s;
  s.warmup = 3s;
  const auto make = [&] { return *schedule::make_scheduler("symphony", environment(s)); };
  for (const int jobs : {1, 2}) {
    const Goodput found = find_goodput(s, make, "symphony", {.jobs = jobs});
    // One device: the batch that fits twice into 25 ms is 7, at 12 ms each: 583 requests a second.
    EXPECT_GT(found.rate, 400);
    EXPECT_LT(found.rate, 600);
    EXPECT_GE(found.report.worst_finish_rate, 0.99);
    EXPECT_GT(found.runs, 5);
  }
}

TEST(Simulation, TellsSchedulersOfTheModels) {
  workload::Scenario s = scenario(1, 1, 4);
  s.memory = mib(100);
  s.pcie_bytes_per_s = 1e9;
  s.models[0].max_batch = 3;
  s.models[1].max_batch = 20;
  s.models[1].batch_sizes = {1, 4, 16};
  s.models[1].weights = Bytes{page_bytes};
  s.models[2].max_batch = 300;
  s.models[2].weights = Bytes{page_bytes + 1};
  s.models[3].max_batch = 130;
  s.models[3].weights = Bytes{1};
  s.models[3].load = 7ms;
  const auto infos = model_infos(s);
  const auto sizes = [&](std::size_t m) {
    std::vector<int> found;
    for (const auto& b : infos[m].batches) {
      found.push_back(b.batch);
      EXPECT_EQ(b.exec, b.batch * 1ms + 5ms);
    }
    return found;
  };
  EXPECT_EQ(sizes(0), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(sizes(1), (std::vector<int>{1, 4, 16, 20})) << "the largest too";
  const auto large = sizes(2);
  EXPECT_EQ(large.back(), 300);
  for (int b = 1; b <= 128; ++b) EXPECT_EQ(large[static_cast<std::size_t>(b - 1)], b);
  for (std::size_t i = 128; i < large.size(); ++i) {
    EXPECT_GT(large[i], large[i - 1]);
    EXPECT_LE(large[i], large[i - 1] * 1.02);
  }
  EXPECT_LT(large.size(), 128 + 75U) << "not all of them";
  EXPECT_EQ(sizes(3).size(), 129U) << "1 to 128, and 130";
  const std::vector<std::uint64_t> pages{infos[0].pages, infos[1].pages, infos[2].pages, infos[3].pages};
  EXPECT_EQ(pages, (std::vector<std::uint64_t>{0, 1, 2, 1}));
  EXPECT_EQ(infos[0].load, Duration{0});
  EXPECT_EQ(infos[1].load, from_seconds(page_bytes / 1e9));
  EXPECT_EQ(infos[3].load, 7ms);
  for (std::size_t i = 0; i < infos.size(); ++i) {
    EXPECT_EQ(infos[i].id.index(), i);
    EXPECT_EQ(infos[i].name, s.models[i].name);
  }
  s.memory.reset();  // all are everywhere
  for (const auto& info : model_infos(s)) {
    EXPECT_EQ(info.pages, 0U);
    EXPECT_EQ(info.load, Duration{0});
  }
}

TEST(Simulation, TellsSchedulersOfTheSurroundings) {
  auto s = scenario(1);
  s.network_delay = 300us;
  EXPECT_EQ(environment(s).dispatch, 600us);
  EXPECT_EQ(environment(s).answer, 300us);
  EXPECT_EQ(environment(s).overrun, 0);
  s.allowance = {.dispatch = 1ms, .answer = 2ms, .overrun = 0.25};
  EXPECT_EQ(environment(s).dispatch, 1ms);
  EXPECT_EQ(environment(s).answer, 2ms);
  EXPECT_EQ(environment(s).overrun, 0.25);
}

// Answers nothing, and wants to be called again and again.
class Sleepless final : public schedule::Scheduler {
 public:
  std::string_view name() const override { return "sleepless"; }
  TimePoint decide(const schedule::Event&, TimePoint now, schedule::Actions&) override { return now + every; }
  Duration every = 10s;
};

TEST(Simulation, EndsThoughARequestIsNeverAnswered) {
  auto s = scenario(1, 1);
  Sleepless sleepless;
  const Figures f = run(s, sleepless);
  EXPECT_GT(f.models[0].offered, 0U);
  EXPECT_EQ(f.models[0].on_time + f.models[0].late + f.models[0].refused + f.models[0].cancelled, 0U);
  EXPECT_NEAR(static_cast<double>(f.decisions), 360, 25) << "for an hour";
}

TEST(Simulation, EndsWhenItIsToldTo) {
  auto s = scenario(0, 1);
  s.duration = std::chrono::hours{100'000};  // would take longer than anybody waits
  s.models[0].rate = {{s.duration - 1s, 100}};
  Sleepless sleepless;
  sleepless.every = 1s;
  std::vector<double> shares;
  run(s, sleepless, {.progress = [&](double share) {
        shares.push_back(share);
        return shares.size() < 3;
      }});
  ASSERT_EQ(shares.size(), 3U);
  EXPECT_GT(shares[0], 0);
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_LT(shares[2], 0.5);
}

TEST(Simulation, AWakeMayAskForAnotherAtOnce) {
  struct Again final : schedule::Scheduler {
    std::string_view name() const override { return "again"; }
    TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions&) override {
      if (std::holds_alternative<schedule::RequestArrived>(event)) return TimePoint{14ms};
      if (!std::holds_alternative<schedule::Wake>(event)) return TimePoint::max();
      woken.push_back(now);
      return woken.size() < 3 ? now : TimePoint::max();
    }
    std::vector<TimePoint> woken;
  } again;
  auto s = scenario(0, 1);
  s.models[0].arrivals = {{.at = TimePoint{5ms}, .slo = 1s}};
  run(s, again);
  EXPECT_EQ(again.woken, std::vector<TimePoint>(3, TimePoint{14ms}));
}

// What happens at one instant.
struct Order final : Observer {
  std::vector<std::string> happened;
  TimePoint of;
  void on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions&,
                   TimePoint) override {
    if (now != of) return;
    if (std::holds_alternative<schedule::ActionDone>(event)) happened.emplace_back("report");
    if (std::holds_alternative<schedule::RequestArrived>(event)) happened.emplace_back("arrival");
    if (std::holds_alternative<schedule::Wake>(event)) happened.emplace_back("wake");
  }
  void on_end(ActionId, DeviceId, schedule::ActionStatus, TimePoint at) override {
    if (at == of) happened.emplace_back("end");
  }
};

TEST(Simulation, AtOneInstantDevicesComeFirstThenClientsThenTheClock) {
  struct Planner final : schedule::Scheduler {
    std::string_view name() const override { return "planner"; }
    TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
      if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event))
        out.emplace_back(schedule::Infer{
            ActionId{next++}, DeviceId{0}, ModelId{0}, {arrival->request.id}, {now, TimePoint::max()}, 6ms});
      woken = woken || std::holds_alternative<schedule::Wake>(event);
      return next > 0 && !woken ? TimePoint{14ms} : TimePoint::max();
    }
    bool woken = false;
    std::uint64_t next = 0;
  } planner;
  auto s = scenario(0, 1);
  s.network_delay = 1ms;
  s.models[0].slo = 1s;
  // The first: heard at 6, there with its inputs at 8, ends at 14 and is reported at 15; at 14 the second is
  // heard.
  s.models[0].arrivals = {{.at = TimePoint{5ms}, .slo = 1s},
                          {.at = TimePoint{13ms}, .slo = 1s},
                          {.at = TimePoint{14ms}, .slo = 1s}};
  Order order;
  order.of = TimePoint{14ms};
  run(s, planner, {.observer = &order});
  EXPECT_EQ(order.happened, (std::vector<std::string>{"end", "arrival", "wake"}));
  order.happened.clear();
  order.of = TimePoint{15ms};
  Planner again;
  run(s, again, {.observer = &order});
  EXPECT_EQ(order.happened, (std::vector<std::string>{"report", "arrival"}));
}

TEST(Simulation, RequestsOfModesTakeTheTimeOfTheirMode) {
  struct Alone final : Observer {
    std::vector<double> quick, slow;  // ms
    void on_sent(const Request&, Duration alone, TimePoint) override {
      (alone < 50ms ? quick : slow).push_back(to_ms(alone));
    }
  } alone;
  auto s = scenario(500, 1);
  s.models[0].latency.modes = {{.mean = 20ms, .deviation = 2ms, .weight = 3},
                               {.mean = 100ms, .deviation = 5ms, .weight = 1}};
  const auto policy = *schedule::make_scheduler("fcfs", environment(s));
  run(s, *policy, {.observer = &alone});
  const auto moments = [](const std::vector<double>& values) {
    double sum = 0, squares = 0;
    for (const double v : values) {
      sum += v;
      squares += v * v;
    }
    const auto n = static_cast<double>(values.size());
    return std::pair(sum / n, std::sqrt(squares / n - sum / n * sum / n));
  };
  EXPECT_NEAR(
      static_cast<double>(alone.quick.size()) / static_cast<double>(alone.quick.size() + alone.slow.size()),
      0.75, 0.03);
  EXPECT_NEAR(moments(alone.quick).first, 20, 0.2);
  EXPECT_NEAR(moments(alone.quick).second, 2, 0.15);
  EXPECT_NEAR(moments(alone.slow).first, 100, 0.7);
  EXPECT_NEAR(moments(alone.slow).second, 5, 0.5);
}

TEST(Simulation, DecisionsMayTakeTime) {
  auto s = scenario(20, 1);
  s.process.kind = workload::ArrivalKind::uniform;
  s.models[0].slo = 100ms;
  // A lone request: the decision, then EXEC of 6 ms; another device is never wanted.
  for (const Duration cost : {Duration{0}, Duration{3ms}}) {
    Figures f = simulated(s, "eager", {.decision_time = cost});
    EXPECT_EQ(f.models[0].on_time, f.models[0].offered);
    EXPECT_NEAR(make_report(s, "eager", f).p50_ms, to_ms(6ms + cost), 0.01) << to_ms(cost);
    EXPECT_EQ(f.decision_times.count(), 0U);
  }
  // Above 1/cost events a second the scheduler itself is what holds requests up.
  s.rate = 400;
  Figures quick = simulated(s, "eager", {.decision_time = Duration{50us}});
  Figures slow = simulated(s, "eager", {.decision_time = Duration{3ms}});
  EXPECT_GT(make_report(s, "eager", quick).finish_rate, 0.9);
  EXPECT_LT(make_report(s, "eager", slow).finish_rate, 0.6);
  for (const Figures* f : {&quick, &slow})
    EXPECT_EQ(f->models[0].on_time + f->models[0].late + f->models[0].refused, f->models[0].offered);

  Figures measured = simulated(s, "eager", {.measured_decisions = true});
  EXPECT_EQ(measured.decision_times.count(), measured.decisions);
  const Report report = make_report(s, "eager", measured);
  ASSERT_TRUE(report.decision_times);
  EXPECT_LE(report.decision_times->p50_us, report.decision_times->max_us);
  EXPECT_GT(to_json(report)["decisions"]["mean_us"], 0);
}

// What the policy is told of requests: the applications of each model, and samples.
struct Told final : Observer {
  void on_decision(const schedule::Event& event, TimePoint, const schedule::Actions& actions,
                   TimePoint) override {
    if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event))
      apps[arrival->request.model].insert(arrival->request.app);
    if (const auto* done = std::get_if<schedule::ActionDone>(&event))
      if (profiles_.contains(done->id) && done->status == schedule::ActionStatus::success)
        samples.push_back(done->duration);
    for (const schedule::Action& action : actions)
      if (const auto* profile = std::get_if<schedule::Profile>(&action)) profiles_.insert(profile->id);
  }
  std::map<ModelId, std::set<AppId>> apps;
  std::vector<Duration> samples;  // what requests that ran again took

 private:
  std::set<ActionId> profiles_;
};

// Where each request is run again, or a share of them.
Figures profiled_all(const workload::Scenario& s, const std::string& scheduler, const Options& options = {},
                     double share = 1) {
  schedule::Environment told = environment(s);
  told.profile_share = share;
  const auto policy = *schedule::make_scheduler(scheduler, told);
  return run(s, *policy, options);
}

workload::Scenario dynamic_scenario(double rate) {
  auto s = scenario(rate, 1);
  s.process.kind = workload::ArrivalKind::uniform;
  s.models[0].slo = 1s;
  s.models[0].max_batch = 4;
  s.models[0].latency = {};
  s.models[0].latency.c0 = 20ms;
  s.models[0].latency.c1 = 0.5;
  s.models[0].latency.modes = {{.mean = 40ms, .app = "a"}};
  return s;
}

TEST(Simulation, ARequestsApplicationIsTheOneThatItsModeNames) {
  auto s = dynamic_scenario(20);
  s.models[0].latency.modes = {{.mean = 10ms}, {.mean = 20ms}};
  for (const char* name : {"alike", "mixed"}) {
    s.models.push_back(s.models[0]);
    s.models.back().name = name;
  }
  s.models[1].latency.modes = {{.mean = 10ms, .app = "x"}, {.mean = 20ms, .app = "x"}};
  s.models[2].latency.modes = {{.mean = 10ms, .app = "x"}, {.mean = 20ms, .app = "y"}, {.mean = 20ms}};
  Told told;
  simulated(s, "fcfs", {.observer = &told});
  EXPECT_EQ(told.apps[ModelId{0}], std::set{AppId{0}}) << "no name, as a live client that gives none";
  EXPECT_EQ(told.apps[ModelId{1}].size(), 1U) << "one name";
  EXPECT_FALSE(told.apps[ModelId{1}].contains(AppId{0}));
  EXPECT_EQ(told.apps[ModelId{2}].size(), 3U);
  EXPECT_TRUE(told.apps[ModelId{2}].contains(*told.apps[ModelId{1}].begin()))
      << "names are the same everywhere";
}

TEST(Simulation, FinishedRequestsRunAgainInIdleTimeOnly) {
  // A batch of one takes 40 ms; one comes every 100 ms, so that each can run again before the next.
  Told told;
  Figures idle = profiled_all(dynamic_scenario(10), "orloj", {.observer = &told});
  EXPECT_NEAR(static_cast<double>(idle.profiled), 100, 2);
  EXPECT_EQ(told.samples.size(), idle.profiled);
  for (const Duration solo : told.samples) EXPECT_EQ(solo, 40ms) << "what the device took, with c0";
  EXPECT_EQ(idle.profiling, 40ms * static_cast<std::int64_t>(idle.profiled)) << "of device time";

  // Every 50 ms: there are gaps of 10 ms, and the next request ends what runs in them at once.
  Figures short_gaps = profiled_all(dynamic_scenario(20), "orloj");
  EXPECT_LE(short_gaps.profiled, 1U) << "after the last request";
  EXPECT_GT(short_gaps.profiling, 1s);
  for (const Duration latency : short_gaps.models[0].latencies) EXPECT_EQ(latency, 40ms);

  // There is no idle time at all.
  Figures full = profiled_all(dynamic_scenario(200), "orloj");
  EXPECT_LE(full.profiled, 1U);
  EXPECT_LT(full.profiling, 100ms);

  Figures off = profiled_all(dynamic_scenario(10), "orloj", {}, 0);
  Figures deaf = profiled_all(dynamic_scenario(10), "symphony");
  Figures fixed = profiled_all(scenario(20, 1), "orloj");
  EXPECT_EQ(off.profiled + deaf.profiled + fixed.profiled, 0U);
}

TEST(Simulation, OnlyWhatIsKeptRunsAgain) {
  struct Again final : schedule::Scheduler {
    std::string_view name() const override { return "again"; }
    TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
      if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
        out.emplace_back(schedule::Keep{arrival->request.id});
        out.emplace_back(schedule::Infer{
            ActionId{0}, DeviceId{0}, ModelId{0}, {arrival->request.id}, {now, TimePoint::max()}, 6ms});
      } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
        ended.emplace_back(done->status, now);
        if (done->id != ActionId{0}) return TimePoint::max();
        if (forgets) out.emplace_back(schedule::Keep{RequestId{0}, false});
        out.emplace_back(schedule::Profile{
            ActionId{1}, DeviceId{0}, ModelId{0}, RequestId{0}, {now, TimePoint::max()}, 6ms});
      }
      return TimePoint::max();
    }
    bool forgets = false;
    std::vector<std::pair<schedule::ActionStatus, TimePoint>> ended;
  };
  auto s = scenario(0, 1);
  s.models[0].arrivals = {{.at = TimePoint{5ms}, .slo = 1s}};
  using enum schedule::ActionStatus;
  for (const bool forgets : {false, true}) {
    Again again;
    again.forgets = forgets;
    run(s, again);
    ASSERT_EQ(again.ended.size(), 2U);
    EXPECT_EQ(again.ended[0], std::pair(success, TimePoint{11ms}));
    EXPECT_EQ(again.ended[1],
              forgets ? std::pair(failed, TimePoint{11ms + 100us}) : std::pair(success, TimePoint{17ms}));
  }
}

TEST(Simulation, WhatRunsAgainIsLostWithItsDevice) {
  auto s = dynamic_scenario(10);
  s.duration = 100s;
  s.devices = 2;
  Figures figures = profiled_all(s, "orloj", {.faults = {.deaths_per_s = 1}});
  EXPECT_GT(figures.profiled, 100U) << "it runs again, or another does";
  const auto& m = figures.models[0];
  EXPECT_EQ(m.on_time + m.late + m.refused, m.offered);
}

TEST(Goodput, SaysZeroWhereNothingCanPass) {
  auto s = scenario(10, 1);
  s.models[0].slo = 1ms;
  const auto make = [&] { return *schedule::make_scheduler("symphony", environment(s)); };
  EXPECT_EQ(find_goodput(s, make, "symphony").rate, 0);
}

}  // namespace
}  // namespace carillon::simulate
