#include "carillon/controller/core.h"

#include <utility>

#include <gtest/gtest.h>

#include "carillon/controller/gates/queue_rules.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/repository/queue_policies.h"

namespace carillon::controller {
namespace {

using schedule::Action;
using schedule::ActionDone;
using schedule::Actions;
using schedule::ActionStatus;
using schedule::Event;
using schedule::Infer;
using schedule::Reason;
using schedule::Refuse;
using schedule::RequestArrived;
using schedule::RequestCancelled;
using testing::call_of;
using testing::HeldWorker;
using testing::is_right;
using testing::ScriptedScheduler;
using testing::served;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Window always{TimePoint::min(), TimePoint::max()};

Infer infer(std::uint64_t id, const std::vector<RequestId>& requests) {
  return {.id = {id},
          .device = {0},
          .model = {0},
          .requests = requests,
          .window = always,
          .expected = static_cast<std::int64_t>(requests.size()) * 1ms};
}

// One device, two models ("model1" with an SLO of 50 ms), a scheduler that does nothing until told.
class CoreTest : public ::testing::Test {
 protected:
  explicit CoreTest(const CoreOptions& options = {}) {
    auto owned = std::make_unique<ScriptedScheduler>();
    scheduler = owned.get();
    core = std::make_unique<Core>(std::move(owned), options);
    core->add_device(worker);
    core->add_model(served(0));
    ServedModel with_slo = served(1);
    with_slo.slo = 50ms;
    with_slo.cls = Class::best_effort;
    core->add_model(std::move(with_slo));
    core->start(at(0ms));
    scheduler->events.clear();
  }

  struct Answered {
    std::uint64_t ticket;
    InferAnswer answer;
  };
  void submit(std::uint64_t ticket, std::unique_ptr<InferCall> call, TimePoint now) {
    core->submit(
        ticket, std::move(call),
        [this, ticket](InferAnswer answer) {
          EXPECT_FALSE(answer.call && worker.uses(*answer.call)) << "buffers given away while in use";
          answers.push_back({ticket, std::move(answer)});
        },
        now);
  }
  // The scheduler answers the next event of kind E with `actions`.
  template <typename E>
  void on_next(Actions actions, std::optional<TimePoint> wake_at = std::nullopt) {
    scheduler->script = [actions = std::move(actions), wake_at, this](const Event& event, TimePoint,
                                                                      Actions& out, TimePoint& wake) {
      if (!std::holds_alternative<E>(event)) return;
      out = actions;
      wake = wake_at.value_or(wake);
      scheduler->script = nullptr;
    };
  }
  // Makes the scheduler say `actions` now, and ask for another wake.
  void say(Actions actions, TimePoint now, TimePoint wake_at = TimePoint::max()) {
    scheduler->script = [actions = std::move(actions), wake_at, this](const Event& event, TimePoint,
                                                                      Actions& out, TimePoint& wake) {
      if (!std::holds_alternative<schedule::Wake>(event)) return;
      scheduler->script = nullptr;
      out = actions;
      wake = wake_at;
    };
    ASSERT_LE(core->wake_at(), now) << "arm() first";
    core->wake(now);
  }
  // Each arrival asks for a timer, so that say() works.
  void arm() {
    scheduler->script = [](const Event& event, TimePoint now, Actions&, TimePoint& wake) {
      if (std::holds_alternative<RequestArrived>(event)) wake = now;
    };
  }
  void end(std::uint64_t id, ActionStatus status, TimePoint now, std::string error = {}) {
    core->on_result(worker.end({id}, status, now, 1ms, std::move(error)), now);
  }
  ModelStatistics stats(std::size_t model = 0) { return core->book().snapshot().models[model]; }

  ScriptedScheduler* scheduler = nullptr;
  HeldWorker worker;
  std::vector<Answered> answers;
  std::unique_ptr<Core> core;
};

// "model0" has rows of 2 bytes for each unit of length. A call of one row of 3 units is under way, and to be
// kept.
class ProfilingTest : public CoreTest {
 protected:
  void extend() {
    auto owned = std::make_unique<ScriptedScheduler>();
    scheduler = owned.get();
    core = std::make_unique<Core>(std::move(owned), CoreOptions{.largest_kept_row = 20});
    core->add_device(worker);
    ServedModel varying = served(0);
    varying.input_row_bytes = varying.output_row_bytes = {{.bytes = 2, .varies = true}};
    varying.info.time_varies = true;
    core->add_model(std::move(varying));
    core->start(at(0ms));
    scheduler->events.clear();
  }
  std::unique_ptr<InferCall> call(std::int64_t length, int rows, TimePoint now) {
    auto made = call_of({0}, rows, now, TimePoint::max(), 10, static_cast<std::size_t>(2 * length));
    made->length = length;
    made->application = "app";
    return made;
  }
  void SetUp() override {
    extend();
    worker.row_bytes = 6;
    on_next<RequestArrived>({schedule::Keep{{0}}, infer(1, {{0}})});
    submit(1, call(3, 1, at(1ms)), at(1ms));
  }
  static schedule::Profile again(std::uint64_t id, RequestId request = {0}) {
    return {.id = {id},
            .device = {0},
            .model = {0},
            .request = request,
            .window = {TimePoint{}, TimePoint::max()},
            .expected = 1ms};
  }
  // Request 0 is answered, and runs again as action 5.
  void run_again() {
    on_next<ActionDone>({again(5)});
    end(1, ActionStatus::success, at(3ms));
    ASSERT_TRUE(worker.held.contains({5}));
    scheduler->events.clear();
  }
};

TEST_F(ProfilingTest, RowsHaveTheirLengthAndSize) {
  ASSERT_TRUE(worker.held.contains({1}));
  const worker::RowBuffers& row = worker.held.at({1}).infer.rows[0];
  EXPECT_EQ(row.length, 3);
  end(1, ActionStatus::success, at(3ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_TRUE(is_right(*answers[0].answer.call));
}

TEST_F(ProfilingTest, AnAnsweredRequestRunsAgainAloneAndIsReportedAsAnInfer) {
  run_again();
  EXPECT_EQ(worker.held.at({5}).infer.rows[0].length, 3);
  EXPECT_EQ(core->actions_in_flight(), 1U);
  core->on_result(worker.end({5}, ActionStatus::success, at(9ms), 4ms), at(9ms));
  const auto heard = scheduler->heard<ActionDone>();
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].id, ActionId{5});
  EXPECT_EQ(heard[0].duration, 4ms);
  EXPECT_EQ(stats().profiled, 1U);
  EXPECT_EQ(stats().execution_count, 1U) << "the first alone";
  EXPECT_EQ(core->actions_in_flight(), 0U);
  EXPECT_EQ(answers.size(), 1U);
}

TEST_F(ProfilingTest, WhatIsStoppedIsKeptAndWhatHasRunIsNot) {
  run_again();
  on_next<RequestArrived>({schedule::Stop{{5}, {0}}, infer(6, {{1}})});
  submit(2, call(3, 1, at(4ms)), at(4ms));
  EXPECT_EQ(worker.stopped, std::vector<ActionId>{{5}});
  on_next<ActionDone>({again(7)});
  core->on_result(worker.end({5}, ActionStatus::stopped, at(4ms)), at(4ms));
  ASSERT_TRUE(worker.held.contains({7}));
  EXPECT_EQ(stats().profiled, 0U);
  on_next<ActionDone>({again(8)});
  core->on_result(worker.end({7}, ActionStatus::success, at(5ms)), at(5ms));
  ASSERT_TRUE(worker.held.contains({8}));
  EXPECT_EQ(worker.held.at({8}).infer.batch, 0) << "nothing is kept of it any more";
  scheduler->events.clear();
  end(8, ActionStatus::failed, at(6ms));
  const auto heard = scheduler->heard<ActionDone>();
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].id, ActionId{8});
  EXPECT_EQ(heard[0].status, ActionStatus::failed);
}

