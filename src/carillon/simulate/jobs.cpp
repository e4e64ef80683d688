#include "carillon/simulate/jobs.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"

namespace carillon::simulate {
namespace {

using device::JobCommand;
using device::JobEvent;
using device::JobId;
using device::JobMemory;
using device::LaneId;
using workload::Job;

// How far all that runs has come, in time that it would take alone. While what runs stays the same, all of it
// goes on at one pace, so that an iteration's end in this time stays as it is whatever comes and goes.
class SharedPace {
 public:
  // A job's utilization comes (or goes, where negative), in millionths.
  void change(std::int64_t millionths, TimePoint now) {
    come_ = come(now);
    at_ = now;
    load_ += millionths;
    slowdown_ = std::max(1.0, static_cast<double>(load_) * 1e-6);
  }
  Duration come(TimePoint now) const {
    const auto passed = static_cast<double>((now - at_).count());
    return come_ + Duration{static_cast<std::int64_t>(std::floor(passed / slowdown_))};
  }
  TimePoint when(Duration come) const {
    const auto left = static_cast<double>((come - come_).count());
    return std::max(
        at_, saturating_add(
                 at_, Duration{static_cast<std::int64_t>(std::ceil(std::min(9e18, left * slowdown_)))}));
  }

 private:
  Duration come_{0};
  TimePoint at_;
  std::int64_t load_ = 0;
  double slowdown_ = 1;
};

struct JobState {
  enum class Doing : std::uint8_t {
    coming,     // not here yet
    waiting,    // here: without a lane, or without a grant
    switching,  // granted; its iteration begins soon
    iterating,
    resting,  // out of its lane; without a request to answer
    hanging,  // in an iteration that never ends
    gone
  };
  Doing doing = Doing::coming;
  LaneId lane = device::no_lane;
  bool granted = false, recalled = false, frozen = false;
  std::uint32_t booking = 0;  // of what is planned for it; void where another came after it
  JobMemory held;             // as the policy knows it
  Duration length{0};         // of this iteration, alone
  Duration target{0};         // its end, in the pace's time
  Duration left{0};           // of it, while frozen
  Duration took{0};           // of it, until `since`
  TimePoint since;            // it runs uninterrupted
  TimePoint idle_since;       // it has no iteration under way, and would have
  bool dying = false;
  std::size_t drift = 0;
  Random random{0};
  std::optional<workload::ArrivalProcess> process;
  std::uint64_t sent = 0;
  std::deque<TimePoint> requests;
  std::size_t interval = 0;  // place of its last in JobsFigures::intervals, plus one
};

// What is planned, in the order of time, then of these ranks, then of planning.
struct JobPlan {
  enum class Kind : std::uint8_t { capacity, wanted, free, comes, ready, request, begins, stops };
  TimePoint at;
  Kind kind{};
  std::uint64_t order = 0;
  std::uint32_t what = 0;  // a job, or the step of the capacity
  std::uint32_t booking = 0;

  friend bool operator>(const JobPlan& a, const JobPlan& b) {
    return std::tie(a.at, a.kind, a.order) > std::tie(b.at, b.kind, b.order);
  }
};

struct IterationEnd {
  Duration target;
  std::uint32_t job = 0, booking = 0;

  friend bool operator>(const IterationEnd& a, const IterationEnd& b) {
    return std::tie(a.target, a.job, a.booking) > std::tie(b.target, b.job, b.booking);
  }
};

template <typename T>
using Ascending = std::priority_queue<T, std::vector<T>, std::greater<>>;

class JobWorld {
 public:
  JobWorld(const workload::Jobs& jobs, device::JobSharing& sharing, const JobRunOptions& options)
      : jobs_(jobs), sharing_(sharing), options_(options), states_(jobs.jobs.size()) {
    figures_.jobs.resize(jobs.jobs.size());
    Random random(jobs.seed ^ 0x6a6f6273ULL);
    busy_random_ = random.split();
    for (JobState& state : states_) state.random = random.split();
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      figures_.jobs[i].came = jobs.jobs[i].arrival + jobs.jobs[i].startup;
      plan(jobs.jobs[i].starts_admitted ? jobs.jobs[i].arrival : figures_.jobs[i].came, JobPlan::Kind::comes,
           i);
    }
    for (std::uint32_t i = 0; i < jobs.device.capacity.size(); ++i)
      plan(jobs.device.capacity[i].at, JobPlan::Kind::capacity, i);
    figures_.first = figures_.last = jobs.jobs.empty() ? TimePoint{} : jobs.jobs.front().arrival;
    open_ = states_.size();
  }

