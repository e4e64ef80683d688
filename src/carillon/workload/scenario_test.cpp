#include "carillon/workload/scenario.h"

#include <filesystem>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/workload/jobs.h"
#include "carillon/workload/study.h"

namespace carillon::workload {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view head = "name = \"t\"\n[load]\nrate = 100\n";

Result<Scenario> parse(const std::string& text, const std::filesystem::path& where = "t.toml") {
  return parse_scenario(text, where);
}

TEST(Scenario, ReadsAllKeysOfTheFormat) {
  const auto s = parse(R"(
name = "one-resnet50"
seed = 7
duration_s = 60
warmup_s = 5
scheduler = "clockwork"
[cluster]
devices = 8
memory = "16 GB"
pcie = "12.5 GB/s"
network_delay_us = 20
fetch_us = 45
[load]
rate = 5000
process = "gamma:0.1"
popularity = "zipf:0.9"
[[models]]
name = "resnet50"
copies = 2
slo_ms = 25
max_batch = 32
weights = "102.3 MB"
latency = { alpha_ms = 1.053, beta_ms = 5.072 }
[[models]]
name = "other"
slo_ms = 100
rate = 10
process = "uniform"
load_ms = 8
latency = { table_ms = { 1 = 2.61, 4 = 5.61, 2 = 3.78 } }
)");
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_TRUE(s->speeds.empty());
  EXPECT_TRUE(s->faults.empty());
  EXPECT_EQ(s->name, "one-resnet50");
  EXPECT_EQ(s->seed, 7U);
  EXPECT_EQ(s->scheduler, "clockwork");
  EXPECT_EQ(s->warmup, 5s);
  EXPECT_EQ(s->devices, 8);
  EXPECT_EQ(s->memory->count, 16'000'000'000U);
  EXPECT_EQ(s->pcie_bytes_per_s, 12.5e9);
  EXPECT_EQ(s->network_delay, 20us);
  EXPECT_EQ(s->fetch_time(), 45us);
  EXPECT_EQ(s->process.kind, ArrivalKind::gamma);
  EXPECT_EQ(s->popularity, Popularity::zipf);
  ASSERT_EQ(s->models.size(), 3U);
  EXPECT_EQ(s->models[0].name, "resnet50-0");
  EXPECT_EQ(s->models[1].name, "resnet50-1");
  EXPECT_EQ(s->models[1].max_batch, 32);
  EXPECT_EQ(s->models[0].weights.count, 102'300'000U);
  EXPECT_EQ(s->models[0].latency.batch_time(16), from_ms(16 * 1.053 + 5.072));
  EXPECT_EQ(s->models[2].load, 8ms);
  EXPECT_EQ(s->models[2].process->kind, ArrivalKind::uniform);
  const auto rates = model_rates(*s);
  EXPECT_NEAR(rates[0] / rates[1], std::pow(2, 0.9), 1e-9);
  EXPECT_NEAR(rates[0] + rates[1], 5000, 1e-6);
  EXPECT_EQ(rates[2], 10);
}

TEST(Scenario, TablesAreInterpolatedAndExtendedByTheirLastSlope) {
  LatencyModel latency;
  latency.table = {{1, 2ms}, {2, 3ms}, {4, 7ms}};
  EXPECT_EQ(latency.batch_time(1), 2ms);
  EXPECT_EQ(latency.batch_time(3), 5ms);
  EXPECT_EQ(latency.batch_time(4), 7ms);
  EXPECT_EQ(latency.batch_time(8), 15ms);
}

TEST(Scenario, ModesMakeABatchAsLongAsItsLongestRequest) {
  const auto s = parse(std::string(head) + R"(
[[models]]
name = "m"
slo_ms = 1000
latency = { c0_ms = 1.0, c1 = 0.5, modes = [ { mean_ms = 20, std_ms = 1, weight = 3, app = "a" }, { mean_ms = 80, std_ms = 1 } ] }
)");
  ASSERT_TRUE(s) << s.error().message;
  const LatencyModel& latency = s->models[0].latency;
  EXPECT_EQ(latency.batch_time(4, 10ms), 21ms);
  EXPECT_EQ(latency.expected(1), from_ms(1 + 0.5 * 35));
  EXPECT_EQ(latency.modes[0].app, "a");
}

TEST(Scenario, AnSloMayBeAMultipleOfTheTimeOfOneRequest) {
  const std::string text = std::string(head) + R"(
[[models]]
name = "varies"
slo_p99 = 2
latency = { c0_ms = 30, c1 = 0.4, modes = [ { mean_ms = 60, std_ms = 10 } ] }
[[models]]
name = "clusters"
slo_p99 = 2
latency = { c1 = 0.4, modes = [ { mean_ms = 60, weight = 989 }, { mean_ms = 70, weight = 11 } ] }
[[models]]
name = "always"
slo_p99 = 1.5
latency = { alpha_ms = 2, beta_ms = 4 }
[[models]]
name = "fixed"
slo_ms = 10
latency = { alpha_ms = 2, beta_ms = 4 }
)";
  auto s = parse(text);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_NEAR(to_ms(s->models[0].slo), 2 * (60 + 10 * 2.326348), 1e-3);
  EXPECT_NEAR(to_ms(s->models[1].slo), 140, 1e-5);
  EXPECT_EQ(s->models[2].slo, 9ms);
  s = parse_scenario(text, "t.toml", {.duration = {}, .seed = {}, .slo_p99 = 3});
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_NEAR(to_ms(s->models[0].slo), 3 * (60 + 10 * 2.326348), 1e-3);
  EXPECT_EQ(s->models[2].slo, 18ms);
  EXPECT_EQ(s->models[3].slo, 10ms);

  const std::string plain = "[[models]]\nname = \"m\"\nlatency = { alpha_ms = 1 }\nslo_ms = 3\n";
  s = parse_scenario(std::string(head) + plain, "t.toml", {.duration = {}, .seed = {}, .slo_p99 = 3});
  ASSERT_FALSE(s);
  EXPECT_THAT(s.error().message, HasSubstr("no model has slo_p99"));
  s = parse(std::string(head) + plain + "slo_p99 = 2\n");
  ASSERT_FALSE(s);
  EXPECT_THAT(s.error().message, HasSubstr("slo_ms or slo_p99, not both"));
}

TEST(Scenario, AModelsRequestsMayHaveSeveralSlos) {
  const auto s = parse(std::string(head) + R"(
[[models]]
name = "m"
slo_ms = [50, 15.5, 200]
latency = { alpha_ms = 1 }
)");
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->models[0].slo, 15500us);
  EXPECT_EQ(s->models[0].slos, (std::vector<Duration>{50ms, 15500us, 200ms}));
}

