// Estimates decide what runs, and only what runs is measured: no policy may let one wild measurement end a
// model.
#include <algorithm>
#include <deque>
#include <optional>

#include <gtest/gtest.h>

#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/testing/policies.h"

namespace carillon::schedule {
namespace {

// One device that answers at once, in virtual time.
struct World {
  explicit World(const std::string& name) : scheduler(*make_scheduler(name)) {
    scheduler->add_model({.id = {0}, .name = "m", .pages = 1, .load = 1ms, .batches = {{1, 2ms}, {2, 3ms}}});
    tell(DeviceChanged{{0}, true, 10});
  }
  void tell(const Event& event) {
    Actions actions;
    scheduler->decide(event, now, actions);
    for (const Action& action : actions) {
      if (const auto* wake = std::get_if<WakeAt>(&action)) wake_at = wake->at;
      if (const auto* load = std::get_if<Load>(&action)) begin(load->id, load->window.earliest, 1ms);
      if (std::holds_alternative<Refuse>(action)) ++refused;
      if (const auto* infer = std::get_if<Infer>(&action)) {
        ran += infer->requests.size();
        begin(infer->id, infer->window.earliest, took);
      }
    }
  }
  void begin(ActionId id, TimePoint earliest, Duration duration) {
    const TimePoint start = std::max({now, earliest, free_at});
    free_at = start + duration;
    running.push_back({id, ActionStatus::success, start, free_at, duration});
  }
  void run_until(TimePoint end) {
    for (;;) {
      const TimePoint done = running.empty() ? TimePoint::max() : running.front().end;
      const TimePoint wake = wake_at.value_or(TimePoint::max());
      if (std::min(done, wake) > end) break;
      now = std::max(now, std::min(done, wake));
      if (done <= wake) {
        const ActionDone first = running.front();
        running.pop_front();
        tell(first);
      } else {
        wake_at.reset();
        tell(Wake{});
      }
    }
    now = std::max(now, end);
  }
  void request(Duration slo) {
    tell(RequestArrived{{.id = {next++}, .model = {0}, .arrival = now, .deadline = now + slo}});
  }

  std::unique_ptr<Scheduler> scheduler;
  TimePoint now{1s};
  std::optional<TimePoint> wake_at;
  std::deque<ActionDone> running;  // one after the other
  TimePoint free_at;
  Duration took = 2ms;
  std::uint64_t next = 0, refused = 0, ran = 0;
};

class OutlierTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OutlierTest, AModelComesBackAfterAWildMeasurement) {
  World world(GetParam());
  const auto one = [&] {
    world.request(20ms);
    world.run_until(world.now + 100ms);
  };
  for (int i = 0; i < 3; ++i) one();
  EXPECT_EQ(world.ran, 3U);
  world.took = 500ms;  // the machine was away
  one();
  world.took = 2ms;
  world.ran = 0;
  // Nexus plans every ten seconds only.
  for (int i = 0; i < 400; ++i) one();
  EXPECT_GE(world.ran, 240U) << world.refused << " refused";
}

INSTANTIATE_TEST_SUITE_P(All, OutlierTest, ::testing::ValuesIn(testing::every_policy()),
                         [](const auto& tested) { return testing::test_name(tested.param); });

}  // namespace
}  // namespace carillon::schedule
