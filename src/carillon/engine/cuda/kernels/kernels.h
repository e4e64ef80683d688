#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/kernels/params.h"

// Our own kernels: how they are launched, which bytes they touch, and the host's build of each, by which an
// emulated device runs it. Everything here is thread-safe.
namespace carillon::engine::cuda::kernels {

enum class Type { f32, f16, bf16, i32, i64, boolean };

struct Bytes {
  const void* at = nullptr;
  std::size_t count = 0;
};

// A kernel; `params` is always the address of its struct in params.h.
struct Kernel {
  std::string_view symbol;  // in fatbin(): carillon_softmax_f16
  std::size_t parameter_bytes = 0;
  std::size_t stop_at = 0;  // where in `params` the flag's address lies
  std::int64_t (*tiles)(const void* params) = nullptr;
  // Computes on the host, up to the first tile before which `stop` is set.
  void (*run)(const void* params) = nullptr;
  // As run(), but as if `stop` were set after so many tiles.
  void (*run_some)(const void* params, std::int64_t tiles) = nullptr;
  // Appends the bytes that a run to the end reads and writes; of strided operands without the gaps
  // (but where there are very many). The flag is left out: it may change at any time.
  void (*accesses)(const void* params, std::vector<Bytes>& reads, std::vector<Bytes>& writes) = nullptr;
};

// All kernels; and one by its symbol, or nullptr.
std::span<const Kernel> all();
const Kernel* find(std::string_view symbol);

// grid x block threads. Kernels need no dynamic shared memory.
struct Launch {
  const Kernel* kernel = nullptr;
  unsigned grid = 0;  // 0: nothing to do, and nothing to launch
  unsigned block = 0;
};

// How to launch on a device of so many multiprocessors. Refused (invalid_argument): ranks beyond max_rank,
// tensors of 2^31 elements and more, negative sizes, elements of other sizes than 1, 2, 4, 8, casts from a
// type to itself, attention that has no kernel (attention_by), windows without extent.
Result<Launch> launch(const ElementwiseParams& params, Type type, unsigned processors);
Result<Launch> launch(const ReduceParams& params, Type type, unsigned processors);
Result<Launch> launch(const SoftmaxParams& params, Type type, unsigned processors);
Result<Launch> launch(const LayerNormParams& params, Type type, unsigned processors);
Result<Launch> launch(const PoolParams& params, Type type, unsigned processors);
Result<Launch> launch(const DepthwiseParams& params, Type type, unsigned processors);
Result<Launch> launch(const AttentionParams& params, Type type, unsigned processors);
Result<Launch> launch(const MoveParams& params, std::size_t element_bytes, unsigned processors);
Result<Launch> launch(const GatherParams& params, std::size_t element_bytes, unsigned processors);
Result<Launch> launch(const CompareParams& params, Type type, unsigned processors);
Result<Launch> launch(const SelectParams& params, std::size_t element_bytes, unsigned processors);
Result<Launch> launch(const CastParams& params, Type from, Type to, unsigned processors);
Result<Launch> launch(const MarkParams& params);

// What computes attention of these extents and strides: tensor cores (f16 and bf16, heads of a multiple of 8
// up to 128, 1 to 65,536 keys, all strides of whole 16 bytes: the tensors' addresses have to be, too), one
// thread an element (heads up to 128, at most 512 keys), or nothing.
enum class AttentionBy { nothing, elements, tensor_cores };
AttentionBy attention_by(const AttentionParams& params, Type type);
// How many warps share the keys, so that a device of so many multiprocessors has enough to do.
std::int32_t key_warps(const AttentionParams& params, unsigned processors);
// Of the kernels for attention; to be raised when they change, since choices that were measured are kept.
inline constexpr int attention_version = 1;

// The kernels for devices, as cuModuleLoadData takes them. Empty where the build had no nvcc (preset cuda).
std::span<const std::byte> fatbin();

}  // namespace carillon::engine::cuda::kernels
