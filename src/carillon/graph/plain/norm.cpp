// Normalisations.

#include <cmath>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// Mean and variance of contiguous elements, in two passes (one would cancel).
template <typename C>
struct Moments {
  C mean{};
  C variance{};
};
template <typename T, typename Get, typename C = Compute<T>>
C sum_of(const T* x, std::int64_t count, Get get) {
  constexpr std::int64_t lanes = 16;
  std::array<C, lanes> part{};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::int64_t j = 0; j < lanes; ++j) part[j] += get(load(x[i + j]));
  }
  C sum{};
  for (; i < count; ++i) sum += get(load(x[i]));
  for (const C p : part) sum += p;
  return sum;
}
template <typename T, typename C = Compute<T>>
Moments<C> moments_of(const T* x, std::int64_t count) {
  Moments<C> moments;
  const C n = static_cast<C>(count);
  const C mean = sum_of(x, count, [](C v) { return v; }) / n;
  moments.mean = mean;
  moments.variance = sum_of(x, count, [mean](C v) { return (v - mean) * (v - mean); }) / n;
  return moments;
}

// Inputs: x [n, c, ...], scale, bias, mean, variance, each [c]. The last four share a type of their own.
template <typename T, typename S>
Result<> batch_normalization(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  if (shape.empty() || outputs[0].type->elements() != inputs[0].type->elements()) {
    return misfit(node, inputs, outputs);
  }
  const Around along = around(shape, shape.size() == 1 ? 0 : 1);
  const std::int64_t channels = shape.size() == 1 ? 1 : along.extent;
  const std::int64_t inner = shape.size() == 1 ? along.extent : along.inner;
  for (std::size_t k = 1; k < 5; ++k) {
    if (inputs[k].type->elements() != channels) return misfit(node, inputs, outputs);
  }
  const auto epsilon = static_cast<C>(node.real("epsilon", 1e-5F));
  const T* x = inputs[0].as<T>();
  T* __restrict y = outputs[0].as<T>();
  for (std::int64_t n = 0; n < along.outer; ++n) {
    for (std::int64_t c = 0; c < channels; ++c, x += inner, y += inner) {
      const auto parameter = [&](std::size_t k) { return static_cast<C>(load(inputs[k].as<S>()[c])); };
      const C scale = parameter(1) / std::sqrt(parameter(4) + epsilon);
      const C shift = parameter(2) - parameter(3) * scale;
      for (std::int64_t i = 0; i < inner; ++i) y[i] = store<T>(load(x[i]) * scale + shift);
    }
  }
  return {};
}

// Inputs: x, scale, bias, the last two broadcast to x's axes [axis, rank). Outputs: y, mean, 1 / deviation.
template <typename T>
Result<> layer_normalization(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  const auto axis = node_axis(node, -1, shape.size());
  if (!axis) return bad_axis(node, shape.size());
  std::int64_t rows = 1;
  for (std::int64_t d = 0; d < *axis; ++d) rows *= shape[d];
  const std::span<const std::int64_t> normalized = std::span(shape).subspan(*axis);
  std::int64_t count = 1;
  for (const std::int64_t extent : normalized) count *= extent;
  const ConstView bias = input(inputs, 2);
  // Usually scale and bias have exactly the normalised axes; what is left of the rest is broadcast.
  const bool dense = inputs[1].type->elements() == count && (!bias || bias.type->elements() == count);
  Loops<3> loops;
  const std::span<const std::int64_t> scalar;
  if (!broadcast<2>(normalized, {inputs[1].type->shape, bias ? std::span(bias.type->shape) : scalar},
                    loops)) {
    return misfit(node, inputs, outputs);
  }
  const MutableView result = output(outputs, 0);
  const MutableView means = output(outputs, 1);
  const MutableView deviations = output(outputs, 2);
  if ((result && result.type->elements() != rows * count) || (means && means.type->elements() != rows) ||
      (deviations && deviations.type->elements() != rows)) {
    return misfit(node, inputs, outputs);
  }
  for (const MutableView& statistic : {means, deviations}) {
    if (statistic && statistic.type->type != DataType::f32 && statistic.type->type != data_type<T>()) {
      return failed(node, "mean and deviation are of another type than the input and float");
    }
  }
  const auto write = [](const MutableView& to, std::int64_t row, C value) {
    if (!to) return;
    if (to.type->type == DataType::f32) {
      to.as<float>()[row] = static_cast<float>(value);
    } else {
      to.as<T>()[row] = store<T>(value);
    }
  };
  const auto epsilon = static_cast<C>(node.real("epsilon", 1e-5F));
  const T* scales = inputs[1].as<T>();
  const T* biases = bias ? bias.as<T>() : nullptr;
  const T* x = inputs[0].as<T>();
  for (std::int64_t row = 0; row < rows; ++row, x += count) {
    const Moments<C> moments = moments_of(x, count);
    const C inverse = C{1} / std::sqrt(moments.variance + epsilon);
    const C mean = moments.mean;
    write(means, row, mean);
    write(deviations, row, inverse);
    if (!result) continue;
    T* __restrict y = result.as<T>() + row * count;
    if (dense && biases != nullptr) {
      for (std::int64_t i = 0; i < count; ++i) {
        y[i] = store<T>((load(x[i]) - mean) * inverse * load(scales[i]) + load(biases[i]));
      }
    } else if (dense) {
      for (std::int64_t i = 0; i < count; ++i)
        y[i] = store<T>((load(x[i]) - mean) * inverse * load(scales[i]));
    } else {
      for_each_row(loops, [&](const auto& at, std::int64_t run) {
        for (std::int64_t i = 0; i < run; ++i) {
          const C scale = load(scales[at[1] + i * loops.inner_stride(1)]);
          const C shift = biases != nullptr ? load(biases[at[2] + i * loops.inner_stride(2)]) : C{0};
          y[at[0] + i] = store<T>((load(x[at[0] + i]) - mean) * inverse * scale + shift);
        }
      });
    }
  }
  return {};
}

