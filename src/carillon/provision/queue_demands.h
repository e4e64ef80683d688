#pragma once

#include <map>
#include <string>
#include <tuple>

#include "carillon/provision/demands.h"
#include "carillon/provision/queueing.h"

namespace carillon::provision {

// What the workload at `place` of the device takes beside the others, whose planned batches run all the time.
BatchTimes batch_times(const PlannedDevice& device, std::size_t place, std::span<const Workload> workloads,
                       std::span<const DeviceType> types);

// Demands of workloads that queue: of all batch sizes up to the largest that was measured, the one that needs
// the least share with the rule's promise kept.
//
// A Demand holds one limit: the time of the largest batch. Smaller batches are taken to need as much more
// than their part of that time as they would beside two other workloads, whose kernels delay theirs. A device
// may turn out slower for them; tighten() then asks for more.
class QueueDemands final : public Demands {
 public:
  // The rule must outlive it.
  explicit QueueDemands(const QueueRule& rule) : rule_(rule) {}

  std::optional<Demand> cheapest(const DeviceType& type, const Workload& workload, double rate_rps) override;
  double largest_rate(const DeviceType& type, const Workload& workload) override;
  Infeasible explain(std::size_t index, const Workload& workload, std::span<const DeviceType> types,
                     bool may_split) override;

  // From now on all times of this workload are taken to be 3% longer.
  void tighten(const Workload& workload);

 private:
  double margin_of(const Workload& workload) const;
  bool kept(const DeviceType& type, const profile::ModelCoefficients& model, const Workload& workload,
            double rate_rps, int batch, double limit_ms, Look look) const;
  // Whether a whole device serves the rate, by a quick look.
  bool possible(const DeviceType& type, const Workload& workload, double rate_rps) const;
  // The demand of a batch whose promise is kept within this limit, made right where the quick look that found
  // it was off. Nothing where it does not fit on a device.
  std::optional<Demand> settled(const DeviceType& type, const profile::ModelCoefficients& model,
                                const Workload& workload, double rate_rps, int batch, double limit_ms) const;
  std::optional<Demand> search(const DeviceType& type, const Workload& workload, double rate_rps) const;
  // The least SLO that a whole device keeps at this rate; nothing where no SLO would do.
  std::optional<double> smallest_slo(const DeviceType& type, Workload workload, double rate_rps) const;

  const QueueRule& rule_;
  std::map<std::string, double> margins_;  // by the workload's id
  // By type, model, SLO, margin, rate and the whole workload's rate: parts of a workload, and workloads
  // alike, are looked at once.
  std::map<std::tuple<const DeviceType*, std::string, double, double, double, double>, std::optional<Demand>>
      known_;
};

}  // namespace carillon::provision
