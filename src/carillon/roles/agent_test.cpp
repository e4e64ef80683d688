#include "carillon/roles/agent.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/roles/testing/row_parts.h"

namespace carillon::roles {
namespace {

// Of a device that does nothing by itself.
class IdleLink final : public wire::DeviceLink {
 public:
  void send(const ledger::Load& order) override { loads.push_back(order.id); }
  void send(const ledger::Unload& order) override { unloads.push_back(order.id); }
  void send(const ledger::Infer& order) override { infers.push_back(order.id); }
  void send(const ledger::Profile&) override {}
  void stop(ActionId) override {}
  void preempt(ActionId, TimePoint) override {}
  void retire(std::uint32_t next) override { life = next; }
  void probe() override { ++probes; }
  ledger::Excuse slowness(ledger::Lane) override { return {}; }
  wire::Credit credit() const override { return {.infers = 4, .loads = 4}; }
  std::uint64_t pages() const override { return 10; }
  int best_effort() const override { return 1; }

  std::uint32_t life = 0;
  int probes = 0;
  std::vector<ActionId> loads, unloads, infers;
};

// What was said, a line each.
class SaidNotes final : public dispatch::Notes {
 public:
  std::uint64_t begun(std::uint32_t place, const Action& action) override {
    EXPECT_TRUE(places.insert(place).second) << "a place that another action has";
    say("begun " + name(action));
    return 0;
  }
  void taken(std::uint32_t, const Action& action) override { say("taken " + name(action)); }
  void ended(std::uint32_t place, const Action& action, const wire::Report& report, bool held,
             TimePoint) override {
    EXPECT_EQ(places.erase(place), 1U);
    say("ended " + name(action) + (report.status == ledger::ActionStatus::success ? "" : ", not well") +
        (held ? ", held" : ""));
  }
  void lost(std::uint32_t place, TimePoint) override {
    EXPECT_EQ(places.erase(place), 1U);
    say("lost");
  }
  void odd_report(DeviceId) override { say("odd"); }
  void device_lost(DeviceId) override { say("device lost"); }
  void device_lost_over(DeviceId, std::string_view why) override { say(std::string(why)); }
  void device_back(DeviceId) override { say("device back"); }
  std::vector<std::string> take() { return std::exchange(said, {}); }

  std::set<std::uint32_t> places;

 private:
  void say(std::string text) { said.push_back(std::move(text)); }
  static std::string name(const Action& action) {
    constexpr const char* kinds[] = {"load", "unload", "infer of "};
    const auto kind = static_cast<std::size_t>(action.kind);
    return action.kind == schedule::ActionKind::infer ? kinds[kind] + std::to_string(action.requests.size())
                                                      : kinds[kind];
  }
  std::vector<std::string> said;
};

// A worker with one device and one model. Its leader numbers the device's lives itself.
class AgentTest : public ::testing::Test, protected AgentOut {
 protected:
  AgentTest() {
    agent.add_device(link);
    agent.add_model({.info = {.id = {0}, .name = "m", .pages = 1, .batches = {{1, 1ms}}}});
    agent.start(now);
  }
  void send(transport::Message message) override { sent.push_back(std::move(message)); }
  std::uint64_t pull(const std::string&, std::uint64_t, TimePoint, std::shared_ptr<PulledRow> row) override {
    EXPECT_TRUE(row->make(0, {}));
    return ++tickets;
  }
  std::uint64_t push(const std::string&, std::uint64_t, std::shared_ptr<PulledRow>,
                     const wire::Report&) override {
    return ++tickets;
  }
  void cancel(std::uint64_t) override {}
  void connect(const std::string& address, const cluster::Protocols&) override {
    connected.push_back(address);
  }
  void traced(std::shared_ptr<const explain::RowSpans> of) override { spans.push_back(std::move(of)); }
  void warn(const std::string& text) override {
    warned.push_back(text);
    EXPECT_TRUE(may_warn) << text;
  }

