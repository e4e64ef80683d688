// The controller's core, every policy and the device core together, in virtual time: clients that come and
// go, devices that fail and hang, reports that come twice, and runs that are ended between kernels wherever
// it may hurt, against what a client is promised.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/base/testing/seeds.h"
#include "carillon/controller/core.h"
#include "carillon/controller/testing/audit.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/controller/testing/virtual_worker.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/test_name.h"

namespace carillon::controller {
namespace {

using testing::VirtualWorker;

// A policy whose INFERs are preempted, and sometimes stopped for good measure, by chance.
class Meddled final : public schedule::Scheduler {
 public:
  Meddled(std::unique_ptr<schedule::Scheduler> inner, Random random, double share)
      : inner_(std::move(inner)), random_(random), share_(share) {}
  std::string_view name() const override { return inner_->name(); }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    if (const auto* done = std::get_if<schedule::ActionDone>(&event)) under_way_.erase(done->id);
    if (const auto* change = std::get_if<schedule::DeviceChanged>(&event))
      std::erase_if(under_way_, [&](const auto& each) { return each.second == change->device; });
    const TimePoint wake = inner_->decide(event, now, out);
    for (const schedule::Action& action : out)
      if (const auto* up = std::get_if<schedule::GiveUp>(&action))
        std::erase_if(under_way_, [&](const auto& each) { return each.second == up->device; });
    for (const schedule::Action& action : out)
      if (const auto* infer = std::get_if<schedule::Infer>(&action)) under_way_[infer->id] = infer->device;
    for (const auto& [id, device] : under_way_)
      if (random_.uniform() < share_)
        out.push_back(schedule::Preempt{
            id, device, now + Duration{static_cast<std::int64_t>(random_.below(10'000'000))}});
    return wake;
  }

