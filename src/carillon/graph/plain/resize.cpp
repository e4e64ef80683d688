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
// The last is ceil where a dimension becomes less, else floor: Resize of opset 10.
enum class Nearest { round_prefer_floor, round_prefer_ceil, floor, ceil, ceil_of_less };

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
    {"ceil_of_less", Nearest::ceil_of_less},
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
        case Nearest::ceil_of_less:
          rounded = axis.scale < 1 ? std::ceil(x) : std::floor(x);
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
  std::array<std::int64_t, max_rank> out_stride{};
};

// The blends of a stretch of the last axis, made once for all rows.
inline constexpr std::int64_t tile = 128;
struct Columns {
  std::int64_t first = 0;
  std::int64_t count = 0;
  int taps = 1;
  std::array<std::array<std::int64_t, tile>, 4> offset;
  std::array<std::array<float, tile>, 4> weight;
  std::array<bool, tile> outside;
};
void make_columns(const Job& job, std::int64_t first, Columns& columns) {
  const Axis& axis = job.axes[job.rank - 1];
  columns.first = first;
  columns.count = std::min(tile, axis.out - first);
  for (std::int64_t j = 0; j < columns.count; ++j) {
    const Blend blend = blend_of(job.settings, axis, first + j);
    columns.taps = blend.count;  // the same for all of an axis
    columns.outside[j] = blend.outside;
    for (int t = 0; t < blend.count; ++t) {
      columns.offset[t][j] = blend.offset[t];
      columns.weight[t][j] = static_cast<float>(blend.weight[t]);
    }
  }
}

// The lines of the input that one line of the output mixes: every combination of what its axes before the
// last take.
inline constexpr int max_lines = 256;
struct Lines {
  int count = 1;
  bool outside = false;
  std::array<std::int64_t, max_lines> offset;
  std::array<float, max_lines> weight;
};

template <typename T>
void write_line(const Job& job, const Columns& columns, const Lines& lines, const T* x, T* y) {
  using C = Compute<T>;
  const T beyond = store<T>(number_cast<C>(job.settings.extrapolation));
  if (lines.outside) {
    std::fill_n(y, columns.count, beyond);
    return;
  }
  if (job.settings.mode == Mode::nearest) {
    const T* line = x + lines.offset[0];
    for (std::int64_t j = 0; j < columns.count; ++j) y[j] = line[columns.offset[0][j]];
  } else {
    using Sum = std::conditional_t<std::is_same_v<C, float>, float, double>;
    std::array<Sum, tile> sum{};
    for (int l = 0; l < lines.count; ++l) {
      const T* line = x + lines.offset[l];
      const auto weight = static_cast<Sum>(lines.weight[l]);
      if (weight == Sum{0}) continue;
      for (int t = 0; t < columns.taps; ++t) {
        for (std::int64_t j = 0; j < columns.count; ++j) {
          sum[j] += weight * static_cast<Sum>(columns.weight[t][j]) *
                    static_cast<Sum>(load(line[columns.offset[t][j]]));
        }
      }
    }
    for (std::int64_t j = 0; j < columns.count; ++j) y[j] = store<T>(number_cast<C>(sum[j]));
  }
  for (std::int64_t j = 0; j < columns.count; ++j) {
    if (columns.outside[j]) y[j] = beyond;
  }
}

// Fills the columns of every line from `axis` on.
template <typename T>
void fill(const Job& job, const Columns& columns, int axis, const Lines& lines, const T* x, T* y) {
  if (axis == job.rank - 1) {
    write_line(job, columns, lines, x, y + columns.first);
    return;
  }
  Lines mine;
  for (std::int64_t place = 0; place < job.axes[axis].out; ++place) {
    const Blend blend = blend_of(job.settings, job.axes[axis], place);
    mine.count = 0;
    mine.outside = lines.outside || blend.outside;
    for (int l = 0; l < lines.count; ++l) {
      for (int t = 0; t < blend.count; ++t, ++mine.count) {
        mine.offset[mine.count] = lines.offset[l] + blend.offset[t];
        mine.weight[mine.count] = lines.weight[l] * static_cast<float>(blend.weight[t]);
      }
    }
    fill(job, columns, axis + 1, mine, x, y + place * job.out_stride[axis]);
  }
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
  int combinations = 1;
  for (int d = 0; d + 1 < job.rank; ++d) {
    combinations *= blend_of(job.settings, job.axes[d], 0).count;
    if (combinations > max_lines) return failed(node, "it interpolates along too many axes");
  }
  job.out_stride = dense_strides(to);
  Lines whole;
  whole.offset[0] = 0;
  whole.weight[0] = 1;
  Columns columns;
  for (std::int64_t first = 0; first < to.back(); first += tile) {
    make_columns(job, first, columns);
    fill(job, columns, 0, whole, inputs[0].as<T>(), outputs[0].as<T>());
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
