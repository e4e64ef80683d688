#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"

// What a device was seen to do with models alone and together: what the interference model's coefficients are
// fitted to (interference_fit.h). Units as in interference.h.
namespace carillon::profile {

// A model alone on the device. `gpu_ms` is the execution alone, without loading and feedback: scheduling
// delays and active time, at the frequency that the device then had (the full one where it is not known).
// `power_w` is the whole device's, with what it takes idle.
struct SoloSample {
  int batch = 1;
  double share_pct = 100;
  double gpu_ms = 0;
  std::optional<double> power_w, frequency_mhz, cache_pct;

  friend bool operator==(const SoloSample&, const SoloSample&) = default;
};

// How active time grew beside others that use `others_cache_pct` of the cache; `frequency_mhz` is the
// device's in the run together.
struct GrowthSample {
  double alone_ms = 0;
  double together_ms = 0;
  double others_cache_pct = 0;
  std::optional<double> frequency_mhz;

  friend bool operator==(const GrowthSample&, const GrowthSample&) = default;
};

struct ModelMeasurements {
  std::optional<double> load_bytes, feedback_bytes, kernels, schedule_ms;  // as in ModelCoefficients
  std::vector<SoloSample> solo;
  std::vector<GrowthSample> growth;

  friend bool operator==(const ModelMeasurements&, const ModelMeasurements&) = default;
};

// Models that ran on the device at the same time. A member's `schedule_ms` is the delay of all its kernels in
// this run, where it could be told from the rest.
struct Member {
  std::string model;
  int batch = 1;
  double share_pct = 0;
  double gpu_ms = 0;
  std::optional<double> schedule_ms;

  friend bool operator==(const Member&, const Member&) = default;
};
struct ColocatedRun {
  std::vector<Member> members;
  std::optional<double> power_w, frequency_mhz;

  friend bool operator==(const ColocatedRun&, const ColocatedRun&) = default;
};

// 1, 2, ... workloads of one and the same kind on the device.
struct SeriesSample {
  int workloads = 1;
  std::optional<double> power_w, frequency_mhz, schedule_per_kernel_ms;

  friend bool operator==(const SeriesSample&, const SeriesSample&) = default;
};

// What the fit is held against and does not see: latencies of models together, with loading and feedback.
struct CheckRun {
  std::vector<std::string> models;
  std::vector<int> batches;
  std::vector<double> share_pct;
  std::vector<double> latency_ms;

  friend bool operator==(const CheckRun&, const CheckRun&) = default;
};

struct InterferenceMeasurements {
  std::string device;
  std::optional<double> price_usd_per_hour, max_power_w, max_frequency_mhz, idle_power_w, pcie_bytes_per_ms,
      share_unit_pct, max_share_pct;  // as in HardwareType
  std::map<std::string, ModelMeasurements, std::less<>> models;
  std::vector<ColocatedRun> colocated;
  std::vector<SeriesSample> series;
  std::vector<CheckRun> checks;
  std::vector<std::string> not_measured;  // "power: no RAPL domain under ...", for people

  friend bool operator==(const InterferenceMeasurements&, const InterferenceMeasurements&) = default;
};

// Parses one file's text into `measurements`, beside what others gave before: values of earlier files stand,
// samples add up. `where` (the file's name) opens every error, which goes on with the place in the document,
// what was there and what would be right. Unknown fields are ignored; every number must be finite and in the
// range that its meaning allows.
//
// Files of four kinds are told apart by what they hold:
// - ours (docs/interference.md), with "format": "carillon-interference-1";
// - "fit_samples" (profiles/igniter/profile_samples.json): solo samples, and pairs as checks;
// - "models" with "coefficients" (workloads.json): bytes, kernels and scheduling delay of a model, and the
//   growth from its "pair_measurement"; the fitted coefficients in it are not looked at;
// - "hardware_coefficients" (v100.json): power, frequency, bandwidth, units and price, and the series in
//   "raw_measurements"; the fitted coefficients are not looked at.
Result<> add_measurements(std::string_view json, std::string_view where,
                          InterferenceMeasurements& measurements);
Result<> add_measurements(const std::filesystem::path& file, InterferenceMeasurements& measurements);

// In our format; read back as the same values.
std::string to_json(const InterferenceMeasurements& measurements);

}  // namespace carillon::profile
