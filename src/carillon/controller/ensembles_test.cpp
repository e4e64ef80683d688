#include "carillon/controller/ensembles.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/controller/testing/ensembles.h"

namespace carillon::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using TensorBytes = std::vector<std::vector<std::byte>>;

// Holds calls until the test answers them. Its models take 10 ms a row.
class HeldModels final : public Service {
 public:
  struct Held {
    std::unique_ptr<InferCall> call;
    AnswerHandler handler;
  };
  explicit HeldModels(const Clock& clock) : clock_(clock) { testing::put_diamond(directory); }

  bool ready() const override { return true; }
  std::vector<ModelView> models() const override { return directory.all(); }
  ModelCounts model_counts() const override { return directory.counts(); }
  Result<std::shared_ptr<const ModelView>> find(std::string_view model,
                                                std::string_view version) const override {
    return directory.find(model, version);
  }
  TimePoint now() const override { return clock_.now(); }
  std::uint64_t submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) override {
    const std::lock_guard lock(mutex_);
    const std::uint64_t ticket = ++last_;
    held_.emplace(ticket, Held{std::move(call), std::move(on_answer)});
    changed_.notify_all();
    return ticket;
  }
  void cancel(std::uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(ticket);
    changed_.notify_all();
  }
  ServerStatistics statistics() const override { return {}; }
  Duration expected(ModelId, int rows) const override { return rows * 10ms; }
  std::shared_ptr<const Ensemble> ensemble(ModelId id) const override { return directory.ensemble(id); }

  // The call of a model that is, or will be, held.
  std::pair<std::uint64_t, InferCall*> call_of(std::uint32_t model) {
    std::unique_lock lock(mutex_);
    const auto found = [&] {
      return std::ranges::find_if(held_,
                                  [&](const auto& each) { return each.second.call->model.value == model; });
    };
    changed_.wait(lock, [&] { return found() != held_.end(); });
    return {found()->first, found()->second.call.get()};
  }
  // Answers it: a success with outputs that are each byte of the first input plus one, or `status`.
  void answer(std::uint32_t model, Result<> status = {}, std::optional<Duration> would_take = {}) {
    const std::uint64_t ticket = call_of(model).first;
    Held held;
    {
      const std::lock_guard lock(mutex_);
      held = std::move(held_.extract(ticket).mapped());
    }
    for (const ModelView& view : directory.all())
      if (view.ready && view.id == held.call->model)
        for (const graph::TensorSpec& spec : view.config.outputs)
          held.call->outputs.emplace_back(
              static_cast<std::size_t>(held.call->rows * spec.shape[1]) * 4,
              static_cast<std::byte>(std::to_integer<int>(held.call->inputs[0][0]) + 1));
    held.handler({std::move(status), std::move(held.call), clock_.now(), would_take});
  }
  void wait_for_cancelled(std::vector<std::uint64_t> tickets) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return cancelled_ == tickets; });
  }
  std::size_t held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }

  Directory directory;

 private:
  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Held> held_;
  std::vector<std::uint64_t> cancelled_;
  std::uint64_t last_ = 0;
};

class EnsemblesTest : public ::testing::Test {
 protected:
  EnsemblesTest() { ensembles.start(); }

  std::unique_ptr<InferCall> call_of(TimePoint deadline = TimePoint::max(),
                                     const std::string& name = "diamond") {
    auto call = std::make_unique<InferCall>();
    call->model = models.find(name, "").value()->id;
    call->rows = 2;
    call->inputs.emplace_back(24, std::byte{1});
    call->arrival = clock.now();
    call->deadline = deadline;
    return call;
  }
  std::uint64_t submit(std::unique_ptr<InferCall> call) {
    answered = {};
    return ensembles.submit(std::move(call),
                            [this](InferAnswer answer) { answered.set_value(std::move(answer)); });
  }
  InferAnswer answer() { return answered.get_future().get(); }
  ModelStatistics statistics(const std::string& name = "diamond") {
    for (const ModelStatistics& model : ensembles.statistics().models)
      if (model.name == name) return model;
    return {};
  }

