#include "carillon/frontend/admin/metrics.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <vector>

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "carillon/frontend/access/guard.h"
#include "carillon/frontend/doors/commons.h"

namespace carillon::frontend {
namespace {

using controller::ModelStatistics;
using controller::ServerStatistics;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Upper ends of the histograms' buckets: 1, 2.5, 5 in each decade from 10 us to 10 s.
const std::vector<Duration> bucket_ends = {10us, 25us, 50us,  100us, 250us, 500us, 1ms,    2500us, 5ms, 10ms,
                                           25ms, 50ms, 100ms, 250ms, 500ms, 1s,    2500ms, 5s,     10s};

double us(const controller::StepStatistics& step) {
  return static_cast<double>(step.total.count() / 1000);
}

ClientMetric labelled(const ModelStatistics& model) {
  ClientMetric metric;
  metric.label = {{"model", model.name}, {"version", std::to_string(model.version)}};
  return metric;
}

ClientMetric::Histogram histogram_of(const LatencyHistogram& from) {
  ClientMetric::Histogram histogram;
  histogram.sample_count = from.count();
  histogram.sample_sum = to_seconds(from.sum());
  for (const auto end : bucket_ends) histogram.bucket.push_back({from.count_at_most(end), to_seconds(end)});
  histogram.bucket.push_back({from.count(), std::numeric_limits<double>::infinity()});
  return histogram;
}

// Of groups of devices, where this process knows how many are wanted.
void add_wanted(const std::vector<provision::WantedFigures>& groups, std::vector<MetricFamily>& to) {
  if (groups.empty()) return;
  const auto by_group = [&](std::string name, std::string help, auto value) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Gauge, {}};
    for (const provision::WantedFigures& group : groups) {
      ClientMetric metric;
      metric.label = {{"subcluster", group.group}};
      metric.gauge.value = static_cast<double>(value(group));
      family.metric.push_back(std::move(metric));
    }
    to.push_back(std::move(family));
  };
  by_group("carillon_devices_wanted",
           "Devices that the group should have: up at once, down after five minutes that needed fewer",
           [](const auto& of) { return of.wanted; });
  by_group("carillon_devices_present", "Devices of the group that are there",
           [](const auto& of) { return of.present; });
  by_group("carillon_devices_coming",
           "Wanted devices that are not there and have been waited for less than ten minutes",
           [](const auto& of) { return of.coming; });
  by_group("carillon_devices_given_up", "Wanted devices that have not come within ten minutes",
           [](const auto& of) { return of.given_up; });
  by_group("carillon_device_start_up_seconds",
           "How long devices took to come once they were wanted: the longest of the last eight; 0: none came",
           [](const auto& of) { return to_seconds(of.start_up); });
}

class Families {
 public:
  Families(const ServerStatistics& statistics, bool empty_histograms)
      : statistics_(statistics), empty_histograms_(empty_histograms) {}

