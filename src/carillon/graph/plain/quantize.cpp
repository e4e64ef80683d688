// Numbers in eight and sixteen bits: QuantizeLinear and its kin, and products and convolutions of whole
// numbers.

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/plain/quantised.h"
#include "carillon/graph/plain/window.h"

namespace carillon::graph::plain {
namespace {

using Quantised = Types<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t>;
using Dequantised = Types<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t>;
using Real = Types<float, Half, BFloat16>;

// Stretches that share a scale.
template <typename From>
[[gnu::always_inline]] inline void dequantise_stretch(const From* x, float* y, std::int64_t count,
                                                      float scale, std::int32_t zero) {
  for (std::int64_t i = 0; i < count; ++i)
    y[i] = static_cast<float>(static_cast<std::int32_t>(x[i]) - zero) * scale;
}
CARILLON_WIDE void dequantise_all(const std::uint8_t* x, float* y, std::int64_t count, float scale,
                                  std::int32_t zero) {
  dequantise_stretch(x, y, count, scale, zero);
}
CARILLON_WIDE void dequantise_all(const std::int8_t* x, float* y, std::int64_t count, float scale,
                                  std::int32_t zero) {
  dequantise_stretch(x, y, count, scale, zero);
}
// The least and the greatest, and 0.
CARILLON_WIDE void range_of(const float* x, std::int64_t count, float& low, float& high) {
  constexpr std::int64_t lanes = 64;
  std::array<float, lanes> least{}, greatest{};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::int64_t j = 0; j < lanes; ++j) {
      least[j] = x[i + j] < least[j] ? x[i + j] : least[j];
      greatest[j] = x[i + j] > greatest[j] ? x[i + j] : greatest[j];
    }
  }
  low = high = 0;
  for (std::int64_t j = 0; j < lanes; ++j) {
    low = least[j] < low ? least[j] : low;
    high = greatest[j] > high ? greatest[j] : high;
  }
  for (; i < count; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
}

// Which scale goes with which element: of x seen as [outer, extent, inner] around the axis, those of `block`
// neighbours along it share one; `each` says that every place of outer and inner has scales of its own.
struct Scales {
  Around x;
  std::int64_t block = 1;
  std::int64_t blocks = 1;
  bool each = false;