 private:
  std::unique_ptr<schedule::Scheduler> inner_;
  Random random_;
  double share_;
  std::map<ActionId, DeviceId> under_way_;
};

struct Tally {
  int answers = 0, on_time = 0, resumed = 0, losses = 0, hangs = 0, doubled = 0, given_up = 0;
  int gone = 0, stuck = 0;  // models that went: nothing of them is left, or something is
  std::uint64_t profiled = 0;
  std::uint64_t events = 0;
};

class World final : public VirtualWorker::World {
 public:
  World(const std::string& policy, std::uint64_t seed) : random_(seed) {
    const auto devices = static_cast<std::uint32_t>(1 + random_.below(3));
    const auto models = static_cast<std::uint32_t>(1 + random_.below(5));
    const schedule::Environment environment{
        .hangs_after = 50ms,
        .profile_share = 0.5,
        .preemption = seed % 2 == 1 ? schedule::Preemption::deadline : schedule::Preemption::none,
        .admission = seed % 3 == 1};
    const double preempted = random_.below(3) == 0 ? 0 : 0.6 * random_.uniform();
    auto shadowed =
        std::make_unique<schedule::testing::Shadowed>(*schedule::make_scheduler(policy, environment));
    shadowed_ = shadowed.get();
    core_ = std::make_unique<Core>(std::make_unique<Meddled>(std::move(shadowed), random_.split(), preempted),
                                   CoreOptions{.max_open = 512,
                                               .timeline = 16,
                                               .on_device =
                                                   [this](const DeviceNews& news) {
                                                     tally_.given_up +=
                                                         news.why.starts_with("it hangs") ? 1 : 0;
                                                   },
                                               .journal = std::make_shared<Journal>(256, Duration{}),
                                               .on_gone =
                                                   [this](ModelId model) {
                                                     if (!told_gone_.insert(model.value).second)
                                                       problem("told twice that a model has gone");
                                                   },
                                               .audit = testing::audit_into(found_)});
    for (std::uint32_t d = 0; d < devices; ++d) {
      workers_.push_back(
          std::make_unique<VirtualWorker>(*this, DeviceId{d}, 2 + random_.below(6), random_.split()));
      core_->add_device(*workers_.back());
    }
    for (std::uint32_t m = 0; m < models; ++m) {
      core_->add_model(make_served(m));
    }
    core_->start(now_);
    const Duration span = 30ms + Duration{static_cast<std::int64_t>(random_.below(200'000'000))};
    const double gap = 0.2e6 + random_.uniform() * 4e6;
    for (Duration at{0}; at < span; at += from_ns(random_.exponential(gap)))
      plan(now_ + at, [this, models] { arrive({static_cast<std::uint32_t>(random_.below(models))}); });
    for (std::uint64_t fault = random_.below(4); fault > 0; --fault)
      plan(
          now_ + Duration{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(span.count())))},
          [this, devices] {
            const auto device = static_cast<std::uint32_t>(random_.below(devices));
            random_.below(2) == 0 ? lose(device) : hang(device);
          });
    doubles_ = random_.below(3) == 0 ? 0.2 : 0;
    // Models go and others come, in streams of chance of their own.
    Random change(seed + 1);
    if (seed % 3 != 0) return;
    for (std::uint64_t changes = 1 + change.below(4); changes > 0; --changes)
      plan(now_ + Duration{static_cast<std::int64_t>(change.below(static_cast<std::uint64_t>(span.count())))},
           [this, model = static_cast<std::uint32_t>(change.below(models)), comes = change.below(4) != 0] {
             core_->go({model}, now_);
             gone_.insert(model);
             if (!comes) return;
             const auto next = static_cast<std::uint32_t>(core_->models());
             core_->book().add_model("new " + std::to_string(next), 1);
             core_->come(make_served(next), now_);
             for (int i = 0; i < 5; ++i) plan(now_ + i * 1ms, [this, next] { arrive({next}); });
           });
  }

  Tally run() {
    for (int steps = 0; steps < 400'000; ++steps) {
      const TimePoint wake = core_->wake_at();
      if (calendar_.empty() && (wake == TimePoint::max() || core_->open_calls() == 0)) break;
      ++tally_.events;
      if (!calendar_.empty() && calendar_.begin()->first.first <= wake) {
        auto next = calendar_.extract(calendar_.begin());
        now_ = std::max(now_, next.key().first);
        next.mapped()();
      } else {
        now_ = std::max(now_, wake);
        core_->wake(now_);
      }
      for (const auto& [worker, probes] : asked()) answer_probe(worker);
    }
    EXPECT_EQ(core_->open_calls(), 0U) << "a call that is never answered";
    EXPECT_TRUE(found_.all().empty()) << found_.text();
    EXPECT_TRUE(shadowed_->findings().all().empty()) << shadowed_->findings().text();
    expect_gone();
    for (const auto& [ticket, answers] : answers_) EXPECT_EQ(answers, 1) << "ticket " << ticket;
    core_->stop(now_);
    while (!calendar_.empty()) {
      auto next = calendar_.extract(calendar_.begin());
      now_ = std::max(now_, next.key().first);
      next.mapped()();
    }
    // One that still hangs has reported nothing, and was not given up yet.
    const bool mute = std::ranges::any_of(workers_, [](const auto& worker) { return worker->mute; });
    EXPECT_TRUE(mute || core_->open_rows() == 0);
    EXPECT_TRUE(mute || core_->actions_in_flight() == 0);
    std::uint64_t odd = 0;
    for (const DeviceStatistics& device : core_->book().snapshot().devices) odd += device.odd_reports;
    EXPECT_GE(odd, static_cast<std::uint64_t>(tally_.doubled) - doubled_to_the_dead_);
    for (const auto& worker : workers_) tally_.resumed += worker->resumed;
    for (const ModelStatistics& model : core_->book().snapshot().models) tally_.profiled += model.profiled;
    return tally_;
  }
  const std::set<std::string>& problems() const { return problems_; }

  TimePoint now() const override { return now_; }
  void plan(TimePoint at, std::function<void()> what) override {
    calendar_[{at, order_++}] = std::move(what);
  }
  void result(const worker::ActionResult& result) override {
    plan(now_ + 10us, [this, result] { core_->on_result(result, now_); });
    if (random_.uniform() >= doubles_) return;
    ++tally_.doubled;
    plan(now_ + 50us, [this, result] {
      if (workers_[result.device.index()]->life != result.life) ++doubled_to_the_dead_;
      core_->on_result(result, now_);
    });
  }
  void problem(const std::string& what) override { problems_.insert(what); }

 private:
  ServedModel make_served(std::uint32_t m) {
    ServedModel served = testing::served(m);
    served.info.batches = {{1, 1ms}, {2, 2ms}, {4, 4ms}};
    for (const auto& worker : workers_) EXPECT_TRUE(worker->add_model({m}, nullptr));
    served.info.pages = workers_.front()->pages_of({m});
    served.info.time_varies = true;
    return served;
  }

  // That what went is nowhere any more, where devices could let go of it.
  void expect_gone() {
    const bool hurt = tally_.losses + tally_.hangs > 0;
    const bool mute = std::ranges::any_of(workers_, [](const auto& worker) { return worker->mute; });
    for (const std::uint32_t model : gone_) {
      const Core::Uses uses = core_->uses({model});
      const bool told = told_gone_.contains(model);
      const bool all_there = core_->devices_alive() == core_->devices();
      EXPECT_FALSE(told && (uses.calls > 0 || uses.on_devices)) << "model " << model;
      EXPECT_TRUE(told || uses.calls > 0 || uses.on_devices || !all_there) << "model " << model;
      EXPECT_TRUE(mute || uses.calls == 0) << "of model " << model << ", which went";
      tally_.gone += uses.on_devices ? 0 : 1;
      tally_.stuck += uses.on_devices && !hurt ? 1 : 0;
    }
  }

  void arrive(ModelId model) {
    const std::uint64_t ticket = ++tickets_;
    answers_[ticket] = 0;
    const TimePoint deadline = now_ + 2ms + Duration{static_cast<std::int64_t>(random_.below(60'000'000))};
    auto call = testing::call_of(model, 1 + static_cast<int>(random_.below(4)), now_, deadline,
                                 static_cast<unsigned>(random_.below(200)));
    core_->submit(
        ticket, std::move(call),
        [this, ticket, deadline](InferAnswer answer) {
          if (++answers_[ticket] > 1) problem("two answers");
          ++tally_.answers;
          if (answer.call != nullptr)
            for (const auto& worker : workers_)
              if (worker->uses(*answer.call)) problem("buffers given away that a device still writes");
          if (!answer.status) return;
          tally_.on_time += now_ <= deadline ? 1 : 0;
          if (answer.call == nullptr || !testing::is_right(*answer.call)) problem("a wrong answer");
        },
        now_);
    if (random_.below(8) == 0)
      plan(now_ + Duration{static_cast<std::int64_t>(random_.below(20'000'000))},
           [this, ticket] { core_->cancel(ticket, now_); });
  }

  void lose(std::uint32_t device) {
    VirtualWorker& worker = *workers_[device];
    if (!core_->device_alive({device})) return;
    ++tally_.losses;
    worker::ActionResult last{
        .status = schedule::ActionStatus::failed, .error = "broken", .device_lost = true};
    last.life = worker.life;
    last.device = {device};
    core_->on_result(last, now_);
  }

  void hang(std::uint32_t device) {
    if (!core_->device_alive({device})) return;
    ++tally_.hangs;
    workers_[device]->mute = true;
  }

  std::vector<std::pair<VirtualWorker*, int>> asked() {
    std::vector<std::pair<VirtualWorker*, int>> all;
    for (const auto& worker : workers_)
      if (worker->probes > 0) all.emplace_back(worker.get(), worker->probes);
    return all;
  }
  void answer_probe(VirtualWorker* worker) {
    --worker->probes;
    std::uint32_t device = 0;
    while (workers_[device].get() != worker) ++device;
    plan(now_ + 3ms, [this, worker, device, life = worker->life] {
      if (worker->life == life) core_->on_probe({Result<>{}, life, {device}}, now_);
    });
  }

  Random random_;
  double doubles_ = 0;
  std::uint64_t doubled_to_the_dead_ = 0;
  TimePoint now_{1s};
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> calendar_;
  std::uint64_t order_ = 0;
  std::vector<std::unique_ptr<VirtualWorker>> workers_;
  schedule::testing::Findings found_;  // the core and the ledger disagree there
  const schedule::testing::Shadowed* shadowed_ = nullptr;
  std::unique_ptr<Core> core_;
  std::uint64_t tickets_ = 0;
  std::map<std::uint64_t, int> answers_;
  std::set<std::string> problems_;
  std::set<std::uint32_t> gone_;
  std::set<std::uint32_t> told_gone_;  // of these
  Tally tally_;
};

