#include "carillon/device/lanes/testing/job_checker.h"

#include <string>

#include <gtest/gtest.h>

namespace carillon::device::testing {
namespace {

using Kind = JobCommand::Kind;

// Two jobs in two lanes, the first of which runs. Each test breaks one promise.
struct JobCheckerTest : ::testing::Test {
  JobCheckerTest() {
    for (const std::uint32_t job : {0U, 1U})
      checker.heard(JobCame{{job}, {.persistent = mib(10), .ephemeral = mib(30)}});
    says({admit(0, 0), admit(1, 1), open(0, 0, 30), open(1, 30, 30)});
    for (const std::uint32_t job : {0U, 1U}) ready(job);
    says({grant(0, 0)});
  }
  static JobCommand admit(std::uint32_t job, std::uint32_t lane) {
    return {.kind = Kind::admit, .job = {job}, .lane = {lane}};
  }
  static JobCommand open(std::uint32_t lane, std::uint64_t offset, std::uint64_t size) {
    return {.kind = Kind::open, .lane = {lane}, .offset = mib(offset), .size = mib(size)};
  }
  static JobCommand grant(std::uint32_t job, std::uint32_t lane) {
    return {.kind = Kind::grant, .job = {job}, .lane = {lane}};
  }
  static JobCommand of(Kind kind, std::uint32_t job) { return {.kind = kind, .job = {job}}; }
  static JobCommand move(std::uint32_t lane, std::uint64_t offset) {
    return {.kind = Kind::move, .lane = {lane}, .offset = mib(offset)};
  }
  void ready(std::uint32_t job) {
    checker.heard(IterationEnded{.job = {job}, .stopped = true, .iterations = 0});
  }
  // What is wrong with it; empty: nothing.
  std::string says(const JobCommands& commands) { return checker.said(commands).value_or(""); }
  void finds(const JobCommands& commands, const std::string& what) {
    EXPECT_NE(says(commands).find(what), std::string::npos) << what;
  }

  JobOptions options{.capacity = mib(100)};
  JobChecker checker{options};
};

TEST_F(JobCheckerTest, NothingWhereNothingIsWrong) {
  EXPECT_EQ(says({grant(1, 1)}), "");
  EXPECT_EQ(says({of(Kind::recall, 0), of(Kind::freeze, 0), of(Kind::thaw, 0)}), "");
  ready(0);
  EXPECT_EQ(says({move(0, 0), grant(0, 0), of(Kind::evict, 1)}), "");
  EXPECT_EQ(checker.ended(), 1U);
}

TEST_F(JobCheckerTest, TwoInALane) {
  says({admit(1, 0)});
  finds({grant(1, 0)}, "two jobs");
}
TEST_F(JobCheckerTest, AnothersLane) {
  finds({grant(1, 0)}, "another's lane");
}
TEST_F(JobCheckerTest, AGrantTwice) {
  finds({grant(0, 0)}, "does not wait");
}
TEST_F(JobCheckerTest, AGrantToWhoIsNotReady) {
  checker.heard(JobCame{{2}, {.persistent = mib(1), .ephemeral = mib(1)}});
  finds({admit(2, 1), grant(2, 1)}, "does not wait");
}
TEST_F(JobCheckerTest, AGrantToWhoWasNotAdmitted) {
  checker.heard(JobCame{{2}, {}});
  finds({grant(2, 1)}, "another's lane");
}
TEST_F(JobCheckerTest, ALaneThatIsNotOpen) {
  finds({{.kind = Kind::close, .lane = {1}}, grant(1, 1)}, "not open");
}
TEST_F(JobCheckerTest, ALaneThatIsTooSmall) {
  finds({open(1, 30, 29), grant(1, 1)}, "too small");
}
TEST_F(JobCheckerTest, ALaneThatMovesOrShrinksOrClosesUnderAJob) {
  finds({move(0, 5)}, "moves under a job");
  finds({open(0, 5, 30)}, "moves under a job");
  finds({open(0, 0, 29)}, "shrinks under a job");
  finds({{.kind = Kind::close, .lane = {0}}}, "closes over a job");
}
TEST_F(JobCheckerTest, LanesThatOverlap) {
  finds({move(1, 29)}, "overlap");
}
TEST_F(JobCheckerTest, PersistentMemoryInALaneBehindAGap) {
  EXPECT_EQ(says({move(1, 50)}), "") << "20 at one end, 80 from the other";
  finds({move(1, 51)}, "behind a gap");
}
TEST_F(JobCheckerTest, AChangeOfLanesWhileItRuns) {
  finds({admit(0, 1)}, "changes lanes");
}
TEST_F(JobCheckerTest, Equation21) {
  checker.heard(JobCame{{2}, {.persistent = mib(21), .ephemeral = mib(1)}});
  finds({admit(2, 1)}, "equation 2.1");
}
TEST_F(JobCheckerTest, Equation21OfWhatJobsTell) {
  checker.heard(IterationEnded{.job = {0}, .memory = {mib(31), mib(30)}});
  finds({}, "equation 2.1");
}
TEST_F(JobCheckerTest, Equation21WhereTheCapacityFalls) {
  checker.heard(CapacityChanged{mib(79)});
  finds({}, "equation 2.1");
}
TEST_F(JobCheckerTest, WhoRunsWhileTheDeviceIsWanted) {
  checker.heard(DeviceWanted{});
  finds({}, "while the device is wanted");
  finds({of(Kind::freeze, 0), grant(1, 1)}, "is wanted");
  checker.heard(DeviceFree{});
  EXPECT_EQ(says({of(Kind::thaw, 0)}), "");
}
TEST_F(JobCheckerTest, FreezesThatDoNotAlternateOrStay) {
  finds({of(Kind::freeze, 1)}, "does not run");
  finds({of(Kind::thaw, 0)}, "not frozen");
  finds({of(Kind::freeze, 0), of(Kind::freeze, 0)}, "does not run");
  ready(0);
  finds({}, "frozen where it waits");
}
TEST_F(JobCheckerTest, ARecallFromNowhere) {
  finds({of(Kind::recall, 1)}, "from nowhere");
  finds({of(Kind::recall, 0), of(Kind::recall, 0)}, "from nowhere");
}
TEST_F(JobCheckerTest, WhoIsGone) {
  checker.heard(JobGone{{1}});
  finds({of(Kind::evict, 1)}, "not here");
  finds({of(Kind::refuse, 0)}, "after it was admitted");
}

}  // namespace
}  // namespace carillon::device::testing