  std::int64_t at(std::int64_t outer, std::int64_t k, std::int64_t inner) const {
    const std::int64_t b = k / block;
    return each ? (outer * blocks + b) * x.inner + inner : b;
  }
};

bool scales_of(const Node& node, const Shape& xs, const Shape& ss, Scales& scales) {
  std::int64_t count = 1;
  for (const std::int64_t extent : ss) count *= extent;
  if (count == 1) {
    scales.x = {.outer = 1, .extent = 1, .inner = 1};
    for (const std::int64_t extent : xs) scales.x.inner *= extent;
    return true;
  }
  const auto axis = node_axis(node, 1, xs.size());
  if (!axis) return false;
  scales.x = around(xs, *axis);
  const std::int64_t block = node.integer("block_size", 0);
  if (ss.size() == 1 && block == 0) {
    scales.blocks = ss[0];
    return ss[0] == scales.x.extent;
  }
  if (block < 1 || ss.size() != xs.size()) return false;
  scales.block = block;
  scales.blocks = ss[static_cast<std::size_t>(*axis)];
  scales.each = true;
  return scales.blocks == (scales.x.extent + block - 1) / block &&
         count == scales.x.outer * scales.blocks * scales.x.inner;
}

// Of a node with scales and perhaps as many zero points behind what it converts; false where they do not fit.
bool scales_of(const Node& node, Inputs inputs, Outputs outputs, Scales& scales) {
  const ConstView zeros = input(inputs, 2);
  return outputs[0].type->elements() == inputs[0].type->elements() &&
         scales_of(node, inputs[0].type->shape, inputs[1].type->shape, scales) &&
         (!zeros || zeros.type->elements() == inputs[1].type->elements());
}

// Calls run(first element, count, scale's place) for stretches of x that share a scale.
template <typename Run>
void for_each_stretch(const Scales& scales, Run&& run) {
  const Around& x = scales.x;
  for (std::int64_t o = 0; o < x.outer; ++o) {
    for (std::int64_t k = 0; k < x.extent; ++k) {
      const std::int64_t first = (o * x.extent + k) * x.inner;
      if (!scales.each) {
        run(first, x.inner, scales.at(o, k, 0));
      } else {
        for (std::int64_t i = 0; i < x.inner; ++i) run(first + i, 1, scales.at(o, k, i));
      }
    }
  }
}

template <typename From, typename Scale, typename To>
Result<> quantize(const Node& node, Inputs inputs, Outputs outputs) {
  Scales scales;
  if (!scales_of(node, inputs, outputs, scales)) return misfit(node, inputs, outputs);
  const ConstView zeros = input(inputs, 2);
  const From* x = inputs[0].as<From>();
  To* y = outputs[0].as<To>();
  for_each_stretch(scales, [&](std::int64_t first, std::int64_t count, std::int64_t at) {
    const auto scale = static_cast<float>(load(inputs[1].as<Scale>()[at]));
    const std::int32_t zero = zeros ? zeros.as<To>()[at] : 0;
    if constexpr (std::is_same_v<From, float> && sizeof(To) == 1)
      if (count > 1) return quantise_all(x + first, y + first, count, scale, zero);
    for (std::int64_t i = first; i < first + count; ++i)
      y[i] = quantised<To>(static_cast<float>(load(x[i])) / scale, zero);
  });
  return {};
}

template <typename From, typename To>
Result<> dequantize(const Node& node, Inputs inputs, Outputs outputs) {
  Scales scales;
  if (!scales_of(node, inputs, outputs, scales)) return misfit(node, inputs, outputs);
  const ConstView zeros = input(inputs, 2);
  const From* x = inputs[0].as<From>();
  To* y = outputs[0].as<To>();
  for_each_stretch(scales, [&](std::int64_t first, std::int64_t count, std::int64_t at) {
    const float scale = load(inputs[1].as<To>()[at]);
    const auto zero = zeros ? zeros.as<From>()[at] : From{0};
    if constexpr (sizeof(From) == 1 && std::is_same_v<To, float>)
      if (count > 1) return dequantise_all(x + first, y + first, count, scale, zero);
    // int32 has no zero point but 0; the difference wraps where a file says otherwise.
    for (std::int64_t i = first; i < first + count; ++i)
      y[i] = store<To>(
          static_cast<float>(subtract(static_cast<std::int32_t>(x[i]), static_cast<std::int32_t>(zero))) *
          scale);
  });
  return {};
}

// To bytes by the range of what is there, which always has 0 in it.
Result<> dynamic_quantize(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t count = inputs[0].type->elements();
  const MutableView scale_out = output(outputs, 1);
  const MutableView zero_out = output(outputs, 2);
  const MutableView y = output(outputs, 0);
  if (y && y.type->elements() != count) return misfit(node, inputs, outputs);
  const float* x = inputs[0].as<float>();
  float low = 0;
  float high = 0;
  range_of(x, count, low, high);
  const float scale = high == low ? 1.0F : (high - low) / 255.0F;
  const auto zero = quantised<std::uint8_t>(-low / scale, 0);
  if (y) quantise_all(x, y.as<std::uint8_t>(), count, scale, zero);
  if (scale_out) *scale_out.as<float>() = scale;
  if (zero_out) *zero_out.as<std::uint8_t>() = zero;
  return {};
}

// One value for all, or one for each of `count`.
template <typename T>
struct PerPlace {
  const T* data = nullptr;  // nullptr: zero
  std::int64_t step = 0;
  T at(std::int64_t i) const { return data == nullptr ? T{} : data[i * step]; }
};
template <typename T>
bool per_place(const ConstView& view, std::int64_t count, PerPlace<T>& places) {
  if (!view) return true;
  const std::int64_t elements = view.type->elements();
  if (elements != 1 && elements != count) return false;
  places = {view.as<T>(), elements == 1 ? 0 : 1};
  return true;
}

// Adds the products of one row's elements, less their zero point, and those of up to `columns` neighbouring
// columns to `sums`; gives the sum of the row's elements.
template <typename A, typename B>
[[gnu::always_inline]] inline std::uint32_t add_products(const A* a, std::int64_t count, std::int32_t zero,
                                                         const B* b, std::int64_t row, std::int64_t columns,
                                                         std::uint32_t* sums) {
  std::uint32_t total = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t left = static_cast<std::int32_t>(a[i]) - zero;
    total += static_cast<std::uint32_t>(left);
    const B* line = b + i * row;
    for (std::int64_t c = 0; c < columns; ++c)
      sums[c] += static_cast<std::uint32_t>(left * static_cast<std::int32_t>(line[c]));
  }
  return total;
}
// By types; a template's own clones would be as many functions of one name.
#define CARILLON_ADD_PRODUCTS(A, B)                                                                \
  CARILLON_WIDE std::uint32_t add_all_products(const A* a, std::int64_t count, std::int32_t zero,  \
                                               const B* b, std::int64_t row, std::int64_t columns, \
                                               std::uint32_t* sums) {                              \
    return add_products(a, count, zero, b, row, columns, sums);                                    \
  }
