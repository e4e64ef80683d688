#include "carillon/controller/gates/batch_plans.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/worker/fake_model.h"

// Plans of larger batches: which models get them, and which lose them.
namespace carillon::controller {
namespace {

using schedule::BatchProfile;
using worker::testing::FakeModel;

constexpr Bytes plan_bytes = mib(1);
constexpr Duration solo = std::chrono::milliseconds{2};

// A model whose plans are only counted; making them may wait, or fail.
class FewPlans final : public engine::CompiledModel {
 public:
  explicit FewPlans(std::vector<int> batches = {1, 2, 4, 16})
      : whole_({.batches = batches}), batches_(std::move(batches)) {}
  std::function<Result<>()> before_making;
  Bytes heavy;  // weights, which are read and packed while plans are made
  mutable std::atomic<int> made{0};

  const std::vector<graph::TensorSpec>& inputs() const override { return whole_.inputs(); }
  const std::vector<graph::TensorSpec>& outputs() const override { return whole_.outputs(); }
  Bytes weights() const override { return heavy; }
  Result<> write_weights(std::uint64_t, std::span<std::byte>) const override { return {}; }
  std::span<const int> batch_sizes() const override { return batches_; }
  bool makes_later() const override { return batches_.size() > 1; }
  ModelMemory memory() const override { return {.plans = plan_bytes, .weights = {}, .processes = {}}; }
  const engine::Plan* plan(int batch, std::int64_t length) const override {
    return batch == batches_.front() ? whole_.plan(batch, length) : nullptr;
  }
  Result<std::vector<std::unique_ptr<const engine::Plan>>> make_plans(
      std::span<const std::int64_t> extents, std::span<const int> batches,
      const std::atomic<bool>*) const override {
    EXPECT_TRUE(extents.empty());
    ++made;
    if (before_making)
      if (auto ok = before_making(); !ok) return std::unexpected(ok.error());
    std::vector<std::unique_ptr<const engine::Plan>> out;
    for (const int batch : batches) out.push_back(std::make_unique<Mib>(*whole_.plan(batch, 0)));
    return out;
  }

 private:
  // One of the whole model's, of a size that is known.
  class Mib final : public engine::Plan {
   public:
    explicit Mib(const engine::Plan& inner) : inner_(inner) {}
    int batch() const override { return inner_.batch(); }
    std::span<const graph::TensorSpec> inputs() const override { return inner_.inputs(); }
    std::span<const graph::TensorSpec> outputs() const override { return inner_.outputs(); }
    Bytes workspace() const override { return inner_.workspace(); }
    Bytes memory() const override { return plan_bytes; }
    int kernels() const override { return inner_.kernels(); }
    std::string_view kernel_name(int index) const override { return inner_.kernel_name(index); }
    Result<> run(engine::KernelRange, const engine::Binding&, std::span<Duration>, engine::StopSignal*,
                 engine::Pacer*) const override {
      return fail(ErrorCode::internal, "nobody runs it");
    }

   private:
    const engine::Plan& inner_;
  };

  FakeModel whole_;
  std::vector<int> batches_;
};

// Has what it is given, without running anything.
class PlanHolder final : public worker::Worker {
 public:
  Result<> add_model(ModelId, std::shared_ptr<const engine::CompiledModel>) override { return {}; }
  Result<std::size_t> add_batches(ModelId id,
                                  std::vector<std::unique_ptr<const engine::Plan>> plans) override {
    const std::lock_guard lock(mutex_);
    while (!plans.empty() && plans.back()->batch() > largest) plans.pop_back();
    if (plans.empty()) return fail(ErrorCode::unsupported, "none fits");
    held_[id.index()] = std::move(plans);
    return held_[id.index()].size();
  }
  void remove_batches(ModelId id) override {
    const std::lock_guard lock(mutex_);
    held_.erase(id.index());
  }
  bool sweep(ModelId) override {
    ++sweeps;
    return !runs;
  }
  std::atomic<int> sweeps{0};
  bool has(ModelId id) const {
    const std::lock_guard lock(mutex_);
    return held_.contains(id.index());
  }
  int largest = 64;
  std::atomic<bool> runs{false};  // what is removed is held

