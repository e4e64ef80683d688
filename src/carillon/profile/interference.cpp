#include "carillon/profile/interference.h"

#include <algorithm>
#include <cmath>

namespace carillon::profile {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
constexpr int batch_limit = 65'536;

}  // namespace

int largest_batch(const ModelCoefficients& model) {
  if (model.k1 >= 0) return model.k2 < 0 && model.k1 == 0 ? 1 : batch_limit;
  const double turn = -model.k2 / (2 * model.k1);
  return static_cast<int>(std::clamp(turn, 1.0, static_cast<double>(batch_limit)));
}

int largest_known_batch(const ModelCoefficients& model) {
  const int largest = largest_batch(model);
  return model.measured_batch > 0 ? std::min(largest, model.measured_batch) : largest;
}

double active_ms(const ModelCoefficients& model, int batch, double share_pct) {
  if (batch > largest_batch(model)) return never;
  const double b = batch;
  const double time = (model.k1 * b * b + model.k2 * b + model.k3) / (share_pct + model.k4) + model.k5;
  return share_pct + model.k4 > 0 && time > 0 ? time : never;
}

SoloUse solo_use(const ModelCoefficients& model, int batch, double share_pct) {
  SoloUse use{.active_ms = active_ms(model, batch, share_pct)};
  // "Processing ability", in requests a second; 0 where nothing finishes.
  const double ability = 1000 * batch / use.active_ms;
  use.power_w = model.alpha_power * ability + model.beta_power;
  use.cache_pct = model.alpha_cacheutil * ability + model.beta_cacheutil;
  return use;
}

double load_ms(const HardwareCoefficients& hardware, const ModelCoefficients& model, int batch) {
  return model.load_bytes * batch / hardware.pcie_bytes_per_ms;
}

double feedback_ms(const HardwareCoefficients& hardware, const ModelCoefficients& model, int batch) {
  return model.feedback_bytes * batch / hardware.pcie_bytes_per_ms;
}

double schedule_increase_ms(const HardwareCoefficients& hardware, std::size_t workloads) {
  if (workloads <= 1) return 0;
  return hardware.alpha_sch * static_cast<double>(workloads) + hardware.beta_sch;
}

double frequency_ratio(const HardwareCoefficients& hardware, double demand_w) {
  if (demand_w <= hardware.max_power_w) return 1;
  const double frequency = hardware.max_frequency_mhz + hardware.alpha_f * (demand_w - hardware.max_power_w);
  return std::max(0.0, frequency / hardware.max_frequency_mhz);
}

std::vector<Prediction> predict(const HardwareCoefficients& hardware, std::span<const Resident> residents) {
  std::vector<SoloUse> alone;
  alone.reserve(residents.size());
  double demand = hardware.idle_power_w, cache = 0;
  for (const Resident& r : residents) {
    alone.push_back(solo_use(*r.model, r.batch, r.share_pct));
    demand += alone.back().power_w;
    cache += alone.back().cache_pct;
  }
  const double increase = schedule_increase_ms(hardware, residents.size());
  const double frequency = frequency_ratio(hardware, demand);

  std::vector<Prediction> predictions;
  predictions.reserve(residents.size());
  for (std::size_t i = 0; i < residents.size(); ++i) {
    const ModelCoefficients& model = *residents[i].model;
    Prediction p;
    p.load_ms = load_ms(hardware, model, residents[i].batch);
    p.feedback_ms = feedback_ms(hardware, model, residents[i].batch);
    p.schedule_ms = model.schedule_ms + increase * model.kernels;
    p.active_ms = alone[i].active_ms * (1 + model.alpha_cache * (cache - alone[i].cache_pct));
    p.gpu_ms = gpu_ms(model, alone[i].active_ms, cache - alone[i].cache_pct, increase, frequency);
    p.latency_ms = p.load_ms + p.feedback_ms + p.gpu_ms;
    p.throughput_rps = 1000.0 * residents[i].batch / (p.gpu_ms + p.feedback_ms);
    predictions.push_back(p);
  }
  return predictions;
}

}  // namespace carillon::profile
