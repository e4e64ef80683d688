#include "carillon/cli/bench/waiting.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <unordered_map>

#include "carillon/base/cpu_time.h"
#include "carillon/base/random.h"
#include "carillon/schedule/registry.h"

namespace carillon::cli {
namespace {

constexpr int batch_sizes[] = {1, 2, 4, 8, 16};

struct End {
  TimePoint at;
  schedule::ActionDone done;
  std::vector<RequestId> requests;
  friend bool operator>(const End& a, const End& b) {
    return a.at != b.at ? a.at > b.at : a.done.id.value > b.done.id.value;
  }
};

class World {
 public:
  World(const WaitingOptions& options, schedule::Scheduler& scheduler)
      : options_(options), scheduler_(scheduler), free_(static_cast<std::size_t>(options.devices)) {}

  WaitingFigures run() {
    for (int m = 0; m < options_.models; ++m) {
      schedule::ModelInfo info{
          .id = ModelId{static_cast<std::uint32_t>(m)}, .name = "m" + std::to_string(m), .batches = {}};
      for (const int size : batch_sizes) info.batches.push_back({size, time_of(size, 4)});
      schedule::Actions none;  // there is no device yet
      scheduler_.decide(schedule::model_comes(info), now_, none);
    }
    for (int d = 0; d < options_.devices; ++d)
      decide(schedule::DeviceChanged{DeviceId{static_cast<std::uint32_t>(d)}, true, 1});
    for (int i = 0; i < options_.waiting; ++i) arrive();
    while (decisions_ < 2 * options_.decisions) {
      for (int i = 0; i < options_.waiting && open_.size() < static_cast<std::size_t>(options_.waiting); ++i)
        arrive();
      const TimePoint end = ends_.empty() ? TimePoint::max() : ends_.top().at;
      if (std::min(end, wake_) == TimePoint::max()) break;
      now_ = std::max(now_, std::min(end, wake_));
      if (end <= wake_)
        finish();
      else
        decide(schedule::Wake{});
    }
    return figures_;
  }

 private:
  struct Open {
    ModelId model;
    AppId app;
    TimePoint deadline;
    double own = 0;  // milliseconds
  };

  // A run costs 2 ms whatever is in it.
  static Duration time_of(int size, double own_ms) { return from_ms(2 + size * own_ms); }

  void arrive() {
    const auto app = static_cast<std::uint32_t>(random_.below(static_cast<std::uint64_t>(options_.apps)));
    const ModelId model{app % static_cast<std::uint32_t>(options_.models)};
    const double usual = std::exp2(4.0 * (app * 2654435761U % 1024) / 1024);
    const RequestId id{next_++};
    const Duration slo = from_seconds(0.5 + 2.5 * random_.uniform());
    open_.emplace(id.value, Open{model, AppId{app + 1}, now_ + slo, usual * (0.8 + 0.4 * random_.uniform())});
    decide(schedule::RequestArrived{
        {.id = id, .model = model, .app = AppId{app + 1}, .arrival = now_, .deadline = now_ + slo}});
  }

  void finish() {
    const End end = ends_.top();
    ends_.pop();
    for (const RequestId id : end.requests) {
      const Open open = open_.at(id.value);
      open_.erase(id.value);
      figures_.late += now_ > open.deadline ? 1 : 0;
      if (scheduler_.name() == "orloj" && random_.below(20) == 0)
        decide(schedule::RequestProfiled{open.model, open.app, time_of(1, open.own)});
    }
    decide(end.done);
  }

  void decide(const schedule::Event& event) {
    schedule::Actions actions;
    const Duration before = thread_cpu_time();
    wake_ = scheduler_.decide(event, now_, actions);
    const Duration took = thread_cpu_time() - before;
    const bool counted = ++decisions_ > options_.decisions;
    if (counted) figures_.times.add(took);
    for (schedule::Action& action : actions) {
      if (auto* infer = std::get_if<schedule::Infer>(&action)) {
        double longest = 0;
        for (const RequestId id : infer->requests) longest = std::max(longest, open_.at(id.value).own);
        const Duration time = time_of(static_cast<int>(infer->requests.size()), longest);
        TimePoint& free = free_[infer->device.index()];
        const TimePoint start = std::max({free, now_, infer->window.earliest});
        free = start + time;
        if (counted) {
          ++figures_.batches;
          figures_.batched += infer->requests.size();
        }
        ends_.push({free,
                    {.id = infer->id,
                     .status = schedule::ActionStatus::success,
                     .start = start,
                     .end = free,
                     .duration = time},
                    std::move(infer->requests)});
      } else if (const auto* refuse = std::get_if<schedule::Refuse>(&action)) {
        open_.erase(refuse->request.value);
        if (counted) ++figures_.refused;
      } else if (const auto* load = std::get_if<schedule::Load>(&action)) {  // takes no time
        ends_.push({now_, {.id = load->id, .start = now_, .end = now_, .duration = {}}, {}});
      } else if (const auto* unload = std::get_if<schedule::Unload>(&action)) {
        ends_.push({now_, {.id = unload->id, .start = now_, .end = now_, .duration = {}}, {}});
      }
    }
  }

  const WaitingOptions& options_;
  schedule::Scheduler& scheduler_;
  Random random_{1};
  std::vector<TimePoint> free_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::unordered_map<std::uint64_t, Open> open_;
  TimePoint now_{std::chrono::seconds{1}};
  TimePoint wake_ = TimePoint::max();
  std::uint64_t next_ = 0;
  std::int64_t decisions_ = 0;
  WaitingFigures figures_;
};

}  // namespace

Result<WaitingFigures> measure_waiting(const WaitingOptions& options) {
  const schedule::Environment ideal{.dispatch = Duration{0}, .answer = Duration{0}, .overrun = 0};
  auto made = schedule::make_scheduler(options.scheduler, ideal);
  if (!made) return std::unexpected(std::move(made.error()));
  return World(options, **made).run();
}

}  // namespace carillon::cli