  Result<JobsFigures> run() {
    plan_wanted(TimePoint{});
    if (jobs_.device.foretold && wanted_.from < TimePoint::max()) tell(device::DeviceFree{wanted_.from});
    const TimePoint end = jobs_.length ? TimePoint{} + *jobs_.length : TimePoint::max();
    std::uint64_t steps = 0;
    while (open_ > 0) {
      const TimePoint ends = next_end();
      const TimePoint planned = plans_.empty() ? TimePoint::max() : plans_.top().at;
      const TimePoint next = std::min({ends, planned, wake_});
      if (next == TimePoint::max() || next > end) break;
      // A policy that is woken again and again, while nothing else goes on, waits for what never comes.
      if (idle_steps_ > 1'000'000) break;
      if (next > now_) at_once_ = 0;
      advance(next);
      ++idle_steps_;
      if (++at_once_ > 1000 * (states_.size() + 10))
        return fail(ErrorCode::internal, "at " + std::to_string(to_seconds(now_ - TimePoint{})) +
                                             " s the policy comes to no end: it wants to be woken, or grants "
                                             "and recalls, again and again");
      if (ends <= now_) {
        end_iteration();
      } else if (planned <= now_) {
        const JobPlan plan = plans_.top();
        plans_.pop();
        carry_out(plan);
      } else {
        wake_ = TimePoint::max();
        tell(device::JobWake{});
      }
      if ((++steps & 0xfff) == 0 && options_.progress &&
          !options_.progress(1 - static_cast<double>(open_) / static_cast<double>(states_.size())))
        return fail(ErrorCode::cancelled, "interrupted");
    }
    if (jobs_.length && open_ > 0) advance(TimePoint{} + *jobs_.length);
    for (std::uint32_t i = 0; i < states_.size(); ++i)
      if (states_[i].doing != JobState::Doing::gone) {
        close_stretch(i);
        figures_.jobs[i].ended = now_;
      }
    return std::move(figures_);
  }

 private:
  using Doing = JobState::Doing;

  void plan(TimePoint at, JobPlan::Kind kind, std::uint32_t what, std::uint32_t booking = 0) {
    plans_.push({at, kind, planned_++, what, booking});
  }

  void advance(TimePoint to) {
    if (running_ > 0) figures_.busy += to - now_;
    now_ = to;
  }

  // The intervals in which somebody else wants the device, one after another.
  void plan_wanted(TimePoint after) {
    const auto& device = jobs_.device;
    wanted_ = {TimePoint::max(), TimePoint::max()};
    if (device.busy) {
      const auto draw = [&](Duration mean) {
        return device.busy->regular
                   ? mean
                   : from_ns(std::max(1.0, busy_random_.exponential(static_cast<double>(mean.count()))));
      };
      wanted_.from = after + draw(device.busy->gap);
      wanted_.until = wanted_.from + draw(device.busy->use);
    } else if (next_wanted_ < device.wanted.size()) {
      wanted_ = device.wanted[next_wanted_++];
    }
    if (wanted_.from < TimePoint::max()) plan(wanted_.from, JobPlan::Kind::wanted, 0);
  }

