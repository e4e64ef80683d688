// The simulation and the controller's core, with the same clients and the same devices, tell a scheduler the
// same and carry out the same: what holds in one holds in the other. Worlds are drawn by a seed; the
// simulation runs first, and the core is given what happened there from outside.
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/testing/seeds.h"
#include "carillon/controller/core.h"
#include "carillon/device/virtual_device.h"
#include "carillon/schedule/log/lines.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/test_name.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/fault_case.h"

namespace carillon::simulate {
namespace {

using schedule::ActionStatus;

// Writes down what the policy hears and says.
class Listening final : public schedule::Scheduler {
 public:
  Listening(std::unique_ptr<schedule::Scheduler> policy, std::vector<std::string>& said)
      : policy_(std::move(policy)), said_(said) {}
  std::string_view name() const override { return policy_->name(); }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    const std::size_t before = out.size();
    const TimePoint wake = policy_->decide(event, now, out);
    std::string line = std::to_string(now.time_since_epoch().count()) + " ";
    schedule::Event told = event;
    if (auto* change = std::get_if<schedule::DeviceChanged>(&told); change != nullptr && !change->alive)
      change->pages = 0;  // nobody asks
    schedule::log::append(line, told);
    for (std::size_t i = before; i < out.size(); ++i) line += "; " + schedule::log::to_line(out[i]);
    said_.push_back(line + "; w " + std::to_string(wake.time_since_epoch().count()));
    return wake;
  }

 private:
  std::unique_ptr<schedule::Scheduler> policy_;
  std::vector<std::string>& said_;
};

// What happened from outside, in the simulation.
struct Happened final : Observer {
  struct Step {
    TimePoint at;
    enum class Kind : std::uint8_t { sent, cancelled, device } kind{};
    std::uint64_t id = 0;  // of the request, or the device
    bool alive = false;
  };
  std::vector<Step> steps;
  std::vector<Request> requests;
  std::vector<Duration> alone;
  std::map<ActionId, ActionStatus> ended;
  std::set<ActionId> heard;
  std::set<DeviceId> given_up;  // and not yet seen to go

  void on_sent(const Request& request, Duration own, TimePoint at) override {
    steps.push_back({at, Step::Kind::sent, request.id.value});
    requests.push_back(request);
    alone.push_back(own);
  }
  void on_outcome(const Request& request, Outcome outcome, TimePoint at) override {
    if (outcome == Outcome::cancelled) steps.push_back({at, Step::Kind::cancelled, request.id.value});
  }
  void on_device(DeviceId device, bool alive, Duration, TimePoint at) override {
    if (at > TimePoint{} && (alive || given_up.erase(device) == 0))
      steps.push_back({at, Step::Kind::device, device.value, alive});
  }
  void on_end(ActionId id, DeviceId, ActionStatus status, TimePoint) override { ended[id] = status; }
  void on_decision(const schedule::Event& event, TimePoint, const schedule::Actions& actions,
                   TimePoint) override {
    if (const auto* done = std::get_if<schedule::ActionDone>(&event)) heard.insert(done->id);
    for (const schedule::Action& action : actions)
      if (const auto* up = std::get_if<schedule::GiveUp>(&action)) given_up.insert(up->device);
  }
};

class Replayed;

// A worker in virtual time. A call's length is its request, by which its time is known.
class ReplayedWorker final : public worker::Worker, public device::VirtualDevice::Host {
 public:
  ReplayedWorker(Replayed& world, DeviceId id) : world_(world), id_(id) { restart(); }

  Result<> add_model(ModelId, std::shared_ptr<const engine::CompiledModel>) override { return {}; }
  Result<> has_room(const engine::CompiledModel&) const override { return {}; }
  bool submit(const worker::LoadCommand& c) override;
  bool submit(const worker::UnloadCommand& c) override;
  bool submit(const worker::InferCommand& c) override;
  void stop(ActionId id) override;
  void preempt(ActionId id, TimePoint order) override;
  std::uint32_t retire() override {
    restart();
    return ++life;
  }
  void probe() override {}
  bool busy() const override { return false; }
  std::uint64_t total_pages() const override;
  std::uint64_t free_pages() const override { return 0; }
  Result<std::vector<Duration>> measure_exec(ModelId, int, int, std::int64_t, std::string*) override {
    return {};
  }
  Result<std::vector<Duration>> measure_load(ModelId, int) override { return {}; }
  const std::vector<std::string>& notes() const override { return notes_; }

