#include "carillon/graph/origin.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "carillon/base/assert.h"
#include "carillon/graph/faults.h"
#include "carillon/graph/recurrence.h"

namespace carillon::graph {

int Origin::row_of(std::int64_t at, std::int64_t elements) const {
  if (rows < 1 || elements < rows || elements % rows != 0) return rows == 1 ? 0 : Faults::unknown;
  return static_cast<int>(at / (elements / rows));
}

namespace {

// What one element of the result is made of depends on the operator's way.
enum class Way {
  each,       // of the element of input 0 at the same place, in memory order; the other inputs are constants
  broadcast,  // of the elements of all inputs at the same place, by ONNX's rules
  leading,    // of input 0's part with the same index in dimension 0; the other inputs are constants
  along,      // likewise, where the attribute `axis` is not 0
};
struct Row {
  std::string_view op;
  Way way;
  std::int64_t axis = 0;  // the attribute's default
};
constexpr std::array ways{
    Row{"Abs", Way::each},
    Row{"BitwiseNot", Way::each},
    Row{"ByteLookup", Way::each},
    Row{"Cast", Way::each},
    Row{"Ceil", Way::each},
    Row{"Clip", Way::each},
    Row{"DequantizeLinear", Way::each},
    Row{"Elu", Way::each},
    Row{"Erf", Way::each},
    Row{"Exp", Way::each},
    Row{"Floor", Way::each},
    Row{"Gelu", Way::each},
    Row{"HardSigmoid", Way::each},
    Row{"HardSwish", Way::each},
    Row{"Identity", Way::each},
    Row{"IsInf", Way::each},
    Row{"IsNaN", Way::each},
    Row{"LabelEncoder", Way::each},
    Row{"LeakyRelu", Way::each},
    Row{"Log", Way::each},
    Row{"Neg", Way::each},
    Row{"Not", Way::each},
    Row{"QuantizeLinear", Way::each},
    Row{"Reciprocal", Way::each},
    Row{"Relu", Way::each},
    Row{"Reshape", Way::each},
    Row{"Round", Way::each},
    Row{"Sigmoid", Way::each},
    Row{"Sign", Way::each},
    Row{"Sqrt", Way::each},
    Row{"Tanh", Way::each},

    Row{"Add", Way::broadcast},
    Row{"And", Way::broadcast},
    Row{"BitShift", Way::broadcast},
    Row{"BitwiseAnd", Way::broadcast},
    Row{"BitwiseOr", Way::broadcast},
    Row{"BitwiseXor", Way::broadcast},
    Row{"Div", Way::broadcast},
    Row{"Equal", Way::broadcast},
    Row{"Expand", Way::broadcast},
    Row{"Greater", Way::broadcast},
    Row{"GreaterOrEqual", Way::broadcast},
    Row{"Less", Way::broadcast},
    Row{"LessOrEqual", Way::broadcast},
    Row{"Max", Way::broadcast},
    Row{"Mean", Way::broadcast},
    Row{"Min", Way::broadcast},
    Row{"Mod", Way::broadcast},
    Row{"Mul", Way::broadcast},
    Row{"Or", Way::broadcast},
    Row{"PRelu", Way::broadcast},
    Row{"Pow", Way::broadcast},
    Row{"QLinearAdd", Way::broadcast},
    Row{"QLinearMul", Way::broadcast},
    Row{"Sub", Way::broadcast},
    Row{"Sum", Way::broadcast},
    Row{"Where", Way::broadcast},
    Row{"Xor", Way::broadcast},

    Row{"AveragePool", Way::leading},
    Row{"BatchNormalization", Way::leading},
    Row{"Conv", Way::leading},
    Row{"GlobalAveragePool", Way::leading},
    Row{"GlobalMaxPool", Way::leading},
    Row{"MaxPool", Way::leading},
    Row{"LinearScores", Way::leading},
    Row{"OneHotEncoder", Way::leading},
    Row{"PostTransform", Way::leading},
    Row{"QLinearConv", Way::leading},
    Row{"QLinearGlobalAveragePool", Way::leading},
    Row{"RbfKernel", Way::leading},
    Row{"SvmScores", Way::leading},
    Row{"TreeClassifier", Way::leading},
    Row{"TreeRegressor", Way::leading},

    Row{"ArgMax", Way::along, 0},
    Row{"ArgMin", Way::along, 0},
    Row{"LayerNormalization", Way::along, -1},
    Row{"LogSoftmax", Way::along, -1},
    Row{"Softmax", Way::along, -1},
    Row{"Split", Way::along, 0},
    Row{"TopK", Way::along, -1},
};

class Tracer {
 public:
  Tracer(const Graph& graph, int batch)
      : graph_(graph), batch_(batch), rows_(graph.values.size()), inputs_(graph.values.size(), none) {
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      const std::size_t id = graph.inputs[i].index();
      inputs_[id] = static_cast<int>(i);
      rows_[id] = batch == 1 || leads(graph.inputs[i]);
    }
    for (const Node& node : graph.nodes) {
      const bool kept = batch == 1 || keeps_rows(node);
      const int from = input_of(node);
      for (const ValueId id : node.outputs) {
        if (id == no_value) continue;
        rows_[id.index()] = kept;
        inputs_[id.index()] = from;
      }
    }
  }

