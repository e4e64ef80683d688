// Resize: nearest, linear and cubic in any number of axes, with every way of ONNX to map coordinates.

#include <cmath>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

enum class Mode { nearest, linear, cubic };
enum class Coordinates {
  half_pixel,
  half_pixel_symmetric,
  pytorch_half_pixel,
  align_corners,
  asymmetric,
  tf_crop_and_resize,
  tf_half_pixel_for_nn
};
enum class Nearest { round_prefer_floor, round_prefer_ceil, floor, ceil };

template <typename E>
struct Named {
  std::string_view name;
  E value;
};
constexpr Named<Mode> modes[] = {
    {"nearest", Mode::nearest}, {"linear", Mode::linear}, {"cubic", Mode::cubic}};
constexpr Named<Coordinates> coordinates[] = {
    {"half_pixel", Coordinates::half_pixel},
    {"half_pixel_symmetric", Coordinates::half_pixel_symmetric},
    {"pytorch_half_pixel", Coordinates::pytorch_half_pixel},
    {"align_corners", Coordinates::align_corners},
    {"asymmetric", Coordinates::asymmetric},
    {"tf_crop_and_resize", Coordinates::tf_crop_and_resize},
    {"tf_half_pixel_for_nn", Coordinates::tf_half_pixel_for_nn},
};
constexpr Named<Nearest> roundings[] = {
    {"round_prefer_floor", Nearest::round_prefer_floor},
    {"round_prefer_ceil", Nearest::round_prefer_ceil},
    {"floor", Nearest::floor},
    {"ceil", Nearest::ceil},
};
template <typename E, std::size_t n>
std::optional<E> named(const Named<E> (&names)[n], std::string_view name) {
  for (const auto& each : names) {
    if (each.name == name) return each.value;
  }
  return std::nullopt;
}

struct Settings {
  Mode mode = Mode::nearest;
  Coordinates coordinates = Coordinates::half_pixel;
  Nearest nearest = Nearest::round_prefer_floor;
  double cubic_a = -0.75;
  bool exclude_outside = false;
  double extrapolation = 0;
};
std::optional<Settings> settings_of(const Node& node) {
  const auto mode = named(modes, node.text("mode", "nearest"));
  const auto how = named(coordinates, node.text("coordinate_transformation_mode", "half_pixel"));
  const auto nearest = named(roundings, node.text("nearest_mode", "round_prefer_floor"));
  if (!mode || !how || !nearest || node.integer("antialias", 0) != 0) return std::nullopt;
  return Settings{*mode,
                  *how,
                  *nearest,
                  static_cast<double>(node.real("cubic_coeff_a", -0.75F)),
                  node.integer("exclude_outside", 0) != 0,
                  static_cast<double>(node.real("extrapolation_value", 0.0F))};
}

// One axis: from `in` elements to `out`, scaled by `scale`, of the region [begin, end] (fractions).
struct Axis {
  std::int64_t in = 1;
  std::int64_t out = 1;
  std::int64_t in_stride = 0;
  double scale = 1;
  double begin = 0;
  double end = 1;
};

// The input elements that one output element mixes along an axis.
struct Blend {
  int count = 1;
  bool outside = false;                  // takes the extrapolation value
  std::array<std::int64_t, 4> offset{};  // in elements
  std::array<double, 4> weight{1, 0, 0, 0};
};

double source_of(const Settings& settings, const Axis& axis, std::int64_t place) {
  const auto x = static_cast<double>(place);
  const auto in = static_cast<double>(axis.in);
  const double length = in * axis.scale;  // of the output before it was rounded down
  switch (settings.coordinates) {
    case Coordinates::half_pixel:
      return (x + 0.5) / axis.scale - 0.5;
    case Coordinates::half_pixel_symmetric: {
      const double adjust = static_cast<double>(axis.out) / length;
      return in / 2 * (1 - adjust) + (x + 0.5) / axis.scale - 0.5;
    }
    case Coordinates::pytorch_half_pixel:
      return length > 1 ? (x + 0.5) / axis.scale - 0.5 : 0;
    case Coordinates::align_corners:
      return length == 1 ? 0 : x * (in - 1) / (length - 1);
    case Coordinates::asymmetric:
      return x / axis.scale;
    case Coordinates::tf_crop_and_resize:
      return length > 1 ? axis.begin * (in - 1) + x * (axis.end - axis.begin) * (in - 1) / (length - 1)
                        : 0.5 * (axis.begin + axis.end) * (in - 1);
    case Coordinates::tf_half_pixel_for_nn:
      return (x + 0.5) / axis.scale;
  }
  return 0;
}