CARILLON_ADD_PRODUCTS(std::uint8_t, std::uint8_t)
CARILLON_ADD_PRODUCTS(std::uint8_t, std::int8_t)
CARILLON_ADD_PRODUCTS(std::int8_t, std::uint8_t)
CARILLON_ADD_PRODUCTS(std::int8_t, std::int8_t)
#undef CARILLON_ADD_PRODUCTS

// Calls put(r, c, sum over k of (a(r, k) - a_zero(r)) * (b(k, c) - b_zero(c))), wrapping at 32 bits.
template <typename A, typename B, typename Put>
void integer_product(const A* a, const B* b, std::int64_t m, std::int64_t n, std::int64_t k,
                     const PerPlace<A>& a_zero, const PerPlace<B>& b_zero, Put&& put) {
  constexpr std::int64_t width = 64;
  for (std::int64_t c0 = 0; c0 < n; c0 += width) {
    const std::int64_t columns = std::min(width, n - c0);
    for (std::int64_t r = 0; r < m; ++r) {
      std::array<std::uint32_t, width> sum{};
      // What b's zero points are taken away by at the end: the sum of row r.
      const std::uint32_t total =
          add_all_products(a + r * k, k, std::int32_t{a_zero.at(r)}, b + c0, n, columns, sum.data());
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto less = total * static_cast<std::uint32_t>(static_cast<std::int32_t>(b_zero.at(c0 + c)));
        put(r, c0 + c, static_cast<std::int32_t>(sum[c] - less));
      }
    }
  }
}

// How a sum becomes the result: inputs 6 and 7 are its scale and zero point.
template <typename Y>
struct YScale {
  float scale = 1;
  std::int32_t zero = 0;
  bool read(Inputs inputs) {
    if (inputs[6].type->elements() != 1 || inputs[7].type->elements() != 1) return false;
    scale = *inputs[6].as<float>();
    zero = *inputs[7].as<Y>();
    return true;
  }
  Y of(float sum, float unit) const { return quantised<Y>(sum * (unit / scale), zero); }
};
template <>
struct YScale<float> {
  bool read(Inputs) { return true; }
  float of(float sum, float unit) const { return sum * unit; }
};

// numpy's matmul of whole numbers. `put(element, row, column, sum)` is given where the result lies.
template <typename A, typename B, typename Put>
Result<> integer_matmul(const Node& node, Inputs inputs, Outputs outputs, const ConstView& a,
                        const ConstView& b, const ConstView& a_zeros, const ConstView& b_zeros, Put&& put) {
  const Shape& as = a.type->shape;
  const Shape& bs = b.type->shape;
  if (as.empty() || bs.empty()) return misfit(node, inputs, outputs);
  const std::int64_t m = as.size() == 1 ? 1 : as[as.size() - 2];
  const std::int64_t k = as.back();
  const std::int64_t n = bs.size() == 1 ? 1 : bs.back();
  const Shape& ys = outputs[0].type->shape;
  const std::size_t matrix_axes = (as.size() > 1 ? 1U : 0U) + (bs.size() > 1 ? 1U : 0U);
  PerPlace<A> a_zero;
  PerPlace<B> b_zero;
  if ((bs.size() == 1 ? bs[0] : bs[bs.size() - 2]) != k || ys.size() < matrix_axes ||
      !per_place(a_zeros, m, a_zero) || !per_place(b_zeros, n, b_zero))
    return misfit(node, inputs, outputs);
  const auto batches = [](const Shape& shape) {
    return std::span(shape).first(shape.size() < 2 ? 0 : shape.size() - 2);
  };
  const auto result = std::span(ys).first(ys.size() - matrix_axes);
  std::int64_t count = 1;
  for (const std::int64_t extent : result) count *= extent;
  Loops<3> loops;
  if (!broadcast<2>(result, {batches(as), batches(bs)}, loops) ||
      outputs[0].type->elements() != count * m * n)
    return misfit(node, inputs, outputs);
  for_each_row(loops, [&](const auto& at, std::int64_t run) {
    for (std::int64_t i = 0; i < run; ++i) {
      const std::int64_t y = (at[0] + i * loops.inner_stride(0)) * m * n;
      integer_product(a.as<A>() + (at[1] + i * loops.inner_stride(1)) * m * k,
                      b.as<B>() + (at[2] + i * loops.inner_stride(2)) * k * n, m, n, k, a_zero, b_zero,
                      [&](std::int64_t row, std::int64_t column, std::int32_t sum) {
                        put(y + row * n + column, row, column, sum);
                      });
    }
  });
  return {};
}

