#pragma once

#include <memory>

#include "carillon/engine/engine.h"

namespace carillon::engine {

struct CpuOptions {
  int threads = 0;  // OpenMP threads of a run; 0: as many as this process may use
};

// The engine that runs on this machine's cores, by oneDNN where it has a good kernel, by plain code
// elsewhere.
//
// compile() fails with `unsupported`, naming node, operator and types, where neither has the operator.
// Weights of all batch sizes of a model are packed once, and again only for a batch size whose kernels would
// be slow on the common layout.
//
// Each thread that runs plans gets an OpenMP team of its own, so it pays off to let always the same do so. The
// calling thread, and its team, flush denormals to zero from the first run on.
//
// After a run the team's threads spin a while in case more work comes; with the environment variable
// GOMP_SPINCOUNT (read once, at program start) unset that costs some milliseconds of a core. See README.md.
std::unique_ptr<Engine> make_cpu_engine(const CpuOptions& options);

}  // namespace carillon::engine
