// Models that are products with a few numbers behind: linear ones and support vectors.

#include <algorithm>
#include <cmath>

#include "carillon/graph/ml/node.h"

namespace carillon::graph::ml {
namespace {

std::int64_t size_of_list(const auto& list) {
  return static_cast<std::int64_t>(list.size());
}

// x [N, features] times `vectors` [count, features], which are `values`, plus `bias` where there are any.
std::string product(MlNode& node, const std::string& x, std::string_view what,
                    const std::vector<float>& values, std::int64_t count, const std::vector<float>& bias,
                    float factor = 1) {
  if (count < 1 || values.empty() || size_of_list(values) % count != 0) {
    node.fail("'" + std::string(what) + "' has " + std::to_string(values.size()) +
              " numbers, which do not make " + std::to_string(count) + " equal rows");
    return x;
  }
  std::vector<std::string> inputs{x, node.constant(what, values, {count, size_of_list(values) / count})};
  if (!bias.empty()) inputs.push_back(node.constant("bias", bias, {size_of_list(bias)}));
  std::string made = node.between("Gemm", inputs);
  set(node.nodes().back(), "transB", std::int64_t{1});
  if (factor != 1) set(node.nodes().back(), "alpha", factor);
  return made;
}

// One score a row only follows PROBIT, as in onnxruntime.
void finish(MlNode& node, const std::string& scores, std::size_t transform, std::int64_t columns) {
  const std::string_view name = post_transforms[transform];
  if (transform == 0 || (columns == 1 && name != "PROBIT")) {
    node.add("Identity", {scores}, {node.output(0)});
    return;
  }
  set(node.add("PostTransform", {scores}, {node.output(0)}), "post_transform", name);
}

struct Kernel {
  std::size_t type = 0;  // LINEAR, POLY, RBF, SIGMOID
  float gamma = 0;
  float shift = 0;
  float degree = 0;
};

Kernel kernel_of(MlNode& node) {
  Kernel kernel{.type = node.choice("kernel_type", "LINEAR",
                                    std::array<std::string_view, 4>{"LINEAR", "POLY", "RBF", "SIGMOID"})};
  const std::vector<float> parameters = node.reals("kernel_params");
  if (parameters.size() >= 3) {
    kernel.gamma = parameters[0];
    kernel.shift = parameters[1];
    kernel.degree = parameters[2];
  } else if (!parameters.empty() || kernel.type != 0) {
    node.fail("'kernel_params' has " + std::to_string(parameters.size()) +
              " numbers, but needs 3: gamma, coef0 and degree");
  }
  return kernel;
}

// What the kernel makes of each row of x and each of `count` vectors: [N, count].
std::string kernel_values(MlNode& node, const Kernel& kernel, const std::string& x,
                          const std::vector<float>& vectors, std::int64_t count) {
  if (kernel.type == 2) {
    if (vectors.empty() || size_of_list(vectors) % count != 0) {
      node.fail("'support_vectors' has " + std::to_string(vectors.size()) + " numbers, which do not make " +
                std::to_string(count) + " equal rows");
      return x;
    }
    // Not by way of a product: the difference of large squares would lose what the exponent needs.
    const std::string all = node.constant("vectors", vectors, {count, size_of_list(vectors) / count});
    std::string made = x + "/rbf_" + std::to_string(node.nodes().size());
    set(node.add("RbfKernel", {x, all}, {made}), "gamma", kernel.gamma);
    return made;
  }
  if (kernel.type == 0) return product(node, x, "support_vectors", vectors, count, {});
  const std::string inner = product(node, x, "support_vectors", vectors, count, {kernel.shift}, kernel.gamma);
  if (kernel.type == 3) return node.between("Tanh", {inner});
  return node.between("Pow", {inner, node.constant("degree", std::vector<float>{kernel.degree}, {})});
}

void classify_by_vectors(MlNode& node) {
  node.counts(1, 1, 2);
  const std::vector<std::int64_t> labels = labels_of(node, "classlabels_ints");
  const Kernel kernel = kernel_of(node);
  const std::vector<float> vectors = node.reals("support_vectors");
  const std::vector<float> coefficients = node.reals("coefficients");
  const std::vector<float> rho = node.reals("rho");
  const std::vector<float> a = node.reals("prob_a");
  const std::vector<float> b = node.reals("prob_b");
  const std::vector<std::int64_t> per_class = node.integers("vectors_per_class");
  const std::size_t transform = node.choice("post_transform", "NONE", post_transforms);
  if (node.failed()) return;
  const auto classes = size_of_list(labels);
  constexpr std::int64_t most_classes = 1024;  // pairs of them are what memory goes to
  if (classes < 2 || classes > most_classes) {
    node.unsupported("it has " + std::to_string(classes) + " classes; 2 to " + std::to_string(most_classes) +
                     " are supported");
    return;
  }
  std::int64_t count = 0;
  for (const std::int64_t n : per_class) {
    if (n < 0 || n > size_of_list(vectors)) {
      node.fail("'vectors_per_class' has " + std::to_string(n) + "; each must be 0 to the " +
                std::to_string(vectors.size()) + " numbers of 'support_vectors'");
      return;
    }
    count += n;
  }
  if (count == 0) {
    node.unsupported("it has no support vectors (liblinear's form); export it as a LinearClassifier");
    return;
  }
  const std::int64_t pairs = classes * (classes - 1) / 2;
  const auto expect = [&](std::string_view what, const auto& list, std::int64_t wanted) {
    if (size_of_list(list) != wanted)
      node.fail("'" + std::string(what) + "' has " + std::to_string(list.size()) + " numbers, but " +
                std::to_string(wanted) + " are wanted for " + std::to_string(classes) + " classes and " +
                std::to_string(count) + " vectors");
  };
  expect("vectors_per_class", per_class, classes);
  expect("coefficients", coefficients, (classes - 1) * count);
  expect("rho", rho, pairs);
  expect("prob_a", a, a.empty() ? 0 : pairs);
  expect("prob_b", b, size_of_list(a));
  if (node.failed()) return;

  const std::string x = node.as_floats(node.input(0));
  const std::string values = kernel_values(node, kernel, x, vectors, count);
  if (pairs * count > 64 * size_of_list(coefficients) + (1 << 20)) {
    node.unsupported("its " + std::to_string(classes) + " classes make too many pairs");
    return;
  }
  // Votes are of pairs of classes: each pair's score is a product with a row that is 0 for other classes'
  // vectors.
  std::vector<float> rows(static_cast<std::size_t>(pairs * count), 0.0F);
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t n : per_class) starts.push_back(starts.back() + n);
  float* row = rows.data();
  for (std::int64_t i = 0; i < classes; ++i)
    for (std::int64_t j = i + 1; j < classes; ++j, row += count) {
      const auto copy = [&](std::int64_t line, std::int64_t of) {
        for (std::int64_t v = starts[static_cast<std::size_t>(of)];
             v < starts[static_cast<std::size_t>(of) + 1]; ++v)
          row[v] = coefficients[static_cast<std::size_t>(line * count + v)];
      };
      copy(j - 1, i);
      copy(i, j);
    }
  const std::string scores = product(node, values, "coefficients", rows, pairs, rho);
  std::vector<std::string> inputs{scores, node.constant("labels", labels, {classes})};
  if (!a.empty()) {
    inputs.push_back(node.constant("prob_a", a, {pairs}));
    inputs.push_back(node.constant("prob_b", b, {pairs}));
  }
  auto& made = node.add("SvmScores", inputs, {labels_output(node), node.output(1)});
  set(made, "post_transform", post_transforms[transform]);
  set(made, "positive", std::int64_t{std::ranges::all_of(coefficients, [](float c) { return c >= 0; })});
  name_labels(node);
}

void regress_by_vectors(MlNode& node) {
  node.counts(1, 1, 1);
  Kernel kernel = kernel_of(node);
  const std::vector<float> vectors = node.reals("support_vectors");
  const std::vector<float> coefficients = node.reals("coefficients");
  const std::vector<float> rho = node.reals("rho");
  const std::int64_t count = node.integer("n_supports", 0);
  const std::int64_t one_class = node.integer("one_class", 0);
  // onnxruntime reads it, and does without.
  static_cast<void>(node.choice("post_transform", "NONE", post_transforms));
  if (rho.empty()) node.fail("it has no 'rho'");
  if (count < 0 || (count > 0 && size_of_list(coefficients) != count))
    node.fail("'n_supports' is " + std::to_string(count) + ", but it has " +
              std::to_string(coefficients.size()) + " coefficients");
  if (node.failed()) return;
  std::string x = node.as_floats(node.input(0));
  if (count > 0) x = kernel_values(node, kernel, x, vectors, count);
  const std::string y = product(node, x, "coefficients", coefficients, 1, {rho[0]});
  if (node.failed()) return;
  if (one_class == 0) {
    node.add("Identity", {y}, {node.output(0)});
    return;
  }
  const auto scalar = [&](float value) { return node.constant("side", std::vector<float>{value}, {}); };
  const std::string zero = scalar(0);
  const std::string above = node.between("Greater", {y, zero});
  const std::string inside = scalar(1);
  node.add("Where", {above, inside, scalar(-1)}, {node.output(0)});
}

void classify_linearly(MlNode& node) {
  node.counts(1, 1, 2);
  const std::vector<std::int64_t> labels = labels_of(node, "classlabels_ints");
  const std::vector<float> coefficients = node.reals("coefficients");
  std::vector<float> bias = node.reals("intercepts");
  const std::size_t transform = node.choice("post_transform", "NONE", post_transforms);
  static_cast<void>(node.integer("multi_class", 0));
  if (node.failed()) return;
  if (bias.empty()) bias.assign(labels.size(), 0);
  const auto columns = size_of_list(bias);
  if (columns > 1 && columns != size_of_list(labels))
    node.fail("it has " + std::to_string(columns) + " intercepts for " + std::to_string(labels.size()) +
              " labels");
  if (node.failed()) return;
  const std::string scores =
      product(node, node.as_floats(node.input(0)), "coefficients", coefficients, columns, bias);
  if (node.failed()) return;
  auto& made = node.add("LinearScores", {scores, node.constant("labels", labels, {size_of_list(labels)})},
                        {labels_output(node), node.output(1)});
  set(made, "post_transform", post_transforms[transform]);
  name_labels(node);
}

void regress_linearly(MlNode& node) {
  node.counts(1, 1, 1);
  const std::vector<float> coefficients = node.reals("coefficients");
  const std::vector<float> bias = node.reals("intercepts");
  const std::int64_t targets = node.integer("targets", 1);
  const std::size_t transform = node.choice("post_transform", "NONE", post_transforms);
  if (targets < 1) node.fail("'targets' is " + std::to_string(targets) + "; it must be at least 1");
  if (!bias.empty() && size_of_list(bias) != targets)
    node.fail("it has " + std::to_string(bias.size()) + " intercepts for " + std::to_string(targets) +
              " targets");
  if (node.failed()) return;
  const std::string scores =
      product(node, node.as_floats(node.input(0)), "coefficients", coefficients, targets, bias);
  if (!node.failed()) finish(node, scores, transform, targets);
}

}  // namespace

void expand_linear(MlNode& node) {
  node.op() == "LinearClassifier" ? classify_linearly(node) : regress_linearly(node);
}
void expand_svm(MlNode& node) {
  node.op() == "SVMClassifier" ? classify_by_vectors(node) : regress_by_vectors(node);
}

}  // namespace carillon::graph::ml
