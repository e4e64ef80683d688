#include "carillon/graph/shape_inference.h"

#include <algorithm>

#include "carillon/base/assert.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph {

bool belongs(DataType type, TypeClass wanted) {
  const bool floating =
      type == DataType::f32 || type == DataType::f16 || type == DataType::bf16 || type == DataType::f64;
  const bool other = type == DataType::boolean || type == DataType::string;
  switch (wanted) {
    case TypeClass::any:
      return true;
    case TypeClass::number:
      return !other;
    case TypeClass::floating:
      return floating;
    case TypeClass::integer:
      return !floating && !other;
    case TypeClass::boolean:
      return type == DataType::boolean;
  }
  return false;
}

std::string describe(const Node& node) {
  return "node '" + node.name + "' (" + node.op + ")";
}

const TensorType& Inference::input(std::size_t i) const {
  CARILLON_ASSERT(present(i));
  return graph_.value(node_.inputs[i]).type;
}

const Tensor* Inference::constant(std::size_t i) const {
  return present(i) ? graph_.value(node_.inputs[i]).constant.get() : nullptr;
}

std::unexpected<Error> Inference::error(std::string_view text) const {
  return invalid(describe(node_) + ": " + std::string(text));
}

Result<std::vector<std::int64_t>> Inference::integers(std::size_t i, std::string_view what) const {
  const Tensor* tensor = constant(i);
  const std::string operand = std::string(what) + " (input " + std::to_string(i) + ")";
  if (tensor == nullptr)
    return error("its shape depends on " + operand +
                 ", which is not a constant; only shapes known from the batch size are supported");
  if (tensor->type().shape.size() > 1) return error(operand + " must have at most one dimension");
  std::vector<std::int64_t> values;
  if (tensor->type().type == DataType::i64) {
    const auto from = tensor->as<std::int64_t>();
    values.assign(from.begin(), from.end());
  } else if (tensor->type().type == DataType::i32) {
    const auto from = tensor->as<std::int32_t>();
    values.assign(from.begin(), from.end());
  } else {
    return error(operand + " must be int64 or int32, not " + std::string(onnx_name(tensor->type().type)));
  }
  return values;
}

Result<std::vector<float>> Inference::reals(std::size_t i, std::string_view what) const {
  const Tensor* tensor = constant(i);
  const std::string operand = std::string(what) + " (input " + std::to_string(i) + ")";
  if (tensor == nullptr) return error("its shape depends on " + operand + ", which is not a constant");
  if (tensor->type().type == DataType::f64) {
    std::vector<float> values;
    for (const double v : tensor->as<double>()) values.push_back(static_cast<float>(v));
    return values;
  }
  if (tensor->type().type != DataType::f32)
    return error(operand + " must be float, not " + std::string(onnx_name(tensor->type().type)));
  const auto from = tensor->as<float>();
  return std::vector<float>(from.begin(), from.end());
}

Result<> Inference::require(std::size_t i, TypeClass wanted) const {
  if (!present(i) || belongs(input(i).type, wanted)) return {};
  const auto name_of = [](TypeClass c) -> std::string_view {
    switch (c) {
      case TypeClass::any:
        return "any";
      case TypeClass::number:
        return "numeric";
      case TypeClass::floating:
        return "floating-point";
      case TypeClass::integer:
        return "integer";
      case TypeClass::boolean:
        return "bool";
    }
    return "?";
  };
  return error("input " + std::to_string(i) + " has type " + std::string(onnx_name(input(i).type)) +
               ", but the operator takes a " + std::string(name_of(wanted)) + " type");
}

Result<> Inference::require_same(std::size_t i, std::size_t j) const {
  if (!present(i) || !present(j) || input(i).type == input(j).type) return {};
  return error("inputs " + std::to_string(i) + " and " + std::to_string(j) + " must have one type, not " +
               std::string(onnx_name(input(i).type)) + " and " + std::string(onnx_name(input(j).type)));
}

Result<> Inference::require_rank(std::size_t i, std::int64_t at_least, std::int64_t at_most) const {
  if (rank(i) >= at_least && rank(i) <= at_most) return {};
  return error("input " + std::to_string(i) + " has shape " + to_text(shape(i)) + ", but must have " +
               (at_least == at_most ? std::to_string(at_least)
                                    : std::to_string(at_least) + " to " + std::to_string(at_most)) +
               " dimensions");
}

Result<std::int64_t> Inference::axis(std::int64_t axis, std::int64_t rank) const {
  if (axis < -rank || axis >= rank)
    return error("axis " + std::to_string(axis) + " is out of range for " + std::to_string(rank) +
                 " dimensions");
  return axis < 0 ? axis + rank : axis;
}

Result<std::vector<std::int64_t>> Inference::axes(std::span<const std::int64_t> axes,
                                                  std::int64_t rank) const {
  std::vector<std::int64_t> out;
  std::vector<bool> seen(static_cast<std::size_t>(rank), false);
  for (const std::int64_t a : axes) {
    auto resolved = axis(a, rank);
    if (!resolved) return std::unexpected(resolved.error());
    if (seen[static_cast<std::size_t>(*resolved)])
      return error("axis " + std::to_string(a) + " is named twice");
    seen[static_cast<std::size_t>(*resolved)] = true;
    out.push_back(*resolved);
  }
  return out;
}

ValueId Inference::add_constant(std::string_view what, Tensor tensor) {
  const ValueId id{static_cast<std::uint32_t>(graph_.values.size())};
  TensorType type = tensor.type();
  graph_.values.push_back({node_.name + "." + std::string(what), std::move(type),
                           std::make_shared<const Tensor>(std::move(tensor))});
  return id;
}

Tensor scalar_of(DataType type, float value) {
  Tensor tensor(TensorType{type, {}});
  const auto put = [&]<typename T>(T) { tensor.as<T>()[0] = plain::number_cast<T>(value); };
  switch (type) {
    case DataType::f32:
      put(float{});
      break;
    case DataType::f64:
      put(double{});
      break;
    case DataType::f16:
      tensor.as<std::uint16_t>()[0] = plain::to_half(value).bits;
      break;
    case DataType::bf16:
      tensor.as<std::uint16_t>()[0] = plain::to_bfloat16(value).bits;
      break;
    case DataType::i8:
      put(std::int8_t{});
      break;
    case DataType::i16:
      put(std::int16_t{});
      break;
    case DataType::i32:
      put(std::int32_t{});
      break;
    case DataType::i64:
      put(std::int64_t{});
      break;
    case DataType::u8:
      put(std::uint8_t{});
      break;
    case DataType::u16:
      put(std::uint16_t{});
      break;
    case DataType::u32:
      put(std::uint32_t{});
      break;
    case DataType::u64:
      put(std::uint64_t{});
      break;
    case DataType::boolean:
      tensor.as<std::uint8_t>()[0] = value != 0 ? 1 : 0;
      break;
    case DataType::string:
      break;
  }
  return tensor;
}

Result<Shape> broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const std::size_t offset = longer.size() - shorter.size();
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    std::int64_t& extent = out[offset + i];
    if (extent == shorter[i] || shorter[i] == 1) continue;
    if (extent != 1) return invalid("shapes " + to_text(a) + " and " + to_text(b) + " do not broadcast");
    extent = shorter[i];
  }
  return out;
}

}  // namespace carillon::graph
