#include "carillon/roles/offering.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/controller/core.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/roles/testing/row_parts.h"

namespace carillon::roles {
namespace {

constexpr TimePoint time_of(Duration d) {
  return TimePoint{d};
}

class OfferingTest : public ::testing::Test, protected OfferingOut {
 protected:
  OfferingTest()
      : core(
            [this](controller::Holder& holder, dispatch::Notes&) {
              auto made = std::make_unique<Offering>(holder, static_cast<OfferingOut&>(*this), "here:1");
              offering = made.get();
              return made;
            },
            nullptr, {}) {
    core.start(time_of(0ms));
  }
  void send(transport::Message message) override { sent.push_back(std::move(message)); }
  std::uint64_t open(RequestId, transport::RowTensors) override { return ++opened; }
  void close(std::uint64_t key) override { closed.push_back(key); }
  void model_comes(const wire::Model& model) override { came.push_back(model.info.id); }
  void model_goes(ModelId id) override { went.push_back(id); }
  void model_held(ModelId id, bool by_a_worker) override { held[id] = by_a_worker; }
  void models_told() override { ++models_told_of; }
  TimePoint unix_zero() override { return time_of(-5ms); }
  void traced(std::shared_ptr<const explain::RowSpans> of) override { spans.push_back(std::move(of)); }

  wire::Model told(std::uint32_t theirs) const {
    wire::Model model{.info = controller::testing::served(theirs).info, .hash = 5};
    model.info.name = "m";
    return model;
  }
  void come(TimePoint now = TimePoint{1ms}) {
    controller::ServedModel served = controller::testing::served(static_cast<std::uint32_t>(core.models()));
    served.info.name = "m";
    served.hash = 5;
    core.book().add_model("m", 1);
    core.come(std::move(served), now);
  }
  template <typename What>
  void hear(What what, TimePoint now = time_of(1ms)) {
    core.react([&](TimePoint t) { offering->heard(transport::Message{std::move(what)}, t); }, now);
  }
  void lead(TimePoint now = time_of(0ms), std::uint32_t credit = 100) {
    core.react([&](TimePoint t) { offering->leads(t); }, now);
    hear(transport::OfferCredit{0, credit}, now);
  }
  template <typename What>
  std::size_t count() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        sent, [](const auto& message) { return std::holds_alternative<What>(message); }));
  }

  std::vector<transport::Message> sent;
  std::uint64_t opened = 0;
  int models_told_of = 0;
  std::vector<std::uint64_t> closed;
  std::vector<ModelId> came, went;
  std::vector<std::shared_ptr<const explain::RowSpans>> spans;
  using Held = std::map<ModelId, bool>;
  Held held;
  Offering* offering = nullptr;
  controller::Core core;
};

TEST_F(OfferingTest, AModelThatComesAnewWhileItGoesIsAskedForAgain) {
  lead();
  hear(transport::ModelComes{told(7)});
  EXPECT_EQ(came.size(), 1U);
  come();
  hear(transport::ModelGoes{ModelId{7}});
  EXPECT_EQ(went, std::vector<ModelId>{ModelId{0}});
  hear(transport::ModelComes{told(8)});
  EXPECT_EQ(came.size(), 2U);
  core.go(ModelId{0}, time_of(2ms));
  come(time_of(2ms));
  core.submit(
      1, controller::testing::call_of(ModelId{1}, 1, time_of(2ms), time_of(1s)),
      [](controller::InferAnswer) {}, time_of(2ms));
  EXPECT_EQ(count<transport::Offer>(), 1U);
}

