#include "carillon/schedule/symphony/threads/symphony_threads.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include "carillon/base/assert.h"
#include "carillon/schedule/symphony/batch_plan.h"
#include "carillon/schedule/symphony/device_waits.h"
#include "carillon/schedule/symphony/rank_machine.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {
namespace {

using symphony::BatchPlan;
using symphony::Candidate;
using symphony::Grant;
using symphony::ModelMachine;
using symphony::RankMachine;

constexpr Duration no_deadline = std::chrono::minutes{1};  // what is further away is not planned by

struct CandidateMessage {
  ModelId model;
  std::uint64_t grants = 0;  // how many grants the model had seen
  std::optional<Candidate> candidate;
};
struct DeviceMessage {
  DeviceId device;
  TimePoint free_at;
};

// What one thread's models and the rank tell each other in one round.
struct Mail {
  std::vector<CandidateMessage> candidates;
  std::vector<DeviceMessage> devices;
};

// Written by one thread in even rounds and read by another in odd ones, or the other way round.
template <typename T>
class Turns {
 public:
  T& write(std::uint64_t round) { return sides_[round & 1].value; }
  T& read(std::uint64_t round) { return sides_[(round + 1) & 1].value; }

 private:
  struct alignas(64) Side {
    T value;
  };
  Side sides_[2];
};

// The machines of the models first <= m < end.
class ModelThread {
 public:
  ModelThread(int thread, const SymphonyThreadsOptions& options, const SymphonyWorld& world,
              const std::vector<ModelInfo>& models, std::size_t first, std::size_t end, std::size_t devices)
      : thread_(thread),
        options_(options),
        world_(world),
        first_(static_cast<std::uint32_t>(first)),
        end_(static_cast<std::uint32_t>(end)),
        devices_(devices),
        plan_(options.symphony.rate_window, options.symphony.plan_every, options.symphony.exceeded),
        waits_(options.symphony.exceeded, options.symphony.wait_horizon, options.symphony.known_after) {
    for (std::size_t m = first; m < end; ++m) {
      machines_.emplace_back(models[m], options.environment);
      plan_.add_model();
      waits_.add_model();
    }
    grants_seen_.resize(machines_.size());
    is_dirty_.resize(machines_.size());
  }

  std::uint32_t end() const { return end_; }
  Turns<Mail>& mail() { return mail_; }
  Turns<std::vector<Grant>>& grants() { return grants_; }
  std::uint64_t empty_grants() const { return empty_grants_; }

  void step(std::uint64_t round, TimePoint now) {
    Mail& out = mail_.write(round);
    out.candidates.clear();
    out.devices.clear();
    for (const Grant& grant : grants_.read(round)) carry_out(grant, now, out);
    if (machines_.empty()) return;
    arrived_.clear();
    world_.arrivals(thread_, ModelId{first_}, ModelId{end_}, now, arrived_);
    for (const Request& request : arrived_) {
      CARILLON_ASSERT(request.model.value >= first_ && request.model.value < end_);
      const std::uint32_t local = request.model.value - first_;
      plan_.arrived(ModelId{local}, std::min<Duration>(request.deadline - now, no_deadline));
      machines_[local].enqueue(request);
      mark(local);
    }
    if (options_.symphony.hold > 0 && plan_.due(now)) replan(now);
    while (refresh_.top_at() <= now) {
      mark(refresh_.top());
      refresh_.remove(refresh_.top());
    }
    for (const std::uint32_t local : dirty_) publish(local, now, out);
    dirty_.clear();
  }

  void drop_all(TimePoint now) {
    for (ModelMachine& machine : machines_) {
      for (const Request& request : machine.queue()) world_.dropped(thread_, request, now);
      machine.clear();
    }
  }

 private:
  void mark(std::uint32_t local) {
    if (is_dirty_[local] != 0) return;
    is_dirty_[local] = 1;
    dirty_.push_back(local);
  }

  void carry_out(const Grant& grant, TimePoint now, Mail& out) {
    const std::uint32_t local = grant.model.value - first_;
    ++grants_seen_[local];
    mark(local);
    dropped_.clear();
    auto batch = machines_[local].granted(now, grant.free_at, dropped_);
    drop(now);
    waits_.answered(ModelId{local}, batch ? static_cast<int>(batch->requests.size()) : 1, now);
    if (!batch) {
      ++empty_grants_;
      out.devices.push_back({grant.device, grant.free_at});
      return;
    }
    const TimePoint end = batch->exec_at + machines_[local].exec(batch->index);
    out.devices.push_back({grant.device, end});
    world_.sent(thread_, {grant.device, grant.model, std::move(batch->requests), batch->exec_at, end});
  }

  void publish(std::uint32_t local, TimePoint now, Mail& out) {
    is_dirty_[local] = 0;
    ModelMachine& machine = machines_[local];
    dropped_.clear();
    std::optional<Candidate> candidate = machine.update(now, TimePoint::min(), dropped_);
    drop(now);
    if (candidate) {
      refresh_.set(local, machine.refresh_at());
      const Duration lead = waits_.lead(ModelId{local}, Duration{0}, now);
      candidate->exec_at = machine.asks_at(now, lead, options_.symphony.longest_wait);
      waits_.asks(ModelId{local}, candidate->exec_at - options_.environment.dispatch, now);
    } else {
      refresh_.remove(local);
      waits_.lost(ModelId{local}, now, now);
    }
    out.candidates.push_back({ModelId{first_ + local}, grants_seen_[local], candidate});
  }

