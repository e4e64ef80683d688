#include "carillon/device/lanes/testing/job_bounds.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace carillon::device::testing {
namespace {

std::string job_that(std::uint32_t id, const char* what) {
  return "job " + std::to_string(id) + " " + what;
}
// Times are rounded to nanoseconds here and there.
constexpr Duration rounding{1000};

}  // namespace

void JobBounds::pass(TimePoint now) {
  const Duration gone = now - now_;
  now_ = now;
  if (!wanted_) head_waits_ += gone;
  for (auto& [id, job] : jobs_) {
    if (!job.inside || job.frozen) continue;
    job.had += gone;
    job.since_told += gone;
    if (!job.recalled) continue;
    job.after_recall += gone;
    job.most_after_recall = std::max(job.most_after_recall, job.after_recall);
  }
}

void JobBounds::forget_pairs(std::uint32_t id) {
  std::erase_if(pairs_, [&](const auto& pair) { return pair.first.first == id || pair.first.second == id; });
}

std::optional<std::string> JobBounds::heard(const JobEvent& event, TimePoint now) {
  pass(now);
  if (const auto* came = std::get_if<JobCame>(&event)) {
    if (jobs_.contains(came->job.value)) return {};
    Job job;
    job.order = next_order_++;
    job.waits_since = now;
    job.weight = came->spec.weight;
    job.in_all = came->spec.remaining;
    jobs_.emplace(came->job.value, job);
  } else if (const auto* ended = std::get_if<IterationEnded>(&event)) {
    const auto at = jobs_.find(ended->job.value);
    if (at == jobs_.end() || at->second.lane == no_lane) return {};
    Job& job = at->second;
    const bool first = !job.inside && !job.ready && ended->stopped && ended->iterations == 0;
    if (!job.inside && !first) return {};
    job.longest = std::max(job.longest, job.since_told);
    longest_ = std::max(longest_, job.since_told);
    job.since_told = Duration{0};
    if (ended->remaining) job.in_all = job.had + *ended->remaining;
    job.hanging = false;
    if (!ended->stopped) return {};
    job.inside = job.recalled = false;
    job.after_recall = Duration{0};
    job.ready = !ended->idle;
    job.waits_since = now;
    if (ended->idle) forget_pairs(ended->job.value);
  } else if (const auto* gone = std::get_if<JobGone>(&event)) {
    forget_pairs(gone->job.value);
    jobs_.erase(gone->job.value);
  } else if (std::holds_alternative<DeviceWanted>(event)) {
    wanted_ = true;
  } else if (std::holds_alternative<DeviceFree>(event)) {
    wanted_ = false;
  }
  return {};
}

std::optional<std::string> JobBounds::said(const JobCommands& commands) {
  for (const JobCommand& command : commands)
    if (auto wrong = obeyed(command)) return wrong;
  any_hangs_ = std::ranges::any_of(jobs_, [](const auto& any) { return any.second.hanging; });
  if ((policy_ == "fair" || policy_ == "pack") && !boundaries_lack_) return gains();
  if (policy_ == "best") return waits_too_long();
  return {};
}

std::optional<std::string> JobBounds::obeyed(const JobCommand& c) {
  using Kind = JobCommand::Kind;
  const auto at = jobs_.find(c.job.value);
  if (c.kind == Kind::open || c.kind == Kind::move || c.kind == Kind::close || at == jobs_.end()) return {};
  Job& job = at->second;
  switch (c.kind) {
    case Kind::admit:
      if (job.lane == no_lane) {
        if (auto wrong = comes_in(c.job.value)) return wrong;
      } else {
        forget_pairs(c.job.value);
      }
      job.lane = c.lane;
      break;
    case Kind::grant: {
      auto wrong = is_granted(c.job.value);
      if (wrong) return wrong;
      job.inside = true;
      job.ready = job.recalled = false;
      job.since_told = job.after_recall = Duration{0};
      break;
    }
    case Kind::recall:
      job.recalled = true;
      break;
    case Kind::freeze:
      job.frozen = true;
      if (wanted_) break;
      job.hanging = any_hangs_ = true;
      forget_pairs(c.job.value);
      break;
    case Kind::thaw:
      job.frozen = job.hanging = false;
      break;
    case Kind::refuse:
    case Kind::evict:
      forget_pairs(c.job.value);
      jobs_.erase(at);
      break;
    default:
      break;
  }
  return {};
}

