#include "carillon/provision/queue_demands.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "carillon/provision/allocation.h"

namespace carillon::provision {
namespace {

constexpr double never_ms = std::numeric_limits<double>::infinity();
constexpr double one_part_in_a_billion = 1e-9;
// Others beside a workload, and their use of the cache, for which small batches are taken to be slowed.
constexpr std::size_t together = 3;
constexpr double others_cache_pct = 30;

double work(const profile::ModelCoefficients& model, int batch) {
  const double b = batch;
  return model.k1 * b * b + model.k2 * b + model.k3;
}

double transfers_ms(const DeviceType& type, const profile::ModelCoefficients& model, int batch) {
  return profile::load_ms(type.hardware.coefficients, model, batch) +
         profile::feedback_ms(type.hardware.coefficients, model, batch);
}

// The latency of a batch alone on the whole device.
double whole_ms(const DeviceType& type, const profile::ModelCoefficients& model, int batch) {
  const auto& hardware = type.hardware.coefficients;
  const profile::SoloUse use = profile::solo_use(model, batch, type.share_pct(type.units()));
  const double frequency = profile::frequency_ratio(hardware, hardware.idle_power_w + use.power_w);
  return profile::latency_ms(model, transfers_ms(type, model, batch), use.active_ms, 0, 0, frequency);
}

// Sizes of the largest batch to look at: all small ones, then fewer. More than come within two SLOs do not
// help.
std::vector<int> batch_sizes(const DeviceType& type, const profile::ModelCoefficients& model,
                             const Workload& workload, double rate_rps) {
  constexpr double most_sizes = 512;
  const int largest =
      static_cast<int>(std::min({static_cast<double>(profile::largest_known_batch(model)), most_sizes,
                                 4 + std::ceil(2 * workload.slo_ms * rate_rps / 1000)}));
  std::vector<int> sizes;
  for (int b = 1; b <= largest; b += b < 8 ? 1 : std::max(2, b / 8)) {
    // A batch that takes longer than the SLO by itself makes all its requests late.
    if (whole_ms(type, model, b) > workload.slo_ms) return sizes;
    sizes.push_back(b);
  }
  if (!sizes.empty() && sizes.back() < largest && whole_ms(type, model, largest) <= workload.slo_ms)
    sizes.push_back(largest);
  return sizes;
}

// All sizes' times where the largest batch takes `limit_ms`.
BatchTimes times_within(const DeviceType& type, const profile::ModelCoefficients& model, int batch,
                        double limit_ms) {
  const auto& hardware = type.hardware.coefficients;
  const double rest = limit_ms - transfers_ms(type, model, batch);
  const double increase = std::max(0.0, profile::schedule_increase_ms(hardware, together));
  const double fixed =
      std::min(rest, std::max(0.0, model.schedule_ms + increase * model.kernels +
                                       std::max(0.0, model.k5) * (1 + model.alpha_cache * others_cache_pct)));
  const double whole = work(model, batch);
  BatchTimes times{.load_ms = profile::load_ms(hardware, model, batch), .busy_ms = {}};
  for (int n = 1; n <= batch; ++n) {
    const double part = whole > 0 ? std::clamp(work(model, n) / whole, 0.0, 1.0) : 1;
    times.busy_ms.push_back(fixed + (rest - fixed) * part + profile::feedback_ms(hardware, model, n));
  }
  return times;
}

}  // namespace

BatchTimes batch_times(const PlannedDevice& device, std::size_t place, std::span<const Workload> workloads,
                       std::span<const DeviceType> types) {
  const DeviceType& type = types[device.type];
  std::vector<profile::Resident> residents;
  for (const Placement& p : device.placements)
    residents.push_back({.model = type.find(workloads[p.workload].model),
                         .batch = p.batch,
                         .share_pct = type.share_pct(p.units)});
  const int batch = residents[place].batch;
  BatchTimes times{.load_ms = profile::load_ms(type.hardware.coefficients, *residents[place].model, batch),
                   .busy_ms = {}};
  for (int n = 1; n <= batch; ++n) {
    residents[place].batch = n;
    const profile::Prediction p = profile::predict(type.hardware.coefficients, residents)[place];
    times.busy_ms.push_back(p.gpu_ms + p.feedback_ms);
  }
  return times;
}

double QueueDemands::margin_of(const Workload& workload) const {
  const auto found = margins_.find(workload.id);
  return found == margins_.end() ? 1 : found->second;
}

void QueueDemands::tighten(const Workload& workload) {
  margins_[workload.id] = margin_of(workload) * 1.03;
}

bool QueueDemands::kept(const DeviceType& type, const profile::ModelCoefficients& model,
                        const Workload& workload, double rate_rps, int batch, double limit_ms,
                        Look look) const {
  return keeps_promise(rule_,
                       {.rate_rps = rate_rps,
                        .workload_rps = std::max(rate_rps, workload.rate_rps),
                        .slo_ms = workload.slo_ms},
                       times_within(type, model, batch, limit_ms), margin_of(workload), look);
}

std::optional<Demand> QueueDemands::cheapest(const DeviceType& type, const Workload& workload,
                                             double rate_rps) {
  const auto key = std::tuple(&type, workload.model, workload.slo_ms, margin_of(workload), rate_rps,
                              std::max(rate_rps, workload.rate_rps));
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  return known_[key] = search(type, workload, rate_rps);
}

std::optional<Demand> QueueDemands::settled(const DeviceType& type, const profile::ModelCoefficients& model,
                                            const Workload& workload, double rate_rps, int batch,
                                            double limit_ms) const {
  const auto holds = [&](double limit) {
    return kept(type, model, workload, rate_rps, batch, limit, Look::whole);
  };
  constexpr double step = 1.01;
  const double least_ms = whole_ms(type, model, batch) * (1 + one_part_in_a_billion);
  if (holds(limit_ms)) {
    for (int i = 0; i < 4 && holds(limit_ms * step); ++i) limit_ms *= step;
  } else {
    do {
      if (limit_ms <= least_ms) return std::nullopt;
      limit_ms = std::max(least_ms, limit_ms / step);
    } while (!holds(limit_ms));
  }
  Demand demand{.model = &model, .batch = batch, .limit_ms = limit_ms};
  demand.transfers_ms = transfers_ms(type, model, batch);
  const auto lower = lower_bound_units(type, model, batch, limit_ms);
  if (!lower || *lower > type.units()) return std::nullopt;
  demand.least_units = std::max(1, *lower);
  demand.least_use = profile::solo_use(model, batch, type.share_pct(demand.least_units));
  const Demand* alone = &demand;
  std::vector<int> units;
  if (!least_allocation(type, {&alone, 1}, units)) return std::nullopt;
  demand.least_units = units.front();
  demand.least_use = profile::solo_use(model, batch, type.share_pct(demand.least_units));
  return demand;
}

std::optional<Demand> QueueDemands::search(const DeviceType& type, const Workload& workload,
                                           double rate_rps) const {
  const profile::ModelCoefficients* model = type.find(workload.model);
  if (model == nullptr) return std::nullopt;
  std::vector<int> sizes = batch_sizes(type, *model, workload, rate_rps);
  // The paper's size first: others then have a share to beat, and most take one look.
  const double papers = appropriate_batch(type, *model, workload.slo_ms, rate_rps);
  std::stable_sort(sizes.begin(), sizes.end(),
                   [&](int a, int b) { return std::abs(a - papers) < std::abs(b - papers); });
  struct Choice {
    double share = never_ms;  // of a whole device, in percent, at full frequency
    int batch = 0;
    double limit_ms = 0;
  };
  std::vector<Choice> choices;  // each with less share than those before
  for (const int batch : sizes) {
    const auto holds = [&](double limit) {
      return kept(type, *model, workload, rate_rps, batch, limit, Look::quick);
    };
    const double fixed = transfers_ms(type, *model, batch) + model->schedule_ms + model->k5;
    double low = whole_ms(type, *model, batch) * (1 + one_part_in_a_billion);
    // A hundredth less share, or it is not worth a change.
    if (!choices.empty())
      low = std::max(low,
                     fixed + work(*model, batch) / std::max(1e-9, 0.99 * choices.back().share + model->k4));
    if (!(low <= workload.slo_ms) || !holds(low)) continue;
    double high = workload.slo_ms;
    for (int i = 0; i < 8; ++i) {
      const double middle = (low + high) / 2;
      (holds(middle) ? low : high) = middle;
    }
    choices.push_back({.share = low > fixed ? work(*model, batch) / (low - fixed) - model->k4 : never_ms,
                       .batch = batch,
                       .limit_ms = low});
  }
  for (auto choice = choices.rbegin(); choice != choices.rend(); ++choice)
    if (auto demand = settled(type, *model, workload, rate_rps, choice->batch, choice->limit_ms))
      return demand;
  // On the edge of what a device serves the quick look may have left out the only size that will do.
  for (const int batch : sizes)
    if (auto demand = settled(type, *model, workload, rate_rps, batch,
                              whole_ms(type, *model, batch) * (1 + one_part_in_a_billion)))
      return demand;
  return std::nullopt;
}

bool QueueDemands::possible(const DeviceType& type, const Workload& workload, double rate_rps) const {
  const profile::ModelCoefficients* model = type.find(workload.model);
  if (model == nullptr) return false;
  const std::vector<int> sizes = batch_sizes(type, *model, workload, rate_rps);
  // Large batches keep up best.
  return std::any_of(sizes.rbegin(), sizes.rend(), [&](int batch) {
    return kept(type, *model, workload, rate_rps, batch,
                whole_ms(type, *model, batch) * (1 + one_part_in_a_billion), Look::quick);
  });
}

double QueueDemands::largest_rate(const DeviceType& type, const Workload& workload) {
  double high = provision::largest_rate(
      type,
      Workload{
          .id = {}, .model = workload.model, .slo_ms = 2 * workload.slo_ms, .rate_rps = workload.rate_rps});
  // Where a rate hardly above none is too much, single requests are too slow.
  double low = std::min(high, 1000 / workload.slo_ms) * 1e-3;
  if (!(low > 0) || !possible(type, workload, low)) return 0;
  for (int i = 0; i < 16; ++i) {
    const double middle = (low + high) / 2;
    (possible(type, workload, middle) ? low : high) = middle;
  }
  // The quick look may have been off. A little below, as a replay does not change evenly with the rate.
  for (int i = 0; i < 40; ++i, low *= 0.99)
    if (cheapest(type, workload, low)) return 0.995 * low;
  return 0;
}

std::optional<double> QueueDemands::smallest_slo(const DeviceType& type, Workload workload,
                                                 double rate_rps) const {
  const profile::ModelCoefficients* model = type.find(workload.model);
  if (model == nullptr) return std::nullopt;
  double low = whole_ms(type, *model, 1);
  if (!std::isfinite(low)) return std::nullopt;
  double high = low;
  const auto will_do = [&](double slo) {
    workload.slo_ms = slo;
    return possible(type, workload, rate_rps);
  };
  // What no SLO of a thousand single requests mends is too much for the device.
  while (!will_do(high)) {
    low = high;
    high *= 2;
    if (high > 1000 * whole_ms(type, *model, 1)) return std::nullopt;
  }
  for (int i = 0; i < 12; ++i) {
    const double middle = (low + high) / 2;
    (will_do(middle) ? high : low) = middle;
  }
  return high;
}

Infeasible QueueDemands::explain(std::size_t index, const Workload& workload,
                                 std::span<const DeviceType> types, bool may_split) {
  Infeasible found{.workload = index};
  Workload lower = workload;  // at the rate that is looked for, whatever was asked
  lower.rate_rps = 0;
  bool is_known = false;
  double rate = 0;
  for (const DeviceType& type : types) {
    if (type.find(workload.model) == nullptr) continue;
    is_known = true;
    rate = std::max(rate, largest_rate(type, lower));
    const double asked = may_split ? std::min(workload.rate_rps, 1.0) : workload.rate_rps;
    const auto slo = smallest_slo(type, workload, asked);
    if (slo && (!found.smallest_slo_ms || *slo < *found.smallest_slo_ms)) found.smallest_slo_ms = slo;
  }
  // Rounded so that what is said still holds.
  if (found.smallest_slo_ms) found.smallest_slo_ms = std::ceil(*found.smallest_slo_ms * 1000) / 1000;
  if (!is_known) {
    found.reason = "no type of device has coefficients of this model";
    return found;
  }
  found.reason = rate <= 0 ? "not even single requests on a whole device are on time"
                           : "one device does not serve the rate within the SLO as it arrives";
  found.largest_rate_rps = std::floor(rate * 1000) / 1000;
  return found;
}

}  // namespace carillon::provision
