#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/device_memory.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/stream.h"

// What any engine must keep, as one set of tests: an engine's own test calls expect_conforms() with what it
// has.
namespace carillon::engine::testing {

struct UnderTest {
  std::shared_ptr<const CompiledModel> model;  // of one length, or none
  std::function<std::unique_ptr<Stream>()> stream;
  std::shared_ptr<Team> team;            // that the stream's runs are helped by; nullptr: nobody
  std::unique_ptr<DeviceMemory> memory;  // of two pages and more, and room for a plan of the model
};

// A plan's operands in the device's memory: inputs random by the seed, outputs NaNs.
class InMemory {
 public:
  InMemory(const CompiledModel& model, const Plan& plan, DeviceMemory& memory, Team* team, std::uint64_t seed)
      : memory_(memory), state_(plan.make_state(team)) {
    std::uint64_t at = 0;
    Random random(seed);
    const auto place = [&](const graph::TensorSpec& spec) {
      const std::uint64_t bytes = graph::TensorType{spec.type, spec.shape}.bytes().count;
      std::byte* const to = memory.io(at);
      at = round_up(at + bytes, 64);
      return std::pair(to, bytes);
    };
    for (const auto& spec : plan.inputs()) {
      const auto [to, bytes] = place(spec);
      std::vector<float> values(bytes / sizeof(float));
      for (float& x : values) x = static_cast<float>(random.normal());
      memory.copy_in(to, std::as_bytes(std::span(values)));
      inputs_.push_back(to);
    }
    for (const auto& spec : plan.outputs()) {
      const auto [to, bytes] = place(spec);
      memory.copy_in(to, std::vector<std::byte>(bytes, std::byte{0xff}));
      outputs_.push_back(to);
      sizes_.push_back(bytes);
    }
    EXPECT_LE(at, memory.io_size().count);
    EXPECT_LE(plan.workspace(), memory.workspace_size());
    weights_ = *memory.reserve(pages_for(model.weights()));
    for (std::uint32_t page = 0; page < weights_.pages; ++page) pages_.push_back(page);
    EXPECT_TRUE(memory.map(weights_, pages_));
    std::vector<std::byte> packed(model.weights().count);
    EXPECT_TRUE(model.write_weights(0, packed).has_value());
    if (!packed.empty()) memory.copy_in(weights_.data, packed);
  }
  ~InMemory() {
    memory_.unmap(weights_, pages_);
    memory_.release(weights_);
  }
  InMemory(const InMemory&) = delete;
  InMemory& operator=(const InMemory&) = delete;

  Binding binding() const {
    return {.inputs = inputs_,
            .outputs = outputs_,
            .workspace = memory_.workspace(0),
            .weights = weights_.data,
            .state = state_.get()};
  }
  std::vector<std::vector<std::byte>> answer() const {
    std::vector<std::vector<std::byte>> all;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      all.emplace_back(sizes_[i]);
      memory_.copy_out(all.back(), outputs_[i]);
    }
    return all;
  }

 private:
  DeviceMemory& memory_;
  std::unique_ptr<RunState> state_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<std::uint64_t> sizes_;
  WeightRange weights_;
  std::vector<std::uint32_t> pages_;
};

// Launches what it is given and keeps what comes back.
class Launcher final : public Stream::Client {
 public:
  explicit Launcher(Stream& stream) : stream_(stream) {}
  void completed(const Completion& completion) override {
    const std::lock_guard lock(mutex_);
    completions_.push_back(completion);
    changed_.notify_all();
  }
  TimePoint idle() override {
    const std::lock_guard lock(mutex_);
    if (!next_) return TimePoint::max();
    stream_.launch(*std::exchange(next_, std::nullopt));
    return TimePoint::min();
  }
  // Waits for its completion.
  Completion run(const Launch& launch) {
    std::unique_lock lock(mutex_);
    next_ = launch;
    const std::size_t before = completions_.size();
    lock.unlock();
    stream_.wake();
    lock.lock();
    changed_.wait(lock, [&] { return completions_.size() > before; });
    return completions_.back();
  }

 private:
  Stream& stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Launch> next_;
  std::vector<Completion> completions_;
};

class Throws final : public Plan {
 public:
  explicit Throws(const Plan& like) : like_(like) {}
  int batch() const override { return like_.batch(); }
  std::span<const graph::TensorSpec> inputs() const override { return like_.inputs(); }
  std::span<const graph::TensorSpec> outputs() const override { return like_.outputs(); }
  Bytes workspace() const override { return like_.workspace(); }
  int kernels() const override { return like_.kernels(); }
  std::string_view kernel_name(int index) const override { return like_.kernel_name(index); }
  Result<> run(KernelRange, const Binding&, std::span<Duration>, StopSignal*, Pacer*) const override {
    throw std::runtime_error("this device is gone");
  }

 private:
  const Plan& like_;
};

