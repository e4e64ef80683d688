#include "carillon/hosts/member_core.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::hosts {
namespace {

using cluster::Role;
using ::testing::HasSubstr;

// Hosts on one network, each with a clock of its own, and a coordinator that answers after a millisecond.
// Time goes on by a quarter of a millisecond.
class Network {
 public:
  struct Host {
    cluster::Member member;
    std::unique_ptr<MemberCore> core;
    Duration zero{0};  // of its clock
    bool stopped = false;
    TimePoint ticked = TimePoint::min();
    std::deque<std::pair<TimePoint, std::string>> waiting;  // in its socket
  };

  explicit Network(std::uint64_t seed = 1) : random_(seed) {}

  void start(const std::string& id, Role role, Duration zero = Duration{0}, const std::string& key = "secret",
             std::optional<std::string> other_key = std::nullopt,
             const cluster::Protocols& protocols = cluster::own_protocols) {
    Host& host = hosts_[id];
    host.member = {id, role, id + ":8100", ++incarnations_, protocols};
    MemberOptions options{
        .cluster = "box", .key = key, .other_key = std::move(other_key), .self = host.member};
    options.self.keys = host.member.keys = fingerprints_of(options);
    if (!tells_protocols) host.member.protocols.reset();
    host.core = std::make_unique<MemberCore>(std::move(options));
    host.zero = zero;
    host.stopped = false;
    host.ticked = TimePoint::min();
    host.waiting.clear();
    registered_[id] = host.member;
    // A new process reads all that is registered, and the others hear of it.
    for (const auto& [other, member] : registered_) say(host, cluster::MemberSeen{member});
    say(host, cluster::EpochSeen{record_});
    say(host, cluster::CoordinatorBack{});
    for (auto& [other, running] : hosts_)
      if (other != id) say(running, cluster::MemberSeen{host.member});
  }
  void kill(const std::string& id) { hosts_.at(id).stopped = true; }
  void delete_epoch() {  // by hand
    record_ = {};
    for (auto& [id, host] : hosts_) say(host, cluster::EpochSeen{});
  }
  void forget(const std::string& id) {  // its lease is over
    registered_.erase(id);
    for (auto& [other, host] : hosts_) say(host, cluster::MemberGone{id});
  }
  MemberCore& operator[](const std::string& id) { return *hosts_.at(id).core; }
  TimePoint clock_of(const std::string& id) const { return TimePoint{now_ + hosts_.at(id).zero}; }
  Host& host(const std::string& id) { return hosts_.at(id); }

  void run(Duration time) {
    for (const Duration end = now_ + time; now_ < end; now_ += 250us) {
      for (auto& [id, host] : hosts_) {
        if (host.stopped) continue;
        const TimePoint now = clock_of(id);
        MemberCore::Output out;
        if (host.ticked == TimePoint::min() || now - host.ticked >= 2ms) {
          host.ticked = now;
          if (!host.core->tick(now, out)) {
            pass_on(host, now, out);
            host.core->tick(now, out);
          }
        }
        pass_on(host, now, out);
        carry_out(host, out);
      }
      for (; !claims_.empty() && claims_.front().at <= now_; claims_.pop_front()) settle(claims_.front());
      std::erase_if(flying_, [&](Flight& flight) {
        if (flight.at > now_) return false;
        for (auto& [id, host] : hosts_)
          if (host.member.address == flight.to)
            host.waiting.emplace_back(TimePoint{}, std::move(flight.bytes));
        return true;
      });
    }
  }
  // Until one host leads, and all that run obey it. Returns how long it took.
  Duration until_led(Duration most = 5s) {
    const Duration from = now_;
    while (now_ - from < most && !led()) run(250us);
    EXPECT_TRUE(led());
    return now_ - from;
  }
  std::vector<std::string> leaders() const {
    std::vector<std::string> all;
    for (const auto& [id, host] : hosts_)
      if (!host.stopped && host.core->leads()) all.push_back(id);
    return all;
  }
  bool led() const {
    const auto all = leaders();
    return all.size() == 1 && std::ranges::all_of(hosts_, [&](const auto& one) {
             return one.second.stopped || one.second.core->leader() == all[0];
           });
  }
  std::uint64_t epoch() const { return record_.epoch ? record_.epoch->number : 0; }
  void say(Host& host, const cluster::CoordinatorNews& news) {
    if (host.stopped) return;
    MemberCore::Output out;
    host.core->coordinator_said(news, out);
    carry_out(host, out);
  }
  void deliver(const std::string& to, std::string bytes) {
    hosts_.at(to).waiting.emplace_back(TimePoint{}, std::move(bytes));
  }

  bool coordinator_there = true;
  bool tells_protocols = true;  // of members that start from now on; a static file does not
  double lost = 0;              // of the datagrams
  int claims = 0;

