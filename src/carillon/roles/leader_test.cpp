#include "carillon/roles/leader.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/roles/testing/row_parts.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/scripted_scheduler.h"
#include "carillon/transport/codec.h"

namespace carillon::roles {
namespace {

using ledger::ActionStatus;
using schedule::testing::linear_model;
using schedule::testing::ScriptedScheduler;
using transport::Message;
using transport::Role;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

// What peers are told.
class Recorder final : public Out {
 public:
  void send(PeerId to, Message message) override { sent.emplace_back(to, std::move(message)); }
  void end(PeerId peer, std::string) override { ended.push_back(peer); }
  void warn(std::string text) override { warned.push_back(std::move(text)); }
  void traced(std::shared_ptr<const explain::RowSpans> of) override { spans.push_back(std::move(of)); }
  // Those of a kind to a peer, since the last look at them.
  template <typename What>
  std::vector<What> take(PeerId to) {
    std::vector<What> out;
    std::erase_if(sent, [&](const auto& each) {
      const auto* what = each.first == to ? std::get_if<What>(&each.second) : nullptr;
      if (what != nullptr) out.push_back(*what);
      return what != nullptr;
    });
    return out;
  }
  std::vector<std::pair<PeerId, Message>> sent;
  std::vector<std::string> warned;
  std::vector<PeerId> ended;
  std::vector<std::shared_ptr<const explain::RowSpans>> spans;
};

wire::Model model(std::uint32_t number, std::uint64_t hash = 7, std::string name = "m") {
  wire::Model out{.info = linear_model(number, 1ms, 1ms), .hash = hash};
  out.info.name = std::move(name);
  return out;
}

// Peers 1 and 2 are frontends; 11 and 12 workers, whose models and devices have numbers of their own.
class LeaderTest : public ::testing::Test {
 protected:
  explicit LeaderTest(LeaderOptions options = {}) { make(std::move(options)); }
  void make(LeaderOptions options = {}) {
    out = {};
    auto own = std::make_unique<ScriptedScheduler>();
    scheduler = own.get();
    leader = std::make_unique<Leader>(std::move(own), std::move(options), out);
    leader->start(at(0ms));
  }
  void frontend(PeerId peer) {
    join(peer, Role::frontend, "f" + std::to_string(peer));
    hear(peer, transport::RowsAt{"host:" + std::to_string(peer)});
  }
  void worker(PeerId peer, std::uint32_t device = 5, std::uint32_t number = 9) {
    join(peer, Role::worker, "w" + std::to_string(peer));
    hear(peer, transport::ModelComes{model(number)});
    device_comes(peer, device);
  }
  void device_comes(PeerId peer, std::uint32_t device, wire::Credit credit = {}) {
    hear(peer, transport::DeviceState{DeviceId{device}, 100, 1, credit});
    const auto retired = out.take<transport::Retire>(peer);
    ASSERT_EQ(retired.size(), 1U);
    EXPECT_EQ(retired[0].device, DeviceId{device});
    ASSERT_EQ(out.take<transport::Probe>(peer).size(), 1U);
    hear(peer, wire::ProbeReport{{}, retired[0].life, DeviceId{device}});
  }
  void join(PeerId peer, Role role, std::string id) {
    leader->joined(peer, {.cluster = "c", .id = std::move(id), .role = role}, now);
  }
  template <typename What>
  void hear(PeerId peer, What what) {
    leader->heard(peer, Message{std::move(what)}, now);
  }
  transport::Offer offer(std::uint64_t row, bool more = false, std::uint32_t of = 0) const {
    return {.row = {.id = {row}, .model = {of}, .app = {}, .arrival = now, .deadline = now + 50ms},
            .more = more,
            .key = 1000 + row};
  }
  schedule::Infer infer(std::uint64_t action, std::vector<RequestId> rows, std::uint32_t device = 0) const {
    return {.id = {action},
            .device = {device},
            .model = {0},
            .requests = std::move(rows),
            .window = {at(0ms), at(50ms)},
            .expected = 2ms};
  }
  // The scheduler answers the next event of kind E with these.
  template <typename E>
  void on_next(schedule::Actions orders) {
    scheduler->script = [this, orders = std::move(orders)](const schedule::Event& event, TimePoint,
                                                           schedule::Actions& actions, TimePoint&) {
      if (!std::holds_alternative<E>(event)) return;
      actions.insert(actions.end(), orders.begin(), orders.end());
      scheduler->script = nullptr;
    };
  }
  wire::Report report(std::uint64_t action, ActionStatus status, std::uint32_t device = 5,
                      std::uint32_t life = 0) const {
    wire::Report told{.id = {action}, .status = status, .life = life, .device = DeviceId{device}};
    told.times.exec_start = now - 1ms;
    told.times.exec_end = now;
    return told;
  }

  Recorder out;
  ScriptedScheduler* scheduler = nullptr;
  std::unique_ptr<Leader> leader;
  TimePoint now = at(1s);
};

using Rows = std::vector<RequestId>;

TEST_F(LeaderTest, ABatchHasRowsOfTwoFrontendsInEachOnesNumbers) {
  worker(11);
  frontend(1);
  frontend(2);
  ASSERT_EQ(out.take<transport::ModelComes>(1).size(), 1U);
  const auto addresses = out.take<transport::FrontendAt>(11);
  ASSERT_EQ(addresses.size(), 2U);
  EXPECT_EQ(addresses[1].address, "host:2");
  leader->heard(1, {offer(70, true), offer(71, true)}, now);
  EXPECT_EQ(scheduler->heard<schedule::AllArrived>().size(), 1U);
  on_next<schedule::RequestArrived>({infer(4, {{0}, {1}, {2}})});
  hear(2, offer(70));

  const auto first = out.take<transport::Sent>(1), second = out.take<transport::Sent>(2);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].rows, (Rows{{70}, {71}}));
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].rows, (Rows{{70}}));
  const auto orders = out.take<transport::Infer>(11);
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].order.device, DeviceId{5});
  EXPECT_EQ(orders[0].order.model, ModelId{9});
  ASSERT_EQ(orders[0].rows.size(), 3U);
  EXPECT_EQ(orders[0].rows[0], (transport::RowReference{{70}, addresses[0].frontend, 1070}));
  EXPECT_EQ(orders[0].rows[2], (transport::RowReference{{70}, addresses[1].frontend, 1070}));

  now += 3ms;
  hear(11, report(4, ActionStatus::success));
  const auto ended = out.take<transport::Ended>(1);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].rows, (Rows{{70}, {71}}));
  EXPECT_EQ(ended[0].report.device, DeviceId{0});
  EXPECT_EQ(out.take<transport::Ended>(2).size(), 1U);
  EXPECT_EQ(leader->rows_open(), 0U);
}

// A frontend would end the stream at a message of more rows than a frame may have.
TEST_F(LeaderTest, NoMessageHasMoreRowsThanAFrameMayHave) {
  worker(11);
  frontend(1);
  constexpr std::size_t most = transport::FrameLimits{}.rows, count = most + 10;
  std::vector<RequestId> all;
  std::vector<Message> offers;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back({i});
    offers.emplace_back(offer(i, true));
  }
  on_next<schedule::AllArrived>({infer(4, all)});
  leader->heard(1, std::move(offers), now);
  const auto sent = out.take<transport::Sent>(1);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[0].rows.size(), most);
  EXPECT_EQ(sent[1].rows.size(), count - most);
}

TEST_F(LeaderTest, FrontendsShareTheCredit) {
  worker(11);
  frontend(1);
  const auto alone = out.take<transport::OfferCredit>(1);
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_EQ(alone[0].taken, 0U);
  EXPECT_EQ(alone[0].most, LeaderOptions{}.offers_under_way);
  frontend(2);
  EXPECT_EQ(out.take<transport::OfferCredit>(2).at(0).most, LeaderOptions{}.offers_under_way / 2);
  // Refused rows count as taken up. So do rows that are open already.
  leader->heard(1, {offer(70, true), offer(71, true, 99), offer(70)}, now);
  const auto shared = out.take<transport::OfferCredit>(1);
  ASSERT_EQ(shared.size(), 1U);
  EXPECT_EQ(shared[0].taken, 3U);
  EXPECT_EQ(shared[0].most, LeaderOptions{}.offers_under_way / 2);
  hear(1, transport::Withdraw{{70}, {}});
  EXPECT_TRUE(out.take<transport::OfferCredit>(1).empty());
}

TEST_F(LeaderTest, ARefusalIsInTheFrontendsNumberAndWithAProspect) {
  worker(11);
  frontend(1);
  on_next<schedule::RequestArrived>({schedule::Refuse{{0}, ledger::Reason::cannot_finish, at(2s)}});
  hear(1, offer(33));
  const auto verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].refusal.request, RequestId{33});
  EXPECT_EQ(verdicts[0].prospect.devices, 1U);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(LeaderTest, WhatCannotBeTakenIsRefused) {
  worker(11);
  frontend(1);
  hear(1, offer(1, false, 8));
  hear(1, offer(2));
  hear(1, offer(2));  // open already
  auto unknown_app = offer(3);
  unknown_app.row.app = AppId{4};
  hear(1, unknown_app);
  const auto verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 2U);
  EXPECT_EQ(verdicts[0].refusal.request, RequestId{1});
  EXPECT_EQ(verdicts[0].refusal.reason, ledger::Reason::no_model);
  EXPECT_EQ(verdicts[1].refusal.request, RequestId{3});
  EXPECT_EQ(leader->strays().rows, 2U);
  EXPECT_EQ(leader->rows_open(), 1U);
}

TEST_F(LeaderTest, AFrontendThatLeavesHasItsRowsWithdrawn) {
  worker(11);
  frontend(1);
  on_next<schedule::RequestArrived>({infer(4, {{0}})});
  leader->heard(1, {offer(70), offer(71)}, now);
  leader->left(1, "gone", now);
  EXPECT_EQ(scheduler->heard<schedule::RequestCancelled>().size(), 2U);
  EXPECT_EQ(leader->rows_open(), 0U);
  hear(11, report(4, ActionStatus::success));
  EXPECT_EQ(leader->dispatch().ledger().open_requests(), 0U);
  EXPECT_TRUE(out.take<transport::Ended>(1).empty());
}

TEST_F(LeaderTest, AWorkersRowsAreLostWithItAndItsDeviceKeepsItsNumber) {
  worker(11);
  frontend(1);
  worker(12);
  on_next<schedule::RequestArrived>({infer(4, {{0}})});
  hear(1, offer(70));
  on_next<schedule::DeviceChanged>({infer(5, {{0}}, 1)});
  leader->left(11, "its stream ended", now);
  const auto lost = out.take<transport::Lost>(1);
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].rows, (Rows{{70}}));
  EXPECT_EQ(lost[0].why, "its worker w11 has gone: its stream ended");
  EXPECT_EQ(out.take<transport::Infer>(12).size(), 1U);
  EXPECT_EQ(leader->dispatch().devices_alive(), 1U);

  join(13, Role::worker, "w11");
  hear(13, transport::DeviceState{DeviceId{5}, 100, 1, {}});
  const auto retired = out.take<transport::Retire>(13);
  ASSERT_EQ(retired.size(), 1U);
  EXPECT_EQ(retired[0].life, 1U);
  hear(13, wire::ProbeReport{{}, 1, DeviceId{5}});
  EXPECT_EQ(leader->dispatch().devices_alive(), 2U);
  EXPECT_EQ(leader->dispatch().devices(), 2U);
  hear(12, report(5, ActionStatus::success));
  EXPECT_EQ(leader->rows_open(), 0U);
}

// A client is to know whether it may come again: what a worker's end says of a row differs from what a
// device's failure says.
TEST_F(LeaderTest, AWorkerThatGoesIsNotToBlameOnItsRows) {
  using ledger::Reason;
  const schedule::Refuse refusal{RequestId{0}, Reason::device_failed, TimePoint::max()};
  wire::Report broken = report(0, ActionStatus::failed);
  broken.device_lost = true;
  const struct {
    const char* what;
    bool other;  // worker is there
    std::function<void()> ends;
    Reason reason;
    std::uint32_t devices;
  } rows[] = {
      {"the worker goes", true, [&] { leader->left(11, "killed", now); }, Reason::deadline_passed, 1},
      {"the last goes, and is not back in time", false,
       [&] {
         leader->left(11, "killed", now);
         EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
         leader->wake(now += 500ms - 1ns);
         EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
         leader->wake(now += 1ns);
       },
       Reason::no_device, 0},
      {"it has come anew", true, [&] { join(13, Role::worker, "w11"); }, Reason::deadline_passed, 1},
      {"the device breaks", true, [&] { hear(11, broken); }, Reason::device_failed, 1},
      {"the last device breaks", false, [&] { hear(11, broken); }, Reason::device_failed, 0},
      {"the device hangs", true, [&] { hear(1, offer(71)); }, Reason::device_failed, 1},
      {"its worker is not heard, and another is not either", true,
       [&] {
         leader->unheard({"w11", "w12"});
         hear(1, offer(71));
       },
       Reason::deadline_passed, 1},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    make();
    worker(11);
    if (row.other) worker(12);
    frontend(1);
    on_next<schedule::RequestArrived>({infer(4, {{0}})});
    hear(1, offer(70));
    scheduler->script = [&](const schedule::Event& event, TimePoint, schedule::Actions& actions, TimePoint&) {
      if (std::holds_alternative<schedule::RequestArrived>(event))
        actions.emplace_back(schedule::GiveUp{DeviceId{0}});
      actions.emplace_back(refusal);
      scheduler->script = nullptr;
    };
    row.ends();
    const auto verdicts = out.take<wire::Verdict>(1);
    ASSERT_EQ(verdicts.size(), 1U);
    EXPECT_EQ(verdicts[0].refusal.reason, row.reason);
    EXPECT_EQ(verdicts[0].prospect.devices, row.devices);
  }
}