  ManualClock clock;
  HeldModels models{clock};
  Ensembles ensembles{models, clock, {.safety = 0, .hop = Duration{0}}};
  std::promise<InferAnswer> answered;
};

TEST_F(EnsemblesTest, ARequestIsItsSteps) {
  auto call = call_of();
  call->class_given = true;
  call->cls = Class::real_time;
  call->priority = 1;
  call->application = "app";
  submit(std::move(call));
  InferCall& first = *models.call_of(0).second;
  EXPECT_EQ(first.cls, Class::real_time);
  EXPECT_TRUE(first.class_given);
  EXPECT_EQ(first.priority, 1U);
  EXPECT_EQ(first.application, "app");
  EXPECT_EQ(first.deadline, TimePoint::max());
  models.answer(0);
  models.call_of(1);
  models.call_of(2);
  EXPECT_EQ(models.held(), 2U) << "left and right beside each other";
  models.answer(2);
  models.answer(1);
  models.answer(3);
  const InferAnswer got = answer();
  ASSERT_TRUE(got.status.has_value());
  EXPECT_EQ(got.call->outputs, (TensorBytes{std::vector<std::byte>(16, std::byte{4})}));
  EXPECT_EQ(statistics().on_time, 1U);
  EXPECT_EQ(statistics().inference_count, 2U);
  EXPECT_EQ(statistics().execution_count, 1U);
  ASSERT_EQ(statistics().batches.size(), 1U);
  EXPECT_EQ(statistics().batches[0].size, 2) << "the request's rows";
  EXPECT_EQ(statistics().batches[0].infer.total, statistics().compute_infer.total);
}

TEST_F(EnsemblesTest, AStepIsDueBeforeWhatFollowsIt) {
  // Of two rows each step takes 20 ms: 80 in all on one device.
  submit(call_of(clock.now() + 100ms));
  EXPECT_EQ(models.call_of(0).second->deadline, clock.now() + 40ms);
  models.answer(0);
  EXPECT_EQ(models.call_of(1).second->deadline, clock.now() + 80ms);
  EXPECT_EQ(models.call_of(2).second->deadline, clock.now() + 80ms);
  models.answer(1);
  models.answer(2);
  EXPECT_EQ(models.call_of(3).second->deadline, clock.now() + 100ms);
  clock.advance(101ms);
  models.answer(3);
  EXPECT_TRUE(answer().status.has_value());
  EXPECT_EQ(statistics().late, 1U);
  EXPECT_EQ(ensembles.expected(models.find("diamond", "").value()->id, 1), 40ms);
}

