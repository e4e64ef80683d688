// Runs that are ended between kernels and resume, on real plans: the answers are those of an undisturbed run,
// bit for bit, and each comes once.
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/worker/fake_model.h"

namespace carillon::worker {
namespace {

using schedule::ActionStatus;
constexpr Window any_time{TimePoint::min(), TimePoint::max()};

// A chain of layers with a residual: each kernel reads what the one before left in the workspace.
engine::testing::Graph chain(std::int64_t batch, std::int64_t width, std::uint64_t seed) {
  engine::testing::GraphMaker m;
  Random random(seed);
  auto x = m.input({batch, width});
  const auto first = x;
  for (int layer = 0; layer < 8; ++layer) {
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    x = m.node("MatMul", {x, m.constant(engine::testing::random_tensor({width, width}, random, scale))},
               {batch, width});
    x = m.node(layer % 2 == 0 ? "Tanh" : "Relu", {x}, {batch, width});
    if (layer == 5) x = m.node("Add", {x, first}, {batch, width});
  }
  m.g.outputs = {x};
  return std::move(m.g);
}

// Calls `before` before each kernel, on the stream's thread.
class Watched final : public engine::CompiledModel {
 public:
  explicit Watched(std::shared_ptr<const engine::CompiledModel> inner) : inner_(std::move(inner)) {
    for (const int batch : inner_->batch_sizes())
      plans_.push_back(std::make_unique<WatchedPlan>(*this, *inner_->plan(batch, 0)));
  }
  std::function<void(int kernel)> before;

  const std::vector<graph::TensorSpec>& inputs() const override { return inner_->inputs(); }
  const std::vector<graph::TensorSpec>& outputs() const override { return inner_->outputs(); }
  Bytes weights() const override { return inner_->weights(); }
  void write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    inner_->write_weights(offset, to);
  }
  std::span<const int> batch_sizes() const override { return inner_->batch_sizes(); }
  const engine::Plan* plan(int batch, std::int64_t) const override {
    for (const auto& plan : plans_)
      if (plan->batch() == batch) return plan.get();
    return nullptr;
  }

 private:
  class WatchedPlan final : public engine::Plan {
   public:
    WatchedPlan(const Watched& model, const engine::Plan& inner) : model_(model), inner_(inner) {}
    int batch() const override { return inner_.batch(); }
    std::span<const graph::TensorSpec> inputs() const override { return inner_.inputs(); }
    std::span<const graph::TensorSpec> outputs() const override { return inner_.outputs(); }
    Bytes workspace() const override { return inner_.workspace(); }
    int kernels() const override { return inner_.kernels(); }
    std::string_view kernel_name(int index) const override { return inner_.kernel_name(index); }
    std::unique_ptr<engine::RunState> make_state(engine::Team* team) const override {
      return inner_.make_state(team);
    }
    Result<> run(engine::KernelRange range, const engine::Binding& binding, std::span<Duration>,
                 engine::StopSignal* stop, engine::Pacer*) const override {
      for (int k = range.first; k < range.last; ++k) {
        if (stop != nullptr && stop->requested()) {
          stop->next = k;
          return {};
        }
        if (model_.before) model_.before(k);
        if (auto done = inner_.run({k, k + 1}, binding, {}); !done) return done;
      }
      if (stop != nullptr) stop->next = range.last;
      return {};
    }

   private:
    const Watched& model_;
    const engine::Plan& inner_;
  };

