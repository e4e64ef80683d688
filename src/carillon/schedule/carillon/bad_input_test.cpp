#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/carillon/carillon.h"
#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule {
namespace {

constexpr Duration century = 100 * 365 * 24h;

// Requests, clocks and devices as nobody should have them. Each request has one outcome, whatever comes.
class BadInput : public ::testing::Test {
 protected:
  struct Asked {
    TimePoint at;
    std::uint32_t model = 0;
    Duration deadline{0};
    // What became of it.
    enum { open, on_time, late, refused } outcome = open;
    TimePoint ended;
  };
  struct World {
    std::uint32_t devices = 1;
    std::vector<ModelInfo> models;
    // How long a run takes; and what its report says it took.
    std::function<Duration(DeviceId, ModelId, Duration expected, TimePoint start)> takes;
    std::function<Duration(DeviceId, Duration took, TimePoint start)> says;
    std::function<TimePoint(TimePoint)> clock;  // what the policy is told
    std::function<TimePoint(TimePoint)> when;   // and when it is told at least that
  };

  // `rate` requests a second, from then until then.
  void ask(double rate, std::uint32_t model, Duration deadline, TimePoint from, TimePoint to) {
    for (TimePoint at = from; (at += from_seconds(random_.exponential(1 / rate))) < to;)
      asked_.push_back({.at = at, .model = model, .deadline = deadline});
  }

