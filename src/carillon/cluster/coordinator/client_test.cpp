#include "carillon/cluster/coordinator/client.h"

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/cluster/coordinator/testing/client_world.h"
#include "carillon/cluster/coordinator/testing/etcd_model.h"

namespace carillon::cluster {
namespace {

using cluster::testing::EtcdModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Outcome = WriteDone::Outcome;

Member member_named(const std::string& id, std::uint64_t incarnation) {
  return {.id = id, .role = Role::worker, .address = id + ":8100", .incarnation = incarnation};
}

struct EtcdWatch {
  std::uint64_t id = 0;
  std::size_t endpoint = 0;
  std::string key, range_end;
  std::int64_t next = 0;  // the revision told next
  bool created = false;
};
// A client, and what its news say.
struct EtcdSite {
  std::unique_ptr<CoordinatorClient> client;
  bool killed = false;
  std::vector<EtcdWatch> watches;
  TimePoint told_at;  // answers and watches to one client arrive in order
  std::map<std::string, Member> members;
  std::map<std::string, std::string> values;
  EpochRecord epoch;
  std::set<std::uint64_t> sets;  // nonces, which are the tokens, of the epoch, while not answered
  std::map<std::uint64_t, std::optional<EpochRecord>> reads;  // by token, once answered
  std::size_t unread = 0;                                     // not answered yet
  std::optional<bool> up;
  bool registered = false;
  std::vector<std::string> told;  // troubles, losses and taken ids
  std::size_t whole_reads = 0;
};

// One store of etcd behind several endpoints, clients that speak to it, and the wires between, in virtual
// time. Faults are drawn from the seed.
class World final : public testing::ClientWorld<EtcdSite> {
 public:
  using Site = EtcdSite;
  using Watch = EtcdWatch;
  struct Endpoint {
    bool answers = true;   // else requests to it fail when their time is over, and watches tell nothing
    bool refuses = false;  // they fail at once
  };

  explicit World(std::uint64_t seed, std::size_t endpoints = 3) : random(seed), endpoints_(endpoints) {}

  Site& add(std::optional<Member> self, CoordinatorOptions options = {}) {
    options.name = "box";
    for (std::size_t i = 0; i < endpoints_.size(); ++i)
      options.endpoints.push_back("e" + std::to_string(i) + ":1");
    options.self = std::move(self);
    options.seed = random.bits();
    sites_.push_back(std::make_unique<Site>());
    sites_.back()->client = std::make_unique<CoordinatorClient>(std::move(options), now);
    return *sites_.back();
  }
  // As by kill -9: nothing it sent is taken back.
  static void kill(Site& site) { site.killed = true; }

  std::optional<std::uint64_t> compare_and_set(Site& site, std::int64_t revision, std::uint64_t number) {
    const std::uint64_t nonce = random.bits();
    if (!site.client->compare_and_set(nonce, revision, {.number = number, .leader = "a", .nonce = nonce},
                                      now))
      return std::nullopt;
    site.sets.insert(nonce);
    expected_[nonce] = revision;
    pump(site);
    return nonce;
  }

  bool read_epoch(Site& site, std::uint64_t token) {
    if (!site.client->read_epoch(token, now)) return false;
    ++site.unread;
    pump(site);
    return true;
  }

  // Whether it was done, by the history of the store.
  bool was_set(std::uint64_t nonce) const { return done_nonces.contains(nonce); }

