#include "carillon/cluster/coordinator/kubernetes_client.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/base/random.h"
#include "carillon/cluster/coordinator/testing/client_world.h"

namespace carillon::cluster {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Written = WriteDone::Outcome;

Member scheduler(const std::string& id, std::uint64_t incarnation) {
  return {.id = id, .role = Role::scheduler, .address = "10.0.0.1:7000", .incarnation = incarnation};
}

// The Leases of one namespace, as an API server has them.
struct LeaseServer {
  struct Change {
    std::int64_t revision = 0;
    json lease;
    bool deleted = false;
  };

  json put(json lease) {
    const std::string name = lease["metadata"]["name"];
    lease["metadata"]["resourceVersion"] = std::to_string(++revision);
    leases[name] = lease;
    changes.push_back({revision, lease, false});
    return lease;
  }
  void remove(const std::string& name) {
    json gone = leases.at(name);
    leases.erase(name);
    gone["metadata"]["resourceVersion"] = std::to_string(++revision);
    changes.push_back({revision, gone, true});
  }
  kubernetes::Answer obey(const kubernetes::Call& call) {
    const std::string path = call.target.substr(0, call.target.find('?'));
    const std::string base = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    const std::string name = path.size() > base.size() ? path.substr(base.size() + 1) : "";
    const json body = call.body.empty() ? json() : json::parse(call.body);
    const auto status = [](int code) {
      return kubernetes::Answer{code, json{{"message", "status " + std::to_string(code)}}.dump()};
    };
    if (call.method == "GET" && name.empty()) {
      json items = json::array();
      for (const auto& [key, lease] : leases) items.push_back(lease);
      return {200,
              json{{"metadata", {{"resourceVersion", std::to_string(revision)}}}, {"items", items}}.dump()};
    }
    if (call.method == "POST") {
      if (leases.contains(body["metadata"]["name"])) return status(409);
      return {201, put(body).dump()};
    }
    if (!leases.contains(name)) return status(404);
    const std::string stands = leases[name]["metadata"]["resourceVersion"];
    if (call.method == "GET") return {200, leases[name].dump()};
    if (call.method == "PUT") {
      if (body["metadata"]["resourceVersion"] != stands) return status(409);
      return {200, put(body).dump()};
    }
    if (body["preconditions"]["resourceVersion"] != stands) return status(409);
    remove(name);
    return status(200);
  }

  std::map<std::string, json> leases;
  std::vector<Change> changes;
  std::int64_t revision = 100, begins = 100;
};

struct KubernetesSite {
  std::unique_ptr<KubernetesClient> client;
  std::optional<std::uint64_t> watch;
  std::int64_t next = 0;  // of the watch
  bool cut = false;       // nothing comes through, either way
  bool killed = false;
  std::vector<std::string> troubles;
  std::vector<std::uint64_t> epochs;  // as they were told
  std::vector<std::string> taken;
  std::map<std::uint64_t, WriteDone> writes;
  std::map<std::uint64_t, EpochRead> reads;
  int lost = 0, back = 0, registered = 0, unregistered = 0;
};

// Clients of one API server.
class KubernetesWorld final : public testing::ClientWorld<KubernetesSite> {
 public:
  using Site = KubernetesSite;