 private:
  struct Flight {
    Duration at{0};
    std::string to, bytes;
  };
  struct Claim {
    Duration at{0};
    std::string host;
    std::uint64_t token = 0;
    std::optional<cluster::Epoch> epoch;  // none: a read
    std::int64_t over = 0;
  };
  void pass_on(Host& host, TimePoint now, MemberCore::Output& out) {
    for (const auto& [at, bytes] : std::exchange(host.waiting, {})) host.core->heard(bytes, now, out);
  }
  void carry_out(const Host& host, MemberCore::Output& out) {
    for (auto& [address, bytes] : out.datagrams)
      if (random_.uniform() >= lost)
        flying_.push_back({now_ + 100us + from_ns(random_.uniform() * 9e5), address, std::move(bytes)});
    if (!out.claim && !out.read) return;
    claims += out.claim ? 1 : 0;
    if (coordinator_there)
      claims_.push_back({now_ + 1ms, host.member.id, host.core->request_token(), out.claim, out.claim_over});
    else
      hosts_.at(host.member.id).core->request_failed();
  }
  void settle(const Claim& claim) {
    if (!claim.epoch) return say(hosts_.at(claim.host), cluster::EpochRead{claim.token, record_, {}});
    using Outcome = cluster::WriteDone::Outcome;
    const bool done = record_.revision == claim.over;
    if (done) {
      record_ = {claim.epoch, ++revision_};
      for (auto& [id, host] : hosts_) say(host, cluster::EpochSeen{record_});
    }
    say(hosts_.at(claim.host), cluster::WriteDone{.token = claim.token,
                                                  .outcome = done ? Outcome::done : Outcome::differs,
                                                  .current = record_,
                                                  .why = {}});
  }

