#include "carillon/base/index_table.h"

#include <map>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/base/slab.h"

namespace carillon {
namespace {

TEST(IndexTable, AgreesWithAMapUnderRandomUse) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    Random random(seed);
    IndexTable table(4);  // grows on the way
    std::map<std::uint64_t, std::uint32_t> model;
    std::uint64_t next = random.below(1000);
    for (int step = 0; step < 20000; ++step) {
      const std::uint64_t key = random.below(next + 1);
      // Keys are mostly in sequence, as ids are, but some share their low bits.
      if (random.below(100) < 50) {
        next += random.below(10) == 0 ? 64 : 1;
        const auto value = static_cast<std::uint32_t>(random.below(1 << 20));
        table.insert(next, value);
        model[next] = value;
      } else if (!model.empty() && random.below(2) == 0) {
        const std::uint64_t there = model.begin()->first;
        ASSERT_TRUE(table.erase(there));
        model.erase(there);
      } else {
        ASSERT_EQ(table.erase(key), model.erase(key) == 1) << "seed " << seed << " step " << step;
      }
      const auto found = table.find(key);
      const auto want = model.find(key);
      ASSERT_EQ(found.has_value(), want != model.end()) << "seed " << seed << " step " << step;
      if (found) {
        ASSERT_EQ(*found, want->second);
      }
      ASSERT_EQ(table.size(), model.size());
    }
    for (const auto& [key, value] : model) ASSERT_EQ(table.find(key), value);
  }
}

TEST(Slab, GivesWhatWasGivenBackAgain) {
  Slab<std::vector<int>> slab;
  const auto a = slab.take();
  const auto b = slab.take();
  EXPECT_NE(a, b);
  slab[a].push_back(7);
  slab.give_back(a);
  EXPECT_EQ(slab.used(), 1U);
  EXPECT_EQ(slab.take(), a);
  EXPECT_EQ(slab[a].size(), 1U) << "state stays";
  EXPECT_EQ(slab.size(), 2U);
}

}  // namespace
}  // namespace carillon
