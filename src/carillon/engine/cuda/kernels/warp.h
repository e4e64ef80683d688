#pragma once

// What the 32 lanes of a warp do together. On a device each lane is a thread, which has its own part of a
// Lanes<T>; on the host one thread has the parts of all 32, and goes through them one by one. So code that is
// written with Lanes, each_lane() and the operations below computes the same on both.

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "carillon/engine/cuda/kernels/kernel.h"

namespace carillon::engine::cuda::kernels {

inline constexpr int warp_lanes = 32, block_warps = block_threads / warp_lanes;

#ifdef __CUDACC__
#define CARILLON_UNROLL _Pragma("unroll")
#define CARILLON_UNROLL_TWICE _Pragma("unroll 2")  // more takes too many registers
#define CARILLON_NO_UNROLL _Pragma("unroll 1")
inline constexpr int lanes_here = 1, warps_here = 1;
#else
#define CARILLON_UNROLL
#define CARILLON_UNROLL_TWICE
#define CARILLON_NO_UNROLL
inline constexpr int lanes_here = warp_lanes, warps_here = block_warps;
#endif

// A T for each lane of a warp, and one for each warp of a block.
template <typename T>
struct Lanes {
  T here[lanes_here];
  CARILLON_DEVICE T& operator[](int lane) { return here[lanes_here == 1 ? 0 : lane]; }
  CARILLON_DEVICE const T& operator[](int lane) const { return here[lanes_here == 1 ? 0 : lane]; }
};
template <typename T>
struct Warps {
  T here[warps_here];
  CARILLON_DEVICE T& operator[](int warp) { return here[warps_here == 1 ? 0 : warp]; }
};

template <typename Body>
CARILLON_DEVICE void each_lane(Body body) {
#ifdef __CUDACC__
  body(static_cast<int>(threadIdx.x) % warp_lanes);
#else
  for (int lane = 0; lane < warp_lanes; ++lane) body(lane);
#endif
}
template <typename Body>
CARILLON_DEVICE void each_warp(Body body) {
#ifdef __CUDACC__
  body(static_cast<int>(threadIdx.x) / warp_lanes);
#else
  for (int warp = 0; warp < block_warps; ++warp) body(warp);
#endif
}

// Fragments of the product of a 16x16 with a 16x8 matrix, as PTX lays them out over lanes (mma.m16n8k16, .row
// .col): with `group` = lane / 4 and `pair` = 2 * (lane % 4), a word holds two neighbours, the first low,
//
//   A: word 0 at (group, pair), 1 at (group + 8, pair), 2 at (group, pair + 8), 3 at (group + 8, pair + 8)
//   B: word 0 at rows pair and pair + 1 of column `group`, 1 eight rows below
//   C: 0 and 1 at (group, pair) and (group, pair + 1), 2 and 3 eight rows below
struct FragmentA {
  std::uint32_t at[4];
};
struct FragmentB {
  std::uint32_t at[2];
};
struct FragmentC {
  float at[4];
};

template <typename T>
CARILLON_DEVICE std::uint32_t packed(float low, float high) {
#ifdef __CUDACC__
  std::uint32_t word;
  if constexpr (sizeof(T) == 2 && T::is_ieee) {
    const __half2 both = __floats2half2_rn(low, high);
    memcpy(&word, &both, 4);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    memcpy(&word, &both, 4);
  }
  return word;
#else
  return from_float<T>(low).bits | static_cast<std::uint32_t>(from_float<T>(high).bits) << 16;
#endif
}
template <typename T>
CARILLON_DEVICE float low_of(std::uint32_t word) {
  return to_float(T{static_cast<std::uint16_t>(word)});
}
template <typename T>
CARILLON_DEVICE float high_of(std::uint32_t word) {
  return to_float(T{static_cast<std::uint16_t>(word >> 16)});
}

template <typename Fragment>
CARILLON_DEVICE std::uint32_t word_of(const Lanes<Fragment>& of, int word, int lane) {
#ifdef __CUDACC__
  return __shfl_sync(0xffffffffU, of.here[0].at[word], lane);
#else
  return of.here[lane].at[word];
#endif
}

// c += a b without tensor cores: each lane fetches what its four sums need.
template <typename T>
CARILLON_DEVICE void multiply_add_by_words(const Lanes<FragmentA>& a, const Lanes<FragmentB>& b,
                                           Lanes<FragmentC>& c) {
  each_lane([&](int lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    CARILLON_NO_UNROLL
    for (int s = 0; s < 4; ++s) {
      CARILLON_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t row[2] = {word_of(a, half * 2, group * 4 + s),
                                      word_of(a, half * 2 + 1, group * 4 + s)};
        const std::uint32_t column[2] = {word_of(b, half, pair * 4 + s), word_of(b, half, pair * 4 + 4 + s)};
        CARILLON_UNROLL
        for (int i = 0; i < 4; ++i)
          c[lane].at[i] += low_of<T>(row[i / 2]) * low_of<T>(column[i % 2]) +
                           high_of<T>(row[i / 2]) * high_of<T>(column[i % 2]);
      }
    }
  });
}