  template <typename What>
  void hear(What what) {
    agent.heard(transport::Message{std::move(what)}, now);
  }
  // What the leader was told of a kind, since the last look at it.
  template <typename What>
  std::vector<What> take() {
    std::vector<What> out;
    std::erase_if(sent, [&](const transport::Message& message) {
      const auto* what = std::get_if<What>(&message);
      if (what != nullptr) out.push_back(*what);
      return what != nullptr;
    });
    return out;
  }
  void lose() {
    agent.on_report({.id = {},
                     .status = ledger::ActionStatus::failed,
                     .times = {},
                     .error = "it broke",
                     .device_lost = true,
                     .life = link.life,
                     .device = device},
                    now);
  }
  // One row for a leader that has taken the device. The run ends now.
  void order(Class cls = Class::normal) {
    hear(transport::FrontendAt{0, "host:1"});
    const ledger::Infer infer{
        .id = {++ordered}, .device = device, .model = {0}, .requests = {{0}}, .expected = 1ms, .cls = cls};
    hear(transport::Infer{.order = infer, .rows = {{.row = {0}, .frontend = 0, .key = 1}}});
    agent.pulled(tickets, {}, now);
  }
  void ended(Duration took, ledger::ActionStatus status = ledger::ActionStatus::success) {
    ran(took, status);
    agent.pushed(tickets, true, now);
  }
  // Its outputs are on their way.
  void ran(Duration took, ledger::ActionStatus status = ledger::ActionStatus::success) {
    wire::Report report{.id = link.infers.back(), .status = status, .life = link.life, .device = device};
    report.times.exec_start = now - took;
    report.times.exec_end = now;
    agent.on_report(report, now);
  }
  // What the next leader is told of the runs of a class.
  std::vector<Duration> told(Class cls) {
    agent.leads(now);
    std::vector<Duration> out;
    for (const auto& state : take<transport::DeviceState>())
      for (const auto& run : state.left->runs)
        if (run.cls == cls) out.push_back(run.took);
    return out;
  }
  void probed() { agent.on_probe({.found = {}, .life = link.life, .device = device}, now); }