  Site& add(std::optional<Member> self, std::size_t most_members = 100) {
    CoordinatorOptions options;
    options.name = "box";
    options.self = std::move(self);
    options.most_members = most_members;
    options.seed = sites_.size();
    sites_.push_back(std::make_unique<Site>());
    sites_.back()->client =
        std::make_unique<KubernetesClient>(std::move(options),
                                           KubernetesPlace{.name_space = "default",
                                                           .server = "http://api:1",
                                                           .credentials = "the token of F",
                                                           .stamp = [this] { return stamp; }},
                                           now);
    return *sites_.back();
  }
  WriteDone claim(Site& site, std::uint64_t number) {
    const std::uint64_t token = ++tokens_;
    const Member self{.id = "s1"};
    const auto sent = site.client->compare_and_set(
        token, site.client->epoch().revision,
        {.number = number, .leader = leader_of.at(&site).id, .nonce = leader_of.at(&site).incarnation}, now);
    EXPECT_TRUE(sent) << sent.error().message;
    run(3s);
    return site.writes.at(token);
  }
  Site& add_scheduler(const std::string& id, std::uint64_t incarnation) {
    Site& site = add(scheduler(id, incarnation));
    leader_of[&site] = scheduler(id, incarnation);
    return site;
  }
  // A hand that edits.
  void edit(const std::string& name, const std::function<void(json&)>& change) {
    json lease = server.leases.at(name);
    change(lease);
    server.put(lease);
  }
  void end_watches() {
    for (auto& site : sites_)
      if (site->watch) site->client->failed(*std::exchange(site->watch, std::nullopt), {""}, now);
  }

  LeaseServer server;
  Duration latency = 1ms;
  std::string stamp = "now";
  std::map<Site*, Member> leader_of;
  // What is answered instead; none: what the server says.
  std::function<std::optional<kubernetes::Answer>(const kubernetes::Call&)> instead;
  std::function<bool()> loses_answer = [] { return false; };
  std::size_t calls = 0, watches = 0, lists = 0;

 private:
  void pump(Site& site) override {
    for (kubernetes::Request& request : site.client->take_requests()) start(site, std::move(request));
    for (const CoordinatorNews& each : site.client->take_news())
      std::visit([&](const auto& news) { tell(site, news); }, each);
    while (site.watch && !site.cut && tell_change(site)) {
    }
  }
  void start(Site& site, kubernetes::Request request) {
    if (std::holds_alternative<kubernetes::Cancel>(request.body)) {
      if (site.watch == request.id) site.watch.reset();
      return;
    }
    if (const auto* const watch = std::get_if<kubernetes::Watch>(&request.body)) {
      ++watches;
      const std::string key = "resourceVersion=";
      const std::int64_t from = std::stoll(watch->target.substr(watch->target.find(key) + key.size()));
      at(now + latency, [this, &site, id = request.id, from] {
        if (site.killed || site.cut) return;  // the client waits no longer than it wants to
        if (from < server.begins) return site.client->answered(id, {410, "{}"}, now);
        site.watch = id;
        site.next = from + 1;
        site.client->answered(id, {200, ""}, now);
      });
      return;
    }
    ++calls;
    const kubernetes::Call call = std::get<kubernetes::Call>(request.body);
    lists += call.target.contains("limit=") ? 1 : 0;
    const auto fails = [this, &site, id = request.id] {
      if (!site.killed) site.client->failed(id, {"no answer came"}, now);
    };
    if (site.cut) return at(now + request.timeout, fails);
    at(now + latency, [this, &site, call, fails, id = request.id, timeout = request.timeout] {
      auto answer = instead ? instead(call) : std::nullopt;
      if (!answer) answer = server.obey(call);
      if (loses_answer()) return at(now + timeout, fails);
      at(now + latency, [this, &site, id, answer = *answer] {
        if (!site.killed) site.client->answered(id, answer, now);
      });
    });
  }
  bool tell_change(Site& site) {
    const auto found =
        std::ranges::lower_bound(server.changes, site.next, {}, &LeaseServer::Change::revision);
    if (found == server.changes.end()) return false;
    const LeaseServer::Change change = *found;
    site.next = change.revision + 1;
    site.client->line(
        *site.watch, json{{"type", change.deleted ? "DELETED" : "MODIFIED"}, {"object", change.lease}}.dump(),
        now);
    for (kubernetes::Request& request : site.client->take_requests()) start(site, std::move(request));
    return true;
  }
  void tell(Site& site, const CoordinatorLost&) { ++site.lost; }
  void tell(Site& site, const CoordinatorBack&) { ++site.back; }
  void tell(Site&, const MemberSeen&) {}
  void tell(Site&, const MemberGone&) {}
  void tell(Site& site, const EpochSeen& news) {
    site.epochs.push_back(news.record.epoch ? news.record.epoch->number : 0);
  }
  void tell(Site&, const ValueSeen&) { FAIL(); }
  void tell(Site& site, const WriteDone& news) { site.writes[news.token] = news; }
  void tell(Site& site, const EpochRead& news) { site.reads[news.token] = news; }
  void tell(Site& site, const Trouble& news) { site.troubles.push_back(news.what); }
  void tell(Site& site, const Registered&) { ++site.registered; }
  void tell(Site& site, const Unregistered&) { ++site.unregistered; }
  void tell(Site& site, const IdTaken& news) { site.taken.push_back(news.why); }

