#pragma once

#include <memory>

#include "carillon/base/processors.h"
#include "carillon/base/time.h"
#include "carillon/engine/engine.h"

namespace carillon::engine {

class KernelChoices;
class WeightFiles;

struct CpuOptions {
  int threads = 0;  // that kernels are made for; 0: as many as this process may use
  // How long a model's kernels are measured while it is compiled, where there are several ways to run them;
  // 0: rules alone decide, and the same model always becomes the same plans.
  Duration choose_for{0};
  // Where choices are kept, so that each is measured once; nullptr: in the engine's own memory. Kept choices
  // are heeded only where `choose_for` is not 0.
  std::shared_ptr<KernelChoices> choices{};
  // With it teams follow it: between two runs one becomes as wide as there are processors, at most as wide as
  // it was made, and narrower where others take some of them (TeamWidth). Null: teams stay as they are made.
  std::shared_ptr<const UsableProcessors> processors{};
  // The store for packed weights; nullptr: they stay in memory.
  std::shared_ptr<WeightFiles> weights{};
};

// The engine that runs on this machine's cores, by oneDNN where it has a good kernel, by plain code
// elsewhere.
//
// compile() fails with `unsupported`, naming node, operator and types, where neither has the operator.
// Weights of all batch sizes of a model are packed once, and again only for a batch size whose kernels would
// be slow on the common layout.
//
// Plans are made once for all teams: by default kernels are made for `threads` parts, of which a team's
// threads take what they get hold of. While a plan compiles or runs, its threads take denormals for zeros and
// make none (docs/engines.md).
std::unique_ptr<Engine> make_cpu_engine(const CpuOptions& options);

}  // namespace carillon::engine
