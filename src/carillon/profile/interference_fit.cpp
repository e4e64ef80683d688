#include "carillon/profile/interference_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "carillon/profile/fit_line.h"
#include "carillon/profile/least_squares.h"

namespace carillon::profile {
namespace {

// What an outlier is called: "batch 16, share 50%".
std::string place_of(const SoloSample& s) {
  return "batch " + std::to_string(s.batch) + ", share " + short_number(s.share_pct) + "%";
}

// y = ratio * x, not below 0.
double fit_ratio(std::span<const Point> points, FitMethod method) {
  if (method == FitMethod::robust) return std::max(0.0, median_ratio(points));
  double xy = 0, xx = 0;
  for (const Point& p : points) xy += p.x * p.y, xx += p.x * p.x;
  return xx > 0 ? std::max(0.0, xy / xx) : 0;
}

class Fitting {
 public:
  Fitting(const InterferenceMeasurements& measurements, FitMethod method)
      : from_(measurements), method_(method) {}

  Result<InterferenceFit> fit() {
    device();
    if (auto models = solo(); !models) return std::unexpected(models.error());
    if (auto known = members_are_known(); !known) return std::unexpected(known.error());
    frequency();
    if (delays_are_told()) {
      scheduling();
      growth();
    } else {
      together();
    }
    fit_.checks = check_predictions(fit_.coefficients, hardware(), from_.checks);
    return std::move(fit_);
  }

 private:
  void note(std::string text) { fit_.notes.push_back(std::move(text)); }
  HardwareCoefficients& hardware() { return fit_.hardware.coefficients; }
  ModelCoefficients& coefficients(const std::string& model) { return fit_.coefficients.models.at(model); }

  // f/F of a run in which the device had that frequency.
  double ratio(const std::optional<double>& frequency) const {
    return frequency ? std::min(1.0, *frequency / full_frequency_) : 1;
  }
  // Whether power says what is wanted, rather than the cap.
  bool below_cap(const std::optional<double>& frequency) const {
    return !frequency || *frequency >= full_frequency_;
  }

  void device() {
    fit_.coefficients.device = from_.device;
    fit_.hardware.name = from_.device.empty() ? "device" : from_.device;
    fit_.hardware.price_usd_per_hour = from_.price_usd_per_hour.value_or(0);
    if (!from_.price_usd_per_hour) note("price: not given; the device costs nothing");
    for (const std::string& each : from_.not_measured) note(each);
    HardwareCoefficients& h = hardware();
    h.share_unit_pct = from_.share_unit_pct.value_or(h.share_unit_pct);
    h.max_share_pct = from_.max_share_pct.value_or(h.max_share_pct);
    h.share_unit_pct = std::min(h.share_unit_pct, h.max_share_pct);
    h.pcie_bytes_per_ms = from_.pcie_bytes_per_ms.value_or(1e12);
    if (!from_.pcie_bytes_per_ms) note("B_pcie_bytes_per_ms: not given; transfers take no time");

    full_frequency_ = from_.max_frequency_mhz.value_or(0);
    if (!from_.max_frequency_mhz) {
      const auto see = [&](const std::optional<double>& f) {
        full_frequency_ = std::max(full_frequency_, f.value_or(0));
      };
      for (const auto& [name, model] : from_.models)
        for (const SoloSample& s : model.solo) see(s.frequency_mhz);
      for (const SeriesSample& s : from_.series) see(s.frequency_mhz);
      for (const ColocatedRun& run : from_.colocated) see(run.frequency_mhz);
      note(full_frequency_ > 0 ? "F_max_frequency_MHz: not given; the highest that was seen"
                               : "frequency: not measured; it is taken as constant");
      if (full_frequency_ == 0) full_frequency_ = 1;
    }
    h.max_frequency_mhz = full_frequency_;
    h.idle_power_w = from_.idle_power_w.value_or(0);
    h.max_power_w = from_.max_power_w.value_or(1e6);
    has_power_ = from_.idle_power_w.has_value();
    if (!from_.idle_power_w) note("p_idle_W: not given; power is left out");
    if (!from_.max_power_w) note("P_max_power_W: not given; power has no cap");
  }

