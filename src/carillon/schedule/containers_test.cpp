// The schedulers' own containers and the mirror of an executor, against plain ones that are slow and right.
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/request_queue.h"
#include "carillon/schedule/state/book.h"
#include "carillon/schedule/state/executor.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {
namespace {

TEST(IdMap, AgreesWithAMap) {
  // Ids in a row as they are dealt out, and far ones, so that some share a place.
  for (const std::uint64_t spread : {1ULL, 7ULL, 1ULL << 20, 0x123456789ULL}) {
    Random random(spread);
    IdMap<RequestId, std::uint64_t> map;
    std::map<std::uint64_t, std::uint64_t> truth;
    EXPECT_EQ(map.find(RequestId{3}), nullptr);
    EXPECT_FALSE(map.erase(RequestId{3}));
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      const RequestId id{random.below(300) * spread};
      switch (random.below(i < 10'000 ? 2 : 3)) {
        case 0:
          ASSERT_EQ(map.insert(id, i), truth.emplace(id.value, i).second);
          break;
        case 1: {
          const auto found = truth.find(id.value);
          const std::uint64_t* at = map.find(id);
          ASSERT_EQ(at != nullptr, found != truth.end());
          if (at != nullptr) {
            ASSERT_EQ(*at, found->second);
          }
          break;
        }
        default: {
          const auto found = truth.find(id.value);
          const std::optional<std::uint64_t> taken = map.erase(id);
          ASSERT_EQ(taken.has_value(), found != truth.end());
          if (!taken) break;
          ASSERT_EQ(*taken, found->second);
          truth.erase(found);
          for (const auto& [key, value] : truth) {  // the others moved, but are there
            const std::uint64_t* at = map.find(RequestId{key});
            ASSERT_TRUE(at != nullptr && *at == value) << key;
          }
        }
      }
      ASSERT_EQ(map.size(), truth.size());
    }
  }
}

TEST(RequestQueue, AgreesWithASortedList) {
  Random random(3);
  for (const std::uint64_t deadlines : {5ULL, 1'000'000ULL}) {
    RequestQueue queue;
    std::vector<Request> truth;
    std::uint64_t next = 0;
    for (int i = 0; i < 20'000; ++i) {
      // Now longer, now shorter.
      switch (random.below(i / 1000 % 2 == 0 ? 4 : 8)) {
        case 0:
        case 1:
        case 2: {
          const Request r{
              .id = RequestId{next++},
              .deadline = TimePoint{Duration{static_cast<std::int64_t>(random.below(deadlines))}}};
          queue.push(r);
          truth.push_back(r);
          std::sort(truth.begin(), truth.end(), [](const Request& a, const Request& b) {
            return std::pair(a.deadline, a.id) < std::pair(b.deadline, b.id);
          });
          break;
        }
        case 3: {
          const RequestId id{next - random.below(std::min<std::uint64_t>(next, 20) + 1)};
          ASSERT_EQ(queue.remove(id),
                    std::erase_if(truth, [&](const Request& r) { return r.id == id; }) == 1);
          break;
        }
        default: {
          const auto n = static_cast<std::size_t>(random.below(std::min<std::size_t>(truth.size(), 3) + 1));
          const auto first = static_cast<std::size_t>(random.below(truth.size() - n + 1));
          if (random.below(2) == 0) {
            queue.pop_front(n);
            truth.erase(truth.begin(), truth.begin() + static_cast<std::ptrdiff_t>(n));
          } else {
            queue.remove(first, n);
            const auto from = truth.begin() + static_cast<std::ptrdiff_t>(first);
            truth.erase(from, from + static_cast<std::ptrdiff_t>(n));
          }
        }
      }
      if (random.below(3000) == 0) {
        queue.clear();
        truth.clear();
      }
      ASSERT_EQ(queue.size(), truth.size());
      ASSERT_EQ(queue.empty(), truth.empty());
      ASSERT_TRUE(std::equal(queue.begin(), queue.end(), truth.begin(), truth.end()));
      if (truth.empty()) continue;
      ASSERT_EQ(queue.front(), truth.front());
      ASSERT_EQ(queue[truth.size() - 1], truth.back());
    }
  }
}

TEST(TimerHeap, AgreesWithASortedList) {
  Random random(7);
  TimerHeap heap;
  std::map<std::uint32_t, TimePoint> truth;
  const auto some_time = [&] { return TimePoint{Duration{static_cast<std::int64_t>(random.below(50))}}; };
  for (int i = 0; i < 5'000; ++i) {
    const auto key = static_cast<std::uint32_t>(random.below(40));
    if (random.below(3) > 0) {
      const TimePoint at = some_time();
      heap.set(key, at);
      truth[key] = at;
    } else {
      heap.remove(key);
      truth.erase(key);
    }
    std::vector<std::pair<TimePoint, std::uint32_t>> order;
    for (const auto& [k, at] : truth) order.emplace_back(at, k);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(heap.size(), order.size());
    ASSERT_EQ(heap.top_at(), order.empty() ? TimePoint::max() : order.front().first);
    if (!order.empty()) {
      ASSERT_EQ(heap.top(), order.front().second);
    }
    const TimePoint until = some_time();
    const auto most = static_cast<std::size_t>(random.below(12));
    std::erase_if(order, [&](const auto& entry) { return entry.first >= until; });
    order.resize(std::min(order.size(), most));
    std::vector<std::pair<TimePoint, std::uint32_t>> visited;
    heap.visit_first(most, until, [&](std::uint32_t k) { visited.emplace_back(heap.at(k), k); });
    ASSERT_EQ(visited, order);
  }
}

// A device knows nothing of the way to it, and runs what comes in the order that it was told.
TEST(Executor, KeepsTheOrderThatItsDeviceWasTold) {
  const auto at = [](Duration time) { return TimePoint{time}; };
  Executor executor;
  executor.push(ActionId{0}, ModelId{1}, at(9ms), 1ms, TimePoint::max(), at(1ms));
  executor.push(ActionId{1}, ModelId{1}, at(3ms), 1ms, TimePoint::max(), at(2ms));
  EXPECT_EQ(executor.last_order(), at(2ms));
  EXPECT_EQ(executor.end_of(ActionId{0}, at(2ms)), at(10ms));
  EXPECT_EQ(executor.end_of(ActionId{1}, at(2ms)), at(11ms));
}

// What was sent is run one after the other by (earliest, order of sending), each from its earliest on.
TEST(Executor, ExpectsWhatIsSentOneAfterTheOther) {
  Random random(5);
  const auto some = [&](std::uint64_t n) { return Duration{static_cast<std::int64_t>(random.below(n))}; };
  for (int round = 0; round < 300; ++round) {
    Executor executor;
    std::vector<Executor::Pending> truth;
    TimePoint ended = TimePoint::min(), now{};
    std::uint64_t next = 0;
    for (int i = 0; i < 60; ++i) {
      now += some(5);
      if (truth.empty() || random.below(2) == 0) {
        Executor::Pending p;
        p.id = ActionId{next++};
        p.model = ModelId{1};
        p.earliest = now + some(20);
        p.expected = some(10);
        executor.push(p.id, p.model, p.earliest, p.expected);
        truth.push_back(p);
        std::stable_sort(truth.begin(), truth.end(),
                         [](const auto& a, const auto& b) { return a.earliest < b.earliest; });
      } else {
        const std::size_t which = random.below(3) == 0 ? random.below(truth.size()) : 0;
        if (random.below(4) != 0) ended = std::max(ended, now - some(3));
        executor.remove(truth[which].id, ended);
        ASSERT_EQ(executor.free_from(), ended);
        truth.erase(truth.begin() + static_cast<std::ptrdiff_t>(which));
      }
      ASSERT_EQ(executor.idle(), truth.empty());
      ASSERT_EQ(executor.last_order(), truth.empty() ? TimePoint::min() : truth.back().earliest);
      ASSERT_EQ(executor.pending().size(), truth.size());
      // Where the first should have ended already, it is taken to end now.
      TimePoint t = ended;
      for (std::size_t k = 0; k < truth.size(); ++k) {
        t = std::max(t, truth[k].earliest) + truth[k].expected;
        if (k == 0) {
          ASSERT_EQ(executor.overdue(now), t < now);
          t = std::max(t, now);
        }
        ASSERT_EQ(executor.pending()[k].id, truth[k].id);
        ASSERT_EQ(executor.end_of(truth[k].id, now), t) << round << " " << i << " " << k;
      }
      ASSERT_EQ(executor.free_at(now), truth.empty() ? now : t);
    }
  }
}

TEST(Book, WhatCameTooLateIsNoFailureOfTheDevice) {
  using Failure = Book::Failure;
  EXPECT_EQ(Book::failure_of(ActionStatus::too_late), Failure::late);
  EXPECT_EQ(Book::reason_of(Failure::late), Reason::rejected_late);
  for (const ActionStatus status : {ActionStatus::failed, ActionStatus::no_memory, ActionStatus::not_loaded})
    EXPECT_EQ(Book::reason_of(Book::failure_of(status)), Reason::device_failed);
}

TEST(Book, TriesThatCameTooLateCountAsOthersUnlessTheyHaveALimitOfTheirOwn) {
  using Failure = Book::Failure;
  Book together(3);
  EXPECT_TRUE(together.try_again({1}, Failure::late));
  EXPECT_TRUE(together.try_again({1}, Failure::failed));
  EXPECT_FALSE(together.try_again({1}, Failure::late));
  Book apart(2, 3);
  EXPECT_TRUE(apart.try_again({1}, Failure::late));
  EXPECT_TRUE(apart.try_again({1}, Failure::late));
  EXPECT_TRUE(apart.try_again({1}, Failure::failed));
  EXPECT_FALSE(apart.try_again({1}, Failure::late));
  EXPECT_TRUE(apart.try_again({1}, Failure::stopped)) << "it was forgotten";
}

}  // namespace
}  // namespace carillon::schedule
