#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/graph/graph.h"
#include "carillon/graph/kernel.h"

// Tensors whose extents the data of a run decide: the places that NonZero finds, the boxes that
// NonMaxSuppression keeps, and what is made of them. Such a tensor is bounded: in some dimensions its type
// has the most that the extent can be, which is what memory is planned by, and a run finds the extent itself.
namespace carillon::graph {

// In the shape of a model's or a plan's output: the data of a run decide the extent, 0 to `most` (at most
// 2^40).
constexpr std::int64_t bounded_dimension(std::int64_t most) {
  return -(std::int64_t{1} << 41) - most;
}
constexpr bool is_bounded(std::int64_t extent) {
  return extent <= bounded_dimension(0);
}
// Of an output of an open model: the most depends on the extents of its inputs.
inline constexpr std::int64_t any_bounded_dimension = bounded_dimension(std::int64_t{1} << 40);
bool has_bounded(std::span<const std::int64_t> shape);

// The most dimensions that a tensor may have.
inline constexpr std::int64_t most_rank = 64;
// First in the shape of an output whose rank the data of a run decide, too: it has at most `most` dimensions
// (at most most_rank). One bounded dimension follows, of as many elements as there can be.
constexpr std::int64_t open_rank(std::int64_t most) {
  return -(std::int64_t{1} << 42) - most;
}
constexpr bool has_open_rank(std::span<const std::int64_t> shape) {
  return !shape.empty() && shape.front() <= open_rank(0);
}
// Of an output of an open model: how many dimensions and elements there can be depends on the extents of its
// inputs.
Shape any_open_rank();

// The same shape with the most that each extent can be; where the rank is open, the most elements in one
// dimension.
Shape bounds_of(std::span<const std::int64_t> shape);

// What an input or output takes in memory, each extent known or bounded. Where one is bounded: as many
// elements as there can be and, behind them at a multiple of 8 bytes, the extents that the tensor has, one
// int64 a dimension. Where the rank is open, the number of dimensions stands in front of the extents, which
// have room for the most dimensions. The elements lie as they do at these extents.
Bytes memory_of(DataType type, std::span<const std::int64_t> shape);
// Where the extents begin.
std::uint64_t extents_offset(DataType type, std::span<const std::int64_t> shape);
// What they take.
Bytes extents_bytes(std::span<const std::int64_t> shape);
// Writes there that a tensor of that shape has the extents `is`, which are within the bounds.
void write_extents(std::span<const std::int64_t> shape, std::span<const std::int64_t> is, std::byte* to);
// The extents that a tensor of that shape has in `memory`, which is memory_of() bytes. An error (internal)
// where they are not within the bounds.
Result<Shape> shape_in(DataType type, std::span<const std::int64_t> shape, std::span<const std::byte> memory);

// Whether the data that the operator reads decide its results' extents.
bool decides_extents(std::string_view op);
// Which dimensions (as bits, the outermost first) of output `output`, of `rank` dimensions, that is so of.
std::uint64_t decided_dimensions(const Node& node, std::size_t output, std::size_t rank);

// Node "Bounded" stands for one that decides extents, or reads a bounded value, or one whose contents follow
// from bounded extents (a Shape). It has that node's name, operands and attributes, as before its types were
// inferred, and these attributes more. No pass and no lowering looks into it; LateCall runs it. All other
// nodes read only values whose types are exact, and a result of a "Bounded" may be so: then every run is held
// to it.
inline constexpr std::string_view bounded_node = "Bounded";
inline constexpr std::string_view bounded_operator = "bounded.operator";      // text: the operator
inline constexpr std::string_view bounded_dimensions = "bounded.dimensions";  // by output: bits
inline constexpr std::string_view bounded_contents = "bounded.contents";      // inputs that decide extents
// A "Bounded" of this operator stands for no node of a file. Its result is one of its inputs, unchanged.
// Other inputs are conditions, which choose that input. An output gets such a node where it has another shape
// on each way through the branches of Ifs. Attribute choose_tree has three numbers for each choice, the first
// choice first. The first number is the input that holds the condition. The second says what follows if the
// condition is true, the third if it is false: another choice, by its number, or input i, as -1 - i.
// Attribute choose_rank is there where the inputs' ranks differ, and is the greatest. The type in the graph
// then has one dimension, of the most elements.
inline constexpr std::string_view choose_operator = "Choose";
inline constexpr std::string_view choose_tree = "choose.tree";
inline constexpr std::string_view choose_rank = "choose.rank";
bool is_choose(const Node& node);
// Of each input of such a node, the conditions on the way to it, the first in front: input `condition` is
// `when`.
struct ChoosePath {
  std::size_t condition = 0;
  bool when = true;
};
std::vector<std::vector<ChoosePath>> choose_paths(const Node& node);

// The node that a "Bounded" stands for.
Node inner_node(const Node& node);
// Of each value of the graph, its bounded dimensions as bits.
std::vector<std::uint64_t> find_bounded(const Graph& graph);
// Of each value of the graph, its shape with these dimensions marked as bounded, and an open rank as open.
std::vector<Shape> marked_shapes(const Graph& graph);

// Infers the results of one node from the operands that are there, and computes them. As thread-safe as any
// object; allocates nothing that grows with the tensors, but for the contents below.
class LateCall {
 public:
  // A node whose types were not inferred.
  explicit LateCall(Node node);

