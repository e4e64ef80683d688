#pragma once

#include <memory>
#include <utility>

#include "carillon/base/time.h"
#include "carillon/schedule/around.h"

namespace carillon::schedule {

// A policy whose INFERs are ended early (Stop) once the clients of all their requests have gone: nobody wants
// what they compute. One that has other requests in it runs on, and so does a Profile, which is nobody's.
// The policy hears of it as of any INFER that was stopped.
//
// Reads the ledger; a cancellation costs a look-up. Not thread-safe.
class EndsAbandoned final : public Around {
 public:
  explicit EndsAbandoned(std::unique_ptr<Scheduler> policy) : Around(std::move(policy)) {}

  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
};

}  // namespace carillon::schedule