// Of all seeds, each test takes those of one policy. CARILLON_WHOLE_SEEDS=FIRST..LAST asks for others.
class Whole : public ::testing::TestWithParam<std::string> {};

TEST_P(Whole, PromisesHoldWhateverHappens) {
  const auto [first, last] = carillon::testing::seeds_from("CARILLON_WHOLE_SEEDS", {0, 99});
  Tally all;
  for (std::uint64_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(GetParam(), seed);
    const Tally one = world.run();
    for (const std::string& problem : world.problems()) ADD_FAILURE() << problem;
    all.answers += one.answers;
    all.on_time += one.on_time;
    all.resumed += one.resumed;
    all.losses += one.losses;
    all.doubled += one.doubled;
    all.given_up += one.given_up;
    all.hangs += one.hangs;
    all.profiled += one.profiled;
    all.events += one.events;
    all.gone += one.gone;
    all.stuck += one.stuck;
  }
  // The worlds reach what they are for.
  EXPECT_GT(all.on_time, all.answers / 10);
  EXPECT_GT(all.resumed, 100);
  EXPECT_GT(all.losses, 20);
  EXPECT_GT(all.given_up, 10);
  EXPECT_LE(all.given_up, all.hangs);
  if (GetParam() == "orloj") {
    EXPECT_GT(all.profiled, 20U);
  }
  EXPECT_GT(all.doubled, 100);
  EXPECT_GT(all.gone, 20);
  EXPECT_EQ(all.stuck, 0) << "models that went and still are on devices";
  RecordProperty("events", static_cast<int>(all.events));
}

INSTANTIATE_TEST_SUITE_P(All, Whole, ::testing::ValuesIn(schedule::scheduler_names()),
                         [](const auto& tested) { return schedule::testing::test_name(tested.param); });

}  // namespace
}  // namespace carillon::controller
