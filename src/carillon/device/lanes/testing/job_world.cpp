#include "carillon/device/lanes/testing/job_world.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/random.h"
#include "carillon/device/lanes/testing/job_bounds.h"
#include "carillon/device/lanes/testing/job_checker.h"

namespace carillon::device::testing {
namespace {

class World {
 public:
  World(const std::vector<WorldJob>& jobs, const WorldOptions& options)
      : jobs_(jobs),
        options_(options),
        states_(jobs.size()),
        checker_(options.sharing),
        bounds_(options.policy, options.sharing),
        random_(options.mangled.value_or(0)),
        sharing_(make_job_sharing(options.policy, options.sharing).value()) {
    figures_.jobs.resize(jobs.size());
    if (options.mangled ||
        std::ranges::any_of(jobs, [](const WorldJob& j) { return j.hangs_at.has_value(); }))
      bounds_.boundaries_may_lack();
  }

  WorldFigures run(TimePoint until) {
    for (;;) {
      const TimePoint soonest = next_time();
      if (soonest == TimePoint::max()) break;
      const TimePoint next = std::min(until, soonest);
      pass(next);
      if (next == until || figures_.broken) break;
      happen();
    }
    figures_.end = now_;
    return figures_;
  }

 private:
  struct State {
    bool came = false, admitted = false, over = false;
    bool inside = false, recalled = false, frozen = false;
    TimePoint ready_at = TimePoint::max();
    int done = 0, told = 0;
    Duration left{0}, spent{0};  // of the iteration under way: work, and time so far
    bool stuck = false;
  };

  double slowdown() const {
    double demand = 0;
    for (std::size_t i = 0; i < states_.size(); ++i)
      if (runs(i)) demand += jobs_[i].demand;
    return std::max(1.0, demand);
  }
  bool runs(std::size_t i) const {
    const State& s = states_[i];
    return s.inside && !s.frozen && !s.stuck && !s.over;
  }

  TimePoint next_time() const {
    TimePoint next = wake_;
    const double slow = slowdown();
    bool any = false;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const State& s = states_[i];
      if (s.over) continue;
      if (!s.came) next = std::min(next, jobs_[i].comes);
      if (s.admitted && !s.inside) next = std::min(next, s.ready_at);
      if (runs(i))
        next = std::min(next, now_ + from_ns(std::ceil(static_cast<double>(s.left.count()) * slow)));
      any = true;
    }
    if (!any) return TimePoint::max();
    for (const auto& [at, event] : late_) next = std::min(next, at);
    if (wanted_at_ < options_.wanted.size()) next = std::min(next, options_.wanted[wanted_at_]);
    if (capacity_at_ < options_.capacities.size())
      next = std::min(next, options_.capacities[capacity_at_].first);
    return next;
  }

  void pass(TimePoint to) {
    const double slow = slowdown();
    const Duration gone = to - now_;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      State& s = states_[i];
      if (s.inside && !s.frozen) figures_.jobs[i].held += gone;
      if (!runs(i)) continue;
      s.left -= from_ns(static_cast<double>(gone.count()) / slow);
      s.spent += gone;
      if (s.left < Duration{1}) s.left = Duration{0};
    }
    now_ = to;
  }

