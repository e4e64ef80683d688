#include "carillon/share/desk.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::share {
namespace {

using device::JobId;
using device::LaneId;

constexpr std::uint32_t me = 1000;

// A world that does at once what it is told, and remembers it.
class World final : public Hands {
 public:
  struct Client {
    Lease lease = Lease::hold;
    std::uint32_t lane = 0;  // the memory that it was given
    Bytes size;
    std::vector<Kind> said;
    std::string why;
    Counters page;
    std::uint64_t stops = 0;  // by its page
    std::optional<TimePoint> next_boundary, roused_until;
    bool listened_to = false, frozen = false, killed = false, hung_up = false, released = false;
    std::string listing;
  };

  bool welcome(ClientId client, JobId, Bytes, const Counters& so_far) override {
    clients[client].page = so_far;
    clients[client].said.push_back(Kind::welcome);
    return true;
  }
  bool say(ClientId client, std::span<const std::byte> packet) override {
    Header header;
    std::memcpy(&header, packet.data(), sizeof header);
    EXPECT_EQ(header.bytes, packet.size());
    clients[client].said.push_back(header.kind);
    if (packet.size() == sizeof(Refused)) {
      Refused refused;
      std::memcpy(&refused, packet.data(), sizeof refused);
      clients[client].why = refused.why;
    }
    return !deaf.contains(client);
  }
  bool give_lane(ClientId client, LaneId, std::uint32_t number, Bytes size) override {
    clients[client].lane = number;
    clients[client].size = size;
    clients[client].said.push_back(Kind::lane);
    return !deaf.contains(client);
  }
  void list(ClientId client, std::string text) override { clients[client].listing = std::move(text); }
  void lease(ClientId client, Lease lease) override {
    clients[client].lease = lease;
    if (lease == Lease::run && on_run) on_run(client);
  }
  Counters counters(ClientId client) override { return clients[client].page; }
  std::optional<TimePoint> next_boundary(ClientId client) override { return clients[client].next_boundary; }
  std::optional<StoppedSaid> stopped(ClientId client, std::uint64_t before) override {
    if (clients[client].stops <= before) return std::nullopt;
    return StoppedSaid{.counters = clients[client].page, .remaining = {}, .stops = clients[client].stops};
  }
  void listen(ClientId client, bool listens) override { clients[client].listened_to = listens; }
  void rouse(ClientId client, TimePoint until) override { clients[client].roused_until = until; }
  bool entered(ClientId client) override { return !asleep.contains(client); }
  Duration freeze(ClientId client) override {
    clients[client].frozen = true;
    return 1us;
  }
  void thaw(ClientId client) override { clients[client].frozen = false; }
  void kill(ClientId client) override { clients[client].killed = true; }
  bool in_lanes(ClientId client) override { return !other_programs.contains(client); }
  void hang_up(ClientId client) override { clients[client].hung_up = true; }
  void release(ClientId client) override { clients[client].released = true; }
  bool size_lane(LaneId lane, Bytes size) override {
    lanes[lane] = size;
    return true;
  }
  void close_lane(LaneId lane) override { lanes.erase(lane); }
  void note(Note note) override { events.emplace_back(note.event); }

  bool was_told(ClientId client, Kind kind) { return std::ranges::find(clients[client].said, kind) != clients[client].said.end(); }
  bool noted(const std::string& event) const { return std::ranges::find(events, event) != events.end(); }

