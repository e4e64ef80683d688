#include "carillon/workload/clients.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <gtest/gtest.h>

namespace carillon::workload {
namespace {

Scenario scenario(std::vector<ScenarioModel> models, Duration duration, double rate = 0) {
  Scenario s;
  s.duration = duration;
  s.rate = rate;
  s.process = {.kind = ArrivalKind::uniform};
  s.models = std::move(models);
  return s;
}

struct Sent {
  TimePoint at;
  std::uint32_t model = 0;
  std::size_t number = 0;  // among those of its model
  friend bool operator==(const Sent&, const Sent&) = default;
};

std::vector<Sent> all(const Scenario& s) {
  Clients clients(s);
  std::vector<Sent> sent;
  while (clients.next_at() < TimePoint::max()) {
    const TimePoint at = clients.next_at();
    const std::uint32_t model = clients.take();
    sent.push_back({at, model, clients.taken()});
  }
  return sent;
}

std::vector<TimePoint> of(const std::vector<Sent>& sent, std::uint32_t model) {
  std::vector<TimePoint> at;
  for (const Sent& s : sent)
    if (s.model == model) at.push_back(s.at);
  return at;
}

std::vector<TimePoint> at(std::initializer_list<Duration> times) {
  std::vector<TimePoint> points;
  for (const Duration t : times) points.push_back(TimePoint{t});
  return points;
}

TEST(Clients, EqualGapsKeepTheirShapeWhileTheRateChanges) {
  // Half a gap is left over at each step, and passes at the next rate.
  auto s = scenario({{.name = "m", .rate = {{1s, 10}, {1250ms, 0}, {3s, 2}, {4s, 20}}}}, 4200ms);
  EXPECT_EQ(of(all(s), 0), at({1100ms, 1200ms, 3250ms, 3750ms, 4025ms, 4075ms, 4125ms, 4175ms}));
  // What would come at the end or after it does not.
  s = scenario({{.name = "m", .rate = {{0s, 10}}}}, 500ms);
  EXPECT_EQ(of(all(s), 0), at({100ms, 200ms, 300ms, 400ms}));
  s.models[0].rate = {{0s, 0}};
  EXPECT_TRUE(all(s).empty());
  s.models[0].rate = {{0s, 10}, {150ms, 0}};
  EXPECT_EQ(of(all(s), 0), at({100ms}));
  s.models[0].rate = {{700ms, 10}};
  EXPECT_TRUE(all(s).empty()) << "begins after the end";
  s.models[0].rate = {{0s, 1e-12}};
  EXPECT_TRUE(all(s).empty()) << "in thirty thousand years";
}

TEST(Clients, RatesFollowTheirSteps) {
  auto s = scenario({{.name = "m", .rate = {{0s, 100}, {2s, 0}, {5s, 1000}, {6s, 10}}}}, 10s);
  for (const auto kind : {ArrivalKind::poisson, ArrivalKind::uniform}) {
    s.process.kind = kind;
    Clients clients(s);
    std::array<int, 10> counts{};
    TimePoint last{};
    while (clients.next_at() < TimePoint::max()) {
      EXPECT_GE(clients.next_at(), last);
      last = clients.next_at();
      ++counts[static_cast<std::size_t>(to_seconds(last - TimePoint{}))];
      clients.take();
    }
    EXPECT_NEAR(counts[0] + counts[1], 200, 60);
    EXPECT_LE(counts[2] + counts[3] + counts[4], 1);  // one may fall on the instant of the step
    EXPECT_NEAR(counts[5], 1000, 120);
    EXPECT_NEAR(counts[8], 10, 12);
  }
}

TEST(Clients, ComeInTheOrderOfTimeWithTheirNumbers) {
  const auto s = scenario({{.name = "a", .rate = {{0s, 4}}}, {.name = "b", .rate = {{0s, 5}}}}, 1s);
  const auto sent = all(s);
  ASSERT_EQ(sent.size(), 7U);
  std::array<std::size_t, 2> count{};
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (i > 0) {
      EXPECT_GE(sent[i].at, sent[i - 1].at);
    }
    EXPECT_EQ(sent[i].number, count[sent[i].model]++);
  }
  EXPECT_EQ(count, (std::array<std::size_t, 2>{3, 4}));
}

TEST(Clients, ThePlannedComeAsPlanned) {
  auto s = scenario({{.name = "a", .rate = {{0s, 100}}}}, 1s);
  s.models[0].arrivals = {{.at = TimePoint{5ms}}, {.at = TimePoint{5ms}}, {.at = TimePoint{999ms}}};
  EXPECT_EQ(of(all(s), 0), at({5ms, 5ms, 999ms}));
  s.duration = 999ms;
  EXPECT_EQ(of(all(s), 0), at({5ms, 5ms}));
}

TEST(Clients, OfATraceEachMinuteHasItsNumber) {
  auto s = scenario({{.name = "a"}, {.name = "b"}}, 5min);
  s.models[0].per_minute = {1000, 0, 0, 4000, 1};
  s.models[1].per_minute = {0, 3};
  const auto sent = all(s);
  std::array<std::size_t, 5> count{};
  double place = 0;
  for (const TimePoint t : of(sent, 0)) {
    const double minute = to_seconds(t - TimePoint{}) / 60;
    ++count[static_cast<std::size_t>(minute)];
    if (minute >= 3 && minute < 4) place += minute - 3;
  }
  EXPECT_EQ(count, (std::array<std::size_t, 5>{1000, 0, 0, 4000, 1}));
  EXPECT_NEAR(place / 4000, 0.5, 0.02) << "spread over the minute";
  EXPECT_TRUE(
      std::is_sorted(sent.begin(), sent.end(), [](const Sent& x, const Sent& y) { return x.at < y.at; }));
  EXPECT_EQ(of(sent, 1).size(), 3U);
}

// Mean and variance of the gaps, in units of the mean gap.
std::pair<double, double> gaps(const ArrivalSpec& spec) {
  auto s = scenario({{.name = "a"}}, 400s, 100);
  s.process = spec;
  const auto times = of(all(s), 0);
  double sum = 0, squares = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const double gap = to_seconds(times[i] - times[i - 1]) * 100;
    sum += gap;
    squares += gap * gap;
  }
  const auto n = static_cast<double>(times.size() - 1);
  return {sum / n, squares / n - sum / n * sum / n};
}

