#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// In TensorSpec::shape.
inline constexpr std::int64_t batch_dimension = -1;
inline constexpr std::int64_t length_dimension = -2;

// An input or output as a client sees it. Dimension 0 is batch_dimension where the model batches. One more
// may be length_dimension, where it varies with the request: the length of a sequence, say. All else is
// fixed.
struct TensorSpec {
  std::string name;
  DataType type = DataType::f32;
  Shape shape;

  bool varies() const { return std::ranges::find(shape, length_dimension) != shape.end(); }
  // Extents at `batch` (>= 1) and `length` (>= 1 where the tensor varies).
  Shape shape_at(std::int64_t batch, std::int64_t length = 0) const;
  // The same with -1 for all that is open, as the protocols write it.
  Shape open_shape() const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// The same tensors with all extents known.
std::vector<TensorSpec> specs_at(std::span<const TensorSpec> specs, std::int64_t batch, std::int64_t length);

// What a model's config may fix beyond its ONNX file.
struct ImportOptions {
  // By input name: extents, with -1 where the file decides (batch included). Fixes symbolic dimensions.
  std::vector<std::pair<std::string, Shape>> input_shapes;
  // Extents that dimensions which nothing fixes may take, all of them the same in one request: ascending,
  // distinct, each >= 1. Empty: every dimension must be fixed.
  std::vector<std::int64_t> lengths;
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
  // The extents that length_dimension takes, ascending; empty where nothing varies.
  virtual std::span<const std::int64_t> lengths() const { return {}; }

  // The graph at `batch` (>= 1; 1 where the model does not batch) and `length` (>= 1 where the model has
  // lengths, though not only those; else 0): shapes inferred, constants folded, fused.
  // Graphs of different batch sizes share every constant that does not depend on the batch, by pointer.
  // Errors name the node: a shape that cannot be known, operands that do not fit together.
  virtual Result<Graph> specialize(std::int64_t batch, std::int64_t length = 0) const = 0;
};

// Reads an ONNX file and the external data beside it.
//
// Errors (ErrorCode::invalid_argument, or unsupported with node, operator and type): not an ONNX file, a
// corrupt one, cycles, unknown operators, opsets or types, sizes that do not match the data, external data
// that is missing, short, absolute or outside the file's folder (symbolic links included), an input dimension
// that nothing fixes; with lengths: nothing that varies, a tensor in which two dimensions vary, an output
// that follows the length otherwise than by being as long. Nothing in the file is trusted: sizes are checked
// against what is there before memory is taken.
Result<std::shared_ptr<const Model>> import_onnx(const std::filesystem::path& file,
                                                 const ImportOptions& options);

}  // namespace carillon::graph
