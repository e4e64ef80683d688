#include "carillon/device/virtual_device.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::device {
namespace {

TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Window open_window{TimePoint::min(), TimePoint::max()};

// One device and its calendar.
class Desk final : public VirtualDevice::Host {
 public:
  explicit Desk(Duration clock = {}, std::uint64_t pages = 4, std::optional<Duration> stops = std::nullopt)
      : device({.pages = pages, .reserved = 8, .gathers = 100, .scatters = 100}, clock, *this, stops) {
    for (std::uint32_t i = 0; i < 4; ++i) device.add_model(ModelId{i}, i);  // model 0 is always there
  }
  void plan(TimePoint when, std::uint64_t what) override { calendar.emplace(when, order++, what); }
  Duration begins(std::uint64_t, Duration planned, bool) override { return planned * slow; }
  void ends(std::uint64_t tag, ActionStatus) override { ended.push_back(tag); }
  void done(const Done& d) override {
    all[d.tag] = d;
    if (on_done) on_done(d);
  }
  void run(TimePoint until = TimePoint::max()) {
    while (!calendar.empty() && std::get<0>(calendar.top()) <= until) {
      const auto [when, place, what] = calendar.top();
      calendar.pop();
      now = when;
      device.event(what, now);
    }
    now = std::max(now, until == TimePoint::max() ? now : until);
  }
  void infer(std::uint64_t id, Duration time, Window window = open_window, Duration input = {},
             ActionStatus outcome = ActionStatus::success) {
    device.submit(InferAction{.id = {id}, .model = ModelId{0}, .window = window},
                  {.tag = id, .input = input, .time = time, .kernels = 10, .outcome = outcome}, now);
  }