  // The copy of a client, and what its news add up to, are the store's.
  void expect_true_copy(const Site& site, const std::string& where) {
    std::map<std::string, Member> members;
    std::map<std::string, std::string> values;
    EpochRecord epoch;
    for (const auto& [key, kv] : model.store) {
      const auto begins = [&](const std::string& prefix) {
        return key.starts_with("/carillon/box/" + prefix);
      };
      if (begins("members/"))
        if (const auto member = member_of(kv.value)) members[member->id] = *member;
      if (begins("values/")) values[key.substr(21)] = kv.value;
      if (begins("epoch")) epoch = {*epoch_of(kv.value), kv.mod_revision};
    }
    EXPECT_EQ(site.client->members(), members) << where;
    EXPECT_EQ(site.client->values(), values) << where;
    EXPECT_EQ(site.client->epoch(), epoch) << where;
    EXPECT_EQ(site.members, members) << where;
    EXPECT_EQ(site.values, values) << where;
    EXPECT_EQ(site.epoch, epoch) << where;
    EXPECT_TRUE(site.client->up() && site.up == true) << where;
  }

  EtcdModel model;
  Random random;
  // In a thousand, of each request.
  struct Faults {
    std::uint64_t lost = 0, answer_lost = 0, late = 0, refused = 0, watch_broken = 0;
  } faults;
  std::vector<Endpoint>& endpoints() { return endpoints_; }
  std::set<std::uint64_t> done_nonces;
  std::map<std::uint64_t, Outcome> outcomes;  // by nonce
  std::size_t count_requests = 0;

  void pump(Site& site) override {
    if (site.killed) return;
    for (etcd::Request& request : site.client->take_requests()) send(site, std::move(request));
    for (const CoordinatorNews& news : site.client->take_news()) hear(site, news);
  }

