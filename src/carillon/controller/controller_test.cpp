#include "carillon/controller/controller.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <latch>
#include <mutex>
#include <semaphore>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/repository/queue_policies.h"
#include "carillon/repository/sequence_batching.h"

namespace carillon::controller {
namespace {

using schedule::ActionStatus;

// Two inputs of the fake kind: one f32 a row.
class TinyModel final : public engine::CompiledModel {
 public:
  const std::vector<graph::TensorSpec>& inputs() const override { return specs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return specs_; }
  Bytes weights() const override { return {}; }
  Result<> write_weights(std::uint64_t, std::span<std::byte>) const override { return {}; }
  std::span<const int> batch_sizes() const override { return batches_; }
  const engine::Plan* plan(int, std::int64_t) const override { return nullptr; }

 private:
  std::vector<graph::TensorSpec> specs_{{"x", graph::DataType::f32, {graph::batch_dimension, 1}}};
  std::vector<int> batches_{1};
};

// Runs each request at once, alone; tries again what did not run; refuses what failed.
class EagerScheduler final : public schedule::Scheduler {
 public:
  std::string_view name() const override { return "eager"; }
  std::optional<schedule::Environment> environment() const override {
    return schedule::Environment{.dispatch = 2ms, .answer = 3ms, .overrun = 0.5, .shortest = 4ms};
  }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    if (const auto* arrived = std::get_if<schedule::RequestArrived>(&event)) {
      run(arrived->request, out);
    } else if (const auto* cancelled = std::get_if<schedule::RequestCancelled>(&event)) {
      cancelled_.insert(cancelled->request);
    } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
      const Request request = flying_.at(done->id);
      flying_.erase(done->id);
      if (done->status == ActionStatus::success || cancelled_.contains(request.id)) return TimePoint::max();
      if (done->status == ActionStatus::failed)
        out.push_back(schedule::Refuse{request.id, schedule::Reason::device_failed, now});
      else
        run(request, out);
    }
    return TimePoint::max();
  }

 private:
  void run(const Request& request, schedule::Actions& out) {
    flying_[{next_}] = request;
    out.push_back(schedule::Infer{
        {next_++}, {0}, request.model, {request.id}, {TimePoint::min(), TimePoint::max()}, 1us});
  }
  std::map<ActionId, Request> flying_;
  std::set<RequestId> cancelled_;
  std::uint64_t next_ = 0;
};

// Takes INFERs on a thread of its own and ends them, most with success (all for seed 0); its queue is short.
class BusyWorker final : public worker::Worker {
 public:
  BusyWorker(worker::ResultSink& sink, const Clock& clock, std::uint64_t seed)
      : sink_(sink), clock_(clock), faulty_(seed != 0), random_(seed), thread_([this] { run(); }) {}
  ~BusyWorker() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      wake_.notify_one();
    }
    thread_.join();
  }
  Result<> add_model(ModelId, std::shared_ptr<const engine::CompiledModel>) override { return {}; }
  Result<> has_room(const engine::CompiledModel&) const override { return {}; }
  bool submit(const worker::LoadCommand&) override { return false; }
  bool submit(const worker::UnloadCommand&) override { return false; }
  bool submit(const worker::InferCommand& command) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back({command.id, command.rows[0]});
    wake_.notify_one();
    return true;
  }
  wire::Credit credit() const override { return {.infers = 32, .loads = 0}; }
  void preempt(ActionId, TimePoint) override {}
  bool cancel(ActionId) override { return false; }
  void stop(ActionId) override {}
  std::uint32_t retire() override {
    std::unique_lock lock(mutex_);
    queue_.clear();
    wake_.wait(lock, [&] { return !at_work_; });
    return 1;
  }
  void probe() override {}
  bool busy() const override { return false; }
  std::uint64_t total_pages() const override { return 10; }
  std::uint64_t free_pages() const override { return 4; }
  Result<std::vector<Duration>> measure_exec(ModelId, int, int, std::int64_t, std::string*) override {
    return std::vector<Duration>{};
  }
  Result<std::vector<Duration>> measure_load(ModelId, int) override { return std::vector<Duration>{}; }
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  struct Job {
    ActionId id;
    worker::RowBuffers row;
  };
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Job job = queue_.front();
      queue_.pop_front();
      at_work_ = true;
      const bool stopping = stop_;
      lock.unlock();
      worker::ActionResult result{.id = job.id, .status = ActionStatus::success, .times = {}, .error = {}};
      const std::uint64_t dice = faulty_ ? random_.below(20) : 19;
      if (stopping || dice == 0) {
        result.status = ActionStatus::failed;
        result.error = "as the dice fell";
      } else if (dice == 1) {
        result.status = ActionStatus::too_late;
      } else {
        for (std::size_t i = 0; i < 4; ++i)
          job.row.outputs[0][i] =
              static_cast<std::byte>(std::to_integer<unsigned>(job.row.inputs[0][i]) + 1U);
      }
      result.times.exec_start = result.times.exec_end = clock_.now();
      sink_.on_result(result);
      lock.lock();
      at_work_ = false;
      wake_.notify_all();
    }
  }
  worker::ResultSink& sink_;
  const Clock& clock_;
  const bool faulty_;
  Random random_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  bool stop_ = false;
  bool at_work_ = false;
  std::vector<std::string> notes_;
  std::thread thread_;
};

