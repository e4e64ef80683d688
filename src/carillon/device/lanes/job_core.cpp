#include "carillon/device/lanes/job_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::device {
namespace {

Bytes least(Bytes a, Bytes b) {
  return std::min(a, b);
}

bool sane(JobMemory memory) {
  return memory.persistent <= most_job_bytes && memory.ephemeral <= most_job_bytes;
}

// What a job of these needs could have had of a device that has nothing else to hold.
JobMemory fits_alone(JobMemory needs, Bytes capacity) {
  const Bytes persistent = least(needs.persistent, capacity);
  return {persistent, capacity - persistent};
}

}  // namespace

JobCore::JobCore(const JobOptions& options) : options_(options), lanes_(options.capacity) {
  options_.assumed = {least(options.assumed.persistent, {options.capacity.count / 4}),
                      least(options.assumed.ephemeral, {options.capacity.count / 2})};
  waiting_.resize(1);
}

// --- Events

TimePoint JobCore::on(const JobEvent& event, TimePoint now, JobCommands& out) {
  CARILLON_ASSERT(now >= now_);
  now_ = now;
  touched_.clear();
  // Some were not granted for want of a place, or for a gap.
  const bool held_up = options_.contiguous && (closing_gaps_ || !lanes_.arranged());
  std::visit([&](const auto& what) { heard(what, out); }, event);
  if (sealed_ && may_admit_) leave_sealed(out);
  if (may_admit_) admit_all(out);
  if (closing_gaps_) close_gaps(out);
  make_way(out);
  // A lane may find its place now.
  if (held_up || (options_.contiguous && !lanes_.arranged()))
    for (std::uint32_t lane = 0; lane < inside_.size(); ++lane)
      if (inside_[lane] == nobody && lanes_.lane({lane}).open) touch({lane});
  settle(out);
  const TimePoint wake = timers_.empty() ? TimePoint::max() : timers_.top_key();
  // A timer that was looked at, and rings on at once, would keep the caller busy.
  return wake > now_ ? wake : now_ + Duration{1};
}

void JobCore::heard(const JobCame& came, JobCommands& out) {
  const JobSpec& spec = came.spec;
  if (table_.find(came.job.value)) return;
  if (jobs_.used() >= options_.most_jobs) return refuse(came.job, JobReason::too_many, {}, out);
  const JobMemory needs{spec.persistent.value_or(options_.assumed.persistent),
                        spec.ephemeral.value_or(options_.assumed.ephemeral)};
  if (!(spec.weight >= least_job_weight && spec.weight <= most_job_weight) ||
      (spec.remaining && *spec.remaining < Duration{0}))
    return refuse(came.job, JobReason::bad_report, {}, out);
  if (!sane(needs) || needs.persistent + needs.ephemeral > lanes_.capacity())
    return refuse(came.job, JobReason::too_large, fits_alone(needs, lanes_.capacity()), out);

  const Index index = jobs_.take();
  if (index >= places_.size()) {
    places_.resize(index + 1, JobHeap<Key>::nowhere);
    timer_places_.resize(index + 1, JobHeap<TimePoint>::nowhere);
  }
  table_.insert(came.job.value, index);
  Job& job = jobs_[index];
  job = Job{};
  job.id = came.job;
  job.weight = spec.weight;
  job.order = next_order_++;
  job.knows_memory = spec.persistent && spec.ephemeral;
  job.memory = needs;
  job.came = job.waits_since = now_;
  job.in_all = spec.remaining;
  queue_.set(index, turn(job), places_);
  set_timer(index, waiting_timer(job));
  may_admit_ = true;
}

