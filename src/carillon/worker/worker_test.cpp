#include "carillon/worker/worker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/memory/cuda_memory.h"
#include "carillon/engine/made_up.h"
#include "carillon/worker/fake_model.h"
#include "carillon/worker/hanging_memory.h"

namespace carillon::worker {
namespace {

using schedule::ActionStatus;
using testing::Batch;
using testing::FakeModel;
using testing::Gate;
using testing::Results;

constexpr Window any_time{TimePoint::min(), TimePoint::max()};
using Lengths = std::vector<std::int64_t>;

Options small(std::uint64_t pages = 4) {
  return {.page_cache = page_size * pages,
          .io_cache = kib(64),
          .workspace = kib(64),
          .exec_threads = 1,
          .queue = 16,
          .max_models = 8};
}

// Set by one thread, read by others.
class SharedClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint{Duration{now_.load()}}; }
  void set(Duration now) { now_ = now.count(); }

 private:
  std::atomic<Duration::rep> now_{0};
};

// Whose memory a worker's models are in: the host's, or a CUDA device's, which the host reaches by copies
// alone.
enum class Whose { host, cuda };

class WorkerTest : public ::testing::TestWithParam<Whose> {
 protected:
  ~WorkerTest() override {
    worker_.reset();
    if (!device_) return;
    EXPECT_EQ(device_->left_behind(), "");
    // What models write here by themselves is no work of the device.
    for (const std::string& violation : device_->violations())
      EXPECT_NE(violation.find("reads bytes that nothing has written"), std::string::npos) << violation;
  }
  void start(Options options) {
    if (GetParam() == Whose::cuda) {
      if (!device_) device_.emplace(engine::cuda::EmulatedOptions{.memory = gib(80).count});
      options.make_memory = [this](std::uint64_t pages, Bytes io,
                                   Bytes workspace) -> Result<std::unique_ptr<engine::DeviceMemory>> {
        return engine::cuda::CudaMemory::make(driver_, 0, {.pages = pages, .io = io, .workspace = workspace});
      };
    }
    auto made = make_worker(options, clock_, results_);
    ASSERT_TRUE(made) << made.error().message;
    worker_ = std::move(*made);
  }
  ModelId add(FakeModel::Config config, std::function<Result<>()> before_run = {}) {
    const ModelId id{next_model_++};
    config.seed = id.value;
    auto model = std::make_shared<FakeModel>(config);
    model->before_run = std::move(before_run);
    const auto added = worker_->add_model(id, model);
    EXPECT_TRUE(added) << added.error().message;
    models_.push_back(std::move(model));
    return id;
  }
  ActionResult load(ModelId model, Window window = any_time) {
    const ActionId id{next_action_++};
    EXPECT_TRUE(worker_->submit(LoadCommand{id, model, window}));
    return results_.wait(id);
  }
  ActionResult unload(ModelId model) {
    const ActionId id{next_action_++};
    EXPECT_TRUE(worker_->submit(UnloadCommand{id, model}));
    return results_.wait(id);
  }
  ActionResult infer(const Batch& batch, ModelId model, Window window = any_time) {
    const ActionId id{next_action_++};
    EXPECT_TRUE(worker_->submit(batch.command(id, model, window)));
    return results_.wait(id);
  }

  const engine::cuda::Driver driver_ = engine::cuda::Emulated::table();
  std::optional<engine::cuda::Emulated> device_;
  SteadyClock clock_;
  SharedClock shared_clock_;
  Results results_;
  std::vector<std::shared_ptr<FakeModel>> models_;
  std::unique_ptr<Worker> worker_;  // dies first: its threads use those above
  std::uint32_t next_model_ = 0;
  std::uint64_t next_action_ = 1000;
};

TEST_P(WorkerTest, LoadsInfersAndUnloads) {
  start(small());
  const ModelId model = add({.weights = page_size.count + 100, .width = 5, .constant = 2.5F});
  EXPECT_EQ(worker_->total_pages(), 4U);
  EXPECT_EQ(worker_->free_pages(), 4U);

  const ActionResult loaded = load(model);
  EXPECT_EQ(loaded.status, ActionStatus::success);
  EXPECT_TRUE(loaded.error.empty());
  EXPECT_EQ(worker_->free_pages(), 2U);
  const ActionTimes& l = loaded.times;
  EXPECT_TRUE(l.received <= l.exec_start && l.exec_start <= l.exec_end);
  EXPECT_TRUE(l.input_end == l.received && l.output_start == l.exec_end && l.output_end == l.exec_end);

  for (const int rows : {1, 2, 4}) {
    const Batch batch(5, rows);
    const ActionResult done = infer(batch, model);
    EXPECT_EQ(done.status, ActionStatus::success) << done.error;
    EXPECT_TRUE(batch.answered(2.5F)) << "batch of " << rows;
    const ActionTimes& t = done.times;
    EXPECT_TRUE(t.received <= t.input_start && t.input_start <= t.input_end && t.input_end <= t.exec_start &&
                t.exec_start <= t.exec_end && t.exec_end <= t.output_start && t.output_start <= t.output_end);
  }

  EXPECT_EQ(unload(model).status, ActionStatus::success);
  EXPECT_EQ(worker_->free_pages(), 4U);
  EXPECT_EQ(unload(model).status, ActionStatus::success);  // always
  const Batch batch(5, 1);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::not_loaded);
  EXPECT_TRUE(batch.untouched());
}

TEST_P(WorkerTest, PadsRowsToTheLongestAndCutsTheAnswers) {
  start(small());
  const ModelId model = add({.lengths = {4, 8, 16}, .pads = true});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const struct {
    Lengths lengths;
    std::pair<int, std::int64_t> run;
  } rows[] = {{{3}, {1, 4}}, {{4, 4}, {2, 4}}, {{1, 5, 8, 2}, {4, 8}}, {{9, 16}, {2, 16}}};
  for (const auto& [lengths, run] : rows) {
    const Batch batch(lengths);
    const ActionResult done = infer(batch, model);
    EXPECT_EQ(done.status, ActionStatus::success) << done.error;
    EXPECT_TRUE(batch.answered(1)) << "up to " << run.second;
    EXPECT_EQ(models_[model.index()]->runs.back(), run);
  }
  EXPECT_EQ(models_[model.index()]->runs.size(), std::size(rows));
  EXPECT_EQ(infer(Batch(Lengths{17}), model).error, "model 0 has no plan for a batch of 1 at length 17");
  EXPECT_EQ(infer(Batch(Lengths{4, 0}), model).error, "row 1 does not say its length");
}

TEST_P(WorkerTest, RowsThatMustNotBePaddedRunByLength) {
  start(small());
  const ModelId model = add({.lengths = {4, 8, 16}});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  using Runs = std::vector<std::pair<int, std::int64_t>>;
  const struct {
    Lengths lengths;
    Runs runs;
  } rows[] = {{{8, 8}, {{2, 8}}},
              {{16, 4, 16, 8}, {{1, 4}, {1, 8}, {2, 16}}},
              {{4, 8, 4, 4}, {{2, 4}, {1, 4}, {1, 8}}},  // there is no plan for three
              {{4, 16, 8}, {{1, 4}, {1, 8}, {1, 16}}}};  // nor need there be one
  for (const auto& [lengths, runs] : rows) {
    models_[model.index()]->runs.clear();
    const Batch batch(lengths);
    const ActionResult done = infer(batch, model);
    EXPECT_EQ(done.status, ActionStatus::success) << done.error;
    EXPECT_TRUE(batch.answered(1));
    EXPECT_EQ(models_[model.index()]->runs, runs);
  }
  EXPECT_EQ(infer(Batch(Lengths{8, 5}), model).error, "model 0 has no plan for a batch of 1 at length 5");
}

