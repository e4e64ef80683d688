#pragma once

#include <functional>

#include "carillon/controller/core.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/testing/audit.h"

namespace carillon::controller::testing {

// Holds what a core knows of requests, orders, devices and residence against a ledger.
struct Audit {
  static void check(const Core& core, const ledger::Ledger& ledger, schedule::testing::Findings& found);
};

// For CoreOptions::audit. `found` must outlive the core.
inline std::function<void(const Core&, const ledger::Ledger&)> audit_into(
    schedule::testing::Findings& found) {
  return [&found](const Core& core, const ledger::Ledger& ledger) { Audit::check(core, ledger, found); };
}

}  // namespace carillon::controller::testing
