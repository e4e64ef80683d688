// Each kernel as a symbol carillon_NAME of a module.

#include "carillon/engine/cuda/kernels/bodies.h"

namespace kernels = carillon::engine::cuda::kernels;
using namespace kernels;

#define CARILLON_GLOBAL(name, ...)                                                                        \
  extern "C" __global__ void __launch_bounds__(kernels::block_threads)                                    \
      carillon_##name(const __grid_constant__ typename kernels::__VA_ARGS__::Params params) {             \
    kernels::run<kernels::__VA_ARGS__>(params);                                                           \
  }
CARILLON_KERNELS(CARILLON_GLOBAL)