Blend blend_of(const Settings& settings, const Axis& axis, std::int64_t place) {
  Blend blend;
  if (axis.in == axis.out && axis.scale == 1 && settings.coordinates != Coordinates::tf_crop_and_resize) {
    blend.offset[0] = place * axis.in_stride;
    return blend;
  }
  const double exact = source_of(settings, axis, place);
  const auto last = static_cast<double>(axis.in - 1);
  blend.outside = settings.coordinates == Coordinates::tf_crop_and_resize && (exact < 0 || exact > last);
  const double x = std::clamp(exact, -4.0, last + 4.0);  // beyond, every mode sees the same edge
  const auto inside = [&axis](double at) {
    return std::clamp(static_cast<std::int64_t>(at), std::int64_t{0}, axis.in - 1) * axis.in_stride;
  };
  switch (settings.mode) {
    case Mode::nearest: {
      double rounded = 0;
      switch (settings.nearest) {
        case Nearest::round_prefer_floor:
          rounded = std::ceil(x - 0.5);
          break;
        case Nearest::round_prefer_ceil:
          rounded = std::floor(x + 0.5);
          break;
        case Nearest::floor:
          rounded = std::floor(x);
          break;
        case Nearest::ceil:
          rounded = std::ceil(x);
          break;
      }
      blend.offset[0] = inside(rounded);
      return blend;
    }
    case Mode::linear: {
      const double base = std::floor(x);
      blend.count = 2;
      blend.offset = {inside(base), inside(base + 1), 0, 0};
      blend.weight = {1 - (x - base), x - base, 0, 0};
      break;
    }
    case Mode::cubic: {
      const double base = std::floor(x);
      const double t = x - base;
      const double a = settings.cubic_a;
      const auto near = [a](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
      const auto far = [a](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
      blend.count = 4;
      blend.weight = {far(1 + t), near(t), near(1 - t), far(2 - t)};
      for (int i = 0; i < 4; ++i) blend.offset[i] = inside(base - 1 + i);
      break;
    }
  }
  if (settings.exclude_outside) {
    const double base = std::floor(x) - (settings.mode == Mode::cubic ? 1 : 0);
    double sum = 0;
    for (int i = 0; i < blend.count; ++i) {
      if (base + i < 0 || base + i > last) blend.weight[i] = 0;
      sum += blend.weight[i];
    }
    for (int i = 0; i < blend.count && sum != 0; ++i) blend.weight[i] /= sum;
  }
  return blend;
}

struct Job {
  Settings settings;
  int rank = 0;
  std::array<Axis, max_rank> axes{};
  std::array<Blend, max_rank> blends{};
  bool outside = false;
};

// The mix of the axes from `axis` on, around `x`.
template <typename T>
double mix(const Job& job, int axis, const T* x) {
  if (axis == job.rank) return static_cast<double>(load(*x));
  const Blend& blend = job.blends[axis];
  if (blend.count == 1) return mix(job, axis + 1, x + blend.offset[0]);
  double sum = 0;
  for (int i = 0; i < blend.count; ++i) {
    if (blend.weight[i] != 0) sum += blend.weight[i] * mix(job, axis + 1, x + blend.offset[i]);
  }
  return sum;
}

// Fills the output from `axis` on; the blends of the axes before are set.
template <typename T>
T* fill(Job& job, int axis, const T* x, T* y) {
  if (axis == job.rank) {
    *y = store<T>(number_cast<Compute<T>>(job.outside ? job.settings.extrapolation : mix(job, 0, x)));
    return y + 1;
  }
  const bool outside = job.outside;
  for (std::int64_t place = 0; place < job.axes[axis].out; ++place) {
    job.blends[axis] = blend_of(job.settings, job.axes[axis], place);
    job.outside = outside || job.blends[axis].outside;
    y = fill(job, axis + 1, x, y);
  }
  job.outside = outside;
  return y;
}

// Nearest needs no mixing: each axis adds its offset.
template <typename T>
T* fill_nearest(const Job& job, int axis, const T* x, T* y, bool outside) {
  const Axis& here = job.axes[axis];
  for (std::int64_t place = 0; place < here.out; ++place) {
    const Blend blend = blend_of(job.settings, here, place);
    if (axis + 1 < job.rank) {
      y = fill_nearest(job, axis + 1, x + blend.offset[0], y, outside || blend.outside);
    } else {
      *y++ = outside || blend.outside ? store<T>(number_cast<Compute<T>>(job.settings.extrapolation))
                                      : x[blend.offset[0]];
    }
  }
  return y;
}

double real_at(const ConstView& view, std::int64_t at) {
  return view.type->type == DataType::f64 ? view.as<double>()[at] : static_cast<double>(view.as<float>()[at]);
}

// Inputs: x, roi, scales, sizes. With `axes`, the last three speak of those axes only.
template <typename T>
Result<> resize(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& from = inputs[0].type->shape;
  const Shape& to = outputs[0].type->shape;
  if (from.size() != to.size() || from.empty()) return misfit(node, inputs, outputs);
  if (outputs[0].type->elements() == 0) return {};
  if (inputs[0].type->elements() == 0) return misfit(node, inputs, outputs);
  const auto settings = settings_of(node);
  if (!settings) return failed(node, "its attributes are not supported");
  Job job;
  job.settings = *settings;
  job.rank = static_cast<int>(from.size());
  const auto strides = dense_strides(from);
  for (int d = 0; d < job.rank; ++d) {
    job.axes[d] = {from[d], to[d], strides[d], static_cast<double>(to[d]) / static_cast<double>(from[d]),
                   0,       1};
  }
  const auto given = node.integers("axes");
  const auto count =
      given.empty() ? static_cast<std::int64_t>(from.size()) : static_cast<std::int64_t>(given.size());
  const ConstView roi = input(inputs, 1);
  const ConstView scales = input(inputs, 2);
  const bool scaled = scales && scales.type->elements() > 0;
  const bool cropped = settings->coordinates == Coordinates::tf_crop_and_resize;
  if ((scaled && scales.type->elements() != count) ||
      (cropped && (!roi || roi.type->elements() != 2 * count))) {
    return misfit(node, inputs, outputs);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const auto d = axis_of(given.empty() ? i : given[i], from.size());
    if (!d) return failed(node, "an axis is outside the tensor");
    if (scaled) job.axes[*d].scale = real_at(scales, i);
    if (cropped) {
      job.axes[*d].begin = real_at(roi, i);
      job.axes[*d].end = real_at(roi, count + i);
    }
    if (!(job.axes[*d].scale > 0)) return failed(node, "a scale is not positive");
  }
  if (settings->mode == Mode::nearest) {
    fill_nearest(job, 0, inputs[0].as<T>(), outputs[0].as<T>(), false);
  } else {
    fill(job, 0, inputs[0].as<T>(), outputs[0].as<T>());
  }
  return {};
}

PlainKernel find(const Node& node, InputTypes types) {
  if (type_at(types, 0) == nullptr || !settings_of(node)) return nullptr;
  for (std::size_t i = 1; i < 3; ++i) {
    const TensorType* type = type_at(types, i);
    if (type != nullptr && type->type != DataType::f32 && type->type != DataType::f64) return nullptr;
  }
  return Numbers::pick(types[0]->type, []<typename T>() -> PlainKernel { return &resize<T>; });
}

constexpr Operator operators[] = {{"Resize", &find}};

}  // namespace

std::span<const Operator> resize_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