// Whether multiply_add() is by tensor cores; it takes many registers where it is not.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <typename T>
inline constexpr bool by_tensor_cores = T::is_ieee;
#else
template <typename T>
inline constexpr bool by_tensor_cores = true;
#endif

// c += a b, summed in f32.
template <typename T>
CARILLON_DEVICE void multiply_add(const Lanes<FragmentA>& a, const Lanes<FragmentB>& b, Lanes<FragmentC>& c) {
#ifdef __CUDACC__
  const FragmentA& x = a.here[0];
  const FragmentB& y = b.here[0];
  float* const z = c.here[0].at;
#if __CUDA_ARCH__ >= 800
  if constexpr (T::is_ieee) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3])
        : "r"(x.at[0]), "r"(x.at[1]), "r"(x.at[2]), "r"(x.at[3]), "r"(y.at[0]), "r"(y.at[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3])
        : "r"(x.at[0]), "r"(x.at[1]), "r"(x.at[2]), "r"(x.at[3]), "r"(y.at[0]), "r"(y.at[1]));
  }
#else
  // sm_75 has half the depth, whose fragments are the halves of these, and no bf16.
  if constexpr (T::is_ieee) {
    CARILLON_UNROLL
    for (int half = 0; half < 2; ++half)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
          : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3])
          : "r"(x.at[half * 2]), "r"(x.at[half * 2 + 1]), "r"(y.at[half]));
  } else {
    multiply_add_by_words<T>(a, b, c);
  }
#endif
#else
  // By the tables above, and nothing else: the matrices are put together, multiplied, and handed out.
  float left[16][16], right[16][8];
  for (int lane = 0; lane < warp_lanes; ++lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int word = 0; word < 4; ++word) {
      float* const to = &left[group + (word % 2) * 8][pair + (word / 2) * 8];
      to[0] = low_of<T>(a.here[lane].at[word]);
      to[1] = high_of<T>(a.here[lane].at[word]);
    }
    for (int word = 0; word < 2; ++word) {
      right[pair + word * 8][group] = low_of<T>(b.here[lane].at[word]);
      right[pair + word * 8 + 1][group] = high_of<T>(b.here[lane].at[word]);
    }
  }
  for (int lane = 0; lane < warp_lanes; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + (i / 2) * 8, column = lane % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
      c.here[lane].at[i] += sum;
    }
#endif
}

// value = combine(value, that of the lane whose number differs in the bits of `bits`).
template <typename Combine>
CARILLON_DEVICE void combine_across(Lanes<float>& value, int bits, Combine combine) {
#ifdef __CUDACC__
  value.here[0] = combine(value.here[0], __shfl_xor_sync(0xffffffffU, value.here[0], bits));
#else
  const Lanes<float> before = value;
  for (int lane = 0; lane < warp_lanes; ++lane)
    value.here[lane] = combine(before.here[lane], before.here[lane ^ bits]);
#endif
}

// N elements of 16 bits, as words; nothing is read where they are not `wanted`, which gives zeros.
template <int N>
struct Words {
  std::uint32_t at[N / 2];
};
template <int N, typename T>
CARILLON_DEVICE Words<N> words(const T* from, bool wanted) {
  static_assert(sizeof(T) == 2);
  Words<N> out{};
  if (wanted) {
#ifdef __CUDACC__
    if constexpr (N == 8) {
      const uint4 all = *reinterpret_cast<const uint4*>(from);
      out.at[0] = all.x;
      out.at[1] = all.y;
      out.at[2] = all.z;
      out.at[3] = all.w;
    } else {
      static_assert(N == 4);
      const uint2 all = *reinterpret_cast<const uint2*>(from);
      out.at[0] = all.x;
      out.at[1] = all.y;
    }
#else
    std::memcpy(&out, from, sizeof out);
#endif
  }
  return out;
}
// Element i of `a` low, and of `b` high.
template <int N>
CARILLON_DEVICE std::uint32_t neighbours(const Words<N>& a, const Words<N>& b, int i) {
  const std::uint32_t low = a.at[i / 2], high = b.at[i / 2];
#ifdef __CUDACC__
  return __byte_perm(low, high, i % 2 == 0 ? 0x5410U : 0x7632U);
#else
  return i % 2 == 0 ? (low & 0xffffU) | high << 16 : low >> 16 | (high & 0xffff0000U);
#endif
}

}  // namespace carillon::engine::cuda::kernels