void JobCore::heard(const IterationEnded& ended, JobCommands& out) {
  const auto index = find(ended.job);
  if (!index) return;
  Job& job = jobs_[*index];
  const bool first = job.state == JobState::starting && ended.stopped && ended.iterations == 0;
  if (!first && !is_inside(job)) return;
  if (ended.busy < Duration{0} || !sane(ended.memory) || (ended.remaining && *ended.remaining < Duration{0}))
    return evict(*index, JobReason::bad_report, {}, out);

  if (!first) {
    const Duration held = now_ - job.granted_at;
    count(job);
    job.heard_at = now_;
    job.iterations += ended.iterations;
    if (ended.iterations > 0)
      job.longest = std::max(job.longest, std::min(ended.busy, held) / ended.iterations);
  }
  if (ended.remaining) job.in_all = saturated(job.progress, *ended.remaining);
  if (job.hanging) {
    // It came to an end just as it was given up.
    job.hanging = false;
    ledger().seal(job.lane, false);
    if (!wanted_) thaw(*index, out);
  }
  if (ended.iterations > 0) {
    if (unlearnt_ == *index) {
      unlearnt_ = nobody;
      may_admit_ = true;
    }
    ended_iterations(job, ended);
    if (ended.stopped) mark_edge(job.lane);
    if (!learn_memory(job, ended.memory, out)) return;
  }
  touch(job.lane);
  if (!ended.stopped) return;
  if (!first) come_out(*index, out);
  job.idle = ended.idle;
  if (ended.idle) {
    job.state = JobState::starting;
    may_admit_ = true;
    return;
  }
  job.state = JobState::waiting;
  job.waits_since = now_;
  if (first) became_ready(job);
  waiting(job.lane).set(*index, rank(job), places_);
  set_timer(*index, waiting_timer(job));
  if (first) may_admit_ = true;
}

void JobCore::heard(const JobGone& gone, JobCommands& out) {
  if (const auto index = find(gone.job)) remove(*index, out);
}

void JobCore::heard(const MemoryAsked& asked, JobCommands& out) {
  const auto index = find(asked.job);
  if (!index) return;
  Job& job = jobs_[*index];
  if (job.state == JobState::queued) return;
  if (!sane(asked.memory)) return evict(*index, JobReason::bad_report, {}, out);
  const JobMemory wants{std::max(job.memory.persistent, asked.memory.persistent),
                        std::max(job.memory.ephemeral, asked.memory.ephemeral)};
  const auto is_pinned = [this](LaneId lane) { return pinned(lane); };
  const bool larger = wants.ephemeral > lanes_.lane(job.lane).size;
  fit_idle(out);
  if ((larger && is_inside(job) && options_.contiguous &&
       !lanes_.grows_in_place(job.lane, wants.ephemeral,
                              lanes_.persistent() - job.memory.persistent + wants.persistent, is_pinned)) ||
      !lanes_.update(job.id, wants))
    return evict(*index, JobReason::no_memory, lanes_.room_of(job.id), out);
  job.memory = wants;
  job.most_ephemeral = std::max(job.most_ephemeral, asked.memory.ephemeral);
  make_way(out);
  if (!larger || !is_inside(job)) return;
  straighten(out);
  tell_lane(job.lane, out);
  mark_edge();
}

void JobCore::heard(const DeviceWanted&, JobCommands& out) {
  if (wanted_) return;
  wanted_ = true;
  for (const Index index : inside_)
    if (index != nobody && !jobs_[index].frozen) freeze(index, out);
}

void JobCore::heard(const DeviceFree&, JobCommands& out) {
  if (!wanted_) return;
  wanted_ = false;
  for (std::uint32_t lane = 0; lane < inside_.size(); ++lane) {
    if (inside_[lane] != nobody && !jobs_[inside_[lane]].hanging) thaw(inside_[lane], out);
    touch({lane});
  }
}

