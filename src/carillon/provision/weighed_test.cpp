#include "carillon/provision/weighed.h"

#include <vector>

#include <gtest/gtest.h>

namespace carillon::provision {
namespace {

TEST(WeighedRequests, CountByTheDeviceTimeThatTheyTake) {
  WeighedRequests weighed;
  // A row of the heavy model takes nine times as long; the mean row takes 2 ms.
  std::vector<ModelWork> models{
      {.name = "light", .version = 1, .requests = 700, .bad = 0, .ran = 700, .busy = 700ms},
      {.name = "heavy", .version = 1, .requests = 200, .bad = 100, .ran = 100, .busy = 900ms}};
  auto counters = weighed.observe(models, 3s);
  EXPECT_EQ(counters.requests, 350U + 900U);
  EXPECT_EQ(counters.bad, 450U);
  EXPECT_EQ(counters.busy, 3s);
  // Only what is new counts by what is known now; nothing is counted back.
  models[1].requests += 10;
  models[1].bad += 10;
  models[1].busy += 700ms;  // a row takes 16 ms, and the mean row 2.875 ms
  counters = weighed.observe(models, 4s);
  EXPECT_EQ(counters.bad, 505U);
  EXPECT_EQ(counters.requests, 1305U);
  models[0].requests = 0;
  EXPECT_EQ(weighed.observe(models, 4s).requests, 1305U);
}

TEST(WeighedRequests, AModelThatHasNotRunCountsForOne) {
  WeighedRequests weighed;
  const std::vector<ModelWork> none_ran{{.name = "a", .version = 1, .requests = 10, .bad = 10}};
  EXPECT_EQ(weighed.observe(none_ran, 0s).bad, 10U);
  const std::vector<ModelWork> one_ran{
      {.name = "a", .version = 1, .requests = 20, .bad = 20},
      {.name = "a", .version = 2, .requests = 5, .bad = 0, .ran = 5, .busy = 100ms}};
  const auto counters = weighed.observe(one_ran, 1s);
  EXPECT_EQ(counters.bad, 20U);
  EXPECT_EQ(counters.requests, 25U);
  EXPECT_EQ(weighed.observe({}, 1s).requests, 25U);
}

}  // namespace
}  // namespace carillon::provision
