#include "carillon/roles/metrics.h"

#include <limits>
#include <utility>
#include <vector>

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

namespace carillon::roles {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class ClusterFamilies {
 public:
  void begin(const char* name, const char* help, MetricType type) { all_.push_back({name, help, type, {}}); }
  // Of the family that was begun last.
  ClientMetric& add(const char* label = nullptr, std::string value = {}) {
    ClientMetric& metric = all_.back().metric.emplace_back();
    if (label != nullptr) metric.label.push_back({label, std::move(value)});
    return metric;
  }
  void gauge(const char* name, const char* help, double value) {
    begin(name, help, MetricType::Gauge);
    add().gauge.value = value;
  }
  void counter(const char* name, const char* help, const std::optional<std::uint64_t>& value) {
    if (!value) return;
    begin(name, help, MetricType::Counter);
    add().counter.value = static_cast<double>(*value);
  }
  static void fill(ClientMetric::Histogram& to, const LatencyHistogram& from) {
    static constexpr Duration ends[] = {10us, 25us, 50us, 100us, 250us, 500us, 1ms, 2500us, 5ms,
                                        10ms, 25ms, 50ms, 100ms, 250ms, 500ms, 1s,  2500ms, 5s};
    to.sample_count = from.count();
    to.sample_sum = to_seconds(from.sum());
    for (const Duration end : ends) to.bucket.push_back({from.count_at_most(end), to_seconds(end)});
    to.bucket.push_back({from.count(), std::numeric_limits<double>::infinity()});
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(all_); }

 private:
  std::vector<MetricFamily> all_;
};

}  // namespace

std::string cluster_text(const ClusterFigures& figures) {
  const hosts::MemberFigures& member = figures.member;
  ClusterFamilies f;
  f.gauge("carillon_cluster_epoch", "The highest epoch of the cluster that the process knows",
          static_cast<double>(member.epoch));
  if (member.role == cluster::Role::scheduler)
    f.gauge("carillon_cluster_leads", "1 where this scheduler leads", member.leads ? 1 : 0);
  f.counter("carillon_cluster_leader_changes_total",
            "Epochs whose leader the process has come to know, without the first", member.leader_changes);
  f.counter("carillon_cluster_beats_total", "Beats of leaders that were heard; a leader hears none",
            member.beats);
  f.counter("carillon_cluster_beats_missed_total",
            "Beats of leaders that were lost, or came after later ones", member.beats_missed);
  f.begin("carillon_cluster_clock_bound_seconds",
          "How far the clock of a member that is there may be from what this process takes it to be",
          MetricType::Gauge);
  for (const auto& [id, bound] : member.clocks) f.add("peer", id).gauge.value = to_seconds(bound);
  f.begin("carillon_cluster_round_trip_seconds",
          "From a datagram to another member until its echo, without the time that the other kept it",
          MetricType::Histogram);
  for (const auto& [role, times] : member.round_trips)
    ClusterFamilies::fill(f.add("peer_role", std::string(cluster::name_of(role))).histogram, times);
  f.counter("carillon_cluster_rows_reoffered_total",
            "Rows that were given to be decided on once more, as their leader or worker went, or their "
            "outputs did not come",
            figures.reoffered);
  f.counter("carillon_cluster_rows_doubled_total",
            "Outputs that came for rows which had outputs of another run already", figures.doubled);
  f.counter("carillon_cluster_rows_unwanted_total",
            "Rows that ran, and whose outputs no frontend took: they ran elsewhere, too, or their clients "
            "had gone",
            figures.unwanted);
  if (figures.moving)
    f.gauge("carillon_models_moving", "Models that move between groups of devices",
            static_cast<double>(*figures.moving));
  if (figures.rows) {
    f.begin("carillon_cluster_row_pull_seconds",
            "From when a row's inputs were asked for at its frontend until all were there",
            MetricType::Histogram);
    ClusterFamilies::fill(f.add().histogram, figures.rows->pulls);
    f.begin("carillon_cluster_row_push_seconds",
            "From when a row's outputs were ready to be sent until its frontend had taken them",
            MetricType::Histogram);
    ClusterFamilies::fill(f.add().histogram, figures.rows->pushes);
  }
  return f.text();
}

}  // namespace carillon::roles
