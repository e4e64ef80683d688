#include "carillon/schedule/abandoned.h"

#include <cstdint>
#include <variant>

#include "carillon/ledger/ledger.h"

namespace carillon::schedule {

TimePoint EndsAbandoned::decide(const Event& event, TimePoint now, Actions& out) {
  const auto* const gone = std::get_if<RequestCancelled>(&event);
  if (gone == nullptr) return policy_->decide(event, now, out);
  const std::uint64_t heard = ledger_->tick();
  const TimePoint wake = policy_->decide(event, now, out);
  const auto* const request = ledger_->request(gone->request);
  if (request == nullptr || request->action == ledger::Ledger::none) return wake;
  // A client goes once: what was told before changes nothing.
  const auto& run = ledger_->at(request->action);
  if (request->withdrawn == heard && run.wanted == 0) out.emplace_back(Stop{run.id, run.device});
  return wake;
}

}  // namespace carillon::schedule