  std::map<ClientId, Client> clients;
  std::map<LaneId, Bytes> lanes;
  std::set<ClientId> deaf, other_programs, asleep;
  std::vector<std::string> events;
  std::function<void(ClientId)> on_run;
};

class DeskTest : public ::testing::Test {
 protected:
  void open(const std::string& policy, Bytes capacity = gib(1), device::JobOptions options = {}) {
    options.capacity = capacity;
    options.contiguous = false;
    auto core = device::make_job_sharing(policy, options);
    ASSERT_TRUE(core) << core.error().message;
    desk.emplace(std::move(*core), DeskOptions{.policy = policy,
                             .capacity = capacity,
                             .assumed = options.assumed,
                             .uid = me,
                             .listens = 200us},
                 world);
  }
  ClientId come(std::uint32_t uid = me) {
    const ClientId id{next_++};
    world.clients[id] = {};
    desk->came(id, {.pid = 100 + id.value, .uid = uid}, now);
    return id;
  }
  ClientId job(Bytes persistent = mib(1), Bytes ephemeral = mib(1)) {
    const ClientId id = come();
    desk->said(id, HelloSaid{.name = "job", .persistent = persistent, .ephemeral = ephemeral}, now);
    return id;
  }
  ClientId ready_job(Bytes persistent = mib(1), Bytes ephemeral = mib(1)) {
    const ClientId id = job(persistent, ephemeral);
    stop(id);
    return id;
  }
  void stop(ClientId id) { desk->said(id, StoppedSaid{.counters = world.clients[id].page, .remaining = {}}, now); }
  // One iteration more, by the page.
  void count(ClientId id, Duration took) {
    Counters& page = world.clients[id].page;
    ++page.iterations;
    page.busy += took;
    page.memory = {mib(1), mib(1)};
  }
  void wait(Duration d) {
    const TimePoint until = now + d;
    while (desk->next() <= until) {
      now = std::max(now, desk->next());
      desk->wake(now);
    }
    now = until;
  }
  bool runs(ClientId id) { return world.clients[id].lease == Lease::run; }

  World world;
  std::optional<Desk> desk;
  TimePoint now{Duration{std::chrono::hours(1)}};