// A rolling reload: the leader refuses what waits for the files of before.
TEST_F(OfferingTest, ARowWhoseModelIsReplacedMayComeAgain) {
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  std::vector<controller::InferAnswer> answers;
  const auto submit = [&](std::uint64_t ticket) {
    core.submit(
        ticket, controller::testing::call_of(ModelId{0}, 1, time_of(1ms), time_of(1s)),
        [&](controller::InferAnswer answer) { answers.push_back(std::move(answer)); }, time_of(1ms));
  };
  const auto refuse = [&](std::uint64_t row) {
    hear(wire::Verdict{.refusal = {RequestId{row}, ledger::Reason::no_model, TimePoint::max()},
                       .prospect = {}});
  };
  submit(1);
  wire::Model next = told(8);
  next.hash = 6;
  hear(transport::ModelComes{next});
  hear(transport::ModelGoes{ModelId{7}});
  refuse(0);
  ASSERT_EQ(answers.size(), 1U);
  ASSERT_FALSE(answers[0].status);
  EXPECT_EQ(answers[0].status.error().code, ErrorCode::resource_exhausted) << "503, and when to come again";
  EXPECT_EQ(answers[0].retry_after, controller::retry_when_full);
  // One that waits here as the model goes.
  submit(2);
  core.go(ModelId{0}, time_of(2ms));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[1].status.error().code, ErrorCode::resource_exhausted);
}

TEST_F(OfferingTest, ARowWhoseModelGoesForGoodIsRefusedSo) {
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  std::vector<controller::InferAnswer> answers;
  core.submit(
      1, controller::testing::call_of(ModelId{0}, 1, time_of(1ms), time_of(1s)),
      [&](controller::InferAnswer answer) { answers.push_back(std::move(answer)); }, time_of(1ms));
  hear(transport::ModelGoes{ModelId{7}});
  hear(wire::Verdict{.refusal = {RequestId{0}, ledger::Reason::no_model, TimePoint::max()}, .prospect = {}});
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].status.error().code, ErrorCode::not_found);
}

TEST_F(OfferingTest, AModelMayBeAwayForNow) {
  lead();
  hear(transport::ModelComes{told(7)});
  hear(transport::ModelGoes{ModelId{7}, true});
  EXPECT_TRUE(held.empty()) << "it is not known yet";
  come();
  EXPECT_EQ(held, (Held{{{0}, false}}));
  hear(transport::ModelComes{told(7)});
  EXPECT_EQ(held, (Held{{{0}, true}}));
  hear(transport::ModelGoes{ModelId{7}, true});
  EXPECT_EQ(held, (Held{{{0}, false}}));
  EXPECT_TRUE(went.empty());
  EXPECT_EQ(came.size(), 1U);
  hear(transport::ModelGoes{ModelId{7}});
  EXPECT_EQ(went.size(), 1U);
}

TEST_F(OfferingTest, AModelThatANewLeaderDoesNotTellOfGoesAfterAWhile) {
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  lead(time_of(1s));
  EXPECT_TRUE(held.empty()) << "the leader may not have told yet";
  hear(transport::DeviceCount{1, 1}, time_of(1s));
  EXPECT_EQ(held, (Held{{{0}, false}}));
  EXPECT_EQ(core.wake_at(), time_of(1s) + Offering::model_grace);
  core.wake(core.wake_at());
  EXPECT_EQ(went, std::vector<ModelId>{ModelId{0}});
  EXPECT_EQ(core.wake_at(), TimePoint::max());
}

// Clients of a frontend that has just started would hear that there is no such model.
TEST_F(OfferingTest, ALeaderWithoutDevicesHasNotToldOfAllModels) {
  lead();
  hear(transport::DeviceCount{0, 2});
  EXPECT_EQ(models_told_of, 0);
  hear(transport::ModelComes{told(7)});
  hear(transport::DeviceCount{1, 2});
  EXPECT_EQ(models_told_of, 1);
}

TEST_F(OfferingTest, ARowOfWhichTheLeaderSpeaksAfterItsEndIsWithdrawn) {
  lead();
  hear(transport::Lost{{RequestId{77}}, "its worker went"});
  EXPECT_EQ(count<transport::Withdraw>(), 1U);
}

