#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// The kinds of element types that an operator takes.
enum class TypeClass : std::uint8_t { any, number, floating, integer, boolean };

bool belongs(DataType type, TypeClass wanted);

// "node 'conv1' (Conv)": how every error names a node.
std::string describe(const Node& node);

// What an inference function sees of one node while a graph is being specialised: its operands' types, the
// values of those that are constants, and the node itself, which it may complete (explicit pads, for
// example).
//
// Inputs up to the operator's minimum are present: import has checked. Sizes and indices that come from the
// file are checked for range before they are used in arithmetic; a shape that is too large is caught by the
// caller.
class Inference {
 public:
  Inference(Graph& graph, Node& node) : graph_(graph), node_(node), results_(node.outputs.size()) {}

  Node& node() { return node_; }
  const Node& node() const { return node_; }
  std::size_t inputs() const { return node_.inputs.size(); }
  std::size_t outputs() const { return node_.outputs.size(); }
  bool present(std::size_t i) const { return i < node_.inputs.size() && node_.inputs[i] != no_value; }
  const TensorType& input(std::size_t i) const;  // requires present(i)
  const Shape& shape(std::size_t i) const { return input(i).shape; }
  std::int64_t rank(std::size_t i) const { return static_cast<std::int64_t>(shape(i).size()); }
  const Tensor* constant(std::size_t i) const;  // nullptr where absent or not constant

  // The elements of an integer operand that decides a shape; an error where it is not a constant.
  Result<std::vector<std::int64_t>> integers(std::size_t i, std::string_view what) const;
  Result<std::vector<float>> reals(std::size_t i, std::string_view what) const;

  Result<> require(std::size_t i, TypeClass wanted) const;
  Result<> require_same(std::size_t i, std::size_t j) const;
  Result<> require_rank(std::size_t i, std::int64_t at_least, std::int64_t at_most) const;

  // `axis` in [-rank, rank) made non-negative.
  Result<std::int64_t> axis(std::int64_t axis, std::int64_t rank) const;
  // Distinct axes made non-negative, in the order given.
  Result<std::vector<std::int64_t>> axes(std::span<const std::int64_t> axes, std::int64_t rank) const;

  // Adds a constant operand and returns its id.
  ValueId add_constant(std::string_view what, Tensor tensor);

  void set(std::size_t i, DataType type, Shape shape) {
    if (i < results_.size()) results_[i] = {type, std::move(shape)};
  }
  std::span<const TensorType> results() const { return results_; }

  std::unexpected<Error> error(std::string_view text) const;

 private:
  Graph& graph_;
  Node& node_;
  std::vector<TensorType> results_;
};

// A scalar of a numeric type, rounded as Cast would.
Tensor scalar_of(DataType type, float value);

// The shape that all of `shapes` broadcast to (ONNX's multidirectional rules), or nothing.
Result<Shape> broadcast(const Shape& a, const Shape& b);

