#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"

namespace carillon::cluster {

// One model to place. Whole numbers throughout, so that sums do not depend on their order.
struct Model {
  std::string name;
  std::int64_t micro_rps = 0;      // its rate, in millionths of a request per second
  std::int64_t static_bytes = 0;   // weights: every device of its group holds them
  std::int64_t dynamic_bytes = 0;  // while it runs: a device runs one model at a time
  std::int64_t move_cost = 0;      // of another group than now; any unit, the same for all models
};

inline constexpr std::int64_t micro_per_unit = 1'000'000;
inline double in_rps(std::int64_t micro_rps) {
  return static_cast<double>(micro_rps) / static_cast<double>(micro_per_unit);
}

// The most that a problem may have. Sums of a problem within these limits fit 63 bits.
inline constexpr std::size_t most_models = 100'000;
inline constexpr int most_groups = 10'000;
inline constexpr double most_rate_rps = 1e7;
inline constexpr std::int64_t most_bytes = 10'000'000'000'000;  // of one model
inline constexpr std::int64_t most_move_cost = most_bytes;
inline constexpr std::int64_t most_memory_bytes = 1'000'000'000'000'000;

// Symphony, section 4.4 and appendix A: models to divide over groups of devices (its sub-clusters). Every
// device of a group holds all models of the group.
struct Problem {
  std::vector<Model> models;
  int groups = 1;                               // at least 1, at most as many as models
  std::int64_t memory_bytes = 0;                // of a device (S_max)
  std::optional<std::int64_t> max_micro_rps{};  // of a group (R_max)
  std::vector<int> current{};  // each model's group now; `no_group` if new, or empty: nothing is in force.
                               // A group of `groups` or more is one that ends: its models have to move.
  std::optional<std::int64_t> max_move{};  // the most that moves may cost in all (C_max)
};

inline constexpr int no_group = -1;

// The group of each model, in the order of Problem::models.
using Division = std::vector<int>;

struct Group {
  std::vector<int> models;  // ascending
  std::int64_t micro_rps = 0;
  std::int64_t static_bytes = 0;
  std::int64_t peak_bytes = 0;  // static_bytes, and the largest dynamic_bytes
};

// Objectives that differ by less count as equal: a millionth of a group's mean load or memory.
inline constexpr double tolerance = 1e-6;

// What a division is worth.
//
// The objective is appendix A's (3), dR + w dS, with w = mean R / mean S and divided by mean R:
//
//   max over groups of |R - mean R| / mean R  +  max over groups of |S - mean S| / mean S
//
// where R and S are a group's rate and static bytes. With this w a group that is one percent off the mean
// counts the same for load and memory, whatever their units. A term whose mean is 0 is 0.
struct Figures {
  std::vector<Group> groups;
  double load_imbalance = 0;    // (max - min) / mean over groups, 0 where the mean is 0
  double memory_imbalance = 0;  // the same of static bytes
  double objective = 0;
  std::int64_t move_cost = 0;  // of all models that are not where they were; 0 without Problem::current
  bool feasible = false;       // memory, rate and moves are within their bounds
};

// Requires a division of problem.models.size() groups in [0, problem.groups).
Figures measure(const Problem& problem, const Division& division);

// Says why no division can exist, where simple sums show it: a model that fits nowhere, or a sum that exceeds
// what the groups have together.
Result<> check_sums(const Problem& problem);

// What no division's objective is below: of the largest models, alone and two in one group; of the number of
// models that some group must have; and of the unit that all sizes are multiples of.
double objective_bound(const Problem& problem);

}  // namespace carillon::cluster