// A leader that is not heard, as its host is cut off one way or stands still.
TEST_F(OfferingTest, ARowOfWhichTheLeaderSaysNothingIsRefusedSoonAfterItsDeadline) {
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  const TimePoint deadline = time_of(100ms), end = deadline + Offering::word_grace;
  std::vector<ErrorCode> refused;
  int answered = 0;
  for (std::uint64_t ticket = 1; ticket <= 4; ++ticket)
    core.submit(
        ticket, controller::testing::call_of(ModelId{0}, 1, time_of(1ms), deadline),
        [&](controller::InferAnswer answer) {
          ++answered;
          if (!answer.status) refused.push_back(answer.status.error().code);
        },
        time_of(1ms));
  EXPECT_EQ(core.wake_at(), end);
  // A worker has rows 1 and 2. Row 2 comes back, and row 3 gets its outputs in time.
  hear(transport::Sent{.rows = {RequestId{1}, RequestId{2}}, .device = {}}, time_of(2ms));
  hear(transport::CameBack{{RequestId{2}}}, time_of(3ms));
  core.wake(deadline);
  EXPECT_EQ(answered, 0);
  const wire::Report report{.status = ledger::ActionStatus::success};
  core.react([&](TimePoint t) { offering->outputs(RequestId{3}, report, t); }, end - 1ms);
  EXPECT_EQ(answered, 1);
  EXPECT_TRUE(refused.empty());
  ASSERT_EQ(core.wake_at(), end);
  core.wake(end);
  EXPECT_EQ(refused, std::vector<ErrorCode>(2, ErrorCode::deadline_exceeded));
  EXPECT_EQ(count<transport::Withdraw>(), 3U);
  EXPECT_GT(core.wake_at(), end + 1s) << "row 1 runs";
  // What the leader says of a refused row comes too late.
  hear(transport::Sent{.rows = {RequestId{0}}, .device = {}}, end + 1ms);
  EXPECT_EQ(answered, 3);
  core.react([&](TimePoint t) { offering->outputs(RequestId{1}, report, t); }, end + 1s);
  EXPECT_EQ(answered, 4);
  EXPECT_EQ(refused.size(), 2U);
  core.stop(time_of(3s));
  EXPECT_EQ(offering->open_rows(), 0U);
}

TEST_F(OfferingTest, ARowWithoutALeaderIsRefusedAtItsDeadline) {
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  int refused = 0;
  core.submit(
      1, controller::testing::call_of(ModelId{0}, 1, time_of(1ms), time_of(100ms)),
      [&](controller::InferAnswer answer) { refused += answer.status ? 0 : 1; }, time_of(1ms));
  hear(transport::Sent{.rows = {RequestId{0}}, .device = {}}, time_of(2ms));
  core.react([&](TimePoint t) { offering->leader_left(t); }, time_of(3ms));
  EXPECT_EQ(core.wake_at(), time_of(100ms));
  core.wake(time_of(100ms));
  EXPECT_EQ(refused, 1);
}

TEST_F(OfferingTest, OutputsThatComeOfAnOrderNobodyToldOfAnswerTheCall) {
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  int answers = 0;
  core.submit(
      1, controller::testing::call_of(ModelId{0}, 1, time_of(1ms), time_of(1s)),
      [&](controller::InferAnswer answer) {
        EXPECT_TRUE(answer.status);
        ++answers;
      },
      time_of(1ms));
  hear(transport::ModelComes{told(7)});
  wire::Report report{.status = ledger::ActionStatus::success};
  core.react([&](TimePoint t) { offering->outputs(RequestId{0}, report, t); }, time_of(5ms));
  core.react([&](TimePoint t) { offering->outputs(RequestId{0}, report, t); }, time_of(6ms));
  EXPECT_EQ(answers, 1);
  EXPECT_EQ(offering->counters().late_wins, 1U);
  EXPECT_EQ(closed, std::vector<std::uint64_t>{1});
  EXPECT_EQ(offering->open_rows(), 0U);
}

