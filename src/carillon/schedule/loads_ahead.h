#pragma once

#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/action.h"

namespace carillon::schedule {

// Wanted by whoever drives a scheduler: a model's weights on a device before requests ask for them there, as
// the devices that have them are about to go.
struct LoadAhead {
  ModelId model;
  DeviceId device;
  std::vector<ModelId> instead{};  // models that may be unloaded there for it; the first goes first
};

// A scheduler that loads models ahead of requests where its driver wants it.
class LoadsAhead {
 public:
  virtual ~LoadsAhead() = default;
  // Between two events. Appends the LOAD, or first the UNLOADs that make room for it. After them some
  // schedulers send the LOAD by themselves. Nothing is sent if the device is busy with LOADs, if one of this
  // model failed there of late, or if there is no room. So whoever still wants the model there asks again
  // until it is. False: this scheduler never does it.
  virtual bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) = 0;
};

}  // namespace carillon::schedule
