#include "carillon/schedule/state/mirror.h"

#include <map>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;

TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr DeviceId device{0};
constexpr ModelId model{0};

TEST(IdMap, AgreesWithAMapUnderRandomUse) {
  Random random(1);
  IdMap<RequestId, int> map;
  std::map<std::uint64_t, int> reference;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t key = random.below(300) * (random.below(2) == 0 ? 1 : 1'000'003);
    if (random.below(2) == 0) {
      ASSERT_EQ(map.insert(RequestId{key}, i), reference.emplace(key, i).second);
    } else {
      const auto taken = map.erase(RequestId{key});
      const auto found = reference.find(key);
      ASSERT_EQ(taken.has_value(), found != reference.end());
      if (taken) {
        ASSERT_EQ(*taken, found->second);
        reference.erase(found);
      }
    }
    ASSERT_EQ(map.size(), reference.size());
    const auto found = reference.find(key);
    const int* value = map.find(RequestId{key});
    ASSERT_EQ(value != nullptr, found != reference.end());
  }
}

TEST(Executor, ActionsFollowEachOther) {
  Executor executor;
  EXPECT_EQ(executor.free_at(at(7ms)), at(7ms));
  executor.push(ActionId{0}, model, at(1ms), 4ms);
  executor.push(ActionId{1}, model, at(1ms), 2ms);
  EXPECT_EQ(executor.free_at(at(1ms)), at(7ms));
  EXPECT_EQ(executor.end_of(ActionId{0}, at(1ms)), at(5ms));
  executor.push(ActionId{2}, model, at(10ms), 1ms);  // waits for its window
  EXPECT_EQ(executor.free_at(at(1ms)), at(11ms));
  executor.push(ActionId{3}, model, at(2ms), 1ms);  // goes before it
  EXPECT_EQ(executor.end_of(ActionId{3}, at(2ms)), at(8ms));
  EXPECT_EQ(executor.free_at(at(2ms)), at(11ms));
}

TEST(Executor, ResultsCorrectTheForecast) {
  Executor executor;
  executor.push(ActionId{0}, model, at(0ms), 4ms);
  executor.push(ActionId{1}, model, at(0ms), 2ms);
  executor.remove(ActionId{0}, at(3ms));  // early
  EXPECT_EQ(executor.free_at(at(3ms)), at(5ms));
  EXPECT_FALSE(executor.overdue(at(5ms)));
  EXPECT_TRUE(executor.overdue(at(6ms)));
  EXPECT_EQ(executor.free_at(at(6ms)), at(6ms));  // overdue: taken to end now
  executor.push(ActionId{2}, model, at(6ms), 3ms);
  EXPECT_EQ(executor.free_at(at(7ms)), at(10ms));
  executor.remove(ActionId{1}, executor.free_from());  // did not run
  executor.remove(ActionId{2}, at(12ms));
  EXPECT_TRUE(executor.idle());
  EXPECT_EQ(executor.free_at(at(13ms)), at(13ms));
}

// A mirror, and the ledger that the mirror reads. The ledger hears of every event and order, too.
struct Followed : Mirror {
  explicit Followed(const MirrorOptions& options = {}, const Environment& environment = {})
      : Mirror(options, environment) {
    reads(ledger);
  }
  void model_changed(const ModelChanged& change) {
    ledger.apply(change, {});
    Mirror::model_changed(change);
  }
  void times_changed(const TimesChanged& change, TimePoint now) {
    ledger.apply(change, now);
    Mirror::times_changed(change, now);
  }
  std::vector<SentAction> device_changed(const DeviceChanged& change, TimePoint now = {}) {
    ledger.apply(change, now);
    return Mirror::device_changed(change, now);
  }
  ActionId begin_load(DeviceId where, ModelId what, TimePoint earliest, Duration expected, TimePoint now) {
    const ActionId id = Mirror::begin_load(where, what, earliest, expected, now);
    ledger.book(Load{id, where, what, {earliest, TimePoint::max()}, expected}, now);
    return id;
  }
  ActionId begin_unload(DeviceId where, ModelId what) {
    const ActionId id = Mirror::begin_unload(where, what);
    ledger.book(Unload{id, where, what}, {});
    return id;
  }
  ActionId begin_infer(DeviceId where, ModelId what, int batch_index, std::vector<RequestId> requests,
                       TimePoint earliest, Duration expected, TimePoint now) {
    const ActionId id = Mirror::begin_infer(where, what, batch_index, requests, earliest, expected, now);
    ledger.book(Infer{id, where, what, std::move(requests), {earliest, TimePoint::max()}, expected}, now);
    return id;
  }
  std::optional<SentAction> finish(const ActionDone& done, TimePoint now) {
    ledger.apply(done, now);
    return Mirror::finish(done, now);
  }
  // The estimate that a doubt may change is that for one row, which has so much time.
  bool doubt_row(ModelId what, Duration at_most, TimePoint now) {
    return doubt(what, margins().least().span(at_most), now).times;
  }