// Of two devices that are lost in one step, one breaks and the worker of the other goes.
TEST_F(LeaderTest, EachRowIsToldOfItsOwnLoss) {
  worker(11);
  worker(12);
  worker(13);
  frontend(1);
  on_next<schedule::AllArrived>({infer(4, {{0}}), infer(5, {{1}}, 1)});
  leader->heard(1, {offer(70, true), offer(71, true)}, now);
  on_next<schedule::DeviceChanged>(
      {schedule::GiveUp{DeviceId{1}},
       schedule::Refuse{RequestId{0}, ledger::Reason::device_failed, TimePoint::max()},
       schedule::Refuse{RequestId{1}, ledger::Reason::device_failed, TimePoint::max()}});
  leader->left(11, "killed", now);
  const auto verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 2U);
  EXPECT_EQ(verdicts[0].refusal.reason, ledger::Reason::deadline_passed);
  EXPECT_EQ(verdicts[1].refusal.reason, ledger::Reason::device_failed);
}

TEST_F(LeaderTest, ARowThatIsLostWithThreeWorkersMayBeWhatEndsThem) {
  frontend(1);
  for (PeerId peer = 11; peer < 15; ++peer) worker(peer);
  on_next<schedule::RequestArrived>({infer(4, {{0}})});
  hear(1, offer(70));
  on_next<schedule::DeviceChanged>({infer(5, {{0}}, 1)});
  leader->left(11, "killed", now);
  on_next<schedule::DeviceChanged>({infer(6, {{0}}, 2)});
  leader->left(12, "killed", now);
  on_next<schedule::DeviceChanged>(
      {schedule::Refuse{RequestId{0}, ledger::Reason::device_failed, TimePoint::max()}});
  leader->left(13, "killed", now);
  const auto verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].refusal.reason, ledger::Reason::device_failed);
}

// It is the only worker, and comes back each time.
TEST_F(LeaderTest, ARowThatEndsItsWorkerThreeTimesWaitsForItNoMore) {
  worker(11);
  frontend(1);
  on_next<schedule::RequestArrived>({infer(0, {{0}})});
  hear(1, offer(70));
  for (std::uint32_t times = 1; times <= 3; ++times) {
    on_next<schedule::DeviceChanged>(
        {schedule::Refuse{RequestId{times - 1}, ledger::Reason::no_device, TimePoint::max()}});
    leader->left(10 + times, "killed", now);
    if (times == 3) break;
    EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
    join(11 + times, Role::worker, "w11");
    hear(11 + times, transport::ModelComes{model(9)});
    on_next<schedule::AllArrived>({infer(times, {{times}})});
    device_comes(11 + times, 5);
    EXPECT_EQ(out.take<transport::Infer>(11 + times).size(), 1U);
  }
  const auto verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].refusal.reason, ledger::Reason::device_failed);
  EXPECT_EQ(leader->rows_open(), 0U);
}

// As after a stop of the leader's host: all streams broke, and the frontend is the first that is back.
TEST_F(LeaderTest, RowsWaitForAWorkerWhoseStreamBroke) {
  const auto refuse_what_comes = [&] {
    scheduler->script = [&](const schedule::Event& event, TimePoint, schedule::Actions& actions, TimePoint&) {
      const auto* const arrival = std::get_if<schedule::RequestArrived>(&event);
      if (arrival == nullptr || leader->dispatch().devices_alive() > 0) return;
      actions.emplace_back(
          schedule::Refuse{arrival->request.id, ledger::Reason::no_device, TimePoint::max()});
    };
  };
  worker(11);
  frontend(1);
  leader->left(1, "cut", now);
  leader->left(11, "cut", now);
  now += 5s;
  join(20, Role::worker, "w11");  // and breaks off at once
  leader->left(20, "cut", now);
  join(21, Role::worker, "w21");
  now += 1s;
  frontend(2);
  refuse_what_comes();
  leader->heard(2, {offer(70, true), offer(71)}, now);
  EXPECT_TRUE(out.take<wire::Verdict>(2).empty());
  hear(2, transport::Withdraw{RequestId{71}, ModelId{0}});
  EXPECT_EQ(leader->rows_open(), 1U);
  now += 100ms;
  join(12, Role::worker, "w11");
  hear(12, transport::ModelComes{model(9)});
  EXPECT_TRUE(out.take<wire::Verdict>(2).empty());
  device_comes(12, 5);
  const auto again = scheduler->heard<schedule::RequestArrived>();
  ASSERT_EQ(again.size(), 3U);
  EXPECT_EQ(again[2].request.arrival, now - 100ms);
  on_next<schedule::RequestArrived>({infer(4, {again[2].request.id, {again[2].request.id.value + 1}})});
  hear(2, offer(72));
  const auto orders = out.take<transport::Infer>(12);
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].rows[0].row, RequestId{70});
  now += 3ms;
  hear(12, report(4, ActionStatus::success, 5, 1));
  EXPECT_EQ(leader->rows_open(), 0U);
  EXPECT_TRUE(out.take<wire::Verdict>(2).empty());
}

// Others come and go meanwhile, and so does its own worker.
TEST_F(LeaderTest, ARowWaitsForItsWorkerHalfASecondAtMost) {
  make({.dispatch = {.revivals = {.pause = 10s}}});
  scheduler->script = [&](const schedule::Event& event, TimePoint, schedule::Actions& actions, TimePoint&) {
    if (const auto* const arrival = std::get_if<schedule::RequestArrived>(&event))
      actions.emplace_back(
          schedule::Refuse{arrival->request.id, ledger::Reason::no_device, TimePoint::max()});
  };
  worker(11);
  frontend(1);
  leader->left(11, "cut", now);
  leader->heard(1, {offer(70, true), offer(71)}, now);
  hear(1, transport::Withdraw{RequestId{71}, ModelId{0}});
  const TimePoint until = now + 500ms;
  EXPECT_EQ(leader->wake_at(), until);
  for (PeerId peer = 12; peer < 20; ++peer) {
    now += 60ms;
    join(peer, Role::worker, peer % 2 == 0 ? "w12" : "w11");
    hear(peer, transport::ModelComes{model(9)});
    leader->left(peer, "cut", now);
    EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
    EXPECT_EQ(leader->wake_at(), until);
  }
  leader->wake(now = until);
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U);
  EXPECT_EQ(leader->rows_open(), 0U);
  // One that nobody wants any more is waited for no longer.
  hear(1, offer(72));
  EXPECT_EQ(leader->wake_at(), now + 480ms) << "the last has left 20 ms ago";
  hear(1, transport::Withdraw{RequestId{72}, ModelId{0}});
  EXPECT_EQ(leader->rows_open(), 0U);
  leader->wake(now += 480ms);
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
}

// It comes back with its device each time, and goes.
TEST_F(LeaderTest, ARowThatWaitedForItsWorkerDoesSoInAllOnce) {
  make({.dispatch = {.revivals = {.pause = 10s}}});
  worker(11);
  frontend(1);
  scheduler->script = [&](const schedule::Event& event, TimePoint, schedule::Actions& actions, TimePoint&) {
    if (const auto* const arrival = std::get_if<schedule::RequestArrived>(&event))
      if (leader->dispatch().devices_alive() == 0)
        actions.emplace_back(
            schedule::Refuse{arrival->request.id, ledger::Reason::no_device, TimePoint::max()});
    if (const auto* const change = std::get_if<schedule::DeviceChanged>(&event); change && !change->alive)
      actions.emplace_back(schedule::Refuse{RequestId{1}, ledger::Reason::no_device, TimePoint::max()});
  };
  leader->left(11, "cut", now);
  hear(1, offer(70));
  now += 400ms;
  join(12, Role::worker, "w11");
  hear(12, transport::ModelComes{model(9)});
  device_comes(12, 5);
  EXPECT_EQ(scheduler->heard<schedule::RequestArrived>().size(), 2U);
  leader->left(12, "cut", now);
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
  EXPECT_EQ(leader->wake_at(), now + 100ms);
  leader->wake(now += 100ms);
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(LeaderTest, RowsThatNoReturnHelpsAreRefusedAtOnce) {
  worker(11);
  join(12, Role::worker, "w12");
  hear(12, transport::ModelComes{model(3, 7, "other")});
  device_comes(12, 0);
  frontend(1);
  leader->left(12, "cut", now);
  const auto refuse = [&](std::uint64_t id) {
    on_next<schedule::RequestArrived>(
        {schedule::Refuse{RequestId{id}, ledger::Reason::no_device, TimePoint::max()}});
  };
  refuse(0);
  hear(1, offer(70));
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U) << "a worker that is there has it";
  leader->left(11, "cut", now);
  now += 500ms;
  refuse(1);
  hear(1, offer(71, false, 1));
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U) << "too late";
  leader->left(1, "cut", now);
  frontend(2);
  refuse(2);
  hear(2, offer(72, false, 1));
  EXPECT_TRUE(out.take<wire::Verdict>(2).empty()) << "the first that is back";
  EXPECT_EQ(leader->rows_open(), 1U);
  leader->left(2, "cut", now);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(LeaderTest, AModelThatDiffersIsNotUsedUntilTheOtherGoes) {
  worker(11);
  frontend(1);
  join(12, Role::worker, "w12");
  hear(12, transport::ModelComes{model(0, 8)});
  ASSERT_EQ(out.warned.size(), 1U);
  EXPECT_EQ(out.warned[0],
            "worker w12: model 'm' version 1 is not used: its file or config has the hash 8, and must have 7 "
            "as on other workers");
  out.take<transport::ModelComes>(1);
  out.sent.clear();
  hear(11, transport::ModelGoes{ModelId{9}});
  ASSERT_EQ(out.sent.size(), 2U);
  const auto* const come = std::get_if<transport::ModelComes>(&out.sent[0].second);
  ASSERT_NE(come, nullptr) << "first, so that no client hears that nobody has the model";
  EXPECT_EQ(come->model.hash, 8U);
  EXPECT_EQ(come->model.info.id, ModelId{1});
  EXPECT_EQ(out.take<transport::ModelGoes>(1).size(), 1U);
}

TEST_F(LeaderTest, AModelStaysForAWhileOnceItsLastWorkerLeft) {
  worker(11);
  frontend(1);
  leader->left(11, "gone", now);
  EXPECT_EQ(leader->models(), 1U);
  now += 9s;
  leader->wake(now);
  EXPECT_EQ(leader->models(), 1U);
  out.take<transport::ModelGoes>(1);
  now += 1s;
  leader->wake(now);
  EXPECT_EQ(leader->models(), 0U);
  EXPECT_EQ(out.take<transport::ModelGoes>(1).size(), 1U);
}

TEST_F(LeaderTest, AnOrderForAModelThatTheWorkerLacksFailsInTheNextStep) {
  worker(11);
  frontend(1);
  join(12, Role::worker, "w12");
  device_comes(12, 0);
  on_next<schedule::RequestArrived>({infer(4, {{0}}, 1)});
  hear(1, offer(70));
  EXPECT_TRUE(out.take<transport::Infer>(12).empty());
  EXPECT_EQ(leader->wake_at(), now);
  leader->wake(now);
  const auto ended = out.take<transport::Ended>(1);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].report.status, ActionStatus::not_loaded) << "the scheduler loads it elsewhere";
  EXPECT_EQ(ended[0].report.error, "worker w12 does not have model 'm' version 1");
  EXPECT_EQ(leader->rows_open(), 1U);
}

