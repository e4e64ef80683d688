#pragma once

#include <string_view>

#include "carillon/base/result.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {

// The opsets of the default domain that import understands.
inline constexpr int first_opset = 7;
inline constexpr int last_opset = 23;

// What import and specialisation know of one ONNX operator.
struct Operator {
  std::string_view name;
  int since;  // the opset that brought it (first_opset where it is older)
  int last;   // the last opset that has it
  int min_inputs;
  int max_inputs;   // -1: any number
  int max_outputs;  // -1: any number
  // "axis:i perm:I ..." over all opsets. i: int, f: float, s: string, t: tensor; I, F: lists of these.
  std::string_view attributes;
  infer::Function infer;
};

// nullptr where we do not know it.
const Operator* find_operator(std::string_view name);

// The type letter of an attribute, or 0 where the operator has none of that name.
char attribute_type(const Operator& op, std::string_view attribute);

}  // namespace carillon::graph