TEST_F(ProfilingTest, WhatIsForgottenWhileItRunsIsKeptUntilItHasEnded) {
  run_again();
  on_next<RequestArrived>({schedule::Keep{{0}, false}, schedule::Stop{{5}, {0}}});
  submit(2, call(3, 1, at(4ms)), at(4ms));
  on_next<ActionDone>({again(7)});
  core->on_result(worker.end({5}, ActionStatus::stopped, at(4ms)), at(4ms));
  EXPECT_EQ(worker.held.at({7}).infer.batch, 0);
}

TEST_F(ProfilingTest, WhatIsTooLargeIsNotKept) {
  worker.row_bytes = 12;
  on_next<RequestArrived>({schedule::Keep{{1}}, infer(2, {{1}})});
  submit(2, call(6, 1, at(2ms)), at(2ms));
  on_next<ActionDone>({again(9, {1})});
  end(2, ActionStatus::success, at(3ms));
  EXPECT_EQ(worker.held.at({9}).infer.batch, 0) << "the worker says that it failed";
}

TEST_F(ProfilingTest, ServerStopsWhileARequestRunsAgain) {
  run_again();
  core->stop(at(4ms));
  core->on_result(worker.end({5}, ActionStatus::success, at(5ms)), at(5ms));
  EXPECT_TRUE(scheduler->heard<ActionDone>().empty());
  EXPECT_EQ(core->actions_in_flight(), 0U);
}

// Applications are told apart by length, too, and what is known of a length is told with its first request.
TEST_F(ProfilingTest, LengthsAreApplicationsOfTheirOwn) {
  for (const bool by_length : {true, false}) {
    auto owned = std::make_unique<ScriptedScheduler>();
    ScriptedScheduler& heard = *owned;
    HeldWorker device;
    Core another(std::move(owned), CoreOptions{.by_length = by_length});
    another.add_device(device);
    ServedModel varying = served(0);
    varying.input_row_bytes = varying.output_row_bytes = {{.bytes = 2, .varies = true}};
    varying.lengths = {4, 8};
    varying.info.solos = {3ms, 5ms};
    another.add_model(std::move(varying));
    another.start(at(0ms));
    std::uint64_t ticket = 0;
    for (const std::int64_t length : {2, 4, 5, 8, 3})
      another.submit(
          ++ticket, call(length, 1, at(1ms)), [](const InferAnswer&) {}, at(1ms));
    std::vector<std::uint32_t> apps;
    for (const RequestArrived& arrived : heard.heard<RequestArrived>())
      apps.push_back(arrived.request.app.value);
    const auto told = heard.heard<schedule::RequestProfiled>();
    if (!by_length) {
      EXPECT_EQ(apps, (std::vector<std::uint32_t>{1, 1, 1, 1, 1}));
      EXPECT_TRUE(told.empty());
      continue;
    }
    EXPECT_EQ(apps, (std::vector<std::uint32_t>{1, 1, 2, 2, 1}));
    ASSERT_EQ(told.size(), 16U) << "as good as eight samples of each";
    EXPECT_EQ(told.front().app, AppId{1});
    EXPECT_EQ(told.front().solo, 3ms);
    EXPECT_EQ(told.back().app, AppId{2});
    EXPECT_EQ(told.back().solo, 5ms);
  }
}

TEST_F(CoreTest, ACallWaitsWhileNothingOfItRuns) {
  arm();
  submit(1, call_of({0}, 2, at(1ms)), at(1ms));
  submit(2, call_of({0}, 1, at(1ms)), at(1ms));
  submit(3, call_of({1}, 1, at(1ms)), at(1ms));
  EXPECT_EQ(stats(0).waiting, 2U);
  EXPECT_EQ(stats(1).waiting, 1U);
  say({infer(1, {{0}})}, at(1ms), at(2ms));
  EXPECT_EQ(stats(0).waiting, 1U);
  end(1, ActionStatus::success, at(2ms));
  EXPECT_EQ(stats(0).waiting, 2U);  // of the first call, one row is still to come
  say({infer(2, {{1}, {2}})}, at(2ms), at(3ms));
  EXPECT_EQ(stats(0).waiting, 0U);
  end(2, ActionStatus::too_late, at(3ms));
  EXPECT_EQ(stats(0).waiting, 2U);
  worker.full = true;
  say({infer(3, {{1}, {2}})}, at(3ms), at(4ms));
  EXPECT_EQ(stats(0).waiting, 2U);  // nobody took it
  core->cancel(2, at(4ms));
  EXPECT_EQ(stats(0).waiting, 1U);
  core->stop(at(5ms));
  EXPECT_EQ(stats(0).waiting, 0U);
  EXPECT_EQ(stats(1).waiting, 0U);
}

TEST_F(CoreTest, StartTellsTheSchedulerOfModelsAndDevices) {
  auto owned = std::make_unique<ScriptedScheduler>();
  ScriptedScheduler& fresh = *owned;
  Core another(std::move(owned), {});
  another.add_device(worker);
  another.add_model(served(0));
  another.start(at(3ms));
  ASSERT_EQ(fresh.heard<schedule::ModelChanged>().size(), 1U);
  const auto devices = fresh.heard<schedule::DeviceChanged>();
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0].pages, 100U);
  EXPECT_TRUE(devices[0].alive);
}

