#include "carillon/simulate/report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "carillon/base/statistics.h"
#include "carillon/provision/autoscale.h"

namespace carillon::simulate {

Report make_report(const workload::Scenario& scenario, std::string_view scheduler, Figures& figures,
                   Duration interval) {
  Report r;
  r.scenario = scenario.name;
  r.scheduler = scheduler;
  r.seed = scenario.seed;
  const double span = to_seconds(figures.span);
  std::vector<Duration> all;
  std::uint64_t batches = 0, batched = 0;
  for (ModelFigures& m : figures.models) {
    r.offered += m.offered;
    r.on_time += m.on_time;
    r.refused += m.refused;
    r.late += m.late;
    r.cancelled += m.cancelled;
    batches += m.batches;
    batched += m.batched;
    all.insert(all.end(), m.latencies.begin(), m.latencies.end());
    Report::Model model{.name = m.name};
    model.offered_rps = static_cast<double>(m.offered) / span;
    model.finish_rate = m.offered == 0 ? 1 : static_cast<double>(m.on_time) / static_cast<double>(m.offered);
    model.p99_ms = to_ms(percentile(m.latencies, 0.99));
    model.mean_batch = m.batches == 0 ? 0 : static_cast<double>(m.batched) / static_cast<double>(m.batches);
    model.promised = m.promised;
    model.promised_late = m.promised_late;
    model.avoidable_late = m.avoidable_late;
    model.expected_late = m.expected_late;
    r.worst_finish_rate = std::min(r.worst_finish_rate, model.finish_rate);
    r.models.push_back(std::move(model));
  }
  constexpr std::string_view names[] = {"real-time", "normal", "best-effort"};
  for (std::size_t i = 0; i < figures.classes.size() && has_classes(scenario); ++i) {
    ClassFigures& of = figures.classes[i];
    r.classes.push_back(
        {.name = names[i],
         .offered = of.offered,
         .on_time = of.on_time,
         .late = of.late,
         .refused = of.refused,
         .offered_rps = static_cast<double>(of.offered) / span,
         .answered_rps = static_cast<double>(of.on_time + of.late) / span,
         .finish_rate =
             of.offered == 0 ? 1 : static_cast<double>(of.on_time) / static_cast<double>(of.offered),
         .p50_ms = to_ms(percentile(of.latencies, 0.5)),
         .p99_ms = to_ms(percentile(of.latencies, 0.99)),
         .max_ms = to_ms(percentile(of.latencies, 1))});
  }
  r.offered_rps = static_cast<double>(r.offered) / span;
  r.goodput_rps = static_cast<double>(r.on_time) / span;
  r.finish_rate = r.offered == 0 ? 1 : static_cast<double>(r.on_time) / static_cast<double>(r.offered);
  r.p50_ms = to_ms(percentile(all, 0.5));
  r.p99_ms = to_ms(percentile(all, 0.99));
  r.p9999_ms = to_ms(percentile(all, 0.9999));
  r.max_ms = to_ms(percentile(all, 1));
  r.mean_batch = batches == 0 ? 0 : static_cast<double>(batched) / static_cast<double>(batches);
  std::uint64_t seen = 0;
  for (std::size_t b = 1; b < figures.batch_sizes.size(); ++b) {
    seen += figures.batch_sizes[b] * b;
    if (2 * seen >= batched && batched > 0) {
      r.median_batch = static_cast<int>(b);
      break;
    }
  }
  r.devices = static_cast<int>(figures.busy.size());
  for (const Duration busy : figures.busy) {
    r.devices_used += busy > Duration{0} ? 1 : 0;
    r.utilization += to_seconds(busy) / span / static_cast<double>(figures.busy.size());
  }
  r.loads = figures.loads;
  r.unloads = figures.unloads;
  r.stopped = figures.stopped;
  r.shed = figures.shed;
  r.events = figures.events;
  r.decisions = figures.decisions;
  r.wall_s = figures.wall_s;
  if (const LatencyHistogram& times = figures.decision_times; times.count() > 0)
    r.decision_times = {.mean_us = to_ms(times.mean()) * 1e3,
                        .p50_us = to_ms(times.percentile(0.5)) * 1e3,
                        .p99_us = to_ms(times.percentile(0.99)) * 1e3,
                        .max_us = to_ms(times.max()) * 1e3};
  r.scaling = figures.scaling;
  r.interval = interval;
  r.intervals = figures.intervals;
  if (!r.intervals.empty())
    for (const ModelFigures& m : figures.models) r.by_model.emplace_back(m.offered_by, m.on_time_by);
  return r;
}

// What happened by interval, a list for each figure.
static nlohmann::ordered_json series_json(const Report& r) {
  nlohmann::ordered_json json;
  json["interval_s"] = to_seconds(r.interval);
  const auto list = [&](const char* name, auto&& of) {
    auto& values = json[name] = nlohmann::ordered_json::array();
    for (const IntervalFigures& in : r.intervals) values.push_back(of(in));
  };
  const auto advice = [&](const IntervalFigures& in) {
    const double bad =
        in.offered == 0 ? 0 : static_cast<double>(in.late + in.refused) / static_cast<double>(in.offered);
    const double busy = to_seconds(in.busy) / to_seconds(in.length) / r.devices;
    return provision::autoscale_advice(r.devices, bad, std::clamp(1 - busy, 0.0, 1.0));
  };
  list("offered", [](const auto& in) { return in.offered; });
  list("on_time", [](const auto& in) { return in.on_time; });
  list("late", [](const auto& in) { return in.late; });
  list("refused", [](const auto& in) { return in.refused; });
  list("loads", [](const auto& in) { return in.loads; });
  list("max_ms", [](const auto& in) { return to_ms(in.longest); });
  list("busy_devices", [](const auto& in) { return to_seconds(in.busy) / to_seconds(in.length); });
  list("devices_used", [](const auto& in) { return in.devices_used; });
  list("add_devices", [&](const auto& in) { return advice(in).add_devices; });
  list("release_devices", [&](const auto& in) { return advice(in).release_devices; });
  return json;
}

static nlohmann::ordered_json scaling_json(const ScalingFigures& scaling) {
  nlohmann::ordered_json json;
  json["device_hours"] = scaling.device_seconds / 3600;
  json["cut_off"] = scaling.cut_off;
  for (const char* name : {"at_s", "wanted", "present", "coming"})
    json[name] = nlohmann::ordered_json::array();
  for (const ScalingLook& look : scaling.looks) {
    json["at_s"].push_back(to_seconds(look.at - TimePoint{}));
    json["wanted"].push_back(look.wanted);
    json["present"].push_back(look.present);
    json["coming"].push_back(look.coming);
  }
  return json;
}

nlohmann::ordered_json to_json(const Report& r) {
  nlohmann::ordered_json json;
  json["scenario"] = r.scenario;
  json["scheduler"] = r.scheduler;
  json["seed"] = r.seed;
  json["offered_rps"] = r.offered_rps;
  json["goodput_rps"] = r.goodput_rps;
  json["finish_rate"] = r.finish_rate;
  json["offered"] = r.offered;
  json["on_time"] = r.on_time;
  json["refused"] = r.refused;
  json["late"] = r.late;
  json["cancelled"] = r.cancelled;
  json["shed"] = r.shed;
  json["p50_ms"] = r.p50_ms;
  json["p99_ms"] = r.p99_ms;
  json["p9999_ms"] = r.p9999_ms;
  json["max_ms"] = r.max_ms;
  json["mean_batch"] = r.mean_batch;
  json["median_batch"] = r.median_batch;
  json["devices"] = r.devices;
  json["devices_used"] = r.devices_used;
  json["utilization"] = r.utilization;
  json["loads"] = r.loads;
  json["unloads"] = r.unloads;
  json["stopped"] = r.stopped;
  json["wall_s"] = r.wall_s;
  json["events"] = r.events;
  if (r.decision_times)
    json["decisions"] = {{"count", r.decisions},
                         {"mean_us", r.decision_times->mean_us},
                         {"p50_us", r.decision_times->p50_us},
                         {"p99_us", r.decision_times->p99_us},
                         {"max_us", r.decision_times->max_us}};
  const auto advice = provision::autoscale_advice(
      r.devices,
      static_cast<double>(r.late + r.refused) / static_cast<double>(std::max<std::uint64_t>(1, r.offered)),
      std::clamp(1 - r.utilization, 0.0, 1.0));
  json["advice"] = {{"add_devices", advice.add_devices},
                    {"release_devices", advice.release_devices},
                    {"bad_rate", advice.bad_rate},
                    {"idle_fraction", advice.idle_fraction}};
  for (const Report::OfClass& of : r.classes)
    json["classes"][std::string(of.name)] = {{"offered", of.offered},
                                             {"on_time", of.on_time},
                                             {"late", of.late},
                                             {"refused", of.refused},
                                             {"offered_rps", of.offered_rps},
                                             {"answered_rps", of.answered_rps},
                                             {"finish_rate", of.finish_rate},
                                             {"p50_ms", of.p50_ms},
                                             {"p99_ms", of.p99_ms},
                                             {"max_ms", of.max_ms}};
  if (!r.intervals.empty()) json["series"] = series_json(r);
  if (!r.scaling.looks.empty()) json["scaling"] = scaling_json(r.scaling);
  json["models"] = nlohmann::ordered_json::array();
  for (const Report::Model& m : r.models) {
    nlohmann::ordered_json model;
    model["name"] = m.name;
    model["offered_rps"] = m.offered_rps;
    model["finish_rate"] = m.finish_rate;
    model["p99_ms"] = m.p99_ms;
    model["mean_batch"] = m.mean_batch;
    model["late"] = {{"of", m.promised},
                     {"expected", m.expected_late},
                     {"were", m.promised_late},
                     {"avoidable", m.avoidable_late}};
    if (!r.by_model.empty()) {
      const auto& [offered, on_time] = r.by_model[json["models"].size()];
      model["series"] = {{"offered", offered}, {"on_time", on_time}};
    }
    json["models"].push_back(std::move(model));
  }
  return json;
}

std::string to_table(const Report& r) {
  std::string text = fmt::format(
      "{} under {}, seed {}\n"
      "  offered {:.1f}/s, on time {:.1f}/s ({:.3f}%), refused {}, late {}\n"
      "  latency p50 {:.2f} ms, p99 {:.2f} ms, p99.99 {:.2f} ms, max {:.2f} ms\n"
      "  batch mean {:.1f}, median {}; {} of {} devices used, {:.1f}% busy; {} events in {:.2f} s\n",
      r.scenario, r.scheduler, r.seed, r.offered_rps, r.goodput_rps, 100 * r.finish_rate, r.refused, r.late,
      r.p50_ms, r.p99_ms, r.p9999_ms, r.max_ms, r.mean_batch, r.median_batch, r.devices_used, r.devices,
      100 * r.utilization, r.events, r.wall_s);
  if (r.decision_times)
    text += fmt::format("  {} decisions took {:.1f} us each, p99 {:.1f} us, max {:.1f} us\n", r.decisions,
                        r.decision_times->mean_us, r.decision_times->p99_us, r.decision_times->max_us);
  if (r.shed > 0)
    text += fmt::format("  {} of the refused were turned away, as decisions fell behind\n", r.shed);
  for (const Report::OfClass& of : r.classes)
    text += fmt::format(
        "  {:<12}offered {:.1f}/s, answered {:.1f}/s, on time {:.3f}%, refused {}, late {}, p50 {:.2f} ms, "
        "p99 "
        "{:.2f} ms, max {:.2f} ms\n",
        of.name, of.offered_rps, of.answered_rps, 100 * of.finish_rate, of.refused, of.late, of.p50_ms,
        of.p99_ms, of.max_ms);
  constexpr std::size_t shown = 20;
  std::vector<const Report::Model*> models;
  for (const Report::Model& m : r.models) models.push_back(&m);
  if (models.size() > shown)
    std::stable_sort(models.begin(), models.end(),
                     [](const auto* a, const auto* b) { return a->finish_rate < b->finish_rate; });
  text +=
      fmt::format("  {:<28}{:>12}{:>12}{:>10}{:>8}\n", "model", "offered/s", "on time", "p99 ms", "batch");
  for (std::size_t i = 0; i < std::min(shown, models.size()); ++i)
    text +=
        fmt::format("  {:<28}{:>12.1f}{:>11.3f}%{:>10.2f}{:>8.1f}\n", models[i]->name, models[i]->offered_rps,
                    100 * models[i]->finish_rate, models[i]->p99_ms, models[i]->mean_batch);
  if (models.size() > shown) text += fmt::format("  and {} models that fare better\n", models.size() - shown);
  return text;
}

}  // namespace carillon::simulate
