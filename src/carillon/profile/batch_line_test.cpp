#include "carillon/profile/batch_line.h"

#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::profile {
namespace {

TEST(BatchLine, GoesThroughTheTable) {
  const std::map<int, Duration> table{{2, 10ms}, {4, 14ms}, {8, 30ms}};
  using Entry = std::pair<const int, Duration>;
  const struct {
    int batch;
    Duration want;
  } rows[] = {{1, 8ms}, {2, 10ms}, {3, 12ms}, {4, 14ms}, {6, 22ms}, {8, 30ms}, {10, 38ms}};
  for (const auto& [batch, want] : rows)
    EXPECT_EQ(on_batch_line(table, batch, &Entry::first, &Entry::second), want) << batch;
}

TEST(BatchLine, OfOneEntryIsInProportion) {
  const std::vector<std::pair<int, Duration>> table{{4, 8ms}};
  using Entry = std::pair<int, Duration>;
  EXPECT_EQ(on_batch_line(table, 1, &Entry::first, &Entry::second), 2ms);
  EXPECT_EQ(on_batch_line(table, 6, &Entry::first, &Entry::second), 12ms);
}

TEST(BatchLine, NeverComesToNothing) {
  const std::vector<std::pair<int, Duration>> table{{4, 1ms}, {8, 9ms}};
  using Entry = std::pair<int, Duration>;
  EXPECT_EQ(on_batch_line(table, 1, &Entry::first, &Entry::second), Duration{1});
}

}  // namespace
}  // namespace carillon::profile