  static constexpr DeviceId device{0};
  IdleLink link;
  SaidNotes notes;
  Agent agent{*this, notes};
  TimePoint now{1s};
  std::vector<transport::Message> sent;
  std::vector<std::string> warned;
  bool may_warn = false;
  std::uint64_t tickets = 0, ordered = 0;
  std::vector<std::string> connected;
  std::vector<std::shared_ptr<const explain::RowSpans>> spans;
};

// A leader drops reports of a life of the device that it has not named.
TEST_F(AgentTest, ADeviceThatIsLostBeforeItIsTakenIsToldOfInTheLeadersLife) {
  for (const std::uint32_t life : {0U, 3U}) {
    agent.leads(now);
    const auto states = take<transport::DeviceState>();
    ASSERT_EQ(states.size(), 1U);
    EXPECT_TRUE(states[0].left);
    lose();
    EXPECT_TRUE(take<wire::Report>().empty());
    hear(transport::Adopt{device, life});
    const auto lost = take<wire::Report>();
    ASSERT_EQ(lost.size(), 1U);
    EXPECT_TRUE(lost[0].device_lost);
    EXPECT_EQ(lost[0].life, life);
    hear(transport::Retire{device, life + 1});
    hear(transport::Probe{device});
    probed();
    const auto probes = take<wire::ProbeReport>();
    ASSERT_EQ(probes.size(), 1U);
    EXPECT_EQ(probes[0].life, life + 1);
    EXPECT_TRUE(agent.device_alive(device));
    agent.leader_left(now);
    sent.clear();
  }
}

TEST_F(AgentTest, AProbeOfBeforeTheLeaderDoesNotAnswerTheLeaders) {
  for (const bool early : {true, false}) {
    lose();  // while nobody leads
    EXPECT_EQ(std::exchange(link.probes, 0), 1);
    agent.leads(now);
    const auto states = take<transport::DeviceState>();
    ASSERT_EQ(states.size(), 1U);
    EXPECT_FALSE(states[0].left);
    if (early) {
      probed();
      EXPECT_TRUE(take<wire::ProbeReport>().empty());
      EXPECT_TRUE(take<transport::DeviceState>().empty());
    }
    hear(transport::Retire{device, 0});
    hear(transport::Probe{device});
    EXPECT_EQ(std::exchange(link.probes, 0), early ? 1 : 0);
    EXPECT_TRUE(take<wire::ProbeReport>().empty());
    probed();
    EXPECT_EQ(take<wire::ProbeReport>().size(), 1U);
    EXPECT_TRUE(agent.device_alive(device));
    agent.leader_left(now);
    sent.clear();
  }
}

TEST_F(AgentTest, OrdersForADeviceThatTheLeaderHasNotTakenAreStrays) {
  agent.leads(now);
  hear(ledger::Load{.id = {1}, .device = device, .model = {0}});
  hear(transport::Profile{.order = {.id = {2}, .device = device, .model = {0}}, .row = {}});
  EXPECT_TRUE(take<wire::Report>().empty());
  EXPECT_TRUE(link.loads.empty());
  EXPECT_EQ(agent.counters().strays, 2U);
  hear(transport::Adopt{device, 0});
  hear(ledger::Load{.id = {1}, .device = device, .model = {0}});
  EXPECT_EQ(link.loads.size(), 1U);
}

// As the leader has learned them: a normal run lasts longer where real-time runs pause it.
TEST_F(AgentTest, TheNextLeaderIsToldOfNormalRunsWithTheTimeOfRealTimeRuns) {
  now = TimePoint{10s};
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  order();
  ended(30ms);
  for (int i = 0; i < 10; ++i) {
    order(Class::real_time);
    ended(100ms);
  }
  order();
  ended(30ms);  // a second of the last four was real-time
  EXPECT_EQ(told(Class::normal), (std::vector<Duration>{30ms, 40ms}));
  EXPECT_EQ(told(Class::real_time), std::vector<Duration>(10, 100ms));
}

TEST_F(AgentTest, StatisticsHearOfAllThatItsDeviceDoes) {
  using Lines = std::vector<std::string>;
  const auto reported = [&](ActionId id, ledger::ActionStatus status) {
    agent.on_report({.id = id, .status = status, .times = {}, .life = link.life, .device = device}, now);
  };
  using enum ledger::ActionStatus;
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  hear(ledger::Load{.id = {100}, .device = device, .model = {0}});
  reported(link.loads.back(), success);
  EXPECT_EQ(notes.take(), (Lines{"begun load", "taken load", "ended load"}));
  order();
  ended(1ms);
  order();
  ended(1ms, failed);
  EXPECT_EQ(notes.take(),
            (Lines{"begun infer of 1", "taken infer of 1", "ended infer of 1, held", "begun infer of 1",
                   "taken infer of 1", "ended infer of 1, not well, held"}));
  reported(link.infers.back(), success);
  EXPECT_EQ(notes.take(), Lines{"odd"});
  // Its leader goes, and it runs on.
  order();
  agent.leader_left(now);
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  ended(1ms);
  order();
  notes.take();
  lose();
  EXPECT_EQ(notes.take(), (Lines{"device lost", "lost", "it broke"}));
  hear(transport::Retire{device, 1});
  hear(transport::Probe{device});
  probed();
  EXPECT_EQ(notes.take(), Lines{"device back"});
  hear(ledger::Load{.id = {101}, .device = device, .model = {0}});
  reported(link.loads.back(), success);
  notes.take();
  agent.go({0}, now);
  EXPECT_EQ(notes.take(), Lines{"begun unload"});
  reported(link.unloads.back(), success);
  EXPECT_EQ(notes.take(), Lines{"ended unload, held"});
  EXPECT_TRUE(notes.places.empty());
}

TEST_F(AgentTest, TheNextLeaderIsToldOfNoRunThatBeganByOtherPlans) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  order();
  agent.change_times({0}, {{1, 2ms}}, now);
  ended(1ms);
  order();
  ended(2ms);
  EXPECT_EQ(told(Class::normal), std::vector<Duration>{2ms});
}

TEST_F(AgentTest, ARunIsReportedBeforeItsOutputsAreDelivered) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  order();
  EXPECT_EQ(connected, std::vector<std::string>{"host:1"}) << "before the first pull";
  ran(1ms);
  const auto reports = take<wire::Report>();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_TRUE(reports[0].delivers);
  EXPECT_EQ(reports[0].id, ActionId{ordered});
  EXPECT_TRUE(take<transport::Delivered>().empty());
  now += 3ms;
  agent.pushed(tickets, true, now);
  EXPECT_TRUE(take<wire::Report>().empty());
  const auto delivered = take<transport::Delivered>();
  ASSERT_EQ(delivered.size(), 1U);
  EXPECT_EQ(delivered[0].action, ActionId{ordered});
  EXPECT_EQ(delivered[0].took, 3ms);
  EXPECT_EQ(agent.actions_in_flight(), 0U);
  // Whoever runs nothing to an end delivers nothing.
  order();
  ended(1ms, ledger::ActionStatus::failed);
  EXPECT_FALSE(take<wire::Report>().at(0).delivers);
  EXPECT_TRUE(take<transport::Delivered>().empty());
}