  std::uint64_t tokens_ = 0;
};

std::vector<std::string> ids_of(const KubernetesWorld::Site& site) {
  std::vector<std::string> ids;
  for (const auto& [id, member] : site.client->members()) ids.push_back(id);
  return ids;
}

std::int64_t transitions(const KubernetesWorld& world) {
  return world.server.leases.at("box")["spec"]["leaseTransitions"];
}

TEST(KubernetesClient, MembersComeGoAndRunOut) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  auto& b = world.add_scheduler("b", 2);
  world.run(30s);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
  EXPECT_EQ(a.registered, 1);
  EXPECT_EQ(a.unregistered, 0);
  b.killed = true;
  world.run(3s);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
  world.run(3s);
  EXPECT_THAT(ids_of(a), ElementsAre("a"));
  a.client->leave(world.now);
  world.run(1s);
  EXPECT_THAT(ids_of(a), ElementsAre());
  EXPECT_FALSE(world.server.leases.contains("box.a"));
  EXPECT_TRUE(world.server.leases.contains("box.b"));
}

TEST(KubernetesClient, NoClockThatALeaseHasWrittenInItCounts) {
  KubernetesWorld world;
  world.stamp = "1970-01-01T00:00:00.000000Z";
  auto& a = world.add_scheduler("a", 1);
  auto& b = world.add_scheduler("b", 2);
  world.run(60s);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
  EXPECT_THAT(ids_of(b), ElementsAre("a", "b"));
}

TEST(KubernetesClient, TheIdOfAProcessThatWasKilledIsFreeOnceItsLeaseRanOut) {
  KubernetesWorld world;
  auto& first = world.add_scheduler("a", 1);
  world.run(2s);
  first.killed = true;
  auto& second = world.add_scheduler("a", 2);
  world.run(4s);
  EXPECT_EQ(second.registered, 0);
  ASSERT_EQ(second.taken.size(), 1U);
  EXPECT_THAT(second.taken[0],
              HasSubstr("id 'a' is in use by another process, at 10.0.0.1:7000 (incarnation 1)"));
  world.run(3s);
  EXPECT_EQ(second.registered, 1);
  EXPECT_EQ(second.client->members().at("a").incarnation, 2U);
}

TEST(KubernetesClient, AProcessDoesNotTakeTheIdOfOneThatRuns) {
  KubernetesWorld world;
  auto& first = world.add_scheduler("a", 1);
  world.run(2s);
  auto& second = world.add_scheduler("a", 2);
  world.run(60s);
  EXPECT_EQ(second.registered, 0);
  EXPECT_EQ(first.unregistered, 0);
}

TEST(KubernetesClient, OfTwoClaimsOneIsDone) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  auto& b = world.add_scheduler("b", 2);
  world.run(2s);
  for (std::uint64_t number = 1; number <= 10; ++number) {
    const auto revision = a.client->epoch().revision;
    ASSERT_TRUE(a.client->compare_and_set(100 + number, revision, {number, "a", 1}, world.now));
    ASSERT_TRUE(b.client->compare_and_set(100 + number, revision, {number, "b", 2}, world.now));
    world.run(1s);
    const WriteDone& one = a.writes.at(100 + number);
    const WriteDone& other = b.writes.at(100 + number);
    EXPECT_EQ(one.outcome, Written::done);
    EXPECT_EQ(other.outcome, Written::differs);
    EXPECT_EQ(one.current, other.current);
    EXPECT_EQ(a.client->epoch(), one.current);
    EXPECT_EQ(b.client->epoch(), one.current);
    EXPECT_EQ(transitions(world), static_cast<std::int64_t>(number));
    EXPECT_EQ(world.server.leases["box"]["spec"]["holderIdentity"], "a");
  }
}

