#include "carillon/schedule/subclusters.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/scripted_scheduler.h"
#include "carillon/schedule/testing/sim_world.h"
#include "carillon/schedule/testing/test_name.h"

namespace carillon::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::ScriptedScheduler;
using testing::SimWorld;

constexpr ModelId m0{0}, m1{1}, m2{2};
constexpr Duration test_patience = 5s;

GroupsOfModels two(std::map<std::string, std::uint32_t, std::less<>> of) {
  return {.groups = 2, .of = std::move(of)};
}

// Two groups: devices 0 and 2 of ten pages, and devices 1 and 3. Models m0, m1, m2 of four pages. Scripted
// policies do what a test says.
struct SubclustersTest : ::testing::Test {
  explicit SubclustersTest(std::uint64_t pages = 10)
      : subclusters(
            [this] {
              auto policy = std::make_unique<ScriptedScheduler>();
              group.push_back(policy.get());
              return policy;
            },
            {}, two({{"m0", 0}, {"m1", 0}, {"m2", 1}}), test_patience) {
    for (ScriptedScheduler* each : group) each->ledger->planned_by({}, true);
    for (std::uint32_t m = 0; m < 3; ++m) hear(model_comes(testing::linear_model(m, 1ms, 1ms, 4)));
    for (std::uint32_t d = 0; d < 4; ++d) hear(DeviceChanged{.device = {d}, .pages = pages});
    for (const std::uint32_t d : {0U, 2U})
      for (const ModelId model : {m0, m1}) load(0, d, model);
    for (const std::uint32_t d : {1U, 3U}) load(1, d, m2);
    for (ScriptedScheduler* each : group) each->events.clear();
  }

  Actions hear(const Event& event) {
    Actions out;
    wake = subclusters.decide(event, now, out);
    return out;
  }
  // The group's policy orders this at the next event that it hears.
  void next(std::uint32_t g, Action order) {
    group[g]->script = [this, g, order](const Event&, TimePoint, Actions& out, TimePoint&) {
      out.push_back(order);
      group[g]->script = {};
    };
  }
  void done(ActionId id, ActionStatus status = ActionStatus::success) {
    hear(ActionDone{.id = id, .status = status, .start = now, .end = now, .duration = 1ms});
  }
  // The group loads the model, as any policy would with free memory: by an event that says nothing.
  ActionId begin_load(std::uint32_t g, std::uint32_t device, ModelId model) {
    next(g, Load{{ids++}, {device}, model, {now, TimePoint::max()}, 1ms});
    return std::get<Load>(hear(RequestProfiled{m_of(g), {}, 1ms}).at(0)).id;
  }
  void load(std::uint32_t g, std::uint32_t device, ModelId model) { done(begin_load(g, device, model)); }
  void unload(std::uint32_t g, std::uint32_t device, ModelId model) {
    next(g, Unload{{ids++}, {device}, model});
    done(std::get<Unload>(hear(RequestProfiled{m_of(g), {}, 1ms}).at(0)).id);
  }
  // The request runs on a device of the group.
  ActionId send(std::uint32_t g, std::uint32_t device, ModelId model, std::uint64_t request) {
    next(g, Infer{{ids++}, {device}, model, {{request}}, {now, TimePoint::max()}, 1ms});
    return std::get<Infer>(hear(RequestProfiled{m_of(g), {}, 1ms}).at(0)).id;
  }
  ModelId m_of(std::uint32_t g) const {  // some model whose requests go there
    for (std::uint32_t m = 0; m < 3; ++m)
      if (subclusters.group({m}) == g) return {m};
    return {};
  }
  void arrives(std::uint64_t id, ModelId model) {
    hear(RequestArrived{{.id = {id}, .model = model, .deadline = now + 1s}});
  }
  void change(GroupsOfModels division) {
    subclusters.change(std::move(division), now);
    hear(Wake{});
  }
  std::vector<std::uint64_t> arrived(std::uint32_t g) const {
    std::vector<std::uint64_t> requests;
    for (const auto& each : group[g]->heard<RequestArrived>()) requests.push_back(each.request.id.value);
    return requests;
  }
  // "m0 comes", "m0 goes" as the group heard it.
  std::vector<std::string> changes(std::uint32_t g) const {
    std::vector<std::string> texts;
    for (const auto& each : group[g]->heard<ModelChanged>())
      texts.push_back("m" + std::to_string(each.model.value) + (each.info ? " comes" : " goes"));
    return texts;
  }