std::optional<std::string> JobBounds::comes_in(std::uint32_t id) const {
  const Job& job = jobs_.at(id);
  for (const auto& [other_id, other] : jobs_) {
    if (other_id == id) continue;
    if (policy_ == "fifo") {
      if (other.lane != no_lane) return job_that(id, "comes in while another is in");
      if (other.order < job.order) return job_that(id, "comes in before one that came first");
    }
    if (other.lane != no_lane) continue;
    const Duration waited = now_ - other.waits_since;
    if ((policy_ == "fair" || policy_ == "pack") && other.order < job.order &&
        waited >= options_.longest_wait && std::ranges::none_of(jobs_, [&](const auto& any) {
          return any.second.lane == no_lane && any.second.order < other.order;
        }))
      return job_that(id, "comes in past one that has waited for too long");
    const bool has_too = now_ - job.waits_since >= options_.longest_wait;
    if (policy_ == "best" && waited > options_.longest_wait && !(has_too && job.order < other.order))
      return job_that(id, "comes in past one that has waited for too long");
  }
  return {};
}

bool JobBounds::could_run(const Job& job) const {
  return job.ready && (!any_hangs_ || std::ranges::none_of(jobs_, [&](const auto& other) {
           return other.second.hanging && other.second.lane == job.lane;
         }));
}

std::optional<std::string> JobBounds::is_granted(std::uint32_t id) const {
  if (policy_ != "srtf") return {};
  for (const auto& [other_id, other] : jobs_)
    if (other_id != id && could_run(other) && left(other) < left(jobs_.at(id)) - rounding)
      return job_that(id, "is granted before one that has less left");
  return {};
}

std::optional<std::string> JobBounds::gains() {
  const auto runs = [](const Job& job) { return job.inside && !job.hanging; };
  if (any_hangs_)
    for (auto& [id, job] : jobs_)
      if (job.hanging || (job.ready && !could_run(job))) job.excused = true;
  for (const auto& [id, job] : jobs_) {
    if (!runs(job) || job.excused) continue;  // of two that wait neither gains
    for (const auto& [other_id, other] : jobs_) {
      if (other_id == id || other.excused || !shares(job, other) || (!runs(other) && !could_run(other)))
        continue;
      // Device time by weight, from where both began to have something to do.
      const bool in_order = id < other_id;
      const Job &a = in_order ? job : other, &b = in_order ? other : job;
      const double ahead = to_seconds(a.had) / a.weight - to_seconds(b.had) / b.weight;
      Pair& pair = pairs_.try_emplace(std::minmax(id, other_id), Pair{ahead, 0, 0}).first->second;
      pair.least = std::min(pair.least, ahead - pair.start);
      pair.most = std::max(pair.most, ahead - pair.start);
      const double bound = 2 * to_seconds(options_.quantum) +
                           to_seconds(a.most_after_recall + rounding) / a.weight +
                           to_seconds(b.most_after_recall + rounding) / b.weight;
      if (pair.most - pair.least > bound)
        return job_that(id, "and job ") + std::to_string(other_id) + " are " +
               std::to_string(pair.most - pair.least) + " s apart by weight, of " + std::to_string(bound) +
               " at most";
    }
  }
  return {};
}

std::optional<std::string> JobBounds::waits_too_long() {
  std::optional<std::uint32_t> head;
  for (const auto& [id, job] : jobs_)
    if (could_run(job) && now_ - job.waits_since > options_.longest_wait &&
        (!head || job.order < jobs_.at(*head).order))
      head = id;
  if (head != head_ || !head) head_waits_ = Duration{0};
  head_ = head;
  // One that had its turn just before, a trial that is under way, and who is in its lane.
  if (!boundaries_lack_ && head_waits_ > options_.longest_wait / options_.catch_up + 12 * longest_)
    return job_that(*head_, "waited for too long, and is not granted for ") +
           std::to_string(to_seconds(head_waits_)) + " s more";
  return {};
}

}  // namespace carillon::device::testing