// One function a family; each sets every output's type.
namespace infer {

using Function = Result<> (*)(Inference&);

// Elementwise (shape_inference_elementwise.cpp)
Result<> same_as_input(Inference&);    // any type
Result<> unfit(Inference&);            // what its attributes say
Result<> unary_float(Inference&);      // floating -> the same
Result<> unary_number(Inference&);     // number -> the same
Result<> logical_not(Inference&);      // boolean
Result<> bitwise_not(Inference&);      // integer
Result<> float_test(Inference&);       // floating -> boolean (IsNaN, IsInf)
Result<> binary_number(Inference&);    // two numbers, broadcast
Result<> binary_integer(Inference&);   // two integers, broadcast
Result<> binary_boolean(Inference&);   // two booleans, broadcast
Result<> comparison(Inference&);       // two numbers -> boolean
Result<> equality(Inference&);         // two of any type -> boolean
Result<> power(Inference&);            // the base's type
Result<> variadic_number(Inference&);  // broadcast of all
Result<> prelu(Inference&);            // the slope broadcasts to x
Result<> clip(Inference&);             // x, min?, max?
Result<> where(Inference&);            // condition, x, y
Result<> cast(Inference&);             // attribute to
Result<> cast_like(Inference&);        // becomes Cast
Result<> softmax(Inference&);          // floating, axis
Result<> dropout(Inference&);          // at inference: the input

// Convolution, pooling, normalisation, matrices, recurrence (shape_inference_layers.cpp)
Result<> conv(Inference&);
Result<> conv_transpose(Inference&);
Result<> pool(Inference&);
Result<> global_pool(Inference&);
Result<> gemm(Inference&);
Result<> matmul(Inference&);
Result<> batch_normalization(Inference&);
Result<> layer_normalization(Inference&);
Result<> instance_normalization(Inference&);
Result<> group_normalization(Inference&);
Result<> lrn(Inference&);
Result<> lp_normalization(Inference&);
Result<> mean_variance_normalization(Inference&);
Result<> recurrent(Inference&);  // LSTM, GRU, RNN
Result<> einsum(Inference&);

// What a product or a convolution of inputs `a` and `b` (or `x_in` and its weights) is like, whatever their
// types. conv_shape also completes the node's window.
Result<Shape> matmul_shape(const Inference&, std::size_t a, std::size_t b);
Result<Shape> conv_shape(Inference&, std::size_t x_in, std::size_t weights);

// Whole numbers of few bits (shape_inference_quantize.cpp)
Result<> quantize_linear(Inference&);
Result<> dequantize_linear(Inference&);
Result<> dynamic_quantize_linear(Inference&);
Result<> matmul_integer(Inference&);
Result<> qlinear_matmul(Inference&);
Result<> conv_integer(Inference&);
Result<> qlinear_conv(Inference&);

// Reductions (shape_inference_reduce.cpp)
Result<> reduce(Inference&);
Result<> arg_reduce(Inference&);
Result<> cumsum(Inference&);
Result<> top_k(Inference&);

// Shapes and movement (shape_inference_shape.cpp)
Result<> reshape(Inference&);  // the four below become Reshape with one input
Result<> flatten(Inference&);
Result<> squeeze(Inference&);
Result<> unsqueeze(Inference&);
Result<> shape_of(Inference&);
Result<> size_of_tensor(Inference&);
Result<> constant_of_shape(Inference&);
Result<> eye_like(Inference&);
Result<> range(Inference&);
Result<> expand(Inference&);
Result<> transpose(Inference&);
Result<> concat(Inference&);
Result<> split(Inference&);
Result<> tile(Inference&);
Result<> pad(Inference&);
Result<> resize(Inference&);
Result<> depth_to_space(Inference&);
Result<> space_to_depth(Inference&);
Result<> trilu(Inference&);

// Indexing (shape_inference_index.cpp)
Result<> slice(Inference&);
Result<> gather(Inference&);
Result<> gather_elements(Inference&);
Result<> gather_nd(Inference&);
Result<> scatter_elements(Inference&);
Result<> scatter_nd(Inference&);
Result<> one_hot(Inference&);
Result<> reverse_sequence(Inference&);

// Results whose extents the data decide (shape_inference_bounded.cpp): what is set are the most that they can
// be, see bounded.h.
Result<> non_zero(Inference&);
Result<> compress(Inference&);
Result<> unique(Inference&);
Result<> non_max_suppression(Inference&);

// Losses and steps of training (shape_inference_training.cpp)
Result<> negative_log_likelihood(Inference&);
Result<> softmax_cross_entropy(Inference&);
Result<> adagrad(Inference&);
Result<> adam(Inference&);
Result<> momentum(Inference&);
Result<> training_batch_normalization(Inference&);

// Signals, samples and words (shape_inference_signal.cpp)
Result<> dft(Inference&);
Result<> stft(Inference&);
Result<> window(Inference&);  // Blackman-, Hamming- and HannWindow
Result<> mel_weights(Inference&);
Result<> determinant(Inference&);
Result<> grid_sample(Inference&);
Result<> roi_align(Inference&);
Result<> max_unpool(Inference&);
Result<> tf_idf(Inference&);

// What ml::expand() writes (shape_inference_ml.cpp). Data are rows [N, C], or one row [C].
Result<> ml_trees(Inference&);          // TreeClassifier, TreeRegressor
Result<> ml_linear_scores(Inference&);  // scores, labels
Result<> ml_svm_scores(Inference&);     // scores of pairs, labels, prob_a?, prob_b?
Result<> ml_rbf_kernel(Inference&);     // rows, vectors
Result<> ml_post_transform(Inference&);
Result<> ml_extractor(Inference&);   // becomes Gather
Result<> ml_vectorizer(Inference&);  // becomes Concat
Result<> ml_label_encoder(Inference&);
Result<> ml_one_hot(Inference&);

}  // namespace infer
}  // namespace carillon::graph