  void counter(std::string name, std::string help, auto value) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Counter, {}};
    for (const auto& model : statistics_.models) {
      auto metric = labelled(model);
      metric.counter.value = static_cast<double>(value(model));
      family.metric.push_back(std::move(metric));
    }
    all.push_back(std::move(family));
  }

  // Of models that something was promised for.
  void promised(std::string name, std::string help, auto value) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Counter, {}};
    for (const auto& model : statistics_.models) {
      if (model.promised == 0) continue;
      auto metric = labelled(model);
      metric.counter.value = static_cast<double>(value(model));
      family.metric.push_back(std::move(metric));
    }
    if (!family.metric.empty()) all.push_back(std::move(family));
  }

  // One counter with a further label that tells several counts apart.
  void counters(std::string name, std::string help, const std::string& label,
                const std::vector<std::pair<std::string, std::uint64_t ModelStatistics::*>>& values) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Counter, {}};
    for (const auto& model : statistics_.models)
      for (const auto& [value, member] : values) {
        auto metric = labelled(model);
        metric.label.push_back({label, value});
        metric.counter.value = static_cast<double>(model.*member);
        family.metric.push_back(std::move(metric));
      }
    all.push_back(std::move(family));
  }

  void gauge(std::string name, std::string help, auto value) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Gauge, {}};
    for (const auto& model : statistics_.models) {
      auto metric = labelled(model);
      metric.gauge.value = static_cast<double>(value(model));
      family.metric.push_back(std::move(metric));
    }
    all.push_back(std::move(family));
  }

  // Of models that have one.
  void slos(std::string name, std::string help) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Gauge, {}};
    for (const auto& model : statistics_.models) {
      if (!model.slo) continue;
      auto metric = labelled(model);
      metric.gauge.value = to_seconds(*model.slo);
      family.metric.push_back(std::move(metric));
    }
    if (!family.metric.empty()) all.push_back(std::move(family));
  }

  void histogram(std::string name, std::string help, LatencyHistogram ModelStatistics::*member) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Histogram, {}};
    for (const auto& model : statistics_.models) {
      if (left_out(model.*member)) continue;
      auto metric = labelled(model);
      metric.histogram = histogram_of(model.*member);
      family.metric.push_back(std::move(metric));
    }
    all.push_back(std::move(family));
  }

  // Quantiles over all that was counted, to 3%: tails that the buckets of a histogram are too wide for.
  void summary(std::string name, std::string help, LatencyHistogram ModelStatistics::*member) {
    add_summary(std::move(name), std::move(help), member, {0.5, 0.9, 0.99, 0.999, 0.9999, 1.0}, 1);
  }
  // As Triton's default quantiles are, which count microseconds.
  void summary_us(std::string name, std::string help, LatencyHistogram ModelStatistics::*member) {
    add_summary(std::move(name), std::move(help), member, {0.5, 0.9, 0.95, 0.99, 0.999}, 1e6);
  }

  void server_gauge(std::string name, std::string help, double value) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Gauge, {ClientMetric{}}};
    family.metric[0].gauge.value = value;
    all.push_back(std::move(family));
  }

  void server_counter(std::string name, std::string help, double value) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Counter, {ClientMetric{}}};
    family.metric[0].counter.value = value;
    all.push_back(std::move(family));
  }

  // One sample a device.
  void server_counters(std::string name, std::string help, const std::string& label,
                       const std::vector<std::pair<std::string, std::uint64_t>>& values) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Counter, {}};
    for (const auto& [value, count] : values) {
      ClientMetric metric;
      metric.label = {{label, value}};
      metric.counter.value = static_cast<double>(count);
      family.metric.push_back(std::move(metric));
    }
    all.push_back(std::move(family));
  }

  void spans(const SpanCounts& counts, std::uint64_t requests_dropped) {
    server_counters(
        "carillon_otlp_spans_total",
        "Spans that the collector took (sent), that it refused (rejected), and that were given up "
        "as it was not there or refused their post (dropped)",
        "result", {{"sent", counts.sent}, {"dropped", counts.dropped}, {"rejected", counts.rejected}});
    server_counter("carillon_otlp_requests_dropped_total",
                   "Sampled requests without any spans, as the queue was full",
                   static_cast<double>(requests_dropped));
  }

  void devices(std::string name, std::string help, MetricType type, auto value) {
    MetricFamily family{std::move(name), std::move(help), type, {}};
    for (std::size_t i = 0; i < statistics_.devices.size(); ++i) {
      const controller::DeviceStatistics& device = statistics_.devices[i];
      ClientMetric metric;
      metric.label = {{"device", std::to_string(i)}, {"name", device.name}};
      (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
          static_cast<double>(value(device));
      family.metric.push_back(std::move(metric));
    }
    if (!family.metric.empty()) all.push_back(std::move(family));
  }

  std::vector<MetricFamily> all;

 private:
  bool left_out(const LatencyHistogram& counted) const { return !empty_histograms_ && counted.count() == 0; }
  void add_summary(std::string name, std::string help, LatencyHistogram ModelStatistics::*member,
                   std::initializer_list<double> quantiles, double units_a_second) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Summary, {}};
    for (const auto& model : statistics_.models) {
      const LatencyHistogram& counted = model.*member;
      if (left_out(counted)) continue;
      auto metric = labelled(model);
      metric.summary.sample_count = counted.count();
      metric.summary.sample_sum = to_seconds(counted.sum()) * units_a_second;
      for (const double q : quantiles)
        metric.summary.quantile.push_back({q, to_seconds(counted.percentile(q)) * units_a_second});
      family.metric.push_back(std::move(metric));
    }
    all.push_back(std::move(family));
  }

  const ServerStatistics& statistics_;
  bool empty_histograms_;
};

}  // namespace

