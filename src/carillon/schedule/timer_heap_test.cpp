#include "carillon/schedule/timer_heap.h"

#include <map>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule {
namespace {

TEST(TimerHeap, AgreesWithAMap) {
  Random random(7);
  TimerHeap heap;
  std::map<std::uint32_t, TimePoint> truth;
  for (int i = 0; i < 20000; ++i) {
    const auto key = static_cast<std::uint32_t>(random.below(50));
    if (random.below(3) == 0) {
      heap.remove(key);
      truth.erase(key);
    } else {
      const TimePoint at{Duration{static_cast<std::int64_t>(random.below(40))}};
      heap.set(key, at);
      truth[key] = at;
    }
    ASSERT_EQ(heap.size(), truth.size());
    ASSERT_EQ(heap.contains(key), truth.contains(key));
    if (truth.empty()) {
      ASSERT_EQ(heap.top_at(), TimePoint::max());
      continue;
    }
    auto first = truth.begin();
    for (auto it = truth.begin(); it != truth.end(); ++it)
      if (it->second < first->second) first = it;
    ASSERT_EQ(heap.top(), first->first);
    ASSERT_EQ(heap.top_at(), first->second);
    ASSERT_EQ(heap.at(first->first), first->second);
  }
}

}  // namespace
}  // namespace carillon::schedule
