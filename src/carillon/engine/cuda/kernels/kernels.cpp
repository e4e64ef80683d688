#include "carillon/engine/cuda/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "carillon/engine/cuda/kernels/bodies.h"
#include "carillon/engine/cuda/kernels/describe.h"

namespace carillon::engine::cuda::kernels {
namespace {

// The sizes of the elements that a kernel reads and writes.
template <typename K>
struct Sizes;
template <template <typename> typename K, typename T>
struct Sizes<K<T>> {
  static constexpr std::size_t in = sizeof(T), out = sizeof(T);
};
template <typename T>
struct Sizes<Compare<T>> {
  static constexpr std::size_t in = sizeof(T), out = sizeof(Bool);
};
template <typename T, int Wide>
struct Sizes<TensorAttention<T, Wide>> {
  static constexpr std::size_t in = sizeof(T), out = sizeof(T);
};
template <typename From, typename To>
struct Sizes<Cast<From, To>> {
  static constexpr std::size_t in = sizeof(From), out = sizeof(To);
};

std::int64_t inputs_of(const Window& w) {
  return static_cast<std::int64_t>(w.batch) * w.height * w.width * w.channels;
}
std::int64_t outputs_of(const Window& w) {
  return static_cast<std::int64_t>(w.batch) * w.out_height * w.out_width * w.channels;
}

void note(const ElementwiseParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  const auto extents = extents_of(p.extents, p.rank);
  for (int i = 0; i < arity(p.op); ++i) {
    accesses.read(p.operands[i], extents, strides_of(p.strides[i], p.rank), in);
  }
  accesses.write(p.output, product(p.extents, p.rank), out);
}
void note(const CompareParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  const auto extents = extents_of(p.extents, p.rank);
  for (int i = 0; i < 2; ++i) accesses.read(p.operands[i], extents, strides_of(p.strides[i], p.rank), in);
  accesses.write(p.output, product(p.extents, p.rank), out);
}
void note(const SelectParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  const auto extents = extents_of(p.extents, p.rank);
  accesses.read(p.condition, extents, strides_of(p.condition_strides, p.rank), sizeof(Bool));
  for (int i = 0; i < 2; ++i) accesses.read(p.operands[i], extents, strides_of(p.strides[i], p.rank), in);
  accesses.write(p.output, product(p.extents, p.rank), out);
}
void note(const MoveParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  const auto extents = extents_of(p.extents, p.rank);
  accesses.read(p.input, extents, strides_of(p.from, p.rank), in);
  accesses.write(p.output, extents, strides_of(p.to, p.rank), out);
}
void note(const CastParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  accesses.read(p.input, p.count, in);
  accesses.write(p.output, p.count, out);
}
void note(const GatherParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  accesses.read(p.input, p.outer * p.axis * p.inner, in);
  accesses.read(p.indices, p.count, sizeof(std::int64_t));
  accesses.write(p.output, p.outer * p.count * p.inner, out);
}
void note(const ReduceParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  auto extents = extents_of(p.kept, p.kept_rank);
  std::vector<std::int64_t> strides(p.kept_strides, p.kept_strides + p.kept_rank);
  extents.insert(extents.end(), p.reduced, p.reduced + p.reduced_rank);
  strides.insert(strides.end(), p.reduced_strides, p.reduced_strides + p.reduced_rank);
  accesses.read(p.input, extents, strides, in);
  accesses.write(p.output, product(p.kept, p.kept_rank), out);
}
void note(const SoftmaxParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  accesses.read(p.input, p.rows * p.columns, in);
  accesses.write(p.output, p.rows * p.columns, out);
}
void note(const LayerNormParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  accesses.read(p.input, p.rows * p.columns, in);
  accesses.read(p.residual, p.rows * p.columns, in);
  accesses.read(p.scale, p.columns, in);
  accesses.read(p.bias, p.columns, in);
  accesses.write(p.output, p.rows * p.columns, out);
}
void note(const PoolParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  accesses.read(p.input, inputs_of(p.window), in);
  accesses.write(p.output, outputs_of(p.window), out);
}
void note(const DepthwiseParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  const Window& w = p.window;
  accesses.read(p.input, inputs_of(w), in);
  accesses.read(p.weights, static_cast<std::int64_t>(w.kernel_h) * w.kernel_w * w.channels, in);
  accesses.read(p.bias, w.channels, in);
  accesses.write(p.output, outputs_of(w), out);
}
void note(const AttentionParams& p, std::size_t in, std::size_t out, Accesses& accesses) {
  const auto tensor = [&](std::int64_t positions, const std::int64_t* strides, auto put) {
    put(std::array<std::int64_t, 5>{p.outer[0], p.outer[1], p.outer[2], positions, p.head_size},
        std::array<std::int64_t, 5>{strides[0], strides[1], strides[2], strides[3], 1});
  };
  const auto reads = [&](const void* at, std::int64_t positions, const std::int64_t* strides) {
    tensor(positions, strides, [&](auto e, auto s) { accesses.read(at, e, s, in); });
  };
  reads(p.q, p.queries, p.q_strides);
  reads(p.k, p.keys, p.k_strides);
  reads(p.v, p.keys, p.v_strides);
  accesses.read(p.mask, std::array<std::int64_t, 5>{p.outer[0], p.outer[1], p.outer[2], p.queries, p.keys},
                p.mask_strides, in);
  tensor(p.queries, p.out_strides, [&](auto e, auto s) { accesses.write(p.output, e, s, out); });
}

void note(const MarkParams& p, std::size_t, std::size_t out, Accesses& accesses) {
  accesses.write(p.output, 1, out);
}

template <typename K>
constexpr Kernel kernel_of(std::string_view symbol) {
  using Params = typename K::Params;
  return {symbol,
          sizeof(Params),
          offsetof(Params, stop),
          [](const void* p) { return K::tiles(*static_cast<const Params*>(p)); },
          [](const void* p) { kernels::run<K>(*static_cast<const Params*>(p)); },
          [](const void* p, std::int64_t tiles) {
            const auto& params = *static_cast<const Params*>(p);
            kernels::run_until<K>(params, [&] { return tiles-- <= 0 || stopped(params.stop); });
          },
          [](const void* p, std::vector<Bytes>& reads, std::vector<Bytes>& writes) {
            Accesses accesses(reads, writes);
            note(*static_cast<const Params*>(p), Sizes<K>::in, Sizes<K>::out, accesses);
          }};
}

#define CARILLON_ENTRY(name, ...) kernel_of<__VA_ARGS__>("carillon_" #name),
constexpr Kernel table[] = {CARILLON_KERNELS(CARILLON_ENTRY)};
#undef CARILLON_ENTRY

std::string_view name_of(Type type) {
  switch (type) {
    case Type::f32:
      return "f32";
    case Type::f16:
      return "f16";
    case Type::bf16:
      return "bf16";
    case Type::i32:
      return "i32";
    case Type::i64:
      return "i64";
    case Type::boolean:
      return "bool";
  }
  return {};
}

template <typename Params>
Result<Launch> launch_of(const Params& params, std::string name, unsigned processors) {
  const Kernel* kernel = find("carillon_" + name);
  if (kernel == nullptr) return invalid("CUDA kernels: there is no kernel " + name);
  if (processors == 0)
    return invalid("CUDA kernel " + name + ": a device of 0 multiprocessors, 1 or more wanted");
  return launch_in_tiles(*kernel, kernel->tiles(&params), processors);
}

constexpr std::int64_t too_many = std::int64_t{1} << 31;

bool countable(std::initializer_list<std::int64_t> extents) {
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t extent : extents) {
    if (extent < 0 || extent >= too_many) return false;
    empty = empty || extent == 0;
    if (extent > 0 && !empty) count *= extent;
    if (count >= too_many) return false;
  }
  return true;
}
bool countable(const std::uint32_t* extents, int rank) {
  if (rank < 0 || rank > max_rank) return false;
  std::int64_t count = 1;
  for (int i = 0; i < rank; ++i) {
    count *= std::max<std::int64_t>(extents[i], 1);
    if (count >= too_many) return false;
  }
  return true;
}
bool sound(const Window& w) {
  return countable({w.batch, w.height, w.width, w.channels}) &&
         countable({w.batch, w.out_height, w.out_width, w.channels}) &&
         countable({w.kernel_h, w.kernel_w, w.channels}) &&
         std::min({w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.dilation_h, w.dilation_w}) > 0;
}
std::unexpected<Error> refuse(std::string_view kernel, std::string_view wanted) {
  return invalid("CUDA kernel " + std::string(kernel) + ": wanted " + std::string(wanted));
}
constexpr std::string_view shape = "a rank of at most 6 and fewer than 2^31 elements";

std::string typed(std::string_view kernel, Type type) {
  return std::string(kernel) + "_" + std::string(name_of(type));
}

}  // namespace

