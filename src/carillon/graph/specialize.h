#pragma once

#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/onnx_import.h"

namespace carillon::graph {

// `source` with these shapes for its inputs (in order): every value typed, what can be known folded, nothing
// fused yet. Errors name the node.
Result<Graph> infer_types(const OnnxGraph& source, const std::vector<Shape>& input_shapes, Folder& folder);

}  // namespace carillon::graph
