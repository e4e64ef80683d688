#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/provision/plan.h"
#include "carillon/workload/arrivals.h"

// A plan of provision/ put to the test: requests in virtual time, against devices that do what the
// interference model says, give or take noise.
namespace carillon::simulate {

// When a batch starts, once the device has ended the one before.
enum class PlanBatching : std::uint8_t {
  available,  // with what is there, up to the planned batch: Triton's dynamic batcher without a queue delay
  full,       // when the planned number of requests is there
};

struct PlanSimulationOptions {
  Duration span = std::chrono::seconds{30};  // in which requests arrive; > 0. iGniter, section 5.3: 30 s
  double noise = 0.03;                       // deviation of a batch's time over its mean, 0 to 1; log-normal
  double error = 0;  // of the model: a part's batches all take a factor drawn once, as noise is; 0 to 1
  workload::ArrivalKind arrivals = workload::ArrivalKind::uniform;  // or poisson, or gamma
  double shape = 1;                                                 // of gamma
  double load = 1;           // requests come at so much of the plan's rates, 0.01 to 1
  double percentile = 0.99;  // of requests that must be within the SLO, in [0.5, 1)
  PlanBatching batching = PlanBatching::available;
  // iGniter's answer to prediction errors (section 4.2): what breaks its SLO is measured again with 10% of a
  // device more, or with what is left of it.
  bool standby = false;
  std::uint64_t seed = 1;
};

struct SimulatedWorkload {
  std::size_t workload = 0;  // index into the workloads
  std::uint64_t requests = 0, on_time = 0;
  Duration p50{0}, p99{0};  // from arrival to the batch's end; max() where it never ends
  double offered_rps = 0;   // as they came
  double achieved_rps = 0;  // answered within the span
  double mean_batch = 0;
  bool late = false;  // the percentile above the SLO
  // A part answered fewer than came, by more than two planned batches. Where they do not come at even gaps,
  // the last SLO of the span is left out.
  bool slow = false;
  bool standby = false;  // with the share of its standby

  bool violated() const { return late || slow; }
  friend bool operator==(const SimulatedWorkload&, const SimulatedWorkload&) = default;
};

struct PlanSimulation {
  std::vector<SimulatedWorkload> workloads;  // those that the plan serves, in their order
  std::uint64_t requests = 0, on_time = 0;
  std::size_t violations = 0;  // workloads that are late or slow

  friend bool operator==(const PlanSimulation&, const PlanSimulation&) = default;
};

// Simulates each part of each workload at its rate of the plan: constant gaps from a random phase on (the
// paper's clients), Poisson, or gaps with a Gamma distribution. A batch of n takes what profile::predict()
// says of n requests beside the device's other workloads at their planned batches, times noise and error;
// those run all the time, as in the model. Loading goes on beside the batch before (equation 2), and begins
// as late as does not hold up the device. Requests are never refused. All that arrived within the span is
// answered and counted. The same input and seed give the same result.
//
// Errors: an option out of range, another kind of arrivals, more than 20 million requests.
Result<PlanSimulation> simulate_plan(const provision::Plan& plan,
                                     std::span<const provision::Workload> workloads,
                                     std::span<const provision::DeviceType> types,
                                     const PlanSimulationOptions& options);

// {"seconds", "noise", "error", "arrivals", "batching", "standby", "seed", "workloads": [{"id", "model",
// "slo_ms", "rate_rps", "p50_ms", "p99_ms", "achieved_rps", "mean_batch", "on_time_fraction", "late", "slow",
// "standby", "violated"}], "requests", "on_time", "violations"}. A time without end is null.
std::string to_json(const PlanSimulation& simulation, std::span<const provision::Workload> workloads,
                    const PlanSimulationOptions& options);

// The same for people.
std::string to_table(const PlanSimulation& simulation, std::span<const provision::Workload> workloads,
                     const PlanSimulationOptions& options);

}  // namespace carillon::simulate
