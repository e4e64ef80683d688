#pragma once

#include <cstdint>
#include <string_view>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/ledger.h"
#include "carillon/wire/report.h"

namespace carillon::dispatch {

// Hears of actions and devices, and keeps what others are to know of them. `place`: the action's in the
// ledger, which no other has while it is under way. Must not call back.
class Notes {
 public:
  using Action = ledger::Ledger::Action;
  virtual ~Notes() = default;

  // The order is booked. Next the device gets it, if the device has credit. Returns the action's number in a
  // journal; 0: there is none.
  virtual std::uint64_t begun(std::uint32_t /*place*/, const Action&) { return 0; }
  // A row of the call of that number in the journal is in it.
  virtual void with(std::uint32_t /*place*/, std::uint64_t /*call*/) {}
  // All calls that are in it have been told by with(). Not of an UNLOAD.
  virtual void complete(std::uint32_t /*place*/) {}
  // The device has it. Not of an UNLOAD.
  virtual void taken(std::uint32_t /*place*/, const Action&) {}
  // The device has no credit for it: it is not sent, and ends as `too_late`. The scheduler hears of that
  // later.
  virtual void not_taken(std::uint32_t /*place*/, TimePoint /*now*/) {}
  // Its report has come, and nobody else has heard of it. `held`: the device held the model's weights until
  // now.
  virtual void ended(std::uint32_t /*place*/, const Action&, const wire::Report&, bool /*held*/,
                     TimePoint /*now*/) {}
  // Likewise of an INFER that succeeded, right after: what became of what it was sent for.
  virtual void kept(const Action&, const ledger::Ledger::Kept&) {}
  // It went with its device.
  virtual void lost(std::uint32_t /*place*/, TimePoint /*now*/) {}
  // A report of an action that the device does not have, or had reported before.
  virtual void odd_report(DeviceId) {}
  // The device is taken out, with all that it has; `over`: what it had is dealt with. Or it is back. The
  // ledger hears of each only after this.
  virtual void device_lost(DeviceId) {}
  virtual void device_lost_over(DeviceId, std::string_view /*why*/) {}
  virtual void device_back(DeviceId) {}
};

}  // namespace carillon::dispatch