  TimePoint now{1s}, wake;
  std::uint64_t ids = 0;
  std::vector<ScriptedScheduler*> group;
  Subclusters subclusters;
};
struct ScarceSubclustersTest : SubclustersTest {
  ScarceSubclustersTest() : SubclustersTest(8) {}
};

TEST_F(SubclustersTest, AGroupHearsOfItsOwnRequestsAndDevices) {
  arrives(1, m0);
  arrives(2, m2);
  EXPECT_THAT(arrived(0), ElementsAre(1));
  EXPECT_THAT(arrived(1), ElementsAre(2));
  hear(DeviceChanged{.device = {4}, .pages = 10});
  EXPECT_TRUE(group[0]->heard<DeviceChanged>().at(0).alive);
  EXPECT_FALSE(group[1]->heard<DeviceChanged>().at(0).alive);
}

TEST_F(SubclustersTest, OrdersOfTwoGroupsHaveUnlikeNames) {
  arrives(1, m0);
  arrives(2, m2);
  ids = 100;
  const ActionId first = send(0, 0, m0, 1);
  ids = 100;
  const ActionId second = send(1, 1, m2, 2);
  EXPECT_NE(first, second);
  done(second);
  EXPECT_EQ(group[1]->heard<ActionDone>().at(0).id, ActionId{100});
  EXPECT_THAT(group[0]->heard<ActionDone>(), IsEmpty());
}

TEST_F(SubclustersTest, AModelLoadsThenGetsRequestsThenLeaves) {
  arrives(1, m0);
  const ActionId runs = send(0, 0, m0, 1);
  arrives(2, m0);
  change(two({{"m0", 1}}));
  EXPECT_THAT(changes(1), ElementsAre("m0 comes"));
  EXPECT_THAT(changes(0), IsEmpty());
  arrives(3, m0);
  EXPECT_EQ(arrived(0).back(), 3U) << "it is not loaded there";
  load(1, 1, m0);
  EXPECT_EQ(subclusters.group(m0), 0U) << "one of two devices has it";
  load(1, 3, m0);
  EXPECT_EQ(subclusters.group(m0), 1U);
  arrives(4, m0);
  EXPECT_THAT(arrived(1), ElementsAre(4));
  EXPECT_THAT(changes(0), IsEmpty()) << "it has three requests yet";
  done(runs);
  next(0, Refuse{{2}, Reason::cannot_finish, now});
  hear(RequestProfiled{m1, {}, 1ms});
  EXPECT_THAT(changes(0), IsEmpty());
  EXPECT_EQ(subclusters.moving(), 1U);
  hear(RequestCancelled{{3}, m0});
  EXPECT_THAT(changes(0), ElementsAre("m0 goes"));
  EXPECT_EQ(subclusters.moving(), 0U);
}

TEST_F(SubclustersTest, ARequestWhoseClientGoesWhileItRunsIsCountedOnce) {
  arrives(1, m0);
  const ActionId runs = send(0, 0, m0, 1);
  change(two({{"m0", 1}}));
  load(1, 1, m0);
  load(1, 3, m0);
  hear(RequestCancelled{{1}, m0});
  EXPECT_THAT(changes(0), ElementsAre("m0 goes")) << "nobody waits for what runs";
  done(runs);
  EXPECT_EQ(group[0]->heard<ActionDone>().size(), 1U);
}

