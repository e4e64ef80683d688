#include "carillon/graph/slices.h"

#include <algorithm>
#include <string_view>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

using Types = std::span<const TensorType* const>;

bool among(std::span<const plain::Operator> family, std::string_view op) {
  return std::ranges::any_of(family, [op](const plain::Operator& each) { return each.name == op; });
}
template <typename T, typename U>
bool among(std::initializer_list<T> all, const U& one) {
  return std::ranges::find(all, one) != all.end();
}

// Each element of the output is made of those of the inputs that broadcasting puts beside it.
bool is_elementwise(const Node& node, Types inputs) {
  const std::string_view op = node.op;
  // A divisor of 0 is noted against its row.
  if ((op == "Div" || op == "Mod") && !inputs.empty() && inputs[0] != nullptr)
    return belongs(inputs[0]->type, TypeClass::floating);
  if (op == "Merge" || op == "CastLike") return false;
  if (op == "QLinearAdd" || op == "QLinearMul") return true;
  return among(plain::unary_operators(), op) || among(plain::binary_operators(), op) ||
         among(plain::logic_operators(), op) || among(plain::cast_operators(), op);
}

// Resize leaves these first dimensions alone.
std::size_t not_resized(const Node& node, Types inputs, std::span<const Tensor* const> constants,
                        std::size_t dims) {
  const std::size_t rank = inputs[0]->shape.size();
  const bool scaled = inputs.size() > 2 && inputs[2] != nullptr && inputs[2]->elements() > 0;
  if (!node.integers("axes").empty() ||
      node.text("coordinate_transformation_mode", "") == "tf_crop_and_resize")
    return 0;
  if (!scaled) return dims;
  const Tensor* scales = constants.size() > 2 ? constants[2] : nullptr;
  if (scales == nullptr || scales->type().type != DataType::f32 || scales->as<float>().size() != rank)
    return 0;
  const auto values = scales->as<float>();
  const auto other = std::ranges::find_if(values, [](float scale) { return scale != 1; });
  return std::min(dims, static_cast<std::size_t>(other - values.begin()));
}

// So many of the first dimensions of input 0 are also the outputs', and what lies at one place along them is
// made of what lies there in input 0, and of all of the other inputs.
std::size_t leading_dims(const Node& node, Types inputs, Types outputs,
                         std::span<const Tensor* const> constants) {
  const std::string_view op = node.op;
  const Shape& shape = inputs[0]->shape;
  const auto before_axis = [&](std::int64_t fallback) {
    return static_cast<std::size_t>(plain::node_axis(node, fallback, shape.size()).value_or(0));
  };
  std::size_t dims = shape.size();
  for (const TensorType* output : outputs) {
    if (output == nullptr) continue;
    const auto differ = std::ranges::mismatch(shape, output->shape);
    dims = std::min(dims, static_cast<std::size_t>(differ.in1 - shape.begin()));
  }
  if (among<std::string_view>(
          {"Softmax", "LogSoftmax", "Hardmax", "LayerNormalization", "LpNormalization", "TopK"}, op))
    return std::min(dims, before_axis(-1));
  if (op == "ArgMax" || op == "ArgMin") return std::min(dims, before_axis(0));
  if (among<std::string_view>({"AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"},
                              op) ||
      (op == "MaxPool" && outputs.size() == 1))  // the other output counts through all of them
    return std::min<std::size_t>(dims, 2);
  if (among<std::string_view>({"Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization",
                               "GroupNormalization", "LRN", "TreeClassifier", "TreeRegressor", "RbfKernel",
                               "QLinearConv", "ConvInteger", "QLinearGlobalAveragePool"},
                              op))
    return std::min<std::size_t>(dims, 1);
  // A dimension that is reduced is 1 then; slices grow along one that is not.
  if (among(plain::reduce_operators(), op) && node.integer("keepdims", 1) != 0) return dims;
  if (op == "MatMul" && inputs.size() > 1 && inputs[1] != nullptr && inputs[1]->shape.size() == 2 &&
      shape.size() >= 2)
    return std::min(dims, shape.size() - 1);
  // One scale for all; the table's entries are everybody's.
  if (op == "ByteLookup" || ((op == "QuantizeLinear" || op == "DequantizeLinear") && inputs.size() > 1 &&
                             inputs[1] != nullptr && inputs[1]->elements() == 1))
    return dims;
  if (op == "Resize") return not_resized(node, inputs, constants, dims);
  return 0;
}

