#include "carillon/schedule/parts/shares.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/parts/give_way.h"

namespace carillon::schedule::parts {
namespace {

// A tenant's requests, `every` so long apart from `from` on, of `work` device seconds each.
struct Asking {
  std::uint32_t app = 0;
  Duration every{0};
  double work = 0;
  Duration from{0};
  Duration until = Duration::max();
  std::uint32_t model = 0;
};

Request request(std::uint32_t app, std::uint32_t model = 0) {
  return {.model = ModelId{model}, .app = AppId{app}};
}

class SharesTest : public ::testing::Test {
 protected:
  // All that comes from the last call on until `end`. Returns how many requests of each were modest, as a
  // share, from `counted` on.
  std::vector<double> run(const std::vector<Asking>& all, Duration end, Duration counted,
                          std::size_t devices) {
    std::vector<double> modest(all.size()), came(all.size());
    for (; now < TimePoint{end}; now += 1ms) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const Asking& a = all[i];
        if (now < TimePoint{a.from} || now >= TimePoint{a.until} ||
            (now - TimePoint{a.from}) % a.every != Duration{0})
          continue;
        const bool is = shares.asked(request(a.app, a.model), a.work, now);
        if (now < TimePoint{counted}) continue;
        ++came[i];
        modest[i] += is ? 1 : 0;
      }
      shares.step(devices, now);
    }
    for (std::size_t i = 0; i < all.size(); ++i) modest[i] /= came[i];
    return modest;
  }

  Shares shares{0, 1};
  TimePoint now{};
};

TEST_F(SharesTest, WhoAsksForLessThanItsMaxMinShareIsModest) {
  // 0.3, 0.5, 2 and 3 devices: of two devices 0.6 are left for each of the last two.
  const auto modest = run({{.app = 1, .every = 10ms, .work = 0.003},
                           {.app = 2, .every = 10ms, .work = 0.005},
                           {.app = 3, .every = 10ms, .work = 0.02},
                           {.app = 4, .every = 10ms, .work = 0.03}},
                          20s, 2s, 2);
  EXPECT_EQ(modest, (std::vector<double>{1, 1, 0, 0}));
  EXPECT_NEAR(shares.level(), 0.6, 0.03);
}

TEST_F(SharesTest, WhereThereIsEnoughAllAreModest) {
  EXPECT_EQ(
      run({{.app = 1, .every = 10ms, .work = 0.003}, {.app = 2, .every = 10ms, .work = 0.016}}, 10s, 0s, 2),
      (std::vector<double>{1, 1}));
  EXPECT_FALSE(shares.short_of());
}

TEST_F(SharesTest, OneTenantAloneMayHaveAll) {
  EXPECT_EQ(run({{.app = 0, .every = 10ms, .work = 0.003, .model = 0},
                 {.app = 0, .every = 10ms, .work = 0.003, .model = 1}},
                10s, 0s, 1),
            (std::vector<double>{1, 1}))
      << "models are not told apart";
  EXPECT_FALSE(shares.short_of());
  run({{.app = 0, .every = 10ms, .work = 0.1, .model = 0}}, 20s, 10s, 1);
  EXPECT_DOUBLE_EQ(shares.level(), 1);
}

TEST_F(SharesTest, WhoWasSilentForLongIsModestBesideOneThatAsksForAll) {
  const auto modest =
      run({{.app = 1, .every = 10ms, .work = 0.1}, {.app = 2, .every = 15s, .work = 0.01, .from = 14s}}, 45s,
          12s, 1);
  EXPECT_EQ(modest, (std::vector<double>{0, 1}));
}

TEST_F(SharesTest, ModelsAreTenantsOfRequestsThatNameNone) {
  shares = Shares(1, 0);
  EXPECT_EQ(run({{.app = 1, .every = 10ms, .work = 0.1, .model = 0},
                 {.app = 1, .every = 10ms, .work = 0.001, .model = 1}},
                10s, 1s, 1),
            (std::vector<double>{0, 1}));
}

TEST_F(SharesTest, AShareOfTheMaxMinShareMayBeEnoughToBeImmodest) {
  shares = Shares(0, 0.5);
  // 0.4 of a device, where 0.7 would be the share.
  EXPECT_EQ(run({{.app = 1, .every = 10ms, .work = 0.004},
                 {.app = 2, .every = 10ms, .work = 0.003},
                 {.app = 3, .every = 10ms, .work = 0.02}},
                20s, 5s, 1)[0],
            0);
}

