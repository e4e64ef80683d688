#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/provision/best.h"
#include "carillon/provision/plan.h"

namespace carillon::provision {

// Parses {"workloads": [{"id": "W1", "model": "alexnet", "slo_ms": 10, "rate_rps": 1200}]}: at most 100,000,
// with different ids, each of a model that some type has coefficients of. `where` (the file's name) opens
// every error, which goes on with the place in the document, what was there and what would be right. Unknown
// fields are ignored.
Result<std::vector<Workload>> parse_workloads(std::string_view json, std::string_view where,
                                              std::span<const DeviceType> types);
Result<std::vector<Workload>> read_workloads(const std::filesystem::path& file,
                                             std::span<const DeviceType> types);

// An existing plan, as to_json() writes it: of each device the number, the type's name and the workloads' ids
// count. Workloads that are not wanted any more are left out, and counted in `removed`.
Result<Plan> parse_existing(std::string_view json, std::string_view where,
                            std::span<const Workload> workloads, std::span<const DeviceType> types,
                            std::size_t& removed);
Result<Plan> read_existing(const std::filesystem::path& file, std::span<const Workload> workloads,
                           std::span<const DeviceType> types, std::size_t& removed);

// What is said of a plan apart from the plan.
struct PlanReport {
  std::string strategy;
  double seconds = 0;              // that planning took
  const BestPlan* best = nullptr;  // of --strategy best
  bool changes = false;            // an existing plan was given: tell the moves
  std::size_t removed = 0;
  const QueueRule* queue = nullptr;  // that the plan was made by, if any
};

// One JSON object: {"strategy", "devices": [{"device", "type", "price_usd_per_hour", "used_pct", "workloads":
// [{"id", "model", "share_pct", "batch", "rate_rps", "predicted_latency_ms", "half_slo_ms",
// "predicted_rps"}]}], "device_count", "cost_usd_per_hour", "predicted_violations", "infeasible": [{"id",
// "model", "slo_ms", "rate_rps", "reason", "smallest_slo_ms", "largest_rate_rps"}], "seconds"}; of `best`
// also "lower_bound_usd_per_hour", "proven_cheapest", "greedy_usd_per_hour", "stopped"; with an existing plan
// "changes"; by a queue rule "arrivals", "percentile", "model_error_pct", "expected": [{"id", "slo_ms",
// "on_time"}], and "expected_on_time" of each placement. A latency that is infinite is null.
std::string to_json(const Plan& plan, std::span<const Workload> workloads, std::span<const DeviceType> types,
                    const PlanReport& report);

// The same for people.
std::string to_table(const Plan& plan, std::span<const Workload> workloads, std::span<const DeviceType> types,
                     const PlanReport& report);

// A bar a device, divided by shares.
std::string to_svg(const Plan& plan, std::span<const Workload> workloads, std::span<const DeviceType> types,
                   const PlanReport& report);

}  // namespace carillon::provision
