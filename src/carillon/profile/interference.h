#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"

// How models that share a device slow each other: iGniter's analytical model (section 3.1, equations 1 to
// 11).
//
// The arithmetic is in real numbers, in the units of the coefficients' files: times in milliseconds, shares
// in percent of a device, data in bytes, power in watts. Times are not rounded to nanoseconds here, since the
// model compares them with half an SLO and a planner's answer must not turn on the rounding.
namespace carillon::profile {

// What one model needs on one type of device. Names of the paper in brackets.
struct ModelCoefficients {
  double load_bytes = 0;                           // input of one request over PCIe [d_load]
  double feedback_bytes = 0;                       // result of one request [d_feedback]
  double kernels = 0;                              // [n_k]
  double schedule_ms = 0;                          // scheduling delay of all its kernels alone [k_sch * n_k]
  double k1 = 0, k2 = 0, k3 = 0;                   // ms * percent: per batch^2, per batch, once (equation 11)
  double k4 = 0;                                   // percent
  double k5 = 0;                                   // ms
  double alpha_power = 0, beta_power = 0;          // W per (request/s), W; above the device's idle power
  double alpha_cacheutil = 0, beta_cacheutil = 0;  // percent of peak L2 use per (request/s), percent
  double alpha_cache = 0;                          // growth of active time per percent of the others' L2 use
  int measured_batch = 0;                          // the largest batch among the measurements; 0: not known

  friend bool operator==(const ModelCoefficients&, const ModelCoefficients&) = default;
};

// One type of device.
struct HardwareCoefficients {
  double max_power_w = 0;        // [P]
  double max_frequency_mhz = 0;  // [F]
  double idle_power_w = 0;       // [p_idle]
  double pcie_bytes_per_ms = 0;  // [B_pcie]; 1e7 is 10 GB/s
  double alpha_f = 0;            // MHz per W above the cap, <= 0
  double alpha_sch = 0;          // ms per kernel and co-located workload
  double beta_sch = 0;           // ms per kernel
  double share_unit_pct = 2.5;   // shares are multiples of this [r_unit]
  double max_share_pct = 100;    // [r_max]

  friend bool operator==(const HardwareCoefficients&, const HardwareCoefficients&) = default;
};

// What a model does alone on a device (equation 11 and the two lines below it), at full frequency and without
// interference. `active_ms` [k_act] is infinite where the coefficients say nothing: see active_ms().
struct SoloUse {
  double active_ms = 0;
  double power_w = 0;    // above idle [p]
  double cache_pct = 0;  // L2 use [c]
};

// GPU active time of a batch of `batch` >= 1 on `share_pct` > 0 percent of a device (equation 11). Infinite
// beyond largest_batch(), and where the equation gives no positive time.
double active_ms(const ModelCoefficients& model, int batch, double share_pct);
SoloUse solo_use(const ModelCoefficients& model, int batch, double share_pct);

// The largest batch for which equation 11 still grows with the batch (a fit with k1 < 0 turns down far beyond
// what was measured); at most 65,536.
int largest_batch(const ModelCoefficients& model);

// The largest batch that may be planned: largest_batch(), and no more than was measured where that is known.
int largest_known_batch(const ModelCoefficients& model);

// Data loading and result feedback of a batch (equation 3).
double load_ms(const HardwareCoefficients& hardware, const ModelCoefficients& model, int batch);
double feedback_ms(const HardwareCoefficients& hardware, const ModelCoefficients& model, int batch);

// More scheduling delay per kernel with `workloads` on the device (equation 6), in ms; 0 for one.
double schedule_increase_ms(const HardwareCoefficients& hardware, std::size_t workloads);

// f/F for a power demand that includes idle power (equation 9): 1 up to the cap; 0 where the line would end
// below zero (then nothing finishes).
double frequency_ratio(const HardwareCoefficients& hardware, double demand_w);

// One of the workloads that share a device. The pointer must outlive the call.
struct Resident {
  const ModelCoefficients* model = nullptr;
  int batch = 1;         // >= 1
  double share_pct = 0;  // > 0
};

struct Prediction {
  double load_ms = 0;         // equation 3
  double schedule_ms = 0;     // equation 5, at full frequency
  double active_ms = 0;       // equation 8, at full frequency
  double gpu_ms = 0;          // equation 4: both, at the device's frequency
  double feedback_ms = 0;     // equation 3
  double latency_ms = 0;      // equation 1
  double throughput_rps = 0;  // equation 2, in requests per second

