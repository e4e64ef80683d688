// Rows that come together run together: one call of many rows, and calls that the controller finds together,
// under every policy, on a device in virtual time.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/controller/core.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/schedule/log/lines.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/test_name.h"

namespace carillon::controller {
namespace {

using schedule::ActionKind;
using schedule::AllArrived;
using schedule::RequestArrived;
using testing::call_of;
using testing::HeldWorker;
using testing::ScriptedScheduler;
using testing::served;

// Ends each action when its time has passed: 1 ms, and half of one for each row; one INFER at a time.
class Clockwork final : public HeldWorker {
 public:
  bool submit(const worker::LoadCommand& command) override {
    due[command.id] = now + 2ms;
    return HeldWorker::submit(command);
  }
  bool submit(const worker::UnloadCommand& command) override {
    due[command.id] = now;
    return HeldWorker::submit(command);
  }
  bool submit(const worker::InferCommand& command) override {
    const TimePoint start = std::max(now, free);
    free = start + exec(command.batch);
    due[command.id] = free;
    started.push_back({command.batch, start});
    return HeldWorker::submit(command);
  }
  static Duration exec(int batch) { return 1ms + batch * 500us; }

  struct Started {
    int batch = 0;
    TimePoint at;
  };
  std::vector<Started> started;
  std::map<ActionId, TimePoint> due;
  TimePoint now{}, free{};
};

struct World {
  World(const std::string& policy, bool classes, std::vector<int> batches, int models = 1) {
    schedule::Environment environment = schedule::live_environment();
    environment.classes = classes;
    core = std::make_unique<Core>(*schedule::make_scheduler(policy, environment), CoreOptions{});
    core->add_device(worker, "virtual");
    for (int m = 0; m < models; ++m) {
      ServedModel model = served(static_cast<std::uint32_t>(m));
      model.info.batches.clear();
      for (const int batch : batches) model.info.batches.push_back({batch, Clockwork::exec(batch)});
      for (int i = 0; i < 8; ++i) model.info.solos.push_back(Clockwork::exec(1));
      core->add_model(std::move(model));
    }
    core->start(worker.now);
    // The model is where it is served, and what was planned before is over.
    call(1);
    run(worker.now + 3s);
    worker.started.clear();
  }
  void call(int rows, TimePoint deadline = TimePoint::max(), int model = 0) {
    gather(rows, deadline, model);
    core->decide(worker.now);
  }
  void gather(int rows, TimePoint deadline = TimePoint::max(), int model = 0) {
    ++open;
    core->gather(
        ++tickets, call_of({static_cast<std::uint32_t>(model)}, rows, worker.now, deadline),
        [this](InferAnswer answer) {
          --open;
          EXPECT_TRUE(answer.status) << answer.status.error().message;
        },
        worker.now);
  }
  void run(TimePoint until) {
    while (true) {
      const auto first =
          std::ranges::min_element(worker.due, {}, [](const auto& each) { return each.second; });
      const TimePoint ends = first == worker.due.end() ? TimePoint::max() : first->second;
      const TimePoint next = std::min(ends, core->wake_at());
      if (next > until) break;
      worker.now = std::max(worker.now, next);
      if (ends <= worker.now) {
        const ActionId id = first->first;
        const bool infer = worker.held.at(id).kind == ActionKind::infer;
        const Duration took = infer ? Clockwork::exec(worker.held.at(id).infer.batch) : Duration{2ms};
        worker.due.erase(first);
        core->on_result(worker.end(id, schedule::ActionStatus::success, worker.now, took), worker.now);
      } else {
        core->wake(worker.now);
      }
    }
    worker.now = std::max(worker.now, until);
  }
  std::vector<int> batches() const {
    std::vector<int> out;
    for (const auto& started : worker.started) out.push_back(started.batch);
    return out;
  }

