#include "carillon/workload/clients.h"

#include <algorithm>
#include <cmath>

namespace carillon::workload {

Clients::Clients(const Scenario& scenario) : end_(TimePoint{} + scenario.duration) {
  Random seeds(scenario.seed);
  const std::vector<double> rates = model_rates(scenario);
  streams_.resize(scenario.models.size());
  first_.assign(2 * streams_.size(), {TimePoint::max(), 0});
  for (std::uint32_t i = 0; i < streams_.size(); ++i) first_[streams_.size() + i].second = i;
  for (std::size_t i = 0; i < scenario.models.size(); ++i) {
    const ScenarioModel& model = scenario.models[i];
    Stream& stream = streams_[i];
    stream.random = seeds.split();
    stream.spec = model.process.value_or(scenario.process);
    stream.steps = model.rate;
    if (stream.steps.empty()) stream.steps.push_back({Duration{0}, rates[i]});
    if (!model.arrivals.empty()) stream.planned = &model.arrivals;
    if (!model.per_minute.empty()) stream.per_minute = &model.per_minute;
    if (stream.spec.kind == ArrivalKind::closed && stream.planned == nullptr && stream.per_minute == nullptr)
      continue;
    set_next(static_cast<std::uint32_t>(i), advance(stream));
  }
}

std::uint32_t Clients::take() {
  const std::uint32_t model = first_[1].second;
  taken_ = streams_[model].taken++;
  set_next(model, advance(streams_[model]));
  return model;
}

void Clients::set_next(std::uint32_t model, TimePoint at) {
  std::size_t i = streams_.size() + model;
  first_[i].first = at < end_ ? at : TimePoint::max();
  for (i /= 2; i > 0; i /= 2) first_[i] = std::min(first_[2 * i], first_[2 * i + 1]);
}

TimePoint Clients::advance(Stream& s) {
  if (s.planned != nullptr)
    return s.place < s.planned->size() ? (*s.planned)[s.place++].at : TimePoint::max();
  if (s.per_minute != nullptr) {
    while (s.minute.empty()) {
      if (s.place >= s.per_minute->size()) return TimePoint::max();
      const TimePoint begin = TimePoint{} + std::chrono::minutes{s.place};
      for (std::uint32_t k = 0; k < (*s.per_minute)[s.place]; ++k)
        s.minute.push_back(begin + from_seconds(60 * s.random.uniform()));
      std::sort(s.minute.begin(), s.minute.end(), std::greater<>());
      ++s.place;
    }
    const TimePoint at = s.minute.back();
    s.minute.pop_back();
    return at;
  }
  // A gap is drawn in units of the mean gap and spent at the rate of the time: so a process keeps its shape
  // while its rate changes.
  double gap = 1;
  if (s.spec.kind == ArrivalKind::poisson) gap = s.random.exponential(1);
  if (s.spec.kind == ArrivalKind::gamma) gap = s.random.gamma(s.spec.shape, 1 / s.spec.shape);
  s.work += gap;
  while (true) {
    const TimePoint step_end =
        s.step + 1 < s.steps.size() ? TimePoint{} + s.steps[s.step + 1].at : TimePoint::max();
    const TimePoint from = std::max(s.at, TimePoint{} + s.steps[s.step].at);
    const double rate = s.steps[s.step].requests_per_s;
    const double room = step_end == TimePoint::max() ? INFINITY : to_seconds(step_end - from) * rate;
    if (rate > 0 && s.work <= room) {
      const double ns = s.work / rate * 1e9;
      if (ns > 9e18) return TimePoint::max();
      s.work = 0;
      s.at = saturating_add(from, from_ns(ns));
      return s.at;
    }
    if (step_end == TimePoint::max()) return TimePoint::max();
    if (rate > 0) s.work -= room;
    s.at = step_end;
    ++s.step;
    if (step_end >= end_) return TimePoint::max();
  }
}

}  // namespace carillon::workload
