#include "carillon/schedule/action.h"

namespace carillon::schedule {

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
    case Reason::no_model:
      return "no_model";
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