  void carry_out(const JobPlan& plan) {
    switch (plan.kind) {
      case JobPlan::Kind::capacity:
        tell(device::CapacityChanged{jobs_.device.capacity[plan.what].memory});
        break;
      case JobPlan::Kind::wanted:
        is_wanted_ = true;
        this->plan(wanted_.until, JobPlan::Kind::free, 0);
        tell(device::DeviceWanted{});
        break;
      case JobPlan::Kind::free:
        is_wanted_ = false;
        plan_wanted(now_);
        tell(device::DeviceFree{jobs_.device.foretold ? wanted_.from : TimePoint::max()});
        break;
      case JobPlan::Kind::comes:
        come(plan.what);
        break;
      case JobPlan::Kind::ready:
        if (states_[plan.what].booking == plan.booking) ready(plan.what);
        break;
      case JobPlan::Kind::request:
        take_request(plan.what);
        break;
      case JobPlan::Kind::begins:
        if (states_[plan.what].booking == plan.booking) begin(plan.what);
        break;
      case JobPlan::Kind::stops:
        if (states_[plan.what].booking == plan.booking) stop(plan.what);
        break;
    }
    deliver();
  }

  // --- jobs come and go

  void come(std::uint32_t i) {
    const Job& job = jobs_.jobs[i];
    JobState& state = states_[i];
    idle_steps_ = 0;
    state.doing = Doing::waiting;
    state.idle_since = now_;
    device::JobSpec spec;
    spec.weight = job.weight;
    if (job.tells_memory) {
      spec.persistent = job.persistent;
      spec.ephemeral = job.ephemeral;
      state.held = {job.persistent, job.ephemeral};
    } else {
      state.held = job_options(jobs_).assumed;
    }
    if (job.requests) {
      state.process.emplace(job.requests->process, job.requests->per_s, state.random.bits());
      plan_request(i);
    }
    spec.remaining = remaining(i);
    inbox_.push_back(device::JobCame{JobId{i}, spec});
  }

  void end_job(std::uint32_t i, JobOutcome outcome) {
    JobState& state = states_[i];
    CARILLON_ASSERT(state.doing != Doing::gone);
    stop_running(i);
    note_wait(i);
    state.doing = Doing::gone;
    ++state.booking;
    figures_.jobs[i].outcome = outcome;
    figures_.jobs[i].ended = now_;
    figures_.last = std::max(figures_.last, now_);
    state.requests.clear();
    --open_;
    idle_steps_ = 0;
  }

  void plan_request(std::uint32_t i) {
    JobState& state = states_[i];
    if (state.sent == jobs_.jobs[i].iterations) return;
    ++state.sent;
    const TimePoint last = state.sent == 1 ? now_ : request_at_[i];
    plan(request_at_[i] = last + state.process->next_gap(), JobPlan::Kind::request, i);
  }

  void take_request(std::uint32_t i) {
    JobState& state = states_[i];
    if (state.doing == Doing::gone) return;
    state.requests.push_back(now_);
    if (state.requests.size() == 1 && state.doing != Doing::iterating) state.idle_since = now_;
    plan_request(i);
    if (state.doing != Doing::resting) return;
    state.doing = Doing::waiting;
    say_stopped(i);
  }

  // --- what the policy is told

  void tell(JobEvent event) {
    inbox_.push_back(std::move(event));
    deliver();
  }

  void deliver() {
    while (!inbox_.empty()) {
      const JobEvent event = std::move(inbox_.front());
      inbox_.pop_front();
      ++figures_.events;
      commands_.clear();
      wake_ = std::max(now_, sharing_.on(event, now_, commands_));
      for (const JobCommand& command : commands_) apply(command);
      const device::Lanes& lanes = sharing_.lanes();
      const Bytes used = lanes.persistent() + lanes.ephemeral();
      figures_.most_memory = std::max(figures_.most_memory, used);
      figures_.most_lanes = std::max<std::uint64_t>(figures_.most_lanes, lanes.lanes_open());
      if (options_.timeline) sample(lanes);
    }
    CARILLON_ASSERT(!is_wanted_ || running_ == 0);
  }

  void sample(const device::Lanes& lanes) {
    const MemorySample now{now_, lanes.persistent(), lanes.ephemeral(), lanes.capacity()};
    if (!figures_.memory.empty()) {
      MemorySample& last = figures_.memory.back();
      if (last.persistent == now.persistent && last.ephemeral == now.ephemeral &&
          last.capacity == now.capacity)
        return;
      if (last.at == now.at) {
        last = now;
        return;
      }
    }
    figures_.memory.push_back(now);
  }

