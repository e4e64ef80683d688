#pragma once

#include <memory>

#include "carillon/engine/engine.h"

namespace carillon::engine {

struct CpuOptions {
  int threads = 0;  // that kernels are made for; 0: as many as this process may use
};

// The engine that runs on this machine's cores, by oneDNN where it has a good kernel, by plain code
// elsewhere.
//
// compile() fails with `unsupported`, naming node, operator and types, where neither has the operator.
// Weights of all batch sizes of a model are packed once, and again only for a batch size whose kernels would
// be slow on the common layout.
//
// Plans are made once for all teams: by default kernels are made for `threads` parts, of which a team's
// threads take what they get hold of. The thread that calls Plan::run flushes denormals to zero from then on.
std::unique_ptr<Engine> make_cpu_engine(const CpuOptions& options);

}  // namespace carillon::engine