template <typename A, typename B>
Result<> matmul_integer(const Node& node, Inputs inputs, Outputs outputs) {
  auto* y = outputs[0].as<std::int32_t>();
  return integer_matmul<A, B>(
      node, inputs, outputs, inputs[0], inputs[1], input(inputs, 2), input(inputs, 3),
      [y](std::int64_t at, std::int64_t, std::int64_t, std::int32_t sum) { y[at] = sum; });
}

// Inputs: a, its scale and zero point, b, its scale and zero point, the result's scale and zero point, and a
// bias of each column (ours) in units of both scales. Without the result's scale (ours) the result is real.
template <typename A, typename B, typename Y>
Result<> qlinear_matmul(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& as = inputs[0].type->shape;
  const Shape& bs = inputs[3].type->shape;
  const std::int64_t columns = bs.size() < 2 ? 1 : bs.back();
  PerPlace<float> a_scale;
  PerPlace<float> b_scale;
  PerPlace<std::int32_t> start;
  YScale<Y> y_scale;
  if (!per_place(inputs[1], as.size() < 2 ? 1 : as[as.size() - 2], a_scale) ||
      !per_place(inputs[4], columns, b_scale) || !per_place(input(inputs, 8), columns, start) ||
      !y_scale.read(inputs))
    return misfit(node, inputs, outputs);
  Y* y = outputs[0].as<Y>();
  return integer_matmul<A, B>(node, inputs, outputs, inputs[0], inputs[3], inputs[2], inputs[5],
                              [&](std::int64_t at, std::int64_t row, std::int64_t column, std::int32_t sum) {
                                y[at] = y_scale.of(static_cast<float>(add(sum, start.at(column))),
                                                   a_scale.at(row) * b_scale.at(column));
                              });
}