  ledger::Ledger ledger;
};

struct Loaded {
  Followed state;
  explicit Loaded(const MirrorOptions& options = {}) : state(options) {
    state.model_changed(model_comes(linear_model(0, 1ms, 2ms, 3)));
    state.model_changed(model_comes(linear_model(1, 1ms, 2ms, 3)));
    state.device_changed({device, true, 10});
    const ActionId load = state.begin_load(device, model, at(0ms), 8ms, at(0ms));
    state.finish({load, ActionStatus::success, at(0ms), at(6ms), 6ms}, at(6ms));
  }
};

TEST(Mirror, FollowsALoad) {
  Followed state;
  state.model_changed(model_comes(linear_model(0, 1ms, 2ms, 3)));
  EXPECT_FALSE(state.can_hold(model));
  state.device_changed({device, true, 10});
  EXPECT_TRUE(state.can_hold(model));
  EXPECT_EQ(state.ready_at(device, model, at(1ms)), TimePoint::max());
  const ActionId load = state.begin_load(device, model, at(1ms), 8ms, at(1ms));
  EXPECT_EQ(state.residence(device, model), Residence::loading);
  EXPECT_EQ(state.free_pages(device), 7U);
  EXPECT_EQ(state.ready_at(device, model, at(1ms)), at(9ms));
  EXPECT_FALSE(state.load_overdue(device, model, at(8ms)));
  EXPECT_TRUE(state.load_overdue(device, model, at(9ms)));
  state.finish({load, ActionStatus::success, at(1ms), at(10ms), 9ms}, at(10ms));
  EXPECT_EQ(state.residence(device, model), Residence::loaded);
  EXPECT_EQ(state.load_estimate(device, model), 9ms);
  EXPECT_EQ(state.load_estimate(device, model), 9ms);
}

TEST(Mirror, AnInferIsAtOnceWhereNothingKeepsItFromStarting) {
  Loaded w;
  const auto at_once = [&](TimePoint earliest, TimePoint now, TimePoint end) {
    const ActionId infer = w.state.begin_infer(device, model, 0, {RequestId{0}}, earliest, 3ms, now);
    const bool found = w.state.ledger.action(infer)->at_once;
    w.state.finish({infer, ActionStatus::success, earliest, end, 3ms}, end);
    return found;
  };
  EXPECT_TRUE(at_once(at(6ms), at(6ms), at(9ms)));
  EXPECT_FALSE(at_once(at(20ms), at(10ms), at(23ms))) << "its window was not open";
  w.state.begin_infer(device, model, 0, {RequestId{1}}, at(23ms), 3ms, at(23ms));
  EXPECT_FALSE(at_once(at(23ms), at(23ms), at(29ms))) << "another was before it";
}