 private:
  std::uint32_t next_ = 0;
};

TEST_F(DeskTest, AJobRunsOnceItIsReady) {
  open("fifo");
  const ClientId a = job();
  EXPECT_TRUE(world.was_told(a, Kind::welcome));
  EXPECT_FALSE(runs(a));
  stop(a);
  EXPECT_TRUE(runs(a));
  EXPECT_EQ(world.clients[a].size, mib(1));
  EXPECT_EQ(world.lanes.size(), 1U);
}

TEST_F(DeskTest, ALaneIsHandedOverAtTheBoundary) {
  open("fair");
  const ClientId a = ready_job(), b = ready_job(mib(1), gib(1) - mib(4));  // too large for a lane of its own
  ASSERT_TRUE(runs(a) != runs(b));
  const ClientId first = runs(a) ? a : b, second = first == a ? b : a;
  // Whoever runs is recalled at last; the other does not begin before it is out.
  for (int i = 0; i < 100 && runs(first); ++i) {
    count(first, 20ms);
    wait(20ms);
  }
  EXPECT_FALSE(runs(first));
  EXPECT_FALSE(runs(second));
  stop(first);
  EXPECT_TRUE(runs(second));
  EXPECT_EQ(world.clients[first].lane, world.clients[second].lane);
}

TEST_F(DeskTest, WhoHasNotSeenItsGrantKeepsItUntilItHas) {
  open("fair");
  const ClientId a = ready_job();
  world.asleep.insert(a);
  ready_job();
  wait(3s);
  EXPECT_TRUE(runs(a));  // recalled long since
  world.asleep.erase(a);
  wait(10ms);
  EXPECT_FALSE(runs(a));
  stop(a);
  EXPECT_FALSE(world.was_told(a, Kind::evicted));
}

TEST_F(DeskTest, NobodyComesIntoALaneWhoseJobIsOnlyToldToEnd) {
  open("fair");
  const ClientId a = ready_job(), b = ready_job();
  ASSERT_TRUE(runs(a));
  desk->said(a, Result<Said>(QuerySaid{}), now);  // nonsense
  EXPECT_TRUE(world.was_told(a, Kind::evicted));
  EXPECT_EQ(world.clients[a].lease, Lease::look);
  EXPECT_FALSE(runs(b));
  wait(2s);
  EXPECT_TRUE(world.clients[a].killed);
  EXPECT_FALSE(runs(b));
  desk->ended(a, now);
  EXPECT_TRUE(world.clients[a].released);
  EXPECT_TRUE(runs(b));
}

TEST_F(DeskTest, ASocketThatClosesEndsTheJobAndItsProcessIsWaitedFor) {
  open("fair");
  const ClientId a = ready_job(), b = ready_job();
  desk->hung_up(a, now);
  EXPECT_FALSE(runs(b));
  desk->ended(a, now);
  EXPECT_TRUE(runs(b));
  EXPECT_FALSE(world.clients[a].killed);
  EXPECT_EQ(desk->overview(now).totals.lost, 1U);
}

TEST_F(DeskTest, AProcessThatBecameAnotherProgramIsNotKilled) {
  open("fifo");
  const ClientId a = ready_job(), b = ready_job();
  world.other_programs.insert(a);
  desk->hung_up(a, now);
  wait(2s);
  EXPECT_FALSE(world.clients[a].killed);
  EXPECT_TRUE(world.clients[a].released);
  EXPECT_TRUE(runs(b));
}

TEST_F(DeskTest, ByeFreesTheLaneAtOnce) {
  open("fifo");
  const ClientId a = ready_job(), b = ready_job();
  desk->said(a, Result<Said>(ByeSaid{}), now);
  EXPECT_TRUE(world.clients[a].released);
  EXPECT_TRUE(runs(b));
}

TEST_F(DeskTest, WhoIsReadyOrAsksBeforeItIsAdmittedIsRemembered) {
  open("pack", mib(100));
  const ClientId a = ready_job(mib(60), mib(30)), b = job(mib(60), mib(30)), c = job(mib(60), mib(1));
  ASSERT_TRUE(runs(a));
  stop(b);
  desk->said(c, AskSaid{{mib(60), mib(20)}}, now);
  EXPECT_FALSE(world.was_told(b, Kind::lane));
  EXPECT_FALSE(world.was_told(c, Kind::lane));
  desk->said(a, Result<Said>(ByeSaid{}), now);
  EXPECT_TRUE(runs(b));
  desk->said(b, Result<Said>(ByeSaid{}), now);
  EXPECT_TRUE(world.was_told(c, Kind::lane));
  EXPECT_FALSE(runs(c));
  stop(c);
  EXPECT_TRUE(runs(c));
  EXPECT_EQ(world.clients[c].size, mib(20));
}

TEST_F(DeskTest, ItAsksForMoreAndItsLaneGrows) {
  open("fair", mib(100));
  const ClientId a = ready_job();
  desk->said(a, AskSaid{{mib(1), mib(50)}}, now);
  EXPECT_EQ(world.clients[a].size, mib(50));
  EXPECT_TRUE(runs(a));
}

TEST_F(DeskTest, OnlyWhoTakesTooMuchIsEvicted) {
  open("fair", mib(100));
  const ClientId a = ready_job(mib(10), mib(10)), b = ready_job(mib(10), mib(10));
  desk->said(a, AskSaid{{mib(10), mib(100)}}, now);
  EXPECT_TRUE(world.was_told(a, Kind::evicted));
  EXPECT_NE(world.clients[a].why.find("there is room for"), std::string::npos) << world.clients[a].why;
  EXPECT_FALSE(world.was_told(b, Kind::evicted));
  EXPECT_EQ(desk->jobs(), 1U);
}

TEST_F(DeskTest, WhatFitsIsSaidToWhoDoesNot) {
  open("fifo", mib(10));
  const ClientId a = job(mib(20), mib(1));
  EXPECT_TRUE(world.was_told(a, Kind::refused));
  EXPECT_TRUE(world.clients[a].released);
  EXPECT_NE(world.clients[a].why.find("even alone"), std::string::npos);
  EXPECT_EQ(world.clients[a].lease, Lease::look);
}

TEST_F(DeskTest, CountersThatGoBackEvict) {
  open("fifo");
  const ClientId a = ready_job(), b = ready_job();
  count(a, 5ms);
  count(a, 5ms);
  wait(100ms);
  EXPECT_EQ(desk->overview(now).jobs[0].view.iterations, 2U);
  world.clients[a].page.iterations = 1;
  wait(1s);
  EXPECT_TRUE(world.was_told(a, Kind::evicted));
  desk->ended(a, now);
  EXPECT_TRUE(runs(b));
}

TEST_F(DeskTest, AForgedPageCostsItsJobAlone) {
  open("fair", mib(100));
  const ClientId a = ready_job(mib(10), mib(10)), b = ready_job(mib(10), mib(10));
  world.clients[a].page = {~0ULL, most_time, {most_bytes, most_bytes}};
  wait(1s);
  EXPECT_TRUE(world.was_told(a, Kind::evicted));
  EXPECT_FALSE(world.was_told(b, Kind::evicted));
  desk->ended(a, now);
  EXPECT_TRUE(runs(b));
}

TEST_F(DeskTest, NoiseOnASocket) {
  open("fifo");
  const ClientId silent = come(), stranger = come(me + 1), noisy = come(), early = come();
  desk->said(stranger, HelloSaid{.name = "stranger"}, now);
  EXPECT_TRUE(world.was_told(stranger, Kind::refused));
  desk->said(noisy, invalid("no packet"), now);
  EXPECT_EQ(world.clients[noisy].why, "no packet");
  desk->said(early, Result<Said>(ByeSaid{}), now);
  EXPECT_TRUE(world.was_told(early, Kind::refused));
  wait(6s);
  EXPECT_TRUE(world.was_told(silent, Kind::refused));
  EXPECT_EQ(desk->overview(now).totals.turned_away, 4U);
  EXPECT_EQ(desk->next(), TimePoint::max());  // nothing is left to do
}

TEST_F(DeskTest, WhoDoesNotReadIsEvicted) {
  open("fifo");
  const ClientId a = job(), b = ready_job();
  world.deaf.insert(a);
  stop(a);
  EXPECT_FALSE(runs(a));
  EXPECT_TRUE(runs(b));
}

TEST_F(DeskTest, WhoHangsIsNamedAndItsLaneIsLeft) {
  device::JobOptions options;
  options.hang_after = 1s;
  open("fair", mib(100), options);
  const ClientId a = ready_job(), b = ready_job();
  count(a, 5ms);
  wait(10s);
  EXPECT_TRUE(world.clients[a].frozen);
  EXPECT_TRUE(world.noted("hangs"));
  EXPECT_TRUE(desk->overview(now).jobs[0].view.hanging);
  EXPECT_TRUE(runs(b));
  EXPECT_NE(world.clients[b].lane, world.clients[a].lane);
}

// Whoever is to be awake then asks: of those that were recalled, and not of others.
TEST_F(DeskTest, WhenWhoWasRecalledShouldComeOut) {
  open("fair");
  const ClientId a = ready_job(), b = ready_job(mib(1), gib(1) - mib(4));
  const ClientId first = runs(a) ? a : b, second = first == a ? b : a;
  world.clients[first].next_boundary = now + 1s;
  EXPECT_EQ(desk->expected(now).from, TimePoint::max()) << "nobody was recalled";
  for (int i = 0; i < 100 && runs(first); ++i) {
    count(first, 20ms);
    wait(20ms);
  }
  ASSERT_FALSE(runs(first));
  const TimePoint boundary = *world.clients[first].next_boundary;
  EXPECT_EQ(desk->expected(now).from, boundary - 1ms) << "a turn of a second: a hundredth is too much";
  EXPECT_EQ(desk->expected(now).until, boundary + 1ms);
  EXPECT_EQ(desk->expected(boundary).from, boundary - 1ms);
  EXPECT_EQ(desk->expected(boundary + 1ms).from, TimePoint::max()) << "that is over";
  world.clients[first].next_boundary = now + 3ms;
  EXPECT_EQ(desk->expected(now).from, boundary - 1ms) << "a page that says something else all the time keeps somebody awake";
  desk->want_device(now);
  EXPECT_EQ(desk->expected(now).from, TimePoint::max()) << "it stands still";
  desk->free_device(TimePoint::max(), now);
  EXPECT_EQ(desk->expected(now).from, boundary - 1ms);
  stop(first);
  EXPECT_TRUE(runs(second));
  EXPECT_EQ(desk->expected(now).from, TimePoint::max());
}

// Two jobs in one lane, the first of which was recalled.
class DeskListening : public DeskTest {
 protected:
  void SetUp() override {
    open("fair");
    const ClientId a = ready_job(), b = ready_job(mib(1), gib(1) - mib(4));
    first = runs(a) ? a : b;
    second = first == a ? b : a;
    world.clients[first].next_boundary = now + 30ms;
    for (int i = 0; i < 100 && runs(first); ++i) {
      count(first, 20ms);
      wait(20ms);
    }
    ASSERT_FALSE(runs(first));
  }
  // As a job does: its page, and a packet where nobody listens.
  void stops(ClientId id) {
    ++world.clients[id].stops;
    if (!world.clients[id].listened_to) packet(id);
  }
  void packet(ClientId id) {
    desk->said(id, StoppedSaid{.counters = world.clients[id].page, .remaining = {}, .stops = world.clients[id].stops},
               now);
  }