TEST_F(EnsemblesTest, TheWholeIsRefusedAtOnceWhereItsStepsTakeTooLong) {
  submit(call_of(clock.now() + 79ms));
  const InferAnswer got = answer();
  ASSERT_FALSE(got.status.has_value());
  EXPECT_EQ(got.status.error().code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(got.status.error().message,
            "cannot finish by its deadline: the ensemble's steps take about 80 ms, and 79 ms are left");
  EXPECT_EQ(got.would_take, 80ms);
  EXPECT_EQ(models.held(), 0U);
  EXPECT_EQ(statistics().refused, 1U);
}

TEST_F(EnsemblesTest, AStepThatIsRefusedEndsTheOthers) {
  submit(call_of(clock.now() + 200ms));
  models.answer(0);
  const std::uint64_t left = models.call_of(1).first;
  models.call_of(2);
  clock.advance(10ms);
  models.answer(2, fail(ErrorCode::deadline_exceeded, "cannot finish by its deadline"), 50ms);
  const InferAnswer got = answer();
  ASSERT_FALSE(got.status.has_value());
  EXPECT_EQ(got.status.error().code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(got.status.error().message, "step 'right': cannot finish by its deadline");
  EXPECT_EQ(got.would_take, 70ms) << "50 ms of the step, and 20 ms of the last";
  models.wait_for_cancelled({left});
  models.answer(1, fail(ErrorCode::cancelled, "the client has gone"));
  EXPECT_EQ(statistics().refused, 1U);
  EXPECT_EQ(statistics().fail.count, 1U);
}

TEST_F(EnsemblesTest, AClientThatGoesEndsWhatRuns) {
  const std::uint64_t ticket = submit(call_of());
  const std::uint64_t first = models.call_of(0).first;
  ensembles.cancel(ticket);
  const InferAnswer got = answer();
  ASSERT_FALSE(got.status.has_value());
  EXPECT_EQ(got.status.error().code, ErrorCode::cancelled);
  models.wait_for_cancelled({first});
  ensembles.cancel(ticket);
  models.answer(0);  // too late for anybody
  EXPECT_EQ(statistics().cancelled, 1U);
}

TEST_F(EnsemblesTest, OtherModelsAreTheServices) {
  auto call = call_of();
  call->model = {2};
  const std::uint64_t ticket = submit(std::move(call));
  EXPECT_EQ(models.call_of(2).first, ticket);
  ensembles.cancel(ticket);
  models.wait_for_cancelled({ticket});
  models.answer(2);
  EXPECT_TRUE(answer().status.has_value());
}

TEST_F(EnsemblesTest, AModelThatGoesBetweenTheStepsFailsTheRequest) {
  submit(call_of());
  models.call_of(0);
  auto gone = testing::model_view("right", 2, {{"z", 5}}, {{"r", 1}});
  gone.ready = false;
  gone.reason = "unloaded";
  models.directory.put(gone);
  models.answer(0);
  const InferAnswer got = answer();
  ASSERT_FALSE(got.status.has_value());
  EXPECT_EQ(got.status.error().code, ErrorCode::unavailable);
  EXPECT_EQ(got.status.error().message, "step 'right': the model is not ready: unloaded");
}

TEST_F(EnsemblesTest, AModelMayComeAnewBetweenTheStepsWhereItTakesTheSame) {
  submit(call_of());
  models.call_of(0);
  models.directory.put(testing::model_view("right", 12, {{"z", 5}}, {{"r", 1}}));
  models.directory.put(testing::model_view("left", 11, {{"y", 4}}, {{"l", 2}}));
  models.answer(0);
  const InferAnswer got = answer();
  ASSERT_FALSE(got.status.has_value());
  EXPECT_THAT(got.status.error().message, HasSubstr("step 'left': the model has changed"));

  models.directory.put(testing::model_view("left", 11, {{"y", 4}}, {{"l", 1}}));
  submit(call_of());
  models.call_of(0);
  models.directory.put(testing::model_view("right", 22, {{"z", 5}}, {{"r", 1}}));
  models.answer(0);
  models.answer(11);
  models.answer(22);
  models.answer(3);
  EXPECT_TRUE(answer().status.has_value());
}

TEST_F(EnsemblesTest, EnsemblesMayBeSteps) {
  models.directory.put(testing::ensemble_view("outer", {{"in", 3}}, {{"out", 2}},
                                              {{"diamond", 0, {{"in", "in"}}, {{"out", "out"}}}}));
  submit(call_of(clock.now() + 100ms, "outer"));
  EXPECT_EQ(models.call_of(0).second->deadline, clock.now() + 40ms);
  for (const std::uint32_t model : {0U, 1U, 2U, 3U}) models.answer(model);
  EXPECT_TRUE(answer().status.has_value());
  EXPECT_EQ(statistics("outer").on_time, 1U);
  EXPECT_EQ(statistics("diamond").on_time, 1U);
}

TEST_F(EnsemblesTest, WhatIsOpenAtTheEndIsAnswered) {
  submit(call_of());
  models.call_of(0);
  ensembles.stop();
  EXPECT_EQ(answer().status.error().code, ErrorCode::unavailable);
  submit(call_of());
  EXPECT_EQ(answer().status.error().code, ErrorCode::unavailable);
  models.answer(0);  // nobody hears it
}

}  // namespace
}  // namespace carillon::controller
