#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

inline constexpr std::int64_t batch_dimension = -1;  // in TensorSpec::shape

// An input or output as a client sees it. Dimension 0 is batch_dimension where the model batches; all else is
// fixed.
struct TensorSpec {
  std::string name;
  DataType type = DataType::f32;
  Shape shape;

  // Extents at `batch` (>= 1).
  Shape shape_at(std::int64_t batch) const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// What a model's config may fix beyond its ONNX file.
struct ImportOptions {
  // By input name: extents, with -1 where the file decides (batch included). Fixes symbolic dimensions.
  std::vector<std::pair<std::string, Shape>> input_shapes;
  // False: the model has no batch dimension (max_batch_size 0): symbolic dimension 0 is not a batch.
  bool batched = true;
};

// An imported ONNX model: parsed, its operators and types known to be supported, its weights in memory.
// Immutable and safe to share between threads.
class Model {
 public:
  virtual ~Model() = default;
  virtual const std::string& name() const = 0;
  virtual const std::vector<TensorSpec>& inputs() const = 0;
  virtual const std::vector<TensorSpec>& outputs() const = 0;
  virtual bool batched() const = 0;

  // The graph at `batch` (>= 1; 1 where the model does not batch): shapes inferred, constants folded, fused.
  // Graphs of different batch sizes share every constant that does not depend on the batch, by pointer.
  // Errors name the node: a shape that cannot be known, operands that do not fit together.
  virtual Result<Graph> specialize(std::int64_t batch) const = 0;
};

// Reads an ONNX file and the external data beside it.
//
// Errors (ErrorCode::invalid_argument, or unsupported with node, operator and type): not an ONNX file, a
// corrupt one, cycles, unknown operators, opsets or types, sizes that do not match the data, external data
// that is missing, short, absolute or outside the file's folder (symbolic links included), an input dimension
// that nothing fixes. Nothing in the file is trusted: sizes are checked against what is there before memory
// is taken.
Result<std::shared_ptr<const Model>> import_onnx(const std::filesystem::path& file,
                                                 const ImportOptions& options);

}  // namespace carillon::graph
