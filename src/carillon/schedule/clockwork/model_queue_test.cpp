#include "carillon/schedule/clockwork/model_queue.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/load_priority.h"
#include "carillon/schedule/testing/appendix_b.h"

namespace carillon::schedule {
namespace {

TimePoint at(Duration d) {
  return TimePoint{d};
}

// span(k) = k + 2 ms.
const std::vector<BatchCost> costs{{1, 3ms}, {2, 4ms}, {4, 6ms}};

ModelQueue queue_of(const std::vector<Duration>& dues) {
  ModelQueue queue;
  for (std::size_t i = 0; i < dues.size(); ++i) queue.insert({at(dues[i]), 0, i, RequestId{i}});
  return queue;
}

TEST(ModelQueue, SelectsByTheRulesOfAppendixB) {
  const struct {
    const char* says;
    std::vector<Duration> dues;
    Duration start;
    int batch;  // 0: none
    std::uint64_t first;
    Duration required;
  } rows[] = {
      {"one request goes alone", {10ms}, 0ms, 1, 0, 7ms},
      {"three requests are too few for four: two go", {10ms, 11ms, 12ms}, 0ms, 2, 0, 6ms},
      {"four are enough for the larger batch", {10ms, 11ms, 12ms, 13ms}, 0ms, 4, 0, 4ms},
      {"a batch that cannot end in time is passed over", {5ms, 5ms, 5ms, 5ms}, 0ms, 2, 0, 1ms},
      {"the last moment is in time", {3ms}, 0ms, 1, 0, 0ms},
      {"a nanosecond later is not", {3ms}, Duration{1}, 0, 0, 0ms},
      {"an early one is dropped for the larger batch", {5ms, 9ms, 9ms, 9ms, 9ms}, 0ms, 4, 1, 3ms},
      {"nothing in time", {2ms, 2ms}, 0ms, 0, 0, 0ms},
  };
  for (const auto& row : rows) {
    const auto strategy = queue_of(row.dues).best(costs, at(row.start));
    ASSERT_EQ(strategy.has_value(), row.batch != 0) << row.says;
    if (!strategy) continue;
    EXPECT_EQ(costs[static_cast<std::size_t>(strategy->batch_index)].batch, row.batch) << row.says;
    EXPECT_EQ(strategy->first.sequence, row.first) << row.says;
    EXPECT_EQ(strategy->start, at(row.required)) << row.says;
  }
}

TEST(ModelQueue, WithoutDeadlinesServesInOrderOfArrivalAndNeverOverflows) {
  ModelQueue queue(false);
  EXPECT_FALSE(queue.best(costs, at(0ms)).has_value());
  for (std::uint64_t i = 0; i < 3; ++i) queue.insert({at(Duration{i}), 0, i, RequestId{i}});
  const auto strategy = queue.best(costs, TimePoint::max());
  ASSERT_TRUE(strategy.has_value());
  EXPECT_EQ(strategy->batch_index, 1);
  EXPECT_EQ(strategy->first.sequence, 0U);
  EXPECT_EQ(strategy->start, queue.bound(costs));
}

TEST(ModelQueue, TheEarlierPriorityThenArrivalGoesFirstOnATie) {
  ModelQueue queue;
  queue.insert({at(9ms), 2, 0, RequestId{0}});
  queue.insert({at(9ms), 1, 2, RequestId{2}});
  queue.insert({at(9ms), 1, 1, RequestId{1}});
  std::vector<RequestId> taken;
  queue.take(queue.head(), 3, taken);
  EXPECT_EQ(taken, (std::vector<RequestId>{RequestId{1}, RequestId{2}, RequestId{0}}));
}

// One model, the whole strategy queue written out.
TEST(ModelQueue, AgreesWithTheStrategyQueue) {
  Random random(9);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<BatchCost> random_costs;
    // Estimates are measured: a larger batch may seem to take less time.
    for (const int batch : {1, 2, 4, 8})
      random_costs.push_back({batch, Duration{static_cast<std::int64_t>(random.below(20))}});
    ModelQueue queue;
    std::vector<Waiting> all;
    const std::uint64_t n = random.below(12);
    for (std::uint64_t i = 0; i < n; ++i) {
      const Waiting w{at(Duration{static_cast<std::int64_t>(random.below(30))}),
                      static_cast<std::uint32_t>(random.below(2)), i, RequestId{i}};
      queue.insert(w);
      all.push_back(w);
    }
    const TimePoint start = at(Duration{static_cast<std::int64_t>(random.below(20))});
    const auto want = testing::first_eligible({{ModelId{0}, all, random_costs, start}});
    const auto got = queue.best(random_costs, start);
    ASSERT_EQ(got.has_value(), want.has_value()) << round;
    if (!got) continue;
    ASSERT_EQ(random_costs[static_cast<std::size_t>(got->batch_index)].batch, std::ssize(want->members));
    ASSERT_EQ(got->start, want->start);
    ASSERT_GE(got->start, queue.bound(random_costs));
    std::vector<RequestId> taken;
    queue.take(got->first, static_cast<int>(want->members.size()), taken);
    ASSERT_EQ(taken, want->members);
  }
}

TEST(LoadPriority, IsTheModelsUnfulfilledWork) {
  LoadPriority priority(100ms);
  for (int i = 0; i < 3; ++i) priority.add_model();
  for (int i = 0; i < 2; ++i) priority.add_device();
  priority.set_alive(2);
  const ModelId a{0}, b{1};
  const DeviceId g{0}, h{1};
  priority.add_demand(a, 30ms);
  priority.add_demand(b, 50ms);
  EXPECT_DOUBLE_EQ(priority.priority(a), 30e6) << "nowhere loaded: all of its work";
  EXPECT_EQ(priority.wanted().begin()->second, b);
  priority.placed(a, g);
  EXPECT_DOUBLE_EQ(priority.priority(a), 30e6 - 100e6) << "alone on a device that could do 100 ms of work";
  EXPECT_EQ(priority.wanted().size(), 1U);
  priority.placed(b, g);
  EXPECT_DOUBLE_EQ(priority.device_load(g), 80e6);
  EXPECT_DOUBLE_EQ(priority.priority(b), 50e6 - 50e6 * 100 / 80);
  priority.add_demand(b, 200ms);
  EXPECT_GT(priority.priority(b), 0) << "its device is overloaded: a second copy is wanted";
  priority.placed(b, h);
  EXPECT_NEAR(priority.device_load(g) + priority.device_load(h), 280e6, 1);
  EXPECT_GT(priority.device_load(h), priority.device_load(g)) << "the emptier device takes more";
  EXPECT_LT(priority.priority(b), 250e6 - 100e6);
  EXPECT_TRUE(priority.wanted().empty()) << "b is on all devices, a has what it needs";
  priority.set_alive(3);
  EXPECT_EQ(priority.wanted().size(), priority.priority(b) > 0 ? 1U : 0U);
  priority.set_alive(2);
  priority.removed(b, g);
  EXPECT_NEAR(priority.device_load(g), 30e6, 1);
  priority.add_demand(a, -30ms);
  EXPECT_NEAR(priority.device_load(g), 0, 1);
  EXPECT_EQ(priority.demand(a), 0ms);
}

}  // namespace
}  // namespace carillon::schedule
