// Fourier transforms, and what goes with them.

#include <cmath>
#include <numbers>
#include <vector>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// Cosine and sine of a circle's `length` parts. As long as one transform, which is not long.
class Circle {
 public:
  explicit Circle(std::int64_t length) : cosine_(static_cast<std::size_t>(length)), sine_(cosine_.size()) {
    for (std::size_t i = 0; i < cosine_.size(); ++i) {
      const double angle = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length);
      cosine_[i] = std::cos(angle);
      sine_[i] = std::sin(angle);
    }
  }
  // Sums value(n) * e^(-+ 2 pi i k n / length) over n in [0, there); value gives real and imaginary part.
  template <typename Value>
  std::pair<double, double> transform(std::int64_t k, std::int64_t there, bool inverse,
                                      const Value& value) const {
    double real = 0, imaginary = 0;
    std::size_t at = 0;
    const auto step = static_cast<std::size_t>(k);
    for (std::int64_t n = 0; n < there; ++n) {
      const auto [a, b] = value(n);
      const double c = cosine_[at], s = inverse ? sine_[at] : -sine_[at];
      real += a * c - b * s;
      imaginary += a * s + b * c;
      at += step;
      if (at >= cosine_.size()) at -= cosine_.size();
    }
    return {real, imaginary};
  }

 private:
  std::vector<double> cosine_, sine_;
};

// Attributes axis and length are those that inference has settled.
template <typename T>
Result<> dft(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape &from = inputs[0].type->shape, &to = outputs[0].type->shape;
  const std::int64_t axis = node.integer("axis", 0), length = node.integer("length", 0);
  const std::int64_t parts = from.back();
  // [outer, axis, inner, parts]
  const Around in = around(std::span(from).first(from.size() - 1), axis);
  const Around out = around(std::span(to).first(to.size() - 1), axis);
  if (length < 1 || in.outer != out.outer || in.inner != out.inner || out.extent > length)
    return misfit(node, inputs, outputs);
  const bool inverse = node.integer("inverse", 0) != 0;
  const double scale = inverse ? 1 / static_cast<double>(length) : 1;
  const Circle circle(length);
  const std::int64_t there = std::min(in.extent, length);
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  for (std::int64_t o = 0; o < in.outer; ++o)
    for (std::int64_t i = 0; i < in.inner; ++i)
      for (std::int64_t k = 0; k < out.extent; ++k) {
        const auto [real, imaginary] = circle.transform(k, there, inverse, [&](std::int64_t n) {
          const T* at = x + ((o * in.extent + n) * in.inner + i) * parts;
          return std::pair(static_cast<double>(load(at[0])),
                           parts == 2 ? static_cast<double>(load(at[1])) : 0.0);
        });
        T* at = y + ((o * out.extent + k) * out.inner + i) * 2;
        at[0] = store<T>(static_cast<C>(real * scale));
        at[1] = store<T>(static_cast<C>(imaginary * scale));
      }
  return {};
}

template <typename T>
Result<> stft(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape &from = inputs[0].type->shape, &to = outputs[0].type->shape;
  const std::int64_t step = index_at(inputs[1], 0), parts = from[2];
  const ConstView window = input(inputs, 2), told = input(inputs, 3);
  const std::int64_t frame = told ? index_at(told, 0) : window.type->elements();
  const std::int64_t frames = to[1], bins = to[2];
  if (step < 1 || frame < 1 || (frames - 1) * step + frame > from[1] || bins > frame)
    return misfit(node, inputs, outputs);
  const Circle circle(frame);
  T* y = outputs[0].as<T>();
  for (std::int64_t b = 0; b < from[0]; ++b)
    for (std::int64_t f = 0; f < frames; ++f) {
      const T* first = inputs[0].as<T>() + (b * from[1] + f * step) * parts;
      for (std::int64_t k = 0; k < bins; ++k, y += 2) {
        const auto [real, imaginary] = circle.transform(k, frame, false, [&](std::int64_t n) {
          const double weight = window ? static_cast<double>(load(window.as<T>()[n])) : 1;
          return std::pair(static_cast<double>(load(first[n * parts])) * weight,
                           parts == 2 ? static_cast<double>(load(first[n * parts + 1])) * weight : 0.0);
        });
        y[0] = store<T>(static_cast<C>(real));
        y[1] = store<T>(static_cast<C>(imaginary));
      }
    }
  return {};
}
template <template <typename> typename Kernel>
PlainKernel find_transform(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || types[0]->shape.size() < 2) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return Kernel<T>::run; });
}
template <typename T>
struct Dft {
  static constexpr PlainKernel run = &dft<T>;
};
template <typename T>
struct Stft {
  static constexpr PlainKernel run = &stft<T>;
};

