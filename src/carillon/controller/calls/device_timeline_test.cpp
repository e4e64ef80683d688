#include "carillon/controller/calls/device_timeline.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/controller/core.h"
#include "carillon/controller/testing/fakes.h"

namespace carillon::controller {
namespace {

using schedule::ActionKind;
using schedule::ActionStatus;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

TimelineAction action(std::uint64_t id, TimePoint opens = {}) {
  return {.id = {id}, .kind = ActionKind::infer, .exec_begin = opens};
}

auto ids(auto... id) {
  return ElementsAre(Field(&TimelineAction::id, ActionId{static_cast<std::uint64_t>(id)})...);
}

TEST(DeviceTimeline, KeepsTheLast) {
  DeviceTimeline timeline(4);
  for (std::uint64_t i = 0; i < 6; ++i) timeline.end(0, action(10 + i));
  EXPECT_EQ(timeline.count(), 6U);
  std::vector<TimelineAction> got;
  timeline.read(0, timeline.count(), got);
  EXPECT_THAT(got, ids(12, 13, 14, 15));
  EXPECT_EQ(got.front().number, 2U);
  got.clear();
  timeline.read(4, 5, got);
  EXPECT_THAT(got, ids(14));
  got.clear();
  timeline.read(6, 99, got);
  EXPECT_THAT(got, IsEmpty());
}

TEST(DeviceTimeline, TellsWhatIsUnderWayInTheOrderOfItsWindows) {
  DeviceTimeline timeline(4);
  timeline.begin(2, action(1, at(5ms)));
  timeline.begin(0, action(2, at(1ms)));
  timeline.begin(1, action(3, at(9ms)));
  timeline.begin(DeviceTimeline::most_open, action(4));  // beyond what is shown
  std::vector<TimelineAction> got;
  timeline.read_open(got);
  EXPECT_THAT(got, ids(2, 1, 3));
  timeline.forget(0);
  timeline.end(1, action(3));
  got.clear();
  timeline.read_open(got);
  EXPECT_THAT(got, ids(1));
  EXPECT_EQ(timeline.count(), 1U);
}

TEST(DeviceTimeline, ShowsTheFirst512PlacesThatAreUnderWay) {
  DeviceTimeline timeline(1);
  for (std::uint64_t place = 0; place < 600; ++place) timeline.begin(place, action(place));
  std::vector<TimelineAction> got;
  timeline.read_open(got);
  ASSERT_EQ(got.size(), 512U);
  EXPECT_EQ(got.back().id, ActionId{511});
}

TEST(DeviceTimeline, OfNoSizeKeepsNothing) {
  DeviceTimeline timeline(0);
  timeline.begin(0, action(1));
  timeline.end(0, action(1));
  std::vector<TimelineAction> got;
  timeline.read(0, 1, got);
  timeline.read_open(got);
  EXPECT_THAT(got, IsEmpty());
  EXPECT_FALSE(timeline.keeps());
}

// Every field says the same number: a reader that saw halves of two actions would notice.
TEST(DeviceTimeline, ReadersSeeWholeActions) {
  DeviceTimeline timeline(8);
  constexpr std::uint64_t last = 200'000;
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < last; ++i) {
      const TimePoint t{Duration{static_cast<std::int64_t>(i)}};
      timeline.end(i % 4, {.id = {i},
                           .device = static_cast<std::uint32_t>(i),
                           .input_begin = t,
                           .exec_end = t,
                           .output_end = t,
                           .predicted = t.time_since_epoch()});
    }
  });
  std::uint64_t seen = 0;
  std::vector<TimelineAction> got;
  while (timeline.count() < last) {
    got.clear();
    timeline.read(0, timeline.count(), got);
    for (const TimelineAction& a : got) {
      const auto number = static_cast<std::int64_t>(a.number);
      ASSERT_EQ(a.id.value, a.number);
      ASSERT_EQ(a.device, static_cast<std::uint32_t>(a.number));
      ASSERT_EQ(a.input_begin.time_since_epoch().count(), number);
      ASSERT_EQ(a.exec_end.time_since_epoch().count(), number);
      ASSERT_EQ(a.output_end.time_since_epoch().count(), number);
      ASSERT_EQ(a.predicted.count(), number);
      ++seen;
    }
  }
  writer.join();
  got.clear();
  timeline.read(0, last, got);
  EXPECT_EQ(got.size(), 8U);
  EXPECT_EQ(got.back().number, last - 1);
}