// An operand that broadcasts to `whole`, whose first `dims` dimensions are cut: it has them too, or none.
enum class Part : std::uint8_t { cut, all, neither };
Part part_of(const Shape& operand, const Shape& whole, std::size_t dims) {
  if (operand.size() > whole.size()) return Part::neither;
  const std::size_t missing = whole.size() - operand.size();
  bool same = true, none = true;
  for (std::size_t d = 0; d < dims; ++d) {
    const std::int64_t extent = d < missing ? 1 : operand[d - missing];
    same = same && extent == whole[d];
    none = none && extent == 1;
  }
  return same ? Part::cut : none ? Part::all : Part::neither;
}

}  // namespace

std::optional<Slices> Slices::of(const Node& node, Types inputs, Types outputs, Types post_op_operands,
                                 std::span<const Tensor* const> constants) {
  const auto first = std::ranges::find_if(outputs, [](const TensorType* type) { return type != nullptr; });
  if (inputs.empty() || inputs[0] == nullptr || first == outputs.end() || (*first)->elements() == 0)
    return std::nullopt;
  const Shape& whole = (*first)->shape;
  const bool elementwise = is_elementwise(node, inputs);
  const std::size_t most = elementwise ? whole.size() : leading_dims(node, inputs, outputs, constants);

  const auto fits = [&](std::size_t dims) {
    const auto fit = [&](const TensorType* type) {
      return type == nullptr || part_of(type->shape, whole, dims) != Part::neither;
    };
    return std::ranges::all_of(post_op_operands, fit) && (!elementwise || std::ranges::all_of(inputs, fit));
  };
  std::size_t dims = 0;
  std::int64_t count = 1, so_far = 1;
  for (std::size_t d = 1; d <= most; ++d) {
    so_far *= whole[d - 1];
    if (so_far <= count || !fits(d)) continue;
    dims = d;
    count = so_far;
  }
  if (count < 2) return std::nullopt;

  Slices made;
  made.count_ = count;
  const auto add = [&](const TensorType* type, bool cut, std::size_t missing) {
    Operand operand;
    if (type != nullptr) operand.shape = type->shape;
    if (type != nullptr && cut) {
      const std::size_t present = dims - missing;
      operand.stride = static_cast<std::uint64_t>(type->elements() / count) * size_of(type->type);
      std::fill_n(operand.shape.begin(), present, std::int64_t{1});
      operand.along = present - 1;
    }
    made.operands_.push_back(std::move(operand));
  };
  const auto add_broadcast = [&](const TensorType* type) {
    const bool cut = type != nullptr && part_of(type->shape, whole, dims) == Part::cut;
    add(type, cut, cut ? whole.size() - type->shape.size() : 0);
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (elementwise)
      add_broadcast(inputs[i]);
    else
      add(inputs[i], i == 0, 0);
  }
  for (const TensorType* output : outputs) add(output, true, 0);
  for (const TensorType* operand : post_op_operands) add_broadcast(operand);
  return made;
}

TensorType Slices::type(std::size_t index, const TensorType& whole, std::int64_t slices) const {
  const Operand& operand = operands_[index];
  TensorType type = whole;
  if (operand.stride == 0) return type;
  type.shape = operand.shape;
  type.shape[operand.along] = slices;
  return type;
}

}  // namespace carillon::graph
