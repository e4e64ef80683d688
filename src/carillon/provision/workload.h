#pragma once

#include <optional>
#include <string>
#include <vector>

#include "carillon/profile/interference.h"

namespace carillon::provision {

// What is to be served: requests of one model, so many a second, each within `slo_ms` of its arrival.
struct Workload {
  std::string id;
  std::string model;
  double slo_ms = 0;    // > 0
  double rate_rps = 0;  // > 0

  // A batch may take half the SLO: the other half is for filling it (iGniter, constraint 14).
  double half_slo_ms() const { return slo_ms / 2; }
  friend bool operator==(const Workload&, const Workload&) = default;
};

// A type of device that can be had, in any number, with the coefficients of the models on it.
struct DeviceType {
  profile::HardwareType hardware;
  profile::CoefficientSet models;

  // Shares are whole multiples of the unit; so many make up the largest share (at least one).
  int units() const;
  double share_pct(int units) const { return units * hardware.coefficients.share_unit_pct; }
  // nullptr where the model has no coefficients on this type.
  const profile::ModelCoefficients* find(const std::string& model) const;
};

// A workload as one device type sees it: the batch, what a batch may take, and the least share. The pointer
// is into the DeviceType, which must outlive it.
struct Demand {
  const profile::ModelCoefficients* model = nullptr;
  int batch = 1;
  int least_units = 1;         // alone on a device, at full frequency
  double limit_ms = 0;         // latency that meets half the SLO and the rate
  double transfers_ms = 0;     // data loading and result feedback
  profile::SoloUse least_use;  // alone with the least share
};

// Theorem 1's batch for a rate, equation 17: the smallest that keeps up with the rate if a batch takes half
// the SLO. May be larger than any batch that can run.
double appropriate_batch(const DeviceType& type, const profile::ModelCoefficients& model, double slo_ms,
                         double rate_rps);

// Theorem 1's least share in units, equation 18, not held to the size of a device and at least 0. Nothing
// where the transfers, the scheduling and k5 leave no time for kernels (delta <= 0), or the batch cannot run.
std::optional<int> lower_bound_units(const DeviceType& type, const profile::ModelCoefficients& model,
                                     int batch, double limit_ms);

// Theorem 1 as it stands: the batch of equation 17 and the share of equation 18. Nothing where there is no
// such share or it is more than a device.
std::optional<Demand> theorem1(const DeviceType& type, const Workload& workload);

// The cheapest way to serve `rate_rps` of the workload alone on a device: the batch, of all up to Theorem
// 1's and to the largest that was measured, that needs the least share with SLO, rate and the device's own
// power cap respected. A batch below Theorem 1's must take no longer than its requests need to arrive, and
// may still need less, where equation 17 rounds up from just above it. At least one unit. Nothing where a
// whole device is not enough.
std::optional<Demand> cheapest_demand(const DeviceType& type, const Workload& workload, double rate_rps);

// The highest rate that one device of the type serves within the SLO with batches that were measured; 0 where
// not even a single request can be on time.
double largest_rate(const DeviceType& type, const Workload& workload);

// The smallest SLO that a device of the type can hold for a single request, in ms.
double smallest_slo(const DeviceType& type, const profile::ModelCoefficients& model);

// The smallest SLO at which one device serves the workload's rate; nothing where no batch keeps up with it.
std::optional<double> smallest_slo_at_rate(const DeviceType& type, const Workload& workload);

}  // namespace carillon::provision