TEST(Scenario, TheLastModelMayBeTheMostPopular) {
  const auto s = parse(std::string(head) + R"(
popularity = "zipf:1"
popular_last = true
[[models]]
name = "a"
slo_ms = 10
latency = { alpha_ms = 1 }
[[models]]
name = "own"
rate = 7
slo_ms = 10
latency = { alpha_ms = 1 }
[[models]]
name = "b"
slo_ms = 10
latency = { alpha_ms = 1 }
)");
  ASSERT_TRUE(s) << s.error().message;
  const auto rates = model_rates(*s);
  EXPECT_NEAR(rates[2], 2 * rates[0], 1e-9);
  EXPECT_NEAR(rates[0] + rates[2], s->rate, 1e-9);
  EXPECT_EQ(rates[1], 7);
}

TEST(Scenario, DevicesMayDifferAndFail) {
  const std::string models = std::string(head) + R"(
[[models]]
name = "a"
slo_ms = 10
latency = { alpha_ms = 1 }
outliers = { share = 0.02, factor = 10 }
)";
  const std::string cluster = R"(
[cluster]
devices = 3
speeds = [1, 2.5, 4]
[[faults]]
device = 2
at_s = 7
kind = "slow"
for_s = 1.5
factor = 4
[[faults]]
device = 0
at_s = 3
kind = "die"
[[faults]]
device = 1
at_s = 5
kind = "hang"
for_s = 2
)";
  const auto s = parse(models + cluster);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->speeds, (std::vector<double>{1, 2.5, 4}));
  EXPECT_EQ(s->models[0].outliers, (Outliers{0.02, 10}));
  using Kind = DeviceFault::Kind;
  EXPECT_EQ(s->faults, (std::vector<DeviceFault>{{Kind::dies, 0, 3s, Duration::max(), 1},
                                                 {Kind::hangs, 1, 5s, 2s, 1},
                                                 {Kind::slow, 2, 7s, 1500ms, 4}}));
  EXPECT_FALSE(s->miss_rate);
  EXPECT_EQ(s->models[0].miss_rate, 0);
  const auto promised = parse("miss_rate = 0.02\n" + models + "miss_rate = 0.001\n");
  ASSERT_TRUE(promised) << promised.error().message;
  EXPECT_EQ(promised->miss_rate, 0.02);
  EXPECT_EQ(promised->models.back().miss_rate, 0.001);
  const auto wrong = [&](const std::string& file) {
    const auto bad = parse(models + file);
    return bad ? "read" : bad.error().message;
  };
  EXPECT_THAT(wrong("[cluster]\ndevices = 2\nspeeds = [1]\n"),
              HasSubstr("cluster.speeds must be a list of one number for each of 2 devices"));
  EXPECT_THAT(wrong("[cluster]\nspeeds = [0]\n"), HasSubstr("from 0.001 to 1000"));
  EXPECT_THAT(wrong("miss_rate = 0.6\n"), HasSubstr("miss_rate must be a number from 1e-06 to 0.5"));
  EXPECT_THAT(wrong("[faults]\n"), HasSubstr("written [[faults]]"));
  const auto fault = [&](const std::string& keys) { return wrong("[[faults]]\n" + keys); };
  EXPECT_THAT(fault("at_s = 1\nkind = \"die\"\n"), HasSubstr("needs device"));
  EXPECT_THAT(fault("device = 1\nat_s = 1\nkind = \"die\"\n"), HasSubstr("from 0 to 0"));
  EXPECT_THAT(fault("device = 0\nat_s = 1\nkind = \"dies\"\n"), HasSubstr("\"die\", \"hang\" or \"slow\""));
  EXPECT_THAT(fault("device = 0\nat_s = 1\nkind = \"slow\"\n"), HasSubstr("need factor"));
  EXPECT_THAT(fault("device = 0\nat_s = 1\nkind = \"hang\"\nfactor = 2\n"), HasSubstr("need factor"));
}