  Result<> solo() {
    for (const auto& [name, model] : from_.models) {
      if (model.solo.empty()) {
        note("model '" + name + "': has no samples alone, and is left out");
        continue;
      }
      if (auto fitted = solo(name, model); !fitted) return in_context("model '" + name + "'", fitted.error());
    }
    if (!fit_.coefficients.models.empty()) return {};
    return invalid(
        "no model has samples alone on the device; there should be \"solo\" samples (or \"fit_samples\") "
        "of batch sizes and shares");
  }

  Result<> solo(const std::string& name, const ModelMeasurements& model) {
    ModelCoefficients c;
    const struct {
      const char* name;
      const std::optional<double>& from;
      double& to;
    } given[] = {{"d_load_bytes", model.load_bytes, c.load_bytes},
                 {"d_feedback_bytes", model.feedback_bytes, c.feedback_bytes},
                 {"n_kernels", model.kernels, c.kernels},
                 {"k_sch_times_n_kernels_ms", model.schedule_ms, c.schedule_ms}};
    for (const auto& each : given) {
      each.to = each.from.value_or(0);
      if (!each.from) note("model '" + name + "': " + each.name + " is not given, and taken as 0");
    }

    std::vector<ActiveSample> samples;
    std::vector<std::string> places;
    std::vector<double> measured;
    for (const SoloSample& s : model.solo) {
      c.measured_batch = std::max(c.measured_batch, s.batch);
      const double active = s.gpu_ms * ratio(s.frequency_mhz) - c.schedule_ms;
      if (!(active > 0))
        return invalid(place_of(s) + ": gpu_latency_ms is " + short_number(s.gpu_ms) +
                       ", but should be above the " + short_number(c.schedule_ms) +
                       " ms of k_sch_times_n_kernels_ms");
      samples.push_back({s.batch, s.share_pct, active});
      places.push_back(place_of(s));
      measured.push_back(s.gpu_ms);
    }
    const ActiveFit active = fit_active(samples, method_, hardware().share_unit_pct);
    if (samples.size() < active.terms)
      return invalid("has " + std::to_string(samples.size()) + " samples alone, but should have at least " +
                     std::to_string(active.terms) + " with so many batch sizes and shares");
    c.k1 = active.k1, c.k2 = active.k2, c.k3 = active.k3, c.k4 = active.k4, c.k5 = active.k5;

    ModelFit& fit = fit_.models[name];
    std::vector<double> predicted;
    for (const SoloSample& s : model.solo) {
      const double time = active_ms(c, s.batch, s.share_pct);
      if (!std::isfinite(time))
        return invalid("plain least squares give " + place_of(s) + " no time; the robust method does");
      predicted.push_back((time + c.schedule_ms) / ratio(s.frequency_mhz));
    }
    fit.time = goodness(measured, predicted, active.kept, places, "ms");
    // Time alone tells what kind of batch sizes and shares there were.
    if (active.terms < 5)
      note("model '" + name + "': too few batch sizes or shares for all of k1 to k5; " +
           std::to_string(active.terms) + " were fitted");
    lines(name, model, c, fit);
    fit_.coefficients.models[name] = c;
    return {};
  }

