#include "carillon/research/sharing/sharing.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "carillon/base/assert.h"

namespace carillon::research {
namespace {

using Kind = ShareCommand::Kind;

// A sharing of ten units whose launches end when the test says so.
class SharingTest : public testing::Test {
 protected:
  static constexpr int units = 10;

  void make(std::string_view name, SharingOptions options = {}) {
    options.units = units;
    auto made = make_sharing(name, options);
    ASSERT_TRUE(made) << made.error().message;
    sharing_ = std::move(*made);
    // Wide: all units, 100 us a kernel; narrow: two, likewise.
    wide_ =
        sharing_->add_plan(KernelPlan(std::vector<KernelShape>(8, {.blocks = 10, .rounds = {100us}}), units));
    narrow_ =
        sharing_->add_plan(KernelPlan(std::vector<KernelShape>(8, {.blocks = 2, .rounds = {100us}}), units));
    rt_ = sharing_->add_queue(Class::real_time);
    be_ = sharing_->add_queue(Class::best_effort);
    other_ = sharing_->add_queue(Class::best_effort);
  }

  void submit(Queue queue, std::uint32_t plan, TimePoint deadline = {}) {
    tick_ = sharing_->submit(queue, {.run = runs_++, .plan = plan, .deadline = deadline}, now_, out_);
    note();
  }
  void ended(Queue queue) {
    ASSERT_GT(flight_[queue], 0);
    --flight_[queue];
    tick_ = sharing_->ended(queue, now_, out_);
    note();
  }
  void evicted(Queue queue) {
    flight_[queue] = 0;
    tick_ = sharing_->evicted(queue, now_, out_);
    note();
  }
  void note() {
    said_.clear();
    for (const ShareCommand& command : out_) {
      const std::string queue = std::to_string(command.queue);
      switch (command.kind) {
        case Kind::launch:
          ++flight_[command.queue];
          said_.push_back("launch " + queue + ":" + std::to_string(command.kernel) + "+" +
                          std::to_string(command.blocks));
          break;
        case Kind::evict:
          said_.push_back((command.kill ? "kill " : "empty ") + queue);
          break;
        case Kind::finished:
          said_.push_back("finished " + queue);
          break;
      }
    }
    out_.clear();
  }
  using Said = std::vector<std::string>;

