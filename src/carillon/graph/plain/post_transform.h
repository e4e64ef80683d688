#pragma once

#include <cstdint>

#include "carillon/graph/graph.h"

namespace carillon::graph::plain {

// ai.onnx.ml's post_transform: how a model's scores become what it gives.
enum class PostTransform : std::uint8_t { none, softmax, logistic, softmax_zero, probit };

// The attribute of a node that ml::expand() has written.
PostTransform post_transform_of(const Node& node);

// The scores of one row in place, of floats or doubles. A row of one score follows only probit, as in
// onnxruntime.
template <typename T>
void transform_scores(PostTransform transform, T* scores, std::int64_t count);

// Of a model with two classes that scores only one: its score and what is left for the other, [other, one].
// `complement`: the other has 1 - score, as of probabilities; else -score, or its logistic.
void second_score(PostTransform transform, bool complement, float score, float* scores);

}  // namespace carillon::graph::plain