void JobCore::heard(const CapacityChanged& changed, JobCommands& out) {
  lanes_.set_capacity(least(changed.capacity, most_job_bytes));
  closed_in_vain_ = false;
  fit_idle(out);
  // What jobs hold they hold, between iterations as within; so the last to come in goes.
  while (lanes_.over() > Bytes{}) {
    Index last = nobody;
    for (Index i = 0; i < jobs_.size(); ++i)
      if (find(jobs_[i].id) == i && jobs_[i].state != JobState::queued &&
          (last == nobody || jobs_[i].admitted > jobs_[last].admitted))
        last = i;
    if (last == nobody) break;
    evict(last, JobReason::capacity_fell, fits_alone(jobs_[last].memory, lanes_.capacity()), out);
    fit_idle(out);
  }
  scratch_.clear();
  for (std::size_t i = 0; i < queue_.size(); ++i)
    if (const Job& job = jobs_[queue_.at(i)];
        job.memory.persistent + job.memory.ephemeral > lanes_.capacity())
      scratch_.push_back(queue_.at(i));
  std::ranges::sort(scratch_, {}, [this](Index i) { return jobs_[i].order; });
  for (const Index i : scratch_)
    evict(i, JobReason::capacity_fell, fits_alone(jobs_[i].memory, lanes_.capacity()), out);
  may_admit_ = true;
  for (std::uint32_t lane = 0; lane < inside_.size(); ++lane) touch({lane});
}

void JobCore::heard(const JobWake&, JobCommands& out) {
  while (!timers_.empty() && timers_.top_key() <= now_) {
    const Index index = timers_.top();
    timers_.remove(index, timer_places_);
    Job& job = jobs_[index];
    if (timer_rang(index)) continue;
    if (!is_inside(job) || job.frozen) continue;
    if (now_ < hangs_at(job) || here() == 1) {
      time_running(index, TimePoint::max());
      touch(job.lane);
    } else {
      hangs(index, out);
    }
  }
}

// --- Memory

std::optional<LanePlace> JobCore::place_for(JobMemory needs) const {
  return one_lane() ? lanes_.find_shared(needs) : lanes_.find(needs);
}

void JobCore::admit_all(JobCommands& out) {
  may_admit_ = false;
  closing_gaps_ = false;
  fit_idle(out);
  while (!queue_.empty()) {
    const Index first = queue_.top();
    if (!admits(jobs_[first]) || waits_for_knowledge(jobs_[first])) return;
    if (!try_admit(first, out)) break;
  }
  if (!overtakes()) return;
  scratch_.clear();
  for (std::size_t i = 0; i < queue_.size(); ++i) scratch_.push_back(queue_.at(i));
  std::ranges::sort(scratch_, {}, [this](Index i) { return turn(jobs_[i]); });
  for (const Index index : scratch_)
    if (admits(jobs_[index]) && !waits_for_knowledge(jobs_[index])) try_admit(index, out);
}

// What a job needs that does not say it shows in its first iteration. Until then what is free is kept for it,
// or several would come in by what they are taken to need, and have no room for what they do.
bool JobCore::waits_for_knowledge(const Job& job) const {
  return unlearnt_ != nobody && !job.knows_memory && find(jobs_[unlearnt_].id) == unlearnt_;
}

bool JobCore::try_admit(Index index, JobCommands& out) {
  Job& job = jobs_[index];
  const auto place = place_for(job.memory);
  if (!place) {
    if (lanes_.edge() > lanes_.ephemeral() && !closed_in_vain_ && !closing_gaps_) {
      const Bytes edge = lanes_.edge();
      lanes_.pin_to({});
      closing_gaps_ = place_for(job.memory).has_value();
      lanes_.pin_to(edge);
    }
    return false;
  }
  queue_.remove(index, places_);
  job.admitted = next_admitted_++;
  if (!job.knows_memory) unlearnt_ = index;
  job.lane = lanes_.admit(job.id, job.memory, *place);
  if (job.lane.index() >= inside_.size()) {
    inside_.resize(job.lane.index() + 1, nobody);
    told_size_.resize(inside_.size());
    if (!one_lane()) waiting_.resize(inside_.size());
  }
  job.state = JobState::starting;
  make_way(out);
  out.push_back({.kind = JobCommand::Kind::admit, .job = job.id, .lane = job.lane});
  return true;
}