// Tensors that nobody takes would fill its memory.
TEST_F(AgentTest, WithManyOutputsOnTheirWayARunIsReportedOnceItIsDelivered) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  std::vector<std::uint64_t> under_way;
  for (std::size_t i = 0; i < 16; ++i) {
    order();
    ran(1ms);
    under_way.push_back(tickets);
  }
  EXPECT_EQ(take<wire::Report>().size(), 16U);
  order();
  ran(1ms);
  EXPECT_TRUE(take<wire::Report>().empty());
  agent.pushed(tickets, true, now);
  const auto late = take<wire::Report>();
  ASSERT_EQ(late.size(), 1U);
  EXPECT_FALSE(late[0].delivers);
  EXPECT_TRUE(take<transport::Delivered>().empty());
  for (const std::uint64_t ticket : under_way) agent.pushed(ticket, false, now);
  EXPECT_EQ(take<transport::Delivered>().size(), 16U) << "also where nobody wants them";
  order();
  ran(1ms);
  EXPECT_TRUE(take<wire::Report>().at(0).delivers);
}

// A connection that breaks, or a client that has gone, says nothing of how long the way is.
TEST_F(AgentTest, HowLongOutputsTookIsToldOfThoseThatWereTaken) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  hear(transport::FrontendAt{0, "host:1"});
  const auto delivery = [&](const std::vector<Result<bool>>& answers) {
    ledger::Infer infer{.id = {++ordered}, .device = device, .model = {0}, .requests = {}, .expected = 1ms};
    std::vector<transport::RowReference> rows;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      infer.requests.push_back({i});
      rows.push_back({.row = {i}, .frontend = 0, .key = 1});
    }
    hear(transport::Infer{.order = infer, .rows = rows});
    for (std::size_t i = 0; i < answers.size(); ++i) agent.pulled(tickets - i, {}, now);
    ran(1ms);
    const std::uint64_t last = tickets;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      now += 3ms;
      agent.pushed(last - i, answers[i], now);
    }
    return take<transport::Delivered>().at(0).took;
  };
  const Result<bool> broken = fail(ErrorCode::unavailable, "it broke");
  EXPECT_EQ(delivery({true, true}), 6ms);
  EXPECT_EQ(delivery({true, broken}), 3ms);
  EXPECT_EQ(delivery({true, false}), 3ms);
  EXPECT_EQ(delivery({broken}), 0ms);
  EXPECT_EQ(delivery({false, broken}), 0ms);
}

TEST_F(AgentTest, OutputsAreDeliveredAlsoOfADeviceThatIsLost) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  order();
  ran(1ms);
  take<wire::Report>();
  lose();
  EXPECT_EQ(agent.actions_in_flight(), 1U);
  agent.pushed(tickets, true, now);
  EXPECT_EQ(take<transport::Delivered>().size(), 1U);
  EXPECT_EQ(agent.actions_in_flight(), 0U);
}

