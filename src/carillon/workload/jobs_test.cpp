#include "carillon/workload/jobs.h"

#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::workload {
namespace {

using ::testing::HasSubstr;

const std::string jobs_device = "[device]\nmemory = \"16 GB\"\n";
const std::string one_job =
    "[[jobs]]\nname = \"j\"\niterations = 4\niteration_ms = 10\npersistent = \"1 GB\"\nephemeral = \"2 "
    "GB\"\n";

// A folder for the files of a test, gone after it.
class JobFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() / ("carillon_jobs_" + std::string(test->name()));
    std::filesystem::create_directories(folder_);
    write("w.csv",
          "model,batch,iteration_ms,startup_s,peak_mb,persistent_mb\nsmall,25,10,2,700,100\nlarge,50,300,40,"
          "9000,800\n");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  Result<Jobs> parse(const std::string& text, std::optional<std::uint64_t> seed = {}) {
    return parse_jobs(text, folder_ / "t.toml", seed);
  }
  std::filesystem::path folder_;
};

TEST_F(JobFiles, ReadsAllKeysOfTheFormat) {
  const auto jobs = parse(R"(
name = "all"
seed = 7
scheduler = "fair"
length_s = 100
[device]
memory = "16 GB"
capacity = [[10, "8 GB"], [20, "16 GB"]]
wanted = [[1, 2], [3, 4.5]]
foretold = true
switch_us = 10
[policy]
quantum_ms = 20
longest_wait_s = 60
hang_after_s = 5
evict_hanging = true
assumed_persistent = "10 MB"
assumed_ephemeral = "20 MB"
[[jobs]]
name = "late"
arrival_s = 5
iterations = 3
iteration_ms = 100
startup_s = 1.5
starts = "admitted"
persistent = "1 GB"
peak = "3 GB"
weight = 2
known = ["memory"]
utilization = 0.5
noise = 0.1
drift = [[1, 2.0]]
dies_after = 2
[[jobs]]
name = "pair"
model = "small"
copies = 2
arrival_s = [0, 1]
csv = "w.csv"
row = "small_25"
duration_s = 1
remaining_factor = 2
hangs_after = 5
grows = { after = 3, times = 10 }
requests = { per_s = 2, process = "uniform" }
)");
  ASSERT_TRUE(jobs) << jobs.error().message;
  EXPECT_EQ(jobs->name, "all");
  EXPECT_EQ(jobs->seed, 7U);
  EXPECT_EQ(jobs->scheduler, "fair");
  EXPECT_EQ(jobs->length, 100s);
  const JobsDevice& device = jobs->device;
  EXPECT_EQ(device.memory.count, 16'000'000'000U);
  ASSERT_EQ(device.capacity.size(), 2U);
  EXPECT_EQ(device.capacity[0].at, TimePoint{} + 10s);
  EXPECT_EQ(device.capacity[0].memory.count, 8'000'000'000U);
  ASSERT_EQ(device.wanted.size(), 2U);
  EXPECT_EQ(device.wanted[1].until, TimePoint{} + 4500ms);
  EXPECT_TRUE(device.foretold);
  EXPECT_EQ(device.switching, 10us);
  EXPECT_EQ(jobs->policy.quantum, 20ms);
  EXPECT_EQ(jobs->policy.longest_wait, 60s);
  EXPECT_EQ(jobs->policy.hang_after, 5s);
  EXPECT_EQ(jobs->policy.evict_hanging, true);
  EXPECT_EQ(jobs->policy.assumed_persistent->count, 10'000'000U);
  EXPECT_EQ(jobs->policy.assumed_ephemeral->count, 20'000'000U);
  ASSERT_EQ(jobs->jobs.size(), 3U);  // by arrival
  const Job& pair = jobs->jobs[0];
  EXPECT_EQ(pair.name, "pair-0");
  EXPECT_EQ(pair.model, "small");
  EXPECT_EQ(pair.arrival, TimePoint{});
  EXPECT_EQ(pair.startup, 2s);
  EXPECT_EQ(pair.iteration, 10ms);
  EXPECT_EQ(pair.iterations, 100U);
  EXPECT_EQ(pair.persistent.count, 100'000'000U);
  EXPECT_EQ(pair.ephemeral.count, 600'000'000U);
  EXPECT_TRUE(pair.tells_memory && pair.tells_remaining);
  EXPECT_EQ(pair.remaining_factor, 2);
  EXPECT_EQ(pair.hangs_after, 5U);
  EXPECT_EQ(pair.grows->after, 3U);
  EXPECT_EQ(pair.grows->times, 10);
  EXPECT_EQ(pair.requests->per_s, 2);
  EXPECT_EQ(pair.requests->process.kind, ArrivalKind::uniform);
  EXPECT_EQ(jobs->jobs[1].arrival, TimePoint{} + 1s);
  const Job& late = jobs->jobs[2];
  EXPECT_EQ(late.name, "late");
  EXPECT_EQ(late.model, "late");
  EXPECT_EQ(late.startup, 1500ms);
  EXPECT_TRUE(late.starts_admitted);
  EXPECT_FALSE(pair.starts_admitted);
  EXPECT_EQ(late.ephemeral.count, 2'000'000'000U);
  EXPECT_EQ(late.weight, 2);
  EXPECT_TRUE(late.tells_memory);
  EXPECT_FALSE(late.tells_remaining);
  EXPECT_EQ(late.utilization, 0.5);
  EXPECT_EQ(late.noise, 0.1);
  EXPECT_EQ(late.drift.at(0).after, 1U);
  EXPECT_EQ(late.drift.at(0).factor, 2);
  EXPECT_EQ(late.dies_after, 2U);
}

TEST_F(JobFiles, LeftOutKeysHaveTheirDefaults) {
  const auto jobs = parse(jobs_device + one_job);
  ASSERT_TRUE(jobs) << jobs.error().message;
  EXPECT_EQ(jobs->name, "t");
  EXPECT_EQ(jobs->seed, 1U);
  EXPECT_EQ(jobs->scheduler, "best");
  EXPECT_FALSE(jobs->length || jobs->device.busy || jobs->device.foretold);
  EXPECT_EQ(jobs->device.switching, 3us);
  const Job& job = jobs->jobs.at(0);
  EXPECT_EQ(job.name, "j");
  EXPECT_EQ(job.arrival, TimePoint{});
  EXPECT_EQ(job.startup, 0s);
  EXPECT_EQ(job.utilization, 1);
  EXPECT_EQ(job.weight, 1);
  EXPECT_FALSE(job.requests || job.grows || job.dies_after || job.hangs_after);
}

TEST_F(JobFiles, DurationsAddUpToTheTotalAndSpreadAsSigmaSays) {
  const auto jobs =
      parse(jobs_device +
            "[[jobs]]\nname = \"j\"\ncopies = 2000\niteration_ms = 1\npersistent = 1\nephemeral = 1\n"
            "duration_s = { total = 20000, sigma = 1.4 }\n");
  ASSERT_TRUE(jobs) << jobs.error().message;
  double sum = 0, logs = 0, squares = 0;
  for (const Job& job : jobs->jobs) {
    const double s = to_seconds(job.iteration) * static_cast<double>(job.iterations);
    sum += s;
    logs += std::log(s);
    squares += std::log(s) * std::log(s);
  }
  EXPECT_NEAR(sum, 20000, 5);
  const double mean = logs / 2000;
  EXPECT_NEAR(std::sqrt(squares / 2000 - mean * mean), 1.4, 0.07);
}

TEST_F(JobFiles, RowsAndArrivalsAreDrawnByTheSeedAlone) {
  const std::string text =
      jobs_device +
      "[[jobs]]\nname = \"j\"\ncopies = 400\ncsv = \"w.csv\"\nduration_s = 5\n"
      "arrivals = { over_s = 100 }\n"
      "[[jobs]]\nname = \"k\"\ncopies = 400\ncsv = \"w.csv\"\nrow = \"large_50\"\nduration_s = 5\n"
      "arrivals = { process = \"gamma:0.5\", rate = 4 }\n";
  const auto once = parse(text), again = parse(text), other = parse(text, 2);
  ASSERT_TRUE(once && again && other) << once.error().message;
  std::map<std::string, int> models;
  int differ = 0;
  for (std::size_t i = 0; i < once->jobs.size(); ++i) {
    EXPECT_EQ(once->jobs[i].name, again->jobs[i].name);
    EXPECT_EQ(once->jobs[i].arrival, again->jobs[i].arrival);
    EXPECT_EQ(once->jobs[i].model, again->jobs[i].model);
    differ += once->jobs[i].arrival != other->jobs[i].arrival ? 1 : 0;
    if (once->jobs[i].name.starts_with("j")) ++models[once->jobs[i].model];
    if (i > 0) {
      EXPECT_LE(once->jobs[i - 1].arrival, once->jobs[i].arrival);
    }
  }
  EXPECT_GT(differ, 700);
  EXPECT_NEAR(models["small_25"], 200, 50);
  EXPECT_EQ(models["small_25"] + models["large_50"], 400);
  // 400 jobs at 4 a second.
  EXPECT_NEAR(to_seconds(once->jobs.back().arrival - TimePoint{}), 100, 40);
}

TEST_F(JobFiles, TracesHaveAJobInEachRow) {
  write("jobs.csv",
        "name,row,arrival_s,duration_s,iterations,weight,startup_s\n"
        "first,small_25,2,1,,3,\n,large_50,0.5,,7,,0\n");
  const auto jobs = parse(jobs_device + "[[jobs]]\ntrace = \"jobs.csv\"\ncsv = \"w.csv\"\n");
  ASSERT_TRUE(jobs) << jobs.error().message;
  ASSERT_EQ(jobs->jobs.size(), 2U);
  EXPECT_EQ(jobs->jobs[0].name, "job-1");
  EXPECT_EQ(jobs->jobs[0].model, "large_50");
  EXPECT_EQ(jobs->jobs[0].arrival, TimePoint{} + 500ms);
  EXPECT_EQ(jobs->jobs[0].iterations, 7U);
  EXPECT_EQ(jobs->jobs[0].iteration, 300ms);
  EXPECT_EQ(jobs->jobs[0].startup, 0s);
  EXPECT_EQ(jobs->jobs[1].name, "first");
  EXPECT_EQ(jobs->jobs[1].iterations, 100U);
  EXPECT_EQ(jobs->jobs[1].weight, 3);
  EXPECT_EQ(jobs->jobs[1].startup, 2s);
}

TEST_F(JobFiles, WhatIsWrongIsSaidWithItsPlaceAndWhatWouldBeRight) {
  write("empty.csv", "arrival_s,duration_s\n");
  write("column.csv", "arrival_s,colour\n1,red\n");
  write("cells.csv", "arrival_s,duration_s\n1\n");
  write("number.csv", "arrival_s,duration_s\n1,soon\n");
  write("negative.csv", "arrival_s,duration_s\n-1,1\n");
  write("no_arrival.csv", "duration_s\n1\n");
  write("no_row.csv", "arrival_s,duration_s,row\n1,1,none\n");
  const std::string traced =
      jobs_device + "[[jobs]]\niteration_ms = 1\npersistent = 1\nephemeral = 1\ncsv = \"w.csv\"\ntrace = ";
  const struct {
    std::string text;
    std::vector<std::string> said;
  } cases[] = {
      {"[[jobs]]\n", {"t.toml", "[device]", "memory"}},
      {"[device]\n" + one_job, {"t.toml:1", "device.memory", "\"16 GB\""}},
      {"[device]\nmemory = 0\n" + one_job, {"t.toml:2", "device.memory", "above 0"}},
      {"[device]\nmemory = \"much\"\n" + one_job, {"t.toml:2", "'much'"}},
      {jobs_device, {"at least one [[jobs]]"}},
      {jobs_device + "[jobs]\nname = \"a\"\n", {"t.toml:3", "at least one [[jobs]]"}},
      {jobs_device + "colour = 1\n" + one_job, {"t.toml:3", "no key 'colour'", "switch_us"}},
      {jobs_device + one_job + "colour = 1\n", {"t.toml:9", "no key 'colour'", "iteration_ms"}},
      {jobs_device + one_job + "copies = 0\n", {"jobs.copies", "from 1 to 100000"}},
      {jobs_device + one_job + "copies = 200000\n", {"jobs.copies", "from 1 to 100000"}},
      {jobs_device + one_job + "duration_s = 4\n", {"iterations or duration_s, not both"}},
      {jobs_device + one_job + "peak = \"4 GB\"\n", {"ephemeral or peak"}},
      {jobs_device + one_job + "weight = 0\n", {"jobs.weight", "1e-06 to 1000"}},
      {jobs_device + one_job + "utilization = 1.5\n", {"jobs.utilization", "to 1"}},
      {jobs_device + one_job + "known = [\"all\"]\n", {"jobs.known", "\"remaining\" and \"memory\""}},
      {jobs_device + one_job + "starts = \"soon\"\n", {"jobs.starts", "\"admitted\""}},
      {jobs_device + one_job + "drift = [[5, 2], [5, 3]]\n", {"jobs.drift", "ascending"}},
      {jobs_device + one_job + "grows = 10\n", {"{ after, times }"}},
      {jobs_device + one_job + "requests = { per_s = 0 }\n", {"requests.per_s"}},
      {jobs_device + one_job + "requests = { process = \"closed:4\" }\n", {"requests.process", "poisson"}},
      {jobs_device + one_job + "arrivals = { over_s = 4, rate = 1 }\n", {"over_s does not go with"}},
      {jobs_device + one_job + "arrivals = { process = \"poisson\" }\n", {"{ process, rate }"}},
      {jobs_device + one_job + "arrival_s = [1, 2]\n", {"2 times for 1 jobs"}},
      {jobs_device + one_job + "row = \"small_25\"\n", {"row needs csv"}},
      {jobs_device + one_job + "csv = \"none.csv\"\n", {"cannot read the profile", "none.csv"}},
      {jobs_device + one_job + "csv = \"w.csv\"\nrow = \"huge\"\n", {"'w.csv' has no row 'huge'"}},
      {jobs_device + one_job + one_job, {"two jobs are named 'j'"}},
      {jobs_device + "[[jobs]]\nname = \"j\"\niterations = 1\niteration_ms = 10\nephemeral = 4\n",
       {"job 'j' needs persistent", "\"200 MB\""}},
      {jobs_device + "[[jobs]]\nname = \"j\"\niterations = 1\npersistent = 4\nephemeral = 4\n",
       {"job 'j' needs iteration_ms"}},
      {jobs_device + "[[jobs]]\nname = \"j\"\niteration_ms = 1\npersistent = 4\nephemeral = 4\n",
       {"job 'j' needs iterations or duration_s"}},
      {jobs_device + "[[jobs]]\nname = \"j\"\niterations = 1\niteration_ms = 1\npersistent = 9\npeak = 4\n",
       {"its peak (4 B) is below what stays (9 B)"}},
      {jobs_device +
           "[[jobs]]\nname = \"j\"\niteration_ms = 0.001\nduration_s = 1e9\npersistent = 9\nephemeral = 4\n",
       {"more than a billion iterations"}},
      {jobs_device +
           "[[jobs]]\nname = \"j\"\ncopies = 3\niteration_ms = 1\niterations = 500000000\npersistent = 9\n"
           "ephemeral = 4\n",
       {"1500000000 iterations in all", "a billion at most"}},
      {jobs_device + one_job + "trace = \"jobs.csv\"\n", {"iterations does not go with trace"}},
      {traced + "\"none.csv\"\n", {"cannot read the trace", "none.csv"}},
      {traced + "\"/\"\n", {"cannot read the trace '/'"}},
      {traced + "\"empty.csv\"\n", {"empty.csv", "has no rows"}},
      {traced + "\"column.csv\"\n", {"column.csv:1", "'colour'", "arrival_s"}},
      {traced + "\"cells.csv\"\n", {"cells.csv:2", "1 cells", "2"}},
      {traced + "\"number.csv\"\n", {"number.csv:2", "'soon'"}},
      {traced + "\"negative.csv\"\n", {"negative.csv:2", "'-1'"}},
      {traced + "\"no_arrival.csv\"\n", {"job 'job' needs arrival_s"}},
      {traced + "\"no_row.csv\"\n", {"'none', which no row of csv is called"}},
      {"[device]\nmemory = 9\ncapacity = [[4, \"8 B\"], [4, \"9 B\"]]\n" + one_job,
       {"t.toml:3", "ascending"}},
      {"[device]\nmemory = 9\nwanted = [[1, 3], [2, 4]]\n" + one_job, {"t.toml:3", "ascending and apart"}},
      {"[device]\nmemory = 9\nwanted = { gap_s = 4 }\n" + one_job, {"t.toml:3", "gap_s, use_s"}},
      {"[policy]\nquantum_ms = 0\n" + jobs_device + one_job, {"t.toml:2", "policy.quantum_ms", "from 1 to"}},
      {"seed = -1\n" + jobs_device + one_job, {"t.toml:1", "seed"}},
      {"[[jobs\n", {"t.toml:1"}},
  };
  for (const auto& [text, said] : cases) {
    const auto jobs = parse(text);
    ASSERT_FALSE(jobs) << text;
    EXPECT_EQ(jobs.error().code, ErrorCode::invalid_argument) << text;
    for (const std::string& part : said) EXPECT_THAT(jobs.error().message, HasSubstr(part)) << text;
  }
  EXPECT_EQ(read_jobs(folder_ / "none.toml").error().code, ErrorCode::not_found);
}

TEST_F(JobFiles, AFileIsKnownByItsJobs) {
  write("jobs.toml", jobs_device + one_job);
  write("scenario.toml", "[load]\nrate = 1\n[[models]]\nname = \"m\"\n");
  write("broken.toml", "[[jobs]\n");
  EXPECT_TRUE(has_jobs(folder_ / "jobs.toml"));
  EXPECT_FALSE(has_jobs(folder_ / "scenario.toml"));
  EXPECT_FALSE(has_jobs(folder_ / "broken.toml"));
  EXPECT_FALSE(has_jobs(folder_ / "none.toml"));
  EXPECT_FALSE(has_jobs(folder_));
}

}  // namespace
}  // namespace carillon::workload
