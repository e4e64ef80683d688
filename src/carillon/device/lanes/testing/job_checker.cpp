#include "carillon/device/lanes/testing/job_checker.h"

#include <algorithm>
#include <variant>

namespace carillon::device::testing {
namespace {

std::string of_job(std::uint32_t id, const char* what) {
  return "job " + std::to_string(id) + " " + what;
}
std::string of_lane(std::uint32_t id, const char* what) {
  return "lane " + std::to_string(id) + " " + what;
}

}  // namespace

std::optional<std::string> JobChecker::heard(const JobEvent& event) {
  if (const auto* came = std::get_if<JobCame>(&event)) {
    jobs_.try_emplace(came->job.value, Job{.needs = {came->spec.persistent.value_or(Bytes{}),
                                                     came->spec.ephemeral.value_or(Bytes{})},
                                           .knows = came->spec.persistent && came->spec.ephemeral});
  } else if (const auto* ended = std::get_if<IterationEnded>(&event)) {
    const auto at = jobs_.find(ended->job.value);
    if (at == jobs_.end() || at->second.lane == no_lane) return {};
    Job& job = at->second;
    if (ended->iterations > 0 && job.inside) {
      job.needs.persistent =
          job.knows ? std::max(job.needs.persistent, ended->memory.persistent) : ended->memory.persistent;
      job.needs.ephemeral = std::max(job.needs.ephemeral, ended->memory.ephemeral);
    }
    if (ended->stopped) {
      if (job.inside) lanes_[job.lane.value].inside.reset();
      job.inside = job.recalled = false;
      job.ready = true;
    }
  } else if (const auto* gone = std::get_if<JobGone>(&event)) {
    if (jobs_.contains(gone->job.value)) leave(gone->job.value);
  } else if (const auto* asked = std::get_if<MemoryAsked>(&event)) {
    if (const auto at = jobs_.find(asked->job.value); at != jobs_.end() && at->second.lane != no_lane) {
      Job& job = at->second;
      job.needs.persistent = std::max(job.needs.persistent, asked->memory.persistent);
      job.needs.ephemeral = std::max(job.needs.ephemeral, asked->memory.ephemeral);
    }
  } else if (std::holds_alternative<DeviceWanted>(event)) {
    wanted_ = true;
  } else if (std::holds_alternative<DeviceFree>(event)) {
    wanted_ = false;
  } else if (const auto* changed = std::get_if<CapacityChanged>(&event)) {
    capacity_ = changed->capacity;
  }
  return {};
}

std::optional<std::string> JobChecker::said(const JobCommands& commands) {
  for (const JobCommand& command : commands)
    if (auto wrong = said(command)) return wrong;
  for (const auto& [id, job] : jobs_) {
    if (job.inside && wanted_ && !job.frozen) return of_job(id, "runs while the device is wanted");
    if (!job.inside && job.frozen) return of_job(id, "is frozen where it waits");
  }
  return memory();
}

std::optional<std::string> JobChecker::said(const JobCommand& c) {
  using Kind = JobCommand::Kind;
  const auto at = jobs_.find(c.job.value);
  const bool of_a_job = c.kind != Kind::open && c.kind != Kind::move && c.kind != Kind::close;
  if (of_a_job && at == jobs_.end()) return of_job(c.job.value, "is not here");
  switch (c.kind) {
    case Kind::admit: {
      Job& job = at->second;
      if (job.inside) return of_job(c.job.value, "changes lanes while it runs");
      if (job.lane != no_lane && --lanes_[job.lane.value].jobs == 0) lanes_[job.lane.value].size.reset();
      job.lane = c.lane;
      ++lanes_[c.lane.value].jobs;
      break;
    }
    case Kind::open: {
      LaneAccount& lane = lanes_[c.lane.value];
      if (lane.jobs == 0) return of_lane(c.lane.value, "opens for nobody");
      if (lane.inside && lane.size && c.size < *lane.size)
        return of_lane(c.lane.value, "shrinks under a job");
      if (lane.inside && lane.offset != c.offset && options_.contiguous)
        return of_lane(c.lane.value, "moves under a job");
      lane.size = c.size;
      lane.offset = c.offset;
      break;
    }
    case Kind::move: {
      LaneAccount& lane = lanes_[c.lane.value];
      if (!lane.size) return of_lane(c.lane.value, "moves and is not open");
      if (lane.inside) return of_lane(c.lane.value, "moves under a job");
      lane.offset = c.offset;
      break;
    }
    case Kind::close:
      if (lanes_[c.lane.value].inside) return of_lane(c.lane.value, "closes over a job");
      lanes_[c.lane.value].size.reset();
      break;
    case Kind::grant: {
      Job& job = at->second;
      LaneAccount& lane = lanes_[c.lane.value];
      if (wanted_) return of_job(c.job.value, "is granted a device that is wanted");
      if (job.lane == no_lane || job.lane != c.lane) return of_job(c.job.value, "is granted another's lane");
      if (!job.ready || job.inside) return of_job(c.job.value, "is granted what it does not wait for");
      if (lane.inside) return of_lane(c.lane.value, "has two jobs in it");
      if (!lane.size) return of_lane(c.lane.value, "is granted and not open");
      if (*lane.size < job.needs.ephemeral) return of_lane(c.lane.value, "is too small for its job");
      job.inside = true;
      job.recalled = false;
      lane.inside = c.job;
      break;
    }
    case Kind::recall:
      if (!at->second.inside || at->second.recalled) return of_job(c.job.value, "is recalled from nowhere");
      at->second.recalled = true;
      break;
    case Kind::freeze:
      if (!at->second.inside || at->second.frozen)
        return of_job(c.job.value, "is frozen where it does not run");
      at->second.frozen = true;
      break;
    case Kind::thaw:
      if (!at->second.frozen) return of_job(c.job.value, "is thawed and not frozen");
      at->second.frozen = false;
      break;
    case Kind::refuse:
      if (at->second.lane != no_lane) return of_job(c.job.value, "is refused after it was admitted");
      leave(c.job.value);
      break;
    case Kind::evict:
      leave(c.job.value);
      break;
  }
  return {};
}

void JobChecker::leave(std::uint32_t id) {
  const Job& job = jobs_.at(id);
  if (job.lane != no_lane) {
    LaneAccount& lane = lanes_[job.lane.value];
    if (job.inside) lane.inside.reset();
    // One that nobody is in holds nothing, whether or not that was said.
    if (--lane.jobs == 0) lane.size.reset();
  }
  jobs_.erase(id);
  ++ended_;
}

std::optional<std::string> JobChecker::memory() const {
  Bytes persistent, lanes;
  for (const auto& [id, job] : jobs_)
    if (job.lane != no_lane) persistent = persistent + job.needs.persistent;
  std::vector<std::pair<Bytes, Bytes>> ranges;
  for (const auto& [id, lane] : lanes_) {
    if (!lane.size || lane.jobs == 0) continue;
    lanes = lanes + *lane.size;
    ranges.emplace_back(lane.offset, lane.offset + *lane.size);
  }
  if (persistent + lanes > capacity_) return "equation 2.1 does not hold";
  if (!options_.contiguous) return {};
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i - 1].second > ranges[i].first) return "two lanes overlap";
  if (!ranges.empty() && ranges.back().second + persistent > capacity_)
    return "persistent memory grows into a lane behind a gap";
  return {};
}

}  // namespace carillon::device::testing
