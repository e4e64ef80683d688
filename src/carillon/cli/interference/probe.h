#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"

namespace carillon::cli {

// One model to be run at a share of the device.
struct Placed {
  std::string model;
  int batch = 1;
  double share_pct = 100;  // in (0, 100]

  friend bool operator==(const Placed&, const Placed&) = default;
};

// What was seen while they ran: the median time of each, in order, and the device as a whole.
struct Seen {
  std::vector<double> gpu_ms;
  std::optional<double> power_w, frequency_mhz, cache_pct;
};

struct ModelFacts {
  std::string name;
  double load_bytes = 0;         // of one request's inputs
  double feedback_bytes = 0;     // of one request's outputs
  double kernels = 0;            // of a run
  std::vector<int> batch_sizes;  // that can be run, ascending, not empty
};

struct DeviceFacts {
  std::string name;
  std::optional<double> copy_bytes_per_ms, max_frequency_mhz, max_power_w, idle_power_w;
  std::vector<std::string> missing;  // "power: no RAPL domain under /sys/class/powercap"
};

// A device on which the interference model's measurements are made.
class InterferenceProbe {
 public:
  virtual ~InterferenceProbe() = default;
  virtual DeviceFacts device() = 0;
  virtual std::vector<ModelFacts> models() = 0;
  // Runs all of `placed` at the same time, each over and over, for as long as it takes to know their times.
  virtual Result<Seen> run(std::span<const Placed> placed) = 0;
};

}  // namespace carillon::cli
