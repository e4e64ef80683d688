#pragma once

// How a kernel is written. A kernel is a struct K with
//
//   using Params = ...;                                     one plain struct, given by value, with `stop`
//   static std::int64_t tiles(const Params&);               pieces of work, each of which writes bytes of its
//   own static void tile(const Params&, std::int64_t tile);     all of a block's threads do one tile
//
// and run<K>(params) is its body: a block takes every grid-th tile and looks at the eviction flag before
// each. A tile reads nothing that the kernel writes, so a kernel that was stopped is run again, from the
// start.
//
// The same source is compiled by nvcc for devices, and by the host's compiler with one thread a block and one
// block a grid.

#include <cmath>
#ifndef __CUDACC__
#include <memory>
#endif

#include "carillon/engine/cuda/kernels/number.h"

namespace carillon::engine::cuda::kernels {

inline constexpr int block_threads = 256;
inline constexpr int shared_floats = 1024;  // of shared()

#ifdef __CUDACC__
#define CARILLON_UNROLL _Pragma("unroll")
CARILLON_DEVICE int thread() {
  return static_cast<int>(threadIdx.x);
}
CARILLON_DEVICE int threads() {
  return block_threads;
}
CARILLON_DEVICE std::int64_t block() {
  return blockIdx.x;
}
CARILLON_DEVICE std::int64_t blocks() {
  return gridDim.x;
}
CARILLON_DEVICE void sync() {
  __syncthreads();
}
CARILLON_DEVICE float* shared() {
  __shared__ float floats[shared_floats];
  return floats;
}
template <int Floats>
CARILLON_DEVICE float* shared_of() {
  __shared__ float floats[Floats];
  return floats;
}
// Whether the flag is set: the same answer for all of a block's threads, whatever happens to the flag
// meanwhile.
CARILLON_DEVICE bool stopped(const volatile unsigned* stop) {
  return stop != nullptr && __syncthreads_or(thread() == 0 && *stop != 0) != 0;
}
template <typename Combine>
CARILLON_DEVICE float block_reduce(float value, float none, Combine combine) {
  __shared__ float parts[block_threads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  if (thread() % 32 == 0) parts[thread() / 32] = value;
  sync();
  value = none;
  for (int i = 0; i < block_threads / 32; ++i) value = combine(value, parts[i]);
  sync();  // the next reduction writes `parts`
  return value;
}
#else
#define CARILLON_UNROLL
inline int thread() {
  return 0;
}
inline int threads() {
  return 1;
}
inline std::int64_t block() {
  return 0;
}
inline std::int64_t blocks() {
  return 1;
}
inline void sync() {}
// On the heap of each thread that computes kernels: a thread_local array would be memory of every thread.
template <int Floats>
float* shared_of() {
  static thread_local const auto floats = std::make_unique<float[]>(Floats);
  return floats.get();
}
inline float* shared() {
  return shared_of<shared_floats>();
}
inline bool stopped(const volatile unsigned* stop) {
  return stop != nullptr && *stop != 0;
}
template <typename Combine>
float block_reduce(float value, float none, Combine combine) {
  return combine(none, value);
}
#endif

struct Sum {
  CARILLON_DEVICE float operator()(float a, float b) const { return a + b; }
};
// A NaN on either side is the result.
struct Max {
  CARILLON_DEVICE float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};
CARILLON_DEVICE float block_sum(float value) {
  return block_reduce(value, 0.0F, Sum{});
}
CARILLON_DEVICE float block_max(float value) {
  return block_reduce(value, -INFINITY, Max{});
}

// `stopping`: asked before each tile, with the same answer for all of a block's threads.
template <typename K, typename Stopping>
CARILLON_DEVICE void run_until(const typename K::Params& params, Stopping stopping) {
  const std::int64_t tiles = K::tiles(params);
  for (std::int64_t tile = block(); tile < tiles; tile += blocks()) {
    if (stopping()) return;
    K::tile(params, tile);
  }
}
template <typename K>
CARILLON_DEVICE void run(const typename K::Params& params) {
  run_until<K>(params, [&] { return stopped(params.stop); });
}

// N elements that are loaded and stored at once; with N = per_pack<T>, 16 aligned bytes.
template <typename T>
inline constexpr int per_pack = static_cast<int>(16 / sizeof(T));

template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T at[N];
};
#ifdef __CUDACC__
// The largest word that so many bytes are moved in.
template <int Bytes>
struct WordOf {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
#endif
// `from` and `to` are aligned to the pack, or to 16 bytes where it is larger: a device faults where they are
// not, and so does the host's build.
template <typename T, int N>
CARILLON_DEVICE void check_aligned([[maybe_unused]] const T* at) {
#ifndef __CUDACC__
  constexpr std::uintptr_t bytes = N * sizeof(T);
  if (N > 1 && reinterpret_cast<std::uintptr_t>(at) % (bytes < 16 ? bytes : 16) != 0) __builtin_trap();
#endif
}
template <typename T, int N>
CARILLON_DEVICE Pack<T, N> load(const T* from) {
  Pack<T, N> pack;
#ifdef __CUDACC__
  if constexpr (N * sizeof(T) > 16) {
    uint4 words[N * sizeof(T) / 16];
    CARILLON_UNROLL
    for (int i = 0; i < N * sizeof(T) / 16; ++i) words[i] = reinterpret_cast<const uint4*>(from)[i];
    memcpy(&pack, words, sizeof pack);
    return pack;
  } else if constexpr (N > 1) {
    const auto word = *reinterpret_cast<const typename WordOf<N * sizeof(T)>::Type*>(from);
    memcpy(&pack, &word, sizeof pack);
    return pack;
  }
#endif
  check_aligned<T, N>(from);
  memcpy(&pack, from, sizeof pack);
  return pack;
}
template <typename T, int N>
CARILLON_DEVICE void store(T* to, const Pack<T, N>& pack) {
#ifdef __CUDACC__
  if constexpr (N * sizeof(T) > 16) {
    uint4 words[N * sizeof(T) / 16];
    memcpy(words, &pack, sizeof pack);
    CARILLON_UNROLL
    for (int i = 0; i < N * sizeof(T) / 16; ++i) reinterpret_cast<uint4*>(to)[i] = words[i];
    return;
  } else if constexpr (N > 1) {
    typename WordOf<N * sizeof(T)>::Type word;
    memcpy(&word, &pack, sizeof pack);
    *reinterpret_cast<typename WordOf<N * sizeof(T)>::Type*>(to) = word;
    return;
  } else {
    // As one word. ptxas 13.0 compiles two stores of a byte wrongly where the bytes are a 16-bit float that
    // was just converted: it stores as lower byte the float converted to an integer.
    *to = pack.at[0];
    return;
  }
#endif
  check_aligned<T, N>(to);
  memcpy(to, &pack, sizeof pack);
}
CARILLON_DEVICE bool aligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

// Calls body(offset, count constant) for [0, n): packs where `packs`, and the tail one by one.
template <int N>
struct Count {
  static constexpr int value = N;
};
template <int N, typename Body>
CARILLON_DEVICE void each(std::int64_t n, bool packs, Body body) {
  const std::int64_t whole = packs ? n / N : 0;
  for (std::int64_t i = thread(); i < whole; i += threads()) body(i * N, Count<N>{});
  for (std::int64_t i = whole * N + thread(); i < n; i += threads()) body(i, Count<1>{});
}

}  // namespace carillon::engine::cuda::kernels
