#include "carillon/controller/workloads.h"

#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

// Holds calls until the test answers them.
class HeldService final : public Service {
 public:
  HeldService(std::string model, std::uint32_t id) {
    view_.name = std::move(model);
    view_.id = {id};
    view_.ready = true;
  }
  bool ready() const override { return is_ready; }
  std::vector<ModelView> models() const override { return {view_}; }
  ModelCounts model_counts() const override { return {.ready = 1, .broken = 0, .a_broken_one = {}}; }
  Result<std::shared_ptr<const ModelView>> find(std::string_view, std::string_view) const override {
    return fail(ErrorCode::internal, "never asked");
  }
  TimePoint now() const override { return {}; }
  std::uint64_t submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) override {
    calls.push_back(std::move(call));
    handlers.push_back(std::move(on_answer));
    return 100 + calls.size();
  }
  void cancel(std::uint64_t ticket) override { cancelled.push_back(ticket); }
  ServerStatistics statistics() const override {
    ServerStatistics out;
    out.models.emplace_back();
    out.models[0].name = view_.name;
    out.models[0].on_time = calls.size();
    out.models[0].batches = {{static_cast<int>(view_.id.value) + 1, {1, 2ms}, {1, 1ms}, {1, 3ms}}};
    out.models[0].held_by = {DeviceId{0}};
    out.models[0].reasons[0] = 2;
    out.devices = {{.name = "cpu"}};
    out.pages_total = 5;
    return out;
  }
  std::vector<TimelinePart> timelines() const override { return {{.timeline = &timeline}}; }
  void answer(std::size_t i, TimePoint finished, Result<> status = {}) {
    handlers[i]({std::move(status), std::move(calls[i]), finished, std::nullopt});
  }

  DeviceTimeline timeline{4};
  bool is_ready = true;
  std::vector<std::unique_ptr<InferCall>> calls;
  std::vector<AnswerHandler> handlers;
  std::vector<std::uint64_t> cancelled;

 private:
  ModelView view_;
};

struct WorkloadsTest : ::testing::Test {
  WorkloadsTest() {
    add("a", 0, false);
    add("b", 3, true);
  }
  void add(const std::string& model, std::uint32_t id, bool with_standby) {
    auto first = std::make_unique<HeldService>(model, id);
    auto second = with_standby ? std::make_unique<HeldService>(model, id + 1) : nullptr;
    serving.push_back(first.get());
    standby.push_back(second.get());
    workloads.add({.id = "w-" + model,
                   .share_pct = 40,
                   .standby_share_pct = with_standby ? 50.0 : 0.0,
                   .watch = {.slo = 10ms, .least = 5}},
                  std::move(first), std::move(second));
  }
  std::uint64_t submit(const std::string& model, TimePoint arrival, TimePoint own = TimePoint::max()) {
    auto call = std::make_unique<InferCall>();
    call->model = (*workloads.find(model, ""))->id;
    call->arrival = arrival;
    call->deadline = own;
    return workloads.submit(std::move(call), [this](const InferAnswer& answer) {
      if (answer.call != nullptr) answered.push_back(answer.call->model);
    });
  }
  // `count` requests of b that take `latency` each, answered now.
  void run(int count, Duration latency) {
    for (int i = 0; i < count; ++i) {
      HeldService& service = workloads.on_standby(1) ? *standby[1] : *serving[1];
      submit("b", clock.now() - latency);
      service.answer(service.calls.size() - 1, clock.now());
    }
  }

  ManualClock clock;
  std::vector<std::string> takeovers;
  Workloads workloads{clock, [this](const WorkloadSpec& spec) { takeovers.push_back(spec.id); }};
  std::vector<HeldService*> serving, standby;
  std::vector<ModelId> answered;
};

TEST_F(WorkloadsTest, RequestsGoToTheServiceOfTheirModel) {
  EXPECT_TRUE(workloads.ready());
  EXPECT_EQ(workloads.models().size(), 2U);
  const std::uint64_t to_a = submit("a", {}), to_b = submit("b", {});
  ASSERT_EQ(serving[0]->calls.size(), 1U);
  ASSERT_EQ(serving[1]->calls.size(), 1U);
  EXPECT_EQ(serving[1]->calls[0]->model, ModelId{3}) << "the id that the service knows";
  serving[1]->answer(0, {});
  EXPECT_EQ(answered, std::vector<ModelId>{(*workloads.find("b", ""))->id}) << "the id that we gave";
  workloads.cancel(to_a);
  workloads.cancel(to_b);
  workloads.cancel(~std::uint64_t{0});
  EXPECT_EQ(serving[0]->cancelled, std::vector<std::uint64_t>{101});
  EXPECT_EQ(serving[1]->cancelled, std::vector<std::uint64_t>{101});
  standby[1]->is_ready = false;
  EXPECT_FALSE(workloads.ready());
}