// False: it is gone, as it has more than there is room for.
bool JobCore::learn_memory(Job& job, JobMemory told, JobCommands& out) {
  job.most_ephemeral = std::max(job.most_ephemeral, told.ephemeral);
  JobMemory wants{told.persistent, job.most_ephemeral};
  if (job.knows_memory)
    wants = {std::max(job.memory.persistent, wants.persistent),
             std::max(job.memory.ephemeral, wants.ephemeral)};
  if (wants == job.memory) return true;
  if (!lanes_.update(job.id, wants)) {
    fit_idle(out);
    if (!lanes_.update(job.id, wants)) {
      evict(*find(job.id), JobReason::no_memory, lanes_.room_of(job.id), out);
      return false;
    }
  }
  if (wants.persistent < job.memory.persistent || wants.ephemeral < job.memory.ephemeral) may_admit_ = true;
  job.memory = wants;
  return true;
}

void JobCore::fit_idle(JobCommands& out) {
  for (std::uint32_t lane = 0; lane < inside_.size(); ++lane)
    if (lanes_.lane({lane}).open && inside_[lane] == nobody && lanes_.fit({lane}) &&
        told_size_[lane] > lanes_.lane({lane}).size)
      tell_lane({lane}, out);
}

void JobCore::straighten(JobCommands& out) {
  if (!options_.contiguous) return;
  lanes_.arrange([this](LaneId lane) { return pinned(lane); },
                 [&](LaneId id) {
                   if (!told_size_[id.index()]) return;
                   if (const auto offset = lanes_.lane(id).offset) {
                     out.push_back({.kind = JobCommand::Kind::move, .lane = id, .offset = *offset});
                   } else {
                     told_size_[id.index()].reset();
                     out.push_back({.kind = JobCommand::Kind::close, .lane = id});
                   }
                 });
}

void JobCore::mark_edge(LaneId leaving) {
  if (!options_.contiguous) return;
  Bytes edge;
  for (std::uint32_t lane = 0; lane < inside_.size(); ++lane)
    if (inside_[lane] != nobody && LaneId{lane} != leaving)
      edge = std::max(edge, *lanes_.lane({lane}).offset + *told_size_[lane]);
  lanes_.pin_to(edge);
}

void JobCore::make_way(JobCommands& out) {
  if (!options_.contiguous) return;
  for (std::uint32_t lane = 0; lane < inside_.size(); ++lane) {
    const Lane& idle = lanes_.lane({lane});
    if (!idle.open || !idle.offset || pinned({lane})) continue;
    const Bytes end = *idle.offset + std::max(idle.size, told_size_[lane].value_or(Bytes{}));
    if (end + lanes_.persistent() > lanes_.capacity()) return straighten(out);
  }
}

void JobCore::close_gaps(JobCommands& out) {
  if (wanted_) return;
  bool moving = false;
  for (std::uint32_t lane = 0; lane < inside_.size(); ++lane) {
    const Index index = inside_[lane];
    if (index == nobody || jobs_[index].hanging || lanes_.gapless({lane})) continue;
    moving = true;
    if (jobs_[index].state == JobState::running) recall(index, out);
  }
  if (moving) return;
  closing_gaps_ = false;
  closed_in_vain_ = true;
}

void JobCore::tell_lane(LaneId id, JobCommands& out) {
  const Lane& lane = lanes_.lane(id);
  if (told_size_[id.index()] == lane.size) return;
  told_size_[id.index()] = lane.size;
  out.push_back({.kind = JobCommand::Kind::open,
                 .lane = id,
                 .offset = lane.offset.value_or(Bytes{}),
                 .size = lane.size});
}

// --- Who runs

void JobCore::settle(JobCommands& out) {
  // What is recalled, or granted, here touches no other lane. Those without a place go first: until they have
  // one nobody is granted anew in another, where he would be in their way again.
  bool in_the_way = false;
  if (options_.contiguous && !lanes_.arranged())
    for (const LaneId lane : touched_) {
      const auto placeless = [&] {
        return lane.index() < inside_.size() && lanes_.lane(lane).open && !lanes_.lane(lane).offset &&
               inside(lane) == nobody && !waiting(lane).empty();
      };
      if (!placeless()) continue;
      reconcile(lane, out);
      in_the_way = in_the_way || (placeless() && std::ranges::any_of(inside_, [this](Index index) {
                                    return index != nobody && !jobs_[index].hanging;
                                  }));
    }
  for (std::size_t i = 0; i < touched_.size(); ++i)
    if (!in_the_way || inside(touched_[i]) != nobody) reconcile(touched_[i], out);
}

