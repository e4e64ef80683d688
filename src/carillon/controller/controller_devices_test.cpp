// The live controller over real workers whose emulated devices fail, hang and recover while they serve.
#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/clock.h"
#include "carillon/controller/controller.h"
#include "carillon/engine/emulated/emulated_engine.h"
#include "carillon/schedule/registry.h"
#include "carillon/worker/fake_model.h"
#include "carillon/worker/hanging_memory.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {
namespace {

class Toy final : public graph::Model {
 public:
  const std::string& name() const override { return name_; }
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  bool batched() const override { return true; }
  Result<graph::Graph> specialize(std::int64_t, std::int64_t) const override {
    return invalid("never asked");
  }

 private:
  std::string name_ = "toy";
  std::vector<graph::TensorSpec> inputs_{{"x", graph::DataType::f32, {graph::batch_dimension, 4}}};
  std::vector<graph::TensorSpec> outputs_{{"y", graph::DataType::f32, {graph::batch_dimension, 2}}};
};

class ControllerDevices : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::size_t devices = 3;

  void start() {
    auto scheduler = schedule::make_scheduler(GetParam(), {.hangs_after = 80ms});
    ASSERT_TRUE(scheduler.has_value());
    Options options{.patience = 1ms};
    options.core.revivals = {.pause = 1ms, .longest_pause = 5ms};
    options.core.on_device = [this](const DeviceNews& news) {
      const std::lock_guard lock(mutex);
      (news.alive ? backs : losses)[news.device.index()]++;
      changed.notify_all();
    };
    controller = std::make_unique<Controller>(std::move(*scheduler), options, clock);
    schedule::ModelInfo info{
        .id = {0}, .name = "toy", .pages = 1, .load = 1ms, .batches = {{1, 1ms}, {2, 1ms}}};
    std::shared_ptr<const engine::CompiledModel> compiled;
    for (std::uint32_t i = 0; i < devices; ++i) {
      breakers.push_back(std::make_shared<engine::Breaker>(clock));
      auto made = engine::make_emulated_engine(
          {.models = {{"toy", {.weights = kib(3), .execution = {{1, 1ms}, {2, 1ms}}, .load = 1ms}}},
           .breaker = breakers.back()},
          clock);
      const std::shared_ptr<engine::Engine> engine = std::move(made);
      worker::Options of{.page_cache = page_size,
                         .io_cache = kib(256),
                         .workspace = kib(64),
                         .exec_threads = 1,
                         .queue = 64,
                         .max_models = 1,
                         .populate = false,
                         .spin = Duration{0},
                         .probe = [engine] { return engine->probe(); }};
      if (before_copy_out)
        of.make_memory = [this, i](std::uint64_t pages, Bytes io, Bytes workspace) {
          return worker::testing::HangingMemory::make(pages, io, workspace,
                                                      [this, i] { before_copy_out(i); });
        };
      auto worker = worker::make_worker(of, clock, controller->results({i}));
      ASSERT_TRUE(worker.has_value()) << worker.error().message;
      compiled = engine->compile(Toy(), {.batch_sizes = {1, 2}}).value();
      ASSERT_TRUE((*worker)->add_model({0}, compiled).has_value());
      models.emplace_back(compiled);
      controller->add_worker(std::move(*worker));
    }
    ModelView view;
    view.name = "toy";
    view.config.model_class = "normal";
    controller->add_model(std::move(view), *compiled, info);
    controller->start();
  }
  // One call, and its answer.
  Result<> call(int rows) {
    auto infer = std::make_unique<InferCall>();
    infer->model = {0};
    infer->rows = rows;
    infer->arrival = clock.now();
    infer->deadline = infer->arrival + 10min;
    infer->inputs.emplace_back(static_cast<std::size_t>(rows) * 16);
    std::promise<Result<>> answered;
    auto future = answered.get_future();
    controller->submit(std::move(infer),
                       [&](const InferAnswer& answer) { answered.set_value(answer.status); });
    return future.get();
  }
  void wait_for(std::vector<int>& counts, std::size_t device, int least) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return counts[device] >= least; });
  }
  int count(const std::vector<int>& counts, std::size_t device) {
    const std::lock_guard lock(mutex);
    return counts[device];
  }

  static inline const SteadyClock clock;                      // outlives what is left behind
  std::function<void(std::uint32_t device)> before_copy_out;  // of outputs; empty: there are no copies
  std::vector<std::shared_ptr<engine::Breaker>> breakers;
  std::vector<std::weak_ptr<const engine::CompiledModel>> models;  // by device
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> losses = std::vector<int>(devices), backs = std::vector<int>(devices);
  std::unique_ptr<Controller> controller;
};

