#include "carillon/share/overview.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>
#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

namespace carillon::share {

using device::JobReason;
using device::JobState;
using device::no_lane;

namespace {

constexpr JobState all_states[] = {JobState::queued, JobState::starting, JobState::waiting, JobState::running,
                                   JobState::recalled};

nlohmann::ordered_json json_of(const JobLine& line) {
  using Json = nlohmann::ordered_json;
  const device::JobView& view = line.view;
  return {{"job", view.job.value},
          {"name", line.name},
          {"pid", line.pid},
          {"uid", line.uid},
          {"state", name_of(view.state)},
          {"frozen", view.frozen},
          {"hangs", view.hanging},
          {"lane", view.lane == no_lane ? Json() : Json(view.lane.value)},
          {"persistent_bytes", view.memory.persistent.count},
          {"ephemeral_bytes", view.memory.ephemeral.count},
          {"weight", line.weight},
          {"share", line.share},
          {"iterations", view.iterations},
          {"attained_s", to_seconds(view.attained)},
          {"remaining_s", view.remaining ? Json(to_seconds(*view.remaining)) : Json()},
          {"here_s", to_seconds(line.here)}};
}

// Prometheus' families, one after the other.
class Families {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  void gauge(const std::string& name, const std::string& help, double value, Labels labels = {}) {
    at(name, help, prometheus::MetricType::Gauge, std::move(labels)).gauge.value = value;
  }
  void counter(const std::string& name, const std::string& help, std::uint64_t value, Labels labels = {}) {
    at(name, help, prometheus::MetricType::Counter, std::move(labels)).counter.value = static_cast<double>(value);
  }
  void histogram(const std::string& name, const std::string& help, const LatencyHistogram& from) {
    static constexpr Duration ends[] = {10us, 25us, 50us, 100us, 250us, 500us, 1ms, 2500us, 5ms, 10ms, 25ms,
                                        50ms, 100ms, 250ms, 500ms, 1s, 2500ms, 5s, 10s, 60s};
    auto& to = at(name, help, prometheus::MetricType::Histogram, {}).histogram;
    to.sample_count = from.count();
    to.sample_sum = to_seconds(from.sum());
    for (const Duration end : ends) to.bucket.push_back({from.count_at_most(end), to_seconds(end)});
    to.bucket.push_back({from.count(), std::numeric_limits<double>::infinity()});
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(all_); }

 private:
  prometheus::ClientMetric& at(const std::string& name, const std::string& help, prometheus::MetricType type,
                               Labels labels) {
    if (all_.empty() || all_.back().name != name) all_.push_back({name, help, type, {}});
    auto& metric = all_.back().metric.emplace_back();
    for (auto& [key, value] : labels) metric.label.push_back({std::move(key), std::move(value)});
    return metric;
  }

