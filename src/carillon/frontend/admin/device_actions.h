#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/telemetry/watch.h"

namespace carillon::frontend {

class Caller;

// An action of a device, with what its numbers mean.
struct DeviceAction {
  controller::TimelineAction what;
  std::uint32_t device = 0;  // in ServerStatistics::devices
  std::string name;          // of the model
  std::int64_t version = 1;

  std::string_view executor() const { return what.kind == schedule::ActionKind::load ? "LOAD" : "EXEC"; }
};

// What is under way, of models that the caller may use (null: all).
std::vector<DeviceAction> open_actions(const controller::Service& service, const Picture& picture,
                                       const Caller* caller);

// What devices did since a cursor that an earlier answer gave (empty: what is kept), and what is under way,
// as JSON (docs/admin-page.md). The newest `most_actions` at most. Error (invalid_argument): no such cursor.
Result<std::string> timeline_json(Watch& watch, std::string_view since, const Caller* caller);

inline constexpr std::size_t most_actions = 2048;

}  // namespace carillon::frontend
