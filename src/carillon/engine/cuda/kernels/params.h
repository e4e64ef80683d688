#pragma once

// The parameters of the kernels: what a launch hands over, by value. Pointers are the device's; extents and
// strides count elements; row-major unless strides say otherwise. No output may overlap an input. `stop`:
// nullptr, or a word that tells the kernel to end before its next tile when it is not 0.

#include <cstdint>

namespace carillon::engine::cuda::kernels {

inline constexpr int max_rank = 6;

using StopFlag = const volatile unsigned*;

enum class Op : int {  // of operands a, b, c
  // one operand
  copy,
  neg,
  abs,
  sqrt,
  rsqrt,
  exp,
  log,
  sigmoid,
  erf,
  floor,
  ceil,
  reciprocal,
  // two
  add,
  sub,
  mul,
  div,
  min,
  max,
  pow,
  // three: a != 0 ? b : c, and a * b + c
  where,
  fma,
};
constexpr int arity(Op op) {
  return op < Op::add ? 1 : op < Op::where ? 2 : 3;
}

enum class Activation : int { none, relu, relu6, gelu_erf, gelu_tanh, swish, tanh, clip };

// output = activation(op(operands)), output dense. Of whole numbers (i32, i64): copy, neg, abs, add, sub,
// mul, div (towards 0; by 0 it gives 0), min and max, which wrap around, without an activation. Adding a bias
// is Op::add with strides of 0.
struct ElementwiseParams {
  Op op;
  Activation activation;
  float low, high;  // of Activation::clip
  int rank;
  std::uint32_t extents[max_rank];
  std::int64_t strides[3][max_rank];  // 0: the operand is repeated along that axis
  const void* operands[3];
  void* output;
  StopFlag stop;
};

// output[i . to] = input[i . from]: transposes, NCHW to NHWC and back, slices, and concatenation into a
// slice.
struct MoveParams {
  int rank;
  std::uint32_t extents[max_rank];
  std::int64_t from[max_rank], to[max_rank];  // `to` makes no two elements meet
  const void* input;
  void* output;
  StopFlag stop;
};

enum class Comparison : int {
  equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,
  logical_or,
  logical_xor
};

// output = a ? b, of booleans (bytes of 0 or 1), dense; the logical ones take booleans.
struct CompareParams {
  Comparison comparison;
  int rank;
  std::uint32_t extents[max_rank];
  std::int64_t strides[2][max_rank];  // 0: the operand is repeated along that axis
  const void* operands[2];
  void* output;
  StopFlag stop;
};

// output = condition ? a : b, dense; the condition is of booleans.
struct SelectParams {
  int rank;
  std::uint32_t extents[max_rank];
  std::int64_t condition_strides[max_rank], strides[2][max_rank];
  const void* condition;
  const void* operands[2];
  void* output;
  StopFlag stop;
};

struct CastParams {
  std::int64_t count;
  const void* input;
  void* output;
  StopFlag stop;
};

// output[o][i][:] = input[o][indices[i]][:], with `inner` elements in [:]. Indices are i64, negative ones
// count from the end; one that is out of range gives zeros.
struct GatherParams {
  std::int64_t outer, axis, count, inner;
  const void* input;
  const std::int64_t* indices;
  void* output;
  StopFlag stop;
};

// A chain of elementwise kernels (chain.h says of which): output[i] for i in [0, count), dense. Operand k is
// read at i's place in a row-major space of its own extents, of `count` elements.
inline constexpr int most_chain_operands = 8;
struct ChainOperand {
  const void* at;
  int rank;
  std::uint32_t extents[max_rank];
  std::int64_t strides[max_rank];  // 0: it is repeated along that axis
};
struct ChainParams {
  std::int64_t count;
  ChainOperand operands[most_chain_operands];
  void* output;
  StopFlag stop;
};

enum class Reduction : int { sum, mean, max };

// One result for each index of `kept`, dense, over all of `reduced`. A global pool is a mean or max over H
// and W. Of nothing, the sum is 0, the maximum -infinity and the mean NaN.
struct ReduceParams {
  Reduction reduction;
  int kept_rank, reduced_rank;
  std::uint32_t kept[max_rank], reduced[max_rank];
  std::int64_t kept_strides[max_rank], reduced_strides[max_rank];
  const void* input;
  void* output;
  StopFlag stop;
};

// Over each of `rows` rows of `columns` elements.
struct SoftmaxParams {
  std::int64_t rows, columns;
  const void* input;
  void* output;
  StopFlag stop;
};

// (x - mean) / sqrt(variance + epsilon) * scale + bias of each row of x = input + residual; `residual` and
// `bias` may be nullptr.
struct LayerNormParams {
  std::int64_t rows, columns;
  float epsilon;
  const void *input, *residual, *scale, *bias;
  void* output;
  StopFlag stop;
};

// NHWC; what lies outside the image is no part of a maximum, and counts in a mean only where `count_padding`.
struct Window {
  std::int32_t batch, height, width, channels, out_height, out_width;
  std::int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
};
struct PoolParams {
  Window window;
  bool max, count_padding;
  const void* input;
  void* output;
  StopFlag stop;
};

// Weights are [kernel_h][kernel_w][channels]; bias is [channels], or nullptr.
struct DepthwiseParams {
  Window window;
  Activation activation;
  const void *input, *weights, *bias;
  void* output;
  StopFlag stop;
};

// softmax(q k^T * scale + mask) v, for each index of `outer`: batch, heads and the like. An element of a
// tensor is at the sum of its indices times strides: of the three outer axes, of the position, and 1 of the
// element of a head (of the mask: of the query and of the key). Strides of 0 repeat: keys and values that
// several heads share, masks of any shape that broadcasts. `mask` (of T; or nullptr) is added. A query that
// may see no key gives zeros.
struct AttentionParams {
  std::int32_t outer[3];
  std::int32_t queries, keys, head_size;
  // By tensor cores alone: how many warps share the keys of a tile, 1, 2, 4 or 8 (key_warps()).
  std::int32_t key_warps;
  float scale;
  std::int64_t q_strides[4], k_strides[4], v_strides[4], out_strides[4], mask_strides[5];
  const void *q, *k, *v, *mask;
  void* output;
  StopFlag stop;
};

// One word: output = value, unless `stop` is set before.
struct MarkParams {
  unsigned value;
  unsigned* output;
  StopFlag stop;
};

}  // namespace carillon::engine::cuda::kernels
