#include "carillon/controller/calls/outcomes.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

// The deadline that counts is the first of these that is there.
TEST(Deadline, IsTheCallsTheModelsOrTheServers) {
  const struct {
    const char* what;
    TimePoint deadline, due;
    std::optional<Duration> slo, by_default;
    Class cls;
    TimePoint want;
  } rows[] = {
      {"its own", at(9ms), TimePoint::max(), 20ms, 30ms, Class::normal, at(9ms)},
      {"its model's", TimePoint::max(), TimePoint::max(), 20ms, 30ms, Class::normal, at(21ms)},
      {"the server's", TimePoint::max(), TimePoint::max(), {}, 30ms, Class::normal, at(31ms)},
      {"none", TimePoint::max(), TimePoint::max(), {}, {}, Class::normal, TimePoint::max()},
      {"none where a queue policy delays", TimePoint::max(), at(5ms), 20ms, 30ms, Class::normal,
       TimePoint::max()},
      {"of best effort the model's", TimePoint::max(), TimePoint::max(), 20ms, 30ms, Class::best_effort,
       at(21ms)},
      {"of best effort not the server's",
       TimePoint::max(),
       TimePoint::max(),
       {},
       30ms,
       Class::best_effort,
       TimePoint::max()},
  };
  for (const auto& row : rows)
    for (const bool given : {false, true}) {
      InferCall call;
      call.arrival = at(1ms);
      call.deadline = row.deadline;
      call.due = row.due;
      call.class_given = given;
      call.cls = given ? row.cls : Class::real_time;
      const Class model = given ? Class::real_time : row.cls;
      EXPECT_EQ(class_of(call, model), row.cls);
      EXPECT_EQ(deadline_of(call, row.slo, model, row.by_default), row.want) << row.what;
    }
}

class OutcomesTest : public ::testing::Test {
 protected:
  OutcomesTest() { book.add_model("model", 1); }
  // A call that arrives at 5 ms and ends at 4 ms.
  void end(const Outcomes& outcomes, Ending ending, std::optional<TimePoint> decided = {}) {
    auto call = std::make_unique<InferCall>();
    call->arrival = at(5ms);
    call->deadline = TimePoint::max();
    call->rows = 2;
    outcomes.end(
        7, std::move(call), [this](InferAnswer given) { answer = std::move(given); },
        {.name = journal.name("model"), .slo = {}}, std::move(ending), at(4ms), decided);
  }
  Book book;
  Journal journal{8, 0s};
  InferAnswer answer;
};

TEST_F(OutcomesTest, ACallIsAnsweredCountedAndNoted) {
  end({book, &journal, 30ms},
      {Outcome::shed, explain::Cause::shed, {ErrorCode::resource_exhausted, "too much"}, 3ms, 2ms}, at(3ms));
  EXPECT_EQ(answer.status.error(), (Error{ErrorCode::resource_exhausted, "too much"}));
  ASSERT_NE(answer.call, nullptr);
  EXPECT_EQ(answer.call->arrival, at(4ms)) << "no call comes later than it ends";
  EXPECT_EQ(answer.finished, at(4ms));
  EXPECT_EQ(answer.would_take, Duration{3ms});
  EXPECT_EQ(answer.retry_after, Duration{2ms});
  EXPECT_EQ(answer.number, 7U);
  const ModelStatistics of = book.snapshot().models[0];
  EXPECT_EQ(of.shed, 1U);
  EXPECT_EQ(of.rows, 2U);
  EXPECT_EQ(of.fail.total, 0ms);
  const explain::RequestFacts noted = journal.call(7)->request;
  EXPECT_EQ(noted.arrival, at(4ms));
  EXPECT_EQ(noted.model, "model");
  EXPECT_EQ(noted.version, 1);
  EXPECT_EQ(noted.decided, at(3ms));
  EXPECT_EQ(noted.ended, at(4ms));
  EXPECT_EQ(noted.outcome, explain::Outcome::refused);
  EXPECT_EQ(noted.cause, explain::Cause::shed);
  EXPECT_EQ(noted.text, "too much");
  EXPECT_EQ(noted.would_take, Duration{3ms});
  EXPECT_EQ(noted.retry_after, Duration{2ms});
  EXPECT_EQ(noted.deadline_from, explain::DeadlineFrom::server);
}

TEST_F(OutcomesTest, WhatIsNotKnownIsNotSaid) {
  end({book, &journal, {}}, {Outcome::failed, explain::Cause::size, {ErrorCode::internal, ""}});
  EXPECT_EQ(answer.would_take, std::nullopt);
  EXPECT_EQ(answer.retry_after, std::nullopt);
  const explain::RequestFacts noted = journal.call(7)->request;
  EXPECT_EQ(noted.decided, explain::never);
  EXPECT_EQ(noted.would_take, std::nullopt);
  EXPECT_EQ(noted.retry_after, std::nullopt);
  EXPECT_EQ(noted.deadline_from, explain::DeadlineFrom::none);
}

TEST_F(OutcomesTest, WithoutAJournalACallHasNoNumber) {
  end({book, nullptr, {}}, {Outcome::failed, explain::Cause::error, {ErrorCode::internal, ""}});
  EXPECT_EQ(answer.number, 0U);
  EXPECT_EQ(book.snapshot().models[0].failed, 1U);
}

}  // namespace
}  // namespace carillon::controller
