#pragma once

#include <cstdint>
#include <string_view>

#include "carillon/workload/request.h"

namespace carillon::ledger {
enum class Reason : std::uint8_t;
}
namespace carillon::schedule {
using ledger::Reason;
}

// What the fates of requests are called, in JSON and in code.
namespace carillon::explain {

enum class Outcome : std::uint8_t { open, on_time, late, refused, cancelled, failed };
inline constexpr Outcome last_outcome = Outcome::failed;
std::string_view name_of(Outcome outcome);

// Why a request has no result.
enum class Cause : std::uint8_t {
  none,
  // As schedule::Reason.
  cannot_finish,
  deadline_passed,
  device_failed,
  no_device,
  rejected_late,
  no_model,
  // Before the scheduler heard of it.
  shed,          // turned away at the door, as decisions fall behind
  too_near,      // its deadline was here, or too near for a decision
  size,          // of plans for the size of its inputs
  queue_policy,  // of its model: as many wait as that says
  sequence,      // no place, memory or turn for its sequence
  not_serving,   // the server starts or stops
  full,          // as many rows are open as may be
  // Without it.
  bad_data,  // its own data, or its deadline, are to blame
  client_gone,
  error,
};
inline constexpr Cause last_cause = Cause::error;
std::string_view name_of(Cause cause);
Cause cause_of(schedule::Reason reason);

// Where a request's deadline is from.
enum class DeadlineFrom : std::uint8_t {
  none,     // it has none
  timeout,  // its parameter
  grpc,     // its call's deadline
  slo,      // its model
  server,   // the server's default
  given,    // a log does not say
};
inline constexpr DeadlineFrom last_deadline_from = DeadlineFrom::given;
std::string_view name_of(DeadlineFrom from);

std::string_view name_of(Class cls);

}  // namespace carillon::explain
