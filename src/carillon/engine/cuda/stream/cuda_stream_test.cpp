#include "carillon/engine/cuda/stream/cuda_stream.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cuda/stream/splits.h"
#include "carillon/engine/cuda/testing/networks.h"
#include "carillon/engine/cuda/testing/on_emulated.h"

namespace carillon::engine::cuda {
namespace {

using ::testing::IsEmpty;
using testing::OnEmulated;
namespace networks = testing::networks;
using namespace std::chrono_literals;

// A model on an emulated device, memory for its runs, and a stream of a class with a lane of its own; who
// launches does as the test says.
class Streaming : public engine::Stream::Client {
 public:
  Streaming(OnEmulated& on, const CudaOptions& options, Class cls, const CompileOptions& how)
      : engine_(std::move(*on.engine(options))),
        model_(std::move(*engine_->compile(engine::testing::MadeModel(networks::encoder), how))) {
    placed_ = std::move(*LoadedPlan::make(
        std::shared_ptr<const Driver>(std::shared_ptr<void>(), &on.driver()), 0, *model_, plan()));
    lane_ = std::move(*engine_->make_team({.cls = cls}));
    state_ = plan().make_state(lane_.get());
    const auto graph = networks::encoder(1);
    const auto inputs = engine::testing::random_inputs(graph, 11);
    expected_ = engine::testing::reference(graph, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) placed_->set_input(i, inputs[i]->bytes());
    stream_ =
        engine_->make_stream({.clock = clock_, .name = "test", .spin = 50us, .cls = cls, .parts = true});
    const auto started = stream_->start(*this);
    EXPECT_TRUE(started);
  }
  ~Streaming() override { stream_->stop(); }

  const Plan& plan() const { return *model_->plan(1); }
  engine::Stream& stream() { return *stream_; }

  // --- For the test's thread
  std::unique_lock<std::recursive_mutex> hold() { return std::unique_lock(mutex_); }
  std::uint64_t launch(int first = 0) {
    const std::lock_guard lock(mutex_);
    wanted_.push_back({.run = ++runs_,
                       .plan = &plan(),
                       .kernels = {first, plan().kernels()},
                       .binding = placed_->binding(state_.get())});
    const std::uint64_t run = runs_;
    stream_->wake();
    return run;
  }
  Completion wait(std::uint64_t run) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.size() >= run; });
    return done_[run - 1];
  }
  // On the stream's thread, with the last run's number, again and again while it runs.
  void at_each_turn(std::function<void(std::uint64_t run)> what) {
    const std::lock_guard lock(mutex_);
    hook_ = std::move(what);
  }
  double apart() {
    double worst = 0;
    for (std::size_t i = 0; i < expected_.size(); ++i)
      worst = std::max(worst, networks::apart(*expected_[i], placed_->output(i)));
    return worst;
  }
  // Of the stream's thread: how the device's time was when that run was completed; how many were launched
  // while another was on the device.
  Duration ended_at(std::uint64_t run) {
    const std::lock_guard lock(mutex_);
    return ended_[run - 1];
  }
  int ahead() {
    const std::lock_guard lock(mutex_);
    return ahead_;
  }
  std::function<Duration()> device_time = [] { return Duration{0}; };

 private:
  TimePoint idle() override {
    next(false);
    return TimePoint::max();
  }
  TimePoint committed(std::uint64_t, TimePoint) override {
    next(true);
    return TimePoint::max();
  }
  void next(bool behind) {
    const std::lock_guard lock(mutex_);
    if (wanted_.empty()) return;
    in_client_ = true;
    stream_->launch(wanted_.front());
    in_client_ = false;
    ++launched_;
    wanted_.erase(wanted_.begin());
    ahead_ += behind ? 1 : 0;
  }
  void completed(const Completion& completion) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(completion.run, done_.size() + 1) << "in order";
    done_.push_back(completion);
    ended_.push_back(device_time());
    changed_.notify_all();
  }

  // The stream asks for the time in each of its turns.
  class Asked final : public Clock {
   public:
    explicit Asked(Streaming& by) : by_(by) {}
    TimePoint now() const override {
      by_.asked();
      return steady_.now();
    }

   private:
    Streaming& by_;
    SteadyClock steady_;
  };
  void asked() {
    const std::unique_lock lock(mutex_, std::try_to_lock);  // others may ask, too
    if (lock && hook_ && !in_client_ && launched_ > done_.size()) hook_(launched_);
  }

  Asked clock_{*this};
  std::function<void(std::uint64_t)> hook_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const CompiledModel> model_;
  std::unique_ptr<LoadedPlan> placed_;
  std::unique_ptr<Team> lane_;
  std::unique_ptr<RunState> state_;
  engine::testing::Buffers expected_;

  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Launch> wanted_;
  std::vector<Completion> done_;
  std::vector<Duration> ended_;
  std::uint64_t runs_ = 0;
  std::uint64_t launched_ = 0;  // with the stream
  int ahead_ = 0;
  bool in_client_ = false;
  std::unique_ptr<engine::Stream> stream_;
};