  const Node* mixing() const {
    const auto found = std::ranges::find_if(graph_.nodes, [&](const Node& node) { return mixes(node); });
    return found == graph_.nodes.end() ? nullptr : &*found;
  }

  std::vector<Origin> result() const {
    std::vector<Origin> out(graph_.values.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (rows_[i]) out[i].rows = static_cast<int>(batch_);
      if (inputs_[i] >= 0)
        out[i].input = graph_.value(graph_.inputs[static_cast<std::size_t>(inputs_[i])]).name;
    }
    return out;
  }

 private:
  static constexpr int none = -1, several = -2;

  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }
  bool constant(ValueId id) const { return id == no_value || graph_.is_constant(id); }
  bool by_rows(ValueId id) const { return rows_[id.index()]; }
  // Whether dimension 0 is the rows, or several of its indices are a row.
  bool leads(ValueId id) const {
    return !shape(id).empty() && shape(id)[0] > 0 && shape(id)[0] % batch_ == 0;
  }
  bool led_by_rows(ValueId id) const { return id != no_value && by_rows(id) && leads(id); }
  bool constants_from(const Node& node, std::size_t first) const {
    return std::all_of(node.inputs.begin() + static_cast<std::ptrdiff_t>(std::min(first, node.inputs.size())),
                       node.inputs.end(), [&](ValueId id) { return constant(id); });
  }

  int input_of(const Node& node) const {
    int from = none;
    const auto add = [&](ValueId id) {
      if (constant(id) || inputs_[id.index()] == none) return;
      from = from == none || from == inputs_[id.index()] ? inputs_[id.index()] : several;
    };
    for (const ValueId id : node.inputs) add(id);
    for (const PostOp& post : node.post_ops) add(post.operand);
    return from;
  }

  // Input `index` where it is a constant of whole numbers.
  std::optional<std::vector<std::int64_t>> numbers(const Node& node, std::size_t index) const {
    if (index >= node.inputs.size() || node.inputs[index] == no_value) return std::nullopt;
    const SharedTensor& tensor = graph_.value(node.inputs[index]).constant;
    if (tensor == nullptr) return std::nullopt;
    std::vector<std::int64_t> out;
    if (tensor->type().type == DataType::i64)
      for (const std::int64_t n : tensor->as<std::int64_t>()) out.push_back(n);
    else if (tensor->type().type == DataType::i32)
      for (const std::int32_t n : tensor->as<std::int32_t>()) out.push_back(n);
    else
      return std::nullopt;
    return out;
  }
  static bool is_first(std::int64_t axis, const Shape& shape) {
    return axis == 0 || axis == -static_cast<std::int64_t>(shape.size());
  }
  bool spares_first(const std::optional<std::vector<std::int64_t>>& axes, const Shape& shape) const {
    return axes && !axes->empty() &&
           std::ranges::none_of(*axes, [&](std::int64_t axis) { return is_first(axis, shape); });
  }

  // Whether the parts of the node's results are made of those of its operands.
  bool keeps_rows(const Node& node) const {
    if (node.guard >= 0 || node.inputs.empty()) return false;
    if (std::ranges::any_of(node.post_ops, [&](const PostOp& post) { return !constant(post.operand); }))
      return false;
    const auto row = std::ranges::find(ways, node.op, &Row::op);
    if (row == ways.end()) return keeps_rows_otherwise(node);
    const ValueId x = node.inputs[0];
    switch (row->way) {
      case Way::each:
        return x != no_value && by_rows(x) && constants_from(node, 1);
      case Way::broadcast:
        return broadcasts(node);
      case Way::leading:
        return led_by_rows(x) && constants_from(node, 1);
      case Way::along:
        return led_by_rows(x) && constants_from(node, 1) &&
               !is_first(node.integer("axis", row->axis), shape(x));
    }
    return false;
  }

