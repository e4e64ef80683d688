#include "carillon/frontend/doors/work_pool.h"

#include <future>

#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

TEST(WorkPool, TakesNoMoreThanItsQueueHolds) {
  WorkPool pool(1, 2);
  std::promise<void> begun, gate;
  ASSERT_TRUE(pool.post([&] {
    begun.set_value();
    gate.get_future().wait();
  }));
  begun.get_future().wait();
  std::vector<int> order;
  std::promise<void> done;
  ASSERT_TRUE(pool.post([&] { order.push_back(1); }));
  ASSERT_TRUE(pool.post([&] {
    order.push_back(2);
    done.set_value();
  }));
  WorkPool::Work late = [&] { order.push_back(3); };
  EXPECT_FALSE(pool.post(std::move(late)));
  // NOLINTNEXTLINE(bugprone-use-after-move): not moved from where it is refused
  EXPECT_TRUE(static_cast<bool>(late)) << "refused work stays the caller's";
  gate.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector{1, 2}));
}

// What waits is destroyed, not run, and what it holds is let go.
TEST(WorkPool, DropsWhatWaitsAtItsEnd) {
  auto held = std::make_shared<int>(0);
  std::promise<void> begun, gate;
  std::thread opener;
  {
    WorkPool pool(1, 2);
    ASSERT_TRUE(pool.post([&] {
      begun.set_value();
      gate.get_future().wait();
    }));
    begun.get_future().wait();
    ASSERT_TRUE(pool.post([held] { ++*held; }));
    opener = std::thread([&] { gate.set_value(); });
  }
  opener.join();
  EXPECT_LE(*held, 1);
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace carillon::frontend