void JobCore::touch(LaneId lane) {
  if (lane == no_lane || std::ranges::find(touched_, lane) != touched_.end()) return;
  touched_.push_back(lane);
}

void JobCore::reconcile(LaneId lane, JobCommands& out) {
  if (wanted_ || lane.index() >= inside_.size()) return;
  auto& heap = waiting(lane);
  const Index in = inside(lane);
  if (heap.empty()) {
    if (in != nobody && jobs_[in].state == JobState::running) time_running(in, TimePoint::max());
    return;
  }
  if (in == nobody) {
    if (one_lane())
      for (const Index other : inside_)
        if (other != nobody && !jobs_[other].hanging) return;
    const Index next = first_free(heap);
    if (next != nobody && grant(next, out) && !heap.empty()) reconcile(jobs_[next].lane, out);
    return;
  }
  if (jobs_[in].state != JobState::running) return;
  const Duration left = slice(jobs_[in], jobs_[heap.top()]);
  if (left <= Duration{0})
    recall(in, out);
  else
    time_running(in, saturating_add(now_, left));
}

// The first that waits whose lane nobody is in: a job that hangs may be in another's.
JobCore::Index JobCore::first_free(const JobHeap<Key>& heap) const {
  if (inside(jobs_[heap.top()].lane) == nobody) return heap.top();
  Index first = nobody;
  for (std::size_t i = 0; i < heap.size(); ++i)
    if (const Index index = heap.at(i);
        inside(jobs_[index].lane) == nobody && (first == nobody || rank(jobs_[index]) < rank(jobs_[first])))
      first = index;
  return first;
}

bool JobCore::grant(Index index, JobCommands& out) {
  Job& job = jobs_[index];
  CARILLON_ASSERT(job.state == JobState::waiting && inside(job.lane) == nobody && !wanted_);
  lanes_.fit(job.lane);
  const Lane& lane = lanes_.lane(job.lane);
  if (told_size_[job.lane.index()] != lane.size || closing_gaps_ || !lanes_.arranged()) straighten(out);
  if (!lane.offset && options_.contiguous) {
    // Others' lanes lie in its way: they move once nobody is in them.
    for (const Index other : inside_)
      if (other != nobody && jobs_[other].state == JobState::running) recall(other, out);
    return false;
  }
  if (closing_gaps_ && !lanes_.gapless(job.lane)) return false;
  tell_lane(job.lane, out);
  waiting(job.lane).remove(index, places_);
  inside_[job.lane.index()] = index;
  mark_edge();
  job.state = JobState::running;
  job.granted_at = job.heard_at = job.counted = now_;
  time_running(index, TimePoint::max());
  out.push_back({.kind = JobCommand::Kind::grant, .job = job.id, .lane = job.lane});
  granted(job);
  return true;
}

void JobCore::recall(Index index, JobCommands& out) {
  Job& job = jobs_[index];
  CARILLON_ASSERT(job.state == JobState::running);
  job.state = JobState::recalled;
  job.heard_at = now_;
  if (!job.frozen) time_running(index, TimePoint::max());
  out.push_back({.kind = JobCommand::Kind::recall, .job = job.id});
}

void JobCore::come_out(Index index, JobCommands& out) {
  Job& job = jobs_[index];
  inside_[job.lane.index()] = nobody;
  mark_edge();
  if (closing_gaps_) may_admit_ = true;
  // It came to its boundary just before it was frozen: what it waits for now is its grant.
  if (job.frozen) out.push_back({.kind = JobCommand::Kind::thaw, .job = job.id});
  job.frozen = false;
  set_timer(index, TimePoint::max());
}

void JobCore::freeze(Index index, JobCommands& out) {
  Job& job = jobs_[index];
  count(job);
  job.frozen = true;
  set_timer(index, TimePoint::max());
  out.push_back({.kind = JobCommand::Kind::freeze, .job = job.id});
}

