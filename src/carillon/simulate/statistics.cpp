#include "carillon/simulate/statistics.h"

#include <algorithm>

namespace carillon::simulate {

namespace {

// Device time of a request, in the largest batch that half of its SLO is enough for.
double cost(const workload::ScenarioModel& model) {
  int batch = 1;
  while (batch < model.max_batch && model.latency.expected(batch + 1) <= model.slo / 2) ++batch;
  return to_seconds(model.latency.expected(batch)) / batch;
}

}  // namespace

Statistics::Statistics(const workload::Scenario& scenario, const Options& options)
    : warm_(TimePoint{} + scenario.warmup),
      end_(TimePoint{} + scenario.duration),
      length_(options.interval),
      timeline_(options.timeline) {
  figures.models.resize(scenario.models.size());
  for (std::size_t i = 0; i < scenario.models.size(); ++i) {
    figures.models[i].name = scenario.models[i].name;
    figures.models[i].slo = scenario.models[i].slo;
  }
  double all = 0;
  for (const workload::ScenarioModel& model : scenario.models) all += weights_.emplace_back(cost(model));
  for (double& weight : weights_) weight *= static_cast<double>(weights_.size()) / all;
  const auto devices = static_cast<std::size_t>(scenario.devices);
  figures.busy.resize(devices);
  figures.span = end_ - warm_;
  if (length_ <= Duration{0}) return;
  const auto count = static_cast<std::size_t>((scenario.duration + length_ - 1ns) / length_);
  figures.intervals.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    figures.intervals[i].length =
        std::min(length_, scenario.duration - length_ * static_cast<std::int64_t>(i));
  used_in_.assign(devices, std::vector<bool>(count));
  for (ModelFigures& m : figures.models) {
    m.offered_by.resize(count);
    m.on_time_by.resize(count);
  }
}

void Statistics::sent(ModelId model, Class cls, TimePoint at) {
  if (at >= warm_) {
    ++figures.models[model.index()].offered;
    ++figures.classes[static_cast<std::size_t>(cls)].offered;
  }
  if (IntervalFigures* in = interval(at)) {
    ++in->offered;
    ++figures.models[model.index()].offered_by[interval_index(at)];
  }
}

void Statistics::ended(ModelId model, Class cls, TimePoint sent, Observer::Outcome outcome, TimePoint at) {
  using enum Observer::Outcome;
  const bool answered = outcome == on_time || outcome == late;
  const double weight = weights_[model.index()];
  requests_ += answered || outcome == refused ? weight : 0;
  bad_ += outcome == late || outcome == refused ? weight : 0;
  ModelFigures& f = figures.models[model.index()];
  if (IntervalFigures* in = interval(sent)) {
    in->on_time += outcome == on_time ? 1U : 0U;
    in->late += outcome == late ? 1U : 0U;
    in->refused += outcome == refused ? 1U : 0U;
    if (answered) in->longest = std::max(in->longest, at - sent);
    if (outcome == on_time) ++f.on_time_by[interval_index(sent)];
  }
  if (sent < warm_) return;
  const auto count = [&](auto& of) {
    of.on_time += outcome == on_time ? 1U : 0U;
    of.late += outcome == late ? 1U : 0U;
    of.refused += outcome == refused ? 1U : 0U;
    of.cancelled += outcome == cancelled ? 1U : 0U;
    if (answered) of.latencies.push_back(at - sent);
  };
  count(f);
  count(figures.classes[static_cast<std::size_t>(cls)]);
}

void Statistics::kept(ModelId model, const ledger::Ledger::Kept& kept) {
  ModelFigures& f = figures.models[model.index()];
  f.promised += kept.answers;
  f.expected_late += kept.expected;
  f.promised_late += kept.late;
  f.avoidable_late += kept.avoidable;
}

void Statistics::occupied(DeviceId device, ModelId model, std::size_t batch, TimePoint start, TimePoint end,
                          Duration busy) {
  busy_ += busy;
  // Of a run that was interrupted, the share that lies in the span.
  const TimePoint from = std::max(start, warm_);
  const TimePoint to = std::min(end, end_);
  if (to > from)
    figures.busy[device.index()] += busy == end - start ? to - from
                                                        : from_ns(static_cast<double>(busy.count()) *
                                                                  static_cast<double>((to - from).count()) /
                                                                  static_cast<double>((end - start).count()));
  if (IntervalFigures* in = interval(start)) {
    in->busy += busy;
    if (const auto used =
            used_in_[device.index()].begin() + static_cast<std::ptrdiff_t>(interval_index(start));
        !*used) {
      *used = true;
      ++in->devices_used;
    }
  }
  if (start >= warm_ && figures.timeline.size() < timeline_)
    figures.timeline.push_back({device, model, static_cast<int>(batch), start, end});
}

void Statistics::served(ModelId model, std::size_t batch, TimePoint start) {
  if (start < warm_) return;
  ModelFigures& f = figures.models[model.index()];
  ++f.batches;
  f.batched += batch;
  if (figures.batch_sizes.size() <= batch) figures.batch_sizes.resize(batch + 1);
  ++figures.batch_sizes[batch];
}

void Statistics::loaded(TimePoint start) {
  ++figures.loads;
  if (IntervalFigures* in = interval(start)) ++in->loads;
}

}  // namespace carillon::simulate
