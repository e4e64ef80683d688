#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"

// What NVIDIA's management library (libnvidia-ml.so.1, which comes with the driver) says of GPUs. By dlopen,
// as the driver: a machine without it serves without these metrics.
namespace carillon::engine::cuda {

// As nvidia-smi writes it: "GPU-01020304-0506-0708-090a-0b0c0d0e0f10".
std::string to_text(const Uuid& uuid);

// What a GPU does not tell is left out.
struct GpuFigures {
  std::optional<double> utilization;  // of the last sample's time some kernel ran: 0 to 1
  std::optional<std::uint64_t> memory_total, memory_used;  // bytes
  std::optional<double> power, power_limit;                // watts
  std::optional<double> energy;                            // joules, since the driver was loaded
  std::optional<double> temperature;                       // degrees Celsius
};

class Nvml {
 public:
  // `library`: a path in its place. Errors (unavailable): there is none, it lacks a function or does not
  // start; with its words.
  static Result<std::shared_ptr<const Nvml>> open(const std::string& library = {});
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // From any thread. Errors: not_found.
  Result<GpuFigures> look(const std::string& uuid) const;

 private:
  struct Table;
  explicit Nvml(std::unique_ptr<const Table> table);
  std::unique_ptr<const Table> table_;
};

// In Prometheus' text format, under the names that Triton gives them; nothing for what no GPU tells.
std::string metrics_text(std::span<const std::pair<std::string, GpuFigures>> gpus);

}  // namespace carillon::engine::cuda
