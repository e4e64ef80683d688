#include "carillon/schedule/parts/worth.h"

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule::parts {
namespace {

const ModelId model{0};
const auto batches = testing::linear_model(0, 3ms, 4ms).batches;  // 7, 5, 4, 3.5 and 3.25 ms for each

// Batches of these sizes, in turn; each doubling takes `more` times what the seeds say besides.
Worth after(int runs, double more, double noise, std::size_t sizes = 5, std::uint64_t seed = 1) {
  Worth worth;
  Random random(seed);
  for (int i = 0; i < runs; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) % sizes;
    const double took = 1 + more * static_cast<double>(at);
    worth.ran(model, batches[at].batch, took * (1 + noise * (2 * random.uniform() - 1)));
  }
  return worth;
}

TEST(Worth, AllSizesWhereSeedsAreRight) {
  EXPECT_FALSE(after(1000, 0, 0).largest(model, batches));
  EXPECT_FALSE(Worth().largest(model, batches)) << "nothing ran";
  EXPECT_FALSE(after(1000, -0.1, 0.2).largest(model, batches)) << "large ones take less";
}

TEST(Worth, NoSizeIsGivenUpForNoise) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed)
    for (const int runs : {16, 50, 300})
      EXPECT_FALSE(after(runs, 0, 0.3, 5, seed).largest(model, batches)) << seed << ", " << runs;
}

TEST(Worth, SizesThatTakeMoreThanTheySave) {
  // 7, 7.5, 8, ... where each doubling takes half of the seed more; 7, 6.25, 6, 6.13 and 6.5 at a quarter.
  EXPECT_EQ(after(200, 0.5, 0.1).largest(model, batches), 0U);
  EXPECT_EQ(after(200, 0.25, 0.02).largest(model, batches), 3U);
  EXPECT_EQ(after(200, 0.5, 0.1, 2).largest(model, batches), 0U) << "as far as small ones tell";
  EXPECT_LE(*after(200, 0.5, 0.5).largest(model, batches), 1U) << "as far as noise lets";
  EXPECT_NEAR(after(200, 0.5, 0.1).times(model, 4), 2, 0.1);
}

TEST(Worth, AFewRunsAndOutliersTellNothing) {
  EXPECT_FALSE(after(15, 0.5, 0).largest(model, batches));
  Worth worth = after(100, 0, 0.1);
  for (int i = 0; i < 20; ++i) worth.ran(model, 16, 10);
  EXPECT_FALSE(worth.largest(model, batches));
}

TEST(Worth, IsForgotten) {
  Worth worth = after(200, 0.5, 0.5);
  worth.forget(model);
  EXPECT_FALSE(worth.largest(model, batches));
  // Nor does it hold for good where only small batches run: what large ones take is known ever less.
  worth = after(200, 0.5, 0.5);
  for (int i = 0; i < 5000; ++i) worth.ran(model, 1, i % 2 == 0 ? 0.8 : 1.2);
  EXPECT_FALSE(worth.largest(model, batches));
}

}  // namespace
}  // namespace carillon::schedule::parts
