#pragma once

#include <cstdint>

#include "carillon/schedule/carillon/options.h"
#include "carillon/schedule/parts/fair.h"
#include "carillon/schedule/parts/free.h"
#include "carillon/schedule/parts/in_time.h"
#include "carillon/schedule/parts/keep_off.h"
#include "carillon/schedule/parts/kinds.h"
#include "carillon/schedule/parts/life.h"
#include "carillon/schedule/parts/placing.h"
#include "carillon/schedule/parts/plan.h"
#include "carillon/schedule/parts/shortage.h"
#include "carillon/schedule/symphony/device_waits.h"

namespace carillon::schedule {

// What the parts that decide may read. A part that changes another has a reference of its own to it. All
// parts live as long as the policy.
struct View {
  const CarillonOptions& options;
  const parts::Kinds& kinds;
  const parts::Life& life;
  const parts::Placing& placing;
  const parts::Plan& plan;
  const parts::KeepOff& keep_off;
  const parts::Shortage& shortage;
  const parts::InTime& in_time;
  const parts::Fair& fair;
  const parts::Free& free;
  const symphony::DeviceWaits& waits;
  bool overtakes = false;  // a request may go before a run
};

// See Waiting::line_of().
inline std::uint32_t line_of(ModelId model, Class cls) {
  return static_cast<std::uint32_t>(parts::Waiting::line_of(model, cls));
}

}  // namespace carillon::schedule
