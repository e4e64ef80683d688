#include <array>
#include <string>

#include "carillon/device/lanes/job_policies.h"
#include "carillon/device/lanes/job_sharing.h"

namespace carillon::device {
namespace {

struct JobPolicy {
  std::string_view name;
  std::unique_ptr<JobSharing> (*make)(const JobOptions& options);
};
constexpr std::array job_policies{JobPolicy{"fifo", make_fifo}, JobPolicy{"srtf", make_srtf},
                                  JobPolicy{"pack", make_pack}, JobPolicy{"fair", make_fair},
                                  JobPolicy{"best", make_best}};
constexpr std::array job_policy_list{job_policies[0].name, job_policies[1].name, job_policies[2].name,
                                     job_policies[3].name, job_policies[4].name};

}  // namespace

std::span<const std::string_view> job_policy_names() {
  return job_policy_list;
}

Result<std::unique_ptr<JobSharing>> make_job_sharing(std::string_view name, const JobOptions& options) {
  if (options.capacity == Bytes{} || options.capacity > most_job_bytes)
    return invalid("the device's memory for jobs is " + to_text(options.capacity) +
                   "; it must be above 0, and at most " + to_text(most_job_bytes));
  if (options.quantum < Duration{1'000'000} || options.quantum > std::chrono::hours{1})
    return invalid("the quantum must be from 1 ms to 1 h");
  if (options.longest_wait <= Duration{0}) return invalid("the longest wait must be above 0");
  if (options.catch_up < 1 || options.catch_up > 1'000'000)
    return invalid("the share of the longest wait must be one in 1 to 1000000");
  if (options.hang_after < Duration{1'000'000} ||
      (options.hang_after > std::chrono::hours{24} && options.hang_after != Duration::max()))
    return invalid("a job may be said to hang after 1 ms to 1 day, or never");
  if (options.most_jobs < 1 || options.most_jobs > 1'000'000)
    return invalid("there may be from 1 to 1000000 jobs at a time");
  for (const JobPolicy& policy : job_policies)
    if (policy.name == name) return policy.make(options);
  std::string known;
  for (const JobPolicy& policy : job_policies)
    known += (known.empty() ? "" : ", ") + std::string(policy.name);
  return fail(ErrorCode::not_found, "no policy '" + std::string(name) + "' for jobs; there are " + known);
}

std::string_view name_of(JobReason reason) {
  switch (reason) {
    case JobReason::none:
      return "none";
    case JobReason::too_large:
      return "too_large";
    case JobReason::too_many:
      return "too_many";
    case JobReason::no_memory:
      return "no_memory";
    case JobReason::capacity_fell:
      return "capacity_fell";
    case JobReason::hangs:
      return "hangs";
    case JobReason::bad_report:
      return "bad_report";
  }
  return "?";
}

std::string_view name_of(JobState state) {
  switch (state) {
    case JobState::queued:
      return "queued";
    case JobState::starting:
      return "starting";
    case JobState::waiting:
      return "waiting";
    case JobState::running:
      return "running";
    case JobState::recalled:
      return "recalled";
  }
  return "?";
}

}  // namespace carillon::device