TEST(KubernetesClient, AClaimIsDoneOverALeaseThatAnotherHandHasTouchedAndAServerThatFailsForAMoment) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.run(2s);
  ASSERT_EQ(world.claim(a, 1).outcome, Written::done);
  int touched = 0, failed = 0;
  world.instead = [&](const kubernetes::Call& call) -> std::optional<kubernetes::Answer> {
    if (!call.target.ends_with("/box")) return std::nullopt;
    if (failed++ == 0) return kubernetes::Answer{500, "{}"};
    if (call.method == "PUT" && touched++ == 0)
      world.edit("box", [](json& lease) { lease["metadata"]["annotations"]["note"] = "touched"; });
    return std::nullopt;
  };
  EXPECT_EQ(world.claim(a, 2).outcome, Written::done);
  EXPECT_EQ(touched, 2);
  EXPECT_EQ(transitions(world), 2);
  // It is not tried for ever.
  world.instead = [&](const kubernetes::Call& call) {
    return call.target.ends_with("/box") ? std::optional(kubernetes::Answer{500, "{}"}) : std::nullopt;
  };
  const std::size_t before = world.calls;
  EXPECT_EQ(world.claim(a, 3).outcome, Written::unknown);
  EXPECT_LE(world.calls, before + 6);
}

TEST(KubernetesClient, AClaimWhoseAnswerIsLostIsFoundToBeDone) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.run(2s);
  world.loses_answer = [] { return true; };
  EXPECT_EQ(world.claim(a, 1).outcome, Written::unknown);
  world.loses_answer = [] { return false; };
  ASSERT_TRUE(a.client->read_epoch(7, world.now));
  world.run(1s);
  EXPECT_EQ(a.reads.at(7).record->epoch, (Epoch{1, "a", 1}));
}

struct Edit {
  const char* what;
  std::function<void(KubernetesWorld&)> done;
  const char* words;
  std::uint64_t epoch;  // afterwards
};