TEST_P(ControllerDevices, EveryCallHasOneAnswerWhateverBecomesOfTheDevices) {
  start();
  std::atomic<bool> over{false};
  std::atomic<int> well{0}, failed{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c)
    clients.emplace_back([&, rows = 1 + c % 3] {
      while (!over) (call(rows) ? well : failed)++;  // a second answer would throw
    });
  for (int round = 0; round < 6; ++round) {
    const std::size_t device = static_cast<std::size_t>(round) % devices;
    const int lost = count(losses, device), back = count(backs, device);
    if (round % 2 == 0)
      breakers[device]->fail();
    else
      breakers[device]->hang();
    // Whoever sends it something finds out; a policy may leave a device alone while others do, so that only
    // what was noticed is waited for.
    for (int until = well + failed + 50; well + failed < until;) std::this_thread::yield();
    const bool noticed = count(losses, device) > lost;
    breakers[device]->mend();
    if (noticed) wait_for(backs, device, back + 1);
  }
  over = true;
  for (std::thread& client : clients) client.join();
  EXPECT_GT(well, 100);
  EXPECT_TRUE(controller->ready());
  const ServerStatistics told = controller->statistics();
  EXPECT_EQ(told.models[0].on_time + told.models[0].late + told.models[0].refused + told.models[0].failed,
            static_cast<std::uint64_t>(well + failed));
  EXPECT_EQ(told.open_requests, 0U);
}

TEST_P(ControllerDevices, WithoutDevicesItIsNotReadyAndRefuses) {
  start();
  EXPECT_TRUE(call(1).has_value());
  for (const auto& breaker : breakers) breaker->fail();
  Result<> answer;
  while (controller->ready()) answer = call(1);
  answer = call(1);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::unavailable);
  for (const auto& breaker : breakers) breaker->mend();
  for (std::size_t i = 0; i < devices; ++i) wait_for(backs, i, 1);
  while (!controller->ready()) std::this_thread::yield();
  while (!call(1).has_value()) {
  }
}

// The controller's thread does not wait for the copy, and the request is tried elsewhere.
TEST_P(ControllerDevices, OneThatHangsWhileOutputsAreCopiedDoesNotStopTheOthers) {
  worker::testing::Gate gate;
  std::atomic<int> hanging{-1};
  before_copy_out = [&](std::uint32_t device) {
    int nobody = -1;
    hanging.compare_exchange_strong(nobody, static_cast<int>(device));  // the first that copies
    if (hanging == static_cast<int>(device)) gate.pass();
  };
  start();
  EXPECT_TRUE(call(1).has_value());
  const auto bad = static_cast<std::size_t>(hanging.load());
  EXPECT_GE(count(losses, bad), 1);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(call(1 + i % 2).has_value());
  EXPECT_EQ(count(backs, bad), 0);
  gate.open();
  wait_for(backs, bad, 1);
  while (count(losses, bad) > count(backs, bad)) std::this_thread::yield();
  EXPECT_TRUE(call(2).has_value());
  controller.reset();  // its workers use what is above
}

TEST_P(ControllerDevices, OneThatHangsIsLeftBehind) {
  start();
  EXPECT_TRUE(call(1).has_value());
  for (const auto& breaker : breakers) breaker->hang();
  EXPECT_FALSE(call(1).has_value());
  while (controller->ready()) (void)call(1);
  controller->stop();
  const std::size_t left = controller->end_workers().size();
  EXPECT_GE(left, 1U);
  EXPECT_LE(left, devices);
  controller.reset();
  for (const auto& breaker : breakers) breaker->mend();  // they wake up to nobody
}

// What a model has beside its caches goes with it: the process of another engine, and its descriptors.
TEST_P(ControllerDevices, AModelThatWentWhileADeviceHungIsGivenBackOnceItIsBack) {
  start();
  EXPECT_TRUE(call(1).has_value());
  for (const auto& breaker : breakers) breaker->hang();
  EXPECT_FALSE(call(1).has_value());
  while (controller->ready()) (void)call(1);
  EXPECT_FALSE(controller->remove_model({0}, 1min, {})) << "a device may still run it";
  EXPECT_EQ(controller->remove_left(), 1U);
  for (const auto& model : models) EXPECT_FALSE(model.expired());
  for (const auto& breaker : breakers) breaker->mend();
  while (controller->remove_left() > 0) std::this_thread::yield();
  for (const auto& model : models) EXPECT_TRUE(model.expired());
  EXPECT_FALSE(call(1).has_value());
}

INSTANTIATE_TEST_SUITE_P(Policies, ControllerDevices, ::testing::Values("clockwork", "symphony", "fcfs"));

}  // namespace
}  // namespace carillon::controller
