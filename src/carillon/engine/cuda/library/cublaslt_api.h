#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/driver/real.h"

// What is used of cuBLASLt, as a table. Declared here, so that no header of it is needed; library_test.cpp
// holds it against cublasLt.h where there is one.
namespace carillon::engine::cuda::blas {

using Status = int;        // cublasStatus_t; 0: success
using Handle = void*;      // cublasLtHandle_t
using Operation = void*;   // cublasLtMatmulDesc_t
using Layout = void*;      // cublasLtMatrixLayout_t
using Preference = void*;  // cublasLtMatmulPreference_t

struct Algorithm {  // cublasLtMatmulAlgo_t
  std::array<std::uint64_t, 8> data{};
};
struct Found {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace = 0;
  Status state = 0;
  float waves = 0;
  std::array<int, 4> reserved{};
};

// X(name, cuBLASLt's name, value)
#define CARILLON_CUBLASLT_CONSTANTS(X)                              \
  X(type_f32, CUDA_R_32F, 0)                                        \
  X(type_f16, CUDA_R_16F, 2)                                        \
  X(type_bf16, CUDA_R_16BF, 14)                                     \
  X(compute_f32, CUBLAS_COMPUTE_32F, 68)                            \
  X(compute_tf32, CUBLAS_COMPUTE_32F_FAST_TF32, 77)                 \
  X(turned, CUBLAS_OP_T, 1)                                         \
  X(layout_batch, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)            \
  X(layout_step, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)    \
  X(operation_turns_a, CUBLASLT_MATMUL_DESC_TRANSA, 3)              \
  X(operation_turns_b, CUBLASLT_MATMUL_DESC_TRANSB, 4)              \
  X(operation_epilogue, CUBLASLT_MATMUL_DESC_EPILOGUE, 7)           \
  X(operation_bias, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)           \
  X(operation_processors, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 15) \
  X(most_workspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)    \
  X(reductions, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)      \
  X(alignment_a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)     \
  X(alignment_b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)     \
  X(alignment_c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)     \
  X(alignment_d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)     \
  X(reduces_in_f32, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)      \
  X(epilogue_none, CUBLASLT_EPILOGUE_DEFAULT, 1)                    \
  X(epilogue_relu, CUBLASLT_EPILOGUE_RELU, 2)                       \
  X(epilogue_bias, CUBLASLT_EPILOGUE_BIAS, 4)                       \
  X(epilogue_gelu, CUBLASLT_EPILOGUE_GELU, 32)

#define CARILLON_CUBLASLT_CONSTANT(name, theirs, value) inline constexpr int name = value;
CARILLON_CUBLASLT_CONSTANTS(CARILLON_CUBLASLT_CONSTANT)
#undef CARILLON_CUBLASLT_CONSTANT

// X(member, symbol, result, arguments)
#define CARILLON_CUBLASLT_FUNCTIONS(X)                                                                     \
  X(version, cublasLtGetVersion, std::size_t, ())                                                          \
  X(status_name, cublasLtGetStatusName, const char*, (Status status))                                      \
  X(create, cublasLtCreate, Status, (Handle * out))                                                        \
  X(destroy, cublasLtDestroy, Status, (Handle handle))                                                     \
  X(operation_create, cublasLtMatmulDescCreate, Status, (Operation * out, int compute, int scale))         \
  X(operation_destroy, cublasLtMatmulDescDestroy, Status, (Operation operation))                           \
  X(operation_set, cublasLtMatmulDescSetAttribute, Status,                                                 \
    (Operation operation, int attribute, const void* value, std::size_t bytes))                            \
  X(layout_create, cublasLtMatrixLayoutCreate, Status,                                                     \
    (Layout * out, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t pitch))               \
  X(layout_destroy, cublasLtMatrixLayoutDestroy, Status, (Layout layout))                                  \
  X(layout_set, cublasLtMatrixLayoutSetAttribute, Status,                                                  \
    (Layout layout, int attribute, const void* value, std::size_t bytes))                                  \
  X(preference_create, cublasLtMatmulPreferenceCreate, Status, (Preference * out))                         \
  X(preference_destroy, cublasLtMatmulPreferenceDestroy, Status, (Preference preference))                  \
  X(preference_set, cublasLtMatmulPreferenceSetAttribute, Status,                                          \
    (Preference preference, int attribute, const void* value, std::size_t bytes))                          \
  X(heuristic, cublasLtMatmulAlgoGetHeuristic, Status,                                                     \
    (Handle handle, Operation operation, Layout a, Layout b, Layout c, Layout d, Preference preference,    \
     int wanted, Found* found, int* count))                                                                \
  X(multiply, cublasLtMatmul, Status,                                                                      \
    (Handle handle, Operation operation, const void* alpha, const void* a, Layout a_layout, const void* b, \
     Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout,          \
     const Algorithm* algorithm, void* workspace, std::size_t workspace_bytes, cuda::Stream stream))

struct Api {
#define CARILLON_CUBLASLT_MEMBER(member, symbol, result, arguments) result(*member) arguments = nullptr;
  CARILLON_CUBLASLT_FUNCTIONS(CARILLON_CUBLASLT_MEMBER)
#undef CARILLON_CUBLASLT_MEMBER
};

// Errors (unavailable): it lacks a function, which is named.
Result<Api> find_api(const Library& library);

}  // namespace carillon::engine::cuda::blas
