#pragma once

#include <cstddef>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/plan/builder.h"
#include "carillon/graph/graph.h"

// Products of one input with several constant matrices, as an attention's queries, keys and values are made:
// one product with the matrices side by side, of which each node's result is a slice.
namespace carillon::engine::cuda {

// Groups of MatMul nodes, each ascending, of two nodes at least. Those of a group read one input, have
// constant matrices of equal depth and whole multiples of 8 columns, and all or none of them add a constant
// row. What follows a node is Reshapes and Transposes alone, which need no copy of a slice. No node is in two
// groups.
//
// There is no choice by measuring, as one product has the same operations, reads its input once in place of
// once a matrix, and has more blocks for a device that few rows do not fill.
std::vector<std::vector<std::size_t>> find_joined_products(const graph::Graph& graph);

// Appends what computes all nodes of a group.
Result<> lower_joined_products(Builder& builder, const std::vector<std::size_t>& group);

}  // namespace carillon::engine::cuda