// Calls put(element, channel, sum) for the convolution of x [n, c, ...] with w [m, c / group, kernel...],
// padded with x's zero point.
template <typename X, typename W, typename Put>
Result<> integer_convolution(const Node& node, Inputs inputs, Outputs outputs, const ConstView& x_view,
                             const ConstView& w_view, const ConstView& x_zeros, const ConstView& w_zeros,
                             Put&& put) {
  const Shape& xs = x_view.type->shape;
  const Shape& ws = w_view.type->shape;
  const Shape& ys = outputs[0].type->shape;
  const std::int64_t groups = node.integer("group", 1);
  Window window;
  PerPlace<X> x_zero;
  PerPlace<W> w_zero;
  if (ws.size() < 3 || groups < 1 || !window_of(node, xs, ys, std::span(ws).subspan(2), window) ||
      xs[1] != ws[1] * groups || ys[1] != ws[0] || ws[0] % groups != 0 || ys[0] != xs[0] ||
      !per_place(x_zeros, 1, x_zero) || !per_place(w_zeros, ws[0], w_zero))
    return misfit(node, inputs, outputs);
  const std::int64_t group_in = ws[1];
  const std::int64_t group_out = ws[0] / groups;
  const std::int32_t x0 = x_zero.at(0);
  constexpr std::int64_t tile = 128;  // results of one output row that grow together
  std::int64_t y = 0;
  for (std::int64_t n = 0; n < ys[0]; ++n) {
    for (std::int64_t m = 0; m < ys[1]; ++m) {
      const X* x = x_view.as<X>() + (n * xs[1] + m / group_out * group_in) * window.in_size();
      const W* w = w_view.as<W>() + m * group_in * window.kernel_size();
      const std::int32_t w0 = w_zero.at(m);
      for (std::int64_t row = 0; row < window.out[0] * window.out[1]; ++row) {
        const Taps depth = taps_of(window, 0, row / window.out[1]);
        const Taps height = taps_of(window, 1, row % window.out[1]);
        for (std::int64_t first = 0; first < window.out[2]; first += tile) {
          const std::int64_t count = std::min(tile, window.out[2] - first);
          std::array<std::uint32_t, tile> sum{};
          for (std::int64_t c = 0; c < group_in; ++c) {
            for (std::int64_t kd = depth.first; kd < depth.last; ++kd) {
              for (std::int64_t kh = height.first; kh < height.last; ++kh) {
                const X* line =
                    x + ((c * window.in[0] + depth.base + kd * window.dilation[0]) * window.in[1] +
                         height.base + kh * window.dilation[1]) *
                            window.in[2];
                const W* taps = w + ((c * window.kernel[0] + kd) * window.kernel[1] + kh) * window.kernel[2];
                for (std::int64_t kw = 0; kw < window.kernel[2]; ++kw) {
                  // Outputs first + j read line[from + j * stride]: those inside the line.
                  const std::int64_t stride = window.stride[2];
                  const std::int64_t from = first * stride - window.begin[2] + kw * window.dilation[2];
                  const std::int64_t low = from >= 0 ? 0 : (-from + stride - 1) / stride;
                  const std::int64_t room = window.in[2] - from;
                  const std::int64_t high = room <= 0 ? 0 : std::min(count, (room + stride - 1) / stride);
                  const std::int32_t weight = static_cast<std::int32_t>(taps[kw]) - w0;
                  for (std::int64_t j = low; j < high; ++j)
                    sum[j] += static_cast<std::uint32_t>(
                        weight * (static_cast<std::int32_t>(line[from + j * stride]) - x0));
                }
              }
            }
          }
          for (std::int64_t j = 0; j < count; ++j) put(y + j, m, static_cast<std::int32_t>(sum[j]));
          y += count;
        }
      }
    }
  }
  return {};
}

template <typename X, typename W>
Result<> conv_integer(const Node& node, Inputs inputs, Outputs outputs) {
  auto* y = outputs[0].as<std::int32_t>();
  return integer_convolution<X, W>(node, inputs, outputs, inputs[0], inputs[1], input(inputs, 2),
                                   input(inputs, 3),
                                   [y](std::int64_t at, std::int64_t, std::int32_t sum) { y[at] = sum; });
}

// Inputs: x, its scale and zero point, w, its scale and zero point, the result's scale and zero point, bias.
// Without the result's scale (ours) the result is real.
template <typename X, typename W, typename Y>
Result<> qlinear_conv(const Node& node, Inputs inputs, Outputs outputs) {
  PerPlace<float> w_scale;
  PerPlace<std::int32_t> start;
  YScale<Y> y_scale;
  const std::int64_t channels = inputs[3].type->shape[0];
  if (!per_place(inputs[4], channels, w_scale) || !per_place(input(inputs, 8), channels, start) ||
      inputs[1].type->elements() != 1 || !y_scale.read(inputs))
    return misfit(node, inputs, outputs);
  const float x_scale = *inputs[1].as<float>();
  Y* y = outputs[0].as<Y>();
  return integer_convolution<X, W>(node, inputs, outputs, inputs[0], inputs[3], inputs[2], inputs[5],
                                   [&](std::int64_t at, std::int64_t channel, std::int32_t sum) {
                                     y[at] = y_scale.of(static_cast<float>(add(sum, start.at(channel))),
                                                        x_scale * w_scale.at(channel));
                                   });
}

template <typename Make>
PlainKernel pick_pair(DataType a, DataType b, Make make) {
  return Bytes8::pick(a, [&]<typename A>() -> PlainKernel {
    return Bytes8::pick(b, [&]<typename B>() -> PlainKernel { return make.template operator()<A, B>(); });
  });
}

// Zero point `zero` is absent or of the type of input `of`.
bool zero_fits(InputTypes types, std::size_t zero, std::size_t of) {
  return type_at(types, zero) == nullptr || types[zero]->type == types[of]->type;
}

