#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "carillon/graph/passes/passes.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph {
namespace {

// What a node that reads or makes 16-bit floats does in f32 instead.
enum class Use : std::uint8_t {
  computes,  // arithmetic: worth the conversions
  moves,     // copies numbers: goes along where other nodes compute
};
struct Widened {
  std::string_view op;
  Use use;
};
// Left out are operators whose results hang on the 16 bits themselves (QuantizeLinear, IsInf), or whose
// attributes name the type that they make (EyeLike, the windows): these keep 16-bit operands.
constexpr auto widened_operators = std::to_array<Widened>({
    {"Abs", Use::computes},
    {"Acos", Use::computes},
    {"Acosh", Use::computes},
    {"Add", Use::computes},
    {"ArgMax", Use::computes},
    {"ArgMin", Use::computes},
    {"Asin", Use::computes},
    {"Asinh", Use::computes},
    {"Atan", Use::computes},
    {"Atanh", Use::computes},
    {"AveragePool", Use::computes},
    {"BatchNormalization", Use::computes},
    {"Ceil", Use::computes},
    {"Celu", Use::computes},
    {"Clip", Use::computes},
    {"Concat", Use::moves},
    {"Conv", Use::computes},
    {"ConvTranspose", Use::computes},
    {"Cos", Use::computes},
    {"Cosh", Use::computes},
    {"CumSum", Use::computes},
    {"DepthToSpace", Use::moves},
    {"Div", Use::computes},
    {"Einsum", Use::computes},
    {"Elu", Use::computes},
    {"Equal", Use::computes},
    {"Erf", Use::computes},
    {"Exp", Use::computes},
    {"Expand", Use::moves},
    {"Floor", Use::computes},
    {"GRU", Use::computes},
    {"Gather", Use::moves},
    {"GatherElements", Use::moves},
    {"GatherND", Use::moves},
    {"Gelu", Use::computes},
    {"Gemm", Use::computes},
    {"GlobalAveragePool", Use::computes},
    {"GlobalLpPool", Use::computes},
    {"GlobalMaxPool", Use::computes},
    {"Greater", Use::computes},
    {"GreaterOrEqual", Use::computes},
    {"GridSample", Use::computes},
    {"GroupNormalization", Use::computes},
    {"HardSigmoid", Use::computes},
    {"HardSwish", Use::computes},
    {"Hardmax", Use::computes},
    {"Identity", Use::moves},
    {"InstanceNormalization", Use::computes},
    {"LRN", Use::computes},
    {"LSTM", Use::computes},
    {"LayerNormalization", Use::computes},
    {"LeakyRelu", Use::computes},
    {"Less", Use::computes},
    {"LessOrEqual", Use::computes},
    {"Log", Use::computes},
    {"LogSoftmax", Use::computes},
    {"LpNormalization", Use::computes},
    {"LpPool", Use::computes},
    {"MatMul", Use::computes},
    {"Max", Use::computes},
    {"MaxPool", Use::computes},
    {"Mean", Use::computes},
    {"MeanVarianceNormalization", Use::computes},
    {"Merge", Use::moves},
    {"Min", Use::computes},
    {"Mish", Use::computes},
    {"Mul", Use::computes},
    {"Neg", Use::computes},
    {"PRelu", Use::computes},
    {"Pad", Use::moves},
    {"Pow", Use::computes},
    {"RNN", Use::computes},
    {"Reciprocal", Use::computes},
    {"ReduceL1", Use::computes},
    {"ReduceL2", Use::computes},
    {"ReduceLogSum", Use::computes},
    {"ReduceLogSumExp", Use::computes},
    {"ReduceMax", Use::computes},
    {"ReduceMean", Use::computes},
    {"ReduceMin", Use::computes},
    {"ReduceProd", Use::computes},
    {"ReduceSum", Use::computes},
    {"ReduceSumSquare", Use::computes},
    {"Relu", Use::computes},
    {"Reshape", Use::moves},
    {"Resize", Use::computes},
    {"Round", Use::computes},
    {"Selu", Use::computes},
    {"Shrink", Use::computes},
    {"Sigmoid", Use::computes},
    {"Sign", Use::computes},
    {"Sin", Use::computes},
    {"Sinh", Use::computes},
    {"Slice", Use::moves},
    {"Softmax", Use::computes},
    {"Softplus", Use::computes},
    {"Softsign", Use::computes},
    {"SpaceToDepth", Use::moves},
    {"Split", Use::moves},
    {"Sqrt", Use::computes},
    {"Sub", Use::computes},
    {"Sum", Use::computes},
    {"Tan", Use::computes},
    {"Tanh", Use::computes},
    {"ThresholdedRelu", Use::computes},
    {"Tile", Use::moves},
    {"TopK", Use::computes},
    {"Transpose", Use::moves},
    {"Trilu", Use::moves},
    {"Where", Use::moves},
});
static_assert(std::ranges::is_sorted(widened_operators, {}, &Widened::op));

const Widened* widened_as(std::string_view op) {
  const auto found = std::ranges::lower_bound(widened_operators, op, {}, &Widened::op);
  return found != widened_operators.end() && found->op == op ? &*found : nullptr;
}

constexpr std::int64_t onnx_number(DataType type) {  // TensorProto.DataType
  return type == DataType::f16 ? 10 : type == DataType::bf16 ? 16 : 1;
}

class Widening {
 public:
  Widening(Graph& graph, Folder& folder)
      : graph_(graph),
        folder_(folder),
        half_(graph.values.size()),
        made_wide_(graph.values.size()),
        read_wide_(graph.values.size()),
        read_half_(graph.values.size()),
        twin_(graph.values.size(), no_value),
        wide_(graph.nodes.size()) {
    for (std::size_t i = 0; i < half_.size(); ++i) {
      const DataType type = graph.values[i].type.type;
      half_[i] = type == DataType::f16 || type == DataType::bf16;
    }
  }