void JobCore::thaw(Index index, JobCommands& out) {
  Job& job = jobs_[index];
  if (!job.frozen) return;
  job.frozen = false;
  job.counted = job.heard_at = now_;
  time_running(index, TimePoint::max());
  out.push_back({.kind = JobCommand::Kind::thaw, .job = job.id});
  touch(job.lane);
  if (job.state == JobState::running) resumed(job);
}

void JobCore::hangs(Index index, JobCommands& out) {
  if (options_.evict_hanging) return evict(index, JobReason::hangs, {}, out);
  Job& job = jobs_[index];
  if (job.state == JobState::running) recall(index, out);
  job.hanging = true;
  freeze(index, out);
  lanes_.seal(job.lane, true);
  sealed_ = true;
  may_admit_ = true;
  if (unlearnt_ == index) unlearnt_ = nobody;
}

// Whoever shares a lane with a job that hangs goes elsewhere, where there is room.
void JobCore::leave_sealed(JobCommands& out) {
  sealed_ = false;
  scratch_.clear();
  for (Index i = 0; i < jobs_.size(); ++i)
    if (find(jobs_[i].id) == i && jobs_[i].state != JobState::queued && !is_inside(jobs_[i]) &&
        lanes_.lane(jobs_[i].lane).sealed)
      scratch_.push_back(i);
  std::ranges::sort(scratch_, {}, [this](Index i) { return jobs_[i].admitted; });
  for (const Index index : scratch_) {
    // Its persistent memory is here already.
    const auto place = place_for({Bytes{}, jobs_[index].memory.ephemeral});
    if (place)
      move(index, *place, out);
    else
      sealed_ = true;
  }
}

void JobCore::move(Index index, const LanePlace& place, JobCommands& out) {
  Job& job = jobs_[index];
  CARILLON_ASSERT(!is_inside(job) && job.state != JobState::queued);
  const bool waits = job.state == JobState::waiting;
  if (waits) waiting(job.lane).remove(index, places_);
  const LaneId from = job.lane;
  job.lane = lanes_.move(job.id, place);
  if (job.lane.index() >= inside_.size()) {
    inside_.resize(job.lane.index() + 1, nobody);
    told_size_.resize(inside_.size());
    if (!one_lane()) waiting_.resize(inside_.size());
  }
  if (!lanes_.lane(from).open && told_size_[from.index()]) {
    told_size_[from.index()].reset();
    out.push_back({.kind = JobCommand::Kind::close, .lane = from});
  }
  out.push_back({.kind = JobCommand::Kind::admit, .job = job.id, .lane = job.lane});
  changed_lanes(job);
  if (waits) waiting(job.lane).set(index, rank(job), places_);
  touch(job.lane);
}

// --- The end of a job

void JobCore::evict(Index index, JobReason reason, JobMemory fits, JobCommands& out) {
  out.push_back({.kind = JobCommand::Kind::evict, .job = jobs_[index].id, .reason = reason, .fits = fits});
  remove(index, out);
}

void JobCore::refuse(JobId job, JobReason reason, JobMemory fits, JobCommands& out) {
  out.push_back({.kind = JobCommand::Kind::refuse, .job = job, .reason = reason, .fits = fits});
}

void JobCore::remove(Index index, JobCommands& out) {
  if (unlearnt_ == index) unlearnt_ = nobody;
  left(index);
  Job& job = jobs_[index];
  set_timer(index, TimePoint::max());
  if (job.state == JobState::queued) {
    queue_.remove(index, places_);
  } else {
    if (job.state == JobState::waiting) waiting(job.lane).remove(index, places_);
    if (is_inside(job)) {
      inside_[job.lane.index()] = nobody;
      mark_edge();
      if (job.hanging) lanes_.seal(job.lane, false);
    }
    const LaneId lane = job.lane;
    lanes_.remove(job.id);
    if (!lanes_.lane(lane).open && told_size_[lane.index()]) {
      told_size_[lane.index()].reset();
      out.push_back({.kind = JobCommand::Kind::close, .lane = lane});
    }
    touch(lane);
    if (one_lane() && !waiting_[0].empty()) touch(jobs_[waiting_[0].top()].lane);
  }
  closed_in_vain_ = false;
  table_.erase(job.id.value);
  jobs_.give_back(index);
  may_admit_ = true;
}

