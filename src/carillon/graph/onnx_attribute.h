#pragma once

#include <cstddef>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace onnx {
class AttributeProto;
}

namespace carillon::graph {

struct Operator;
class TensorReader;

inline constexpr std::size_t longest_name = 4096;

// An error where `name` is not UTF-8 text of a reasonable length; `what` it names is for the text.
Result<> check_name(std::string_view name, std::string_view what);

// Reads one attribute of `node` into it, but for graphs, which stay where they are. Errors: the operator has
// none of that name, it is given twice, or it is of another type.
Result<> read_attribute(const Operator& op, onnx::AttributeProto& proto, TensorReader& reader, Node& node);

// The tensor that a Constant's only attribute says.
Result<SharedTensor> constant_of(const Node& node);

}  // namespace carillon::graph
