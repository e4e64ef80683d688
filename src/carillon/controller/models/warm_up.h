#pragma once

#include "carillon/base/result.h"
#include "carillon/engine/engine.h"
#include "carillon/repository/config.h"

namespace carillon::controller {

// Runs a model's warm-up requests (config.warmup; none: nothing happens), on the calling thread, with a team
// and memory of its own. `config` is complete. Random floating-point numbers are in [0, 1), random whole ones
// 0 or 1, the same each time. Errors name request and input: one that is missing or not the model's, another
// type or shape, a file of another size, data that the model cannot use, a run that fails.
Result<> warm_up(const repository::ModelConfig& config, engine::Engine& engine,
                 const engine::CompiledModel& compiled, int threads);

}  // namespace carillon::controller
