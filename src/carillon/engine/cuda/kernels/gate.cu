// The kernel before the conditional node of a segment: a module of its own, as what it calls is the driver's.

#include <cuda_device_runtime_api.h>

extern "C" __global__ void carillon_gate(cudaGraphConditionalHandle condition,
                                         const volatile unsigned* stop) {
  cudaGraphSetConditional(condition, *stop == 0 ? 1U : 0U);
}