std::string metrics_text(const ServerStatistics& statistics, const BesideStatistics& beside) {
  Families f(statistics, beside.empty_histograms);
  using M = ModelStatistics;
  f.counter("nv_inference_request_success", "Requests answered with their outputs",
            [](const M& m) { return m.success.count; });
  f.counters("nv_inference_request_failure", "Requests answered with an error, by reason", "reason",
             {{"REJECTED", &M::refused}, {"CANCELED", &M::cancelled}, {"OTHER", &M::failed}});
  f.counter("nv_inference_count", "Rows inferred", [](const M& m) { return m.inference_count; });
  f.counter("nv_inference_exec_count", "Batches executed", [](const M& m) { return m.execution_count; });
  f.counter("nv_inference_request_duration_us", "Total time from arrival to answer of successful requests",
            [](const M& m) { return us(m.success); });
  f.counter("nv_inference_queue_duration_us", "Total time waiting to be executed",
            [](const M& m) { return us(m.queue); });
  f.counter("nv_inference_compute_input_duration_us", "Total time moving inputs to the device",
            [](const M& m) { return us(m.compute_input); });
  f.counter("nv_inference_compute_infer_duration_us", "Total time executing",
            [](const M& m) { return us(m.compute_infer); });
  f.counter("nv_inference_compute_output_duration_us", "Total time moving outputs from the device",
            [](const M& m) { return us(m.compute_output); });

  f.gauge("nv_inference_pending_request_count", "Requests that wait to be executed",
          [](const M& m) { return m.waiting; });
  f.summary_us("nv_inference_request_summary_us", "From arrival to answer of successful requests",
               &M::latency);
  f.gauge("nv_model_load_duration_secs", "What it took to read, compile and measure the model, the last time",
          [](const M& m) { return to_seconds(m.load_time); });
  if (beside.host) {
    const HostStatistics& host = *beside.host;
    if (host.utilization)
      f.server_gauge("nv_cpu_utilization",
                     "Share of the machine's processor time that was used since the last look, 0 to 1",
                     *host.utilization);
    f.server_gauge("nv_cpu_memory_total_bytes", "Memory of the machine",
                   static_cast<double>(host.memory_total));
    f.server_gauge("nv_cpu_memory_used_bytes", "Memory of the machine that is not available to programs",
                   static_cast<double>(host.memory_used));
  }
  if (beside.process) {
    f.server_counter("process_cpu_seconds_total",
                     "Processor time of the server, the system's for it included",
                     to_seconds(beside.process->cpu));
    f.server_gauge("process_resident_memory_bytes", "Memory of the server that is in place",
                   static_cast<double>(beside.process->resident));
  }

  f.counters("carillon_requests_total", "Requests by outcome", "outcome",
             {{"on_time", &M::on_time},
              {"late", &M::late},
              {"refused", &M::refused},
              {"cancelled", &M::cancelled},
              {"failed", &M::failed}});
  f.counter("carillon_requests_shed_total",
            "Of the refused requests: turned away at once, as decisions on those before them fell behind",
            [](const M& m) { return m.shed; });
  f.counter("carillon_requests_invalid_total",
            "Of the failed requests: the model cannot use their data (an index out of range, a divisor of 0)",
            [](const M& m) { return m.invalid; });
  f.promised("carillon_promised_rows_total", "Rows that were answered by an execution",
             [](const M& m) { return m.promised; });
  f.promised("carillon_promised_rows_expected_late_total",
             "Of these rows, how many were expected to be late: the sum of their chances when they were sent",
             [](const M& m) { return m.expected_late; });
  f.promised("carillon_promised_rows_late_total", "Of these rows, how many were late",
             [](const M& m) { return m.promised_late; });
  f.promised(
      "carillon_promised_rows_avoidable_late_total",
      "Of the late rows, how many were sent though the chance of that was above the promised miss rate",
      [](const M& m) { return m.avoidable_late; });
  f.histogram("carillon_request_latency_seconds", "From arrival to answer, of successful requests",
              &M::latency);
  f.histogram("carillon_prediction_error_seconds", "How far predicted and measured execution times differ",
              &M::prediction_error);
  f.summary("carillon_exec_seconds", "Execution of one batch, as measured by the worker", &M::exec);
  f.summary("carillon_prediction_error_quantile_seconds",
            "How far predicted and measured execution times differ", &M::prediction_error);
  f.counter("carillon_preemptions_total", "Times a run made way for another and went on later",
            [](const M& m) { return m.preemptions; });
  f.counter("carillon_preemption_lost_seconds_total",
            "Time run again, as runs made way inside a kernel, which then starts anew",
            [](const M& m) { return to_seconds(m.preemption_lost); });
  f.counter("carillon_padded_seconds_total", "Time of best-effort runs beside real-time ones",
            [](const M& m) { return to_seconds(m.padded); });
  f.histogram("carillon_preemption_latency_seconds",
              "Of real-time runs that others made way for: from the device's receipt to the first kernel",
              &M::preemption_latency);
  f.counter("carillon_model_loads_total", "Times a model's weights were put onto the device",
            [](const M& m) { return m.loads; });
  f.counter("carillon_model_unloads_total", "Times a model's weights were taken off the device",
            [](const M& m) { return m.unloads; });
  f.counter("carillon_rows_total", "Rows of requests, whatever their outcome",
            [](const M& m) { return m.rows; });
  f.counter("carillon_profiled_total", "Finished requests that were run again alone, in idle time",
            [](const M& m) { return m.profiled; });
  f.slos("carillon_slo_seconds", "SLO of the model's requests that name no deadline");
  if (std::ranges::any_of(statistics.models, [](const M& m) { return m.share_pct > 0; })) {
    f.gauge("carillon_share_percent", "Share of the device's compute units that the plan gives the model",
            [](const M& m) { return m.share_pct; });
    f.gauge("carillon_on_standby", "1 where the model's standby has taken over",
            [](const M& m) { return m.on_standby ? 1 : 0; });
  }
  f.gauge("carillon_model_loaded", "1 where the model's weights are on a device",
          [](const M& m) { return m.loaded ? 1 : 0; });
  f.gauge("carillon_model_devices", "Devices that hold the model's weights",
          [](const M& m) { return m.devices; });
  using D = controller::DeviceStatistics;
  f.devices("carillon_device_up", "1 where the device serves, 0 where it was taken out", MetricType::Gauge,
            [](const D& d) { return d.alive ? 1 : 0; });
  f.devices("carillon_device_lost_total", "Times that the device was taken out, as it failed or hung",
            MetricType::Counter, [](const D& d) { return d.lost; });
  f.devices("carillon_device_odd_reports_total", "Reports of the device that belong to no action under way",
            MetricType::Counter, [](const D& d) { return d.odd_reports; });
  f.devices("carillon_device_executions_total", "Batches that the device has executed", MetricType::Counter,
            [](const D& d) { return d.executions; });
  f.devices("carillon_device_exec_busy_seconds_total", "Time that the device has spent executing batches",
            MetricType::Counter, [](const D& d) { return to_seconds(d.exec_busy); });
  f.devices("carillon_device_load_busy_seconds_total", "Time that the device has spent loading weights",
            MetricType::Counter, [](const D& d) { return to_seconds(d.load_busy); });
  f.devices("carillon_device_models", "Models whose weights the device holds", MetricType::Gauge,
            [](const D& d) { return d.models; });
  f.devices("carillon_device_pages", "Pages that the device's weight cache has", MetricType::Gauge,
            [](const D& d) { return d.pages_total; });
  f.devices("carillon_device_pages_free", "Pages of the device's weight cache that hold nothing",
            MetricType::Gauge, [](const D& d) { return d.pages_free; });
  f.server_gauge("carillon_page_cache_pages", "Pages that the weight cache has",
                 static_cast<double>(statistics.pages_total));
  f.server_gauge("carillon_page_cache_pages_free", "Pages of the weight cache that hold nothing",
                 static_cast<double>(statistics.pages_free));
  f.server_gauge("carillon_open_requests", "Requests that wait for their answer",
                 static_cast<double>(statistics.open_requests));
  f.server_gauge("carillon_sizes",
                 "Sizes of inputs, of models that leave them open, that there are plans for",
                 static_cast<double>(statistics.sizes));
  f.server_gauge("carillon_requests_waiting_for_size", "Requests that wait for plans of their size",
                 static_cast<double>(statistics.waiting_for_size));
  f.server_gauge("carillon_sizes_bytes",
                 "Memory that plans for sizes of inputs take beside the models' references, as plans tell it",
                 static_cast<double>(statistics.sizes_bytes));
  f.server_counter("carillon_sizes_made_total", "Sizes of inputs that plans were made for",
                   static_cast<double>(statistics.sizes_made));
  f.server_gauge("carillon_later_plan_models",
                 "Models that come with the plan of batch size 1, and get the others beside serving",
                 static_cast<double>(statistics.later_models));
  f.server_gauge("carillon_later_plan_models_complete",
                 "Models of carillon_later_plan_models that have their other plans now",
                 static_cast<double>(statistics.later_complete));
  f.server_gauge("carillon_later_plan_bytes", "Memory that these plans take, as plans tell it",
                 static_cast<double>(statistics.later_bytes));
  f.server_counter("carillon_later_plans_made_total", "How often a model got plans of larger batches",
                   static_cast<double>(statistics.later_made));
  f.server_counter("carillon_later_plans_dropped_total",
                   "How often a model lost plans of larger batches to others",
                   static_cast<double>(statistics.later_dropped));
  f.server_counter("carillon_exec_busy_seconds_total", "Time spent executing batches",
                   to_seconds(statistics.exec_busy));
  f.server_counter("carillon_load_busy_seconds_total", "Time spent loading weights",
                   to_seconds(statistics.load_busy));
  if (beside.access_lines && beside.access_dropped) {
    f.server_counter("carillon_access_log_lines_total", "Lines written to the access log",
                     static_cast<double>(*beside.access_lines));
    f.server_counter(
        "carillon_access_log_dropped_total",
        "Requests that are not in the access log, as its queue was full or its file not writable",
        static_cast<double>(*beside.access_dropped));
  }
  if (beside.spans && beside.span_requests_dropped) f.spans(*beside.spans, *beside.span_requests_dropped);
  if (beside.inflight_bytes && beside.inflight_limit_bytes) {
    f.server_gauge(
        "carillon_inflight_bytes",
        "Bytes of requests that are being read or open, and of answers that clients have not taken",
        static_cast<double>(*beside.inflight_bytes));
    f.server_gauge("carillon_inflight_limit_bytes", "What these may be (--inflight-limit)",
                   static_cast<double>(*beside.inflight_limit_bytes));
  }
  if (beside.memory) {
    f.server_gauge("carillon_memory_limit_bytes",
                   "What the server and its processes may have of memory (--memory)",
                   static_cast<double>(beside.memory->limit.count));
    f.server_gauge("carillon_memory_resident_bytes", "What they have: VmRSS, file pages included, of all",
                   static_cast<double>(beside.memory->resident.count));
    MetricFamily family{"carillon_memory_bytes", "What parts of the limit have", MetricType::Gauge, {}};
    for (const auto& [part, size] : beside.memory->parts) {
      ClientMetric metric;
      metric.label = {{"part", part}};
      metric.gauge.value = static_cast<double>(size.count);
      family.metric.push_back(std::move(metric));
    }
    f.all.push_back(std::move(family));
  }
  if (statistics.advice) {
    f.server_gauge("carillon_autoscale_add_devices",
                   "Devices that should be added, from the last minute's bad rate",
                   statistics.advice->add_devices);
    f.server_gauge("carillon_autoscale_release_devices",
                   "Devices that could be released, from the last minute's idle time",
                   statistics.advice->release_devices);
    f.server_gauge("carillon_bad_request_ratio",
                   "Requests of the last minute that were not answered on time, as a share",
                   statistics.advice->bad_rate);
    f.server_gauge("carillon_device_idle_ratio",
                   "Device time of the last minute in which nothing ran, as a share",
                   statistics.advice->idle_fraction);
  }
  add_wanted(statistics.wanted, f.all);
  if (statistics.moving) {
    ClientMetric metric;
    metric.gauge.value = static_cast<double>(*statistics.moving);
    f.all.push_back({"carillon_models_moving",
                     "Models that move to another group of devices",
                     MetricType::Gauge,
                     {std::move(metric)}});
  }
  return prometheus::TextSerializer().Serialize(f.all);
}

