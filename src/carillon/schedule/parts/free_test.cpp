#include "carillon/schedule/parts/free.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/policy.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule::parts {
namespace {

std::vector<std::size_t> members(const Bits& bits, const Bits* also = nullptr) {
  std::vector<std::size_t> found;
  bits.visit(also, [&](std::size_t i) {
    found.push_back(i);
    return false;
  });
  return found;
}

TEST(Bits, IsLikeASet) {
  Random random(1);
  Bits a, b;
  std::set<std::size_t> in_a, in_b;
  for (int step = 0; step < 3000; ++step) {
    const std::size_t i = random.below(20000);
    ASSERT_EQ(a.set(i), in_a.insert(i).second);
    const std::size_t j = random.below(10000) * 2;
    ASSERT_EQ(b.set(j), in_b.insert(j).second);
    const std::size_t k = random.below(20000);
    ASSERT_EQ(a.clear(k), in_a.erase(k) > 0);
    ASSERT_EQ(a.test(k), false);
    ASSERT_EQ(a.size(), in_a.size());
  }
  EXPECT_EQ(members(a), std::vector(in_a.begin(), in_a.end()));
  std::vector<std::size_t> both;
  std::ranges::set_intersection(in_a, in_b, std::back_inserter(both));
  EXPECT_EQ(members(a, &b), both);
  EXPECT_EQ(members(b, &a), both);
  for (const std::size_t end : {0, 1, 63, 64, 65, 4096, 4100}) {
    a.fill(end);
    EXPECT_EQ(a.size(), end);
    const auto all = members(a);
    ASSERT_EQ(all.size(), end);
    EXPECT_TRUE(end == 0 || all.back() == end - 1);
  }
  a.fill(70);
  std::size_t seen = 0;
  EXPECT_TRUE(a.visit(nullptr, [&](std::size_t i) {
    a.clear(i);
    return ++seen == 3;
  }));
  EXPECT_EQ(a.size(), 67U);
}

// Devices of a ledger, each with one run at most.
class FreeTest : public ::testing::Test {
 protected:
  FreeTest() {
    ledger_.planned_by(Environment{.dispatch = 1ms, .answer = {}, .overrun = 0}, true);
    ledger_.plan(model_comes(testing::linear_model(0, 0ms, 10ms, 0)));
    ledger_.apply(model_comes(testing::linear_model(0, 0ms, 10ms, 0)), {});
  }
  static TimePoint at(Duration d) { return TimePoint{d}; }
  void device(std::uint32_t id, int speed) {
    ledger_.apply(DeviceChanged{DeviceId{id}, true, 1}, now_);
    free_.know(DeviceId{id}, speed);
    look(id);
  }
  void look(std::uint32_t id) { free_.look(DeviceId{id}, Class::normal, ledger_, 1ms, now_); }
  void run(std::uint32_t id) {
    ledger_.book(Infer{ActionId{next_++}, DeviceId{id}, ModelId{0}, {}, {now_, TimePoint::max()}, 10ms},
                 now_);
    look(id);
  }
  std::vector<std::uint32_t> free(const Bits* among = nullptr) const {
    std::vector<std::uint32_t> found;
    free_.visit(Class::normal, among, [&](DeviceId device) {
      found.push_back(device.value);
      return false;
    });
    return found;
  }
  std::vector<std::uint32_t> stirred() {
    std::vector<std::uint32_t> found;
    while (const auto next = free_.take_stirred()) found.push_back(next->device.value);
    return found;
  }
  using Ids = std::vector<std::uint32_t>;

  ledger::Ledger ledger_;
  Free free_;
  TimePoint now_{};
  std::uint64_t next_ = 0;
};

TEST_F(FreeTest, TheFastestComeFirst) {
  device(0, 2);
  device(1, -1);
  device(2, 0);
  device(3, 0);
  EXPECT_EQ(free(), (Ids{1, 2, 3, 0}));
  EXPECT_EQ(stirred(), (Ids{1, 2, 3, 0}));
  EXPECT_EQ(free_.fastest(), DeviceId{1});
  Bits among;
  among.set(0);
  among.set(3);
  EXPECT_EQ(free(&among), (Ids{3, 0}));
  run(1);
  run(2);
  EXPECT_EQ(free(), (Ids{3, 0}));
  EXPECT_EQ(free_.fastest(), DeviceId{1}) << "busy as it is";
  free_.know(DeviceId{3}, 7);
  EXPECT_EQ(free(), (Ids{0, 3}));
  free_.know(DeviceId{0}, std::nullopt);
  EXPECT_EQ(free(), (Ids{3}));
}

// An order takes a while to get there: the next is sent so long before the run ends.
TEST_F(FreeTest, IsTakenInBeforeTheRunEnds) {
  device(0, 0);
  run(0);
  stirred();
  EXPECT_EQ(free(), Ids{});
  EXPECT_EQ(free_.next_at(), at(10ms));
  EXPECT_EQ(free_.due(Class::normal, at(9ms)), std::nullopt);
  now_ = at(10ms);
  EXPECT_EQ(free_.due(Class::normal, now_), DeviceId{0});
  look(0);
  EXPECT_EQ(free(), Ids{0});
  EXPECT_EQ(stirred(), Ids{0});
  EXPECT_EQ(free_.next_at(), TimePoint::max());
  // Only its report tells when a run that should have ended does.
  now_ = at(12ms);
  look(0);
  EXPECT_EQ(free(), Ids{});
  EXPECT_EQ(stirred(), Ids{});
  EXPECT_EQ(free_.next_at(), TimePoint::max());
}

}  // namespace
}  // namespace carillon::schedule::parts
