#include "carillon/cli/bench/scheduler.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/cpu_time.h"
#include "carillon/base/random.h"
#include "carillon/dispatch/dispatch.h"
#include "carillon/dispatch/notes.h"
#include "carillon/schedule/around.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/symphony/threads/symphony_threads.h"
#include "carillon/wire/ends.h"

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

// The devices of a run, and whoever holds its requests.
class IdleWorld final : public wire::Calls {
 public:
  IdleWorld(const SchedulerLoad& wanted, SchedulerFigures& figures)
      : load_(wanted.fit > 0 ? load_time : Duration{0}),
        pages_(static_cast<std::uint64_t>(std::max(1.0, wanted.fit * wanted.models))),
        figures_(figures) {
    for (int d = 0; d < wanted.devices; ++d)
      links_.emplace_back(*this, DeviceId{static_cast<std::uint32_t>(d)});
  }

  void join(dispatch::Dispatch& dispatch) {
    for (Link& link : links_) dispatch.add_device(link);
  }
  // When the next action ends; max(): none is under way.
  TimePoint next_at() {
    while (!ends_.empty() && ends_.top().status == ledger::ActionStatus::success &&
           stopped_.erase(ends_.top().id) > 0)
      ends_.pop();
    return ends_.empty() ? TimePoint::max() : ends_.top().at;
  }
  wire::Report take() {
    const End end = ends_.top();
    ends_.pop();
    wire::Report report{.id = end.id, .status = end.status, .times = {}, .error = {}, .device = end.device};
    report.times.exec_start = end.start;
    report.times.exec_end = end.at;
    return report;
  }

  TimePoint now{};
  bool counted = false;  // what happens

 private:
  // Of an action.
  struct End {
    TimePoint at, start;
    ActionId id;
    DeviceId device;
    ledger::ActionStatus status{};
    friend bool operator>(const End& a, const End& b) { return a.at != b.at ? a.at > b.at : a.id > b.id; }
  };
  // A device does nothing but pass time.
  class Link final : public wire::DeviceLink {
   public:
    Link(IdleWorld& world, DeviceId device) : world_(world), device_(device) {}
    void send(const ledger::Load& order) override {
      world_.ends(order.id, device_, world_.now, world_.load_);
    }
    void send(const ledger::Unload& order) override {
      world_.ends(order.id, device_, world_.now, Duration{0});
    }
    void send(const ledger::Infer& order) override {
      const TimePoint start = std::max({free_, world_.now, order.window.earliest});
      const Duration time = exec_time(static_cast<int>(order.requests.size()));
      free_ = start + time;
      if (world_.counted) {
        ++world_.figures_.batches;
        world_.figures_.on_time += order.requests.size();
      }
      world_.ends(order.id, device_, start, time);
    }
    void send(const ledger::Profile& order) override {
      world_.ends(order.id, device_, world_.now, Duration{0}, ledger::ActionStatus::failed);
    }
    void stop(ActionId id) override {
      if (!world_.stopped_.insert(id).second) return;
      free_ = world_.now;
      world_.ends(id, device_, world_.now, Duration{0}, ledger::ActionStatus::stopped);
    }
    void preempt(ActionId, TimePoint) override {}
    void retire(std::uint32_t) override {}
    void probe() override {}
    ledger::Excuse slowness(ledger::Lane lane) override { return {.device = device_, .lane = lane}; }
    wire::Credit credit() const override { return {}; }
    std::uint64_t pages() const override { return world_.pages_; }
    int best_effort() const override { return 1; }

   private:
    IdleWorld& world_;
    const DeviceId device_;
    TimePoint free_{};
  };

  void ends(ActionId id, DeviceId device, TimePoint start, Duration time,
            ledger::ActionStatus status = ledger::ActionStatus::success) {
    ends_.push({start + time, start, id, device, status});
  }

  std::uint64_t sent(RequestId, ModelId, std::uint64_t) override { return 0; }
  void came_back(RequestId) override {}
  void ended(RequestId, const wire::Report&, TimePoint) override {}
  void turned_down(RequestId, const Error&) override {}
  void lost(RequestId, std::string_view) override {}
  void refused(const wire::Verdict&, TimePoint) override { figures_.dropped += counted ? 1U : 0U; }
  void keep(RequestId) override {}
  void forget(RequestId) override {}

