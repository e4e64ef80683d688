// Pooling, sliding and global.

#include <cmath>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/plain/window.h"

namespace carillon::graph::plain {
namespace {

// Calls at(plane, place in plane's output, taps of the three axes) for every output.
template <typename At>
void for_each_window(const Window& window, std::int64_t planes, At&& at) {
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    std::int64_t place = 0;
    for (std::int64_t d = 0; d < window.out[0]; ++d) {
      const Taps depth = taps_of(window, 0, d);
      for (std::int64_t h = 0; h < window.out[1]; ++h) {
        const Taps height = taps_of(window, 1, h);
        for (std::int64_t w = 0; w < window.out[2]; ++w, ++place) {
          at(plane, place, std::array<Taps, 3>{depth, height, taps_of(window, 2, w)});
        }
      }
    }
  }
}
// Calls at(d, h, w) for every input place under the taps.
template <typename At>
void for_each_tap(const Window& window, const std::array<Taps, 3>& taps, At&& at) {
  for (std::int64_t kd = taps[0].first; kd < taps[0].last; ++kd) {
    const std::int64_t d = taps[0].base + kd * window.dilation[0];
    for (std::int64_t kh = taps[1].first; kh < taps[1].last; ++kh) {
      const std::int64_t h = taps[1].base + kh * window.dilation[1];
      for (std::int64_t kw = taps[2].first; kw < taps[2].last; ++kw) {
        at(d, h, taps[2].base + kw * window.dilation[2]);
      }
    }
  }
}

bool pool_window(const Node& node, Inputs inputs, const TensorType& result, Window& window) {
  const Shape& xs = inputs[0].type->shape;
  return window_of(node, xs, result.shape, node.integers("kernel_shape"), window) &&
         xs[0] == result.shape[0] && xs[1] == result.shape[1];
}

// Outputs: values, and the place of each in the whole input (with storage_order=1, counted in the plane's
// columns first).
template <typename T>
Result<> max_pool(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const MutableView values = output(outputs, 0);
  const MutableView places = output(outputs, 1);
  if (!values && !places) return {};
  Window window;
  const TensorType& result = values ? *values.type : *places.type;
  if (!pool_window(node, inputs, result, window)) return misfit(node, inputs, outputs);
  if (places && places.type->elements() != result.elements()) return misfit(node, inputs, outputs);
  const bool columns_first = node.integer("storage_order", 0) != 0;
  constexpr C least =
      std::is_floating_point_v<C> ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::lowest();
  const std::int64_t plane_size = window.in_size();
  const auto& in = window.in;
  for_each_window(window, result.shape[0] * result.shape[1],
                  [&](std::int64_t plane, std::int64_t place, const std::array<Taps, 3>& taps) {
                    const T* x = inputs[0].as<T>() + plane * plane_size;
                    C best = least;
                    std::int64_t where = -1;
                    for_each_tap(window, taps, [&](std::int64_t d, std::int64_t h, std::int64_t w) {
                      const C value = load(x[(d * in[1] + h) * in[2] + w]);
                      if (where < 0 || value > best || value != value) {
                        best = value;
                        where = columns_first ? (w * in[1] + h) * in[0] + d : (d * in[1] + h) * in[2] + w;
                      }
                    });
                    const std::int64_t at = plane * window.out_size() + place;
                    if (values) values.as<T>()[at] = store<T>(best);
                    if (places) places.as<std::int64_t>()[at] = where < 0 ? -1 : plane * plane_size + where;
                  });
  return {};
}

template <typename T>
Result<> average_pool(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  Window window;
  if (!pool_window(node, inputs, *outputs[0].type, window)) return misfit(node, inputs, outputs);
  const bool with_pads = node.integer("count_include_pad", 0) != 0;
  // Taps of one axis that count: with pads, those inside the padded input (a window that ceil_mode lets
  // reach beyond it counts no more).
  const auto counted = [&](int d, const Taps& taps) -> std::int64_t {
    if (!with_pads) return taps.last - taps.first;
    const std::int64_t room = window.in[d] + window.end[d] - taps.base;
    return std::clamp<std::int64_t>((room + window.dilation[d] - 1) / window.dilation[d], 0,
                                    window.kernel[d]);
  };
  T* y = outputs[0].as<T>();
  const std::int64_t planes = outputs[0].type->shape[0] * outputs[0].type->shape[1];
  const auto& in = window.in;
  for_each_window(window, planes, [&](std::int64_t plane, std::int64_t, const std::array<Taps, 3>& taps) {
    const T* x = inputs[0].as<T>() + plane * window.in_size();
    C sum{};
    for_each_tap(window, taps, [&](std::int64_t d, std::int64_t h, std::int64_t w) {
      sum += load(x[(d * in[1] + h) * in[2] + w]);
    });
    const std::int64_t count = counted(0, taps[0]) * counted(1, taps[1]) * counted(2, taps[2]);
    *y++ = store<T>(count == 0 ? C{0} : sum / static_cast<C>(count));
  });
  return {};
}

template <typename C>
inline C power_of(C x, std::int64_t p) {
  const C magnitude = std::abs(x);
  return p == 1 ? magnitude : p == 2 ? x * x : std::pow(magnitude, static_cast<C>(p));
}
template <typename C>
inline C root_of(C sum, std::int64_t p) {
  return p == 1 ? sum : p == 2 ? std::sqrt(sum) : std::pow(sum, C{1} / static_cast<C>(p));
}

template <typename T>
Result<> lp_pool(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  Window window;
  if (!pool_window(node, inputs, *outputs[0].type, window)) return misfit(node, inputs, outputs);
  const std::int64_t p = node.integer("p", 2);
  T* y = outputs[0].as<T>();
  const std::int64_t planes = outputs[0].type->shape[0] * outputs[0].type->shape[1];
  const auto& in = window.in;
  for_each_window(window, planes, [&](std::int64_t plane, std::int64_t, const std::array<Taps, 3>& taps) {
    const T* x = inputs[0].as<T>() + plane * window.in_size();
    C sum{};
    for_each_tap(window, taps, [&](std::int64_t d, std::int64_t h, std::int64_t w) {
      sum += power_of(load(x[(d * in[1] + h) * in[2] + w]), p);
    });
    *y++ = store<T>(root_of(sum, p));
  });
  return {};
}

enum class Global { average, maximum, lp };
template <typename T, Global kind>
Result<> global_pool(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  if (shape.size() < 2 || outputs[0].type->elements() != shape[0] * shape[1]) {
    return misfit(node, inputs, outputs);
  }
  std::int64_t count = 1;
  for (std::size_t d = 2; d < shape.size(); ++d) count *= shape[d];
  const std::int64_t p = node.integer("p", 2);
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  for (std::int64_t plane = 0; plane < shape[0] * shape[1]; ++plane, x += count) {
    C result = kind == Global::maximum ? -std::numeric_limits<C>::infinity() : C{0};
    for (std::int64_t i = 0; i < count; ++i) {
      const C value = load(x[i]);
      result = kind == Global::maximum ? maximum(result, value)
               : kind == Global::lp    ? result + power_of(value, p)
                                       : result + value;
    }
    if (kind == Global::average) result /= static_cast<C>(count);
    if (kind == Global::lp) result = root_of(result, p);
    y[plane] = store<T>(result);
  }
  return {};
}

bool spatial(InputTypes types) {
  const TensorType* type = type_at(types, 0);
  return type != nullptr && type->shape.size() >= 3 && type->shape.size() <= 2 + max_spatial;
}
PlainKernel find_max(const Node&, InputTypes types) {
  if (!spatial(types)) return nullptr;
  return Types<float, double, Half, BFloat16, std::int8_t, std::uint8_t>::pick(
      types[0]->type, []<typename T>() -> PlainKernel { return &max_pool<T>; });
}
PlainKernel find_average(const Node&, InputTypes types) {
  if (!spatial(types)) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &average_pool<T>; });
}
PlainKernel find_lp(const Node&, InputTypes types) {
  if (!spatial(types)) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &lp_pool<T>; });
}
template <Global kind>
PlainKernel find_global(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &global_pool<T, kind>; });
}

constexpr Operator operators[] = {
    {"MaxPool", &find_max},
    {"AveragePool", &find_average},
    {"LpPool", &find_lp},
    {"GlobalAveragePool", &find_global<Global::average>},
    {"GlobalMaxPool", &find_global<Global::maximum>},
    {"GlobalLpPool", &find_global<Global::lp>},
};

}  // namespace

std::span<const Operator> pool_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
