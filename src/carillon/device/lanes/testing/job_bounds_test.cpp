#include "carillon/device/lanes/testing/job_bounds.h"

#include <string>

#include <gtest/gtest.h>

namespace carillon::device::testing {
namespace {

using std::chrono::milliseconds;

// Three jobs that wait in a lane, or in the queue. Each test breaks one bound.
struct JobBoundsTest : ::testing::Test {
  void under(const std::string& policy, bool admits = true) {
    options.capacity = mib(100);
    options.quantum = milliseconds(50);
    options.longest_wait = std::chrono::seconds(10);
    bounds.emplace(policy, options);
    for (const std::uint32_t job : {0U, 1U, 2U}) {
      hears(JobCame{{job}, {.remaining = std::chrono::seconds(10 + job)}}, 0);
      if (!admits) continue;
      bounds->said({of(JobCommand::Kind::admit, job)});
      hears(IterationEnded{.job = {job}, .stopped = true, .iterations = 0}, 0);
    }
  }
  static JobCommand of(JobCommand::Kind kind, std::uint32_t job) { return {.kind = kind, .job = {job}, .lane = {0}}; }
  void hears(const JobEvent& event, int ms) { bounds->heard(event, TimePoint{milliseconds(ms)}); }
  void ran(std::uint32_t job, int until_ms) {
    hears(IterationEnded{.job = {job}, .stopped = true}, until_ms);
  }
  std::string says(const JobCommands& commands) { return bounds->said(commands).value_or(""); }
  void finds(const JobCommands& commands, const std::string& what) {
    const std::string found = says(commands);
    EXPECT_NE(found.find(what), std::string::npos) << "found: " << found;
  }

  JobOptions options;
  std::optional<JobBounds> bounds;
};

TEST_F(JobBoundsTest, FifoOneAtATimeInOrder) {
  under("fifo", false);
  finds({of(JobCommand::Kind::admit, 1)}, "before one that came first");
  under("fifo", false);
  EXPECT_EQ(says({of(JobCommand::Kind::admit, 0)}), "");
  finds({of(JobCommand::Kind::admit, 1)}, "while another is in");
}
TEST_F(JobBoundsTest, SrtfTheShortestFirst) {
  under("srtf");
  finds({of(JobCommand::Kind::grant, 1)}, "less left");
  under("srtf");
  EXPECT_EQ(says({of(JobCommand::Kind::grant, 0)}), "");
}
TEST_F(JobBoundsTest, TurnsPastOneThatWaitedForTooLong) {
  for (const auto* policy : {"fair", "pack", "best"}) {
    under(policy, false);
    hears(JobWake{}, 9'999);
    EXPECT_EQ(says({of(JobCommand::Kind::admit, 1)}), "");
    hears(JobWake{}, 10'001);
    if (std::string(policy) == "best") {
      hears(JobCame{{3}, {}}, 10'001);
      finds({of(JobCommand::Kind::admit, 3)}, "comes in past");
    } else {
      finds({of(JobCommand::Kind::admit, 2)}, "comes in past");
    }
  }
}
TEST_F(JobBoundsTest, TwoThatShareGainNoMoreThanTwoQuanta) {
  for (const auto* policy : {"fair", "pack"}) {
    under(policy);
    EXPECT_EQ(says({of(JobCommand::Kind::grant, 0)}), "");
    hears(JobWake{}, 99);
    EXPECT_EQ(says({}), "") << policy;
    hears(JobWake{}, 102);
    finds({}, "apart by weight");
    // What it runs on after it was recalled is nobody's fault.
    under(policy);
    says({of(JobCommand::Kind::grant, 0)});
    hears(JobWake{}, 99);
    says({of(JobCommand::Kind::recall, 0)});
    ran(0, 500);
    EXPECT_EQ(says({of(JobCommand::Kind::grant, 1)}), "") << policy;
  }
}
TEST_F(JobBoundsTest, BestLetsWhoWaitedForTooLongGoFirst) {
  under("best");
  says({of(JobCommand::Kind::grant, 1)});
  for (int ms = 100; ms <= 10'000; ms += 100) hears(IterationEnded{.job = {1}}, ms);
  EXPECT_EQ(says({}), "");
  hears(JobWake{}, 10'001);
  EXPECT_EQ(says({}), "") << "it may take a few iterations";
  for (int ms = 10'100; ms <= 12'000; ms += 100) hears(IterationEnded{.job = {1}}, ms);
  finds({}, "waited for too long");
}

}  // namespace
}  // namespace carillon::device::testing