// InstanceNormalization (a group is a channel) and GroupNormalization: x [n, c, ...] in `num_groups` groups
// of channels, each with moments of its own; scale and bias go by channel, or by group (as opset 18 has
// them).
template <typename T>
Result<> group_normalization(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  if (shape.size() < 2 || outputs[0].type->elements() != inputs[0].type->elements()) {
    return misfit(node, inputs, outputs);
  }
  const std::int64_t channels = shape[1];
  const std::int64_t groups = node.op == "InstanceNormalization" ? channels : node.integer("num_groups", 0);
  const std::int64_t parameters = inputs[1].type->elements();
  if (channels == 0) return {};
  if (groups < 1 || channels % groups != 0 || (parameters != channels && parameters != groups) ||
      inputs[2].type->elements() != parameters) {
    return misfit(node, inputs, outputs);
  }
  const Around along = around(shape, 1);
  const std::int64_t in_group = channels / groups;
  const auto epsilon = static_cast<C>(node.real("epsilon", 1e-5F));
  const T* x = inputs[0].as<T>();
  T* __restrict y = outputs[0].as<T>();
  for (std::int64_t n = 0; n < along.outer; ++n) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const Moments<C> moments = moments_of(x, in_group * along.inner);
      const C inverse = C{1} / std::sqrt(moments.variance + epsilon);
      for (std::int64_t c = g * in_group; c < (g + 1) * in_group; ++c, x += along.inner, y += along.inner) {
        const std::int64_t which = parameters == channels ? c : g;
        const C scale = load(inputs[1].as<T>()[which]) * inverse;
        const C bias = load(inputs[2].as<T>()[which]);
        // The mean is taken away first: equal numbers give the bias, whatever 1 / sqrt(epsilon) makes of
        // them.
        for (std::int64_t i = 0; i < along.inner; ++i)
          y[i] = store<T>((load(x[i]) - moments.mean) * scale + bias);
      }
    }
  }
  return {};
}

// Across `size` neighbouring channels: y = x / (bias + alpha / size * sum of squares) ^ beta.
template <typename T>
Result<> local_response(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  const std::int64_t size = node.integer("size", 1);
  if (shape.size() < 2 || size < 1 || outputs[0].type->elements() != inputs[0].type->elements()) {
    return misfit(node, inputs, outputs);
  }
  const auto alpha = static_cast<C>(node.real("alpha", 1e-4F));
  const auto beta = static_cast<C>(node.real("beta", 0.75F));
  const auto bias = static_cast<C>(node.real("bias", 1.0F));
  const Around along = around(shape, 1);
  const std::int64_t before = (size - 1) / 2;
  const std::int64_t after = size - 1 - before;
  constexpr std::int64_t tile = 128;
  for (std::int64_t n = 0; n < along.outer; ++n) {
    const T* x = inputs[0].as<T>() + n * along.extent * along.inner;
    T* y = outputs[0].as<T>() + n * along.extent * along.inner;
    for (std::int64_t c = 0; c < along.extent; ++c) {
      const std::int64_t first = std::max<std::int64_t>(0, c - before);
      const std::int64_t last = after >= along.extent - c ? along.extent : c + after + 1;
      for (std::int64_t i = 0; i < along.inner; i += tile) {
        const std::int64_t width = std::min(tile, along.inner - i);
        std::array<C, tile> squares{};
        for (std::int64_t k = first; k < last; ++k) {
          const T* row = x + k * along.inner + i;
          for (std::int64_t j = 0; j < width; ++j) squares[j] += load(row[j]) * load(row[j]);
        }
        for (std::int64_t j = 0; j < width; ++j) {
          const std::int64_t at = c * along.inner + i + j;
          y[at] = store<T>(load(x[at]) / std::pow(bias + alpha / static_cast<C>(size) * squares[j], beta));
        }
      }
    }
  }
  return {};
}

