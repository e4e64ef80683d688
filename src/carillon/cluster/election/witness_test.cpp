#include "carillon/cluster/election/witness.h"

#include <optional>

#include <gtest/gtest.h>

namespace carillon::cluster::election {
namespace {

constexpr MemberId leading{1}, asking{2};

Message beat(std::uint64_t epoch, std::uint64_t number) {
  return {.kind = Message::Kind::beat, .epoch = Epoch{epoch}, .number = number};
}
Message question(std::uint64_t epoch) {
  return {.kind = Message::Kind::question, .epoch = Epoch{epoch}, .number = 7};
}

TEST(Fence, TakesTheHighestEpochAndNothingLower) {
  Fence fence;
  EXPECT_EQ(fence.pass(Epoch{0}), Fence::Verdict::current);
  EXPECT_EQ(fence.pass(Epoch{3}), Fence::Verdict::higher);
  EXPECT_EQ(fence.pass(Epoch{3}), Fence::Verdict::current);
  EXPECT_EQ(fence.pass(Epoch{2}), Fence::Verdict::refused);
  EXPECT_EQ(fence.highest(), Epoch{3});
  EXPECT_EQ(fence.refused(), 1U);
}

TEST(Fence, RefusesAnEpochThatCannotBe) {
  Fence fence;
  EXPECT_EQ(fence.pass(Epoch{most_epoch.value + 1}), Fence::Verdict::refused);
  EXPECT_EQ(fence.highest(), Epoch{0});
  EXPECT_EQ(fence.pass(most_epoch), Fence::Verdict::higher);
}

// The gap of one tick each; where something was heard before it; and what is then counted.
TEST(Silence, CountsTimeBetweenTicksAndOneTickOfAStall) {
  const struct {
    Duration gap;
    bool heard;
    bool judges;
    Duration lasted;
  } rows[] = {
      {0ms, false, true, 0ms},                                   // the first tick
      {2ms, false, true, 2ms},         {6ms, false, true, 8ms},  // the longest that is no stall
      {6ms + 1ns, false, false, 10ms},                           // a stall counts as one usual tick
      {2ms, false, true, 12ms},        {1h, false, false, 14ms}, {2ms, true, true, 0ms},
      {2ms, false, true, 2ms},         {1h, true, false, 0ms},  // heard, and then a stall
  };
  Silence silence(2ms, 6ms);
  TimePoint now{-3s};
  for (const auto& [gap, heard, judges, lasted] : rows) {
    if (heard) silence.heard();
    now += gap;
    EXPECT_EQ(silence.tick(now), judges) << to_ms(gap);
    EXPECT_EQ(silence.lasted(), lasted) << to_ms(gap);
  }
  EXPECT_EQ(silence.stalls(), 3U);
}

TEST(Silence, EndsAsSoonAsSomethingIsHeard) {
  Silence silence(2ms, 6ms);
  silence.tick(TimePoint{0ms});
  silence.tick(TimePoint{5ms});
  silence.heard();
  EXPECT_EQ(silence.lasted(), 0ms);
}

// A witness that ticks every 2 ms.
struct Ticking {
  Witness witness;
  TimePoint now;
  void pass(Duration d) {
    for (const TimePoint end = now + d; now < end; now += 2ms) witness.tick(now);
    witness.tick(now);
  }
};

TEST(Witness, ObeysTheHighestEpochAndTellsIt) {
  Witness witness;
  witness.coordinator_said({Epoch{2}, leading, {}});
  EXPECT_TRUE(witness.obeys(Epoch{2}));
  EXPECT_TRUE(witness.obeys(Epoch{3})) << "higher is accepted at once";
  EXPECT_FALSE(witness.obeys(Epoch{2}));
  EXPECT_EQ(witness.told(), (Message{.kind = Message::Kind::told, .epoch = Epoch{3}}));
  EXPECT_EQ(witness.counters().refused, 1U);
}

TEST(Witness, ObeysNothingBeforeTheCoordinatorWasHeard) {
  Witness witness;
  EXPECT_FALSE(witness.obeys(Epoch{4})) << "an earlier process may have obeyed 5";
  EXPECT_EQ(witness.counters().early, 1U);
  witness.coordinator_said({Epoch{5}, leading, {}});
  EXPECT_FALSE(witness.obeys(Epoch{4}));
  EXPECT_TRUE(witness.obeys(Epoch{5}));
}

TEST(Witness, AnOldValueOfTheCoordinatorChangesNothing) {
  Witness witness;
  witness.heard(leading, beat(5, 1));
  witness.coordinator_said({Epoch{4}, asking, {}});
  EXPECT_EQ(witness.epoch(), Epoch{5});
  EXPECT_EQ(witness.leader(), leading);
  EXPECT_EQ(witness.counters().refused, 0U);
}

TEST(Witness, AnswersAMessageOfALowerEpochByItsOwn) {
  Witness witness;
  witness.heard(leading, beat(5, 1));
  for (const Message::Kind kind : {Message::Kind::beat, Message::Kind::question, Message::Kind::hears,
                                   Message::Kind::silent, Message::Kind::handover})
    EXPECT_EQ(witness.heard(asking, {.kind = kind, .epoch = Epoch{4}}), witness.told());
  EXPECT_EQ(witness.heard(asking, {.kind = Message::Kind::told, .epoch = Epoch{4}}), std::nullopt)
      << "no end otherwise";
  EXPECT_EQ(witness.heard(asking, beat(most_epoch.value + 1, 1)), std::nullopt);
  EXPECT_EQ(witness.counters().refused, 7U);
}

TEST(Witness, SaysWhetherItHearsTheLeader) {
  Ticking t;
  t.witness.heard(leading, beat(1, 1));
  t.pass(14ms);
  EXPECT_EQ(t.witness.heard(asking, question(1)),
            (Message{.kind = Message::Kind::hears, .epoch = Epoch{1}, .number = 7}));
  t.pass(4ms);
  EXPECT_EQ(t.witness.heard(asking, question(1)),
            (Message{.kind = Message::Kind::silent, .epoch = Epoch{1}, .number = 7}));
  t.witness.heard(leading, beat(1, 2));
  EXPECT_EQ(t.witness.heard(asking, question(1))->kind, Message::Kind::hears);
}

TEST(Witness, DoesNotAnswerBeforeItCanKnow) {
  Ticking t;
  t.pass(2ms);
  EXPECT_EQ(t.witness.heard(asking, question(1)), std::nullopt) << "has just learned of the epoch";
  t.pass(18ms);
  EXPECT_EQ(t.witness.heard(asking, question(1))->kind, Message::Kind::silent);
  EXPECT_EQ(t.witness.heard(asking, question(2)), std::nullopt) << "and now of another";
}

TEST(Witness, ItsOwnStallIsNoSilenceOfTheLeader) {
  Ticking t;
  t.witness.heard(leading, beat(1, 1));
  t.pass(4ms);
  t.now += 10s;
  EXPECT_FALSE(t.witness.tick(t.now));
  EXPECT_EQ(t.witness.heard(asking, question(1))->kind, Message::Kind::hears);
  EXPECT_EQ(t.witness.counters().stalls, 1U);
}

TEST(Witness, ABeatThatOthersOvertookSaysNothing) {
  Ticking t;
  t.witness.heard(leading, beat(1, 3));
  t.witness.heard(leading, beat(1, 6));
  t.pass(20ms);
  t.witness.heard(leading, beat(1, 5));
  t.witness.heard(leading, beat(1, 6));
  EXPECT_EQ(t.witness.heard(asking, question(1))->kind, Message::Kind::silent);
  EXPECT_EQ(t.witness.counters().beats, 2U);
  EXPECT_EQ(t.witness.counters().missed, 2U);
}

TEST(Witness, AHigherEpochBeginsAnew) {
  Ticking t;
  t.witness.heard(leading, beat(1, 900));
  t.witness.heard(asking, {.kind = Message::Kind::told, .epoch = Epoch{2}});
  EXPECT_EQ(t.witness.leader(), std::nullopt);
  EXPECT_FALSE(t.witness.heard_leader());
  t.witness.heard(asking, beat(2, 1));
  EXPECT_EQ(t.witness.leader(), asking);
  EXPECT_EQ(t.witness.counters().missed, 0U);
}

}  // namespace
}  // namespace carillon::cluster::election
