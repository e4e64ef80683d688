#include "carillon/cluster/election/election.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::cluster::election {
namespace {

using Kind = Message::Kind;

constexpr MemberId host_0{0}, host_1{1}, host_2{2}, worker{10}, other_worker{11}, third_worker{12};
constexpr Incarnation mine{77};

// A scheduler that ticks every 2 ms, with what it sent.
struct Scheduler {
  explicit Scheduler(MemberId id = host_1, Incarnation incarnation = mine)
      : self(id), election(id, incarnation) {
    election.set_members({{host_0, true}, {host_1, true}, {worker}, {other_worker}, {third_worker}});
    election.tick(now, out);
  }
  // Has been told that `host_0` leads epoch 1, and hears it.
  static Scheduler spare(MemberId id = host_1) {
    Scheduler s(id);
    s.coordinator_speaks();
    s.pass(20ms);  // the next request may follow the first
    s.beat();
    s.out = {};
    return s;
  }
  static Scheduler leader() {
    Scheduler s;
    s.election.coordinator_said({Epoch{1}, host_1, mine}, s.out);
    s.out = {};
    return s;
  }
  void pass(Duration d) {
    for (const TimePoint end = now + d; now < end;) election.tick(now += 2ms, out);
  }
  void heard(MemberId from, Kind kind, std::uint64_t epoch, std::uint64_t number = 0) {
    election.heard(from, {.kind = kind, .epoch = Epoch{epoch}, .number = number}, out);
  }
  // As a spare whose host is cut off, with a worker on it.
  void hears_one_worker() {
    election.set_members({{host_0, true, false},
                          {host_1, true},
                          {worker},
                          {other_worker, false, false},
                          {third_worker, false, false}});
  }
  void beat() { heard(host_0, Kind::beat, 1, ++beats); }
  void coordinator_speaks() { election.coordinator_said({Epoch{1}, host_0, Incarnation{5}}, out); }
  // No beat for so long that it asks. The number of the question.
  std::uint64_t suspects() {
    pass(28ms);
    coordinator_speaks();
    return asked_number();
  }
  std::vector<MemberId> sent(Kind kind) const {
    std::vector<MemberId> to;
    for (const auto& [id, message] : out.messages)
      if (message.kind == kind) to.push_back(id);
    return to;
  }
  std::uint64_t asked_number() const {  // the last
    std::uint64_t number = 0;
    for (const auto& [id, message] : out.messages)
      if (message.kind == Kind::question) number = message.number;
    return number;
  }
  bool claimed(std::uint64_t epoch) const {
    return out.request && out.request->kind == Request::Kind::claim &&
           out.request->claim == Leadership{Epoch{epoch}, self, mine};
  }
  bool read() const { return out.request && out.request->kind == Request::Kind::read; }

