// What is declared of cuDNN, cuBLASLt and NVRTC, against their own headers.
#include <cstddef>

#include <cublasLt.h>
#include <cudnn.h>
#include <gtest/gtest.h>
#include <nvrtc.h>

#include "carillon/engine/cuda/library/cublaslt_api.h"
#include "carillon/engine/cuda/library/cudnn_api.h"
#include "carillon/engine/cuda/library/nvrtc.h"

namespace carillon::engine::cuda {
namespace {

#define CARILLON_SAME(name, theirs, value) EXPECT_EQ(static_cast<int>(theirs), value) << #theirs;

TEST(CudaLibraryTables,
     ConstantsAreCudnns){CARILLON_CUDNN_KINDS(CARILLON_SAME) CARILLON_CUDNN_ATTRIBUTES(CARILLON_SAME)
                             CARILLON_CUDNN_TYPES(CARILLON_SAME) CARILLON_CUDNN_VALUES(CARILLON_SAME)}

TEST(CudaLibraryTables, ConstantsAndStructuresAreCublasLts) {
  CARILLON_CUBLASLT_CONSTANTS(CARILLON_SAME)
  EXPECT_EQ(sizeof(blas::Algorithm), sizeof(cublasLtMatmulAlgo_t));
  EXPECT_EQ(sizeof(blas::Found), sizeof(cublasLtMatmulHeuristicResult_t));
  EXPECT_EQ(offsetof(blas::Found, workspace), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
  EXPECT_EQ(offsetof(blas::Found, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
}

// Functions: as many arguments, each as wide.
template <typename Ours, typename Theirs>
struct SameShape : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
requires(sizeof...(A) == sizeof...(B)) struct SameShape<R (*)(A...), S (*)(B...)>
    : std::bool_constant<((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>)&&... &&
                          true)> {
};

#define CARILLON_SAME_CUDNN(member, symbol, result, arguments) \
  static_assert(SameShape<decltype(dnn::Api::member), decltype(&::symbol)>::value, #symbol);
CARILLON_CUDNN_FUNCTIONS(CARILLON_SAME_CUDNN)
#define CARILLON_SAME_CUBLASLT(member, symbol, result, arguments) \
  static_assert(SameShape<decltype(blas::Api::member), decltype(&::symbol)>::value, #symbol);
CARILLON_CUBLASLT_FUNCTIONS(CARILLON_SAME_CUBLASLT)
#define CARILLON_SAME_NVRTC(member, symbol, arguments) \
  static_assert(SameShape<decltype(rtc::Api::member), decltype(&::symbol)>::value, #symbol);
CARILLON_NVRTC_FUNCTIONS(CARILLON_SAME_NVRTC)

}  // namespace
}  // namespace carillon::engine::cuda
