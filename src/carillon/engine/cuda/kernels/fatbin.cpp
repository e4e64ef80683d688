#include "carillon/engine/cuda/kernels/fatbin_bytes.h"  // made by the build, of kernels.cu
#include "carillon/engine/cuda/kernels/kernels.h"

namespace carillon::engine::cuda::kernels {

std::span<const std::byte> fatbin() {
  return std::as_bytes(std::span(fatbin_bytes));
}

}  // namespace carillon::engine::cuda::kernels
