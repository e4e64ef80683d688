#include "carillon/schedule/clockwork/fair_share.h"

#include <gtest/gtest.h>

namespace carillon::schedule {
namespace {

constexpr ModelId quick{0}, slow{1};

// A second of requests, evenly: `quick` takes 1 ms of a device for each, `slow` 20 ms.
struct SharedDevices {
  FairShare shares{250ms, [this](ModelId model, double rate, Duration slo) {
                     slos[model.index()] = slo;
                     return rate * (model == quick ? 0.001 : 0.020);
                   }};
  Duration slos[2] = {};
  TimePoint now{};

  SharedDevices() {
    shares.add_model();
    shares.add_model();
  }
  void second(int quick_requests, int slow_requests, std::size_t devices) {
    for (int i = 0; i < 1000; ++i, now += 1ms) {
      for (int n = i * quick_requests / 1000; n < (i + 1) * quick_requests / 1000; ++n)
        shares.asked(quick, 30ms, devices, now);
      for (int n = i * slow_requests / 1000; n < (i + 1) * slow_requests / 1000; ++n)
        shares.asked(slow, 160ms, devices, now);
    }
  }
};

TEST(FairShare, KnowsWhetherTheDevicesAreEnough) {
  SharedDevices s;
  EXPECT_FALSE(s.shares.enough()) << "nothing is known";
  s.second(1000, 45, 2);  // 1.9 devices
  EXPECT_TRUE(s.shares.enough());
  EXPECT_NEAR(to_ms(s.slos[0]), 30, 1e-6);
  EXPECT_NEAR(to_ms(s.slos[1]), 160, 1e-6);
  s.second(1000, 60, 2);  // 2.2 devices
  EXPECT_FALSE(s.shares.enough());
  s.second(1000, 60, 3);
  EXPECT_TRUE(s.shares.enough());
}

TEST(FairShare, AModelThatLosesMoreIsOwedItsTurnWhileNobodyNeedLose) {
  SharedDevices s;
  s.second(1000, 45, 2);
  EXPECT_FALSE(s.shares.owed(slow, quick)) << "neither lost anything";
  for (int i = 0; i < 100; ++i) s.shares.answered(quick);
  s.shares.lost(quick);
  EXPECT_TRUE(s.shares.owed(quick, slow));
  EXPECT_FALSE(s.shares.owed(slow, quick));
  for (int i = 0; i < 3; ++i) s.shares.lost(slow);
  EXPECT_TRUE(s.shares.owed(slow, quick));
  EXPECT_FALSE(s.shares.owed(quick, slow));
  for (int i = 0; i < 600; ++i) s.shares.answered(slow);
  EXPECT_TRUE(s.shares.owed(quick, slow)) << "what was long ago counts for little";
  s.second(1000, 60, 2);
  EXPECT_FALSE(s.shares.owed(quick, slow)) << "under overload nobody is owed anything";
}

}  // namespace
}  // namespace carillon::schedule