TEST_F(CoreTest, RowsOfOneCallAreJoined) {
  arm();
  submit(1, call_of({0}, 3, at(1ms), at(90ms)), at(1ms));
  const auto arrived = scheduler->heard<RequestArrived>();
  ASSERT_EQ(arrived.size(), 3U);
  for (std::uint64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(arrived[r].request.id, RequestId{r});
    EXPECT_EQ(arrived[r].request.deadline, at(90ms));
    EXPECT_EQ(arrived[r].request.arrival, at(1ms));
  }
  say({infer(0, {{2}, {0}}), infer(1, {{1}})}, at(2ms));
  EXPECT_EQ(worker.held.size(), 2U);
  end(0, ActionStatus::success, at(5ms));
  EXPECT_TRUE(answers.empty());
  end(1, ActionStatus::success, at(7ms));
  ASSERT_EQ(answers.size(), 1U);
  ASSERT_TRUE(answers[0].answer.status.has_value());
  EXPECT_TRUE(testing::is_right(*answers[0].answer.call));
  EXPECT_EQ(answers[0].answer.finished, at(7ms));
  EXPECT_EQ(core->open_rows(), 0U);
  EXPECT_EQ(core->actions_in_flight(), 0U);

  const ModelStatistics of = stats();
  EXPECT_EQ(of.on_time, 1U);
  EXPECT_EQ(of.inference_count, 3U);
  EXPECT_EQ(of.execution_count, 2U);
  EXPECT_EQ(of.success.count, 1U);
  EXPECT_EQ(of.success.total, 6ms);
  EXPECT_EQ(of.compute_infer.total, 1ms);
  EXPECT_EQ(of.queue.total, 5ms) << "from arrival to its last EXEC";
  ASSERT_EQ(of.batches.size(), 2U);
  EXPECT_EQ(of.batches[1].size, 2);
  for (const ModelStatistics::Batch& batch : of.batches) {
    EXPECT_EQ(batch.input.count, 1U) << batch.size;
    EXPECT_EQ(batch.infer.count, 1U) << batch.size;
    EXPECT_EQ(batch.output.count, 1U) << batch.size;
    EXPECT_EQ(batch.infer.total, 1ms) << batch.size;
  }
  // Predicted 1 ms and 2 ms; both took 1 ms.
  EXPECT_EQ(of.prediction_error.count(), 2U);
  EXPECT_EQ(of.prediction_error.max(), 1ms);
}

TEST_F(CoreTest, TheDeadlineIsTheFirstThatIsPresent) {
  auto owned = std::make_unique<ScriptedScheduler>();
  ScriptedScheduler& fresh = *owned;
  Core with_default(std::move(owned), {.default_deadline = 70ms});
  with_default.add_device(worker);
  with_default.add_model(served(0));
  ServedModel slo = served(1);
  slo.slo = 50ms;
  with_default.add_model(std::move(slo));
  with_default.start(at(0ms));
  const auto nothing = [](const InferAnswer&) {};
  with_default.submit(1, call_of({1}, 1, at(1ms), at(9ms)), nothing, at(2ms));
  with_default.submit(2, call_of({1}, 1, at(1ms)), nothing, at(2ms));
  with_default.submit(3, call_of({0}, 1, at(1ms)), nothing, at(2ms));
  core->submit(4, call_of({0}, 1, at(1ms)), nothing, at(2ms));
  const auto heard = fresh.heard<RequestArrived>();
  ASSERT_EQ(heard.size(), 3U);
  EXPECT_EQ(heard[0].request.deadline, at(9ms)) << "the call's own";
  EXPECT_EQ(heard[1].request.deadline, at(51ms)) << "the model's SLO, from arrival";
  EXPECT_EQ(heard[2].request.deadline, at(71ms)) << "the server's default, from arrival";
  EXPECT_EQ(scheduler->heard<RequestArrived>().at(0).request.deadline, TimePoint::max()) << "none at all";
}

TEST_F(CoreTest, OfBestEffortOnlyItsOwnDeadlineCounts) {
  auto owned = std::make_unique<ScriptedScheduler>();
  ScriptedScheduler& fresh = *owned;
  Core with_default(std::move(owned), {.default_deadline = 70ms});
  with_default.add_device(worker);
  for (std::uint32_t m = 0; m < 2; ++m) {
    ServedModel patient = served(m);
    patient.cls = Class::best_effort;
    if (m == 1) patient.slo = 50ms;
    with_default.add_model(std::move(patient));
  }
  with_default.start(at(0ms));
  const auto nothing = [](const InferAnswer&) {};
  with_default.submit(1, call_of({0}, 1, at(1ms)), nothing, at(2ms));
  with_default.submit(2, call_of({1}, 1, at(1ms)), nothing, at(2ms));
  with_default.submit(3, call_of({0}, 1, at(1ms), at(9ms)), nothing, at(2ms));
  auto urgent = call_of({0}, 1, at(1ms));
  urgent->class_given = true;
  urgent->cls = Class::real_time;
  with_default.submit(4, std::move(urgent), nothing, at(2ms));
  const auto heard = fresh.heard<RequestArrived>();
  ASSERT_EQ(heard.size(), 4U);
  EXPECT_EQ(heard[0].request.deadline, TimePoint::max()) << "not the server's";
  EXPECT_EQ(heard[1].request.deadline, at(51ms)) << "its model's";
  EXPECT_EQ(heard[2].request.deadline, at(9ms));
  EXPECT_EQ(heard[3].request.deadline, at(71ms)) << "it is not of best effort";
}

