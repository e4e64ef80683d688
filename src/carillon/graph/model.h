#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// In TensorSpec::shape.
inline constexpr std::int64_t batch_dimension = -1;
inline constexpr std::int64_t length_dimension = -2;
// Of an output of an open model: what it is at given extents only the graph at these tells.
inline constexpr std::int64_t computed_dimension = -3;
// Of an output of an open model, in last place: how many dimensions there are from here on, and how long they
// are, only the graph at given extents tells (a Squeeze may take out a dimension where its extent is 1). The
// protocols write one -1 for them all.
inline constexpr std::int64_t any_dimensions = -4;
// The free dimensions of an open model are numbered: inputs that have the same symbol there have the same
// number, and are equally long in one request.
inline constexpr std::size_t most_free_dimensions = 32;
constexpr std::int64_t free_dimension(std::size_t number) {
  return -16 - static_cast<std::int64_t>(number);
}
constexpr bool is_free(std::int64_t extent) {
  return extent <= -16;
}
constexpr std::size_t free_number(std::int64_t extent) {  // requires is_free()
  return static_cast<std::size_t>(-16 - extent);
}

// How long the free dimensions are, by number.
using Extents = std::vector<std::int64_t>;

// An input or output as a client sees it. Dimension 0 is batch_dimension where the model batches. One more
// may be length_dimension, where it varies with the request: the length of a sequence, say. All else is
// fixed, but in open models, where inputs may have any number of free dimensions and outputs of computed
// ones; and in outputs whose extents the data decide, which are bounded (bounded.h).
struct TensorSpec {
  std::string name;
  DataType type = DataType::f32;
  Shape shape;

  bool varies() const { return std::ranges::find(shape, length_dimension) != shape.end(); }
  // Extents at `batch` (>= 1) and `length` (>= 1 where the tensor varies).
  Shape shape_at(std::int64_t batch, std::int64_t length = 0) const;
  // Those of an input of an open model.
  Shape shape_at(std::int64_t batch, std::span<const std::int64_t> extents) const;
  // The same with -1 for all that is open, as the protocols write it.
  Shape open_shape() const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// The same tensors with all extents known.
std::vector<TensorSpec> specs_at(std::span<const TensorSpec> specs, std::int64_t batch, std::int64_t length);
std::vector<TensorSpec> specs_at(std::span<const TensorSpec> specs, std::int64_t batch,
                                 std::span<const std::int64_t> extents);

// What a model's config may fix beyond its ONNX file.
struct ImportOptions {
  // By input name: extents, with -1 where the file decides (batch included). Fixes symbolic dimensions.
  std::vector<std::pair<std::string, Shape>> input_shapes;
  // Extents that dimensions which nothing fixes may take, all of them the same in one request: ascending,
  // distinct, each >= 1. Empty: every dimension must be fixed.
  std::vector<std::int64_t> lengths;
  // Without lengths: dimensions that nothing fixes are free, and the model is open. False: then they are an
  // error.
  bool open = false;
  // False: the model has no batch dimension (max_batch_size 0): symbolic dimension 0 is not a batch.
  bool batched = true;
  // Nobody says whether it batches (`batched` is not heeded): it does where all inputs begin with one open
  // dimension, and the outputs follow it, and it is proven that each row's results are what the file makes of
  // that row alone (rows.h).
  bool batch_from_file = false;
  // The batch sizes at which that proof is wanted, each >= 2. Empty: of 2 and 3 with batch_from_file, else of
  // none, and a model that is said to batch does.
  std::vector<int> proven_at;
  bool wants_proof() const { return batch_from_file || !proven_at.empty(); }
  // Where a model is said to batch, and the proof is wanted and fails: it does not batch, and dimension 0 of
  // its inputs, the rows of one request, is a free dimension of its own, which all of them share. False: it
  // batches, and unproven() says why it should not.
  bool whole = false;
};

// An imported ONNX model: parsed, its operators and types known to be supported, its weights in memory.
// Immutable and safe to share between threads.
class Model : public std::enable_shared_from_this<Model> {
 public:
  virtual ~Model() = default;
  virtual const std::string& name() const = 0;
  virtual const std::vector<TensorSpec>& inputs() const = 0;
  virtual const std::vector<TensorSpec>& outputs() const = 0;
  virtual bool batched() const = 0;
  // See ImportOptions::whole.
  virtual bool whole() const { return false; }
  // Why it is not proven that rows of a batch do not see each other: the node, in words. Empty where it is,
  // or where nobody wanted to know.
  virtual std::string_view unproven() const { return {}; }
  // The extents that length_dimension takes, ascending; empty where nothing varies.
  virtual std::span<const std::int64_t> lengths() const { return {}; }
  // The free dimensions, by number, as the file calls them ("height"). Not empty: the model is open, and
  // takes any extents there at which its operators fit together.
  virtual std::span<const std::string> free_dimensions() const { return {}; }
  // Of an open model: the extents at which it was tried when it was imported, and at which specialize() is.
  virtual std::span<const std::int64_t> reference() const { return {}; }

  // The graph at `batch` (>= 1; 1 where the model does not batch) and `length` (>= 1 where the model has
  // lengths, though not only those; else 0): shapes inferred, constants folded, fused.
  // Graphs of different batch sizes share every constant that does not depend on the batch, by pointer.
  // Errors name the node: a shape that cannot be known, operands that do not fit together.
  virtual Result<Graph> specialize(std::int64_t batch, std::int64_t length = 0) const = 0;
  // Of an open model, at any extents (each >= 1, as many as free_dimensions()): constants that other graphs
  // share are shared, and what was made for these extents alone is not kept for others.
  virtual Result<Graph> specialize_at(std::int64_t /*batch*/,
                                      std::span<const std::int64_t> /*extents*/) const {
    return fail(ErrorCode::unsupported, "the model has no free dimensions");
  }
  // The constants that it keeps: the file's, and what was made of them so far. The same one may come twice.
  virtual void visit_constants(const std::function<void(const SharedTensor&)>& /*visit*/) const {}
};

// Reads an ONNX file and the external data beside it.
//
// Errors (ErrorCode::invalid_argument, or unsupported with node, operator and type): not an ONNX file, a
// corrupt one, cycles, unknown operators, opsets or types, sizes that do not match the data, external data
// that is missing, short, absolute or outside the file's folder (symbolic links included), an input dimension
// that nothing fixes, but where the options say `open` (then: no extents found at which the operators fit
// together, of those that models commonly have); with lengths: nothing
// that varies, a tensor in which two dimensions vary, an output that follows the length otherwise than by
// being as long. Nothing in the file is trusted: sizes are checked against what is there before memory is
// taken.
Result<std::shared_ptr<const Model>> import_onnx(const std::filesystem::path& file,
                                                 const ImportOptions& options);
// The same of a file that was read (read_onnx()), so that it can be tried with several options. Copies share
// the weights.
struct OnnxGraph;
Result<std::shared_ptr<const Model>> make_model(OnnxGraph source, const ImportOptions& options);

}  // namespace carillon::graph
