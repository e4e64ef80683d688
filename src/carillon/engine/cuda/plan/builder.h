#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "carillon/engine/cuda/kernels/chain.h"
#include "carillon/engine/cuda/plan/lying.h"
#include "carillon/engine/cuda/plan/recipe.h"
#include "carillon/engine/memory_planner.h"

namespace carillon::engine::cuda {

using kernels::Activation;
using kernels::Op;

// The type of our kernels for elements that are stored so; nothing where they have none.
std::optional<kernels::Type> kernel_type(graph::DataType stored);

// What an elementwise step computes, and where its tensors lie.
struct ElementStep {
  struct Operand {
    Lying tensor;
    kernels::ChainOperand read{};  // how the step goes through it
  };
  std::string node;
  kernels::Chain::Step step{};  // what it reads is told by `operands` alone
  std::vector<Operand> operands;
  Lying out;  // a buffer of its own, dense, in the order in which the step goes through its elements
};

// Appends a graph's steps to a recipe. Lowerings (lower.h) call it, one node after the other.
class Builder {
 public:
  Builder(const graph::Graph& graph, const RecipeOptions& options, MathLibrary& library, Weights& weights);

  const graph::Graph& graph() const { return graph_; }
  MathLibrary& library() { return library_; }
  unsigned processors() const { return options_.processors; }
  bool wants_one_kernel(const std::string& key) const {
    return options_.one_kernel && options_.one_kernel(key);
  }
  int steps() const { return static_cast<int>(recipe_.steps.size()); }
  void tell(Recipe::Attention attention) { recipe_.attentions.push_back(std::move(attention)); }
  // f32 is stored as the recipe's number, all else as itself.
  graph::DataType stored(graph::DataType type) const;
  // The number of values that are stored so; nothing for whole numbers and the like.
  std::optional<Number> number_of(graph::DataType stored) const;

  void enter(const graph::Node& node);
  const graph::Node& node() const { return *node_; }
  // unsupported: "node 'x' (Op): why".
  std::unexpected<Error> refuse(const std::string& why) const;

  bool has(std::size_t input) const;
  const graph::TensorType& type(graph::ValueId id) const { return graph_.value(id).type; }
  const graph::SharedTensor& constant(graph::ValueId id) const { return graph_.value(id).constant; }
  Lying in(graph::ValueId id);  // as it lies; a constant row-major
  void set(graph::ValueId id, Lying tensor);
  // The integers of a constant operand.
  Result<std::vector<std::int64_t>> integers(std::size_t input) const;
  // A constant in `number`'s storage, made of f32 values; the same for the same `what` and `from`.
  Lying packed(const graph::SharedTensor& from, const std::string& what, const Shape& shape,
               graph::DataType type, const std::function<void(std::span<float>)>& values) {
    return packed(std::vector{from}, what, shape, type, values);
  }
  Lying packed(const std::vector<graph::SharedTensor>& from, const std::string& what, const Shape& shape,
               graph::DataType type, const std::function<void(std::span<float>)>& values);
  Lying scalar(float value, graph::DataType type);
  Lying truth(bool value);

  Lying fresh(graph::DataType type, const Shape& shape, std::vector<std::int64_t> strides);
  // The same tensor, row-major without gaps, or channels last (4 dimensions): itself where it lies so.
  Result<Lying> dense(const Lying& tensor);
  Result<Lying> images(const Lying& tensor);  // pixel_pitch() is not 0
  // The same with more channels, without gaps; zeros in those that are added.
  Result<Lying> padded_images(const Lying& tensor, std::int64_t channels);
  Result<Lying> as_type(const Lying& tensor, graph::DataType type);  // between numbers
  Result<> move(const Lying& from, const Lying& to);

  // activation(op(operands)), broadcast to `shape`, in the order in which the first whole operand lies.
  Result<Lying> elementwise(Op op, std::initializer_list<Lying> operands, const Shape& shape,
                            Activation activation = Activation::none, float low = 0, float high = 0);
  // Booleans of a comparison, and what a condition (booleans) chooses; broadcast to `shape`, row-major.
  Result<Lying> compare(kernels::Comparison comparison, const Lying& a, const Lying& b, const Shape& shape);
  Result<Lying> select(const Lying& condition, const Lying& a, const Lying& b, const Shape& shape);
  Result<Lying> reduce(kernels::Reduction reduction, const Lying& tensor, std::span<const std::size_t> axes,
                       const Shape& shape);
  Result<> convolve(Convolution spec, const Lying& x, const Lying& w, const Lying& out, const Lying* bias,
                    const Lying* residual);
  Result<> multiply(Product spec, const Lying& a, const Lying& b, const Lying& out, const Lying* bias);

  // A kernel of our own: reads and `out` are put into `params` as pointers, at these bytes of it.
  template <typename Params>
  Result<> kernel(const Params& params, const Result<kernels::Launch>& launch,
                  std::initializer_list<std::pair<std::size_t, const Lying*>> reads, std::size_t out_at,
                  const Lying& out) {
    return append({reinterpret_cast<const std::byte*>(&params), sizeof params}, launch, reads, out_at, out);
  }

  // Where a value is to be written so that a concatenation finds it in place; nothing: anywhere.
  std::optional<Lying> home(graph::ValueId id);
  // Whether all inputs of this node, a concatenation, have homes that make its result as they lie: that.
  std::optional<Lying> in_place(const graph::Node& node);

  Result<Recipe> finish();

 private:
  struct Buffer {
    std::uint64_t bytes = 0;
    int first = -1, last = -1;
  };
  struct PendingPointer {
    std::size_t step;
    std::size_t at;
    Lying tensor;
  };
  Result<> append(std::span<const std::byte> params, const Result<kernels::Launch>& launch,
                  std::span<const std::pair<std::size_t, const Lying*>> reads, std::size_t out_at,
                  const Lying& out);
  Result<> append(std::shared_ptr<const Call> call, const Lying& a, const Lying& b, const Lying& out,
                  const Lying* bias, const Lying* residual);
  void touch(const Lying& tensor, std::size_t step);
  // Of the step that was appended last, where there are now more than `before`.
  void note(std::size_t before, ElementStep step);
  // Steps that are chains (chains.h) become one each.
  Result<> join_chains(std::span<const Lying> outputs);
  void find_homes();
  Place place(const Lying& tensor, const MemoryPlan& plan) const;

  const graph::Graph& graph_;
  RecipeOptions options_;
  MathLibrary& library_;
  Weights& weights_;
  const graph::Node* node_ = nullptr;
  std::vector<std::optional<Lying>> values_;
  std::vector<Buffer> buffers_;
  Recipe recipe_;
  std::vector<std::optional<ElementStep>> elements_;  // by step; shorter where the last ones are none
  std::vector<PendingPointer> pointers_;
  struct CallOperands {
    std::size_t step;
    Lying a, b, out;
    std::optional<Lying> bias, residual, scratch;
  };
  std::vector<CallOperands> calls_;
  // Of values that concatenations read: the outermost of these, and at which of its channels they begin.
  struct Home {
    graph::ValueId whole;
    std::int64_t channel = 0;
  };
  std::unordered_map<std::uint32_t, Home> homes_;
  std::unordered_map<std::uint32_t, Lying> wholes_;
};

}  // namespace carillon::engine::cuda
