#pragma once

#include <memory>

#include "carillon/base/result.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/tensor.h"

namespace carillon::controller {

// A model in memory of its own, with threads to run it: for runs before it serves.
struct LoadedAside {
  std::unique_ptr<engine::Team> team;
  graph::Tensor weights;
};

// `threads`: of the team; 0: as many as the process may keep busy. Errors: resource_exhausted where the
// machine has less memory left than the weights take, or gives no thread.
Result<LoadedAside> load_aside(engine::Engine& engine, const engine::CompiledModel& compiled, int threads);

}  // namespace carillon::controller