// Workers' models may differ, and a model that needs no LOAD would be on all of their devices.
TEST_F(LeaderTest, AModelWithoutWeightsIsWhereItsWorkersAre) {
  const auto told = [&] { return scheduler->heard<schedule::ModelChanged>().back().info->pages; };
  join(11, Role::worker, "w11");
  hear(11, transport::ModelComes{model(9)});
  const std::uint64_t page = told();
  auto without = model(4, 7, "without");
  without.info.pages = 0;
  hear(11, transport::ModelComes{without});
  device_comes(11, 5);
  frontend(1);
  EXPECT_EQ(told(), 0U) << "all workers have it";
  const std::uint64_t pages = scheduler->heard<schedule::DeviceChanged>().back().pages;
  EXPECT_EQ(pages / page, 100U);
  EXPECT_GE(pages % page, LeaderOptions{}.max_models) << "a part of a page for each";
  join(12, Role::worker, "w12");
  EXPECT_EQ(told(), 0U);
  device_comes(12, 0);
  EXPECT_EQ(told(), 1U);
  // Its LOAD is no work, and tells who has it.
  const Window window{at(0ms), at(2s)};
  on_next<schedule::RequestArrived>(
      {schedule::Load{{3}, {0}, {1}, window, 8ms}, schedule::Load{{4}, {1}, {1}, window, 8ms}});
  hear(1, offer(70));
  leader->wake(now);
  EXPECT_TRUE(out.take<ledger::Load>(11).empty() && out.take<ledger::Load>(12).empty());
  const auto done = scheduler->heard<schedule::ActionDone>();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, ActionStatus::success);
  EXPECT_EQ(done[1].status, ActionStatus::failed);
  hear(12, transport::ModelComes{without});
  EXPECT_EQ(told(), 0U);
  hear(12, transport::ModelGoes{ModelId{4}});
  EXPECT_EQ(told(), 1U);
  leader->left(12, "gone", now);
  EXPECT_EQ(told(), 0U);
}

TEST_F(LeaderTest, WhatNoWorkerHasIsRefusedAsTheFaultOfNoDevice) {
  worker(11);
  frontend(1);
  join(12, Role::worker, "w12");
  device_comes(12, 0);
  // Its worker has a device no more, and the scheduler tries the other.
  hear(11,
       wire::Report{.id = {}, .status = ActionStatus::failed, .device_lost = true, .device = DeviceId{5}});
  on_next<schedule::RequestArrived>({schedule::Refuse{{0}, ledger::Reason::device_failed, TimePoint::max()}});
  hear(1, offer(70));
  auto verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].refusal.reason, ledger::Reason::no_device);
  // Its worker is gone: no device is tried.
  leader->left(11, "gone", now);
  now += 600ms;
  const std::size_t heard = scheduler->heard<schedule::RequestArrived>().size();
  hear(1, offer(71));
  verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].refusal.reason, ledger::Reason::no_device);
  EXPECT_EQ(scheduler->heard<schedule::RequestArrived>().size(), heard);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(LeaderTest, FrontendsHearOfModelsThatNoWorkerHasForNow) {
  make({.dispatch = {.revivals = {.pause = 10s}}});
  worker(11);
  frontend(1);
  leader->left(11, "its stream broke", now);
  EXPECT_EQ(leader->wake_at(), now + 500ms) << "it may be back at once";
  leader->wake(now += 500ms);
  auto went = out.take<transport::ModelGoes>(1);
  ASSERT_EQ(went.size(), 1U);
  EXPECT_TRUE(went[0].for_now);
  frontend(2);
  EXPECT_EQ(out.take<transport::ModelComes>(2).size(), 1U);
  ASSERT_EQ((went = out.take<transport::ModelGoes>(2)).size(), 1U);
  EXPECT_TRUE(went[0].for_now);
  out.take<transport::ModelComes>(1);
  worker(12);
  EXPECT_EQ(out.take<transport::ModelComes>(1).size(), 1U);
  leader->wake(now += 20s);
  EXPECT_TRUE(out.take<transport::ModelGoes>(1).empty());
  leader->left(12, "its stream broke", now);
  worker(13);
  leader->wake(now += 500ms);
  EXPECT_TRUE(out.take<transport::ModelGoes>(1).empty()) << "another has it";
}

TEST_F(LeaderTest, WithoutCreditARowComesBack) {
  join(11, Role::worker, "w11");
  hear(11, transport::ModelComes{model(9)});
  device_comes(11, 5, {.infers = 0, .loads = 1});
  frontend(1);
  on_next<schedule::RequestArrived>({infer(4, {{0}})});
  hear(1, offer(70));
  EXPECT_EQ(out.take<transport::Sent>(1).size(), 1U);
  EXPECT_EQ(out.take<transport::CameBack>(1).size(), 1U);
  EXPECT_TRUE(out.take<transport::Infer>(11).empty());
}

TEST_F(LeaderTest, ALoadIsInTheWorkersNumbersAndComesFirst) {
  worker(11);
  frontend(1);
  const Window window{at(0ms), at(2s)};
  on_next<schedule::RequestArrived>({schedule::Load{{3}, {0}, {0}, window, 8ms}, infer(4, {{0}})});
  hear(1, offer(70));
  (void)out.take<transport::OfferCredit>(1);
  ASSERT_GE(out.sent.size(), 2U);
  const auto* load = std::get_if<ledger::Load>(&out.sent[out.sent.size() - 3].second);
  ASSERT_NE(load, nullptr);
  EXPECT_EQ(*load, (ledger::Load{{3}, DeviceId{5}, ModelId{9}, window, 8ms}));
  EXPECT_TRUE(std::holds_alternative<transport::Infer>(out.sent.back().second));
  hear(11, report(3, ActionStatus::success));
  EXPECT_TRUE(leader->dispatch().ledger().holds({0}, {0}));
}

TEST_F(LeaderTest, AWithdrawnRowIsHeardOfNoMore) {
  worker(11);
  frontend(1);
  on_next<schedule::RequestArrived>({infer(4, {{0}})});
  leader->heard(1, {offer(70), offer(71)}, now);
  out.sent.clear();
  leader->heard(1, {transport::Withdraw{{70}, {}}, transport::Withdraw{{71}, {}}}, now);
  EXPECT_EQ(scheduler->heard<schedule::RequestCancelled>().size(), 2U);
  EXPECT_EQ(leader->rows_open(), 0U);
  hear(11, report(4, ActionStatus::success));
  EXPECT_TRUE(out.sent.empty());
}

TEST_F(LeaderTest, ABadRowIsTurnedDownAndTheOthersEnd) {
  worker(11);
  frontend(1);
  on_next<schedule::AllArrived>({infer(4, {{0}, {1}})});
  leader->heard(1, {offer(70, true), offer(71, true)}, now);
  wire::Report told = report(4, ActionStatus::success);
  told.bad_rows = {{.row = 1, .error = {ErrorCode::invalid_argument, "bad"}}};
  hear(11, told);
  const auto down = out.take<transport::TurnedDown>(1);
  ASSERT_EQ(down.size(), 1U);
  EXPECT_EQ(down[0].row, RequestId{71});
  const auto ended = out.take<transport::Ended>(1);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].rows, (Rows{{70}}));
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(LeaderTest, AnOrderToLoadGoesToAllWorkersAlsoToThoseThatComeLater) {
  worker(11);
  frontend(1);
  hear(1, transport::ModelOrder{.order = 7, .model = "m"});
  worker(12);
  hear(12, transport::ModelOrdered{.order = out.take<transport::ModelOrder>(12).at(0).order});
  const auto told = out.take<transport::ModelOrder>(11);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].model, "m");
  hear(11, transport::ModelOrdered{.order = told[0].order});
  const auto done = out.take<transport::ModelOrdered>(1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].order, 7U);
  EXPECT_TRUE(done[0].result);
  worker(13);
  EXPECT_EQ(out.take<transport::ModelOrder>(13).size(), 1U);
  hear(1, transport::ModelOrder{.order = 8, .model = "m", .unload = true});
  for (const PeerId peer : {11, 12, 13}) leader->left(peer, "killed", now);
  EXPECT_EQ(out.take<transport::ModelOrdered>(1).at(0).result.error().message,
            "worker w11 has gone, and may have carried out the order");
}

class DeliveryTest : public LeaderTest {
 protected:
  // Worker 11 has run action 4 with rows 70 and 71 of frontend 1, whose outputs are on their way.
  DeliveryTest() {
    worker(11);
    worker(12);
    frontend(1);
    on_next<schedule::AllArrived>({infer(4, {{0}, {1}})});
    leader->heard(1, {offer(70, true), offer(71, true)}, now);
    wire::Report told = report(4, ActionStatus::success);
    told.delivers = true;
    hear(11, told);
    out.take<transport::Sent>(1);
  }
};

TEST_F(DeliveryTest, ADeviceIsFreeAtOnceAndItsRowsAreOverOnceTheyAreDelivered) {
  EXPECT_EQ(scheduler->heard<schedule::ActionDone>().size(), 1U);
  EXPECT_TRUE(out.take<transport::Ended>(1).empty());
  EXPECT_EQ(leader->rows_open(), 2U);
  hear(11, transport::Delivered{ActionId{4}, 3ms});
  const auto ended = out.take<transport::Ended>(1);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].rows, (Rows{{70}, {71}}));
  EXPECT_EQ(leader->rows_open(), 0U);
  out.sent.clear();
  hear(11, transport::Delivered{ActionId{4}, 3ms});
  EXPECT_TRUE(out.sent.empty());
}

TEST_F(DeliveryTest, ARowMayBeWithdrawnMeanwhile) {
  hear(1, transport::Withdraw{{70}, {}});
  EXPECT_EQ(leader->rows_open(), 1U);
  EXPECT_TRUE(scheduler->heard<schedule::RequestCancelled>().empty()) << "for the scheduler it is over";
  leader->left(1, "gone", now);
  EXPECT_EQ(leader->rows_open(), 0U);
  hear(11, transport::Delivered{ActionId{4}, 3ms});
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(DeliveryTest, RowsWhoseWorkerGoesBeforeAreOfferedOnceMore) {
  hear(1, transport::Withdraw{{71}, {}});
  on_next<schedule::AllArrived>({infer(5, {{2}}, 1)});
  leader->left(11, "killed", now);
  const auto lost = out.take<transport::Lost>(1);
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].rows, Rows{{70}});
  const auto arrived = scheduler->heard<schedule::RequestArrived>();
  ASSERT_EQ(arrived.size(), 3U);
  EXPECT_EQ(leader->reoffered(), 1U);
  EXPECT_EQ(arrived[2].request.deadline, arrived[0].request.deadline);
  EXPECT_EQ(out.take<transport::Sent>(1).at(0).rows, Rows{{70}});
  EXPECT_EQ(out.take<transport::Infer>(12).at(0).rows.at(0).row, RequestId{70});
  hear(12, report(5, ActionStatus::success));
  EXPECT_EQ(out.take<transport::Ended>(1).at(0).rows, Rows{{70}});
  EXPECT_EQ(leader->rows_open(), 0U);
}

// Their worker and their frontend are there, and do not reach each other.
TEST_F(DeliveryTest, RowsWhoseOutputsHangAreOfferedOnceMoreASecondAfterTheirDeadline) {
  const TimePoint deadline = now + 50ms;
  hear(1, transport::Withdraw{{71}, {}});
  EXPECT_EQ(leader->wake_at(), deadline + 1s);
  leader->wake(deadline + 1s - 1ns);
  EXPECT_TRUE(out.take<transport::Lost>(1).empty());
  on_next<schedule::AllArrived>(
      {schedule::Refuse{RequestId{2}, ledger::Reason::cannot_finish, TimePoint::max()}});
  leader->wake(now = deadline + 1s);
  const auto lost = out.take<transport::Lost>(1);
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].rows, Rows{{70}});
  const auto verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].refusal.request, RequestId{70});
  EXPECT_EQ(leader->rows_open(), 0U);
  EXPECT_EQ(leader->wake_at(), TimePoint::max());
  out.sent.clear();
  hear(11, transport::Delivered{ActionId{4}, 3ms});
  EXPECT_TRUE(out.sent.empty());
}

TEST_F(DeliveryTest, OutputsOfALateRunAreWaitedForASecondAfterItsReport) {
  now += 300ms;  // 250 ms after the deadline
  auto late = offer(72);
  late.row.deadline = now - 250ms;
  on_next<schedule::RequestArrived>({infer(5, {{2}}, 1)});
  hear(1, late);
  wire::Report told = report(5, ActionStatus::success);
  told.delivers = true;
  hear(12, told);
  hear(11, transport::Delivered{ActionId{4}, 3ms});
  leader->wake(now + 1s - 1ns);
  EXPECT_TRUE(out.take<transport::Lost>(1).empty());
  leader->wake(now += 1s);
  EXPECT_EQ(out.take<transport::Lost>(1).size(), 1U);
  // Without a deadline there is no end to it but the connection's.
  now += 1s;
  auto endless = offer(73);
  endless.row.deadline = TimePoint::max();
  on_next<schedule::RequestArrived>({infer(6, {{4}}, 1)});
  hear(1, endless);
  told = report(6, ActionStatus::success);
  told.delivers = true;
  hear(12, told);
  EXPECT_EQ(leader->wake_at(), TimePoint::max());
}