TEST_F(CoreTest, ARefusalForWantOfADeadlineSaysSo) {
  on_next<RequestArrived>({Refuse{{0}, Reason::cannot_finish, at(1400ms)}});
  auto urgent = call_of({0}, 1, at(0ms));
  urgent->cls = Class::real_time;
  urgent->class_given = true;
  submit(1, std::move(urgent), at(0ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].answer.status.error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(
      answers[0].answer.status.error().message,
      "model 'model0': more real-time work waits than may wait for requests without a deadline; it would "
      "have finished 1400.000 ms after its arrival");
  EXPECT_EQ(stats().refused, 1U);
}

TEST_F(CoreTest, WhatIsDelayedWaitsOnWithoutItsDeadline) {
  arm();
  auto call = call_of({1}, 2, at(0ms));
  call->due = at(5ms);
  submit(1, std::move(call), at(0ms));
  say({Refuse{{0}, Reason::cannot_finish, at(9ms)}}, at(0ms));
  auto heard = scheduler->heard<RequestArrived>();
  ASSERT_EQ(heard.size(), 3U);
  EXPECT_EQ(heard[0].request.deadline, at(5ms)) << "not the model's SLO";
  EXPECT_EQ(heard[1].request.deadline, at(5ms));
  EXPECT_EQ(heard[2].request.id, RequestId{0}) << "the row that was refused, once more";
  EXPECT_EQ(heard[2].request.deadline, TimePoint::max());
  EXPECT_EQ(heard[2].request.arrival, at(0ms));
  EXPECT_TRUE(scheduler->heard<RequestCancelled>().empty());
  EXPECT_TRUE(answers.empty());

  on_next<schedule::Wake>({infer(0, {{1}})});
  EXPECT_EQ(core->open_rows(), 2U);
  EXPECT_EQ(stats(1).refused, 0U);
}

TEST_F(CoreTest, WhatIsDelayedIsAnsweredLateAndCountsAsOnTime) {
  on_next<RequestArrived>({Refuse{{0}, Reason::deadline_passed, TimePoint::max()}});
  auto call = call_of({0}, 1, at(0ms));
  call->due = at(5ms);
  submit(1, std::move(call), at(0ms));
  ASSERT_TRUE(answers.empty());
  arm();
  submit(2, call_of({0}, 1, at(6ms)), at(6ms));
  say({infer(0, {{0}})}, at(6ms));
  end(0, ActionStatus::success, at(30ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_TRUE(answers[0].answer.status.has_value());
  EXPECT_EQ(stats().on_time, 1U) << "it has no deadline that it could miss";
  EXPECT_EQ(stats().refused, 0U);
}

TEST_F(CoreTest, WhatIsDelayedIsRefusedForAllElse) {
  const auto delayed = [&](std::uint64_t ticket, TimePoint own) {
    auto call = call_of({0}, 1, at(0ms), own);
    call->due = at(5ms);
    submit(ticket, std::move(call), at(0ms));
  };
  on_next<RequestArrived>({Refuse{{0}, Reason::device_failed, TimePoint::max()}});
  delayed(1, TimePoint::max());
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].answer.status.error().code, ErrorCode::internal);
  // Its own deadline holds: the second refusal is for that.
  int arrivals = 0;
  scheduler->script = [&](const Event& event, TimePoint, Actions& out, TimePoint&) {
    if (!std::holds_alternative<RequestArrived>(event)) return;
    ++arrivals;
    out = {Refuse{{1}, Reason::cannot_finish, at(40ms)}};
  };
  delayed(2, at(20ms));
  EXPECT_EQ(arrivals, 2);
  EXPECT_EQ(scheduler->heard<RequestArrived>().back().request.deadline, at(20ms));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[1].answer.status.error().code, ErrorCode::deadline_exceeded);
}