// What the core fills in: LOADs and INFERs as they are given and end, not what no worker took.
TEST(DeviceTimeline, IsFilledByTheCore) {
  testing::HeldWorker worker;
  auto owned = std::make_unique<testing::ScriptedScheduler>();
  testing::ScriptedScheduler& scheduler = *owned;
  Core core(std::move(owned), {.timeline = 16});
  core.add_device(worker);
  core.add_model(testing::served(0));
  core.add_model(testing::served(1));
  core.start(at(0ms));
  const auto next = [&](schedule::Actions actions) {
    scheduler.script = [&, actions = std::move(actions)](const schedule::Event&, TimePoint,
                                                         schedule::Actions& out, TimePoint&) {
      out = actions;
      scheduler.script = nullptr;
    };
  };
  const auto ignore = [](InferAnswer) {};
  next({schedule::Load{{1}, {0}, {1}, {at(2ms), at(9ms)}, 4ms}, schedule::Infer{.id = {2},
                                                                                .device = {0},
                                                                                .model = {1},
                                                                                .requests = {{0}},
                                                                                .window = {at(3ms), at(8ms)},
                                                                                .expected = 5ms,
                                                                                .cls = Class::real_time}});
  core.submit(1, testing::call_of({1}, 1, at(1ms)), ignore, at(1ms));

  std::vector<TimelineAction> open;
  core.timeline().read_open(open);
  ASSERT_THAT(open, ids(1, 2));
  EXPECT_EQ(open[0].batch, 0U);
  EXPECT_EQ(open[0].exec_begin, at(2ms));
  EXPECT_EQ(open[1].batch, 1U);
  EXPECT_EQ(open[1].model, 1U);
  EXPECT_EQ(open[1].predicted, 5ms);
  EXPECT_EQ(open[1].cls, Class::real_time);

  core.on_result(worker.end({1}, ActionStatus::success, at(6ms)), at(6ms));
  core.on_result(worker.end({2}, ActionStatus::success, at(7ms)), at(7ms));
  std::vector<TimelineAction> ended;
  core.timeline().read(0, core.timeline().count(), ended);
  ASSERT_THAT(ended, ids(1, 2));
  EXPECT_EQ(ended[0].kind, ActionKind::load);
  EXPECT_EQ(ended[0].predicted, 4ms);
  EXPECT_EQ(ended[1].batch, 1U);
  EXPECT_EQ(ended[1].status, ActionStatus::success);
  EXPECT_LE(ended[1].exec_end, at(7ms));
  open.clear();
  core.timeline().read_open(open);
  EXPECT_THAT(open, IsEmpty());

  // What no worker takes is not under way; what goes with its device is not any more, and has not ended.
  worker.full = true;
  next({schedule::Load{{3}, {0}, {0}, {at(2ms), at(9ms)}, 4ms}});
  core.submit(2, testing::call_of({0}, 1, at(7ms)), ignore, at(7ms));
  core.timeline().read_open(open);
  EXPECT_THAT(open, IsEmpty());
  worker.full = false;
  next({schedule::Load{{4}, {0}, {0}, {at(2ms), at(9ms)}, 4ms}});
  core.submit(3, testing::call_of({0}, 1, at(7ms)), ignore, at(7ms));
  core.timeline().read_open(open);
  ASSERT_THAT(open, ids(4));
  worker::ActionResult broken{.id = {4}, .status = ActionStatus::failed, .times = {}, .error = "broken"};
  broken.device_lost = true;
  core.on_result(broken, at(8ms));
  open.clear();
  core.timeline().read_open(open);
  EXPECT_THAT(open, IsEmpty());
  EXPECT_EQ(core.timeline().count(), 2U);

  // Refusals are counted by what the scheduler gave as its reason.
  next({schedule::Refuse{{3}, schedule::Reason::no_device, TimePoint::max()}});
  core.submit(4, testing::call_of({0}, 1, at(9ms)), ignore, at(9ms));
  const auto told = core.book().snapshot();
  EXPECT_EQ(told.models[0].reasons[static_cast<std::size_t>(schedule::Reason::no_device)], 1U);
  EXPECT_EQ(told.models[0].reasons[static_cast<std::size_t>(schedule::Reason::cannot_finish)], 0U);
}

}  // namespace
}  // namespace carillon::controller