TEST(KubernetesClient, TheEpochNeverGoesBackWhateverBecomesOfTheLease) {
  const auto edit = [](const std::function<void(json&)>& change) {
    return [change](KubernetesWorld& world) { world.edit("box", change); };
  };
  const Edit edits[] = {
      {"deleted", [](auto& world) { world.server.remove("box"); },
       "Lease 'box' was deleted; epoch 3 of 'a' goes on, and is written again", 3},
      {"set back", edit([](json& lease) { lease["spec"]["leaseTransitions"] = 1; }),
       "Lease 'box' has epoch 1, as if set back by hand; epoch 3 of 'a' goes on", 3},
      {"without a number", edit([](json& lease) { lease["spec"].erase("leaseTransitions"); }),
       "was edited by hand, and has no epoch: its leaseTransitions is no number", 3},
      {"with another holder", edit([](json& lease) { lease["spec"]["holderIdentity"] = "b"; }),
       "was edited by hand, and names 'b'; epoch 3 of 'a' goes on", 3},
      {"without annotations", edit([](json& lease) { lease["metadata"].erase("annotations"); }),
       "was edited by hand, and names 'a'; epoch 3 of 'a' goes on", 3},
      {"without labels",
       [](auto& world) {
         // The watch, which asks for the label, tells that it is gone.
         json lease = world.server.leases.at("box");
         world.server.remove("box");
         lease["metadata"].erase("labels");
         lease["metadata"]["resourceVersion"] = std::to_string(world.server.revision);
         world.server.leases["box"] = lease;
       },
       "was deleted; epoch 3 of 'a' goes on", 3},
      {"set forward", edit([](json& lease) { lease["spec"]["leaseTransitions"] = 70; }),
       "was edited by hand: epoch 70 begins, of 'a'", 70},
  };
  for (const Edit& each : edits) {
    KubernetesWorld world;
    auto& a = world.add_scheduler("a", 1);
    auto& b = world.add_scheduler("b", 2);
    world.run(2s);
    for (std::uint64_t number = 1; number <= 3; ++number)
      ASSERT_EQ(world.claim(a, number).outcome, Written::done);
    each.done(world);
    world.run(1s);
    EXPECT_THAT(a.troubles, Contains(HasSubstr(each.words))) << each.what;
    EXPECT_EQ(transitions(world), static_cast<std::int64_t>(each.epoch)) << each.what;
    EXPECT_EQ(world.server.leases["box"]["spec"]["holderIdentity"], "a") << each.what;
    EXPECT_EQ(world.server.leases["box"]["metadata"]["labels"]["carillon/cluster"], "box") << each.what;
    EXPECT_EQ(b.client->epoch().epoch, (Epoch{each.epoch, "a", 1})) << each.what;
    EXPECT_TRUE(std::ranges::is_sorted(a.epochs)) << each.what;
    EXPECT_TRUE(std::ranges::is_sorted(b.epochs)) << each.what;
    // Whoever claims next does so over what stands there now.
    EXPECT_EQ(world.claim(b, each.epoch + 1).outcome, Written::done) << each.what;
  }
}

TEST(KubernetesClient, WhereTheLeaderIsGoneTheNextClaimIsOverTheEpochThatMembersKnow) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.run(2s);
  for (std::uint64_t number = 1; number <= 3; ++number)
    ASSERT_EQ(world.claim(a, number).outcome, Written::done);
  world.run(3s);  // and its own Lease says so
  a.killed = true;
  world.server.remove("box");
  // It knows no more than the Leases that are left.
  auto& fresh = world.add_scheduler("b", 2);
  world.run(2s);
  EXPECT_EQ(fresh.client->epoch().epoch->number, 3U);
  EXPECT_EQ(fresh.client->epoch().revision, 0);
  EXPECT_EQ(world.claim(fresh, 4).outcome, Written::done);
  EXPECT_EQ(transitions(world), 4);
}

TEST(KubernetesClient, AnEpochThatIsNotHigherIsNotClaimed) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.run(2s);
  ASSERT_EQ(world.claim(a, 5).outcome, Written::done);
  const std::size_t before = world.calls;
  ASSERT_TRUE(a.client->compare_and_set(7, a.client->epoch().revision, {5, "a", 1}, world.now));
  EXPECT_EQ(world.calls, before);
  world.run(1ms);
  EXPECT_EQ(a.writes.at(7).outcome, Written::differs);
  EXPECT_FALSE(a.client->compare_and_set(8, 1, {std::uint64_t{1} << 31, "a", 1}, world.now));
}

TEST(KubernetesClient, AMembersLeaseThatIsDeletedOrEditedIsWrittenAgain) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  auto& b = world.add_scheduler("b", 2);
  world.run(2s);
  world.server.remove("box.a");
  world.run(1s);
  EXPECT_EQ(a.unregistered, 1);
  EXPECT_EQ(a.registered, 2);
  EXPECT_THAT(ids_of(b), ElementsAre("a", "b"));
  world.edit("box.a", [](json& lease) { lease["metadata"]["annotations"]["carillon/member"] = "?"; });
  world.run(1s);
  EXPECT_THAT(b.troubles, Contains(HasSubstr("Lease 'box.a' is passed over: stored member")));
  EXPECT_EQ(a.registered, 2);
  EXPECT_THAT(ids_of(b), ElementsAre("a", "b"));
}