TEST_F(AgentTest, TheNextLeaderHearsOfNoEarlierDelivery) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  order();
  ran(1ms);
  agent.leader_left(now);
  agent.leads(now);
  sent.clear();
  agent.pushed(tickets, true, now);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(agent.actions_in_flight(), 0U);
}

TEST_F(AgentTest, WhoDrainsEndsWhatItHasAndTellsNoLeaderOfItsDevice) {
  const auto left = [&] {
    std::vector<std::uint32_t> out;
    for (const auto& told : take<transport::Drains>()) out.push_back(told.actions);
    return out;
  };
  using Left = std::vector<std::uint32_t>;
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  order();
  hear(transport::Drain{});
  EXPECT_EQ(left(), Left{1});
  take<wire::Report>();
  ended(1ms);
  EXPECT_EQ(take<wire::Report>().size(), 1U);
  EXPECT_EQ(left(), Left{0});
  agent.leader_left(now);
  sent.clear();
  agent.leads(now);
  agent.change_times({0}, {{1, 2ms}}, now);
  EXPECT_EQ(left(), Left{0});
  EXPECT_TRUE(sent.empty()) << "of models and devices nothing is told";
  hear(transport::Drain{.undo = true});
  EXPECT_EQ(take<transport::Drain>().size(), 1U);
  EXPECT_EQ(take<transport::ModelComes>().size(), 1U);
  EXPECT_EQ(take<transport::DeviceState>().size(), 1U);
  hear(transport::Drain{.undo = true});
  EXPECT_TRUE(sent.empty());
}

// A leader that orders the rows again at once does not fill the log.
TEST_F(AgentTest, EachLeaderHearsOfTheDevicesPlaceInTheOrder) {
  agent.leads(now);
  EXPECT_EQ(take<transport::DeviceState>().at(0).order, std::nullopt);
  SaidNotes silent;
  Agent third(static_cast<AgentOut&>(*this), silent, 2);
  IdleLink links[2];
  for (IdleLink& each : links) third.add_device(each);
  third.start(now);
  for (int leaders = 0; leaders < 2; ++leaders) {
    third.leads(now);
    const auto states = take<transport::DeviceState>();
    ASSERT_EQ(states.size(), 2U);
    EXPECT_EQ(states[0].order, 4U);
    EXPECT_EQ(states[1].order, 5U);
  }
  third.stop();
}

TEST_F(AgentTest, PullsThatFailAreWarnedOfOnceASecond) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  hear(transport::FrontendAt{0, "host:1"});
  may_warn = true;
  const auto fail_one = [&] {
    const ledger::Infer infer{
        .id = {++ordered}, .device = device, .model = {0}, .requests = {{0}}, .expected = 1ms};
    hear(transport::Infer{.order = infer, .rows = {{.row = {0}, .frontend = 0, .key = 1}}});
    agent.pulled(tickets, invalid("no worker of its"), now);
    hear(ledger::Stop{{ordered}, device});  // or the leader would hear of it later
  };
  for (int i = 0; i < 1000; ++i) fail_one();
  now += 1s - 1ns;
  fail_one();
  EXPECT_EQ(warned, (std::vector<std::string>{"no worker of its"}));
  now += 1ns;
  fail_one();
  now += 1s;
  fail_one();
  EXPECT_EQ(warned,
            (std::vector<std::string>{
                "no worker of its", "no worker of its; 1000 more pulls have failed since this was last said",
                "no worker of its"}));
  EXPECT_TRUE(link.infers.empty());
}

