#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/worker/fake_model.h"

namespace carillon::worker {
namespace {

using schedule::ActionStatus;

constexpr Window any_time{TimePoint::min(), TimePoint::max()};

// Waits for its own thread's actions; forwards nothing else.
class ByThread final : public ResultSink {
 public:
  explicit ByThread(std::size_t threads) : results(threads) {}
  void on_result(const ActionResult& result) override { results[result.id.value >> 32].on_result(result); }
  std::deque<testing::Results> results;
};

// Many threads load, unload and infer at random. Each kernel checks that all the weights under it are its own
// model's; each answer is right or was never written; each action taken is answered once; no page is lost.
TEST(WorkerStress, ManySubmitters) {
  constexpr std::uint64_t threads = 4;
  constexpr std::uint64_t actions = 150;
  constexpr std::uint32_t models = 6;
  SteadyClock clock;
  ByThread sink(threads);
  const Options options{.page_cache = page_size * 4,
                        .io_cache = kib(32),
                        .workspace = kib(4),
                        .exec_threads = 1,
                        .queue = 6,
                        .max_models = models};
  auto made = make_worker(options, clock, sink);
  ASSERT_TRUE(made) << made.error().message;
  Worker& worker = **made;
  for (std::uint32_t id = 0; id < models; ++id)
    ASSERT_TRUE(worker.add_model({id}, std::make_shared<testing::FakeModel>(testing::FakeModel::Config{
                                           .seed = id,
                                           .weights = id % 3 == 2 ? page_size.count + 64 : 100000,
                                           .width = 500,
                                           .constant = static_cast<float>(id)})));

  std::array<std::atomic<int>, 5> statuses{};
  std::atomic<std::uint64_t> taken{0};
  std::vector<std::thread> submitters;
  for (std::uint64_t thread = 0; thread < threads; ++thread)
    submitters.emplace_back([&, thread] {
      Random random(thread);
      struct Open {
        ActionId id;
        std::unique_ptr<testing::Batch> batch;  // INFER's
        ModelId model;
      };
      std::deque<Open> open;
      const auto finish_one = [&] {
        const ActionResult result = sink.results[thread].wait(open.front().id);
        ++statuses[static_cast<std::size_t>(result.status)];
        if (open.front().batch != nullptr) {
          const bool right = result.status == ActionStatus::success
                                 ? open.front().batch->answered(static_cast<float>(open.front().model.value))
                                 : open.front().batch->untouched();
          EXPECT_TRUE(right) << static_cast<int>(result.status) << " of " << result.id.value;
        }
        // A LOAD of what is loaded is the one failure there may be: never foreign weights.
        if (result.status == ActionStatus::failed) {
          EXPECT_NE(result.error.find("is loaded already"), std::string::npos) << result.error;
        }
        open.pop_front();
      };
      for (std::uint64_t i = 0; i < actions; ++i) {
        Open action{.id = {thread << 32 | i},
                    .batch = nullptr,
                    .model = {static_cast<std::uint32_t>(random.below(models))}};
        const TimePoint now = clock.now();
        const Window window = random.below(4) == 0 ? Window{now + Duration(random.below(50000)),
                                                            now + Duration(random.below(100000))}
                                                   : any_time;
        bool accepted = false;
        switch (random.below(6)) {
          case 0:
            accepted = worker.submit(LoadCommand{action.id, action.model, window});
            break;
          case 1:
            accepted = worker.submit(UnloadCommand{action.id, action.model});
            break;
          default:
            action.batch = std::make_unique<testing::Batch>(500, 1 << random.below(3));
            accepted = worker.submit(action.batch->command(action.id, action.model, window));
        }
        if (accepted) {
          ++taken;
          open.push_back(std::move(action));
        }
        while (open.size() > (accepted ? 3 : 0)) finish_one();
      }
      while (!open.empty()) finish_one();
    });
  for (std::thread& submitter : submitters) submitter.join();

  std::uint64_t answered = 0;
  for (auto& results : sink.results) {
    answered += results.count();
    EXPECT_EQ(results.doubles(), 0);
  }
  EXPECT_EQ(answered, taken.load());
  // It was a test of something.
  EXPECT_GT(statuses[static_cast<std::size_t>(ActionStatus::success)].load(), 0);
  EXPECT_GT(statuses[static_cast<std::size_t>(ActionStatus::not_loaded)].load(), 0);

  for (std::uint32_t id = 0; id < models; ++id) {
    const ActionId last{(threads - 1) << 32 | (actions + id)};
    ASSERT_TRUE(worker.submit(UnloadCommand{last, {id}}));
    EXPECT_EQ(sink.results[threads - 1].wait(last).status, ActionStatus::success);
  }
  EXPECT_EQ(worker.free_pages(), 4U);
}

// The worker ends amid submissions from its own results: each action that was taken is answered all the same.
TEST(WorkerStress, EndsWhileResultsSubmit) {
  struct Sink final : ResultSink {
    void on_result(const ActionResult& result) override {
      ++answered;
      if (result.status == ActionStatus::success) running.open();
      for (int i = 0; i < 2; ++i)  // one to replace this, and one more until the queue is full
        if (worker->submit(batch->command({next++}, {0}, any_time))) ++taken;
    }
    Worker* worker = nullptr;
    const testing::Batch* batch = nullptr;
    std::atomic<std::uint64_t> taken{0}, answered{0}, next{100};
    testing::Gate running;
  };
  for (int round = 0; round < 20; ++round) {
    SteadyClock clock;
    Sink sink;
    const testing::Batch batch(3, 1);
    auto made = make_worker(
        {.page_cache = page_size, .io_cache = kib(32), .workspace = kib(4), .queue = 4, .max_models = 1},
        clock, sink);
    ASSERT_TRUE(made) << made.error().message;
    sink.worker = made->get();
    sink.batch = &batch;
    ASSERT_TRUE((*made)->add_model({0}, std::make_shared<testing::FakeModel>(testing::FakeModel::Config{})));
    ++sink.taken;
    ASSERT_TRUE((*made)->submit(LoadCommand{{1}, {0}, any_time}));
    sink.running.pass();
    made->reset();
    EXPECT_EQ(sink.answered.load(), sink.taken.load()) << "round " << round;
  }
}

}  // namespace
}  // namespace carillon::worker