// Plans of an open model come and go while it serves.
TEST_P(WorkerTest, RowsOfAnOpenModelRunAtTheirSize) {
  start(small());
  const ModelId model = add({.reference = 4});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const auto run = [&](const Lengths& widths, const Lengths& numbers) {
    models_[0]->runs.clear();
    Batch batch(widths);
    const ActionResult done = infer(batch.sized(numbers), model);
    EXPECT_EQ(done.status, ActionStatus::success) << done.error;
    EXPECT_TRUE(batch.answered(1));
    return models_[0]->runs;
  };
  using Runs = std::vector<std::pair<int, std::int64_t>>;
  EXPECT_EQ(run({4, 4}, {0, 0}), (Runs{{2, 4}}));
  const std::vector<int> one{1}, others{2, 4};
  const auto shapes = worker_->add_size(model, 1, Lengths{7}, one);
  ASSERT_TRUE(shapes.has_value()) << shapes.error().message;
  EXPECT_EQ(shapes->outputs.front(), (graph::Shape{1, 2, 7}));
  EXPECT_EQ(run({7, 7}, {1, 1}), (Runs{{1, 7}, {1, 7}}));
  ASSERT_TRUE(worker_->add_size(model, 1, Lengths{7}, others).has_value());
  EXPECT_EQ(run({7, 7}, {1, 1}), (Runs{{2, 7}}));
  ASSERT_TRUE(worker_->add_size(model, 2, Lengths{5}, one).has_value());
  EXPECT_EQ(run({5, 7, 4, 7}, {2, 1, 0, 1}), (Runs{{1, 4}, {2, 7}, {1, 5}}));

  EXPECT_EQ(worker_->add_size(model, 3, Lengths{13}, one).error().message, "nothing fits together at 13");
  Batch unknown(Lengths{9});
  EXPECT_EQ(infer(unknown.sized({3}), model).error, "model 0 has no plan for a batch of 1 of size 3");
  worker_->remove_size(model, 1);
  Batch gone(Lengths{7});
  EXPECT_EQ(infer(gone.sized({1}), model).error, "model 0 has no plan for a batch of 1 of size 1");
  EXPECT_EQ(run({5}, {2}), (Runs{{1, 5}}));
  worker_->remove_size(model, 2);
  EXPECT_EQ(models_[0]->plans, 3) << "those of the reference";
}