TEST_F(CoreTest, ADeadlineDaysAwayIsAnError) {
  submit(1, call_of({0}, 1, at(0ms), at(25h)), at(1ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].answer.status.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(answers[0].answer.status.error().message,
            "the deadline lies more than 86400 s after the request's arrival; give an earlier one, or none");
  EXPECT_TRUE(scheduler->events.empty());
}

TEST_F(CoreTest, ARefusalSaysWhyAndWhen) {
  on_next<RequestArrived>({Refuse{{0}, Reason::cannot_finish, at(25ms)}});
  submit(1, call_of({0}, 1, at(1ms), at(20ms)), at(2ms));
  ASSERT_EQ(answers.size(), 1U);
  const InferAnswer& answer = answers[0].answer;
  EXPECT_EQ(answer.status.error().code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(
      answer.status.error().message,
      "model 'model0': cannot finish by its deadline; it would have finished 24.000 ms after its arrival, "
      "5.000 ms after its deadline");
  EXPECT_EQ(answer.would_take, 24ms);
  EXPECT_NE(answer.call, nullptr);
  EXPECT_TRUE(scheduler->heard<RequestCancelled>().empty()) << "nothing is left to cancel";
  EXPECT_EQ(stats().refused, 1U);
  EXPECT_EQ(stats().fail.count, 1U);
  EXPECT_EQ(core->open_rows(), 0U);
}

TEST_F(CoreTest, ReasonsHaveTheirCodes) {
  const struct {
    Reason reason;
    ErrorCode code;
  } rows[] = {{Reason::cannot_finish, ErrorCode::deadline_exceeded},
              {Reason::deadline_passed, ErrorCode::deadline_exceeded},
              {Reason::rejected_late, ErrorCode::deadline_exceeded},
              {Reason::device_failed, ErrorCode::internal},
              {Reason::no_device, ErrorCode::resource_exhausted},
              {Reason::no_model, ErrorCode::not_found}};
  std::uint64_t id = 0;
  for (const auto& row : rows) {
    on_next<RequestArrived>({Refuse{{id++}, row.reason, TimePoint::max()}});
    submit(id, call_of({0}, 1, at(1ms), at(20ms)), at(2ms));
    EXPECT_EQ(answers.back().answer.status.error().code, row.code);
    EXPECT_EQ(answers.back().answer.would_take, std::nullopt);
  }
  EXPECT_EQ(stats().refused, 3U);
  EXPECT_EQ(stats().failed, 3U);
}

TEST_F(CoreTest, OneRefusedRowRefusesTheCallAndCancelsTheOthers) {
  arm();
  submit(1, call_of({0}, 4, at(0ms), at(20ms)), at(0ms));
  say({infer(0, {{0}}), Refuse{{2}, Reason::deadline_passed, at(30ms)}}, at(1ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].answer.status.error().code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(answers[0].answer.call, nullptr) << "row 0 is under way: its buffers are not given away";
  std::vector<std::uint64_t> cancelled;
  for (const auto& event : scheduler->heard<RequestCancelled>()) cancelled.push_back(event.request.value);
  EXPECT_EQ(cancelled, (std::vector<std::uint64_t>{0, 1, 3}));
  EXPECT_EQ(core->open_calls(), 0U);
  EXPECT_EQ(core->open_rows(), 4U) << "its buffers live on";
  end(0, ActionStatus::success, at(4ms));
  EXPECT_EQ(core->open_rows(), 0U);
  EXPECT_EQ(answers.size(), 1U);
}

TEST_F(CoreTest, ARowRefusedOnArrivalSparesTheRestTheTrip) {
  on_next<RequestArrived>({Refuse{{0}, Reason::cannot_finish, at(30ms)}});
  submit(1, call_of({0}, 4, at(0ms), at(20ms)), at(0ms));
  EXPECT_EQ(scheduler->heard<RequestArrived>().size(), 1U);
  EXPECT_TRUE(scheduler->heard<RequestCancelled>().empty());
  EXPECT_EQ(answers.size(), 1U);
}

// Two calls lose a row in the same breath. On hearing of the first cancellation the scheduler uses a row of
// the second call, of whose end it has not heard.
TEST_F(CoreTest, BuffersStayUntilTheSchedulerHasHeardOfTheCancellation) {
  arm();
  submit(1, call_of({0}, 2, at(0ms), at(20ms)), at(0ms));
  submit(2, call_of({0}, 2, at(0ms), at(20ms)), at(0ms));
  scheduler->script = [](const Event& event, TimePoint, Actions& out, TimePoint&) {
    if (std::holds_alternative<schedule::Wake>(event)) {
      out.push_back(Refuse{{0}, Reason::deadline_passed, at(30ms)});
      out.push_back(Refuse{{2}, Reason::deadline_passed, at(30ms)});
    } else if (const auto* cancelled = std::get_if<RequestCancelled>(&event);
               cancelled != nullptr && cancelled->request == RequestId{1}) {
      out.push_back(infer(0, {{3}}));
    }
  };
  core->wake(at(1ms));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_NE(answers[0].answer.call, nullptr);
  EXPECT_EQ(answers[1].answer.call, nullptr);
  end(0, ActionStatus::success, at(2ms));
  EXPECT_EQ(core->open_rows(), 0U);
}

TEST_F(CoreTest, AGoneClientsRequestIsDroppedBeforeItRuns) {
  submit(7, call_of({0}, 2, at(0ms)), at(0ms));
  core->cancel(7, at(1ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].answer.status.error().code, ErrorCode::cancelled);
  EXPECT_NE(answers[0].answer.call, nullptr);
  EXPECT_EQ(scheduler->heard<RequestCancelled>().size(), 2U);
  EXPECT_EQ(stats().cancelled, 1U);
  EXPECT_EQ(core->open_rows(), 0U);
  core->cancel(7, at(2ms));    // again
  core->cancel(999, at(2ms));  // never given
  EXPECT_EQ(answers.size(), 1U);
  EXPECT_EQ(scheduler->heard<RequestCancelled>().size(), 2U);
}

TEST_F(CoreTest, AGoneClientsRunningRequestIsAnsweredAndItsBuffersOutliveIt) {
  arm();
  submit(7, call_of({0}, 1, at(0ms)), at(0ms));
  say({infer(0, {{0}})}, at(0ms));
  core->cancel(7, at(1ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].answer.call, nullptr);
  EXPECT_EQ(scheduler->heard<RequestCancelled>().size(), 1U) << "it must not be tried again";
  end(0, ActionStatus::too_late, at(2ms));
  EXPECT_EQ(core->open_rows(), 0U);
  EXPECT_EQ(scheduler->heard<ActionDone>().size(), 1U);
}

TEST_F(CoreTest, AFailureIsToldWithTheWorkersWords) {
  arm();
  submit(1, call_of({0}, 1, at(0ms), at(20ms)), at(0ms));
  say({infer(0, {{0}})}, at(0ms));
  on_next<ActionDone>({Refuse{{0}, Reason::device_failed, TimePoint::max()}});
  end(0, ActionStatus::failed, at(2ms), "Gather_3: index 99 is out of range");
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].answer.status.error().code, ErrorCode::internal);
  EXPECT_EQ(answers[0].answer.status.error().message,
            "model 'model0': its execution failed: Gather_3: index 99 is out of range");
  EXPECT_EQ(stats().failed, 1U);
}

TEST_F(CoreTest, AnActionThatDidNotRunMayBeTriedAgain) {
  arm();
  submit(1, call_of({0}, 1, at(0ms), at(20ms)), at(0ms));
  say({infer(0, {{0}})}, at(0ms));
  on_next<ActionDone>({infer(1, {{0}})});
  end(0, ActionStatus::too_late, at(2ms));
  EXPECT_TRUE(answers.empty());
  end(1, ActionStatus::success, at(4ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_TRUE(answers[0].answer.status.has_value());
}

TEST_F(CoreTest, AFullWorkerIsToldOfAfterAPause) {
  arm();
  submit(1, call_of({0}, 1, at(0ms), at(20ms)), at(0ms));
  worker.full = true;
  say({infer(0, {{0}})}, at(1ms));
  EXPECT_TRUE(scheduler->heard<ActionDone>().empty());
  EXPECT_EQ(core->actions_in_flight(), 0U);
  EXPECT_EQ(core->wake_at(), at(1ms) + 100us);
  core->wake(at(1ms) + 50us);
  EXPECT_TRUE(scheduler->heard<ActionDone>().empty()) << "not yet";
  worker.full = false;
  on_next<ActionDone>({infer(1, {{0}})});
  core->wake(at(1ms) + 100us);
  const auto done = scheduler->heard<ActionDone>();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].id, ActionId{0});
  EXPECT_EQ(done[0].status, ActionStatus::too_late);
  end(1, ActionStatus::success, at(3ms));
  EXPECT_EQ(core->wake_at(), TimePoint::max());
  EXPECT_EQ(answers.size(), 1U);
}

// An UNLOAD waits until the worker has room.
TEST_F(CoreTest, LoadsOfAFullWorkerAreToldToo) {
  arm();
  submit(1, call_of({0}, 1, at(0ms)), at(0ms));
  worker.full = true;
  say({schedule::Load{{0}, {0}, {0}, always, 1ms}, schedule::Unload{{1}, {0}, {1}}}, at(0ms));
  core->wake(at(1ms));
  EXPECT_EQ(scheduler->heard<ActionDone>().size(), 1U);
}

TEST_F(CoreTest, ALateResultIsDeliveredAndCountedLate) {
  arm();
  submit(1, call_of({0}, 1, at(0ms), at(20ms)), at(0ms));
  say({infer(0, {{0}})}, at(0ms));
  end(0, ActionStatus::success, at(20ms) + 1ns);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_TRUE(answers[0].answer.status.has_value());
  EXPECT_EQ(stats().late, 1U);
  EXPECT_EQ(stats().on_time, 0U);
}

TEST_F(CoreTest, LoadsAndUnloadsAreCounted) {
  arm();
  submit(1, call_of({0}, 1, at(0ms)), at(0ms));
  say({schedule::Load{{0}, {0}, {0}, always, 1ms}}, at(0ms));
  end(0, ActionStatus::success, at(2ms));
  EXPECT_TRUE(stats().loaded);
  EXPECT_EQ(stats().loads, 1U);
  submit(2, call_of({0}, 1, at(2ms)), at(2ms));
  on_next<RequestArrived>({schedule::Unload{{1}, {0}, {0}}, schedule::Load{{2}, {0}, {1}, always, 1ms}});
  submit(3, call_of({0}, 1, at(2ms)), at(2ms));
  end(1, ActionStatus::success, at(3ms));
  end(2, ActionStatus::no_memory, at(3ms));
  EXPECT_FALSE(stats().loaded);
  EXPECT_EQ(stats().unloads, 1U);
  EXPECT_EQ(stats(1).loads, 0U);
  EXPECT_EQ(core->book().snapshot().load_busy, 1ms);
  EXPECT_EQ(core->book().snapshot().open_requests, 3U);
}

TEST_F(CoreTest, ClassAndPriorityGoToTheScheduler) {
  auto call = call_of({1}, 1, at(0ms));
  submit(1, std::move(call), at(0ms));
  call = call_of({1}, 1, at(0ms));
  call->class_given = true;
  call->cls = Class::real_time;
  call->priority = 3;
  submit(2, std::move(call), at(0ms));
  const auto heard = scheduler->heard<RequestArrived>();
  EXPECT_EQ(heard.at(0).request.cls, Class::best_effort) << "the model's own";
  EXPECT_EQ(heard.at(1).request.cls, Class::real_time);
  EXPECT_EQ(heard.at(1).request.priority, 3U);
}

TEST_F(CoreTest, AnInferHasTheClassThatTheSchedulerSays) {
  auto urgent = call_of({0}, 1, at(0ms));
  urgent->class_given = true;
  urgent->cls = Class::real_time;
  Infer said = infer(1, {{0}});
  said.cls = Class::real_time;
  on_next<RequestArrived>({said});
  submit(1, std::move(urgent), at(0ms));
  EXPECT_EQ(worker.held.at({1}).infer.cls, Class::real_time);
  on_next<RequestArrived>({infer(2, {{1}})});
  submit(2, call_of({0}, 1, at(0ms)), at(0ms));
  EXPECT_EQ(worker.held.at({2}).infer.cls, Class::normal);
}

TEST_F(CoreTest, AnArrivalIsNeverLaterThanNow) {
  submit(1, call_of({0}, 1, at(5ms), at(20ms)), at(3ms));
  EXPECT_EQ(scheduler->heard<RequestArrived>().at(0).request.arrival, at(3ms));
}

// It counts there while no device has any of its rows.
TEST_F(CoreTest, ACallWaitsInItsModelsQueueUntilADeviceHasIt) {
  QueueRules rules(std::make_shared<const repository::QueuePolicies>(
      repository::QueuePolicies{.others = {.due = {}, .most_waiting = 1}}));
  const auto room = [&] { return rules.enter(*call_of({0}, 1, at(0ms)), {}).has_value(); };
  auto call = call_of({0}, 2, at(0ms));
  ASSERT_TRUE(rules.enter(*call, {}));
  EXPECT_FALSE(room());
  on_next<RequestArrived>({infer(1, {{0}})});
  submit(1, std::move(call), at(0ms));
  EXPECT_TRUE(room());
  on_next<ActionDone>({});
  end(1, ActionStatus::failed, at(1ms));
  EXPECT_FALSE(room()) << "it is to be tried again";
  on_next<RequestArrived>({infer(2, {{0}, {1}, {2}})});
  submit(2, call_of({0}, 1, at(1ms)), at(1ms));
  EXPECT_TRUE(room());
  core->cancel(1, at(2ms));
  ASSERT_EQ(answers.size(), 1U);
  end(2, ActionStatus::success, at(3ms));
  EXPECT_TRUE(room());
}

TEST_F(CoreTest, AnOutputThatNobodyWantsHasNoMemory) {
  auto call = call_of({0}, 2, at(0ms));
  call->outputs_wanted = {false};
  call->outputs[0].clear();
  on_next<RequestArrived>({infer(1, {{0}})});
  submit(1, std::move(call), at(0ms));
  ASSERT_TRUE(worker.held.contains({1}));
  EXPECT_EQ(worker.held.at({1}).infer.rows[0].outputs[0], nullptr);
  EXPECT_NE(worker.held.at({1}).infer.rows[0].inputs[0], nullptr);
  end(1, ActionStatus::failed, at(1ms));
}

class SmallCoreTest : public CoreTest {
 protected:
  SmallCoreTest() : CoreTest({.max_open = 3, .max_applications = 2}) {}
};

TEST_F(SmallCoreTest, ACallBeyondTheBoundIsAnsweredAtOnce) {
  submit(1, call_of({0}, 2, at(0ms)), at(0ms));
  submit(2, call_of({0}, 2, at(0ms)), at(0ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].ticket, 2U);
  EXPECT_EQ(answers[0].answer.status.error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(answers[0].answer.status.error().message, "the server is full: 2 rows are open, of at most 3");
  EXPECT_EQ(answers[0].answer.retry_after, retry_when_full);
  submit(3, call_of({0}, 1, at(0ms)), at(0ms));
  EXPECT_EQ(answers.size(), 1U);
  core->cancel(1, at(1ms));
  submit(4, call_of({0}, 2, at(1ms)), at(1ms));
  EXPECT_EQ(answers.size(), 2U) << "only the cancelled one";
}

TEST_F(SmallCoreTest, ApplicationsAreToldApartUpToTheCap) {
  std::vector<std::uint32_t> ids;
  std::uint64_t ticket = 0;
  for (const char* name : {"", "a", "b", "a", "c", "d", ""}) {
    auto call = call_of({0}, 1, at(0ms));
    call->application = name;
    submit(++ticket, std::move(call), at(0ms));
    ids.push_back(scheduler->heard<RequestArrived>().back().request.app.value);
    core->cancel(ticket, at(0ms));
  }
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{0, 1, 2, 1, 0, 0, 0}));
}

