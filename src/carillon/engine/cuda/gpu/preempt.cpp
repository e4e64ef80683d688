#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "carillon/base/clock.h"
#include "carillon/base/random.h"
#include "carillon/engine/cuda/gpu/parts.h"
#include "carillon/engine/stream.h"

namespace carillon::engine::cuda::gpu {
namespace {

// Runs of a model in a stream of its class: best-effort ones one after the other while they may, real-time
// ones when one is asked for.
class Runner final : public engine::Stream::Client {
 public:
  Runner(const Rig& rig, Loaded loaded, Class cls, const carillon::Clock& clock)
      : clock_(clock),
        loaded_(std::move(loaded)),
        stream_(rig.engine->make_stream({.clock = clock,
                                         .name = "preempt",
                                         .spin = std::chrono::microseconds{50},
                                         .cls = cls,
                                         .parts = true})) {}
  ~Runner() override { stream_->stop(); }
  Result<> start() { return stream_->start(*this); }

  // Asks for a run; `forever`: for one after the other.
  void ask(bool forever) {
    {
      const std::lock_guard lock(mutex_);
      wanted_ = true;
      forever_ = forever;
    }
    stream_->wake();
  }
  // What runs ends soon, and goes on when it is asked for again.
  void hold() {
    const std::lock_guard lock(mutex_);
    wanted_ = forever_ = false;
    if (running_) stream_->evict(run_);
  }
  // Until no run is under way: when the last ended, or why it failed.
  Result<TimePoint> rest() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !running_ && !wanted_; });
    if (!failed_) return std::unexpected(failed_.error());
    return ended_;
  }
  const Plan& plan() const { return loaded_.plan(); }
  std::uint64_t evicted() const {
    const std::lock_guard lock(mutex_);
    return evicted_;
  }
  // Runs, and of the last what is done of it.
  double progress() const {
    const std::lock_guard lock(mutex_);
    return static_cast<double>(whole_) + static_cast<double>(next_) / plan().kernels();
  }

 private:
  TimePoint idle() override {
    const std::lock_guard lock(mutex_);
    if (!wanted_ || !failed_) return TimePoint::max();
    wanted_ = forever_;
    running_ = true;
    stream_->launch(
        {.run = ++run_, .plan = &plan(), .kernels = {next_, plan().kernels()}, .binding = loaded_.binding()});
    return TimePoint::min();
  }
  void completed(const Completion& completion) override {
    const std::lock_guard lock(mutex_);
    running_ = false;
    ended_ = clock_.now();
    if (!completion.result) {
      failed_ = completion.result;
      wanted_ = forever_ = false;
    }
    const bool whole = completion.next == plan().kernels();
    next_ = whole ? 0 : completion.next;
    ++(whole ? whole_ : evicted_);
    changed_.notify_all();
  }

  const carillon::Clock& clock_;
  Loaded loaded_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ = false, forever_ = false, running_ = false;
  std::uint64_t run_ = 0, evicted_ = 0, whole_ = 0;
  int next_ = 0;
  TimePoint ended_;
  Result<> failed_;
  std::unique_ptr<engine::Stream> stream_;
};

}  // namespace

Result<Json> preempt(const Rig& rig, const std::string& urgent, const std::string& patient, int times,
                     bool by_priority) {
  const SteadyClock clock;
  auto first = Loaded::make(rig, urgent, 1, Class::real_time);
  if (!first) return std::unexpected(first.error());
  double uncut = 0;
  {
    auto at_once = Loaded::make(rig, patient, 1);
    if (!at_once) return std::unexpected(at_once.error());
    const auto alone = run_times(*at_once, times);
    if (!alone) return std::unexpected(alone.error());
    uncut = quantiles(*alone)["p50"];
  }
  auto other = Loaded::make(rig, patient, 1, Class::best_effort, !by_priority);
  if (!other) return std::unexpected(other.error());
  Runner now(rig, std::move(*first), Class::real_time, clock);
  Runner later(rig, std::move(*other), Class::best_effort, clock);
  for (Runner* const each : {&now, &later})
    if (auto started = each->start(); !started) return std::unexpected(started.error());
  const bool holds = now.plan().whole_device() && !by_priority;
  Random random(5);
  std::vector<double> alone, beside;
  TimePoint began;
  for (const bool company : {false, true}) {
    began = clock.now();
    for (int i = 0; i < times; ++i) {
      if (company) {
        later.ask(true);
        std::this_thread::sleep_for(std::chrono::microseconds{200 + random.below(1800)});
      }
      const TimePoint start = clock.now();
      if (company && holds) later.hold();
      now.ask(false);
      const auto ended = now.rest();
      if (!ended) return std::unexpected(ended.error());
      if (i > 0 || company)
        (company ? beside : alone).push_back(to_us(*ended - start));  // the first captures
    }
  }
  const double lasted = to_us(clock.now() - began);
  later.hold();
  if (const auto ended = later.rest(); !ended) return std::unexpected(ended.error());
  Json out{
      {"device", rig.name}, {"libraries", rig.libraries}, {"real_time", urgent}, {"best_effort", patient}};
  out["best_effort_segments"] = later.plan().kernels();
  out["leaves_room"] = !now.plan().whole_device();
  out["alone_us"] = quantiles(alone);
  const double typical = out["alone_us"]["p50"];
  for (double& each : beside) each -= typical;
  out["longer_us"] = quantiles(beside);
  out["evicted"] = later.evicted();
  out["best_effort_runs"] = later.progress();
  out["best_effort_alone_us"] = uncut;
  out["best_effort_speed"] = later.progress() * uncut / std::max(1.0, lasted - times * typical);
  return out;
}

}  // namespace carillon::engine::cuda::gpu
