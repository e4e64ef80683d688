#include "carillon/schedule/parts/placing.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/carillon/carillon.h"
#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;
using testing::of_kind;
using Models = std::vector<std::uint32_t>;

// A policy that places its models so, devices that do at once what they are told, and a LOAD's time after a
// LOAD.
class PlacingTest : public ::testing::Test {
 protected:
  PlacingTest()
      : policy_(std::make_unique<Ledgered>(
            std::make_unique<Carillon>(Environment{.dispatch = {}, .answer = {}, .overrun = 0}))) {}

  static TimePoint at(Duration d) { return TimePoint{d}; }
  void model(std::uint32_t id, Duration load = 8ms, std::uint64_t pages = 1, Duration exec = 1ms) {
    tell(model_comes(linear_model(id, 0ms, exec, pages, load, {1})));
  }
  void device(std::uint32_t id, std::uint64_t pages) { tell(DeviceChanged{DeviceId{id}, true, pages}); }
  void arrives(std::uint32_t model, Duration slo = 100ms) {
    tell(RequestArrived{{.id = RequestId{next_request_++},
                         .model = ModelId{model},
                         .arrival = at(now_),
                         .deadline = at(now_ + slo)}});
  }
  // Reports of what ends until then, and what the policy does at its wakes.
  void run_until(Duration until) {
    while (true) {
      auto next = std::ranges::min_element(flights_, {}, &Flight::end);
      const bool ends = next != flights_.end() && next->end <= until;
      const Duration wake = wake_.time_since_epoch();
      if (wake <= until && (!ends || wake < next->end)) {
        now_ = std::max(now_, wake);
        tell(Wake{});
        continue;
      }
      if (!ends) break;
      const Flight flight = *next;
      flights_.erase(next);
      now_ = std::max(now_, flight.end);
      const bool fails = flight.load && fails_.contains({flight.device, flight.model});
      if (flight.load && !fails) there_.insert({flight.device, flight.model});
      tell(ActionDone{.id = flight.id,
                      .status = fails ? ActionStatus::failed : ActionStatus::success,
                      .start = at(flight.start),
                      .end = at(flight.end),
                      .duration = flight.end - flight.start});
    }
    now_ = until;
  }
  struct Arrival {
    Duration when;
    std::uint32_t model = 0;
    Duration slo{0};
    auto operator<=>(const Arrival&) const = default;
  };
  using Arrivals = std::vector<Arrival>;
  // From now on for a while, so many a second.
  void even(std::uint32_t id, int rate, Duration length, Duration slo, Arrivals& out) const {
    for (Duration t = now_ + Duration{1s} / rate; t <= now_ + length; t += Duration{1s} / rate)
      out.push_back({t, id, slo});
  }
  void ask(Arrivals arrivals) {
    std::ranges::sort(arrivals);
    for (const Arrival& each : arrivals) {
      run_until(each.when);
      arrives(each.model, each.slo);
    }
  }
  // For a while requests come evenly, so many a second.
  void ask(const std::vector<std::pair<std::uint32_t, int>>& rates, Duration length, Duration slo = 100ms) {
    const Duration from = now_;
    Arrivals arrivals;
    for (const auto& [id, rate] : rates) even(id, rate, length, slo, arrivals);
    ask(std::move(arrivals));
    run_until(from + length);
  }
  Models there(std::uint32_t device) const {
    Models found;
    for (const auto& [d, m] : there_)
      if (d == DeviceId{device}) found.push_back(m.value);
    return found;
  }
  void tell(const Event& event) {
    Actions out;
    wake_ = policy_->decide(event, at(now_), out);
    for (const Load& load : of_kind<Load>(out)) {
      Duration& busy = bus_[load.device];
      busy = std::max(busy, now_);
      flights_.push_back({busy + load.expected, busy, load.id, load.device, load.model, true});
      busy += load.expected;
      loads_.push_back(load.model.value);
    }
    for (const Infer& infer : of_kind<Infer>(out))
      flights_.push_back({now_ + infer.expected, now_, infer.id, infer.device, infer.model, false});
    for (const Unload& unload : of_kind<Unload>(out)) {
      there_.erase({unload.device, unload.model});
      flights_.push_back({now_, now_, unload.id, unload.device, unload.model, false});
    }
    for (const Refuse& refuse : of_kind<Refuse>(out)) refused_.push_back(refuse.reason);
  }

  struct Flight {
    Duration end, start;
    ActionId id;
    DeviceId device;
    ModelId model;
    bool load = false;
  };
  std::unique_ptr<Ledgered> policy_;
  Duration now_{0};
  TimePoint wake_ = TimePoint::max();
  std::uint64_t next_request_ = 0;
  std::vector<Flight> flights_;
  std::map<DeviceId, Duration> bus_;
  std::set<std::pair<DeviceId, ModelId>> there_, fails_;
  Models loads_;
  std::vector<Reason> refused_;
};

