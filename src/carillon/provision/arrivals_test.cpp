#include "carillon/provision/arrivals.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace carillon::provision {
namespace {

// Mean and squared coefficient of variation of the gaps.
std::pair<double, double> gaps_of(const Arrivals& arrivals) {
  const auto& t = arrivals.times;
  const auto count = static_cast<double>(t.size() - 1);
  double sum = 0, squares = 0;
  for (std::size_t i = 1; i < t.size(); ++i) {
    sum += t[i] - t[i - 1];
    squares += (t[i] - t[i - 1]) * (t[i] - t[i - 1]);
  }
  const double mean = sum / count;
  return {mean, squares / count / (mean * mean) - 1};
}

TEST(Arrivals, ProcessesHaveTheirVariation) {
  const struct {
    const char* text;
    double variation;
  } rows[] = {{"constant", 0}, {"poisson", 1}, {"gamma:0.5", 2}, {"gamma:4", 0.25}};
  for (const auto& [text, variation] : rows) {
    const auto arrivals = read_arrivals(text);
    ASSERT_TRUE(arrivals) << text;
    EXPECT_EQ(arrivals->text, text);
    EXPECT_FALSE(arrivals->recorded);
    EXPECT_EQ(arrivals->times.front(), 0);
    EXPECT_TRUE(std::is_sorted(arrivals->times.begin(), arrivals->times.end()));
    const auto [mean, seen] = gaps_of(*arrivals);
    EXPECT_NEAR(mean, 1, 1e-9) << text;
    EXPECT_NEAR(seen, variation, 0.03) << text;
    EXPECT_EQ(read_arrivals(text)->times, arrivals->times) << "the same text gives the same times";
  }
}

std::string hundred(const std::string& more = "") {
  std::string text = "# seconds\n\n";
  for (int i = 0; i < 100; ++i) text += std::to_string(5 + 0.25 * i) + (i % 2 == 0 ? "\r\n" : " \n");
  return text + more;
}

TEST(Arrivals, RecordedTimesAreTakenWithAMeanGapOfOne) {
  const auto read = parse_arrival_times(hundred("30\n30"), "f.txt");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(read->recorded);
  EXPECT_EQ(read->text, "f.txt");
  ASSERT_EQ(read->times.size(), 102u);
  EXPECT_EQ(read->times.front(), 0);
  EXPECT_NEAR(read->times.back(), 101, 1e-9);
  EXPECT_EQ(read->times[100], read->times[101]) << "two at once";
  EXPECT_NEAR(read->times[2] / read->times[1], 2, 1e-9);
}

TEST(Arrivals, SaysWhatIsWrong) {
  std::string same, many;
  for (int i = 0; i < 200; ++i) same += "3\n";
  for (int i = 0; i <= 1'000'000; ++i) many += "0\n";
  const struct {
    std::string text;
    const char* words;
  } rows[] = {
      {"", "f.txt: has 0 arrival times, but should have at least 100"},
      {"1\n2\n3", "f.txt: has 3 arrival times, but should have at least 100"},
      {hundred("12\n"),
       "f.txt:103: is 12, which is before the time above; times should be in ascending order"},
      {hundred("soon\n"), "f.txt:103: is 'soon', but should be an arrival time in seconds, such as 12.75"},
      {hundred("nan\n"), "f.txt:103: is 'nan', but should be an arrival time"},
      {hundred("inf\n"), "f.txt:103: is 'inf', but should be an arrival time"},
      {hundred("1e400\n"), "f.txt:103: is '1e400', but should be an arrival time"},
      {hundred("40,3\n"), "f.txt:103: is '40,3', but should be an arrival time"},
      {"HashOwner,HashApp,HashFunction,Trigger,480\n",
       "f.txt:1: holds invocations a minute, but should hold"},
      {same, "f.txt: all arrivals are within a nanosecond, so there is no rate"},
      {many, "f.txt:1000001: is one more than 1000000 arrival times; take a part of them"},
  };
  for (const auto& [text, words] : rows) {
    const auto read = parse_arrival_times(text, "f.txt");
    ASSERT_FALSE(read) << words;
    EXPECT_NE(read.error().message.find(words), std::string::npos) << read.error().message;
  }
  for (const char* text :
       {"gamma:0", "gamma:-1", "gamma:nan", "gamma:inf", "gamma:", "gamma:1x", "gamma:1e9"}) {
    const auto read = read_arrivals(text);
    ASSERT_FALSE(read) << text;
    EXPECT_NE(read.error().message.find("the shape should be a number in 0.1..1000, such as gamma:0.5"),
              std::string::npos)
        << read.error().message;
  }
  const auto misspelt = read_arrivals("posson");
  ASSERT_FALSE(misspelt);
  EXPECT_NE(
      misspelt.error().message.find(
          "posson: no such file; it should be constant, poisson, gamma:SHAPE or a file of arrival times"),
      std::string::npos)
      << misspelt.error().message;
}

}  // namespace
}  // namespace carillon::provision
