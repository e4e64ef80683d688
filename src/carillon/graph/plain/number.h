#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "carillon/graph/kernel.h"

namespace carillon::graph::plain {

// Elements as they lie in memory where C++ has no such type (or, for bool, where bytes from outside may hold
// more than 0 and 1). load() gives the value to compute with, store() rounds it back.
struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Boolean {
  std::uint8_t bits;
};

inline float to_float(Half half) {
  const std::uint32_t sign = (half.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (half.bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = half.bits & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t biased = exponent == 31 ? 255U : exponent + 112U;
  return std::bit_cast<float>(sign | (biased << 23) | (mantissa << 13));
}

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Rounds to the nearest, ties to even; overflows to infinity.
inline Half to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000U) {
    result = 0x7e00U;  // NaN
  } else if (magnitude >= 0x477ff000U) {
    result = 0x7c00U;  // rounds beyond the largest half
  } else if (magnitude < 0x38800000U) {
    // Subnormal: the float adder rounds at 2^-24 when the sum's exponent is that of 0.5.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    result = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
  } else {
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    result = (magnitude - 0x38000000U + 0xfffU + odd) >> 13;
  }
  return Half{static_cast<std::uint16_t>(sign | result)};
}

inline BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return BFloat16{static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  }
  const std::uint32_t odd = (bits >> 16) & 1U;
  return BFloat16{static_cast<std::uint16_t>((bits + 0x7fffU + odd) >> 16)};
}

// The type to compute with.
template <typename T>
struct ComputeType {
  using type = T;
};
template <>
struct ComputeType<Half> {
  using type = float;
};
template <>
struct ComputeType<BFloat16> {
  using type = float;
};
template <>
struct ComputeType<Boolean> {
  using type = bool;
};
template <typename T>
using Compute = typename ComputeType<T>::type;

template <typename T>
inline Compute<T> load(T element) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return to_float(element);
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return element.bits != 0;
  } else {
    return element;
  }
}

template <typename T>
inline T store(Compute<T> value) {
  if constexpr (std::is_same_v<T, Half>) {
    return to_half(value);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(value);
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return Boolean{static_cast<std::uint8_t>(value)};
  } else {
    return value;
  }
}

// `value` as ONNX's Cast turns it into To, defined for every value: a float beyond an integer type's range
// takes the nearest end, NaN becomes 0, integers wrap.
template <typename To, typename From>
inline To number_cast(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From low = static_cast<From>(std::numeric_limits<To>::min());
    constexpr To half = std::numeric_limits<To>::max() / 2 + 1;
    constexpr From beyond = static_cast<From>(half) * From{2};
    if (value != value) return To{0};
    if (value <= low) return std::numeric_limits<To>::min();
    if (value >= beyond) return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// Integer arithmetic that wraps (data from outside must not reach undefined behaviour), floating point as is.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) <= 4, std::uint32_t, std::uint64_t>;
template <typename C>
inline C add(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<Wrapping<C>>(a) + static_cast<Wrapping<C>>(b));
  } else {
    return a + b;
  }
}
template <typename C>
inline C subtract(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<Wrapping<C>>(a) - static_cast<Wrapping<C>>(b));
  } else {
    return a - b;
  }
}
template <typename C>
inline C multiply(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<Wrapping<C>>(a) * static_cast<Wrapping<C>>(b));
  } else {
    return a * b;
  }
}

// The larger and the smaller, NaN if either is.
template <typename C>
inline C maximum(C a, C b) {
  return a > b || a != a ? a : b;
}
template <typename C>
inline C minimum(C a, C b) {
  return a < b || a != a ? a : b;
}

template <typename T>
inline constexpr bool is_float = std::is_floating_point_v<Compute<T>>;

template <typename T>
consteval DataType data_type() {
  if constexpr (std::is_same_v<T, float>) return DataType::f32;
  if constexpr (std::is_same_v<T, double>) return DataType::f64;
  if constexpr (std::is_same_v<T, Half>) return DataType::f16;
  if constexpr (std::is_same_v<T, BFloat16>) return DataType::bf16;
  if constexpr (std::is_same_v<T, std::int8_t>) return DataType::i8;
  if constexpr (std::is_same_v<T, std::int16_t>) return DataType::i16;
  if constexpr (std::is_same_v<T, std::int32_t>) return DataType::i32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DataType::i64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DataType::u8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return DataType::u16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return DataType::u32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return DataType::u64;
  if constexpr (std::is_same_v<T, Boolean>) return DataType::boolean;
}