// Kernels in any pieces, each run again, give what a whole run gives; a run ends before the kernel at which
// that is asked for.
inline void expect_plans_are_lists(const UnderTest& tested) {
  for (const int batch : tested.model->batch_sizes()) {
    SCOPED_TRACE("batch " + std::to_string(batch));
    const Plan& plan = *tested.model->plan(batch);
    ASSERT_EQ(plan.batch(), batch);
    ASSERT_GE(plan.kernels(), 1);
    for (int k = 0; k < plan.kernels(); ++k) EXPECT_FALSE(plan.kernel_name(k).empty());
    const InMemory whole(*tested.model, plan, *tested.memory, tested.team.get(), 1);
    std::vector<Duration> durations(static_cast<std::size_t>(plan.kernels()), Duration{-1});
    ASSERT_TRUE(plan.run({0, plan.kernels()}, whole.binding(), durations));
    for (const Duration each : durations) EXPECT_GE(each, Duration{0});
    const auto want = whole.answer();
    StopSignal stop{.wanted = 7, .run = 7};
    ASSERT_TRUE(plan.run({0, plan.kernels()}, whole.binding(), {}, &stop));
    EXPECT_EQ(stop.next, 0) << "it was to end before its first kernel";
    stop.run = 8;
    ASSERT_TRUE(plan.run({0, plan.kernels()}, whole.binding(), {}, &stop));
    EXPECT_EQ(stop.next, plan.kernels()) << "another run was meant";
    for (int k = 0; k < plan.kernels(); ++k)
      for (int again = 0; again < 2; ++again) ASSERT_TRUE(plan.run({k, k + 1}, whole.binding(), {}));
    EXPECT_EQ(whole.answer(), want);
  }
  EXPECT_EQ(tested.model->plan(tested.model->batch_sizes().back() + 1), nullptr);
}

// A stream says where a run ended, and the run goes on from there.
inline void expect_streams_end_and_resume(const UnderTest& tested) {
  const Plan& plan = *tested.model->plan(tested.model->batch_sizes().front());
  const InMemory memory(*tested.model, plan, *tested.memory, tested.team.get(), 2);
  const auto stream = tested.stream();
  Launcher launcher(*stream);
  ASSERT_TRUE(stream->start(launcher));
  std::uint64_t run = 1;
  const auto launch = [&](int first) {
    return Launch{.run = run, .plan = &plan, .kernels = {first, plan.kernels()}, .binding = memory.binding()};
  };
  const Completion whole = launcher.run(launch(0));
  ASSERT_TRUE(whole.result) << whole.result.error().message;
  EXPECT_EQ(whole.run, run);
  EXPECT_EQ(whole.next, plan.kernels());
  const auto want = memory.answer();

  ++run;
  stream->evict(run);  // before it begins
  EXPECT_EQ(launcher.run(launch(0)).next, 0);
  ++run;
  stream->evict(run - 1);  // another's: no effect
  EXPECT_EQ(launcher.run(launch(0)).next, plan.kernels());

  Random random(3);
  int ended_early = 0;
  for (int round = 0; round < 50; ++round) {
    int next = 0;
    for (int launches = 0; next < plan.kernels() && launches < 100; ++launches) {
      ++run;
      // Whether an eviction meets a run this short is chance; before it begins, it always does.
      if (launches == 0 && round % 4 == 0) stream->evict(run);
      std::atomic<bool> done{false};
      std::thread evictor([&, mine = run, spins = random.below(2000)] {
        for (std::uint64_t i = 0; i < spins && !done; ++i) std::this_thread::yield();
        if (launches < 10) stream->evict(mine);
      });
      const Completion completion = launcher.run(launch(next));
      done = true;
      evictor.join();
      ASSERT_TRUE(completion.result) << completion.result.error().message;
      ASSERT_GE(completion.next, next);
      ASSERT_LE(completion.next, plan.kernels());
      ended_early += completion.next < plan.kernels() ? 1 : 0;
      next = completion.next;
    }
    ASSERT_EQ(next, plan.kernels());
    ASSERT_EQ(memory.answer(), want) << "round " << round;
  }
  EXPECT_GE(ended_early, 13);

  const Throws throws(plan);
  ++run;
  const Completion lost = launcher.run(
      {.run = run, .plan = &throws, .kernels = {0, plan.kernels()}, .binding = memory.binding()});
  ASSERT_FALSE(lost.result);
  EXPECT_EQ(lost.result.error().code, ErrorCode::unavailable);
  EXPECT_NE(lost.result.error().message.find("this device is gone"), std::string::npos);
  EXPECT_FALSE(stream->busy());
  bool called = false;
  EXPECT_TRUE(stream->call([&] { called = true; }));
  EXPECT_TRUE(called);
  stream->stop();
  EXPECT_FALSE(stream->call([] {}));
}

// Pages move with what is in them, behind addresses that stay.
inline void expect_memory_moves(DeviceMemory& memory) {
  ASSERT_GE(memory.pages(), 2U);
  const auto one = memory.reserve(1), two = memory.reserve(2), none = memory.reserve(0);
  ASSERT_TRUE(one && two && none);
  EXPECT_EQ(none->data, nullptr);
  const std::vector<std::uint32_t> first{1}, both{0, 1};
  ASSERT_TRUE(memory.map(*one, first));
  const std::vector<std::byte> text(100, std::byte{0x5a});
  memory.copy_in(one->data + page_size.count - 100, text);
  memory.unmap(*one, first);
  ASSERT_TRUE(memory.map(*two, both));
  std::vector<std::byte> back(100);
  memory.copy_out(back, two->data + 2 * page_size.count - 100);
  EXPECT_EQ(back, text) << "a page holds what its last user left";
  memory.unmap(*two, both);
  memory.release(*one);
  memory.release(*two);
}

inline void expect_conforms(const UnderTest& tested) {
  expect_memory_moves(*tested.memory);
  expect_plans_are_lists(tested);
  expect_streams_end_and_resume(tested);
}

}  // namespace carillon::engine::testing
