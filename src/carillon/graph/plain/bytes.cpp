// Operators of our own that passes put in place of what lies between DequantizeLinear and QuantizeLinear
// (passes/quantised.cpp): bytes in, bytes out.

#include <array>
#include <type_traits>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/plain/quantised.h"

namespace carillon::graph::plain {
namespace {

// Inputs: bytes; what each becomes, by its bits.
Result<> byte_lookup(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t count = inputs[0].type->elements();
  if (inputs[1].type->elements() != 256 || outputs[0].type->elements() != count)
    return misfit(node, inputs, outputs);
  const auto* x = inputs[0].as<std::uint8_t>();
  const auto* table = inputs[1].as<std::uint8_t>();
  auto* y = outputs[0].as<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i) y[i] = table[x[i]];
  return {};
}

// Inputs: a, its scale and zero point, b likewise (without a scale it is real), the result's scale and zero
// point; all of a's type. a has the result's shape.
template <Arithmetic kind, typename A, typename B>
Result<> arithmetic(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& ys = outputs[0].type->shape;
  Loops<3> loops;
  if (inputs[0].type->shape != ys ||
      !broadcast<2>(ys, {std::span(inputs[0].type->shape), std::span(inputs[3].type->shape)}, loops))
    return misfit(node, inputs, outputs);
  loops.collapse();
  Combined how{.kind = kind,
               .a = {*inputs[1].as<float>(), *inputs[2].as<A>()},
               .inverse = 1 / *inputs[6].as<float>(),
               .zero = *inputs[7].as<A>(),
               .one = loops.inner_stride(2) == 0};
  if constexpr (!std::is_same_v<B, float>) how.b = {*inputs[4].as<float>(), *inputs[5].as<B>()};
  for_each_row(loops, [&](const auto& at, std::int64_t count) {
    const auto* a = inputs[0].as<A>() + at[1];
    const auto* b = inputs[3].as<B>() + at[2];
    auto* y = outputs[0].as<A>() + at[0];
    combine_all(how, a, b, y, count);
  });
  return {};
}

CARILLON_WIDE void add_bytes(const std::uint8_t* x, std::int32_t* sums, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += x[i];
}
CARILLON_WIDE void add_bytes(const std::int8_t* x, std::int32_t* sums, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += x[i];
}
CARILLON_WIDE std::int32_t bytes_sum(const std::uint8_t* x, std::int64_t count) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += x[i];
  return sum;
}
CARILLON_WIDE std::int32_t bytes_sum(const std::int8_t* x, std::int64_t count) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += x[i];
  return sum;
}

// Inputs: x, its scale and zero point, the result's. The mean of each channel, which is the second dimension
// or, with channels_last, the last.
template <typename T>
Result<> mean(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& xs = inputs[0].type->shape;
  const bool last = node.integer("channels_last", 0) != 0;
  if (xs.size() < 3) return misfit(node, inputs, outputs);
  const std::int64_t channels = last ? xs.back() : xs[1];
  const std::int64_t elements = inputs[0].type->elements();
  if (outputs[0].type->elements() != xs[0] * channels || elements == 0) return misfit(node, inputs, outputs);
  const std::int64_t pixels = elements / (xs[0] * channels);
  // So many sums of bytes do not overflow.
  if (pixels > (std::int64_t{1} << 22)) return failed(node, "there are too many pixels for a mean of bytes");
  const float scale = *inputs[1].as<float>() / (*inputs[3].as<float>() * static_cast<float>(pixels));
  const std::int32_t zero = static_cast<std::int32_t>(pixels) * *inputs[2].as<T>();
  const std::int32_t y_zero = *inputs[4].as<T>();
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  const auto result = [&](std::int32_t sum) {
    return quantised<T>(static_cast<float>(sum - zero) * scale, y_zero);
  };
  if (!last) {
    for (std::int64_t c = 0; c < xs[0] * channels; ++c) y[c] = result(bytes_sum(x + c * pixels, pixels));
    return {};
  }
  constexpr std::int64_t width = 512;
  for (std::int64_t n = 0; n < xs[0]; ++n) {
    for (std::int64_t first = 0; first < channels; first += width) {
      const std::int64_t count = std::min(width, channels - first);
      std::array<std::int32_t, width> sums{};
      for (std::int64_t p = 0; p < pixels; ++p)
        add_bytes(x + (n * pixels + p) * channels + first, sums.data(), count);
      for (std::int64_t c = 0; c < count; ++c) y[n * channels + first + c] = result(sums[c]);
    }
  }
  return {};
}

bool all_bytes(InputTypes types, std::initializer_list<std::size_t> which) {
  return std::ranges::all_of(
      which, [&](std::size_t i) { return type_at(types, i) != nullptr && types[i]->type == types[0]->type; });
}

PlainKernel find_lookup(const Node&, InputTypes types) {
  for (const std::size_t i : {0, 1})
    if (type_at(types, i) == nullptr || size_of(types[i]->type) != 1) return nullptr;
  return &byte_lookup;
}
template <Arithmetic kind>
PlainKernel find_arithmetic(const Node&, InputTypes types) {
  if (!all_bytes(types, {0, 2, 7}) || !has_type(types, 1, DataType::f32) ||
      !has_type(types, 6, DataType::f32))
    return nullptr;
  return Bytes8::pick(types[0]->type, [&]<typename T>() -> PlainKernel {
    if (has_type(types, 3, DataType::f32)) return &arithmetic<kind, T, float>;
    if (!all_bytes(types, {3, 5}) || !has_type(types, 4, DataType::f32)) return nullptr;
    return &arithmetic<kind, T, T>;
  });
}
PlainKernel find_mean(const Node&, InputTypes types) {
  if (!all_bytes(types, {0, 2, 4}) || !has_type(types, 1, DataType::f32) ||
      !has_type(types, 3, DataType::f32))
    return nullptr;
  return Bytes8::pick(types[0]->type, []<typename T>() -> PlainKernel { return &mean<T>; });
}

constexpr Operator operators[] = {
    {"ByteLookup", &find_lookup},
    {"QLinearAdd", &find_arithmetic<Arithmetic::add>},
    {"QLinearMul", &find_arithmetic<Arithmetic::mul>},
    {"QLinearGlobalAveragePool", &find_mean},
};

}  // namespace

std::span<const Operator> byte_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
