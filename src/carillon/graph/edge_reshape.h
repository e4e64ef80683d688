#pragma once

#include <span>
#include <string>

#include "carillon/base/result.h"
#include "carillon/graph/tensor.h"

namespace carillon::graph {

struct OnnxGraph;

// An input or output that clients see in another shape than the file has it in: `reshape` of Triton's model
// config. Shapes are of one row where the model batches, else whole; of each at most one extent is -1, and
// either both have one or neither.
struct EdgeReshape {
  std::string name;
  bool is_input = true;
  Shape client;
  Shape file;
};

// Puts a Reshape at each of these edges, so that from here on the model is one whose inputs and outputs are as
// clients see them. `batched`: all of them have a batch dimension in front, which stays.
// Errors (invalid_argument): a name that the file does not have, a shape that is not the file's, with both.
Result<> reshape_edges(OnnxGraph& source, std::span<const EdgeReshape> edges, bool batched);

}  // namespace carillon::graph