TEST_F(PlacingTest, WhatIsAskedForLeastMakesRoom) {
  for (const std::uint32_t id : {0, 1, 2, 3}) model(id);
  device(0, 3);
  ask({{0, 100}, {1, 10}, {2, 50}}, 1s);
  EXPECT_EQ(there(0), (Models{0, 1, 2}));
  run_until(1005ms);
  arrives(3);
  run_until(1019ms);
  EXPECT_EQ(there(0), (Models{0, 2, 3})) << "last use would have said otherwise";
  EXPECT_TRUE(refused_.empty());
}

TEST_F(PlacingTest, WhoCanStillBeInTimeGetsALoadOfWhatIsSeldomAskedFor) {
  for (const std::uint32_t id : {0, 1, 2, 3}) model(id, 20ms);
  device(0, 2);
  run_until(100ms);
  ASSERT_EQ(there(0), (Models{0, 1}));
  ask({{0, 300}, {1, 300}}, 500ms);
  run_until(now_ + 10ms);
  loads_.clear();
  arrives(2, 10ms);
  EXPECT_TRUE(loads_.empty()) << "too late for it, and asked for less than the others";
  arrives(3, 30ms);
  run_until(now_ + 30ms);
  EXPECT_EQ(loads_, Models{3});
  EXPECT_EQ(refused_.size(), 1U);
}

TEST_F(PlacingTest, WhatNoLoadHelpsIsLoadedOnceItIsAskedForMore) {
  for (const std::uint32_t id : {0, 1}) model(id, 200ms);
  device(0, 1);
  ask({{0, 10}}, 2s, 50ms);
  ASSERT_EQ(there(0), Models{0});
  ask({{0, 2}, {1, 100}}, 2s, 50ms);
  EXPECT_EQ(there(0), Models{1});
  loads_.clear();
  ask({{0, 2}, {1, 100}}, 5s, 50ms);
  EXPECT_TRUE(loads_.empty());
}

TEST_F(PlacingTest, TwoHotModelsDoNotTakeEachOthersPlaceForEver) {
  for (const std::uint32_t id : {0, 1}) model(id, 50ms);
  device(0, 1);
  ask({{0, 100}, {1, 99}}, 5s, 20ms);  // no LOAD helps what waits
  EXPECT_LE(loads_.size(), 5U);
}

TEST_F(PlacingTest, AModelThatItsDeviceHasNotTheTimeForGetsAnotherCopy) {
  for (const std::uint32_t id : {0, 1, 2, 3}) model(id, 5ms);
  device(0, 2);
  device(1, 2);
  ask({{0, 1500}, {1, 2}, {2, 2}, {3, 2}}, 3s);
  EXPECT_TRUE(std::ranges::count(there(0), 0U) == 1 && std::ranges::count(there(1), 0U) == 1);
  EXPECT_LT(refused_.size(), next_request_ / 10) << "one device has the time for two thirds";
}

// The rates tell of a burst when it is over.
TEST_F(PlacingTest, WhatWaitsForABusyDeviceGetsAnotherCopyOnAnIdleOne) {
  for (const std::uint32_t id : {0, 1, 2, 3}) model(id, 5ms);
  device(0, 2);
  device(1, 2);
  ask({{0, 10}, {1, 10}, {2, 10}, {3, 10}}, 2s);
  run_until(now_ + 90ms);
  ASSERT_EQ(std::ranges::count(there(0), 0U) + std::ranges::count(there(1), 0U), 1);
  for (int i = 0; i < 100; ++i) arrives(0, 60ms);
  run_until(now_ + 100ms);
  EXPECT_EQ(std::ranges::count(there(0), 0U) + std::ranges::count(there(1), 0U), 2);
  EXPECT_LT(refused_.size(), 20U) << "one device alone has the time for 60";
}

TEST_F(PlacingTest, NoOtherCopyGoesBesideModelsThatCouldNotWaitForIt) {
  model(0, 5ms, 1, 20ms);
  for (const std::uint32_t id : {1, 2, 3}) model(id, 5ms);
  device(0, 2);
  device(1, 2);
  ask({{1, 50}}, 1s, 8ms);
  ASSERT_EQ(there(1), (Models{1, 3}));  // nobody asks for the other one
  Arrivals arrivals;
  even(1, 50, 3s, 8ms, arrivals);
  even(0, 80, 3s, 200ms, arrivals);  // asks for more than one device
  ask(std::move(arrivals));
  EXPECT_EQ(std::ranges::count(there(0), 0U) + std::ranges::count(there(1), 0U), 1);
}

