#include "carillon/graph/passes/passes.h"

namespace carillon::graph {

Result<> optimize(Graph& graph, Folder& folder) {
  if (auto ok = widen_halves(graph, folder); !ok) return ok;
  remove_no_ops(graph);
  merge_common(graph);
  einsum_as_matmul(graph);
  if (auto ok = fuse_quantised(graph, folder); !ok) return ok;
  if (auto ok = fold_dequantised(graph, folder); !ok) return ok;
  // Patterns of several nodes come first: their parts would be fused away.
  fuse_hard_swish(graph);
  fuse_gelu(graph);
  fuse_layer_normalization(graph, folder.store());
  use_global_pools(graph);
  mask_by_bounds(graph, folder.store());
  merge_common(graph);
  join_products(graph);
  hoist_scalars(graph);
  if (auto ok = fold_batch_normalization(graph, folder); !ok) return ok;
  fuse_post_ops(graph);
  // The patterns leave reshapes next to each other.
  remove_no_ops(graph);
  compact(graph);
  return {};
}

}  // namespace carillon::graph