TEST_F(CoreTest, AStoppedInferIsOpenAgain) {
  arm();
  submit(1, call_of({0}, 1, at(0ms)), at(0ms));
  say({infer(0, {{0}})}, at(0ms), at(1ms));
  Actions stop;
  stop.emplace_back(schedule::Stop{ActionId{0}, DeviceId{0}});
  say(stop, at(1ms), at(2ms));
  ASSERT_EQ(worker.stopped.size(), 1U);
  EXPECT_EQ(worker.stopped[0], ActionId{0});
  end(0, ActionStatus::stopped, at(2ms));
  EXPECT_TRUE(answers.empty());
  say({infer(1, {{0}})}, at(2ms));
  end(1, ActionStatus::success, at(3ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_TRUE(answers[0].answer.status.has_value());
}

TEST_F(CoreTest, StopAnswersAllThatIsOpenOnce) {
  arm();
  submit(1, call_of({0}, 1, at(0ms)), at(0ms));
  say({infer(0, {{0}})}, at(0ms));
  submit(2, call_of({0}, 3, at(0ms)), at(0ms));
  const std::size_t heard = scheduler->events.size();
  core->stop(at(1ms));
  core->stop(at(1ms));
  submit(3, call_of({0}, 1, at(1ms)), at(1ms));
  ASSERT_EQ(answers.size(), 3U);
  for (const Answered& each : answers) {
    EXPECT_EQ(each.answer.status.error().code, ErrorCode::unavailable);
    EXPECT_EQ(each.answer.call == nullptr, each.ticket == 1) << "only its action is under way";
  }
  end(0, ActionStatus::success, at(2ms));
  core->cancel(1, at(2ms));
  core->wake(at(3ms));
  EXPECT_EQ(core->wake_at(), TimePoint::max());
  EXPECT_EQ(scheduler->events.size(), heard) << "the scheduler hears nothing any more";
  EXPECT_EQ(answers.size(), 3U);
  EXPECT_EQ(core->open_rows(), 0U);
}

TEST_F(CoreTest, TheLastWakeCounts) {
  on_next<RequestArrived>({}, at(5ms));
  submit(1, call_of({0}, 1, at(0ms)), at(0ms));
  on_next<RequestArrived>({}, at(9ms));
  submit(2, call_of({0}, 1, at(0ms)), at(0ms));
  EXPECT_EQ(core->wake_at(), at(9ms));
  core->wake(at(8ms));
  EXPECT_TRUE(scheduler->heard<schedule::Wake>().empty());
  core->wake(at(9ms));
  EXPECT_EQ(scheduler->heard<schedule::Wake>().size(), 1U);
  EXPECT_EQ(core->wake_at(), TimePoint::max());
}

// --- Bad rows

TEST_F(CoreTest, ABadRowFailsItsOwnCallAlone) {
  arm();
  submit(1, call_of({0}, 1, at(1ms), at(50ms)), at(1ms));
  submit(2, call_of({0}, 2, at(1ms), at(50ms)), at(1ms));
  submit(3, call_of({0}, 1, at(1ms)), at(1ms));
  say({infer(1, {{0}, {2}, {3}})}, at(1ms));
  EXPECT_EQ(worker.held.at({1}).infer.rows[0].deadline, at(50ms));
  EXPECT_EQ(worker.held.at({1}).infer.rows[2].deadline, TimePoint::max());
  scheduler->events.clear();
  worker::ActionResult result = worker.end({1}, ActionStatus::success, at(3ms));
  result.bad_rows = {{1, {ErrorCode::invalid_argument, "index 9 is outside"}}};
  core->on_result(result, at(3ms));
  ASSERT_EQ(answers.size(), 3U);
  for (const Answered& each : answers) {
    if (each.ticket != 2) {
      EXPECT_TRUE(each.answer.status.has_value());
      EXPECT_TRUE(is_right(*each.answer.call));
      continue;
    }
    ASSERT_FALSE(each.answer.status.has_value());
    EXPECT_EQ(each.answer.status.error(),
              (Error{ErrorCode::invalid_argument, "model 'model0': row 1: index 9 is outside"}));
    EXPECT_NE(each.answer.call, nullptr);
  }
  const auto cancelled = scheduler->heard<RequestCancelled>();
  ASSERT_EQ(cancelled.size(), 1U) << "the other row of the call; the bad one is over";
  EXPECT_EQ(cancelled[0].request, RequestId{1});
  const auto done = scheduler->heard<ActionDone>();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].status, ActionStatus::success);
  EXPECT_EQ(done[0].duration, 1ms) << "as measured";
  EXPECT_EQ(stats().failed, 1U);
  EXPECT_EQ(stats().invalid, 1U);
  EXPECT_EQ(stats().on_time, 2U);
  EXPECT_EQ(core->open_rows(), 0U);
}