ModelView tiny_view() {
  ModelView view;
  view.name = "tiny";
  view.config.name = "tiny";
  return view;
}

std::unique_ptr<Controller> tiny_controller(const Clock& clock, std::uint64_t seed,
                                            const Options& options = {}) {
  auto controller = std::make_unique<Controller>(std::make_unique<EagerScheduler>(), options, clock);
  controller->add_worker(std::make_unique<BusyWorker>(controller->results(), clock, seed));
  controller->add_model(tiny_view(), TinyModel(), testing::served(0).info);
  return controller;
}

std::unique_ptr<InferCall> tiny_call(const Clock& clock, int rows) {
  auto call = testing::call_of({0}, rows, clock.now());
  call->outputs.clear();  // submit() makes them
  return call;
}

TEST(Controller, AnswersACall) {
  const SteadyClock clock;
  auto controller = tiny_controller(clock, 0);
  EXPECT_FALSE(controller->ready());
  controller->start();
  EXPECT_TRUE(controller->ready());
  const auto found = controller->find("tiny", "");
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE((*found)->ready);
  std::promise<InferAnswer> promise;
  controller->submit(tiny_call(clock, 3), [&](InferAnswer answer) { promise.set_value(std::move(answer)); });
  const InferAnswer answer = promise.get_future().get();
  ASSERT_TRUE(answer.status.has_value()) << answer.status.error().message;
  EXPECT_TRUE(testing::is_right(*answer.call));
  controller->stop();
  EXPECT_FALSE(controller->ready());
  const ServerStatistics statistics = controller->statistics();
  EXPECT_EQ(statistics.models.at(0).success.count, 1U);
  EXPECT_EQ(statistics.models.at(0).inference_count, 3U);
  EXPECT_EQ(statistics.pages_total, 10U);
  EXPECT_EQ(statistics.pages_free, 4U);
}

TEST(Controller, TellsTheMarginToWhoLooksAgain) {
  const SteadyClock clock;
  auto controller = tiny_controller(clock, 0);
  controller->start();
  EXPECT_FALSE(controller->statistics().margin) << "nobody asked for it before";
  std::promise<InferAnswer> promise;
  controller->submit(tiny_call(clock, 1), [&](InferAnswer answer) { promise.set_value(std::move(answer)); });
  promise.get_future().get();
  const auto margin = controller->statistics().margin;
  ASSERT_TRUE(margin);
  EXPECT_EQ(margin->dispatch, 2ms);
  EXPECT_EQ(margin->answer, 3ms);
  EXPECT_EQ(margin->of(1ms), 7ms) << "half of the shortest";
  EXPECT_EQ(margin->of(10ms), 10ms);
  controller->stop();
}

TEST(Controller, OneThatDoesNotRunAnswersInsideSubmit) {
  const SteadyClock clock;
  const auto journal = std::make_shared<Journal>(10, 0s);
  auto controller = tiny_controller(clock, 1, {.core = {.journal = journal}});
  int answers = 0;
  const auto count = [&](const InferAnswer& answer) {
    EXPECT_EQ(answer.status.error().code, ErrorCode::unavailable);
    EXPECT_NE(answer.call, nullptr);
    const auto kept = journal->call(answer.number);
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->request.cause, explain::Cause::not_serving);
    ++answers;
  };
  EXPECT_TRUE(controller->statistics().models.empty());
  controller->submit(tiny_call(clock, 1), count);
  EXPECT_EQ(answers, 1);
  controller->start();
  controller->stop();
  controller->stop();
  const std::uint64_t ticket = controller->submit(tiny_call(clock, 1), count);
  controller->cancel(ticket);
  EXPECT_EQ(answers, 2);
  EXPECT_EQ(controller->statistics().models.at(0).failed, 2U);
}