// The sum of coefficients[j] * cos(j * angle), once around.
template <typename T, int kind>
Result<> window(const Node& node, Inputs, Outputs outputs) {
  constexpr double all[3][3] = {{0.42, -0.5, 0.08}, {25.0 / 46, -21.0 / 46, 0}, {0.5, -0.5, 0}};
  const std::int64_t size = outputs[0].type->elements();
  const std::int64_t around = node.integer("periodic", 1) != 0 ? size : size - 1;
  for (std::int64_t n = 0; n < size; ++n) {
    const double angle =
        around == 0 ? 0 : 2 * std::numbers::pi * static_cast<double>(n) / static_cast<double>(around);
    const double value = all[kind][0] + all[kind][1] * std::cos(angle) + all[kind][2] * std::cos(2 * angle);
    outputs[0].as<T>()[n] = store<T>(static_cast<Compute<T>>(value));
  }
  return {};
}
// The type of an output that an attribute names, as ONNX numbers types.
template <typename Make>
PlainKernel pick_output_type(const Node& node, Make make) {
  switch (node.integer("output_datatype", 1)) {
    case 1:
      return make.template operator()<float>();
    case 10:
      return make.template operator()<Half>();
    case 11:
      return make.template operator()<double>();
    case 16:
      return make.template operator()<BFloat16>();
    default:
      return nullptr;
  }
}
template <int kind>
PlainKernel find_window(const Node& node, InputTypes) {
  return pick_output_type(node, []<typename T>() -> PlainKernel { return &window<T, kind>; });
}

double to_mel(double hertz) {
  return 2595 * std::log10(1 + hertz / 700);
}

// Triangles, evenly spaced by mel: [frequencies, bins].
template <typename T>
Result<> mel_weights(const Node&, Inputs inputs, Outputs outputs) {
  const std::int64_t bins = index_at(inputs[0], 0), length = index_at(inputs[1], 0),
                     rate = index_at(inputs[2], 0);
  const auto edge = [&](std::size_t i) {
    return inputs[i].type->type == DataType::f64 ? inputs[i].as<double>()[0]
                                                 : static_cast<double>(inputs[i].as<float>()[0]);
  };
  const double low = to_mel(edge(3)), high = to_mel(edge(4));
  const std::int64_t frequencies = length / 2 + 1;
  // Where triangle k begins; it peaks where the next begins, and ends where the one after that does.
  const auto corner = [&](std::int64_t k) {
    const double mel = low + static_cast<double>(k) * (high - low) / static_cast<double>(bins + 2);
    const double hertz = 700 * (std::pow(10.0, mel / 2595) - 1);
    const auto at = static_cast<std::int64_t>(
        std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate)));
    return std::clamp<std::int64_t>(at, 0, frequencies - 1);
  };
  T* y = outputs[0].as<T>();
  std::fill_n(y, frequencies * bins, T{});
  const auto put = [&](std::int64_t frequency, std::int64_t bin, double value) {
    y[frequency * bins + bin] = store<T>(static_cast<Compute<T>>(value));
  };
  for (std::int64_t bin = 0; bin < bins; ++bin) {
    const std::int64_t begin = corner(bin), peak = corner(bin + 1), end = corner(bin + 2);
    if (peak == begin) put(peak, bin, 1);
    for (std::int64_t f = begin; peak > begin && f <= peak; ++f)
      put(f, bin, static_cast<double>(f - begin) / static_cast<double>(peak - begin));
    for (std::int64_t f = peak; f < end; ++f)
      put(f, bin, static_cast<double>(end - f) / static_cast<double>(end - peak));
  }
  return {};
}
PlainKernel find_mel_weights(const Node& node, InputTypes types) {
  for (std::size_t i = 0; i < 5; ++i) {
    const TensorType* type = type_at(types, i);
    if (type == nullptr ||
        (i < 3 ? !is_index(type->type) : type->type != DataType::f32 && type->type != DataType::f64))
      return nullptr;
  }
  return pick_output_type(node, []<typename T>() -> PlainKernel { return &mel_weights<T>; });
}

constexpr Operator operators[] = {
    {"BlackmanWindow", &find_window<0>},    {"DFT", &find_transform<Dft>},
    {"HammingWindow", &find_window<1>},     {"HannWindow", &find_window<2>},
    {"MelWeightMatrix", &find_mel_weights}, {"STFT", &find_transform<Stft>},
};

}  // namespace

std::span<const Operator> signal_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
