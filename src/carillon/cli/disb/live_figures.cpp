#include <algorithm>
#include <map>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/statistics.h"
#include "carillon/cli/disb/live.h"

namespace carillon::cli {
namespace {

struct Span {
  TimePoint from, to;
};

// What has run on the device by the times of its requests.
class Reckoning {
 public:
  Reckoning(const workload::DisbWorkload& workload, const LiveRun& run) {
    real_time_by_client_.resize(workload.clients.size());
    best_effort_by_client_.resize(workload.clients.size());
    for (const LiveRequest& request : run.requests) {
      const bool real_time = workload.clients[request.client].cls == Class::real_time;
      if (real_time) {
        urgent_.push_back(&request);
        executing_.push_back({request.times.exec_start, request.times.exec_end});
      }
      // From its submission on, whatever its stage.
      auto& mine = real_time ? real_time_by_client_ : best_effort_by_client_;
      mine[request.client].push_back(
          {real_time ? request.times.received : request.times.exec_start, request.times.exec_end});
    }
    for (auto* lists : {&real_time_by_client_, &best_effort_by_client_})
      for (auto& list : *lists) std::ranges::sort(list, {}, &Span::from);
    std::ranges::sort(executing_, {}, &Span::from);
    std::ranges::sort(urgent_, {}, [](const LiveRequest* r) { return r->times.received; });
  }

  std::vector<Duration> preemptions() const {
    std::vector<Duration> out;
    for (const LiveRequest* request : urgent_) {
      const TimePoint at = request->times.received;
      if (any_at(best_effort_by_client_, at, at) && !any_at(real_time_by_client_, at, at - Duration{1}))
        out.push_back(request->times.exec_start - at);
    }
    return out;
  }

  // Of [from, to), how much real-time runs cover.
  Duration beside(const Span& span) const {
    Duration covered{0};
    auto next = std::ranges::upper_bound(executing_, span.from, {}, &Span::from);
    if (next != executing_.begin()) --next;
    TimePoint counted = span.from;
    for (; next != executing_.end() && next->from < span.to; ++next) {
      const TimePoint from = std::max(counted, next->from), to = std::min(span.to, next->to);
      if (to > from) {
        covered += to - from;
        counted = to;
      }
    }
    return covered;
  }

 private:
  // Whether some client's span that began at `began` or before still lasts at `at`. A client's own lie apart.
  static bool any_at(const std::vector<std::vector<Span>>& by_client, TimePoint at, TimePoint began) {
    return std::ranges::any_of(by_client, [&](const std::vector<Span>& spans) {
      const auto after = std::ranges::upper_bound(spans, began, {}, &Span::from);
      return after != spans.begin() && std::prev(after)->to > at;
    });
  }

  std::vector<const LiveRequest*> urgent_;
  std::vector<Span> executing_;  // real-time runs
  std::vector<std::vector<Span>> real_time_by_client_, best_effort_by_client_;
};

constexpr double histogram_ends_us[] = {5,   10,   20,   25,   50,    100,   200,
                                        500, 1000, 2000, 5000, 10000, 20000, 50000};

std::vector<research::DisbLive::Bin> histogram_of(std::span<const Duration> values) {
  std::vector<research::DisbLive::Bin> bins;
  for (const double end : histogram_ends_us) bins.push_back({.at_most_us = end, .count = 0});
  bins.push_back({.at_most_us = 0, .count = 0});  // all above
  for (const Duration value : values) {
    const auto bin = std::ranges::lower_bound(histogram_ends_us, to_us(value)) - histogram_ends_us;
    ++bins[static_cast<std::size_t>(bin)].count;
  }
  return bins;
}

}  // namespace

LiveFigures figures_of(const workload::DisbWorkload& workload, std::span<const std::string> model_names,
                       std::span<const std::size_t> model_of, const LiveDevice& device, LiveRun run) {
  CARILLON_ASSERT(run.clients.size() == workload.clients.size() &&
                  model_of.size() == workload.clients.size());
  LiveFigures out;
  out.figures.length = run.length;
  for (std::size_t i = 0; i < workload.clients.size(); ++i)
    out.figures.clients.push_back({.name = workload.clients[i].name,
                                   .model = model_names[model_of[i]],
                                   .cls = workload.clients[i].cls,
                                   .requests = run.clients[i].requests,
                                   .dropped = run.clients[i].dropped,
                                   .unfinished = run.clients[i].unfinished,
                                   .latencies = {}});
  for (const std::string& name : model_names) out.figures.models.push_back({.model = name});

  // What a best-effort run takes that is not disturbed: made of those that were not paused.
  std::map<std::size_t, std::vector<Duration>> undisturbed;
  for (const LiveRequest& request : run.requests)
    if (workload.clients[request.client].cls != Class::real_time && request.times.paused == Duration{0})
      undisturbed[model_of[request.client]].push_back(request.times.ran());
  std::map<std::size_t, Duration> usual;
  for (auto& [model, times] : undisturbed) usual[model] = percentile(times, 0.5);

  const Reckoning reckoning(workload, run);
  const TimePoint end = run.start + run.length;
  for (const LiveRequest& request : run.requests) {
    auto& client = out.figures.clients[request.client];
    if (request.times.output_end > end)
      ++client.unfinished;  // told before the run was known to be over
    else
      client.latencies.push_back(request.times.output_end - request.planned);
    research::DisbModelFigures& model = out.figures.models[model_of[request.client]];
    const Duration ran = request.times.ran();
    if (client.cls == Class::real_time) {
      model.real_time += ran * device.real_time_width;
      continue;
    }
    model.best_effort += ran * device.best_effort_width;
    const Duration beside =
        reckoning.beside({request.times.exec_start, request.times.exec_end}) - request.times.paused;
    model.padded += std::clamp(beside, Duration{0}, ran) * device.best_effort_width;
    if (request.times.paused == Duration{0}) continue;
    ++model.killed;
    ++out.live.paused_runs;
    out.live.paused += request.times.paused;
    const auto known = usual.find(model_of[request.client]);
    if (known == usual.end()) {
      out.live.lost.reset();
      continue;
    }
    const Duration lost = std::max(Duration{0}, ran - known->second);
    model.lost += lost * device.best_effort_width;
    if (out.live.lost) *out.live.lost += lost;
  }
  out.figures.preemptions = reckoning.preemptions();
  out.figures.busy = run.cpu;
  out.figures.launches = run.requests.size();
  auto preemptions = out.figures.preemptions;
  out.live.preemption_p90_us = to_us(percentile(preemptions, 0.9));
  out.live.preemption_max_us = to_us(percentile(preemptions, 1));
  out.live.preemption_histogram = histogram_of(preemptions);
  out.live.late_p50_us = to_us(percentile(run.late, 0.5));
  out.live.late_p99_us = to_us(percentile(run.late, 0.99));
  out.live.interrupted = run.interrupted;
  return out;
}

}  // namespace carillon::cli