  // --- what it wants

  void apply(const JobCommand& command) {
    switch (command.kind) {
      case JobCommand::Kind::open: {
        LaneState& lane = lanes_[command.lane];
        if (lane.row == no_row) lane.row = free_row();
        lane.size = command.size;
        return;
      }
      case JobCommand::Kind::move:
        ++figures_.moves;
        return;
      case JobCommand::Kind::close:
        if (const auto found = lanes_.find(command.lane); found != lanes_.end()) {
          CARILLON_ASSERT(found->second.holder == nobody);
          rows_[found->second.row] = false;
          lanes_.erase(found);
        }
        return;
      default:
        break;
    }
    const std::uint32_t i = command.job.value;
    CARILLON_ASSERT(i < states_.size());
    JobState& state = states_[i];
    if (state.doing == Doing::gone) return;  // its end is not told yet
    switch (command.kind) {
      case JobCommand::Kind::admit:
        admit(i, command.lane);
        break;
      case JobCommand::Kind::grant:
        grant(i);
        break;
      case JobCommand::Kind::recall:
        recall(i);
        break;
      case JobCommand::Kind::freeze:
        freeze(i);
        break;
      case JobCommand::Kind::thaw:
        thaw(i);
        break;
      case JobCommand::Kind::refuse:
      case JobCommand::Kind::evict:
        figures_.jobs[i].reason = command.reason;
        figures_.jobs[i].fits = command.fits;
        end_job(i, command.kind == JobCommand::Kind::refuse ? JobOutcome::refused : JobOutcome::evicted);
        release_lane(i);
        break;
      case JobCommand::Kind::open:
      case JobCommand::Kind::move:
      case JobCommand::Kind::close:
        break;
    }
  }

  void admit(std::uint32_t i, LaneId lane) {
    JobState& state = states_[i];
    CARILLON_ASSERT(!state.granted);
    const bool first = state.lane == device::no_lane;
    state.lane = lane;
    if (!first) return;
    note_wait(i);
    if (jobs_.jobs[i].starts_admitted)
      plan(now_ + jobs_.jobs[i].startup, JobPlan::Kind::ready, i, ++state.booking);
    else
      ready(i);
  }

  // It could begin its first iteration.
  void ready(std::uint32_t i) {
    JobState& state = states_[i];
    if (jobs_.jobs[i].starts_admitted) state.idle_since = now_;
    if (!jobs_.jobs[i].requests || !state.requests.empty()) return say_stopped(i);
    state.doing = Doing::resting;
    inbox_.push_back(device::IterationEnded{.job = JobId{i}, .stopped = true, .idle = true, .iterations = 0});
  }

  void grant(std::uint32_t i) {
    JobState& state = states_[i];
    CARILLON_ASSERT(state.doing == Doing::waiting && !state.granted);
    const auto found = lanes_.find(state.lane);
    CARILLON_ASSERT(found != lanes_.end() && found->second.holder == nobody);
    LaneState& lane = found->second;
    state.granted = true;
    lane.holder = i;
    ++figures_.jobs[i].grants;
    const bool another = lane.last != nobody && lane.last != i;
    lane.last = i;
    if (another) ++figures_.switches;
    state.doing = Doing::switching;
    ++state.booking;
    plan(now_ + (another ? jobs_.device.switching : Duration{0}), JobPlan::Kind::begins, i, state.booking);
  }

  void recall(std::uint32_t i) {
    JobState& state = states_[i];
    if (!state.granted || state.recalled) return;
    state.recalled = true;
    plan_stop(i);
  }

  // Where it has not begun an iteration, and does not stand still, it is out of its lane at once.
  void plan_stop(std::uint32_t i) {
    JobState& state = states_[i];
    if (!state.frozen && state.doing == Doing::switching)
      plan(now_, JobPlan::Kind::stops, i, ++state.booking);
  }

