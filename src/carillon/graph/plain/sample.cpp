// Operators that read or write images at places that are computed: GridSample, RoiAlign, MaxUnpool; and Det.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

enum class Beyond : std::uint8_t { zeros, border, reflection };

// One axis of an image: where a place of -1 to 1 is, and what is beyond its ends.
struct GridAxis {
  std::int64_t size = 1;
  bool corners = false;  // -1 and 1 are the middles of the outermost pixels, not their outer edges
  Beyond beyond = Beyond::zeros;
  bool cubic = false;

  double place(double x) const {
    const auto n = static_cast<double>(size);
    double at = corners ? (x + 1) / 2 * (n - 1) : ((x + 1) * n - 1) / 2;
    // A cubic curve reads border pixels around a place that stays where it is, as in torch and onnxruntime.
    if (beyond == Beyond::border && !cubic) at = std::clamp(at, 0.0, n - 1);
    if (beyond == Beyond::reflection) at = reflected(at);
    return at;
  }
  // The outer edges of the image.
  double low() const { return corners ? 0 : -0.5; }
  double high() const { return low() + static_cast<double>(corners ? size - 1 : size); }
  // A place that may be anything; NaN and what no index can be are in no pixel.
  double reflected(double at) const {
    const double range = high() - low();
    if (!(std::abs(at) < 0x1p52) || range <= 0) return range <= 0 ? 0 : at;
    const double off = std::abs(at - low());
    const double turns = std::floor(off / range), rest = off - turns * range;
    return std::fmod(turns, 2) == 0 ? low() + rest : high() - rest;
  }
  // The pixel at a whole place, or -1 where there is none.
  std::int64_t pixel(double at) const {
    if (beyond == Beyond::border) at = std::clamp(at, 0.0, static_cast<double>(size - 1));
    if (beyond == Beyond::reflection) at = std::round(reflected(at));
    return at >= 0 && at <= static_cast<double>(size - 1) ? static_cast<std::int64_t>(at) : -1;
  }
};

// Pixels [first, first + count) of an axis and how much each counts.
struct Taps4 {
  int count = 1;
  std::array<std::int64_t, 4> pixel{};
  std::array<double, 4> weight{};
};
Taps4 taps_at(const GridAxis& axis, double at, std::string_view mode) {
  Taps4 taps;
  if (mode == "nearest") {
    taps.pixel[0] = axis.pixel(std::nearbyint(at));
    taps.weight[0] = 1;
    return taps;
  }
  const double whole = std::floor(at), t = at - whole;
  if (mode == "bilinear") {
    taps.count = 2;
    taps.weight = {1 - t, t, 0, 0};
    for (int i = 0; i < 2; ++i) taps.pixel[static_cast<std::size_t>(i)] = axis.pixel(whole + i);
    return taps;
  }
  constexpr double a = -0.75;
  const auto near = [](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  const auto far = [](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  taps.count = 4;
  taps.weight = {far(t + 1), near(t), near(1 - t), far(2 - t)};
  for (int i = 0; i < 4; ++i) taps.pixel[static_cast<std::size_t>(i)] = axis.pixel(whole - 1 + i);
  return taps;
}

template <typename T>
Result<> grid_sample(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape &image = inputs[0].type->shape, &out = outputs[0].type->shape;
  const std::string_view mode = node.text("mode", "bilinear"), padding = node.text("padding_mode", "zeros");
  const Beyond beyond = padding == "border"       ? Beyond::border
                        : padding == "reflection" ? Beyond::reflection
                                                  : Beyond::zeros;
  const bool corners = node.integer("align_corners", 0) != 0;
  const std::int64_t height = image[2], width = image[3], places = out[2] * out[3];
  const bool cubic = mode != "nearest" && mode != "bilinear";
  const GridAxis down{height, corners, beyond, cubic}, across{width, corners, beyond, cubic};
  for (std::int64_t n = 0; n < image[0]; ++n)
    for (std::int64_t p = 0; p < places; ++p) {
      const T* grid = inputs[1].as<T>() + (n * places + p) * 2;
      const Taps4 x = taps_at(across, across.place(static_cast<double>(load(grid[0]))), mode);
      const Taps4 y = taps_at(down, down.place(static_cast<double>(load(grid[1]))), mode);
      for (std::int64_t c = 0; c < image[1]; ++c) {
        const T* from = inputs[0].as<T>() + (n * image[1] + c) * height * width;
        double sum = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(y.count); ++i)
          for (std::size_t j = 0; j < static_cast<std::size_t>(x.count); ++j)
            if (y.pixel[i] >= 0 && x.pixel[j] >= 0)
              sum += y.weight[i] * x.weight[j] *
                     static_cast<double>(load(from[y.pixel[i] * width + x.pixel[j]]));
        outputs[0].as<T>()[(n * image[1] + c) * places + p] = store<T>(static_cast<Compute<T>>(sum));
      }
    }
  return {};
}
PlainKernel find_grid_sample(const Node&, InputTypes types) {
  if (!same_types(types, 2) || types[0]->shape.size() != 4 || types[1]->shape.size() != 4) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &grid_sample<T>; });
}