TEST_P(WorkerTest, ASizeStaysForTheRunsThatHaveIt) {
  start(small());
  Gate gate;
  const ModelId model = add({.reference = 4}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const std::vector<int> one{1};
  ASSERT_TRUE(worker_->add_size(model, 1, Lengths{7}, one).has_value());
  Batch batch(Lengths{7});
  ASSERT_TRUE(worker_->submit(batch.sized({1}).command({1}, model, any_time)));
  gate.wait_reached();
  worker_->remove_size(model, 1);
  EXPECT_EQ(models_[0]->plans, 4);
  gate.open();
  EXPECT_EQ(results_.wait({1}).status, ActionStatus::success);
  EXPECT_TRUE(batch.answered(1));
  ASSERT_TRUE(worker_->add_size(model, 2, Lengths{9}, one).has_value());
  EXPECT_EQ(models_[0]->plans, 4) << "the other has gone when the next came";
}

// Batches without a plan of their own run by smaller plans.
TEST_P(WorkerTest, BatchesRunByThePlansThatThereAre) {
  start(small());
  const ModelId model = add({.batches = {1, 2, 4, 8}, .later = true});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const auto run = [&](int rows) {
    models_[0]->runs.clear();
    const Batch batch(3, rows);
    const ActionResult done = infer(batch, model);
    EXPECT_EQ(done.status, ActionStatus::success) << done.error;
    EXPECT_FALSE(done.odd_time) << "such batches take as long again";
    EXPECT_TRUE(batch.answered(1)) << rows << " rows";
    std::vector<int> batches;
    for (const auto& [size, length] : models_[0]->runs) batches.push_back(size);
    return batches;
  };
  using Runs = std::vector<int>;
  EXPECT_EQ(run(1), (Runs{1}));
  EXPECT_EQ(run(4), (Runs{1, 1, 1, 1}));
  EXPECT_EQ(worker_->add_batches(model, *models_[0]->make_plans({}, std::array{2, 8}, nullptr)).value(), 2U);
  EXPECT_EQ(run(1), (Runs{1}));
  EXPECT_EQ(run(4), (Runs{2, 2}));
  EXPECT_EQ(run(8), (Runs{8}));
  worker_->remove_batches(model);
  EXPECT_EQ(models_[0]->plans, 1);
  EXPECT_EQ(run(8), Runs(8, 1));
  EXPECT_EQ(infer(Batch(3, 0), model).error, "model 0 has no plan for a batch of 0");

  ASSERT_TRUE(worker_->add_batches(model, *models_[0]->make_plans({}, std::array{4}, nullptr)));
  ASSERT_EQ(unload(model).status, ActionStatus::success);
  worker_->remove_model(model);
  EXPECT_EQ(models_[0]->plans, 1) << "they went with the model";
}

// Rows run alone by the plan for one.
TEST_P(WorkerTest, BadDataOfALargerPlanCostTheirRowAlone) {
  start(small());
  const ModelId model = add({.batches = {1, 4}, .bad = 2000.0F, .tells_rows = false, .later = true});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  ASSERT_TRUE(worker_->add_batches(model, *models_[0]->make_plans({}, std::array{4}, nullptr)));
  const Batch batch(3, 4);
  const ActionResult done = infer(batch, model);
  EXPECT_EQ(done.status, ActionStatus::success) << done.error;
  EXPECT_EQ(done.bad_rows.size(), 1U);
  std::vector<int> sizes;
  for (const auto& [size, length] : models_[0]->runs) sizes.push_back(size);
  EXPECT_EQ(sizes, std::vector(4, 1)) << "a run that fails is not counted";
}

TEST_P(WorkerTest, APlanStaysForTheBatchThatRunsByIt) {
  start(small());
  Gate gate;
  const ModelId model = add({.batches = {1, 2}, .later = true}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  ASSERT_EQ(load(model).status, ActionStatus::success);
  ASSERT_TRUE(worker_->add_batches(model, *models_[0]->make_plans({}, std::array{2}, nullptr)));
  const Batch batch(3, 2);
  ASSERT_TRUE(worker_->submit(batch.command({1}, model, any_time)));
  gate.wait_reached();
  worker_->remove_batches(model);
  EXPECT_FALSE(worker_->sweep(model));
  EXPECT_EQ(models_[0]->plans, 2);
  gate.open();
  EXPECT_EQ(results_.wait({1}).status, ActionStatus::success);
  EXPECT_TRUE(batch.answered(1));
  EXPECT_TRUE(worker_->sweep(model));
  EXPECT_EQ(models_[0]->plans, 1) << "it has gone since";
}

TEST_P(WorkerTest, PlansOfBatchesThatDoNotFitAreLeftOut) {
  Options options = small();
  options.workspace = kib(64);
  start(options);
  const ModelId model = add({.batches = {1, 2, 4, 8}, .later = true});
  models_[0]->workspace_of = [](int batch) { return kib(batch > 2 ? 128 : 4); };
  ASSERT_EQ(load(model).status, ActionStatus::success);
  EXPECT_EQ(worker_->add_batches(model, *models_[0]->make_plans({}, std::array{2, 4, 8}, nullptr)).value(),
            1U);
  EXPECT_EQ(models_[0]->plans, 2) << "those for 4 and 8 rows are left out";
  const Batch batch(3, 8);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::success);
  EXPECT_TRUE(batch.answered(1));
  EXPECT_EQ(models_[0]->runs.size(), 4U);
  worker_->remove_batches(model);
  const auto added = worker_->add_batches(model, *models_[0]->make_plans({}, std::array{4, 8}, nullptr));
  ASSERT_FALSE(added.has_value());
  EXPECT_EQ(added.error().code, ErrorCode::unsupported);
  EXPECT_NE(added.error().message.find("batch 4 needs"), std::string::npos) << added.error().message;
  EXPECT_EQ(models_[0]->plans, 1);
}

// Row after row a batch takes its rows' tensors at once.
TEST_P(WorkerTest, ABatchWhoseRowsDoNotFitIsNone) {
  Options options = small();
  options.io_cache = mib(10);
  start(options);
  FakeModel::Config config{.width = 1 << 18, .batches = {1, 2, 4, 8}, .later = true};  // 2 MiB a row
  const auto room = worker_->has_room(FakeModel(config));
  ASSERT_FALSE(room.has_value());
  EXPECT_EQ(room.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(room.error().message.find("batch 8 needs"), std::string::npos) << room.error().message;
  config.batches = {1, 2, 4};
  const ModelId model = add(config);
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(1 << 18, 4);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::success);
  EXPECT_TRUE(batch.answered(1));
}

TEST_P(WorkerTest, TakesAModelBack) {
  start(small());
  add({});
  const ModelId first = add({.lengths = {4, 8}, .pads = true});
  worker_->take_back(first);
  EXPECT_EQ(models_.back().use_count(), 1) << "nothing of it is held";
  --next_model_;
  const ModelId second = add({});
  EXPECT_EQ(second, first) << "its id is free again";
  ASSERT_EQ(load(second).status, ActionStatus::success);
  Batch batch(5, 1);
  EXPECT_EQ(infer(batch, second).status, ActionStatus::success);
  EXPECT_TRUE(batch.untouched() == false);
}

TEST_P(WorkerTest, RefusesASizeThatDoesNotFit) {
  start(small());
  const ModelId model = add({.reference = 4});
  const std::vector<int> one{1};
  const auto huge = worker_->add_size(model, 1, Lengths{1 << 28}, one);
  ASSERT_FALSE(huge.has_value());
  EXPECT_EQ(huge.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(huge.error().message.find("for inputs and outputs"), std::string::npos) << huge.error().message;
  EXPECT_EQ(models_[0]->plans, 3);
}

TEST_P(WorkerTest, MeasuresAtEachLength) {
  start(small());
  const ModelId model = add({.lengths = {4, 8}, .pads = true});
  const auto measured = worker_->measure_exec(model, 2, 3, 8);
  ASSERT_TRUE(measured.has_value()) << measured.error().message;
  EXPECT_EQ(measured->size(), 3U);
  EXPECT_EQ(models_[model.index()]->runs.back(), (std::pair<int, std::int64_t>{2, 8}));
  const auto between = worker_->measure_exec(model, 2, 3, 5);
  ASSERT_FALSE(between.has_value());
  EXPECT_EQ(between.error().message, "model 0 has no plan for a batch of 2 at length 5");
}

TEST_P(WorkerTest, RefusesWhatCannotStartInItsWindow) {
  start(small());
  const ModelId model = add({});
  const TimePoint now = clock_.now();
  const Window closed{now - 2ms, now - 1ms};
  EXPECT_EQ(load(model, closed).status, ActionStatus::too_late);
  EXPECT_EQ(worker_->free_pages(), 4U);
  EXPECT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(3, 1);
  EXPECT_EQ(infer(batch, model, closed).status, ActionStatus::too_late);
  EXPECT_EQ(infer(batch, model, {TimePoint::max(), now}).status, ActionStatus::too_late);  // never opens
  EXPECT_TRUE(batch.untouched());
  const ActionResult done = infer(batch, model, {now + 1ms, TimePoint::max()});
  EXPECT_EQ(done.status, ActionStatus::success);
  EXPECT_GE(done.times.exec_start, now + 1ms);
  EXPECT_LE(done.times.input_start, done.times.exec_start);
}

// The window closes while another EXEC runs, after INPUT: nothing runs late, and the I/O memory comes back.
TEST_P(WorkerTest, AnOverrunMakesTheNextTooLate) {
  SharedClock& clock = shared_clock_;
  clock.set(1ms);
  auto made = make_worker(small(), clock, results_);
  ASSERT_TRUE(made) << made.error().message;
  worker_ = std::move(*made);
  Gate gate;
  const ModelId overrun = add({.batches = {1}}, [&]() -> Result<> {
    gate.pass();
    clock.set(10ms);
    return {};
  });
  const ModelId wide = add({.width = 8000, .batches = {1}});  // takes the whole I/O cache
  ASSERT_EQ(load(overrun).status, ActionStatus::success);
  ASSERT_EQ(load(wide).status, ActionStatus::success);
  const Batch first(3, 1), second(3, 1), third(3, 1), last(8000, 1);
  ASSERT_TRUE(worker_->submit(first.command({1}, overrun, any_time)));
  gate.wait_reached();
  ASSERT_TRUE(worker_->submit(second.command({2}, overrun, {TimePoint{2ms}, TimePoint{9ms}})));
  ASSERT_TRUE(worker_->submit(third.command({3}, {7}, {TimePoint{3ms}, TimePoint{20ms}})));
  EXPECT_EQ(results_.wait({3}).status, ActionStatus::failed);  // so INPUT has done with 2 too
  EXPECT_FALSE(results_.find({2}));
  gate.open();
  EXPECT_EQ(results_.wait({1}).status, ActionStatus::success);
  const ActionResult late = results_.wait({2});
  EXPECT_EQ(late.status, ActionStatus::too_late);
  EXPECT_EQ(late.times.input_end, TimePoint{1ms});
  EXPECT_EQ(late.times.output_end, late.times.input_end);
  EXPECT_TRUE(second.untouched());
  EXPECT_EQ(infer(last, wide).status, ActionStatus::success);
  EXPECT_TRUE(last.answered(1));
}

TEST_P(WorkerTest, EachRefusalReturnsItsIoMemory) {
  start(small());
  const ModelId failing =
      add({.width = 8000, .batches = {1}}, [] { return fail(ErrorCode::internal, "the kernel broke"); });
  const ModelId model = add({.width = 8000, .batches = {1}});
  const Batch batch(8000, 1);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::not_loaded);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::not_loaded);  // no_memory, had the first kept its piece
  ASSERT_EQ(load(failing).status, ActionStatus::success);
  for (int i = 0; i < 2; ++i) {
    const ActionResult failed = infer(batch, failing);
    EXPECT_EQ(failed.status, ActionStatus::failed);
    EXPECT_EQ(failed.error, "the kernel broke");
  }
  EXPECT_TRUE(batch.untouched());
  ASSERT_EQ(load(model).status, ActionStatus::success);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::success);
}

