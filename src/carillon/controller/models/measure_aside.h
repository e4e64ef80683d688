#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/models/model_loader.h"
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
  // Of one of the model's plans.
  Result<std::vector<Duration>> exec(const engine::Plan& plan, int repeats, std::string* refused);
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

// The shortest of some runs of a plan that was made later, as others run beside them; of a run that takes
// above 0.2 s, of one. Nothing where the model refuses all data that are made up, or once `ended` is true.
Result<std::optional<Duration>> measure_later(engine::Engine& engine, const engine::CompiledModel& model,
                                              const engine::Plan& plan, int threads,
                                              const std::atomic<bool>& ended);

}  // namespace carillon::controller
