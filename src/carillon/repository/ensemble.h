#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/model.h"

namespace inference {
class ModelEnsembling;
}

namespace carillon::repository {

inline constexpr std::size_t most_steps = 64;  // of one ensemble

// One step of an ensemble: a model, and which of the ensemble's tensors are its inputs and outputs.
struct EnsembleStep {
  using Map = std::vector<std::pair<std::string, std::string>>;  // the model's name of it, the ensemble's
  std::string model;
  std::int64_t version = 0;  // 0: the newest that is ready
  Map inputs;                // by name; several inputs may be one tensor
  Map outputs;               // by name; what is left out is dropped

  friend bool operator==(const EnsembleStep&, const EnsembleStep&) = default;
};

// The steps of `ensemble_scheduling`, in an order in which each comes after those whose tensors it reads,
// held against the ensemble's own inputs and outputs; the steps' models are not looked at. Errors
// (invalid_argument): no steps or too many, a step without a model, inputs or outputs, a tensor that two make
// or nobody does, one that nobody reads, steps in a circle.
Result<std::vector<EnsembleStep>> read_steps(const inference::ModelEnsembling& message,
                                             const std::vector<graph::TensorSpec>& inputs,
                                             const std::vector<graph::TensorSpec>& outputs);

}  // namespace carillon::repository