  std::uint32_t life = 0;

 private:
  void restart();
  device::Work work(ActionId id, Duration time) const;

  void plan(TimePoint at, std::uint64_t what) override;
  Duration begins(std::uint64_t, Duration planned, bool) override { return planned; }
  void ends(std::uint64_t, ActionStatus) override {}
  void done(const device::Done& done) override;

  Replayed& world_;
  DeviceId id_;
  std::unique_ptr<device::VirtualDevice> core_;
  std::vector<std::string> notes_;
};

// The core, its workers, and the calendar around them. Of one instant: what devices do, then what clients do,
// then the scheduler's wake, each in the order of planning, as in the simulation.
class Replayed {
 public:
  Replayed(const workload::Scenario& scenario, const Happened& happened,
           std::unique_ptr<schedule::Scheduler> policy)
      : scenario_(scenario),
        happened_(happened),
        infos_(model_infos(scenario)),
        core_(std::move(policy), {.max_open = 1 << 20}) {
    for (int i = 0; i < scenario.devices; ++i) {
      workers_.push_back(std::make_unique<ReplayedWorker>(*this, DeviceId{static_cast<std::uint32_t>(i)}));
      core_.add_device(*workers_.back());
    }
    for (const schedule::ModelInfo& info : infos_) {
      controller::ServedModel served;
      served.info = info;
      core_.add_model(std::move(served));
    }
    for (const Happened::Step& step : happened.steps)
      plan(step.at, step.kind == Happened::Step::Kind::device ? 0 : 1, [this, step] { happens(step); });
  }

  // Until as much was said.
  void run(const std::vector<std::string>& said, std::size_t until) {
    core_.start(now_);
    while (said.size() < until) {
      const TimePoint wake = core_.wake_at();
      if (calendar_.empty() && wake == TimePoint::max()) break;
      if (calendar_.empty() || wake < std::get<0>(calendar_.begin()->first)) {
        now_ = std::max(now_, wake);
        core_.wake(now_);
        continue;
      }
      const auto next = calendar_.extract(calendar_.begin());
      now_ = std::get<0>(next.key());
      next.mapped()();
    }
    core_.stop(now_);
  }

  void plan(TimePoint at, int rank, std::function<void()> what) {
    calendar_[{std::max(at, now_), rank, planned_++}] = std::move(what);
  }
  // Results that come while the core is at work are heard after it.
  void result(const worker::ActionResult& result) {
    if (!happened_.heard.contains(result.id)) return;  // lost on its way
    const auto hear = [this, result] { core_.on_result(result, now_); };
    if (sending_)
      plan(now_, 0, hear);
    else
      hear();
  }
  // The core sends something to a device.
  template <typename Send>
  void sends(Send&& send) {
    const bool outer = std::exchange(sending_, true);
    send();
    sending_ = outer;
  }

  TimePoint now() const { return now_; }
  const workload::Scenario& scenario() const { return scenario_; }
  const Happened& happened() const { return happened_; }
  const std::vector<schedule::ModelInfo>& infos() const { return infos_; }

 private:
  void happens(const Happened::Step& step) {
    const DeviceId device{static_cast<std::uint32_t>(step.id)};
    switch (step.kind) {
      case Happened::Step::Kind::sent: {
        const Request& request = happened_.requests[step.id];
        auto call = std::make_unique<controller::InferCall>();
        call->model = request.model;
        call->length = static_cast<std::int64_t>(step.id);
        call->arrival = now_;
        call->deadline = request.deadline;
        call->class_given = true;
        call->cls = request.cls;
        call->priority = request.priority;
        call->size = std::make_shared<controller::Size>(controller::Size{.effort = request.effort});
        core_.submit(
            step.id, std::move(call), [](const controller::InferAnswer&) {}, now_);
        break;
      }
      case Happened::Step::Kind::cancelled:
        core_.cancel(step.id, now_);
        break;
      case Happened::Step::Kind::device:
        if (step.alive) {
          core_.on_probe({.found = {}, .life = workers_[step.id]->life, .device = device}, now_);
          break;
        }
        worker::ActionResult last{.status = ActionStatus::failed, .device_lost = true};
        last.life = workers_[step.id]->life;
        last.device = device;
        core_.on_result(last, now_);
        break;
    }
  }

