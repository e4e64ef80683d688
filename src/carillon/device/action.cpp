#include "carillon/device/action.h"

namespace carillon::device {

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

}  // namespace carillon::device