// The value between four pixels; nothing beyond one pixel outside the image.
template <typename T>
double between(const T* image, std::int64_t height, std::int64_t width, double y, double x) {
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  if (!(y >= -1 && y <= h && x >= -1 && x <= w)) return 0;
  y = std::clamp(y, 0.0, h - 1);
  x = std::clamp(x, 0.0, w - 1);
  const auto top = static_cast<std::int64_t>(y), left = static_cast<std::int64_t>(x);
  const std::int64_t bottom = std::min(top + 1, height - 1), right = std::min(left + 1, width - 1);
  const double down = y - static_cast<double>(top), across = x - static_cast<double>(left);
  const auto at = [&](std::int64_t r, std::int64_t c) {
    return static_cast<double>(load(image[r * width + c]));
  };
  return (at(top, left) * (1 - across) + at(top, right) * across) * (1 - down) +
         (at(bottom, left) * (1 - across) + at(bottom, right) * across) * down;
}

// Of the samples that a part of a roi takes along a side, those that may lie in the image: where a roi is
// much larger, nearly all lie outside, where everything is 0.
struct Samples {
  std::int64_t first = 0, last = 0;
};
Samples within(double start, double bin, std::int64_t part, std::int64_t count, std::int64_t extent) {
  if (count == 1 || !(bin > 0)) return {0, count};
  const auto n = static_cast<double>(count);
  const auto place = [&](double edge) {
    const double at = ((edge - start) / bin - static_cast<double>(part)) * n;
    return at > 0 ? static_cast<std::int64_t>(std::min(at, n)) : 0;
  };
  // One more at either end, as places are rounded.
  return {std::max<std::int64_t>(place(-1) - 1, 0), std::min(place(static_cast<double>(extent)) + 2, count)};
}

template <typename T>
Result<> roi_align(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape &image = inputs[0].type->shape, &out = outputs[0].type->shape;
  const std::int64_t channels = image[1], height = image[2], width = image[3];
  const auto scale = static_cast<double>(node.real("spatial_scale", 1));
  const bool half_pixel = node.text("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  const std::int64_t ratio = node.integer("sampling_ratio", 0);
  constexpr std::int64_t most_samples = 1024;  // by side: a roi may be of any size
  T* to = outputs[0].as<T>();
  for (std::int64_t r = 0; r < out[0]; ++r) {
    std::int64_t batch = index_at(inputs[2], r);
    if (batch < 0 || batch >= image[0]) {
      if (auto noted = note_index(node, outputs[0], inputs[2], r, image[0], false); !noted) return noted;
      batch = 0;
    }
    const T* corners = inputs[1].as<T>() + r * 4;
    const auto corner = [&](int i) {
      return static_cast<double>(load(corners[i])) * scale - (half_pixel ? 0.5 : 0);
    };
    const double left = corner(0), top = corner(1);
    double wide = corner(2) - left, high = corner(3) - top;
    if (!half_pixel) {
      wide = std::max(wide, 1.0);
      high = std::max(high, 1.0);
    }
    const double bin_height = high / static_cast<double>(out[2]),
                 bin_width = wide / static_cast<double>(out[3]);
    const auto samples = [&](double bin) {
      if (ratio > 0) return ratio;
      return bin >= 1 ? static_cast<std::int64_t>(std::min(std::ceil(bin), static_cast<double>(most_samples)))
                      : std::int64_t{1};
    };
    const std::int64_t rows = samples(bin_height), columns = samples(bin_width);
    for (std::int64_t c = 0; c < channels; ++c) {
      const T* from = inputs[0].as<T>() + (batch * channels + c) * height * width;
      for (std::int64_t i = 0; i < out[2]; ++i)
        for (std::int64_t j = 0; j < out[3]; ++j) {
          double sum = 0;
          const Samples down = within(top, bin_height, i, rows, height),
                        across = within(left, bin_width, j, columns, width);
          for (std::int64_t a = down.first; a < down.last; ++a)
            for (std::int64_t b = across.first; b < across.last; ++b)
              sum += between(from, height, width,
                             top + bin_height * (static_cast<double>(i) +
                                                 (static_cast<double>(a) + 0.5) / static_cast<double>(rows)),
                             left + bin_width * (static_cast<double>(j) + (static_cast<double>(b) + 0.5) /
                                                                              static_cast<double>(columns)));
          *to++ = store<T>(static_cast<Compute<T>>(sum / static_cast<double>(rows * columns)));
        }
    }
  }
  return {};
}
PlainKernel find_roi_align(const Node&, InputTypes types) {
  if (!same_types(types, 2) || type_at(types, 2) == nullptr || !is_index(types[2]->type)) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &roi_align<T>; });
}

