// A program of its own: it counts every operator new of the process.

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/library/plain.h"
#include "carillon/engine/cuda/memory/loaded_plan.h"
#include "carillon/engine/cuda/plan/cuda_engine.h"
#include "carillon/engine/cuda/testing/networks.h"
#include "carillon/worker/fake_model.h"

namespace {

thread_local bool is_test_thread = false;
std::atomic<bool> counting{false};
std::atomic<std::uint64_t> elsewhere{0};  // allocations on threads that are not the test's

void* allocate(std::size_t size, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed) && !is_test_thread) ++elsewhere;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

// Not inlined, or GCC takes the pair of new and free() for a mistake.
[[gnu::noinline]] void give_back(void* memory) {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate(size, 1);
}
void* operator new[](std::size_t size) {
  return allocate(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete[](void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  give_back(memory);
}

namespace carillon::worker {
namespace {

using schedule::ActionStatus;

// Counts results by status, and allocates nothing.
struct Counter final : ResultSink {
  void on_result(const ActionResult& result) override {
    ++counts[static_cast<std::size_t>(result.status)];
    ++total;
    total.notify_all();
  }
  void wait(int count) {
    for (int seen = total.load(); seen < count; seen = total.load()) total.wait(seen);
  }
  int count(ActionStatus status) { return counts[static_cast<std::size_t>(status)].load(); }
  std::array<std::atomic<int>, 5> counts{};
  std::atomic<int> total{0};
};

TEST(WorkerAllocation, TheCounterCounts) {
  is_test_thread = true;
  elsewhere = 0;
  counting = true;
  std::thread other([] { ::operator delete(::operator new(8)); });
  other.join();
  counting = false;
  EXPECT_GE(elsewhere.exchange(0), 1U);
}

TEST(WorkerAllocation, ServingAllocatesNothing) {
  is_test_thread = true;
  SteadyClock clock;
  Counter counter;
  auto made = make_worker({.page_cache = page_size * 2,
                           .io_cache = kib(64),
                           .workspace = kib(4),
                           .exec_threads = 1,
                           .queue = 64,
                           .max_models = 4},
                          clock, counter);
  ASSERT_TRUE(made) << made.error().message;
  Worker& worker = **made;
  testing::Gate gate;
  auto slow = std::make_shared<testing::FakeModel>(
      testing::FakeModel::Config{.seed = 0, .width = 8000, .batches = {1}});
  slow->before_run = [&]() -> Result<> {
    gate.pass();
    return {};
  };
  ASSERT_TRUE(worker.add_model({0}, slow));
  ASSERT_TRUE(
      worker.add_model({1}, std::make_shared<testing::FakeModel>(testing::FakeModel::Config{.seed = 1})));
  ASSERT_TRUE(worker.add_model({2}, std::make_shared<testing::FakeModel>(testing::FakeModel::Config{
                                        .seed = 2, .weights = 2 * page_size.count})));
  constexpr Window any_time{TimePoint::min(), TimePoint::max()};
  constexpr Window closed{TimePoint{}, TimePoint{1ns}};
  const testing::Batch big(8000, 1), other_big(8000, 1), batch(3, 4);
  std::uint64_t id = 0;
  int sent = 0;
  const auto send = [&](const auto& command) {
    EXPECT_TRUE(worker.submit(command));
    ++sent;
  };

  counting = true;
  send(LoadCommand{{id++}, {0}, any_time});
  send(LoadCommand{{id++}, {1}, closed});  // too_late
  send(UnloadCommand{{id++}, {1}});
  counter.wait(sent);
  send(big.command({id++}, {0}, any_time));
  gate.wait_reached();
  send(other_big.command({id++}, {0}, any_time));  // no_memory: the I/O cache is full
  counter.wait(sent - 1);
  send(UnloadCommand{{id++}, {0}});          // waits for the EXEC
  send(LoadCommand{{id++}, {0}, any_time});  // and this for that
  gate.open();
  counter.wait(sent);
  send(LoadCommand{{id++}, {2}, any_time});  // no_memory: one page is left
  counter.wait(sent);
  send(batch.command({id++}, {1}, any_time));  // not_loaded
  counter.wait(sent);
  send(LoadCommand{{id++}, {1}, {clock.now() + 1ms, TimePoint::max()}});
  counter.wait(sent);
  for (int i = 0; i < 200; ++i) {
    send(batch.command({id++}, {1}, i % 10 == 0 ? closed : any_time));
    if (i % 8 == 0) counter.wait(sent);  // the I/O cache holds 16
  }
  counter.wait(sent);
  counting = false;

  EXPECT_EQ(elsewhere.exchange(0), 0U);
  EXPECT_EQ(counter.count(ActionStatus::no_memory), 2);
  EXPECT_EQ(counter.count(ActionStatus::not_loaded), 1);
  EXPECT_EQ(counter.count(ActionStatus::too_late), 21);
  EXPECT_EQ(counter.count(ActionStatus::failed), 0);
  EXPECT_EQ(counter.count(ActionStatus::success), sent - 24);
  EXPECT_TRUE(batch.answered(1) && big.answered(1) && other_big.untouched());
}

TEST(WorkerAllocation, NorDoStreamsByClass) {
  is_test_thread = true;
  SteadyClock clock;
  Counter counter;
  auto made = make_worker({.page_cache = page_size * 2,
                           .io_cache = mib(1),
                           .workspace = kib(4),
                           .exec_threads = 2,
                           .queue = 64,
                           .max_models = 4,
                           .classes = device::ClassStreams{.units = 2, .best_effort = 2}},
                          clock, counter);
  ASSERT_TRUE(made) << made.error().message;
  Worker& worker = **made;
  ASSERT_TRUE(
      worker.add_model({0}, std::make_shared<testing::FakeModel>(testing::FakeModel::Config{.width = 3})));
  constexpr Window any_time{TimePoint::min(), TimePoint::max()};
  constexpr Class classes[] = {Class::best_effort, Class::normal, Class::best_effort, Class::real_time};
  ASSERT_TRUE(worker.submit(LoadCommand{{0}, {0}, any_time}));
  counter.wait(1);
  const testing::Batch batch(3, 4);
  int sent = 1;
  counting = true;
  for (std::uint64_t i = 0; i < 400; ++i) {
    InferCommand command = batch.command({1 + i}, {0}, any_time);
    command.cls = classes[i % 4];
    EXPECT_TRUE(worker.submit(command));
    ++sent;
    if (i % 8 == 0) counter.wait(sent);
  }
  counter.wait(sent);
  counting = false;
  EXPECT_EQ(elsewhere.exchange(0), 0U);
  EXPECT_EQ(counter.count(ActionStatus::success), sent);
}

// A run of a CUDA plan, with a driver that answers at once and so allocates nothing itself.
TEST(WorkerAllocation, NorDoesARunOfACudaPlan) {
  namespace cuda = engine::cuda;
  static bool quick;
  static cuda::Driver emulated;
  quick = false;
  emulated = cuda::Emulated::table();
  cuda::Driver table = emulated;
  table.context_push = [](cuda::Context context) {
    return quick ? cuda::done : emulated.context_push(context);
  };
  table.context_pop = [](cuda::Context* out) { return quick ? cuda::done : emulated.context_pop(out); };
  table.copy = [](cuda::Address to, cuda::Address from, std::size_t bytes, cuda::Stream stream) {
    return quick ? cuda::done : emulated.copy(to, from, bytes, stream);
  };
  table.graph_launch = [](cuda::GraphExec graph, cuda::Stream stream) {
    return quick ? cuda::done : emulated.graph_launch(graph, stream);
  };
  table.stream_synchronize = [](cuda::Stream stream) {
    return quick ? cuda::done : emulated.stream_synchronize(stream);
  };
  cuda::Emulated device;
  cuda::know_kernels(device);
  const std::shared_ptr<const cuda::Driver> driver(std::shared_ptr<void>(), &table);
  auto library = cuda::make_plain_library(driver);
  ASSERT_TRUE(library);
  const auto made =
      cuda::make_cuda_engine(driver, 0, "emulated", std::move(*library), {.longest_segment = 3});
  ASSERT_TRUE(made);
  const auto model =
      (*made)->compile(engine::testing::MadeModel(cuda::testing::networks::residual), {.batch_sizes = {2}});
  ASSERT_TRUE(model) << model.error().message;
  const engine::Plan& plan = *(*model)->plan(2);
  ASSERT_GT(plan.kernels(), 1);
  // Nothing lies there: what matters is what is asked of the driver.
  std::byte somewhere{};
  const std::byte* const inputs[] = {&somewhere};
  std::byte* const outputs[] = {&somewhere};
  const auto state = plan.make_state(nullptr);
  const engine::Binding binding{.inputs = inputs,
                                .outputs = outputs,
                                .workspace = &somewhere,
                                .weights = &somewhere,
                                .state = state.get()};
  const engine::KernelRange all{0, plan.kernels()};
  ASSERT_TRUE(plan.run(all, binding, {})) << "the first captures";
  quick = true;
  engine::StopSignal stop;
  is_test_thread = false;
  elsewhere = 0;
  counting = true;
  bool ran = true;
  for (int i = 0; i < 100; ++i) {
    stop.run = static_cast<std::uint64_t>(i) + 1;
    ran = ran && plan.run(all, binding, {}).has_value() && plan.run(all, binding, {}, &stop).has_value();
  }
  counting = false;
  is_test_thread = true;
  quick = false;
  EXPECT_TRUE(ran);
  EXPECT_EQ(elsewhere.exchange(0), 0U);
}

// Launches run after run, behind each other where it may.
class RunAfterRun final : public engine::Stream::Client {
 public:
  RunAfterRun(const engine::Plan& plan, const engine::Binding& binding) : plan_(plan), binding_(binding) {}
  void ask(engine::Stream& of, int runs) {
    stream = &of;
    wanted += runs;
    of.wake();
    while (done < wanted) std::this_thread::yield();
  }
  TimePoint idle() override { return next(); }
  TimePoint committed(std::uint64_t, TimePoint) override { return next(); }
  void completed(const engine::Completion& completion) override {
    failed = failed || !completion.result;
    done = done + 1;
  }

  std::atomic<engine::Stream*> stream{nullptr};
  std::atomic<int> wanted{0}, done{0};
  std::atomic<bool> failed{false};

 private:
  TimePoint next() {
    if (launched_ == wanted) return TimePoint::max();
    stream.load()->launch({.run = static_cast<std::uint64_t>(++launched_),
                           .plan = &plan_,
                           .kernels = {0, plan_.kernels()},
                           .binding = binding_});
    return TimePoint::max();
  }
  const engine::Plan& plan_;
  const engine::Binding& binding_;
  int launched_ = 0;  // the stream's thread's
};

// Likewise of a device's own stream, for runs that are to be stopped soon and for those that are not.
TEST(WorkerAllocation, NorDoesAStreamOfACudaDevice) {
  namespace cuda = engine::cuda;
  static std::atomic<bool> quick;
  static cuda::Driver emulated;
  quick = false;
  emulated = cuda::Emulated::table();
  cuda::Driver table = emulated;
  // A context may be pushed slowly and popped quickly: both are the emulated device's.
  table.copy = [](cuda::Address to, cuda::Address from, std::size_t bytes, cuda::Stream stream) {
    return quick ? cuda::done : emulated.copy(to, from, bytes, stream);
  };
  table.graph_launch = [](cuda::GraphExec graph, cuda::Stream stream) {
    return quick ? cuda::done : emulated.graph_launch(graph, stream);
  };
  table.event_record = [](cuda::Event event, cuda::Stream stream) {
    return quick ? cuda::done : emulated.event_record(event, stream);
  };
  table.event_query = [](cuda::Event event) { return quick ? cuda::done : emulated.event_query(event); };
  cuda::Emulated device;
  cuda::know_kernels(device);
  const std::shared_ptr<const cuda::Driver> driver(std::shared_ptr<void>(), &table);
  auto library = cuda::make_plain_library(driver);
  ASSERT_TRUE(library);
  const auto made = cuda::make_cuda_engine(driver, 0, "emulated", std::move(*library), {});
  ASSERT_TRUE(made);
  for (const Class cls : {Class::normal, Class::best_effort}) {
    SCOPED_TRACE(static_cast<int>(cls));
    engine::CompileOptions wanted{.batch_sizes = {2}};
    if (cls == Class::best_effort) wanted.stop_cost = 0.02;
    const auto model =
        (*made)->compile(engine::testing::MadeModel(cuda::testing::networks::residual), wanted);
    ASSERT_TRUE(model) << model.error().message;
    const engine::Plan& plan = *(*model)->plan(2);
    const auto placed = cuda::LoadedPlan::make(driver, 0, **model, plan);
    ASSERT_TRUE(placed) << placed.error().message;
    for (std::size_t k = 0; k < plan.inputs().size(); ++k) {
      const graph::TensorSpec& spec = plan.inputs()[k];
      const std::vector<std::byte> zeros(graph::TensorType{spec.type, spec.shape}.bytes().count);
      (*placed)->set_input(k, zeros);
    }
    const auto team = (*made)->make_team({.cls = cls});
    ASSERT_TRUE(team);
    const auto state = plan.make_state(team->get());
    const engine::Binding binding = (*placed)->binding(state.get());
    const SteadyClock clock;
    const auto stream =
        (*made)->make_stream({.clock = clock, .name = "stream", .spin = Duration{50'000}, .cls = cls});
    RunAfterRun runs(plan, binding);
    runs.stream = stream.get();
    ASSERT_TRUE(stream->start(runs));
    runs.ask(*stream, 3);  // the first captures
    quick = true;
    elsewhere = 0;
    counting = true;
    runs.ask(*stream, 200);
    counting = false;
    quick = false;
    EXPECT_EQ(elsewhere.exchange(0), 0U);
    EXPECT_FALSE(runs.failed);
    stream->stop();
  }
  EXPECT_THAT(device.violations(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace carillon::worker
