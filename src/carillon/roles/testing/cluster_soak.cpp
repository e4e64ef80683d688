// carillon_cluster_soak --seeds A..B [--policy P] [--json]: virtual clusters of these seeds under drawn
// faults, and whether their promises hold. Exits with 1 where one is broken.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "carillon/roles/testing/virtual_cluster.h"
#include "carillon/schedule/registry.h"

namespace {

using carillon::roles::testing::ClusterFigures;
using carillon::roles::testing::ClusterPlant;

constexpr const char* usage =
    "usage: carillon_cluster_soak --seeds FIRST..LAST [--policy NAME|all] [--plant NAME] [--quiet] "
    "[--one-clock] [--until-broken] [--trace] [--json]\n"
    "  --policy       clockwork, symphony, fcfs, edf, orloj, ...; symphony if it is not given\n"
    "  --plant        no_fence, no_compare, second_output, no_bound or old_clock: a mistake that is to be\n"
    "                 found\n"
    "  --quiet        no faults; --one-clock: all hosts have one clock\n"
    "  --until-broken ends with the first promise that is broken\n";

struct Arguments {
  std::uint64_t first = 0, last = 0;
  std::vector<std::string> policies{"symphony"};
  carillon::roles::testing::ClusterOptions options;
  bool json = false, until_broken = false;
};

bool read_seeds(std::string_view text, Arguments& out) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return false;
  const auto number = [](std::string_view part, std::uint64_t& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size();
  };
  return number(text.substr(0, dots), out.first) && number(text.substr(dots + 2), out.last) &&
         out.first <= out.last;
}

bool read_plant(std::string_view name, ClusterPlant& out) {
  const std::pair<std::string_view, ClusterPlant> all[] = {{"no_fence", ClusterPlant::no_fence},
                                                           {"no_compare", ClusterPlant::no_compare},
                                                           {"second_output", ClusterPlant::second_output},
                                                           {"no_bound", ClusterPlant::no_bound},
                                                           {"old_clock", ClusterPlant::old_clock}};
  for (const auto& [known, plant] : all)
    if (name == known) {
      out = plant;
      return true;
    }
  return false;
}

// An empty text: they are right.
std::string read(int count, char** arguments, Arguments& out) {
  bool seeds = false;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = arguments[i];
    const auto value = [&]() -> std::string_view { return i + 1 < count ? arguments[++i] : ""; };
    if (name == "--seeds") {
      seeds = read_seeds(value(), out);
      if (!seeds) return "--seeds must be FIRST..LAST, such as 1..1000";
    } else if (name == "--policy") {
      const std::string policy(value());
      if (policy == "all") {
        out.policies = {"clockwork", "symphony", "fcfs", "edf", "orloj"};
        continue;
      }
      if (auto made = carillon::schedule::make_scheduler(policy); !made) return made.error().message;
      out.policies = {policy};
    } else if (name == "--plant") {
      if (!read_plant(value(), out.options.plant)) return "--plant must be one of those below";
    } else if (name == "--quiet") {
      out.options.faults = false;
    } else if (name == "--one-clock") {
      out.options.one_clock = true;
    } else if (name == "--trace") {
      out.options.trace = true;
    } else if (name == "--json") {
      out.json = true;
    } else if (name == "--until-broken") {
      out.until_broken = true;
    } else {
      return "there is no " + std::string(name);
    }
  }
  return seeds ? "" : "--seeds is missing";
}

nlohmann::json told(const ClusterFigures& f) {
  return {{"events", f.events},
          {"calls", f.calls},
          {"on_time", f.on_time},
          {"orphans", f.orphans},
          {"actions", f.actions},
          {"epochs", f.epochs},
          {"stale_frames", f.stale},
          {"excused", f.excused},
          {"clock_bounds", f.bounds},
          {"late_wins", f.late_wins},
          {"second_outputs", f.second_outputs},
          {"latest_answer_ms", carillon::to_ms(f.latest)},
          {"faults",
           {{"crashes", f.crashes},
            {"pauses", f.pauses},
            {"clock_steps", f.steps},
            {"cuts", f.cuts},
            {"coordinator", f.coordinator},
            {"devices", f.devices},
            {"streams", f.breaks},
            {"handovers", f.handovers}}}};
}

void add(ClusterFigures& sum, const ClusterFigures& f) {
  using Count = std::uint64_t ClusterFigures::*;
  for (const Count count :
       {&ClusterFigures::events, &ClusterFigures::calls, &ClusterFigures::on_time, &ClusterFigures::orphans,
        &ClusterFigures::actions, &ClusterFigures::epochs, &ClusterFigures::stale, &ClusterFigures::bounds,
        &ClusterFigures::excused, &ClusterFigures::late_wins, &ClusterFigures::second_outputs,
        &ClusterFigures::crashes, &ClusterFigures::pauses, &ClusterFigures::steps, &ClusterFigures::cuts,
        &ClusterFigures::coordinator, &ClusterFigures::devices, &ClusterFigures::breaks,
        &ClusterFigures::handovers})
    sum.*count += f.*count;
  sum.latest = std::max(sum.latest, f.latest);
}

}  // namespace

int main(int count, char** values) {
  Arguments arguments;
  if (const std::string wrong = read(count, values, arguments); !wrong.empty()) {
    std::fprintf(stderr, "%s\n%s", wrong.c_str(), usage);
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  ClusterFigures sum;
  nlohmann::json broken = nlohmann::json::array();
  for (const std::string& policy : arguments.policies) {
    for (std::uint64_t seed = arguments.first; seed <= arguments.last; ++seed) {
      arguments.options.policy = policy;
      const ClusterFigures figures = run_virtual_cluster(seed, arguments.options);
      add(sum, figures);
      if (!figures.broken) continue;
      broken.push_back({{"policy", policy}, {"seed", seed}, {"promise", *figures.broken}});
      if (!arguments.json)
        std::printf("%s, seed %llu: %s\n", policy.c_str(), static_cast<unsigned long long>(seed),
                    figures.broken->c_str());
      std::fflush(stdout);
      if (arguments.until_broken) break;
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  nlohmann::json report = told(sum);
  report["seconds"] = seconds;
  report["events_per_second"] = seconds > 0 ? static_cast<double>(sum.events) / seconds : 0;
  report["broken"] = broken;
  std::printf("%s\n", report.dump(arguments.json ? 2 : -1).c_str());
  return broken.empty() ? 0 : 1;
}