// x / (sum of |x|, or root of the sum of squares) along an axis; a line of zeros stays zero.
template <typename T>
Result<> lp_normalization(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  const auto axis = node_axis(node, -1, shape.size());
  if (!axis) return bad_axis(node, shape.size());
  if (outputs[0].type->elements() != inputs[0].type->elements()) return misfit(node, inputs, outputs);
  const Around along = around(shape, *axis);
  const bool absolute = node.integer("p", 2) == 1;
  for (std::int64_t o = 0; o < along.outer; ++o) {
    for (std::int64_t i = 0; i < along.inner; ++i) {
      const std::int64_t base = o * along.extent * along.inner + i;
      const T* x = inputs[0].as<T>() + base;
      T* y = outputs[0].as<T>() + base;
      C sum{};
      for (std::int64_t k = 0; k < along.extent; ++k) {
        const C value = load(x[k * along.inner]);
        sum += absolute ? std::abs(value) : value * value;
      }
      const C norm = absolute ? sum : std::sqrt(sum);
      for (std::int64_t k = 0; k < along.extent; ++k) {
        y[k * along.inner] = store<T>(norm == C{0} ? C{0} : load(x[k * along.inner]) / norm);
      }
    }
  }
  return {};
}

// (x - mean) / (deviation + 1e-9) over `axes` (0, 2, 3 by default).
template <typename T>
Result<> mean_variance(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  if (outputs[0].type->elements() != inputs[0].type->elements()) return misfit(node, inputs, outputs);
  constexpr std::int64_t usual[] = {0, 2, 3};
  const auto given = node.integers("axes");
  std::array<bool, max_rank> reduced{};
  for (const std::int64_t axis : given.empty() ? std::span<const std::int64_t>(usual) : given) {
    const auto at = axis_of(axis, shape.size());
    if (!at) return failed(node, "axis " + std::to_string(axis) + " is outside the tensor");
    reduced[*at] = true;
  }
  const auto strides = dense_strides(shape);
  Loops<1> kept;
  Loops<1> gone;
  std::int64_t count = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    (reduced[d] ? gone : kept).push(shape[d], {strides[d]});
    if (reduced[d]) count *= shape[d];
  }
  kept.collapse();
  gone.collapse();
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  const std::int64_t step = gone.inner_stride(0);
  const auto each = [&](std::int64_t base, auto&& with) {
    for_each_row(gone, [&](const auto& at, std::int64_t run) {
      for (std::int64_t i = 0; i < run; ++i) with(base + at[0] + i * step);
    });
  };
  for_each_row(kept, [&](const auto& at, std::int64_t run) {
    for (std::int64_t i = 0; i < run; ++i) {
      const std::int64_t base = at[0] + i * kept.inner_stride(0);
      C sum{};
      each(base, [&](std::int64_t place) { sum += load(x[place]); });
      const C mean = sum / static_cast<C>(count);
      C squares{};
      each(base, [&](std::int64_t place) { squares += (load(x[place]) - mean) * (load(x[place]) - mean); });
      const C deviation = std::sqrt(squares / static_cast<C>(count)) + static_cast<C>(1e-9);
      each(base, [&](std::int64_t place) { y[place] = store<T>((load(x[place]) - mean) / deviation); });
    }
  });
  return {};
}

PlainKernel find_batch(const Node& node, InputTypes types) {
  if (types.size() < 5 || type_at(types, 0) == nullptr || !same_types(types.subspan(1), 4) ||
      node.integer("training_mode", 0) != 0) {
    return nullptr;
  }
  const DataType parameters = types[1]->type;
  return Floats::pick(types[0]->type, [parameters]<typename T>() -> PlainKernel {
    return Floats::pick(parameters, []<typename S>() -> PlainKernel { return &batch_normalization<T, S>; });
  });
}
PlainKernel find_layer(const Node&, InputTypes types) {
  const TensorType* bias = type_at(types, 2);
  if (!same_types(types, 2) || (bias != nullptr && bias->type != types[0]->type)) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &layer_normalization<T>; });
}
PlainKernel find_group(const Node&, InputTypes types) {
  if (!same_types(types, 3)) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &group_normalization<T>; });
}
PlainKernel find_local_response(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &local_response<T>; });
}
PlainKernel find_lp(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &lp_normalization<T>; });
}
PlainKernel find_mean_variance(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &mean_variance<T>; });
}

constexpr Operator operators[] = {
    {"BatchNormalization", &find_batch},
    {"LayerNormalization", &find_layer},
    {"InstanceNormalization", &find_group},
    {"GroupNormalization", &find_group},
    {"LRN", &find_local_response},
    {"LpNormalization", &find_lp},
    {"MeanVarianceNormalization", &find_mean_variance},
};

}  // namespace

std::span<const Operator> norm_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
