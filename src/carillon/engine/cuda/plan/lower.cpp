#include "carillon/engine/cuda/plan/lower.h"

#include <algorithm>
#include <array>

#include "carillon/engine/cuda/plan/attention.h"
#include "carillon/engine/cuda/plan/joined_products.h"
#include "carillon/graph/empty.h"

namespace carillon::engine::cuda {

Result<> lower(Builder& builder, const graph::Node& node) {
  struct Row {
    std::string_view op;
    Result<> (*lower)(Builder&, const graph::Node&);
  };
  static constexpr std::array rows{
      Row{"Conv", lower_convolution},
      Row{"MatMul", lower_matmul},
      Row{"Gemm", lower_gemm},
      Row{"MaxPool", lower_pool},
      Row{"AveragePool", lower_pool},
      Row{"GlobalAveragePool", lower_reduce},
      Row{"GlobalMaxPool", lower_reduce},
      Row{"ReduceMean", lower_reduce},
      Row{"ReduceSum", lower_reduce},
      Row{"ReduceMax", lower_reduce},
      Row{"ReduceMin", lower_reduce},
      Row{"ReduceL1", lower_reduce},
      Row{"ReduceL2", lower_reduce},
      Row{"ReduceSumSquare", lower_reduce},
      Row{"ReduceLogSum", lower_reduce},
      Row{"Softmax", lower_softmax},
      Row{"LogSoftmax", lower_softmax},
      Row{"LayerNormalization", lower_layer_norm},
      Row{"BatchNormalization", lower_batch_norm},
      Row{"Relu", lower_unary},
      Row{"LeakyRelu", lower_unary},
      Row{"PRelu", lower_binary},
      Row{"Clip", lower_unary},
      Row{"Sigmoid", lower_unary},
      Row{"Tanh", lower_unary},
      Row{"Elu", lower_unary},
      Row{"HardSigmoid", lower_unary},
      Row{"HardSwish", lower_unary},
      Row{"Gelu", lower_unary},
      Row{"Erf", lower_unary},
      Row{"Exp", lower_unary},
      Row{"Log", lower_unary},
      Row{"Sqrt", lower_unary},
      Row{"Reciprocal", lower_unary},
      Row{"Neg", lower_unary},
      Row{"Abs", lower_unary},
      Row{"Floor", lower_unary},
      Row{"Ceil", lower_unary},
      Row{"Add", lower_binary},
      Row{"Sub", lower_binary},
      Row{"Mul", lower_binary},
      Row{"Div", lower_binary},
      Row{"Pow", lower_binary},
      Row{"Min", lower_binary},
      Row{"Max", lower_binary},
      Row{"AtMost", lower_binary},
      Row{"AtLeast", lower_binary},
      Row{"Sum", lower_binary},
      Row{"Mean", lower_binary},
      Row{"Equal", lower_compare},
      Row{"Less", lower_compare},
      Row{"LessOrEqual", lower_compare},
      Row{"Greater", lower_compare},
      Row{"GreaterOrEqual", lower_compare},
      Row{"And", lower_compare},
      Row{"Or", lower_compare},
      Row{"Xor", lower_compare},
      Row{"Not", lower_compare},
      Row{"IsNaN", lower_compare},
      Row{"Where", lower_where},
      Row{"Cast", lower_cast},
      Row{"Reshape", lower_reshape},
      Row{"Transpose", lower_transpose},
      Row{"Slice", lower_slice},
      Row{"Split", lower_split},
      Row{"Concat", lower_concat},
      Row{"Expand", lower_expand},
      Row{"Gather", lower_gather},
  };
  builder.enter(node);
  if (graph::has_empty(builder.graph(), node)) return builder.refuse("an operand has no elements");
  if (node.guard >= 0 || node.op == "Merge") return builder.refuse("branches that data decide");
  const auto row = std::ranges::find(rows, node.op, &Row::op);
  if (row == rows.end()) return builder.refuse("the operator is not among those that have one");
  for (const graph::ValueId id : node.outputs)
    if (id != graph::no_value && id != node.outputs.front() && node.op != "Split")
      return builder.refuse("more than the first output");
  return row->lower(builder, node);
}

Result<Recipe> make_recipe(const graph::Graph& graph, const RecipeOptions& options, MathLibrary& library,
                           Weights& weights) {
  Builder builder(graph, options, library, weights);
  // The nodes of an attention are lowered together, where the last of them stands.
  const std::vector<Attention> attentions = find_attention(graph);
  std::vector<const Attention*> part_of(graph.nodes.size(), nullptr);
  for (const Attention& each : attentions)
    for (const auto* nodes : {&each.nodes, &each.turned})
      for (const std::size_t n : *nodes) part_of[n] = &each;
  // Those of joined products, where the first of them stands.
  std::vector<std::vector<std::size_t>> groups;
  if (options.join_products) groups = find_joined_products(graph);
  std::vector<const std::vector<std::size_t>*> group_of(graph.nodes.size(), nullptr);
  for (const auto& group : groups)
    if (std::ranges::none_of(group, [&](std::size_t n) { return part_of[n] != nullptr; }))
      for (const std::size_t n : group) group_of[n] = &group;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Attention* const whole = part_of[n];
    if (whole != nullptr && whole->last() != n) continue;
    const auto* const group = group_of[n];
    if (group != nullptr && group->front() != n) continue;
    const auto lowered = group != nullptr   ? lower_joined_products(builder, *group)
                         : whole == nullptr ? lower(builder, graph.nodes[n])
                                            : lower_attention(builder, *whole);
    if (!lowered) return std::unexpected(lowered.error());
  }
  return builder.finish();
}

}  // namespace carillon::engine::cuda
