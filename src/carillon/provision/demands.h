#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "carillon/provision/plan.h"

namespace carillon::provision {

// What workloads need of a device, by one rule or another: what `best` plans with.
class Demands {
 public:
  virtual ~Demands() = default;

  // The cheapest way to serve `rate_rps` of the workload on a device of the type; nothing where a whole
  // device is not enough.
  virtual std::optional<Demand> cheapest(const DeviceType& type, const Workload& workload,
                                         double rate_rps) = 0;
  // The highest rate that one device of the type serves; 0 where not even a single request can be on time.
  virtual double largest_rate(const DeviceType& type, const Workload& workload) = 0;
  // Why no device serves the workload, and what would do (plan.h).
  virtual Infeasible explain(std::size_t index, const Workload& workload, std::span<const DeviceType> types,
                             bool may_split) = 0;
};

// The paper's constraints: requests come at even gaps, and a batch may take half the SLO (workload.h).
class EvenDemands final : public Demands {
 public:
  std::optional<Demand> cheapest(const DeviceType& type, const Workload& workload, double rate_rps) override {
    return cheapest_demand(type, workload, rate_rps);
  }
  double largest_rate(const DeviceType& type, const Workload& workload) override {
    return provision::largest_rate(type, workload);
  }
  Infeasible explain(std::size_t index, const Workload& workload, std::span<const DeviceType> types,
                     bool may_split) override {
    return provision::explain(index, workload, types, may_split);
  }
};

}  // namespace carillon::provision
