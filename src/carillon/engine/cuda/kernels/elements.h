#pragma once

// What becomes of one element: the same functions in kernels of one operation (bodies.h) and of chains of
// them (chain_body.h).

#include "carillon/engine/cuda/kernels/kernel.h"
#include "carillon/engine/cuda/kernels/params.h"

namespace carillon::engine::cuda::kernels {

inline constexpr std::int64_t tile_elements = 2048;

CARILLON_DEVICE std::int64_t in_tiles(std::int64_t count, std::int64_t each) {
  return (count + each - 1) / each;
}
CARILLON_DEVICE std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
CARILLON_DEVICE std::int64_t product(const std::uint32_t* extents, int rank) {
  std::int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= extents[i];
  return count;
}
CARILLON_DEVICE std::int64_t offset_of(std::uint32_t index, const std::uint32_t* extents,
                                       const std::int64_t* strides, int rank) {
  std::int64_t offset = 0;
  for (int i = rank - 1; i >= 0; --i) {
    offset += index % extents[i] * strides[i];
    index /= extents[i];
  }
  return offset;
}
CARILLON_DEVICE bool dense(const std::uint32_t* extents, const std::int64_t* strides, int rank) {
  std::int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (extents[i] != 1 && strides[i] != expected) return false;
    expected *= extents[i];
  }
  return true;
}
CARILLON_DEVICE bool repeated(const std::uint32_t* extents, const std::int64_t* strides, int rank) {
  for (int i = 0; i < rank; ++i) {
    if (extents[i] != 1 && strides[i] != 0) return false;
  }
  return true;
}
// Whether elements from any multiple of `count` on, so many, lie one after the other, at a multiple of
// `count` from the first: rows that have a pitch, or are repeated.
CARILLON_DEVICE bool in_packs(int count, const std::uint32_t* extents, const std::int64_t* strides,
                              int rank) {
  if (dense(extents, strides, rank)) return true;
  int last = rank - 1;
  while (last >= 0 && extents[last] == 1) --last;
  if (last < 0 || strides[last] != 1 || extents[last] % count != 0) return false;
  for (int i = 0; i < last; ++i) {
    if (strides[i] % count != 0) return false;
  }
  return true;
}
template <typename T>
CARILLON_DEVICE const T* as(const void* at) {
  return static_cast<const T*>(at);
}
template <typename T>
CARILLON_DEVICE T* as(void* at) {
  return static_cast<T*>(at);
}

// Sums and products that are rounded by themselves. A compiler for devices joins others into one operation,
// and which ones depends on what stands beside them; with these a chain gives the bits that its kernels give
// one by one.
CARILLON_DEVICE float plus(float a, float b) {
#ifdef __CUDACC__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
CARILLON_DEVICE float minus(float a, float b) {
#ifdef __CUDACC__
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}
CARILLON_DEVICE float times(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

CARILLON_DEVICE float sigmoid(float x) {
  return 1.0F / plus(1.0F, expf(-x));
}

CARILLON_DEVICE float apply(Op op, float a, float b, float c) {
  switch (op) {
    case Op::copy:
      return a;
    case Op::neg:
      return -a;
    case Op::abs:
      return fabsf(a);
    case Op::sqrt:
      return sqrtf(a);
    case Op::rsqrt:
      return 1.0F / sqrtf(a);
    case Op::exp:
      return expf(a);
    case Op::log:
      return logf(a);
    case Op::sigmoid:
      return sigmoid(a);
    case Op::erf:
      return erff(a);
    case Op::floor:
      return floorf(a);
    case Op::ceil:
      return ceilf(a);
    case Op::reciprocal:
      return 1.0F / a;
    case Op::add:
      return plus(a, b);
    case Op::sub:
      return minus(a, b);
    case Op::mul:
      return times(a, b);
    case Op::div:
      return a / b;
    case Op::min:
      return a < b || a != a ? a : b;
    case Op::max:
      return Max{}(a, b);
    case Op::pow:
      return powf(a, b);
    case Op::where:
      return a != 0.0F ? b : c;
    case Op::fma:
      return fmaf(a, b, c);
  }
  return a;
}

CARILLON_DEVICE float activate(Activation activation, float x, float low = 0, float high = 0) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0.0F ? 0.0F : x;
    case Activation::relu6:
      return x < 0.0F ? 0.0F : x > 6.0F ? 6.0F : x;
    case Activation::gelu_erf:
      return times(times(0.5F, x), plus(1.0F, erff(times(x, 0.70710678F))));
    case Activation::gelu_tanh: {
      const float cube = times(times(times(0.044715F, x), x), x);
      return times(times(0.5F, x), plus(1.0F, tanhf(times(0.79788456F, plus(x, cube)))));
    }
    case Activation::swish:
      return times(x, sigmoid(x));
    case Activation::tanh:
      return tanhf(x);
    case Activation::clip:
      return x < low ? low : x > high ? high : x;
  }
  return x;
}

