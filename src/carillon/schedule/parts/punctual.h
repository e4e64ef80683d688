#pragma once

#include <algorithm>

#include "carillon/base/time.h"
#include "carillon/ledger/environment.h"
#include "carillon/ledger/margins.h"

namespace carillon::schedule::parts {

// How late the policy is woken where it asked to be, live: on a busy machine a thread that waits for a time
// gets its processor later. What starts at the last moment has to ask for so much earlier a time. In a
// simulation nothing is late. Not thread-safe.
class Punctual {
 public:
  explicit Punctual(const ledger::Environment& environment)
      : measured_(environment.measured), guess_(environment.dispatch), tail_(ledger::Margins::promised / 2) {}

  // Something was to be done at `due`, and is done now.
  void looked(TimePoint due, TimePoint now) {
    if (measured_ && due < now) tail_.add(to_seconds(now - due), now);
  }
  // At most, but for one wake-up in 400; until 64 are known at least as long as an order takes to a device.
  Duration late() const {
    if (!measured_) return Duration{0};
    const Duration tail = tail_.some() ? from_seconds(tail_.tail()) : Duration{0};
    return tail_.known() ? tail : std::max(tail, guess_);
  }

 private:
  bool measured_;
  Duration guess_;
  ledger::TailWindow tail_;
};

}  // namespace carillon::schedule::parts
