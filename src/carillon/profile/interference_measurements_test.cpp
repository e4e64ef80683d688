#include "carillon/profile/interference_measurements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::profile {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string folder = CARILLON_SOURCE_DIR "/profiles/igniter/";

constexpr const char* whole = R"({
  "format": "carillon-interference-1",
  "device": {"name": "d", "price_usd_per_hour": 0.5, "P_max_power_W": 300, "F_max_frequency_MHz": 1530,
             "p_idle_W": 50, "B_pcie_bytes_per_ms": 1e7, "r_unit_percent": 5, "r_max_percent": 100},
  "models": {"a": {"d_load_bytes": 100, "d_feedback_bytes": 10, "n_kernels": 20, "k_sch_times_n_kernels_ms": 0.1,
    "solo": [{"batch": 1, "r_pct": 50, "gpu_latency_ms": 3.5, "power_W": 90, "frequency_MHz": 1500, "l2_pct": 4},
             {"batch": 2, "r_pct": 50, "gpu_latency_ms": 5}],
    "growth": [{"active_time_alone_ms": 3, "active_time_together_ms": 4, "others_l2_pct": 20, "frequency_MHz": 1500}]}},
  "colocated": [{"power_W": 200, "frequency_MHz": 1530, "members": [
    {"model": "a", "batch": 1, "r_pct": 50, "gpu_latency_ms": 4, "scheduling_ms": 0.2},
    {"model": "a", "batch": 2, "r_pct": 50, "gpu_latency_ms": 6}]}],
  "series": [{"workloads": 2, "power_W": 120, "frequency_MHz": 1530, "scheduling_delay_per_kernel_ms": 0.01}],
  "checks": [{"models": ["a", "a"], "batches": [1, 2], "r_pct": [50, 50], "latency_ms": [4.5, 6.5]}],
  "not_measured": ["cache: no counters"]})";

TEST(InterferenceMeasurements, OursIsReadAndWritten) {
  InterferenceMeasurements m, again;
  const auto read = add_measurements(std::string_view(whole), "file", m);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(m.device, "d");
  EXPECT_EQ(m.share_unit_pct, 5);
  ASSERT_EQ(m.models.at("a").solo.size(), 2u);
  EXPECT_EQ(m.models.at("a").solo[0], (SoloSample{1, 50, 3.5, 90, 1500, 4}));
  EXPECT_EQ(m.models.at("a").solo[1].power_w, std::nullopt);
  EXPECT_EQ(m.models.at("a").growth[0], (GrowthSample{3, 4, 20, 1500}));
  EXPECT_EQ(m.colocated[0].members[0].schedule_ms, 0.2);
  EXPECT_EQ(m.series[0].workloads, 2);
  EXPECT_EQ(m.checks[0].latency_ms[1], 6.5);
  ASSERT_TRUE(add_measurements(std::string_view(to_json(m)), "again", again));
  EXPECT_EQ(again, m);
  // Samples of a second file add up, values of the first stand.
  ASSERT_TRUE(add_measurements(std::string_view(whole), "file", m));
  EXPECT_EQ(m.models.at("a").solo.size(), 4u);
}

TEST(InterferenceMeasurements, ThePublishedFilesTogether) {
  InterferenceMeasurements m;
  for (const char* file : {"profile_samples.json", "workloads.json", "v100.json"}) {
    const auto read = add_measurements(folder + file, m);
    ASSERT_TRUE(read) << read.error().message;
  }
  EXPECT_EQ(m.device, "V100");
  EXPECT_EQ(m.max_power_w, 300);
  EXPECT_EQ(m.price_usd_per_hour, 3.06);
  EXPECT_EQ(m.series.size(), 5u);
  EXPECT_EQ(m.checks.size(), 750u);
  ASSERT_EQ(m.models.size(), 4u);
  const ModelMeasurements& ssd = m.models.at("ssd");
  EXPECT_EQ(ssd.kernels, 93);
  EXPECT_EQ(ssd.solo.size(), 9u);
  EXPECT_EQ(ssd.solo[0].cache_pct, 3.222534837202402);
  EXPECT_EQ(ssd.solo[1].cache_pct, std::nullopt);
  EXPECT_EQ(ssd.growth.size(), 1u);
  // What is not known is null there.
  InterferenceMeasurements t4;
  ASSERT_TRUE(add_measurements(folder + "t4.json", t4));
  EXPECT_EQ(t4.max_power_w, std::nullopt);
  EXPECT_EQ(t4.max_frequency_mhz, 1590);
}

TEST(InterferenceMeasurements, SaysWhatIsWrongAndLeavesTheRestAlone) {
  const struct {
    const char *old, *now, *words;
  } rows[] = {
      {"carillon-interference-1", "other", "format: is \"other\", but should be \"carillon-interference-1\""},
      {"\"gpu_latency_ms\": 3.5", "\"gpu_latency_ms\": 0",
       "models.a.solo[0].gpu_latency_ms: is 0, but should be"},
      {"\"gpu_latency_ms\": 3.5", "\"time\": 3.5", "models.a.solo[0]: has no \"gpu_latency_ms\""},
      {"{\"batch\": 2, \"r_pct\": 50, \"gpu_latency_ms\": 5}",
       "{\"batch\": 1.5, \"r_pct\": 50, \"gpu_latency_ms\": 5}",
       "models.a.solo[1].batch: is not a whole number"},
      {"\"r_pct\": 50, \"gpu_latency_ms\": 4", "\"r_pct\": 150, \"gpu_latency_ms\": 4",
       "colocated[0].members[0].r_pct: is 150, but should be percent of the device in 0.001..100"},
      {"\"P_max_power_W\": 300", "\"P_max_power_W\": \"much\"", "device.P_max_power_W: is \"much\""},
      {"\"workloads\": 2", "\"workloads\": 0", "series[0].workloads: is 0"},
      {"[4.5, 6.5]", "[4.5]", "checks[0]: \"models\""},
      {"[4.5, 6.5]", "[4.5, null]", "checks[0].latency_ms.[1]: is null"},
      {"\"batches\": [1, 2]", "\"batches\": [1, 2.5]", "checks[0].batches: should hold whole numbers"},
      {"[\"cache: no counters\"]", "[1]", "not_measured[0]"},
      {"\"models\": {\"a\"", "\"models\": {\"a\": 1, \"b\"", "models.a: is number"},
  };
  for (const auto& [old, now, words] : rows) {
    std::string text = whole;
    const auto at = text.find(old);
    ASSERT_NE(at, std::string::npos) << old;
    text.replace(at, std::string(old).size(), now);
    InterferenceMeasurements m;
    const auto read = add_measurements(std::string_view(text), "m.json", m);
    ASSERT_FALSE(read) << now;
    EXPECT_THAT(read.error().message, StartsWith("m.json: "));
    EXPECT_THAT(read.error().message, HasSubstr(words));
    EXPECT_EQ(m, InterferenceMeasurements{});
  }
  InterferenceMeasurements m;
  for (const char* text : {"", "[]", "{}", "{\"fit_samples\": 3}", "{\"models\": {\"a\": {}}}"})
    EXPECT_FALSE(add_measurements(std::string_view(text), "m.json", m)) << text;
  EXPECT_THAT(add_measurements(std::filesystem::path("/nowhere.json"), m).error().message,
              HasSubstr("no such file"));
}

}  // namespace
}  // namespace carillon::profile
