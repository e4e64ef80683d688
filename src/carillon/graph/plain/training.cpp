// Losses, steps of optimizers, and batch normalization that learns.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// Sums up what each element loses, or leaves it where it is wanted.
template <typename T>
class Loss {
 public:
  Loss(const Node& node, const MutableView& to) : to_(to) {
    const std::string_view reduction = node.text("reduction", "mean");
    each_ = reduction == "none";
    mean_ = reduction == "mean";
  }
  void add(std::int64_t at, double loss, double weight) {
    if (each_ && to_) to_.as<T>()[at] = store<T>(static_cast<Compute<T>>(loss * weight));
    sum_ += loss * weight;
    weights_ += weight;
  }
  void finish() const {
    if (!each_ && to_) to_.as<T>()[0] = store<T>(static_cast<Compute<T>>(mean_ ? sum_ / weights_ : sum_));
  }

 private:
  MutableView to_;
  bool each_ = false, mean_ = false;
  double sum_ = 0, weights_ = 0;
};

// Calls lose(element, class, weight) for each element of the classes [N, d...]: of one that is ignored with
// no class and no weight.
template <typename T, typename Lose>
Result<> for_each_class(const Node& node, Inputs inputs, Outputs outputs, const Lose& lose) {
  const Shape& shape = inputs[0].type->shape;
  const Around along = around(shape, 1);
  const std::int64_t classes = along.extent;
  const bool ignores = node.has("ignore_index");
  const std::int64_t ignored = node.integer("ignore_index", 0);
  const ConstView weights = input(inputs, 2);
  for (std::int64_t at = 0; at < along.outer * along.inner; ++at) {
    const std::int64_t c = index_at(inputs[1], at);
    if (ignores && c == ignored) {
      if (auto ok = lose(at, -1, 0.0); !ok) return ok;
      continue;
    }
    if (c < 0 || c >= classes) {
      if (auto noted = note_index(node, outputs[0], inputs[1], at, classes, false); !noted) return noted;
      if (auto ok = lose(at, -1, 0.0); !ok) return ok;
      continue;
    }
    const double weight = weights ? static_cast<double>(load(weights.as<T>()[c])) : 1;
    if (auto ok = lose(at, c, weight); !ok) return ok;
  }
  return {};
}

template <typename T>
Result<> negative_log_likelihood(const Node& node, Inputs inputs, Outputs outputs) {
  const Around along = around(inputs[0].type->shape, 1);
  const T* x = inputs[0].as<T>();
  Loss<T> loss(node, outputs[0]);
  auto done = for_each_class<T>(
      node, inputs, outputs, [&](std::int64_t at, std::int64_t c, double weight) -> Result<> {
        const std::int64_t n = at / along.inner, i = at % along.inner;
        const double likely =
            c < 0 ? 0 : static_cast<double>(load(x[(n * along.extent + c) * along.inner + i]));
        loss.add(at, -likely, weight);
        return {};
      });
  if (!done) return done;
  loss.finish();
  return {};
}

// Outputs: the loss, and the logarithms of the softmax.
template <typename T>
Result<> softmax_cross_entropy(const Node& node, Inputs inputs, Outputs outputs) {
  const Around along = around(inputs[0].type->shape, 1);
  if (along.extent == 0) return failed(node, "there are no classes");
  const T* x = inputs[0].as<T>();
  const MutableView logs = output(outputs, 1);
  Loss<T> loss(node, outputs[0]);
  auto done = for_each_class<T>(
      node, inputs, outputs, [&](std::int64_t at, std::int64_t c, double weight) -> Result<> {
        const std::int64_t first = at / along.inner * along.extent * along.inner + at % along.inner;
        const auto score = [&](std::int64_t k) {
          return static_cast<double>(load(x[first + k * along.inner]));
        };
        double most = score(0), sum = 0;
        for (std::int64_t k = 1; k < along.extent; ++k) most = std::max(most, score(k));
        for (std::int64_t k = 0; k < along.extent; ++k) sum += std::exp(score(k) - most);
        const double all = most + std::log(sum);
        if (logs)
          for (std::int64_t k = 0; k < along.extent; ++k)
            logs.as<T>()[first + k * along.inner] = store<T>(static_cast<Compute<T>>(score(k) - all));
        loss.add(at, c < 0 ? 0 : all - score(c), weight);
        return {};
      });
  if (!done) return done;
  loss.finish();
  return {};
}

