#include "carillon/cluster/upgrade.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Upgrade, EachMemberIsHeldAgainstTheBinary) {
  const struct {
    MemberBuild member;
    Protocols binary;
    std::optional<std::uint32_t> settles;
    const char* says;
  } rows[] = {
      {{.id = "w1", .protocols = Protocols{1, 1}, .build = "0.1.0"},
       {1, 2},
       1,
       "w1 speaks protocol 1: with this binary protocol 1"},
      {{.id = "w1", .protocols = Protocols{2, 3}, .build = "0.3.0"},
       {2, 3},
       3,
       "w1 speaks protocols 2 to 3: with this binary protocol 3"},
      {{.id = "w1", .protocols = Protocols{1, 1}},
       {1, 2},
       1,
       "w1 is too old to tell its version, and speaks protocol 1: with this binary protocol 1"},
      {{.id = "w1", .protocols = Protocols{1, 1}},
       {2, 3},
       std::nullopt,
       "w1 is too old to tell its version: w1 speaks protocol 1, and this binary speaks protocols 2 to 3: "
       "upgrade "
       "w1 to a build that speaks protocol 2"},
      {{.id = "w1", .protocols = Protocols{4, 5}, .build = "0.5.0"},
       {2, 3},
       std::nullopt,
       "w1 speaks protocols 4 to 5, and this binary speaks protocols 2 to 3: upgrade this binary to a build "
       "that "
       "speaks protocol 4"},
      {{.id = "w1"},
       {1, 1},
       std::nullopt,
       "w1 does not tell its version: it is not there, or too old to tell"},
  };
  for (const auto& [member, binary, settles, says] : rows) {
    const UpgradeVerdict verdict = judge(member, binary);
    EXPECT_EQ(verdict.settles, settles) << says;
    EXPECT_EQ(verdict.says, says);
  }
}

TEST(Upgrade, WhatWouldBeRightDependsOnWhoDoesNotGoTogether) {
  const MemberBuild good{.id = "s1", .protocols = Protocols{2, 3}, .build = "0.3.0"};
  const MemberBuild older{.id = "w1", .protocols = Protocols{1, 1}, .build = "0.1.0"};
  const MemberBuild newer{.id = "w2", .protocols = Protocols{4, 5}, .build = "0.5.0"};
  const MemberBuild silent{.id = "f1"};
  const std::string between =
      "Not all members go together with this binary: first bring the cluster to a build between";
  const struct {
    std::vector<MemberBuild> members;
    std::string says;
  } rows[] = {{{}, ""},
              {{good}, ""},
              {{good, older}, between},
              {{newer, good}, between},
              {{silent, good, older}, between},
              {{good, silent}, "Not all members tell what they speak: ask again once they are there"}};
  for (const auto& [members, says] : rows) EXPECT_EQ(why_not_together(members, {2, 3}), says);
}

TEST(Upgrade, GoesRoleByRole) {
  const auto steps = upgrade_order({{.id = "f1", .role = Role::frontend},
                                    {.id = "s1", .role = Role::scheduler, .leads = true},
                                    {.id = "w2", .role = Role::worker},
                                    {.id = "s3", .role = Role::scheduler},
                                    {.id = "s2", .role = Role::scheduler},
                                    {.id = "w1", .role = Role::worker}});
  std::vector<std::string> names;
  for (const UpgradeStep& step : steps) names.push_back(name_of(step.kind));
  ASSERT_THAT(names, ElementsAre("spares", "handover", "workers", "frontends"));
  EXPECT_THAT(steps[0].members, ElementsAre("s2", "s3"));
  EXPECT_THAT(steps[1].says, HasSubstr("carillon cluster drain s1"));
  EXPECT_THAT(steps[2].members, ElementsAre("w1", "w2"));
  EXPECT_THAT(steps[3].members, ElementsAre("f1"));
}

TEST(Upgrade, WithoutASpareTheLeaderNeedsOne) {
  const auto steps = upgrade_order({{.id = "s1", .role = Role::scheduler, .leads = true}});
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_THAT(steps[0].says, HasSubstr("There is no spare"));
  EXPECT_TRUE(upgrade_order({}).empty());
}

}  // namespace
}  // namespace carillon::cluster