// Rows beyond the leader's credit wait until it takes others. Their clients may go, or their time may end.
TEST_F(OfferingTest, RowsWaitForCredit) {
  lead(time_of(0ms), 2);
  hear(transport::ModelComes{told(7)});
  come();
  std::vector<bool> on_time;
  for (std::uint64_t ticket = 1; ticket <= 5; ++ticket)
    core.submit(
        ticket, controller::testing::call_of(ModelId{0}, 1, time_of(1ms), time_of(ticket == 4 ? 50ms : 1s)),
        [&](const controller::InferAnswer& answer) { on_time.push_back(answer.status.has_value()); },
        time_of(1ms));
  EXPECT_EQ(count<transport::Offer>(), 2U);
  hear(transport::OfferCredit{1, 2}, time_of(2ms));
  EXPECT_EQ(count<transport::Offer>(), 3U);
  EXPECT_EQ(core.wake_at(), time_of(50ms)) << "a row that waits has its deadline";
  core.wake(time_of(50ms));
  EXPECT_EQ(on_time, std::vector<bool>{false});
  hear(transport::OfferCredit{1, 2}, time_of(51ms));
  EXPECT_EQ(count<transport::Offer>(), 4U) << "the credit of the one that is gone is the next one's";
  core.stop(time_of(52ms));
}

TEST_F(OfferingTest, AnotherLeaderIsOfferedWhatWaited) {
  lead(time_of(0ms), 1);
  hear(transport::ModelComes{told(7)});
  come();
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket)
    core.submit(
        ticket, controller::testing::call_of(ModelId{0}, 1, time_of(1ms), time_of(1s)),
        [](const controller::InferAnswer&) {}, time_of(1ms));
  EXPECT_EQ(count<transport::Offer>(), 1U);
  sent.clear();
  lead(time_of(2ms), 2);
  hear(transport::ModelComes{told(9)}, time_of(2ms));
  EXPECT_EQ(count<transport::Offer>(), 2U);
  hear(transport::OfferCredit{2, 2}, time_of(3ms));
  EXPECT_EQ(count<transport::Offer>(), 3U);
  EXPECT_EQ(offering->counters().offered, 4U);
  EXPECT_EQ(offering->counters().reoffered, 1U) << "the others waited here";
}

// The first row that is refused takes the second one with it.
TEST_F(OfferingTest, ACallOfTwoRowsWhoseModelGoesIsAnsweredOnce) {
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  int answers = 0;
  core.submit(
      1, controller::testing::call_of(ModelId{0}, 2, time_of(1ms), time_of(1s)),
      [&](const controller::InferAnswer&) { ++answers; }, time_of(1ms));
  core.go(ModelId{0}, time_of(2ms));
  EXPECT_EQ(answers, 1);
  EXPECT_EQ(offering->open_rows(), 0U);
}

// What a call gives back is there for the next.
TEST_F(OfferingTest, ACallOfMoreRowsThanTheCreditIsTurnedAwayAndTheNextIsServed) {
  lead(time_of(0ms), 4);
  hear(transport::ModelComes{told(7)});
  come();
  const auto ignore = [](const controller::InferAnswer&) {};
  TimePoint now = time_of(1ms);
  // The leader is slow. So the queue knows how long a row takes, and some row of a large call is turned away.
  for (std::uint64_t ticket = 1; ticket <= 200; ++ticket, now += 5ms) {
    core.submit(ticket, controller::testing::call_of(ModelId{0}, 9, now, now + 30ms), ignore, now);
    hear(transport::OfferCredit{2, 4}, now);
    if (core.wake_at() <= now) core.wake(now);
  }
  now += 1s;
  core.wake(now);
  hear(transport::OfferCredit{4, 4}, now);
  EXPECT_EQ(offering->open_rows(), 0U);
  const std::size_t before = count<transport::Offer>();
  core.submit(1000, controller::testing::call_of(ModelId{0}, 1, now, now + 1s), ignore, now);
  EXPECT_EQ(count<transport::Offer>(), before + 1) << "credit was lost";
  core.stop(now);
}

