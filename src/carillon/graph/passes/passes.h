#pragma once

#include "carillon/base/result.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// Each pass takes a valid, typed graph and leaves one that computes the same (to rounding) with the same
// inputs and outputs. What a node needs stays made wherever the node runs (Graph::guards); work may move
// under the guard of its only user. None depends on another having run, but they do more in the order of
// optimize().

// Arithmetic on f16 and bf16 becomes arithmetic on f32, between conversions where such values come in and go
// out: engines have fast kernels for f32, and only plain ones for the others. Results are rounded to 16 bits
// only where a Cast, an output or an operator that keeps its type asks for it. Constants take twice their
// memory, but for tables that Gather reads. A graph that only moves such values stays as it is.
Result<> widen_halves(Graph& graph, Folder& folder);

// Identity and all that does nothing for these types and constants; chains of Reshape and of Transpose;
// Transpose that moves only extents of 1 becomes Reshape; Expand before an operator that broadcasts anyway.
void remove_no_ops(Graph& graph);

// Nodes that compute the same from the same values become one; so do values that share one constant.
void merge_common(Graph& graph);

// x/sqrt(2) -> Erf -> +1 -> *x -> *0.5 and the tanh form, in any order of the factors, become Gelu.
void fuse_gelu(Graph& graph);

// Add 3, Clip 0..6, Div 6 becomes HardSigmoid; that times x becomes HardSwish.
void fuse_hard_swish(Graph& graph);

// Subtract the mean, divide by the root of the mean square plus epsilon, scale, shift: LayerNormalization.
void fuse_layer_normalization(Graph& graph, ConstantStore& store);

// What lies between DequantizeLinear and QuantizeLinear and looks at one tensor of bytes, element by element,
// becomes a table of 256 bytes: ByteLookup.
void tabulate_bytes(Graph& graph, ConstantStore& store);

// Conv, MatMul and Gemm between DequantizeLinear and QuantizeLinear become QLinearConv and QLinearMatMul,
// with real results where no QuantizeLinear follows; so do MatMulInteger and ConvInteger that are scaled
// afterwards. Sums, products and means become QLinearAdd, QLinearMul and QLinearGlobalAveragePool, what moves
// numbers moves bytes, and what is left of one tensor a table.
Result<> fuse_quantised(Graph& graph, Folder& folder);
// Weights whose DequantizeLinear is left are computed: specialisation leaves it for the pass above.
Result<> fold_dequantised(Graph& graph, Folder& folder);

// Einsum of two operands that is a product of matrices, or of batches of them, becomes MatMul between views.
void einsum_as_matmul(Graph& graph);

// ReduceMean and ReduceMax over all spatial dimensions become GlobalAveragePool and GlobalMaxPool.
void use_global_pools(Graph& graph);

// Products of single elements of one value along an axis, such as the steps of a loop over time, with the
// same weights become one product of the whole value, whose elements are taken: weights are read once, not
// once a step. Not in branches that data take, nor in loops that data end.
void join_products(Graph& graph);

// Softmax(Where(mask, c, scores)), where c is -1e30 or less and the mask is small, becomes
// Softmax(AtLeast(AtMost(scores, high), low)). The small `high` and `low` are c where the mask is, else the
// infinities, and are made once for all layers; `low` is only there where c is finite. What makes the scores
// can take both as post-ops. Whatever a masked score is, c stands in its place. A NaN that is not masked
// becomes an infinity, of which Softmax makes NaN again.
void mask_by_bounds(Graph& graph, ConstantStore& store);

// A scalar factor on an operand of MatMul becomes a post-op.
void hoist_scalars(Graph& graph);

// BatchNormalization, and Mul and Add by channel with constants, go into the weights of the Conv,
// ConvTranspose or Gemm before them.
Result<> fold_batch_normalization(Graph& graph, Folder& folder);

// Activations, scalar arithmetic, and Add and Mul with another tensor go into the post_ops of what makes
// their operand.
void fuse_post_ops(Graph& graph);

// Nodes and values that nothing needs are gone; ids are dealt out anew, in order of first use.
void compact(Graph& graph);

// All of them.
Result<> optimize(Graph& graph, Folder& folder);

}  // namespace carillon::graph
