// Operators that make values from shapes, scalars or nothing.

#include <cmath>
#include <cstring>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

Result<> shape_of(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  const auto place = [rank](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const std::int64_t first = place(node.integer("start", 0));
  const std::int64_t last = place(node.integer("end", rank));
  if (outputs[0].type->elements() != std::max<std::int64_t>(0, last - first)) {
    return misfit(node, inputs, outputs);
  }
  for (std::int64_t d = first; d < last; ++d) outputs[0].as<std::int64_t>()[d - first] = shape[d];
  return {};
}
Result<> size(const Node&, Inputs inputs, Outputs outputs) {
  *outputs[0].as<std::int64_t>() = inputs[0].type->elements();
  return {};
}
template <Result<> (*kernel)(const Node&, Inputs, Outputs)>
PlainKernel find_any(const Node&, InputTypes types) {
  return type_at(types, 0) != nullptr ? kernel : nullptr;
}

// Attribute `value`: one element, f32 zero where absent.
template <typename T>
Result<> constant_of_shape(const Node& node, Inputs inputs, Outputs outputs) {
  T value{};
  if (const auto found = node.attributes.find("value"); found != node.attributes.end()) {
    const auto* tensor = std::get_if<SharedTensor>(&found->second);
    if (tensor == nullptr || *tensor == nullptr || (*tensor)->bytes().size() != sizeof(T)) {
      return failed(node, "value is not a tensor of one element");
    }
    std::memcpy(&value, (*tensor)->bytes().data(), sizeof(T));
  }
  if (size_of(outputs[0].type->type) != sizeof(T)) return misfit(node, inputs, outputs);
  std::fill_n(outputs[0].as<T>(), outputs[0].type->elements(), value);
  return {};
}
PlainKernel find_constant_of_shape(const Node& node, InputTypes) {
  DataType type = DataType::f32;
  if (const auto found = node.attributes.find("value"); found != node.attributes.end()) {
    const auto* tensor = std::get_if<SharedTensor>(&found->second);
    if (tensor == nullptr || *tensor == nullptr) return nullptr;
    type = (*tensor)->type().type;
  }
  return pick_size(type, []<typename T>() -> PlainKernel { return &constant_of_shape<T>; });
}

// Inputs: start, limit, delta, all scalars; the output's length is given.
template <typename T>
Result<> range(const Node& node, Inputs inputs, Outputs outputs) {
  for (std::size_t k = 0; k < 3; ++k) {
    if (inputs[k].type->elements() != 1) return misfit(node, inputs, outputs);
  }
  using C = Compute<T>;
  const C start = load(*inputs[0].as<T>());
  const C delta = load(*inputs[2].as<T>());
  const std::int64_t count = outputs[0].type->elements();
  for (std::int64_t i = 0; i < count; ++i) {
    outputs[0].as<T>()[i] = store<T>(add(start, multiply(static_cast<C>(i), delta)));
  }
  return {};
}
PlainKernel find_range(const Node&, InputTypes types) {
  if (!same_types(types, 3)) return nullptr;
  return Numbers::pick(types[0]->type, []<typename T>() -> PlainKernel { return &range<T>; });
}

template <typename T>
Result<> eye_of(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = outputs[0].type->shape;
  if (shape.size() != 2) return misfit(node, inputs, outputs);
  std::fill_n(outputs[0].as<T>(), shape[0] * shape[1], store<T>(Compute<T>{0}));
  const std::int64_t k = std::clamp(node.integer("k", 0), -shape[0], shape[1]);
  for (std::int64_t row = 0; row < shape[0]; ++row) {
    const std::int64_t column = row + k;
    if (column >= 0 && column < shape[1]) {
      outputs[0].as<T>()[row * shape[1] + column] = store<T>(Compute<T>{1});
    }
  }
  return {};
}
Result<> eye(const Node& node, Inputs inputs, Outputs outputs) {
  const PlainKernel chosen =
      AllTypes::pick(outputs[0].type->type, []<typename T>() -> PlainKernel { return &eye_of<T>; });
  return chosen != nullptr ? chosen(node, inputs, outputs) : misfit(node, inputs, outputs);
}

constexpr Operator operators[] = {
    {"Shape", &find_any<shape_of>}, {"Size", &find_any<size>},   {"ConstantOfShape", &find_constant_of_shape},
    {"Range", &find_range},         {"EyeLike", &find_any<eye>},
};

}  // namespace

std::span<const Operator> generate_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