TEST_F(SubclustersTest, OneModelAtATimeLoadsInAGroup) {
  change(two({{"m0", 1}, {"m1", 1}}));
  EXPECT_THAT(changes(1), ElementsAre("m0 comes"));
  load(1, 1, m0);
  load(1, 3, m0);
  EXPECT_THAT(changes(0), ElementsAre("m0 goes"));
  EXPECT_EQ(subclusters.group(m1), 0U) << "there is no room for a third model";
  EXPECT_EQ(subclusters.moving(), 1U);
}

TEST_F(SubclustersTest, ADeviceThatGoesIsNotWaitedFor) {
  change(two({{"m0", 1}}));
  load(1, 1, m0);
  hear(DeviceChanged{.device = {3}, .alive = false});
  EXPECT_EQ(subclusters.group(m0), 1U);
}

TEST_F(SubclustersTest, AnotherDivisionTakesAMoveBackThatHasNotGotRequests) {
  change(two({{"m0", 1}}));
  change(two({{"m0", 0}}));
  EXPECT_THAT(changes(1), ElementsAre("m0 comes", "m0 goes"));
  EXPECT_EQ(subclusters.moving(), 0U);
  arrives(1, m0);
  EXPECT_THAT(arrived(0), ElementsAre(1));
}

TEST_F(SubclustersTest, AMoveBackWaitsForTheEndOfTheMove) {
  arrives(1, m0);
  change(two({{"m0", 1}}));
  load(1, 1, m0);
  load(1, 3, m0);
  change(two({{"m0", 0}}));
  EXPECT_EQ(subclusters.moving(), 2U);
  EXPECT_THAT(changes(0), IsEmpty());
  hear(RequestCancelled{{1}, m0});
  for (const std::uint32_t d : {0U, 2U}) unload(0, d, m0);
  EXPECT_THAT(changes(0), ElementsAre("m0 goes", "m0 comes"));
  load(0, 0, m0);
  load(0, 2, m0);
  EXPECT_EQ(subclusters.group(m0), 0U);
  EXPECT_EQ(subclusters.moving(), 0U);
}

TEST_F(SubclustersTest, AModelThatGoesMovesNoMore) {
  change(two({{"m0", 1}}));
  hear(ModelChanged{m0, nullptr});
  EXPECT_THAT(changes(0), ElementsAre("m0 goes"));
  EXPECT_THAT(changes(1), ElementsAre("m0 comes", "m0 goes"));
  EXPECT_EQ(subclusters.moving(), 0U);
  hear(model_comes(testing::linear_model(0, 2ms, 1ms, 4)));
  EXPECT_EQ(subclusters.group(m0), 1U) << "as the division says";
  EXPECT_THAT(changes(1), ElementsAre("m0 comes", "m0 goes", "m0 comes"));
}

TEST_F(SubclustersTest, AModelThatNobodyNamedIsWhereItsNameSays) {
  hear(model_comes(testing::linear_model(3, 1ms, 1ms, 4)));
  const std::uint32_t there = two({}).group("m3");
  EXPECT_EQ(subclusters.group(ModelId{3}), there);
  change(two({{"m3", 1 - there}}));
  change(two({{"m0", 0}}));
  EXPECT_EQ(subclusters.moving(), 1U) << "what a division does not name stays as the last one said";
}

TEST_F(SubclustersTest, LoadsAreWaitedForAndFailuresLonger) {
  change(two({{"m0", 1}}));
  EXPECT_EQ(wake, now + test_patience);
  done(begin_load(1, 1, m0), ActionStatus::failed);
  now += test_patience;
  hear(Wake{});
  EXPECT_EQ(subclusters.group(m0), 0U);
  EXPECT_EQ(wake, now + test_patience);
  load(1, 1, m0);
  now += test_patience;
  hear(Wake{});
  EXPECT_EQ(subclusters.group(m0), 1U) << "one device has it";
}

