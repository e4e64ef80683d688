#include "carillon/transport/times.h"

#include <gtest/gtest.h>

#include "carillon/transport/testing/samples.h"

namespace carillon::transport {
namespace {

using testing::at;

// The peer's clock is a second ahead, known to within 10 us.
cluster::PeerClock ahead() {
  cluster::PeerClock clock({.max_drift_ppm = 0, .settle_samples = 1});
  clock.add(
      {.sent = at(0), .received = at(1'000'010'000), .replied = at(1'000'010'000), .heard = at(20'000)});
  return clock;
}
const TimePoint now = at(20'000);
constexpr Duration rounding = 3ns;  // of the clock's bounds

template <typename Kind>
Kind converted(Kind kind) {
  Message message = std::move(kind);
  EXPECT_TRUE(to_our_time(message, ahead(), now));
  return std::get<Kind>(message);
}

TEST(Times, OfAPeerWhoseClockIsUnknownStay) {
  Message message = ledger::Preempt{.order = at(5)};
  EXPECT_FALSE(to_our_time(message, cluster::PeerClock{}, now));
  cluster::PeerClock young({.settle_samples = 2});
  young.add({.sent = at(0), .received = at(1'000), .replied = at(1'000), .heard = at(20)});
  EXPECT_FALSE(to_our_time(message, young, now)) << "one sample may be of a clock that jumped";
  EXPECT_EQ(std::get<ledger::Preempt>(message).order, at(5));
}

TEST(Times, ADeadlineComesEarlierByTheBound) {
  Offer offer{.row = {.arrival = at(1'000'050'000), .deadline = at(1'000'150'000)}};
  offer = converted(offer);
  EXPECT_EQ(offer.row.arrival, at(50'000));
  EXPECT_LE(offer.row.deadline, at(140'000));
  EXPECT_GE(offer.row.deadline, at(140'000) - rounding);
  offer.row.deadline = TimePoint::max();
  EXPECT_EQ(converted(offer).row.deadline, TimePoint::max());
}

TEST(Times, WindowsShrinkByTheBound) {
  const Window window{at(1'000'100'000), at(1'000'200'000)};
  for (const Window& ours : {converted(ledger::Load{.window = window}).window,
                             converted(Infer{.order = {.window = window}, .rows = {}}).order.window,
                             converted(Profile{.order = {.window = window}}).order.window}) {
    EXPECT_GE(ours.earliest, at(110'000));
    EXPECT_LE(ours.earliest, at(110'000) + rounding);
    EXPECT_LE(ours.latest, at(190'000));
    EXPECT_GE(ours.latest, at(190'000) - rounding);
  }
  const Window open{TimePoint::min(), TimePoint::max()};
  EXPECT_EQ(converted(ledger::Load{.window = open}).window, open);
}

TEST(Times, AWindowOfWhichNothingIsCertainIsOver) {
  const Window narrow{at(1'000'100'000), at(1'000'110'000)};
  EXPECT_LT(converted(ledger::Load{.window = narrow}).window.latest, now);
}

TEST(Times, OtherTimesAreOffByTheBoundAtMost) {
  EXPECT_EQ(converted(ledger::Preempt{.order = at(1'000'000'005)}).order, at(5));
  EXPECT_EQ(converted(wire::Verdict{{.would_finish = at(1'000'000'007)}, {}}).refusal.would_finish, at(7));
  EXPECT_EQ(converted(wire::Verdict{{.would_finish = TimePoint::max()}, {}}).refusal.would_finish,
            TimePoint::max());
  const wire::Report report = testing::sample_report();
  const auto seconds = [](TimePoint t) { return t - 1s; };
  for (const wire::ActionTimes& t :
       {converted(report).times, converted(Ended{{RequestId{1}}, report}).report.times}) {
    EXPECT_EQ(t.received, seconds(report.times.received));
    EXPECT_EQ(t.input_start, seconds(report.times.input_start));
    EXPECT_EQ(t.input_end, seconds(report.times.input_end));
    EXPECT_EQ(t.exec_start, seconds(report.times.exec_start));
    EXPECT_EQ(t.exec_end, seconds(report.times.exec_end));
    EXPECT_EQ(t.output_start, seconds(report.times.output_start));
    EXPECT_EQ(t.output_end, seconds(report.times.output_end));
    EXPECT_EQ(t.paused, report.times.paused);
  }
}

TEST(Times, AnyTimeCanBeConverted) {
  const cluster::PeerClock clock = ahead();
  for (const TimePoint t :
       {TimePoint::min(), TimePoint::max(), at(0), TimePoint::max() - 1ns, TimePoint::min() + 1ns})
    for (const TimePoint u : {TimePoint::min(), TimePoint::max(), at(0)})
      for (Message message : {Message{ledger::Load{.window = {t, u}}}, Message{ledger::Preempt{.order = t}},
                              Message{Offer{.row = {.arrival = u, .deadline = t}}}})
        EXPECT_TRUE(to_our_time(message, clock, now));
}

TEST(Times, ARowsTraceKeepsTheFrontendsUnixTimeAndAddsTheBound) {
  const wire::RowTrace told{.trace = {}, .unix_zero = at(-7), .clock_bound = 3us};
  const auto profile = converted(Profile{.order = {}, .row = {.trace = told}});
  const auto infer = converted(Infer{.order = {}, .rows = {{.trace = told}, {}}});
  EXPECT_FALSE(infer.rows[1].trace);
  for (const auto& ours :
       {converted(Offer{.row = {}, .trace = told}).trace, profile.row.trace, infer.rows[0].trace}) {
    ASSERT_TRUE(ours);
    EXPECT_EQ(ours->unix_zero, at(-7) - 1s);
    EXPECT_GE(ours->clock_bound, 13us);
    EXPECT_LE(ours->clock_bound, 13us + rounding);
  }
  EXPECT_FALSE(converted(Offer{.row = {}}).trace);
}

}  // namespace
}  // namespace carillon::transport
