#pragma once

#include <optional>

#include "carillon/base/assert.h"
#include "carillon/schedule/id_map.h"
#include "carillon/workload/request.h"

namespace carillon::schedule {

// What a policy keeps of an open request.
struct OpenRequest {
  Request request;
  std::uint64_t sequence = 0;  // order of arrival: the last tie-breaker
  bool waiting = true;         // else in a pending INFER
  Duration demand{0};          // what it adds to its model's demand
};

using RequestTable = IdMap<RequestId, OpenRequest>;

}  // namespace carillon::schedule
