#include "carillon/research/disb_report.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "carillon/base/assert.h"
#include "carillon/base/statistics.h"

namespace carillon::research {
namespace {

using nlohmann::ordered_json;
using Requests = DisbReport::Requests;

// Reorders `latencies`.
Requests requests_of(const Requests& counted, std::vector<Duration>& latencies, double seconds) {
  Requests told = counted;
  told.answered = latencies.size();
  if (latencies.empty()) return told;
  const auto count = static_cast<double>(latencies.size());
  told.rps = count / seconds;
  double sum = 0;
  for (const Duration latency : latencies) sum += to_ms(latency);
  told.mean_ms = sum / count;
  told.p50_ms = to_ms(percentile(latencies, 0.5));
  told.p99_ms = to_ms(percentile(latencies, 0.99));
  told.p999_ms = to_ms(percentile(latencies, 0.999));
  return told;
}

const char* name_of_class(Class cls) {
  return cls == Class::real_time ? "real_time" : "best_effort";
}

ordered_json to_json(const Requests& r) {
  return {{"requests", r.requests},     {"answered", r.answered}, {"dropped", r.dropped},
          {"unfinished", r.unfinished}, {"rps", r.rps},           {"mean_ms", r.mean_ms},
          {"p50_ms", r.p50_ms},         {"p99_ms", r.p99_ms},     {"p999_ms", r.p999_ms}};
}

ordered_json to_json(const DisbLive& live) {
  ordered_json alone = ordered_json::object();
  for (const auto& [model, ms] : live.alone_ms) alone[model] = ms;
  ordered_json bins = ordered_json::array();
  for (const DisbLive::Bin& bin : live.preemption_histogram)
    bins.push_back(ordered_json{
        {"at_most_us", bin.at_most_us > 0 ? ordered_json(bin.at_most_us) : ordered_json(nullptr)},
        {"count", bin.count}});
  return {{"device", live.device},
          {"threads", live.threads},
          {"scale", live.scale},
          {"real_time_share", live.real_time_share},
          {"alone_ms", alone},
          {"interrupted", live.interrupted},
          {"preemption_p90_us", live.preemption_p90_us},
          {"preemption_max_us", live.preemption_max_us},
          {"preemption_histogram", bins},
          {"paused_runs", live.paused_runs},
          {"paused_ms", to_ms(live.paused)},
          {"lost_ms", live.lost ? ordered_json(to_ms(*live.lost)) : ordered_json(nullptr)},
          {"late_p50_us", live.late_p50_us},
          {"late_p99_us", live.late_p99_us}};
}

// The lines above a table of live runs: what they ran on.
std::string head_of(const DisbLive& live) {
  std::string text = fmt::format("{}; rates times {:.4g}", live.device, live.scale);
  if (live.real_time_share > 0)
    text += fmt::format(", of which real-time requests ask for {:.1f}% of the device",
                        100 * live.real_time_share);
  text += "\nalone:";
  for (const auto& [model, ms] : live.alone_ms)
    text += fmt::format("{} {} {:.2f} ms", &model == &live.alone_ms.front().first ? "" : ",", model, ms);
  return text + "\n";
}

// "+1.2%", or nothing where there is nothing to compare with.
std::string over(double value, double base) {
  return base > 0 && value > 0 ? fmt::format("{:+.1f}%", 100 * (value / base - 1)) : "";
}

}  // namespace

DisbReport make_disb_report(std::string_view workload, std::string_view scheduler, std::uint64_t seed,
                            int units, DisbFigures figures) {
  CARILLON_ASSERT(units >= 1 && figures.length > Duration{0});
  DisbReport report{.workload = std::string(workload), .scheduler = std::string(scheduler), .seed = seed};
  report.seconds = static_cast<double>(figures.length.count()) / 1e9;  // a second is 1, exactly
  std::vector<Duration> best_effort;
  Requests sums[2];  // real-time, best-effort
  for (DisbClientFigures& client : figures.clients) {
    const bool real_time = client.cls == Class::real_time;
    Requests& sum = sums[real_time ? 0 : 1];
    sum.requests += client.requests;
    sum.dropped += client.dropped;
    sum.unfinished += client.unfinished;
    auto& all = real_time ? report.real_time_latencies : best_effort;
    all.insert(all.end(), client.latencies.begin(), client.latencies.end());
    const Requests told =
        requests_of({.requests = client.requests, .dropped = client.dropped, .unfinished = client.unfinished},
                    client.latencies, report.seconds);
    report.clients.push_back({std::move(client.name), std::move(client.model), client.cls, told});
  }
  report.real_time = requests_of(sums[0], report.real_time_latencies, report.seconds);
  std::ranges::sort(report.real_time_latencies);  // last, as percentiles reorder
  report.best_effort = requests_of(sums[1], best_effort, report.seconds);
  report.total_rps = report.real_time.rps + report.best_effort.rps;
  report.preemptions = figures.preemptions.size();
  report.preemption_p50_us = to_us(percentile(figures.preemptions, 0.5));
  report.preemption_p99_us = to_us(percentile(figures.preemptions, 0.99));
  report.models = std::move(figures.models);
  report.utilization = to_seconds(figures.busy) / units / report.seconds;
  return report;
}

ordered_json to_json(const DisbReport& r) {
  ordered_json json{{"workload", r.workload},
                    {"scheduler", r.scheduler},
                    {"seed", r.seed},
                    {"seconds", r.seconds},
                    {"total_rps", r.total_rps},
                    {"preemptions", r.preemptions},
                    {"preemption_p50_us", r.preemption_p50_us},
                    {"preemption_p99_us", r.preemption_p99_us},
                    {"rt", to_json(r.real_time)},
                    {"be", to_json(r.best_effort)},
                    {"utilization", r.utilization}};
  ordered_json& clients = json["clients"] = ordered_json::array();
  for (const DisbReport::Client& c : r.clients)
    clients.push_back(ordered_json{{"name", c.name},
                                   {"model", c.model},
                                   {"class", name_of_class(c.cls)},
                                   {"requests", c.requests.requests},
                                   {"answered", c.requests.answered},
                                   {"dropped", c.requests.dropped},
                                   {"unfinished", c.requests.unfinished},
                                   {"rps", c.requests.rps},
                                   {"mean_ms", c.requests.mean_ms},
                                   {"p50_ms", c.requests.p50_ms},
                                   {"p99_ms", c.requests.p99_ms}});
  ordered_json& models = json["models"] = ordered_json::array();
  for (const DisbModelFigures& m : r.models)
    models.push_back(ordered_json{{"model", m.model},
                                  {"real_time_ms", to_ms(m.real_time)},
                                  {"best_effort_ms", to_ms(m.best_effort)},
                                  {"padded_ms", to_ms(m.padded)},
                                  {"lost_ms", to_ms(m.lost)},
                                  {"killed", m.killed}});
  if (r.live) json["live"] = to_json(*r.live);
  json["wall_s"] = r.wall_s;
  return json;
}

std::string to_table(std::span<const DisbReport> runs) {
  CARILLON_ASSERT(!runs.empty());
  const DisbReport& first = runs.front();
  const auto alone = std::ranges::find(runs, "rt-only", &DisbReport::scheduler);
  const bool compared = alone != runs.end() && runs.size() > 1;
  std::string text = fmt::format("DISB {}, {:g} s, seed {}; latencies in ms, preemption in us, requests/s\n",
                                 first.workload, first.seconds, first.seed);
  if (first.live) text += head_of(*first.live);
  text += fmt::format("{:<12}{:>10}{:>9}{:>10}{:>9}{:>10}{:>11}{:>9}{:>12}{:>10}{:>10}{:>8}", "scheduler",
                      "rt mean", "", "rt p99", "", "dropped", "requests/s", "", "preempt p50", " p99",
                      "preempted", "busy");
  if (first.live) text += fmt::format("{:>11}{:>11}{:>11}", "paused ms", "lost ms", "late p99");
  text += "\n";
  for (const DisbReport& r : runs) {
    text += fmt::format(
        "{:<12}{:>10.3f}{:>9}{:>10.3f}{:>9}{:>10}{:>11.1f}{:>9}{:>12.1f}{:>10.1f}{:>10}{:>7.1f}%",
        r.scheduler, r.real_time.mean_ms, compared ? over(r.real_time.mean_ms, alone->real_time.mean_ms) : "",
        r.real_time.p99_ms, compared ? over(r.real_time.p99_ms, alone->real_time.p99_ms) : "",
        r.real_time.dropped, r.total_rps,
        compared && alone->total_rps > 0 ? fmt::format("x {:.2f}", r.total_rps / alone->total_rps) : "",
        r.preemption_p50_us, r.preemption_p99_us, r.preemptions, 100 * r.utilization);
    if (r.live)
      text += fmt::format("{:>11.1f}{:>11}{:>11.1f}", to_ms(r.live->paused),
                          r.live->lost ? fmt::format("{:.1f}", to_ms(*r.live->lost)) : "unknown",
                          r.live->late_p99_us);
    text += "\n";
  }
  for (const DisbReport& r : runs)
    if (r.live && r.live->interrupted)
      text += fmt::format("{} was interrupted after {:g} s.\n", r.scheduler, r.seconds);
  if (compared) text += "Differences and ratios are to rt-only, which runs real-time requests alone.\n";
  if (runs.size() > 1) return text;
  text += fmt::format("\n{:<24}{:<24}{:<13}{:>9}{:>9}{:>9}{:>11}{:>9}{:>10}{:>10}{:>10}\n", "client", "model",
                      "class", "planned", "answered", "dropped", "unfinished", "rps", "mean", "p50", "p99");
  for (const DisbReport::Client& c : first.clients)
    text += fmt::format("{:<24}{:<24}{:<13}{:>9}{:>9}{:>9}{:>11}{:>9.1f}{:>10.3f}{:>10.3f}{:>10.3f}\n",
                        c.name, c.model, name_of_class(c.cls), c.requests.requests, c.requests.answered,
                        c.requests.dropped, c.requests.unfinished, c.requests.rps, c.requests.mean_ms,
                        c.requests.p50_ms, c.requests.p99_ms);
  return text;
}

}  // namespace carillon::research
