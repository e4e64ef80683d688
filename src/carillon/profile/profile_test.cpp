#include "carillon/profile/profile.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/base/random.h"
#include "carillon/base/statistics.h"
#include "carillon/profile/rolling.h"

namespace carillon::profile {
namespace {

TimePoint at(Duration d) {
  return TimePoint{d};
}

TEST(RollingWindow, IsTheLargestOfTheLastTenAndTheSeedLeavesInTurn) {
  RollingWindow window(7ms);
  EXPECT_EQ(window.estimate(), 7ms);
  for (int i = 0; i < 9; ++i) window.add(3ms, at(1ms));
  EXPECT_EQ(window.estimate(), 7ms);
  window.add(4ms, at(2ms));
  EXPECT_EQ(window.estimate(), 4ms);
  EXPECT_EQ(window.newest_at(), at(2ms));
}

TEST(RollingWindow, AgreesWithThePercentileOfTheLastTen) {
  Random random(3);
  RollingWindow window(5ms);
  std::vector<Duration> all{5ms};
  for (int i = 0; i < 1000; ++i) {
    // No one more than twice as long as another.
    const Duration d = 4ms + Duration{static_cast<std::int64_t>(random.below(4'000'000))};
    all.push_back(d);
    window.add(d, at(Duration{i}));
    std::vector<Duration> last(all.end() - std::min<std::ptrdiff_t>(10, std::ssize(all)), all.end());
    ASSERT_EQ(window.estimate(), percentile(last, 0.99)) << i;
  }
}

// Of two or so many the larger: a seed that one measurement proves wrong is not what is usual.
TEST(RollingWindow, TheMedianIsWhatIsUsual) {
  RollingWindow window(2ms);
  EXPECT_EQ(window.usual(), 2ms);
  window.add(3ms, at(1ms));
  EXPECT_EQ(window.usual(), 3ms);
  for (int i = 0; i < 20; ++i) window.add(i % 3 == 0 ? 5ms : 4ms, at(2ms));
  EXPECT_EQ(window.usual(), 4ms);
  EXPECT_EQ(window.estimate(), 5ms);
}

TEST(RollingWindow, OneWildMeasurementIsAnAccidentAndTwoAreNone) {
  const struct {
    const char* what;
    std::vector<std::pair<Duration, Duration>> added;  // measurement, and when it ended
    Duration estimate;
  } rows[] = {
      {"one alone", {{3ms, 10ms}, {400ms, 420ms}}, 3ms},
      {"and what follows it", {{3ms, 10ms}, {400ms, 420ms}, {4ms, 430ms}}, 4ms},
      {"twice as long is no wild one", {{3ms, 10ms}, {6ms, 20ms}}, 6ms},
      {"a device that became slow", {{3ms, 10ms}, {12ms, 30ms}, {12ms, 42ms}}, 12ms},
      {"also where something quick lies between",
       {{3ms, 10ms}, {12ms, 30ms}, {3ms, 33ms}, {13ms, 50ms}},
       13ms},
      {"two devices of a machine that was away", {{3ms, 10ms}, {400ms, 420ms}, {401ms, 421ms}}, 3ms},
      {"away twice", {{3ms, 10ms}, {400ms, 420ms}, {401ms, 421ms}, {300ms, 800ms}}, 300ms},
      {"also in the first measurement", {{400ms, 420ms}}, 2ms},
  };
  for (const auto& [what, added, estimate] : rows) {
    RollingWindow window(2ms);
    for (const auto& [measured, ended] : added) window.add(measured, at(ended));
    EXPECT_EQ(window.estimate(), estimate) << what;
    EXPECT_EQ(window.newest_at(), at(added.back().second)) << what;
  }
  RollingWindow seldom(2ms);  // an accident now and then is still one
  TimePoint now = at(1s);
  for (int i = 0; i < 100; ++i, now += 100ms) {
    seldom.add(i % 12 == 5 ? Duration{60ms} : Duration{2ms}, now);
    ASSERT_EQ(seldom.estimate(), 2ms) << i;
  }
  RollingWindow unknown(Duration{0});
  unknown.add(7ms, at(7ms));
  EXPECT_EQ(unknown.estimate(), 7ms);
}

TEST(RollingWindow, AnOutlierCanBeForgottenButNotOrdinarySpread) {
  RollingWindow window(3ms);
  window.add(5ms, at(5ms));
  window.forget_outlier(at(6ms));
  EXPECT_EQ(window.estimate(), 5ms);
  window.add(300ms, at(310ms));
  window.add(300ms, at(610ms));
  EXPECT_EQ(window.estimate(), 300ms);
  window.forget_outlier(at(620ms));
  EXPECT_EQ(window.estimate(), 5ms);
  EXPECT_EQ(window.newest_at(), at(620ms));
  window.reset(2ms, at(630ms));
  EXPECT_EQ(window.estimate(), 2ms);
  window.add(25ms, at(660ms));
  EXPECT_EQ(window.estimate(), 25ms) << "the seed was only a guess";
}

DeviceProfile sample() {
  const Times t{.p50 = 3ms, .p99 = 4ms, .mean = 3100us, .min = 2900us, .max = 4200us, .n = 100};
  const Times u{.p50 = 5ms, .p99 = 6ms, .mean = 5100us, .min = 4900us, .max = 6200us, .n = 100};
  return {.device = "cpu \"x\"",
          .created = "2026-01-02T03:04:05Z",
          .carillon = "0.1.0",
          .threads = 2,
          .models = {{.name = "resnet",
                      .version = 3,
                      .precision = "bf16",
                      .weights = Bytes{1'000'000},
                      .load = t,
                      .batches = {{1, t}, {2, u}},
                      .lengths = {{16, {{1, t}}}, {64, {{1, t}, {2, u}}}},
                      .sizes = {{{16, 32}, {.operations = 1000, .bytes = 70}, {{1, t}, {2, u}}}},
                      .kernels = {{1, "conv", 7us},
                                  {.batch = 2,
                                   .name = "conv",
                                   .mean = 12us,
                                   .length = 16,
                                   .parts = 64,
                                   .by_width = {20us, 12us}}}}}};
}

TEST(Profile, ReadsWhatItWrites) {
  const auto read = parse_profile(to_json(sample()), "here");
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(*read, sample());

  const auto folder =
      std::filesystem::temp_directory_path() / ("carillon_profile_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(write_profile(sample(), folder / "p.json").has_value());
  const auto from_file = read_profile(folder / "p.json");
  ASSERT_TRUE(from_file.has_value()) << from_file.error().message;
  EXPECT_EQ(*from_file, sample());
  EXPECT_FALSE(write_profile(sample(), folder / "none" / "p.json").has_value());
  EXPECT_FALSE(read_profile(folder).has_value());
  EXPECT_EQ(read_profile(folder / "other.json").error().code, ErrorCode::not_found);
  std::filesystem::remove_all(folder);
}

TEST(Profile, FindsTheNewestVersion) {
  auto profile = sample();
  profile.models.push_back(profile.models[0]);
  profile.models.back().version = 2;
  EXPECT_EQ(profile.find("resnet")->version, 3);
  EXPECT_EQ(profile.find("other"), nullptr);
}

TEST(Profile, ErrorsSayWhereAndWhatWouldBeRight) {
  const std::string batch = R"({"batch": 1, "p50_ms": 1, "p99_ms": 2})";
  const auto with = [&](const std::string& load, const std::string& batches) {
    return R"({"device": "d", "models": [{"name": "m", "weights_bytes": 1, "load_ms": )" + load +
           R"(, "batches": [)" + batches + "]}]}";
  };
  const std::string load = R"({"p50": 1, "p99": 2})";
  ASSERT_TRUE(parse_profile(with(load, batch), "f").has_value());
  const struct {
    std::string text, says;
  } rows[] = {
      {"", "not a JSON document"},
      {"[1", "not a JSON document"},
      {"[]", "should be an object"},
      {"{}", "has no \"device\""},
      {R"({"device": 3, "models": []})", "should be a string"},
      {R"({"device": "d"})", "has no \"models\""},
      {R"({"device": "d", "models": {}})", "should be an array"},
      {R"({"device": "d", "threads": 0, "models": []})", "1..65536"},
      {R"({"device": "d", "models": [7]})", "models[0]: is number"},
      {R"({"device": "d", "models": [{"name": ""}]})", "models[0].name"},
      {R"({"device": "d", "models": [{"name": "m", "weights_bytes": -1}]})", "weights_bytes: is -1"},
      {R"({"device": "d", "models": [{"name": "m", "weights_bytes": 18446744073709551615}]})",
       "weights_bytes: is 18446744073709551615"},
      {with("3", batch), "load_ms: is number"},
      {with(R"({"p50": 1})", batch), "has no \"p99\""},
      {with(R"({"p50": 3, "p99": 2})", batch), "out of order"},
      {with(R"({"p50": -1, "p99": 2})", batch), "load_ms.p50: is -1"},
      {with(R"({"p50": 1, "p99": 1e300})", batch), "0..1e+09"},
      {with(load, ""), "batches: is empty"},
      {with(load, batch + "," + batch), "should ascend"},
      {with(load, batch + R"(], "lengths": [{"length": 0, "batches": [)" + batch + "]}"), "length: is 0"},
      {with(load, batch + R"(], "lengths": [{"length": 8, "batches": []})"), "lengths[0].batches: is empty"},
      {with(load, batch + R"(], "sizes": [{"extents": [0], "operations": 1, "bytes": 1, "batches": [)" +
                      batch + "]}"),
       "sizes[0].extents: is 0, but should be whole numbers from 1"},
      {with(load, R"({"batch": 1.5, "p50_ms": 1, "p99_ms": 2})"), "whole number"},
      {with(load, R"({"batch": 1, "p50_ms": "1", "p99_ms": 2})"), "should be milliseconds"},
      {with(load, R"({"batch": 1, "p50_ms": 1, "p99_ms": 2, "mean_ms": 9, "max_ms": 3})"), "mean outside"},
  };
  for (const auto& row : rows) {
    const auto read = parse_profile(row.text, "file.json");
    ASSERT_FALSE(read.has_value()) << row.text;
    EXPECT_NE(read.error().message.find(row.says), std::string::npos) << read.error().message;
    EXPECT_EQ(read.error().message.find("file.json: "), 0U) << read.error().message;
  }
}

TEST(Profile, KernelsOfOldFilesHaveOnePartAndNoWidths) {
  const auto with = [](const std::string& kernel) {
    return R"({"device": "d", "models": [{"name": "m", "weights_bytes": 1, "load_ms": {"p50": 1, "p99": 2},
               "batches": [{"batch": 1, "p50_ms": 1, "p99_ms": 2}], "kernels": [)" +
           kernel + "]}]}";
  };
  const auto old = parse_profile(with(R"({"batch": 1, "name": "conv", "mean_ms": 0.5})"), "f");
  ASSERT_TRUE(old.has_value()) << old.error().message;
  EXPECT_EQ(old->models[0].kernels, (std::vector<KernelTimes>{{.batch = 1, .name = "conv", .mean = 500us}}));

  const std::string start = R"({"batch": 1, "name": "conv", "mean_ms": 0.5, )";
  std::string many = "0";
  for (int i = 0; i < 4096; ++i) many += ",0";
  const struct {
    std::string kernel, says;
  } rows[] = {
      {"7", "kernels[0]: is number"},
      {R"({"batch": 1, "mean_ms": 0.5})", "has no \"name\""},
      {R"({"batch": 1, "name": "conv", "mean_ms": -1})", "mean_ms: is -1"},
      {start + R"("parts": 0})", "parts: is 0, but should be a whole number in 1..65536"},
      {start + R"("parts": 1e9})", "parts: is 1000000000.0"},
      {start + R"("parts": "2"})", "parts: is \"2\""},
      {start + R"("length": -1})", "length: is -1"},
      {start + R"("by_width_ms": 3})", "by_width_ms: is number, but should be an array"},
      {start + R"("by_width_ms": [0.5, null, 0.2]})", "by_width_ms[1]: is null, but should be milliseconds"},
      {start + R"("by_width_ms": [0.5, -0.1]})", "by_width_ms[1]: is -0.1"},
      {start + R"("by_width_ms": [1e300]})", "by_width_ms[0]: is 1e+300"},
      {start + R"("by_width_ms": [)" + many + "]}",
       "by_width_ms: has 4097 entries, but should have at most 4096"},
  };
  for (const auto& row : rows) {
    const auto read = parse_profile(with(row.kernel), "f");
    ASSERT_FALSE(read.has_value()) << row.kernel;
    EXPECT_NE(read.error().message.find(row.says), std::string::npos) << read.error().message;
  }
}

TEST(Profile, DamagedFilesAreRefusedOrReadNeverWorse) {
  const std::string good = to_json(sample());
  Random random(5);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text = good;
    for (int k = 0; k < 3; ++k) text[random.below(text.size())] = static_cast<char>(random.below(256));
    if (random.below(4) == 0) text.resize(random.below(text.size()));
    const auto read = parse_profile(text, "f");
    if (!read.has_value()) {
      ++refused;
      continue;
    }
    for (const auto& model : read->models) ASSERT_FALSE(model.batches.empty());
  }
  EXPECT_GT(refused, 1000);
}

TEST(Times, SummarizesMeasurements) {
  std::vector<Duration> d;
  for (int i = 100; i >= 1; --i) d.push_back(Duration{i * 1000});
  const Times t = summarize(d);
  EXPECT_EQ(t,
            (Times{.p50 = 50us, .p99 = 99us, .mean = Duration{50'500}, .min = 1us, .max = 100us, .n = 100}));
}

}  // namespace
}  // namespace carillon::profile