TEST_F(SubclustersTest, AChangeToComeIsWokenFor) {
  subclusters.change(two({{"m0", 1}}), now + 2s);
  hear(Wake{});
  EXPECT_EQ(wake, now + 2s);
  EXPECT_EQ(subclusters.moving(), 0U);
  now += 2s;
  hear(Wake{});
  EXPECT_EQ(subclusters.moving(), 1U);
}

// Groups are woken at unlike times, and the driver tells an excuse once.
TEST_F(SubclustersTest, ExcusesWaitForTheNextWakeOfTheirGroup) {
  group[0]->wake = now + 1s;
  group[1]->wake = now + 2s;
  arrives(1, m0);
  arrives(2, m2);
  now += 1s;
  hear(Wake{.excuses = {{.device = {1}, .lane = Lane::exec, .starved = 3ms}}});
  ASSERT_EQ(group[0]->heard<Wake>().size(), 1U);
  EXPECT_THAT(group[0]->heard<Wake>()[0].excuses, IsEmpty());
  EXPECT_THAT(group[1]->heard<Wake>(), IsEmpty());
  now += 1s;
  hear(Wake{.excuses = {{.device = {1}, .lane = Lane::exec, .starved = 2ms, .moved = true}}});
  ASSERT_EQ(group[1]->heard<Wake>().size(), 1U);
  EXPECT_THAT(group[1]->heard<Wake>()[0].excuses,
              ElementsAre(Excuse{.device = {1}, .lane = Lane::exec, .starved = 5ms, .moved = true}));
  group[1]->wake = now + 1s;
  arrives(3, m2);
  now += 1s;
  hear(Wake{});
  EXPECT_THAT(group[1]->heard<Wake>().back().excuses, IsEmpty()) << "once";
}

TEST_F(SubclustersTest, TheNewGroupStartsFromWhatTheOldOneMeasured) {
  ledger::Ledger& ledger = *group[0]->ledger;
  ledger.plan(model_comes(testing::linear_model(0, 1ms, 1ms, 4)));
  for (std::uint64_t id = 0; id < 20; ++id) {
    arrives(id, m0);
    const ActionId runs = send(0, 0, m0, id);
    hear(ActionDone{
        .id = runs, .status = ActionStatus::success, .start = now, .end = now + 4ms, .duration = 4ms});
  }
  change(two({{"m0", 1}}));
  const auto& batches = group[1]->heard<ModelChanged>().at(0).info->batches;
  EXPECT_EQ(batches[0].exec, 4ms);
  EXPECT_EQ(batches[1].exec, 3ms) << "it never ran";
}

// As another division was in force when it loaded them.
TEST_F(SubclustersTest, ADeviceThatComesWithModelsOfAnotherGroupUnloadsThem) {
  hear(DeviceChanged{.device = {4}, .pages = 10, .held = {m0, m2}});
  EXPECT_THAT(changes(0), ElementsAre("m2 comes", "m2 goes"));
  EXPECT_THAT(changes(1), IsEmpty());
  const ledger::Ledger& ledger = *group[0]->ledger;
  EXPECT_EQ(ledger.residence(DeviceId{4}, m0), ledger::Residence::loaded);
  EXPECT_EQ(ledger.residence(DeviceId{4}, m2), ledger::Residence::leaving);
  EXPECT_EQ(ledger.device(DeviceId{4}).taken, 8U);
  EXPECT_EQ(subclusters.group(m2), 1U);
}

TEST_F(SubclustersTest, EachGroupDecidesByItsOwnLedger) {
  EXPECT_EQ(subclusters.own_ledger(DeviceId{2}), group[0]->ledger);
  EXPECT_EQ(subclusters.own_ledger(DeviceId{3}), group[1]->ledger);
}

TEST(GroupsOfModels, HaveAHashThatTellsThemApart) {
  const std::uint64_t one = two({{"m0", 0}, {"m1", 1}}).hash();
  EXPECT_EQ(one, two({{"m1", 1}, {"m0", 0}}).hash());
  EXPECT_NE(one, two({{"m0", 1}, {"m1", 0}}).hash());
  EXPECT_NE(one, two({{"m0", 0}}).hash());
  EXPECT_NE(two({}).hash(), GroupsOfModels{}.hash());
}

