#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/model_loader.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/made_up.h"
#include "carillon/graph/tensor.h"

namespace carillon::controller {

// Measures a model on the calling thread, with a team and memory of its own, while workers serve: each run
// takes the cores that its threads are given, as a run of any other process.
class AsideWatch final : public Stopwatch {
 public:
  // Runs have `threads` threads; 0: as many as there are cores. Both outlive it.
  AsideWatch(engine::Engine& engine, const engine::CompiledModel& model, int threads = 0);

  Result<std::vector<Duration>> exec(int batch, int repeats, std::int64_t length,
                                     std::string* refused) override;
  // Of copies of the weights into memory that is there; by so many of their pages as a few milliseconds need.
  Result<std::vector<Duration>> load(int repeats) override;

 private:
  Result<> prepare();

  engine::Engine& engine_;
  const engine::CompiledModel& model_;
  int threads_;
  std::unique_ptr<engine::Team> team_;
  std::optional<graph::Tensor> weights_;
  engine::MadeUpChoice choice_;
};

}  // namespace carillon::controller