  Random random_;
  Duration now_{1s};
  std::map<std::string, Host> hosts_;
  std::map<std::string, cluster::Member> registered_;
  cluster::EpochRecord record_;
  std::int64_t revision_ = 0;  // the last
  std::uint64_t incarnations_ = 0;
  std::vector<Flight> flying_;
  std::deque<Claim> claims_;
};

class MemberCoreTest : public ::testing::Test {
 protected:
  void start() {
    net.start("s1", Role::scheduler);
    net.start("s2", Role::scheduler, 1000s);
    net.start("w1", Role::worker, -500s);
    net.start("f1", Role::frontend, 77s);
    net.until_led();
  }
  Network net;
};

TEST_F(MemberCoreTest, OneSchedulerLeadsAndAllKnowWho) {
  start();
  const std::string leader = net.leaders().at(0);
  EXPECT_EQ(net.epoch(), 1U);
  for (const char* id : {"s1", "s2", "w1", "f1"}) {
    EXPECT_EQ(net[id].leader(), leader) << id;
    EXPECT_EQ(net[id].epoch(), 1U) << id;
  }
  EXPECT_TRUE(net["w1"].obeys(1));
  net.run(1s);
  EXPECT_EQ(net.leaders(), std::vector{leader});
  EXPECT_EQ(net.epoch(), 1U) << "nobody was elected for nothing";
}

TEST_F(MemberCoreTest, ASpareLeadsSoonAfterItsLeaderDied) {
  start();
  net.run(200ms);
  const std::string leader = net.leaders().at(0), spare = leader == "s1" ? "s2" : "s1";
  net.kill(leader);
  EXPECT_LT(net.until_led(), 60ms);
  EXPECT_EQ(net.leaders(), std::vector{spare});
  EXPECT_EQ(net.epoch(), 2U);
  EXPECT_FALSE(net["w1"].obeys(1)) << "what the dead leader sent comes too late";
  EXPECT_TRUE(net["w1"].obeys(2));
}

TEST_F(MemberCoreTest, SparesThatDiedBeforeAreNotWaitedFor) {
  for (const char* id : {"s3", "s4", "s5", "s6"}) net.start(id, Role::scheduler);
  start();
  net.run(200ms);
  const std::string leader = net.leaders().at(0);
  const auto number = [](const std::string& id) { return number_of(id); };
  std::vector<std::string> spares{"s1", "s2", "s3", "s4", "s5", "s6"};
  std::erase(spares, leader);
  std::ranges::sort(spares, {}, number);  // by rank
  for (std::size_t i = 0; i + 1 < spares.size(); ++i) net.kill(spares[i]);
  net.run(50ms);
  net.kill(leader);  // all of them are still registered
  // Their ranks would take 25 ms. As most members are gone, answers are awaited twice, 5 ms each.
  EXPECT_LT(net.until_led(), 42ms);
  EXPECT_EQ(net.leaders(), std::vector{spares.back()});
}

TEST_F(MemberCoreTest, WhoseIdIsTakenClaimsNothing) {
  const auto claims = [](bool taken) {
    MemberCore core({.cluster = "box", .key = "secret", .self = {"s1", Role::scheduler, "h:1", 7}});
    MemberCore::Output out;
    core.coordinator_said(cluster::EpochSeen{}, out);
    core.coordinator_said(cluster::CoordinatorBack{}, out);
    if (taken) core.coordinator_said(cluster::IdTaken{}, out);
    int count = 0;
    for (TimePoint now{1s}; now < TimePoint{3s}; now += 1ms) {
      out = {};
      (void)core.tick(now, out);
      count += out.claim ? 1 : 0;
      if (out.claim) core.request_failed();
    }
    return count;
  };
  EXPECT_GT(claims(false), 0);
  EXPECT_EQ(claims(true), 0);
}

TEST_F(MemberCoreTest, TheVersionGoesUpWithWhatOthersAreTold) {
  start();
  net.run(100ms);
  const std::string leader = net.leaders().at(0);
  std::uint64_t version = net["w1"].version();
  net.run(1s);
  EXPECT_EQ(net["w1"].version(), version) << "nothing has changed";
  net.kill("f1");
  net.run(50ms);
  EXPECT_EQ(std::exchange(version, net["w1"].version()) + 1, version) << "one is missed";
  net.forget("f1");
  EXPECT_EQ(net["w1"].version(), version) << "it was missed before";
  net.kill(leader);
  net.until_led();
  EXPECT_GT(net["w1"].version(), version);
}

TEST_F(MemberCoreTest, AClockIsKnownWithItsMember) {
  start();
  net.run(1s);
  const auto clock = net["w1"].clock_of("f1");
  ASSERT_TRUE(clock && clock->settled());
  EXPECT_EQ(clock->at(net.clock_of("w1"))->offset, net["w1"].peers(net.clock_of("w1"))[0].clock->offset);
  EXPECT_FALSE(net["w1"].clock_of("w1"));
  const std::uint64_t process = net.host("f1").member.incarnation;
  EXPECT_TRUE(net["w1"].clock_of("f1", process));
  EXPECT_FALSE(net["w1"].clock_of("f1", process + 1)) << "its host may have been started anew";
  EXPECT_FALSE(net["w1"].clock_of("f2", process));
  net.forget("f1");
  EXPECT_FALSE(net["w1"].clock_of("f1"));
}

TEST_F(MemberCoreTest, ALeaderThatWasStoppedAndGoesOnDoesNotLead) {
  start();
  net.run(200ms);
  const std::string leader = net.leaders().at(0);
  net.kill(leader);
  net.until_led();
  net.host(leader).stopped = false;  // SIGCONT: it knows nothing of what came meanwhile
  net.run(2ms);
  EXPECT_FALSE(net[leader].leads());
  net.run(100ms);
  EXPECT_EQ(net[leader].epoch(), 2U);
  EXPECT_EQ(net.leaders().size(), 1U);
}

TEST_F(MemberCoreTest, FiguresTellOfLeadersBeatsClocksAndRoundTrips) {
  start();
  net.run(500ms);
  const std::string leader = net.leaders().at(0), spare = leader == "s1" ? "s2" : "s1";
  const auto figures = [&](const std::string& id) { return net[id].figures(net.clock_of(id)); };
  const MemberFigures before = figures("w1");
  EXPECT_EQ(before.role, Role::worker);
  EXPECT_FALSE(before.leads);
  EXPECT_EQ(before.epoch, 1U);
  EXPECT_EQ(before.leader_changes, 0U) << "the first leader is no change";
  EXPECT_GT(before.beats, 80U) << "one each 5 ms at least";
  ASSERT_EQ(before.clocks.size(), 3U);
  EXPECT_EQ(before.clocks[0].id, "f1");
  for (const auto& [id, bound] : before.clocks) {
    EXPECT_GT(bound, 100us) << id;  // a way takes 0.1 to 1 ms
    EXPECT_LT(bound, 1ms) << id;
  }
  ASSERT_EQ(before.round_trips.size(), 2U) << "of schedulers and of the frontend";
  for (const auto& [role, times] : before.round_trips) {
    EXPECT_GT(times.count(), 80U);
    EXPECT_GT(times.percentile(0), 200us);
    EXPECT_LE(times.max(), 2ms + 500us);  // the network's steps are 0.25 ms
  }
  EXPECT_TRUE(figures(leader).leads);
  net.kill(leader);
  net.until_led();
  net.run(50ms);
  for (const std::string& id : {std::string("w1"), std::string("f1"), spare}) {
    const MemberFigures after = figures(id);
    EXPECT_EQ(after.epoch, 2U) << id;
    EXPECT_EQ(after.leader_changes, 1U) << id;
    EXPECT_EQ(after.clocks.size(), 2U) << id << ": the dead one has left";
  }
  EXPECT_TRUE(figures(spare).leads);
  net.lost = 0.3;
  net.run(1s);
  EXPECT_GT(figures("w1").beats_missed, before.beats_missed + 20);
}

TEST_F(MemberCoreTest, AnIncarnationOfBeforeIsNotHeard) {
  start();
  net.run(50ms);
  const std::uint64_t before = net["s1"].counters().unknown;
  const transport::DatagramCodec codec("box", "secret");
  const transport::DatagramCodec::Process s1{"s1", net.host("s1").member.incarnation};
  net.deliver("s1", codec.encode({.from = "w1", .incarnation = 999}, s1));
  net.deliver("s1", codec.encode({.from = "nobody", .incarnation = 1}, s1));
  net.run(5ms);
  EXPECT_EQ(net["s1"].counters().unknown, before + 2);
  net.deliver("s1", "garbage that is long enough for one");
  net.run(5ms);
  EXPECT_EQ(net["s1"].counters().refused, 1U);
}

TEST_F(MemberCoreTest, WhoHasAnotherKeyIsHeardByNobody) {
  start();
  net.start("w2", Role::worker, Duration{0}, "another secret");
  net.run(200ms);
  const auto peers = net["s1"].peers(net.clock_of("s1"));
  const auto w2 = std::ranges::find(peers, "w2", [](const auto& peer) { return peer.member.id; });
  ASSERT_NE(w2, peers.end());
  EXPECT_FALSE(w2->there);
  EXPECT_GT(net["s1"].counters().refused, 0U);
  EXPECT_EQ(net["w2"].counters().heard, 0U);
}

// Also where they are as many as the others. The election does not wait for their answers either.
TEST_F(MemberCoreTest, WhoHasAnotherKeyTakesTheLeadFromNobody) {
  start();
  net.start("s8", Role::scheduler, Duration{0}, "another secret");
  net.start("s9", Role::scheduler, Duration{0}, "another secret");
  net.start("w9", Role::worker, Duration{0}, "another secret");
  net.start("f9", Role::frontend, Duration{0}, "another secret");
  const std::string leader = net.leaders().at(0), spare = leader == "s1" ? "s2" : "s1";
  const int claims = net.claims;
  net.run(3s);
  EXPECT_EQ(net.leaders(), std::vector{leader});
  EXPECT_EQ(net.epoch(), 1U);
  EXPECT_EQ(net.claims, claims) << "nothing is asked of the coordinator again and again either";
  for (const char* id : {"s8", "s9", "w9", "f9"})
    EXPECT_TRUE(
        net[id].trouble().starts_with("this process has another --cluster-key than '" + leader +
                                      "', the leader of epoch 1: it neither hears the others nor leads. "
                                      "Give it the cluster's key"))
        << net[id].trouble();
  EXPECT_EQ(net["w1"].trouble(), "member 'f9' has another --cluster-key than this process, and is not heard");
  MemberCore::Output out;
  EXPECT_EQ(net[leader].hand_over("s9", out).error().message,
            "cannot hand over to s9: it has another --cluster-key than " + leader);
  net.kill(leader);
  EXPECT_LT(net.until_led(), 60ms);
  EXPECT_EQ(net.leaders(), std::vector{spare});
  net.kill(spare);
  net.run(1s);
  EXPECT_TRUE(net.leaders().empty()) << "not even where nobody else is there";
}

TEST_F(MemberCoreTest, WhoHasTheNextKeyBeginsAnewOnceTheEpochIsDeleted) {
  start();
  for (int i = 0; i < 2; ++i) {  // the epoch is not the first
    net.kill(net.leaders().at(0));
    net.start("s" + std::to_string(3 + i), Role::scheduler);
    net.until_led();
  }
  EXPECT_EQ(net.epoch(), 3U);
  net.start("s8", Role::scheduler, Duration{0}, "the next");
  net.start("w8", Role::worker, Duration{0}, "the next");
  net.run(500ms);
  EXPECT_NE(net["s8"].trouble(), "");
  for (const char* id : {"s1", "s2", "s3", "s4", "w1", "f1"}) {
    net.kill(id);
    net.forget(id);
  }
  net.run(1s);
  EXPECT_TRUE(net.leaders().empty());
  net.delete_epoch();
  net.run(1s);
  EXPECT_EQ(net.leaders(), std::vector<std::string>{"s8"});
  EXPECT_EQ(net.epoch(), 1U);
  for (const char* id : {"s8", "w8"}) EXPECT_EQ(net[id].trouble(), "") << id;
  EXPECT_TRUE(net["w8"].obeys(1));
  EXPECT_EQ(net["w8"].figures(net.clock_of("w8")).leader_changes, 0U);
}

// Numbers of epochs would be given twice.
TEST_F(MemberCoreTest, WhoHasTheKeyDoesNotBeginAnewWhereTheEpochIsDeleted) {
  start();
  net.run(100ms);
  const std::string leader = net.leaders().at(0);
  net.delete_epoch();
  net.run(300ms);
  EXPECT_EQ(net.leaders(), std::vector{leader});
  net.kill(leader);
  net.run(1s);
  EXPECT_TRUE(net.leaders().empty());
  EXPECT_FALSE(net["w1"].obeys(0));
}

TEST_F(MemberCoreTest, TheKeyIsChangedOneMemberAfterTheOther) {
  start();
  const struct {
    const char *key, *other;
  } steps[] = {{"secret", "new secret"}, {"new secret", "secret"}, {"new secret", nullptr}};
  for (const auto& [key, other] : steps)
    for (const auto& [id, role] : {std::pair{"w1", Role::worker}, std::pair{"f1", Role::frontend},
                                   std::pair{"s1", Role::scheduler}, std::pair{"s2", Role::scheduler}}) {
      net.start(id, role, Duration{0}, key, other ? std::optional<std::string>(other) : std::nullopt);
      EXPECT_LT(net.until_led(), 500ms) << id << " with " << key;
      net.run(300ms);
      EXPECT_TRUE(net.led());
      for (const char* each : {"s1", "s2", "w1", "f1"}) EXPECT_EQ(net[each].trouble(), "") << each;
    }
  net.start("s3", Role::scheduler, Duration{0}, "secret");
  net.run(1s);
  EXPECT_NE(net["s3"].trouble(), "");
  EXPECT_TRUE(net.led());
}

// Role by role, up by one version and down again.
TEST_F(MemberCoreTest, MembersOfNeighbouringProtocolsAreOneCluster) {
  start();
  const std::pair<const char*, Role> order[] = {
      {"s2", Role::scheduler}, {"s1", Role::scheduler}, {"w1", Role::worker}, {"f1", Role::frontend}};
  for (const cluster::Protocols& next : {cluster::Protocols{1, 2}, cluster::Protocols{2, 3},
                                         cluster::Protocols{1, 2}, cluster::Protocols{1, 1}})
    for (const auto& [id, role] : order) {
      net.start(id, role, Duration{0}, "secret", std::nullopt, next);
      EXPECT_LT(net.until_led(), 500ms) << id << " with " << to_text(next);
      net.run(300ms);
      EXPECT_TRUE(net.led()) << id << " with " << to_text(next);
      for (const char* each : {"s1", "s2", "w1", "f1"}) {
        EXPECT_EQ(net[each].trouble(), "") << each;
        for (const auto& peer : net[each].peers(net.clock_of(each)))
          EXPECT_TRUE(peer.there) << each << " hears " << peer.member.id;
      }
    }
}

TEST_F(MemberCoreTest, WhereNobodyTellsWhatMembersSpeakTheyFindItOut) {
  net.tells_protocols = false;
  const std::pair<const char*, Role> all[] = {
      {"s1", Role::scheduler}, {"w1", Role::worker}, {"f1", Role::frontend}};
  for (const auto& [id, role] : all) net.start(id, role, Duration{0}, "secret", std::nullopt, {1, 2});
  for (const cluster::Protocols& next :
       {cluster::Protocols{2, 3}, cluster::Protocols{1, 2}, cluster::Protocols{1, 1}})
    for (const auto& [id, role] : all) {
      net.start(id, role, Duration{0}, "secret", std::nullopt, next);
      net.run(300ms);
      EXPECT_TRUE(net.led()) << id << " with " << to_text(next);
      for (const auto& each : all)
        for (const auto& peer : net[each.first].peers(net.clock_of(each.first)))
          EXPECT_TRUE(peer.there) << each.first << " hears " << peer.member.id << ": " << id << ", "
                                  << to_text(next);
    }
}

// An old build that joins in mid-upgrade.
TEST_F(MemberCoreTest, WhoSpeaksAnOlderProtocolTakesTheLeadFromNobody) {
  const auto begin = [&](const std::string& id, Role role, const cluster::Protocols& protocols) {
    net.start(id, role, Duration{0}, "secret", std::nullopt, protocols);
  };
  begin("s1", Role::scheduler, {2, 3});
  begin("s2", Role::scheduler, {3, 4});
  begin("w1", Role::worker, {2, 3});
  begin("f1", Role::frontend, {2, 3});
  net.until_led();
  const std::string leader = net.leaders().at(0), spare = leader == "s1" ? "s2" : "s1";
  const int claims = net.claims;
  begin("s9", Role::scheduler, {1, 1});
  begin("w9", Role::worker, {1, 1});
  net.run(3s);
  EXPECT_EQ(net.leaders(), std::vector{leader});
  EXPECT_EQ(net.epoch(), 1U);
  EXPECT_EQ(net.claims, claims);
  EXPECT_EQ(net["s9"].trouble(),
            "'f1' speaks protocols 2 to 3, and 's9' speaks protocol 1: upgrade 's9' to a build that speaks "
            "protocol 2. Until then neither hears the other, and 's9' does not lead");
  EXPECT_EQ(net["w9"].trouble(),
            "'f1' speaks protocols 2 to 3, and 'w9' speaks protocol 1: upgrade 'w9' to a build that speaks "
            "protocol 2. Until then neither hears the other")
      << "a worker never leads";
  EXPECT_EQ(net["w1"].trouble(),
            "'s9' speaks protocol 1, and 'w1' speaks protocols 2 to 3: upgrade 's9' to a build that speaks "
            "protocol 2. Until then neither hears the other");
  MemberCore::Output out;
  EXPECT_EQ(net[leader].hand_over("s9", out).error().message.find("cannot hand over to s9: 's9' speaks"), 0U);
  // Those who go together elect the next leader as ever.
  net.kill(leader);
  net.run(200ms);
  EXPECT_EQ(net.leaders(), std::vector{spare});
  net.kill(spare);
  net.run(1s);
  EXPECT_TRUE(net.leaders().empty());
  // Nobody is left of the others.
  for (const char* id : {"s1", "s2", "w1", "f1"}) {
    net.kill(id);
    net.forget(id);
  }
  net.run(1s);
  EXPECT_EQ(net.leaders(), std::vector<std::string>{"s9"});
}

// As where somebody registers members that do not run.
TEST_F(MemberCoreTest, ALeaderThatIsOutnumberedLeadsOnAndSaysNothingElse) {
  net.start("s1", Role::scheduler);
  net.until_led();
  for (const char* id : {"s7", "s8", "s9"}) {
    net.start(id, Role::scheduler, Duration{0}, "secret", std::nullopt, {3, 4});
    net.kill(id);
  }
  net.run(1s);
  EXPECT_EQ(net.leaders(), std::vector<std::string>{"s1"});
  EXPECT_EQ(net["s1"].trouble(),
            "'s7' speaks protocols 3 to 4, and 's1' speaks protocol 1: upgrade 's1' to a build that speaks "
            "protocol 3. Until then neither hears the other");
}

TEST_F(MemberCoreTest, OfAsManyOfTwoProtocolsTheLeadersSideLeads) {
  const auto begin = [&](const std::string& id, const cluster::Protocols& protocols) {
    net.start(id, Role::scheduler, Duration{0}, "secret", std::nullopt, protocols);
  };
  begin("s1", {1, 1});
  net.until_led();
  begin("s8", {3, 4});
  net.run(1s);
  EXPECT_EQ(net.leaders(), std::vector<std::string>{"s1"});
  EXPECT_EQ(net.epoch(), 1U);
  net.kill("s1");
  net.run(1s);
  EXPECT_TRUE(net.leaders().empty()) << "it is registered";
  net.forget("s1");
  net.run(1s);
  EXPECT_EQ(net.leaders(), std::vector<std::string>{"s8"});
}

TEST_F(MemberCoreTest, AMemberThatDiesIsMissedSoonAndFoundAgain) {
  start();
  net.run(200ms);
  const auto there = [&](const std::string& id) {
    const auto peers = net[net.leaders().at(0)].peers(net.clock_of(net.leaders().at(0)));
    return std::ranges::find(peers, id, [](const auto& peer) { return peer.member.id; })->there;
  };
  EXPECT_TRUE(there("w1"));
  net.kill("w1");
  net.run(50ms);
  EXPECT_FALSE(there("w1"));
  EXPECT_TRUE(there("f1"));
  net.start("w1", Role::worker, 3s);
  EXPECT_FALSE(there("w1")) << "of the new process nothing was heard";
  net.run(50ms);
  EXPECT_TRUE(there("w1"));
  EXPECT_EQ(net.epoch(), 1U);
}

TEST_F(MemberCoreTest, ClocksAreKnownWithinTheirBounds) {
  start();
  net.run(5s);
  int settled = 0;
  for (const char* id : {"s1", "s2", "w1", "f1"})
    for (const auto& peer : net[id].peers(net.clock_of(id))) {
      ASSERT_TRUE(peer.clock.has_value()) << id << " of " << peer.member.id;
      const Duration right = net.host(peer.member.id).zero - net.host(id).zero;
      EXPECT_LE(std::chrono::abs(peer.clock->offset - right), peer.clock->bound)
          << id << " of " << peer.member.id;
      EXPECT_LT(peer.clock->bound, 2ms);
      ++settled;
    }
  EXPECT_EQ(settled, 12);
}

TEST_F(MemberCoreTest, OfANewProcessNothingIsKnownOfTheOneBefore) {
  start();
  net.run(200ms);
  net.start("w1", Role::worker, 3s);
  for (const auto& peer : net["s1"].peers(net.clock_of("s1")))
    if (peer.member.id == "w1") {
      EXPECT_FALSE(peer.there);
      EXPECT_FALSE(peer.clock.has_value());
    }
  net.run(200ms);
  for (const auto& peer : net["s1"].peers(net.clock_of("s1")))
    if (peer.member.id == "w1") {
      EXPECT_TRUE(peer.there);
      ASSERT_TRUE(peer.clock.has_value());
      EXPECT_LE(std::chrono::abs(peer.clock->offset - 3s), peer.clock->bound);
    }
  EXPECT_EQ(net["s1"].counters().clock_jumps, 0U);
}

TEST_F(MemberCoreTest, WithoutTheCoordinatorTheLeaderLeadsOnAndNobodyIsElected) {
  start();
  net.run(100ms);
  const std::string leader = net.leaders().at(0);
  net.coordinator_there = false;
  for (const char* id : {"s1", "s2", "w1", "f1"}) net.say(net.host(id), cluster::CoordinatorLost{"gone"});
  net.run(2s);
  EXPECT_EQ(net.leaders(), std::vector{leader});
  net.kill(leader);
  const int claims = net.claims;
  net.run(1s);
  EXPECT_TRUE(net.leaders().empty());
  EXPECT_EQ(net.claims, claims) << "nothing is asked of a coordinator that is known to be gone";
  net.coordinator_there = true;
  for (const char* id : {"s1", "s2", "w1", "f1"}) net.say(net.host(id), cluster::CoordinatorBack{});
  EXPECT_LT(net.until_led(), 100ms);
}

TEST_F(MemberCoreTest, AHandoverTakesMillisecondsAndOnlyASchedulerLeads) {
  start();
  net.run(100ms);
  const std::string leader = net.leaders().at(0), spare = leader == "s1" ? "s2" : "s1";
  MemberCore::Output out;
  EXPECT_EQ(net[leader].hand_over("nobody", out).error().message,
            "cannot hand over to nobody: no such member is registered");
  EXPECT_EQ(net[leader].hand_over(leader, out).error().message, leader + " leads already");
  EXPECT_THAT(net[leader].hand_over("w1", out).error().message, HasSubstr("no other scheduler"));
  EXPECT_EQ(net["w1"].hand_over(spare, out).error().message, "w1 is no scheduler, and leads nothing");
  ASSERT_TRUE(net[leader].hand_over("", out).has_value()) << "to any that is there";
  EXPECT_FALSE(net[leader].leads());
  EXPECT_LT(net.until_led(), 15ms);  // the message itself goes with the next beat here
  EXPECT_EQ(net.leaders(), std::vector{spare});
}

TEST_F(MemberCoreTest, ASchedulerThatDrainsHandsOverAndClaimsNothing) {
  start();
  net.run(100ms);
  const std::string leader = net.leaders().at(0), spare = leader == "s1" ? "s2" : "s1";
  MemberCore::Output out;
  EXPECT_EQ(net["w1"].drain(false, out).error().message, "w1 is no scheduler, and leads nothing");
  ASSERT_TRUE(net[leader].drain(false, out));
  EXPECT_LT(net.until_led(), 15ms);
  EXPECT_EQ(net.leaders(), std::vector{spare});
  net.kill(spare);
  net.run(1s);
  EXPECT_TRUE(net.leaders().empty()) << "it was told to claim nothing";
  ASSERT_TRUE(net[leader].drain(true, out));
  EXPECT_LT(net.until_led(), 60ms);
  EXPECT_EQ(net[leader].drain(false, out).error().message, "no other scheduler is there");
  EXPECT_FALSE(net[leader].drains());
  EXPECT_EQ(net.leaders(), std::vector{leader});
}

TEST_F(MemberCoreTest, OnePacketInTenLostChangesNothing) {
  start();
  net.lost = 0.1;
  net.run(3s);
  EXPECT_EQ(net.epoch(), 1U);
  EXPECT_TRUE(net.led());
}

TEST_F(MemberCoreTest, AMemberWhoseLeaseIsOverIsForgotten) {
  start();
  net.run(50ms);
  net.kill("w1");
  net.forget("w1");
  net.run(50ms);
  EXPECT_EQ(net["s1"].peers(net.clock_of("s1")).size(), 2U);
}

// One process by hand.
class AloneTest : public ::testing::Test {
 protected:
  static cluster::Member member(const std::string& id, Role role) { return {id, role, id + ":1", 1}; }
  static MemberCore core(const std::string& id, Role role) {
    return MemberCore({.cluster = "box", .key = "secret", .self = member(id, role)});
  }
  static cluster::EpochRecord record(std::uint64_t epoch, std::int64_t revision) {
    return {cluster::Epoch{epoch, "s1", 1}, revision};
  }
  // Ticks for so long; returns the claims.
  std::vector<cluster::Epoch> tick(MemberCore& core, Duration time) {
    std::vector<cluster::Epoch> claims;
    for (const TimePoint end = now + time; now < end; now += 2ms) {
      MemberCore::Output said;
      core.tick(now, said);
      if (said.claim) claims.push_back(*said.claim);
      if (said.read) core.coordinator_said(cluster::EpochRead{core.request_token(), known, {}}, said);
    }
    return claims;
  }
  TimePoint now{1s};
  MemberCore::Output out;
  cluster::EpochRecord known;  // what the coordinator answers
};

TEST_F(AloneTest, NothingIsObeyedBeforeTheCoordinatorsCopyIsWhole) {
  MemberCore worker = core("w1", Role::worker);
  worker.coordinator_said(cluster::EpochSeen{record(1, 10)}, out);
  EXPECT_FALSE(worker.obeys(1));
  worker.coordinator_said(cluster::CoordinatorBack{}, out);
  EXPECT_TRUE(worker.obeys(1));
  EXPECT_FALSE(worker.obeys(0));
}

TEST_F(AloneTest, AnAnswerToAnEarlierClaimIsNotTakenForTheLast) {
  MemberCore scheduler = core("s2", Role::scheduler);
  scheduler.coordinator_said(cluster::CoordinatorBack{}, out);
  const std::string key = transport::fingerprint_of("box", "secret");
  ASSERT_EQ(tick(scheduler, 10ms), (std::vector<cluster::Epoch>{{1, "s2", 1, key}}));
  const std::uint64_t token = scheduler.request_token();
  using Outcome = cluster::WriteDone::Outcome;
  scheduler.coordinator_said(cluster::WriteDone{.token = token - 1, .outcome = Outcome::unknown}, out);
  EXPECT_EQ(scheduler.election()->counters().unknown, 0U);
  scheduler.coordinator_said(cluster::WriteDone{.token = token, .outcome = Outcome::unknown}, out);
  EXPECT_EQ(scheduler.election()->counters().unknown, 1U);
  EXPECT_FALSE(scheduler.leads());
}

TEST_F(AloneTest, ALateAnswerBringsNoDeletedEpochBack) {
  MemberCore stranger = core("s2", Role::scheduler);
  cluster::EpochRecord others = record(7, 10);
  others.epoch->key = "another";
  stranger.coordinator_said(cluster::EpochSeen{others}, out);
  stranger.coordinator_said(cluster::CoordinatorBack{}, out);
  EXPECT_NE(stranger.trouble(), "");
  EXPECT_TRUE(tick(stranger, 100ms).empty());
  stranger.coordinator_said(cluster::EpochSeen{}, out);
  EXPECT_EQ(stranger.trouble(), "");
  stranger.coordinator_said(cluster::EpochRead{stranger.request_token(), others, {}}, out);
  EXPECT_EQ(stranger.trouble(), "");
  const auto claims = tick(stranger, 100ms);
  ASSERT_FALSE(claims.empty());
  EXPECT_EQ(claims[0].number, 1U);
  known = others;
  known.revision = 11;  // it is back, and was not deleted
  stranger.coordinator_said(cluster::EpochRead{stranger.request_token(), known, {}}, out);
  EXPECT_NE(stranger.trouble(), "");
}

TEST_F(AloneTest, ALateAnswerToAReadIsHeard) {
  MemberCore spare = core("s2", Role::scheduler);
  spare.coordinator_said(cluster::CoordinatorBack{}, out);
  out = {};
  spare.coordinator_said(cluster::EpochRead{spare.request_token() + 7, record(3, 10), {}}, out);
  EXPECT_EQ(spare.epoch(), 3U);
  EXPECT_EQ(spare.leader(), "s1");
}

// While nobody knew the member, the leader sent it no beats. So what it missed says nothing.
TEST_F(AloneTest, AMemberThatIsRegisteredAnewDoesNotSayThatTheLeaderIsSilent) {
  using cluster::election::Message;
  const transport::DatagramCodec codec("box", "secret");
  for (const Role role : {Role::worker, Role::scheduler}) {
    MemberCore m = core("m", role);
    m.coordinator_said(cluster::MemberSeen{member("s1", Role::scheduler)}, out);
    m.coordinator_said(cluster::MemberSeen{member("s2", Role::scheduler)}, out);
    known = record(1, 10);
    m.coordinator_said(cluster::EpochSeen{known}, out);
    m.coordinator_said(cluster::CoordinatorBack{}, out);
    const auto hears = [&](const char* from, Message message) {
      m.heard(codec.encode({.from = from, .incarnation = 1, .message = message, .sent = now}, {"m", 1}), now,
              out);
    };
    const auto answers = [&] {
      out = {};
      hears("s2", {Message::Kind::question, cluster::election::Epoch{1}, 7});
      for (const auto& [address, bytes] : out.datagrams) {
        const auto said = codec.decode(bytes, {"s2", 1});
        if (said && said->message && said->message->number == 7) return said->message->kind;
      }
      return Message::Kind::told;  // none
    };
    hears("s1", {Message::Kind::beat, cluster::election::Epoch{1}, 1});
    tick(m, 4ms);
    EXPECT_EQ(answers(), Message::Kind::hears);
    tick(m, 50ms);
    EXPECT_EQ(answers(), Message::Kind::silent);
    m.coordinator_said(cluster::Registered{}, out);
    tick(m, 4ms);
    EXPECT_EQ(answers(), Message::Kind::told);
  }
}

// An epoch number could be given twice else, where the coordinator has lost what it had.
TEST_F(AloneTest, ASpareThatKnowsAHigherEpochThanTheCoordinatorClaimsNothing) {
  MemberCore spare = core("s2", Role::scheduler);
  spare.coordinator_said(cluster::MemberSeen{member("s1", Role::scheduler)}, out);
  known = record(1, 10);
  spare.coordinator_said(cluster::EpochSeen{known}, out);
  spare.coordinator_said(cluster::CoordinatorBack{}, out);
  tick(spare, 4ms);
  const transport::DatagramCodec codec("box", "secret");
  const auto beat = [&](std::uint64_t epoch) {
    using cluster::election::Message;
    spare.heard(codec.encode({.from = "s1",
                              .incarnation = 1,
                              .message = Message{Message::Kind::beat, cluster::election::Epoch{epoch}, 1},
                              .sent = now},
                             {"s2", 1}),
                now, out);
  };
  beat(5);
  EXPECT_EQ(spare.epoch(), 5U);
  EXPECT_TRUE(tick(spare, 1s).empty());
  // The coordinator knows it, too: now the leader's silence counts.
  known = record(5, 20);
  spare.coordinator_said(cluster::EpochSeen{known}, out);
  EXPECT_EQ(tick(spare, 50ms).at(0),
            (cluster::Epoch{6, "s2", 1, transport::fingerprint_of("box", "secret")}));
}

}  // namespace
}  // namespace carillon::hosts