// Memory is scarce: a device that long runs would keep off has none of the quick ones.
TEST_F(PlacingTest, LongRunsKeepOffNoDeviceForModelsThatAreElsewhere) {
  for (const std::uint32_t id : {0, 1}) model(id, 5ms, 1, 20ms);
  model(2, 5ms);
  for (const std::uint32_t id : {0, 1, 2}) device(id, 1);
  Arrivals arrivals;
  for (const std::uint32_t id : {0, 1}) even(id, 35, 3s, 100ms, arrivals);
  even(2, 900, 3s, 15ms, arrivals);
  ask(std::move(arrivals));
  EXPECT_LT(refused_.size(), next_request_ / 100);
}

TEST_F(PlacingTest, WhatADeviceTookWithItIsLoadedElsewhere) {
  for (const std::uint32_t id : {0, 1}) model(id);
  device(0, 1);
  device(1, 1);
  ask({{0, 50}, {1, 50}}, 500ms);
  const auto lost = there(0);
  ASSERT_EQ(lost.size(), 1U);
  std::erase_if(flights_, [](const Flight& flight) { return flight.device == DeviceId{0}; });
  std::erase_if(there_, [](const auto& each) { return each.first == DeviceId{0}; });
  tell(DeviceChanged{DeviceId{0}, false});
  arrives(lost[0]);
  run_until(now_ + 50ms);
  EXPECT_EQ(there(1), lost);
}

TEST_F(PlacingTest, AModelThatGoesMakesRoom) {
  for (const std::uint32_t id : {0, 1}) model(id);
  device(0, 1);
  ask({{0, 100}}, 500ms);
  ASSERT_EQ(there(0), Models{0});
  tell(ModelChanged{ModelId{0}, nullptr});
  run_until(now_ + 20ms);
  EXPECT_EQ(there(0), Models{1});
}

TEST_F(PlacingTest, ALoadThatFailsIsTriedElsewhere) {
  model(0);
  fails_ = {{DeviceId{0}, ModelId{0}}, {DeviceId{1}, ModelId{0}}};
  device(0, 1);
  device(1, 1);
  arrives(0, 10s);
  run_until(30ms);
  EXPECT_TRUE(there_.empty());
  fails_.erase({DeviceId{1}, ModelId{0}});
  run_until(500ms);
  EXPECT_EQ(there(1), Models{0});
  EXPECT_TRUE(refused_.empty());
}

TEST_F(PlacingTest, WhoWaitsForAModelWhoseLoadsFailEverywhereIsRefused) {
  model(0);
  fails_ = {{DeviceId{0}, ModelId{0}}};
  device(0, 1);
  arrives(0, 10s);
  run_until(5s);
  EXPECT_EQ(refused_, std::vector{Reason::device_failed});
}

// Without a deadline it could wait for ever.
TEST_F(PlacingTest, WhoWaitsForTooLongIsServed) {
  for (const std::uint32_t id : {0, 1}) model(id);
  device(0, 1);
  ask({{0, 200}}, 500ms);
  ASSERT_EQ(there(0), Models{0});
  tell(RequestArrived{{.id = RequestId{next_request_++},
                       .model = ModelId{1},
                       .arrival = at(now_),
                       .deadline = TimePoint::max()}});
  ask({{0, 200}}, 2s);
  EXPECT_TRUE(std::ranges::count(loads_, 1U) > 0);
}

// Evenly for long, then in one burst, then not at all.
TEST(Rates, TheLongWindowCountsAsFarAsTheBriefOneDoesNotContradict) {
  parts::Rates rates;
  const ModelId model{3};
  const auto now = [](Duration d) { return TimePoint{d}; };
  EXPECT_EQ(rates.rate(model, now(0ms)), 0);
  for (Duration t = 10ms; t <= 20s; t += 10ms) rates.arrived(model, now(t));
  for (const double rate :
       {rates.rate(model, now(20s)), rates.brief(model, now(20s)), rates.lasting(model, now(20s))})
    EXPECT_NEAR(rate, 100, 5);
  EXPECT_EQ(rates.rate(ModelId{2}, now(20s)), 0);
  for (int i = 0; i < 100; ++i) rates.arrived(model, now(20s));
  EXPECT_NEAR(rates.lasting(model, now(20s)), 112, 5);
  EXPECT_GT(rates.rate(model, now(20s)), 400);
  EXPECT_GT(rates.lasting(model, now(22s)), 80);
  EXPECT_LT(rates.rate(model, now(22s)), 15);
}

// One that came a moment ago counts by what was seen since.
TEST(Rates, AModelThatIsNewIsNotTakenForOneThatIsSeldomAskedFor) {
  parts::Rates rates;
  for (Duration t = 10ms; t <= 1s; t += 10ms) rates.arrived(ModelId{0}, TimePoint{t});
  EXPECT_NEAR(rates.lasting(ModelId{0}, TimePoint{1s}), 100, 5);
}

}  // namespace
}  // namespace carillon::schedule