TEST(KubernetesClient, WhileTheServerIsAwayAllIsKeptAndItIsFoundAgain) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  auto& b = world.add_scheduler("b", 2);
  world.run(2s);
  a.cut = b.cut = true;
  world.run(60s);
  EXPECT_EQ(a.lost, 1);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
  EXPECT_FALSE(a.client->compare_and_set(7, 0, {1, "a", 1}, world.now));
  a.cut = b.cut = false;
  world.run(30s);
  EXPECT_EQ(a.back, 2);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
  EXPECT_EQ(a.registered, 2);
}

TEST(KubernetesClient, WhoIsCutOffAloneRunsOut) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  auto& b = world.add_scheduler("b", 2);
  world.run(2s);
  b.cut = true;
  world.run(8s);
  EXPECT_THAT(ids_of(a), ElementsAre("a"));
  EXPECT_EQ(b.unregistered, 1);
  b.cut = false;
  world.run(5s);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
  EXPECT_EQ(b.registered, 2);
}

TEST(KubernetesClient, NobodyRunsOutWhileTheServerTakesNoWrites) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.add_scheduler("b", 2);
  world.run(2s);
  world.instead = [](const kubernetes::Call& call) {
    return call.method == "GET" ? std::nullopt
                                : std::optional(kubernetes::Answer{500, "{\"message\": \"full\"}"});
  };
  world.run(60s);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
  EXPECT_THAT(a.troubles, Contains(HasSubstr("Kubernetes at http://api:1: HTTP 500: full")));
  world.instead = nullptr;
  world.run(10s);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
  EXPECT_TRUE(a.client->up());
}

TEST(KubernetesClient, AWatchThatEndedGoesOnWhereItWas) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.run(10s);
  const std::size_t lists = world.lists, watches = world.watches;
  world.end_watches();
  world.run(1s);
  EXPECT_EQ(world.lists, lists);
  EXPECT_EQ(world.watches, watches + 1);
  EXPECT_EQ(a.lost, 0);
  // What changed meanwhile is not known any more (410).
  world.end_watches();
  world.server.begins = world.server.revision + 100;
  world.run(1s);
  EXPECT_GT(world.lists, lists);
  world.server.revision = world.server.begins;
  world.run(3s);
  EXPECT_TRUE(a.client->up());
  EXPECT_THAT(ids_of(a), ElementsAre("a"));
}

TEST(KubernetesClient, AWatchThatIsDeafIsBegunAnew) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  auto& b = world.add_scheduler("b", 2);
  world.run(2s);
  const std::size_t watches = world.watches;
  a.next = std::int64_t{1} << 40;  // it tells nothing any more, and does not end
  b.killed = true;
  world.run(12s);
  EXPECT_GT(world.watches, watches);
  EXPECT_THAT(ids_of(a), ElementsAre("a"));
}

TEST(KubernetesClient, ThrottledItAsksNothingUntilItMay) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.run(2s);
  bool throttles = true;
  world.instead = [&](const kubernetes::Call&) {
    return throttles ? std::optional(kubernetes::Answer{429, "{}", Duration{4s}}) : std::nullopt;
  };
  ASSERT_TRUE(a.client->read_epoch(7, world.now));
  world.run(100ms);
  EXPECT_THAT(a.reads.at(7).why, HasSubstr("it throttles (429), and is asked again after 4000 ms"));
  throttles = false;
  const std::size_t calls = world.calls;
  EXPECT_FALSE(a.client->read_epoch(8, world.now));
  world.run(3s);
  EXPECT_EQ(world.calls, calls);
  world.run(2s);
  EXPECT_GT(world.calls, calls);
  EXPECT_EQ(a.unregistered, 0);
  ASSERT_TRUE(a.client->read_epoch(9, world.now));
  // No wait is longer than ten seconds, whatever is said.
  throttles = true;
  world.instead = [&](const kubernetes::Call&) {
    return throttles ? std::optional(kubernetes::Answer{429, "{}", Duration{1'000'000s}}) : std::nullopt;
  };
  ASSERT_TRUE(a.client->read_epoch(10, world.now));
  world.run(100ms);
  throttles = false;
  world.run(15s);
  EXPECT_TRUE(a.client->registered());
}

