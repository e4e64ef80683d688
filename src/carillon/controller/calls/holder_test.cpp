#include "carillon/controller/calls/holder.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/controller/testing/fakes.h"

namespace carillon::controller {
namespace {

using ledger::ActionStatus;
using ledger::Reason;
using testing::call_of;
using ::testing::ElementsAre;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

class HeardDispatcher final : public wire::Dispatcher {
 public:
  AppId application(std::string_view, const std::optional<Alike>& alike, TimePoint) override {
    alikes.push_back(alike);
    return {};
  }
  void offer(const Request& row, bool more, TimePoint) override { offers.emplace_back(row.id, more); }
  void all_arrived(TimePoint) override { ++together; }
  void withdraw(RequestId row, ModelId) override { withdrawn.push_back(row); }
  void hear(TimePoint) override {}

  std::vector<std::optional<Alike>> alikes;
  std::vector<std::pair<RequestId, bool>> offers;
  int together = 0;
  std::vector<RequestId> withdrawn;
};

// One model of rows of four bytes, one device, and a journal.
class HolderTest : public ::testing::Test {
 protected:
  HolderTest() { make(); }
  void make(HolderOptions options = {}, HeldModel model = {}) {
    options.on_left = [this](ModelId) { ++left; };
    book = std::make_unique<Book>();
    book->add_model("model", 1);
    book->add_device("a device");
    journal = std::make_unique<Journal>(64, 0s);
    dispatcher = {};
    holder = std::make_unique<Holder>(dispatcher, options, *book, journal.get());
    model.name = "model";
    if (model.input_row_bytes.empty()) model.input_row_bytes = model.output_row_bytes = {{4}};
    holder->add_model(std::move(model));
    journal->add_device("another's");
    holder->add_device(journal->add_device("a device"));
    holder->start();
    answers.clear();
  }
  // The journal's number of the call.
  std::uint64_t submit(std::unique_ptr<InferCall> call, TimePoint now) {
    const std::uint64_t number = journal->next_number();
    holder->gather(
        number, std::move(call), [this](InferAnswer answer) { answers.push_back(std::move(answer)); }, now);
    holder->offer(now);
    return number;
  }
  void end(std::uint64_t row, ActionStatus status, TimePoint now, std::string error = {}) {
    wire::Report report{.id = {1}, .status = status, .times = {}, .error = std::move(error)};
    report.times.exec_start = report.times.exec_end = now;
    report.times.input_start = report.times.input_end = now;
    holder->ended({row}, report, now);
    holder->settle(now);
  }
  void refuse(std::uint64_t row, Reason reason, TimePoint would_finish, TimePoint now,
              const wire::Prospect& prospect = busy) {
    holder->refused({{{row}, reason, would_finish}, prospect}, now);
    holder->settle(now);
  }
  explain::RequestFacts noted(std::uint64_t number) const { return journal->call(number)->request; }
  ModelStatistics stats() const { return book->snapshot().models[0]; }

  static constexpr wire::Prospect busy{.exec = 4ms,
                                       .batch = 2,
                                       .devices = 3,
                                       .holding = 1,
                                       .device = DeviceId{0},
                                       .holds = true,
                                       .runs = 5,
                                       .busy = 6ms};