  void freeze(std::uint32_t i) {
    JobState& state = states_[i];
    if (state.frozen) return;
    state.frozen = true;
    ++figures_.freezes;
    if (state.doing != Doing::iterating) return;
    state.left = state.target - pace_.come(now_);
    stop_running(i);
  }

  void thaw(std::uint32_t i) {
    JobState& state = states_[i];
    if (!state.frozen) return;
    state.frozen = false;
    if (state.doing == Doing::iterating)
      go_on(i, pace_.come(now_) + state.left);
    else if (state.recalled)
      plan_stop(i);
    else if (state.doing == Doing::switching)
      plan(now_, JobPlan::Kind::begins, i, ++state.booking);
  }

  // --- iterations

  TimePoint next_end() {
    while (!ends_.empty() && states_[ends_.top().job].booking != ends_.top().booking) ends_.pop();
    return ends_.empty() ? TimePoint::max() : pace_.when(ends_.top().target);
  }

  // The next iteration of a job that holds its lane.
  void begin(std::uint32_t i) {
    JobState& state = states_[i];
    if (state.frozen) return;
    prepare(i);
    if (state.doing == Doing::hanging) return;
    go_on(i, pace_.come(now_) + state.length);
    ask_for_memory(i);
  }

  // Draws the iteration that begins now.
  void prepare(std::uint32_t i) {
    JobState& state = states_[i];
    const Job& job = jobs_.jobs[i];
    JobFigures& figures = figures_.jobs[i];
    if (!figures.began) figures.began = now_;
    note_wait(i);
    state.took = Duration{0};
    if (job.hangs_after == figures.iterations) {
      state.doing = Doing::hanging;
      return;
    }
    double factor = 1;
    if (!job.drift.empty()) {
      while (state.drift < job.drift.size() && job.drift[state.drift].after <= figures.iterations)
        ++state.drift;
      if (state.drift > 0) factor = job.drift[state.drift - 1].factor;
    }
    if (job.noise > 0) factor *= std::max(0.1, 1 + job.noise * state.random.normal());
    state.length = factor == 1 ? job.iteration
                               : from_ns(std::max(1.0, static_cast<double>(job.iteration.count()) * factor));
    state.dying = job.dies_after == figures.iterations;
    if (state.dying) state.length /= 2;
  }

  // An iteration runs, from now on without a break, until `target` of the pace's time.
  void go_on(std::uint32_t i, Duration target) {
    JobState& state = states_[i];
    state.doing = Doing::iterating;
    state.target = target;
    state.since = now_;
    pace_.change(load_of(i), now_);
    ++running_;
    runs_[i] = true;
    stretch_from_[i] = now_;
    ends_.push({target, i, ++state.booking});
  }

  // It stands still, or is over.
  void stop_running(std::uint32_t i) {
    JobState& state = states_[i];
    if (!runs_[i]) return;
    state.took += now_ - state.since;
    figures_.jobs[i].busy += now_ - state.since;
    close_stretch(i);
    pace_.change(-load_of(i), now_);
    --running_;
    runs_[i] = false;
    ++state.booking;
  }

  void end_iteration() {
    const IterationEnd end = ends_.top();
    ends_.pop();
    const std::uint32_t i = end.job;
    JobState& state = states_[i];
    JobFigures& figures = figures_.jobs[i];
    idle_steps_ = at_once_ = 0;
    figures_.last = now_;
    if (state.dying) {
      end_job(i, JobOutcome::died);
      release_lane(i);
      tell(device::JobGone{JobId{i}});
      return;
    }
    const Duration took = state.took + (now_ - state.since);
    const JobMemory needs = needs_of(i);
    state.held = needs;
    ++figures.iterations;
    figures.device_time += state.length;
    figures_.device_time += state.length;
    if (options_.interval > Duration{0}) count(i);
    if (!state.requests.empty()) {
      figures.latencies.push_back(now_ - state.requests.front());
      state.requests.pop_front();
    }
    const bool last = figures.iterations == jobs_.jobs[i].iterations;
    const bool idle = jobs_.jobs[i].requests && state.requests.empty() && !last;
    const bool stopped = state.recalled || idle;
    device::IterationEnded told{.job = JobId{i},
                                .stopped = stopped,
                                .idle = idle,
                                .iterations = 1,
                                .busy = took,
                                .memory = needs,
                                .remaining = remaining(i)};
    inbox_.push_back(told);
    if (last) {
      end_job(i, JobOutcome::finished);
      release_lane(i);
      inbox_.push_back(device::JobGone{JobId{i}});
    } else if (stopped) {
      stop_running(i);
      let_go(i);
      if (idle) state.doing = Doing::resting;
    } else {
      // On without a break: what runs has not changed, and so has the pace.
      figures.busy += now_ - state.since;
      state.since = now_;
      prepare_next(i, end.target);
    }
    deliver();
  }