TEST_F(SharesTest, AShortBurstIsModest) {
  // Five times its share for a fifth of a second; the share is 0.5.
  const auto modest = run({{.app = 1, .every = 10ms, .work = 0.03},
                           {.app = 2, .every = 100ms, .work = 0.01, .until = 10s},
                           {.app = 2, .every = 4ms, .work = 0.01, .from = 10s, .until = 10s + 200ms}},
                          11s, 2s, 1);
  EXPECT_EQ(modest, (std::vector<double>{0, 1, 1}));
}

TEST_F(SharesTest, WhoAskedForTooMuchAndComesBackIsModestAgain) {
  const std::vector<Asking> all{{.app = 1, .every = 10ms, .work = 0.003},
                                {.app = 2, .every = 10ms, .work = 0.03, .until = 10s},
                                {.app = 3, .every = 10ms, .work = 0.02},
                                {.app = 2, .every = 10ms, .work = 0.001, .from = 20s}};
  const auto modest = run(all, 30s, 2s, 1);
  EXPECT_EQ(modest[1], 0);
  EXPECT_EQ(modest[3], 1);
  EXPECT_EQ(modest[0], 1) << "all the time";
}

TEST_F(SharesTest, RealTimeRequestsLeaveTheRest) {
  for (; now < TimePoint{10s}; now += 10ms) {
    shares.urgent(0.005, now);  // half of the device
    EXPECT_EQ(shares.asked(request(1), 0.002, now), true);
    const bool other = shares.asked(request(2), 0.004, now);
    EXPECT_TRUE(now < TimePoint{5s} || !other);
    shares.step(1, now);
  }
  EXPECT_NEAR(shares.level(), 0.3, 0.02);
}

// Whoever invents a name for each request is one tenant with all others who do, and asks for too much.
TEST_F(SharesTest, AMillionApplicationsAreNotToldApart) {
  std::size_t modest = 0, known = 0, steady = 0;
  std::uint32_t name = 10;
  for (int i = 0; i < 1'000'000; ++i, now += 20us) {
    modest += shares.asked(request(name++), 0.0001, now) ? 1 : 0;  // five devices
    // 0.1 devices, once places are taken: it gets one as some are left.
    if (i % 500 == 0 && i >= 200'000) {
      const bool is = shares.asked(request(1), 0.001, now);
      known += is && i >= 900'000 ? 1 : 0;
      steady += i >= 900'000 ? 1 : 0;
    }
    shares.step(2, now);
    ASSERT_LE(shares.applications(), Shares::most_applications);
  }
  EXPECT_LT(modest, 100'000U);
  EXPECT_EQ(known, steady);
}

TEST_F(SharesTest, PlacesOfThoseThatAskForNothingAreGivenAgain) {
  for (std::uint32_t i = 1; i <= 2 * Shares::most_applications; ++i) shares.asked(request(i), 0.001, now);
  EXPECT_EQ(shares.applications(), Shares::most_applications);
  for (int i = 0; i < 100; ++i) shares.step(1, now += 1s);
  EXPECT_EQ(shares.applications(), 0U);
  shares.asked(request(7), 0.001, now);
  EXPECT_EQ(shares.applications(), 1U);
}

TEST(GiveWay, RunsAreAsLongAsLosesFew) {
  GiveWay runs;
  runs.lost(1ms);
  EXPECT_EQ(runs.most(), Duration::max()) << "nobody runs";
  runs.ran(40ms);
  for (int i = 0; i < 1000; ++i) runs.lost(10ms);
  EXPECT_EQ(runs.most(), 10ms) << "shorter runs would gain nothing";
  // It rests where the share is lost that may be: so it stays as it is.
  for (int i = 0; i < 20; ++i) {
    runs.sent(static_cast<std::size_t>((1 - GiveWay::lost_at_most) / GiveWay::lost_at_most));
    runs.lost(1ms);
  }
  EXPECT_NEAR(to_seconds(runs.most()), 0.01, 0.001);
  runs.sent(20'000);
  EXPECT_EQ(runs.most(), Duration::max());
  runs.lost(1ms);
  EXPECT_EQ(runs.most(), 38ms) << "begins with what runs take";
}

}  // namespace
}  // namespace carillon::schedule::parts
