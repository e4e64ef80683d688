#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "carillon/provision/plan.h"

// What the paper's strategies share.
namespace carillon::provision {

// Theorem 1's demands on one type, least shares in descending order, equal ones in the order of input. What
// has none is put down in `plan` as infeasible.
inline std::vector<std::pair<std::size_t, Demand>> theorem1_demands(std::span<const Workload> workloads,
                                                                    std::span<const DeviceType> types,
                                                                    std::size_t type, Plan& plan) {
  std::vector<std::pair<std::size_t, Demand>> demands;
  for (std::size_t w = 0; w < workloads.size(); ++w) {
    if (const auto demand = theorem1(types[type], workloads[w]))
      demands.emplace_back(w, *demand);
    else
      plan.infeasible.push_back({.workload = w});
  }
  std::stable_sort(demands.begin(), demands.end(),
                   [](const auto& a, const auto& b) { return a.second.least_units > b.second.least_units; });
  return demands;
}

// The plan of the type that leaves out the fewest workloads and of those costs the least, the first of equal
// ones. What is left out is explained for that type alone.
template <typename PlanFor>
Plan cheapest_single_type(std::span<const Workload> workloads, std::span<const DeviceType> types,
                          PlanFor plan_for) {
  std::optional<Plan> best;
  std::size_t best_type = 0;
  for (std::size_t t = 0; t < types.size(); ++t) {
    Plan plan = plan_for(t);
    if (best && std::pair(plan.infeasible.size(), cost_usd_per_hour(plan, types)) >=
                    std::pair(best->infeasible.size(), cost_usd_per_hour(*best, types)))
      continue;
    best = std::move(plan);
    best_type = t;
  }
  for (Infeasible& left_out : best->infeasible)
    left_out = explain(left_out.workload, workloads[left_out.workload], types.subspan(best_type, 1), false);
  return *std::move(best);
}

}  // namespace carillon::provision