  void replan(TimePoint now) {
    plan_.plan(now, devices_, symphony::all_times(machines_));
    for (std::uint32_t local = 0; local < machines_.size(); ++local) {
      machines_[local].set_target(
          static_cast<int>(std::floor(options_.symphony.hold * plan_.size(ModelId{local}))));
      if (!machines_[local].queue().empty()) mark(local);
    }
  }

  void drop(TimePoint now) {
    for (const Request& request : dropped_) world_.dropped(thread_, request, now);
  }

  int thread_;
  const SymphonyThreadsOptions& options_;
  const SymphonyWorld& world_;
  std::uint32_t first_, end_;
  std::size_t devices_;  // its share, for planning
  std::vector<ModelMachine> machines_;
  BatchPlan plan_;
  symphony::DeviceWaits waits_;
  TimerHeap refresh_;
  std::vector<std::uint64_t> grants_seen_;
  std::vector<std::uint32_t> dirty_;
  std::vector<char> is_dirty_;
  std::vector<Request> arrived_, dropped_;  // scratch
  std::uint64_t empty_grants_ = 0;
  Turns<Mail> mail_;                  // written here
  Turns<std::vector<Grant>> grants_;  // written by the rank
};

class RankThread {
 public:
  RankThread(const SymphonyThreadsOptions& options, std::size_t models, int devices)
      : rank_(options.environment.dispatch + options.ahead), granted_(models) {
    for (int d = 0; d < devices; ++d)
      rank_.inform_device(DeviceId{static_cast<std::uint32_t>(d)}, TimePoint{});
  }

  void step(std::uint64_t round, TimePoint now, std::vector<std::unique_ptr<ModelThread>>& threads) {
    for (auto& thread : threads) {
      thread->grants().write(round).clear();
      const Mail& in = thread->mail().read(round);
      for (const DeviceMessage& m : in.devices) rank_.inform_device(m.device, m.free_at);
      for (const CandidateMessage& m : in.candidates)
        // One that was found before the model saw its newest grant speaks of requests that are gone; the
        // next is on its way.
        if (m.grants == granted_[m.model.index()]) rank_.inform_candidate(m.model, m.candidate);
      messages_ += in.devices.size() + in.candidates.size();
    }
    while (const auto grant = rank_.match(now, [](DeviceId, ModelId) { return true; })) {
      ++granted_[grant->model.index()];
      ++grants_;
      const auto owner = std::upper_bound(threads.begin(), threads.end(), grant->model.value,
                                          [](std::uint32_t m, const auto& t) { return m < t->end(); });
      (*owner)->grants().write(round).push_back(*grant);
    }
  }
  std::uint64_t messages() const { return messages_; }
  std::uint64_t grants() const { return grants_; }

 private:
  RankMachine rank_;
  std::vector<std::uint64_t> granted_;  // by model
  std::uint64_t messages_ = 0, grants_ = 0;
};

// Where threads meet between rounds. Rounds are a few microseconds long, so they spin before they give the
// core away.
class Meeting {
 public:
  explicit Meeting(int parties) : parties_(parties) {}

  // The last to come runs `between` before all go on.
  template <typename Between>
  void wait(Between&& between) {
    const std::uint64_t round = round_.load(std::memory_order_relaxed);
    if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == parties_) {
      here_.store(0, std::memory_order_relaxed);
      between();
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins)
      if (spins >= 4000) std::this_thread::yield();
  }

 private:
  const int parties_;
  alignas(64) std::atomic<int> here_{0};
  alignas(64) std::atomic<std::uint64_t> round_{0};
};

}  // namespace

SymphonyThreadsFigures run_symphony_threads(const SymphonyThreadsOptions& options,
                                            const std::vector<ModelInfo>& models, int devices,
                                            const SymphonyWorld& world) {
  CARILLON_ASSERT(options.threads >= 1 && !models.empty() && devices >= 1 && options.first_share >= 0);
  const auto count = static_cast<double>(models.size());
  const double others = options.threads - 1;
  std::vector<std::unique_ptr<ModelThread>> threads;
  std::size_t first = 0;
  for (int t = 0; t < options.threads; ++t) {
    const double upto = others == 0 ? 1 : (options.first_share + t) / (options.first_share + others);
    const auto end =
        std::clamp<std::size_t>(static_cast<std::size_t>(std::llround(count * upto)), first, models.size());
    const double share = static_cast<double>((end - first) * static_cast<std::size_t>(devices)) / count;
    threads.push_back(std::make_unique<ModelThread>(t, options, world, models, first, end,
                                                    static_cast<std::size_t>(std::max(1.0, share))));
    first = end;
  }
  RankThread rank(options, models.size(), devices);

  Meeting meeting(options.threads);
  std::uint64_t round = 0;
  std::optional<TimePoint> now;
  TimePoint last{};
  const auto next = [&] {
    now = world.next_round();
    if (!now) return;
    CARILLON_ASSERT(*now >= last);
    last = *now;
    ++round;
  };
  const auto live = [&](int t) {
    ModelThread& own = *threads[static_cast<std::size_t>(t)];
    while (true) {
      meeting.wait(next);
      if (!now) break;
      if (t == 0) rank.step(round, *now, threads);
      own.step(round, *now);
    }
    own.drop_all(last);
  };
  std::vector<std::thread> started;
  for (int t = 1; t < options.threads; ++t) started.emplace_back(live, t);
  live(0);
  for (std::thread& thread : started) thread.join();

  SymphonyThreadsFigures figures{.rounds = round, .messages = rank.messages(), .grants = rank.grants()};
  for (const auto& thread : threads) figures.empty_grants += thread->empty_grants();
  return figures;
}

}  // namespace carillon::schedule
