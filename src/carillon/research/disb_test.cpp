#include "carillon/research/disb.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/base/testing/seeds.h"
#include "carillon/research/testing/unit_checker.h"

namespace carillon::research {
namespace {

using workload::DisbClient;

profile::KernelTable two_models() {
  // "wide" fills ten units for 1 ms, "narrow" three for 2 ms.
  const auto kernels = [](int count, int blocks, Duration round) {
    return std::vector<profile::KernelEntry>(static_cast<std::size_t>(count),
                                             {.name = "k", .blocks = blocks, .rounds = {round}});
  };
  return {.device = "test",
          .units = 10,
          .models = {{.names = {"wide"}, .source = "", .latency = 1ms, .kernels = kernels(10, 10, 110us)},
                     {.names = {"narrow"}, .source = "", .latency = 2ms, .kernels = kernels(20, 3, 100us)}}};
}

DisbClient periodic(std::string name, std::string model, double rate) {
  return {.name = std::move(name),
          .model = std::move(model),
          .cls = Class::real_time,
          .arrivals = DisbClient::Arrivals::periodic,
          .rate = rate,
          .phase = 0us,
          .trace = {}};
}
DisbClient closed(std::string name, std::string model) {
  return {.name = std::move(name),
          .model = std::move(model),
          .cls = Class::best_effort,
          .arrivals = DisbClient::Arrivals::closed_loop,
          .rate = 0,
          .phase = 0us,
          .trace = {}};
}

DisbOptions ideal(std::string scheduler) {
  DisbOptions options;
  options.scheduler = std::move(scheduler);
  options.device = {.dispatch = 0us, .reset_host = 0us, .dismiss = 0us, .kill = 0us, .interference = 0};
  options.sharing.knows_kernel = true;
  options.sharing.margin = 0;
  return options;
}

TEST(Disb, AModelAloneTakesWhatItWasMeasuredToTake) {
  const workload::DisbWorkload workload{.name = "w", .length = 1s, .clients = {periodic("a", "wide", 100)}};
  const auto figures = run_disb(workload, two_models(), ideal("rt-only"));
  ASSERT_TRUE(figures) << figures.error().message;
  ASSERT_EQ(figures->clients.size(), 1U);
  EXPECT_EQ(figures->clients[0].requests, 100U);
  EXPECT_EQ(figures->clients[0].dropped, 0U);
  ASSERT_EQ(figures->clients[0].latencies.size(), 100U);
  for (const Duration latency : figures->clients[0].latencies) EXPECT_EQ(latency, 1ms);
  EXPECT_TRUE(figures->preemptions.empty());
}

TEST(Disb, AClientHasOneRequestUnderWayAndDropsWhatIsOverdue) {
  // 1 ms each, every 0.6 ms: 1,000 a second are answered, and two of five dropped.
  const workload::DisbWorkload workload{
      .name = "w", .length = 3s, .clients = {periodic("a", "wide", 1'666.66)}};
  const auto figures = run_disb(workload, two_models(), ideal("rt-only"));
  ASSERT_TRUE(figures);
  const auto& client = figures->clients[0];
  EXPECT_EQ(client.requests, 5'000U);
  EXPECT_NEAR(static_cast<double>(client.latencies.size()), 3'000, 2);
  EXPECT_EQ(client.requests, client.latencies.size() + client.dropped + client.unfinished);
  for (const Duration latency : client.latencies) EXPECT_LE(latency, 1.6ms + 1us);
}

TEST(Disb, ReefGivesRealTimeRunsTheDeviceAndBestEffortTheRest) {
  // Real-time runs take 1 ms of every 10; best effort has nine tenths, for nothing fits beside them.
  const workload::DisbWorkload workload{
      .name = "w", .length = 2s, .clients = {periodic("a", "wide", 100), closed("b", "wide")}};
  const auto figures = run_disb(workload, two_models(), ideal("reef"));
  ASSERT_TRUE(figures);
  for (const Duration latency : figures->clients[0].latencies) EXPECT_EQ(latency, 1ms);
  // Each eviction loses what ran, at most 0.1 ms of a kernel.
  EXPECT_NEAR(static_cast<double>(figures->clients[1].latencies.size()), 1'800, 30);
  EXPECT_EQ(figures->preemptions.size(), 199U /* the first finds an idle device */);
}

TEST(Disb, ReefRunsBestEffortBesideNarrowRealTimeRuns) {
  // A narrow run every 2 ms leaves seven units all the time: the other's as many, for ever.
  const workload::DisbWorkload workload{
      .name = "w", .length = 1s, .clients = {periodic("a", "narrow", 500), closed("b", "narrow")}};
  const auto reef = run_disb(workload, two_models(), ideal("reef"));
  ASSERT_TRUE(reef);
  for (const Duration latency : reef->clients[0].latencies) EXPECT_EQ(latency, 2ms);
  EXPECT_GE(reef->clients[1].latencies.size(), 480U);
  EXPECT_GT(reef->models[0].padded, 0us);
  auto options = ideal("reef");
  options.sharing.padding = false;
  EXPECT_LE(run_disb(workload, two_models(), options)->clients[1].latencies.size(), 5U);
}

// Between two real-time runs one of its kernels ends, and the next is killed: the run gets on all the same.
TEST(Disb, ARunThatIsEvictedAgainAndAgainEnds) {
  auto table = two_models();
  table.models.push_back(
      {.names = {"long"},
       .source = "",
       .latency = 12ms,
       .kernels = std::vector<profile::KernelEntry>(4, {.name = "k", .blocks = 10, .rounds = {3ms}})});
  table.models[0].latency = 5ms;
  const workload::DisbWorkload workload{
      .name = "w", .length = 2s, .clients = {periodic("a", "wide", 100), closed("b", "long")}};
  for (const bool known : {true, false}) {
    auto options = ideal("reef");
    options.sharing.knows_kernel = known;
    const auto figures = run_disb(workload, table, options);
    ASSERT_TRUE(figures) << figures.error().message;
    EXPECT_GE(figures->clients[1].latencies.size(), 45U);  // a kernel in each of 200 gaps
  }
}

// Two clients that ask again as soon as they are answered: real-time work never pauses, and what company
// costs it does not add up over runs.
TEST(Disb, PaddingGoesOnUnderRealTimeWorkWithoutAPause) {
  workload::DisbWorkload workload{
      .name = "w",
      .length = 4s,
      .clients = {closed("a", "narrow"), closed("b", "narrow"), closed("c", "narrow")}};
  workload.clients[0].cls = workload.clients[1].cls = Class::real_time;
  auto options = ideal("reef");
  options.device.interference = 0.01;
  const auto figures = run_disb(workload, two_models(), options);
  ASSERT_TRUE(figures);
  EXPECT_GE(figures->clients[2].latencies.size(), 1'700U);  // of 2,000 that it could have alone
}

TEST(Disb, TablesThatLeaveTheTimelineAreRefused) {
  auto table = two_models();
  table.models[0].kernels[0].rounds = {1us, 10s};  // 40 of the second, scaled, take years
  table.models[0].kernels.resize(1);
  table.models[0].latency = 10s;
  const workload::DisbWorkload workload{.name = "w", .length = 1s, .clients = {closed("b", "wide")}};
  const auto figures = run_disb(workload, table, {});
  ASSERT_FALSE(figures);
  EXPECT_NE(figures.error().message.find("model wide: a round takes more than 100 s"), std::string::npos)
      << figures.error().message;
  table.models[0].kernels[0] = {.name = "k", .blocks = 1'000'000, .rounds = {10s}};
  table.models[0].kernels.resize(100, table.models[0].kernels[0]);
  EXPECT_FALSE(run_disb(workload, table, {}));
}

TEST(Disb, TheSameSeedGivesTheSame) {
  workload::DisbWorkload workload{
      .name = "w", .length = 1s, .clients = {periodic("a", "wide", 100), closed("b", "narrow")}};
  workload.clients[0].arrivals = DisbClient::Arrivals::poisson;
  auto options = ideal("reef");
  options.device.noise = 0.05;
  const auto first = run_disb(workload, two_models(), options),
             second = run_disb(workload, two_models(), options);
  EXPECT_EQ(first->clients[0].latencies, second->clients[0].latencies);
  EXPECT_EQ(first->clients[1].latencies, second->clients[1].latencies);
  options.seed = 2;
  EXPECT_NE(first->clients[0].latencies, run_disb(workload, two_models(), options)->clients[0].latencies);
}

TEST(Disb, RefusesWhatItDoesNotHave) {
  const auto refused = [](const workload::DisbWorkload& workload, const DisbOptions& options) {
    const auto figures = run_disb(workload, two_models(), options);
    return figures ? std::string() : figures.error().message;
  };
  workload::DisbWorkload workload{.name = "w", .length = 1s, .clients = {closed("b", "other")}};
  EXPECT_EQ(refused(workload, {}),
            "workload w, client b: model 'other' is not in the kernel table of test; it has wide, narrow");
  workload.clients[0].model = "wide";
  EXPECT_NE(refused(workload, {.scheduler = "fifo"}).find("there is no scheduler 'fifo'"), std::string::npos);
  DisbOptions options;
  options.device.noise = -1;
  EXPECT_NE(refused(workload, options).find("noise is -1"), std::string::npos);
  options.device.noise = 0;
  options.sharing.in_flight = 0;
  EXPECT_NE(refused(workload, options).find("in_flight is 0"), std::string::npos);
}

// --- Random worlds: tables, clients and options by seed, under every policy, with all promises checked.

struct World {
  profile::KernelTable table;
  workload::DisbWorkload workload;
  DisbOptions options;
};

World world(std::uint64_t seed, std::string_view scheduler) {
  Random random(seed * 7919 + 13);
  const auto below = [&](std::uint64_t bound) { return static_cast<int>(random.below(bound)); };
  World made;
  made.table.device = "random";
  made.table.units = 1 + below(64);
  const int models = 1 + below(4);
  for (int m = 0; m < models; ++m) {
    profile::ModelKernels model{
        .names = {"m" + std::to_string(m)}, .source = "", .latency = {}, .kernels = {}};
    const int kernels = 1 + below(12);
    for (int k = 0; k < kernels; ++k) {
      profile::KernelEntry kernel{.name = "k", .blocks = 1 + below(below(2) == 0 ? 8 : 300), .rounds = {}};
      const int depths = 1 + below(8);
      Duration round = 1us * (1 + below(100));
      for (int depth = 0; depth < depths; ++depth) {
        kernel.rounds.push_back(round);
        round += 1us * below(20);
      }
      model.kernels.push_back(kernel);
    }
    model.latency = 1us * (10 + below(2'000));
    made.table.models.push_back(model);
  }
  made.workload.name = "random";
  made.workload.length = 30ms;
  const int clients = 1 + below(8);
  for (int c = 0; c < clients; ++c) {
    DisbClient client;
    client.name = "c" + std::to_string(c);
    client.model = "m" + std::to_string(below(static_cast<std::uint64_t>(models)));
    client.cls = below(2) == 0 ? Class::real_time : Class::best_effort;
    client.arrivals = static_cast<DisbClient::Arrivals>(below(4));
    client.rate = 20 + below(3'000);
    client.phase = 1us * below(1'000);
    for (TimePoint at{}; at - TimePoint{} < made.workload.length; at += 1us * below(2'000))
      client.trace.push_back(at - TimePoint{});  // several may come at once
    made.workload.clients.push_back(client);
  }
  DisbOptions& options = made.options;
  options.scheduler = scheduler;
  options.seed = seed;
  options.device = {.dispatch = 1us * below(5),
                    .reset_host = 1us * below(10),
                    .dismiss = 1us * below(30),
                    .pipes = 1 + below(4),
                    .kill = 1us * below(10),
                    .interference = 0.01 * below(10),
                    .noise = 0.02 * below(10)};
  options.sharing.in_flight = 1 + below(6);
  options.sharing.in_flight_time = 1us * below(200);
  options.sharing.knows_kernel = below(2) == 0;
  options.sharing.look_ahead = below(3) != 0;
  options.sharing.padding = below(4) != 0;
  options.sharing.best_effort_share = below(4) == 0 ? 0.1 * below(9) : 0;
  return made;
}

class RandomSharing : public ::testing::TestWithParam<std::string_view> {};

// CARILLON_SHARING_SEEDS=FIRST..LAST asks for other seeds.
TEST_P(RandomSharing, PromisesHold) {
  const auto [first, last] = carillon::testing::seeds_from("CARILLON_SHARING_SEEDS", {0, 999});
  std::uint64_t finished = 0, kills = 0, preemptions = 0, padded = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    World made = world(seed, GetParam());
    std::vector<KernelPlan> plans;
    for (const DisbClient& client : made.workload.clients) {  // in the order in which the run adds them
      const auto* model = made.table.find(client.model);
      const auto before = [&](const DisbClient& other) { return other.model == client.model; };
      if (std::ranges::find_if(made.workload.clients, before) !=
          made.workload.clients.begin() + (&client - made.workload.clients.data()))
        continue;
      std::vector<KernelShape> shapes;
      for (const auto& kernel : model->kernels)
        shapes.push_back({.blocks = kernel.blocks, .rounds = kernel.rounds});
      plans.emplace_back(shapes, made.table.units);
    }
    testing::UnitChecker checker({.units = made.table.units,
                                  .back = made.options.sharing.in_flight,
                                  .one_real_time = GetParam() != "streams"},
                                 std::move(plans));
    made.options.observer = &checker;
    const auto figures = run_disb(made.workload, made.table, made.options);
    ASSERT_TRUE(figures) << figures.error().message;
    ASSERT_EQ(checker.broken(), "") << "seed " << seed;
    std::uint64_t answered = 0;
    Duration busy{0};
    for (const auto& client : figures->clients) {
      answered += client.latencies.size();
      ASSERT_EQ(client.requests, client.latencies.size() + client.dropped + client.unfinished)
          << "seed " << seed << ", client " << client.name;
    }
    for (const auto& model : figures->models) {
      busy += model.real_time + model.best_effort + model.lost;
      padded += model.padded > 0us ? 1U : 0U;
    }
    ASSERT_EQ(answered, checker.finished()) << "seed " << seed;
    ASSERT_LE(busy, figures->busy) << "seed " << seed;
    ASSERT_LE(figures->busy, made.workload.length * made.table.units) << "seed " << seed;
    finished += answered;
    kills += checker.kills();
    preemptions += figures->preemptions.size();
  }
  // They reach what they are for.
  if (last - first < 999) return;
  EXPECT_GT(finished, 10'000U);
  if (GetParam() == "reef") {
    EXPECT_GT(kills, 1'000U);
    EXPECT_GT(preemptions, 1'000U);
    EXPECT_GT(padded, 300U);
  } else {
    EXPECT_EQ(kills, 0U);
  }
}

// On a device that keeps to its table and evicts in no time, nothing that reef runs beside a real-time run
// costs it anything: an oracle for the room that padding counts on.
TEST(Disb, RealTimeRunsTakeWhatTheyTakeAlone) {
  std::uint64_t beside = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    World made = world(seed, "reef");
    made.options.device = {
        .dispatch = 0us, .reset_host = 0us, .dismiss = 0us, .kill = 0us, .interference = 0};
    made.options.sharing.margin = 0;
    made.options.sharing.best_effort_share = 0;
    made.options.sharing.padding = true;
    for (DisbClient& client : made.workload.clients) {
      client.cls = Class::best_effort;
      client.arrivals = DisbClient::Arrivals::closed_loop;
    }
    DisbClient& client = made.workload.clients.front();
    client = periodic("a", client.model, 400);  // 2.5 ms; models take 2 ms at most
    const auto figures = run_disb(made.workload, made.table, made.options);
    ASSERT_TRUE(figures);
    const Duration alone = made.table.find(client.model)->latency;
    for (const Duration latency : figures->clients[0].latencies)
      ASSERT_LE(latency, alone + 1us) << "seed " << seed;  // rounds are scaled to whole nanoseconds
    for (const auto& model : figures->models) beside += model.padded > 0us ? 1U : 0U;
  }
  EXPECT_GT(beside, 100U);
}

INSTANTIATE_TEST_SUITE_P(All, RandomSharing,
                         ::testing::ValuesIn(sharing_names().begin(), sharing_names().end()),
                         [](const auto& one) {
                           std::string name(one.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace carillon::research
