#include "carillon/simulate/testing/tally.h"

#include <algorithm>
#include <type_traits>

namespace carillon::simulate::testing {

Tally::Tally(const workload::Scenario& scenario, const Options& options)
    : warm_(TimePoint{} + scenario.warmup),
      end_(TimePoint{} + scenario.duration),
      interval_(options.interval),
      timeline_(options.timeline) {
  figures_.span = end_ - warm_;
  figures_.busy.resize(static_cast<std::size_t>(scenario.devices));
  if (interval_ > Duration{0})
    for (TimePoint from{}; from < end_; from += interval_)
      figures_.intervals.push_back({.length = std::min(interval_, end_ - from)});
  for (const workload::ScenarioModel& model : scenario.models) {
    ModelFigures m{.name = model.name, .slo = model.slo};
    m.offered_by.resize(figures_.intervals.size());
    m.on_time_by.resize(figures_.intervals.size());
    figures_.models.push_back(std::move(m));
  }
}

IntervalFigures* Tally::interval(TimePoint at) {
  if (figures_.intervals.empty() || at >= end_) return nullptr;
  return &figures_.intervals[static_cast<std::size_t>((at - TimePoint{}) / interval_)];
}

void Tally::sent(const Request& request) {
  ModelFigures& model = figures_.models[request.model.index()];
  if (request.arrival >= warm_) ++model.offered;
  if (request.arrival >= warm_) ++figures_.classes[static_cast<std::size_t>(request.cls)].offered;
  if (IntervalFigures* in = interval(request.arrival)) {
    ++in->offered;
    ++model.offered_by[static_cast<std::size_t>(in - figures_.intervals.data())];
  }
}

void Tally::outcome(const Request& request, Observer::Outcome outcome, TimePoint at) {
  using enum Observer::Outcome;
  ModelFigures& model = figures_.models[request.model.index()];
  const Duration latency = at - request.arrival;
  if (request.arrival >= warm_) {
    if (outcome == on_time) ++model.on_time;
    if (outcome == late) ++model.late;
    if (outcome == refused) ++model.refused;
    if (outcome == cancelled) ++model.cancelled;
    if (outcome == on_time || outcome == late) model.latencies.push_back(latency);
    ClassFigures& cls = figures_.classes[static_cast<std::size_t>(request.cls)];
    if (outcome == on_time) ++cls.on_time;
    if (outcome == late) ++cls.late;
    if (outcome == refused) ++cls.refused;
    if (outcome == cancelled) ++cls.cancelled;
    if (outcome == on_time || outcome == late) cls.latencies.push_back(latency);
  }
  if (IntervalFigures* in = interval(request.arrival)) {
    if (outcome == on_time) ++in->on_time;
    if (outcome == late) ++in->late;
    if (outcome == refused) ++in->refused;
    if (outcome == on_time || outcome == late) in->longest = std::max(in->longest, latency);
    if (outcome == on_time) ++model.on_time_by[static_cast<std::size_t>(in - figures_.intervals.data())];
  }
}

void Tally::ran(const Execution& execution, Duration busy, bool success) {
  const TimePoint start = execution.start, end = execution.end;
  const auto batch = static_cast<std::size_t>(execution.batch);
  const Duration within = std::max(Duration{0}, std::min(end, end_) - std::max(start, warm_));
  figures_.busy[execution.device.index()] +=
      busy == end - start ? within
                          : from_ns(static_cast<double>(busy.count()) * static_cast<double>(within.count()) /
                                    static_cast<double>((end - start).count()));
  if (IntervalFigures* in = interval(start)) {
    in->busy += busy;
    if (used_.emplace(in - figures_.intervals.data(), execution.device).second) ++in->devices_used;
  }
  if (start < warm_) return;
  if (figures_.timeline.size() < timeline_) figures_.timeline.push_back(execution);
  if (!success) return;
  ModelFigures& model = figures_.models[execution.model.index()];
  ++model.batches;
  model.batched += batch;
  if (figures_.batch_sizes.size() <= batch) figures_.batch_sizes.resize(batch + 1);
  ++figures_.batch_sizes[batch];
}

void Tally::loaded(TimePoint start) {
  ++figures_.loads;
  if (IntervalFigures* in = interval(start)) ++in->loads;
}

std::vector<std::string> Tally::differences(const Figures& told) const {
  std::vector<std::string> found;
  const auto same = [&found](const std::string& what, const auto& counted, const auto& said) {
    if (counted == said) return;
    if constexpr (std::is_integral_v<std::decay_t<decltype(counted)>>)
      found.push_back(what + ": counted " + std::to_string(counted) + ", told " + std::to_string(said));
    else
      found.push_back(what);
  };
  same("loads", figures_.loads, told.loads);
  same("unloads", figures_.unloads, told.unloads);
  same("stopped", figures_.stopped, told.stopped);
  same("too late", figures_.too_late, told.too_late);
  same("decisions", figures_.decisions, told.decisions);
  same("span", figures_.span, told.span);
  same("batch sizes", figures_.batch_sizes, told.batch_sizes);
  same("busy times", figures_.busy, told.busy);
  same("timeline", figures_.timeline, told.timeline);
  same("models", figures_.models.size(), told.models.size());
  for (std::size_t i = 0; i < std::min(figures_.models.size(), told.models.size()); ++i) {
    const ModelFigures &ours = figures_.models[i], &theirs = told.models[i];
    same("name of " + ours.name, ours.name, theirs.name);
    same("SLO of " + ours.name, ours.slo, theirs.slo);
    same("offered of " + ours.name, ours.offered, theirs.offered);
    same("on time of " + ours.name, ours.on_time, theirs.on_time);
    same("late of " + ours.name, ours.late, theirs.late);
    same("refused of " + ours.name, ours.refused, theirs.refused);
    same("cancelled of " + ours.name, ours.cancelled, theirs.cancelled);
    same("batches of " + ours.name, ours.batches, theirs.batches);
    same("batched of " + ours.name, ours.batched, theirs.batched);
    same("latencies of " + ours.name, ours.latencies, theirs.latencies);
    same("offered by interval of " + ours.name, ours.offered_by, theirs.offered_by);
    same("on time by interval of " + ours.name, ours.on_time_by, theirs.on_time_by);
  }
  for (std::size_t i = 0; i < figures_.classes.size(); ++i) {
    const ClassFigures &ours = figures_.classes[i], &theirs = told.classes[i];
    const std::string of = " of class " + std::to_string(i);
    same("offered" + of, ours.offered, theirs.offered);
    same("on time" + of, ours.on_time, theirs.on_time);
    same("late" + of, ours.late, theirs.late);
    same("refused" + of, ours.refused, theirs.refused);
    same("cancelled" + of, ours.cancelled, theirs.cancelled);
    same("latencies" + of, ours.latencies, theirs.latencies);
  }
  same("intervals", figures_.intervals.size(), told.intervals.size());
  for (std::size_t i = 0; i < std::min(figures_.intervals.size(), told.intervals.size()); ++i)
    same("interval " + std::to_string(i), figures_.intervals[i], told.intervals[i]);
  return found;
}

}  // namespace carillon::simulate::testing