// Attribute pooled: the shape that indices are places in.
template <typename T>
Result<> max_unpool(const Node& node, Inputs inputs, Outputs outputs) {
  const auto pooled = node.integers("pooled");
  const Shape& out = outputs[0].type->shape;
  if (pooled.size() != out.size()) return misfit(node, inputs, outputs);
  std::int64_t places = 1;
  for (const std::int64_t extent : pooled) places *= extent;
  T* y = outputs[0].as<T>();
  std::fill_n(y, outputs[0].type->elements(), T{});
  for (std::int64_t i = 0; i < inputs[0].type->elements(); ++i) {
    const std::int64_t place = inputs[1].as<std::int64_t>()[i];
    if (place < 0 || place >= places) {
      if (auto noted = note_index(node, outputs[0], inputs[1], i, places, false); !noted) return noted;
      continue;
    }
    std::int64_t rest = place, at = 0, step = 1;
    for (std::size_t d = out.size(); d-- > 0;) {
      at += rest % pooled[d] * step;
      rest /= pooled[d];
      step *= out[d];
    }
    y[at] = inputs[0].as<T>()[i];
  }
  return {};
}
PlainKernel find_max_unpool(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || !has_type(types, 1, DataType::i64)) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &max_unpool<T>; });
}

// By elimination; takes room for one matrix.
template <typename T>
Result<> determinant(const Node&, Inputs inputs, Outputs outputs) {
  const std::int64_t n = inputs[0].type->shape.back(), matrices = outputs[0].type->elements();
  std::vector<double> m(static_cast<std::size_t>(n * n));
  const auto at = [&](std::int64_t r, std::int64_t c) -> double& {
    return m[static_cast<std::size_t>(r * n + c)];
  };
  for (std::int64_t k = 0; k < matrices; ++k) {
    for (std::int64_t i = 0; i < n * n; ++i)
      m[static_cast<std::size_t>(i)] = static_cast<double>(load(inputs[0].as<T>()[k * n * n + i]));
    double product = 1;
    for (std::int64_t c = 0; c < n; ++c) {
      std::int64_t pivot = c;
      for (std::int64_t r = c + 1; r < n; ++r)
        if (std::abs(at(r, c)) > std::abs(at(pivot, c))) pivot = r;
      if (at(pivot, c) == 0) {
        product = 0;
        break;
      }
      if (pivot != c) {
        product = -product;
        for (std::int64_t i = c; i < n; ++i) std::swap(at(c, i), at(pivot, i));
      }
      product *= at(c, c);
      for (std::int64_t r = c + 1; r < n; ++r) {
        const double factor = at(r, c) / at(c, c);
        for (std::int64_t i = c; i < n; ++i) at(r, i) -= factor * at(c, i);
      }
    }
    outputs[0].as<T>()[k] = store<T>(static_cast<Compute<T>>(product));
  }
  return {};
}
PlainKernel find_determinant(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &determinant<T>; });
}

constexpr Operator operators[] = {
    {"Det", &find_determinant},
    {"GridSample", &find_grid_sample},
    {"MaxUnpool", &find_max_unpool},
    {"RoiAlign", &find_roi_align},
};

}  // namespace

std::span<const Operator> sample_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