TEST(Mirror, ACopyOfAnotherVersionLeavesWhenNothingUsesIt) {
  Loaded w;
  const ActionId infer = w.state.begin_infer(device, model, 0, {RequestId{0}}, at(6ms), 3ms, at(6ms));
  const ModelInfo renewed = linear_model(0, 1ms, 7ms, 5);
  w.state.model_changed(model_comes(renewed));
  EXPECT_EQ(w.state.residence(device, model), Residence::leaving);
  EXPECT_EQ(w.state.places(model), 0U);
  Actions out;
  w.state.unload_leaving(out);
  EXPECT_TRUE(out.empty()) << "an INFER of the last version needs it";
  const auto done = w.state.finish({infer, ActionStatus::success, at(6ms), at(36ms), 30ms}, at(36ms));
  EXPECT_TRUE(done->outdated);
  EXPECT_EQ(w.state.exec_estimate(device, model, 0), renewed.batches.front().exec)
      << "what it took is no measurement of the new one";
  w.state.unload_leaving(out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(w.state.freeing_pages(device), 3U) << "the pages of the version that leaves";
  w.state.finish({std::get<Unload>(out[0]).id, ActionStatus::success, at(37ms), at(37ms), 0ms}, at(37ms));
  EXPECT_EQ(w.state.free_pages(device), 10U);
  w.state.begin_load(device, model, at(38ms), 8ms, at(38ms));
  EXPECT_EQ(w.state.free_pages(device), 5U);
}

TEST(Mirror, WhatIsLoadedForAModelThatWentIsUnloadedWhenItIsThere) {
  Followed state;
  state.model_changed(model_comes(linear_model(0, 1ms, 2ms, 3)));
  state.device_changed({device, true, 10});
  const ActionId load = state.begin_load(device, model, at(0ms), 8ms, at(0ms));
  state.model_changed({model, nullptr});
  EXPECT_FALSE(state.served(model));
  EXPECT_FALSE(state.can_hold(model));
  Actions out;
  state.unload_leaving(out);
  EXPECT_TRUE(out.empty()) << "the LOAD is on its way";
  EXPECT_TRUE(state.finish({load, ActionStatus::success, at(0ms), at(8ms), 8ms}, at(8ms))->outdated);
  state.unload_leaving(out);
  EXPECT_EQ(out.size(), 1U);
}

TEST(Mirror, AFailedLoadGivesItsPagesBack) {
  Followed state;
  state.model_changed(model_comes(linear_model(0, 1ms, 2ms, 3)));
  state.device_changed({device, true, 10});
  const ActionId load = state.begin_load(device, model, at(0ms), 8ms, at(0ms));
  state.finish({load, ActionStatus::failed, at(0ms), at(1ms), 1ms}, at(1ms));
  EXPECT_EQ(state.residence(device, model), Residence::absent);
  EXPECT_EQ(state.free_pages(device), 10U);
  EXPECT_EQ(state.load_estimate(device, model), 8ms) << "failures are no measurements";
}

TEST(Mirror, PagesAreFreeWhenTheUnloadIsReported) {
  Loaded w;
  const ActionId unload = w.state.begin_unload(device, model);
  EXPECT_EQ(w.state.residence(device, model), Residence::unloading);
  EXPECT_EQ(w.state.free_pages(device), 7U);
  EXPECT_EQ(w.state.freeing_pages(device), 3U);
  w.state.finish({unload, ActionStatus::success, {}, {}, {}}, at(7ms));
  EXPECT_EQ(w.state.free_pages(device), 10U);
  EXPECT_EQ(w.state.freeing_pages(device), 0U);
}

TEST(Mirror, LruLeavesOutWhatIsPending) {
  Loaded w;
  const ActionId load = w.state.begin_load(device, ModelId{1}, at(6ms), 8ms, at(6ms));
  w.state.finish({load, ActionStatus::success, at(6ms), at(14ms), 8ms}, at(14ms));
  const auto order = [&] {
    std::vector<std::uint32_t> ids;
    w.state.visit_lru(device, [&](ModelId id, TimePoint) {
      ids.push_back(id.value);
      return true;
    });
    return ids;
  };
  EXPECT_EQ(order(), (std::vector<std::uint32_t>{0, 1}));
  const ActionId infer = w.state.begin_infer(device, model, 0, {RequestId{5}}, at(15ms), 3ms, at(15ms));
  EXPECT_EQ(order(), (std::vector<std::uint32_t>{1}));
  const auto finished =
      w.state.finish({infer, ActionStatus::success, at(15ms), at(17ms), Duration{1'900'000}}, at(17ms));
  EXPECT_EQ(finished->requests, std::vector<RequestId>{RequestId{5}});
  EXPECT_EQ(order(), (std::vector<std::uint32_t>{1, 0}));
  EXPECT_FALSE(w.state.finish({infer, ActionStatus::success, {}, {}, {}}, at(18ms)).has_value())
      << "a second report is not known";
}

TEST(Mirror, TheWorkersWordOnWhatIsLoadedCounts) {
  Loaded w;
  const ActionId infer = w.state.begin_infer(device, model, 0, {RequestId{5}}, at(7ms), 3ms, at(7ms));
  w.state.finish({infer, ActionStatus::not_loaded, {}, {}, {}}, at(7ms));
  EXPECT_EQ(w.state.residence(device, model), Residence::absent);
  EXPECT_EQ(w.state.free_pages(device), 10U);
}

TEST(Mirror, ADeviceThatWentLosesItsActions) {
  Loaded w;
  const ActionId infer =
      w.state.begin_infer(device, model, 1, {RequestId{5}, RequestId{6}}, at(7ms), 3ms, at(7ms));
  const ActionId load = w.state.begin_load(device, ModelId{1}, at(7ms), 8ms, at(7ms));
  const auto lost = w.state.device_changed({device, false, 0});
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].requests.size(), 2U);
  EXPECT_FALSE(w.state.alive(device));
  EXPECT_FALSE(w.state.finish({infer, ActionStatus::success, {}, {}, {}}, at(8ms)).has_value());
  EXPECT_FALSE(w.state.finish({load, ActionStatus::success, {}, {}, {}}, at(8ms)).has_value());
  w.state.device_changed({device, true, 10});
  EXPECT_EQ(w.state.free_pages(device), 10U);
  EXPECT_EQ(w.state.residence(device, model), Residence::absent);
  EXPECT_EQ(w.state.load_estimate(device, model), 8ms)
      << "measurements stay: the seed is still in the window";
}