  // Power and cache use by processing ability.
  void lines(const std::string& name, const ModelMeasurements& model, ModelCoefficients& c, ModelFit& fit) {
    std::vector<Point> power, cache;
    std::vector<std::string> power_places, cache_places;
    for (const SoloSample& s : model.solo) {
      // The paper takes the time that was measured, for the cache without the frequency; ours is the one
      // that predictions take.
      const double full = s.gpu_ms * ratio(s.frequency_mhz) - c.schedule_ms;
      const double ours = active_ms(c, s.batch, s.share_pct);
      const bool paper = method_ == FitMethod::igniter;
      if (s.power_w && has_power_ && below_cap(s.frequency_mhz)) {
        power.push_back({1000 * s.batch / (paper ? full : ours), *s.power_w - hardware().idle_power_w});
        power_places.push_back(place_of(s));
      }
      if (s.cache_pct) {
        cache.push_back({1000 * s.batch / (paper ? s.gpu_ms - c.schedule_ms : ours), *s.cache_pct});
        cache_places.push_back(place_of(s));
      }
    }
    if (power.size() >= 2) {
      Line line = fit_line(power, method_, power_places, "W", hardware().idle_power_w);
      c.alpha_power = line.slope, c.beta_power = line.start, fit.power = std::move(line.fit);
    } else if (has_power_) {
      note("model '" + name + "': power was measured below the cap in fewer than 2 samples, and is left out");
    }
    if (cache.size() >= 2) {
      Line line = fit_line(cache, method_, cache_places, "%", 0);
      c.alpha_cacheutil = line.slope, c.beta_cacheutil = line.start, fit.cache = std::move(line.fit);
    } else {
      note("model '" + name + "': cache use was measured in fewer than 2 samples, and is left out");
    }
  }

  Result<> members_are_known() const {
    for (std::size_t i = 0; i < from_.colocated.size(); ++i)
      for (const Member& member : from_.colocated[i].members)
        if (!fit_.coefficients.models.contains(member.model))
          return invalid("colocated[" + std::to_string(i) + "]: model '" + member.model +
                         "' ran with others, but has no samples alone; it should have \"solo\" samples");
    return {};
  }

  // How far the frequency falls for each watt above the cap.
  void frequency() {
    std::vector<Point> points;  // demand above the cap, frequency below the full one
    std::vector<double> measured;
    const auto take = [&](double demand, const std::optional<double>& f) {
      if (below_cap(f) || demand <= hardware().max_power_w) return;
      points.push_back({demand - hardware().max_power_w, *f - full_frequency_});
      measured.push_back(*f);
    };
    if (from_.max_power_w) {
      for (const auto& [demand, sample] : series_demand()) take(demand, sample->frequency_mhz);
      for (const ColocatedRun& run : from_.colocated) {
        double demand = hardware().idle_power_w;
        for (const Member& m : run.members)
          demand += solo_use(coefficients(m.model), m.batch, m.share_pct).power_w;
        take(demand, run.frequency_mhz);
      }
    }
    double alpha = 0;
    if (method_ == FitMethod::robust) {
      alpha = median_ratio(points);
    } else {
      double xy = 0, xx = 0;
      for (const Point& p : points) xy += p.x * p.y, xx += p.x * p.x;
      alpha = xx > 0 ? xy / xx : 0;
    }
    hardware().alpha_f = std::min(0.0, alpha);
    if (points.empty()) {
      note("frequency: no run was above the power cap; it stays at its highest");
      return;
    }
    std::vector<double> predicted;
    for (const Point& p : points) predicted.push_back(full_frequency_ + hardware().alpha_f * p.x);
    fit_.frequency = goodness(measured, predicted);
  }

  // The power that each step of the series asks for. Above the cap it is that of the last step below, and of
  // as many mean steps more.
  std::vector<std::pair<double, const SeriesSample*>> series_demand() const {
    std::vector<const SeriesSample*> samples;
    for (const SeriesSample& s : from_.series)
      if (s.power_w && s.frequency_mhz) samples.push_back(&s);
    std::ranges::stable_sort(samples, {}, [](const SeriesSample* s) { return s->workloads; });
    const SeriesSample *first = nullptr, *last = nullptr;
    for (const SeriesSample* s : samples) {
      if (!below_cap(s->frequency_mhz)) break;
      if (first == nullptr) first = s;
      last = s;
    }
    std::vector<std::pair<double, const SeriesSample*>> demand;
    if (first == nullptr || last->workloads == first->workloads) return demand;
    const double step = (*last->power_w - *first->power_w) / (last->workloads - first->workloads);
    for (const SeriesSample* s : samples)
      demand.emplace_back(below_cap(s->frequency_mhz)
                              ? *s->power_w
                              : *last->power_w + step * (s->workloads - last->workloads),
                          s);
    return demand;
  }

