#include "carillon/share/client/chooser.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/random.h"

namespace carillon::share::client {
namespace {

// d: a batch is asked for, b: a backward returned, S and T: two optimizers stepped. Live bytes are in units of a
// MiB, one digit a signal. Returns for each signal whether it was a boundary: '|', else '.'.
std::string boundaries(BoundaryChooser& chooser, std::string_view signals, std::string_view live) {
  std::string out;
  for (std::size_t i = 0; i < signals.size(); ++i) {
    const char c = signals[i];
    const Signal kind = c == 'd' ? Signal::next : c == 'b' ? Signal::backward : Signal::step;
    const std::uint64_t bytes = (100 + static_cast<std::uint64_t>(live[i % live.size()] - '0')) << 20U;
    out += chooser.on(kind, c == 'T' ? 2 : 1, bytes) ? '|' : '.';
  }
  return out;
}

std::string times(std::string_view text, int n) {
  std::string out;
  while (n-- > 0) out += text;
  return out;
}

TEST(BoundaryChooser, FindsTheEndOfAnIterationOfEachKindOfScript) {
  const struct {
    const char* what;
    const char* period;
    const char* live;
    const char* want;  // of a period, once learned
  } rows[] = {
      {"plain", "dbS", "000", "..|"},
      {"an update by hand", "db", "01", "|."},
      {"a GAN: the generator's graph is live at its first step", "dbbSbT", "144410", ".....|"},
      {"a GAN whose graphs are small", "dbbSbT", "000000", ".....|"},
      {"accumulation, gradients set to zero after the step", "dbdbdbdbS", "011111111", "|........"},
      {"accumulation, gradients set to zero before the first batch", "dbdbdbdbS", "111111110", "........|"},
      {"LBFGS, its closure's backwards left out", "S", "0", "|"},
      {"a step inside backward, left out", "db", "01", "|."},
      {"autograd.grad only", "d", "0", "|"},
      {"no loader", "bS", "20", ".|"},
      {"a backward only", "b", "0", "|"},
  };
  for (const auto& row : rows) {
    BoundaryChooser chooser;
    boundaries(chooser, times(row.period, 20), row.live);
    EXPECT_TRUE(chooser.certain()) << row.what;
    EXPECT_EQ(boundaries(chooser, times(row.period, 5), row.live), times(row.want, 5)) << row.what;
  }
}

TEST(BoundaryChooser, AStepIsOneUntilAPeriodIsKnown) {
  BoundaryChooser chooser;
  EXPECT_EQ(boundaries(chooser, "dbSdbS", "0"), "..|..|");
  EXPECT_FALSE(chooser.certain());
}

TEST(BoundaryChooser, BatchesOfAnAccumulationAreNoneOnceAStepWasSeen) {
  BoundaryChooser chooser;
  const std::string period = times("db", 8) + "S";
  boundaries(chooser, times(period, 4), "0");
  const std::string want = std::string(16, '.') + "|";
  EXPECT_EQ(boundaries(chooser, times(period, 4), "0"), times(want, 4));
}

TEST(BoundaryChooser, AnEvaluationIsLearnedAndTrainingTakenUpAgain) {
  BoundaryChooser chooser;
  for (int epoch = 0; epoch < 6; ++epoch) {
    const std::string training = boundaries(chooser, times("dbS", 30), "0");
    EXPECT_EQ(training.substr(training.size() - 30), times("..|", 10)) << "epoch " << epoch;
    // The loader says that it is at its end by one request more.
    const std::string evaluation = boundaries(chooser, "d" + times("d", 40), "0");
    EXPECT_EQ(evaluation.substr(evaluation.size() - 20), times("|", 20)) << "epoch " << epoch;
  }
}

TEST(BoundaryChooser, StepsThatAreLeftOutLoseNothing) {  // as a GradScaler does, here at random
  Random random(7);
  BoundaryChooser chooser;
  std::size_t steps = 0, found = 0;
  for (int i = 0; i < 5000; ++i) {
    // Many left out in a row are a loop without steps, whose boundary is before a batch.
    EXPECT_EQ(boundaries(chooser, "db", "0")[1], '.') << i;
    if (random.below(4) == 0) continue;
    ++steps;
    // Where chance repeats itself two steps are one period, for as long as it does.
    if (boundaries(chooser, "S", "0") == "|") ++found;
  }
  EXPECT_GT(found, steps * 3 / 4);
}

TEST(BoundaryChooser, TheScriptsOwnWordGoesBeforeAll) {
  BoundaryChooser chooser;
  boundaries(chooser, times("dbS", 10), "0");
  EXPECT_TRUE(chooser.on(Signal::manual, 0, 0));
  EXPECT_EQ(boundaries(chooser, times("dbS", 10), "0"), std::string(30, '.'));
  EXPECT_TRUE(chooser.on(Signal::manual, 0, 0));
}

TEST(BoundaryChooser, WithoutAnyPeriodBatchesAreBoundariesNowAndThen) {
  Random random(3);
  BoundaryChooser chooser;
  std::size_t longest = 0, since = 0;
  for (int i = 0; i < 20'000; ++i) {
    const bool next = random.below(2) == 0;
    // Each backward another: no period.
    since = chooser.on(next ? Signal::next : Signal::backward, random.below(1U << 30U), 0) ? 0 : since + 1;
    longest = std::max(longest, since);
  }
  EXPECT_LT(longest, 4 * BoundaryChooser::longest_period);
}

// Any period with a single least live signal is learned within three periods and some, and after a disturbance again.
TEST(BoundaryChooser, RandomPeriods) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const std::size_t period = 1 + random.below(12);
    std::vector<Signal> signals(period);
    std::vector<std::uint64_t> live(period);
    const std::size_t end = random.below(period);
    for (std::size_t i = 0; i < period; ++i) {
      signals[i] = i == end ? Signal::step : static_cast<Signal>(random.below(2));
      live[i] = (i == end ? 10U : 20U + random.below(10)) << 20U;
    }
    BoundaryChooser chooser;
    for (int round = 0; round < 2; ++round) {
      const std::size_t learned = 4 * period + 8;
      for (std::size_t i = 0; i < learned + 5 * period; ++i) {
        const bool boundary = chooser.on(signals[i % period], 0, live[i % period]);
        if (i >= learned) {
          ASSERT_EQ(boundary, i % period == end) << "seed " << seed << " signal " << i;
        }
      }
      for (std::size_t i = random.below(9); i > 0; --i) chooser.on(static_cast<Signal>(random.below(2)), 9, 0);
    }
  }
}

}  // namespace
}  // namespace carillon::share::client
