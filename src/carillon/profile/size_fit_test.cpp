#include "carillon/profile/size_fit.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::profile {
namespace {

using namespace std::chrono_literals;

// An encoder of one layer, 256 wide, in f32: products with weights grow with the length, attention with its
// square.
Effort encoder(std::uint64_t length) {
  return {.operations = 2 * length * 12 * 256 * 256 + 4 * length * length * 256,
          .bytes = 4 * (20 * length * 256 + 8 * length * length)};
}

// On a machine of its own speeds.
Duration takes(const Effort& effort, int runs = 1) {
  return from_ns(60e3 * runs + static_cast<double>(effort.operations) / 40.0 +
                 static_cast<double>(effort.bytes) / 9.0);
}

SizedRun one(std::uint64_t length) {
  return {.runs = 1, .rows = 1, .effort = encoder(length)};
}

double ratio(Duration found, Duration wanted) {
  return static_cast<double>(found.count()) / static_cast<double>(wanted.count());
}

TEST(SizeFit, TellsOfSizesThatWereNotMeasured) {
  SizeFit fit;
  EXPECT_EQ(fit.expected(one(64)), Duration{0});
  for (const std::uint64_t length : {8, 32, 100, 300})
    for (int i = 0; i < 3; ++i) fit.add(one(length), takes(encoder(length)));
  for (const std::uint64_t length : {4, 16, 64, 200, 512})
    EXPECT_NEAR(ratio(fit.expected(one(length)), takes(encoder(length))), 1, 0.02) << "length " << length;
}

TEST(SizeFit, GoesByTheSizeWhereOneAloneIsKnown) {
  SizeFit fit;
  fit.add(one(64), takes(encoder(64)));
  EXPECT_NEAR(ratio(fit.expected(one(64)), takes(encoder(64))), 1, 1e-6);
  EXPECT_GT(fit.expected(one(256)), 3 * fit.expected(one(64)));
  EXPECT_LT(fit.expected(one(16)), fit.expected(one(64)) / 3);
}

// What a run takes for itself is known from batches of one size.
TEST(SizeFit, LearnsFromBatches) {
  SizeFit fit;
  for (int rows = 1; rows <= 16; rows *= 2) {
    Effort all;
    for (int i = 0; i < rows; ++i) all += encoder(64);
    fit.add({.runs = 1, .rows = rows, .effort = all}, takes(all));
  }
  EXPECT_NEAR(ratio(fit.expected(one(8)), takes(encoder(8))), 1, 0.25);
  Effort mixed = encoder(64);
  mixed += encoder(16);
  EXPECT_NEAR(ratio(fit.expected({.runs = 2, .rows = 2, .effort = mixed}), takes(mixed, 2)), 1, 0.25);
}

TEST(SizeFit, PromisesWhatNoisyRunsKeep) {
  Random random(3);
  SizeFit fit;
  const auto noisy = [&](const Effort& effort) {
    return from_ns(static_cast<double>(takes(effort).count()) * (1 + 0.1 * std::abs(random.normal())));
  };
  for (int i = 0; i < 400; ++i) {
    const std::uint64_t length = 8 + random.below(300);
    fit.add(one(length), noisy(encoder(length)));
  }
  int longer = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t length = 8 + random.below(500);
    longer += noisy(encoder(length)) > fit.expected(one(length)) ? 1 : 0;
    EXPECT_LT(ratio(fit.expected(one(length)), takes(encoder(length))), 1.5);
  }
  EXPECT_LE(longer, 40);
}

TEST(SizeFit, ForgivesOneAccidentAndBelievesTwo) {
  SizeFit fit;
  const auto add = [&](Duration extra, std::uint64_t length) {
    fit.add(one(length), takes(encoder(length)) + extra);
  };
  for (const std::uint64_t length : {8, 32, 128})
    for (int i = 0; i < 4; ++i) add(0us, length);
  add(50ms, 128);
  EXPECT_NEAR(ratio(fit.expected(one(64)), takes(encoder(64))), 1, 0.05);
  add(50ms, 128);
  EXPECT_GT(fit.expected(one(128)), 25ms);
}

// A machine that became twice as slow is known after a window.
TEST(SizeFit, FollowsTheMachine) {
  SizeFit fit;
  for (int pass = 1; pass <= 2; ++pass)
    for (const std::uint64_t length : {8, 32, 128})
      for (std::size_t i = 0; i < SizeFit::window; ++i) fit.add(one(length), pass * takes(encoder(length)));
  EXPECT_NEAR(ratio(fit.expected(one(64)), takes(encoder(64))), 2, 0.05);
}

TEST(SizeFit, KeepsSoManyKinds) {
  SizeFit fit;
  for (int rows = 1; rows <= 300; ++rows)
    fit.add({.runs = 1, .rows = rows, .effort = encoder(64)}, takes(encoder(64)));
  EXPECT_GT(fit.expected(one(64)), Duration{0});
}

TEST(SizeStep, IsAQuarterOfAPowerOfTwo) {
  const Effort small{.operations = 0, .bytes = 1000};
  EXPECT_EQ(size_step({.operations = 0, .bytes = 2000}), size_step(small) + 4);
  EXPECT_EQ(size_step({.operations = 8000, .bytes = 0}), size_step(small));
  EXPECT_EQ(size_step({}), 0);
}

}  // namespace
}  // namespace carillon::profile
