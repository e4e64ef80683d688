#pragma once

#include <array>
#include <cstdint>

#include "carillon/graph/graph.h"

namespace carillon::graph::plain {

inline constexpr int max_spatial = 3;

// How a kernel of convolution or pooling slides over the spatial axes, always seen as three (missing ones are
// outermost, of extent 1).
struct Window {
  std::array<std::int64_t, max_spatial> in{1, 1, 1};
  std::array<std::int64_t, max_spatial> out{1, 1, 1};
  std::array<std::int64_t, max_spatial> kernel{1, 1, 1};
  std::array<std::int64_t, max_spatial> stride{1, 1, 1};
  std::array<std::int64_t, max_spatial> dilation{1, 1, 1};
  std::array<std::int64_t, max_spatial> begin{};  // padding before
  std::array<std::int64_t, max_spatial> end{};    // and after

  std::int64_t in_size() const { return in[0] * in[1] * in[2]; }
  std::int64_t out_size() const { return out[0] * out[1] * out[2]; }
  std::int64_t kernel_size() const { return kernel[0] * kernel[1] * kernel[2]; }
};

// From a node's attributes, its input's and output's shapes [n, c, spatial...] and the kernel's extents
// (spatial.size() of them). False where they do not fit together or there are more than three spatial axes.
inline bool window_of(const Node& node, std::span<const std::int64_t> in, std::span<const std::int64_t> out,
                      std::span<const std::int64_t> kernel, Window& window) {
  const std::size_t count = kernel.size();
  if (count < 1 || count > max_spatial || in.size() != count + 2 || out.size() != count + 2) return false;
  const auto strides = node.integers("strides");
  const auto dilations = node.integers("dilations");
  const auto pads = node.integers("pads");
  if ((!strides.empty() && strides.size() != count) || (!dilations.empty() && dilations.size() != count) ||
      (!pads.empty() && pads.size() != 2 * count)) {
    return false;
  }
  constexpr std::int64_t limit = std::int64_t{1} << 31;
  for (std::size_t d = 0; d < count; ++d) {
    const std::size_t at = max_spatial - count + d;
    window.in[at] = in[d + 2];
    window.out[at] = out[d + 2];
    window.kernel[at] = kernel[d];
    if (!strides.empty()) window.stride[at] = strides[d];
    if (!dilations.empty()) window.dilation[at] = dilations[d];
    if (!pads.empty()) {
      window.begin[at] = pads[d];
      window.end[at] = pads[d + count];
    }
    for (const std::int64_t value : {window.kernel[at], window.stride[at], window.dilation[at]}) {
      if (value < 1 || value > limit) return false;
    }
    for (const std::int64_t value : {window.begin[at], window.end[at]}) {
      if (value < -limit || value > limit) return false;
    }
  }
  return true;
}

// The taps [first, last) of axis `d` that fall inside the input for the output at `place`.
struct Taps {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t base = 0;  // where tap 0 falls
};
inline Taps taps_of(const Window& window, int d, std::int64_t place) {
  Taps taps;
  taps.base = place * window.stride[d] - window.begin[d];
  const std::int64_t step = window.dilation[d];
  taps.first = taps.base >= 0 ? 0 : (-taps.base + step - 1) / step;
  const std::int64_t room = window.in[d] - taps.base;
  taps.last = room <= 0 ? 0 : (room + step - 1) / step;
  if (taps.last > window.kernel[d]) taps.last = window.kernel[d];
  if (taps.first > taps.last) taps.first = taps.last;
  return taps;
}

}  // namespace carillon::graph::plain