TEST_P(WorkerTest, LoadFailsWithoutPages) {
  start(small(2));
  const ModelId a = add({.weights = page_size.count}), b = add({.weights = 2 * page_size.count});
  EXPECT_EQ(load(a).status, ActionStatus::success);
  const ActionResult refused = load(b);
  EXPECT_EQ(refused.status, ActionStatus::no_memory);
  EXPECT_TRUE(refused.error.empty());
  EXPECT_EQ(worker_->free_pages(), 1U);
  EXPECT_EQ(unload(a).status, ActionStatus::success);
  EXPECT_EQ(load(b).status, ActionStatus::success);
  const Batch batch(3, 2);
  EXPECT_EQ(infer(batch, b).status, ActionStatus::success);
  EXPECT_EQ(infer(batch, a).status, ActionStatus::not_loaded);
}

TEST_P(WorkerTest, AnOutputThatNobodyWantsIsNotCopied) {
  start(small());
  const ModelId model = add({});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch asked(3, 2), unasked(3, 2);
  InferCommand command = asked.command({100}, model, any_time);
  ASSERT_TRUE(worker_->submit(command));
  ASSERT_EQ(results_.wait({100}).status, ActionStatus::success);
  command = unasked.command({101}, model, any_time);
  const std::array<std::byte*, 2> second{nullptr, unasked.out[1][1]};
  command.rows[1].outputs = second;
  ASSERT_TRUE(worker_->submit(command));
  ASSERT_EQ(results_.wait({101}).status, ActionStatus::success);
  EXPECT_EQ(unasked.y[0], asked.y[0]);
  EXPECT_EQ(unasked.t[0], asked.t[0]);
  EXPECT_EQ(unasked.t[1], asked.t[1]);
  EXPECT_EQ(unasked.y[1], std::vector<float>(3, -1)) << "what was there before";
}

TEST_P(WorkerTest, SaysWhatIsWrongWithAnAction) {
  start(small());
  const ModelId model = add({});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  EXPECT_EQ(load(model).error, "model 0 is loaded already");
  EXPECT_EQ(load({7}).error, "model 7 is not registered");
  EXPECT_EQ(unload({7}).error, "model 7 is not registered");
  const Batch batch(3, 2);
  std::uint64_t id = 0;
  const auto error = [&](const InferCommand& command) {
    EXPECT_TRUE(worker_->submit(command));
    const ActionResult result = results_.wait(command.id);
    EXPECT_EQ(result.status, ActionStatus::failed);
    return result.error;
  };
  EXPECT_EQ(error(batch.command({id++}, {7}, any_time)), "model 7 is not registered");
  for (const int size : {-1, 0, 3, max_batch + 1}) {
    InferCommand command = batch.command({id++}, model, any_time);
    command.batch = size;
    EXPECT_EQ(error(command), "model 0 has no plan for a batch of " + std::to_string(size));
  }
  InferCommand command = batch.command({id++}, model, any_time);
  command.rows[1].inputs = command.rows[1].inputs.first(1);
  EXPECT_EQ(error(command), "row 1 has 1 inputs, and the model 2");
  command = batch.command({id++}, model, any_time);
  const std::array<const std::byte*, 2> nothing{batch.in[0][0], nullptr};
  command.rows[0].inputs = nothing;
  EXPECT_EQ(error(command), "row 0 has no memory for number 1 of its inputs");
  EXPECT_TRUE(batch.untouched());
}

TEST_P(WorkerTest, AModelWithoutWeightsNeedsNoLoad) {
  start(small());
  const ModelId model = add({.weights = 0});
  const Batch batch(3, 2);
  const ActionResult done = infer(batch, model);
  EXPECT_EQ(done.status, ActionStatus::success) << done.error;
  EXPECT_TRUE(batch.answered(1));
  EXPECT_TRUE(worker_->measure_exec(model, 2, 1));
  EXPECT_EQ(infer(batch, model).status, ActionStatus::success) << "nor after it was measured";
}

// Row 2 of a batch has bad data (s is 1000 times the row).
class BadRows : public WorkerTest {
 protected:
  // What row 2 gets, and whether the others have their answers.
  void expect_one_bad(const Batch& batch, const ActionResult& done, const std::string& says) {
    ASSERT_EQ(done.status, ActionStatus::success) << done.error;
    ASSERT_EQ(done.bad_rows.size(), 1U);
    EXPECT_EQ(done.bad_rows[0].row, 2);
    EXPECT_EQ(done.bad_rows[0].error, (Error{ErrorCode::invalid_argument, says}));
    for (std::size_t row = 0; row < batch.x.size(); ++row)
      for (std::size_t i = 0; i < batch.x[row].size(); ++i)
        EXPECT_EQ(batch.y[row][i], row == 2 ? -1 : batch.x[row][i] + batch.s[row][0] + 1) << "row " << row;
  }
  // A loaded model whose runs are counted.
  ModelId load_counted(const FakeModel::Config& config) {
    const ModelId model = add(config, [this]() -> Result<> {
      ++runs_;
      return {};
    });
    EXPECT_EQ(load(model).status, ActionStatus::success);
    return model;
  }
  int runs_ = 0;
};

TEST_P(BadRows, ThatTheEngineTellsCostTheOthersNothing) {
  start(small());
  const ModelId model = load_counted({.bad = 2000.0F});
  const Batch batch(3, 4);
  const ActionResult done = infer(batch, model);
  expect_one_bad(batch, done, "bad at batch 4");
  EXPECT_FALSE(done.odd_time);
  EXPECT_EQ(runs_, 1);
  const Batch next(3, 2);
  const ActionResult good = infer(next, model);
  EXPECT_TRUE(good.bad_rows.empty());
  EXPECT_TRUE(next.answered(1));
}

TEST_P(BadRows, ThatItCannotTellMakeEachRowRunAlone) {
  start(small());
  const ModelId model = load_counted({.bad = 2000.0F, .tells_rows = false});
  const Batch batch(3, 4);
  const ActionResult done = infer(batch, model);
  expect_one_bad(batch, done, "bad at batch 1");
  EXPECT_TRUE(done.odd_time);
  EXPECT_EQ(runs_, 1 + 4);
}

TEST_P(BadRows, FillTheLeastBatchWhereThereIsNoneOfOne) {
  start(small());
  const ModelId model = add({.batches = {2, 4}, .bad = 2000.0F, .tells_rows = false});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(3, 4);
  expect_one_bad(batch, infer(batch, model), "bad at batch 2");
}

TEST_P(BadRows, AreFoundAmongLengths) {
  for (const bool tells : {true, false}) {
    start(small());
    next_model_ = 0;
    const ModelId model = add({.lengths = {4, 8}, .bad = 2000.0F, .tells_rows = tells});
    ASSERT_EQ(load(model).status, ActionStatus::success);
    const Batch batch(Lengths{8, 4, 8, 4});
    expect_one_bad(batch, infer(batch, model), tells ? "bad at batch 2" : "bad at batch 1");
    worker_.reset();
  }
}

TEST_P(BadRows, OneAlone) {
  for (const bool tells : {true, false}) {
    start(small());
    next_model_ = 0;
    const ModelId model = add({.bad = 0.0F, .tells_rows = tells});
    ASSERT_EQ(load(model).status, ActionStatus::success);
    const Batch batch(3, 1);
    const ActionResult done = infer(batch, model);
    ASSERT_EQ(done.status, ActionStatus::success) << done.error;
    ASSERT_EQ(done.bad_rows.size(), 1U);
    EXPECT_TRUE(batch.untouched());
    const auto measured = worker_->measure_exec(model, 4, 2);
    EXPECT_TRUE(measured) << "zeros, and nobody wants the results: " << measured.error().message;
    worker_.reset();
  }
}

