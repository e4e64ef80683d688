#include "carillon/cli/bench/scheduler.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/cpu_time.h"
#include "carillon/base/random.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/symphony/threads/symphony_threads.h"

namespace carillon::cli {
namespace {

// What reading the clock takes: the least of many, as it is taken off each measurement.
Duration reading_takes() {
  Duration least = 1s;
  for (int i = 0; i < 1000; ++i) {
    const Duration from = thread_cpu_time();
    least = std::min(least, thread_cpu_time() - from);
  }
  return least;
}

// What all measurements share: models and requests.
struct Workload {
  std::vector<schedule::ModelInfo> models;
  std::vector<Request> requests;  // by arrival
};
Duration exec_time(int batch) {
  return from_ms(1.053 * batch + 5.072);
}
// How long LOAD takes, where memory is limited.
constexpr Duration load_time = 8ms;

// What one device does in this benchmark: nothing but pass time.
struct DeviceEnd {
  TimePoint at;
  schedule::ActionDone done;
  std::size_t requests = 0;
  friend bool operator>(const DeviceEnd& a, const DeviceEnd& b) {
    return a.at != b.at ? a.at > b.at : a.done.id.value > b.done.id.value;
  }
};

Workload prepare(const SchedulerLoad& wanted) {
  Workload workload;
  const double capacity = wanted.devices * 16.0 / to_seconds(exec_time(16));
  const double rate = wanted.share * capacity;
  // A model gathers a batch within its SLO only where it has the requests: SLOs grow with the models a
  // device.
  const Duration slo = std::max<Duration>(25ms, exec_time(16) + from_seconds(16 * wanted.models / rate));
  for (int m = 0; m < wanted.models; ++m) {
    schedule::ModelInfo info{
        .id = ModelId{static_cast<std::uint32_t>(m)}, .name = "m" + std::to_string(m), .batches = {}};
    if (wanted.fit > 0) {
      info.pages = 1;
      info.load = load_time;
    }
    for (int b = 1; b <= 64; ++b) info.batches.push_back({b, exec_time(b)});
    workload.models.push_back(std::move(info));
  }
  Random random(1);
  const auto count = static_cast<std::size_t>(wanted.requests);
  std::vector<Request>& requests = workload.requests;
  requests.resize(count);
  double at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    at += random.exponential(1e9 / rate);
    requests[i].id = RequestId{i};
    requests[i].model =
        ModelId{static_cast<std::uint32_t>(random.below(static_cast<std::uint64_t>(wanted.models)))};
    requests[i].arrival = TimePoint{from_ns(at)};
    requests[i].deadline = requests[i].arrival + slo;
  }
  return workload;
}

}  // namespace

Result<SchedulerFigures> measure_scheduler(const std::string& name, const SchedulerLoad& wanted) {
  const schedule::Environment ideal{.dispatch = Duration{0}, .answer = Duration{0}, .overrun = 0};
  auto made = schedule::make_scheduler(name, ideal);
  if (!made) return std::unexpected(std::move(made.error()));
  schedule::Scheduler& scheduler = **made;
  const Workload workload = prepare(wanted);
  const std::vector<Request>& requests = workload.requests;
  const std::size_t count = requests.size();
  schedule::Actions actions;
  TimePoint wake = TimePoint::max();
  for (const schedule::ModelInfo& info : workload.models)
    wake = scheduler.decide(schedule::model_comes(info), TimePoint{}, actions);
  const auto pages = static_cast<std::uint64_t>(std::max(1.0, wanted.fit * wanted.models));
  for (int d = 0; d < wanted.devices; ++d)
    wake = scheduler.decide(schedule::DeviceChanged{DeviceId{static_cast<std::uint32_t>(d)}, true, pages},
                            TimePoint{}, actions);
  std::priority_queue<DeviceEnd, std::vector<DeviceEnd>, std::greater<>> ends;
  std::set<ActionId> stopped;  // that have not ended yet
  std::vector<TimePoint> free(static_cast<std::size_t>(wanted.devices));
  SchedulerFigures m{.models = wanted.models, .devices = wanted.devices};
  const std::size_t first = count / 10;
  using Clock = std::chrono::steady_clock;
  // Reading the clock around each call may cost as much as the call: unless each is asked for, the whole loop
  // is measured.
  const Duration reading = wanted.each ? reading_takes() : Duration{0};
  const auto decide = [&](const schedule::Event& event, TimePoint now, bool counted) {
    if (!wanted.each) {
      wake = scheduler.decide(event, now, actions);
      return;
    }
    const Duration from = thread_cpu_time();
    wake = scheduler.decide(event, now, actions);
    if (counted) m.each.add(thread_cpu_time() - from - reading);
  };
  const auto take = [&](TimePoint now, bool counted) {
    for (schedule::Action& action : actions) {
      if (auto* infer = std::get_if<schedule::Infer>(&action)) {
        TimePoint& device = free[infer->device.index()];
        const TimePoint start = std::max({device, now, infer->window.earliest});
        const Duration time = exec_time(static_cast<int>(infer->requests.size()));
        device = start + time;
        ends.push({device,
                   {.id = infer->id,
                    .status = schedule::ActionStatus::success,
                    .start = start,
                    .end = device,
                    .duration = time},
                   infer->requests.size()});
        if (counted) {
          ++m.batches;
          m.on_time += infer->requests.size();
        }
      } else if (std::get_if<schedule::Refuse>(&action) != nullptr) {
        if (counted) ++m.dropped;
      } else if (const auto* load = std::get_if<schedule::Load>(&action)) {
        const Duration time = wanted.fit > 0 ? load_time : Duration{0};
        ends.push({now + time, {.id = load->id, .start = now, .end = now + time, .duration = time}, 0});
      } else if (const auto* stop = std::get_if<schedule::Stop>(&action)) {
        if (!stopped.insert(stop->id).second) continue;
        free[stop->device.index()] = now;
        ends.push(
            {now, {.id = stop->id, .status = schedule::ActionStatus::stopped, .start = now, .end = now}, 0});
      } else if (const auto* unload = std::get_if<schedule::Unload>(&action)) {
        ends.push({now, {.id = unload->id, .start = now, .end = now, .duration = {}}, 0});
      }
    }
    actions.clear();
  };
  take(TimePoint{}, false);
  Clock::time_point measured_from = Clock::now();
  double cpu_from = to_seconds(process_cpu_time());
  for (std::size_t i = 0; i < count;) {
    const bool counted = i >= first;
    if (i == first) {
      measured_from = Clock::now();
      cpu_from = to_seconds(process_cpu_time());
    }
    const TimePoint arrival = requests[i].arrival;
    const TimePoint end = ends.empty() ? TimePoint::max() : ends.top().at;
    if (end <= arrival && end <= wake) {
      const schedule::ActionDone done = ends.top().done;
      ends.pop();
      if (done.status == schedule::ActionStatus::success && stopped.erase(done.id) > 0) continue;
      decide(done, end, counted);
      take(end, counted);
    } else if (wake < arrival) {
      const TimePoint now = wake;
      decide(schedule::Wake{}, now, counted);
      take(now, counted);
    } else {
      decide(schedule::RequestArrived{requests[i]}, arrival, counted);
      ++i;
      take(arrival, counted);
      if (counted) ++m.requests;
    }
    if (counted) ++m.decisions;
  }
  m.seconds = std::chrono::duration<double>(Clock::now() - measured_from).count();
  m.cpu_seconds = to_seconds(process_cpu_time()) - cpu_from;
  return m;
}

