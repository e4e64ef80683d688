#include "carillon/workload/study.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::workload {
namespace {

using ::testing::HasSubstr;

class StudyFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() / ("carillon_study_" + std::string(test->name()));
    std::filesystem::create_directories(folder_);
    write("c.csv", "trial,epoch,seconds,metric\na,1,2,0.5\na,2,3,0.6\nb,1,4,nan\nb,2,5,\nshort,1,1,0.9\n");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  Result<Study> parse(const std::string& text, std::optional<std::uint64_t> seed = {}) {
    return parse_study(text, folder_ / "t.toml", seed);
  }
  // What is wrong with a study of this [study] and [trial].
  std::string wrong(const std::string& study, const std::string& trial,
                    const std::string& cluster = "[cluster]\ndevices = 4\n") {
    const auto read = parse(cluster + "[study]\n" + study + "\n[trial]\n" + trial + "\n");
    return read ? "nothing" : read.error().message;
  }
  std::filesystem::path folder_;
};

TEST_F(StudyFiles, ReadsAllKeysOfTheFormat) {
  const auto study = parse(R"(
name = "all"
seed = 7
scheduler = "static"
[[devices]]
count = 2
speed = 2
memory = "8 GB"
supply = [[0, 0.5], [10, 1]]
[[devices]]
[study]
algorithm = "asha"
trials = 9
epochs = 2
grace = 1
eta = 2
concurrency = 4
target = 0.6
mode = "max"
[trial]
curves = "c.csv"
noise = 0.1
iterations = 10
alpha = 1.1
beta = 1.05
c = 2
d = 4
threshold = 0.1
move_s = 0.5
memory = "1 GB"
ephemeral = "2 GB"
told = ["move"]
)");
  ASSERT_TRUE(study) << study.error().message;
  EXPECT_EQ(study->name, "all");
  EXPECT_EQ(study->seed, 7U);
  EXPECT_EQ(study->scheduler, "static");
  ASSERT_EQ(study->devices.size(), 3U);
  EXPECT_EQ(study->devices[1].speed, 2);
  EXPECT_EQ(study->devices[1].supply.size(), 2U);
  EXPECT_EQ(study->devices[1].memory.count, 8'000'000'000U);
  EXPECT_EQ(study->devices[2].speed, 1);
  EXPECT_EQ(study->algorithm, StudyAlgorithm::asha);
  EXPECT_EQ(study->concurrency, 4U);
  EXPECT_EQ(study->target, 0.6);
  ASSERT_EQ(study->curves.size(), 2U);  // the short one cannot be asked for two epochs
  EXPECT_EQ(study->curves[0].epoch[1], from_seconds(3));
  EXPECT_TRUE(std::isnan(study->curves[1].metric[0]) && std::isnan(study->curves[1].metric[1]));
  EXPECT_EQ(study->d, 4);
  EXPECT_EQ(study->move, from_seconds(0.5));
  EXPECT_EQ(study->ephemeral.count, 2'000'000'000U);
  EXPECT_FALSE(study->tells_seconds || study->tells_overheads);
  EXPECT_TRUE(study->tells_move);
}

TEST_F(StudyFiles, OfTheWorkOrderIsRight) {
  const auto study = parse(R"(
name = "table3_2"
seed = 1
[cluster]
devices = 32
[study]
algorithm = "halving"
rungs = [[81, 1], [27, 2], [9, 6], [3, 18]]
[trial]
epoch_s = 15.15
alpha = 1.1
beta = 1.05
c = 2
d = 4
move_s = 0.1
memory = "1 GB"
)",
                           5);
  ASSERT_TRUE(study) << study.error().message;
  EXPECT_EQ(study->seed, 5U);
  EXPECT_EQ(study->trials, 81U);
  EXPECT_EQ(study->epochs, 27U);
  EXPECT_EQ(study->rungs[3].epochs, 18U);
}

TEST_F(StudyFiles, SaysWhatIsWrongAndWhere) {
  const std::string halving = "algorithm = \"halving\"\nrungs = [[4, 1]]";
  EXPECT_EQ(wrong(halving, "epoch_s = 1"), "nothing");
  EXPECT_EQ(wrong("trials = [4, 4]", "c = 2"), "nothing");
  const struct {
    std::string study, trial, says;
  } rows[] = {
      {"trials = []", "", "study.trials is empty"},
      {"trials = [4, 0]", "", "seconds from 1e-06"},
      {"trials = [4, -1]", "", "seconds from 1e-06"},
      {"trials = [4, nan]", "", "seconds from 1e-06"},
      {"trials = [4]\ntarget = 1", "", "target does not go with trials as a list"},
      {"algorithm = \"lottery\"", "epoch_s = 1",
       "there are grid, halving, hyperband, syncbohb, asha, bohb and pbt"},
      {"algorithm = \"grid\"\ntrials = 3", "epoch_s = 1", "study.epochs must say"},
      {"algorithm = \"grid\"\nepochs = 3", "epoch_s = 1", "study.trials must say"},
      {"algorithm = \"grid\"\nepochs = 0\ntrials = 3", "epoch_s = 1", "study.epochs must be a whole number"},
      {"algorithm = \"grid\"\nepochs = 1\ntrials = 100001", "epoch_s = 1",
       "study.trials must be a whole number"},
      {"algorithm = \"grid\"\nepochs = 1\ntrials = 2\nrungs = [[1, 1]]", "epoch_s = 1",
       "rungs does not go with"},
      {"algorithm = \"halving\"\nrungs = []", "epoch_s = 1", "study.rungs must be"},
      {"algorithm = \"halving\"\nrungs = [[1, 1], [2, 1]]", "epoch_s = 1", "trials not rising"},
      {halving, "", "trial needs epoch_s, or curves"},
      {halving, "epoch_s = 0", "trial.epoch_s must be a number"},
      {halving, "epoch_s = nan", "trial.epoch_s must be a number"},
      {halving, "epoch_s = 1\nalpha = 0.9", "trial.alpha is 0.9, but must be at least 1"},
      {halving, "epoch_s = 1\nalpha = 2\nc = 2", "below 2 = c/(c-1)"},
      {halving, "epoch_s = 1\nbeta = 1.25\nd = 4", "below 1.25 = 1 + 1/d"},
      {halving, "epoch_s = 1\nalpha = nan", "trial.alpha"},
      {halving, "epoch_s = 1\nc = 0", "trial.c must be a whole number"},
      {halving, "epoch_s = 1\nmove_s = -1", "trial.move_s"},
      {halving, "epoch_s = 1\ntold = [\"all\"]", "trial.told must be a list"},
      {halving, "epoch_s = 1\ncolour = 1", "has no key 'colour'"},
      {halving + "\ntarget = 1", "epoch_s = 1", "study.target needs trial.curves"},
      {halving, "curves = \"none.csv\"", "none.csv"},
      {"algorithm = \"grid\"\ntrials = 1\nepochs = 3", "curves = \"c.csv\"",
       "none of the 3 curves has the 3 epochs"},
  };
  for (const auto& [study, trial, says] : rows)
    EXPECT_THAT(wrong(study, trial), HasSubstr(says)) << study << "\n" << trial;
  EXPECT_THAT(wrong(halving, "epoch_s = 1\nmemory = \"9 GB\"", "[cluster]\ndevices = 2\nmemory = \"8 GB\"\n"),
              HasSubstr("which no device has"));
  EXPECT_THAT(wrong(halving, "epoch_s = 1", ""), HasSubstr("needs [cluster]"));
  EXPECT_THAT(wrong(halving, "epoch_s = 1", "[cluster]\ndevices = 0\n"), HasSubstr("cluster.devices"));
  EXPECT_THAT(wrong(halving, "epoch_s = 1", "[cluster]\ndevices = 1\nsupply = [[5, 1], [1, 1]]\n"),
              HasSubstr("ascending in time"));
  EXPECT_THAT(wrong(halving, "epoch_s = 1", "[cluster]\ndevices = 1\nsupply = [[5, 2]]\n"),
              HasSubstr("shares"));
  EXPECT_THAT(wrong(halving, "epoch_s = 1"), "nothing");
  EXPECT_THAT(parse("[study").error().message, HasSubstr("t.toml:1"));
}

TEST_F(StudyFiles, CurvesThatAreWrongAreErrors) {
  const auto of = [&](const std::string& rows) {
    write("w.csv", rows);
    return wrong("algorithm = \"grid\"\ntrials = 1\nepochs = 1", "curves = \"w.csv\"");
  };
  const std::string header = "trial,epoch,seconds,metric\n";
  EXPECT_THAT(of("trial,seconds\n"), HasSubstr("w.csv:1: curves must have the columns"));
  EXPECT_THAT(of(header), HasSubstr("no rows"));
  EXPECT_THAT(of(header + "a,1,1\n"), HasSubstr("w.csv:2: 3 cells"));
  EXPECT_THAT(of(header + "a,2,1,0\n"), HasSubstr("has epoch 2 where 1 is next"));
  EXPECT_THAT(of(header + "a,1,0,0\n"), HasSubstr("seconds must be"));
  EXPECT_THAT(of(header + "a,1,1,good\n"), HasSubstr("metric is 'good'"));
  EXPECT_THAT(of(header + "a,1,1,-0.5\n"), "nothing");
}

TEST_F(StudyFiles, AreKnownByTheirTable) {
  write("s.toml", "[study]\n");
  write("j.toml", "[[jobs]]\n");
  EXPECT_TRUE(has_study(folder_ / "s.toml"));
  EXPECT_FALSE(has_study(folder_ / "j.toml"));
  EXPECT_FALSE(has_study(folder_ / "none.toml"));
}

}  // namespace
}  // namespace carillon::workload