  std::shared_ptr<const engine::CompiledModel> inner_;
  std::vector<std::unique_ptr<WatchedPlan>> plans_;
};

// One request of one row.
struct Row {
  Row(std::int64_t width, std::uint64_t seed) : input(static_cast<std::size_t>(width)), output(input.size()) {
    Random random(seed);
    for (float& x : input) x = static_cast<float>(random.normal());
    from = reinterpret_cast<const std::byte*>(input.data());
    to = reinterpret_cast<std::byte*>(output.data());
  }
  InferCommand command(std::uint64_t id, ModelId model) {
    InferCommand made{.id = {id}, .model = model, .window = any_time, .batch = 1, .rows = {}};
    made.rows[0] = {.inputs = {&from, 1}, .outputs = {&to, 1}};
    return made;
  }
  std::vector<float> input, output;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

TEST(Preempt, ARunThatResumesAnswersBitForBitAndOnce) {
  constexpr std::int64_t widths[] = {48, 64};
  SteadyClock clock;
  testing::Results results;
  // Room for several workspaces, so that runs wait beside each other.
  auto made =
      make_worker({.page_cache = page_size * 4, .io_cache = mib(1), .workspace = mib(1), .exec_threads = 1},
                  clock, results);
  ASSERT_TRUE(made) << made.error().message;
  Worker& worker = **made;
  const auto engine = engine::make_cpu_engine({.threads = 1});
  std::vector<std::shared_ptr<Watched>> models;
  for (std::uint32_t m = 0; m < 2; ++m) {
    const auto compiled = engine->compile(
        engine::testing::MadeModel([&, m](std::int64_t batch) { return chain(batch, widths[m], m); }),
        {.batch_sizes = {1}});
    ASSERT_TRUE(compiled) << compiled.error().message;
    models.push_back(std::make_shared<Watched>(*compiled));
    ASSERT_TRUE(worker.add_model({m}, models[m]));
    ASSERT_TRUE(worker.submit(LoadCommand{.id = {m}, .model = {m}, .window = any_time}));
    ASSERT_EQ(results.wait({m}).status, ActionStatus::success);
  }
  const int kernels = models[0]->plan(1, 0)->kernels();
  ASSERT_GE(kernels, 5);

  std::uint64_t next = 10;
  std::uint64_t evictions = 0, resumed_elsewhere = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const ModelId model{static_cast<std::uint32_t>(seed % 2)};
    const std::int64_t width = widths[model.index()];
    Row undisturbed(width, seed);
    ASSERT_TRUE(worker.submit(undisturbed.command(next, model)));
    ASSERT_EQ(results.wait({next}).status, ActionStatus::success);
    ++next;

    Random random(seed);
    Row row(width, seed);
    const std::uint64_t id = next++;
    std::deque<Row> others;
    std::vector<std::uint64_t> others_ids;
    int left = 1 + static_cast<int>(random.below(4));  // evictions of this run
    std::vector<int> began;
    bool alone = true;  // so far: another's kernels do not count
    models[model.index()]->before = [&](int kernel) {
      if (!alone) return;
      began.push_back(kernel);
      if (left == 0 || random.below(3) != 0) return;
      --left;
      ++evictions;
      if (random.below(2) == 0) {  // another of the same plan or of the other model runs in between
        const ModelId of{static_cast<std::uint32_t>(random.below(2))};
        others.emplace_back(widths[of.index()], seed + 1000);
        others_ids.push_back(next++);
        alone = false;
        EXPECT_TRUE(worker.submit(others.back().command(others_ids.back(), of)));
        ++resumed_elsewhere;
      }
      worker.preempt({id}, clock.now() + 1s);
    };
    ASSERT_TRUE(worker.submit(row.command(id, model)));
    const ActionResult result = results.wait({id});
    for (const std::uint64_t other : others_ids)
      ASSERT_EQ(results.wait({other}).status, ActionStatus::success);
    models[0]->before = models[1]->before = nullptr;
    ASSERT_EQ(result.status, ActionStatus::success) << "seed " << seed << ": " << result.error;
    ASSERT_EQ(std::memcmp(row.output.data(), undisturbed.output.data(), row.output.size() * sizeof(float)), 0)
        << "seed " << seed;
    // No kernel was left out: each began where the one before ended.
    for (std::size_t i = 1; i < began.size(); ++i) ASSERT_EQ(began[i], began[i - 1] + 1) << "seed " << seed;
    EXPECT_GE(result.times.paused, Duration{0});
    EXPECT_LE(result.times.paused, result.times.exec_end - result.times.exec_start);
  }
  EXPECT_GT(evictions, 300U);
  EXPECT_GT(resumed_elsewhere, 50U);
  EXPECT_EQ(results.doubles(), 0);
}

TEST(Preempt, AStopDropsWhatWaitsToResume) {
  SteadyClock clock;
  testing::Results results;
  auto made =
      make_worker({.page_cache = page_size * 4, .io_cache = mib(1), .workspace = mib(1), .exec_threads = 1},
                  clock, results);
  ASSERT_TRUE(made);
  Worker& worker = **made;
  const auto engine = engine::make_cpu_engine({.threads = 1});
  const auto compiled =
      engine->compile(engine::testing::MadeModel([](std::int64_t batch) { return chain(batch, 48, 1); }),
                      {.batch_sizes = {1}});
  ASSERT_TRUE(compiled);
  const auto model = std::make_shared<Watched>(*compiled);
  ASSERT_TRUE(worker.add_model({0}, model));
  ASSERT_TRUE(worker.submit(LoadCommand{.id = {0}, .model = {0}, .window = any_time}));
  ASSERT_EQ(results.wait({0}).status, ActionStatus::success);
  Row row(48, 1), other(48, 2);
  bool first = true;
  model->before = [&](int kernel) {
    if (kernel == 3 && first) {
      first = false;
      EXPECT_TRUE(worker.submit(other.command(2, {0})));
      // INPUT takes them in order: once it has refused this one, the other waits for EXEC.
      InferCommand none = other.command(4, {0});
      none.batch = 3;
      EXPECT_TRUE(worker.submit(none));
      EXPECT_EQ(results.wait({4}).status, ActionStatus::failed);
      worker.preempt({1}, clock.now() + 1s);
    } else if (kernel == 2 && !first) {
      worker.stop({1});  // while the other runs
      EXPECT_TRUE(worker.submit(UnloadCommand{.id = {3}, .model = {0}}));
    }
  };
  ASSERT_TRUE(worker.submit(row.command(1, {0})));
  EXPECT_EQ(results.wait({1}).status, ActionStatus::stopped);
  EXPECT_EQ(results.wait({2}).status, ActionStatus::success);
  EXPECT_EQ(results.wait({3}).status, ActionStatus::success) << "nobody keeps its pages any more";
  EXPECT_EQ(worker.free_pages(), worker.total_pages());
}

}  // namespace
}  // namespace carillon::worker