TEST(Mirror, ASlowSpellDoesNotShutAModelOut) {
  Loaded w;
  TimePoint now = at(10ms);
  for (int i = 0; i < 10; ++i) {
    const ActionId infer = w.state.begin_infer(device, model, 0, {RequestId{5}}, now, 3ms, now);
    w.state.finish({infer, ActionStatus::success, now, now + 90ms, 90ms}, now + 90ms);
    now += 100ms;
  }
  EXPECT_EQ(w.state.exec_estimate(device, model, 0), 90ms);
  EXPECT_FALSE(w.state.doubt_row(model, 10ms, now));
  EXPECT_EQ(w.state.exec_estimate(device, model, 0), 90ms) << "measured just now";
  EXPECT_FALSE(w.state.doubt_row(model, 2ms, now + 2s));
  EXPECT_EQ(w.state.exec_estimate(device, model, 0), 90ms) << "the seed would not fit either";
  EXPECT_TRUE(w.state.doubt_row(model, 10ms, now + 2s));
  EXPECT_EQ(w.state.exec_estimate(device, model, 0), 3ms);
}

// A neighbour has come, and the device goes on with fewer threads.
TEST(Mirror, WithAnotherNumberOfThreadsAllTakesAnotherTime) {
  for (const bool by_device : {false, true}) {
    Loaded w({.by_device = by_device});
    TimePoint now = at(10ms);
    const auto run = [&](Duration took, int threads) {
      const ActionId infer = w.state.begin_infer(device, model, 0, {RequestId{5}}, now, 3ms, now);
      const auto sent =
          w.state.finish({infer, ActionStatus::success, now, now + took, took, threads}, now + took);
      now += took;
      return *sent;
    };
    for (int i = 0; i < 20; ++i) run(i % 2 == 0 ? 3ms : 12ms, 2);
    ASSERT_EQ(w.state.exec_estimate(device, model, 0), 12ms);
    ASSERT_EQ(w.state.exec_estimate(device, model, 1), 4ms);
    const SentAction told = run(6ms, 1);
    EXPECT_TRUE(told.margins && told.other_estimates);
    EXPECT_EQ(w.state.exec_estimate(device, model, 0), 6ms) << "what two threads took counts no more";
    EXPECT_EQ(w.state.exec_estimate(device, model, 1), 8ms) << "twice its seed, as the other";
    EXPECT_EQ(w.state.exec_estimate(device, ModelId{1}, 0), 6ms) << "what never was there, too";
    run(7ms, 1);
    run(4ms, 0);
    EXPECT_EQ(w.state.exec_estimate(device, model, 0), 7ms) << "the same number, or none, is no news";
    run(700ms, 2);
    const double most = 4 * 2.0;  // four times the median model's pace: the other's is twice its seed
    EXPECT_NEAR(to_ms(w.state.exec_estimate(device, model, 0)), 3 * most, 1e-5) << "one run may be odd";
    EXPECT_NEAR(to_ms(w.state.exec_estimate(device, model, 1)), 4 * most, 1e-5)
        << "two threads for one explain no more";
  }
}