std::string wanted_text(const std::vector<provision::WantedFigures>& groups) {
  std::vector<MetricFamily> families;
  add_wanted(groups, families);
  return prometheus::TextSerializer().Serialize(families);
}

std::string spans_text(const SpanCounts& counts, std::uint64_t requests_dropped) {
  const ServerStatistics none;
  Families f(none, false);
  f.spans(counts, requests_dropped);
  return prometheus::TextSerializer().Serialize(f.all);
}

std::expected<std::shared_ptr<Caller>, HttpReply> MetricsApi::admit(const HttpHead& head) {
  auto admitted = commons_.guard->admit(head.credentials, Need::metrics, {}, service_.now(), false);
  if (!admitted) return std::unexpected(denial_reply(admitted.error()));
  return std::move(*admitted);
}

std::optional<HttpReply> refuse_but_metrics(const HttpRequest& request) {
  const auto path = request.target.substr(0, request.target.find('?'));
  if (path != "/metrics") return error_reply(404, "no such path here; metrics are at /metrics");
  if (request.method != "GET") {
    auto reply = error_reply(405, "use GET for /metrics");
    reply.headers.emplace_back("Allow", "GET");
    return reply;
  }
  return std::nullopt;
}

HttpReply metrics_reply(std::string text) {
  return HttpReply{.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(text)};
}

std::variant<HttpReply, Deferred> MetricsApi::handle(HttpRequest request, Deliver) {
  if (auto refused = refuse_but_metrics(request)) return *std::move(refused);
  BesideStatistics beside{.host = host_.look(),
                          .process = process_statistics(),
                          .empty_histograms = commons_.options.empty_histograms};
  beside.inflight_bytes = commons_.bodies->used();
  beside.inflight_limit_bytes = commons_.bodies->limit();
  if (commons_.access_log) {
    beside.access_lines = commons_.access_log->written();
    beside.access_dropped = commons_.access_log->dropped();
  }
  if (commons_.spans) {
    beside.spans = commons_.spans->counts();
    beside.span_requests_dropped = commons_.spans->requests_dropped();
  }
  const ServerStatistics statistics = service_.statistics();
  if (commons_.options.memory) {
    beside.memory = commons_.options.memory(statistics);
    beside.memory->parts.emplace_back("bodies", Bytes{*beside.inflight_bytes});
  }
  std::string text = metrics_text(statistics, beside);
  if (commons_.options.more_metrics) text += commons_.options.more_metrics();
  return metrics_reply(std::move(text));
}

}  // namespace carillon::frontend
