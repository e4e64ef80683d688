#pragma once

#include <cstdint>
#include <optional>

#include "carillon/base/assert.h"
#include "carillon/schedule/action.h"
#include "carillon/schedule/id_map.h"

namespace carillon::schedule {

// Sees to it that each request comes to one outcome: an answer, a Refuse, or that its client goes. It knows
// how often those that have none yet were tried in vain, and says which may be tried again. Where they wait
// is the policy's: in queues, or in a table by id (RequestTable) where they have to be found by that. Not
// thread-safe.
class Book {
 public:
  // INFERs of a request that may fail before it is refused. Those that came too late are counted by
  // themselves where `late_attempts` is given. Devices that went while they had it always are: perhaps it is
  // what breaks them.
  explicit Book(int attempts = 3, std::optional<int> late_attempts = std::nullopt, int losses = 3)
      : attempts_(attempts), late_attempts_(late_attempts), losses_(losses) {}

  void refuse(RequestId id, Reason reason, TimePoint would_finish, Actions& out) {
    close(id);
    out.emplace_back(Refuse{id, reason, would_finish});
  }
  // It was answered, or its client has gone.
  void close(RequestId id) {
    if (tries_.size() > 0) tries_.erase(id);
  }

  // Its INFER did not succeed. False where it was tried often enough: then it is to be refused.
  enum class Failure : std::uint8_t {
    failed,
    late,     // it came too late for its window
    lost,     // it went with its device
    stopped,  // by the policy: does not count
  };
  static Failure failure_of(ActionStatus status) {
    switch (status) {
      case ActionStatus::stopped:
        return Failure::stopped;
      case ActionStatus::too_late:
        return Failure::late;
      case ActionStatus::success:  // of which nobody asks
      case ActionStatus::no_memory:
      case ActionStatus::not_loaded:
      case ActionStatus::failed:
        return Failure::failed;
    }
    CARILLON_ASSERT(false);
  }
  // Why it is refused then.
  static Reason reason_of(Failure failure) {
    return failure == Failure::late ? Reason::rejected_late : Reason::device_failed;
  }
  // Why one is refused that cannot be on time any more. `alone`: from arrival to answer, if it ran at once
  // and alone. One that is late even then cannot finish; any other could have been on time.
  static Reason reason_of(const Request& request, Duration alone) {
    return saturating_add(request.arrival, alone) > request.deadline ? Reason::cannot_finish
                                                                     : Reason::deadline_passed;
  }
  [[nodiscard]] bool try_again(RequestId id, Failure failure) {
    Tries tries = tries_.erase(id).value_or(Tries{});
    const bool late = failure == Failure::late && late_attempts_;
    tries.late += late ? 1 : 0;
    tries.failed += failure == Failure::failed || (failure == Failure::late && !late) ? 1 : 0;
    tries.lost += failure == Failure::lost ? 1 : 0;
    if (tries.failed >= attempts_ || (late && tries.late >= *late_attempts_) || tries.lost >= losses_)
      return false;
    if (tries.failed + tries.late + tries.lost > 0) tries_.insert(id, tries);
    return true;
  }

 private:
  struct Tries {
    int failed = 0, late = 0, lost = 0;
  };
  int attempts_;
  std::optional<int> late_attempts_;
  int losses_;
  IdMap<RequestId, Tries> tries_;  // of those that were tried in vain: few
};

}  // namespace carillon::schedule
