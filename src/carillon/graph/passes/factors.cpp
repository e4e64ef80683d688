#include "carillon/graph/passes/factors.h"

#include <cmath>

namespace carillon::graph {
namespace {

constexpr std::size_t most_factors = 8;
constexpr int longest_chain = 12;  // files from outside may chain any number of factors

void collect(const Editor& editor, ValueId id, int depth, Factors& out) {
  float value = 0;
  if (editor.scalar(id, value)) {
    out.constant *= static_cast<double>(value);
    return;
  }
  if ((depth == 0 || editor.uses(id) == 1) && depth < longest_chain && out.values.size() < most_factors) {
    if (const Node* mul = editor.made_by(id, "Mul"); mul != nullptr) {
      collect(editor, mul->inputs[0], depth + 1, out);
      collect(editor, mul->inputs[1], depth + 1, out);
      return;
    }
    if (const Node* div = editor.made_by(id, "Div");
        div != nullptr && editor.scalar(div->inputs[1], value) && value != 0) {
      out.constant /= static_cast<double>(value);
      collect(editor, div->inputs[0], depth + 1, out);
      return;
    }
  }
  out.values.push_back(id);
}

}  // namespace

Factors factors_of(const Editor& editor, ValueId id) {
  Factors out;
  collect(editor, id, 0, out);
  for (const ValueId factor : out.values)
    if (editor.type(factor) != editor.type(id)) return {.constant = 1, .values = {id}};
  return out;
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-4 * std::abs(b);
}

}  // namespace carillon::graph
