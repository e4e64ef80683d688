#include "carillon/engine/second/run_bounds.h"

#include <gtest/gtest.h>

namespace carillon::engine::second {
namespace {

using namespace std::chrono_literals;

const std::vector<graph::Shape> one{{1, 4}}, two{{2, 4}};

Duration after(const std::vector<Duration>& runs, RunBoundOptions options = {.least = 750ms, .first = 10s}) {
  RunBounds bounds(options);
  TimePoint now{};
  for (const Duration run : runs) bounds.took(one, run, now += run);
  return bounds.of(one);
}

TEST(RunBounds, GoByWhatRunsOfTheSizeTake) {
  const struct {
    std::vector<Duration> runs;
    Duration want;
  } rows[] = {
      {{}, 10s},                           // it has not run
      {{5ms}, 750ms},                      // the least
      {{200ms}, 2s},                       // ten times
      {{9s, 5ms}, 750ms},                  // the first run is no measure once there is another
      {{5ms, 5ms, 3s}, 750ms},             // one that was stalled is no measure
      {{5ms, 5ms, 3s, 5ms, 2900ms}, 29s},  // two are
      {{20s, 20s}, 60s},                   // beyond a minute
      {{50s, 50s}, 100s},                  // twice
  };
  for (const auto& row : rows) EXPECT_EQ(after(row.runs), row.want);
}

TEST(RunBounds, AnotherSizeHasItsOwn) {
  RunBounds bounds({.least = 750ms, .first = 10s});
  bounds.took(one, 5ms, {});
  EXPECT_EQ(bounds.of(two), 10s);
  bounds.took(two, 2s, {});
  EXPECT_EQ(bounds.of(two), 20s);
  EXPECT_EQ(bounds.of(one), 750ms);
  EXPECT_EQ(bounds.of(std::vector<graph::Shape>{{3, 4}}), 20s) << "it may take as long as any other";
}

TEST(RunBounds, SizesAreForgottenBeforeTheyAreTooMany) {
  RunBounds bounds({.least = 750ms, .first = 10s});
  for (std::int64_t i = 0; i < 10'000; ++i) bounds.took(std::vector<graph::Shape>{{i}}, 1ms, {});
  EXPECT_EQ(bounds.of(std::vector<graph::Shape>{{9'999}}), 750ms);
  EXPECT_EQ(bounds.of(std::vector<graph::Shape>{{0}}), 10s);
}

}  // namespace
}  // namespace carillon::engine::second