  MemberId self;
  Election election;
  TimePoint now{7h};
  Output out;
  std::uint64_t beats = 0;
};

using Ids = std::vector<MemberId>;

// --- at the start

TEST(Election, ReadsTheValueFirst) {
  const Scheduler s;
  EXPECT_TRUE(s.read());
  EXPECT_FALSE(s.election.leads());
}

TEST(Election, WhereNobodyHasLedItClaimsTheFirstEpoch) {
  Scheduler s;
  s.election.coordinator_said({}, s.out);
  s.pass(20ms);
  EXPECT_TRUE(s.claimed(1));
  s.election.coordinator_said({Epoch{1}, host_1, mine}, s.out);
  s.election.coordinator_said({Epoch{1}, host_1, mine}, s.out);  // as an answer, and as a change
  EXPECT_TRUE(s.election.leads());
  EXPECT_EQ(s.election.counters().won, 1U);
  EXPECT_EQ(s.sent(Kind::beat), (Ids{host_0, worker, other_worker, third_worker}));
}

TEST(Election, WhoLosesTheClaimFollows) {
  Scheduler s;
  s.election.coordinator_said({}, s.out);
  s.pass(20ms);
  s.election.coordinator_said({Epoch{1}, host_0, mine}, s.out);
  EXPECT_FALSE(s.election.leads());
  EXPECT_EQ(s.election.leader(), host_0);
}

TEST(Election, TheEpochOfAnEarlierProcessIsNotItsOwn) {
  Scheduler s;
  s.election.coordinator_said({Epoch{1}, host_1, Incarnation{76}}, s.out);
  EXPECT_FALSE(s.election.leads());
  s.pass(220ms);
  EXPECT_EQ(s.sent(Kind::question), (Ids{host_0, worker, other_worker, third_worker}));
}

// --- leading

TEST(Election, ALeaderSendsBeatsToAllMembers) {
  Scheduler s = Scheduler::leader();
  s.pass(40ms);
  const auto beats = s.sent(Kind::beat);
  EXPECT_EQ(beats.size(), 4 * 10U) << "every 4 ms, as ticks come every 2";
  EXPECT_EQ(s.out.messages[0].message.number, 2U);
  EXPECT_EQ(s.out.messages[4].message.number, 3U);
}

TEST(Election, ALeaderStopsAsSoonAsItIsToldOfAHigherEpoch) {
  for (const Kind kind :
       {Kind::beat, Kind::told, Kind::question, Kind::hears, Kind::silent, Kind::handover}) {
    Scheduler s = Scheduler::leader();
    s.heard(worker, kind, 2, 1);
    EXPECT_FALSE(s.election.leads());
    EXPECT_EQ(s.election.epoch(), Epoch{2});
    EXPECT_EQ(s.election.counters().stopped, 1U);
  }
  Scheduler s = Scheduler::leader();
  s.election.coordinator_said({Epoch{2}, host_0, {}}, s.out);
  EXPECT_FALSE(s.election.leads());
  s.election.coordinator_said({Epoch{1}, host_1, mine}, s.out);
  EXPECT_FALSE(s.election.leads()) << "a late answer";
  s.pass(20ms);
  EXPECT_TRUE(s.sent(Kind::beat).empty());
}

TEST(Election, ALeaderGoesOnWithoutTheCoordinator) {
  Scheduler s = Scheduler::leader();
  s.election.coordinator_failed();
  s.pass(600s);
  EXPECT_TRUE(s.election.leads());
  EXPECT_FALSE(s.out.request);
}

TEST(Election, ALeaderThatStalledDoesNotActBeforeItHasReadWhatWaits) {
  Scheduler s = Scheduler::leader();
  EXPECT_FALSE(s.election.tick(s.now += 100ms, s.out));
  EXPECT_FALSE(s.election.leads());
  EXPECT_EQ(s.sent(Kind::beat).size(), 4U) << "beats decide nothing";
  EXPECT_TRUE(s.election.tick(s.now, s.out)) << "nothing waited";
  EXPECT_TRUE(s.election.leads());

  s.election.tick(s.now += 100ms, s.out);
  s.heard(worker, Kind::told, 2);
  EXPECT_TRUE(s.election.tick(s.now, s.out));
  EXPECT_FALSE(s.election.leads());
}

TEST(Election, ALeaderThatHearsNobodySendsNoBeats) {
  Scheduler s = Scheduler::leader();
  s.election.set_members({{host_0, true, false}, {host_1, true}, {worker, false, false}});
  s.pass(40ms);
  EXPECT_TRUE(s.sent(Kind::beat).empty());
  s.election.set_members({{host_0, true, false}, {host_1, true}, {worker}});
  s.pass(4ms);
  EXPECT_EQ(s.sent(Kind::beat), (Ids{host_0, worker}));
}

TEST(Election, ALeaderHearsItself) {
  Scheduler s = Scheduler::leader();
  s.pass(100ms);
  s.out = {};
  s.heard(host_0, Kind::question, 1, 3);
  EXPECT_EQ(s.sent(Kind::hears), Ids{host_0});
}

// --- the silence of a leader

TEST(Election, ASpareAsksAllButTheLeaderOnceItIsSilent) {
  Scheduler s = Scheduler::spare();
  s.pass(26ms);
  EXPECT_TRUE(s.out.messages.empty());
  s.pass(2ms);
  EXPECT_EQ(s.sent(Kind::question), (Ids{worker, other_worker, third_worker}));
  EXPECT_TRUE(s.read()) << "whether the coordinator can be reached";
}

// What the three workers answer: '+' hears, '-' is silent, ' ' nothing.
TEST(Election, ClaimsWhereMostOfThoseThatAnswerDoNotHearTheLeader) {
  const struct {
    const char* answers;
    bool claims_at_once, claims_later;
  } rows[] = {
      {"---", true, true},   {"-- ", true, true},   {"--+", true, true},
      {"-++", false, false}, {"+++", false, false}, {"-  ", false, true},
      {"-+ ", false, false}, {"+  ", false, false}, {"   ", false, false},  // cut off itself
  };
  for (const auto& [answers, at_once, later] : rows) {
    SCOPED_TRACE(answers);
    Scheduler s = Scheduler::spare();
    const std::uint64_t number = s.suspects();
    const MemberId workers[] = {worker, other_worker, third_worker};
    for (std::size_t i = 0; i < 3; ++i)
      if (answers[i] != ' ') s.heard(workers[i], answers[i] == '+' ? Kind::hears : Kind::silent, 1, number);
    EXPECT_EQ(s.claimed(2), at_once);
    s.pass(6ms);
    EXPECT_EQ(s.claimed(2), later);
    EXPECT_EQ(s.election.counters().confirmed, later ? 1U : 0U);
    EXPECT_EQ(s.election.counters().unanswered, answers == std::string_view("   ") ? 1U : 0U);
  }
}

TEST(Election, OnlyAnswersToTheLastQuestionCountAndOfEachMemberOne) {
  Scheduler s = Scheduler::spare();
  const std::uint64_t number = s.suspects();
  for (int i = 0; i < 3; ++i) s.heard(worker, Kind::silent, 1, number);
  s.heard(other_worker, Kind::silent, 1, number + 1);
  s.heard(other_worker, Kind::silent, 1, number - 1);
  s.heard(MemberId{99}, Kind::silent, 1, number);
  EXPECT_FALSE(s.claimed(2));
  s.heard(other_worker, Kind::silent, 1, number);
  EXPECT_TRUE(s.claimed(2));
}

TEST(Election, ABeatWithdrawsTheSuspicion) {
  Scheduler s = Scheduler::spare();
  const std::uint64_t number = s.suspects();
  s.beat();
  for (const MemberId id : {worker, other_worker, third_worker}) s.heard(id, Kind::silent, 1, number);
  s.pass(10ms);
  EXPECT_FALSE(s.claimed(2));
  EXPECT_EQ(s.election.counters().withdrawn, 1U);
}

TEST(Election, ItsOwnStallIsNoSilence) {
  Scheduler s = Scheduler::spare();
  s.pass(26ms);
  EXPECT_FALSE(s.election.tick(s.now += 10s, s.out));
  EXPECT_TRUE(s.out.messages.empty());
  s.beat();  // that waited
  s.pass(26ms);
  EXPECT_TRUE(s.out.messages.empty());
  s.pass(2ms);
  EXPECT_FALSE(s.out.messages.empty());
}

TEST(Election, AnswersThatWaitedDuringAStallDoNotCount) {
  Scheduler s = Scheduler::spare();
  const std::uint64_t number = s.suspects();
  EXPECT_FALSE(s.election.tick(s.now += 1s, s.out));
  for (const MemberId id : {worker, other_worker, third_worker}) s.heard(id, Kind::silent, 1, number);
  s.election.tick(s.now, s.out);
  EXPECT_FALSE(s.claimed(2));
}

TEST(Election, AsksAgainAndAgainButNotBusily) {
  Scheduler s = Scheduler::spare();
  s.suspects();
  s.pass(972ms);
  const auto questions = s.sent(Kind::question).size();
  EXPECT_GT(questions, 3 * 50U);
  EXPECT_LT(questions, 3 * 80U);
  EXPECT_EQ(s.election.counters().suspicions, 1U);
}

TEST(Election, TheNextSpareSuspectsLater) {
  Scheduler s = Scheduler::spare(host_2);
  s.election.set_members({{third_worker}, {host_0, true}, {host_1, true}, {worker}, {other_worker}});
  s.pass(30ms);
  EXPECT_TRUE(s.sent(Kind::question).empty());
  s.pass(4ms);
  EXPECT_EQ(s.sent(Kind::question), (Ids{host_1, worker, other_worker, third_worker}));
}

TEST(Election, ALeaderThatWasNeverHeardGetsMoreTime) {
  Scheduler s;
  s.election.coordinator_said({Epoch{1}, host_0, {}}, s.out);
  s.pass(198ms);
  EXPECT_TRUE(s.sent(Kind::question).empty());
  s.pass(4ms);
  EXPECT_FALSE(s.sent(Kind::question).empty());
}

// There is nobody to ask, and nobody to serve.
TEST(Election, OfTwoSchedulersAloneTheSpareClaimsOnItsOwnSilence) {
  Scheduler s = Scheduler::spare();
  s.election.set_members({{host_0, true}, {host_1, true}});
  s.suspects();
  EXPECT_TRUE(s.claimed(2));
}

TEST(Election, ASpareAnswersAnother) {
  Scheduler s = Scheduler::spare();
  s.heard(host_2, Kind::question, 1, 4);
  EXPECT_EQ(s.sent(Kind::hears), Ids{host_2});
}

// --- the coordinator

// A spare that has claimed epoch 2.
Scheduler claimer() {
  Scheduler s = Scheduler::spare();
  const std::uint64_t number = s.suspects();
  for (const MemberId id : {worker, other_worker, third_worker}) s.heard(id, Kind::silent, 1, number);
  EXPECT_TRUE(s.claimed(2));
  s.out = {};
  return s;
}

// The spare's own link may be cut, and members on its host confirm the silence.
TEST(Election, ASpareClaimsNothingUntilTheCoordinatorHasSpoken) {
  Scheduler s = Scheduler::spare();
  s.pass(28ms);
  const std::uint64_t number = s.asked_number();
  for (const MemberId id : {worker, other_worker, third_worker}) s.heard(id, Kind::silent, 1, number);
  EXPECT_TRUE(s.read());
  s.pass(8ms);
  EXPECT_TRUE(s.read());
  s.coordinator_speaks();
  EXPECT_TRUE(s.claimed(2));
}

TEST(Election, AnswersThatCameLongBeforeTheCoordinatorSpokeAreAskedForAnew) {
  Scheduler s = Scheduler::spare();
  s.pass(28ms);
  const std::uint64_t number = s.asked_number();
  for (const MemberId id : {worker, other_worker, third_worker}) s.heard(id, Kind::silent, 1, number);
  s.pass(12ms);
  s.out = {};
  s.coordinator_speaks();
  EXPECT_FALSE(s.out.request);
  EXPECT_EQ(s.sent(Kind::question), (Ids{worker, other_worker, third_worker}));
  for (const MemberId id : {worker, other_worker}) s.heard(id, Kind::silent, 1, s.asked_number());
  EXPECT_TRUE(s.claimed(2));
}

TEST(Election, ASpareThatWasCutOffHasClaimedNothingWhenItsLinkIsBack) {
  Scheduler s = Scheduler::spare();
  for (int i = 0; i < 2'000; ++i) {
    s.pass(2ms);
    s.heard(worker, Kind::silent, 1, s.asked_number());  // on the same host
    if (i % 10 == 0) s.election.coordinator_failed();
    ASSERT_FALSE(s.claimed(2));
  }
  EXPECT_GT(s.election.counters().unreached + s.election.counters().unknown, 20U);
  s.beat();
  s.coordinator_speaks();
  s.heard(worker, Kind::silent, 1, s.asked_number());
  s.pass(10ms);
  EXPECT_FALSE(s.claimed(2));
  EXPECT_EQ(s.election.counters().claims, 0U);
}

// The link is back, the coordinator is heard before the leader, and the member beside it answers first.
TEST(Election, WhereMostMembersWereNotHeardTheirAnswersAreAwaited) {
  Scheduler s = Scheduler::spare();
  s.hears_one_worker();
  s.heard(worker, Kind::silent, 1, s.suspects());
  EXPECT_FALSE(s.claimed(2));
  s.beat();
  s.pass(10ms);
  EXPECT_EQ(s.election.counters().claims, 0U);
}

TEST(Election, WhatAMemberBesideItSaidDuringTheCutIsAskedAnew) {
  Scheduler s = Scheduler::spare();
  s.hears_one_worker();
  s.pass(28ms);
  s.heard(worker, Kind::silent, 1, s.asked_number());
  s.pass(6ms);
  s.out = {};
  s.coordinator_speaks();  // the link is back
  EXPECT_EQ(s.sent(Kind::question), (Ids{worker, other_worker, third_worker}));
  EXPECT_EQ(s.election.counters().claims, 0U);
}

// While it was not, the leader sent it nothing.
TEST(Election, AMemberThatIsRegisteredAnewListensAnew) {
  Scheduler s = Scheduler::spare();
  s.pass(24ms);
  s.election.registered();
  s.pass(198ms);
  EXPECT_TRUE(s.sent(Kind::question).empty());
  s.pass(4ms);
  EXPECT_FALSE(s.sent(Kind::question).empty());
}

TEST(Election, AClaimWhoseAnswerIsLostIsReadOffTheValue) {
  for (const bool told : {false, true}) {
    Scheduler s = claimer();
    if (told) s.election.coordinator_failed();
    s.pass(told ? 20ms : 102ms);
    EXPECT_TRUE(s.read());
    EXPECT_FALSE(s.election.leads());
    s.election.coordinator_said({Epoch{2}, host_1, mine}, s.out);
    EXPECT_TRUE(s.election.leads());
    EXPECT_EQ(s.election.counters().claims, 1U);
    EXPECT_EQ(s.election.counters().unknown, 1U);
  }
}

TEST(Election, AClaimThatWasNotCarriedOutIsSentAgainAsItWas) {
  Scheduler s = claimer();
  s.election.coordinator_failed();
  s.pass(20ms);
  s.election.coordinator_said({Epoch{1}, host_0, Incarnation{5}}, s.out);
  s.out = {};
  s.pass(22ms);
  for (const MemberId id : {worker, other_worker}) s.heard(id, Kind::silent, 1, s.asked_number());
  EXPECT_TRUE(s.claimed(2));
}

// It was carried out long after it was sent.
TEST(Election, AClaimThatIsWonAfterTheLeaderCameBackIsWonAllTheSame) {
  Scheduler s = claimer();
  s.beat();
  s.election.coordinator_said({Epoch{2}, host_1, mine}, s.out);
  EXPECT_TRUE(s.election.leads());
  EXPECT_EQ(s.election.epoch(), Epoch{2});
}

TEST(Election, WhileTheCoordinatorIsGoneRequestsAreFew) {
  Scheduler s = claimer();
  int requests = 0;
  for (int i = 0; i < 500; ++i) {
    s.election.coordinator_failed();
    s.out = {};
    s.pass(2ms);
    requests += s.out.request ? 1 : 0;
  }
  EXPECT_GT(requests, 40);
  EXPECT_LE(requests, 50);
  EXPECT_FALSE(s.election.leads());
}

// --- handover

TEST(Election, HandsOverToASpareThatClaimsWithoutSilence) {
  Scheduler l = Scheduler::leader();
  ASSERT_TRUE(l.election.hand_over(host_0, l.out));
  EXPECT_FALSE(l.election.leads());
  EXPECT_EQ(l.sent(Kind::handover), Ids{host_0});
  l.pass(4ms);
  EXPECT_EQ(l.sent(Kind::handover), (Ids{host_0, host_0})) << "the first may be lost";
  EXPECT_EQ(l.sent(Kind::beat).size(), 4U) << "other spares wait";
  l.heard(host_0, Kind::beat, 2, 1);
  EXPECT_EQ(l.election.leader(), host_0);
  l.pass(200ms);
  EXPECT_FALSE(l.election.leads());

  Scheduler s = Scheduler::spare();
  s.heard(host_0, Kind::handover, 1, 1'000);
  EXPECT_TRUE(s.claimed(2));
}

TEST(Election, AHandoverThatBeatsOvertookIsNoneAnyMore) {
  Scheduler s = Scheduler::spare();
  s.heard(host_0, Kind::beat, 1, 1'000);
  s.heard(host_0, Kind::handover, 1, 999);
  EXPECT_FALSE(s.out.request);
  s.heard(host_0, Kind::beat, 1, 1'001);
  s.heard(host_0, Kind::handover, 1, 1'001);
  EXPECT_TRUE(s.claimed(2));
}

TEST(Election, TheLeaderGoesOnWhereTheSpareDoesNotClaim) {
  Scheduler l = Scheduler::leader();
  ASSERT_TRUE(l.election.hand_over(host_0, l.out));
  l.pass(98ms);
  EXPECT_FALSE(l.election.leads());
  l.pass(2ms);
  EXPECT_TRUE(l.election.leads());
  EXPECT_EQ(l.election.epoch(), Epoch{1});
  EXPECT_EQ(l.election.counters().kept, 1U);
}

TEST(Election, ASpareGivesUpAHandoverThatItCannotClaim) {
  Scheduler s = Scheduler::spare();
  s.heard(host_0, Kind::handover, 1, 1'000);
  for (int i = 0; i < 500; ++i) {
    s.beat();
    s.election.coordinator_failed();
    s.election.coordinator_said({Epoch{1}, host_0, {}}, s.out);
    s.pass(2ms);
  }
  EXPECT_LE(s.election.counters().claims, 6U);
}

TEST(Election, AHandoverEndsWithItsEpoch) {
  Scheduler s = Scheduler::spare();
  s.election.coordinator_failed();
  s.heard(host_0, Kind::handover, 1, 1'000);
  EXPECT_TRUE(s.claimed(2));
  s.election.coordinator_said({Epoch{2}, host_2, {}}, s.out);
  s.out = {};
  s.pass(40ms);
  s.heard(host_0, Kind::handover, 1, 1'000);  // late
  EXPECT_FALSE(s.out.request);
}

TEST(Election, WhoMayNotClaimAsksAndClaimsNothing) {
  Scheduler s = Scheduler::spare();
  s.election.let_claim(false);
  s.heard(host_0, Kind::handover, 1, s.beats);
  s.pass(1s);
  EXPECT_FALSE(s.out.request);
  EXPECT_TRUE(s.sent(Kind::question).empty());
  s.election.let_claim(true);
  s.pass(2ms);
  EXPECT_FALSE(s.sent(Kind::question).empty());
}

TEST(Election, AHandoverNeedsALeaderAndAScheduler) {
  Scheduler s = Scheduler::spare();
  EXPECT_EQ(s.election.hand_over(host_0, s.out).error().message,
            "cannot hand over to member 0: this scheduler does not lead");
  Scheduler l = Scheduler::leader();
  for (const MemberId id : {worker, host_1, MemberId{99}})
    EXPECT_EQ(l.election.hand_over(id, l.out).error().message,
              "cannot hand over to member " + std::to_string(id.value) +
                  ": it is no other scheduler of the cluster");
  ASSERT_TRUE(l.election.hand_over(host_0, l.out));
  EXPECT_EQ(l.election.hand_over(host_0, l.out).error().message,
            "cannot hand over to member 0: a handover to member 0 is under way");
}

}  // namespace
}  // namespace carillon::cluster::election