 private:
  bool drawn(std::uint64_t of_thousand) { return random.below(1000) < of_thousand; }
  Duration delay() {
    return drawn(faults.late) ? Duration{static_cast<Duration::rep>(random.below(3'000'000'000))}
                              : Duration{static_cast<Duration::rep>(1'000'000 + random.below(4'000'000))};
  }

  void send(Site& site, etcd::Request request) {
    ++count_requests;
    if (std::holds_alternative<etcd::WatchCancel>(request.body)) {
      std::erase_if(site.watches, [&](const Watch& watch) { return watch.id == request.id; });
      return;
    }
    const TimePoint over = now + (endpoints_[request.endpoint].refuses ? 1ms : request.timeout);
    if (const auto* range = std::get_if<etcd::Range>(&request.body);
        range != nullptr && !range->range_end.empty())
      ++site.whole_reads;
    if (const auto* create = std::get_if<etcd::WatchCreate>(&request.body)) {
      EXPECT_TRUE(create->key == "/carillon/box/" && create->range_end == "/carillon/box0");
      site.watches.push_back(
          {request.id, request.endpoint, create->key, create->range_end, create->start_revision});
      at(now + delay(), [this, &site, id = request.id] { tell_watch(site, id); });
      return;
    }
    // One outcome for the client, by its deadline at the latest, whatever becomes of the request.
    auto answered = std::make_shared<bool>(false);
    const auto answer = [this, &site, answered, id = request.id](const auto& what) {
      if (std::exchange(*answered, true) || site.killed) return;
      if constexpr (std::is_same_v<std::decay_t<decltype(what)>, etcd::Failure>)
        site.client->failed(id, what, now);
      else
        site.client->answered(id, what, now);
      pump(site);
    };
    at(over, [answer] { answer(etcd::Failure{etcd::Failure::Kind::unreachable, "Deadline Exceeded"}); });
    if (drawn(faults.lost) || endpoints_[request.endpoint].refuses) return;
    const bool lost = drawn(faults.answer_lost), refused = drawn(faults.refused);
    const bool writes = !std::holds_alternative<etcd::Range>(request.body);
    if (refused && writes && drawn(500)) {
      at(now + delay(), [answer] { answer(etcd::Failure{etcd::Failure::Kind::refused, "no space"}); });
      return;
    }
    at(now + delay(), [this, lost, refused = refused && writes, answer, request = std::move(request)] {
      if (!endpoints_[request.endpoint].answers) return;
      const auto epoch = model.store.find("/carillon/box/epoch");
      const std::int64_t before = epoch == model.store.end() ? 0 : epoch->second.mod_revision;
      const auto what = model.carry_out(request.body, now);
      const auto* txn = std::get_if<etcd::Txn>(&request.body);
      if (txn != nullptr && txn->key == "/carillon/box/epoch" &&
          model.store[txn->key].mod_revision != before) {
        const std::uint64_t nonce = epoch_of(*txn->value)->nonce;
        done_nonces.insert(nonce);
        EXPECT_EQ(expected_[nonce], before);
      }
      tell_watches();
      if (lost) return;
      // etcd says so of the write that filled its space, too.
      if (refused)
        at(now + delay(), [answer] { answer(etcd::Failure{etcd::Failure::Kind::refused, "no space"}); });
      else
        at(now + delay(), [answer, what] { std::visit(answer, what); });
    });
  }

 public:
  void tell_watches() {
    for (auto& site : sites_)
      for (const Watch& watch : site->watches)
        at(std::max(site->told_at, now + delay()),
           [this, &site = *site, id = watch.id] { tell_watch(site, id); });
  }

  // All that a watch has not told yet.
  void tell_watch(Site& site, std::uint64_t id) {
    if (site.killed) return;
    const auto found = std::ranges::find(site.watches, id, &Watch::id);
    if (found == site.watches.end() || !endpoints_[found->endpoint].answers) return;
    if (drawn(faults.watch_broken)) {
      site.watches.erase(found);
      site.client->failed(id, {etcd::Failure::Kind::unreachable, "Connection reset by peer"}, now);
      return pump(site);
    }
    etcd::WatchAnswer answer{.header = model.header(), .created = !found->created};
    found->created = true;
    if (found->next < model.compacted) {
      answer.canceled = true;
      answer.compact_revision = model.compacted;
      answer.header.revision = 0;
      site.watches.erase(found);
    } else {
      for (const EtcdModel::Change& change : model.history)
        if (change.revision >= found->next && change.event.kv.key >= found->key &&
            change.event.kv.key < found->range_end)
          answer.events.push_back(change.event);
      found->next = std::max(found->next, model.revision + 1);
      if (!answer.created && answer.events.empty()) return;
    }
    site.client->answered(id, answer, now);
    pump(site);
  }

 private:
  void hear(Site& site, const CoordinatorNews& news) {
    if (const auto* seen = std::get_if<MemberSeen>(&news)) {
      EXPECT_NE(std::exchange(site.members[seen->member.id], seen->member), seen->member) << "told twice";
    } else if (const auto* gone = std::get_if<MemberGone>(&news)) {
      EXPECT_EQ(site.members.erase(gone->id), 1U) << gone->id;
    } else if (const auto* epoch = std::get_if<EpochSeen>(&news)) {
      EXPECT_GT(epoch->record.revision, site.epoch.revision);
      site.epoch = epoch->record;
    } else if (const auto* value = std::get_if<ValueSeen>(&news)) {
      if (value->value)
        site.values[value->key] = *value->value;
      else
        EXPECT_EQ(site.values.erase(value->key), 1U) << value->key;
    } else if (const auto* done = std::get_if<WriteDone>(&news)) {
      if (site.sets.erase(done->token) == 0) return;
      outcomes[done->token] = done->outcome;
      if (done->current.epoch) {
        EXPECT_EQ(done->current.epoch->nonce == done->token, done->outcome == Outcome::done);
      }
    } else if (const auto* read = std::get_if<EpochRead>(&news)) {
      ASSERT_GT(site.unread--, 0U);
      EXPECT_EQ(read->record.has_value(), read->why.empty());
      site.reads[read->token] = read->record;
    } else if (const auto* lost = std::get_if<CoordinatorLost>(&news)) {
      EXPECT_NE(std::exchange(site.up, false), false);
      site.told.push_back("lost: " + lost->why);
    } else if (std::holds_alternative<CoordinatorBack>(news)) {
      EXPECT_NE(std::exchange(site.up, true), true);
    } else if (const auto* trouble = std::get_if<Trouble>(&news)) {
      EXPECT_THAT(trouble->what, ::testing::Not(HasSubstr("told of before")));
      site.told.push_back(trouble->what);
    } else if (std::holds_alternative<Registered>(news)) {
      EXPECT_FALSE(std::exchange(site.registered, true));
    } else if (std::holds_alternative<Unregistered>(news)) {
      site.registered = false;
    } else if (const auto* taken = std::get_if<IdTaken>(&news)) {
      site.told.push_back(taken->why);
    }
  }

  void passes() override { model.expire(now); }

  std::vector<Endpoint> endpoints_;
  std::map<std::uint64_t, std::int64_t> expected_;  // the revisions that epochs follow, by nonce
};

TEST(CoordinatorClient, RegistersAndSeesTheOthers) {
  World world(1);
  auto& a = world.add(member_named("a", 1));
  auto& b = world.add(member_named("b", 2));
  auto& looker = world.add(std::nullopt);
  world.model.put("/carillon/box2/members/c", to_json(member_named("c", 3)));
  world.model.put("/carillon/box/values/size", "4");
  world.run(2s);
  for (auto* site : {&a, &b, &looker}) world.expect_true_copy(*site, "at rest");
  EXPECT_TRUE(a.registered && b.registered && !looker.client->registered());
  EXPECT_EQ(looker.client->members().size(), 2U);
  EXPECT_EQ(looker.client->values().at("size"), "4");
  // It renews: ten leases' lengths later all is as it was, and nothing was read as a whole again.
  world.run(50s);
  EXPECT_EQ(looker.client->members().size(), 2U);
  EXPECT_EQ(a.whole_reads + b.whole_reads + looker.whole_reads, 3U);
  EXPECT_THAT(a.told, ElementsAre());
}

TEST(CoordinatorClient, IsQuietAtRest) {
  World world(1);
  world.add(member_named("a", 1));
  world.run(5s);
  const std::size_t before = world.count_requests;
  world.run(100s);
  // A probe a second, and a renewal each third of 5 s.
  EXPECT_LE(world.count_requests - before, 100U + 61U);
  EXPECT_GE(world.count_requests - before, 100U + 55U);
}

TEST(CoordinatorClient, OneOfTwoSetsTheEpoch) {
  World world(2);
  auto& a = world.add(member_named("a", 1));
  auto& b = world.add(member_named("b", 2));
  world.run(1s);
  for (std::uint64_t number = 1; number <= 20; ++number) {
    const auto mine = world.compare_and_set(a, a.client->epoch().revision, number);
    const auto other = world.compare_and_set(b, b.client->epoch().revision, number);
    ASSERT_TRUE(mine && other);
    world.run(1s);
    EXPECT_EQ((world.outcomes[*mine] == Outcome::done) + (world.outcomes[*other] == Outcome::done), 1);
    EXPECT_EQ((world.outcomes[*mine] == Outcome::differs) + (world.outcomes[*other] == Outcome::differs), 1);
    EXPECT_EQ(a.client->epoch().epoch->number, number);
  }
}

TEST(CoordinatorClient, AnUnansweredWriteIsUnknown) {
  World world(3);
  auto& a = world.add(std::nullopt);
  world.run(1s);
  world.faults.answer_lost = 1000;
  const auto nonce = world.compare_and_set(a, 0, 1);
  ASSERT_TRUE(nonce);
  world.run(2s);
  EXPECT_EQ(world.outcomes.at(*nonce), Outcome::unknown);
  EXPECT_TRUE(world.was_set(*nonce));
  world.faults.answer_lost = 0;
  world.run(5s);
  EXPECT_EQ(a.client->epoch().epoch->nonce, *nonce);
}

// The member was cut off. Its claim reaches etcd after the end of its lease.
TEST(CoordinatorClient, AClaimOfAMemberThatIsGoneChangesNothing) {
  World world(3);
  auto& a = world.add(member_named("a", 1));
  auto& b = world.add(member_named("b", 2));
  EXPECT_EQ(a.client->compare_and_set(1, 0, {1, "a", 1}, world.now).error().code, ErrorCode::unavailable);
  world.run(1s);
  EXPECT_TRUE(world.compare_and_set(b, 0, 1));
  world.run(1s);
  const EpochRecord before = a.client->epoch();
  const auto late = world.compare_and_set(a, before.revision, 2);
  world.model.end_lease(world.model.store.at("/carillon/box/members/a").lease);
  world.run(500us);
  world.run(1s);
  EXPECT_EQ(world.outcomes.at(*late), Outcome::differs);
  EXPECT_EQ(b.client->epoch(), before);
  world.run(2s);  // it is registered anew
  const auto next = world.compare_and_set(a, before.revision, 2);
  ASSERT_TRUE(next);
  world.run(1s);
  EXPECT_EQ(world.outcomes.at(*next), Outcome::done);
}

TEST(CoordinatorClient, AReadOfTheEpochAsksEtcd) {
  World world(3, 1);
  auto& a = world.add(std::nullopt);
  EXPECT_FALSE(world.read_epoch(a, 1)) << "there is no link yet";
  world.run(1s);
  ASSERT_TRUE(world.read_epoch(a, 2));
  world.run(100ms);
  EXPECT_EQ(a.reads.at(2), EpochRecord{});
  world.model.put("/carillon/box/epoch", to_json(Epoch{4, "b", 5}));  // the watch tells of it later
  const EpochRecord record{Epoch{4, "b", 5}, world.model.revision};
  ASSERT_TRUE(world.read_epoch(a, 3));
  world.run(10ms);
  EXPECT_EQ(a.reads.at(3), record);
  world.endpoints()[0].answers = false;
  ASSERT_TRUE(world.read_epoch(a, 4));
  world.run(2s);
  EXPECT_EQ(a.reads.at(4), std::nullopt);
}

TEST(CoordinatorClient, ALostLeaseIsNoticed) {
  World world(4);
  auto& a = world.add(member_named("a", 1));
  world.run(1s);
  ASSERT_TRUE(a.registered);
  for (auto& endpoint : world.endpoints()) endpoint.answers = false;
  world.run(20s);
  EXPECT_TRUE(world.model.store.empty());
  EXPECT_EQ(a.up, false);
  EXPECT_EQ(a.client->members().size(), 1U) << "what is known stays known";
  for (auto& endpoint : world.endpoints()) endpoint.answers = true;
  world.run(10s);
  EXPECT_TRUE(a.registered);
  world.expect_true_copy(a, "after the break");
  // Also where the key stays, as one without a lease: only the answer to the renewal tells.
  world.model.leases.clear();
  world.run(10s);
  EXPECT_EQ(world.model.leases.size(), 1U);
  EXPECT_EQ(world.model.store.at("/carillon/box/members/a").lease, world.model.leases.begin()->first);
  EXPECT_TRUE(a.registered);
}

TEST(CoordinatorClient, AnIdInUseIsToldAndNotTaken) {
  World world(5);
  auto& first = world.add(member_named("a", 1));
  world.run(1s);
  auto& second = world.add(member_named("a", 2));
  world.run(20s);
  EXPECT_FALSE(second.registered);
  ASSERT_EQ(second.told.size(), 1U);
  EXPECT_THAT(second.told[0], HasSubstr("'a' is in use by another process, at a:8100 (incarnation 1)"));
  EXPECT_EQ(second.client->members().at("a").incarnation, 1U);
  World::kill(first);
  world.run(7s);
  EXPECT_TRUE(second.registered);
  EXPECT_EQ(second.client->members().at("a").incarnation, 2U);
}

TEST(CoordinatorClient, WhoLeavesIsGoneAtOnce) {
  World world(6);
  auto& a = world.add(member_named("a", 1));
  auto& b = world.add(member_named("b", 1));
  world.run(1s);
  a.client->leave(world.now);
  world.run(100ms);
  EXPECT_FALSE(a.registered);
  EXPECT_TRUE(world.model.leases.size() == 1 && world.model.store.size() == 1);
  world.tell_watches();
  world.run(100ms);
  EXPECT_FALSE(b.client->members().contains("a"));
  world.run(10s);
  EXPECT_FALSE(a.registered);
}

TEST(CoordinatorClient, AKeyOfOursThatIsDeletedComesBack) {
  World world(7);
  auto& a = world.add(member_named("a", 1));
  world.run(1s);
  world.model.erase({"/carillon/box/members/a"});
  world.tell_watches();
  world.run(1s);
  EXPECT_TRUE(a.registered && world.model.store.contains("/carillon/box/members/a"));
}

TEST(CoordinatorClient, AnotherEtcdIsNotBelieved) {
  World world(8, 1);
  auto& a = world.add(std::nullopt);
  world.model.put("/carillon/box/values/x", "1");
  world.run(1s);
  world.model.cluster_id = 8;
  world.model.erase({"/carillon/box/values/x"});
  world.run(10s);
  EXPECT_EQ(a.up, false);
  ASSERT_EQ(a.told.size(), 1U);
  EXPECT_THAT(a.told[0], HasSubstr("another cluster of etcd"));
  EXPECT_TRUE(a.client->values().contains("x"));
}

TEST(CoordinatorClient, AnEtcdThatWasSetBackIsReadAnew) {
  World world(9, 1);
  auto& a = world.add(member_named("a", 1));
  world.run(100ms);
  EtcdModel before = world.model;
  before.store.clear();
  before.history.clear();
  before.revision = 1;
  world.model.put("/carillon/box/values/x", "1");
  world.tell_watches();
  world.run(1s);
  ASSERT_TRUE(a.client->values().contains("x") && a.registered);
  world.model = before;
  world.run(2s);
  EXPECT_TRUE(a.client->values().empty());
  EXPECT_EQ(a.whole_reads, 2U);
  // Its lease is as it was, its key is not.
  EXPECT_EQ(world.model.leases.size(), 1U);
  EXPECT_TRUE(world.model.store.contains("/carillon/box/members/a"));
  world.expect_true_copy(a, "after etcd was set back");
  const auto nonce = world.compare_and_set(a, 0, 1);
  ASSERT_TRUE(nonce);
  world.run(1s);
  EXPECT_EQ(world.outcomes.at(*nonce), Outcome::done);
}

TEST(CoordinatorClient, TakesAMemberOrValueThatIsWrongForNone) {
  World world(10, 1);
  auto& a = world.add(std::nullopt);
  world.model.put("/carillon/box/members/a", to_json(member_named("a", 1)));
  world.model.put("/carillon/box/members/b", "{}");
  world.model.put("/carillon/box/members/c", to_json(member_named("d", 1)));
  world.model.put("/carillon/box/values/long", std::string(4097, 'x'));
  world.model.put("/carillon/box/values/a/b", "x");
  world.model.put("/carillon/box/epoch", "7");
  world.run(1s);
  EXPECT_EQ(a.client->members().size(), 1U);
  EXPECT_TRUE(a.client->values().empty());
  EXPECT_FALSE(a.client->epoch().epoch);
  EXPECT_GT(a.client->epoch().revision, 0);
  EXPECT_EQ(a.told.size(), 5U);
  // One that is overwritten with garbage is gone.
  world.model.put("/carillon/box/members/a", "garbage");
  world.tell_watches();
  world.run(1s);
  EXPECT_TRUE(a.client->members().empty());
}

TEST(CoordinatorClient, PassesOverWhatItDidNotAskFor) {
  CoordinatorClient client({.name = "box", .endpoints = {"e:1"}}, TimePoint{});
  client.tick(TimePoint{});
  const auto requests = client.take_requests();
  ASSERT_EQ(requests.size(), 1U);
  etcd::RangeAnswer answer{.header = {7, 5}, .kvs = {}, .more = false};
  for (const char* prefix : {"/carillon/box2/", "/other/carillon/box/", "/carillon/box/old-"})
    answer.kvs.push_back({.key = std::string(prefix) + "members/a",
                          .value = to_json(member_named("a", 1)),
                          .mod_revision = 2});
  client.answered(requests[0].id, answer, TimePoint{});
  EXPECT_TRUE(client.members().empty());
}

TEST(CoordinatorClient, KeepsSoManyMembersAtMost) {
  World world(11, 1);
  for (const char* id : {"a", "b", "c", "d"})
    world.model.put(std::string("/carillon/box/members/") + id, to_json(member_named(id, 1)));
  auto& a = world.add(std::nullopt, {.most_members = 2, .most_values = 1});
  world.run(1s);
  EXPECT_EQ(a.client->members().size(), 2U);
  ASSERT_FALSE(a.told.empty());
  // Where there is room again, those that were left out are found.
  world.model.erase({"/carillon/box/members/a", "/carillon/box/members/b"});
  world.tell_watches();
  world.run(3s);
  world.expect_true_copy(a, "with room");
}

TEST(CoordinatorClient, RefusesWhatCannotBeWritten) {
  World world(12, 1);
  auto& a = world.add(std::nullopt, {.most_calls = 2});
  EXPECT_EQ(a.client->set(0, "x", "1", world.now).error().code, ErrorCode::unavailable);
  world.run(1s);
  EXPECT_EQ(a.client->set(0, "a/b", "1", world.now).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(a.client->set(0, "x", std::string(4097, 'x'), world.now).error().code,
            ErrorCode::invalid_argument);
  EXPECT_TRUE(a.client->set(0, "x", "1", world.now));
  EXPECT_TRUE(a.client->set(0, "y", "2", world.now));
  EXPECT_EQ(a.client->set(0, "z", "3", world.now).error().code, ErrorCode::resource_exhausted);
  world.run(1s);
  EXPECT_TRUE(a.client->set(0, "x", std::nullopt, world.now));
  world.run(1s);
  world.expect_true_copy(a, "at rest");
  EXPECT_EQ(a.client->values().size(), 1U);
}

TEST(CoordinatorClient, GoesToAnEndpointThatAnswers) {
  World world(14);
  world.endpoints()[0].answers = false;
  world.endpoints()[1].refuses = true;
  auto& a = world.add(member_named("a", 1));
  world.run(2s);
  EXPECT_TRUE(a.registered);
  world.endpoints()[0].answers = true;
  world.endpoints()[2].answers = false;
  world.run(3s);
  world.expect_true_copy(a, "with another endpoint");
  EXPECT_THAT(a.told, ElementsAre());
}

TEST(CoordinatorClient, WaitsLongerBetweenTries) {
  World world(15);
  for (auto& endpoint : world.endpoints()) endpoint.refuses = true;
  auto& a = world.add(std::nullopt);
  world.run(3100ms);
  EXPECT_EQ(a.up, false);
  world.run(10s);
  const std::size_t before = world.count_requests;
  world.run(100s);
  // Waits of 1 to 2 s.
  EXPECT_GE(world.count_requests - before, 50U);
  EXPECT_LE(world.count_requests - before, 101U);
  world.endpoints()[1].refuses = false;
  world.run(7s);
  EXPECT_EQ(a.up, true);
}

TEST(CoordinatorClient, WritesMayFailWhereReadsGoOn) {
  World world(13, 1);
  world.faults.refused = 1000;
  auto& a = world.add(member_named("a", 1));
  world.run(10s);
  EXPECT_EQ(a.up, true);
  EXPECT_THAT(a.told, ElementsAre("etcd at e0:1 does not write: no space"));
  world.faults.refused = 0;
  world.run(5s);
  EXPECT_TRUE(a.registered);
}

// Random clients, faults, foreign keys and compactions; then quiet, and all must be right.
class CoordinatorWorlds : public ::testing::TestWithParam<int> {};

void run_world(std::uint64_t seed) {
  const std::string where = "seed " + std::to_string(seed);
  World world(seed, 1 + seed % 3);
  Random draw(seed + 1'000'000);
  world.faults = {.lost = draw.below(60),
                  .answer_lost = draw.below(60),
                  .late = draw.below(60),
                  .refused = draw.below(60),
                  .watch_broken = draw.below(40)};
  std::uint64_t incarnations = 0;
  const auto start = [&](std::size_t i) {
    world.add(member_named(std::string(1, static_cast<char>('a' + i)), ++incarnations));
  };
  for (std::size_t i = 0; i < 3; ++i) start(i);
  std::uint64_t number = 0;
  for (int step = 0; step < 150; ++step) {
    world.run(Duration{static_cast<Duration::rep>(draw.below(400'000'000))});
    if (::testing::Test::HasFatalFailure()) return;
    const std::size_t i = draw.below(3);
    auto& site = *world.sites()[world.sites().size() - 3 + i];
    auto& endpoint = world.endpoints()[draw.below(world.endpoints().size())];
    const std::string key = std::string(1, static_cast<char>('p' + draw.below(4)));
    switch (draw.below(13)) {
      case 0:
      case 1:
      case 2:
      case 3:
        world.compare_and_set(site, site.client->epoch().revision, ++number);
        break;
      case 4:
        (void)site.client->set(0, key, std::to_string(draw.below(3)), world.now);
        break;
      case 5:
        (void)site.client->set(0, key, std::nullopt, world.now);
        break;
      case 6:
        world.model.put("/carillon/box2/members/" + key, to_json(member_named(key, 1)));
        break;
      case 7:
        endpoint.answers = !endpoint.answers;
        break;
      case 8:
        world.model.compact();
        break;
      case 9:
        if (!world.model.leases.empty()) world.model.end_lease(world.model.leases.begin()->first);
        break;
      case 10:
        world.model.erase({"/carillon/box/members/a"});
        break;
      case 11:
        world.read_epoch(site, 1);
        break;
      case 12:
        if (draw.below(4) == 0) {  // all three are killed, and others start in their places
          for (auto& each : world.sites()) World::kill(*each);
          for (std::size_t each = 0; each < 3; ++each) start(each);
        }
        break;
    }
    world.tell_watches();
  }
  world.faults = {};
  for (auto& endpoint : world.endpoints()) endpoint.answers = true;
  world.run(30s);
  if (::testing::Test::HasFatalFailure()) return;
  for (std::size_t i = world.sites().size() - 3; i < world.sites().size(); ++i) {
    const auto& site = *world.sites()[i];
    world.expect_true_copy(site, where);
    EXPECT_TRUE(site.registered && site.client->registered()) << where;
    EXPECT_TRUE(site.sets.empty()) << where << ": a write was never answered";
    EXPECT_EQ(site.unread, 0U) << where << ": a read was never answered";
  }
  EXPECT_EQ(world.sites().back()->client->members().size(), 3U) << where;
  for (const auto& [nonce, outcome] : world.outcomes) {
    EXPECT_TRUE(outcome == Outcome::unknown || world.was_set(nonce) == (outcome == Outcome::done)) << where;
  }
}

TEST_P(CoordinatorWorlds, ComeToTheTruth) {
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(GetParam() * 50 + i));
    run_world(static_cast<std::uint64_t>(GetParam() * 50 + i));
  }
}
INSTANTIATE_TEST_SUITE_P(All, CoordinatorWorlds, ::testing::Range(0, 10));

}  // namespace
}  // namespace carillon::cluster