// Whole numbers wrap around.
template <typename T>
CARILLON_DEVICE T apply_whole(Op op, T a, T b) {
  using Wrapping = std::uint64_t;
  const auto x = static_cast<Wrapping>(a), y = static_cast<Wrapping>(b);
  switch (op) {
    case Op::neg:
      return static_cast<T>(0 - x);
    case Op::abs:
      return a < 0 ? static_cast<T>(0 - x) : a;
    case Op::add:
      return static_cast<T>(x + y);
    case Op::sub:
      return static_cast<T>(x - y);
    case Op::mul:
      return static_cast<T>(x * y);
    case Op::div:
      return b == 0 ? T{0} : b == -1 ? static_cast<T>(0 - x) : static_cast<T>(a / b);
    case Op::min:
      return a < b ? a : b;
    case Op::max:
      return a < b ? b : a;
    default:
      return a;
  }
}

template <typename T>
CARILLON_DEVICE bool compare(Comparison comparison, T a, T b) {
  switch (comparison) {
    case Comparison::equal:
      return a == b;
    case Comparison::less:
      return a < b;
    case Comparison::less_equal:
      return a <= b;
    case Comparison::greater:
      return a > b;
    case Comparison::greater_equal:
      return a >= b;
    case Comparison::logical_and:
      return a != T{0} && b != T{0};
    case Comparison::logical_or:
      return a != T{0} || b != T{0};
    case Comparison::logical_xor:
      return (a != T{0}) != (b != T{0});
  }
  return false;
}

// What a value is compared as.
template <typename T>
CARILLON_DEVICE auto comparable(T value) {
  if constexpr (is_bool<T>)
    return static_cast<int>(value.is);
  else if constexpr (is_whole<T>)
    return value;
  else
    return to_float(value);
}

// What the kernels make of elements of one type: arithmetic, comparison and choice; convert() is in number.h.
template <typename T>
CARILLON_DEVICE T arithmetic(Op op, T a, T b, T c, Activation activation, float low, float high) {
  if constexpr (is_whole<T>)
    return apply_whole(op, a, b);
  else
    return from_float<T>(activate(activation, apply(op, to_float(a), to_float(b), to_float(c)), low, high));
}
template <typename T>
CARILLON_DEVICE Bool compared(Comparison comparison, T a, T b) {
  return {static_cast<std::uint8_t>(compare(comparison, comparable(a), comparable(b)))};
}
template <typename T>
CARILLON_DEVICE T chosen(Bool condition, T a, T b) {
  return condition.is != 0 ? a : b;
}

// An operand of an index space: N elements from the at-th on; all the same where it is repeated. N > 1 only
// where it is dense or repeated, or, `rows`, in_packs().
template <int N, typename T, bool rows = false>
CARILLON_DEVICE Pack<T, N> operand(const void* from, bool is_single, std::int64_t at,
                                   const std::uint32_t* extents, const std::int64_t* strides, int rank) {
  Pack<T, N> out;
  if (is_single) {
    for (int j = 0; j < N; ++j) out.at[j] = *as<T>(from);
  } else if constexpr (N > 1 && !rows) {
    out = load<T, N>(as<T>(from) + at);
  } else {
    const T* const there = as<T>(from) + offset_of(static_cast<std::uint32_t>(at), extents, strides, rank);
    if constexpr (N > 1)
      out = load<T, N>(there);
    else
      out.at[0] = *there;
  }
  return out;
}

}  // namespace carillon::engine::cuda::kernels
