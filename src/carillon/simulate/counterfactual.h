#pragma once

#include <optional>
#include <string>

#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/explain/decisions.h"
#include "carillon/explain/story.h"
#include "carillon/schedule/environment.h"
#include "carillon/workload/scenario.h"

namespace carillon::simulate {

// One request among those of a scenario: the `place`-th of its model, from 0, in the order of arrival.
struct RequestPlace {
  ModelId model;
  std::size_t place = 0;
};

// What became of it in a simulation.
struct Fate {
  std::string policy;
  std::optional<explain::Story> story;  // none: it did not arrive
  int ahead = 0;  // requests of its model that came before it and had no outcome when it came
};

// Simulates a scenario under a policy until the request's outcome is known, and says what became of it.
// Errors: there is no such policy.
Result<Fate> simulate_fate(const workload::Scenario& scenario, const schedule::Environment& environment,
                           const std::string& policy, RequestPlace request);

}  // namespace carillon::simulate