// A list of element types, and the choice of one at run time.
template <typename T, typename... Ts>
struct Types {
  // Calls make.operator()<T>() for the T of `type`, if it is listed; else gives a value-initialised result.
  template <typename Make>
  static auto pick(DataType type, Make make) {
    if (data_type<T>() == type) return make.template operator()<T>();
    decltype(make.template operator()<T>()) found{};
    static_cast<void>(
        ((data_type<Ts>() == type ? (found = make.template operator()<Ts>(), true) : false) || ...));
    return found;
  }
};
using Floats = Types<float, double, Half, BFloat16>;
using Integers = Types<std::int64_t, std::int32_t, std::uint8_t, std::int8_t, std::int16_t, std::uint16_t,
                       std::uint32_t, std::uint64_t>;
using Numbers = Types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, std::int8_t,
                      std::int16_t, std::uint16_t, std::uint32_t, std::uint64_t>;
using AllTypes = Types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, std::int8_t,
                       std::int16_t, std::uint16_t, std::uint32_t, std::uint64_t, Boolean>;

// Element types that differ in size only: enough to move data.
template <typename Make>
auto pick_size(DataType type, Make make) {
  using R = std::remove_cvref_t<decltype(make.template operator()<std::uint8_t>())>;
  switch (size_of(type)) {
    case 1:
      return make.template operator()<std::uint8_t>();
    case 2:
      return make.template operator()<std::uint16_t>();
    case 4:
      return make.template operator()<std::uint32_t>();
    case 8:
      return make.template operator()<std::uint64_t>();
  }
  return R{};  // string
}

// e^x in float within 2 ulp, in a form that compilers turn into vector code. Infinite above 88.72, zero below
// -87.33 (subnormal results are flushed).
inline float fast_exp(float x) {
  const float clamped = x > 88.7228F ? 88.7228F : (x < -87.3365F ? -87.3365F : x);
  constexpr float round = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float n = (clamped * 1.44269504F + round) - round;
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  // 2^n in two steps: n may be 128.
  const auto whole = static_cast<std::int32_t>(n == n ? n : 0.0F);
  const std::int32_t half = whole >> 1;
  const float a = std::bit_cast<float>((half + 127) << 23);
  const float b = std::bit_cast<float>((whole - half + 127) << 23);
  const float result = p * a * b;
  return x > 88.7228F ? std::numeric_limits<float>::infinity() : (x < -87.3365F ? 0.0F : result);
}

// erf(x) in float within a few ulp: a rational function of x^2 times x, constant beyond |x| = 4 (where the
// float nearest to erf is 1).
inline float fast_erf(float x) {
  const float c = x > 4.0F ? 4.0F : (x < -4.0F ? -4.0F : x);
  const float s = c * c;
  float p = -2.72614225801306e-10F;
  p = p * s + 2.77068142495902e-08F;
  p = p * s + -2.10102402082508e-06F;
  p = p * s + -5.69250639462346e-05F;
  p = p * s + -7.34990630326855e-04F;
  p = p * s + -2.95459980854025e-03F;
  p = p * s + -1.60960333262415e-02F;
  float q = -1.45660718464996e-05F;
  q = q * s + -2.13374055278905e-04F;
  q = q * s + -1.68282697438203e-03F;
  q = q * s + -7.37332916720468e-03F;
  q = q * s + -1.42647390514189e-02F;
  return c * p / q;
}

// tanh(x) in float within a few ulp: a rational function of x^2 times x, constant where the float nearest to
// it is 1.
inline float fast_tanh(float x) {
  constexpr float most = 7.90531110763549805F;
  const float c = x > most ? most : (x < -most ? -most : x);
  const float s = c * c;
  float p = -2.76076847742355e-16F;
  p = p * s + 2.00018790482477e-13F;
  p = p * s + -8.60467152213735e-11F;
  p = p * s + 5.12229709037114e-08F;
  p = p * s + 1.48572235717979e-05F;
  p = p * s + 6.37261928875436e-04F;
  p = p * s + 4.89352455891786e-03F;
  float q = 1.19825839466702e-06F;
  q = q * s + 1.18534705686654e-04F;
  q = q * s + 2.26843463243900e-03F;
  q = q * s + 4.89352518554385e-03F;
  return c * p / q;
}

template <typename C>
inline C exponential(C x) {
  if constexpr (std::is_same_v<C, float>) {
    return fast_exp(x);
  } else {
    return std::exp(x);
  }
}
template <typename C>
inline C error_function(C x) {
  if constexpr (std::is_same_v<C, float>) {
    return fast_erf(x);
  } else {
    return std::erf(x);
  }
}

}  // namespace carillon::graph::plain