TEST(Scenario, EveryFileInTheTreeCanBeRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           std::filesystem::path(CARILLON_SOURCE_DIR) / "scenarios")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    if (has_jobs(entry.path())) {
      const auto jobs = read_jobs(entry.path());
      EXPECT_TRUE(jobs) << jobs.error().message;
      continue;
    }
    if (has_study(entry.path())) {
      const auto study = read_study(entry.path());
      EXPECT_TRUE(study) << study.error().message;
      continue;
    }
    const auto s = read_scenario(entry.path());
    EXPECT_TRUE(s) << s.error().message;
  }
  EXPECT_GT(files, 50);
}

TEST(Scenario, ErrorsNameFileLineKeyAndWhatWouldBeRight) {
  struct Case {
    std::string text, expected;
  };
  const std::string model = "[[models]]\nname = \"m\"\nslo_ms = 10\nlatency = { alpha_ms = 1 }\n";
  const std::vector<Case> cases = {
      {"name = ", "t.toml:1: "},
      {"nam = 1\n" + model, "t.toml:1: the file has no key 'nam'; there are "},
      {"[load]\nrate = -1\n" + model, "t.toml:2: load.rate must be a number from 0 to 1e+09"},
      {"[load]\nrate = \"x\"\n" + model, "t.toml:2: load.rate must be a number"},
      {model, "load.rate (requests a second over all models) must be above 0"},
      {std::string(head) + "process = \"weibull\"\n" + model,
       "t.toml:4: load.process: arrival process 'weibull'"},
      {std::string(head) + "popularity = \"zip\"\n" + model, "must be \"equal\" or \"zipf:SHAPE\""},
      {std::string(head) + "popular_last = true\n" + model, "popular_last needs popularity = \"zipf:SHAPE\""},
      {std::string(head) + "popularity = \"zipf:1\"\npopular_last = 1\n" + model, "must be true or false"},
      {std::string(head), "needs at least one [[models]]"},
      {std::string(head) + "[[models]]\nname = \"m\"\nslo_ms = [10]\nlatency = { alpha_ms = 1 }\n",
       "t.toml:6: models.slo_ms as a list must have 2 to 1000 numbers from 0.001 to 1e+09"},
      {std::string(head) + "[[models]]\nname = \"m\"\nslo_ms = [10, -1]\nlatency = { alpha_ms = 1 }\n",
       "models.slo_ms as a list must have"},
      {std::string(head) + model + model, "two models are named 'm'"},
      {std::string(head) + "[[models]]\nname = \"m\"\nslo_ms = 10\n", "a model needs latency"},
      {std::string(head) + "[[models]]\nname = \"m\"\nlatency = { alpha_ms = 1 }\n",
       "model 'm' needs slo_ms"},
      {std::string(head) + model + "latensy = 3\n", "[models] has no key 'latensy'"},
      {std::string(head) + "[cluster]\nmemory = \"1 MB\"\n" + model + "weights = \"2 MB\"\n", "does not fit"},
      {std::string(head) + model + "copies = 1000000000\n",
       "models.copies must be a whole number from 1 to 100000"},
      {"warmup_s = 60\n" + model, "warmup_s must be shorter than duration_s"},
      {std::string(head) + model + "steps = [[5, 1], [3, 2]]\n", "steps must ascend in time"},
  };
  for (const Case& c : cases) {
    const auto parsed = parse(c.text);
    ASSERT_FALSE(parsed) << c.text;
    EXPECT_THAT(parsed.error().message, HasSubstr(c.expected));
  }
  EXPECT_THAT(read_scenario("/nonexistent/x.toml").error().message, HasSubstr("/nonexistent/x.toml"));
}

