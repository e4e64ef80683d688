#include "carillon/graph/onnx_attribute.h"

#include <memory>
#include <string>
#include <utility>

#include <onnx/onnx_pb.h>

#include "carillon/graph/onnx_check.h"
#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/operators.h"
#include "carillon/graph/shape_inference.h"
#include "carillon/graph/text.h"

namespace carillon::graph {

Result<> check_name(std::string_view name, std::string_view what) {
  if (name.size() > longest_name || !is_text(name))
    return invalid("a name of " + std::string(what) +
                   " is not UTF-8 text without control characters, of at most " +
                   std::to_string(longest_name) + " bytes");
  return {};
}

Result<> read_attribute(const Operator& op, onnx::AttributeProto& proto, TensorReader& reader, Node& node) {
  const std::string where = describe(node) + ": attribute '" + proto.name().substr(0, 100) + "'";
  const char type = attribute_type(op, proto.name());
  // Wrong, not just unknown here: another engine passes over such an attribute, and its answers would be
  // another model's.
  if (type == 0) return invalid(where + " is not one that the operator has");
  if (node.has(proto.name())) return invalid(where + " is given twice");
  if (!proto.ref_attr_name().empty()) return invalid(where + " refers to a function's attribute");
  if (auto ok = check_value(op.name, proto); !ok) return in_context(where, ok.error());
  Attribute value;
  char given = 0;
  switch (proto.type()) {
    case onnx::AttributeProto::INT:
      given = 'i';
      value = proto.i();
      break;
    case onnx::AttributeProto::FLOAT:
      given = 'f';
      value = proto.f();
      break;
    case onnx::AttributeProto::STRING:
      given = 's';
      if (auto ok = check_name(proto.s(), "an attribute's text"); !ok) return in_context(where, ok.error());
      value = proto.s();
      break;
    case onnx::AttributeProto::INTS:
      given = 'I';
      value = std::vector<std::int64_t>(proto.ints().begin(), proto.ints().end());
      break;
    case onnx::AttributeProto::FLOATS:
      given = 'F';
      value = std::vector<float>(proto.floats().begin(), proto.floats().end());
      break;
    case onnx::AttributeProto::STRINGS: {
      given = 'S';
      for (const auto& text : proto.strings())
        if (auto ok = check_name(text, "an attribute's text"); !ok) return in_context(where, ok.error());
      value = std::vector<std::string>(proto.strings().begin(), proto.strings().end());
      break;
    }
    case onnx::AttributeProto::TENSOR: {
      given = 't';
      auto tensor = reader.read(proto.t());
      if (!tensor) return in_context(where, tensor.error());
      value = *std::move(tensor);
      proto.clear_t();
      break;
    }
    case onnx::AttributeProto::GRAPH:
      if (type != 'g') break;
      return {};
    case onnx::AttributeProto::UNDEFINED:
    case onnx::AttributeProto::SPARSE_TENSOR:
    case onnx::AttributeProto::TYPE_PROTO:
    case onnx::AttributeProto::TENSORS:
    case onnx::AttributeProto::GRAPHS:
    case onnx::AttributeProto::SPARSE_TENSORS:
    case onnx::AttributeProto::TYPE_PROTOS:
      break;
  }
  if (given != type) return invalid(where + " has the wrong type");
  node.attributes.emplace(proto.name(), std::move(value));
  return {};
}

Result<SharedTensor> constant_of(const Node& node) {
  if (node.attributes.size() != 1) return invalid(describe(node) + ": it needs exactly one value");
  const Attribute& attribute = node.attributes.begin()->second;
  const auto shared = [](Tensor tensor) { return std::make_shared<const Tensor>(std::move(tensor)); };
  if (const auto* given = std::get_if<SharedTensor>(&attribute)) return *given;
  if (const auto* number = std::get_if<std::int64_t>(&attribute))
    return shared(Tensor::of_i64({}, {number, 1}));
  if (const auto* real = std::get_if<float>(&attribute)) return shared(Tensor::of_f32({}, {real, 1}));
  if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&attribute))
    return shared(Tensor::of_i64({static_cast<std::int64_t>(numbers->size())}, *numbers));
  if (const auto* reals = std::get_if<std::vector<float>>(&attribute))
    return shared(Tensor::of_f32({static_cast<std::int64_t>(reals->size())}, *reals));
  return invalid(describe(node) + ": its value is of a kind that is not supported");
}

}  // namespace carillon::graph