// Ten rows come in each millisecond. The leader takes one of them.
TEST_F(OfferingTest, WhereTheLeaderIsTooSlowCallsAreTurnedAway) {
  lead(time_of(0ms), 4);
  hear(transport::ModelComes{told(7)});
  come();
  std::map<ErrorCode, int> refused;
  std::uint64_t ticket = 0;
  for (int step = 1; step <= 2000; ++step) {
    const TimePoint now = time_of(step * 1ms);
    for (int i = 0; i < 10; ++i) {
      ++ticket;
      auto call =
          controller::testing::call_of(ModelId{0}, 1 + static_cast<int>(ticket % 2), now, now + 100ms);
      core.submit(
          ticket, std::move(call),
          [&](const controller::InferAnswer& answer) {
            if (!answer.status) ++refused[answer.status.error().code];
          },
          now);
    }
    hear(transport::OfferCredit{1, 4}, now);
    if (core.wake_at() <= now) core.wake(now);
  }
  EXPECT_GT(refused[ErrorCode::resource_exhausted], 10'000);
  EXPECT_LT(refused[ErrorCode::deadline_exceeded], 2'000);
  EXPECT_EQ(refused.size(), 2U);
  core.stop(time_of(3s));
}

TEST_F(OfferingTest, RowsOfASampledCallAreOfferedWithItsTrace) {
  const auto offers = [&] {
    std::vector<transport::Offer> out;
    for (const transport::Message& message : sent)
      if (const auto* offer = std::get_if<transport::Offer>(&message)) out.push_back(*offer);
    sent.clear();
    return out;
  };
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  for (const std::uint8_t flags : {std::uint8_t{0}, std::uint8_t{1}}) {
    auto call = controller::testing::call_of(ModelId{0}, 1, time_of(2ms), time_of(1s));
    call->trace = {.trace_id = {1, 2}, .parent_id = {9}, .span_id = {3}, .flags = flags};
    core.submit(
        1U + flags, std::move(call), [](const controller::InferAnswer&) {}, time_of(2ms));
    const auto offered = offers();
    ASSERT_EQ(offered.size(), 1U);
    ASSERT_EQ(offered[0].trace.has_value(), flags == 1);
    if (flags == 0) continue;
    EXPECT_EQ(offered[0].trace->trace, (TraceContext{.trace_id = {1, 2}, .span_id = {3}, .flags = 1}));
    EXPECT_EQ(offered[0].trace->unix_zero, time_of(-5ms));
    EXPECT_EQ(offered[0].trace->clock_bound, 0ns);
    const RequestId row = offered[0].row.id;
    hear(transport::Sent{{row}, DeviceId{0}}, time_of(3ms));
    hear(transport::Lost{{row}, "its worker went"}, time_of(4ms));
    hear(transport::Sent{{row}, DeviceId{0}}, time_of(6ms));
    wire::Report report{.status = ledger::ActionStatus::success, .times = {}};
    report.times.exec_start = time_of(7ms);
    report.times.exec_end = time_of(9ms);
    core.react([&](TimePoint now) { offering->outputs(row, report, now); }, time_of(10ms));
  }
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0]->name, "row");
  EXPECT_EQ(spans[0]->model, "m");
  EXPECT_FALSE(spans[0]->remote);
  EXPECT_EQ(testing::parts_of(*spans[0]),
            (std::vector<std::string>{"wait 0-0", "decide 0-1", "work 1-2: its worker went", "decide 2-4",
                                      "work 4-8", "exec 5-7"}));
  EXPECT_EQ(spans[0]->end, time_of(10ms));
}

TEST_F(OfferingTest, ATracedRowThatWasGivenUpSaysSo) {
  lead();
  hear(transport::ModelComes{told(7)});
  come();
  auto call = controller::testing::call_of(ModelId{0}, 1, time_of(2ms), time_of(1s));
  call->trace = {.trace_id = {1, 2}, .span_id = {3}, .flags = 1};
  core.submit(
      1, std::move(call), [](const controller::InferAnswer&) {}, time_of(2ms));
  core.cancel(1, time_of(7ms));
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0]->end - spans[0]->begin, 5ms);
  EXPECT_EQ(spans[0]->texts.at(0).second, "withdrawn");
  EXPECT_TRUE(spans[0]->failed.empty());
}

}  // namespace
}  // namespace carillon::roles