  void prepare_next(std::uint32_t i, Duration from) {
    JobState& state = states_[i];
    state.idle_since = now_;
    prepare(i);
    if (state.doing == Doing::hanging) {
      stop_running(i);
      return;
    }
    state.target = from + state.length;
    ends_.push({state.target, i, ++state.booking});
    ask_for_memory(i);
  }

  // Out of its lane, before an iteration began.
  void stop(std::uint32_t i) {
    say_stopped(i);
    let_go(i);
  }

  void say_stopped(std::uint32_t i) {
    inbox_.push_back(device::IterationEnded{.job = JobId{i},
                                            .stopped = true,
                                            .iterations = 0,
                                            .busy = Duration{0},
                                            .memory = states_[i].held,
                                            .remaining = remaining(i)});
  }

  void let_go(std::uint32_t i) {
    JobState& state = states_[i];
    release_lane(i);
    state.granted = state.recalled = false;
    state.doing = Doing::waiting;
    ++state.booking;
    // It would go on, but for requests, of which there may be none.
    state.idle_since = now_;
  }

  void release_lane(std::uint32_t i) {
    const auto found = lanes_.find(states_[i].lane);
    if (found != lanes_.end() && found->second.holder == i) found->second.holder = nobody;
  }

  void ask_for_memory(std::uint32_t i) {
    const JobMemory needs = needs_of(i);
    JobState& state = states_[i];
    const auto found = lanes_.find(state.lane);
    CARILLON_ASSERT(found != lanes_.end());
    if (needs.persistent <= state.held.persistent && needs.ephemeral <= found->second.size) return;
    state.held = needs;
    inbox_.push_back(device::MemoryAsked{JobId{i}, needs});
  }

  // Of the iteration under way, or the next.
  JobMemory needs_of(std::uint32_t i) const {
    const Job& job = jobs_.jobs[i];
    JobMemory needs{job.persistent, job.ephemeral};
    if (job.grows && figures_.jobs[i].iterations >= job.grows->after) {
      const double grown = static_cast<double>(job.ephemeral.count) * job.grows->times;
      needs.ephemeral.count = static_cast<std::uint64_t>(std::min(grown, 0x1p60));
    }
    return needs;
  }

  // What the job says that it still takes alone, where it tells.
  std::optional<Duration> remaining(std::uint32_t i) const {
    const Job& job = jobs_.jobs[i];
    if (!job.tells_remaining) return std::nullopt;
    const auto left = static_cast<double>(job.iterations - figures_.jobs[i].iterations);
    return from_ns(std::min(9e18, left * static_cast<double>(job.iteration.count()) * job.remaining_factor));
  }

  // --- accounts

  std::int64_t load_of(std::uint32_t i) const {
    return static_cast<std::int64_t>(std::llround(jobs_.jobs[i].utilization * 1e6));
  }

  // An iteration begins, or the job ends: for how long had it none, though there was work?
  void note_wait(std::uint32_t i) {
    const JobState& state = states_[i];
    if (state.doing == Doing::coming || state.doing == Doing::iterating || state.doing == Doing::hanging)
      return;
    if (jobs_.jobs[i].requests && state.requests.empty()) return;
    figures_.jobs[i].longest_wait = std::max(figures_.jobs[i].longest_wait, now_ - state.idle_since);
  }

