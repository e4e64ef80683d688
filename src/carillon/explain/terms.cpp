#include "carillon/explain/terms.h"

#include "carillon/base/assert.h"
#include "carillon/schedule/action.h"

namespace carillon::explain {

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::open:
      return "open";
    case Outcome::on_time:
      return "on_time";
    case Outcome::late:
      return "late";
    case Outcome::refused:
      return "refused";
    case Outcome::cancelled:
      return "cancelled";
    case Outcome::failed:
      return "failed";
  }
  CARILLON_ASSERT(false);
}

std::string_view name_of(Cause cause) {
  switch (cause) {
    case Cause::none:
      return "";
    case Cause::cannot_finish:
      return "cannot_finish";
    case Cause::deadline_passed:
      return "deadline_passed";
    case Cause::device_failed:
      return "device_failed";
    case Cause::no_device:
      return "no_device";
    case Cause::rejected_late:
      return "rejected_late";
    case Cause::no_model:
      return "no_model";
    case Cause::shed:
      return "shed";
    case Cause::too_near:
      return "too_near";
    case Cause::size:
      return "size";
    case Cause::queue_policy:
      return "queue_policy";
    case Cause::sequence:
      return "sequence";
    case Cause::not_serving:
      return "not_serving";
    case Cause::full:
      return "full";
    case Cause::bad_data:
      return "bad_data";
    case Cause::client_gone:
      return "client_gone";
    case Cause::error:
      return "error";
  }
  CARILLON_ASSERT(false);
}

Cause cause_of(schedule::Reason reason) {
  switch (reason) {
    case schedule::Reason::cannot_finish:
      return Cause::cannot_finish;
    case schedule::Reason::deadline_passed:
      return Cause::deadline_passed;
    case schedule::Reason::device_failed:
      return Cause::device_failed;
    case schedule::Reason::no_device:
      return Cause::no_device;
    case schedule::Reason::rejected_late:
      return Cause::rejected_late;
    case schedule::Reason::no_model:
      return Cause::no_model;
  }
  CARILLON_ASSERT(false);
}

std::string_view name_of(DeadlineFrom from) {
  switch (from) {
    case DeadlineFrom::none:
      return "none";
    case DeadlineFrom::timeout:
      return "timeout";
    case DeadlineFrom::grpc:
      return "grpc";
    case DeadlineFrom::slo:
      return "slo";
    case DeadlineFrom::server:
      return "server";
    case DeadlineFrom::given:
      return "given";
  }
  CARILLON_ASSERT(false);
}

std::string_view name_of(Class cls) {
  switch (cls) {
    case Class::real_time:
      return "real_time";
    case Class::normal:
      return "normal";
    case Class::best_effort:
      return "best_effort";
  }
  CARILLON_ASSERT(false);
}

}  // namespace carillon::explain
