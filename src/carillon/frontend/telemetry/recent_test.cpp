#include "carillon/frontend/telemetry/recent.h"

#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

// A server with one model, whose counters grow as the test says.
class RecentTest : public ::testing::Test {
 protected:
  RecentTest() { grow(); }

  void grow(std::uint64_t on_time = 0, Duration latency = 1ms, std::uint64_t refused = 0) {
    if (statistics.models.empty()) statistics.models.push_back({.name = "m"});
    auto& model = statistics.models[0];
    model.on_time += on_time;
    model.refused += refused;
    model.reasons[0] += refused;
    for (std::uint64_t i = 0; i < on_time; ++i) model.latency.add(latency);
  }

  controller::ServerStatistics statistics;
  Recent recent;
};

TEST_F(RecentTest, KnowsNothingBeforeTheSecondLook) {
  EXPECT_FALSE(recent.model(0));
  EXPECT_EQ(recent.span(), Duration{0});
  grow(7);
  recent.look(at(1s), statistics);
  EXPECT_FALSE(recent.model(0));
  EXPECT_FALSE(recent.rate(0));
  EXPECT_FALSE(recent.busy(0));
  EXPECT_EQ(recent.total(0).on_time, 7U);
}

TEST_F(RecentTest, CountsWhatCameBetweenTheLooks) {
  grow(1000, 500ms);  // long ago: nothing of it may show
  recent.look(at(1s), statistics);
  grow(90, 2ms, 10);
  recent.look(at(3s), statistics);
  const auto model = recent.model(0);
  ASSERT_TRUE(model);
  EXPECT_EQ(model->on_time, 90U);
  EXPECT_EQ(model->refused, 10U);
  EXPECT_EQ(model->reasons[0], 10U);
  EXPECT_DOUBLE_EQ(model->on_time_share().value(), 0.9);
  EXPECT_NEAR(to_ms(model->p50), 2, 0.1);
  EXPECT_NEAR(to_ms(model->p99), 2, 0.1);
  EXPECT_DOUBLE_EQ(recent.rate(0).value(), 50);
  EXPECT_EQ(recent.span(), 2s);
}

TEST_F(RecentTest, TailsShow) {
  recent.look(at(0s), statistics);
  grow(980, 1ms);
  grow(20, 80ms);
  recent.look(at(1s), statistics);
  const auto model = recent.model(0);
  ASSERT_TRUE(model);
  EXPECT_NEAR(to_ms(model->p50), 1, 0.05);
  EXPECT_NEAR(to_ms(model->p99), 80, 3);
}

// A minute of looks, one a second, with other latencies and rates in each: against sums made by hand.
TEST_F(RecentTest, LooksBackAMinuteAndTenSeconds) {
  std::vector<std::uint64_t> grown;
  for (int second = 0; second <= 200; ++second) {
    const auto more = static_cast<std::uint64_t>(second % 7);
    grown.push_back(more);
    grow(more, second < 130 ? 40ms : 3ms);
    recent.look(at(std::chrono::seconds(second)), statistics);
    if (second == 0) continue;
    const auto span = static_cast<std::size_t>(recent.span() / 1s);
    ASSERT_LE(span, 65U);
    ASSERT_GE(span, std::min<std::size_t>(60, static_cast<std::size_t>(second)));
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < span; ++i) sum += grown[grown.size() - 1 - i];
    ASSERT_EQ(recent.model(0)->on_time, sum) << "second " << second;
    if (second >= 10) {
      std::uint64_t ten = 0;
      for (std::size_t i = 0; i < 10; ++i) ten += grown[grown.size() - 1 - i];
      ASSERT_DOUBLE_EQ(recent.rate(0).value(), static_cast<double>(ten) / 10) << "second " << second;
    }
  }
  EXPECT_NEAR(to_ms(recent.model(0)->p99), 3, 0.1) << "what is older than the window has no part in it";
}

TEST_F(RecentTest, ModelsAndDevicesMayComeLater) {
  statistics.models.clear();
  recent.look(at(1s), statistics);
  grow(4);
  statistics.devices = {{.name = "cpu", .exec_busy = 5s}};
  recent.look(at(2s), statistics);
  EXPECT_EQ(recent.model(0)->on_time, 4U);
  EXPECT_DOUBLE_EQ(recent.rate(0).value(), 4);
  EXPECT_FALSE(recent.busy(0));
  EXPECT_DOUBLE_EQ(recent.device_time()->exec, 1);
  statistics.devices[0].exec_busy += 250ms;
  recent.look(at(3s), statistics);
  EXPECT_DOUBLE_EQ(recent.busy(0).value(), 0.25);
  statistics.devices[0].exec_busy += 3s;  // a long run that has just ended
  recent.look(at(4s), statistics);
  EXPECT_DOUBLE_EQ(recent.busy(0).value(), 1);
  EXPECT_FALSE(recent.model(1));
  EXPECT_FALSE(recent.busy(1));
}

TEST_F(RecentTest, TellsWhereTheTimeWent) {
  EXPECT_FALSE(recent.device_time());
  statistics.devices = {{.name = "a", .exec_busy = 50s, .load_busy = 7s}, {.name = "b"}};
  statistics.models[0].queue.total = 900s;
  recent.look(at(10s), statistics);
  EXPECT_FALSE(recent.device_time()) << "there was one look";
  statistics.devices[0].exec_busy += 6s;
  statistics.devices[1].exec_busy += 2s;
  statistics.devices[0].load_busy += 1s;
  auto& model = statistics.models[0];
  model.queue.total += 3s;
  model.compute_input.total += 10ms;
  model.compute_infer.total += 8s;
  model.compute_output.total += 20ms;
  model.success.total += 12s;
  recent.look(at(20s), statistics);
  ASSERT_TRUE(recent.device_time());
  EXPECT_DOUBLE_EQ(recent.device_time()->exec, 0.4) << "8 s of two devices' 20 s";
  EXPECT_DOUBLE_EQ(recent.device_time()->load, 0.05);
  const RecentModel minute = recent.model(0).value();
  EXPECT_EQ(minute.waited, 3s);
  EXPECT_EQ(minute.input, 10ms);
  EXPECT_EQ(minute.exec, 8s);
  EXPECT_EQ(minute.output, 20ms);
  EXPECT_EQ(minute.took, 12s);
  RecentModel twice = minute;
  twice += minute;
  EXPECT_EQ(twice.exec, 16s);
  statistics.devices[1].exec_busy += 60s;  // a long run that has just ended
  recent.look(at(21s), statistics);
  EXPECT_DOUBLE_EQ(recent.device_time()->exec, 1);
}

TEST_F(RecentTest, OnTimeIsOfThoseThatHadToBe) {
  const struct {
    RecentModel counts;
    std::optional<double> share;
  } rows[] = {
      {{}, std::nullopt},
      {{.cancelled = 3}, std::nullopt},
      {{.failed = 2, .invalid = 2}, std::nullopt},
      {{.on_time = 3, .late = 1}, 0.75},
      {{.on_time = 1, .refused = 1, .cancelled = 5, .failed = 3, .invalid = 1}, 0.25},
  };
  for (const auto& [counts, share] : rows) EXPECT_EQ(counts.on_time_share(), share);
}

}  // namespace
}  // namespace carillon::frontend