TEST(Mirror, WhatHeldOneModelUpIsNotThePaceOfAll) {
  const ModelId other{1};
  for (const bool by_device : {false, true}) {
    Loaded w({.by_device = by_device});
    TimePoint now = at(10ms);
    const ActionId load = w.state.begin_load(device, other, now, 8ms, now);
    w.state.finish({load, ActionStatus::success, now, now + 8ms, 8ms}, now + 8ms);
    now += 8ms;
    const auto run = [&](ModelId which, Duration took, int threads) {
      const ActionId infer = w.state.begin_infer(device, which, 0, {RequestId{5}}, now, 3ms, now);
      w.state.finish({infer, ActionStatus::success, now, now + took, took, threads}, now + took);
      now += took;
    };
    for (int i = 0; i < 12; ++i) run(other, 3ms, 2);
    for (int i = 0; i < 12; ++i) run(model, i >= 9 ? 900ms : 3ms, 2);
    ASSERT_EQ(w.state.exec_estimate(device, model, 0), 900ms);
    run(model, 3ms, 1);
    EXPECT_EQ(w.state.exec_estimate(device, other, 0), 3ms);
    EXPECT_EQ(w.state.exec_estimate(device, model, 0), 225ms) << "a quarter: no more is believed at once";
  }
}

TEST(Mirror, WhatNeverRanIsDoubtedToo) {
  Loaded w({.by_device = false});
  TimePoint now = at(10ms);
  for (const int threads : {2, 1}) {
    const ActionId infer = w.state.begin_infer(device, model, 0, {RequestId{5}}, now, 3ms, now);
    w.state.finish({infer, ActionStatus::success, now, now + 12ms, 12ms, threads}, now + 12ms);
    now += 12ms;
  }
  ASSERT_EQ(w.state.exec_estimate(device, ModelId{1}, 0), 12ms);
  w.state.doubt(ModelId{1}, 1s, now);
  EXPECT_EQ(w.state.exec_estimate(device, ModelId{1}, 0), 3ms);
}

