#pragma once

#include <optional>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/plan/builder.h"
#include "carillon/graph/graph.h"

namespace carillon::engine::cuda {

// Appends what computes `node`, post-ops and all. unsupported: why there is nothing.
Result<> lower(Builder& builder, const graph::Node& node);

// What the node's post-ops make of `tensor`, from number `first` on.
Result<Lying> apply_post_ops(Builder& builder, const graph::Node& node, Lying tensor, std::size_t first = 0);

// a * weights + bias, where it is there, of one constant matrix [depth][columns]; of `shape`, row-major.
Result<Lying> multiply_by_constant(Builder& builder, const Lying& a, const Lying& weights, const Shape& shape,
                                   const std::optional<Lying>& bias);

// The lowerings of one node each, by what they have in common: lower_layers.cpp, lower_elementwise.cpp,
// lower_views.cpp.
Result<> lower_convolution(Builder& builder, const graph::Node& node);
Result<> lower_matmul(Builder& builder, const graph::Node& node);
Result<> lower_gemm(Builder& builder, const graph::Node& node);
Result<> lower_pool(Builder& builder, const graph::Node& node);
Result<> lower_reduce(Builder& builder, const graph::Node& node);
Result<> lower_softmax(Builder& builder, const graph::Node& node);
Result<> lower_layer_norm(Builder& builder, const graph::Node& node);
Result<> lower_batch_norm(Builder& builder, const graph::Node& node);

Result<> lower_unary(Builder& builder, const graph::Node& node);
Result<> lower_binary(Builder& builder, const graph::Node& node);
Result<> lower_compare(Builder& builder, const graph::Node& node);
Result<> lower_where(Builder& builder, const graph::Node& node);
Result<> lower_cast(Builder& builder, const graph::Node& node);

Result<> lower_reshape(Builder& builder, const graph::Node& node);
Result<> lower_transpose(Builder& builder, const graph::Node& node);
Result<> lower_slice(Builder& builder, const graph::Node& node);
Result<> lower_split(Builder& builder, const graph::Node& node);
Result<> lower_concat(Builder& builder, const graph::Node& node);
Result<> lower_expand(Builder& builder, const graph::Node& node);
Result<> lower_gather(Builder& builder, const graph::Node& node);

}  // namespace carillon::engine::cuda
