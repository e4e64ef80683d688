#include "carillon/simulate/jobs_report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "carillon/base/assert.h"
#include "carillon/base/statistics.h"

namespace carillon::simulate {
namespace {

using nlohmann::ordered_json;

double mean_seconds(std::span<const Duration> values) {
  double sum = 0;
  for (const Duration value : values) sum += to_seconds(value);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::string why(const JobFigures& figures) {
  std::string text(device::name_of(figures.reason));
  if (figures.fits.persistent + figures.fits.ephemeral > Bytes{})
    text += fmt::format(" (what fits: {} persistent, {} ephemeral)", to_text(figures.fits.persistent),
                        to_text(figures.fits.ephemeral));
  return text;
}

}  // namespace

JobsReport make_jobs_report(const workload::Jobs& jobs, std::string_view scheduler, JobsFigures figures,
                            Duration interval) {
  CARILLON_ASSERT(figures.jobs.size() == jobs.jobs.size());
  JobsReport r;
  r.name = jobs.name;
  r.scheduler = scheduler;
  r.seed = jobs.seed;
  r.jobs = jobs.jobs.size();
  std::vector<Duration> completion, queueing, latencies;
  double slowdowns = 0, alone_ms = 0;
  Duration busy{0}, longest{0};
  for (std::size_t i = 0; i < figures.jobs.size(); ++i) {
    JobFigures& f = figures.jobs[i];
    const workload::Job& job = jobs.jobs[i];
    JobsReport::Job each;
    each.name = job.name;
    each.model = job.model;
    each.arrival_s = to_seconds(job.arrival - TimePoint{});
    if (f.began) {
      queueing.push_back(*f.began - f.came);
      each.queue_s = to_seconds(queueing.back());
    }
    if (f.outcome == JobOutcome::finished) {
      const Duration took = f.ended - job.arrival;
      completion.push_back(took);
      each.jct_s = to_seconds(took);
      slowdowns += to_seconds(took) / std::max(1e-9, to_seconds(job.startup + f.device_time));
    }
    switch (f.outcome) {
      case JobOutcome::finished:
        ++r.finished;
        break;
      case JobOutcome::refused:
        ++r.refused;
        break;
      case JobOutcome::evicted:
        ++r.evicted;
        break;
      case JobOutcome::died:
        ++r.died;
        break;
      case JobOutcome::unfinished:
        ++r.unfinished;
        break;
    }
    r.iterations += f.iterations;
    busy += f.busy;
    longest = std::max(longest, f.longest_wait);
    latencies.insert(latencies.end(), f.latencies.begin(), f.latencies.end());
    alone_ms += static_cast<double>(f.latencies.size()) * to_ms(job.iteration);
    each.figures = std::move(f);
    r.each.push_back(std::move(each));
  }
  const Duration makespan = figures.last - figures.first;
  const double seconds = std::max(1e-9, to_seconds(makespan));
  r.makespan_s = to_seconds(makespan);
  r.mean_jct_s = mean_seconds(completion);
  r.p50_jct_s = to_seconds(percentile(completion, 0.5));
  r.p95_jct_s = to_seconds(percentile(completion, 0.95));
  r.max_jct_s = to_seconds(percentile(completion, 1));
  r.mean_queue_s = mean_seconds(queueing);
  r.p95_queue_s = to_seconds(percentile(queueing, 0.95));
  r.max_queue_s = to_seconds(percentile(queueing, 1));
  r.longest_wait_s = to_seconds(longest);
  r.mean_slowdown = completion.empty() ? 0 : slowdowns / static_cast<double>(completion.size());
  r.utilization = to_seconds(figures.busy) / seconds;
  r.work = to_seconds(figures.device_time) / seconds;
  if (figures.device_time > Duration{0}) r.overhead = to_seconds(busy) / to_seconds(figures.device_time) - 1;
  r.switches = figures.switches;
  r.moves = figures.moves;
  r.freezes = figures.freezes;
  r.events = figures.events;
  r.most_lanes = figures.most_lanes;
  r.memory = jobs.device.memory;
  r.most_memory = figures.most_memory;
  r.requests = latencies.size();
  if (!latencies.empty()) {
    r.mean_latency_ms = 1e3 * mean_seconds(latencies);
    r.mean_alone_ms = alone_ms / static_cast<double>(latencies.size());
    r.p99_latency_ms = to_ms(percentile(latencies, 0.99));
  }
  r.interval_s = to_seconds(interval);
  r.intervals = std::move(figures.intervals);
  return r;
}

ordered_json to_json(const JobsReport& r, bool each) {
  ordered_json json{{"jobs_file", r.name},
                    {"scheduler", r.scheduler},
                    {"seed", r.seed},
                    {"jobs", r.jobs},
                    {"finished", r.finished},
                    {"refused", r.refused},
                    {"evicted", r.evicted},
                    {"died", r.died},
                    {"unfinished", r.unfinished},
                    {"makespan_s", r.makespan_s},
                    {"mean_jct_s", r.mean_jct_s},
                    {"p50_jct_s", r.p50_jct_s},
                    {"p95_jct_s", r.p95_jct_s},
                    {"max_jct_s", r.max_jct_s},
                    {"mean_queue_s", r.mean_queue_s},
                    {"p95_queue_s", r.p95_queue_s},
                    {"max_queue_s", r.max_queue_s},
                    {"longest_wait_s", r.longest_wait_s},
                    {"mean_slowdown", r.mean_slowdown},
                    {"utilization", r.utilization},
                    {"work", r.work},
                    {"overhead", r.overhead},
                    {"iterations", r.iterations},
                    {"switches", r.switches},
                    {"moves", r.moves},
                    {"freezes", r.freezes},
                    {"events", r.events},
                    {"most_lanes", r.most_lanes},
                    {"memory_bytes", r.memory.count},
                    {"most_memory_bytes", r.most_memory.count}};
  if (r.requests > 0) {
    json["requests"] = r.requests;
    json["mean_latency_ms"] = r.mean_latency_ms;
    json["p99_latency_ms"] = r.p99_latency_ms;
    json["mean_alone_ms"] = r.mean_alone_ms;
  }
  if (each) {
    ordered_json& list = json["each"] = ordered_json::array();
    for (const JobsReport::Job& job : r.each) {
      const JobFigures& f = job.figures;
      ordered_json one{
          {"name", job.name},
          {"model", job.model},
          {"outcome", name_of(f.outcome)},
          {"arrival_s", job.arrival_s},
          {"began_s", f.began ? ordered_json(to_seconds(*f.began - TimePoint{})) : ordered_json()},
          {"ended_s", to_seconds(f.ended - TimePoint{})},
          {"jct_s", job.jct_s},
          {"queue_s", job.queue_s},
          {"longest_wait_s", to_seconds(f.longest_wait)},
          {"iterations", f.iterations},
          {"device_time_s", to_seconds(f.device_time)},
          {"grants", f.grants}};
      if (f.reason != device::JobReason::none) {
        one["reason"] = device::name_of(f.reason);
        one["fits_persistent_bytes"] = f.fits.persistent.count;
        one["fits_ephemeral_bytes"] = f.fits.ephemeral.count;
      }
      list.push_back(std::move(one));
    }
  }
  if (r.interval_s > 0) {
    json["interval_s"] = r.interval_s;
    ordered_json& series = json["series"] = ordered_json::array();
    for (const JobInterval& in : r.intervals) {
      if (series.empty() || series.back()["interval"] != in.interval)
        series.push_back(ordered_json{{"interval", in.interval}, {"iterations", ordered_json::object()}});
      series.back()["iterations"][r.each[in.job].name] = in.iterations;
    }
  }
  return json;
}

std::string to_table(std::span<const JobsReport> runs) {
  CARILLON_ASSERT(!runs.empty());
  const JobsReport& first = runs.front();
  std::string text = fmt::format(
      "{}: {} jobs, {}; times in s\n{:<10}{:>6}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>8}{:>7}"
      "{:>7}{:>10}{:>10}\n",
      first.name, first.jobs, to_text(first.memory), "scheduler", "seed", "makespan", "mean JCT", "95% JCT",
      "queueing", "95% of it", "longest w.", "busy", "work", "lanes", "switches", "finished");
  for (const JobsReport& r : runs) {
    text += fmt::format(
        "{:<10}{:>6}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>7.1f}%{:>7.2f}{:>7}{:>10}"
        "{:>10}",
        r.scheduler, r.seed, r.makespan_s, r.mean_jct_s, r.p95_jct_s, r.mean_queue_s, r.p95_queue_s,
        r.longest_wait_s, 100 * r.utilization, r.work, r.most_lanes, r.switches, r.finished);
    if (r.refused > 0) text += fmt::format("  {} refused", r.refused);
    if (r.evicted > 0) text += fmt::format("  {} evicted", r.evicted);
    if (r.died > 0) text += fmt::format("  {} died", r.died);
    if (r.unfinished > 0) text += fmt::format("  {} unfinished", r.unfinished);
    text += "\n";
  }
  for (const JobsReport& r : runs)
    if (r.requests > 0)
      text += fmt::format("{}: {} requests, mean latency {:.2f} ms ({:.2f} alone), p99 {:.2f} ms\n",
                          r.scheduler, r.requests, r.mean_latency_ms, r.mean_alone_ms, r.p99_latency_ms);
  if (runs.size() > 1) return text;
  constexpr std::size_t shown = 20;
  std::size_t told = 0;
  for (const JobsReport::Job& job : first.each) {
    if (job.figures.outcome == JobOutcome::finished) continue;
    if (++told > shown) continue;
    text += fmt::format("  {}: {} after {} iterations", job.name, name_of(job.figures.outcome),
                        job.figures.iterations);
    if (job.figures.reason != device::JobReason::none) text += ": " + why(job.figures);
    text += "\n";
  }
  if (told > shown) text += fmt::format("  and {} more\n", told - shown);
  return text;
}

}  // namespace carillon::simulate