TEST_F(CoreTest, ABadRowOfACallThatHasGone) {
  arm();
  submit(1, call_of({0}, 1, at(1ms)), at(1ms));
  say({infer(1, {{0}})}, at(1ms));
  core->cancel(1, at(2ms));
  worker::ActionResult result = worker.end({1}, ActionStatus::success, at(3ms));
  result.bad_rows = {{0, {ErrorCode::invalid_argument, "bad"}}};
  core->on_result(result, at(3ms));
  EXPECT_EQ(answers.size(), 1U);
  EXPECT_EQ(core->open_rows(), 0U);
}

TEST_F(CoreTest, NobodyLearnsFromABatchWhoseRowsRanAlone) {
  arm();
  submit(1, call_of({0}, 1, at(1ms)), at(1ms));
  submit(2, call_of({0}, 1, at(1ms)), at(1ms));
  say({infer(1, {{0}, {1}})}, at(1ms));
  scheduler->events.clear();
  worker::ActionResult result = worker.end({1}, ActionStatus::success, at(30ms), 25ms);
  result.odd_time = true;
  result.bad_rows = {{0, {ErrorCode::deadline_exceeded, "no time"}}};
  core->on_result(result, at(30ms));
  const auto done = scheduler->heard<ActionDone>();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].duration, 2ms) << "as predicted";
  EXPECT_EQ(done[0].end, at(30ms)) << "when the device is free";
  EXPECT_EQ(stats().refused, 1U);
}