TEST(Controller, AnUnreadyModelIsShownWithItsReason) {
  const SteadyClock clock;
  auto controller = tiny_controller(clock, 1);
  ModelView bad;
  bad.name = "bad";
  bad.reason = "no such operator";
  controller->add_unready(bad);
  EXPECT_EQ(controller->models().size(), 2U);
  EXPECT_FALSE(controller->find("bad", "").value()->ready);
  EXPECT_EQ(controller->find("bad", "").value()->reason, "no such operator");
}

TEST(Controller, TheJournalTellsWhoseRuleRefusedACall) {
  const SteadyClock clock;
  const auto journal = std::make_shared<Journal>(10, 0s);
  const TinyModel model;
  const auto refused = [&](bool sequences, const std::optional<SequenceMark>& mark) {
    // No device gets anything: all that came waits.
    Controller controller(std::make_unique<testing::ScriptedScheduler>(),
                          {.core = {.journal = journal}, .sequences = {.most = 0}}, clock);
    controller.add_worker(std::make_unique<testing::HeldWorker>(), "held");
    ModelView view = tiny_view();
    if (sequences) {
      view.config.sequence = std::make_shared<repository::SequenceBatching>(
          repository::SequenceBatching{.inputs = view.config.inputs, .outputs = view.config.outputs});
    } else {
      view.config.queue = std::make_shared<repository::QueuePolicies>(
          repository::QueuePolicies{.others = {.most_waiting = 1}});
    }
    controller.add_model(std::move(view), model, testing::served(0).info);
    controller.start();
    std::vector<InferAnswer> answers;
    for (int i = 0; i < 2 && answers.empty(); ++i) {
      auto call = tiny_call(clock, 1);
      call->sequence = mark;
      controller.submit(std::move(call), [&](InferAnswer answer) { answers.push_back(std::move(answer)); });
    }
    EXPECT_EQ(answers.size(), 1U);
    const ErrorCode code = answers.at(0).status.error().code;
    EXPECT_EQ(code == ErrorCode::invalid_argument, !answers.at(0).retry_after)
        << "when there may be room again";
    EXPECT_EQ(code == ErrorCode::unavailable, !sequences) << "as in Triton, where its queue is full";
    const auto told = journal->find(answers.at(0).number, clock.now(), [](const auto&) { return true; });
    controller.stop();
    return told ? told->request.cause : explain::Cause::none;
  };
  EXPECT_EQ(refused(false, std::nullopt), explain::Cause::queue_policy);
  EXPECT_EQ(refused(true, SequenceMark{.number = 1, .start = true}), explain::Cause::sequence);
  EXPECT_EQ(refused(true, SequenceMark{.number = 1}), explain::Cause::bad_data) << "its client's fault";
}

// A scheduler whose decisions take until somebody lets it go on.
class HeldScheduler final : public schedule::Scheduler {
 public:
  HeldScheduler(std::counting_semaphore<>& deciding, std::counting_semaphore<>& go_on)
      : deciding_(deciding), go_on_(go_on) {}
  std::string_view name() const override { return "held"; }
  TimePoint decide(const schedule::Event& event, TimePoint, schedule::Actions& out) override {
    const auto* arrived = std::get_if<schedule::RequestArrived>(&event);
    if (arrived == nullptr) return TimePoint::max();
    deciding_.release();
    go_on_.acquire();
    out.push_back(schedule::Refuse{arrived->request.id, schedule::Reason::cannot_finish, TimePoint::max()});
    return TimePoint::max();
  }

 private:
  std::counting_semaphore<>&deciding_, &go_on_;
};

void add_tiny(Controller& controller, const Clock& clock) {
  controller.add_model(tiny_view(), TinyModel(), testing::served(0).info);
  controller.add_worker(std::make_unique<BusyWorker>(controller.results(), clock, 0));
}