  std::unique_ptr<Book> book;
  std::unique_ptr<Journal> journal;
  HeardDispatcher dispatcher;
  std::unique_ptr<Holder> holder;
  std::vector<InferAnswer> answers;
  int left = 0;
};

TEST_F(HolderTest, ADeadlineMayLieADayAway) {
  submit(call_of({0}, 1, at(1ms), at(24h + 1ms)), at(1ms));
  EXPECT_TRUE(answers.empty());
  submit(call_of({0}, 1, at(1ms), at(24h + 1ms) + 1ns), at(1ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].status.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(left, 1);
}

TEST_F(HolderTest, HasRoomFor65536RowsUnlessToldOtherwise) {
  submit(call_of({0}, 65'536, at(1ms)), at(1ms));
  EXPECT_EQ(holder->open_rows(), 65'536U);
  submit(call_of({0}, 1, at(1ms)), at(1ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].status.error().message, "the server is full: 65536 rows are open, of at most 65536");
  EXPECT_EQ(answers[0].retry_after, Duration{1s});
  EXPECT_EQ(holder->buffers({7}).length, 0) << "nothing varies";
}

TEST_F(HolderTest, RowsThatComeTogetherAreToldTogether) {
  submit(call_of({0}, 1, at(1ms)), at(1ms));
  EXPECT_THAT(dispatcher.offers, ElementsAre(std::pair(RequestId{0}, false)));
  EXPECT_EQ(dispatcher.together, 0);
  submit(call_of({0}, 2, at(1ms)), at(1ms));
  EXPECT_THAT(dispatcher.offers, ElementsAre(std::pair(RequestId{0}, false), std::pair(RequestId{1}, true),
                                             std::pair(RequestId{2}, true)));
  EXPECT_EQ(dispatcher.together, 1);
  holder->offer(at(2ms));
  EXPECT_EQ(dispatcher.together, 1) << "nothing came";
}

TEST_F(HolderTest, AResultAtItsDeadlineIsOnTime) {
  for (std::uint64_t row = 0; row < 2; ++row) {
    submit(call_of({0}, 1, at(1ms), at(9ms)), at(1ms));
    holder->sent({row}, {0}, 1);
    end(row, ActionStatus::success, row == 0 ? at(9ms) : at(9ms) + 1ns);
  }
  EXPECT_EQ(stats().on_time, 1U);
  EXPECT_EQ(stats().late, 1U);
  EXPECT_EQ(stats().queue.total, 16ms + 1ns);
}

// By the error of its row.
TEST_F(HolderTest, ACallThatIsTurnedDownSaysWhy) {
  const struct {
    ErrorCode code;
    explain::Outcome outcome;
    explain::Cause cause;
    std::uint64_t refused, invalid, failed;
  } rows[] = {
      {ErrorCode::invalid_argument, explain::Outcome::failed, explain::Cause::bad_data, 0, 1, 1},
      {ErrorCode::deadline_exceeded, explain::Outcome::refused, explain::Cause::deadline_passed, 1, 0, 0},
      {ErrorCode::internal, explain::Outcome::failed, explain::Cause::error, 0, 0, 1}};
  for (const auto& row : rows) {
    make();
    const std::uint64_t number = submit(call_of({0}, 1, at(1ms)), at(1ms));
    holder->sent({0}, {0}, 1);
    holder->turned_down({0}, {row.code, "its own"});
    holder->settle(at(3ms));
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(answers[0].status.error(), (Error{row.code, "model 'model': its own"}));
    EXPECT_EQ(noted(number).outcome, row.outcome);
    EXPECT_EQ(noted(number).cause, row.cause);
    EXPECT_EQ(stats().refused, row.refused);
    EXPECT_EQ(stats().invalid, row.invalid);
    EXPECT_EQ(stats().failed, row.failed);
    EXPECT_EQ(left, 1);
    left = 0;
  }
  make();
  submit(call_of({0}, 2, at(1ms)), at(1ms));
  holder->sent({1}, {0}, 1);
  holder->turned_down({1}, {ErrorCode::internal, "its own"});
  holder->settle(at(3ms));
  EXPECT_EQ(answers[0].status.error().message, "model 'model': row 1: its own");
  EXPECT_THAT(dispatcher.withdrawn, ElementsAre(RequestId{0}));
}

TEST_F(HolderTest, ARefusalIsNotedAsThingsStood) {
  const std::uint64_t number = submit(call_of({0}, 1, at(1ms), at(9ms)), at(2ms));
  wire::Prospect prospect = busy;
  prospect.loading = true;
  refuse(0, Reason::cannot_finish, at(12ms), at(3ms), prospect);
  const explain::RequestFacts told = noted(number);
  EXPECT_EQ(told.decided, at(2ms));
  EXPECT_EQ(told.ended, at(3ms));
  EXPECT_EQ(told.would_take, 11ms);
  EXPECT_EQ(told.retry_after, 1ms);
  ASSERT_TRUE(told.expected.has_value());
  EXPECT_EQ(told.expected->exec, 4ms);
  EXPECT_EQ(told.expected->batch, 2);
  EXPECT_EQ(told.expected->devices, 3);
  EXPECT_EQ(told.expected->holding, 1);
  EXPECT_TRUE(told.expected->loading);
  EXPECT_EQ(told.expected->device, 1U) << "as the journal names it";
  EXPECT_EQ(told.expected->actions, 5);
  EXPECT_EQ(told.expected->busy, 6ms);
  EXPECT_EQ(stats().reasons[static_cast<std::size_t>(Reason::cannot_finish)], 1U);

  const std::uint64_t elsewhere = submit(call_of({0}, 1, at(4ms), at(9ms)), at(4ms));
  prospect.device = DeviceId{1};
  refuse(1, Reason::cannot_finish, at(12ms), at(4ms), prospect);
  ASSERT_TRUE(noted(elsewhere).expected.has_value());
  EXPECT_EQ(noted(elsewhere).expected->device, 0U) << "a device of another host is not named";
  EXPECT_EQ(noted(elsewhere).expected->busy, 0ms);
  EXPECT_EQ(noted(elsewhere).expected->actions, 0);
}

// Where waiting helps: when what is left until the request's end is no more than it has.
TEST_F(HolderTest, ARefusalSaysWhenToComeAgain) {
  wire::Prospect free = busy;
  free.runs = 0;
  wire::Prospect to_load = free;
  to_load.holds = false;
  wire::Prospect none = busy;
  none.device.reset();
  const struct {
    const char* what;
    Reason reason;
    TimePoint would_finish, deadline;
    const wire::Prospect& prospect;
    std::optional<Duration> retry;
  } rows[] = {
      {"the request has as long as a run takes", Reason::cannot_finish, at(12ms), at(5ms), busy,
       Duration{6ms}},
      {"and not so long", Reason::cannot_finish, at(12ms), at(5ms) - 1ns, busy, std::nullopt},
      {"a millisecond at least", Reason::cannot_finish, at(12ms), at(10500us), busy, Duration{1ms}},
      {"one run is before it",
       Reason::cannot_finish,
       at(12ms),
       at(5ms),
       {.exec = 4ms, .device = DeviceId{0}, .holds = true, .runs = 1},
       Duration{6ms}},
      {"nothing is before it", Reason::cannot_finish, at(12ms), at(5ms), free, std::nullopt},
      {"but a LOAD", Reason::cannot_finish, at(12ms), at(5ms), to_load, Duration{6ms}},
      {"no device is there", Reason::cannot_finish, at(12ms), at(5ms), none, std::nullopt},
      {"never", Reason::cannot_finish, TimePoint::max(), at(5ms), busy, std::nullopt},
      {"it is not for want of time", Reason::device_failed, at(12ms), at(5ms), busy, std::nullopt},
  };
  std::uint64_t id = 0;
  for (const auto& row : rows) {
    submit(call_of({0}, 1, at(1ms), row.deadline), at(1ms));
    refuse(id++, row.reason, row.would_finish, at(2ms), row.prospect);
    EXPECT_EQ(answers.back().retry_after, row.retry) << row.what;
  }
}

TEST_F(HolderTest, ARefusalAfterALossNamesTheLoss) {
  wire::Prospect none;
  const struct {
    Reason reason;
    const wire::Prospect& prospect;
    ErrorCode code;
    const char* text;
    std::optional<Duration> retry;
  } rows[] = {
      {Reason::deadline_passed, busy, ErrorCode::deadline_exceeded,
       "model 'model': can no longer finish by its deadline: its device went: w1 has gone; it would have "
       "finished 11.000 ms after its arrival, 4.000 ms after its deadline",
       Duration{2ms}},
      {Reason::no_device, none, ErrorCode::unavailable,
       "model 'model': no device answers: its device went: w1 has gone", retry_when_full},
      {Reason::device_failed, busy, ErrorCode::internal,
       "model 'model': its execution failed: its device went: w1 has gone", std::nullopt},
  };
  std::uint64_t id = 0;
  for (const auto& row : rows) {
    submit(call_of({0}, 1, at(1ms), at(8ms)), at(1ms));
    holder->sent({id}, {0}, 1);
    holder->lost({id}, "w1 has gone");
    refuse(id++, row.reason, row.reason == Reason::deadline_passed ? at(12ms) : TimePoint::max(), at(3ms),
           row.prospect);
    EXPECT_EQ(answers.back().status.error(), (Error{row.code, row.text}));
    EXPECT_EQ(answers.back().retry_after, row.retry);
  }
}

// Calls come one after another, so that each has the place of the one before.
TEST_F(HolderTest, ACallHasNothingOfTheOneBefore) {
  submit(call_of({0}, 1, at(1ms), at(9ms)), at(1ms));
  holder->sent({0}, {0}, 1);
  end(0, ActionStatus::failed, at(2ms), "it broke");
  refuse(0, Reason::cannot_finish, at(12ms), at(3ms));
  EXPECT_TRUE(answers.back().would_take.has_value());
  EXPECT_TRUE(answers.back().retry_after.has_value());

  const std::uint64_t number = submit(call_of({0}, 1, at(4ms)), at(4ms));
  refuse(1, Reason::device_failed, TimePoint::max(), at(5ms));
  EXPECT_EQ(answers.back().status.error().message, "model 'model': its execution failed");
  EXPECT_EQ(answers.back().would_take, std::nullopt);
  EXPECT_EQ(answers.back().retry_after, std::nullopt);
  EXPECT_EQ(noted(number).would_take, std::nullopt);
  EXPECT_EQ(noted(number).retry_after, std::nullopt);
}

TEST_F(HolderTest, BuffersThatLiveOnGoWithTheirAction) {
  auto call = call_of({0}, 2, at(1ms));
  call->size = std::make_shared<const Size>();
  const std::weak_ptr<const Size> lives = call->size;
  const std::uint64_t number = submit(std::move(call), at(1ms));
  for (const std::uint64_t row : {0, 1}) holder->sent({row}, {0}, 1);
  holder->cancel(number, at(2ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].call, nullptr);
  EXPECT_EQ(holder->open_calls(), 0U);
  EXPECT_EQ(holder->open_rows(), 2U);
  end(0, ActionStatus::stopped, at(3ms));
  EXPECT_FALSE(lives.expired()) << "the other row's buffers are written still";
  EXPECT_EQ(left, 0);
  end(1, ActionStatus::stopped, at(3ms));
  EXPECT_TRUE(lives.expired());
  EXPECT_EQ(left, 1);
  EXPECT_EQ(holder->open_rows(), 0U);
  EXPECT_EQ(holder->calls_of({0}), 0U);
}

// Whichever way its rows come back.
TEST_F(HolderTest, ACallWaitsWhileNoneOfItsRowsRuns) {
  const std::function<void(RequestId)> ways[] = {
      [&](RequestId row) { holder->came_back(row); },
      [&](RequestId row) { holder->lost(row, "no power"); },
      [&](RequestId row) { end(row.value, ActionStatus::stopped, at(2ms)); },
  };
  for (const auto& comes_back : ways) {
    make();
    submit(call_of({0}, 2, at(1ms)), at(1ms));
    EXPECT_EQ(stats().waiting, 1U);
    for (const std::uint64_t row : {0, 1}) holder->sent({row}, {0}, 1);
    EXPECT_EQ(stats().waiting, 0U);
    comes_back({0});
    EXPECT_EQ(stats().waiting, 0U) << "the other runs";
    comes_back({1});
    EXPECT_EQ(stats().waiting, 1U);
    holder->sent({0}, {0}, 2);
    EXPECT_EQ(stats().waiting, 0U);
    end(0, ActionStatus::success, at(3ms));
    EXPECT_EQ(stats().waiting, 1U) << "the other does not run yet";
    holder->sent({1}, {0}, 3);
    end(1, ActionStatus::success, at(4ms));
    EXPECT_EQ(stats().waiting, 0U);
    EXPECT_EQ(answers.size(), 1U);
  }
}

// Rows of an action that belong to one call are noted once.
TEST_F(HolderTest, TheCallOfARowIsNamedOnceForEachAction) {
  const std::uint64_t number = submit(call_of({0}, 2, at(1ms)), at(1ms));
  EXPECT_EQ(holder->sent({0}, {0}, 7), number);
  EXPECT_EQ(holder->sent({1}, {0}, 7), 0U);
  for (const std::uint64_t row : {0, 1}) holder->came_back({row});
  EXPECT_EQ(stats().waiting, 1U);
  EXPECT_EQ(holder->sent({1}, {0}, 8), number);
  EXPECT_EQ(stats().waiting, 0U);
  holder->cancel(number, at(2ms));
  EXPECT_EQ(noted(number).tries, 2);
}

TEST_F(HolderTest, RowsOfOpenModelsAreAlikeByTheirSize) {
  HeldModel model;
  model.input_row_bytes = model.output_row_bytes = {{0}};
  model.open = true;
  make({}, std::move(model));
  for (const int bytes : {63, 68, 69, 127, 0}) {
    submit(call_of({0}, 2, at(1ms), TimePoint::max(), 10, static_cast<std::size_t>(bytes)), at(1ms));
    ASSERT_TRUE(dispatcher.alikes.back().has_value());
    EXPECT_EQ(dispatcher.alikes.back()->model, ModelId{0});
  }
  const auto magnitude = [&](std::size_t call) { return dispatcher.alikes[call]->length; };
  EXPECT_EQ(magnitude(0), magnitude(1)) << "about as large";
  EXPECT_EQ(magnitude(2), magnitude(0) + 1);
  EXPECT_EQ(magnitude(3), magnitude(0) + 4) << "twice as large";
  EXPECT_EQ(magnitude(4), 0U);
}

TEST_F(HolderTest, KeepsRowsOfFourMebibytesUnlessToldOtherwise) {
  for (const std::size_t bytes : {std::size_t{2} << 20, (std::size_t{2} << 20) + 1}) {
    HeldModel model;
    model.input_row_bytes = model.output_row_bytes = {{bytes}};
    make({}, std::move(model));
    submit(call_of({0}, 1, at(1ms), TimePoint::max(), 10, bytes), at(1ms));
    holder->keep({0});
    holder->sent({0}, {0}, 1);
    end(0, ActionStatus::success, at(2ms));
    worker::InferCommand command{};
    EXPECT_EQ(
        holder->run_again({.id = {2}, .device = {}, .model = {0}, .request = {0}, .expected = 1ms}, command),
        bytes == std::size_t{2} << 20);
  }
}

TEST_F(HolderTest, TheFirstRowsOfASampledCallAreTraced) {
  constexpr int more = 4;
  const auto rows = static_cast<std::uint64_t>(Holder::most_traced) + more;
  for (const std::uint8_t flags : {std::uint8_t{0}, std::uint8_t{1}}) {
    auto call = call_of({0}, static_cast<int>(rows), at(1ms));
    call->trace = {.trace_id = {1}, .span_id = {2}, .flags = flags};
    submit(std::move(call), at(1ms));
    for (std::uint64_t row = 0; row < rows; ++row) {
      const TraceContext* const trace = holder->held({flags * rows + row}).trace;
      ASSERT_EQ(trace != nullptr, flags == 1 && row < Holder::most_traced) << row;
      if (trace != nullptr) EXPECT_EQ(trace->span_id[0], 2);
    }
  }
}

}  // namespace
}  // namespace carillon::controller