  // Input `i`, which is not absent. `contents`: what it holds, of that type, where that may decide an extent.
  void set(std::size_t i, TensorType type, SharedTensor contents = nullptr);
  // Needs all inputs to be set. The results' types, bounds where the operator decides them. An error says
  // what does not fit together.
  Result<std::span<const TensorType>> infer();
  // After infer(): computes the results at `outputs` (nullptr where absent), each with room for what infer()
  // said. Then results() have the extents that were found. Errors: bad data; no kernel for these types.
  Result<> run(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs);
  std::span<const TensorType> results() const { return results_; }

 private:
  Node node_;
  Node inferred_;
  Graph operands_;  // the node's inputs, its outputs, and what inference added
  std::vector<TensorType> results_;
};

// A "Bounded" of a graph, as a run has it. Copies share what is large; each is for one run at a time.
class BoundedNode {
 public:
  BoundedNode(const Graph& graph, const Node& node);

  // Runs it on inputs of the types that they have (absent: empty), and leaves the results at `outputs`
  // (nullptr where absent), each with room for the type that the graph has of it. Then results() have the
  // extents that were found. Errors (invalid_argument): operands that do not fit together at these extents,
  // results beyond their bounds, bad data.
  Result<> run(std::span<const ConstView> inputs, std::span<std::byte* const> outputs);
  std::span<const TensorType> results() const {
    return tree_.empty() ? call_.results() : std::span<const TensorType>(&chosen_, 1);
  }
  // Where the node is a "Choose": which of its inputs it gives. That one alone is read, and the conditions on
  // the way to it. Nothing: the node reads all of its inputs.
  std::optional<std::size_t> chosen(std::span<const ConstView> inputs) const;

  std::size_t inputs() const { return constants_.size(); }
  // The results' types in the graph, with the most that bounded extents can be.
  std::span<const TensorType> most() const { return most_; }
  // Of result `i`, its bounded dimensions as bits.
  std::uint64_t bounded(std::size_t i) const { return bounded_[i]; }

 private:
  Result<> check(std::size_t i) const;

  LateCall call_;
  std::string name_;
  std::vector<SharedTensor> constants_;  // by input
  std::vector<bool> looked_at_;          // likewise: what it holds decides extents
  std::vector<TensorType> most_;         // by output
  std::vector<std::uint64_t> bounded_;
  std::vector<const std::byte*> from_;
  std::vector<std::int64_t> tree_;  // of a "Choose", else empty
  TensorType chosen_;               // likewise: what it gave in this run
};

}  // namespace carillon::graph
