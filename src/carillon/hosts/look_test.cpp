#include "carillon/hosts/look.h"

#include <gtest/gtest.h>

namespace carillon::hosts {
namespace {

TEST(Look, HasAllMembersByIdAndItself) {
  const Membership::State state{.leads = false,
                                .epoch = 3,
                                .leader = "s1",
                                .peers = {{{"s1", cluster::Role::scheduler, "a:1", 5}, true, {{-2us, 1us}}},
                                          {{"w2", cluster::Role::worker, "a:3", 5}, false, {}}},
                                .counters = {},
                                .trouble = {}};
  const auto look = look_of(state, {"w1", cluster::Role::worker, "a:2", 5});
  EXPECT_EQ(look.id, "w1");
  EXPECT_EQ(look.leader, "s1");
  EXPECT_EQ(look.epoch, 3U);
  EXPECT_FALSE(look.leads);
  ASSERT_EQ(look.members.size(), 3U);
  EXPECT_EQ(look.members[0].id, "s1");
  EXPECT_TRUE(look.members[0].alive);
  EXPECT_EQ(look.members[0].clock->offset, -2us);
  EXPECT_EQ(look.members[1].id, "w1");
  EXPECT_TRUE(look.members[1].alive);
  EXPECT_EQ(look.members[1].clock->bound, 0us);
  EXPECT_EQ(look.members[2].address, "a:3");
  EXPECT_FALSE(look.members[2].alive);
  EXPECT_FALSE(look.members[2].clock);
}

TEST(Look, TellsWhatMembersSpeak) {
  const cluster::Member peer{.id = "w1",
                             .role = cluster::Role::worker,
                             .address = "a:3",
                             .incarnation = 5,
                             .protocols = cluster::Protocols{2, 3},
                             .build = "0.3.0"};
  const Membership::State state{
      .leads = true, .epoch = 3, .leader = "s1", .peers = {{peer, true, {}}}, .counters = {}, .trouble = {}};
  const auto look = look_of(state, {.id = "s1",
                                    .role = cluster::Role::scheduler,
                                    .address = "a:1",
                                    .incarnation = 5,
                                    .protocols = cluster::Protocols{1, 2},
                                    .build = "0.2.0"});
  EXPECT_EQ(look.members[0].protocols, (cluster::Protocols{1, 2}));
  EXPECT_EQ(look.members[0].build, "0.2.0");
  EXPECT_EQ(look.members[1].protocols, (cluster::Protocols{2, 3}));
  EXPECT_EQ(look.members[1].build, "0.3.0");
}

TEST(Look, ASchedulerThatDrainsIsDrainedOnceAnotherLeads) {
  using Drain = transport::Look::Drain;
  Membership::State state{
      .leads = true, .epoch = 3, .leader = "s1", .peers = {}, .counters = {}, .trouble = {}};
  const cluster::Member self{"s1", cluster::Role::scheduler, "a:1", 5};
  EXPECT_EQ(look_of(state, self).members[0].drain, Drain::none);
  state.drains = true;
  EXPECT_EQ(look_of(state, self).members[0].drain, Drain::drains);
  state.leader = "s2";
  EXPECT_EQ(look_of(state, self).members[0].drain, Drain::drained);
}

}  // namespace
}  // namespace carillon::hosts