TEST(Controller, WhatWaitsAtTheDoorIsBoundedAndTheRestIsTurnedAwayAtOnce) {
  const SteadyClock clock;
  std::counting_semaphore<> deciding(0), go_on(0);
  const auto turned_away = std::make_shared<std::atomic<std::uint64_t>>(0);
  Controller controller(std::make_unique<HeldScheduler>(deciding, go_on),
                        {.core = {}, .door = {.most = 3}, .turned_away = turned_away}, clock);
  add_tiny(controller, clock);
  controller.start();

  std::vector<std::promise<ErrorCode>> codes(8);
  int rooms = 0;
  const auto submit = [&](std::size_t i) {
    auto call = tiny_call(clock, 1);
    call->room_for_outputs = [&rooms](std::size_t) -> Result<> {
      ++rooms;
      return {};
    };
    return controller.submit(std::move(call), [&codes, i](const InferAnswer& answer) {
      ASSERT_NE(answer.call, nullptr);
      EXPECT_EQ(answer.call->outputs.empty(), i >= 4) << i << ": a call that is turned away takes no memory";
      codes[i].set_value(answer.status ? ErrorCode::internal : answer.status.error().code);
    });
  };
  submit(0);
  deciding.acquire();  // the thread is in its decision; what follows waits at the door
  std::vector<std::uint64_t> tickets;
  for (std::size_t i = 1; i < codes.size(); ++i) tickets.push_back(submit(i));
  for (std::size_t i = 4; i < codes.size(); ++i)
    EXPECT_EQ(codes[i].get_future().get(), ErrorCode::resource_exhausted) << i;
  EXPECT_EQ(turned_away->load(), 4U);
  EXPECT_EQ(rooms, 4);
  controller.cancel(tickets[5]);  // was turned away
  controller.cancel(tickets[2]);  // waits: is decided on first, and is not open any more then
  go_on.release(8);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(codes[i].get_future().get(), ErrorCode::deadline_exceeded) << i;
  controller.stop();
  const ModelStatistics of = controller.statistics().models.at(0);
  EXPECT_EQ(of.refused, 8U);
  EXPECT_EQ(of.shed, 4U);
}

TEST(Controller, ACallThatIsTooLateForADecisionIsToldADeadlineThatLeavesTimeToRun) {
  const SteadyClock clock;
  std::counting_semaphore<> deciding(0), go_on(0);
  Controller controller(std::make_unique<HeldScheduler>(deciding, go_on), {}, clock);
  add_tiny(controller, clock);
  controller.start();

  controller.submit(tiny_call(clock, 1), [](const InferAnswer&) {});
  deciding.acquire();  // the thread is in its decision; what follows waits at the door beyond its deadline
  auto late = tiny_call(clock, 1);
  late->deadline = late->arrival + 50ms;
  const TimePoint arrival = late->arrival;
  std::promise<InferAnswer> answered;
  controller.submit(std::move(late), [&](InferAnswer answer) { answered.set_value(std::move(answer)); });
  while (clock.now() < arrival + 60ms) std::this_thread::sleep_for(1ms);
  go_on.release(8);
  const InferAnswer answer = answered.get_future().get();
  controller.stop();
  ASSERT_FALSE(answer.status);
  EXPECT_EQ(answer.status.error().code, ErrorCode::deadline_exceeded);
  const Duration runs = controller.expected({0}, 1);
  ASSERT_GT(runs, Duration{0});
  ASSERT_TRUE(answer.would_take);
  EXPECT_GE(*answer.would_take, answer.finished - arrival + runs);
  EXPECT_LT(*answer.would_take, answer.finished - arrival + runs + 50ms);
}

TEST(Controller, RespondsUnlessItsThreadIsHeld) {
  const SteadyClock clock;
  std::counting_semaphore<> deciding(0), go_on(0);
  Controller controller(std::make_unique<HeldScheduler>(deciding, go_on), {}, clock);
  add_tiny(controller, clock);
  EXPECT_TRUE(controller.responds(0ms));  // nobody decides yet
  controller.start();
  EXPECT_TRUE(controller.responds(1h));
  controller.submit(tiny_call(clock, 1), [](const InferAnswer&) {});
  deciding.acquire();
  // Long enough that a busy machine does not keep the thread from its place for half of it.
  EXPECT_FALSE(controller.responds(200ms));
  EXPECT_EQ(controller.statistics().models.at(0).waiting, 1U);
  go_on.release();
  EXPECT_TRUE(controller.responds(1h));
  controller.stop();
  EXPECT_TRUE(controller.responds(0ms));
  EXPECT_EQ(controller.statistics().models.at(0).waiting, 0U);
}

