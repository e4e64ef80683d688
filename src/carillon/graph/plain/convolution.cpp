// Conv and ConvTranspose over one to three spatial axes, with groups and dilations.

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/plain/window.h"

namespace carillon::graph::plain {
namespace {

inline constexpr std::int64_t tile = 128;  // results of one output row that grow together

// Inputs: x [n, c, ...], w [m, c / group, kernel...], bias [m].
template <typename T>
Result<> convolution(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& xs = inputs[0].type->shape;
  const Shape& ws = inputs[1].type->shape;
  const Shape& ys = outputs[0].type->shape;
  const std::int64_t groups = node.integer("group", 1);
  Window window;
  if (ws.size() < 3 || groups < 1 || !window_of(node, xs, ys, std::span(ws).subspan(2), window) ||
      xs[1] != ws[1] * groups || ys[1] != ws[0] || ws[0] % groups != 0 || ys[0] != xs[0]) {
    return misfit(node, inputs, outputs);
  }
  const ConstView bias = input(inputs, 2);
  if (bias && bias.type->elements() != ws[0]) return misfit(node, inputs, outputs);
  const std::int64_t group_in = ws[1];
  const std::int64_t group_out = ws[0] / groups;
  const std::int64_t rows = window.out[0] * window.out[1];
  const std::int64_t width = window.out[2];
  const std::int64_t stride = window.stride[2];
  T* y = outputs[0].as<T>();
  for (std::int64_t n = 0; n < ys[0]; ++n) {
    for (std::int64_t m = 0; m < ys[1]; ++m) {
      const T* x = inputs[0].as<T>() + (n * xs[1] + m / group_out * group_in) * window.in_size();
      const T* w = inputs[1].as<T>() + m * group_in * window.kernel_size();
      const C start = bias ? load(bias.as<T>()[m]) : C{0};
      for (std::int64_t row = 0; row < rows; ++row) {
        const Taps depth = taps_of(window, 0, row / window.out[1]);
        const Taps height = taps_of(window, 1, row % window.out[1]);
        for (std::int64_t first = 0; first < width; first += tile) {
          const std::int64_t count = std::min(tile, width - first);
          std::array<C, tile> sum;
          sum.fill(start);
          for (std::int64_t c = 0; c < group_in; ++c) {
            for (std::int64_t kd = depth.first; kd < depth.last; ++kd) {
              for (std::int64_t kh = height.first; kh < height.last; ++kh) {
                const T* line =
                    x + ((c * window.in[0] + depth.base + kd * window.dilation[0]) * window.in[1] +
                         height.base + kh * window.dilation[1]) *
                            window.in[2];
                const T* taps = w + ((c * window.kernel[0] + kd) * window.kernel[1] + kh) * window.kernel[2];
                for (std::int64_t kw = 0; kw < window.kernel[2]; ++kw) {
                  // Outputs first + j read line[from + j * stride]: those inside the line.
                  const std::int64_t from = first * stride - window.begin[2] + kw * window.dilation[2];
                  const std::int64_t low = from >= 0 ? 0 : (-from + stride - 1) / stride;
                  const std::int64_t room = window.in[2] - from;
                  const std::int64_t high = room <= 0 ? 0 : std::min(count, (room + stride - 1) / stride);
                  const C weight = load(taps[kw]);
                  if (low >= high) continue;
                  if (stride == 1) {
                    const T* run = line + from;
                    for (std::int64_t j = low; j < high; ++j) sum[j] += weight * load(run[j]);
                  } else {
                    for (std::int64_t j = low; j < high; ++j)
                      sum[j] += weight * load(line[from + j * stride]);
                  }
                }
              }
            }
          }
          for (std::int64_t j = 0; j < count; ++j) y[j] = store<T>(sum[j]);
          y += count;
        }
      }
    }
  }
  return {};
}

// Inputs: x [n, c, ...], w [c, m / group, kernel...], bias [m]. Each output gathers the inputs that reach it.
template <typename T>
Result<> transposed_convolution(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& xs = inputs[0].type->shape;
  const Shape& ws = inputs[1].type->shape;
  const Shape& ys = outputs[0].type->shape;
  const std::int64_t groups = node.integer("group", 1);
  Window window;
  if (ws.size() < 3 || groups < 1 || !window_of(node, xs, ys, std::span(ws).subspan(2), window) ||
      xs[1] != ws[0] || xs[1] % groups != 0 || ys[1] != ws[1] * groups || ys[0] != xs[0]) {
    return misfit(node, inputs, outputs);
  }
  const ConstView bias = input(inputs, 2);
  if (bias && bias.type->elements() != ys[1]) return misfit(node, inputs, outputs);
  const std::int64_t group_in = xs[1] / groups;
  const std::int64_t group_out = ws[1];
  const std::int64_t width = window.out[2];
  const std::int64_t stride = window.stride[2];
  T* y = outputs[0].as<T>();
  // The input place along axis `d` whose tap `k` lands on output `place`, or -1.
  const auto source = [&window](int d, std::int64_t place, std::int64_t k) -> std::int64_t {
    const std::int64_t reach = place + window.begin[d] - k * window.dilation[d];
    if (reach < 0 || reach % window.stride[d] != 0 || reach / window.stride[d] >= window.in[d]) return -1;
    return reach / window.stride[d];
  };
  for (std::int64_t n = 0; n < ys[0]; ++n) {
    for (std::int64_t m = 0; m < ys[1]; ++m) {
      const std::int64_t group = m / group_out;
      const C start = bias ? load(bias.as<T>()[m]) : C{0};
      for (std::int64_t row = 0; row < window.out[0] * window.out[1]; ++row) {
        for (std::int64_t first = 0; first < width; first += tile) {
          const std::int64_t count = std::min(tile, width - first);
          std::array<C, tile> sum;
          sum.fill(start);
          for (std::int64_t kd = 0; kd < window.kernel[0]; ++kd) {
            const std::int64_t d = source(0, row / window.out[1], kd);
            if (d < 0) continue;
            for (std::int64_t kh = 0; kh < window.kernel[1]; ++kh) {
              const std::int64_t h = source(1, row % window.out[1], kh);
              if (h < 0) continue;
              for (std::int64_t c = group * group_in; c < (group + 1) * group_in; ++c) {
                const T* line = inputs[0].as<T>() +
                                (((n * xs[1] + c) * window.in[0] + d) * window.in[1] + h) * window.in[2];
                const T* taps =
                    inputs[1].as<T>() +
                    (((c * group_out + m % group_out) * window.kernel[0] + kd) * window.kernel[1] + kh) *
                        window.kernel[2];
                for (std::int64_t kw = 0; kw < window.kernel[2]; ++kw) {
                  // Input i lands on output i * stride + shift, counted from `first`.
                  const std::int64_t shift = kw * window.dilation[2] - window.begin[2] - first;
                  const std::int64_t low = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
                  const std::int64_t room = count - shift;
                  const std::int64_t high =
                      room <= 0 ? 0 : std::min(window.in[2], (room + stride - 1) / stride);
                  const C weight = load(taps[kw]);
                  for (std::int64_t i = low; i < high; ++i) sum[i * stride + shift] += weight * load(line[i]);
                }
              }
            }
          }
          for (std::int64_t j = 0; j < count; ++j) y[j] = store<T>(sum[j]);
          y += count;
        }
      }
    }
  }
  return {};
}

bool fits(InputTypes types) {
  if (!same_types(types, 2)) return false;
  const TensorType* bias = type_at(types, 2);
  return types[0]->shape.size() >= 3 && types[0]->shape.size() <= 2 + max_spatial &&
         (bias == nullptr || bias->type == types[0]->type);
}
PlainKernel find(const Node&, InputTypes types) {
  if (!fits(types)) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &convolution<T>; });
}
PlainKernel find_transposed(const Node&, InputTypes types) {
  if (!fits(types)) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &transposed_convolution<T>; });
}

constexpr Operator operators[] = {{"Conv", &find}, {"ConvTranspose", &find_transposed}};

}  // namespace

std::span<const Operator> convolution_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
