#include "carillon/cluster/protocols.h"

#include <gtest/gtest.h>

namespace carillon::cluster {
namespace {

TEST(Protocols, MembersSettleOnTheNewestThatBothSpeak) {
  const struct {
    Protocols ours, theirs;
    std::uint32_t want;
  } rows[] = {
      {{1, 1}, {1, 1}, 1}, {{1, 2}, {1, 1}, 1},                       // N beside N-1
      {{2, 3}, {1, 2}, 2}, {{2, 3}, {2, 3}, 3}, {{1, 4}, {2, 3}, 3},  // one that speaks more on both sides
      {{2, 3}, {2, 2}, 2},
  };
  for (const auto& [ours, theirs, want] : rows) {
    EXPECT_EQ(settle({"a", ours}, {"b", theirs}).value_or(0), want)
        << to_text(ours) << ", " << to_text(theirs);
    EXPECT_EQ(settle({"b", theirs}, {"a", ours}).value_or(0), want)
        << to_text(ours) << ", " << to_text(theirs);
  }
}

TEST(Protocols, BeyondNeighboursTheOlderOneIsToBeUpgraded) {
  EXPECT_EQ(
      settle({"'s1'", {3, 4}}, {"'w9'", {1, 2}}).error().message,
      "'w9' speaks protocols 1 to 2, and 's1' speaks protocols 3 to 4: upgrade 'w9' to a build that speaks "
      "protocol 3");
  EXPECT_EQ(settle({"'s1'", {1, 1}}, {"'w9'", {2, 3}}).error().message,
            "'w9' speaks protocols 2 to 3, and 's1' speaks protocol 1: upgrade 's1' to a build that speaks "
            "protocol 2");
  EXPECT_EQ(settle({"a", {1, 1}}, {"b", {0, 0}}).error().message,
            "b speaks protocol 0, and a speaks protocol 1: upgrade b to a build that speaks protocol 1");
}

TEST(Protocols, ThisBuildSpeaksTheVersionBeforeItsNewest) {
  EXPECT_TRUE(own_protocols.newest == 1 || own_protocols.newest == own_protocols.oldest + 1);
}

TEST(Protocols, WhatOthersTellMayBeNoRange) {
  for (const Protocols& told : {Protocols{1, 1}, Protocols{2, 3}}) EXPECT_TRUE(told.is_range());
  for (const Protocols& told : {Protocols{0, 0}, Protocols{0, 2}, Protocols{3, 2}})
    EXPECT_FALSE(told.is_range());
}

TEST(Protocols, AreReadFromText) {
  EXPECT_EQ(parse_protocols("2").value_or(Protocols{}), (Protocols{2, 2}));
  EXPECT_EQ(parse_protocols("3-4").value_or(Protocols{}), (Protocols{3, 4}));
  for (const char* text : {"", "-", "1-", "-1", "0-1", "2-1", "1-2-3", "a", "1 - 2", "4294967296"})
    EXPECT_EQ(parse_protocols(text).error().message,
              "'" + std::string(text) + "' is no range of protocols, such as 1-2");
}

TEST(Protocols, ABuildIsShortAndPrintable) {
  for (const char* text : {"", "0.1.0", "0.1.0 of Monday"}) EXPECT_TRUE(is_build(text)) << text;
  EXPECT_TRUE(is_build(std::string(64, 'a')));
  EXPECT_FALSE(is_build(std::string(65, 'a')));
  for (const char* text : {"\n", "a\x1b[1m", "\x7f", "\xc3\xa4"}) EXPECT_FALSE(is_build(text)) << text;
}

}  // namespace
}  // namespace carillon::cluster