// The leader may order the rows again at once, and does so for as long as they wait.
TEST_F(AgentTest, AFrontendThatIsNotReachedIsTriedFiftyTimesASecondAtMost) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  for (const std::uint32_t frontend : {0U, 1U})
    hear(transport::FrontendAt{frontend, "host:" + std::to_string(frontend)});
  const auto order_of = [&](std::uint32_t frontend, Result<> pulled) {
    const ledger::Infer infer{
        .id = {++ordered}, .device = device, .model = {0}, .requests = {{0}}, .expected = 1ms};
    hear(transport::Infer{.order = infer, .rows = {{.row = {0}, .frontend = frontend, .key = 1}}});
    agent.pulled(tickets, std::move(pulled), now);
  };
  const Result<> unreached = fail(ErrorCode::unavailable, "no connection");
  order_of(0, unreached);
  EXPECT_EQ(take<wire::Report>().size(), 1U) << "the first time it is told at once";
  order_of(0, unreached);
  EXPECT_TRUE(take<wire::Report>().empty());
  order_of(1, {});
  EXPECT_EQ(link.infers.size(), 1U) << "others run meanwhile";
  ended(1ms);
  take<wire::Report>();
  EXPECT_EQ(agent.wake_at(), now + 20ms);
  agent.wake(now += 20ms);
  const auto told = take<wire::Report>();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].status, ledger::ActionStatus::stopped);
  EXPECT_EQ(told[0].id, ActionId{2});
  // One that is stopped meanwhile is told of at once, and once.
  order_of(0, unreached);
  hear(ledger::Stop{{ordered}, device});
  EXPECT_EQ(take<wire::Report>().size(), 1U);
  agent.wake(now += 20ms);
  EXPECT_TRUE(take<wire::Report>().empty());
  // Rows that are gone are nobody's fault.
  order_of(0, fail(ErrorCode::not_found, "the row is closed"));
  EXPECT_EQ(take<wire::Report>().size(), 1U);
  order_of(0, {});
  ended(1ms);
  order_of(0, unreached);
  EXPECT_EQ(take<wire::Report>().back().status, ledger::ActionStatus::stopped) << "it was reached in between";
}

TEST_F(AgentTest, ATracedRowHasSpansOfItsPullItsRunAndItsPush) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  hear(transport::FrontendAt{0, "host:1"});
  const ledger::Infer infer{
      .id = {++ordered}, .device = device, .model = {0}, .requests = {{0}, {1}}, .expected = 4ms};
  hear(transport::Infer{.order = infer,
                        .rows = {{.row = {0}, .frontend = 0, .key = 1, .trace = testing::sampled_row()},
                                 {.row = {1}, .frontend = 0, .key = 2}}});
  now += 2ms;
  agent.pulled(tickets - 1, {}, now);
  agent.pulled(tickets, {}, now);
  now += 6ms;
  ran(3ms);
  now += 1ms;
  agent.pushed(tickets - 1, true, now);
  now += 1ms;
  EXPECT_TRUE(spans.empty()) << "the action goes on";
  agent.pushed(tickets, true, now);
  ASSERT_EQ(spans.size(), 1U) << "the other row has no trace";
  EXPECT_EQ(spans[0]->of, testing::sampled_row());
  EXPECT_EQ(spans[0]->name, "work");
  EXPECT_EQ(spans[0]->model, "m");
  EXPECT_TRUE(spans[0]->remote);
  EXPECT_EQ(testing::parts_of(*spans[0]),
            (std::vector<std::string>{"pull 0-2", "window 2-5", "exec 5-8", "push 8-9"}));
  EXPECT_EQ(spans[0]->end - spans[0]->begin, 9ms);
  const auto number = [&](std::string_view name) {
    return std::ranges::find(spans[0]->numbers, name, &std::pair<std::string_view, std::int64_t>::first)
        ->second;
  };
  EXPECT_EQ(number("carillon.batch"), 2);
  EXPECT_EQ(number("carillon.predicted_us"), 4000);
}

TEST_F(AgentTest, ATracedRowOfALostDeviceSaysSo) {
  agent.leads(now);
  hear(transport::Adopt{device, 0});
  hear(transport::FrontendAt{0, "host:1"});
  const ledger::Infer infer{
      .id = {++ordered}, .device = device, .model = {0}, .requests = {{0}}, .expected = 1ms};
  hear(transport::Infer{.order = infer,
                        .rows = {{.row = {0}, .frontend = 0, .key = 1, .trace = testing::sampled_row()}}});
  agent.pulled(tickets, {}, now);
  lose();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0]->failed, "it broke");
}

}  // namespace
}  // namespace carillon::roles
