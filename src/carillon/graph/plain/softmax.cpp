// Softmax, LogSoftmax and Hardmax along one axis.

#include <cmath>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

inline constexpr std::int64_t lanes = 16;

// Reductions of a contiguous row with independent partial results, so that they become vector code.
template <typename T, typename C = Compute<T>>
C row_maximum(const T* x, std::int64_t count) {
  std::array<C, lanes> part;
  part.fill(-std::numeric_limits<C>::infinity());
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::int64_t j = 0; j < lanes; ++j) part[j] = maximum(part[j], load(x[i + j]));
  }
  for (; i < count; ++i) part[0] = maximum(part[0], load(x[i]));
  C result = part[0];
  for (std::int64_t j = 1; j < lanes; ++j) result = maximum(result, part[j]);
  return result;
}

template <typename T, bool logarithm>
void softmax_row(const T* x, T* __restrict y, std::int64_t count) {
  using C = Compute<T>;
  const C top = row_maximum(x, count);
  std::array<C, lanes> part{};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::int64_t j = 0; j < lanes; ++j) {
      const C e = exponential(load(x[i + j]) - top);
      if constexpr (!logarithm) y[i + j] = store<T>(e);
      part[j] += e;
    }
  }
  for (; i < count; ++i) {
    const C e = exponential(load(x[i]) - top);
    if constexpr (!logarithm) y[i] = store<T>(e);
    part[0] += e;
  }
  C sum{};
  for (const C p : part) sum += p;
  if constexpr (logarithm) {
    const C shift = top + std::log(sum);
    for (i = 0; i < count; ++i) y[i] = store<T>(load(x[i]) - shift);
  } else {
    const C scale = C{1} / sum;
    for (i = 0; i < count; ++i) y[i] = store<T>(load(y[i]) * scale);
  }
}

// `width` (at most the tile's) neighbouring columns of a [count, step] matrix at once.
inline constexpr std::int64_t tile = 64;
template <typename T, bool logarithm>
void softmax_columns(const T* x, T* __restrict y, std::int64_t count, std::int64_t step, std::int64_t width) {
  using C = Compute<T>;
  std::array<C, tile> top;
  std::array<C, tile> sum{};
  top.fill(-std::numeric_limits<C>::infinity());
  for (std::int64_t k = 0; k < count; ++k) {
    for (std::int64_t j = 0; j < width; ++j) top[j] = maximum(top[j], load(x[k * step + j]));
  }
  for (std::int64_t k = 0; k < count; ++k) {
    for (std::int64_t j = 0; j < width; ++j) {
      const C e = exponential(load(x[k * step + j]) - top[j]);
      if constexpr (!logarithm) y[k * step + j] = store<T>(e);
      sum[j] += e;
    }
  }
  for (std::int64_t j = 0; j < width; ++j) sum[j] = logarithm ? top[j] + std::log(sum[j]) : C{1} / sum[j];
  for (std::int64_t k = 0; k < count; ++k) {
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t at = k * step + j;
      y[at] = store<T>(logarithm ? load(x[at]) - sum[j] : load(y[at]) * sum[j]);
    }
  }
}

template <typename T, bool logarithm>
Result<> softmax(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  if (outputs[0].type->elements() != inputs[0].type->elements()) return misfit(node, inputs, outputs);
  Around along;
  if (!shape.empty()) {
    const auto axis = node_axis(node, -1, shape.size());
    if (!axis) return bad_axis(node, shape.size());
    along = around(shape, *axis);
  }
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  const std::int64_t block = along.extent * along.inner;
  for (std::int64_t o = 0; o < along.outer; ++o, x += block, y += block) {
    if (along.inner == 1) {
      softmax_row<T, logarithm>(x, y, along.extent);
      continue;
    }
    for (std::int64_t i = 0; i < along.inner; i += tile) {
      softmax_columns<T, logarithm>(x + i, y + i, along.extent, along.inner, std::min(tile, along.inner - i));
    }
  }
  return {};
}

// One where the largest (the first of them) is, zero elsewhere.
template <typename T>
Result<> hardmax(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  if (outputs[0].type->elements() != inputs[0].type->elements()) return misfit(node, inputs, outputs);
  const auto axis = node_axis(node, -1, shape.size());
  if (!axis) return bad_axis(node, shape.size());
  const Around along = around(shape, *axis);
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  std::fill_n(y, inputs[0].type->elements(), store<T>(C{0}));
  for (std::int64_t o = 0; o < along.outer; ++o) {
    for (std::int64_t i = 0; i < along.inner && along.extent > 0; ++i) {
      const std::int64_t base = o * along.extent * along.inner + i;
      std::int64_t best = 0;
      for (std::int64_t k = 1; k < along.extent; ++k) {
        if (load(x[base + k * along.inner]) > load(x[base + best * along.inner])) best = k;
      }
      y[base + best * along.inner] = store<T>(C{1});
    }
  }
  return {};
}

template <bool logarithm>
PlainKernel find(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &softmax<T, logarithm>; });
}
PlainKernel find_hardmax(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &hardmax<T>; });
}

constexpr Operator operators[] = {
    {"Softmax", &find<false>}, {"LogSoftmax", &find<true>}, {"Hardmax", &find_hardmax}};

}  // namespace

std::span<const Operator> softmax_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