// How long the way is, the margins of the run's class learn, from what is known to have gone it.
class WayTest : public LeaderTest {
 protected:
  static constexpr schedule::Environment told{.measured = true};
  WayTest() {
    scheduler->ledger->planned_by(told, true);
    scheduler->ledger->classed_by(told, true);
    worker(11);
    worker(12);
    frontend(1);
  }
  // A run of worker 11's device, whose report says that its order took so long. Its outputs are on their way.
  void run(Class cls, Duration order_took = 20ms, PeerId reporter = 11) {
    schedule::Infer order = infer(++action, {{rows}});
    order.cls = cls;
    on_next<schedule::RequestArrived>({order});
    auto row = offer(100 + rows++);
    row.row.cls = cls;
    hear(1, row);
    wire::Report done = report(action, ActionStatus::success);
    done.times.received = now + order_took;
    done.delivers = true;
    hear(reporter, done);
  }
  // They came, after so long.
  void come(Duration took) { hear(11, transport::Delivered{ActionId{action}, took}); }
  const ledger::Environment& margins(Class cls, std::uint32_t device = 0) const {
    return leader->dispatch().ledger().margins(cls).at(DeviceId{device});
  }
  std::uint64_t action = 0, rows = 0;
};

TEST_F(WayTest, EachClassLearnsItsOwn) {
  for (int i = 0; i < 70; ++i) {
    run(Class::best_effort);
    come(30ms);
    run(Class::real_time, 1ms);
    come(2ms);
  }
  EXPECT_LT(margins(Class::real_time).dispatch, 10ms);
  EXPECT_GE(margins(Class::real_time).answer, 2ms);
  EXPECT_LT(margins(Class::real_time).answer, 10ms);
  EXPECT_EQ(margins(Class::normal).answer, told.answer);
  run(Class::normal);
  come(30ms);
  EXPECT_GE(margins(Class::normal).answer, 30ms);
  EXPECT_LT(margins(Class::real_time).answer, 10ms);
}

TEST_F(WayTest, OutputsThatNobodyTookTeachNothing) {
  run(Class::normal);
  come(30ms);
  const Duration answer = margins(Class::normal).answer;
  EXPECT_GE(answer, 30ms);
  for (int i = 0; i < 600; ++i) {
    run(Class::normal);
    come(0ms);
  }
  EXPECT_EQ(margins(Class::normal).answer, answer);
}

TEST_F(WayTest, WhatIsOfAnEarlierLifeOrAnotherDeviceTeachesNothing) {
  run(Class::normal);
  wire::Report broken = report(0, ActionStatus::failed);
  broken.device_lost = true;
  hear(11, broken);
  hear(11, wire::ProbeReport{{}, 1, DeviceId{5}});
  ASSERT_TRUE(leader->dispatch().device_alive(DeviceId{0}));
  come(30ms);
  EXPECT_EQ(margins(Class::normal).answer, told.answer);
  // Another device's order.
  for (int i = 0; i < 70; ++i) run(Class::normal, 20ms, 12);
  EXPECT_EQ(margins(Class::normal, 1).dispatch, told.dispatch);
}

// Two groups: worker 11's device is in the first, and worker 12's in the second. Model m is in the first.
class GroupsTest : public LeaderTest {
 protected:
  static constexpr schedule::Environment told{.measured = true};
  GroupsTest() {
    out = {};
    auto own = std::make_unique<schedule::Subclusters>(
        [this] {
          auto policy = std::make_unique<ScriptedScheduler>();
          group.push_back(policy.get());
          return policy;
        },
        told, division(0));
    subclusters = own.get();
    leader = std::make_unique<Leader>(std::move(own), LeaderOptions{.subclusters = subclusters}, out);
    for (ScriptedScheduler* each : group) each->ledger->planned_by(told, true);
    leader->start(at(0ms));
    worker(11);
    worker(12);
    frontend(1);
    attend(0);
  }
  static schedule::GroupsOfModels division(std::uint32_t of_m) { return {.groups = 2, .of = {{"m", of_m}}}; }
  // on_next() is of this group's policy.
  void attend(std::uint32_t which) { scheduler = group[which]; }
  // As the leader names the group's order.
  static std::uint64_t outer(std::uint64_t action, std::uint32_t of) {
    return action | std::uint64_t{of} << 48;
  }
  // A row that a policy has its device run, in its own numbers.
  void run(std::uint32_t of, Duration order_took = 0ms, Duration delivery_took = 1ms) {
    attend(of);
    on_next<schedule::RequestArrived>({infer(++actions, {{rows}}, of)});
    hear(1, offer(100 + rows++));
    wire::Report done = report(outer(actions, of), ActionStatus::success);
    done.times.received = now + order_took;
    done.delivers = true;
    hear(11 + of, done);
    hear(11 + of, transport::Delivered{ActionId{outer(actions, of)}, delivery_took});
  }
  ledger::Environment margins(std::uint32_t of, std::uint32_t device) const {
    return group[of]->ledger->margins(Class::normal).at(DeviceId{device});
  }

  std::vector<ScriptedScheduler*> group;
  schedule::Subclusters* subclusters = nullptr;
  std::uint64_t actions = 0, rows = 0;
};

TEST_F(GroupsTest, APolicyLearnsTheWayToTheDevicesOfItsGroup) {
  for (int i = 0; i < 70; ++i) run(0, 20ms, 30ms);
  EXPECT_GE(margins(0, 0).dispatch, 20ms);
  EXPECT_GE(margins(0, 0).answer, 30ms);
  EXPECT_EQ(margins(0, 0).dispatch, leader->dispatch().ledger().margins(Class::normal).at({0}).dispatch);
  EXPECT_EQ(margins(1, 1).dispatch, told.dispatch);
  EXPECT_EQ(margins(1, 1).answer, told.answer);
}

// What an earlier leader had the device run.
TEST_F(GroupsTest, APolicyKnowsWhatTheDevicesOfItsGroupRan) {
  for (ScriptedScheduler* each : group) each->ledger->plan(schedule::model_comes(linear_model(0, 1ms, 1ms)));
  leader->left(11, "its stream ended", now);
  join(13, Role::worker, "w11");
  hear(13, transport::ModelComes{model(9)});
  transport::DeviceState::Left left{{{9}}, {}};
  left.runs.push_back(
      {.model = {9}, .cls = Class::normal, .rows = 1, .took = 3ms, .expected = 2ms, .ago = 5ms});
  hear(13, transport::DeviceState{{5}, 100, 1, {}, left});
  ASSERT_EQ(out.take<transport::Adopt>(13).size(), 1U);
  EXPECT_EQ(leader->strays().reports, 0U);
  EXPECT_EQ(leader->dispatch().ledger().model({0}).held, 1U);
  EXPECT_EQ(group[0]->ledger->times(Class::normal).of({0}, {0}, 0), 3ms);
  EXPECT_FALSE(group[1]->ledger->times(Class::normal).ran({0}, {0}, 0));
}

TEST_F(GroupsTest, AModelMovesAndItsRowsGoToTheNewGroup) {
  EXPECT_EQ(leader->moving(), 0U);
  run(0);
  attend(1);
  on_next<schedule::ModelChanged>({schedule::Load{{1}, {1}, {0}, {at(0ms), at(9s)}, 1ms}});
  leader->divide(division(1), now);
  EXPECT_EQ(leader->moving(), 1U);
  const auto loads = out.take<ledger::Load>(12);
  ASSERT_EQ(loads.size(), 1U);
  run(0);
  EXPECT_EQ(group[1]->heard<schedule::RequestArrived>().size(), 0U) << "it is not loaded there";
  hear(12, report(outer(1, 1), ActionStatus::success));
  EXPECT_EQ(leader->moving(), 0U);
  out.take<transport::Ended>(1);
  run(1);
  EXPECT_EQ(group[1]->heard<schedule::RequestArrived>().size(), 1U);
  EXPECT_EQ(out.take<transport::Ended>(1).size(), 1U);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(GroupsTest, ARowWaitsForAWorkerOfItsGroupThatMayComeBack) {
  leader->left(11, "its stream ended", now);
  attend(0);
  on_next<schedule::RequestArrived>({schedule::Refuse{{rows}, ledger::Reason::no_device, TimePoint::max()}});
  hear(1, offer(100 + rows++));
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty()) << "worker 12 has a device, but of the other group";
  join(14, Role::worker, "w11");
  hear(14, transport::ModelComes{model(9)});
  EXPECT_EQ(group[0]->heard<schedule::RequestArrived>().size(), 1U);
  device_comes(14, 5);
  EXPECT_EQ(group[0]->heard<schedule::RequestArrived>().size(), 2U);
}

TEST_F(GroupsTest, AWorkerDrainsIfItsGroupHasAnotherWithItsModels) {
  const auto refused = leader->drain("w11", false, now);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "no other worker of the same group has model 'm' version 1: w11 cannot drain");
  EXPECT_TRUE(leader->drain("w12", false, now)) << "its group has no model";
  worker(13);  // the third device
  EXPECT_TRUE(leader->drain("w11", false, now));
}

TEST_F(GroupsTest, DevicesAreWantedByGroup) {
  worker(13);
  std::vector<provision::WantedFigures> figures;
  for (const TimePoint end = now + 20s; now < end; now += 1s) figures = leader->look_at_demand(now);
  ASSERT_EQ(figures.size(), 2U);
  EXPECT_EQ(figures[0], (provision::WantedFigures{.group = "0", .wanted = 2, .present = 2}));
  EXPECT_EQ(figures[1], (provision::WantedFigures{.group = "1", .wanted = 1, .present = 1}));
  // Every other row of group 0 is refused.
  for (int i = 0; i < 2000; ++i, now += 10ms) {
    run(0);
    on_next<schedule::RequestArrived>(
        {schedule::Refuse{{rows}, ledger::Reason::cannot_finish, TimePoint::max()}});
    hear(1, offer(100 + rows++));
    if (i % 100 == 0) figures = leader->look_at_demand(now);
    out.sent.clear();
  }
  EXPECT_GT(figures[0].wanted, 2);
  EXPECT_EQ(figures[1].wanted, 1);
}

// The scheduler decides on a batch as one.
TEST_F(DeliveryTest, RowsOfOneBatchAreOfferedTogether) {
  on_next<schedule::AllArrived>({infer(5, {{2}, {3}}, 1)});
  leader->left(11, "killed", now);
  const auto arrived = scheduler->heard<schedule::RequestArrived>();
  ASSERT_EQ(arrived.size(), 4U);
  EXPECT_TRUE(arrived[2].more && arrived[3].more);
  EXPECT_EQ(out.take<transport::Infer>(12).at(0).rows.size(), 2U);
}

// Each time the scheduler knows the row as another one.
TEST_F(DeliveryTest, ARowWhoseOutputsAreLostWithThreeWorkersIsNotOfferedAgain) {
  hear(1, transport::Withdraw{{71}, {}});
  worker(13);
  for (std::uint32_t worker = 11; worker < 13; ++worker) {
    on_next<schedule::AllArrived>({infer(worker, {{worker - 9U}}, worker - 10)});
    leader->left(worker, "killed", now);
    wire::Report told = report(worker, ActionStatus::success);
    told.delivers = true;
    hear(worker + 1, told);
  }
  EXPECT_EQ(scheduler->heard<schedule::RequestArrived>().size(), 4U);
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
  leader->left(13, "killed", now);
  EXPECT_EQ(scheduler->heard<schedule::RequestArrived>().size(), 4U);
  const auto verdicts = out.take<wire::Verdict>(1);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].refusal.request, RequestId{70});
  EXPECT_EQ(verdicts[0].refusal.reason, ledger::Reason::device_failed);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(LeaderTest, AKeptRowStaysUntilItIsForgotten) {
  worker(11);
  frontend(1);
  on_next<schedule::RequestArrived>({schedule::Keep{{0}}, infer(4, {{0}})});
  hear(1, offer(70));
  EXPECT_EQ(out.take<transport::Keep>(1).size(), 1U);
  on_next<schedule::ActionDone>({schedule::Profile{{5}, {0}, {0}, {0}, {at(0ms), at(2s)}, 2ms}});
  hear(11, report(4, ActionStatus::success));
  EXPECT_EQ(leader->rows_open(), 1U);
  const auto orders = out.take<transport::Profile>(11);
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].row, (transport::RowReference{{70}, 0, 1070}));
  hear(11, report(5, ActionStatus::success));
  const auto forgotten = out.take<transport::Forget>(1);
  ASSERT_EQ(forgotten.size(), 1U);
  EXPECT_EQ(forgotten[0].rows, (Rows{{70}}));
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(LeaderTest, ModelsAndDevicesThatComeLaterAreToldToFrontends) {
  frontend(1);
  EXPECT_TRUE(out.take<transport::ModelComes>(1).empty());
  out.take<transport::DeviceCount>(1);
  worker(11);
  EXPECT_EQ(out.take<transport::ModelComes>(1).size(), 1U);
  const auto counts = out.take<transport::DeviceCount>(1);
  ASSERT_FALSE(counts.empty());
  EXPECT_EQ(counts.back().alive, 1U);
  EXPECT_EQ(counts.back().known, 1U);
}