template <template <typename> typename Kernel>
PlainKernel find_loss(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || type_at(types, 1) == nullptr || !is_index(types[1]->type))
    return nullptr;
  if (type_at(types, 2) != nullptr && types[2]->type != types[0]->type) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return Kernel<T>::run; });
}
template <typename T>
struct NegativeLogLikelihood {
  static constexpr PlainKernel run = &negative_log_likelihood<T>;
};
template <typename T>
struct SoftmaxCrossEntropy {
  static constexpr PlainKernel run = &softmax_cross_entropy<T>;
};

// What a step knows, and the elements of one tensor that it looks at.
struct Step {
  float rate = 0;
  std::int64_t count = 0;
  float norm = 0;  // how much the tensor itself is part of its gradient
};

// Calls one(step, tensor, x, element) for all elements of all tensors; operands of kind k lie in
// inputs[2 + k * tensors + tensor].
template <typename One>
void for_each_element(const Node& node, Inputs inputs, std::size_t kinds, const One& one) {
  const std::size_t tensors = (inputs.size() - 2) / kinds;
  const Step step{.rate = inputs[0].as<float>()[0],
                  .count = inputs[1].as<std::int64_t>()[0],
                  .norm = node.real("norm_coefficient", 0)};
  for (std::size_t t = 0; t < tensors; ++t)
    for (std::int64_t i = 0; i < inputs[2 + t].type->elements(); ++i) {
      const auto operand = [&](std::size_t kind) { return inputs[2 + kind * tensors + t].as<float>()[i]; };
      one(step, operand, [&](std::size_t kind, Outputs outputs, float value) {
        if (const MutableView to = output(outputs, kind * tensors + t); to) to.as<float>()[i] = value;
      });
    }
}

Result<> adagrad(const Node& node, Inputs inputs, Outputs outputs) {
  const float decay = node.real("decay_factor", 0), epsilon = node.real("epsilon", 1e-6F);
  for_each_element(node, inputs, 3, [&](const Step& step, const auto& operand, const auto& put) {
    const float x = operand(0), gradient = step.norm * x + operand(1);
    const float rate = step.rate / (1 + static_cast<float>(step.count) * decay);
    const float squares = operand(2) + gradient * gradient;
    put(0, outputs, x - rate * gradient / (std::sqrt(squares) + epsilon));
    put(1, outputs, squares);
  });
  return {};
}

Result<> adam(const Node& node, Inputs inputs, Outputs outputs) {
  const float alpha = node.real("alpha", 0.9F), beta = node.real("beta", 0.999F);
  const float epsilon = node.real("epsilon", 1e-6F), after = node.real("norm_coefficient_post", 0);
  for_each_element(node, inputs, 4, [&](const Step& step, const auto& operand, const auto& put) {
    const float x = operand(0), gradient = step.norm * x + operand(1);
    const float mean = alpha * operand(2) + (1 - alpha) * gradient;
    const float squares = beta * operand(3) + (1 - beta) * gradient * gradient;
    const auto count = static_cast<float>(step.count);
    const float rate = step.count > 0
                           ? step.rate * std::sqrt(1 - std::pow(beta, count)) / (1 - std::pow(alpha, count))
                           : step.rate;
    put(0, outputs, (1 - after) * (x - rate * mean / (std::sqrt(squares) + epsilon)));
    put(1, outputs, mean);
    put(2, outputs, squares);
  });
  return {};
}

Result<> momentum(const Node& node, Inputs inputs, Outputs outputs) {
  const float alpha = node.real("alpha", 0), beta = node.real("beta", 0);
  const bool nesterov = node.text("mode", "") == "nesterov";
  for_each_element(node, inputs, 3, [&](const Step& step, const auto& operand, const auto& put) {
    const float x = operand(0), gradient = step.norm * x + operand(1);
    const float speed = alpha * operand(2) + (step.count > 0 ? beta : 1) * gradient;
    put(0, outputs, x - step.rate * (nesterov ? gradient + alpha * speed : speed));
    put(1, outputs, speed);
  });
  return {};
}

template <Result<> (*kernel)(const Node&, Inputs, Outputs)>
PlainKernel find_step(const Node&, InputTypes types) {
  for (std::size_t i = 0; i < types.size(); ++i)
    if (!has_type(types, i, i == 1 ? DataType::i64 : DataType::f32)) return nullptr;
  return types.size() > 2 ? kernel : nullptr;
}

