#include "carillon/schedule/scheduler.h"

#include "carillon/schedule/clockwork/clockwork.h"
#include "carillon/schedule/fcfs/fcfs.h"
#include "carillon/schedule/symphony/symphony.h"

namespace carillon::schedule {
namespace {

// A policy may take a value, written "name:value"; its maker gets the text behind the colon.
struct Policy {
  std::string_view name;
  Result<std::unique_ptr<Scheduler>> (*make)(std::string_view value, const Environment& environment);
};

Result<> no_value(std::string_view name, std::string_view value) {
  if (value.empty()) return {};
  return invalid("scheduler '" + std::string(name) + "' takes no value, but was given '" +
                 std::string(value) + "'");
}

Result<std::unique_ptr<Scheduler>> make_fcfs(std::string_view value, const Environment&) {
  if (auto none = no_value("fcfs", value); !none) return std::unexpected(std::move(none.error()));
  return std::make_unique<Fcfs>();
}

Result<std::unique_ptr<Scheduler>> make_clockwork(std::string_view value, const Environment& environment) {
  if (auto none = no_value("clockwork", value); !none) return std::unexpected(std::move(none.error()));
  return std::make_unique<Clockwork>(
      ClockworkOptions{.safety = environment.answer, .safety_share = environment.overrun});
}

Result<std::unique_ptr<Scheduler>> make_symphony(std::string_view value, const Environment& environment) {
  if (auto none = no_value("symphony", value); !none) return std::unexpected(std::move(none.error()));
  return std::make_unique<Symphony>(environment);
}

constexpr Policy policies[] = {
    {"clockwork", make_clockwork},
    {"fcfs", make_fcfs},
    {"symphony", make_symphony},
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_scheduler(std::string_view text, const Environment& environment) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  const auto value = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  std::string names;
  for (const Policy& policy : policies) {
    if (policy.name == name) return policy.make(value, environment);
    names += (names.empty() ? "" : ", ") + std::string(policy.name);
  }
  return fail(ErrorCode::not_found, "no scheduler '" + std::string(text) + "'; there are " + names);
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const Policy& policy : policies) names.emplace_back(policy.name);
  return names;
}

std::string_view name_of(Reason reason) {
  switch (reason) {
    case Reason::cannot_finish:
      return "cannot_finish";
    case Reason::deadline_passed:
      return "deadline_passed";
    case Reason::device_failed:
      return "device_failed";
    case Reason::no_device:
      return "no_device";
    case Reason::rejected_late:
      return "rejected_late";
  }
  return "unknown";
}

std::string_view name_of(ActionStatus status) {
  switch (status) {
    case ActionStatus::success:
      return "success";
    case ActionStatus::too_late:
      return "too_late";
    case ActionStatus::no_memory:
      return "no_memory";
    case ActionStatus::not_loaded:
      return "not_loaded";
    case ActionStatus::failed:
      return "failed";
    case ActionStatus::stopped:
      return "stopped";
  }
  return "unknown";
}

}  // namespace carillon::schedule