TEST_F(LeaderTest, TheSlowestWorkersTimesCountOnceTheyChange) {
  worker(11);
  worker(12);
  frontend(1);
  auto batches = model(9).info.batches;
  batches[0].exec = 1ms;  // faster than the other's
  hear(12, transport::ModelTimes{{9}, batches});
  EXPECT_TRUE(scheduler->heard<schedule::TimesChanged>().empty());
  batches[0].exec = 7ms;
  hear(12, transport::ModelTimes{{9}, batches});
  const auto changes = scheduler->heard<schedule::TimesChanged>();
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].batches[0].exec, Duration{7ms});
  EXPECT_EQ(out.take<transport::ModelTimes>(1).size(), 1U);
}

TEST_F(LeaderTest, FrontendsHearOfModelsOnceTheAwaitedWorkersHaveDevices) {
  leader->await_workers({"w11", "w12"}, at(1100ms));
  frontend(1);
  worker(11);
  EXPECT_TRUE(out.take<transport::ModelComes>(1).empty());
  EXPECT_TRUE(out.take<transport::DeviceCount>(1).empty());
  EXPECT_EQ(leader->wake_at(), at(1100ms));
  worker(12);
  EXPECT_EQ(out.take<transport::ModelComes>(1).size(), 1U);
  const auto counts = out.take<transport::DeviceCount>(1);
  ASSERT_EQ(counts.size(), 1U);
  EXPECT_EQ(counts[0].alive, 2U);
}

TEST_F(LeaderTest, AWorkerThatDoesNotComeIsAwaitedForAWhile) {
  leader->await_workers({"w11", "w12"}, at(1100ms));
  frontend(1);
  worker(11);
  leader->wake(at(1099ms));
  EXPECT_TRUE(out.take<transport::ModelComes>(1).empty());
  leader->wake(at(1100ms));
  EXPECT_EQ(out.take<transport::ModelComes>(1).size(), 1U);
  frontend(2);
  EXPECT_EQ(out.take<transport::ModelComes>(2).size(), 1U);
}

TEST_F(LeaderTest, AnEarlierStreamOfAnIdIsEndedSoThatItBeginsAnew) {
  worker(11);
  join(12, Role::worker, "w11");
  EXPECT_EQ(out.ended, std::vector<PeerId>{11});
  leader->left(11, "ended", now);  // nothing more comes of it
  EXPECT_EQ(leader->workers(), 1U);
}

TEST_F(LeaderTest, ExcusesAddUpUntilTheSchedulerIsWoken) {
  worker(11);
  frontend(1);
  on_next<schedule::RequestArrived>({infer(4, {{0}})});
  scheduler->wake = at(2s);
  hear(1, offer(70));
  hear(11, ledger::Excuse{{5}, ledger::Lane::exec, 3ms, false});
  hear(11, ledger::Excuse{{5}, ledger::Lane::exec, 4ms, true});
  now = at(2s);
  leader->wake(now);
  const auto wakes = scheduler->heard<schedule::Wake>();
  ASSERT_EQ(wakes.size(), 1U);
  ASSERT_EQ(wakes[0].excuses.size(), 1U);
  EXPECT_EQ(wakes[0].excuses[0], (ledger::Excuse{DeviceId{0}, ledger::Lane::exec, 7ms, true}));
}

// Policies fill devices from the lowest number on, and the worker that comes last in the order is the first
// to go. So a device's number is its place in the order, in whatever order workers come.
TEST_F(LeaderTest, ADevicesNumberIsItsPlaceInTheOrder) {
  const auto comes = [&](PeerId peer, std::string id, DeviceId theirs, std::optional<std::uint32_t> order) {
    join(peer, Role::worker, std::move(id));
    hear(peer, transport::DeviceState{theirs, 100, 1, {}, transport::DeviceState::Left{}, order});
  };
  frontend(1);
  comes(11, "w-2", {0}, 2);
  EXPECT_EQ(scheduler->heard<schedule::DeviceChanged>().back().device, DeviceId{2});
  EXPECT_EQ(leader->dispatch().devices_alive(), 1U);
  EXPECT_EQ(out.take<transport::DeviceCount>(1).back().known, 1U) << "numbers that are kept are no devices";
  comes(12, "w-0", {0}, 0);
  EXPECT_EQ(scheduler->heard<schedule::DeviceChanged>().back().device, DeviceId{0});
  comes(13, "other", {0}, {});
  comes(14, "x-2", {0}, 2);
  comes(15, "far-7000", {0}, 7000);
  comes(16, "w-1", {0}, 1);
  std::map<std::string, std::uint32_t> numbers;
  for (const auto& device : leader->devices()) {
    EXPECT_TRUE(device.alive);
    numbers[device.worker] = device.id.value;
  }
  EXPECT_EQ(numbers, (std::map<std::string, std::uint32_t>{
                         {"w-0", 0}, {"w-1", 1}, {"w-2", 2}, {"other", 3}, {"x-2", 4}, {"far-7000", 5}}));
  EXPECT_EQ(out.take<transport::DeviceCount>(1).back().known, 6U);
  // A worker that comes back has its numbers, also if it tells another order by now.
  leader->left(11, "gone", now);
  comes(17, "w-2", {0}, 9);
  EXPECT_EQ(scheduler->heard<schedule::DeviceChanged>().back().device, DeviceId{2});
}

// What a worker's device has of an earlier leader's time is taken over, and what its runs took.
TEST_F(LeaderTest, ADeviceIsTakenAsItWasLeft) {
  join(11, Role::worker, "w11");
  hear(11, transport::ModelComes{model(9)});
  hear(11, transport::ModelComes{model(8, 7, "other")});
  hear(11, transport::DeviceState{{5}, 100, 1, {}, transport::DeviceState::Left{{{9}, {8}}, {}}});
  EXPECT_TRUE(out.take<transport::Retire>(11).empty());
  EXPECT_TRUE(out.take<transport::Probe>(11).empty());
  ASSERT_EQ(out.take<transport::Adopt>(11).size(), 1U);
  const auto changes = scheduler->heard<schedule::DeviceChanged>();
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_TRUE(changes[0].alive);
  EXPECT_EQ(changes[0].held, (std::vector<ModelId>{{0}, {1}}));
  EXPECT_TRUE(leader->dispatch().ledger().holds({0}, {1}));

  // Once it was lost it comes with nothing, though the worker has the same to say.
  auto lost = report(0, ActionStatus::failed);
  lost.device_lost = true;
  hear(11, lost);
  const auto retired = out.take<transport::Retire>(11);
  ASSERT_EQ(retired.size(), 1U);
  hear(11, wire::ProbeReport{{}, retired[0].life, {5}});
  EXPECT_TRUE(scheduler->heard<schedule::DeviceChanged>().back().held.empty());
  EXPECT_FALSE(leader->dispatch().ledger().holds({0}, {1}));
  // On another stream its life is the one that the leader has come to.
  join(12, Role::worker, "w11");
  hear(12, transport::ModelComes{model(9)});
  hear(12, transport::DeviceState{{5}, 100, 1, {}, transport::DeviceState::Left{{{9}}, {}}});
  const auto adopted = out.take<transport::Adopt>(12);
  ASSERT_EQ(adopted.size(), 1U);
  EXPECT_EQ(adopted[0].life, leader->dispatch().life({0}));
  EXPECT_EQ(scheduler->heard<schedule::DeviceChanged>().back().held, (std::vector<ModelId>{{0}}));
}

TEST_F(LeaderTest, ADeviceThatHasWhatNobodyServesBeginsAnew) {
  std::uint32_t device = 0;
  join(11, Role::worker, "w11");
  hear(11, transport::ModelComes{model(9)});
  hear(11, transport::ModelComes{model(8, 7, "other")});
  hear(11, transport::ModelGoes{{8}});
  for (const auto& held : std::vector<std::vector<ModelId>>{{{7}}, {{8}}, {{9}, {9}}}) {
    hear(11, transport::DeviceState{{device}, 100, 1, {}, transport::DeviceState::Left{held, {}}});
    EXPECT_EQ(out.take<transport::Retire>(11).size(), 1U);
    EXPECT_EQ(out.take<transport::Probe>(11).size(), 1U);
    EXPECT_TRUE(out.take<transport::Adopt>(11).empty());
    ++device;
  }
  hear(11, transport::DeviceState{{device}, 0, 1, {}, transport::DeviceState::Left{{{9}}, {}}});
  EXPECT_EQ(out.take<transport::Retire>(11).size(), 1U) << "it has no room for that";
}

