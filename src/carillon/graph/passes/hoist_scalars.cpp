#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {

void hoist_scalars(Graph& graph) {
  Editor editor(graph);
  for (std::size_t i = 0; i < editor.nodes(); ++i) {
    if (!editor.alive(i) || editor.node(i).op != "MatMul" || !editor.node(i).post_ops.empty()) continue;
    if (editor.type(editor.node(i).outputs[0]).type != DataType::f32) continue;
    double factor = 1;
    Node matmul = editor.node(i);
    for (ValueId& id : matmul.inputs) {
      float c = 0;
      const Node* mul = editor.made_by(id, "Mul");
      const Node* div = editor.made_by(id, "Div");
      if (editor.uses(id) != 1) continue;
      for (const std::size_t k : {std::size_t{0}, std::size_t{1}})
        if (mul != nullptr && editor.scalar(mul->inputs[k], c) &&
            editor.type(mul->inputs[1 - k]) == editor.type(id)) {
          factor *= static_cast<double>(c);
          id = mul->inputs[1 - k];
          break;
        }
      if (div != nullptr && editor.scalar(div->inputs[1], c) && c != 0 &&
          editor.type(div->inputs[0]) == editor.type(id)) {
        factor /= static_cast<double>(c);
        id = div->inputs[0];
      }
    }
    if (matmul.inputs == editor.node(i).inputs) continue;
    matmul.post_ops.push_back({PostOp::Kind::linear, static_cast<float>(factor), 0});
    editor.replace(i, std::move(matmul));
  }
  editor.finish();
}

}  // namespace carillon::graph
