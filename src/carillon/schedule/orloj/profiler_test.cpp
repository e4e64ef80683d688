#include "carillon/schedule/orloj/profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::schedule::orloj {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Request request_of(std::uint64_t id) {
  return {.id = {id}, .model = {1}, .app = {7}, .arrival = {}, .deadline = {}};
}

struct ProfilerTest : ::testing::Test {
  void answer(std::uint64_t id) {
    profiler.sent(request_of(id), out);
    profiler.answered({id});
  }
  Actions out;
  Profiler profiler{1, 3, 3};
};

TEST_F(ProfilerTest, ARequestIsKeptWhenItIsSentAndRunsOnceItIsAnswered) {
  profiler.sent(request_of(4), out);
  EXPECT_THAT(out, ElementsAre(Action{Keep{{4}}}));
  profiler.sent(request_of(4), out);
  EXPECT_EQ(out.size(), 1U) << "it is kept already, and tried again";
  EXPECT_FALSE(profiler.waits());
  profiler.answered({4});
  ASSERT_TRUE(profiler.waits());
  profiler.begin({9}, {0});
  EXPECT_TRUE(profiler.runs({9}) && !profiler.runs({8}));
  out.clear();
  const auto sample = profiler.ended(ActionStatus::success);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->request, RequestId{4});
  EXPECT_EQ(sample->model, ModelId{1});
  EXPECT_EQ(sample->app, AppId{7});
  EXPECT_FALSE(profiler.waits() || profiler.running());
  EXPECT_THAT(out, IsEmpty());
}

TEST_F(ProfilerTest, AShareIsKeptAndNoMoreThanThereIsRoomFor) {
  Profiler some(0.05, 1'000'000);
  for (std::uint64_t id = 0; id < 100'000; ++id) some.sent(request_of(id), out);
  EXPECT_NEAR(static_cast<double>(out.size()), 5'000, 250);
  out.clear();
  for (std::uint64_t id = 0; id < 3; ++id) answer(id);
  profiler.sent(request_of(3), out);
  EXPECT_EQ(out.size(), 3U);
  Profiler none(0);
  out.clear();
  none.sent(request_of(1), out);
  EXPECT_THAT(out, IsEmpty());
}

TEST_F(ProfilerTest, WhatIsNotAnsweredMakesRoom) {
  for (std::uint64_t id = 0; id < 3; ++id) profiler.sent(request_of(id), out);
  profiler.gone({1});
  profiler.answered({1});
  EXPECT_FALSE(profiler.waits());
  profiler.sent(request_of(8), out);
  EXPECT_EQ(out.back(), Action{Keep{{8}}});
}

TEST_F(ProfilerTest, OneThatIsCutShortRunsAgainNextAndIsGivenUpInTheEnd) {
  answer(1);
  answer(2);
  out.clear();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(profiler.next().request, RequestId{1});
    profiler.begin({10}, {5});
    profiler.stop(out);
    profiler.stop(out);
    EXPECT_FALSE(profiler.ended(i == 1 ? ActionStatus::too_late : ActionStatus::stopped));
  }
  profiler.tidy(out);
  profiler.tidy(out);
  const Action stop = Stop{{10}, {5}};
  EXPECT_THAT(out, ElementsAre(stop, stop, stop, Action{Keep{{1}, false}}));
  EXPECT_EQ(profiler.next().request, RequestId{2});
}

TEST_F(ProfilerTest, WhatFailedOrIsOfAnotherVersionTellsNothing) {
  for (std::uint64_t id = 1; id <= 3; ++id) answer(id);
  out.clear();
  profiler.begin({10}, {0});
  EXPECT_FALSE(profiler.ended(ActionStatus::failed));
  EXPECT_EQ(profiler.next().request, RequestId{2});
  profiler.begin({11}, {0});
  profiler.changed({0});
  profiler.changed({1});
  EXPECT_FALSE(profiler.ended(ActionStatus::success));
  EXPECT_FALSE(profiler.waits());
  profiler.tidy(out);
  EXPECT_THAT(out, ElementsAre(Action{Keep{{3}, false}}));
}

TEST_F(ProfilerTest, ADeviceThatGoesTakesItAlong) {
  answer(1);
  profiler.begin({10}, {2});
  profiler.restarted({1});
  EXPECT_TRUE(profiler.running());
  profiler.restarted({2});
  EXPECT_FALSE(profiler.running());
  EXPECT_TRUE(profiler.waits()) << "it runs elsewhere";
}

}  // namespace
}  // namespace carillon::schedule::orloj
