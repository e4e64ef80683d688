#include "carillon/tune/tuning.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::tune {
namespace {

using ::testing::HasSubstr;
using Kind = TuneOrder::Kind;

// A tuning, and what it is told and orders, in whole seconds.
class Desk {
 public:
  explicit Desk(const std::string& policy, TuneOptions options = {})
      : tuning(*make_tuning(policy, options)) {}

  TuneOrders tell(const TuneEvent& event, double at = 0) {
    TuneOrders orders;
    tuning->on(event, TimePoint{} + from_seconds(at), orders);
    return orders;
  }
  // Told, and every order settles at once, and what comes of that. The last order of each trial by its id.
  std::map<std::uint32_t, TuneOrder> settle(const TuneEvent& event, double at = 0) {
    std::map<std::uint32_t, TuneOrder> last;
    std::vector<TuneOrder> open = tell(event, at);
    for (std::size_t i = 0; i < open.size() && i < 1000; ++i) {
      if (open[i].kind != Kind::wake_at) last[open[i].trial.value] = open[i];
      if (open[i].kind == Kind::refuse) continue;
      const TuneEvent next =
          open[i].kind == Kind::wake_at ? TuneEvent(TuneWake{}) : TrialSettled{open[i].trial};
      for (TuneOrder& more : tell(next, at)) open.push_back(more);
    }
    return last;
  }
  void devices(std::uint32_t count, Bytes memory = device::most_job_bytes) {
    for (std::uint32_t d = 0; d < count; ++d) tell(DeviceCame{DeviceId{d}, 1, 1, memory});
  }
  TrialView view(std::uint32_t trial) const {
    for (const TrialView& v : tuning->trials())
      if (v.trial.value == trial) return v;
    ADD_FAILURE() << "no trial " << trial;
    return {};
  }
  std::unique_ptr<Tuning> tuning;
};

TrialSpec trial(std::uint32_t id, double seconds) {
  return {.trial = TrialId{id}, .budget = 1, .iteration = from_seconds(seconds)};
}
GroupCame group(std::initializer_list<double> seconds, std::uint32_t first = 0) {
  GroupCame g{GroupId{first}, {}};
  for (const double s : seconds) g.trials.push_back(trial(first++, s));
  return g;
}
TuneOptions ideal(int c, int d) {
  TuneOptions options;
  options.alpha = options.beta = 1;
  options.move = Duration{0};
  options.c = c;
  options.d = d;
  return options;
}

// --- Figure 3.5: 4, 4, 12 and 30 s on five devices

TEST(Fifo, Figure3_5) {
  Desk desk("fifo", ideal(2, 4));
  desk.devices(5);
  const auto orders = desk.settle(group({4, 4, 12, 30}));
  ASSERT_EQ(orders.size(), 4U);
  for (const auto& [id, order] : orders) {
    EXPECT_EQ(order.kind, Kind::place);
    EXPECT_EQ(order.width, 1);
    EXPECT_EQ(order.devices, std::vector{DeviceId{id}});
  }
}

// a4 on three workers, a3 on one, a1 and a2 together on one: figure 3.5c.
TEST(Static, Figure3_5) {
  Desk desk("static", ideal(2, 4));
  desk.devices(5);
  const auto orders = desk.settle(group({4, 4, 12, 30}));
  EXPECT_EQ(orders.at(3).width, 3);
  EXPECT_EQ(orders.at(3).devices.size(), 3U);
  EXPECT_EQ(orders.at(2).width, 1);
  EXPECT_EQ(orders.at(0).width, 0.5);
  EXPECT_EQ(orders.at(1).width, 0.5);
  EXPECT_EQ(orders.at(0).devices, orders.at(1).devices);
}

// As trials end, line 3 gives those that are left more (figure 3.4's "resources are freed").
TEST(Dynamic, GivesWhatIsFreedByAlgorithm3_2) {
  Desk desk("dynamic", ideal(2, 4));
  desk.devices(5);
  desk.settle(group({4, 4, 12, 30}));
  desk.settle(TrialEnded{TrialId{0}}, 4);
  // At 4 s: 4 s of a2 are over, 8 s of a3 and 18 s of a4 are left: n * 8/26 = 1.5, n * 18/26 = 3.5.
  const auto orders = desk.settle(TrialEnded{TrialId{1}}, 4);
  EXPECT_TRUE(orders.empty());
  // At 10 s a4 is over, and a3 has 2 s left: min(5, d).
  const auto more = desk.settle(TrialEnded{TrialId{3}}, 10);
  ASSERT_TRUE(more.contains(2));
  EXPECT_EQ(more.at(2).kind, Kind::resize);
  EXPECT_EQ(more.at(2).width, 4);
}

TEST(Dynamic, ScalesUpOnlyWhereThatBringsMoreThanItCosts) {
  for (const double cost : {1.4, 1.6}) {
    TuneOptions options = ideal(2, 4);
    options.move = from_seconds(cost);
    Desk desk("dynamic", options);
    desk.devices(5);
    desk.settle(group({4, 4, 12, 30}));
    desk.settle(TrialEnded{TrialId{0}}, 4);
    desk.settle(TrialEnded{TrialId{1}}, 4);
    // 2 s are left on one device; on four they take 0.5 s and the cost.
    const auto orders = desk.settle(TrialEnded{TrialId{3}}, 10);
    EXPECT_EQ(orders.contains(2), cost < 1.5) << cost;
  }
}

// Line 6: fewer devices where w'(h' + e) < w h. One trial has all four; a long one comes.
TEST(Dynamic, ScalesDownWhereThatSavesDeviceTime) {
  TuneOptions options = ideal(1, 4);
  options.beta = 1.1;
  Desk desk("dynamic", options);
  desk.devices(4);
  desk.settle(group({10}));
  EXPECT_EQ(desk.view(0).width, 4);
  // No idle device: the newcomer's w is 1/c = 1, and it waits; Algorithm 3.2 runs where nothing waits.
  EXPECT_TRUE(desk.settle(group({90}, 1)).empty());
  desk.settle(TrialEnded{TrialId{0}}, 1);
  EXPECT_EQ(desk.view(1).state, TrialView::State::running);
}

TEST(Static, LeavesWhatRoundingDownLeavesIdle) {
  Desk desk("static", ideal(2, 4));
  desk.devices(4);
  // n * 1/3 = 1.33 each: one device stays idle.
  for (const auto& [id, order] : desk.settle(group({5, 5, 5}))) EXPECT_EQ(order.width, 1);
  // Nine alike on eight devices: 8/9 < 1, so that all share: five devices, three idle.
  Desk other("static", ideal(2, 4));
  other.devices(8);
  std::set<DeviceId> used;
  for (const auto& [id, order] : other.settle(group({1, 1, 1, 1, 1, 1, 1, 1, 1}))) {
    EXPECT_EQ(order.width, 0.5);
    used.insert(order.devices.begin(), order.devices.end());
  }
  EXPECT_EQ(used.size(), 5U);
}

TEST(Best, Figure3_5) {
  Desk desk("best", ideal(2, 4));
  desk.devices(5);
  const auto orders = desk.settle(group({4, 4, 12, 30}));
  EXPECT_EQ(orders.at(3).width, 3);  // 10 s, as nothing can be faster
}

TEST(Best, NothingIdlesWhileATrialWouldGain) {
  Desk desk("best", ideal(2, 4));
  desk.devices(3);
  desk.settle(group({10}));
  EXPECT_EQ(desk.view(0).width, 3);
  desk.settle(DeviceCame{DeviceId{3}}, 1);
  EXPECT_EQ(desk.view(0).width, 4);
  desk.settle(DeviceCame{DeviceId{4}}, 1);
  EXPECT_EQ(desk.view(0).width, 4);  // d
}

TEST(Best, NoChangeCostsMoreThanItBrings) {
  TuneOptions options = ideal(1, 2);
  options.move = from_seconds(6);
  Desk desk("best", options);
  desk.devices(1);
  desk.settle(group({10}));
  EXPECT_TRUE(desk.settle(DeviceCame{DeviceId{1}}, 0).empty());  // would save 5 s
  options.move = from_seconds(4);
  Desk other("best", options);
  other.devices(1);
  other.settle(group({10}));
  EXPECT_EQ(other.settle(DeviceCame{DeviceId{1}}, 0).at(0).width, 2);
}

TEST(Best, DevicesThatBringNothingStayFree) {
  TuneOptions options = ideal(1, 8);
  options.beta = 1.4;  // h(2) = 0.7, h(3) = 0.653, h(4) = 0.686
  Desk desk("best", options);
  desk.devices(8);
  desk.settle(group({10}));
  EXPECT_EQ(desk.view(0).width, 3);
}

TEST(Best, TheLongestGetsTheFastest) {
  Desk desk("best", ideal(1, 1));
  desk.tell(DeviceCame{DeviceId{0}, 1});
  desk.tell(DeviceCame{DeviceId{1}, 4});
  desk.settle(group({10, 40}));
  EXPECT_EQ(desk.view(1).devices, std::vector{DeviceId{1}});
  // The fast one is free: what is left on the slow one goes there.
  desk.settle(TrialEnded{TrialId{1}}, 2);
  EXPECT_EQ(desk.view(0).devices, std::vector{DeviceId{1}});
}

TEST(Best, StandsStillWithoutSupplyAndGoesOn) {
  Desk desk("best", ideal(2, 2));
  desk.devices(1);
  desk.settle(group({10}));
  EXPECT_EQ(desk.settle(DeviceChanged{DeviceId{0}, 1, 0}, 1).at(0).kind, Kind::hold);
  EXPECT_EQ(desk.view(0).state, TrialView::State::held);
  EXPECT_EQ(desk.settle(DeviceChanged{DeviceId{0}, 1, 0.5}, 2).at(0).kind, Kind::place);
}

// --- Measured, not told

// An asynchronous tuner starts a trial for each that ends: no device is kept for the longest.
TEST(Best, PacksAStreamOfTrials) {
  struct Case {
    double after;  // seconds from an end to the next trial
    std::optional<double> reaction;
    bool follows;
  };
  for (const auto& [after, reaction, follows] : {Case{2, {}, false}, Case{0, {}, true}, Case{2, 3, true}}) {
    TuneOptions options = ideal(2, 2);
    options.alpha = 1.1;
    options.beta = 1.05;
    if (reaction) options.reaction = from_seconds(*reaction);
    Desk desk("best", options);
    desk.devices(2);
    desk.settle(group({1000}));
    for (const std::uint32_t t : {1, 2, 3}) desk.settle(group({10}, t));
    for (std::uint32_t t = 1; t < 60; ++t) {
      const double at = 4 * t;
      desk.settle(TrialEnded{TrialId{t}}, at);
      desk.settle(TuneWake{}, at + after);
      desk.settle(group({10}, t + 3), at + after);
    }
    if (follows)
      for (const TrialView& v : desk.tuning->trials()) EXPECT_EQ(v.width, 0.5) << v.trial.value;
    else
      EXPECT_GE(desk.view(0).width, 1);
  }
}

// However many end and come at once.
TEST(Best, CountsEachEndOnceThatIsFollowed) {
  Desk desk("best", ideal(2, 2));
  desk.devices(32);
  GroupCame first = group({});
  for (std::uint32_t t = 0; t < 64; ++t) first.trials.push_back(trial(t, 10));
  desk.settle(first);
  for (std::uint32_t round = 1; round < 20; ++round) {
    for (std::uint32_t t = 0; t < 64; ++t) desk.tell(TrialEnded{TrialId{64 * (round - 1) + t}}, 10.0 * round);
    for (std::uint32_t t = 0; t < 64; ++t) desk.settle(group({10}, 64 * round + t), 10.0 * round);
  }
  EXPECT_EQ(desk.tuning->trials().size(), 64U);  // a plan asserts that the share is none above 1
}

// A second device is tried once it is known what an iteration takes on one, and given back where it brings
// nothing.
TEST(Best, FindsOutWhetherScalingPays) {
  for (const double wide : {0.55, 1.3}) {
    Desk desk("best");
    desk.devices(2);
    GroupCame one{GroupId{0}, {}};
    one.trials.push_back({.trial = TrialId{0}, .budget = 100});
    desk.settle(one);
    EXPECT_EQ(desk.view(0).width, 1);
    double now = 0;
    bool was_wide = false;
    for (int i = 0; i < 30; ++i) {
      const double width = desk.view(0).width, took = width > 1 ? wide : 1;
      was_wide = was_wide || width > 1;
      now += took;
      desk.settle(TrialReported{TrialId{0}, 1, from_seconds(took), {}}, now);
    }
    EXPECT_TRUE(was_wide);
    EXPECT_EQ(desk.view(0).width, wide < 1 ? 2 : 1);
  }
}

TEST(Best, FindsOutWhetherPackingPays) {
  TuneOptions options;
  options.move = Duration{0};
  options.d = 1;
  Desk desk("best", options);
  desk.devices(2);
  desk.settle(group({10, 10, 10, 10}));
  EXPECT_FALSE(desk.tuning->model().alpha.known);
  // Two run alone, and one device is to be shared to find out.
  std::size_t running = 0, shared = 0;
  for (const TrialView& v : desk.tuning->trials())
    if (v.state == TrialView::State::running) {
      ++running;
      shared += v.width < 1 ? 1 : 0;
    }
  EXPECT_EQ(running, 3U);
  EXPECT_EQ(shared, 2U);
}

TEST(Model, WhatIsMeasuredLowersCAndD) {
  TuneOptions options;
  options.alpha = 1.6;
  options.beta = 1.3;
  options.c = 3;
  options.d = 8;
  Desk desk("static", options);
  desk.devices(8);
  EXPECT_EQ(desk.tuning->model().c, 2);  // alpha < c/(c - 1) at 2 only
  EXPECT_EQ(desk.tuning->model().d, 4);  // h(4) < h(3), h(5) > h(4)
}

// --- Memory and pauses

TEST(Memory, OfAPausedTrialStaysUntilSomebodyNeedsIt) {
  for (const char* policy : {"fifo", "static", "dynamic", "best"}) {
    SCOPED_TRACE(policy);
    Desk desk(policy, ideal(2, 1));
    desk.devices(1, Bytes{100});
    GroupCame one = group({10});
    one.trials[0].memory = {Bytes{60}, Bytes{10}};
    desk.settle(one);
    EXPECT_TRUE(desk.settle(TrialPaused{TrialId{0}}, 1).empty());
    EXPECT_EQ(desk.view(0).devices.size(), 1U);  // its memory lies there
    GroupCame two = group({10}, 1);
    two.trials[0].memory = {Bytes{60}, Bytes{10}};
    const auto orders = desk.settle(two, 2);
    EXPECT_EQ(orders.at(0).kind, Kind::release);
    EXPECT_EQ(orders.at(1).kind, Kind::place);
    // It is wanted again: from its checkpoint, once the other is gone.
    EXPECT_TRUE(desk.settle(one, 3).empty() || desk.view(0).state == TrialView::State::waiting);
    desk.settle(TrialEnded{TrialId{1}}, 4);
    EXPECT_EQ(desk.view(0).state, TrialView::State::running);
  }
}

TEST(Memory, ThatFellIsFreedByThoseThatCameLast) {
  Desk desk("fifo");
  desk.devices(2, Bytes{100});
  GroupCame g = group({10, 10});
  for (TrialSpec& spec : g.trials) spec.memory = {Bytes{60}, Bytes{10}};
  desk.settle(g);
  const auto orders = desk.settle(DeviceChanged{DeviceId{1}, 1, 1, Bytes{50}}, 1);
  EXPECT_EQ(orders.at(1).kind, Kind::release);
  EXPECT_EQ(desk.view(1).state, TrialView::State::waiting);
}

TEST(Orders, AreOneAtATimeAndHoldBothEndsUntilTheySettle) {
  Desk desk("best", ideal(1, 2));
  desk.devices(1);
  desk.settle(group({10}));
  const TuneOrders wider = desk.tell(DeviceCame{DeviceId{1}}, 1);
  ASSERT_EQ(wider.size(), 1U);
  EXPECT_EQ(wider[0].kind, Kind::resize);
  EXPECT_TRUE(desk.view(0).settling);
  // Until it has settled nobody else gets either device.
  EXPECT_TRUE(desk.tell(group({1}, 1), 2).empty());
}

// --- Bad input

TEST(BadInput, IsRefusedWithItsReason) {
  Desk desk("best", ideal(2, 4));
  desk.devices(1, Bytes{100});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refusal = [&](TrialSpec spec) {
    const TuneOrders orders = desk.tell(GroupCame{GroupId{7}, {spec}});
    if (orders.size() != 1 || orders[0].kind != Kind::refuse) return std::string("taken");
    return std::string(name_of(orders[0].reason));
  };
  EXPECT_EQ(refusal({.trial = TrialId{9}, .budget = 0}), "bad_budget");
  EXPECT_EQ(refusal({.trial = TrialId{9}, .budget = -1}), "bad_budget");
  EXPECT_EQ(refusal({.trial = TrialId{9}, .budget = nan}), "bad_budget");
  EXPECT_EQ(refusal({.trial = TrialId{9}, .budget = std::numeric_limits<double>::infinity()}), "bad_budget");
  EXPECT_EQ(refusal({.trial = TrialId{9}, .priority = 0}), "bad_priority");
  EXPECT_EQ(refusal({.trial = TrialId{9}, .iteration = Duration{0}}), "bad_iteration");
  EXPECT_EQ(refusal({.trial = TrialId{9}, .memory = {Bytes{90}, Bytes{20}}}), "too_large");
  EXPECT_EQ(refusal({.trial = TrialId{9}, .memory = {Bytes{~0ULL}, Bytes{2}}}), "too_large");
  EXPECT_EQ(refusal({.trial = TrialId{1}}), "taken");
  EXPECT_EQ(refusal({.trial = TrialId{1}}), "duplicate");
  const TuneOrders empty = desk.tell(GroupCame{GroupId{8}, {}});
  ASSERT_EQ(empty.size(), 1U);
  EXPECT_EQ(empty[0].reason, TuneReason::empty_group);
  EXPECT_EQ(desk.tell(DeviceCame{DeviceId{0}})[0].reason, TuneReason::duplicate);
  EXPECT_EQ(desk.tell(DeviceCame{DeviceId{1}, nan})[0].reason, TuneReason::bad_device);
  EXPECT_EQ(desk.tell(DeviceCame{DeviceId{1}, 1, 1.5})[0].reason, TuneReason::bad_device);
  EXPECT_EQ(desk.tuning->trials().size(), 1U);
}

TEST(BadInput, OfWhatIsNotHereIsPassedOver) {
  for (const char* policy : {"fifo", "static", "dynamic", "best"}) {
    Desk desk(policy);
    EXPECT_TRUE(desk.tell(TrialReported{TrialId{1}, 1, from_seconds(1), {}}).empty());
    EXPECT_TRUE(desk.tell(TrialSettled{TrialId{1}}).empty());
    EXPECT_TRUE(desk.tell(TrialEnded{TrialId{1}}).empty());
    EXPECT_TRUE(desk.tell(TrialPaused{TrialId{1}}).empty());
    EXPECT_TRUE(desk.tell(TrialDied{TrialId{1}, true}).empty());
    EXPECT_TRUE(desk.tell(DeviceChanged{DeviceId{1}}).empty());
    EXPECT_TRUE(desk.tell(DeviceWent{DeviceId{1}}).empty());
    EXPECT_TRUE(desk.tell(TuneWake{}).empty());
    // Trials that come before any device wait for one.
    EXPECT_TRUE(desk.tell(group({1, 2})).empty());
    EXPECT_EQ(desk.tell(DeviceCame{DeviceId{1}}).front().kind, Kind::place);
  }
}

TEST(BadInput, OptionsOutOfTheirRangesAreErrors) {
  const auto error = [](TuneOptions options) { return make_tuning("best", options).error().message; };
  EXPECT_THAT(error({.alpha = 0.5}), HasSubstr("alpha"));
  EXPECT_THAT(error({.beta = std::nan("")}), HasSubstr("beta"));
  EXPECT_THAT(error({.c = 0}), HasSubstr("c is 0"));
  EXPECT_THAT(error({.d = -1}), HasSubstr("d is -1"));
  EXPECT_THAT(error({.threshold = 1}), HasSubstr("threshold"));
  EXPECT_THAT(error({.reaction = Duration{0}}), HasSubstr("reaction"));
  EXPECT_THAT(make_tuning("lottery", {}).error().message, HasSubstr("fifo, static, dynamic, best"));
}

TEST(BadInput, AHundredThousandTrialsAreTakenAndOneMoreIsNot) {
  Desk desk("best", ideal(2, 4));
  desk.devices(10);
  GroupCame g{GroupId{0}, {}};
  for (std::uint32_t t = 0; t <= most_trials; ++t) g.trials.push_back(trial(t, 1 + t % 7));
  std::size_t refused = 0, placed = 0;
  for (const TuneOrder& order : desk.tell(g)) {
    refused += order.kind == Kind::refuse ? 1 : 0;
    placed += order.kind == Kind::place ? 1 : 0;
  }
  EXPECT_EQ(refused, 1U);
  EXPECT_EQ(placed, 20U);
}

}  // namespace
}  // namespace carillon::tune
