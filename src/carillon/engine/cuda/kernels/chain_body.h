#pragma once

// What the source of a chain (chain_source.h) is made of. The text of this header and of those that it
// includes is in the program, for NVRTC; so is what they need of the standard library.
//
// A chain C is a struct with
//   using Out = ...;  static constexpr int pack = ...;                the elements of a pack
//   static bool packs(const ChainParams&);                            whether addresses allow packs
//   template <int N> static Pack<Out, N> at(const ChainParams&, std::uint32_t index);
// and CARILLON_CHAIN(symbol, C) is its kernel. Operands are read in one of the ways below: N elements from
// `index` on, which is a multiple of N.

#include "carillon/engine/cuda/kernels/elements.h"
#include "carillon/engine/cuda/kernels/kernel.h"
#include "carillon/engine/cuda/kernels/params.h"

namespace carillon::engine::cuda::kernels {

// The outermost extent is never needed.
template <int Rank>
CARILLON_DEVICE std::int64_t place_in(const ChainOperand& operand, std::uint32_t index) {
  std::int64_t offset = 0;
  CARILLON_UNROLL
  for (int i = Rank - 1; i > 0; --i) {
    offset += index % operand.extents[i] * operand.strides[i];
    index /= operand.extents[i];
  }
  if constexpr (Rank > 0) offset += index * operand.strides[0];
  return offset;
}

// All elements side by side.
template <typename T, int N>
CARILLON_DEVICE Pack<T, N> read_dense(const ChainOperand& operand, std::uint32_t index) {
  return load<T, N>(as<T>(operand.at) + index);
}
// One element for all.
template <typename T, int N>
CARILLON_DEVICE Pack<T, N> read_single(const ChainOperand& operand, std::uint32_t) {
  Pack<T, N> out;
  const T value = *as<T>(operand.at);
  CARILLON_UNROLL
  for (int j = 0; j < N; ++j) out.at[j] = value;
  return out;
}
// Each pack's elements side by side: a bias of channels that come last.
template <typename T, int N, int Rank>
CARILLON_DEVICE Pack<T, N> read_run(const ChainOperand& operand, std::uint32_t index) {
  return load<T, N>(as<T>(operand.at) + place_in<Rank>(operand, index));
}
// One element for each pack: a bias of channels that come first.
template <typename T, int N, int Rank>
CARILLON_DEVICE Pack<T, N> read_repeated(const ChainOperand& operand, std::uint32_t index) {
  Pack<T, N> out;
  const T value = as<T>(operand.at)[place_in<Rank>(operand, index)];
  CARILLON_UNROLL
  for (int j = 0; j < N; ++j) out.at[j] = value;
  return out;
}
// Each element wherever it is.
template <typename T, int N, int Rank>
CARILLON_DEVICE Pack<T, N> read_apart(const ChainOperand& operand, std::uint32_t index) {
  Pack<T, N> out;
  CARILLON_UNROLL
  for (int j = 0; j < N; ++j)
    out.at[j] = as<T>(operand.at)[place_in<Rank>(operand, index + static_cast<std::uint32_t>(j))];
  return out;
}

template <typename C>
struct ChainKernel {
  using Params = ChainParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) { return in_tiles(p.count, tile_elements); }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const std::int64_t begin = tile * tile_elements;
    each<C::pack>(least(tile_elements, p.count - begin), aligned(p.output) && C::packs(p),
                  [&](std::int64_t at, auto count) {
                    constexpr int N = decltype(count)::value;
                    const auto index = static_cast<std::uint32_t>(begin + at);
                    store<typename C::Out, N>(as<typename C::Out>(p.output) + index,
                                              C::template at<N>(p, index));
                  });
  }
};

}  // namespace carillon::engine::cuda::kernels

#ifdef __CUDACC__
#define CARILLON_CHAIN(symbol, C)                                                                  \
  extern "C" __global__ void __launch_bounds__(carillon::engine::cuda::kernels::block_threads)     \
      symbol(const __grid_constant__ carillon::engine::cuda::kernels::ChainParams params) {        \
    carillon::engine::cuda::kernels::run<carillon::engine::cuda::kernels::ChainKernel<C>>(params); \
  }
#else
#define CARILLON_CHAIN(symbol, C)                                                                   \
  extern "C" void symbol(const carillon::engine::cuda::kernels::ChainParams* params) {              \
    carillon::engine::cuda::kernels::run<carillon::engine::cuda::kernels::ChainKernel<C>>(*params); \
  }
#endif