  const Duration load_;
  const std::uint64_t pages_;
  SchedulerFigures& figures_;
  std::deque<Link> links_;  // by device
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::set<ActionId> stopped_;  // that have not ended yet
};

using WallClock = std::chrono::steady_clock;

// Takes the time of a scheduler's decisions.
class TimedScheduler final : public schedule::Around {
 public:
  explicit TimedScheduler(schedule::Scheduler& policy) : Around(policy) {
    for (int i = 0; i < 1000; ++i) {
      const WallClock::time_point from = WallClock::now();
      reading_ = std::min(reading_, WallClock::now() - from);
    }
  }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    const WallClock::time_point from = WallClock::now();
    const TimePoint wake = policy_->decide(event, now, out);
    spent += WallClock::now() - from - reading_;
    return wake;
  }
  WallClock::duration spent{0};

 private:
  WallClock::duration reading_ = 1s;
};

// `policy`: takes the time of the scheduler's decisions instead of all time.
SchedulerFigures drive_scheduler(schedule::Scheduler& scheduler, const SchedulerLoad& wanted,
                                 const Workload& workload, bool policy) {
  SchedulerFigures m{.models = wanted.models, .devices = wanted.devices};
  TimedScheduler timed(scheduler);
  IdleWorld world(wanted, m);
  dispatch::Notes notes;
  dispatch::Dispatch dispatch(policy ? timed : scheduler, {}, world, notes);
  for (const schedule::ModelInfo& info : workload.models) dispatch.add_model(info);
  world.join(dispatch);
  dispatch.start(TimePoint{});
  const std::size_t count = workload.requests.size(), first = count / 10;
  // Reading the clock around each call may cost as much as the call: unless each is asked for, the whole loop
  // is measured.
  const Duration reading = wanted.each ? reading_takes() : Duration{0};
  const auto at = [&](TimePoint now, auto&& tell) {
    world.now = now;
    if (!wanted.each) return tell();
    const Duration from = thread_cpu_time();
    tell();
    if (world.counted) m.each.add(thread_cpu_time() - from - reading);
  };
  WallClock::time_point measured_from = WallClock::now();
  double cpu_from = to_seconds(process_cpu_time());
  for (std::size_t i = 0; i < count;) {
    world.counted = i >= first;
    if (i == first) {
      measured_from = WallClock::now();
      cpu_from = to_seconds(process_cpu_time());
      timed.spent = {};
    }
    const TimePoint arrival = workload.requests[i].arrival;
    const TimePoint end = world.next_at(), wake = dispatch.wake_at();
    if (end <= arrival && end <= wake) {
      const wire::Report report = world.take();
      at(end, [&] { dispatch.on_report(report, end); });
    } else if (wake < arrival) {
      at(wake, [&] { dispatch.wake(wake); });
    } else {
      at(arrival, [&] { dispatch.offer(workload.requests[i], false, arrival); });
      ++i;
      if (world.counted) ++m.requests;
    }
    if (world.counted) ++m.decisions;
  }
  m.seconds = std::chrono::duration<double>(WallClock::now() - measured_from).count();
  m.cpu_seconds = to_seconds(process_cpu_time()) - cpu_from;
  m.policy_seconds = std::chrono::duration<double>(timed.spent).count();
  return m;
}

}  // namespace

Result<SchedulerFigures> measure_scheduler(const std::string& name, const SchedulerLoad& wanted) {
  const schedule::Environment ideal{.dispatch = Duration{0}, .answer = Duration{0}, .overrun = 0};
  auto scheduler = schedule::make_scheduler(name, ideal);
  if (!scheduler) return std::unexpected(std::move(scheduler.error()));
  const Workload workload = prepare(wanted);
  SchedulerFigures m = drive_scheduler(**scheduler, wanted, workload, false);
  const auto again = *schedule::make_scheduler(name, ideal);
  m.policy_seconds = drive_scheduler(*again, wanted, workload, true).policy_seconds;
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
  WallClock::time_point measured_from, measured_to;
  double cpu_from = 0, cpu_to = 0;
  TimePoint now{};
  bool counting = false;
  const schedule::SymphonyWorld world{
      .next_round = [&]() -> std::optional<TimePoint> {
        if (!counting && now >= counted_from) {
          counting = true;
          measured_from = WallClock::now();
          cpu_from = to_seconds(process_cpu_time());
        }
        if (now >= end) {
          measured_to = WallClock::now();
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