std::span<const Kernel> all() {
  return table;
}

const Kernel* find(std::string_view symbol) {
  const auto* found = std::ranges::find(table, symbol, &Kernel::symbol);
  return found == std::end(table) ? nullptr : found;
}

Result<Launch> launch(const ElementwiseParams& p, Type type, unsigned processors) {
  if (!countable(p.extents, p.rank)) return refuse("elementwise", shape);
  return launch_of(p, typed("elementwise", type), processors);
}
Result<Launch> launch(const CompareParams& p, Type type, unsigned processors) {
  if (!countable(p.extents, p.rank)) return refuse("compare", shape);
  return launch_of(p, typed("compare", type), processors);
}
Result<Launch> launch(const SelectParams& p, std::size_t element_bytes, unsigned processors) {
  if (!countable(p.extents, p.rank)) return refuse("select", shape);
  return launch_of(p, "select_" + std::to_string(element_bytes), processors);
}
Result<Launch> launch(const ReduceParams& p, Type type, unsigned processors) {
  if (!countable(p.kept, p.kept_rank) || !countable(p.reduced, p.reduced_rank))
    return refuse("reduce", shape);
  return launch_of(p, typed("reduce", type), processors);
}
Result<Launch> launch(const SoftmaxParams& p, Type type, unsigned processors) {
  if (!countable({p.rows, p.columns})) return refuse("softmax", shape);
  return launch_of(p, typed("softmax", type), processors);
}
Result<Launch> launch(const LayerNormParams& p, Type type, unsigned processors) {
  if (!countable({p.rows, p.columns})) return refuse("layer_norm", shape);
  return launch_of(p, typed("layer_norm", type), processors);
}
Result<Launch> launch(const PoolParams& p, Type type, unsigned processors) {
  if (!sound(p.window))
    return refuse("pool", "a window with extents and steps, and fewer than 2^31 elements");
  return launch_of(p, typed("pool", type), processors);
}
Result<Launch> launch(const DepthwiseParams& p, Type type, unsigned processors) {
  if (!sound(p.window))
    return refuse("depthwise", "a window with extents and steps, and fewer than 2^31 elements");
  return launch_of(p, typed("depthwise", type), processors);
}
AttentionBy attention_by(const AttentionParams& p, Type type) {
  if (!countable({p.outer[0], p.outer[1], p.outer[2], p.queries, p.head_size}) ||
      !countable({p.outer[0], p.outer[1], p.outer[2], p.keys, p.head_size}) || p.head_size > 128)
    return AttentionBy::nothing;
  bool whole =
      (type == Type::f16 || type == Type::bf16) && p.head_size % 8 == 0 && p.keys >= 1 && p.keys <= 65536;
  for (const auto* strides : {&p.q_strides, &p.k_strides, &p.v_strides, &p.out_strides})
    for (const std::int64_t stride : *strides) whole = whole && stride % 8 == 0;
  if (whole) return AttentionBy::tensor_cores;
  const bool real = type == Type::f32 || type == Type::f16 || type == Type::bf16;
  return real && p.keys <= 512 ? AttentionBy::elements : AttentionBy::nothing;
}
std::int32_t key_warps(const AttentionParams& p, unsigned processors) {
  constexpr int rows = 16, step = 32;  // of TensorAttention
  const std::int64_t outer = std::int64_t{p.outer[0]} * p.outer[1] * p.outer[2];
  std::int32_t warps = 1;
  while (warps < block_warps && warps * step < p.keys) {
    const std::int64_t queries = rows * (block_warps / warps);
    const bool idle_warps = queries >= 2 * std::int64_t{p.queries};
    const bool idle_processors = outer * ((p.queries + queries - 1) / queries) < 2 * std::int64_t{processors};
    if (!idle_warps && !idle_processors) break;
    warps *= 2;
  }
  return warps;
}
Result<Launch> launch(const AttentionParams& p, Type type, unsigned processors) {
  switch (attention_by(p, type)) {
    case AttentionBy::tensor_cores: {
      if (p.key_warps != 1 && p.key_warps != 2 && p.key_warps != 4 && p.key_warps != 8)
        return refuse("attention", "1, 2, 4 or 8 warps that share the keys");
      const int wide = std::max(1, (p.head_size + 31) / 32) * 32;
      return launch_of(p, typed("attention_" + std::to_string(wide), type), processors);
    }
    case AttentionBy::elements:
      return launch_of(p, typed("attention", type), processors);
    case AttentionBy::nothing:
      break;
  }
  return refuse("attention",
                "heads of at most 128, and at most 512 keys, or 65,536 of heads of whole 16 bytes");
}
Result<Launch> launch(const MoveParams& p, std::size_t element_bytes, unsigned processors) {
  if (!countable(p.extents, p.rank)) return refuse("move", shape);
  return launch_of(p, "move_" + std::to_string(element_bytes), processors);
}
Result<Launch> launch(const GatherParams& p, std::size_t element_bytes, unsigned processors) {
  if (!countable({p.outer, p.count, p.inner}) || !countable({p.outer, p.axis, p.inner})) {
    return refuse("gather", shape);
  }
  return launch_of(p, "gather_" + std::to_string(element_bytes), processors);
}
Result<Launch> launch(const CastParams& p, Type from, Type to, unsigned processors) {
  if (!countable({p.count})) return refuse("cast", shape);
  return launch_of(p, "cast_" + std::string(name_of(from)) + "_" + std::string(name_of(to)), processors);
}
Result<Launch> launch(const MarkParams& p) {
  return launch_of(p, "mark", 1);
}

}  // namespace carillon::engine::cuda::kernels