  friend bool operator==(const Prediction&, const Prediction&) = default;
};

// What workloads that run together on one device do, in their order (equations 1 to 11). Times may be
// infinite, and then the throughput is 0. Shares are taken as they are, whatever they sum to. O(n).
std::vector<Prediction> predict(const HardwareCoefficients& hardware, std::span<const Resident> residents);

// The parts of predict() that a planner calls often, with the sums kept elsewhere. `others_cache_pct` is the
// sum of cache_pct of the other workloads, `schedule_increase` that of schedule_increase_ms(), `frequency`
// that of frequency_ratio(); the transfers are load_ms() + feedback_ms(). Infinite where the equations give
// no positive time, as they may with a poor fit.
inline double gpu_ms(const ModelCoefficients& model, double active, double others_cache_pct,
                     double schedule_increase, double frequency) {
  const double gpu = model.schedule_ms + schedule_increase * model.kernels +
                     active * (1 + model.alpha_cache * others_cache_pct);
  return gpu > 0 && frequency > 0 ? gpu / frequency : std::numeric_limits<double>::infinity();
}
inline double latency_ms(const ModelCoefficients& model, double transfers, double active,
                         double others_cache_pct, double schedule_increase, double frequency) {
  return transfers + gpu_ms(model, active, others_cache_pct, schedule_increase, frequency);
}

// Coefficients of several models on one type of device, as in profiles/igniter/workloads.json:
//
//   {"gpu": "V100", "models": {"alexnet": {"coefficients": {"d_load_bytes": 602112, "d_feedback_bytes": 4000,
//     "n_kernels": 20, "k_sch_times_n_kernels_ms": 0.0318, "k1": 0.00415, "k2": 8.71, "k3": 23.7, "k4":
//     0.0555, "k5": 0.346, "alpha_power_W_per_rps": 0.0239, "beta_power_W": 37.1,
//     "alpha_cacheutil_pct_per_rps": 0.00309, "beta_cacheutil_pct": 2.03, "alpha_cache_per_pct": 0.00238,
//     "largest_measured_batch": 32}}}}
//
// "largest_measured_batch" may be left out.
struct CoefficientSet {
  std::string device;  // "gpu": the type of device; empty where the file names none
  std::map<std::string, ModelCoefficients, std::less<>> models;

  friend bool operator==(const CoefficientSet&, const CoefficientSet&) = default;
};

// One type of device with its price, as in profiles/igniter/v100.json:
//
//   {"gpu": "NVIDIA V100 (EC2 p3.2xlarge)", "price_usd_per_hour": 3.06, "hardware_coefficients": {
//     "P_max_power_W": 300, "F_max_frequency_MHz": 1530, "p_idle_W": 53.5, "B_pcie_bytes_per_ms": 1e7,
//     "r_unit_percent": 2.5, "r_max_percent": 100, "alpha_f_MHz_per_W": -1.025,
//     "alpha_sch_ms_per_kernel_per_workload": 0.00475, "beta_sch_ms_per_kernel": -0.00902}}
//
// "r_unit_percent" and "r_max_percent" may be left out (2.5 and 100).
struct HardwareType {
  std::string name;  // "gpu"
  double price_usd_per_hour = 0;
  HardwareCoefficients coefficients;

  friend bool operator==(const HardwareType&, const HardwareType&) = default;
};

// Parse the text of such a file. `where` (the file's name) opens every error, which goes on with the place in
// the document, what was there and what would be right. Unknown fields are ignored; every number must be
// finite and in the range that its meaning allows.
Result<CoefficientSet> parse_coefficients(std::string_view json, std::string_view where);
Result<HardwareType> parse_hardware(std::string_view json, std::string_view where);
Result<CoefficientSet> read_coefficients(const std::filesystem::path& file);
Result<HardwareType> read_hardware(const std::filesystem::path& file);

// What the parsers read back as the same values.
std::string to_json(const CoefficientSet& set);
std::string to_json(const HardwareType& type);

}  // namespace carillon::profile
