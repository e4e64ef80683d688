#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/factors.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

// x where `id` is clip(x + 3, 0, 6), else no_value.
ValueId gate_of(const Editor& editor, ValueId id) {
  const Node* clip = editor.made_by(id, "Clip");
  float low = 0;
  float high = 0;
  if (clip == nullptr || clip->inputs.size() != 3 || clip->inputs[1] == no_value ||
      clip->inputs[2] == no_value || !editor.scalar(clip->inputs[1], low) ||
      !editor.scalar(clip->inputs[2], high) || low != 0 || high != 6)
    return no_value;
  const Node* add = editor.made_by(clip->inputs[0], "Add");
  if (add == nullptr) return no_value;
  float three = 0;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    if (editor.scalar(add->inputs[i], three) && three == 3 &&
        editor.type(add->inputs[1 - i]) == editor.type(id))
      return add->inputs[1 - i];
  return no_value;
}

bool is_sixth_slope(const Node& node) {
  return near(static_cast<double>(node.real("alpha", 0.2F)), 1.0 / 6) &&
         near(static_cast<double>(node.real("beta", 0.5F)), 0.5);
}

}  // namespace

void fuse_hard_swish(Graph& graph) {
  Editor editor(graph);
  for (std::size_t i = editor.nodes(); i-- > 0;) {
    if (!editor.alive(i)) continue;
    const Node& node = editor.node(i);
    if ((node.op != "Mul" && node.op != "Div") || !node.post_ops.empty()) continue;
    if (editor.type(node.outputs[0]).type != DataType::f32) continue;
    const Factors f = factors_of(editor, node.outputs[0]);
    if (f.values.size() == 1 && near(f.constant, 1.0 / 6)) {
      const ValueId x = gate_of(editor, f.values[0]);
      if (x == no_value) continue;
      Node gate{.name = node.name, .op = "HardSigmoid", .inputs = {x}};
      gate.attributes.insert_or_assign("alpha", Attribute{1.0F / 6});
      gate.attributes.insert_or_assign("beta", Attribute{0.5F});
      editor.replace(i, std::move(gate));
    } else if (f.values.size() == 2) {
      for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
        const ValueId x = f.values[k];
        const Node* gate = editor.made_by(f.values[1 - k], "HardSigmoid");
        const bool by_gate =
            near(f.constant, 1) && gate != nullptr && gate->inputs[0] == x && is_sixth_slope(*gate);
        const bool by_clip = near(f.constant, 1.0 / 6) && gate_of(editor, f.values[1 - k]) == x;
        if (!by_gate && !by_clip) continue;
        editor.replace(i, Node{.name = node.name, .op = "HardSwish", .inputs = {x}});
        break;
      }
    }
  }
  editor.finish();
}

}  // namespace carillon::graph
