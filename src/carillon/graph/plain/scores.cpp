// From scores to labels and probabilities: what linear models, support vectors and trees have behind their
// sums.

#include <algorithm>
#include <cmath>
#include <vector>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/post_transform.h"

namespace carillon::graph::plain {

PostTransform post_transform_of(const Node& node) {
  const std::string_view name = node.text("post_transform", "NONE");
  if (name == "SOFTMAX") return PostTransform::softmax;
  if (name == "LOGISTIC") return PostTransform::logistic;
  if (name == "SOFTMAX_ZERO") return PostTransform::softmax_zero;
  if (name == "PROBIT") return PostTransform::probit;
  return PostTransform::none;
}

namespace {

template <typename T>
T logistic(T x) {
  const T v = 1 / (1 + std::exp(-std::abs(x)));
  return x < 0 ? 1 - v : v;
}

// The inverse of the normal distribution, by Winitzki's approximation of the error function's inverse; with
// the constants that onnxruntime takes, so that its results come out.
template <typename T>
T probit(T p) {
  const T x = 2 * p - 1;
  const T log = std::log((1 - x) * (1 + x));
  const T half = 2 / (3.14159F * 0.147F) + T(0.5) * log;
  const T root = std::sqrt(std::sqrt(half * half - log / 0.147F) - half);
  return 1.41421356F * (x < 0 ? -root : root);
}

template <typename T>
void softmax_row(T* scores, std::int64_t count, bool zeros_stay) {
  const T most = *std::max_element(scores, scores + count);
  const T shrink = std::exp(-most);
  T sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (zeros_stay && std::abs(scores[i]) <= T(0.0000001F)) {
      scores[i] *= shrink;
      continue;
    }
    scores[i] = std::exp(scores[i] - most);
    sum += scores[i];
  }
  for (std::int64_t i = 0; i < count; ++i) scores[i] /= sum;
}

std::int64_t rows_in(const ConstView& view) {
  return view.type->shape.size() == 1 ? 1 : view.type->shape[0];
}

Result<> transform_rows(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t columns = inputs[0].type->shape.back();
  const PostTransform transform = post_transform_of(node);
  float* y = outputs[0].as<float>();
  std::copy_n(inputs[0].as<float>(), inputs[0].type->elements(), y);
  if (columns > 0)
    for (std::int64_t r = 0; r < rows_in(inputs[0]); ++r)
      transform_scores(transform, y + r * columns, columns);
  return {};
}

// Scores of a linear model, one for each class; or one for the second of two classes.
Result<> linear_scores(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t columns = inputs[0].type->shape.back();
  const std::int64_t classes = inputs[1].type->elements();
  const auto* names = inputs[1].as<std::int64_t>();
  const PostTransform transform = post_transform_of(node);
  const float* x = inputs[0].as<float>();
  const std::int64_t rows = rows_in(inputs[0]);
  if (const MutableView labels = output(outputs, 0); labels) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * columns;
      const bool yes = row[0] > 0;
      labels.as<std::int64_t>()[r] = columns > 1    ? names[std::max_element(row, row + columns) - row]
                                     : classes == 2 ? names[yes ? 1 : 0]
                                                    : static_cast<std::int64_t>(yes);
    }
  }
  if (!output(outputs, 1)) return {};
  float* z = outputs[1].as<float>();
  if (columns == 1 && classes == 2) {
    // onnxruntime: as probabilities, whatever the transform.
    const PostTransform kept = transform == PostTransform::probit ? transform : PostTransform::none;
    for (std::int64_t r = 0; r < rows; ++r) second_score(kept, true, x[r], z + 2 * r);
    return {};
  }
  std::copy_n(x, rows * columns, z);
  for (std::int64_t r = 0; r < rows; ++r) transform_scores(transform, z + r * columns, columns);
  return {};
}

// exp(-gamma * |row - vector|^2).
Result<> rbf_kernel(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t columns = inputs[1].type->shape[1];
  const std::int64_t count = inputs[1].type->shape[0];
  const float gamma = node.real("gamma", 0);
  const float* x = inputs[0].as<float>();
  float* y = outputs[0].as<float>();
  for (std::int64_t r = 0; r < rows_in(inputs[0]); ++r, x += columns) {
    const float* vector = inputs[1].as<float>();
    for (std::int64_t v = 0; v < count; ++v, vector += columns) {
      float sum = 0;
      for (std::int64_t c = 0; c < columns; ++c) sum += (x[c] - vector[c]) * (x[c] - vector[c]);
      *y++ = sum;
    }
  }
  float* first = outputs[0].as<float>();
  for (float* at = first; at < y; ++at) *at = std::exp(-gamma * *at);
  return {};
}

