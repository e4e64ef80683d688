// What every policy comes to in a hundred small worlds, against what it came to when it was last recorded:
// what changes any decision shows here. It does not say which is right; after a change that is meant to
// change decisions, look at what moved, and record it anew:
//
//   CARILLON_RECORD_FIGURES=1 build/release/carillon_figures_test
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/test_name.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/fault_case.h"

namespace carillon::simulate {
namespace {

constexpr std::string_view header =
    "world,policy,offered,on_time,late,refused,cancelled,shed,batches,loads,unloads,stopped,probes,decisions,"
    "busy_us,latency_us";
const std::string recorded_file =
    std::string(CARILLON_SOURCE_DIR) + "/src/carillon/simulate/testing/figures.csv";

struct World {
  workload::Scenario scenario;
  Options options;
  bool measured = false;  // the policy goes by what it sees of its environment
};

// A scenario of the repository, cut to about so many requests.
World cut(const std::string& file, double requests, double load = 1) {
  auto scenario = workload::read_scenario(std::string(CARILLON_SOURCE_DIR) + "/scenarios/" + file);
  if (!scenario) throw std::runtime_error(scenario.error().message);
  if (load != 1) workload::set_rate(*scenario, scenario->rate * load);
  const std::vector<double> rates = workload::model_rates(*scenario);
  const double rate = std::accumulate(rates.begin(), rates.end(), 0.0);
  scenario->duration = std::min(scenario->duration, from_seconds(requests / rate));
  scenario->warmup = scenario->duration / 8;
  return {.scenario = std::move(*scenario)};
}

std::map<std::string, std::function<World()>> make_worlds() {
  std::map<std::string, std::function<World()>> worlds;
  for (std::uint64_t seed = 0; seed < 48; ++seed)
    worlds["faults_" + std::string(seed < 10 ? "0" : "") + std::to_string(seed)] = [seed] {
      const testing::FaultCase c = testing::fault_case(seed);
      return World{.scenario = c.scenario, .options = {.faults = c.faults, .decision_time = c.decision_time}};
    };
  const std::vector<std::string> robust = {
      "drawn_01",     "drawn_02",       "drawn_03",    "drawn_04",           "drawn_05",
      "drawn_06",     "drawn_07",       "drawn_08",    "drawn_09",           "drawn_10",
      "drawn_11",     "drawn_12",       "many_on_few", "mixed_slos",         "one_on_one",
      "popular_last", "quick_and_slow", "skewed_zoo",  "two_hundred_models", "weak_bursts"};
  for (const std::string& name : robust) {
    worlds[name] = [name] { return cut("robust/" + name + ".toml", 4000); };
    worlds[name + "_overload"] = [name] { return cut("robust/" + name + ".toml", 4000, 2); };
  }
  for (const std::string name : {"mixed_slos", "quick_and_slow", "drawn_04"})
    worlds[name + "_measured"] = [name] {
      World world = cut("robust/" + name + ".toml", 4000);
      world.scenario.network_delay = 200us;
      world.options.faults = {.noise = 0.1, .slowdowns_per_s = 0.3, .clock_offset = 2ms};
      world.measured = true;
      return world;
    };
  for (const std::string name : {"orloj_c2_three_modal", "orloj_c4_rdinet_cifar", "orloj_c3_resnet_imagenet"})
    worlds[name] = [name] { return cut(name + ".toml", 1500, 2); };
  worlds["clockwork_fig7_isolation"] = [] { return cut("clockwork_fig7_isolation.toml", 4000); };
  worlds["clockwork_fig5_closed_loop"] = [] {
    World world = cut("clockwork_fig5_closed_loop.toml", 4000);
    world.scenario.duration = 2s;
    return world;
  };
  worlds["slow_decisions"] = [] {
    World world = cut("robust/skewed_zoo.toml", 4000, 2);
    world.options.decision_time = 50us;
    return world;
  };
  return worlds;
}

const std::map<std::string, std::function<World()>>& worlds() {
  static const auto all = make_worlds();
  return all;
}

std::string figures_of(const World& world, const std::string& policy) {
  schedule::Environment environment = simulate::environment(world.scenario);
  if (world.measured) {
    environment.measured = true;
    environment.client = world.scenario.network_delay;
  }
  const auto scheduler = *schedule::make_scheduler(policy, environment);
  const Figures f = run(world.scenario, *scheduler, world.options);
  std::uint64_t offered = 0, on_time = 0, late = 0, refused = 0, cancelled = 0, batches = 0;
  Duration latency{0};
  for (const ModelFigures& m : f.models) {
    offered += m.offered;
    on_time += m.on_time;
    late += m.late;
    refused += m.refused;
    cancelled += m.cancelled;
    batches += m.batches;
    latency = std::accumulate(m.latencies.begin(), m.latencies.end(), latency);
  }
  const Duration busy = std::accumulate(f.busy.begin(), f.busy.end(), f.profiling);
  std::string line;
  for (const std::uint64_t figure :
       {offered, on_time, late, refused, cancelled, f.shed, batches, f.loads, f.unloads, f.stopped,
        f.profiled, f.decisions, static_cast<std::uint64_t>(busy / 1us),
        static_cast<std::uint64_t>(latency / 1us)})
    line += (line.empty() ? "" : ",") + std::to_string(figure);
  return line;
}

bool recording() {
  return std::getenv("CARILLON_RECORD_FIGURES") != nullptr;
}

using Lines = std::map<std::pair<std::string, std::string>, std::string>;  // by world and policy

Lines& recorded() {
  static Lines lines = [] {
    Lines read;
    std::ifstream in(recorded_file);
    std::string line;
    std::getline(in, line);
    EXPECT_EQ(recording() ? header : line, header);
    while (std::getline(in, line)) {
      const std::size_t first = line.find(','), second = line.find(',', first + 1);
      read[{line.substr(0, first), line.substr(first + 1, second - first - 1)}] = line.substr(second + 1);
    }
    return read;
  }();
  return lines;
}

class Writer : public ::testing::Environment {
 public:
  void TearDown() override {
    if (!recording()) return;
    std::ofstream out(recorded_file);
    out << header << "\n";
    for (const auto& [key, figures] : recorded())
      if (worlds().contains(key.first)) out << key.first << "," << key.second << "," << figures << "\n";
  }
};
[[maybe_unused]] const auto* const writer = ::testing::AddGlobalTestEnvironment(new Writer);

class FiguresTest : public ::testing::TestWithParam<std::string> {};

TEST_P(FiguresTest, AreAsRecorded) {
  const World world = worlds().at(GetParam())();
  for (const std::string& policy : schedule::scheduler_names()) {
    const std::string found = figures_of(world, policy);
    std::string& known = recorded()[{GetParam(), policy}];
    if (recording())
      known = found;
    else
      EXPECT_EQ(found, known) << policy << ": " << header;
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, world] : worlds()) all.push_back(name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Worlds, FiguresTest, ::testing::ValuesIn(names()),
                         [](const auto& tested) { return schedule::testing::test_name(tested.param); });

TEST(RecordedFigures, AreOfWorldsAndPoliciesThatThereAre) {
  const auto policies = schedule::scheduler_names();
  for (const auto& [key, figures] : recorded()) {
    EXPECT_TRUE(worlds().contains(key.first)) << key.first;
    EXPECT_TRUE(std::ranges::find(policies, key.second) != policies.end()) << key.second;
  }
}

}  // namespace
}  // namespace carillon::simulate