TEST(KubernetesClient, SaysWhichRightIsMissing) {
  const struct {
    const char *method, *name, *verb;
  } rows[] = {
      {"GET", "", "list"}, {"POST", "", "create"}, {"PUT", "box.a", "update"}, {"DELETE", "box.a", "delete"}};
  for (const auto& [method, name, verb] : rows) {
    KubernetesWorld world;
    auto& a = world.add_scheduler("a", 1);
    world.instead = [&, is = std::string(method)](const kubernetes::Call& call) {
      return call.method == is && (is != "GET" || call.target.contains("limit="))
                 ? std::optional(kubernetes::Answer{403, "{\"message\": \"no\"}"})
                 : std::nullopt;
    };
    world.run(5s);
    a.client->leave(world.now);
    world.run(2s);
    EXPECT_THAT(
        a.troubles,
        Contains(HasSubstr("it forbids the verb '" + std::string(verb) +
                           "' of leases (403 Forbidden): the Role of this process needs it, for "
                           "resource leases of apiGroup coordination.k8s.io in namespace 'default'")));
  }
}

TEST(KubernetesClient, SaysThatATokenOrTheNamespaceIsNotTaken) {
  for (const auto& [status, words] : {std::pair{401, "it does not take the token of F (401 Unauthorized)"},
                                      std::pair{404, "namespace 'default' is not there (404)"}}) {
    KubernetesWorld world;
    auto& a = world.add_scheduler("a", 1);
    world.instead = [&, code = status](const kubernetes::Call& call) {
      return call.method == "POST" ? std::optional(kubernetes::Answer{code, "{}"}) : std::nullopt;
    };
    world.run(5s);
    EXPECT_THAT(a.troubles, Contains(HasSubstr(words)));
    EXPECT_EQ(a.registered, 0);
    world.instead = nullptr;
    world.run(5s);
    EXPECT_EQ(a.registered, 1);
  }
}

TEST(KubernetesClient, AfterAStallOfThisProcessNobodyRunsOut) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.add_scheduler("b", 2);
  world.run(2s);
  // Nothing is told to `a` for a minute, and then all at once; its clock is looked at first.
  auto client = std::move(a.client);
  a.killed = true;
  const auto watch = a.watch;
  world.run(60s);
  a.client = std::move(client);
  a.client->tick(world.now);
  EXPECT_THAT(ids_of(a), Contains("b"));
  a.killed = false;
  a.watch = watch;
  world.run(10s);
  EXPECT_THAT(ids_of(a), ElementsAre("a", "b"));
}

TEST(KubernetesClient, TheLeaderDeletesLeasesOfProcessesThatAreLongGone) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  auto& b = world.add_scheduler("b", 2);
  world.run(2s);
  ASSERT_EQ(world.claim(a, 1).outcome, Written::done);
  b.killed = true;
  world.run(50s);
  EXPECT_TRUE(world.server.leases.contains("box.b"));
  world.run(30s);
  EXPECT_FALSE(world.server.leases.contains("box.b"));
  EXPECT_TRUE(world.server.leases.contains("box.a"));
}

TEST(KubernetesClient, KeepsNoMoreMembersThanItMay) {
  KubernetesWorld world;
  for (int i = 0; i < 5; ++i) world.add_scheduler("m" + std::to_string(i), 1);
  auto& a = world.add(std::nullopt, 3);
  world.run(5s);
  EXPECT_EQ(a.client->members().size(), 3U);
  EXPECT_THAT(a.troubles, Contains(HasSubstr("more than 3 members")));
}

TEST(KubernetesClient, AServerThatAnswersNonsenseIsLost) {
  for (const auto& answer : {kubernetes::Answer{404, ""}, kubernetes::Answer{200, "hi"}}) {
    KubernetesWorld world;
    auto& a = world.add(std::nullopt);
    world.instead = [&](const kubernetes::Call&) { return std::optional(answer); };
    world.run(10s);
    EXPECT_EQ(a.lost, 1);
    world.instead = nullptr;
    world.run(5s);
    EXPECT_EQ(a.back, 1);
  }
}