  bool delays_are_told() const {
    const auto has_delay = [](const SeriesSample& s) { return s.schedule_per_kernel_ms.has_value(); };
    return std::ranges::any_of(from_.series, has_delay) ||
           std::ranges::any_of(from_.colocated,
                               [](const ColocatedRun& run) {
                                 return std::ranges::any_of(
                                     run.members, [](const Member& m) { return m.schedule_ms.has_value(); });
                               }) ||
           from_.colocated.empty();
  }

  // Equation 6 as a line that starts with two workloads, at `pair`.
  void set_delay(double pair, double slope) {
    hardware().alpha_sch = slope;
    hardware().beta_sch = pair - 2 * slope;
  }

  void scheduling() {
    std::vector<Point> points;  // workloads beyond two, delay per kernel
    double alone = 0;
    bool knows_alone = false;
    for (const SeriesSample& s : from_.series)
      if (s.workloads == 1 && s.schedule_per_kernel_ms)
        alone = *s.schedule_per_kernel_ms * ratio(s.frequency_mhz), knows_alone = true;
    for (const SeriesSample& s : from_.series)
      if (s.workloads > 1 && s.schedule_per_kernel_ms && knows_alone)
        points.push_back({s.workloads - 2.0, *s.schedule_per_kernel_ms * ratio(s.frequency_mhz) - alone});
    for (const ColocatedRun& run : from_.colocated)
      for (const Member& m : run.members)
        if (const ModelCoefficients& c = coefficients(m.model); m.schedule_ms && c.kernels > 0)
          points.push_back({static_cast<double>(run.members.size()) - 2,
                            (*m.schedule_ms * ratio(run.frequency_mhz) - c.schedule_ms) / c.kernels});
    if (points.empty()) {
      note("scheduling: no delays of models together were measured; they are taken as those alone");
      return;
    }
    LinearSystem system(2);
    for (const Point& p : points) system.add(std::array{1.0, p.x}, p.y);
    const auto solution = method_ == FitMethod::robust ? system.solve_nonnegative() : system.solve();
    set_delay(solution[0], solution[1]);
    std::vector<double> measured, predicted;
    for (const Point& p : points)
      measured.push_back(p.y), predicted.push_back(solution[0] + solution[1] * p.x);
    fit_.scheduling = goodness(measured, predicted);
  }

  // Time alone as it was measured at that batch and share, else as fitted.
  double alone_ms(const Member& m) {
    const ModelCoefficients& c = coefficients(m.model);
    for (const SoloSample& s : from_.models.at(m.model).solo)
      if (method_ == FitMethod::igniter && s.batch == m.batch && s.share_pct == m.share_pct)
        return s.gpu_ms * ratio(s.frequency_mhz) - c.schedule_ms;
    return active_ms(c, m.batch, m.share_pct);
  }

  // Cache use of the members other than `m`.
  double others_cache(const ColocatedRun& run, const Member& m) {
    double sum = 0;
    for (const Member& other : run.members)
      if (&other != &m) sum += solo_use(coefficients(other.model), other.batch, other.share_pct).cache_pct;
    return sum;
  }

  // Equation 8, by model.
  void growth() {
    for (auto& [name, c] : fit_.coefficients.models) {
      std::vector<Point> points;  // others' cache use, growth
      std::vector<double> alone;
      for (const GrowthSample& s : from_.models.at(name).growth) {
        points.push_back({s.others_cache_pct, s.together_ms * ratio(s.frequency_mhz) / s.alone_ms - 1});
        alone.push_back(s.alone_ms);
      }
      for (const ColocatedRun& run : from_.colocated)
        for (const Member& m : run.members) {
          if (m.model != name) continue;
          const double delay =
              m.schedule_ms
                  ? *m.schedule_ms * ratio(run.frequency_mhz)
                  : c.schedule_ms + c.kernels * schedule_increase_ms(hardware(), run.members.size());
          const double before = alone_ms(m);
          points.push_back(
              {others_cache(run, m), (m.gpu_ms * ratio(run.frequency_mhz) - delay) / before - 1});
          alone.push_back(before);
        }
      c.alpha_cache = fit_ratio(points, method_);
      if (std::ranges::none_of(points, [](const Point& p) { return p.x > 0; })) {
        note("model '" + name +
             "': its growth beside others that use the cache was not measured, and is left out");
        continue;
      }
      std::vector<double> measured, predicted;
      for (std::size_t i = 0; i < points.size(); ++i) {
        measured.push_back(alone[i] * (1 + points[i].y));
        predicted.push_back(alone[i] * (1 + c.alpha_cache * points[i].x));
      }
      fit_.models.at(name).growth = goodness(measured, predicted);
    }
  }

