#include "carillon/roles/wanted_news.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::roles {
namespace {

using Figures = std::vector<provision::WantedFigures>;

constexpr TimePoint at_time(Duration since) {
  return TimePoint{since};
}
Figures wants(int devices) {
  return {{.group = "0", .wanted = devices, .present = 1}};
}
std::string why(const WantedNews& news, Duration at) {
  const auto wanted = news.wanted(at_time(at));
  return wanted ? "" : wanted.error().message;
}

TEST(WantedNews, WithoutALeaderNobodyKnows) {
  WantedNews news;
  EXPECT_EQ(news.wanted(at_time(1s)).error(),
            (Error{ErrorCode::unavailable, "no scheduler is known to lead"}));
  EXPECT_TRUE(news.own().empty());
  EXPECT_TRUE(news.last().empty());
}

TEST(WantedNews, ALeaderGivesOutWhatItCounted) {
  WantedNews news;
  news.counted(wants(3), at_time(1s));
  EXPECT_TRUE(news.last().empty()) << "it does not lead";
  news.leads(true, "s1");
  news.counted({}, at_time(1s));
  EXPECT_EQ(
      why(news, 1s),
      "this scheduler leads, and has no number of devices yet: a worker's device must be there, and the "
      "load be counted for some seconds");
  news.counted(wants(3), at_time(2s));
  EXPECT_EQ(news.wanted(at_time(2s)), wants(3));
  EXPECT_EQ(news.own(), wants(3));
  news.told("s2", wants(9), at_time(3s));
  EXPECT_EQ(news.wanted(at_time(3s)), wants(3)) << "another leads no more";
}

TEST(WantedNews, WhoeverFollowsPassesOnWhatTheLeaderTold) {
  WantedNews news;
  news.leads(false, "s1");
  EXPECT_EQ(why(news, 0s), "the scheduler 's1' leads, and has told this one no number of devices yet");
  news.told("s2", wants(8), at_time(1s));
  EXPECT_TRUE(news.last().empty()) << "who does not lead says nothing of it";
  news.told("s1", wants(4), at_time(1s));
  EXPECT_EQ(news.wanted(at_time(11s)), wants(4));
  EXPECT_TRUE(news.own().empty()) << "two that give it out would be added";
  EXPECT_EQ(why(news, 31s), "the scheduler 's1' leads, and has told this one no number of devices for 30 s");
  EXPECT_EQ(news.last(), wants(4));
  news.told("s1", {}, at_time(32s));
  EXPECT_EQ(news.last(), wants(4)) << "a leader that has just begun has no number";
}

TEST(WantedNews, TheNextLeaderBeginsWithTheLastNumber) {
  WantedNews news;
  news.leads(false, "s1");
  news.told("s1", wants(6), at_time(10s));
  news.leads(true, "s2");
  EXPECT_EQ(news.last(), wants(6));
  EXPECT_EQ(news.wanted(at_time(12s)), wants(6)) << "until it has looked";
  EXPECT_TRUE(news.own().empty());
  news.counted(wants(7), at_time(13s));
  EXPECT_EQ(news.own(), wants(7));
  // And it follows again.
  news.leads(false, "s1");
  EXPECT_TRUE(news.own().empty());
  EXPECT_EQ(news.wanted(at_time(14s)), wants(7));
  news.leads(true, "s2");
  EXPECT_TRUE(news.own().empty()) << "what it counted when it led before is not of now";
  news.leads(false, "");
  EXPECT_EQ(news.last(), wants(7));
  EXPECT_EQ(why(news, 60s), "no scheduler is known to lead");
}

}  // namespace
}  // namespace carillon::roles
