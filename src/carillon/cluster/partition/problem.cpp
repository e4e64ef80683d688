#include "carillon/cluster/partition/problem.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <spdlog/fmt/fmt.h>

#include "carillon/base/assert.h"

namespace carillon::cluster {
namespace {

// Of one quantity over the groups: the largest deviation, and max - min, both in means.
struct Spread {
  double deviation = 0;
  double imbalance = 0;
};

Spread spread(const std::vector<Group>& groups, std::int64_t Group::*quantity) {
  std::int64_t sum = 0;
  std::int64_t least = groups.front().*quantity;
  std::int64_t most = least;
  for (const Group& group : groups) {
    sum += group.*quantity;
    least = std::min(least, group.*quantity);
    most = std::max(most, group.*quantity);
  }
  if (sum == 0) return {};
  const double mean = static_cast<double>(sum) / static_cast<double>(groups.size());
  return {.deviation = std::max(static_cast<double>(most) - mean, mean - static_cast<double>(least)) / mean,
          .imbalance = static_cast<double>(most - least) / mean};
}

// The least possible largest deviation of one quantity, in means.
double deviation_bound(std::vector<std::int64_t> sizes, std::size_t groups) {
  std::ranges::sort(sizes, std::greater<>());
  const std::int64_t sum = std::reduce(sizes.begin(), sizes.end(), std::int64_t{0});
  if (sum == 0) return 0;
  const double mean = static_cast<double>(sum) / static_cast<double>(groups);
  std::int64_t fullest = sizes.front();  // the group of the largest model has at least that
  if (sizes.size() > groups) {
    // Two of the groups + 1 largest share a group. And some group has at least so many models:
    fullest = std::max(fullest, sizes[groups - 1] + sizes[groups]);
    const std::size_t many = (sizes.size() + groups - 1) / groups;
    fullest = std::max(
        fullest, std::reduce(sizes.end() - static_cast<std::ptrdiff_t>(many), sizes.end(), std::int64_t{0}));
  }
  // Some other group has at most so many.
  const std::size_t few = sizes.size() / groups;
  std::int64_t emptiest =
      std::reduce(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(few), std::int64_t{0});
  // Sums are multiples of what all sizes are multiples of.
  std::int64_t unit = 0;
  for (const std::int64_t size : sizes) unit = std::gcd(unit, size);
  const std::int64_t units = sum / unit;
  const auto count = static_cast<std::int64_t>(groups);
  fullest = std::max(fullest, (units + count - 1) / count * unit);
  emptiest = std::min(emptiest, units / count * unit);
  return std::max({0.0, static_cast<double>(fullest) - mean, mean - static_cast<double>(emptiest)}) / mean;
}

// The groups + 1 largest, if no two of them can share a group.
bool too_many_large(const Problem& problem, std::int64_t Model::*quantity, std::int64_t most) {
  return std::ranges::count_if(problem.models, [&](const Model& m) {
           return m.*quantity > most - m.*quantity;
         }) > problem.groups;
}

}  // namespace

Figures measure(const Problem& problem, const Division& division) {
  CARILLON_ASSERT(division.size() == problem.models.size());
  Figures figures{.groups = std::vector<Group>(static_cast<std::size_t>(problem.groups)), .feasible = true};
  std::vector<std::int64_t> dynamic(figures.groups.size(), 0);
  for (std::size_t i = 0; i < division.size(); ++i) {
    CARILLON_ASSERT(division[i] >= 0 && division[i] < problem.groups);
    const Model& model = problem.models[i];
    const auto g = static_cast<std::size_t>(division[i]);
    Group& group = figures.groups[g];
    group.models.push_back(static_cast<int>(i));
    group.micro_rps += model.micro_rps;
    group.static_bytes += model.static_bytes;
    dynamic[g] = std::max(dynamic[g], model.dynamic_bytes);
    if (!problem.current.empty() && problem.current[i] != no_group && problem.current[i] != division[i])
      figures.move_cost += model.move_cost;
  }
  for (std::size_t g = 0; g < dynamic.size(); ++g) {
    Group& group = figures.groups[g];
    group.peak_bytes = group.static_bytes + dynamic[g];
    if (group.peak_bytes > problem.memory_bytes) figures.feasible = false;
    if (problem.max_micro_rps && group.micro_rps > *problem.max_micro_rps) figures.feasible = false;
  }
  if (problem.max_move && figures.move_cost > *problem.max_move) figures.feasible = false;
  const Spread load = spread(figures.groups, &Group::micro_rps);
  const Spread memory = spread(figures.groups, &Group::static_bytes);
  figures.load_imbalance = load.imbalance;
  figures.memory_imbalance = memory.imbalance;
  figures.objective = load.deviation + memory.deviation;
  return figures;
}

Result<> check_sums(const Problem& problem) {
  std::int64_t rate = 0;
  std::int64_t bytes = 0;
  std::int64_t dynamic = 0;
  std::int64_t forced = 0;
  for (std::size_t i = 0; i < problem.models.size(); ++i) {
    const Model& model = problem.models[i];
    if (model.static_bytes + model.dynamic_bytes > problem.memory_bytes)
      return invalid(
          fmt::format("model '{}' fits no group: its static_bytes {} and dynamic_bytes {} are {} together, "
                      "but memory_bytes is {}",
                      model.name, model.static_bytes, model.dynamic_bytes,
                      model.static_bytes + model.dynamic_bytes, problem.memory_bytes));
    if (problem.max_micro_rps && model.micro_rps > *problem.max_micro_rps)
      return invalid(fmt::format("model '{}' fits no group: its rate_rps is {}, but max_rate_rps is {}",
                                 model.name, in_rps(model.micro_rps), in_rps(*problem.max_micro_rps)));
    rate += model.micro_rps;
    bytes += model.static_bytes;
    dynamic = std::max(dynamic, model.dynamic_bytes);
    if (!problem.current.empty() && problem.current[i] >= problem.groups) forced += model.move_cost;
  }
  // In double, as max_micro_rps times the groups may exceed 64 bits; the sums are exact up to 2^53.
  const double groups = problem.groups;
  if (problem.max_micro_rps &&
      static_cast<double>(rate) > groups * static_cast<double>(*problem.max_micro_rps))
    return invalid(fmt::format(
        "no division can exist: the models' rate_rps are {} together, but {} groups of max_rate_rps {} bear "
        "{}; at least {:.0f} groups are needed",
        in_rps(rate), problem.groups, in_rps(*problem.max_micro_rps), groups * in_rps(*problem.max_micro_rps),
        std::ceil(static_cast<double>(rate) / static_cast<double>(*problem.max_micro_rps))));
  if (static_cast<double>(bytes) + static_cast<double>(dynamic) >
      groups * static_cast<double>(problem.memory_bytes))
    return invalid(fmt::format(
        "no division can exist: the models' static_bytes and the largest dynamic_bytes are {} together, but "
        "{} groups of memory_bytes {} hold {:.0f}; at least {:.0f} groups are needed",
        bytes + dynamic, problem.groups, problem.memory_bytes,
        groups * static_cast<double>(problem.memory_bytes),
        std::ceil(static_cast<double>(bytes + dynamic) / static_cast<double>(problem.memory_bytes))));
  if (too_many_large(problem, &Model::static_bytes, problem.memory_bytes))
    return invalid(
        fmt::format("no division can exist: more than {} models have static_bytes above half of memory_bytes "
                    "{}, and no two of them fit one group",
                    problem.groups, problem.memory_bytes));
  if (problem.max_micro_rps && too_many_large(problem, &Model::micro_rps, *problem.max_micro_rps))
    return invalid(
        fmt::format("no division can exist: more than {} models have a rate_rps above half of max_rate_rps "
                    "{}, and no two of them fit one group",
                    problem.groups, in_rps(*problem.max_micro_rps)));
  if (problem.max_move && forced > *problem.max_move)
    return invalid(
        fmt::format("--max-move {} is too small: the models of groups that end have to move, which costs {}; "
                    "give at least that",
                    *problem.max_move, forced));
  return {};
}

double objective_bound(const Problem& problem) {
  std::vector<std::int64_t> rates;
  std::vector<std::int64_t> bytes;
  for (const Model& model : problem.models) {
    rates.push_back(model.micro_rps);
    bytes.push_back(model.static_bytes);
  }
  const auto groups = static_cast<std::size_t>(problem.groups);
  return deviation_bound(std::move(rates), groups) + deviation_bound(std::move(bytes), groups);
}

}  // namespace carillon::cluster
