#include "carillon/simulate/study_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "carillon/base/assert.h"

namespace carillon::simulate {
namespace {

using nlohmann::ordered_json;

ordered_json number_or_null(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json();
}

ordered_json measured_json(const tune::Measured& m) {
  if (!m.known) return {};
  return {{"value", m.value}, {"error", m.error}, {"seen", m.seen}};
}

double seconds_of(TimePoint at) {
  return to_seconds(at - TimePoint{});
}

}  // namespace

StudyReport make_study_report(const workload::Study& study, std::string_view scheduler,
                              StudyFigures figures) {
  StudyReport r{
      .name = study.name,
      .algorithm = std::string(study.seconds.empty() ? workload::name_of(study.algorithm) : "trials"),
      .scheduler = std::string(scheduler),
      .seed = study.seed,
      .devices = study.devices.size(),
      .makespan_s = seconds_of(figures.last),
      .device_seconds = to_seconds(figures.device_time),
      .work_s = to_seconds(figures.work)};
  if (figures.target) r.time_to_target_s = seconds_of(*figures.target);
  if (r.makespan_s > 0) r.utilization = r.device_seconds / (static_cast<double>(r.devices) * r.makespan_s);
  if (figures.supply.count() > 0) r.used_supply = r.device_seconds / to_seconds(figures.supply);
  r.figures = std::move(figures);
  return r;
}

ordered_json to_json(const StudyReport& r, bool each) {
  const StudyFigures& f = r.figures;
  ordered_json json{
      {"study", r.name},
      {"algorithm", r.algorithm},
      {"scheduler", r.scheduler},
      {"seed", r.seed},
      {"devices", r.devices},
      {"makespan_s", r.makespan_s},
      {"time_to_target_s", r.time_to_target_s ? ordered_json(*r.time_to_target_s) : ordered_json()},
      {"device_seconds", r.device_seconds},
      {"utilization", r.utilization},
      {"used_supply", r.used_supply},
      {"work_s", r.work_s},
      {"places", f.places},
      {"resizes", f.resizes},
      {"moves", f.moves},
      {"holds", f.holds},
      {"releases", f.releases},
      {"refused", f.refused},
      {"events", f.events},
      {"most_running", f.most_running},
      {"best_metric", f.best.empty() ? ordered_json() : number_or_null(f.best.back().metric)},
      {"model",
       {{"alpha", measured_json(f.model.alpha)},
        {"beta", measured_json(f.model.beta)},
        {"move_s", measured_json(f.model.move)},
        {"c", f.model.c},
        {"d", f.model.d}}},
      {"trials", f.trials.size()}};
  if (each) {
    ordered_json& list = json["each"] = ordered_json::array();
    for (std::size_t t = 0; t < f.trials.size(); ++t) {
      const TrialFigures& trial = f.trials[t];
      list.push_back({{"trial", t},
                      {"epochs", trial.epochs},
                      {"metric", number_or_null(trial.metric)},
                      {"began_s", trial.began ? ordered_json(seconds_of(*trial.began)) : ordered_json()},
                      {"ended_s", trial.finished ? ordered_json(seconds_of(trial.ended)) : ordered_json()},
                      {"ran_s", to_seconds(trial.ran)},
                      {"stood_s", to_seconds(trial.stood)}});
    }
    ordered_json& best = json["best"] = ordered_json::array();
    for (const BestSoFar& b : f.best) best.push_back({{"at_s", seconds_of(b.at)}, {"metric", b.metric}});
  }
  return json;
}

std::string to_table(std::span<const StudyReport> runs) {
  CARILLON_ASSERT(!runs.empty());
  const StudyReport& first = runs.front();
  std::string text = fmt::format(
      "{}: {} on {} devices; times in s\n{:<10}{:>6}{:>12}{:>12}{:>14}{:>8}{:>8}{:>9}{:>8}{:>8}\n",
      first.name, first.algorithm, first.devices, "scheduler", "seed", "makespan", "to target", "device time",
      "in use", "trials", "resizes", "moves", "best");
  for (const StudyReport& r : runs)
    text += fmt::format(
        "{:<10}{:>6}{:>12.1f}{:>12}{:>14.1f}{:>7.1f}%{:>8}{:>9}{:>8}{:>8}\n", r.scheduler, r.seed,
        r.makespan_s, r.time_to_target_s ? fmt::format("{:.1f}", *r.time_to_target_s) : "-", r.device_seconds,
        100 * r.utilization, r.figures.trials.size(), r.figures.resizes, r.figures.moves,
        r.figures.best.empty() ? "-" : fmt::format("{:.4g}", r.figures.best.back().metric));
  return text;
}

}  // namespace carillon::simulate