TEST(Mirror, AnIdleDeviceIsTriedSoonerAndLessAndLessOften) {
  Loaded w;
  TimePoint now = at(10ms);
  const auto run = [&](Duration took) {
    const ActionId infer = w.state.begin_infer(device, model, 0, {RequestId{5}}, now, 3ms, now);
    w.state.finish({infer, ActionStatus::success, now, now + took, took}, now + took);
    now += took;
  };
  const auto refused_for = [&] {
    const TimePoint from = now;
    while (!w.state.doubt_row(model, 10ms, now)) now += 10ms;
    return now - from;
  };
  run(90ms);
  run(90ms);
  for (const Duration pause : {100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
    EXPECT_EQ(refused_for(), pause);
    run(90ms);  // as slow as before: the first says so
    EXPECT_EQ(w.state.exec_estimate(device, model, 0), 90ms);
  }
  refused_for();
  run(3ms);
  run(90ms);
  run(90ms);
  EXPECT_EQ(refused_for(), 100ms);
  run(90ms);
  const ActionId busy = w.state.begin_infer(device, model, 1, {RequestId{6}, RequestId{7}}, now, 3ms, now);
  EXPECT_EQ(refused_for(), 1s) << "a busy device has better things to do";
  w.state.finish({busy, ActionStatus::success, now, now, 3ms}, now);
}

// What batches take, in milliseconds, of the sizes of linear_model().
TimesChanged times(std::initializer_list<int> ms) {
  TimesChanged change{model, linear_model(0, 1ms, 2ms).batches};
  auto next = change.batches.begin();
  for (const int each : ms) (next++)->exec = each * 1ms;
  return change;
}

TEST(Mirror, PlansForLargerBatchesComeAndGo) {
  for (const bool by_device : {false, true}) {
    Loaded w({.by_device = by_device});
    TimePoint now = at(10ms);
    const auto begin = [&](int index) {
      const int size = 1 << index;
      std::vector<RequestId> requests;
      for (int i = 0; i < size; ++i) requests.push_back(RequestId{static_cast<std::uint64_t>(i)});
      return w.state.begin_infer(device, model, index, requests, now,
                                 w.state.exec_estimate(device, model, index), now);
    };
    const auto run = [&](int index, Duration took) {
      const ActionId infer = begin(index);
      const auto sent = w.state.finish({infer, ActionStatus::success, now, now + took, took}, now + took);
      now += took;
      return *sent;
    };
    const auto estimates = [&] {
      std::vector<Duration> out;
      for (int i = 0; i < 5; ++i) out.push_back(w.state.exec_estimate(device, model, i));
      return out;
    };
    w.state.times_changed(times({3, 6, 12, 24, 48}), now);
    EXPECT_EQ(estimates(), (std::vector<Duration>{3ms, 6ms, 12ms, 24ms, 48ms})) << "nothing ran: the seeds";
    EXPECT_EQ(w.state.model(model).batches, times({3, 6, 12, 24, 48}).batches);
    EXPECT_EQ(w.state.longest_execs(model).back(), 48ms);
    for (int i = 0; i < 12; ++i) run(3, 36ms);  // half as long again as its seed
    for (int i = 0; i < 12; ++i) run(1, 9ms);
    const std::uint64_t version = w.state.exec_version(model);
    const ActionId old_size = begin(3), same_size = begin(1);
    w.state.times_changed(times({3, 6, 12, 8, 48}), now);
    EXPECT_NE(w.state.exec_version(model), version);
    EXPECT_EQ(estimates(), (std::vector<Duration>{3ms, 9ms, 12ms, 12ms, 48ms}))
        << "the size that has a plan now, at the model's pace; the others as they were";
    EXPECT_EQ(w.state.usual_exec(device, model, 3), 12ms) << "what it took before is forgotten";
    EXPECT_EQ(w.state.longest_execs(model)[3], by_device ? 12ms : 8ms) << "nothing keeps the old bound";
    EXPECT_EQ(w.state.sent(old_size)->expected, 36ms) << "what is under way keeps what was expected";
    EXPECT_EQ(w.state.exec(device).free_at(now), now + 45ms);

    const auto old_sent =
        w.state.finish({old_size, ActionStatus::success, now, now + 36ms, 36ms}, now + 36ms);
    EXPECT_TRUE(old_sent->other_times);
    EXPECT_FALSE(old_sent->outdated);
    now += 36ms;
    EXPECT_EQ(w.state.exec_estimate(device, model, 3), 12ms) << "it tells nothing of the new plan";
    const auto same_sent =
        w.state.finish({same_size, ActionStatus::success, now, now + 10ms, 10ms}, now + 10ms);
    EXPECT_FALSE(same_sent->other_times);
    now += 10ms;
    EXPECT_EQ(w.state.exec_estimate(device, model, 1), 10ms) << "its plan is as it was";
    EXPECT_FALSE(run(3, 30ms).other_times);
    EXPECT_EQ(w.state.exec_estimate(device, model, 3), 30ms)
        << "the first measurement of the new plan counts, whatever it is";
  }
}

TEST(Mirror, ABatchThatWasSentBeforeTwoChangesTellsNothing) {
  Loaded w;
  const std::vector<RequestId> two{RequestId{0}, RequestId{1}};
  const ActionId infer = w.state.begin_infer(device, model, 1, two, at(10ms), 4ms, at(10ms));
  w.state.times_changed(times({3, 6, 6, 10, 18}), at(11ms));
  w.state.times_changed(times({3, 4, 6, 10, 18}), at(12ms));
  const auto sent = w.state.finish({infer, ActionStatus::success, at(10ms), at(17ms), 7ms}, at(17ms));
  EXPECT_TRUE(sent->other_times) << "its times are as they were when it was sent, but not its plan";
  EXPECT_EQ(w.state.exec_estimate(device, model, 1), 4ms);
}

TEST(Mirror, TimesOfASmallestBatchThatWasNotMeasuredFollowTheLatestPace) {
  Loaded w;
  const std::vector<RequestId> two{RequestId{0}, RequestId{1}};
  const ActionId infer = w.state.begin_infer(device, model, 1, two, at(10ms), 4ms, at(10ms));
  w.state.finish({infer, ActionStatus::success, at(10ms), at(18ms), 8ms}, at(18ms));
  w.state.times_changed(times({5, 4, 6, 10, 20}), at(20ms));
  EXPECT_EQ(w.state.exec_estimate(device, model, 0), 10ms);
  EXPECT_EQ(w.state.exec_estimate(device, model, 1), 8ms);
  EXPECT_EQ(w.state.exec_estimate(device, model, 4), 40ms);
  EXPECT_EQ(w.state.shortest_exec(model), 5ms) << "of a device where it never ran";
}

TEST(Mirror, WithoutASeedThereIsNoPace) {
  Followed state;
  ModelInfo unknown = linear_model(0, 0ms, 0ms, 0);
  state.model_changed(model_comes(unknown));
  state.device_changed({device, true, 10});
  const ActionId infer = state.begin_infer(device, model, 0, {RequestId{0}}, at(0ms), 0ms, at(0ms));
  state.finish({infer, ActionStatus::success, at(0ms), at(7ms), 7ms}, at(7ms));
  state.times_changed(times({0, 4, 6, 10, 20}), at(7ms));
  EXPECT_EQ(state.exec_estimate(device, model, 0), 7ms);
  EXPECT_EQ(state.exec_estimate(device, model, 1), 4ms);
}

// A plan was dropped while its batch was on its way. The batch took eight times what was expected. No other
// batch needs such a margin.
TEST(Mirror, ABatchOfAnotherPlanTeachesNoMargins) {
  Followed state({}, {.overrun = 0.05, .measured = true});
  state.model_changed(model_comes(linear_model(0, 1ms, 0ms, 0)));
  state.device_changed({device, true, 10});
  TimePoint now = at(0ms);
  for (int i = 0; i < 200; ++i) {
    const std::vector<RequestId> two{RequestId{0}, RequestId{1}};
    const Duration expected = state.exec_estimate(device, model, 1);
    const ActionId infer = state.begin_infer(device, model, 1, two, now, expected, now);
    state.times_changed(times({1, i % 2 == 0 ? 16 : 2, 4, 8, 16}), now);
    const Duration took = i % 2 == 0 ? 16ms : 2ms;
    state.finish({infer, ActionStatus::success, now, now + took, took}, now + took);
    now += took;
  }
  EXPECT_LT(state.margins().at(device).overrun, 0.1);
}

// By which plan it ran is not known, so it tells nothing of the threads; the next does.
TEST(Mirror, ABatchOfAnotherPlanTellsNoPaceOfThreads) {
  Loaded w;
  TimePoint now = at(10ms);
  const auto begin = [&] {
    return w.state.begin_infer(device, model, 1, {RequestId{0}, RequestId{1}}, now, 4ms, now);
  };
  const auto end = [&](ActionId infer, Duration took, int threads) {
    w.state.finish({infer, ActionStatus::success, now, now + took, took, threads}, now + took);
    now += took;
  };
  end(begin(), 4ms, 2);
  const ActionId before = begin();
  w.state.times_changed(times({3, 6, 6, 10, 18}), now);
  end(before, 4ms, 1);
  EXPECT_EQ(w.state.exec_estimate(device, model, 0), 3ms);
  end(begin(), 12ms, 1);
  EXPECT_EQ(w.state.exec_estimate(device, model, 0), 6ms) << "twice as long with half of the threads";
}

}  // namespace
}  // namespace carillon::schedule