TEST_F(WorkloadsTest, ServicesAreDevicesWithTimelinesOfTheirOwn) {
  const ServerStatistics told = workloads.statistics();
  ASSERT_EQ(told.devices.size(), 3U);
  EXPECT_EQ(told.devices[0].name, "w-a: 40% of the device");
  EXPECT_EQ(told.devices[2].name, "w-b, standby: 50% of the device");
  ASSERT_EQ(told.models.size(), 2U);
  EXPECT_EQ(told.models[0].held_by, (std::vector<DeviceId>{{0}}));
  EXPECT_EQ(told.models[1].held_by, (std::vector<DeviceId>{{1}, {2}}));
  EXPECT_EQ(told.models[1].reasons[0], 4U) << "of both";
  const std::vector<TimelinePart> parts = workloads.timelines();
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].timeline, &serving[0]->timeline);
  EXPECT_EQ(parts[2].timeline, &standby[1]->timeline);
  EXPECT_EQ(parts[1].first_device, 1U);
  EXPECT_EQ(parts[2].first_device, 2U);
  EXPECT_EQ(parts[1].first_model, 1U);
  EXPECT_EQ(parts[2].first_model, 1U);
}

TEST_F(WorkloadsTest, TheStandbyTakesOverAfterASecondAndAHalf) {
  run(1, 15ms);  // the watch begins
  for (int step = 0; step < 15; ++step) {
    EXPECT_FALSE(workloads.on_standby(1)) << step;
    clock.advance(100ms);
    run(10, 15ms);
  }
  EXPECT_TRUE(workloads.on_standby(1));
  EXPECT_EQ(takeovers, std::vector<std::string>{"w-b"});
  const std::size_t before = serving[1]->calls.size();
  const std::uint64_t ticket = submit("b", clock.now());
  EXPECT_EQ(serving[1]->calls.size(), before);
  EXPECT_EQ(standby[1]->calls.back()->model, ModelId{4});
  workloads.cancel(ticket);
  EXPECT_EQ(standby[1]->cancelled.size(), 1U);
  // Statistics are those of both.
  const ServerStatistics told = workloads.statistics();
  ASSERT_EQ(told.models.size(), 2U);
  EXPECT_EQ(told.models[0].share_pct, 40);
  EXPECT_FALSE(told.models[0].on_standby);
  EXPECT_EQ(told.models[1].share_pct, 50);
  EXPECT_TRUE(told.models[1].on_standby);
  EXPECT_EQ(told.models[1].on_time, serving[1]->calls.size() + standby[1]->calls.size());
  EXPECT_EQ(told.models[1].batches.size(), 2U);
  EXPECT_EQ(told.pages_total, 15U);
}

TEST_F(WorkloadsTest, RefusalsCountAsLateAndCancellationsNotAtAll) {
  run(1, 1ms);
  clock.advance(1s);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 10; ++i) {
      submit("b", clock.now());
      serving[1]->answer(serving[1]->calls.size() - 1, clock.now(), fail(ErrorCode::cancelled, "gone"));
    }
    EXPECT_FALSE(workloads.on_standby(1));
    for (int i = 0; i < 10; ++i) {
      submit("b", clock.now());
      serving[1]->answer(serving[1]->calls.size() - 1, clock.now(),
                         fail(ErrorCode::deadline_exceeded, "late"));
    }
    clock.advance(500ms);
  }
  run(1, 1ms);
  EXPECT_TRUE(workloads.on_standby(1));
}

// What clients may ask for beside the SLO says nothing about the share.
TEST_F(WorkloadsTest, RequestsWithOtherDeadlinesDoNotBreakTheSlo) {
  run(1, 1ms);
  for (int half = 0; half < 6; ++half) {
    clock.advance(500ms);
    for (int i = 0; i < 20; ++i) {
      submit("b", clock.now(), clock.now() + 1ms);
      serving[1]->answer(serving[1]->calls.size() - 1, clock.now(),
                         fail(ErrorCode::deadline_exceeded, "late"));
      submit("b", clock.now());
      serving[1]->answer(serving[1]->calls.size() - 1, clock.now(),
                         fail(ErrorCode::invalid_argument, "wrong"));
      submit("b", clock.now());
      serving[1]->answer(serving[1]->calls.size() - 1, clock.now(), fail(ErrorCode::unavailable, "stopping"));
      submit("b", clock.now() - 50ms, clock.now());  // it had until now
      serving[1]->answer(serving[1]->calls.size() - 1, clock.now());
    }
  }
  EXPECT_FALSE(workloads.on_standby(1));
}

TEST_F(WorkloadsTest, WithoutAStandbyNothingIsWatched) {
  for (int second = 0; second < 5; ++second) {
    for (int i = 0; i < 10; ++i) {
      submit("a", clock.now() - 50ms);
      serving[0]->answer(serving[0]->calls.size() - 1, clock.now());
    }
    clock.advance(1s);
  }
  EXPECT_FALSE(workloads.on_standby(0));
  EXPECT_TRUE(takeovers.empty());
}

}  // namespace
}  // namespace carillon::controller