// Many frontends submit and cancel while the worker ends actions and another thread reads the statistics; the
// controller stops in the middle. To be run under ThreadSanitizer.
TEST(Controller, EveryCallOfManyThreadsGetsExactlyOneAnswer) {
  constexpr int threads = 4;
  constexpr int calls = 1000;
  for (const std::uint64_t seed : {1, 2, 3}) {
    const SteadyClock clock;
    auto controller = tiny_controller(clock, seed, {.core = {.max_open = 400}, .door = {.most = 64}});
    std::vector<std::atomic<int>> answers(std::size_t{threads} * calls);
    std::atomic<int> wrong{0};
    std::atomic<bool> succeeded{false};
    std::latch halfway(threads);
    std::deque<std::counting_semaphore<>> room;  // of each frontend, for calls that are open
    for (int t = 0; t < threads; ++t) room.emplace_back(64);
    controller->start();
    {
      std::vector<std::jthread> frontends;
      for (int t = 0; t < threads; ++t)
        frontends.emplace_back([&, t] {
          Random random(seed * 100 + static_cast<std::uint64_t>(t));
          for (int i = 0; i < calls; ++i) {
            const auto which = static_cast<std::size_t>(t * calls + i);
            auto& mine = room[static_cast<std::size_t>(t)];
            mine.acquire();
            const std::uint64_t ticket = controller->submit(
                tiny_call(clock, 1 + static_cast<int>(random.below(4))), [&, which](InferAnswer answer) {
                  mine.release();
                  answers[which].fetch_add(1);
                  if (answer.status && !succeeded.exchange(true)) succeeded.notify_one();
                  if (answer.status && (answer.call == nullptr || !testing::is_right(*answer.call)))
                    wrong.fetch_add(1);
                });
            if (random.below(4) == 0) controller->cancel(ticket);
            if (i == calls / 2) halfway.count_down();
          }
        });
      frontends.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          const ServerStatistics statistics = controller->statistics();
          EXPECT_EQ(statistics.models.size(), 1U);
          EXPECT_EQ(controller->models().size(), 1U);
        }
      });
      halfway.wait();
      succeeded.wait(false);  // the door turns most away at once, where the controller's thread has to wait
      controller->stop();
    }
    for (const auto& count : answers) ASSERT_EQ(count.load(), 1) << "seed " << seed;
    EXPECT_EQ(wrong.load(), 0);
    const ModelStatistics of = controller->statistics().models.at(0);
    EXPECT_EQ(of.success.count + of.fail.count, static_cast<std::uint64_t>(threads * calls));
    EXPECT_GT(of.success.count, 0U);
    EXPECT_EQ(of.waiting, 0U);
  }
}

// Counts what it hears of times.
class HearsTimes final : public schedule::Scheduler {
 public:
  HearsTimes(std::atomic<int>& heard, std::atomic<std::int64_t>& last) : heard_(heard), last_(last) {}
  std::string_view name() const override { return "hears"; }
  TimePoint decide(const schedule::Event& event, TimePoint, schedule::Actions&) override {
    if (const auto* times = std::get_if<schedule::TimesChanged>(&event)) {
      last_ = times->batches.back().exec.count();
      ++heard_;
    }
    return TimePoint::max();
  }

 private:
  std::atomic<int>& heard_;
  std::atomic<std::int64_t>& last_;
};

// From any thread, also before it runs, while it does, and after it has stopped.
TEST(Controller, TellsItsSchedulerWhatBatchesTake) {
  const SteadyClock clock;
  std::atomic<int> heard = 0;
  std::atomic<std::int64_t> last = 0;
  Controller controller(std::make_unique<HearsTimes>(heard, last), {}, clock);
  add_tiny(controller, clock);
  controller.change_times({0}, {{1, 1ms}, {2, 5ms}});
  EXPECT_EQ(heard, 0);
  controller.start();
  EXPECT_TRUE(controller.responds(1h));
  EXPECT_EQ(heard, 1) << "once there is somebody to hear it";
  EXPECT_EQ(last, Duration{5ms}.count());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) controller.change_times({0}, {{1, 1ms}, {2, Duration{1 + t + 4 * i}}});
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(controller.responds(1h));
  EXPECT_EQ(heard, 201);
  controller.stop();
  controller.change_times({0}, {{1, 1ms}, {2, 6ms}});
  EXPECT_EQ(heard, 201);
}

}  // namespace
}  // namespace carillon::controller
