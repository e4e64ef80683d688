// Problems for tests: random ones, and the best division of small ones by trying all.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/cluster/partition/problem.h"

#ifndef CARILLON_SOURCE_DIR  // the build sets it for tests; headers are also compiled alone
#define CARILLON_SOURCE_DIR "."
#endif

namespace carillon::cluster::testing {

// Seconds, for proofs that take less than one.
inline constexpr double long_enough = 60;

// The weights of the 64 models of profiles/v100_clockwork_table1.csv (their fourth column, in MB).
inline std::vector<std::int64_t> zoo_bytes() {
  std::ifstream file(CARILLON_SOURCE_DIR "/profiles/v100_clockwork_table1.csv");
  std::vector<std::int64_t> bytes;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::size_t at = 0;
    for (int comma = 0; comma < 3; ++comma) at = line.find(',', at) + 1;
    bytes.push_back(std::llround(1e6 * std::stod(line.substr(at))));
  }
  return bytes;
}

// As in appendix A.2: variants of the zoo's models, with rates of an exponential distribution. Memory is half
// as much again as a group has on average.
inline Problem zoo_problem(std::uint64_t seed, int models, int groups) {
  static const std::vector<std::int64_t> bytes = zoo_bytes();
  Random dice(seed);
  Problem problem{.groups = groups};
  std::int64_t sum = 0;
  for (int i = 0; i < models; ++i) {
    const std::int64_t size = bytes.at(dice.below(bytes.size()));
    problem.models.push_back({.name = "m" + std::to_string(i),
                              .micro_rps = std::llround(1e6 * dice.exponential(100)),
                              .static_bytes = size,
                              .dynamic_bytes = size / 4,
                              .move_cost = size});
    sum += size;
  }
  problem.memory_bytes = sum * 3 / (2 * groups) + *std::ranges::max_element(bytes);
  return problem;
}

// A few models of small whole sizes, with bounds that are often tight and sometimes cannot be kept.
inline Problem small_problem(std::uint64_t seed, int most_of_models, int most_of_groups) {
  Random dice(seed);
  Problem problem{.groups = 1 + static_cast<int>(dice.below(static_cast<std::uint64_t>(most_of_groups)))};
  const int models =
      problem.groups +
      static_cast<int>(dice.below(static_cast<std::uint64_t>(most_of_models - problem.groups + 1)));
  std::int64_t rate = 0;
  std::int64_t bytes = 0;
  for (int i = 0; i < models; ++i) {
    problem.models.push_back({.name = "m" + std::to_string(i),
                              .micro_rps = micro_per_unit * static_cast<std::int64_t>(dice.below(40)),
                              .static_bytes = static_cast<std::int64_t>(1 + dice.below(30)),
                              .dynamic_bytes = static_cast<std::int64_t>(dice.below(12)),
                              .move_cost = static_cast<std::int64_t>(dice.below(9))});
    rate += problem.models.back().micro_rps;
    bytes += problem.models.back().static_bytes;
  }
  problem.memory_bytes = bytes / problem.groups + 4 + static_cast<std::int64_t>(dice.below(20));
  if (dice.below(2) == 0)
    problem.max_micro_rps =
        rate / problem.groups + micro_per_unit * static_cast<std::int64_t>(1 + dice.below(20));
  if (dice.below(2) == 0) {
    const auto places = static_cast<std::uint64_t>(problem.groups) + 2;  // one is new, one a group that ends
    for (int i = 0; i < models; ++i) problem.current.push_back(static_cast<int>(dice.below(places)) - 1);
    if (dice.below(2) == 0) problem.max_move = static_cast<std::int64_t>(dice.below(40));
  }
  return problem;
}

// The objective of the best division, or none if there is no feasible one. Tries all, which are
// groups^models.
inline std::optional<double> best_of_all(const Problem& problem) {
  const std::size_t models = problem.models.size();
  const auto groups = static_cast<std::size_t>(problem.groups);
  std::vector<std::int64_t> rate(groups, 0), bytes(groups, 0);
  std::int64_t all_rate = 0, all_bytes = 0;
  for (const Model& m : problem.models) all_rate += m.micro_rps, all_bytes += m.static_bytes;
  const double mean_rate = static_cast<double>(all_rate) / problem.groups;
  const double mean_bytes = static_cast<double>(all_bytes) / problem.groups;
  std::vector<std::size_t> place(models, 0);
  std::optional<double> best;
  const auto weigh = [&] {
    std::int64_t cost = 0;
    std::vector<std::int64_t> dynamic(groups, 0);
    for (std::size_t i = 0; i < models; ++i) {
      dynamic[place[i]] = std::max(dynamic[place[i]], problem.models[i].dynamic_bytes);
      if (!problem.current.empty() && problem.current[i] >= 0 &&
          static_cast<std::size_t>(problem.current[i]) != place[i])
        cost += problem.models[i].move_cost;
    }
    if (problem.max_move && cost > *problem.max_move) return;
    double load = 0, memory = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      if (bytes[g] + dynamic[g] > problem.memory_bytes) return;
      if (problem.max_micro_rps && rate[g] > *problem.max_micro_rps) return;
      if (all_rate > 0) load = std::max(load, std::abs(static_cast<double>(rate[g]) / mean_rate - 1));
      if (all_bytes > 0) memory = std::max(memory, std::abs(static_cast<double>(bytes[g]) / mean_bytes - 1));
    }
    if (!best || load + memory < *best) best = load + memory;
  };
  const auto place_from = [&](auto& self, std::size_t i) -> void {
    if (i == models) return weigh();
    for (std::size_t g = 0; g < groups; ++g) {
      place[i] = g;
      rate[g] += problem.models[i].micro_rps;
      bytes[g] += problem.models[i].static_bytes;
      self(self, i + 1);
      rate[g] -= problem.models[i].micro_rps;
      bytes[g] -= problem.models[i].static_bytes;
    }
  };
  place_from(place_from, 0);
  return best;
}

}  // namespace carillon::cluster::testing
