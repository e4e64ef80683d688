#pragma once

#include <vector>

#include "carillon/graph/passes/editor.h"

namespace carillon::graph {

// A value taken apart as a product: constant * values[0] * values[1] * ...
struct Factors {
  double constant = 1;
  std::vector<ValueId> values;  // not scalars
};

// Follows Mul, and Div by a scalar constant, downwards from `id` as long as nobody else uses what they make
// (the use of `id` itself is the caller's to judge). All f32, all of the shape of `id` or scalar constants.
Factors factors_of(const Editor& editor, ValueId id);

// Whether `a` is `b` to the few digits that a float constant in a file may lack.
bool near(double a, double b);

}  // namespace carillon::graph
