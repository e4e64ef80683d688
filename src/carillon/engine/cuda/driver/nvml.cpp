#include "carillon/engine/cuda/driver/nvml.h"

#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "carillon/base/symbols.h"

namespace carillon::engine::cuda {

namespace {

using NvmlStatus = int;    // nvmlReturn_t
using NvmlDevice = void*;  // nvmlDevice_t
struct Utilization {       // nvmlUtilization_t, in percent
  unsigned gpu = 0, memory = 0;
};
struct MemoryUse {  // nvmlMemory_t, in bytes
  unsigned long long total = 0, free = 0, used = 0;
};
constexpr int of_the_chip = 0;  // NVML_TEMPERATURE_GPU

}  // namespace

// X(member, symbol, result, arguments)
#define CARILLON_NVML(X)                                                                                    \
  X(init, nvmlInit_v2, NvmlStatus, ())                                                                      \
  X(shutdown, nvmlShutdown, NvmlStatus, ())                                                                 \
  X(error_text, nvmlErrorString, const char*, (NvmlStatus))                                                 \
  X(by_uuid, nvmlDeviceGetHandleByUUID, NvmlStatus, (const char*, NvmlDevice*))                             \
  X(utilization, nvmlDeviceGetUtilizationRates, NvmlStatus, (NvmlDevice, Utilization*))                     \
  X(memory, nvmlDeviceGetMemoryInfo, NvmlStatus, (NvmlDevice, MemoryUse*))                                  \
  X(power, nvmlDeviceGetPowerUsage, NvmlStatus, (NvmlDevice, unsigned* milliwatts))                         \
  X(power_limit, nvmlDeviceGetPowerManagementLimit, NvmlStatus, (NvmlDevice, unsigned* milliwatts))         \
  X(energy, nvmlDeviceGetTotalEnergyConsumption, NvmlStatus, (NvmlDevice, unsigned long long* millijoules)) \
  X(temperature, nvmlDeviceGetTemperature, NvmlStatus, (NvmlDevice, int sensor, unsigned*))

struct Nvml::Table {
#define CARILLON_NVML_MEMBER(member, symbol, result, arguments) result(*member) arguments = nullptr;
  CARILLON_NVML(CARILLON_NVML_MEMBER)
#undef CARILLON_NVML_MEMBER
};

Nvml::Nvml(std::unique_ptr<const Table> table) : table_(std::move(table)) {}
Nvml::~Nvml() {
  (void)table_->shutdown();
}

Result<std::shared_ptr<const Nvml>> Nvml::open(const std::string& library) {
  const std::string path = library.empty() ? "libnvidia-ml.so.1" : library;
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const said = dlerror();
    return fail(ErrorCode::unavailable, said == nullptr ? path + " cannot be loaded" : std::string(said));
  }
  auto table = std::make_unique<Table>();
  Symbols find([handle](const char* name) { return dlsym(handle, name); });
#define CARILLON_NVML_FIND(member, symbol, result, arguments) find(#symbol, table->member);
  CARILLON_NVML(CARILLON_NVML_FIND)
#undef CARILLON_NVML_FIND
  if (!find.missing().empty()) return fail(ErrorCode::unavailable, path + " has no " + find.missing());
  if (const NvmlStatus status = table->init(); status != 0)
    return fail(ErrorCode::unavailable, path + " does not start: " + table->error_text(status));
  return std::shared_ptr<const Nvml>(new Nvml(std::move(table)));
}

Result<GpuFigures> Nvml::look(const std::string& uuid) const {
  NvmlDevice device = nullptr;
  if (const NvmlStatus status = table_->by_uuid(uuid.c_str(), &device); status != 0)
    return fail(ErrorCode::not_found, uuid + ": " + table_->error_text(status));
  GpuFigures out;
  if (Utilization use; table_->utilization(device, &use) == 0) out.utilization = use.gpu / 100.0;
  if (MemoryUse use; table_->memory(device, &use) == 0) {
    out.memory_total = use.total;
    out.memory_used = use.used;
  }
  unsigned value = 0;
  if (table_->power(device, &value) == 0) out.power = value / 1e3;
  if (table_->power_limit(device, &value) == 0) out.power_limit = value / 1e3;
  if (unsigned long long energy = 0; table_->energy(device, &energy) == 0)
    out.energy = static_cast<double>(energy) / 1e3;
  if (table_->temperature(device, of_the_chip, &value) == 0) out.temperature = value;
  return out;
}

std::string to_text(const Uuid& uuid) {
  std::string out = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", uuid.bytes[i]);
  }
  return out;
}

std::string metrics_text(std::span<const std::pair<std::string, GpuFigures>> gpus) {
  std::string out;
  const auto family = [&](const char* name, const char* type, const char* help, auto value) {
    std::string samples;
    for (const auto& [uuid, figures] : gpus)
      if (const std::optional<double> told = value(figures))
        samples += fmt::format("{}{{gpu_uuid=\"{}\"}} {}\n", name, uuid, *told);
    if (!samples.empty())
      out += fmt::format("# HELP {} {}\n# TYPE {} {}\n{}", name, help, name, type, samples);
  };
  const auto number = [](const std::optional<std::uint64_t>& value) {
    return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
  };
  family("nv_gpu_utilization", "gauge", "Share of the time in which some kernel ran, 0 to 1",
         [](const GpuFigures& f) { return f.utilization; });
  family("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU",
         [&](const GpuFigures& f) { return number(f.memory_total); });
  family("nv_gpu_memory_used_bytes", "gauge", "Memory of the GPU that somebody has",
         [&](const GpuFigures& f) { return number(f.memory_used); });
  family("nv_gpu_power_usage", "gauge", "Watts that the GPU takes",
         [](const GpuFigures& f) { return f.power; });
  family("nv_gpu_power_limit", "gauge", "Watts that the GPU may take",
         [](const GpuFigures& f) { return f.power_limit; });
  family("nv_energy_consumption", "counter", "Joules that the GPU has taken since its driver was loaded",
         [](const GpuFigures& f) { return f.energy; });
  family("carillon_gpu_temperature_celsius", "gauge", "Temperature of the GPU's chip",
         [](const GpuFigures& f) { return f.temperature; });
  return out;
}

}  // namespace carillon::engine::cuda