TEST_P(BadRows, RunAloneOnlyWhereThereIsTime) {
  start(small());
  const ModelId model = add({.bad = 2000.0F, .tells_rows = false});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(3, 4);
  InferCommand command = batch.command({1}, model, any_time);
  command.rows[1].deadline = TimePoint::min();
  ASSERT_TRUE(worker_->submit(command));
  const ActionResult done = results_.wait({1});
  ASSERT_EQ(done.status, ActionStatus::success) << done.error;
  ASSERT_EQ(done.bad_rows.size(), 2U);
  EXPECT_EQ(done.bad_rows[0].row, 1);
  EXPECT_EQ(done.bad_rows[0].error.code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(done.bad_rows[1].row, 2);
  EXPECT_EQ(done.bad_rows[1].error.code, ErrorCode::invalid_argument);
  EXPECT_EQ(batch.t[0], batch.s[0]);
  EXPECT_EQ(batch.t[3], batch.s[3]);
}

TEST_P(BadRows, AFailureOfAnotherKindFailsAll) {
  start(small());
  int runs = 0;
  const ModelId model = add({.bad = 2000.0F, .tells_rows = false}, [&]() -> Result<> {
    if (++runs < 3) return {};
    return fail(ErrorCode::internal, "broken");
  });
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(3, 4);
  const ActionResult done = infer(batch, model);
  EXPECT_EQ(done.status, ActionStatus::failed);
  EXPECT_EQ(done.error, "broken");
  EXPECT_TRUE(batch.untouched());
}

TEST_P(WorkerTest, AStopEndsAnInferBeforeItsNextKernelOrItsFirst) {
  start(small());
  Gate gate;
  const ModelId model = add({}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch running(3, 1), waiting(3, 1), untold(3, 1);
  ASSERT_TRUE(worker_->submit(running.command({1}, model, any_time)));
  gate.wait_reached();
  ASSERT_TRUE(worker_->submit(waiting.command({2}, model, any_time)));
  ASSERT_TRUE(worker_->submit(untold.command({3}, model, any_time)));
  worker_->stop({1});
  worker_->stop({2});
  worker_->stop({777});  // nobody's
  gate.open();
  EXPECT_EQ(results_.wait({1}).status, ActionStatus::stopped);
  EXPECT_TRUE(running.untouched());
  EXPECT_EQ(results_.wait({2}).status, ActionStatus::stopped);
  EXPECT_TRUE(waiting.untouched());
  EXPECT_EQ(results_.wait({3}).status, ActionStatus::success);
  worker_->stop({3});  // too late: its own result stands
  EXPECT_EQ(infer(untold, model).status, ActionStatus::success);
  EXPECT_EQ(results_.doubles(), 0);
  EXPECT_EQ(unload(model).status, ActionStatus::success) << "a stopped EXEC holds nothing";
}

TEST_P(WorkerTest, StopsRaceWithWhatTheyStop) {
  start(small());
  const ModelId model = add({});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(3, 1);
  int stopped = 0;
  for (std::uint64_t i = 1; i <= 2000; ++i) {
    ASSERT_TRUE(worker_->submit(batch.command({i}, model, any_time)));
    worker_->stop({i});
    worker_->stop({i - 1});
    const ActionStatus status = results_.wait({i}).status;
    ASSERT_TRUE(status == ActionStatus::success || status == ActionStatus::stopped);
    stopped += status == ActionStatus::stopped ? 1 : 0;
  }
  EXPECT_GT(stopped, 0);
}

TEST_P(WorkerTest, UnloadWaitsForItsOwnExecAndHoldsUpNoOther) {
  start(small());
  Gate gate;
  const ModelId busy = add({.weights = page_size.count}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  const ModelId other = add({.weights = page_size.count});
  ASSERT_EQ(load(busy).status, ActionStatus::success);
  ASSERT_EQ(load(other).status, ActionStatus::success);
  const Batch first(3, 1), second(3, 1), third(3, 1);
  ASSERT_TRUE(worker_->submit(first.command({1}, busy, any_time)));
  gate.wait_reached();
  ASSERT_TRUE(worker_->submit(UnloadCommand{{2}, busy}));
  ASSERT_TRUE(worker_->submit(LoadCommand{{3}, busy, any_time}));  // follows the UNLOAD
  EXPECT_EQ(unload(other).status, ActionStatus::success);          // meanwhile others come and go
  EXPECT_EQ(load(other).status, ActionStatus::success);
  EXPECT_FALSE(results_.find({2}));
  EXPECT_FALSE(results_.find({3}));
  EXPECT_EQ(worker_->free_pages(), 2U);  // the pages of the running EXEC are still its own
  gate.open();
  EXPECT_EQ(results_.wait({1}).status, ActionStatus::success);  // its kernel saw its weights
  EXPECT_EQ(results_.wait({2}).status, ActionStatus::success);
  EXPECT_EQ(results_.wait({3}).status, ActionStatus::success);
  EXPECT_EQ(worker_->free_pages(), 2U);
  EXPECT_EQ(infer(third, busy).status, ActionStatus::success);
}

TEST_P(WorkerTest, AnExecThatStartsAfterUnloadIsRefused) {
  start(small());
  Gate gate;
  const ModelId busy = add({}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  ASSERT_EQ(load(busy).status, ActionStatus::success);
  const Batch first(3, 1), second(3, 1);
  ASSERT_TRUE(worker_->submit(first.command({1}, busy, any_time)));
  gate.wait_reached();
  ASSERT_TRUE(worker_->submit(second.command({2}, busy, any_time)));
  ASSERT_TRUE(worker_->submit(UnloadCommand{{3}, busy}));
  const ModelId other = add({});
  EXPECT_EQ(load(other).status, ActionStatus::success);  // so the LOAD thread has taken 3 before
  gate.open();
  EXPECT_EQ(results_.wait({1}).status, ActionStatus::success);
  EXPECT_EQ(results_.wait({2}).status, ActionStatus::not_loaded);
  EXPECT_EQ(results_.wait({3}).status, ActionStatus::success);
  EXPECT_TRUE(second.untouched());
}

TEST_P(WorkerTest, AFullQueueTakesNoMore) {
  Options options = small();
  options.queue = 2;
  start(options);
  Gate gate;
  const ModelId model = add({}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(3, 1);
  const Batch other(3, 1);
  EXPECT_TRUE(worker_->submit(batch.command({1}, model, any_time)));
  gate.wait_reached();
  EXPECT_TRUE(worker_->submit(other.command({2}, model, any_time)));
  EXPECT_FALSE(worker_->submit(batch.command({3}, model, any_time)));
  // Loads have a queue of their own: both places are taken by windows far away.
  const Window far{TimePoint::max(), TimePoint::max()};
  EXPECT_TRUE(worker_->submit(LoadCommand{{4}, model, far}));
  EXPECT_TRUE(worker_->submit(LoadCommand{{5}, model, far}));
  EXPECT_TRUE(worker_->submit(LoadCommand{{6}, model, far}));  // the place of whoever measures
  EXPECT_FALSE(worker_->submit(UnloadCommand{{7}, model}));
  gate.open();
  EXPECT_EQ(results_.wait({2}).status, ActionStatus::success);
  EXPECT_TRUE(worker_->submit(other.command({8}, model, any_time)));  // there is room again
  EXPECT_EQ(results_.wait({8}).status, ActionStatus::success);
  EXPECT_FALSE(results_.find({3}) || results_.find({7}));
}

// What a dispatcher sends within the credit always has a place.
TEST_P(WorkerTest, WhoeverMeasuresTakesNoCreditAndLoadsOneAtATime) {
  Options options = small(4);
  options.queue = 1;
  start(options);
  const ModelId far = add({.weights = 1});
  const std::array measured{add({.weights = 1}), add({.weights = 1}), add({.weights = 1})};
  ASSERT_EQ(worker_->credit().loads, 1U);
  ASSERT_TRUE(worker_->submit(LoadCommand{{1}, far, {TimePoint::max(), TimePoint::max()}}));
  std::array<Result<std::vector<Duration>>, measured.size()> took;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < measured.size(); ++i)
    threads.emplace_back([&, i] { took[i] = worker_->measure_load(measured[i], 50); });
  threads.clear();
  for (const auto& each : took) {
    ASSERT_TRUE(each) << each.error().message;
    EXPECT_EQ(each->size(), 50U);
  }
}

TEST_P(WorkerTest, TheEndAnswersEverything) {
  start(small());
  Gate gate;
  const ModelId model = add({}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const std::size_t before = results_.count();
  const Window far{TimePoint::max(), TimePoint::max()};
  const Batch running(3, 1), waiting(3, 1), never(3, 1);
  ASSERT_TRUE(worker_->submit(running.command({1}, model, any_time)));
  gate.wait_reached();
  ASSERT_TRUE(worker_->submit(waiting.command({2}, model, far)));
  ASSERT_TRUE(worker_->submit(never.command({3}, model, far)));
  ASSERT_TRUE(worker_->submit(LoadCommand{{4}, model, far}));
  ASSERT_TRUE(worker_->submit(UnloadCommand{{5}, model}));  // waits for 1
  std::thread opener([&] { gate.open(); });
  worker_.reset();
  opener.join();
  EXPECT_EQ(results_.count(), before + 5);
  EXPECT_EQ(results_.doubles(), 0);
  EXPECT_EQ(results_.find({1})->status, ActionStatus::success);  // ran, so it is finished
  EXPECT_TRUE(running.answered(1));
  for (const std::uint64_t id : {2, 3, 4}) {
    EXPECT_EQ(results_.find({id})->status, ActionStatus::failed);
    EXPECT_EQ(results_.find({id})->error, "the worker stops");
  }
  EXPECT_TRUE(waiting.untouched() && never.untouched());
}

// One result holds OUTPUT up while a second batch runs to its end behind it: its outputs are still delivered.
TEST_P(WorkerTest, TheEndDeliversWhatHasRun) {
  struct Holder final : ResultSink {
    void on_result(const ActionResult& result) override {
      if (result.id == ActionId{1}) held.pass();
      results.on_result(result);
    }
    Gate held;
    Results results;
  } sink;
  auto made = make_worker(small(), clock_, sink);
  ASSERT_TRUE(made) << made.error().message;
  Gate third_runs;
  int runs = 0;  // the EXEC thread's
  auto model = std::make_shared<FakeModel>(FakeModel::Config{});
  model->before_run = [&]() -> Result<> {
    ++runs;
    if (runs == 2) sink.held.wait_reached();  // so that it is not EXEC's thread that tells of the first
    if (runs == 3) third_runs.pass();
    return {};
  };
  const Batch batches[] = {{3, 1}, {3, 1}, {3, 1}};
  ASSERT_TRUE((*made)->add_model({0}, model));
  ASSERT_TRUE((*made)->submit(LoadCommand{{0}, {0}, any_time}));
  ASSERT_EQ(sink.results.wait({0}).status, ActionStatus::success);
  for (std::uint64_t i = 0; i < 3; ++i)
    ASSERT_TRUE((*made)->submit(batches[i].command({i + 1}, {0}, any_time)));
  third_runs.wait_reached();
  sink.held.wait_reached();
  std::thread opener([&] {
    third_runs.open();
    sink.held.open();
  });
  made->reset();
  opener.join();
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sink.results.find({i + 1})->status, ActionStatus::success);
    EXPECT_TRUE(batches[i].answered(1));
  }
}

// While a sink takes its time with one result, others come to be, and what is submitted runs.
TEST_P(WorkerTest, ASlowSinkHoldsUpOneThreadAlone) {
  struct Holder final : ResultSink {
    void on_result(const ActionResult& result) override {
      if (result.id == ActionId{1}) held.pass();
      results.on_result(result);
    }
    Gate held;
    Results results;
  } sink;
  auto made = make_worker(small(), clock_, sink);
  ASSERT_TRUE(made) << made.error().message;
  Gate second_runs;
  int runs = 0;  // the EXEC thread's
  auto model = std::make_shared<FakeModel>(FakeModel::Config{});
  model->before_run = [&]() -> Result<> {
    if (++runs == 2) second_runs.pass();
    return {};
  };
  const Batch batches[] = {{3, 1}, {3, 1}, {3, 1}};
  ASSERT_TRUE((*made)->add_model({0}, model));
  ASSERT_TRUE((*made)->submit(LoadCommand{{0}, {0}, any_time}));
  ASSERT_EQ(sink.results.wait({0}).status, ActionStatus::success);
  ASSERT_TRUE((*made)->submit(batches[0].command({1}, {0}, any_time)));
  sink.held.wait_reached();
  // One whose time has passed: INPUT is to tell of it.
  ASSERT_TRUE((*made)->submit(batches[1].command({2}, {0}, {TimePoint::min(), TimePoint::min()})));
  ASSERT_TRUE((*made)->submit(batches[2].command({3}, {0}, any_time)));
  second_runs.wait_reached();
  EXPECT_FALSE(sink.results.find({2})) << "results are told one by one";
  second_runs.open();
  sink.held.open();
  EXPECT_NE(sink.results.wait({2}).status, ActionStatus::success);
  EXPECT_EQ(sink.results.wait({3}).status, ActionStatus::success);
  EXPECT_TRUE(batches[2].answered(1));
}

TEST_P(WorkerTest, AResultMaySubmitTheNext) {
  struct Chain final : ResultSink {
    void on_result(const ActionResult& result) override {
      const ActionId next{result.id.value + 1};
      if (result.status != ActionStatus::success || left-- <= 0)
        gate.open();
      else if (left % 10 == 5)
        EXPECT_TRUE(worker->submit(UnloadCommand{next, {0}}));
      else if (left % 10 == 4)
        EXPECT_TRUE(worker->submit(LoadCommand{next, {0}, any_time}));
      else
        EXPECT_TRUE(worker->submit(batch->command(next, {0}, any_time)));
    }
    Worker* worker = nullptr;
    const Batch* batch = nullptr;
    int left = 100;
    Gate gate;
  } chain;
  Options options = small();
  options.queue = 1;  // so each submission needs the place that the result before it left
  auto made = make_worker(options, clock_, chain);
  ASSERT_TRUE(made);
  const Batch batch(3, 1);
  chain.worker = made->get();
  chain.batch = &batch;
  ASSERT_TRUE((*made)->add_model({0}, std::make_shared<FakeModel>(FakeModel::Config{})));
  ASSERT_TRUE((*made)->submit(LoadCommand{{1}, {0}, any_time}));
  chain.gate.pass();
  made->reset();
  EXPECT_EQ(chain.left, -1);
  EXPECT_TRUE(batch.answered(1));
}

TEST_P(WorkerTest, Measures) {
  start(small(2));
  const ModelId model = add({.weights = 2 * page_size.count});
  const ModelId other = add({.weights = 1});
  auto exec = worker_->measure_exec(model, 2, 3);
  ASSERT_TRUE(exec) << exec.error().message;
  EXPECT_EQ(exec->size(), 3U);
  EXPECT_EQ(worker_->free_pages(), 2U);  // left as it was found
  auto load_times = worker_->measure_load(model, 4);
  ASSERT_TRUE(load_times) << load_times.error().message;
  EXPECT_EQ(load_times->size(), 4U);
  EXPECT_EQ(worker_->free_pages(), 2U);

  ASSERT_EQ(load(other).status, ActionStatus::success);
  ASSERT_TRUE(worker_->measure_exec(other, 1, 1));
  EXPECT_EQ(worker_->free_pages(), 1U);
  const struct {
    Result<std::vector<Duration>> result;
    const char* want;
  } rows[] = {
      {worker_->measure_exec(model, 1, 1), "model 0 cannot be loaded: it needs 2 pages, and 1 are free"},
      {worker_->measure_load(model, 1), "model 0 needs 2 pages, and 1 are free"},
      {worker_->measure_load(other, 1), "model 1 is in use: unload it before measuring its LOAD"},
      {worker_->measure_exec(other, 3, 1), "model 1 has no plan for a batch of 3"},
      {worker_->measure_exec({9}, 1, 1), "model 9 is not registered"},
      {worker_->measure_load({9}, 1), "model 9 is not registered"},
      {worker_->measure_exec(other, 1, 0), "at least one measurement is needed, not 0"},
      {worker_->measure_load(other, -1), "at least one measurement is needed, not -1"},
  };
  for (const auto& [result, want] : rows) {
    ASSERT_FALSE(result) << want;
    EXPECT_EQ(result.error().message, want);
  }
}

TEST_P(WorkerTest, AFailedMeasurementLeavesNothingBehind) {
  start(small());
  const ModelId model = add({.width = 8000, .batches = {1}}, [] { return invalid("bad index"); });
  for (int i = 0; i < 2; ++i) {
    const auto exec = worker_->measure_exec(model, 1, 3);
    ASSERT_FALSE(exec);
    EXPECT_EQ(exec.error().message, "model 0: bad index");
  }
  EXPECT_EQ(worker_->free_pages(), 4U);
}

// What it refuses is not how long it takes: other data are made up.
TEST_P(WorkerTest, MeasuresWhatRefusesZeros) {
  for (const bool refuses : {true, false}) {
    start(small());
    next_model_ = 0;
    const ModelId model =
        add({.width = 8, .lengths = {4}, .bad = 0.0F, .tells_rows = false, .refuses_bad = refuses});
    std::string refused;
    for (const bool first : {true, false}) {
      models_.back()->runs.clear();
      const auto exec = worker_->measure_exec(model, 2, 3, 4, &refused);
      ASSERT_TRUE(exec) << exec.error().message;
      EXPECT_EQ(refused, "");
      EXPECT_EQ(exec->size(), 3U);
      // Zeros are tried once, and count only where they ran.
      EXPECT_EQ(models_.back()->runs.size(), first && !refuses ? 4U : 3U);
    }
    worker_.reset();
    models_.clear();
  }
}

TEST_P(WorkerTest, OfWhatRefusesAllDataItSaysWhy) {
  start(small());
  int runs = 0;
  const ModelId model = add({}, [&runs] {
    ++runs;
    return invalid("bad index");
  });
  std::string refused;
  const auto exec = worker_->measure_exec(model, 1, 3, 0, &refused);
  ASSERT_TRUE(exec) << exec.error().message;
  EXPECT_EQ(exec->size(), 1U);
  EXPECT_EQ(refused, "bad index");
  EXPECT_EQ(runs, engine::made_up_ways);
}

TEST_P(WorkerTest, AFaultOfTheDeviceIsNoRefusal) {
  for (const ErrorCode code : {ErrorCode::unavailable, ErrorCode::resource_exhausted, ErrorCode::internal}) {
    start(small());
    next_model_ = 0;
    int runs = 0;
    const ModelId model = add({}, [&]() -> Result<> {
      ++runs;
      return fail(code, "it broke");
    });
    std::string refused;
    const auto exec = worker_->measure_exec(model, 1, 3, 0, &refused);
    ASSERT_FALSE(exec);
    EXPECT_EQ(exec.error().code, code);
    EXPECT_EQ(exec.error().message, "model 0: it broke");
    EXPECT_EQ(refused, "");
    EXPECT_EQ(runs, 1);
    worker_.reset();
    models_.clear();
  }
}

TEST_P(WorkerTest, RefusesModelsThatDoNotFit) {
  Options options = small();
  options.max_models = 1;
  start(options);
  const struct {
    std::uint32_t id;
    FakeModel::Config config;
    const char* want;  // a part of the text
  } rows[] = {
      {1, {}, "the next is 0"},
      {0, {.weights = 5 * page_size.count}, "need 5 pages of 16.0 MiB, and the page cache has 4"},
      {0,
       {.batches = {1, 2}, .workspace = kib(65)},
       "batch 1 needs 65.0 KiB of workspace, and the worker has 64.0"},
      {0, {.width = 500'000, .batches = {2}}, "batch 2 needs 7.6"},
      {0, {.batches = {1, 129}}, "batch 129 is out of range"},
      {0, {.batches = {0}}, "batch 0 is out of range"},
      {0, {.batches = {}}, "no plan for any batch size"},
  };
  for (const auto& row : rows) {
    const auto added = worker_->add_model({row.id}, std::make_shared<FakeModel>(row.config));
    ASSERT_FALSE(added) << row.want;
    EXPECT_NE(added.error().message.find(row.want), std::string::npos) << added.error().message;
  }
  EXPECT_FALSE(worker_->add_model({0}, nullptr));
  add({.weights = 0});  // without weights: no page, and it runs
  EXPECT_EQ(load({0}).status, ActionStatus::success);
  const Batch batch(3, 4);
  EXPECT_EQ(infer(batch, {0}).status, ActionStatus::success);
  const auto second = worker_->add_model({1}, std::make_shared<FakeModel>(FakeModel::Config{}));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::resource_exhausted);
}

TEST_P(WorkerTest, RefusesAbsurdOptions) {
  const struct {
    Options options;
    const char* want;
  } rows[] = {
      {{.page_cache = mib(1)}, "page_cache is 1.0 MiB"},
      {{.page_cache = {~0ULL}}, "page_cache is"},
      {{.io_cache = {1}}, "io_cache is 1 B"},
      {{.workspace = {0}}, "workspace is 0 B"},
      {{.exec_threads = -1}, "exec_threads is -1"},
      {{.queue = 0}, "queue is 0"},
      {{.queue = 1U << 30}, "queue is 1073741824"},
      {{.max_models = 0}, "max_models is 0"},
      {{.page_cache = gib(1ULL << 16)}, "are available: make them smaller"},
  };
  for (const auto& row : rows) {
    const auto made = make_worker(row.options, clock_, results_);
    ASSERT_FALSE(made) << row.want;
    EXPECT_NE(made.error().message.find(row.want), std::string::npos) << made.error().message;
  }
}

TEST_P(WorkerTest, GoesOnWithoutWhatItCannotHave) {
  Options options = small();
  options.real_time = true;  // granted or refused: either way it serves
  options.page_cache = options.page_cache + Bytes{1};
  start(options);
  const auto& notes = worker_->notes();
  EXPECT_TRUE(std::ranges::any_of(notes, [](const std::string& note) {
    return note.find("whole pages of 16.0 MiB") != std::string::npos;
  }));
  const ModelId model = add({});
  EXPECT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(3, 2);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::success);
}

// --- Lives

TEST_P(WorkerTest, ALifeThatEndsWhileARunHangsIsForgotten) {
  start(small());
  Gate gate;
  const ModelId model = add({.weights = page_size.count}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch hanging(3, 2), waiting(3, 1);
  ASSERT_TRUE(worker_->submit(hanging.command({1}, model, any_time)));
  gate.wait_reached();
  ASSERT_TRUE(worker_->submit(waiting.command({2}, model, any_time)));
  ASSERT_TRUE(worker_->submit(UnloadCommand{{3}, model}));  // waits for the run
  EXPECT_TRUE(worker_->busy());

  EXPECT_EQ(worker_->retire(), 1U);  // does not wait for it
  EXPECT_TRUE(worker_->busy());
  worker_->probe();
  gate.open();
  const ProbeResult probed = results_.wait_probe();
  EXPECT_TRUE(probed.found.has_value());
  EXPECT_EQ(probed.life, 1U);
  EXPECT_FALSE(worker_->busy());
  EXPECT_EQ(worker_->free_pages(), worker_->total_pages());
  EXPECT_TRUE(hanging.untouched() && waiting.untouched());
  EXPECT_EQ(results_.count(), 1U);  // that of the LOAD

  // The next life has the same models, and begins with empty memory.
  const Batch batch(3, 2);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::not_loaded);
  EXPECT_EQ(load(model).life, 1U);
  const ActionResult done = infer(batch, model);
  EXPECT_EQ(done.status, ActionStatus::success) << done.error;
  EXPECT_EQ(done.life, 1U);
  EXPECT_TRUE(batch.answered(1));
}

class HangingMemoryTest : public WorkerTest {};  // which has a memory of its own

// The device hangs while its outputs are copied. The end of its life does not wait for the device. The copy
// ends later, and writes to no row.
TEST_P(HangingMemoryTest, ALifeThatEndsWhileOutputsAreCopiedTouchesNoRow) {
  Options options = small();
  Gate gate;
  options.make_memory = [&](std::uint64_t pages, Bytes io, Bytes workspace) {
    return testing::HangingMemory::make(pages, io, workspace, [&] { gate.pass(); });
  };
  start(options);
  const ModelId model = add({.weights = page_size.count});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  auto hanging = std::make_unique<Batch>(3, 2);
  ASSERT_TRUE(worker_->submit(hanging->command({1}, model, any_time)));
  gate.wait_reached();
  EXPECT_EQ(worker_->retire(), 1U);
  EXPECT_TRUE(worker_->busy()) << "OUTPUT is with the device";
  EXPECT_TRUE(hanging->untouched());
  hanging.reset();  // AddressSanitizer sees who writes there from here on
  worker_->probe();
  gate.open();
  const ProbeResult probed = results_.wait_probe();
  EXPECT_TRUE(probed.found.has_value());
  EXPECT_FALSE(worker_->busy()) << "a device is well only once OUTPUT is";
  EXPECT_EQ(worker_->free_pages(), worker_->total_pages());
  EXPECT_EQ(results_.count(), 1U) << "that of the LOAD";

  const Batch batch(3, 2);
  EXPECT_EQ(load(model).life, 1U);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::success);
  EXPECT_TRUE(batch.answered(1));
}

// Else nothing but its own bound ends what a model's process runs, and the device waits for it.
TEST_P(WorkerTest, ALifeThatEndsGivesUpTheRunThatHangs) {
  start(small());
  Gate gate;
  std::atomic<int> given_up{0};
  const ModelId model = add({}, [&]() -> Result<> {
    gate.pass();
    return {};
  });
  models_.back()->given_up = [&] {
    ++given_up;
    gate.open();
  };
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch hanging(3, 2);
  ASSERT_TRUE(worker_->submit(hanging.command({1}, model, any_time)));
  gate.wait_reached();
  worker_->stop({1});
  EXPECT_EQ(given_up, 0) << "one that is only stopped is waited for";
  EXPECT_EQ(worker_->retire(), 1U);
  EXPECT_EQ(given_up, 1);
  gate.open();  // also where it was not
  worker_->probe();
  EXPECT_TRUE(results_.wait_probe().found.has_value());
  EXPECT_FALSE(worker_->busy());
}

TEST_P(WorkerTest, AnErrorOfTheDeviceIsToldFromOneOfTheRun) {
  start(small());
  enum class Fault { none, own, device, thrown } fault = Fault::none;
  const ModelId model = add({}, [&]() -> Result<> {
    switch (fault) {
      case Fault::none:
        return {};
      case Fault::own:
        return fail(ErrorCode::internal, "a kernel failed");
      case Fault::device:
        return fail(ErrorCode::unavailable, "fell off the bus");
      case Fault::thrown:
        throw std::runtime_error("fell off the bus, loudly");
    }
    return {};
  });
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const struct {
    Fault fault;
    ActionStatus status;
    bool lost;
    std::string error;
  } rows[] = {{Fault::own, ActionStatus::failed, false, "a kernel failed"},
              {Fault::device, ActionStatus::failed, true, "fell off the bus"},
              {Fault::thrown, ActionStatus::failed, true, "fell off the bus, loudly"},
              {Fault::none, ActionStatus::success, false, ""}};
  for (const auto& row : rows) {
    fault = row.fault;
    const ActionResult done = infer(Batch(3, 1), model);
    EXPECT_EQ(done.status, row.status);
    EXPECT_EQ(done.device_lost, row.lost) << row.error;
    EXPECT_EQ(done.error, row.error);
  }
}

TEST_P(WorkerTest, AProbeSaysWhatIsWrong) {
  Options options = small();
  int asked = 0;
  options.probe = [&]() -> Result<> {
    if (++asked == 1) return fail(ErrorCode::unavailable, "not yet");
    if (asked == 2) throw std::runtime_error("not yet, either");
    return {};
  };
  start(options);
  const ModelId model = add({.weights = page_size.count});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  worker_->retire();
  std::size_t number = 0;
  for (const std::string says : {"not yet", "not yet, either", ""}) {
    worker_->probe();
    const ProbeResult probed = results_.wait_probe(++number);
    EXPECT_EQ(probed.found ? "" : probed.found.error().message, says);
  }
  EXPECT_EQ(worker_->free_pages(), worker_->total_pages());
}

TEST_P(WorkerTest, MemoryMayBeAddressesOnly) {
  Options options = small();
  options.page_cache = gib(64);
  options.populate = false;
  start(options);
  const ModelId model = add({.weights = page_size.count});
  ASSERT_EQ(load(model).status, ActionStatus::success);
  const Batch batch(3, 2);
  EXPECT_EQ(infer(batch, model).status, ActionStatus::success);
  EXPECT_TRUE(batch.answered(1));
}

const auto by_memory = [](const ::testing::TestParamInfo<Whose>& info) {
  return info.param == Whose::host ? "Host" : "Cuda";
};
INSTANTIATE_TEST_SUITE_P(Memory, WorkerTest, ::testing::Values(Whose::host, Whose::cuda), by_memory);
INSTANTIATE_TEST_SUITE_P(Memory, HangingMemoryTest, ::testing::Values(Whose::host), by_memory);
INSTANTIATE_TEST_SUITE_P(Memory, BadRows, ::testing::Values(Whose::host, Whose::cuda), by_memory);

}  // namespace
}  // namespace carillon::worker