TEST(KubernetesClient, LinesThatAreNoneAreReadOver) {
  KubernetesWorld world;
  auto& a = world.add_scheduler("a", 1);
  world.run(2s);
  for (const char* const text :
       {"", "{", "{\"type\": \"SPLIT\"}", "{\"type\": \"ERROR\", \"object\": {\"code\": 410}}"}) {
    const std::size_t lists = world.lists;
    a.client->line(*a.watch, text, world.now);
    world.run(2s);
    EXPECT_GT(world.lists, lists) << text;
    EXPECT_TRUE(a.client->up()) << text;
  }
  EXPECT_EQ(a.lost, 0);
}

// Whatever fails: no epoch has two leaders, none comes twice, and in the end all know the same.
TEST(KubernetesClient, NoEpochHasTwoLeadersUnderFaults) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    KubernetesWorld world;
    Random random(seed);
    std::vector<KubernetesWorld::Site*> sites;
    for (std::uint64_t i = 0; i < 4; ++i)
      sites.push_back(&world.add_scheduler("s" + std::to_string(i), 10 + i));
    world.loses_answer = [&] { return random.bits() % 20 == 0; };
    world.instead = [&](const kubernetes::Call&) -> std::optional<kubernetes::Answer> {
      switch (random.bits() % 40) {
        case 0:
          return kubernetes::Answer{429, "{}", Duration{100ms}};
        case 1:
          return kubernetes::Answer{500, "{}"};
        case 2:
          return kubernetes::Answer{200, "nonsense"};
        default:
          return std::nullopt;
      }
    };
    std::map<std::uint64_t, std::string> leaders;
    std::uint64_t token = 1000;
    for (int round = 0; round < 200; ++round) {
      auto& site = *sites[random.bits() % sites.size()];
      switch (random.bits() % 12) {
        case 0:
          site.cut = !site.cut;
          break;
        case 1:
        case 2:
          // A hand that edits comes when all know how things stand.
          for (auto* const each : sites) each->cut = false;
          world.run(10s);
          if (!world.server.leases.contains("box")) break;
          if (random.bits() % 2 == 0)
            world.server.remove("box");
          else
            world.edit("box", [&](json& lease) { lease["spec"]["leaseTransitions"] = 1; });
          break;
        case 3:
          world.end_watches();
          break;
        default: {
          const EpochRecord record = site.client->epoch();
          const Member& self = world.leader_of.at(&site);
          (void)site.client->compare_and_set(
              ++token, record.revision,
              {record.epoch ? record.epoch->number + 1 : 1, self.id, self.incarnation}, world.now);
        }
      }
      world.run(Duration{std::chrono::milliseconds{random.bits() % 300}});
      for (auto* const each : sites)
        if (const auto epoch = each->client->epoch().epoch; epoch && epoch->nonce != 0) {
          const auto [found, fresh] = leaders.emplace(epoch->number, epoch->leader);
          EXPECT_EQ(found->second, epoch->leader) << "epoch " << epoch->number << ", seed " << seed;
        }
    }
    world.instead = nullptr;
    world.loses_answer = [] { return false; };
    for (auto* const each : sites) each->cut = false;
    world.run(30s);
    for (auto* const each : sites) {
      EXPECT_TRUE(std::ranges::is_sorted(each->epochs)) << "seed " << seed;
      EXPECT_EQ(each->client->epoch(), sites[0]->client->epoch()) << "seed " << seed;
      EXPECT_EQ(ids_of(*each), ids_of(*sites[0])) << "seed " << seed;
      EXPECT_EQ(each->client->members().size(), sites.size()) << "seed " << seed;
      EXPECT_TRUE(each->client->up()) << "seed " << seed;
    }
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace carillon::cluster
