#include <algorithm>
#include <numbers>
#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/factors.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

// The other operand of an Add with the scalar `wanted`, else no_value.
ValueId added_to(const Editor& editor, ValueId sum, double wanted) {
  const Node* add = editor.made_by(sum, "Add");
  if (add == nullptr) return no_value;
  float value = 0;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    if (editor.scalar(add->inputs[i], value) && near(static_cast<double>(value), wanted))
      return add->inputs[1 - i];
  return no_value;
}

// id = constant * x?
bool is_scaled(const Editor& editor, ValueId id, double constant, ValueId x) {
  const Factors f = factors_of(editor, id);
  return near(f.constant, constant) && f.values == std::vector<ValueId>{x};
}

// id = constant * x^power, by Pow or by products?
bool is_power(const Editor& editor, ValueId id, double constant, ValueId x, std::size_t power) {
  Factors f = factors_of(editor, id);
  if (!near(f.constant, constant)) return false;
  std::vector<ValueId> flat;
  for (const ValueId v : f.values) {
    const Node* pow = v == x ? nullptr : editor.made_by(v, "Pow");
    const Node* square = v == x ? nullptr : editor.made_by(v, "Mul");  // used twice, so not taken apart
    float exponent = 0;
    if (pow != nullptr && pow->inputs[0] == x && editor.scalar(pow->inputs[1], exponent) &&
        (exponent == 2 || exponent == 3))
      flat.insert(flat.end(), static_cast<std::size_t>(exponent), x);
    else if (square != nullptr && square->inputs[0] == x && square->inputs[1] == x)
      flat.insert(flat.end(), 2, x);
    else
      flat.push_back(v);
  }
  return flat.size() == power && std::all_of(flat.begin(), flat.end(), [&](ValueId v) { return v == x; });
}

constexpr double cubic = 0.044715;

// u = sqrt(2/pi) * (x + 0.044715 x^3), or sqrt(2/pi) * x * (1 + 0.044715 x^2)?
bool is_tanh_argument(const Editor& editor, ValueId u, ValueId x) {
  const Factors f = factors_of(editor, u);
  const double scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  if (!near(f.constant, scale)) return false;
  if (f.values.size() == 1) {
    const Node* add = editor.made_by(f.values[0], "Add");
    if (add == nullptr) return false;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
      if (add->inputs[i] == x && is_power(editor, add->inputs[1 - i], cubic, x, 3)) return true;
    return false;
  }
  if (f.values.size() != 2) return false;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (f.values[i] != x) continue;
    const ValueId rest = added_to(editor, f.values[1 - i], 1);
    if (rest != no_value && is_power(editor, rest, cubic, x, 2)) return true;
  }
  return false;
}

// The form of Gelu(x) = 0.5 * x * gate, or "".
std::string_view form_of(const Editor& editor, ValueId gate, ValueId x) {
  const ValueId inner = added_to(editor, gate, 1);
  if (inner == no_value) return "";
  if (const Node* erf = editor.made_by(inner, "Erf"); erf != nullptr)
    return is_scaled(editor, erf->inputs[0], 1 / std::numbers::sqrt2, x) ? "none" : "";
  if (const Node* tanh = editor.made_by(inner, "Tanh"); tanh != nullptr)
    return is_tanh_argument(editor, tanh->inputs[0], x) ? "tanh" : "";
  return "";
}

}  // namespace

void fuse_gelu(Graph& graph) {
  Editor editor(graph);
  // Last nodes first: a product's factors are seen from its top.
  for (std::size_t i = editor.nodes(); i-- > 0;) {
    if (!editor.alive(i)) continue;
    const Node& node = editor.node(i);
    if ((node.op != "Mul" && node.op != "Div") || !node.post_ops.empty()) continue;
    if (editor.type(node.outputs[0]).type != DataType::f32) continue;
    const Factors f = factors_of(editor, node.outputs[0]);
    if (f.values.size() != 2 || !near(f.constant, 0.5)) continue;
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
      const ValueId x = f.values[k];
      const std::string_view form = form_of(editor, f.values[1 - k], x);
      if (form.empty()) continue;
      Node gelu{.name = node.name, .op = "Gelu", .inputs = {x}};
      gelu.attributes.insert_or_assign("approximate", Attribute{std::string(form)});
      editor.replace(i, std::move(gelu));
      break;
    }
  }
  editor.finish();
}

}  // namespace carillon::graph
