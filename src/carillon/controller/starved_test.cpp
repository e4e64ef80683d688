// A device whose threads get next to no processor, as others on the machine have it: it is slow, and stays.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "carillon/controller/controller.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/schedule/registry.h"
#include "carillon/worker/watched_model.h"

namespace carillon::controller {
namespace {

constexpr std::int64_t width = 512;  // eight layers of it take some milliseconds on a processor of one's own
constexpr int requests = 24;

// Threads that never sleep, twice as many as there are processors. The lowest priority leaves others a
// hundredth of one beside them.
class Neighbours {
 public:
  Neighbours() {
    for (unsigned i = 0; i < 2 * std::max(1U, std::thread::hardware_concurrency()); ++i)
      threads_.emplace_back([this] {
        while (!ended_.load(std::memory_order_relaxed)) {
        }
      });
  }
  ~Neighbours() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

 private:
  std::atomic<bool> ended_{false};
  std::vector<std::thread> threads_;
};

class Starved : public ::testing::TestWithParam<const char*> {
 protected:
  void start() {
    Options options;
    options.core.slow_after = 5ms;
    options.core.on_device = [this](const DeviceNews& news) {
      if (!news.alive) ++lost;
    };
    controller = std::make_unique<Controller>(
        std::move(*schedule::make_scheduler(GetParam(), {.hangs_after = 200ms, .classes = true})), options,
        clock);
    engine = engine::make_cpu_engine({.threads = 2});
    const auto compiled = engine->compile(engine::testing::MadeModel([](std::int64_t batch) {
                                            return worker::testing::chain(batch, width, 1);
                                          }),
                                          {.batch_sizes = {1}});
    ASSERT_TRUE(compiled) << compiled.error().message;
    auto worker = worker::make_worker(
        {.page_cache = page_size * 4,
         .io_cache = mib(1),
         .workspace = mib(1),
         .exec_threads = 2,
         .queue = 64,
         .max_models = 1,
         .classes = device::ClassStreams{.units = 2, .best_effort = 2},
         .make_team = [this](const engine::TeamOptions& team) { return engine->make_team(team); }},
        clock, controller->results());
    ASSERT_TRUE(worker) << worker.error().message;
    ASSERT_TRUE((*worker)->add_model({0}, *compiled));
    const std::uint64_t pages = (*compiled)->weights().count / page_size.count + 1;
    controller->add_worker(std::move(*worker));
    ModelView view;
    view.name = "chain";
    view.config.model_class = "normal";
    controller->add_model(std::move(view), **compiled,
                          {.id = {0}, .name = "chain", .pages = pages, .load = 1ms, .batches = {{1, 1ms}}});
    controller->start();
  }

  // They are left to the end: a controller waits for what its workers do.
  const SteadyClock clock;
  std::atomic<int> lost{0};
  std::shared_ptr<engine::Engine> engine;
  std::unique_ptr<Controller> controller;
};

TEST_P(Starved, ADeviceIsNotTakenOut) {
  // Threads begin with the priority of the one that starts them.
  std::thread([this] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19), 0);
    start();
  }).join();
  ASSERT_NE(controller, nullptr);
  std::vector<std::promise<Result<>>> answers(requests);
  {
    const Neighbours busy;
    for (std::promise<Result<>>& answer : answers) {
      auto call = std::make_unique<InferCall>();
      call->model = {0};
      call->arrival = clock.now();
      call->deadline = TimePoint::max();
      call->inputs.emplace_back(static_cast<std::size_t>(width) * sizeof(float));
      controller->submit(std::move(call),
                         [&answer](const InferAnswer& given) { answer.set_value(given.status); });
    }
    for (std::promise<Result<>>& answer : answers) {
      const Result<> status = answer.get_future().get();
      EXPECT_TRUE(status) << status.error().message;
    }
  }
  EXPECT_EQ(lost, 0);
  controller->stop();
}

INSTANTIATE_TEST_SUITE_P(Policies, Starved, ::testing::Values("clockwork", "symphony"),
                         [](const auto& policy) { return std::string(policy.param); });

}  // namespace
}  // namespace carillon::controller