  Result<> run() {
    if (!choose()) return {};
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    find_readers(nodes);
    for (std::size_t i = 0; i < half_.size(); ++i)
      if (auto ok = make_twin(ValueId{static_cast<std::uint32_t>(i)}); !ok) return ok;
    for (const ValueId id : graph_.inputs)
      if (has_twin(id)) convert(id, twin_[id.index()], -1);
    for (std::size_t n = 0; n < nodes.size(); ++n) rewrite(std::move(nodes[n]), wide_[n]);
    return {};
  }

 private:
  bool is_half(ValueId id) const { return id != no_value && half_[id.index()]; }
  bool has_twin(ValueId id) const { return id != no_value && twin_[id.index()] != no_value; }

  // Decides which nodes compute in f32. False where none does arithmetic.
  bool choose() {
    bool computes = false;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const Widened* const row = widened_as(node.op);
      if (row == nullptr) continue;
      const auto half = [&](ValueId id) { return is_half(id); };
      // A table of constants stays in 16 bits: only what is taken from it is converted.
      const bool table = node.op.starts_with("Gather") && graph_.is_constant(node.inputs[0]);
      wide_[n] =
          !table && (std::ranges::any_of(node.inputs, half) || std::ranges::any_of(node.outputs, half));
      computes = computes || (wide_[n] && row->use == Use::computes);
    }
    return computes;
  }

  // A Cast to another type reads what was computed, before rounding to 16 bits.
  bool reads_wide(const Node& node, bool wide, ValueId id) const {
    return wide || (node.op == "Cast" && made_wide_[id.index()]);
  }

  void find_readers(const std::vector<Node>& nodes) {
    for (std::size_t n = 0; n < nodes.size(); ++n)
      for (const ValueId id : nodes[n].outputs)
        if (wide_[n] && is_half(id)) made_wide_[id.index()] = true;
    for (std::size_t n = 0; n < nodes.size(); ++n)
      for (const ValueId id : nodes[n].inputs)
        if (is_half(id)) (reads_wide(nodes[n], wide_[n], id) ? read_wide_ : read_half_)[id.index()] = true;
    for (const ValueId id : graph_.outputs)
      if (is_half(id)) read_half_[id.index()] = true;
  }

  // Gives a value that is wanted in both types a second value in f32. A value that is wanted in f32 alone
  // changes its type.
  Result<> make_twin(ValueId id) {
    if (!is_half(id)) return {};
    const std::size_t i = id.index();
    if (made_wide_[i] && !read_half_[i]) {
      graph_.value(id).type.type = DataType::f32;
      half_[i] = false;
      return {};
    }
    if (!made_wide_[i] && !read_wide_[i]) return {};
    SharedTensor constant = graph_.value(id).constant;
    if (constant != nullptr) {
      auto made = widen(constant);
      if (!made) return std::unexpected(made.error());
      constant = *std::move(made);
    }
    TensorType type{DataType::f32, graph_.value(id).type.shape};
    graph_.values.push_back({graph_.value(id).name + ".f32", std::move(type), std::move(constant)});
    twin_[i] = ValueId{static_cast<std::uint32_t>(graph_.values.size() - 1)};
    return {};
  }

  Result<SharedTensor> widen(const SharedTensor& tensor) {
    const TensorType& from = tensor->type();
    auto made = folder_.derive(
        "widened", {tensor}, {{DataType::f32, from.shape}}, [&](std::span<Tensor> out) -> Result<> {
          const auto to = out[0].as<float>();
          if (from.type == DataType::f16)
            std::ranges::transform(tensor->as<plain::Half>(), to.begin(),
                                   [](plain::Half x) { return plain::to_float(x); });
          else
            std::ranges::transform(tensor->as<plain::BFloat16>(), to.begin(),
                                   [](plain::BFloat16 x) { return plain::to_float(x); });
          return {};
        });
    if (!made) return std::unexpected(made.error());
    return made->front();
  }

  void convert(ValueId from, ValueId to, int guard) {
    const Value& made = graph_.value(to);
    Node cast{.name = graph_.value(from).name + "." + std::string(onnx_name(made.type.type)),
              .op = "Cast",
              .inputs = {from},
              .outputs = {to},
              .guard = guard};
    cast.attributes.emplace("to", onnx_number(made.type.type));
    graph_.nodes.push_back(std::move(cast));
  }

  void rewrite(Node node, bool wide) {
    for (ValueId& id : node.inputs)
      if (is_half(id) && has_twin(id) && reads_wide(node, wide, id)) id = twin_[id.index()];
    std::vector<std::pair<ValueId, ValueId>> conversions;
    for (ValueId& id : node.outputs) {
      if (!has_twin(id)) continue;
      const ValueId twin = twin_[id.index()];
      if (wide)
        conversions.emplace_back(twin, std::exchange(id, twin));
      else
        conversions.emplace_back(id, twin);
    }
    const int guard = node.guard;
    graph_.nodes.push_back(std::move(node));
    for (const auto& [from, to] : conversions) convert(from, to, guard);
  }

  Graph& graph_;
  Folder& folder_;
  // Of each value: its type has 16 bits; a node that computes in f32 makes it; who reads it; its twin in f32.
  std::vector<bool> half_, made_wide_, read_wide_, read_half_;
  std::vector<ValueId> twin_;
  std::vector<bool> wide_;  // of each node
};

}  // namespace

Result<> widen_halves(Graph& graph, Folder& folder) {
  return Widening(graph, folder).run();
}

}  // namespace carillon::graph
