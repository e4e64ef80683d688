#pragma once

#include "carillon/base/result.h"
#include "carillon/engine/engine.h"
#include "carillon/repository/config.h"

namespace carillon::controller {

// Whether rows of a batch have the answers that each has alone, on random data: for a model whose config asks
// for dynamic batching although nothing proves that rows do not see each other (graph/rows.h). Each batch
// size runs by `compiled`'s own plans, and rows of it (the first two, the middle one, the last) run by
// themselves, for several seeds, at the shortest and the longest length. Floats may differ by 1e-5 of the
// output's largest value, or a step of it where they have 16 bits or the kernels compute with so many; all
// else by nothing.
//
// Each of these rows then runs among other rows, in a batch of the same size. Where the other rows' floats
// are 1, 100 and 10,000 times as large, its answer must be the same bit for bit: a threshold is reached, and
// what is seen of them is not lost in rounding. Where they are 1e30 times as large, infinite or NaN, kernels
// may take another way, and its answer may differ by as much as above, of its own largest value.
//
// On the calling thread, with a team of `threads` (0: as many as the process may keep busy) and memory of its
// own. Errors: they do not agree (invalid_argument; says which output, and of how many rows); a run fails, or
// the device's plans do not run in the host's memory (unsupported): then nobody knows.
Result<> rows_agree(const repository::ModelConfig& config, engine::Engine& engine,
                    const engine::CompiledModel& compiled, int threads);

}  // namespace carillon::controller