TEST_F(SubclustersTest, AModelThatWaitsGoesByItsNewSize) {
  change(two({{"m3", 0}}));
  hear(model_comes(testing::linear_model(3, 1ms, 1ms, 4)));
  change(two({{"m0", 1}, {"m1", 1}, {"m3", 1}}));
  hear(model_comes(testing::linear_model(3, 1ms, 1ms, 2)));
  group[1]->events.clear();
  load(1, 1, m0);
  load(1, 3, m0);
  EXPECT_THAT(changes(1), ElementsAre("m3 comes")) << "m1 has no room, though it comes before";
}

// Memory for two models a device, and each group has what it can hold: an exchange.
TEST_F(ScarceSubclustersTest, AnExchangeWithoutRoomBeginsAllTheSame) {
  subclusters.change(two({{"m3", 1}}), now);
  hear(Wake{});
  hear(model_comes(testing::linear_model(3, 1ms, 1ms, 4)));
  for (const std::uint32_t d : {1U, 3U}) load(1, d, ModelId{3});
  for (ScriptedScheduler* each : group) each->events.clear();
  change(two({{"m0", 1}, {"m2", 0}}));
  EXPECT_EQ(subclusters.moving(), 2U);
  EXPECT_THAT(changes(1), ElementsAre("m0 comes")) << "the first";
  now += test_patience;
  hear(Wake{});
  EXPECT_EQ(subclusters.group(m0), 1U);
  EXPECT_THAT(changes(0), ElementsAre("m0 goes"));
  for (const std::uint32_t d : {0U, 2U}) unload(0, d, m0);
  EXPECT_THAT(changes(0), ElementsAre("m0 goes", "m2 comes")) << "there is room now";
}

// What events look at on behalf of moves.
struct Looks {
  std::uint64_t most = 0, all = 0, events = 0;
};

// Two groups of two devices. `models` move from group 0 to group 1, whose devices hold few of them: there a
// model is unloaded for the next, as a policy would. Counts from when all moves but one wait.
Looks looks_of(std::uint32_t models, std::uint32_t moves) {
  constexpr std::uint64_t room = 40;
  const auto pages = [](ModelId model) { return 2 + model.value % 19; };
  std::vector<ScriptedScheduler*> group;
  GroupsOfModels before{.groups = 2, .of = {}}, after = before;
  for (std::uint32_t m = 0; m < models; ++m) {
    before.of.emplace("m" + std::to_string(m), 0);
    after.of.emplace("m" + std::to_string(m), 1);
  }
  Subclusters subclusters(
      [&] {
        auto policy = std::make_unique<ScriptedScheduler>();
        group.push_back(policy.get());
        return policy;
      },
      {}, before, test_patience);
  Looks looks;
  TimePoint now{1s};
  ModelId coming;
  std::vector<Action> orders;
  group[1]->script = [&](const Event& event, TimePoint, Actions& out, TimePoint&) {
    if (const auto* change = std::get_if<ModelChanged>(&event); change != nullptr && change->info != nullptr)
      coming = change->model;
    out.insert(out.end(), orders.begin(), orders.end());
    orders.clear();
  };
  const auto hear = [&](const Event& event) {
    const std::uint64_t looked_at = subclusters.looked_at();
    Actions out;
    subclusters.decide(event, now, out);
    const std::uint64_t looked = subclusters.looked_at() - looked_at;
    looks.most = std::max(looks.most, looked);
    looks.all += looked;
    ++looks.events;
    for (ScriptedScheduler* each : group) each->events.clear();
    return out;
  };
  for (std::uint32_t m = 0; m < models; ++m)
    hear(model_comes(testing::linear_model(m, 1ms, 1ms, pages(ModelId{m}))));
  for (std::uint32_t d = 0; d < 4; ++d) hear(DeviceChanged{.device = {d}, .pages = room});
  subclusters.change(after, now);
  hear(Wake{});
  looks = {};
  std::uint64_t ids = 0, taken = 0;
  // By an event that says nothing.
  const auto carried_out = [&](const Action& order, ActionId id) {
    orders.push_back(order);
    hear(RequestProfiled{coming, {}, 1ms});
    const std::uint64_t outer = id.value | std::uint64_t{1} << 48;
    hear(ActionDone{.id = ActionId{outer}, .start = now, .end = now, .duration = 1ms});
  };
  std::deque<ModelId> loaded;
  for (std::uint32_t i = 0; i < moves; ++i) {
    const ModelId model = coming, asked{models - 1};
    EXPECT_EQ(subclusters.moving(), models - i);
    hear(RequestArrived{{.id = {i}, .model = asked, .deadline = now + 1s}});
    hear(Wake{});
    hear(RequestCancelled{{i}, asked});
    for (; taken + pages(model) > room; loaded.pop_front()) {
      for (const std::uint32_t d : {1U, 3U}) {
        const ActionId id{ids++};
        carried_out(Unload{id, {d}, loaded.front()}, id);
      }
      taken -= pages(loaded.front());
    }
    for (const std::uint32_t d : {1U, 3U}) {
      const ActionId id{ids++};
      carried_out(Load{id, {d}, model, {now, TimePoint::max()}, 1ms}, id);
    }
    taken += pages(model);
    loaded.push_back(model);
    EXPECT_EQ(subclusters.group(model), 1U) << model.value;
    now += 1ms;
  }
  return looks;
}

