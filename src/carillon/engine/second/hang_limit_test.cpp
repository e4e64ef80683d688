#include "carillon/engine/second/hang_limit.h"

#include <gtest/gtest.h>

namespace carillon::engine::second {
namespace {

TEST(HangLimit, CountsTheTimeInWhichTheProcessCouldWork) {
  const struct {
    Duration passed, starved;  // of each look
    int looks;                 // until it hangs; 0: never
  } rows[] = {
      {50ms, 0ms, 20},   // the process sleeps, or computes and gets nowhere
      {50ms, 25ms, 40},  // others have its processor half of the time
      {50ms, 50ms, 0},   // all of the time
      {10s, 0ms, 10},    // whoever looks had no processor itself
      {2s, 1950ms, 20},  // neither had one for long, and the process had one for 50 ms
      {50ms, 80ms, 0},   // counted over more than one look
  };
  for (const auto& [passed, starved, looks] : rows) {
    HangLimit limit(1s);
    int looked = 1;
    while (looked < 1000 && limit.looked(passed, starved)) ++looked;
    EXPECT_EQ(looked, looks == 0 ? 1000 : looks) << to_ms(passed) << " " << to_ms(starved);
  }
}

}  // namespace
}  // namespace carillon::engine::second