  const workload::Scenario& scenario_;
  const Happened& happened_;
  std::vector<schedule::ModelInfo> infos_;
  TimePoint now_{};
  std::map<std::tuple<TimePoint, int, std::uint64_t>, std::function<void()>> calendar_;
  std::uint64_t planned_ = 0;
  bool sending_ = false;
  std::vector<std::unique_ptr<ReplayedWorker>> workers_;
  controller::Core core_;
};

std::uint64_t ReplayedWorker::total_pages() const {
  const auto& memory = world_.scenario().memory;
  return memory ? memory->count / page_size.count : std::uint64_t{1} << 40;
}

void ReplayedWorker::restart() {
  const bool classes = has_classes(world_.scenario());
  core_ = std::make_unique<device::VirtualDevice>(
      device::Limits{.pages = world_.scenario().memory ? total_pages() : 0,
                     .queue = std::size_t{1} << 20,
                     .reserved = 8,
                     .streams = classes ? device::ClassStreams{}.count() : std::uint8_t{1},
                     .places = classes ? device::ClassStreams{}.places() : std::vector<device::StreamPlace>{},
                     .gathers = 0,
                     .scatters = 0},
      Duration{0}, *this, classes ? std::optional(Options{}.stop_latency) : std::nullopt);
  for (const schedule::ModelInfo& info : world_.infos()) core_->add_model(info.id, info.pages);
}

// It ends there as it did here, where that was chance.
device::Work ReplayedWorker::work(ActionId id, Duration time) const {
  device::Work work{.tag = id.value, .time = time};
  const auto ended = world_.happened().ended.find(id);
  if (ended == world_.happened().ended.end()) return work;
  if (ended->second == ActionStatus::failed || ended->second == ActionStatus::no_memory)
    work.outcome = ended->second;
  return work;
}

bool ReplayedWorker::submit(const worker::LoadCommand& c) {
  device::Work load = work(c.id, world_.infos()[c.model.index()].load);
  if (load.outcome == ActionStatus::no_memory) load.outcome = ActionStatus::success;  // the device's to say
  world_.sends([&] { core_->submit(device::LoadAction{c.id, c.model, c.window}, load, world_.now()); });
  return true;
}

bool ReplayedWorker::submit(const worker::UnloadCommand& c) {
  world_.sends([&] { core_->submit(device::UnloadAction{c.id, c.model}, c.id.value, world_.now()); });
  return true;
}

bool ReplayedWorker::submit(const worker::InferCommand& c) {
  Duration longest{0};
  for (int b = 0; b < c.batch; ++b) {
    const auto request = static_cast<std::size_t>(c.rows[static_cast<std::size_t>(b)].length);
    longest = std::max(longest, world_.happened().alone[request]);
  }
  const auto& latency = world_.scenario().models[c.model.index()].latency;
  world_.sends([&] {
    core_->submit(
        device::InferAction{.id = c.id,
                            .model = c.model,
                            .window = c.window,
                            .cls = c.cls,
                            .stream = has_classes(world_.scenario()) ? device::ClassStreams{}.stream_of(c.cls)
                                                                     : std::uint8_t{0}},
        work(c.id, latency.batch_time(c.batch, longest)), world_.now());
  });
  return true;
}

void ReplayedWorker::stop(ActionId id) {
  world_.sends([&] { core_->evict(id, device::After::drop, world_.now(), world_.now()); });
}

void ReplayedWorker::preempt(ActionId id, TimePoint order) {
  world_.sends([&] { core_->evict(id, device::After::resume, order, world_.now()); });
}

void ReplayedWorker::plan(TimePoint at, std::uint64_t what) {
  world_.plan(at, 0, [this, what, mine = life] {
    if (mine == life) core_->event(what, world_.now());
  });
}

void ReplayedWorker::done(const device::Done& done) {
  worker::ActionResult result{
      .id = {done.tag}, .status = done.status, .times = {}, .error = {}, .life = life, .device = id_};
  result.times.received = result.times.input_start = result.times.input_end = result.times.exec_start =
      done.start;
  result.times.exec_end = result.times.output_start = result.times.output_end = done.end;
  result.times.paused = done.end - done.start - done.busy;
  world_.result(result);
}

// A world of the seed, without what the core has no part in: ways to and from devices, decisions that take
// time, clocks that are off, reports that come twice or late, and executions whose time is drawn as they
// begin.
testing::FaultCase world_of(std::uint64_t seed) {
  testing::FaultCase c = seed % 2 == 1 ? testing::class_case(seed) : testing::fault_case(seed);
  c.scenario.network_delay = c.decision_time = c.faults.clock_offset = Duration{0};
  c.faults.speed = 1;
  c.faults.noise = c.faults.hiccups = c.faults.stalls_per_s = c.faults.slowdowns_per_s = 0;
  c.faults.late_reports = c.faults.doubled_reports = 0;
  if (seed % 4 < 2)
    for (auto& model : c.scenario.models) model.latency.sized = !model.latency.modes.empty();
  return c;
}

// Of all seeds, each test takes those of one policy. CARILLON_AGREEMENT_SEEDS=FIRST..LAST asks for others.
class Agreement : public ::testing::TestWithParam<std::string> {};

TEST_P(Agreement, TheSimulationAndTheControllerTellASchedulerTheSame) {
  const auto [first, last] = carillon::testing::seeds_from("CARILLON_AGREEMENT_SEEDS", {0, 99});
  std::size_t decisions = 0, deaths = 0, cancelled = 0, given_up = 0, profiled = 0, preempted = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const testing::FaultCase c = world_of(seed);
    schedule::Environment told = environment(c.scenario);
    told.preemption = seed % 2 == 1 ? schedule::Preemption::deadline : schedule::Preemption::none;
    const auto policy = [&](std::vector<std::string>& said) {
      return std::make_unique<Listening>(*schedule::make_scheduler(GetParam(), told), said);
    };
    std::vector<std::string> simulated, controlled;
    Happened happened;
    Options options;
    options.faults = c.faults;
    options.observer = &happened;
    run(c.scenario, *policy(simulated), options);
    Replayed(c.scenario, happened, policy(controlled)).run(controlled, simulated.size());
    const auto [one, other] = std::ranges::mismatch(simulated, controlled);
    ASSERT_TRUE(one == simulated.end() && other == controlled.end())
        << "seed " << seed << ", decision " << one - simulated.begin() << " of " << simulated.size()
        << "\nsimulated:  " << (one == simulated.end() ? "-" : *one)
        << "\ncontrolled: " << (other == controlled.end() ? "-" : *other);
    decisions += simulated.size();
    for (const Happened::Step& step : happened.steps) {
      deaths += step.kind == Happened::Step::Kind::device && !step.alive ? 1 : 0;
      cancelled += step.kind == Happened::Step::Kind::cancelled ? 1 : 0;
    }
    for (const std::string& line : simulated) {
      given_up += line.contains("; give_up ") ? 1 : 0;
      profiled += line.contains("; profile ") ? 1 : 0;
      preempted += line.contains("; preempt ") ? 1 : 0;
    }
  }
  EXPECT_GT(decisions, 50'000U);
  EXPECT_GT(deaths, 20U);
  EXPECT_GT(cancelled, 500U);
  EXPECT_GT(given_up, 5U);
  EXPECT_EQ(profiled > 0, GetParam() == "orloj");
  EXPECT_EQ(preempted > 0, schedule::takes_preemption(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All, Agreement, ::testing::ValuesIn(schedule::scheduler_names()),
                         [](const auto& tested) { return schedule::testing::test_name(tested.param); });

}  // namespace
}  // namespace carillon::simulate