  std::unique_ptr<Sharing> sharing_;
  std::uint32_t wide_ = 0, narrow_ = 0;
  Queue rt_ = 0, be_ = 0, other_ = 0;
  TimePoint now_{};
  TimePoint tick_;
  ShareCommands out_;
  Said said_;
  std::map<Queue, int> flight_;
  std::uint64_t runs_ = 0;
};

TEST_F(SharingTest, ReefHasABoundedNumberInFlight) {
  make("reef", {.in_flight = 3, .in_flight_time = 1s});
  submit(be_, wide_);
  EXPECT_EQ(said_, (Said{"launch 1:0+10", "launch 1:1+10", "launch 1:2+10"}));
  ended(be_);
  EXPECT_EQ(said_, (Said{"launch 1:3+10"}));
}

TEST_F(SharingTest, ReefHasABoundedTimeInFlight) {
  make("reef", {.in_flight = 100, .in_flight_time = 150us});
  submit(be_, wide_);
  EXPECT_EQ(said_, (Said{"launch 1:0+10", "launch 1:1+10"}));
}

TEST_F(SharingTest, ReefKillsForARealTimeRunAndResumesAtTheKernelThatIsKnown) {
  make("reef", {.in_flight = 2, .in_flight_time = 1s, .knows_kernel = true});
  submit(be_, wide_);
  ended(be_);  // kernel 0; 1 and 2 are in flight
  submit(rt_, wide_);
  ASSERT_GE(said_.size(), 2U);
  EXPECT_EQ(said_[0], "kill 1");
  EXPECT_EQ(said_[1], "launch 0:0+10");
  evicted(be_);
  EXPECT_EQ(said_, Said{});
  for (int kernel = 0; kernel < 7; ++kernel) ended(rt_);
  ended(rt_);
  EXPECT_EQ(said_, (Said{"finished 0", "launch 1:1+10", "launch 1:2+10"}));
}

TEST_F(SharingTest, ReefGoesBackByWhatMayBeInFlightWhereTheKernelIsNotKnown) {
  make("reef", {.in_flight = 2, .in_flight_time = 1s});
  submit(be_, wide_);
  for (int kernel = 0; kernel < 3; ++kernel) ended(be_);  // 3 and 4 are in flight
  submit(rt_, wide_);
  evicted(be_);
  for (int kernel = 0; kernel < 8; ++kernel) ended(rt_);
  EXPECT_EQ(said_, (Said{"finished 0", "launch 1:3+10", "launch 1:4+10"}));
}

TEST_F(SharingTest, WhatEndsWhileItIsBeingEvictedHasRun) {
  make("reef", {.in_flight = 2, .in_flight_time = 1s, .knows_kernel = true});
  submit(be_, wide_);
  submit(rt_, wide_);
  ended(be_);
  EXPECT_EQ(said_, Said{});
  evicted(be_);
  for (int kernel = 0; kernel < 8; ++kernel) ended(rt_);
  EXPECT_EQ(said_, (Said{"finished 0", "launch 1:1+10", "launch 1:2+10"}));
}

TEST_F(SharingTest, ReefPadsWhatLeavesUnits) {
  make("reef", {.in_flight = 2, .dispatch = 0us, .margin = 0});
  submit(rt_, narrow_);
  EXPECT_EQ(said_, (Said{"launch 0:0+2", "launch 0:1+2"}));
  submit(be_, wide_);
  EXPECT_EQ(said_, (Said{"launch 1:0+8"}));  // eight of its ten blocks
  ended(be_);
  EXPECT_EQ(said_, (Said{"launch 1:0+2"}));
  submit(other_, narrow_);
  EXPECT_EQ(said_, (Said{"launch 2:0+2"}));
}

TEST_F(SharingTest, WithoutPaddingBestEffortWaits) {
  make("reef", {.padding = false});
  submit(rt_, narrow_);
  submit(be_, narrow_);
  EXPECT_EQ(said_, Said{});
}

TEST_F(SharingTest, LookingAheadOrNot) {
  for (const bool look_ahead : {true, false}) {
    make("reef", {.dispatch = 0us, .look_ahead = look_ahead, .margin = 0});
    flight_.clear();
    const auto slow =
        sharing_->add_plan(KernelPlan(std::vector<KernelShape>{{.blocks = 2, .rounds = {150us}}}, units));
    submit(rt_, narrow_);
    submit(be_, slow);  // longer than the real-time kernel; those that follow leave it its units
    EXPECT_EQ(said_, look_ahead ? (Said{"launch 1:0+2"}) : Said{});
  }
}

TEST_F(SharingTest, TheMostUrgentRealTimeRunGoesFirst) {
  for (const auto* name : {"reef", "rt-only", "wait", "sequential"}) {
    SCOPED_TRACE(name);
    make(name);
    flight_.clear();
    const Queue second = sharing_->add_queue(Class::real_time), third = sharing_->add_queue(Class::real_time);
    submit(rt_, wide_, TimePoint{} + 1ms);
    submit(second, wide_, TimePoint{} + 9ms);
    submit(third, wide_, TimePoint{} + 5ms);
    for (int kernel = 0; kernel < 8; ++kernel) ended(rt_);
    ASSERT_GE(said_.size(), 2U);
    EXPECT_EQ(said_[0], "finished 0");
    EXPECT_EQ(said_[1], "launch 4:0+10");
  }
}

TEST_F(SharingTest, RealTimeOnlyRunsNothingElse) {
  make("rt-only");
  submit(be_, wide_);
  EXPECT_EQ(said_, Said{});
  submit(rt_, wide_);
  EXPECT_EQ(said_.front(), "launch 0:0+10");
}

TEST_F(SharingTest, SequentialEndsWhatItHasBegun) {
  make("sequential");
  submit(other_, wide_);
  submit(be_, wide_);
  submit(rt_, wide_);
  EXPECT_EQ(said_, Said{});
  for (int kernel = 0; kernel < 8; ++kernel) ended(other_);
  ASSERT_FALSE(said_.empty());
  EXPECT_EQ(said_[0], "finished 2");
  EXPECT_EQ(said_[1], "launch 0:0+10");
}

TEST_F(SharingTest, SequentialKeepsTheOrderOfBestEffortRuns) {
  make("sequential");
  const Queue third = sharing_->add_queue(Class::best_effort);
  submit(other_, wide_);
  submit(third, wide_);
  submit(be_, wide_);
  for (int kernel = 0; kernel < 8; ++kernel) ended(other_);
  ASSERT_GE(said_.size(), 2U);
  EXPECT_EQ(said_[1], "launch 3:0+10");
}

TEST_F(SharingTest, StreamsKnowNoClasses) {
  make("streams");
  submit(be_, wide_);
  EXPECT_EQ(said_.size(), 8U);
  submit(rt_, wide_);
  EXPECT_EQ(said_.size(), 8U);
  EXPECT_EQ(said_.front(), "launch 0:0+10");
}

TEST_F(SharingTest, WaitLetsWhatRunsEnd) {
  make("wait");
  submit(be_, wide_);
  EXPECT_EQ(said_.size(), 8U);  // no bound
  submit(rt_, wide_);
  EXPECT_EQ(said_, (Said{"empty 1"}));
  ended(be_);
  EXPECT_EQ(said_, Said{});
  evicted(be_);
  EXPECT_EQ(said_.front(), "launch 0:0+10");
  submit(other_, wide_);
  EXPECT_EQ(said_, Said{});  // nothing beside real-time runs
  for (int kernel = 0; kernel < 8; ++kernel) ended(rt_);
  ASSERT_GE(said_.size(), 2U);
  EXPECT_EQ(said_[0], "finished 0");
  EXPECT_EQ(said_[1], "launch 1:1+10");
}

// What runs beside real-time kernels makes them slower than planned: after some runs only those that leave
// much are padded, and none in the end; as they get back to what was planned, more again.
TEST_F(SharingTest, PaddingIsHeldBackWhereItCostsMoreThanItMay) {
  make("reef", {.dispatch = 0us, .margin = 0, .slowdown = 0.01});
  const auto padded =
      [&](Duration kernel) {  // a real-time run whose kernels take so long, with a best-effort run beside
        submit(rt_, narrow_);
        submit(be_, narrow_);
        const bool beside =
            std::ranges::any_of(said_, [](const std::string& what) { return what.starts_with("launch 1"); });
        for (int i = 0; i < 8; ++i) {
          now_ += kernel;
          ended(rt_);
        }
        while (flight_[be_] > 0) ended(be_);  // in no time
        now_ += 1ms;
        return beside;
      };
  EXPECT_TRUE(padded(102us));
  int runs = 1;
  while (padded(102us) && runs < 50) ++runs;
  EXPECT_GE(runs, 5);
  EXPECT_LT(runs, 50);
  for (int i = 0; i < 100; ++i) padded(100us);
  EXPECT_TRUE(padded(100us));
}

// Real-time runs without a pause leave nothing where kernels are wide; a share is given all the same.
TEST_F(SharingTest, AShareForBestEffortEndsItsStarvation) {
  make("reef", {.in_flight = 1, .best_effort_share = 0.3});
  submit(be_, wide_);
  ended(be_);
  submit(rt_, wide_);
  evicted(be_);
  submit(rt_, wide_);
  for (int kernel = 0; kernel < 8; ++kernel) {
    now_ += 100us;
    ended(rt_);
  }
  ASSERT_GE(said_.size(), 2U);
  EXPECT_EQ(said_[0], "finished 0");
  EXPECT_EQ(said_[1].substr(0, 8), "launch 1");
  ASSERT_LT(tick_, TimePoint::max());
  EXPECT_GT(tick_, now_);
  EXPECT_LE(tick_, now_ + 10ms);
  now_ = tick_;
  tick_ = sharing_->tick(now_, out_);
  note();
  EXPECT_EQ(said_, Said{});  // what runs may end first
  ASSERT_GT(tick_, now_);
  ASSERT_LE(tick_, now_ + 110us);
  ended(be_);
  EXPECT_EQ(said_, Said{});  // and nothing follows it
  now_ = tick_;
  tick_ = sharing_->tick(now_, out_);
  note();
  EXPECT_EQ(said_, (Said{"launch 0:0+10", "launch 0:1+10"}));
}

TEST(MakeSharing, NamesWhatThereIs) {
  EXPECT_EQ(sharing_names().size(), 5U);
  for (const auto name : sharing_names()) EXPECT_TRUE(make_sharing(name, {}));
  const auto made = make_sharing("fifo", {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::not_found);
  EXPECT_NE(made.error().message.find("reef, rt-only, sequential, streams, wait"), std::string::npos);
}

TEST(MakeSharing, RefusesWhatIsOutOfRange) {
  for (const SharingOptions& options :
       {SharingOptions{.units = 0}, SharingOptions{.units = 1025}, SharingOptions{.in_flight = 0},
        SharingOptions{.in_flight = 513}, SharingOptions{.in_flight_time = -1ns},
        SharingOptions{.dispatch = Duration::max()}, SharingOptions{.margin = -0.1},
        SharingOptions{.best_effort_share = 0.95}, SharingOptions{.best_effort_share = std::nan("")}}) {
    const auto made = make_sharing("reef", options);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(made.error().message.find("should be in"), std::string::npos) << made.error().message;
  }
}

}  // namespace
}  // namespace carillon::research