// Whoever evicts has the device again after the bound, whatever is left of the run; and the run goes on where
// it stopped. Kernels take 20 us.
void expect_no_more_than_the_bound(bool flag) {
  OnEmulated on({.memory = gib(1).count, .bytes_per_second = 1e18, .copy = Duration{0}, .kernel = 20us});
  {
    constexpr Duration bound = 50us;
    Streaming s(on, {.bound = bound, .flag = flag}, Class::best_effort,
                {.batch_sizes = {1}, .stop_cost = 0.02});
    s.device_time = [&] { return on.device().now(); };
    ASSERT_GT(s.plan().kernels(), 8) << "or the bound is none";
    Random random(3);
    int evicted = 0;
    Duration most{0};
    std::uint64_t run = 0;
    for (int trial = 0; trial < 60; ++trial) {
      for (int first = 0; first < s.plan().kernels();) {
        const Duration until = on.device().now() + Duration{random.below(400'000)};
        Duration told{0};
        s.at_each_turn([&](std::uint64_t running) {
          if (told > Duration{0} || on.device().now() < until) return;
          told = on.device().now();
          s.stream().evict(running);
        });
        run = s.launch(first);
        const Completion done = s.wait(run);
        ASSERT_TRUE(done.result) << done.result.error().message;
        ASSERT_GE(done.next, first);
        if (done.next < s.plan().kernels()) {
          ++evicted;
          most = std::max(most, s.ended_at(run) - told);
        }
        first = done.next;
      }
      ASSERT_LE(s.apart(), 1e-4) << "trial " << trial;
    }
    EXPECT_GT(evicted, 15);
    EXPECT_LE(most, bound + 10us);  // the host's own time: what it enqueues and asks
  }
  EXPECT_THAT(on.device().violations(), IsEmpty());
  EXPECT_EQ(on.device().left_behind(), "");
}

TEST(CudaStream, NoMoreIsWithTheDeviceThanTheBound) {
  expect_no_more_than_the_bound(false);
}
TEST(CudaStream, NoMoreIsWithTheDeviceThanTheBoundWithAFlag) {
  expect_no_more_than_the_bound(true);
}

TEST(CudaStream, WhatIsNextIsBehindAWholePlan) {
  OnEmulated on({.memory = gib(1).count});
  {
    Streaming s(on, {}, Class::normal, {.batch_sizes = {1}});
    for (int i = 0; i < 3; ++i) (void)s.wait(s.launch());  // one that was captured, and one that was timed
    std::uint64_t last = 0;
    {
      const auto held = s.hold();  // all of them are there before the first begins
      for (int i = 0; i < 50; ++i) last = s.launch();
    }
    for (std::uint64_t run = 1; run <= last; ++run) {
      const Completion done = s.wait(run);
      ASSERT_TRUE(done.result) << done.result.error().message;
      EXPECT_EQ(done.next, s.plan().kernels());
    }
    EXPECT_EQ(s.ahead(), 49);
    EXPECT_LE(s.apart(), 1e-4);
  }
  EXPECT_THAT(on.device().violations(), IsEmpty());
}

TEST(CudaStream, ALostDeviceIsToldOfOnceARun) {
  std::uint64_t made = 0;  // pieces of work until the model is there
  {
    OnEmulated on({.memory = gib(1).count});
    const Streaming s(on, {}, Class::normal, {.batch_sizes = {1}});
    made = on.device().launched();
  }
  for (std::uint64_t after = 1; after < 60; after += 3) {
    OnEmulated on({.memory = gib(1).count, .lose_after = made + after});
    Streaming s(on, {}, Class::normal, {.batch_sizes = {1}});
    std::uint64_t last = 0;
    for (int i = 0; i < 20; ++i) last = s.launch();
    bool lost = false;
    for (std::uint64_t run = 1; run <= last; ++run) {
      const Completion done = s.wait(run);
      lost = lost || !done.result;
      if (!done.result) {
        EXPECT_EQ(done.result.error().code, ErrorCode::unavailable);
      }
      EXPECT_TRUE(!lost || !done.result) << "nothing succeeds after it";
    }
    EXPECT_TRUE(lost);
  }
}

TEST(CudaSplits, PairsAreEightProcessorsApart) {
  OnEmulated on;
  const Driver& driver = on.driver();
  {
    const InPrimaryContext current(driver, 0);
    const Splits splits(driver, 0);
    EXPECT_EQ(splits.groups(), 15U) << "as an H100's driver has it: 132 = 15 * 8 + 12";
    EXPECT_EQ(splits.count(), 14);
    EXPECT_EQ(splits.processors({}), 132U);
    for (int pair = 1; pair <= splits.count(); ++pair) {
      EXPECT_EQ(splits.processors({pair, false}), 8U * static_cast<unsigned>(pair));
      EXPECT_EQ(splits.processors({pair, true}), 132U - 8U * static_cast<unsigned>(pair));
    }
    EXPECT_EQ(splits.context({15, false}), nullptr);
    EXPECT_EQ(splits.nearest(0.3), 5);
    EXPECT_EQ(splits.nearest(0.0), 1);
    EXPECT_EQ(splits.nearest(1.0), 14);
  }
  EXPECT_EQ(on.device().left_behind(), "");
}

TEST(CudaSplits, WhatADriverRefusesIsToldAndTheDeviceStaysWhole) {
  const struct {
    void (*refuse)(Driver&);
    const char* why;
  } rows[] = {
      {[](Driver& d) { d.split_processors = [](auto...) { return not_supported; }; },
       "the driver names no groups of its processors"},
      {[](Driver& d) { d.green_create = [](auto...) { return not_supported; }; },
       "the driver gives no green context"},
      {[](Driver& d) { d.green_stream = [](auto...) { return not_supported; }; },
       "a stream of a green context: CUDA_ERROR_NOT_SUPPORTED (801)"},
      {[](Driver& d) { d.event_record = [](auto...) { return invalid_handle; }; },
       "an event in a green context's stream: CUDA_ERROR_INVALID_HANDLE (400)"},
      {[](Driver& d) { d.graph_launch = [](auto...) { return invalid_context; }; },
       "a graph's launch in a green context's stream: CUDA_ERROR_INVALID_CONTEXT (201)"},
      {[](Driver&) {}, ""},
  };
  for (const auto& row : rows) {
    OnEmulated on;
    Driver other = on.driver();
    row.refuse(other);
    const auto driver = std::make_shared<const Driver>(other);
    auto library = make_plain_library(driver, 0);
    ASSERT_TRUE(library);
    const auto notice = std::make_shared<std::string>();
    const auto engine = make_cuda_engine(driver, 0, "emulated", std::move(*library), {.notice = notice});
    ASSERT_TRUE(engine) << engine.error().message;
    const std::string why = row.why;
    EXPECT_EQ(*notice,
              why.empty() ? why : "real-time runs have all of the device, as it is not divided: " + why);
  }
}

TEST(CudaSplits, SharesThatDoNotMeetHaveNoProcessorInCommon) {
  OnEmulated on;
  const InPrimaryContext current(on.driver(), 0);
  unsigned sum = 0;
  const double edges[] = {0, 0.2, 0.5, 0.6, 1};
  for (std::size_t i = 0; i + 1 < std::size(edges); ++i) {
    const Splits splits(on.driver(), 0, {.from = edges[i], .to = edges[i + 1]});
    EXPECT_NE(splits.context({}), nullptr);
    EXPECT_EQ(splits.count(), 0) << "none within a share";
    EXPECT_EQ(splits.processors({}) % 8, 0U);
    sum += splits.processors({});
  }
  EXPECT_EQ(sum, 8U * 15) << "all but the twelve that are no group";
  const Splits little(on.driver(), 0, {.from = 0.5, .to = 0.52});
  EXPECT_EQ(little.context({}), nullptr) << "less than a group";
  EXPECT_EQ(little.groups(), 15U);
  const auto refused = on.engine({.share = {.from = 0.5, .to = 0.52}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              ::testing::HasSubstr("15 groups of processors to give, and 2% of them"));
}

TEST(CudaSplits, AnEngineOfAShareRunsInIt) {
  OnEmulated on;
  for (const double share : {0.25, 0.5}) {
    const auto engine = on.engine({.share = {.from = 0, .to = share}});
    ASSERT_TRUE(engine);
    const auto model =
        (*engine)->compile(engine::testing::MadeModel(networks::residual), {.batch_sizes = {1}});
    ASSERT_TRUE(model);
    const auto graph = networks::residual(1);
    const auto inputs = engine::testing::random_inputs(graph, 11);
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& input : inputs) bytes.emplace_back(input->bytes());
    const auto got = on.run(**model, *(*model)->plan(1), bytes, false);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_GT(on.device().busy(static_cast<unsigned>(share * 128)), Duration{0}) << "in that many processors";
  }
  const OnEmulated small({.processors = 8});
  EXPECT_FALSE(small.engine({.share = {.from = 0, .to = 0.5}})) << "it cannot be divided";
}

TEST(CudaSplits, ADeviceThatCannotBeDividedIsWhole) {
  OnEmulated on({.processors = 8});
  const InPrimaryContext current(on.driver(), 0);
  const Splits splits(on.driver(), 0);
  EXPECT_EQ(splits.count(), 0);
  EXPECT_EQ(splits.nearest(0.5), 0);
}

}  // namespace
}  // namespace carillon::engine::cuda