TEST_F(LeaderTest, RunsForAnEarlierLeaderTeach) {
  ledger::Environment told{.measured = true};
  Leader led(*schedule::make_scheduler("clockwork", told), {}, out);
  led.start(now);
  led.joined(11, {.cluster = "c", .id = "w", .role = Role::worker}, now);
  led.heard(11, Message{transport::ModelComes{model(9)}}, now);
  transport::DeviceState state{{5}, 100, 1, {}, transport::DeviceState::Left{}};
  const auto ran = [&](std::uint32_t rows, Duration took, Duration ago) {
    state.left->runs.push_back({{9}, Class::normal, rows, took, 4ms, ago});
  };
  for (int i = 0; i < 70; ++i) ran(1, 6ms, 900ms - i * 1ms);
  ran(2, 5ms, 5ms);
  ran(2, 70ms, 20ms);  // not by its end
  ran(3'000'000'000, 7ms, 3ms);
  state.left->runs.push_back({{3}, Class::normal, 1, 7ms, 4ms, 3ms});  // of no model
  led.heard(11, Message{state}, now);
  const auto& ledger = led.dispatch().ledger();
  EXPECT_EQ(ledger.times(Class::normal).of(DeviceId{0}, ModelId{0}, 0), 6ms);
  EXPECT_EQ(ledger.times(Class::normal).of(DeviceId{0}, ModelId{0}, 1), 5ms);
  EXPECT_NEAR(ledger.margins(Class::normal).at({0}).overrun, 0.5, 0.3) << "2 ms of 4";
  EXPECT_EQ(ledger.margins(Class::normal).at({0}).dispatch, told.dispatch) << "this way is another";
  EXPECT_EQ(led.strays().reports, 2U);
}

// Frontends and workers in virtual time. A worker runs what it is sent, one action of a device at a time, and
// reports it; some runs fail. Every offered row must have one end.
class World final : public Out {
 public:
  World(const std::string& policy, std::uint64_t seed) : random_(seed) {
    leader_ = std::make_unique<Leader>(*schedule::make_scheduler(policy), LeaderOptions{}, *this);
    leader_->start(now_);
  }
  void send(PeerId to, Message message) override { inbox_.emplace_back(to, std::move(message)); }
  void end(PeerId, std::string) override {}
  void warn(std::string text) override { ADD_FAILURE() << text; }

  void frontend(const std::string& id) {
    const PeerId peer = ++last_peer_;
    leader_->joined(peer, {.cluster = "c", .id = id, .role = Role::frontend}, now_);
    leader_->heard(peer, transport::RowsAt{id + ":1"}, now_);
    frontends_.push_back(peer);
  }
  void worker(const std::string& id) {
    const PeerId peer = ++last_peer_;
    leader_->joined(peer, {.cluster = "c", .id = id, .role = Role::worker}, now_);
    workers_[id] = peer;
    for (std::uint32_t m = 0; m < models; ++m)
      leader_->heard(peer, transport::ModelComes{model(first_number(id) + m, 7, "m" + std::to_string(m))},
                     now_);
    for (std::uint32_t d = 0; d < 2; ++d)
      leader_->heard(peer, transport::DeviceState{DeviceId{d}, 2, 1, {.infers = 4, .loads = 2}}, now_);
    carry();
  }
  void leaves(const std::string& id) {
    const PeerId peer = workers_.at(id);
    workers_.erase(id);
    std::erase_if(runs_, [&](const auto& run) { return run.second.peer == peer; });
    std::erase_if(free_, [&](const auto& each) { return each.first.first == peer; });
    leader_->left(peer, "test", now_);
    carry();
  }
  void offer() {
    const PeerId from = frontends_[random_.below(frontends_.size())];
    std::vector<Message> frame;
    for (std::uint64_t rows = 1 + random_.below(4); rows > 0; --rows) {
      const RequestId id{++offered_};
      open_[id] = from;
      frame.push_back(transport::Offer{
          .row = {.id = id,
                  .model = {static_cast<std::uint32_t>(random_.below(models))},
                  .app = {},
                  .arrival = now_,
                  .deadline = now_ + Duration{static_cast<std::int64_t>(random_.below(200'000'000))}},
          .more = true});
    }
    leader_->heard(from, std::move(frame), now_);
    carry();
    if (random_.below(20) == 0 && !open_.empty()) {
      const auto [row, owner] = *open_.begin();
      open_.erase(row);
      ++withdrawn;
      leader_->heard(owner, transport::Withdraw{row, {}}, now_);
      carry();
    }
  }
  // All that happens until then.
  void run(TimePoint until) {
    while (true) {
      const TimePoint wake = std::max(now_, leader_->wake_at());
      const TimePoint report = runs_.empty() ? TimePoint::max() : runs_.begin()->first.first;
      const TimePoint next = std::min(wake, report);
      if (next > until || next == TimePoint::max()) break;
      ASSERT_LT(++steps_, 2'000'000) << "it does not end";
      now_ = next;
      if (report <= wake) {
        const Run run = runs_.begin()->second;
        runs_.erase(runs_.begin());
        leader_->heard(run.peer, run.report, now_);
      } else {
        leader_->wake(now_);
      }
      carry();
    }
    now_ = std::max(now_, until);
  }
  TimePoint time() const { return now_; }
  const Leader& leader() const { return *leader_; }
  std::size_t open() const { return open_.size(); }
  std::uint64_t offered() const { return offered_; }

  std::uint64_t served = 0, refused = 0, withdrawn = 0, lost = 0;

 private:
  static constexpr std::uint32_t models = 3;
  struct Run {
    PeerId peer = 0;
    wire::Report report;
  };
  static std::uint32_t first_number(const std::string& id) { return 10 * static_cast<std::uint32_t>(id[1]); }
  void over(PeerId frontend, RequestId row, std::uint64_t& count) {
    const auto found = open_.find(row);
    if (found == open_.end()) return;  // withdrawn
    EXPECT_EQ(found->second, frontend);
    open_.erase(found);
    ++count;
  }
  void start(PeerId peer, DeviceId device, ActionId action, Window window, Duration takes, bool may_fail) {
    TimePoint& free = free_[{peer, device.value}];
    const TimePoint begin = std::max({now_, window.earliest, free});
    wire::Report report{.id = action, .life = lives_[{peer, device.value}], .device = device};
    const bool late = begin > window.latest;
    report.status = late                                 ? ActionStatus::too_late
                    : may_fail && random_.below(50) == 0 ? ActionStatus::failed
                                                         : ActionStatus::success;
    report.times.exec_start = begin;
    report.times.exec_end = late ? begin : begin + takes;
    if (!late) free = report.times.exec_end;
    runs_.insert({{late ? now_ + 10us : report.times.exec_end, ++planned_}, {peer, report}});
  }
  void carry() {
    while (!inbox_.empty()) {
      auto all = std::exchange(inbox_, {});
      for (auto& [to, message] : all)
        std::visit([&, peer = to](const auto& what) { on(peer, what); }, message);
    }
  }
  template <typename What>
  void on(PeerId, const What&) {}
  void on(PeerId peer, const transport::Ended& what) {
    if (what.report.status != ActionStatus::success) return;
    for (const RequestId row : what.rows) over(peer, row, served);
  }
  void on(PeerId peer, const wire::Verdict& what) { over(peer, what.refusal.request, refused); }
  void on(PeerId, const transport::Lost& what) { lost += what.rows.size(); }
  void on(PeerId peer, const transport::Infer& what) {
    EXPECT_EQ(what.rows.size(), what.order.requests.size());
    start(peer, what.order.device, what.order.id, what.order.window, what.order.expected, true);
  }
  void on(PeerId peer, const ledger::Load& what) {
    start(peer, what.device, what.id, what.window, what.expected, false);
  }
  void on(PeerId peer, const ledger::Unload& what) {
    start(peer, what.device, what.id, {now_, TimePoint::max()}, 1us, false);
  }
  void on(PeerId peer, const transport::Retire& what) {
    lives_[{peer, what.device.value}] = what.life;
    free_.erase({peer, what.device.value});
    std::erase_if(runs_, [&](const auto& run) {
      return run.second.peer == peer && run.second.report.device == what.device;
    });
  }
  void on(PeerId peer, const transport::Probe& what) {
    leader_->heard(peer, wire::ProbeReport{{}, lives_[{peer, what.device.value}], what.device}, now_);
  }

  Random random_;
  std::unique_ptr<Leader> leader_;
  TimePoint now_ = at(1s);
  PeerId last_peer_ = 0;
  std::vector<PeerId> frontends_;
  std::map<std::string, PeerId> workers_;
  std::vector<std::pair<PeerId, Message>> inbox_;
  std::map<RequestId, PeerId> open_;
  std::map<std::pair<TimePoint, std::uint64_t>, Run> runs_;
  std::map<std::pair<PeerId, std::uint32_t>, TimePoint> free_;
  std::map<std::pair<PeerId, std::uint32_t>, std::uint32_t> lives_;
  std::uint64_t offered_ = 0, planned_ = 0, steps_ = 0;
};

class LeaderWorldTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, LeaderWorldTest, ::testing::Values("clockwork", "symphony"));

TEST_P(LeaderWorldTest, EveryRowHasOneEndAndNothingIsLeft) {
  std::uint64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    World world(GetParam(), seed);
    for (const char* id : {"f1", "f2"}) world.frontend(id);
    for (const char* id : {"w1", "w2", "w3"}) world.worker(id);
    for (int i = 0; i < 1000; ++i) {
      world.offer();
      world.run(world.time() + 2ms);
      if (i % 200 == 100) world.leaves("w2");
      if (i % 200 == 150) world.worker("w2");
    }
    world.run(world.time() + 20s);
    EXPECT_EQ(world.open(), 0U);
    EXPECT_EQ(world.served + world.refused + world.withdrawn, world.offered());
    EXPECT_GT(world.served, world.offered() / 4);
    lost += world.lost;
    EXPECT_EQ(world.leader().rows_open(), 0U);
    EXPECT_EQ(world.leader().dispatch().ledger().open_requests(), 0U);
    EXPECT_EQ(world.leader().dispatch().actions_in_flight(), 0U);
    EXPECT_EQ(world.leader().strays().reports, 0U);
    EXPECT_EQ(world.leader().dispatch().devices_alive(), 6U);
  }
  EXPECT_GT(lost, 0U);
}

// Whatever peers say, nothing is asserted, and a row that was offered has one end at most.
TEST_P(LeaderWorldTest, RandomMessagesOfManyPeersDoNoHarm) {
  std::uint64_t ran = 0, adopted = 0, drained = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Recorder out;
    Leader leader(*schedule::make_scheduler(GetParam()), LeaderOptions{.max_open = 50}, out);
    TimePoint now = at(1s);
    leader.start(now);
    const auto small = [&] { return static_cast<std::uint32_t>(random.below(4)); };
    const auto any_time = [&] { return now + Duration{static_cast<std::int64_t>(random.bits() >> 30)} - 8s; };
    PeerId last = 0;
    std::set<PeerId> peers;
    std::set<std::pair<PeerId, std::uint64_t>> open;
    std::map<PeerId, wire::Report> ordered;  // what the last order to a worker calls for
    std::map<std::pair<PeerId, DeviceId>, std::uint32_t> lives;
    const auto message = [&](PeerId from) -> Message {
      const auto device = DeviceId{small()};
      switch (random.below(15)) {
        case 0:
        case 1:
        case 2:
          return transport::Offer{.row = {.id = {random.below(40)},
                                          .model = {small()},
                                          .app = {small()},
                                          .cls = static_cast<Class>(random.below(4)),
                                          .arrival = any_time(),
                                          .deadline = any_time()},
                                  .more = random.below(2) == 0};
        case 3: {
          const std::uint64_t row = random.below(40);
          open.erase({from, row});
          return transport::Withdraw{{row}, {small()}};
        }
        case 4:
          return transport::Application{
              {small()},
              std::to_string(small()),
              random.below(2) == 0 ? std::optional(wire::Dispatcher::Alike{{small()}, random.below(70)})
                                   : std::nullopt};
        case 5: {
          wire::Model told = model(small(), random.below(2), "m" + std::to_string(small()));
          if (random.below(8) == 0) told.info.batches.pop_back();
          if (random.below(8) == 0) told.info.batches.clear();
          if (random.below(8) == 0) told.info.batches.front().exec = Duration{-5};
          return transport::ModelComes{std::move(told)};
        }
        case 6:
          return transport::ModelGoes{{small()}};
        case 7: {
          auto batches = model(0).info.batches;
          batches.back().exec = Duration{static_cast<std::int64_t>(random.below(50'000'000))};
          return transport::ModelTimes{{small()}, std::move(batches)};
        }
        case 8: {
          transport::DeviceState state{device,
                                       random.below(5),
                                       static_cast<int>(random.below(5)) - 2,
                                       {.infers = random.below(4), .loads = random.below(3)}};
          if (random.below(2) == 0) state.order = small();
          if (random.below(2) == 0) {
            state.left.emplace();
            for (std::uint64_t n = random.below(3); n > 0; --n) state.left->held.push_back({small()});
            for (std::uint64_t n = random.below(4); n > 0; --n)
              state.left->runs.push_back({.model = {small()},
                                          .cls = static_cast<Class>(random.below(4)),
                                          .rows = small(),
                                          .took = any_time() - now,
                                          .expected = any_time() - now,
                                          .ago = any_time() - now});
          }
          return state;
        }
        case 9:
          return wire::ProbeReport{{}, random.below(2) == 0 ? lives[{from, device}] : small(), device};
        case 10:
          return ledger::Excuse{device, static_cast<ledger::Lane>(random.below(6)), any_time() - now,
                                random.below(2) == 0};
        case 11:
          return transport::Leads{};
        case 12:
          if (random.below(4) > 0) return transport::Drain{true};
          return transport::Drains{small()};
        default: {
          if (const auto last_order = ordered.find(from);
              last_order != ordered.end() && random.below(2) == 0) {
            if (random.below(4) == 0) return transport::Delivered{last_order->second.id, any_time() - now};
            last_order->second.status = random.below(4) == 0 ? ActionStatus::failed : ActionStatus::success;
            last_order->second.delivers = random.below(2) == 0;
            return last_order->second;
          }
          wire::Report report{.id = {random.below(60)},
                              .status = static_cast<ActionStatus>(random.below(8)),
                              .device_lost = random.below(10) == 0,
                              .life = small(),
                              .device = device,
                              .bad_rows = {{.row = static_cast<int>(small()) - 1, .error = {}}}};
          report.times.exec_start = any_time();
          report.times.exec_end = any_time();
          report.times.threads = static_cast<int>(small()) - 1;
          return report;
        }
      }
    };
    const auto look = [&] {
      for (const auto& [to, what] : std::exchange(out.sent, {})) {
        const auto end = [&, peer = to](RequestId row) {
          EXPECT_TRUE(open.erase({peer, row.value}) == 1) << "row " << row.value << " of " << peer;
        };
        const auto order = [&, peer = to](ActionId id, DeviceId device) {
          ordered[peer] = {.id = id, .life = lives[{peer, device}], .device = device};
        };
        if (const auto* retire = std::get_if<transport::Retire>(&what))
          lives[{to, retire->device}] = retire->life;
        if (const auto* adopt = std::get_if<transport::Adopt>(&what)) {
          lives[{to, adopt->device}] = adopt->life;
          ++adopted;
        }
        if (const auto* load = std::get_if<ledger::Load>(&what)) order(load->id, load->device);
        if (const auto* infer = std::get_if<transport::Infer>(&what))
          order(infer->order.id, infer->order.device);
        if (const auto* refused = std::get_if<wire::Verdict>(&what)) end(refused->refusal.request);
        if (const auto* down = std::get_if<transport::TurnedDown>(&what)) end(down->row);
        if (const auto* ended = std::get_if<transport::Ended>(&what))
          if (ended->report.status == ActionStatus::success)
            for (const RequestId row : ended->rows) {
              end(row);
              ++ran;
            }
      }
    };
    for (int step = 0; step < 5000; ++step) {
      now += Duration{static_cast<std::int64_t>(random.below(2'000'000))};
      if (peers.size() < 5) {
        leader.joined(++last,
                      {.cluster = "c",
                       .id = std::to_string(random.below(3)),
                       .role = random.below(2) == 0 ? Role::frontend : Role::worker},
                      now);
        peers.insert(last);
        leader.heard(last, transport::RowsAt{"h:1"}, now);
      }
      auto it = peers.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(random.below(peers.size())));
      const PeerId from = *it;
      if (random.below(100) == 0) {
        leader.left(from, "test", now);
        peers.erase(it);
      } else {
        Message said = message(from);
        if (const auto* offer = std::get_if<transport::Offer>(&said))
          open.insert({from, offer->row.id.value});
        leader.heard(from, std::move(said), now);
      }
      if (random.below(200) == 0)
        drained += leader.drain(std::to_string(random.below(3)), random.below(4) == 0, now) ? 1 : 0;
      look();
      if (leader.wake_at() <= now) leader.wake(now);
      look();
    }
    for (const PeerId peer : peers) leader.left(peer, "the end", now);
    EXPECT_TRUE(leader.drains().empty());
    for (int i = 0; i < 1000 && leader.wake_at() != TimePoint::max(); ++i) {
      now = std::max(now, leader.wake_at());
      leader.wake(now);
    }
    EXPECT_EQ(leader.rows_open(), 0U);
    EXPECT_EQ(leader.models(), 0U);
    EXPECT_EQ(leader.dispatch().ledger().open_requests(), 0U);
    EXPECT_EQ(leader.dispatch().devices_alive(), 0U);
    EXPECT_GT(leader.strays().rows + leader.strays().devices + leader.strays().reports, 0U);
  }
  EXPECT_GT(ran, 0U);
  EXPECT_GT(adopted, 100U);
  EXPECT_GT(drained, 100U);
}

