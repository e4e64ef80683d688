#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "carillon/graph/model.h"
#include "carillon/ledger/model_info.h"

namespace carillon::wire {

// A version of a model that devices have ready, as others must know it to offer rows of it, and to decide on
// them.
struct Model {
  ledger::ModelInfo info;  // its id is that of whoever tells; without `sizes` and `weights_of`
  std::int64_t version = 1;
  std::uint64_t hash = 0;  // of its file and config: models that are served together have the same
  std::string config;      // the inference.ModelConfig message, complete
  std::vector<graph::TensorSpec> inputs, outputs;  // as engine::CompiledModel has them
  std::vector<std::int64_t> lengths;               // likewise
  std::string apart;  // why other hosts cannot give it rows; empty: they can. Is told to nobody
};

}  // namespace carillon::wire
