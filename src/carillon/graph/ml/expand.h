#pragma once

#include <string_view>

#include "carillon/base/result.h"

namespace onnx {
class GraphProto;
}

namespace carillon::graph::ml {

// The domain of what expansion writes: operators of our own (find_any_operator()), and standard ones in their
// newest form. A file may not use it: the kernels of our own rely on what expansion has checked.
inline constexpr std::string_view own_domain = "carillon";

// Puts standard operators, and few of our own, in place of those of domain ai.onnx.ml, which scikit-learn,
// XGBoost and LightGBM are exported in. Results are onnxruntime's where ONNX's text leaves them open. Graphs
// in nodes are left to whoever reads these.
//
// ZipMap gives what it takes: a tensor under its output's name, as there are no maps here. Texts are read
// into known_texts().
//
// Every index and count of an attribute is checked, trees for cycles. What is made of a node is linear in its
// attributes, but for an SVMClassifier's pairs of classes: at most 64 times its coefficients, or 4 MiB more.
// Errors name the node, the attribute, what is there and what would be right.
Result<> expand(onnx::GraphProto& graph);

}  // namespace carillon::graph::ml
