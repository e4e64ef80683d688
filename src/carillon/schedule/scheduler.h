#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/schedule/action.h"
#include "carillon/schedule/environment.h"
#include "carillon/schedule/model_info.h"

namespace carillon::ledger {
class Ledger;
}

namespace carillon::schedule {

class Mirror;
// What a policy goes by, in its own terms: names and values, for people who read them in that order.
using Terms = std::vector<std::pair<std::string, std::string>>;
namespace testing {
struct Audit;  // reads what the parts of a scheduler keep
}

// Decides which request runs where and when: a pure state machine, without a clock, a thread, a socket or
// randomness.
//
// Contract, kept by whoever drives it: `now` never goes back; every Load, Unload and Infer is answered by
// exactly one ActionDone unless its device dies first; a Wake is given at or after the time that the last
// decide() returned; a request's model has come; after arrivals that say `more` an AllArrived comes.
// Contract, kept by every policy: each request that arrived gets exactly one outcome: a Refuse, or a place in
// an Infer that succeeds; after a RequestCancelled none is needed. A request whose Infer did not succeed is
// tried again or refused. Not thread-safe.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual std::string_view name() const = 0;
  // What it allows for beside execution times as things are, for its worst device: for people who look at it.
  // None: it allows for nothing.
  virtual std::optional<Environment> environment() const { return std::nullopt; }
  // For tests: the scheduler inside this one, and the mirror by which this one decides. Null: there is none.
  virtual const Scheduler* within() const { return nullptr; }
  virtual const Mirror* mirror() const { return nullptr; }
  // The driver keeps this ledger: it writes there each event before decide(), and each action after it, at
  // the latest before the next event. Parts read there what is under way and what was measured. The scheduler
  // writes there what it plans by, and its Doubts. It may book its orders as it gives them. Every driver
  // calls this before the first decide(); the ledger must outlive the last.
  virtual void reads(ledger::Ledger&) {}
  // The ledger by which it decides on the device's work, where that is not the driver's. The driver also
  // writes there what devices of other hosts tell (Ledger::recall(), arrived() and delivered()). Null: it
  // decides by the driver's.
  virtual ledger::Ledger* own_ledger(DeviceId) { return nullptr; }

  // The numbers by which the policy decides on requests of that model and class, for people who ask why.
  // `now` is not before its last decision. Empty: the policy tells nothing. O(devices + lines that go
  // before).
  virtual Terms terms(ModelId, Class, TimePoint) const { return {}; }

  // For who stands around it and turns requests away before they come. favours(): the policy would have the
  // request go first, whatever waits. turned_away(): it does not come, though it was asked for. The request's
  // model has come.
  virtual bool favours(const Request&, TimePoint) const { return false; }
  virtual void turned_away(const Request&, TimePoint) {}
  // Whether applications are tenants to it, and nothing else: it does not ask which requests take alike
  // times.
  virtual bool tells_tenants() const { return false; }
  // Whether it runs what is likely to be in time (Ledger::chances()), and not only what all margins allow.
  virtual bool by_chance() const { return false; }

  // Appends the actions that `event` calls for at time `now`. Returns when it wants a Wake, or max() for
  // never: that replaces what it returned before. It is after `now`, unless it is what was returned before
  // and the Wake has yet to come.
  virtual TimePoint decide(const Event& event, TimePoint now, Actions& out) = 0;
};

}  // namespace carillon::schedule