  Result<> has_room(const engine::CompiledModel&) const override { return {}; }
  bool submit(const worker::LoadCommand&) override { return false; }
  bool submit(const worker::UnloadCommand&) override { return false; }
  bool submit(const worker::InferCommand&) override { return false; }
  void stop(ActionId) override {}
  void preempt(ActionId, TimePoint) override {}
  bool cancel(ActionId) override { return false; }
  std::uint32_t retire() override { return 0; }
  void probe() override {}
  bool busy() const override { return false; }
  std::uint64_t total_pages() const override { return 0; }
  std::uint64_t free_pages() const override { return 0; }
  Result<std::vector<Duration>> measure_exec(ModelId, int, int, std::int64_t, std::string*) override {
    return fail(ErrorCode::internal, "it does not run");
  }
  Result<std::vector<Duration>> measure_load(ModelId, int) override {
    return fail(ErrorCode::internal, "it does not run");
  }
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::unique_ptr<const engine::Plan>>> held_;
  std::vector<std::string> notes_;
};

std::vector<BatchProfile> row_after_row() {
  return {{1, solo}, {2, 2 * solo}, {4, 4 * solo}, {16, 16 * solo}};
}

class BatchPlansTest : public ::testing::Test {
 protected:
  void start(std::optional<Bytes> memory = std::nullopt) {
    if (memory)
      options_.memory = account_ = MemoryAccount::make({.models = *memory, .bound = "--memory", .least = {}});
    options_.note = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      notes_.push_back(text);
    };
    plans_.emplace(options_, clock_, [this](ModelId id, std::vector<BatchProfile> times) {
      const std::lock_guard lock(mutex_);
      told_[id.index()] = std::move(times);
    });
    plans_->start(worker_);
  }
  ModelId add(FewPlans& model) {
    const ModelId id{next_++};
    plans_->add_model(id, "model" + std::to_string(id.value), model, row_after_row());
    return id;
  }
  void sent(ModelId id, int batch = 2) { plans_->sent(id, batch); }
  // The thread has done what there was to do.
  void expect(const std::function<bool()>& is_so, const char* what) {
    for (int i = 0; i < 2000 && !is_so(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds{5});
    EXPECT_TRUE(is_so()) << what;
  }
  void expect_complete(std::size_t count) {
    expect([&] { return plans_->counts().complete == count; }, "so many have all plans");
  }
  std::vector<Duration> told(ModelId id) {
    const std::lock_guard lock(mutex_);
    std::vector<Duration> out;
    for (const BatchProfile& each : told_[id.index()]) out.push_back(each.exec);
    return out;
  }

  SteadyClock clock_;
  BatchPlanOptions options_{.memory = {},
                            .measure = [](const engine::CompiledModel&, const engine::Plan& plan,
                                          const std::atomic<bool>&) -> Result<std::optional<Duration>> {
                              return solo + solo * (plan.batch() - 1) / 5;
                            },
                            .kept = std::chrono::milliseconds{0},
                            .rest = std::chrono::milliseconds{0},
                            .note = {}};
  std::shared_ptr<MemoryAccount> account_;
  PlanHolder worker_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<BatchProfile>> told_;
  std::vector<std::string> notes_;
  std::uint32_t next_ = 0;
  std::optional<BatchPlans> plans_;
};

TEST_F(BatchPlansTest, AllModelsGetThemWhereThereIsMemory) {
  FewPlans a, b, whole({1});
  start();
  const ModelId first = add(a), second = add(b), third = add(whole);
  expect_complete(2);
  EXPECT_TRUE(worker_.has(first) && worker_.has(second) && !worker_.has(third));
  // On the line between one row and the largest batch.
  EXPECT_EQ(told(first), (std::vector{solo, solo * 6 / 5, solo * 8 / 5, solo * 4}));
  EXPECT_EQ(told(second), told(first));
  const auto counts = plans_->counts();
  EXPECT_EQ(counts.models, 2U);
  EXPECT_EQ(counts.made, 2U);
  EXPECT_EQ(counts.memory, Bytes{6 * plan_bytes.count});
  sent(first);
  sent(third);
  EXPECT_EQ(a.made, 1);
}

TEST_F(BatchPlansTest, WhileOthersAreLoadedOnlyThoseThatAreAskedFor) {
  FewPlans a, b, c;
  start();
  plans_->set_loading(true);
  const ModelId first = add(a), second = add(b), third = add(c);
  sent(second, 1);
  sent(third, 4);
  expect_complete(1);
  EXPECT_TRUE(worker_.has(third));
  plans_->set_loading(false);
  expect_complete(3);
  EXPECT_TRUE(worker_.has(first) && worker_.has(second));
}

// While batches run all the time, a hundredth of the time is for plans.
TEST_F(BatchPlansTest, ABusyDeviceIsLeftInPeace) {
  constexpr auto takes = std::chrono::milliseconds{3};
  std::vector<TimePoint> begun;
  options_.busy = [&] { return clock_.now().time_since_epoch(); };
  options_.measure = [&](const engine::CompiledModel&, const engine::Plan&,
                         const std::atomic<bool>&) -> Result<std::optional<Duration>> {
    begun.push_back(clock_.now());
    std::this_thread::sleep_for(takes);
    return solo;
  };
  FewPlans a, b;
  start();
  sent(add(a));
  sent(add(b));
  expect_complete(2);
  plans_->stop();
  ASSERT_EQ(begun.size(), 2U);
  EXPECT_GE(begun[1] - begun[0], 99 * takes);
}

TEST_F(BatchPlansTest, BesideAnIdleDeviceTheyAreMadeAtOnce) {
  options_.busy = [] { return Duration{0}; };
  options_.measure = [](const engine::CompiledModel&, const engine::Plan&,
                        const std::atomic<bool>&) -> Result<std::optional<Duration>> {
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    return solo;
  };
  std::vector<FewPlans> models(8);  // 16 s with rests, longer than anybody waits
  start();
  for (FewPlans& each : models) add(each);
  expect_complete(models.size());
}

// Plans are made as far as memory goes. A model that nobody asks for takes no other model's plans.
TEST_F(BatchPlansTest, MemoryIsTakenAsFarAsItGoes) {
  std::vector<FewPlans> models(5);
  start(mib(7));
  for (FewPlans& each : models) add(each);
  expect_complete(2);
  expect([&] { return models[2].made == 0 && plans_->counts().made == 2; },
         "the others are not tried in vain");
  EXPECT_EQ(account_->counts().taken.plans, mib(6));
  EXPECT_EQ(account_->counts().loading, Bytes{});

  // Asked for, it takes the place of the one that was not for longer.
  sent({0});
  sent({4}, 16);
  expect([&] { return worker_.has({4}); }, "it has its plans");
  EXPECT_TRUE(worker_.has({0}));
  EXPECT_FALSE(worker_.has({1}));
  EXPECT_EQ(told({1}), (std::vector{solo, 2 * solo, 4 * solo, 16 * solo})) << "row after row again";
  EXPECT_EQ(plans_->counts().dropped, 1U);
  EXPECT_EQ(account_->counts().taken.plans, mib(6));
  // It can have them back.
  sent({1});
  expect([&] { return worker_.has({1}); }, "it has its plans again");
}

TEST_F(BatchPlansTest, WhatRanLatelyStays) {
  options_.kept = std::chrono::hours{1};
  FewPlans a, b;
  start(mib(4));
  const ModelId first = add(a);
  sent(first);
  expect_complete(1);
  const ModelId second = add(b);
  sent(second);
  expect([&] { return plans_->counts().refused > 0; }, "there is no room for the other");
  EXPECT_TRUE(worker_.has(first));
  EXPECT_FALSE(worker_.has(second));
  EXPECT_TRUE(told(second).empty());
  EXPECT_TRUE(notes_.empty()) << "it may fit later";
}

// A model that is loaded goes before all plans of larger batches.
TEST_F(BatchPlansTest, ModelsThatAreLoadedTakeTheirMemory) {
  options_.kept = std::chrono::hours{1};
  std::vector<FewPlans> models(3);
  start(mib(10));
  for (FewPlans& each : models) sent(add(each));
  expect_complete(3);
  {
    const auto charge = account_->take("large", {.memory = mib(6)});
    ASSERT_TRUE(charge.has_value()) << charge.error().message;
    EXPECT_EQ(plans_->counts().complete, 1U);
    EXPECT_TRUE(worker_.has({2})) << "the last that was asked for";
    EXPECT_EQ(told({0}).back(), 16 * solo);
  }
  EXPECT_FALSE(account_->take("huge", {.memory = mib(11)}).has_value());
  account_->shrink_by(mib(9));
  EXPECT_EQ(plans_->counts().complete, 0U);
  EXPECT_EQ(account_->counts().taken.plans, Bytes{});
}

// What is just being made is waited for, so that no model is refused for its sake.
TEST_F(BatchPlansTest, AModelThatIsLoadedWaitsForWhatIsBeingMade) {
  FewPlans model, other;
  std::promise<void> begun, go_on;
  model.before_making = [&]() -> Result<> {
    if (model.made > 1) return {};
    begun.set_value();
    go_on.get_future().wait();
    return {};
  };
  start(mib(4));
  const ModelId id = add(model);
  add(other);
  begun.get_future().wait();
  auto loaded = std::async(std::launch::async, [&] { return account_->take("large", {.memory = mib(4)}); });
  EXPECT_EQ(loaded.wait_for(std::chrono::milliseconds{20}), std::future_status::timeout);
  plans_->set_loading(true);
  go_on.set_value();
  {
    const auto charge = loaded.get();
    EXPECT_TRUE(charge.has_value()) << charge.error().message;
    EXPECT_EQ(plans_->counts().complete, 0U);
  }
  plans_->set_loading(false);
  expect_complete(1);
  EXPECT_TRUE(worker_.has(id)) << "its turn comes again";
  EXPECT_EQ(model.made, 2);
  EXPECT_EQ(other.made, 0);
}

TEST_F(BatchPlansTest, WhatDoesNotFitTheWorkerRunsBySmallerPlans) {
  worker_.largest = 4;
  FewPlans model;
  start();
  const ModelId id = add(model);
  expect_complete(1);
  EXPECT_EQ(told(id), (std::vector{solo, solo * 6 / 5, solo * 8 / 5, solo * 8 / 5 * 4}));
}

TEST_F(BatchPlansTest, AModelThatRefusesMadeUpDataIsNotMeasured) {
  options_.measure = [](const auto&, const auto&, const auto&) -> Result<std::optional<Duration>> {
    return std::nullopt;
  };
  FewPlans model;
  start();
  const ModelId id = add(model);
  expect_complete(1);
  EXPECT_TRUE(worker_.has(id));
  // Other times than without them: what runs show is forgotten when they go.
  EXPECT_EQ(told(id).front(), solo);
  for (std::size_t i = 1; i < row_after_row().size(); ++i)
    EXPECT_EQ(told(id)[i], row_after_row()[i].exec - Duration{1});
}

// A model whose plans would never fit takes nobody's.
TEST_F(BatchPlansTest, NobodyMakesRoomInVain) {
  FewPlans a, b, large;
  large.heavy = mib(2);
  start(mib(7));
  add(a);
  add(b);
  expect_complete(2);
  const ModelId id = add(large);
  sent(id);
  expect([&] { return plans_->counts().refused > 0; }, "it does not fit");
  EXPECT_EQ(plans_->counts().complete, 2U);
  EXPECT_EQ(plans_->counts().dropped, 0U);
  EXPECT_EQ(large.made, 0);
}

// What still runs by plans that were dropped holds their memory, and the model gets others only afterwards.
TEST_F(BatchPlansTest, PlansThatAreStillHeldCount) {
  FewPlans model;
  start(mib(4));
  const ModelId id = add(model);
  expect_complete(1);
  worker_.runs = true;
  EXPECT_FALSE(account_->take("large", {.memory = mib(4)}).has_value());
  EXPECT_EQ(plans_->counts().dropped, 1U);
  EXPECT_EQ(account_->counts().taken.plans, mib(3));
  sent(id);
  const int looked = worker_.sweeps;
  expect([&] { return worker_.sweeps > looked + 2; }, "the thread has seen that it is asked for");
  EXPECT_EQ(model.made, 1);
  worker_.runs = false;
  expect_complete(1);
  EXPECT_TRUE(worker_.has(id)) << "and these stay";
  EXPECT_EQ(account_->counts().taken.plans, mib(3));
}

TEST_F(BatchPlansTest, AFaultIsToldOnce) {
  FewPlans model;
  model.before_making = [] { return Result<>(fail(ErrorCode::unavailable, "its file is gone")); };
  start();
  const ModelId id = add(model);
  expect(
      [&] {
        const std::lock_guard lock(mutex_);
        return notes_.size() == 1;
      },
      "it is told");
  EXPECT_EQ(notes_.front(), "model0: its batches run row after row: its file is gone");
  sent(id);
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  EXPECT_EQ(model.made, 1);
  EXPECT_EQ(plans_->counts().complete, 0U);
}

TEST_F(BatchPlansTest, WhatIsThrownEndsNothing) {
  FewPlans model, other;
  model.before_making = []() -> Result<> { throw std::bad_alloc(); };
  start(mib(64));
  add(model);
  add(other);
  expect_complete(1);
  EXPECT_EQ(account_->counts().loading, Bytes{}) << "what it had asked for is given back";
}

TEST_F(BatchPlansTest, AModelThatGoesWaitsForItsPlans) {
  FewPlans model;
  std::promise<void> begun, go_on;
  model.before_making = [&]() -> Result<> {
    begun.set_value();
    go_on.get_future().wait();
    return {};
  };
  start(mib(64));
  const ModelId id = add(model);
  begun.get_future().wait();
  auto gone = std::async(std::launch::async, [&] { plans_->remove_model(id); });
  EXPECT_EQ(gone.wait_for(std::chrono::milliseconds{20}), std::future_status::timeout);
  go_on.set_value();
  gone.wait();
  EXPECT_EQ(plans_->counts().models, 0U);
  EXPECT_EQ(plans_->counts().memory, Bytes{});
  EXPECT_EQ(account_->counts().taken.plans, Bytes{});
  sent(id);  // one that comes too late
  EXPECT_FALSE(account_->take("huge", {.memory = mib(65)}).has_value()) << "there is nothing to take back";
}

TEST_F(BatchPlansTest, ManyAskAtOnce) {
  std::vector<FewPlans> models(8);
  start(mib(13));
  for (FewPlans& each : models) add(each);
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int i = 0; i < 20'000; ++i) sent({static_cast<std::uint32_t>(i * 7 % 8)}, 1 + i % 5);
  });
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i)
        (void)account_->take("x", {.memory = mib(static_cast<std::uint64_t>(i) % 13)});
    });
  for (std::thread& each : threads) each.join();
  expect([&] { return account_->counts().loading == Bytes{}; }, "nothing is being made");
  plans_->stop();
  const auto counts = plans_->counts();
  EXPECT_EQ(counts.made, counts.complete + counts.dropped);
  EXPECT_EQ(account_->counts().taken.plans, counts.memory);
}

}  // namespace
}  // namespace carillon::controller