// --- Time

void JobCore::count(Job& job) {
  if (!is_inside(job) || job.frozen) return;
  const Duration more = now_ - job.counted;
  job.attained += more;
  job.progress += from_ns(static_cast<double>(more.count()) * job.rate);
  job.virtual_time = job.virtual_from + to_seconds(job.attained - job.virtual_since) / job.weight;
  job.counted = now_;
}

Duration JobCore::attained(const Job& job) const {
  return job.attained + (is_inside(job) && !job.frozen ? now_ - job.counted : Duration{0});
}

std::optional<Duration> JobCore::remaining(const Job& job) const {
  if (!job.in_all) return std::nullopt;
  const Duration more = attained(job) - job.attained;
  return std::max(Duration{0},
                  *job.in_all - job.progress - from_ns(static_cast<double>(more.count()) * job.rate));
}

void JobCore::set_timer(Index index, TimePoint at) {
  if (at != TimePoint::max())
    timers_.set(index, at, timer_places_);
  else if (timer_places_[index] != JobHeap<TimePoint>::nowhere)
    timers_.remove(index, timer_places_);
}

// A first iteration may compile what the others run: ten times as long.
TimePoint JobCore::hangs_at(const Job& job) const {
  if (options_.hang_after == Duration::max()) return TimePoint::max();
  const Duration bound =
      job.iterations == 0 ? options_.hang_after * 10 : std::max(options_.hang_after, job.longest * 20);
  return saturating_add(job.heard_at, bound);
}

void JobCore::time_running(Index index, TimePoint at) {
  const TimePoint hang = hangs_at(jobs_[index]);
  // Alone it keeps nobody from anything: it is looked at later.
  set_timer(index,
            std::min(at, std::max(hang, saturating_add(now_, std::min(options_.hang_after,
                                                                      Duration{std::chrono::hours{1}})))));
}

void JobCore::rerank(Index index) {
  const Job& job = jobs_[index];
  if (job.state == JobState::queued)
    queue_.set(index, turn(job), places_);
  else
    waiting(job.lane).set(index, rank(job), places_);
}

std::optional<JobCore::Index> JobCore::find(JobId job) const {
  return table_.find(job.value);
}

std::optional<JobId> JobCore::next_after(JobId job) const {
  const auto index = find(job);
  if (!index || !is_inside(jobs_[*index])) return std::nullopt;
  const Index next = follower(jobs_[*index]);
  return next == nobody ? std::nullopt : std::optional(jobs_[next].id);
}

std::vector<JobView> JobCore::jobs(TimePoint now) const {
  std::vector<std::pair<std::uint64_t, JobView>> found;
  for (Index i = 0; i < jobs_.size(); ++i) {
    const Job& job = jobs_[i];
    if (find(job.id) != i) continue;
    const Duration since =
        is_inside(job) && !job.frozen && now > job.counted ? now - job.counted : Duration{0};
    JobView view{.job = job.id,
                 .state = job.state,
                 .frozen = job.frozen,
                 .hanging = job.hanging,
                 .lane = job.lane,
                 .memory = job.memory,
                 .attained = job.attained + since,
                 .remaining = std::nullopt,
                 .came = job.came,
                 .iterations = job.iterations};
    if (job.in_all)
      view.remaining = std::max(
          Duration{0}, *job.in_all - job.progress - from_ns(static_cast<double>(since.count()) * job.rate));
    found.emplace_back(job.order, view);
  }
  std::ranges::sort(found, {}, &std::pair<std::uint64_t, JobView>::first);
  std::vector<JobView> views;
  for (auto& [order, view] : found) views.push_back(view);
  return views;
}

}  // namespace carillon::device