class ScenarioFiles : public ::testing::Test {
 protected:
  ScenarioFiles() : folder(std::filesystem::path(::testing::TempDir()) / "carillon_scenario_test") {
    std::filesystem::create_directories(folder);
  }
  ~ScenarioFiles() override { std::filesystem::remove_all(folder); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder / name) << text; }
  std::filesystem::path folder;
};

TEST_F(ScenarioFiles, ManyModelsFromAProfile) {
  write("p.csv", "model,alpha_ms,beta_ms,slo_ms\na,1,10,30\nb,2,1,40\n");
  const auto all = parse(std::string(head) + "[[models]]\ncsv = \"p.csv\"\ncopies = 3\n", folder / "s.toml");
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->models.size(), 6U);
  EXPECT_EQ(all->models[5].name, "b-2");
  EXPECT_EQ(all->models[0].slo, 30ms);
  const auto strong =
      parse(std::string(head) + "[[models]]\ncsv = \"p.csv\"\nmin_ratio = 2\n", folder / "s.toml");
  ASSERT_TRUE(strong) << strong.error().message;
  ASSERT_EQ(strong->models.size(), 1U);
  EXPECT_EQ(strong->models[0].name, "a");
  const auto row =
      parse(std::string(head) + "[[models]]\nname = \"x\"\nlatency = { csv = \"p.csv\", row = \"c\" }\n",
            folder / "s.toml");
  ASSERT_FALSE(row);
  EXPECT_THAT(row.error().message, HasSubstr("'p.csv' has no row 'c'"));
  write("p.csv", "model,alpha_ms,beta_ms,slo_ms\na,1,x,30\n");
  const auto bad = parse(std::string(head) + "[[models]]\ncsv = \"p.csv\"\n", folder / "s.toml");
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message, HasSubstr("p.csv:2: 'x' is not a number"));
}

TEST_F(ScenarioFiles, ATraceIsDealtOverTheModelsAndKeepsItsShape) {
  write("t.csv", "Owner,Trigger,480,481,482\nx,http,60,0,120\ny,timer,6,6,6\nz,timer,0,3,0\n");
  const std::string text =
      "duration_s = 180\n[load]\nprocess = \"trace:t.csv\"\nrate = 100\nspread_hottest = 2\n"
      "[[models]]\nname = \"m\"\ncopies = 4\nslo_ms = 10\nlatency = { alpha_ms = 1 }\n";
  auto s = parse(text, folder / "s.toml");
  ASSERT_TRUE(s) << s.error().message;
  const auto minute = [&](std::size_t i) {
    double sum = 0;
    for (const auto& m : s->models) sum += m.per_minute[i];
    return sum;
  };
  const double scale = 100.0 * 180 / 201;
  EXPECT_NEAR(minute(0), 66 * scale, 4);
  EXPECT_NEAR(minute(1), 9 * scale, 4);
  EXPECT_NEAR(minute(2), 126 * scale, 4);
  const auto rates = model_rates(*s);
  EXPECT_NEAR(std::accumulate(rates.begin(), rates.end(), 0.0), 100, 1);
  set_rate(*s, 10);
  const auto lower = model_rates(*s);
  EXPECT_NEAR(std::accumulate(lower.begin(), lower.end(), 0.0), 10, 0.1);
  const auto gone = parse(
      "[load]\nprocess = \"trace:no.csv\"\n[[models]]\nname = \"m\"\nslo_ms = 1\nlatency = "
      "{ alpha_ms = 1 }\n",
      folder / "s.toml");
  ASSERT_FALSE(gone);
  EXPECT_THAT(gone.error().message, HasSubstr("cannot read the trace"));
}