TEST(SubclustersWork, GrowsNotWithTheMovesThatWait) {
  const Looks few = looks_of(600, 500), many = looks_of(10'500, 500);
  EXPECT_LE(few.most, 300U);
  EXPECT_LE(many.most, 400U);
  EXPECT_LE(few.all, 40 * few.events);
  EXPECT_LE(many.all, 50 * many.events);
}

// Real policies: SimWorld checks what must hold of orders, and this what became of requests.
struct MovesTest : ::testing::TestWithParam<std::string> {};

TEST_P(MovesTest, NoRequestIsLostOrLateForIt) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    for (const bool moves : {false, true}) {
      const auto subclusters =
          *make_subclusters(GetParam(), {}, two({{"m0", 0}, {"m1", 0}, {"m2", 1}, {"m3", 1}}));
      std::vector<ModelInfo> models;
      for (std::uint32_t m = 0; m < 4; ++m) models.push_back(testing::linear_model(m, 1ms, 3ms, 5));
      SimWorld world(*subclusters, {.seed = seed, .pages = {20, 20, 20, 20}, .subclusters = true}, models);
      if (moves) subclusters->change(two({{"m0", 1}, {"m3", 0}}), TimePoint{1s});
      if (moves) subclusters->change(two({{"m0", 0}, {"m1", 1}}), TimePoint{2s});
      Random random(seed);
      for (TimePoint at{200ms}; at < TimePoint{3s}; at += from_seconds(0.004 * random.uniform()))
        world.arrive({.model = {static_cast<std::uint32_t>(random.below(4))}, .deadline = at + 60ms}, at);
      world.run(TimePoint{4s});
      EXPECT_THAT(world.problems(), IsEmpty()) << world.problems_text();
      const auto counts = world.count();
      EXPECT_EQ(counts.late + counts.refused + counts.open, 0) << "seed " << seed << ", moves " << moves;
      if (!moves) continue;
      EXPECT_EQ(subclusters->moving(), 0U);
      EXPECT_EQ(subclusters->group(m0), 0U);
      EXPECT_EQ(subclusters->group(m1), 1U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, MovesTest,
                         ::testing::Values("carillon", "edf", "symphony", "orloj", "eager", "nexus"),
                         [](const auto& test) { return testing::test_name(test.param); });

}  // namespace
}  // namespace carillon::schedule
