#include "carillon/ledger/order.h"

namespace carillon::ledger {

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

}  // namespace carillon::ledger