// Outputs: x by its own mean and variance, and the running ones, which take these in.
template <typename T, typename S>
Result<> learn_batch(const Node& node, Inputs inputs, Outputs outputs) {
  const Around along = around(inputs[0].type->shape, 1);
  const double count = static_cast<double>(along.outer) * static_cast<double>(along.inner);
  const auto epsilon = static_cast<double>(node.real("epsilon", 1e-5F));
  const auto momentum = static_cast<double>(node.real("momentum", 0.9F));
  // The mean of no numbers is NaN, as ReduceMean has it.
  const double none = count > 0 ? 0 : std::numeric_limits<double>::quiet_NaN();
  const MutableView y = output(outputs, 0), running_mean = output(outputs, 1),
                    running_variance = output(outputs, 2);
  const T* x = inputs[0].as<T>();
  for (std::int64_t c = 0; c < along.extent; ++c) {
    const auto for_each = [&](const auto& act) {
      for (std::int64_t n = 0; n < along.outer; ++n)
        for (std::int64_t i = 0; i < along.inner; ++i) act((n * along.extent + c) * along.inner + i);
    };
    const auto parameter = [&](std::size_t k) { return static_cast<double>(load(inputs[k].as<S>()[c])); };
    double mean = none, variance = none;
    for_each([&](std::int64_t i) { mean += static_cast<double>(load(x[i])) / count; });
    for_each([&](std::int64_t i) {
      const double off = static_cast<double>(load(x[i])) - mean;
      variance += off * off / count;
    });
    const double scale = parameter(1) / std::sqrt(variance + epsilon);
    if (y)
      for_each([&](std::int64_t i) {
        y.as<T>()[i] = store<T>(
            static_cast<Compute<T>>((static_cast<double>(load(x[i])) - mean) * scale + parameter(2)));
      });
    const auto blend = [&](const MutableView& to, double was, double is) {
      if (to) to.as<S>()[c] = store<S>(static_cast<Compute<S>>(was * momentum + is * (1 - momentum)));
    };
    blend(running_mean, parameter(3), mean);
    blend(running_variance, parameter(4), variance);
  }
  return {};
}
PlainKernel find_learn_batch(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || !same_types(types.subspan(1), 4)) return nullptr;
  const DataType parameters = types[1]->type;
  return Floats::pick(types[0]->type, [parameters]<typename T>() -> PlainKernel {
    return Floats::pick(parameters, []<typename S>() -> PlainKernel { return &learn_batch<T, S>; });
  });
}

// Drops what NumPy's generator of that seed drops, which ONNX's tests are made by.
template <typename T, typename R>
Result<> drop(const Node& node, Inputs inputs, Outputs outputs) {
  const ConstView told = input(inputs, 1);
  const double ratio = told ? static_cast<double>(load(told.as<R>()[0])) : 0.5;
  if (!(ratio >= 0 && ratio < 1)) return failed(node, "ratio must be at least 0, and below 1");
  std::mt19937 random(static_cast<std::uint32_t>(node.integer("seed", 0)));
  const auto uniform = [&] {
    const auto high = static_cast<double>(random() >> 5U), low = static_cast<double>(random() >> 6U);
    return (high * 67108864.0 + low) / 9007199254740992.0;
  };
  const MutableView y = output(outputs, 0), mask = output(outputs, 1);
  const T* x = inputs[0].as<T>();
  for (std::int64_t i = 0; i < inputs[0].type->elements(); ++i) {
    const bool keeps = uniform() >= ratio;
    if (mask) mask.as<std::uint8_t>()[i] = keeps ? 1 : 0;
    if (y)
      y.as<T>()[i] =
          keeps ? store<T>(static_cast<Compute<T>>(static_cast<double>(load(x[i])) / (1 - ratio))) : T{};
  }
  return {};
}
PlainKernel find_drop(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  const DataType ratio = type_at(types, 1) == nullptr ? DataType::f32 : types[1]->type;
  return Floats::pick(types[0]->type, [ratio]<typename T>() -> PlainKernel {
    return Floats::pick(ratio, []<typename R>() -> PlainKernel { return &drop<T, R>; });
  });
}

constexpr Operator losses[] = {
    {"NegativeLogLikelihoodLoss", &find_loss<NegativeLogLikelihood>},
    {"SoftmaxCrossEntropyLoss", &find_loss<SoftmaxCrossEntropy>},
};
constexpr Operator steps[] = {
    {"Adagrad", &find_step<adagrad>},   {"Adam", &find_step<adam>},
    {"Momentum", &find_step<momentum>}, {"TrainingBatchNormalization", &find_learn_batch},
    {"TrainingDropout", &find_drop},
};

}  // namespace

std::span<const Operator> loss_operators() {
  return losses;
}
std::span<const Operator> training_operators() {
  return steps;
}

}  // namespace carillon::graph::plain