  ClientId first{}, second{};
};

TEST_F(DeskListening, AStopIsHeardByThePage) {
  desk->listen(now + 1s);
  EXPECT_TRUE(world.clients[first].listened_to);
  EXPECT_FALSE(world.clients[second].listened_to);
  EXPECT_EQ(world.clients[second].roused_until, now + 1s) << "who follows stays awake";
  EXPECT_EQ(world.clients[first].roused_until, std::nullopt);
  EXPECT_FALSE(desk->hear(now));
  EXPECT_FALSE(runs(second));
  stops(first);
  EXPECT_TRUE(desk->hear(now));
  EXPECT_TRUE(runs(second));
  EXPECT_FALSE(desk->hear(now));
  desk->listen_no_more(now);
  EXPECT_FALSE(world.clients[first].listened_to);
  EXPECT_EQ(world.clients[first].said, (std::vector{Kind::welcome, Kind::lane})) << "nobody was evicted";
}

// It was on its way to say so when the broker began to listen, or ceased to.
TEST_F(DeskListening, NoStopIsLostOrHeardTwice) {
  desk->listen(now + 1s);
  ++world.clients[first].stops;
  desk->listen_no_more(now);
  EXPECT_TRUE(runs(second)) << "the last look";
  packet(first);
  EXPECT_TRUE(runs(second));
  EXPECT_FALSE(world.clients[first].hung_up) << "what the page had told was taken for another stop";
  for (int i = 0; i < 100 && runs(second); ++i) {
    count(second, 20ms);
    wait(20ms);
  }
  stops(second);
  EXPECT_TRUE(runs(first)) << "nobody listened, and it sent a packet";
}

TEST_F(DeskListening, OnlyThoseThatAreExpectedAreListenedTo) {
  desk->listen(desk->expected(now).from);
  EXPECT_FALSE(world.clients[first].listened_to) << "it comes later";
  desk->listen_no_more(now);
  desk->want_device(now);
  desk->listen(now + 1s);
  EXPECT_FALSE(world.clients[first].listened_to) << "it stands still";
  EXPECT_FALSE(world.clients[second].roused_until);
}

TEST_F(DeskTest, WhoeverGoesBeforeAllJobsFreezesThem) {
  open("fair");
  const ClientId a = ready_job();
  desk->want_device(now);
  EXPECT_TRUE(world.clients[a].frozen);
  wait(5s);
  EXPECT_FALSE(world.noted("hangs"));
  desk->free_device(TimePoint::max(), now);
  EXPECT_FALSE(world.clients[a].frozen);
  EXPECT_TRUE(runs(a));
}

TEST_F(DeskTest, ABrokerThatEndsTellsAll) {
  open("fair");
  const ClientId a = ready_job(), b = job();
  desk->close(false);
  for (const ClientId id : {a, b}) {
    EXPECT_TRUE(world.was_told(id, Kind::ending));
    EXPECT_EQ(world.clients[id].lease, Lease::look);
  }
  EXPECT_EQ(desk->next(), TimePoint::max());
}

TEST_F(DeskTest, AJobThatComesAgainHasItsPast) {
  open("fair");
  const ClientId a = come();
  desk->said(a,
             HelloSaid{.name = "again",
                       .persistent = mib(3),
                       .ephemeral = mib(4),
                       .before = Counters{.iterations = 70, .busy = 7s, .memory = {mib(3), mib(4)}}},
             now);
  stop(a);
  ASSERT_TRUE(runs(a));
  wait(1s);
  count(a, 500ms);
  wait(1s);
  const Overview seen = desk->overview(now);
  ASSERT_EQ(seen.jobs.size(), 1U);
  EXPECT_EQ(seen.jobs[0].view.iterations, 71U);
  EXPECT_GE(seen.jobs[0].view.attained, 8s);
  EXPECT_EQ(seen.totals.again, 1U);
}

// Random jobs, kind and unkind, under every policy. At no time do two processes have one memory to run in: one that
// was let run has it until it says that it stopped or is dead, whatever the broker thinks of it.
TEST_F(DeskTest, OneProcessInALanesMemory) {
  for (const std::string_view policy : device::job_policy_names()) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(std::string(policy) + ", seed " + std::to_string(seed));
      Random random(seed);
      world = {};
      device::JobOptions options;
      options.hang_after = 300ms;
      options.evict_hanging = seed % 2 == 0;
      open(std::string(policy), mib(64), options);
      std::map<ClientId, std::uint32_t> inside;  // by process: the memory that it may write to
      std::vector<ClientId> alive;
      world.on_run = [&](ClientId id) {
        const std::uint32_t memory = world.clients[id].lane;
        for (const auto& [other, has] : inside)
          ASSERT_FALSE(has == memory && other != id) << "clients " << other.value << " and " << id.value;
        inside[id] = memory;
      };
      const auto out = [&](ClientId id) {
        inside.erase(id);
      };
      for (int step = 0; step < 1500 && !HasFatalFailure(); ++step) {
        std::erase_if(alive, [&](ClientId id) { return world.clients[id].released; });
        const auto what = random.below(100);
        if (alive.size() < 2 || (what < 8 && alive.size() < 12)) {
          alive.push_back(job(mib(1 + random.below(20)), mib(1 + random.below(30))));
          if (random.below(10) != 0) stop(alive.back());
        } else {
          const ClientId id = alive[random.below(alive.size())];
          World::Client& client = world.clients[id];
          const bool in = inside.contains(id) && !client.frozen && !client.killed;
          if (client.killed || what < 12) {
            out(id);
            if (random.below(2) == 0) desk->hung_up(id, now);
            if (!client.released) desk->ended(id, now);
          } else if (what < 16) {
            desk->hung_up(id, now);
          } else if (what < 18) {
            if (!in) continue;
            out(id);
            desk->said(id, Result<Said>(ByeSaid{}), now);
          } else if (what < 22) {
            desk->said(id, AskSaid{{mib(random.below(30)), mib(random.below(40))}}, now);
          } else if (what < 23) {
            desk->said(id, invalid("noise"), now);
          } else if (what < 24) {
            desk->want_device(now);
          } else if (what < 28) {
            desk->free_device(TimePoint::max(), now);
          } else if (what < 60 && in) {
            count(id, Duration{static_cast<std::int64_t>(random.below(20'000'000))});
            if (client.lease != Lease::run) {
              out(id);
              stop(id);
            }
          } else {
            wait(Duration{static_cast<std::int64_t>(random.below(50'000'000))});
          }
        }
      }
      // All end, and nothing is left.
      for (const ClientId id : alive)
        if (!world.clients[id].released) {
          out(id);
          desk->ended(id, now);
        }
      EXPECT_EQ(desk->jobs(), 0U);
      EXPECT_TRUE(desk->overview(now).lanes.empty());
      world.on_run = nullptr;
    }
  }
}

}  // namespace
}  // namespace carillon::share