PlainKernel find_quantize(const Node& node, InputTypes types) {
  if (type_at(types, 0) == nullptr || type_at(types, 1) == nullptr) return nullptr;
  const TensorType* zero = type_at(types, 2);
  // As inference has it.
  DataType to = DataType::u8;
  if (zero != nullptr) {
    to = zero->type;
  } else if (const std::int64_t wanted = node.integer("output_dtype", 0); wanted != 0) {
    constexpr std::int64_t u8 = 2, i8 = 3, u16 = 4, i16 = 5;  // TensorProto.DataType
    if (wanted != u8 && wanted != i8 && wanted != u16 && wanted != i16) return nullptr;
    to = wanted == u8    ? DataType::u8
         : wanted == i8  ? DataType::i8
         : wanted == u16 ? DataType::u16
                         : DataType::i16;
  }
  const auto with_scale = [&]<typename From>() -> PlainKernel {
    return Real::pick(types[1]->type, [&]<typename Scale>() -> PlainKernel {
      return Quantised::pick(to, []<typename To>() -> PlainKernel { return &quantize<From, Scale, To>; });
    });
  };
  if (types[0]->type == DataType::i32) return with_scale.template operator()<std::int32_t>();
  return Real::pick(types[0]->type, with_scale);
}
PlainKernel find_dequantize(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || type_at(types, 1) == nullptr || !zero_fits(types, 2, 0)) return nullptr;
  return Dequantised::pick(types[0]->type, [&]<typename From>() -> PlainKernel {
    return Real::pick(types[1]->type, []<typename To>() -> PlainKernel { return &dequantize<From, To>; });
  });
}
PlainKernel find_dynamic(const Node&, InputTypes types) {
  return has_type(types, 0, DataType::f32) ? &dynamic_quantize : nullptr;
}
bool integer_operands(InputTypes types) {
  return type_at(types, 0) != nullptr && type_at(types, 1) != nullptr && zero_fits(types, 2, 0) &&
         zero_fits(types, 3, 1);
}
PlainKernel find_matmul_integer(const Node&, InputTypes types) {
  if (!integer_operands(types)) return nullptr;
  return pick_pair(types[0]->type, types[1]->type,
                   []<typename A, typename B>() -> PlainKernel { return &matmul_integer<A, B>; });
}
PlainKernel find_conv_integer(const Node&, InputTypes types) {
  if (!integer_operands(types)) return nullptr;
  return pick_pair(types[0]->type, types[1]->type,
                   []<typename X, typename W>() -> PlainKernel { return &conv_integer<X, W>; });
}
bool qlinear_operands(InputTypes types) {
  for (std::size_t i = 0; i < 6; ++i)
    if (type_at(types, i) == nullptr) return false;
  if ((type_at(types, 6) == nullptr) != (type_at(types, 7) == nullptr)) return false;
  if (type_at(types, 8) != nullptr && types[8]->type != DataType::i32) return false;
  return has_type(types, 1, DataType::f32) && has_type(types, 4, DataType::f32) &&
         (type_at(types, 6) == nullptr || types[6]->type == DataType::f32) && zero_fits(types, 2, 0) &&
         zero_fits(types, 5, 3);
}
template <typename Make>
PlainKernel pick_qlinear(InputTypes types, Make make) {
  if (!qlinear_operands(types)) return nullptr;
  return pick_pair(types[0]->type, types[3]->type, [&]<typename A, typename B>() -> PlainKernel {
    if (type_at(types, 7) == nullptr) return make.template operator()<A, B, float>();
    return Bytes8::pick(types[7]->type,
                        [&]<typename Y>() -> PlainKernel { return make.template operator()<A, B, Y>(); });
  });
}
PlainKernel find_qlinear_matmul(const Node&, InputTypes types) {
  return pick_qlinear(
      types, []<typename A, typename B, typename Y>() -> PlainKernel { return &qlinear_matmul<A, B, Y>; });
}
PlainKernel find_qlinear_conv(const Node&, InputTypes types) {
  return pick_qlinear(
      types, []<typename X, typename W, typename Y>() -> PlainKernel { return &qlinear_conv<X, W, Y>; });
}

constexpr Operator operators[] = {
    {"QuantizeLinear", &find_quantize},       {"DequantizeLinear", &find_dequantize},
    {"DynamicQuantizeLinear", &find_dynamic}, {"MatMulInteger", &find_matmul_integer},
    {"ConvInteger", &find_conv_integer},      {"QLinearMatMul", &find_qlinear_matmul},
    {"QLinearConv", &find_qlinear_conv},
};

}  // namespace

std::span<const Operator> quantize_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
