#pragma once

#include <cstddef>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/plan/builder.h"
#include "carillon/graph/graph.h"

// Attention as graphs have it, in several nodes, and as it is computed: by these nodes' kernels and calls, or
// by one kernel.
namespace carillon::engine::cuda {

// softmax(scale * q k + mask) v, as its nodes compute it: none of the values between them is used elsewhere.
// Leading axes broadcast as MatMul has it.
struct Attention {
  std::vector<std::size_t> nodes;   // from q k to the product with v, as the graph has them, ascending
  std::size_t product = 0;          // of these, the last: it may have post-ops
  std::vector<std::size_t> turned;  // a Transpose and a Reshape after it, that nobody else reads before
  graph::ValueId q, k, v;           // [.., queries, head], [.., head, keys], [.., keys, head]
  float scale = 1;
  graph::ValueId mask = graph::no_value;  // added to the scores
  // Or: scores are `hidden`, a number that hides them, where this is `hides`.
  graph::ValueId condition = graph::no_value;
  bool hides = true;
  float hidden = 0;

  // Where all of its nodes can be lowered.
  std::size_t last() const { return turned.empty() ? product : turned.back(); }
};

// Scale: factors after the product (before it, on either side, the graph's passes have put them there). Mask:
// Add, or Where whose other value is -1e30 or less; one of them at most. After the softmax, Where(IsNaN(x),
// 0, x) is what the kernel does anyway. No two have a node in common.
std::vector<Attention> find_attention(const graph::Graph& graph);

// Appends what computes it, by one kernel where there is one and RecipeOptions::one_kernel wants it.
Result<> lower_attention(Builder& builder, const Attention& attention);

}  // namespace carillon::engine::cuda