// Probabilities of classes from those of pairs: the second method of Wu, Lin and Weng (2004), "Probability
// estimates for multi-class classification by pairwise coupling", section 4.2, as libsvm iterates it. `r` and
// `q` are [count, count], `qp` is [count].
void couple_pairs(std::int64_t count, const float* r, float* q, float* qp, float* p) {
  for (std::int64_t i = 0; i < count; ++i) {
    p[i] = 1.0F / static_cast<float>(count);
    float diagonal = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      if (j == i) continue;
      diagonal += r[j * count + i] * r[j * count + i];
      q[i * count + j] = -r[j * count + i] * r[i * count + j];
    }
    q[i * count + i] = diagonal;
  }
  const float close = 0.005F / static_cast<float>(count);
  for (int round = 0; round < 100; ++round) {
    float pqp = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      qp[i] = 0;
      for (std::int64_t j = 0; j < count; ++j) qp[i] += q[i * count + j] * p[j];
      pqp += p[i] * qp[i];
    }
    float error = 0;
    for (std::int64_t i = 0; i < count; ++i) error = std::max(error, std::abs(qp[i] - pqp));
    if (error < close) break;
    for (std::int64_t i = 0; i < count; ++i) {
      const float step = (pqp - qp[i]) / q[i * count + i];
      p[i] += step;
      pqp = (pqp + step * (step * q[i * count + i] + 2 * qp[i])) / (1 + step) / (1 + step);
      for (std::int64_t j = 0; j < count; ++j) {
        qp[j] = (qp[j] + step * q[i * count + j]) / (1 + step);
        p[j] /= 1 + step;
      }
    }
  }
}

// Scores of all pairs of classes, in the order 01, 02, ..., 12, ...: the class with most votes wins.
Result<> svm_scores(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t pairs = inputs[0].type->shape.back();
  const std::int64_t classes = inputs[1].type->elements();
  const auto* names = inputs[1].as<std::int64_t>();
  if (classes < 2 || pairs != classes * (classes - 1) / 2) return misfit(node, inputs, outputs);
  const ConstView a = input(inputs, 2), b = input(inputs, 3);
  const PostTransform transform = post_transform_of(node);
  std::vector<float> own;
  float* room = output(outputs, 2).as<float>();
  if (room == nullptr) {
    own.resize(static_cast<std::size_t>(2 * classes * (classes + 1)));
    room = own.data();
  }
  float* votes = room + 2 * classes * classes;
  float* qp = votes + classes;
  const float* x = inputs[0].as<float>();
  const MutableView labels = output(outputs, 0);
  float* z = output(outputs, 1) ? outputs[1].as<float>() : nullptr;
  for (std::int64_t r = 0; r < rows_in(inputs[0]); ++r, x += pairs) {
    std::fill_n(votes, classes, 0.0F);
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < classes; ++i)
      for (std::int64_t j = i + 1; j < classes; ++j, ++at) {
        votes[x[at] > 0 ? i : j] += 1;
        if (!a) continue;
        const float p = 1 - logistic(x[at] * a.as<float>()[at] + b.as<float>()[at]);
        room[i * classes + j] = std::clamp(p, 1e-7F, 1 - 1e-7F);
        room[j * classes + i] = 1 - room[i * classes + j];
      }
    if (labels) labels.as<std::int64_t>()[r] = names[std::max_element(votes, votes + classes) - votes];
    if (z == nullptr) continue;
    if (a) {
      couple_pairs(classes, room, room + classes * classes, qp, z);
      transform_scores(transform, z, classes);
      z += classes;
    } else if (classes == 2) {
      if (transform == PostTransform::none)
        second_score(transform, false, x[0], z);
      else
        second_score(transform == PostTransform::probit ? transform : PostTransform::none, true, x[0], z);
      z += 2;
    } else {
      std::copy_n(x, pairs, z);
      transform_scores(transform, z, pairs);
      z += pairs;
    }
  }
  return {};
}

template <Result<> (*kernel)(const Node&, Inputs, Outputs)>
PlainKernel find_for_floats(const Node&, InputTypes types) {
  return has_type(types, 0, DataType::f32) ? kernel : nullptr;
}

constexpr Operator operators_of_scores[] = {
    {"LinearScores", &find_for_floats<linear_scores>},
    {"PostTransform", &find_for_floats<transform_rows>},
    {"RbfKernel", &find_for_floats<rbf_kernel>},
    {"SvmScores", &find_for_floats<svm_scores>},
};

}  // namespace

template <typename T>
void transform_scores(PostTransform transform, T* scores, std::int64_t count) {
  if (count == 1 && transform != PostTransform::probit) return;
  switch (transform) {
    case PostTransform::none:
      return;
    case PostTransform::softmax:
      return softmax_row(scores, count, false);
    case PostTransform::softmax_zero:
      return softmax_row(scores, count, true);
    case PostTransform::logistic:
      for (std::int64_t i = 0; i < count; ++i) scores[i] = logistic(scores[i]);
      return;
    case PostTransform::probit:
      for (std::int64_t i = 0; i < count; ++i) scores[i] = probit(scores[i]);
      return;
  }
}

template void transform_scores(PostTransform transform, float* scores, std::int64_t count);
template void transform_scores(PostTransform transform, double* scores, std::int64_t count);

void second_score(PostTransform transform, bool complement, float score, float* scores) {
  if (transform == PostTransform::probit) {
    scores[0] = probit(score);
    scores[1] = 0;
  } else if (complement) {
    scores[0] = 1 - score;
    scores[1] = score;
  } else if (transform == PostTransform::logistic) {
    scores[0] = logistic(-score);
    scores[1] = logistic(score);
  } else {
    scores[0] = -score;
    scores[1] = score;
  }
}

std::optional<TensorType> score_workspace(const Node&, InputTypes types) {
  const std::int64_t classes = types[1]->elements();
  return TensorType{DataType::f32, {2 * classes * (classes + 1)}};
}

std::span<const Operator> score_operators() {
  return operators_of_scores;
}

}  // namespace carillon::graph::plain