using Drains = std::map<std::string, std::uint32_t>;

class DrainTest : public LeaderTest {
 protected:
  // Worker 11 runs action 1 with row 70 of frontend 1. When it drains, the scheduler refuses the row.
  DrainTest() {
    worker(11);
    worker(12);
    device_comes(11, 6);
    frontend(1);
    on_next<schedule::RequestArrived>({infer(1, {RequestId{0}})});
    hear(1, offer(70));
    EXPECT_EQ(out.take<transport::Infer>(11).size(), 1U);
    on_next<schedule::DeviceChanged>(
        {schedule::Refuse{RequestId{0}, ledger::Reason::device_failed, TimePoint::max()}});
  }
  std::vector<std::string> alive() const {
    std::vector<std::string> workers;
    for (const Leader::DeviceView& device : leader->devices())
      if (device.alive) workers.push_back(device.worker);
    return workers;
  }
};

TEST_F(DrainTest, AWorkerEndsWhatItHasAndGetsNothingNew) {
  ASSERT_TRUE(leader->drain("w11", false, now));
  EXPECT_EQ(alive(), std::vector<std::string>{"w12"});
  EXPECT_EQ(out.take<transport::Drain>(11).size(), 1U);
  EXPECT_TRUE(out.take<transport::Retire>(11).empty()) << "what runs is not stopped";
  EXPECT_EQ(leader->drains(), (Drains{{"w11", 1}}));
  hear(11, transport::Drains{1});
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty()) << "the run may still succeed";
  // What it said before it heard of the drain.
  const auto strays = leader->strays().peers;
  hear(11, transport::DeviceState{DeviceId{7}, 100, 1, {}});
  hear(11, transport::ModelComes{model(10, 7, "other")});
  EXPECT_EQ(leader->strays().peers, strays + 2);
  hear(11, report(1, ActionStatus::success));
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U) << "its outputs did not come before this";
  EXPECT_EQ(leader->rows_open(), 0U);
  hear(11, transport::Drains{0});
  EXPECT_EQ(leader->drains(), (Drains{{"w11", 0}}));
  leader->left(11, "stopped", now);
  EXPECT_TRUE(leader->drains().empty());
}

TEST_F(DrainTest, ARowIsNotRefusedWhileItsOutputsAreOnTheirWay) {
  ASSERT_TRUE(leader->drain("w11", false, now));
  wire::Report told = report(1, ActionStatus::success);
  told.delivers = true;
  hear(11, told);
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
  hear(11, transport::Delivered{ActionId{1}, 3ms});
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U) << "its outputs did not come before this";
  EXPECT_EQ(leader->rows_open(), 0U);
}

// The scheduler runs the row elsewhere, too, and that worker goes before it has delivered the outputs.
TEST_F(DrainTest, ARowThatIsOfferedOnceMoreIsRefusedOnceItsRunHasEnded) {
  on_next<schedule::DeviceChanged>({infer(2, {RequestId{0}}, 1)});
  ASSERT_TRUE(leader->drain("w11", false, now));
  EXPECT_EQ(out.take<transport::Infer>(12).size(), 1U);
  wire::Report told = report(2, ActionStatus::success);
  told.delivers = true;
  hear(12, told);
  on_next<schedule::AllArrived>(
      {schedule::Refuse{RequestId{1}, ledger::Reason::no_device, TimePoint::max()}});
  leader->left(12, "killed", now);
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty()) << "the run of w11 may still succeed";
  hear(11, report(1, ActionStatus::failed));
  leader->wake(now += 1s);
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(DrainTest, ARowWhoseOutputsCameIsOver) {
  ASSERT_TRUE(leader->drain("w11", false, now));
  hear(1, transport::Withdraw{RequestId{70}, ModelId{0}});
  EXPECT_EQ(leader->rows_open(), 0U);
  hear(11, report(1, ActionStatus::success));
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty());
}