Result<Scenario> parsed(const std::string& models, const std::string& rest = "") {
  return parse_scenario(rest + models, "s.toml");
}

TEST(Scenario, CopiesThatComeOneByOneShareARate) {
  for (const int copies : {1, 2, 50, 51, 101, 3600}) {
    const auto s =
        parsed("[[models]]\nname = \"m\"\nslo_ms = 10\ncopies = " + std::to_string(copies) +
                   "\nrate = 1000\nstart_s = 10\nactivate_every_s = 1\nlatency = { alpha_ms = 1 }\n",
               "duration_s = 5000\n");
    ASSERT_TRUE(s) << s.error().message;
    const auto rate_at = [&](double seconds) {
      double sum = 0;
      for (const ScenarioModel& m : s->models) {
        double own = 0;
        for (const RateStep& step : m.rate)
          if (step.at <= from_seconds(seconds)) own = step.requests_per_s;
        sum += own;
      }
      return sum;
    };
    EXPECT_EQ(rate_at(9.5), 0);
    for (int active = 1; active <= copies; active += 1 + copies / 40)
      EXPECT_NEAR(rate_at(10 + active - 0.5), 1000, 25) << active << " of " << copies;
    EXPECT_NEAR(rate_at(10 + copies), 1000, 1e-6) << "in the end all have an equal part";
  }
}

TEST(Scenario, SaysWhichKeysDoNotGoTogether) {
  const std::string m = "[[models]]\nname = \"m\"\nslo_ms = 10\nlatency = { alpha_ms = 1 }\n";
  struct Case {
    std::string models, rest, words;
  };
  for (const Case& c : {
           Case{m + "rate = 3\nsteps = [[0, 5]]\n", "", "steps or rate, not both"},
           Case{m + "steps = []\n", "", "steps must be"},
           Case{m + "steps = [[0, 5]]\nactivate_every_s = 1\n", "", "steps or activate_every_s"},
           Case{m + "activate_every_s = 1\n", "[load]\nrate = 5\n", "needs rate"},
           Case{m + "activate_every_s = 1\nrate = 5\nprocess = \"closed:3\"\n", "", "no closed loop"},
           Case{m + "min_ratio = 3\nrate = 1\n", "", "min_ratio needs csv"},
           Case{m, "[load]\nrate = 5\nfunction_skew = 1\n", "needs process = \"trace:FILE\""},
           Case{m, "[load]\nprocess = \"trace:\"\n", "needs the file"},
           Case{m + "rat = 5\n", "", "rate"},
           Case{"[[models]]\nname = \"m\"\nslo_ms = 10\nrate = 1\nlatency = { alpha_ms = 1, table_ms = { 1 = "
                "9 } }\n",
                "", "table_ms and alpha_ms do not go together"},
           Case{"[[models]]\nname = \"m\"\nslo_ms = 10\nrate = 1\nlatency = { alpha_ms = 1, c1 = 0.5 }\n", "",
                "c1 and alpha_ms do not go together"},
           Case{"[[models]]\nname = \"m\"\nslo_ms = 10\nrate = 1\nlatency = { table_ms = { 1 = 5, 01 = 6 } "
                "}\n",
                "", "the batch size 1 twice"},
           Case{m + "class = \"gold\"\nrate = 1\n", "", "best-effort"},
           Case{"[[models]]\nname = \"m\"\nslo_ms = 10\nrate = 1\nlatency = { csv = \"x.csv\" }\n", "",
                "needs the row's name"},
       }) {
    const auto s = parsed(c.models, c.rest);
    ASSERT_FALSE(s) << c.models << c.rest;
    EXPECT_THAT(s.error().message, HasSubstr(c.words));
    EXPECT_THAT(s.error().message, HasSubstr("s.toml"));
  }
}

TEST(Scenario, WithoutADeadlineAndWithAClass) {
  const auto s = parsed(
      "[[models]]\nname = \"m\"\nslo_ms = inf\nclass = \"best-effort\"\nrate = 1\nlatency = { alpha_ms = 1 "
      "}\n");
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->models[0].slo, Duration::max());
  EXPECT_EQ(s->models[0].cls, Class::best_effort);
  EXPECT_EQ(scaling_models(*s), 0U);
}

}  // namespace
}  // namespace carillon::workload
