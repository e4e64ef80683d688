#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/provision/workload.h"

namespace carillon::provision {

// What a plan for queues (BestOptions::queue) expects of a placement.
struct Expected {
  double on_time = 0;  // share of the requests, in the long run and where the model does not err
  bool kept = false;   // the promise of the rule

  friend bool operator==(const Expected&, const Expected&) = default;
};

// A workload, or a part of one, on a device.
struct Placement {
  std::size_t workload = 0;  // index into the workloads
  int units = 0;             // share, in units of the device's type
  int batch = 1;
  double rate_rps = 0;  // of the workload's rate; the parts sum to it
  std::optional<Expected> expected;

  friend bool operator==(const Placement&, const Placement&) = default;
};

struct PlannedDevice {
  int number = 0;        // its name in the plan, from 1; kept from an existing plan
  std::size_t type = 0;  // index into the types
  std::vector<Placement> placements;

  int units() const;
  friend bool operator==(const PlannedDevice&, const PlannedDevice&) = default;
};

// A workload that no device can serve as it is, and what would do.
struct Infeasible {
  std::size_t workload = 0;
  std::string reason;
  std::optional<double> smallest_slo_ms;   // at its rate
  std::optional<double> largest_rate_rps;  // at its SLO
};

struct Plan {
  std::vector<PlannedDevice> devices;
  std::vector<Infeasible> infeasible;
  // No plan costs less, as long as every part runs with its cheapest batch and is not split further.
  bool proven_cheapest = false;
};

double cost_usd_per_hour(const Plan& plan, std::span<const DeviceType> types);

// What the interference model says of a placement.
struct Forecast {
  double latency_ms = 0;
  double throughput_rps = 0;
  // Late, too slow for its rate, or on a device whose shares sum to more than it has. Late: above half the
  // SLO, or, where the plan says what it expects, with the promise not kept.
  bool violated = false;
};
// One for each placement of the device, in their order. Rates may be missed by a billionth part: that is
// rounding.
std::vector<Forecast> forecast(const PlannedDevice& device, std::span<const Workload> workloads,
                               std::span<const DeviceType> types);

// Workloads of which some part is predicted to be violated.
std::size_t predicted_violations(const Plan& plan, std::span<const Workload> workloads,
                                 std::span<const DeviceType> types);

// The share of each workload's requests that the plan expects to be on time, all parts together, by the index
// of the workload; empty where the plan expects nothing.
std::map<std::size_t, double> expected_on_time(const Plan& plan);

// Why one device is not enough for the workload, and the smallest SLO or the largest rate that would be. With
// `may_split` any rate can be served by enough devices, and only the SLO is looked at.
Infeasible explain(std::size_t index, const Workload& workload, std::span<const DeviceType> types,
                   bool may_split);

}  // namespace carillon::provision
