#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "carillon/provision/plan.h"
#include "carillon/provision/queueing.h"

namespace carillon::provision {

struct BestOptions {
  std::uint64_t seed = 1;
  // Part of each device that plans leave free for what the model does not know, in [0, 1): rates are planned
  // as if they were 1 + headroom as high.
  double headroom = 0;
  bool may_split = true;  // over several devices, where one does not keep up with the rate
  // Plans for requests that queue, with the SLO as a percentile. nullptr: by the paper's constraints, which
  // are those of even gaps. Must outlive the call.
  const QueueRule* queue = nullptr;

  // A plan that is in force, of the same types of device; nullptr for none. Its placements name workloads by
  // the same indices; what is no longer wanted is to be left out by the caller.
  const Plan* existing = nullptr;
  // What moving a part from the device where it runs is worth, in US dollars per hour. Negative: a tenth of
  // the cheapest device's price.
  double move_cost = -1;

  // How long the search goes on: groups of devices that are planned anew, in multiples of the number of
  // devices. 0: only the greedy plans. Left out: ten, but at most 200 groups in all, which is less than a
  // tenth of a second. The result depends on this and the seed, not on the machine, unless `stop` ends the
  // search.
  std::optional<double> effort;
  std::function<bool()> stop;  // asked between steps; true ends the search with the best plan so far
  struct Progress {
    double cost_usd_per_hour = 0;
    double lower_bound_usd_per_hour = 0;
    std::size_t devices = 0;
    double done = 0;  // of the search, in [0, 1]
  };
  std::function<void(const Progress&)> progress;
};

struct BestPlan {
  Plan plan;
  double greedy_usd_per_hour = 0;       // before the search
  double lower_bound_usd_per_hour = 0;  // no plan can cost less (see Plan::proven_cheapest)
  std::size_t windows = 0;              // groups of devices that were planned anew
  bool stopped = false;                 // by `stop`
  // With an existing plan: parts on another device than before, parts that are new, devices opened and
  // closed.
  std::size_t moved = 0, added = 0, opened = 0, closed = 0;
};

// The cheapest plan that meets every SLO and rate by the model, over all types of device, as far as the
// search goes. Beyond iGniter's Algorithms 1 and 2:
//
// - every device is checked, the first workload on it too, and a share is at least one unit;
// - a batch below Theorem 1's is taken where it needs less (cheapest_demand), and none beyond what was
//   measured;
// - a workload that one device cannot serve is split, its rates summing to its own;
// - several greedy plans (least growth, best fit, first fit, by type) are made, and the cheapest is improved:
//   groups of a few devices are emptied and packed anew by an exact search over all partitions of their parts
//   (window.h), small inputs as a whole;
// - with an existing plan, the sum of price and moves is what is made small.
//
// With a queue rule demands are those of queue_demands.h, and every placement says what it expects.
//
// Deterministic. Workloads that no device can serve are reported with what would do. Requires at most 16
// types.
BestPlan plan_best(std::span<const Workload> workloads, std::span<const DeviceType> types,
                   const BestOptions& options = {});

}  // namespace carillon::provision
