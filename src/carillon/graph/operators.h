#pragma once

#include <span>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {

// The opsets of the default domain that import understands.
inline constexpr int first_opset = 1;
// From here on we know every operator of the table that its opset had: broadcasting has today's rules.
inline constexpr int whole_opset = 7;
inline constexpr int last_opset = 23;

// What import and specialisation know of one ONNX operator.
struct Operator {
  std::string_view name;
  int since;  // the first opset whose form of it we understand
  int last;   // the last opset that has it
  int min_inputs;
  int max_inputs;   // -1: any number
  int max_outputs;  // -1: any number
  // "axis:i perm:I ..." over all opsets. i: int, f: float, s: string, t: tensor; g: graph; I, F, S: lists
  // of these.
  std::string_view attributes;
  infer::Function infer;
};

// All of them, by name.
std::span<const Operator> all_operators();

// nullptr where we do not know it.
const Operator* find_operator(std::string_view name);
// The same, and those that only import writes (ml/expand.h); the two share no name.
const Operator* find_any_operator(std::string_view name);
// The steps of optimizers, which ONNX has in a domain of their own.
const Operator* find_training_operator(std::string_view domain, std::string_view name);

// The type letter of an attribute, or 0 where the operator has none of that name.
char attribute_type(const Operator& op, std::string_view attribute);

}  // namespace carillon::graph