  void close_stretch(std::uint32_t i) {
    if (!options_.timeline || !runs_[i]) return;
    const auto found = lanes_.find(states_[i].lane);
    if (found != lanes_.end() && stretch_from_[i] < now_)
      figures_.stretches.push_back({found->second.row, i, stretch_from_[i], now_});
  }

  void count(std::uint32_t i) {
    const auto interval = static_cast<std::uint64_t>((now_ - TimePoint{} - Duration{1}) / options_.interval);
    JobState& state = states_[i];
    if (state.interval == 0 || figures_.intervals[state.interval - 1].interval != interval) {
      figures_.intervals.push_back({interval, i, 0});
      state.interval = figures_.intervals.size();
    }
    ++figures_.intervals[state.interval - 1].iterations;
  }

  static constexpr std::uint32_t nobody = 0xffffffffU, no_row = 0xffffffffU;
  struct LaneState {
    Bytes size;
    std::uint32_t row = no_row;
    std::uint32_t holder = nobody;  // granted and not out of it yet
    std::uint32_t last = nobody;
  };
  std::uint32_t free_row() {
    const auto found = std::ranges::find(rows_, false);
    const auto row = static_cast<std::uint32_t>(found - rows_.begin());
    if (found == rows_.end())
      rows_.push_back(true);
    else
      *found = true;
    return row;
  }

  const workload::Jobs& jobs_;
  device::JobSharing& sharing_;
  const JobRunOptions& options_;
  JobsFigures figures_;
  std::vector<JobState> states_;
  std::vector<bool> runs_ = std::vector<bool>(states_.size());
  std::vector<TimePoint> request_at_ = std::vector<TimePoint>(states_.size());
  std::vector<TimePoint> stretch_from_ = std::vector<TimePoint>(states_.size());
  std::map<LaneId, LaneState> lanes_;
  std::vector<bool> rows_;  // which are taken
  SharedPace pace_;
  Ascending<IterationEnd> ends_;
  Ascending<JobPlan> plans_;
  std::uint64_t planned_ = 0;
  std::deque<JobEvent> inbox_;
  device::JobCommands commands_;
  TimePoint now_, wake_ = TimePoint::max();
  workload::WantedInterval wanted_{};
  std::size_t next_wanted_ = 0;
  bool is_wanted_ = false;
  Random busy_random_{0};
  std::size_t open_ = 0, running_ = 0;
  std::uint64_t idle_steps_ = 0, at_once_ = 0;
};

}  // namespace

std::string_view name_of(JobOutcome outcome) {
  switch (outcome) {
    case JobOutcome::finished:
      return "finished";
    case JobOutcome::refused:
      return "refused";
    case JobOutcome::evicted:
      return "evicted";
    case JobOutcome::died:
      return "died";
    case JobOutcome::unfinished:
      return "unfinished";
  }
  return "";
}

device::JobOptions job_options(const workload::Jobs& jobs) {
  device::JobOptions options;
  options.capacity = jobs.device.memory;
  const workload::JobPolicyOptions& own = jobs.policy;
  if (own.quantum) options.quantum = *own.quantum;
  if (own.longest_wait) options.longest_wait = *own.longest_wait;
  if (own.hang_after) options.hang_after = *own.hang_after;
  if (own.catch_up) options.catch_up = *own.catch_up;
  if (own.packs) options.packs = *own.packs;
  if (own.evict_hanging) options.evict_hanging = *own.evict_hanging;
  if (own.assumed_persistent) options.assumed.persistent = *own.assumed_persistent;
  if (own.assumed_ephemeral) options.assumed.ephemeral = *own.assumed_ephemeral;
  return options;
}

Result<JobsFigures> run_jobs(const workload::Jobs& jobs, device::JobSharing& sharing,
                             const JobRunOptions& options) {
  return JobWorld(jobs, sharing, options).run();
}

}  // namespace carillon::simulate
