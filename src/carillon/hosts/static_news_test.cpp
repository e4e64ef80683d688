#include "carillon/hosts/static_news.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "carillon/hosts/member_core.h"

namespace carillon::hosts {
namespace {

using cluster::Role;

// Three processes of a file, on hosts with clocks of their own. What one sends, the others hear 2 ms later.
class StaticBox : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"s1", "w1", "f1"}) start(id, 1000s);
  }
  void start(const std::string& id, Duration clock) {
    const auto self = std::ranges::find(file.members, id, &cluster::Member::id);
    ASSERT_NE(self, file.members.end());
    Process& process = processes[id] = {
        std::make_unique<MemberCore>(MemberOptions{.cluster = file.name, .key = "secret", .self = *self}),
        clock - now};
    MemberCore::Output out;
    for (const cluster::CoordinatorNews& news : news_of(file)) process.core->coordinator_said(news, out);
  }
  void run(Duration time) {
    for (const Duration end = now + time; now < end; now += 2ms) {
      std::vector<MemberCore::Datagram> sent;
      for (auto& [id, process] : processes) {
        MemberCore::Output out;
        process.core->tick(TimePoint{now + process.zero}, out);
        for (const MemberCore::Datagram& datagram : flying)
          if (datagram.address == id + ":8100")
            process.core->heard(datagram.bytes, TimePoint{now + process.zero}, out);
        EXPECT_FALSE(out.claim);
        std::ranges::move(out.datagrams, std::back_inserter(sent));
      }
      flying = std::move(sent);
    }
  }
  MemberCore& operator[](const std::string& id) { return *processes.at(id).core; }
  MemberCore::Peer peer(const std::string& of, const std::string& id) {
    const auto peers = processes.at(of).core->peers(TimePoint{now + processes.at(of).zero});
    return *std::ranges::find(peers, id, [](const auto& each) { return each.member.id; });
  }

  struct Process {
    std::unique_ptr<MemberCore> core;
    Duration zero{0};
  };
  const cluster::StaticCluster file{"box",
                                    {{"w1", Role::worker, "w1:8100", 1, std::nullopt},
                                     {"s1", Role::scheduler, "s1:8100", 1, std::nullopt},
                                     {"f1", Role::frontend, "f1:8100", 1, std::nullopt}}};
  Duration now{0};
  std::map<std::string, Process> processes;
  std::vector<MemberCore::Datagram> flying;
};

TEST_F(StaticBox, TheSchedulerLeadsFromTheStartAndAllObeyIt) {
  MemberCore::Output out;
  run(4ms);
  EXPECT_TRUE((*this)["s1"].leads());
  for (const char* id : {"s1", "w1", "f1"}) {
    EXPECT_EQ((*this)[id].epoch(), 1U) << id;
    EXPECT_EQ((*this)[id].leader(), "s1") << id;
  }
  EXPECT_TRUE((*this)["w1"].obeys(1));
  EXPECT_FALSE((*this)["w1"].obeys(0));
  EXPECT_FALSE((*this)["s1"].hand_over("w1", out));
  run(100ms);
  for (const char* of : {"s1", "w1", "f1"})
    for (const char* id : {"s1", "w1", "f1"})
      if (std::string(of) != id) {
        EXPECT_TRUE(peer(of, id).there && peer(of, id).clock) << of << " of " << id;
      }
}

TEST_F(StaticBox, WithoutItsSchedulerNobodyLeads) {
  run(100ms);
  processes.erase("s1");
  run(2s);
  EXPECT_FALSE(peer("w1", "s1").there);
  for (const char* id : {"w1", "f1"}) {
    EXPECT_FALSE((*this)[id].leads());
    EXPECT_EQ((*this)[id].epoch(), 1U);
  }
  start("s1", 3000s);
  run(100ms);
  EXPECT_TRUE((*this)["s1"].leads());
  EXPECT_TRUE(peer("w1", "s1").there);
}

// A host that was started anew has an earlier clock, and its process the incarnation of the one before.
TEST_F(StaticBox, AHostWhoseClockBeganAnewIsKnownByItsNewClock) {
  run(2s);
  processes.erase("w1");
  run(100ms);
  start("w1", 5s);
  run(100ms);
  for (const auto& [of, id] : {std::pair{"s1", "w1"}, std::pair{"w1", "s1"}}) {
    const auto seen = peer(of, id);
    ASSERT_TRUE(seen.there && seen.clock) << of;
    const Duration right = processes.at(id).zero - processes.at(of).zero;
    EXPECT_LE(std::chrono::abs(seen.clock->offset - right), seen.clock->bound) << of;
  }
  EXPECT_EQ((*this)["s1"].counters().clock_jumps, 1U);
}

}  // namespace
}  // namespace carillon::hosts
