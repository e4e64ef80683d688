#pragma once

// The types of elements: float, Half (IEEE 754 binary16) and Bfloat, with sums in float. Conversions round to
// nearest, ties to even, and make every NaN 0x7fff, on the host as on the device. No header of CUDA's is
// needed: this is also compiled where there is only NVRTC.

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define CARILLON_DEVICE __device__ __forceinline__
#else
#define CARILLON_DEVICE inline
#endif

namespace carillon::engine::cuda::kernels {

struct Half {
  static constexpr bool is_ieee = true;
  std::uint16_t bits;
};
struct Bfloat {
  static constexpr bool is_ieee = false;
  std::uint16_t bits;
};

namespace number {
CARILLON_DEVICE std::uint32_t bits_of(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}
CARILLON_DEVICE float of_bits(std::uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}
}  // namespace number

CARILLON_DEVICE float to_float(float value) {
  return value;
}

CARILLON_DEVICE float to_float(Half value) {
#ifdef __CUDACC__
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(value.bits));
  return out;
#else
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1f) return number::of_bits(sign | 0x7f800000U | mantissa << 13);
  if (exponent != 0) return number::of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float tiny = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -tiny : tiny;
#endif
}

CARILLON_DEVICE float to_float(Bfloat value) {
  return number::of_bits(static_cast<std::uint32_t>(value.bits) << 16);
}

template <typename T>
CARILLON_DEVICE T from_float(float value);

template <>
CARILLON_DEVICE float from_float<float>(float value) {
  return value;
}

template <>
CARILLON_DEVICE Half from_float<Half>(float value) {
#ifdef __CUDACC__
  std::uint16_t out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return {out};
#else
  const std::uint32_t bits = number::bits_of(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t size = bits & 0x7fffffffU;
  std::uint32_t result = 0;
  if (size > 0x7f800000U) return {0x7fff};
  if (size >= 0x47800000U) {
    result = 0x7c00U;
  } else if (size >= 0x38800000U) {
    result = (size - 0x38000000U + 0xfffU + (size >> 13 & 1U)) >> 13;  // a carry goes into the exponent
  } else {
    // Adding 0.5 leaves units of 2^-24 as the lowest bit, and the addition does the rounding.
    result = number::bits_of(number::of_bits(size) + 0.5F) - number::bits_of(0.5F);
  }
  return {static_cast<std::uint16_t>(sign | result)};
#endif
}

template <>
CARILLON_DEVICE Bfloat from_float<Bfloat>(float value) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  std::uint16_t out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return {out};
#else
  const std::uint32_t bits = number::bits_of(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
#endif
}

// A truth value: 0 or 1.
struct Bool {
  std::uint8_t is;
};

template <typename T>
inline constexpr bool is_whole = false;
template <>
inline constexpr bool is_whole<std::int32_t> = true;
template <>
inline constexpr bool is_whole<std::int64_t> = true;
template <typename T>
inline constexpr bool is_bool = false;
template <>
inline constexpr bool is_bool<Bool> = true;

// As ONNX's Cast has it: towards 0, and true is 1; what does not fit becomes something.
template <typename To, typename From>
CARILLON_DEVICE To convert(From value) {
  if constexpr (is_bool<To>) {
    if constexpr (is_whole<From>)
      return {static_cast<std::uint8_t>(value != 0)};
    else if constexpr (is_bool<From>)
      return value;
    else
      return {static_cast<std::uint8_t>(to_float(value) != 0.0F)};
  } else if constexpr (is_whole<To>) {
    if constexpr (is_whole<From>) {
      return static_cast<To>(value);
    } else if constexpr (is_bool<From>) {
      return static_cast<To>(value.is);
    } else {
      const float real = to_float(value);
      constexpr float beyond = sizeof(To) == 4 ? 2147483648.0F : 9223372036854775808.0F;
      constexpr To least = sizeof(To) == 4 ? static_cast<To>(INT32_MIN) : static_cast<To>(INT64_MIN);
      if (real >= beyond) return static_cast<To>(-(least + 1));
      return real >= -beyond ? static_cast<To>(real) : least;
    }
  } else {
    if constexpr (is_whole<From>)
      return from_float<To>(static_cast<float>(value));
    else if constexpr (is_bool<From>)
      return from_float<To>(static_cast<float>(value.is));
    else
      return from_float<To>(to_float(value));
  }
}

}  // namespace carillon::engine::cuda::kernels
