// Cast and CastLike: the output's type says what to make.

#include <cstring>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

template <typename From, typename To>
Result<> cast_to(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t count = inputs[0].type->elements();
  if (outputs[0].type->elements() != count) return misfit(node, inputs, outputs);
  const From* x = inputs[0].as<From>();
  To* __restrict y = outputs[0].as<To>();
  if constexpr (std::is_same_v<From, To> && !std::is_same_v<From, Boolean>) {
    std::memcpy(y, x, static_cast<std::size_t>(count) * sizeof(To));
  } else {
    for (std::int64_t i = 0; i < count; ++i) y[i] = store<To>(number_cast<Compute<To>>(load(x[i])));
  }
  return {};
}

template <typename From>
Result<> cast(const Node& node, Inputs inputs, Outputs outputs) {
  const PlainKernel chosen =
      AllTypes::pick(outputs[0].type->type, []<typename To>() -> PlainKernel { return &cast_to<From, To>; });
  if (chosen == nullptr)
    return failed(node, "cannot cast to " + std::string(onnx_name(outputs[0].type->type)));
  return chosen(node, inputs, outputs);
}

PlainKernel find(const Node& node, InputTypes types) {
  constexpr std::int64_t onnx_string = 8;  // TensorProto.DataType
  if (type_at(types, 0) == nullptr || node.integer("to", 0) == onnx_string) return nullptr;
  return AllTypes::pick(types[0]->type, []<typename From>() -> PlainKernel { return &cast<From>; });
}

constexpr Operator operators[] = {{"Cast", &find}, {"CastLike", &find}};

}  // namespace

std::span<const Operator> cast_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