  void run(const World& world) {
    std::ranges::stable_sort(asked_, {}, &Asked::at);
    Ledgered scheduler(std::make_unique<Carillon>(Environment{.dispatch = {}, .answer = {}, .overrun = 0}));
    struct End {
      TimePoint at, start;
      DeviceId device;
      Duration says{0};
      ActionId id;
      std::vector<RequestId> requests;
      bool operator>(const End& other) const { return std::pair(at, id) > std::pair(other.at, other.id); }
    };
    std::priority_queue<End, std::vector<End>, std::greater<>> ends;
    std::vector<TimePoint> free(world.devices);
    const auto clock = [&](TimePoint t) { return world.clock ? world.clock(t) : t; };
    TimePoint wake = TimePoint::max();
    std::size_t open = asked_.size(), events = 0;
    const auto tell = [&](const Event& event, TimePoint now) {
      Actions out;
      ++events;
      wake = scheduler.decide(event, clock(now), out);
      if (world.when && wake != TimePoint::max()) wake = std::max(now, world.when(wake));
      for (const Action& action : out) {
        if (const auto* infer = std::get_if<Infer>(&action)) {
          const TimePoint start = std::max(now, free[infer->device.index()]);
          const Duration took = world.takes ? world.takes(infer->device, infer->model, infer->expected, start)
                                            : infer->expected;
          free[infer->device.index()] = start + took;
          ends.push({start + took, start, infer->device,
                     world.says ? world.says(infer->device, took, start) : took, infer->id, infer->requests});
        } else if (const auto* refuse = std::get_if<Refuse>(&action)) {
          Asked& a = asked_[static_cast<std::size_t>(refuse->request.value)];
          EXPECT_EQ(a.outcome, Asked::open);
          a.outcome = Asked::refused;
          a.ended = now;
          --open;
        } else if (const auto* load = std::get_if<Load>(&action)) {
          ends.push({now + load->expected, now, load->device, load->expected, load->id, {}});
        }
      }
    };
    for (const ModelInfo& model : world.models) tell(model_comes(model), {});
    for (std::uint32_t d = 0; d < world.devices; ++d) tell(DeviceChanged{DeviceId{d}, true, 1000}, {});
    for (std::size_t next = 0; open > 0;) {
      ASSERT_LT(events, 100 * asked_.size() + 10'000) << "it is woken without end";
      const TimePoint arrival = next < asked_.size() ? asked_[next].at : TimePoint::max();
      if (!ends.empty() && ends.top().at <= std::min(arrival, wake)) {
        const End end = ends.top();
        ends.pop();
        for (const RequestId id : end.requests) {
          Asked& a = asked_[static_cast<std::size_t>(id.value)];
          EXPECT_EQ(a.outcome, Asked::open);
          a.outcome = end.at - a.at <= a.deadline ? Asked::on_time : Asked::late;
          a.ended = end.at;
          --open;
        }
        tell(ActionDone{.id = end.id, .start = clock(end.start), .end = clock(end.at), .duration = end.says},
             end.at);
      } else if (arrival <= wake) {
        const Asked& a = asked_[next];
        tell(RequestArrived{{.id = RequestId{next},
                             .model = ModelId{a.model},
                             .arrival = clock(a.at),
                             .deadline = clock(a.at) + a.deadline}},
             a.at);
        ++next;
      } else {
        ASSERT_NE(wake, TimePoint::max()) << open << " requests wait for ever";
        tell(Wake{}, wake);
      }
    }
  }

  // The share on time of a model's requests that came then.
  double on_time(std::uint32_t model, TimePoint from = TimePoint::min(),
                 TimePoint to = TimePoint::max()) const {
    double all = 0, good = 0;
    for (const Asked& a : asked_) {
      if (a.model != model || a.at < from || a.at >= to) continue;
      ++all;
      good += a.outcome == Asked::on_time ? 1 : 0;
    }
    EXPECT_GT(all, 0);
    return good / all;
  }

  static constexpr TimePoint at(Duration d) { return TimePoint{d}; }

  std::vector<Asked> asked_;
  Random random_{1};
};

TEST_F(BadInput, DeadlinesOfANanosecondAndOfACentury) {
  ask(100, 0, 1ns, at(0s), at(10s));
  ask(100, 1, century, at(0s), at(10s));
  ask(50, 2, 50ms, at(0s), at(10s));
  run({.models = {testing::linear_model(0, 1ms, 2ms), testing::linear_model(1, 1ms, 2ms),
                  testing::linear_model(2, 1ms, 2ms)}});
  EXPECT_EQ(on_time(0), 0);
  EXPECT_EQ(on_time(1), 1);
  EXPECT_GE(on_time(2), 0.99);
  for (const Asked& a : asked_) EXPECT_LE(a.ended - a.at, a.deadline == century ? 2s : 50ms);
}

TEST_F(BadInput, WhatHasACenturyIsAnsweredAfterAnOverload) {
  ask(10, 0, century, at(0s), at(10s));
  ask(4000, 1, 50ms, at(0s), at(10s));
  run({.models = {testing::linear_model(0, 1ms, 2ms), testing::linear_model(1, 1ms, 2ms)}});
  EXPECT_EQ(on_time(0), 1);
  for (const Asked& a : asked_) EXPECT_LE(a.ended, at(12s));
}

TEST_F(BadInput, AModelWhoseTimeJumpsAHundredfoldAndBack) {
  ask(40, 0, 100ms, at(0s), at(40s));
  ask(40, 1, 100ms, at(0s), at(40s));
  const auto jumps = [&](DeviceId, ModelId model, Duration expected, TimePoint start) {
    (void)expected;
    const Duration usual = 5ms;
    return model.index() == 0 && start >= at(10s) && start < at(20s) ? 100 * usual : usual;
  };
  run({.devices = 2,
       .models = {testing::linear_model(0, 0ms, 5ms, 1, 8ms, {1}),
                  testing::linear_model(1, 0ms, 5ms, 1, 8ms, {1})},
       .takes = jumps});
  EXPECT_GE(on_time(0, at(1s), at(10s)), 0.99);
  EXPECT_GE(on_time(1, at(1s), at(10s)), 0.99);
  EXPECT_GE(on_time(1, at(11s), at(20s)), 0.95) << "beside a model that takes half a second";
  EXPECT_GE(on_time(0, at(26s)), 0.99) << "it is tried again";
  EXPECT_GE(on_time(1, at(26s)), 0.99);
}

TEST_F(BadInput, ADeviceThatReportsNothingOrTooMuch) {
  for (const Duration said : {Duration{0}, Duration{1'000'000s}, Duration{-5s}}) {
    asked_.clear();
    ask(150, 0, 50ms, at(0s), at(30s));
    const auto says = [&](DeviceId device, Duration took, TimePoint start) {
      return device.index() == 1 && start >= at(10s) && start < at(20s) ? said : took;
    };
    run({.devices = 2, .models = {testing::linear_model(0, 1ms, 4ms)}, .says = says});
    EXPECT_GE(on_time(0, at(1s), at(10s)), 0.99);
    EXPECT_GE(on_time(0, at(11s), at(20s)), 0.9) << "it says " << to_seconds(said) << " s";
    EXPECT_GE(on_time(0, at(23s)), 0.99) << "it said " << to_seconds(said) << " s";
  }
}

TEST_F(BadInput, AClockThatStandsStillAndJumps) {
  for (const Duration jump : {Duration{1s}, Duration{24h}}) {
    asked_.clear();
    ask(150, 0, 50ms, at(0s), at(20s));
    run({.devices = 2,
         .models = {testing::linear_model(0, 1ms, 4ms)},
         .clock = [&](TimePoint t) { return t < at(10s)   ? t
                                            : t < at(11s) ? at(10s)
                                                          : t + jump; },
         .when = [&](TimePoint t) { return t <= at(10s) ? t : std::max(at(11s), t - jump); }});
    EXPECT_GE(on_time(0, at(1s), at(10s)), 0.99);
    EXPECT_GE(on_time(0, at(13s)), 0.99) << to_seconds(jump);
  }
}

}  // namespace
}  // namespace carillon::schedule