  void happen() {
    if (capacity_at_ < options_.capacities.size() && options_.capacities[capacity_at_].first <= now_)
      tell(CapacityChanged{options_.capacities[capacity_at_++].second});
    if (wanted_at_ < options_.wanted.size() && options_.wanted[wanted_at_] <= now_) {
      if (wanted_at_++ % 2 == 0)
        tell(DeviceWanted{});
      else
        tell(DeviceFree{TimePoint::max()});
    }
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      State& s = states_[i];
      if (s.over || figures_.broken) continue;
      if (!s.came && jobs_[i].comes <= now_) {
        s.came = true;
        const WorldJob& job = jobs_[i];
        JobSpec spec{.weight = job.weight};
        if (job.says_memory) spec.persistent = job.memory.persistent, spec.ephemeral = job.memory.ephemeral;
        if (job.says_remaining) spec.remaining = job.iteration * job.iterations;
        tell(JobCame{{i}, spec});
      } else if (s.admitted && s.ready_at <= now_) {
        s.ready_at = TimePoint::max();
        tell(IterationEnded{.job = {i}, .stopped = true, .iterations = 0, .memory = told_memory(i)});
      } else if (runs(i) && s.left == Duration{0}) {
        iteration_ended(i);
      }
    }
    for (std::size_t i = 0; i < late_.size();) {
      if (late_[i].first > now_) {
        ++i;
        continue;
      }
      const JobEvent event = late_[i].second;
      late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
      deliver(event);
    }
    if (wake_ <= now_) deliver(JobWake{});
  }

  JobMemory told_memory(std::size_t i) const {
    const bool grown = jobs_[i].grows_at && states_[i].done >= *jobs_[i].grows_at;
    return grown ? jobs_[i].grows_to : jobs_[i].memory;
  }

  void iteration_ended(std::uint32_t i) {
    State& s = states_[i];
    ++s.done;
    const Duration took = s.spent;
    const bool last = s.done >= jobs_[i].iterations;
    IterationEnded ended{
        .job = {i}, .stopped = s.recalled && !last, .iterations = 1, .busy = took, .memory = told_memory(i)};
    if (ended.stopped) s.inside = s.recalled = false;
    if (!last) begin(i);
    tell(ended);
    if (s.over) return;
    if (last) {
      over(i, true, JobReason::none);
      tell(JobGone{{i}});
    }
  }

  // The next iteration, where there is nothing the matter.
  void begin(std::uint32_t i) {
    State& s = states_[i];
    s.left = jobs_[i].iteration;
    s.spent = Duration{0};
    if (jobs_[i].hangs_at && s.done >= *jobs_[i].hangs_at) s.stuck = true;
  }

  void tell(const JobEvent& event) {
    if (!options_.mangled) return deliver(event);
    const auto one_in = [this](std::uint64_t n) { return random_.below(n) == 0; };
    const auto soon = [this] { return now_ + from_ms(random_.uniform() * 500); };
    const auto* ended = std::get_if<IterationEnded>(&event);
    const bool report = ended || std::holds_alternative<JobGone>(event);
    if (ended && ended->stopped && ended->iterations > 0 && options_.loses && one_in(100)) {
      ++figures_.lost;
      return;
    }
    const bool late = report && one_in(10);
    if (late) late_.emplace_back(soon(), event);
    if (!late || one_in(3)) deliver(event);
    if (one_in(10)) {
      const auto* came = std::get_if<JobCame>(&event);
      if (!came || !states_[came->job.value].over) deliver(event);
    }
    if (!one_in(50)) return;
    const JobId nobody{1'000'000};
    const JobId any{static_cast<std::uint32_t>(random_.below(jobs_.size()))};
    switch (random_.below(5)) {
      case 0:
        return deliver(JobGone{nobody});
      case 1:
        return deliver(IterationEnded{.job = nobody, .stopped = one_in(2)});
      case 2:
        return deliver(MemoryAsked{nobody, {mib(1), mib(1)}});
      case 3:  // whatever that one does: it waits, runs, is frozen, or gone
        return deliver(IterationEnded{.job = any, .stopped = one_in(2), .memory = told_memory(any.value)});
      default:
        return deliver(JobWake{});
    }
  }

  void deliver(const JobEvent& event) {
    if (figures_.broken) return;
    // Who is said to be out is taken to be, whoever said so.
    if (const auto* ended = std::get_if<IterationEnded>(&event);
        ended && ended->stopped && ended->job.value < states_.size())
      states_[ended->job.value].inside = states_[ended->job.value].recalled = false;
    ++figures_.events;
    JobCommands out;
    if (auto wrong = checker_.heard(event)) return broke(*wrong);
    if (auto wrong = bounds_.heard(event, now_)) return broke(*wrong);
    wake_ = sharing_->on(event, now_, out);
    if (auto wrong = checker_.said(out)) return broke(*wrong);
    if (auto wrong = bounds_.said(out)) return broke(*wrong);
    for (const JobCommand& command : out) obey(command);
    // What is found out in the middle of an iteration that has just begun.
    for (std::uint32_t i = 0; i < states_.size(); ++i) faults(i);
  }

  void faults(std::uint32_t i) {
    State& s = states_[i];
    const WorldJob& job = jobs_[i];
    if (s.over || !runs(i) || s.told == s.done + 1) return;
    s.told = s.done + 1;
    if (job.dies_at && s.done >= *job.dies_at) {
      over(i, false, JobReason::none);
      tell(JobGone{{i}});
    } else if (job.grows_at && s.done == *job.grows_at) {
      tell(MemoryAsked{{i}, job.grows_to});
    }
  }

  void obey(const JobCommand& c) {
    using Kind = JobCommand::Kind;
    if (c.kind == Kind::open || c.kind == Kind::move || c.kind == Kind::close) return;
    const std::uint32_t i = c.job.value;
    State& s = states_[i];
    if (s.over) return;  // and that was not heard yet
    switch (c.kind) {
      case Kind::admit:
        if (!s.admitted) s.ready_at = now_ + jobs_[i].startup;
        s.admitted = true;
        break;
      case Kind::grant:
        s.inside = true;
        s.recalled = false;
        figures_.jobs[i].first_ran = std::min(figures_.jobs[i].first_ran, now_);
        if (s.left == Duration{0}) begin(i);
        s.left += options_.switch_cost;
        break;
      case Kind::recall:
        s.recalled = true;
        break;
      case Kind::freeze:
        s.frozen = true;
        break;
      case Kind::thaw:
        s.frozen = false;
        break;
      case Kind::refuse:
      case Kind::evict:
        over(i, false, c.reason);
        break;
      default:
        break;
    }
  }

  void over(std::uint32_t i, bool finished, JobReason reason) {
    State& s = states_[i];
    s.over = true;
    s.inside = false;
    figures_.jobs[i].at = now_;
    figures_.jobs[i].finished = finished;
    figures_.jobs[i].reason = reason;
  }

  void broke(const std::string& what) {
    figures_.broken = "at " + std::to_string(to_ms(now_ - TimePoint{})) + " ms: " + what;
  }

  const std::vector<WorldJob>& jobs_;
  const WorldOptions& options_;
  std::vector<State> states_;
  JobChecker checker_;
  JobBounds bounds_;
  Random random_;
  std::vector<std::pair<TimePoint, JobEvent>> late_;
  std::unique_ptr<JobSharing> sharing_;
  WorldFigures figures_;
  TimePoint now_{}, wake_ = TimePoint::max();
  std::size_t wanted_at_ = 0, capacity_at_ = 0;
};

}  // namespace

WorldFigures run_world(const std::vector<WorldJob>& jobs, const WorldOptions& options, TimePoint until) {
  return World(jobs, options).run(until);
}

}  // namespace carillon::device::testing