TEST_F(DrainTest, ARowIsRefusedIfItsWorkerDiesOrLosesTheDeviceMeanwhile) {
  ASSERT_TRUE(leader->drain("w11", false, now));
  wire::Report lost = report(0, ActionStatus::failed);
  lost.device_lost = true;
  lost.device = DeviceId{6};
  hear(11, lost);
  EXPECT_TRUE(out.take<wire::Verdict>(1).empty()) << "another device of its";
  lost.device = DeviceId{5};
  hear(11, lost);
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(DrainTest, ARowIsRefusedIfItsWorkerGoes) {
  ASSERT_TRUE(leader->drain("w11", false, now));
  leader->left(11, "killed", now);
  EXPECT_EQ(out.take<wire::Verdict>(1).size(), 1U);
  EXPECT_EQ(leader->rows_open(), 0U);
}

TEST_F(DrainTest, WhatIsUndoneServesAgain) {
  ASSERT_TRUE(leader->drain("w11", false, now));
  ASSERT_TRUE(leader->drain("w11", true, now));
  const auto told = out.take<transport::Drain>(11);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_TRUE(told[1].undo);
  hear(11, transport::Drains{0});  // of before
  EXPECT_EQ(alive(), std::vector<std::string>{"w12"});
  hear(11, transport::Drain{true});
  EXPECT_TRUE(leader->drains().empty());
  hear(11, transport::ModelComes{model(9)});
  hear(11, transport::DeviceState{DeviceId{5}, 100, 1, {}, transport::DeviceState::Left{}});
  EXPECT_EQ(out.take<transport::Adopt>(11).size(), 1U);
  EXPECT_EQ(alive(), (std::vector<std::string>{"w11", "w12"})) << "device 6 has not come again";
  EXPECT_TRUE(out.warned.empty());
  on_next<schedule::RequestArrived>({infer(2, {RequestId{1}})});
  hear(1, offer(71));
  EXPECT_EQ(out.take<transport::Infer>(11).size(), 1U);
}

TEST_F(DrainTest, WhatOthersCannotDoIsRefused) {
  EXPECT_EQ(leader->drain("w13", false, now).error().code, ErrorCode::not_found);
  hear(11, transport::ModelComes{model(10, 7, "only here")});
  EXPECT_EQ(leader->drain("w11", false, now).error().message,
            "no other worker has model 'only here' version 1: w11 cannot drain");
  ASSERT_TRUE(leader->drain("w12", false, now));
  EXPECT_EQ(leader->drain("w11", false, now).error().message,
            "no other worker has a device (w12 drains): w11 cannot drain");
}

TEST_F(DrainTest, AFrontendIsToldAndServesOn) {
  ASSERT_TRUE(leader->drain("f1", false, now));
  EXPECT_EQ(out.take<transport::Drain>(1).size(), 1U);
  EXPECT_EQ(leader->drains(), (Drains{{"f1", 1}})) << "it has not said so";
  hear(1, transport::Drains{0});
  EXPECT_EQ(leader->drains(), (Drains{{"f1", 0}}));
  on_next<schedule::RequestArrived>({infer(2, {RequestId{1}})});
  hear(1, offer(71));
  EXPECT_EQ(out.take<transport::Infer>(11).size(), 1U);
  ASSERT_TRUE(leader->drain("f1", true, now));
  EXPECT_TRUE(leader->drains().empty());
}

// With a policy that loads ahead. Devices have room for two of four models.
class DrainAheadTest : public LeaderTest {
 protected:
  DrainAheadTest() {
    leader = std::make_unique<Leader>(schedule::make_scheduler("carillon").value(), LeaderOptions{}, out);
    leader->start(at(0ms));
    comes(11, {0, 1});
    comes(12, {2, 3});
    frontend(1);
    now += 20s;
    leader->wake(now);
  }
  void comes(PeerId peer, std::initializer_list<std::uint32_t> held) {
    join(peer, Role::worker, "w" + std::to_string(peer));
    for (std::uint32_t number = 0; number < 4; ++number)
      hear(peer, transport::ModelComes{model(number, 7, "m" + std::to_string(number))});
    transport::DeviceState::Left left;
    for (const std::uint32_t number : held) left.held.push_back(ModelId{number});
    hear(peer, transport::DeviceState{DeviceId{5}, 2, 1, {}, std::move(left)});
    ASSERT_EQ(out.take<transport::Adopt>(peer).size(), 1U);
  }
  // Model 1 is used, and only worker 11 has it.
  void use() {
    hear(1, offer(70, false, 1));
    const auto orders = out.take<transport::Infer>(11);
    ASSERT_EQ(orders.size(), 1U);
    now += 3ms;
    hear(11, report(orders[0].order.id.value, ActionStatus::success));
    ASSERT_EQ(leader->rows_open(), 0U);
  }
  template <typename Order>
  void carry_out(std::uint32_t number) {
    const auto orders = out.take<Order>(12);
    ASSERT_EQ(orders.size(), 1U);
    EXPECT_EQ(orders[0].model, ModelId{number});
    EXPECT_TRUE(out.take<transport::Drain>(11).empty()) << "it serves until then";
    EXPECT_EQ(leader->drains(), (Drains{{"w11", 1}}));
    now += 8ms;
    hear(12, report(orders[0].id.value, ActionStatus::success));
    leader->wake(now += 20ms);
  }
};

TEST_F(DrainAheadTest, WhatAWorkerAloneHoldsIsLoadedElsewhereFirst) {
  use();
  ASSERT_TRUE(leader->drain("w11", false, now));
  carry_out<ledger::Unload>(2);  // which nobody used for long
  carry_out<ledger::Load>(1);
  EXPECT_EQ(out.take<transport::Drain>(11).size(), 1U);
  ASSERT_EQ(out.warned.size(), 1U) << "model 0 was not used, and has no room";
  EXPECT_NE(out.warned[0].find("w11 drains before models are elsewhere that it alone holds. No other device"),
            std::string::npos);
  EXPECT_TRUE(out.warned[0].ends_with(": m0")) << out.warned[0];
  // The next request meets no cold model.
  hear(1, offer(71, false, 1));
  EXPECT_EQ(out.take<transport::Infer>(12).size(), 1U);
}

TEST_F(DrainAheadTest, AWorkerDrainsAllTheSameOnceItIsTime) {
  use();
  const TimePoint begun = now;
  ASSERT_TRUE(leader->drain("w11", false, now));
  ASSERT_EQ(out.take<ledger::Unload>(12).size(), 1U);  // which is not carried out
  while (now < begun + LeaderOptions{}.load_elsewhere_within) {
    EXPECT_TRUE(out.take<transport::Drain>(11).empty());
    ASSERT_LE(leader->wake_at(), now + 20ms);
    leader->wake(now += 20ms);
  }
  EXPECT_EQ(out.take<transport::Drain>(11).size(), 1U);
  EXPECT_EQ(out.warned,
            std::vector<std::string>{
                "w11 drains before models are elsewhere that it alone holds. They were not loaded "
                "in time: m1, m0"});
}

TEST_F(DrainAheadTest, ASecondDrainMayNotTakeTheLastDeviceMeanwhile) {
  use();
  ASSERT_TRUE(leader->drain("w11", false, now));
  EXPECT_EQ(leader->drain("w12", false, now).error().message,
            "no other worker has a device (w11 drains): w12 cannot drain");
  ASSERT_TRUE(leader->drain("w11", false, now)) << "once more is no second one";
  ASSERT_TRUE(leader->drain("w11", true, now));
  EXPECT_TRUE(leader->drains().empty());
  EXPECT_TRUE(out.take<transport::Drain>(11).at(0).undo);
  EXPECT_TRUE(leader->drain("w12", false, now));
}

TEST_F(DrainAheadTest, AWorkerThatGoesMeanwhileIsWaitedForNoMore) {
  use();
  ASSERT_TRUE(leader->drain("w11", false, now));
  leader->left(11, "killed", now);
  EXPECT_TRUE(leader->drains().empty());
  leader->wake(now += 20ms);
  EXPECT_TRUE(out.warned.empty());
}

TEST_F(DrainTest, APolicyThatLoadsNothingAheadIsNamed) {
  hear(11,
       transport::DeviceState{DeviceId{7}, 100, 1, {}, transport::DeviceState::Left{.held = {ModelId{9}}}});
  ASSERT_TRUE(leader->drain("w11", false, now));
  EXPECT_EQ(out.take<transport::Drain>(11).size(), 1U);
  EXPECT_EQ(out.warned, std::vector<std::string>{
                            "w11 drains before models are elsewhere that it alone holds. The policy scripted "
                            "loads nothing ahead of requests: m"});
}

// --- Members that do not go together

class ApartTest : public LeaderTest {
 protected:
  void join(PeerId peer, Role role, cluster::Protocols protocols) {
    leader->joined(peer,
                   {.cluster = "c",
                    .id = (role == Role::worker ? "w" : "f") + std::to_string(peer),
                    .role = role,
                    .protocols = protocols},
                   now);
  }
};

TEST_F(ApartTest, AWorkerThatSharesNoProtocolWithAFrontendIsNotTaken) {
  join(1, Role::frontend, {3, 4});
  join(11, Role::worker, {2, 3});
  for (int i = 0; i < 3; ++i) join(12, Role::worker, {1, 2});
  EXPECT_EQ(out.ended, (std::vector<PeerId>{12, 12, 12}));
  EXPECT_EQ(out.warned,
            std::vector<std::string>{
                "worker 'w12' speaks protocols 1 to 2, and frontend 'f1' speaks protocols 3 to 4: "
                "upgrade worker 'w12' to a build that speaks protocol 3. Until then worker 'w12' "
                "gets no work"})
      << "once, though it comes again and again";
  EXPECT_EQ(leader->workers(), 1U);
  leader->left(12, "ended", now);
  leader->left(1, "ended", now);
  join(12, Role::worker, {1, 2});
  EXPECT_EQ(leader->workers(), 2U) << "no frontend is in its way";
}

TEST_F(ApartTest, AWorkerIsGivenUpWhenSuchAFrontendComes) {
  for (const PeerId peer : {11, 12}) join(peer, Role::worker, {2, 3});
  join(13, Role::worker, {1, 2});
  join(1, Role::frontend, {3, 4});
  EXPECT_EQ(out.ended, std::vector<PeerId>{13});
  EXPECT_EQ(leader->workers(), 2U);
  EXPECT_EQ(leader->frontends(), 1U);
}

TEST_F(ApartTest, AFrontendThatSharesNoProtocolWithMostWorkersIsNotTaken) {
  for (const PeerId peer : {11, 12}) join(peer, Role::worker, {1, 2});
  join(1, Role::frontend, {3, 4});
  EXPECT_EQ(out.ended, std::vector<PeerId>{1});
  EXPECT_EQ(leader->workers(), 2U);
  EXPECT_EQ(leader->frontends(), 0U);
  ASSERT_EQ(out.warned.size(), 1U);
  EXPECT_TRUE(out.warned[0].ends_with("Until then frontend 'f1' serves no request")) << out.warned[0];
}

// A new leader is told of a frontend's orders before its workers are back.
TEST_F(LeaderTest, AnOrderWaitsForWorkersThatAreAboutToCome) {
  leader->await_workers({"w11"}, now + 100ms);
  frontend(1);
  hear(1, transport::ModelOrder{.order = 7, .model = "m"});
  EXPECT_TRUE(out.take<transport::ModelOrdered>(1).empty());
  worker(11);
  EXPECT_EQ(out.take<transport::ModelOrder>(11).size(), 1U);
}

// A new leader hears of neither models nor devices.
TEST_F(DrainTest, AWorkerThatDrainsSinceAnEarlierLeaderIsNotWaitedFor) {
  Leader next(std::make_unique<ScriptedScheduler>(), {}, out);
  next.start(now);
  next.await_workers({"w11"}, now + 100ms);
  next.joined(1, {.cluster = "c", .id = "f1", .role = Role::frontend}, now);
  out.sent.clear();
  next.joined(11, {.cluster = "c", .id = "w11", .role = Role::worker}, now);
  next.heard(11, Message{transport::Drains{0}}, now);
  EXPECT_EQ(next.drains(), (Drains{{"w11", 0}}));
  EXPECT_EQ(out.take<transport::DeviceCount>(1).size(), 1U) << "frontends hear that all are there";
}

// How many devices the load needs, as the leader counts it. It looks each second.
class WantedTest : public LeaderTest {
 protected:
  using Event = std::function<void()>;
  void begin(LeaderOptions options = {}) {
    make(std::move(options));
    rows = actions = 0;
    look_at = now;
    worker(11);
    frontend(1);
  }
  // A row runs for so long, and is answered then.
  void run_row(Duration took) {
    on_next<schedule::RequestArrived>({infer(++actions, {{rows}})});
    hear(1, offer(1000 + rows++));
    now += took;
    wire::Report told = report(actions, ActionStatus::success);
    told.times.exec_start = now - took;
    hear(11, told);
  }
  // Its outputs come so long after the run; the leader hears of that 100 ms after it.
  void deliver_row(Duration outputs) {
    on_next<schedule::RequestArrived>({infer(++actions, {{rows}})});
    hear(1, offer(1000 + rows++));
    now += 20ms;
    wire::Report told = report(actions, ActionStatus::success);
    told.times.exec_start = now - 20ms;
    told.delivers = true;
    hear(11, told);
    now += 100ms;
    hear(11, transport::Delivered{ActionId{actions}, outputs});
  }
  void refuse_row() {
    on_next<schedule::RequestArrived>(
        {schedule::Refuse{{rows}, ledger::Reason::cannot_finish, TimePoint::max()}});
    hear(1, offer(1000 + rows++));
  }
  void withdraw_row(Duration after) {
    hear(1, offer(1000 + rows));
    now += after;
    hear(1, transport::Withdraw{{1000 + rows++}, {}});
  }
  // Again and again, with 30 ms between two.
  void spend(Duration span, const Event& event) {
    for (const TimePoint end = now + span; now < end; now += 30ms) {
      if (look_at <= now) look();
      event();
      out.sent.clear();
    }
    look();
  }
  void look() {
    figures = leader->look_at_demand(now);
    look_at = now + provision::CountedDemand::looks_every;
  }

  std::uint64_t rows = 0, actions = 0;
  TimePoint look_at{};
  std::vector<provision::WantedFigures> figures;
};

TEST_F(WantedTest, RowsThatMoreDevicesMightHaveServedRaiseTheNumber) {
  const struct {
    const char* what;
    bool more;
    Event event;
  } table[] = {
      {"nothing comes", false, [] {}},
      {"on time", false, [&] { run_row(20ms); }},
      {"late", true, [&] { run_row(60ms); }},
      {"delivered on time, and heard of late", false, [&] { deliver_row(10ms); }},
      {"delivered late", true, [&] { deliver_row(40ms); }},
      {"every other one is refused", true,
       [&] {
         run_row(20ms);
         refuse_row();
       }},
      {"every third is given up by its frontend after its deadline", true,
       [&] {
         run_row(20ms);
         run_row(20ms);
         withdraw_row(60ms);
       }},
      {"its client has gone before", false, [&] { withdraw_row(10ms); }},
      {"of a model that is not served", false, [&] { hear(1, offer(7, false, 9)); }},
      {"its data are bad", false,
       [&] {
         on_next<schedule::RequestArrived>({infer(++actions, {{rows}})});
         hear(1, offer(1000 + rows++));
         wire::Report told = report(actions, ActionStatus::success);
         told.bad_rows = {{.row = 0, .error = {ErrorCode::invalid_argument, "an index of 9"}}};
         hear(11, told);
       }},
  };
  for (const auto& [what, more, event] : table) {
    SCOPED_TRACE(what);
    begin();
    spend(16s, [] {});
    ASSERT_EQ(figures.size(), 1U);
    EXPECT_EQ(figures[0], (provision::WantedFigures{.group = "0", .wanted = 1, .present = 1}));
    spend(20s, event);
    EXPECT_EQ(figures[0].wanted > 1, more) << figures[0].wanted;
    EXPECT_EQ(figures[0].coming, figures[0].wanted - 1);
  }
}

TEST_F(WantedTest, BusyDevicesAreNotReleasedAndIdleOnesAre) {
  begin();
  worker(12);
  spend(640s, [&] { now += 300ms; });
  EXPECT_EQ(figures[0].wanted, 1) << "none was busy for five minutes";
  begin();
  worker(12);
  spend(640s, [&] {
    for (int i = 0; i < 3; ++i) run_row(45ms);
  });
  EXPECT_EQ(figures[0].wanted, 2) << "four fifths of a device, and a quarter against noise";
}

TEST_F(WantedTest, DevicesThatGoOrDrainAreMissed) {
  begin();
  worker(12);
  spend(16s, [] {});
  EXPECT_EQ(figures[0].wanted, 2);
  leader->left(12, "its stream ended", now);
  spend(1s, [] {});
  EXPECT_EQ(figures[0], (provision::WantedFigures{.group = "0", .wanted = 2, .present = 1, .coming = 1}));
  worker(13);
  spend(1s, [] {});
  EXPECT_EQ(figures[0].coming, 0);
  ASSERT_TRUE(leader->drain("w13", false, now));
  spend(1s, [] {});
  EXPECT_EQ(figures[0].present, 1);
  EXPECT_EQ(figures[0].wanted, 2);
}

TEST_F(WantedTest, ANewLeaderGivesNoNumberUnlessItWasTold) {
  begin();
  look();
  EXPECT_TRUE(figures.empty());
  begin({.wanted_before = {{.group = "0", .wanted = 5}}});
  look();
  ASSERT_EQ(figures.size(), 1U);
  EXPECT_EQ(figures[0].wanted, 5);
  EXPECT_EQ(figures[0].present, 1);
}

TEST_F(LeaderTest, ATracedRowTellsItsWorkerOfTheTraceAndHasSpans) {
  worker(11);
  frontend(1);
  transport::Offer traced = offer(70, true);
  traced.trace = testing::sampled_row();
  leader->heard(1, {traced, offer(71, true)}, now);
  now += 2ms;
  on_next<schedule::RequestArrived>({infer(4, {{0}, {1}, {2}})});
  hear(1, offer(72));
  const auto orders = out.take<transport::Infer>(11);
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].rows[0].trace, testing::sampled_row());
  EXPECT_EQ(orders[0].rows[1].trace, std::nullopt);
  now += 3ms;
  wire::Report ran = report(4, ActionStatus::success);
  ran.delivers = true;
  hear(11, ran);
  EXPECT_TRUE(out.spans.empty());
  now += 1ms;
  hear(11, transport::Delivered{{4}, 1ms});
  ASSERT_EQ(out.spans.size(), 1U) << "the other rows have no trace";
  const explain::RowSpans& spans = *out.spans[0];
  EXPECT_EQ(spans.of, testing::sampled_row());
  EXPECT_EQ(spans.name, "schedule");
  EXPECT_EQ(spans.model, "m");
  EXPECT_TRUE(spans.remote);
  EXPECT_EQ(spans.end - spans.begin, 6ms);
  EXPECT_EQ(testing::parts_of(spans), (std::vector<std::string>{"queue 0-2", "order 2-5", "deliver 5-6"}));
  EXPECT_EQ(spans.texts.at(0).second, "w11");
  EXPECT_TRUE(spans.failed.empty());
}

TEST_F(LeaderTest, ATracedRowThatIsRefusedSaysWhy) {
  worker(11);
  frontend(1);
  transport::Offer traced = offer(70);
  traced.trace = testing::sampled_row();
  on_next<schedule::RequestArrived>({infer(4, {{0}})});
  hear(1, traced);
  now += 2ms;
  on_next<schedule::ActionDone>({schedule::Refuse{{0}, schedule::Reason::rejected_late, TimePoint::max()}});
  hear(11, report(4, ActionStatus::too_late));
  ASSERT_EQ(out.spans.size(), 1U);
  EXPECT_EQ(testing::parts_of(*out.spans[0]).at(1), "order 0-2: too_late");
  EXPECT_EQ(out.spans[0]->failed, "rejected_late");
}

}  // namespace
}  // namespace carillon::roles