  std::priority_queue<std::tuple<TimePoint, int, std::uint64_t>,
                      std::vector<std::tuple<TimePoint, int, std::uint64_t>>, std::greater<>>
      calendar;
  int order = 0;
  int slow = 1;
  TimePoint now{};
  std::map<std::uint64_t, Done> all;
  std::vector<std::uint64_t> ended;
  std::function<void(const Done&)> on_done;
  VirtualDevice device;
};

TEST(VirtualDevice, RunsOneAfterTheOtherInTheirWindows) {
  Desk desk;
  desk.infer(0, 10ms, open_window, 2ms);
  desk.infer(1, 5ms, {at(1ms), at(20ms)}, 2ms);
  desk.infer(2, 5ms, {at(1ms), at(16ms)}, 2ms);
  desk.run();
  EXPECT_EQ(desk.all[0].start, at(2ms)) << "its inputs take two";
  EXPECT_EQ(desk.all[0].end, at(12ms));
  EXPECT_EQ(desk.all[1].start, at(12ms));
  EXPECT_EQ(desk.all[2].status, ActionStatus::too_late);
  EXPECT_FALSE(desk.all[2].ran);
  EXPECT_EQ(desk.all[2].end, at(17ms));
}

TEST(VirtualDevice, GoesByItsOwnClock) {
  Desk desk(3ms);
  desk.infer(0, 1ms, {at(10ms), at(20ms)});
  desk.infer(1, 1ms, {at(15ms), at(10ms)});
  desk.run();
  EXPECT_EQ(desk.all[0].start, at(7ms));
  EXPECT_EQ(desk.all[1].status, ActionStatus::too_late);
}

TEST(VirtualDevice, LoadsAndUnloads) {
  Desk desk;
  desk.device.submit(LoadAction{{0}, ModelId{3}, open_window}, {.tag = 0, .time = 30ms}, desk.now);
  desk.device.submit(LoadAction{{1}, ModelId{2}, open_window}, {.tag = 1, .time = 20ms}, desk.now);
  desk.run();
  EXPECT_EQ(desk.all[0].end, at(30ms));
  EXPECT_EQ(desk.all[1].status, ActionStatus::no_memory);
  desk.device.submit(UnloadAction{{2}, ModelId{3}}, 2, desk.now);
  EXPECT_EQ(desk.all[2].status, ActionStatus::success);
  EXPECT_EQ(desk.device.core().free_pages(), 4U);
  desk.device.submit(LoadAction{{3}, ModelId{2}, open_window},
                     {.tag = 3, .time = 20ms, .outcome = ActionStatus::failed}, desk.now);
  desk.run();
  EXPECT_EQ(desk.all[3].status, ActionStatus::failed);
  EXPECT_EQ(desk.device.core().free_pages(), 4U);
}

TEST(VirtualDevice, EndsARunBetweenTwoKernelsAndResumesItThere) {
  Desk desk;
  desk.infer(0, 10ms);
  desk.infer(1, 3ms, {at(4ms), at(9ms)});
  desk.run(at(4ms) + 300us);
  desk.device.evict({0}, After::resume, at(5ms), desk.now);
  desk.run();
  EXPECT_EQ(desk.all[1].start, at(5ms)) << "each kernel takes one";
  EXPECT_EQ(desk.all[0].end, at(13ms)) << "five kernels before, five behind it";
  EXPECT_EQ(desk.all[0].busy, 10ms);
  EXPECT_EQ(desk.all[0].status, ActionStatus::success);

  desk.infer(2, 10ms);
  desk.run(at(13ms) + 2500us);
  desk.device.evict({2}, After::drop, {}, desk.now);
  desk.run();
  EXPECT_EQ(desk.all[2].status, ActionStatus::stopped);
  EXPECT_EQ(desk.all[2].busy, 3ms);

  desk.infer(3, 10ms);
  desk.run(desk.now + 9500us);
  desk.device.evict({3}, After::drop, {}, desk.now);
  desk.run();
  EXPECT_EQ(desk.all[3].status, ActionStatus::success) << "its last had begun";
}

TEST(VirtualDevice, EndsARunInsideAKernelWhichRunsAgain) {
  Desk desk({}, 4, 100us);
  desk.infer(0, 10ms);
  desk.infer(1, 3ms, {at(4ms), at(9ms)});
  desk.run(at(4ms) + 300us);
  desk.device.evict({0}, After::resume, at(5ms), desk.now);
  desk.device.evict({0}, After::resume, at(5ms), desk.now);  // has no effect
  desk.run();
  EXPECT_EQ(desk.all[1].start, at(4ms) + 400us);
  EXPECT_EQ(desk.all[0].end, at(13ms) + 400us) << "four kernels before, six behind it";
  EXPECT_EQ(desk.all[0].busy, 10ms + 400us);
  EXPECT_EQ(desk.all[0].status, ActionStatus::success);

  desk.infer(2, 10ms);
  desk.run(desk.now + 9950us);
  desk.device.evict({2}, After::drop, {}, desk.now);
  desk.run();
  EXPECT_EQ(desk.all[2].status, ActionStatus::success) << "it ends sooner by itself";
  desk.infer(3, 10ms);
  desk.run(desk.now + 9500us);
  desk.device.evict({3}, After::drop, {}, desk.now);
  desk.run();
  EXPECT_EQ(desk.all[3].status, ActionStatus::stopped) << "even in its last";
  EXPECT_EQ(desk.all[3].busy, 9600us);
}

TEST(VirtualDevice, NoStallKeepsWhatIsBeingStopped) {
  for (const Duration told : {Duration{9ms}, Duration{10ms - 5us}}) {  // it is killed, or ends by itself before
    Desk desk({}, 4, 11us);
    desk.infer(0, 10ms);
    desk.run(at(told));
    desk.device.evict({0}, After::drop, {}, desk.now);
    desk.device.stall(first_stream, 5ms);
    desk.run();
    EXPECT_EQ(desk.all[0].end, at(std::min<Duration>(told + 11us, 10ms)));
  }
}

TEST(VirtualDevice, WhatWaitsStartsBeforeAnybodyHears) {
  Desk desk;
  desk.on_done = [&](const Done& d) {
    if (d.tag == 0) desk.infer(9, 1ms, {TimePoint::min(), TimePoint::max()});
  };
  desk.infer(0, 2ms);
  desk.infer(1, 2ms, {at(1ms), at(9ms)});
  desk.run();
  EXPECT_EQ(desk.all[1].start, at(2ms));
  EXPECT_EQ(desk.all[9].start, at(4ms)) << "though its window opened earlier";
  EXPECT_EQ(desk.ended, (std::vector<std::uint64_t>{0, 1, 9}));
}

TEST(VirtualDevice, StallsAndFailures) {
  Desk desk;
  desk.infer(0, 2ms);
  desk.infer(1, 2ms, {at(1ms), TimePoint::max()}, {}, ActionStatus::failed);
  desk.infer(2, 2ms, {at(2ms), TimePoint::max()}, {}, ActionStatus::no_memory);
  desk.run(at(1ms));
  desk.device.stall(load_executor, 9ms);
  desk.device.stall(first_stream, 5ms);
  desk.slow = 2;
  desk.run();
  EXPECT_EQ(desk.all[0].end, at(7ms));
  EXPECT_EQ(desk.all[1].status, ActionStatus::failed);
  EXPECT_EQ(desk.all[1].end, at(11ms));
  EXPECT_EQ(desk.all[2].status, ActionStatus::no_memory);
  EXPECT_FALSE(desk.all[2].ran);
}

}  // namespace
}  // namespace carillon::device