TEST_F(CoreTest, TheSchedulerHearsThatTimesChange) {
  const std::vector<schedule::BatchProfile> times{{1, 1ms}, {2, 1500us}};
  core->change_times({1}, times, at(1ms));
  const auto heard = scheduler->heard<schedule::TimesChanged>();
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].model, ModelId{1});
  EXPECT_EQ(heard[0].batches, times);
  EXPECT_EQ(core->model({1}).batches, times);
  // It may say something to that.
  on_next<schedule::TimesChanged>({infer(1, {{0}, {1}})});
  submit(1, call_of({0}, 2, at(2ms)), at(2ms));
  core->change_times({0}, times, at(3ms));
  EXPECT_TRUE(worker.held.contains({1}));
  end(1, ActionStatus::success, at(4ms));
  ASSERT_EQ(answers.size(), 1U);
  ASSERT_NE(answers[0].answer.call, nullptr);
  EXPECT_TRUE(is_right(*answers[0].answer.call));

  scheduler->events.clear();
  core->go({1}, at(5ms));
  core->change_times({1}, {{1, 2ms}, {2, 3ms}}, at(6ms));
  EXPECT_TRUE(scheduler->heard<schedule::TimesChanged>().empty()) << "it has gone";
  core->stop(at(7ms));
  core->change_times({0}, {{1, 2ms}, {2, 3ms}}, at(8ms));
  EXPECT_TRUE(scheduler->heard<schedule::TimesChanged>().empty()) << "nobody decides any more";
}

class CoreGoingTest : public CoreTest {
 protected:
  explicit CoreGoingTest()
      : CoreTest({.on_left = [this](ModelId id) { said.push_back("left " + std::to_string(id.value)); },
                  .on_gone = [this](ModelId id) { said.push_back("gone " + std::to_string(id.value)); }}) {}

  std::vector<std::string> said;
};

TEST_F(CoreGoingTest, AModelHasGoneOnceItsLastCallAndItsLastActionHaveEnded) {
  using Said = std::vector<std::string>;
  arm();
  submit(1, call_of({0}, 1, at(0ms)), at(0ms));
  submit(2, call_of({0}, 1, at(0ms)), at(0ms));
  say({schedule::Load{{0}, {0}, {0}, always, 1ms}}, at(0ms), at(2ms));
  end(0, ActionStatus::success, at(1ms));
  say({infer(1, {{0}})}, at(2ms), at(4ms));
  core->go({0}, at(2ms));
  core->cancel(1, at(3ms));
  EXPECT_EQ(answers.size(), 1U);
  EXPECT_EQ(said, Said{}) << "a device may still write into its buffers";
  end(1, ActionStatus::success, at(3ms));
  EXPECT_EQ(said, Said{"left 0"});
  say({schedule::Unload{{2}, {0}, {0}}}, at(4ms), at(6ms));
  end(2, ActionStatus::success, at(5ms));
  EXPECT_EQ(said, Said{"left 0"}) << "a call waits";
  say({Refuse{{1}, Reason::no_model, TimePoint::max()}}, at(6ms));
  EXPECT_EQ(said, (Said{"left 0", "left 0", "gone 0"}));
  submit(3, call_of({0}, 1, at(7ms)), at(7ms));
  EXPECT_EQ(answers.back().answer.status.error().code, ErrorCode::not_found);
  EXPECT_EQ(said, (Said{"left 0", "left 0", "gone 0", "left 0"})) << "once";
}

TEST_F(CoreGoingTest, AModelHasGoneWhileNoDeviceIsAwayAlone) {
  using Said = std::vector<std::string>;
  arm();
  submit(1, call_of({1}, 1, at(0ms)), at(0ms));
  say({schedule::GiveUp{{0}}, Refuse{{0}, Reason::no_device, TimePoint::max()}}, at(0ms));
  EXPECT_EQ(said, Said{"left 1"});
  core->go({1}, at(1ms));
  core->go({1}, at(1ms));
  EXPECT_EQ(said, Said{"left 1"}) << "nobody knows what the device does";
  core->on_probe({.found = {}, .life = 1, .device = {0}}, at(2ms));
  EXPECT_EQ(said, (Said{"left 1", "gone 1"}));
}

TEST_F(CoreTest, WhatRequestsAreExpectedToTakeChangesWithTheTimes) {
  core->book().seed({0}, core->model({0}).batches);
  on_next<RequestArrived>({infer(1, {{0}})});
  submit(1, call_of({0}, 1, at(1ms)), at(1ms));
  core->on_result(worker.end({1}, ActionStatus::success, at(4ms), 1800us), at(4ms));
  EXPECT_EQ(core->book().expected({0}, 1, at(4ms)), 1800us);
  EXPECT_EQ(core->book().expected({0}, 2, at(4ms)), 2ms);
  core->change_times({0}, {{1, 1ms}, {2, 5ms}}, at(4ms));
  EXPECT_EQ(core->book().expected({0}, 1, at(4ms)), 1800us) << "as it was measured";
  EXPECT_EQ(core->book().expected({0}, 2, at(4ms)), 5ms);
}

// Whoever makes plans hears which sizes are run, of those that a worker has taken.
TEST(CoreBatches, ThoseOfSeveralRequestsAreTold) {
  std::vector<std::pair<ModelId, int>> told;
  for (const bool asks : {true, false}) {
    CoreOptions options;
    if (asks) options.on_batch = [&](ModelId model, int batch) { told.emplace_back(model, batch); };
    auto owned = std::make_unique<ScriptedScheduler>();
    ScriptedScheduler& scheduler = *owned;
    HeldWorker worker;
    Core core(std::move(owned), options);
    core.add_device(worker);
    core.add_model(served(0));
    core.start(at(0ms));
    std::uint64_t next = 0;
    scheduler.script = [&](const Event& event, TimePoint, Actions& out, TimePoint&) {
      if (const auto* arrived = std::get_if<RequestArrived>(&event); arrived && !arrived->more)
        out = {infer(next++, {arrived->request.id})};
      if (std::holds_alternative<schedule::AllArrived>(event)) {
        const auto all = scheduler.heard<RequestArrived>();
        out = {infer(next++, {all[all.size() - 2].request.id, all.back().request.id})};
      }
    };
    const auto ask = [&](std::uint64_t ticket, int rows) {
      core.submit(
          ticket, call_of({0}, rows, at(1ms)), [](const InferAnswer&) {}, at(1ms));
    };
    ask(1, 1);
    EXPECT_TRUE(told.empty());
    worker.full = true;
    ask(2, 2);
    EXPECT_TRUE(told.empty()) << "nobody took it";
    worker.full = false;
    ask(3, 2);
    EXPECT_EQ(told.size(), asks ? 1U : 0U);
    if (asks) {
      EXPECT_EQ(told[0], std::pair(ModelId{0}, 2));
    }
    told.clear();
    core.stop(at(2ms));
    for (const auto& [id, held] : std::map(worker.held))
      core.on_result(worker.end(id, ActionStatus::success, at(3ms)), at(3ms));
  }
}

}  // namespace
}  // namespace carillon::controller