  std::vector<prometheus::MetricFamily> all_;
};

}  // namespace

std::string in_words(JobReason reason, const device::JobMemory& fits) {
  const std::string room = "there is room for " + to_text(fits.persistent) + " of persistent and " +
                           to_text(fits.ephemeral) + " of ephemeral memory";
  switch (reason) {
    case JobReason::none: return "for no reason that was told";
    case JobReason::too_large: return "it does not fit the device even alone: " + room;
    case JobReason::too_many: return "there are as many jobs as there may be";
    case JobReason::no_memory: return "it grew beyond the memory that there is for it: " + room;
    case JobReason::capacity_fell: return "the device's memory shrank below what its jobs have";
    case JobReason::hangs: return "it was told to stop, and no iteration ended for too long";
    case JobReason::bad_report: return "it told what cannot be";
  }
  return "?";
}

std::string to_json(const Overview& overview) {
  nlohmann::ordered_json object{{"policy", overview.policy},
                                {"capacity_bytes", overview.capacity.count},
                                {"persistent_bytes", overview.persistent.count},
                                {"ephemeral_bytes", overview.ephemeral.count},
                                {"device_wanted", overview.device_wanted},
                                {"hand_overs", overview.totals.hand_over.count()},
                                {"hand_over_us",
                                 {{"p50", to_us(overview.totals.hand_over.percentile(0.5))},
                                  {"p99", to_us(overview.totals.hand_over.percentile(0.99))}}},
                                {"jobs", nlohmann::ordered_json::array()},
                                {"lanes", nlohmann::ordered_json::array()}};
  for (const JobLine& line : overview.jobs) object["jobs"].push_back(json_of(line));
  for (const LaneLine& lane : overview.lanes) {
    nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
    for (const device::JobId job : lane.jobs) jobs.push_back(job.value);
    object["lanes"].push_back({{"lane", lane.id.value},
                               {"size_bytes", lane.size.count},
                               {"sealed", lane.sealed},
                               {"jobs", std::move(jobs)}});
  }
  return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string metrics_text(const Overview& overview) {
  Families out;
  const Totals& totals = overview.totals;
  for (const JobState state : all_states)
    out.gauge("carillon_share_jobs", "Jobs by state",
              static_cast<double>(std::count_if(overview.jobs.begin(), overview.jobs.end(),
                                                [&](const JobLine& line) { return line.view.state == state; })),
              {{"state", std::string(name_of(state))}});
  out.gauge("carillon_share_jobs_frozen", "Jobs that stand still within an iteration",
            static_cast<double>(std::ranges::count_if(overview.jobs, [](const JobLine& line) { return line.view.frozen; })));
  out.gauge("carillon_share_lanes", "Lanes", static_cast<double>(overview.lanes.size()));
  out.gauge("carillon_share_capacity_bytes", "Memory of the device for jobs",
            static_cast<double>(overview.capacity.count));
  out.gauge("carillon_share_persistent_bytes", "Persistent memory of the jobs",
            static_cast<double>(overview.persistent.count));
  out.gauge("carillon_share_lane_bytes", "Memory of all lanes", static_cast<double>(overview.ephemeral.count));
  out.gauge("carillon_share_device_wanted", "1 while somebody goes before all jobs", overview.device_wanted ? 1 : 0);
  out.counter("carillon_share_jobs_total", "Jobs that came", totals.came, {{"again", "0"}});
  out.counter("carillon_share_jobs_total", "Jobs that came", totals.again, {{"again", "1"}});
  out.counter("carillon_share_ended_total", "Jobs that ended, by how", totals.ended, {{"how", "done"}});
  out.counter("carillon_share_ended_total", "Jobs that ended, by how", totals.lost, {{"how", "within_an_iteration"}});
  out.counter("carillon_share_refused_total", "Jobs that were not taken", totals.refused);
  for (std::size_t i = 1; i < job_reasons; ++i)
    out.counter("carillon_share_evictions_total", "Jobs that were evicted, by reason", totals.evicted[i],
                {{"reason", std::string(name_of(static_cast<JobReason>(i)))}});
  out.counter("carillon_share_grants_total", "Times that a job was let run", totals.grants);
  out.counter("carillon_share_recalls_total", "Times that a job was told to stop", totals.recalls);
  out.counter("carillon_share_freezes_total", "Times that a job was frozen within an iteration", totals.freezes);
  out.counter("carillon_share_killed_total", "Jobs that did not end when evicted", totals.killed);
  out.counter("carillon_share_turned_away_total", "Connections that became no job", totals.turned_away);
  out.counter("carillon_share_bad_packets_total", "Packets that could not be understood", totals.bad_packets);
  out.histogram("carillon_share_hand_over_seconds",
                "From the packet that says that a lane is free until the next job has it", totals.hand_over);
  out.histogram("carillon_share_until_stop_seconds", "From a recall until the job is out of its lane",
                totals.until_stop);
  out.histogram("carillon_share_freeze_seconds", "To stop all processes of a job", totals.freezing);
  return out.text();
}

}  // namespace carillon::share