  // Delays and growth from whole times: t * f/F - k_sch * n_k - k_act is n_k * Delta + alpha_cache * k_act *
  // c, linear in Delta's two coefficients and the models' alpha_cache. Least squares of relative errors, with
  // less weight on samples that are far off (Huber, at twice the median error).
  void together() {
    std::vector<std::string> names;
    for (const auto& [name, c] : fit_.coefficients.models) names.push_back(name);
    std::vector<std::vector<double>> rows;
    std::vector<double> wanted, whole;
    for (const ColocatedRun& run : from_.colocated)
      for (const Member& m : run.members) {
        const ModelCoefficients& c = coefficients(m.model);
        const double active = alone_ms(m), time = m.gpu_ms * ratio(run.frequency_mhz);
        std::vector<double> row(2 + names.size());
        row[0] = c.kernels / time;
        row[1] = c.kernels * (static_cast<double>(run.members.size()) - 2) / time;
        const auto at = std::ranges::find(names, m.model) - names.begin();
        row[2 + static_cast<std::size_t>(at)] = active * std::max(0.0, others_cache(run, m)) / time;
        rows.push_back(std::move(row));
        wanted.push_back((time - c.schedule_ms - active) / time);
        whole.push_back(m.gpu_ms);
      }
    for (std::size_t i = 0; i < names.size(); ++i)
      for (const GrowthSample& s : from_.models.at(names[i]).growth) {
        const double time = s.together_ms * ratio(s.frequency_mhz);
        std::vector<double> row(2 + names.size());
        row[2 + i] = s.alone_ms * s.others_cache_pct / time;
        rows.push_back(std::move(row));
        wanted.push_back(1 - s.alone_ms / time);
        whole.push_back(s.together_ms);
      }
    std::vector<double> weights(rows.size(), 1), errors(rows.size()), solution;
    for (int round = 0; round < 10; ++round) {
      LinearSystem system(2 + names.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        auto row = rows[i];
        for (double& each : row) each *= weights[i];
        system.add(row, wanted[i] * weights[i]);
      }
      solution = system.solve_nonnegative();
      for (std::size_t i = 0; i < rows.size(); ++i)
        errors[i] = std::inner_product(rows[i].begin(), rows[i].end(), solution.begin(), -wanted[i]);
      if (method_ == FitMethod::igniter) break;
      std::vector<double> sizes;
      for (const double each : errors) sizes.push_back(std::abs(each));
      std::ranges::nth_element(sizes, sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2));
      const double bound = std::max(1e-6, 2 * sizes[sizes.size() / 2]);
      // The root of a sample's weight.
      for (std::size_t i = 0; i < errors.size(); ++i)
        weights[i] = std::sqrt(std::min(1.0, bound / std::max(1e-12, std::abs(errors[i]))));
    }
    set_delay(solution[0], solution[1]);
    for (std::size_t i = 0; i < names.size(); ++i) coefficients(names[i]).alpha_cache = solution[2 + i];
    std::vector<double> predicted;
    for (std::size_t i = 0; i < whole.size(); ++i) predicted.push_back(whole[i] * (1 + errors[i]));
    fit_.scheduling = goodness(whole, predicted);
    note("scheduling: delays were not measured apart; the times of models together tell them");
  }

  const InterferenceMeasurements& from_;
  FitMethod method_;
  InterferenceFit fit_;
  double full_frequency_ = 1;
  bool has_power_ = false;
};

}  // namespace

Result<InterferenceFit> fit_interference(const InterferenceMeasurements& measurements, FitMethod method) {
  return Fitting(measurements, method).fit();
}

}  // namespace carillon::profile
