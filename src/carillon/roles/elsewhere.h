#pragma once

#include <functional>
#include <set>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/loads_ahead.h"

namespace carillon::roles {

// What is to be done for models that only devices hold which are about to leave.
struct Elsewhere {
  // To ask the policy for; at most one on each device, as a device does one LOAD at a time.
  std::vector<schedule::LoadAhead> loads;
  std::vector<ModelId> waiting;  // that are being loaded, or wait for a device's LOADs to end
  std::vector<ModelId> without;  // no device that stays has room for them, or none can load them
};

// A model that comes may take the place of a model that another device, which stays, has too. Or it takes the
// place of a model that has not been used for so long before the one that comes was last used.
inline constexpr Duration unused_before = std::chrono::seconds{10};

// Where models are to be loaded before the devices `leaving` go. `may_run`: whether that device's worker has
// the model. What was used last comes first. Pure. O(copies), and O(models of the leaving devices x others),
// times a device's copies where it may have room.
Elsewhere load_elsewhere(const ledger::Ledger& ledger, const std::set<DeviceId>& leaving,
                         const std::function<bool(DeviceId, ModelId)>& may_run);

}  // namespace carillon::roles