TEST(Clients, GapsAreDistributedAsTheProcessSays) {
  using enum ArrivalKind;
  const struct {
    ArrivalSpec spec;
    double variance, within;
  } rows[] = {{{.kind = uniform}, 0, 1e-9},
              {{.kind = poisson}, 1, 0.05},
              {{.kind = gamma, .shape = 4}, 0.25, 0.02},
              {{.kind = gamma, .shape = 0.25}, 4, 0.4}};
  for (const auto& [spec, variance, within] : rows) {
    const auto [mean, found] = gaps(spec);
    EXPECT_NEAR(mean, 1, 0.03) << to_text(spec);
    EXPECT_NEAR(found, variance, within) << to_text(spec);
  }
}

TEST(Clients, AModelsRequestsDoNotDependOnTheOthers) {
  auto s = scenario({{.name = "a", .rate = {{0s, 50}}}, {.name = "b", .rate = {{0s, 70}}}}, 10s);
  s.process = {.kind = ArrivalKind::poisson};
  const auto both = all(s);
  EXPECT_EQ(both, all(s)) << "the same seed, the same requests";
  s.models[1].rate = {{0s, 500}};
  EXPECT_EQ(of(both, 0), of(all(s), 0));
  EXPECT_NE(of(both, 0), of(both, 1));
  s.seed = 2;
  EXPECT_NE(of(both, 0), of(all(s), 0));
}

TEST(Clients, AModelsOwnProcessGoesBeforeTheScenarios) {
  auto s = scenario({{.name = "a", .rate = {{0s, 10}}}, {.name = "b", .rate = {{0s, 10}}}}, 350ms);
  s.process = {.kind = ArrivalKind::closed, .clients = 3};
  s.models[1].process = ArrivalSpec{.kind = ArrivalKind::uniform};
  const auto sent = all(s);
  EXPECT_TRUE(of(sent, 0).empty()) << "closed loops send elsewhere";
  EXPECT_EQ(of(sent, 1), at({100ms, 200ms, 300ms}));
}

}  // namespace
}  // namespace carillon::workload