  Clockwork worker;
  std::unique_ptr<Core> core;
  std::uint64_t tickets = 0;
  int open = 0;
};

class Rows : public ::testing::TestWithParam<std::string> {
 protected:
  // Clipper's largest batch grows by one each time that it was filled.
  static void learn(World& world, int rows) {
    if (GetParam() != "clipper") return;
    for (int i = 0; i < 4 * rows; ++i) {
      world.call(rows);
      world.run(world.worker.now + 1s);
    }
    world.worker.started.clear();
  }
};

TEST_P(Rows, OfOneCallAreOneBatchAndBeginAtOnce) {
  for (const bool classes : {false, true}) {
    World world(GetParam(), classes, {1, 2, 4, 8, 16});
    learn(world, 16);
    const TimePoint came = world.worker.now;
    world.call(16);
    EXPECT_EQ(world.batches(), std::vector{16}) << "classes " << classes;
    EXPECT_EQ(world.worker.started.at(0).at, came);
    world.run(came + 1s);
    EXPECT_EQ(world.open, 0);
    EXPECT_EQ(world.batches(), std::vector{16});
  }
}

TEST_P(Rows, OfOneCallAreAsFewBatchesAsTheLargestAllows) {
  World world(GetParam(), true, {1, 2, 4, 8});
  learn(world, 8);
  world.call(16);
  world.run(world.worker.now + 2s);
  EXPECT_EQ(world.open, 0);
  EXPECT_EQ(world.batches(), (std::vector{8, 8}));
}

// Symphony held them for half a second, for more that might come.
TEST_P(Rows, WithoutADeadlineAreNotHeldBackOnAnIdleDevice) {
  for (const int rows : {1, 3, 8}) {
    World world(GetParam(), true, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
    learn(world, rows);
    const TimePoint came = world.worker.now;
    world.call(rows);
    EXPECT_EQ(world.batches(), std::vector{rows});
    world.run(came + 1s);
    ASSERT_FALSE(world.worker.started.empty());
    EXPECT_EQ(world.worker.started[0].at, came) << rows << " rows";
    EXPECT_EQ(world.open, 0);
  }
}

TEST_P(Rows, OfCallsThatAreThereTogetherShareABatch) {
  World world(GetParam(), true, {1, 2, 4, 8, 16});
  learn(world, 16);
  for (const int rows : {1, 5, 2, 8}) world.gather(rows);
  world.core->decide(world.worker.now);
  EXPECT_EQ(world.batches(), std::vector{16});
  world.run(world.worker.now + 1s);
  EXPECT_EQ(world.open, 0);
}

INSTANTIATE_TEST_SUITE_P(All, Rows, ::testing::ValuesIn(schedule::scheduler_names()),
                         [](const auto& tested) { return schedule::testing::test_name(tested.param); });

// What the scheduler is told.
struct Told {
  Told() {
    auto owned = std::make_unique<ScriptedScheduler>();
    scheduler = owned.get();
    core = std::make_unique<Core>(std::move(owned), CoreOptions{});
    core->add_device(worker, "held");
    core->add_model(served(0));
    core->start({});
    scheduler->events.clear();
  }
  void gather(std::uint64_t ticket, int rows) {
    core->gather(ticket, call_of({0}, rows, {}), [this](InferAnswer) { ++answers; }, {});
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> out;
    for (const auto& event : scheduler->events) {
      std::string line;
      schedule::log::append(line, event);
      out.push_back(line.substr(0, line.find(' ', line.find(' ') + 1)));
    }
    return out;
  }
  HeldWorker worker;
  ScriptedScheduler* scheduler = nullptr;
  std::unique_ptr<Core> core;
  int answers = 0;
};

TEST(Together, ACallOfOneRowAloneIsToldAsEver) {
  Told told;
  told.gather(1, 1);
  told.core->decide({});
  EXPECT_EQ(told.lines(), std::vector<std::string>{"arrived 0"});
  told.core->decide({});
  EXPECT_EQ(told.lines().size(), 1U) << "there is nothing to decide";
}

TEST(Together, AllRowsOfAllCallsAreToldBeforeAnythingIsDecided) {
  Told told;
  told.gather(1, 1);
  told.gather(2, 2);
  EXPECT_TRUE(told.lines().empty());
  told.core->decide({});
  EXPECT_EQ(told.lines(),
            (std::vector<std::string>{"arrived_with 0", "arrived_with 1", "arrived_with 2", "all_arrived"}));
  told.core->stop({});
  EXPECT_EQ(told.answers, 2);
}

TEST(Together, ACallThatIsRefusedAtItsFirstRowDoesNotKeepTheOthersWaiting) {
  Told told;
  told.scheduler->script = [](const schedule::Event& event, TimePoint, schedule::Actions& out, TimePoint&) {
    const auto* arrived = std::get_if<RequestArrived>(&event);
    if (arrived != nullptr && arrived->request.id == RequestId{0})
      out.emplace_back(schedule::Refuse{{0}, schedule::Reason::no_device, TimePoint::max()});
  };
  told.gather(1, 3);
  told.gather(2, 1);
  told.core->decide({});
  EXPECT_EQ(told.answers, 1);
  EXPECT_EQ(told.lines(), (std::vector<std::string>{"arrived_with 0", "arrived_with 3", "all_arrived"}));
  told.core->stop({});
  EXPECT_EQ(told.answers, 2);
  EXPECT_EQ(told.core->open_rows(), 0U);
}

}  // namespace
}  // namespace carillon::controller