  // Whether a part of the node's result is made of several rows for certain.
  bool mixes(const Node& node) const {
    if (node.inputs.empty() || !led_by_rows(node.inputs[0])) return false;
    const std::string_view op = node.op;
    const Shape& x = shape(node.inputs[0]);
    const auto by_rows_too = [&](std::size_t i) {
      return i < node.inputs.size() && led_by_rows(node.inputs[i]);
    };
    const auto along_first = [&](std::int64_t otherwise) {
      return is_first(node.integer("axis", otherwise), x);
    };
    if (op == "Softmax" || op == "LogSoftmax" || op == "Hardmax" || op == "LayerNormalization" ||
        op == "TopK" || op == "LpNormalization")
      return along_first(-1);
    if (op == "ArgMax" || op == "ArgMin") return along_first(0);
    if (op == "CumSum") {
      const auto axis = numbers(node, 1);
      return axis && axis->size() == 1 && is_first(axis->front(), x);
    }
    if (op.starts_with("Reduce")) {
      const auto axes = numbers(node, 1);
      const bool given = node.inputs.size() > 1 && node.inputs[1] != no_value;
      if (!given || (axes && axes->empty())) return node.integer("noop_with_empty_axes", 0) == 0;
      return axes && !spares_first(axes, x);
    }
    // The mask of a dropout goes by an element's place among all.
    if (op == "TrainingBatchNormalization" || op == "TrainingDropout") return true;
    if (op == "MeanVarianceNormalization") {
      const auto axes = node.integers("axes");
      return std::ranges::find(axes, 0) != axes.end();
    }
    if (op == "MatMul") return x.size() == 2 && by_rows_too(1) && shape(node.inputs[1]).size() == 2;
    if (op == "Gemm") return node.integer("transA", 0) != 0 || by_rows_too(1);
    return false;
  }

  bool broadcasts(const Node& node) const {
    const Shape& out = shape(node.outputs[0]);
    bool varies = false;
    for (const ValueId id : node.inputs) {
      if (constant(id)) continue;
      if (!led_by_rows(id) || shape(id).size() != out.size() || shape(id)[0] != out[0]) return false;
      varies = true;
    }
    return varies;
  }

  bool keeps_rows_otherwise(const Node& node) const {
    const std::string_view op = node.op;
    const ValueId x = node.inputs[0];
    const auto input = [&](std::size_t i) { return i < node.inputs.size() ? node.inputs[i] : no_value; };
    if (op.starts_with("Reduce")) return led_by_rows(x) && spares_first(numbers(node, 1), shape(x));
    if (op == "CumSum") return led_by_rows(x) && spares_first(numbers(node, 1), shape(x));
    if (op == "Transpose") {
      const auto perm = node.integers("perm");
      return led_by_rows(x) && !perm.empty() && perm[0] == 0;
    }
    if (op == "Slice") {
      // All of dimension 0, in its order.
      const auto steps = numbers(node, 4);
      return led_by_rows(x) && constants_from(node, 1) && shape(node.outputs[0])[0] == shape(x)[0] &&
             (input(4) == no_value ||
              (steps && std::ranges::all_of(*steps, [](std::int64_t step) { return step > 0; })));
    }
    if (op == "Tile") {
      const auto repeats = numbers(node, 1);
      return led_by_rows(x) && repeats && !repeats->empty() && repeats->front() == 1;
    }
    if (op == "Concat") {
      const Shape& out = shape(node.outputs[0]);
      return !is_first(node.integer("axis", 0), out) && broadcasts(node);
    }
    if (op == "MatMul") {
      const ValueId y = input(1);
      const Shape& out = shape(node.outputs[0]);
      if (!led_by_rows(x) || shape(x).size() < 2 || out.size() != shape(x).size() || out[0] != shape(x)[0])
        return false;
      return constant(y) ||
             (led_by_rows(y) && shape(y).size() == out.size() && out.size() > 2 && shape(y)[0] == out[0]);
    }
    if (op == "QLinearMatMul")
      return led_by_rows(x) && shape(x).size() >= 2 && constants_from(node, 1) &&
             shape(node.outputs[0]).size() == shape(x).size();
    if (op == "Gemm") return led_by_rows(x) && node.integer("transA", 0) == 0 && constants_from(node, 1);
    if (op == "Gather") {
      const bool first = is_first(node.integer("axis", 0), shape(x));
      if (constant(x)) return first && input(1) != no_value && by_rows(input(1));
      return !first && led_by_rows(x) && constant(input(1));
    }
    if (op == "GatherElements") {
      const ValueId indices = input(1);
      if (indices == no_value || !led_by_rows(indices)) return false;
      return constant(x) || (!is_first(node.integer("axis", 0), shape(x)) && led_by_rows(x) &&
                             shape(x)[0] == shape(indices)[0]);
    }
    if (is_recurrent(op)) {
      // With the batch in front of all operands but the weights, that is. Else it is the second dimension.
      return node.integer("layout", 0) == 1 && led_by_rows(x) &&
             std::ranges::all_of(node.inputs, [&](ValueId id) {
               return constant(id) || (led_by_rows(id) && shape(id)[0] == shape(x)[0]);
             });
    }
    if (op == "OneHot")
      return led_by_rows(x) && constants_from(node, 1) &&
             !is_first(node.integer("axis", -1), shape(node.outputs[0]));
    return false;
  }

  const Graph& graph_;
  std::int64_t batch_;
  std::vector<bool> rows_;
  std::vector<int> inputs_;  // of each value: index in graph.inputs, or one of the two above
};

}  // namespace

std::vector<Origin> origins(const Graph& graph, int batch) {
  return Tracer(graph, batch).result();
}

const Node* mixing_node(const Graph& graph, int batch) {
  CARILLON_ASSERT(batch >= 2);
  return Tracer(graph, batch).mixing();
}

}  // namespace carillon::graph
