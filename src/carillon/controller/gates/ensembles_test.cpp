#include "carillon/controller/gates/ensembles.h"

#include <atomic>
#include <future>
#include <map>
#include <memory>

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
  explicit HeldModels(const Clock& clock) : clock_(clock) {
    testing::put_diamond(directory);
    for (const ModelView& view : directory.all())
      if (view.ensemble == nullptr) known_.emplace(view.id.value, view);
  }

  bool ready() const override { return true; }
  std::vector<ModelView> models() const override { return directory.all(); }
  ModelCounts model_counts() const override { return directory.counts(); }
  Result<std::shared_ptr<const ModelView>> find(std::string_view model,
                                                std::string_view version) const override {
    return directory.find(model, version);
  }
  TimePoint now() const override { return clock_.now(); }
  std::uint64_t submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) override {
    std::size_t bytes = 0;
    for (const graph::TensorSpec& spec : known_.at(call->model.value).config.outputs)
      bytes += static_cast<std::size_t>(call->rows * spec.shape[1]) * 4;
    if (call->room_for_outputs)
      if (auto room = call->room_for_outputs(bytes); !room) {
        on_answer({std::move(room), std::move(call), clock_.now(), {}, 1ms});
        return 0;
      }
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
  void answer(std::uint32_t model, Result<> status = {}, std::optional<Duration> would_take = {},
              std::optional<Duration> retry_after = {}) {
    const std::uint64_t ticket = call_of(model).first;
    Held held;
    {
      const std::lock_guard lock(mutex_);
      held = std::move(held_.extract(ticket).mapped());
    }
    for (const graph::TensorSpec& spec : known_.at(model).config.outputs)
      held.call->outputs.emplace_back(
          static_cast<std::size_t>(held.call->rows * spec.shape[1]) * 4,
          static_cast<std::byte>(std::to_integer<int>(held.call->inputs[0][0]) + 1));
    held.handler({.status = std::move(status),
                  .call = std::move(held.call),
                  .finished = clock_.now(),
                  .would_take = would_take,
                  .retry_after = retry_after,
                  .number = ticket});
  }
  // A model comes, or comes anew; what was there before may still run.
  void put(const ModelView& view) {
    directory.put(view);
    known_.emplace(view.id.value, view);
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
  std::map<std::uint32_t, ModelView> known_;  // by id
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
  std::atomic<int> let_go{0};
  Ensembles ensembles{models, clock, {.safety = 0, .hop = Duration{0}, .on_let_go = [this] { ++let_go; }}};
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

TEST_F(EnsemblesTest, AStepThatDelaysIsNotHeldToTheTimeout) {
  using explain::DeadlineFrom;
  const auto delay = [this](const std::string& name) {
    ModelView view = *models.find(name, "").value();
    view.config.queue = std::make_shared<const repository::QueuePolicies>(
        repository::QueuePolicies{.others = {.due = {}, .delays = true, .takes_timeout = true}});
    models.put(view);
  };
  const auto ask = [this](Duration timeout, DeadlineFrom from) {
    auto call = call_of(clock.now() + timeout);
    call->deadline_from = from;
    submit(std::move(call));
  };
  const auto refused_for = [this] {
    const InferAnswer got = answer();
    return got.status ? Duration{0} : got.would_take.value_or(Duration{0});
  };
  // Each of the four steps takes 20 ms.
  delay("first");
  ask(79ms, DeadlineFrom::timeout);
  EXPECT_EQ(refused_for(), 80ms) << "steps that are held to it follow";
  delay("last");
  ask(59ms, DeadlineFrom::timeout);
  EXPECT_EQ(refused_for(), 60ms) << "the first three are held to it";
  ask(60ms, DeadlineFrom::grpc);
  EXPECT_EQ(refused_for(), 80ms) << "the client goes by then";
  ask(60ms, DeadlineFrom::timeout);
  EXPECT_EQ(models.call_of(0).second->deadline, clock.now() + 20ms);
  models.answer(0);
  EXPECT_EQ(models.call_of(1).second->deadline, clock.now() + 60ms);
  models.answer(1);
  models.answer(2);
  EXPECT_EQ(models.call_of(3).second->deadline, clock.now() + 60ms);
  EXPECT_EQ(models.call_of(3).second->deadline_from, DeadlineFrom::timeout);
  clock.advance(100ms);
  models.answer(3);
  EXPECT_TRUE(answer().status.has_value());
  EXPECT_EQ(statistics().late, 0U) << "as of the model itself";
  delay("left");
  delay("right");
  ask(80ms, DeadlineFrom::timeout);
  EXPECT_EQ(models.call_of(0).second->deadline, clock.now() + 20ms) << "there is time for all of them";
  for (std::uint32_t model = 0; model < 4; ++model) models.answer(model);
  EXPECT_TRUE(answer().status.has_value());
  ask(1ms, DeadlineFrom::timeout);
  EXPECT_EQ(models.call_of(0).second->deadline, clock.now() + 1ms);
  for (std::uint32_t model = 0; model < 4; ++model) models.answer(model);
  EXPECT_TRUE(answer().status.has_value());
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

// It goes on with the model that it was held against, which has to stay as long.
TEST_F(EnsemblesTest, AModelThatGoesBetweenTheStepsLosesNoRequest) {
  submit(call_of());
  models.call_of(0);
  auto gone = testing::model_view("right", 2, {{"z", 5}}, {{"r", 1}});
  gone.ready = false;
  gone.reason = "unloaded";
  models.directory.put(gone);
  for (const std::uint32_t model : {0U, 1U, 2U, 3U}) EXPECT_TRUE(ensembles.uses({model})) << model;
  for (const std::uint32_t model : {0U, 1U, 2U, 3U}) models.answer(model);
  EXPECT_TRUE(answer().status.has_value());
  EXPECT_EQ(let_go, 1) << "before the answer";
  for (const std::uint32_t model : {0U, 1U, 2U, 3U}) EXPECT_FALSE(ensembles.uses({model})) << model;
}

// Where the old one could not stay as long.
TEST_F(EnsemblesTest, AModelThatIsNotServedAnyMoreIsNotTheClientsFault) {
  submit(call_of());
  models.answer(0);
  models.answer(1, fail(ErrorCode::not_found, "it is not served any more"));
  EXPECT_EQ(answer().status.error().code, ErrorCode::unavailable);
}

TEST_F(EnsemblesTest, AModelThatCannotRunForNowFailsTheRequest) {
  auto right = testing::model_view("right", 2, {{"z", 5}}, {{"r", 1}});
  const auto works = std::make_shared<std::atomic<bool>>(true);
  right.usable = [works] {
    return *works ? Result<>{} : fail(ErrorCode::unavailable, "its process is gone");
  };
  models.directory.put(right);
  submit(call_of());
  models.call_of(0);
  *works = false;
  models.answer(0);
  const InferAnswer got = answer();
  ASSERT_FALSE(got.status.has_value());
  EXPECT_EQ(got.status.error().code, ErrorCode::unavailable);
  EXPECT_EQ(got.status.error().message, "step 'right': the model is not ready: its process is gone");
}

TEST_F(EnsemblesTest, AModelMayComeAnewBetweenTheSteps) {
  const struct {
    const char* what;
    ModelView right;
    std::uint32_t runs;
  } rows[] = {
      {"the same", testing::model_view("right", 12, {{"z", 5}}, {{"r", 1}}), 12},
      {"larger batches", testing::model_view("right", 13, {{"z", 5}}, {{"r", 1}}, 16), 12},
      {"too small batches", testing::model_view("right", 14, {{"z", 5}}, {{"r", 1}}, 1), 13},
      {"another output", testing::model_view("right", 15, {{"z", 5}}, {{"r", 2}}), 13},
  };
  // Each request is held against what was there before.
  for (const auto& [what, right, runs] : rows) {
    submit(call_of());
    models.call_of(0);
    models.put(right);
    EXPECT_TRUE(ensembles.uses({runs == right.id.value ? 2 : runs})) << what;
    models.answer(0);
    models.answer(1);
    models.answer(runs);
    models.answer(3);
    EXPECT_TRUE(answer().status.has_value()) << what;
    // With the last two the ensemble itself cannot be made anew.
    if (right.id.value >= 14) models.put(testing::model_view("right", 13, {{"z", 5}}, {{"r", 1}}, 16));
  }
}

TEST_F(EnsemblesTest, OnlyWhatIsAskedForRuns) {
  // Beside "out", what "left" makes is an output.
  models.directory.put(testing::ensemble_view("wide", {{"in", 3}}, {{"out", 2}, {"c", 1}},
                                              {{"first", 0, {{"x", "in"}}, {{"y", "a"}, {"z", "b"}}},
                                               {"left", 0, {{"y", "a"}}, {{"l", "c"}}},
                                               {"right", 0, {{"z", "b"}}, {{"r", "d"}}},
                                               {"last", 0, {{"l", "c"}, {"r", "d"}}, {{"out", "out"}}}}));
  // Of two rows each step takes 20 ms: two of them 40, of which the second has 20.
  auto call = call_of(clock.now() + 45ms, "wide");
  call->outputs_wanted = {false, true};
  submit(std::move(call));
  InferCall& first = *models.call_of(0).second;
  EXPECT_EQ(first.outputs_wanted, (std::vector<bool>{true, false}));
  EXPECT_EQ(first.deadline, clock.now() + 25ms);
  EXPECT_FALSE(ensembles.uses({2}));
  models.answer(0);
  EXPECT_EQ(models.call_of(1).second->outputs_wanted, std::vector<bool>{true});
  EXPECT_EQ(models.held(), 1U) << "nobody wants what 'right' makes";
  models.answer(1);
  const InferAnswer got = answer();
  ASSERT_TRUE(got.status.has_value()) << got.status.error().message;
  ASSERT_EQ(got.call->outputs.size(), 2U);
  EXPECT_TRUE(got.call->outputs[0].empty());
  EXPECT_EQ(got.call->outputs[1], std::vector<std::byte>(8, std::byte{3}));

  call = call_of(clock.now() + 45ms, "wide");
  call->outputs_wanted = {true, false};
  submit(std::move(call));
  EXPECT_EQ(answer().status.error().code, ErrorCode::deadline_exceeded) << "for that all steps run";
}

TEST_F(EnsemblesTest, AnEnsembleInAnEnsembleRunsNoMoreThanIsAskedFor) {
  models.directory.put(testing::ensemble_view("pair", {{"in", 3}}, {{"c", 1}, {"d", 1}},
                                              {{"first", 0, {{"x", "in"}}, {{"y", "a"}, {"z", "b"}}},
                                               {"left", 0, {{"y", "a"}}, {{"l", "c"}}},
                                               {"right", 0, {{"z", "b"}}, {{"r", "d"}}}}));
  models.directory.put(testing::ensemble_view("outer", {{"in", 3}}, {{"mine", 1}},
                                              {{"pair", 0, {{"in", "in"}}, {{"d", "mine"}}}}));
  submit(call_of(clock.now() + 45ms, "outer"));
  EXPECT_FALSE(ensembles.uses({1}));
  models.answer(0);
  models.answer(2);
  EXPECT_TRUE(answer().status.has_value());
  EXPECT_EQ(models.held(), 0U);
}

TEST_F(EnsemblesTest, ASampledRequestTellsItsSteps) {
  models.directory.put(testing::ensemble_view("outer", {{"in", 3}}, {{"mine", 2}},
                                              {{"diamond", 0, {{"in", "in"}}, {{"out", "mine"}}}}));
  for (const bool sampled : {true, false}) {
    for (const char* name : {"diamond", "outer"}) {  // one within another tells those within
      auto call = call_of(TimePoint::max(), name);
      call->trace = {.trace_id = {1}, .span_id = {2}, .flags = sampled ? std::uint8_t{1} : std::uint8_t{0}};
      submit(std::move(call));
      std::vector<std::uint64_t> numbers;
      for (const std::uint32_t step : {0U, 2U, 1U, 3U}) {
        numbers.push_back(models.call_of(step).first);
        models.answer(step);
      }
      if (!sampled) numbers.clear();
      EXPECT_EQ(answer().steps, numbers) << name;
    }
  }
  // The answer of a refused request lists the steps that ran and the step that was refused.
  auto call = call_of();
  call->trace = {.trace_id = {1}, .span_id = {2}, .flags = 1};
  submit(std::move(call));
  models.answer(0);
  const std::uint64_t refused = models.call_of(1).first;
  models.answer(1, fail(ErrorCode::deadline_exceeded, "no"));
  const InferAnswer got = answer();
  ASSERT_EQ(got.steps.size(), 2U);
  EXPECT_EQ(got.steps[1], refused);
}

TEST_F(EnsemblesTest, WhoFindsAFullQueueHearsWhenToComeBack) {
  submit(call_of());
  models.answer(0);
  models.answer(1, fail(ErrorCode::unavailable, "Exceeds maximum queue size: ..."), {}, 30ms);
  const InferAnswer got = answer();
  EXPECT_EQ(got.status.error().code, ErrorCode::unavailable);
  EXPECT_EQ(got.retry_after, 30ms);
  EXPECT_EQ(statistics().shed, 1U);
}

// The request asks for what its steps hold together, beyond its own inputs of 24 bytes, when that grows.
TEST_F(EnsemblesTest, WhatPassesBetweenStepsNeedsRoom) {
  models.put(testing::model_view("narrow", 4, {{"x", 3}}, {{"y", 1}}));
  models.put(testing::model_view("wide", 5, {{"y", 1}}, {{"big", 100}}));
  models.put(testing::model_view("sum", 6, {{"big", 100}, {"again", 100}}, {{"out", 2}}));
  models.put(testing::ensemble_view("grows", {{"in", 3}}, {{"out", 2}},
                                    {{"narrow", 0, {{"x", "in"}}, {{"y", "a"}}},
                                     {"wide", 0, {{"y", "a"}}, {{"big", "b"}}},
                                     {"sum", 0, {{"big", "b"}, {"again", "b"}}, {{"out", "out"}}}}));
  std::size_t limit = 1 << 20;
  std::vector<std::size_t> asked;
  const auto send = [&](const std::string& name) {
    auto call = call_of(TimePoint::max(), name);
    asked.clear();
    call->room_for_outputs = [&](std::size_t bytes) -> Result<> {
      asked.push_back(bytes);
      return bytes <= limit ? Result<>{} : fail(ErrorCode::resource_exhausted, "no room");
    };
    submit(std::move(call));
  };
  send("diamond");
  for (const std::uint32_t model : {0U, 1U, 2U, 3U}) models.answer(model);
  ASSERT_TRUE(answer().status.has_value());
  EXPECT_THAT(asked, ::testing::ElementsAre(72)) << "4 and 5 floats a row; later there is less";

  send("grows");
  for (const std::uint32_t model : {4U, 5U, 6U}) models.answer(model);
  ASSERT_TRUE(answer().status.has_value());
  // The narrow one's output; the wide one's beside its input; that twice, and what comes of it.
  EXPECT_THAT(asked, ::testing::ElementsAre(8, 8 + 800 - 24, 1600 - 24, 1600 + 16 - 24));

  for (const std::size_t too_little : {100U, 1000U, 1580U}) {
    limit = too_little;
    send("grows");
    models.answer(4);
    if (limit > 100) models.answer(5);
    const InferAnswer got = answer();
    ASSERT_FALSE(got.status.has_value());
    EXPECT_EQ(got.status.error().code, ErrorCode::resource_exhausted);
    EXPECT_THAT(got.status.error().message, ::testing::HasSubstr(limit > 100 ? "'sum'" : "'wide'"));
    EXPECT_TRUE(got.retry_after.has_value());
    EXPECT_EQ(models.held(), 0U);
  }
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