SchedulerFigures measure_symphony_threads(const SchedulerLoad& wanted) {
  const Workload workload = prepare(wanted);
  struct alignas(64) Own {
    std::vector<Request> requests;  // of this thread's models
    std::size_t next = 0;
    std::uint64_t on_time = 0, dropped = 0, batches = 0;
  };
  std::vector<Own> own(static_cast<std::size_t>(wanted.threads));
  const auto of = [&own](int thread) -> Own& { return own[static_cast<std::size_t>(thread)]; };
  const std::size_t first = workload.requests.size() / 10;
  const TimePoint counted_from = workload.requests[first].arrival;
  const TimePoint end = workload.requests.back().arrival;
  const Duration step = from_ns(wanted.round_us * 1e3);
  using Clock = std::chrono::steady_clock;
  Clock::time_point measured_from, measured_to;
  double cpu_from = 0, cpu_to = 0;
  TimePoint now{};
  bool counting = false;
  const schedule::SymphonyWorld world{
      .next_round = [&]() -> std::optional<TimePoint> {
        if (!counting && now >= counted_from) {
          counting = true;
          measured_from = Clock::now();
          cpu_from = to_seconds(process_cpu_time());
        }
        if (now >= end) {
          measured_to = Clock::now();
          cpu_to = to_seconds(process_cpu_time());
          return std::nullopt;
        }
        return now += step;
      },
      .arrivals =
          [&](int thread, ModelId low, ModelId high, TimePoint at, std::vector<Request>& out) {
            Own& o = of(thread);
            if (o.requests.empty())
              for (const Request& r : workload.requests)
                if (low <= r.model && r.model < high) o.requests.push_back(r);
            for (; o.next < o.requests.size() && o.requests[o.next].arrival <= at; ++o.next)
              out.push_back(o.requests[o.next]);
          },
      .sent =
          [&](int thread, schedule::SentBatch&& batch) {
            if (batch.start < counted_from) return;
            Own& o = of(thread);
            ++o.batches;
            o.on_time += batch.requests.size();
          },
      // What waits at the end was not dropped for want of time.
      .dropped =
          [&](int thread, const Request& request, TimePoint at) {
            if (at >= counted_from && (at < end || request.deadline <= at)) ++of(thread).dropped;
          }};
  schedule::SymphonyThreadsOptions options{
      .environment = {.dispatch = Duration{0}, .answer = Duration{0}, .overrun = 0},
      .symphony = {},
      .threads = wanted.threads,
      .ahead = 2 * step};
  const auto figures = schedule::run_symphony_threads(options, workload.models, wanted.devices, world);
  SchedulerFigures m{.models = wanted.models, .devices = wanted.devices};
  m.requests = workload.requests.size() - first;
  m.decisions = figures.messages;
  for (const Own& o : own) {
    m.on_time += o.on_time;
    m.dropped += o.dropped;
    m.batches += o.batches;
  }
  m.seconds = std::chrono::duration<double>(measured_to - measured_from).count();
  m.cpu_seconds = cpu_to - cpu_from;
  return m;
}

}  // namespace carillon::cli
