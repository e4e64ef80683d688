#pragma once

// The kernels (params.h says what each computes). T is the type of elements in memory; sums are in float.

#include "carillon/engine/cuda/kernels/attention_bodies.h"
#include "carillon/engine/cuda/kernels/elements.h"
#include "carillon/engine/cuda/kernels/kernel.h"
#include "carillon/engine/cuda/kernels/params.h"

namespace carillon::engine::cuda::kernels {

template <typename T>
struct Elementwise {
  using Params = ElementwiseParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) {
    return in_tiles(product(p.extents, p.rank), tile_elements);
  }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const std::int64_t begin = tile * tile_elements;
    const std::int64_t n = least(tile_elements, product(p.extents, p.rank) - begin);
    const int operands = arity(p.op);
    bool packs = aligned(p.output);
    bool single[3] = {true, true, true};
    for (int i = 0; i < operands; ++i) {
      single[i] = repeated(p.extents, p.strides[i], p.rank);
      packs = packs && (single[i] ||
                        (in_packs(per_pack<T>, p.extents, p.strides[i], p.rank) && aligned(p.operands[i])));
    }
    each<per_pack<T>>(n, packs, [&](std::int64_t at, auto count) {
      constexpr int N = decltype(count)::value;
      Pack<T, N> in[3];
      for (int i = 0; i < 3; ++i) {
        if (i < operands) {
          in[i] = operand<N, T, true>(p.operands[i], single[i], begin + at, p.extents, p.strides[i], p.rank);
        } else {
          for (int j = 0; j < N; ++j) in[i].at[j] = T{};
        }
      }
      Pack<T, N> out;
      for (int j = 0; j < N; ++j)
        out.at[j] = arithmetic(p.op, in[0].at[j], in[1].at[j], in[2].at[j], p.activation, p.low, p.high);
      store<T, N>(as<T>(p.output) + begin + at, out);
    });
  }
};

template <typename T>
struct Compare {
  using Params = CompareParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) {
    return in_tiles(product(p.extents, p.rank), tile_elements);
  }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const std::int64_t begin = tile * tile_elements;
    const std::int64_t n = least(tile_elements, product(p.extents, p.rank) - begin);
    bool packs = aligned(p.output), single[2];
    for (int i = 0; i < 2; ++i) {
      single[i] = repeated(p.extents, p.strides[i], p.rank);
      packs = packs && (single[i] || (dense(p.extents, p.strides[i], p.rank) && aligned(p.operands[i])));
    }
    each<per_pack<T>>(n, packs, [&](std::int64_t at, auto count) {
      constexpr int N = decltype(count)::value;
      const auto a = operand<N, T>(p.operands[0], single[0], begin + at, p.extents, p.strides[0], p.rank);
      const auto b = operand<N, T>(p.operands[1], single[1], begin + at, p.extents, p.strides[1], p.rank);
      Pack<Bool, N> out;
      for (int j = 0; j < N; ++j) out.at[j] = compared(p.comparison, a.at[j], b.at[j]);
      store<Bool, N>(as<Bool>(p.output) + begin + at, out);
    });
  }
};

// T: an unsigned integer as large as an element.
template <typename T>
struct Select {
  using Params = SelectParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) {
    return in_tiles(product(p.extents, p.rank), tile_elements);
  }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const std::int64_t begin = tile * tile_elements;
    const std::int64_t n = least(tile_elements, product(p.extents, p.rank) - begin);
    const auto fits = [&](const void* from, const std::int64_t* strides, bool is_single) {
      return is_single || (dense(p.extents, strides, p.rank) && aligned(from));
    };
    const bool one = repeated(p.extents, p.condition_strides, p.rank);
    const bool single[2] = {repeated(p.extents, p.strides[0], p.rank),
                            repeated(p.extents, p.strides[1], p.rank)};
    const bool packs = aligned(p.output) && fits(p.condition, p.condition_strides, one) &&
                       fits(p.operands[0], p.strides[0], single[0]) &&
                       fits(p.operands[1], p.strides[1], single[1]);
    each<per_pack<T>>(n, packs, [&](std::int64_t at, auto count) {
      constexpr int N = decltype(count)::value;
      const auto is = operand<N, Bool>(p.condition, one, begin + at, p.extents, p.condition_strides, p.rank);
      const auto a = operand<N, T>(p.operands[0], single[0], begin + at, p.extents, p.strides[0], p.rank);
      const auto b = operand<N, T>(p.operands[1], single[1], begin + at, p.extents, p.strides[1], p.rank);
      Pack<T, N> out;
      for (int j = 0; j < N; ++j) out.at[j] = chosen(is.at[j], a.at[j], b.at[j]);
      store<T, N>(as<T>(p.output) + begin + at, out);
    });
  }
};

// T: an unsigned integer as large as an element.
template <typename T>
struct Move {
  using Params = MoveParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) {
    return in_tiles(product(p.extents, p.rank), tile_elements);
  }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const std::int64_t begin = tile * tile_elements;
    const std::int64_t n = least(tile_elements, product(p.extents, p.rank) - begin);
    const bool packs = in_packs(per_pack<T>, p.extents, p.from, p.rank) &&
                       in_packs(per_pack<T>, p.extents, p.to, p.rank) && aligned(p.input) &&
                       aligned(p.output);
    each<per_pack<T>>(n, packs, [&](std::int64_t at, auto count) {
      constexpr int N = decltype(count)::value;
      const auto index = static_cast<std::uint32_t>(begin + at);
      const T* const from = as<T>(p.input) + offset_of(index, p.extents, p.from, p.rank);
      T* const to = as<T>(p.output) + offset_of(index, p.extents, p.to, p.rank);
      if constexpr (N > 1)
        store<T, N>(to, load<T, N>(from));
      else
        *to = *from;
    });
  }
};

template <typename From, typename To>
struct Cast {
  using Params = CastParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) { return in_tiles(p.count, tile_elements); }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const std::int64_t begin = tile * tile_elements;
    constexpr int both = per_pack<From> < per_pack<To> ? per_pack<From> : per_pack<To>;
    each<both>(least(tile_elements, p.count - begin), aligned(p.input) && aligned(p.output),
               [&](std::int64_t at, auto count) {
                 constexpr int N = decltype(count)::value;
                 const auto in = load<From, N>(as<From>(p.input) + begin + at);
                 Pack<To, N> out;
                 for (int j = 0; j < N; ++j) out.at[j] = convert<To>(in.at[j]);
                 store<To, N>(as<To>(p.output) + begin + at, out);
               });
  }
};

// T: an unsigned integer as large as an element. A tile is up to tile_elements of one index's.
template <typename T>
struct Gather {
  using Params = GatherParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) {
    return p.outer * p.count * in_tiles(p.inner, tile_elements);
  }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const std::int64_t parts = in_tiles(p.inner, tile_elements);
    const std::int64_t row = tile / parts, begin = tile % parts * tile_elements;
    std::int64_t index = p.indices[row % p.count];
    if (index < 0) index += p.axis;
    const bool inside = index >= 0 && index < p.axis;
    const T* from = as<T>(p.input) + (inside ? (row / p.count * p.axis + index) * p.inner + begin : 0);
    T* to = as<T>(p.output) + row * p.inner + begin;
    each<per_pack<T>>(least(tile_elements, p.inner - begin), aligned(from) && aligned(to),
                      [&](std::int64_t at, auto count) {
                        constexpr int N = decltype(count)::value;
                        Pack<T, N> pack{};
                        if (inside) pack = load<T, N>(from + at);
                        store<T, N>(to + at, pack);
                      });
  }
};

// A tile is one result; or, where results lie beside each other as what they are of does (a mean over images
// whose channels come last), up to `wide` packs of them.
template <typename T>
struct Reduce {
  using Params = ReduceParams;
  static constexpr int pack = per_pack<T>, wide = 16;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) {
    const std::int64_t results = product(p.kept, p.kept_rank);
    if (results == 0 || !beside(p)) return results;
    const std::int64_t row = p.kept[p.kept_rank - 1];
    return results / row * in_tiles(row, wide * pack);
  }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    if (beside(p))
      packs(p, tile);
    else
      one(p, tile);
  }

 private:
  static CARILLON_DEVICE bool beside(const Params& p) {
    if (p.kept_rank == 0 || p.kept_strides[p.kept_rank - 1] != 1 || !aligned(p.input) || !aligned(p.output) ||
        !in_packs(pack, p.kept, p.kept_strides, p.kept_rank) || p.kept[p.kept_rank - 1] % pack != 0)
      return false;
    for (int i = 0; i < p.reduced_rank; ++i) {
      if (p.reduced_strides[i] % pack != 0) return false;
    }
    return true;
  }
  static CARILLON_DEVICE float none(const Params& p) {
    return p.reduction == Reduction::max ? -INFINITY : 0.0F;
  }
  static CARILLON_DEVICE float both(const Params& p, float a, float b) {
    return p.reduction == Reduction::max ? Max{}(a, b) : a + b;
  }
  static CARILLON_DEVICE T result(const Params& p, float total, std::int64_t n) {
    return from_float<T>(p.reduction == Reduction::mean ? total / static_cast<float>(n) : total);
  }

  // Threads fall into groups of `lanes`, of which each takes every so-manieth of what is reduced; the first
  // group joins what they found.
  static CARILLON_DEVICE void packs(const Params& p, std::int64_t tile) {
    const std::int64_t row = p.kept[p.kept_rank - 1], chunks = in_tiles(row, wide * pack);
    const std::int64_t first = tile / chunks * row + tile % chunks * wide * pack;
    const auto count = static_cast<int>(least(wide * pack, row - tile % chunks * wide * pack) / pack);
    const T* from =
        as<T>(p.input) + offset_of(static_cast<std::uint32_t>(first), p.kept, p.kept_strides, p.kept_rank);
    const std::int64_t n = product(p.reduced, p.reduced_rank);
    int lanes = threads() < wide ? 1 : wide;
    while (lanes > 1 && lanes / 2 >= count) lanes /= 2;
    const int groups = threads() / lanes;
    float* const found = shared_of<block_threads * pack>();
    for (int begin = 0; begin < count; begin += lanes) {
      const int at = begin + thread() % lanes, group = thread() / lanes;
      float total[pack];
      for (int j = 0; j < pack; ++j) total[j] = none(p);
      for (std::int64_t i = group; at < count && i < n; i += groups) {
        const auto in = load<T, pack>(
            from + at * pack +
            offset_of(static_cast<std::uint32_t>(i), p.reduced, p.reduced_strides, p.reduced_rank));
        for (int j = 0; j < pack; ++j) total[j] = both(p, total[j], to_float(in.at[j]));
      }
      for (int j = 0; j < pack; ++j) found[j * threads() + thread()] = total[j];
      sync();
      if (group == 0 && at < count) {
        Pack<T, pack> out;
        for (int j = 0; j < pack; ++j) {
          float all = none(p);
          for (int g = 0; g < groups; ++g) all = both(p, all, found[j * threads() + g * lanes + thread()]);
          out.at[j] = result(p, all, n);
        }
        store<T, pack>(as<T>(p.output) + first + at * pack, out);
      }
      sync();  // the next round writes what was found
    }
  }

  static CARILLON_DEVICE void one(const Params& p, std::int64_t tile) {
    const T* from =
        as<T>(p.input) + offset_of(static_cast<std::uint32_t>(tile), p.kept, p.kept_strides, p.kept_rank);
    const std::int64_t n = product(p.reduced, p.reduced_rank);
    float total = none(p);
    each<per_pack<T>>(n, aligned(from) && dense(p.reduced, p.reduced_strides, p.reduced_rank),
                      [&](std::int64_t at, auto count) {
                        constexpr int N = decltype(count)::value;
                        const std::int64_t offset = N > 1
                                                        ? at
                                                        : offset_of(static_cast<std::uint32_t>(at), p.reduced,
                                                                    p.reduced_strides, p.reduced_rank);
                        const auto in = load<T, N>(from + offset);
                        for (int j = 0; j < N; ++j) total = both(p, total, to_float(in.at[j]));
                      });
    total = p.reduction == Reduction::max ? block_max(total) : block_sum(total);
    if (thread() == 0) as<T>(p.output)[tile] = result(p, total, n);
  }
};

template <typename T>
struct Softmax {
  using Params = SoftmaxParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) { return p.columns == 0 ? 0 : p.rows; }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const T* from = as<T>(p.input) + tile * p.columns;
    T* to = as<T>(p.output) + tile * p.columns;
    const bool packs = aligned(from) && aligned(to);
    float largest = -INFINITY;
    each<per_pack<T>>(p.columns, packs, [&](std::int64_t at, auto count) {
      const auto in = load<T, decltype(count)::value>(from + at);
      for (const T x : in.at) largest = Max{}(largest, to_float(x));
    });
    largest = block_max(largest);
    float total = 0;
    each<per_pack<T>>(p.columns, packs, [&](std::int64_t at, auto count) {
      const auto in = load<T, decltype(count)::value>(from + at);
      for (const T x : in.at) total += expf(to_float(x) - largest);
    });
    const float factor = 1.0F / block_sum(total);
    each<per_pack<T>>(p.columns, packs, [&](std::int64_t at, auto count) {
      auto pack = load<T, decltype(count)::value>(from + at);
      for (T& x : pack.at) x = from_float<T>(expf(to_float(x) - largest) * factor);
      store(to + at, pack);
    });
  }
};

template <typename T>
struct LayerNorm {
  using Params = LayerNormParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) { return p.columns == 0 ? 0 : p.rows; }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const T* from = as<T>(p.input) + tile * p.columns;
    const T* residual = p.residual == nullptr ? nullptr : as<T>(p.residual) + tile * p.columns;
    const T* scale = as<T>(p.scale);
    const T* bias = as<T>(p.bias);
    T* to = as<T>(p.output) + tile * p.columns;
    const bool packs = aligned(from) && aligned(to) && aligned(residual) && aligned(scale) && aligned(bias);
    // body(x, column, count): x[0 .. count) of the row, in float.
    const auto row = [&](auto body) {
      each<per_pack<T>>(p.columns, packs, [&](std::int64_t at, auto count) {
        constexpr int N = decltype(count)::value;
        float x[N];
        const auto in = load<T, N>(from + at);
        for (int j = 0; j < N; ++j) x[j] = to_float(in.at[j]);
        if (residual != nullptr) {
          const auto more = load<T, N>(residual + at);
          for (int j = 0; j < N; ++j) x[j] += to_float(more.at[j]);
        }
        body(x, at, count);
      });
    };
    float total = 0, squares = 0;
    row([&](const float* x, std::int64_t, auto count) {
      for (int j = 0; j < decltype(count)::value; ++j) total += x[j];
    });
    const float mean = block_sum(total) / static_cast<float>(p.columns);
    row([&](const float* x, std::int64_t, auto count) {
      for (int j = 0; j < decltype(count)::value; ++j) squares += (x[j] - mean) * (x[j] - mean);
    });
    const float factor = 1.0F / sqrtf(block_sum(squares) / static_cast<float>(p.columns) + p.epsilon);
    row([&](const float* x, std::int64_t at, auto count) {
      constexpr int N = decltype(count)::value;
      auto pack = load<T, N>(scale + at);
      Pack<T, N> add{};
      if (bias != nullptr) add = load<T, N>(bias + at);
      for (int j = 0; j < N; ++j) {
        pack.at[j] = from_float<T>((x[j] - mean) * factor * to_float(pack.at[j]) + to_float(add.at[j]));
      }
      store(to + at, pack);
    });
  }
};

// Calls body(pixel, first channel, count constant) for each output of a tile; `pixel` counts outputs of the
// image.
template <typename T, typename Body>
CARILLON_DEVICE void window_tile(const Window& w, std::int64_t tile, bool packs, Body body) {
  const std::int64_t all = static_cast<std::int64_t>(w.batch) * w.out_height * w.out_width * w.channels;
  const std::int64_t begin = tile * tile_elements;
  each<per_pack<T>>(least(tile_elements, all - begin), packs && w.channels % per_pack<T> == 0,
                    [&](std::int64_t at, auto count) {
                      const auto index = static_cast<std::uint32_t>(begin + at),
                                 channels = static_cast<std::uint32_t>(w.channels);
                      body(index / channels, static_cast<int>(index % channels), count);
                    });
}
// Calls body(tap, offset of the input's pixel) for each tap of output `pixel` that lies in the image.
template <typename Body>
CARILLON_DEVICE void taps(const Window& w, std::uint32_t pixel, Body body) {
  const auto width = static_cast<std::uint32_t>(w.out_width),
             height = static_cast<std::uint32_t>(w.out_height);
  const auto column = static_cast<int>(pixel % width), row = static_cast<int>(pixel / width % height);
  const std::uint32_t image = pixel / width / height * static_cast<std::uint32_t>(w.height);
  for (int i = 0; i < w.kernel_h; ++i) {
    const int y = row * w.stride_h - w.pad_top + i * w.dilation_h;
    if (y < 0 || y >= w.height) continue;
    const std::uint32_t line = (image + static_cast<std::uint32_t>(y)) * static_cast<std::uint32_t>(w.width);
    // Unrolled, some kernels spill registers.
    CARILLON_NO_UNROLL
    for (int j = 0; j < w.kernel_w; ++j) {
      const int x = column * w.stride_w - w.pad_left + j * w.dilation_w;
      if (x < 0 || x >= w.width) continue;
      body(i * w.kernel_w + j,
           (line + static_cast<std::uint32_t>(x)) * static_cast<std::uint32_t>(w.channels));
    }
  }
}
CARILLON_DEVICE std::int64_t window_tiles(const Window& w) {
  return in_tiles(static_cast<std::int64_t>(w.batch) * w.out_height * w.out_width * w.channels,
                  tile_elements);
}

template <typename T>
struct Pool {
  using Params = PoolParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) { return window_tiles(p.window); }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const Window& w = p.window;
    window_tile<T>(w, tile, aligned(p.input) && aligned(p.output),
                   [&](std::uint32_t pixel, int channel, auto count) {
                     constexpr int N = decltype(count)::value;
                     float total[N];
                     for (float& x : total) x = p.max ? -INFINITY : 0.0F;
                     int inside = 0;
                     taps(w, pixel, [&](int, std::uint32_t offset) {
                       const auto in = load<T, N>(as<T>(p.input) + offset + channel);
                       for (int j = 0; j < N; ++j) {
                         const float x = to_float(in.at[j]);
                         total[j] = p.max ? Max{}(total[j], x) : total[j] + x;
                       }
                       ++inside;
                     });
                     const int divisor = p.max ? 1 : p.count_padding ? w.kernel_h * w.kernel_w : inside;
                     const float factor = 1.0F / static_cast<float>(divisor);
                     Pack<T, N> out;
                     for (int j = 0; j < N; ++j) out.at[j] = from_float<T>(total[j] * factor);
                     store(as<T>(p.output) + static_cast<std::int64_t>(pixel) * w.channels + channel, out);
                   });
  }
};

template <typename T>
struct Depthwise {
  using Params = DepthwiseParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) { return window_tiles(p.window); }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const Window& w = p.window;
    const bool packs = aligned(p.input) && aligned(p.output) && aligned(p.weights) && aligned(p.bias);
    window_tile<T>(w, tile, packs, [&](std::uint32_t pixel, int channel, auto count) {
      constexpr int N = decltype(count)::value;
      float total[N] = {};
      if (p.bias != nullptr) {
        const auto bias = load<T, N>(as<T>(p.bias) + channel);
        for (int j = 0; j < N; ++j) total[j] = to_float(bias.at[j]);
      }
      taps(w, pixel, [&](int tap, std::uint32_t offset) {
        const auto in = load<T, N>(as<T>(p.input) + offset + channel);
        const auto weight =
            load<T, N>(as<T>(p.weights) + static_cast<std::int64_t>(tap) * w.channels + channel);
        for (int j = 0; j < N; ++j) total[j] += to_float(in.at[j]) * to_float(weight.at[j]);
      });
      Pack<T, N> out;
      for (int j = 0; j < N; ++j) out.at[j] = from_float<T>(activate(p.activation, total[j]));
      store(as<T>(p.output) + static_cast<std::int64_t>(pixel) * w.channels + channel, out);
    });
  }
};

template <typename T>
struct Mark {
  using Params = MarkParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params&) { return 1; }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t) {
    if (thread() == 0) *static_cast<volatile T*>(p.output) = p.value;
  }
};

// X(symbol, kernel): all that there are.
#define CARILLON_KERNELS_OF(X, type, T) \
  X(elementwise_##type, Elementwise<T>) \
  X(reduce_##type, Reduce<T>)           \
  X(softmax_##type, Softmax<T>)         \
  X(layer_norm_##type, LayerNorm<T>)    \
  X(pool_##type, Pool<T>)               \
  X(depthwise_##type, Depthwise<T>)     \
  X(attention_##type, Attention<T>)
#define CARILLON_TENSOR_ATTENTION(X, type, T)                 \
  X(attention_32_##type, CARILLON_TENSOR_ATTENTION_OF(T, 32)) \
  X(attention_64_##type, CARILLON_TENSOR_ATTENTION_OF(T, 64)) \
  X(attention_96_##type, CARILLON_TENSOR_ATTENTION_OF(T, 96)) \
  X(attention_128_##type, CARILLON_TENSOR_ATTENTION_OF(T, 128))
#define CARILLON_CASTS(X, type, T)                     \
  X(cast_i32_##type, CARILLON_CAST(std::int32_t, T))   \
  X(cast_i64_##type, CARILLON_CAST(std::int64_t, T))   \
  X(cast_bool_##type, CARILLON_CAST(Bool, T))          \
  X(cast_##type##_i32, CARILLON_CAST(T, std::int32_t)) \
  X(cast_##type##_i64, CARILLON_CAST(T, std::int64_t)) \
  X(cast_##type##_bool, CARILLON_CAST(T, Bool))
#define CARILLON_KERNELS(X)                                  \
  CARILLON_KERNELS_OF(X, f32, float)                         \
  CARILLON_KERNELS_OF(X, f16, Half)                          \
  CARILLON_KERNELS_OF(X, bf16, Bfloat)                       \
  CARILLON_TENSOR_ATTENTION(X, f16, Half)                    \
  CARILLON_TENSOR_ATTENTION(X, bf16, Bfloat)                 \
  X(move_1, Move<std::uint8_t>)                              \
  X(move_2, Move<std::uint16_t>)                             \
  X(move_4, Move<std::uint32_t>)                             \
  X(move_8, Move<std::uint64_t>)                             \
  X(gather_1, Gather<std::uint8_t>)                          \
  X(gather_2, Gather<std::uint16_t>)                         \
  X(gather_4, Gather<std::uint32_t>)                         \
  X(gather_8, Gather<std::uint64_t>)                         \
  X(elementwise_i32, Elementwise<std::int32_t>)              \
  X(elementwise_i64, Elementwise<std::int64_t>)              \
  X(compare_f32, Compare<float>)                             \
  X(compare_f16, Compare<Half>)                              \
  X(compare_bf16, Compare<Bfloat>)                           \
  X(compare_i32, Compare<std::int32_t>)                      \
  X(compare_i64, Compare<std::int64_t>)                      \
  X(compare_bool, Compare<Bool>)                             \
  X(select_1, Select<std::uint8_t>)                          \
  X(select_2, Select<std::uint16_t>)                         \
  X(select_4, Select<std::uint32_t>)                         \
  X(select_8, Select<std::uint64_t>)                         \
  X(mark, Mark<unsigned>)                                    \
  CARILLON_CASTS(X, f32, float)                              \
  CARILLON_CASTS(X, f16, Half)                               \
  CARILLON_CASTS(X, bf16, Bfloat)                            \
  X(cast_i32_i64, CARILLON_CAST(std::int32_t, std::int64_t)) \
  X(cast_i64_i32, CARILLON_CAST(std::int64_t, std::int32_t)) \
  X(cast_i32_bool, CARILLON_CAST(std::int32_t, Bool))        \
  X(cast_i64_bool, CARILLON_CAST(std::int64_t, Bool))        \
  X(cast_bool_i32, CARILLON_CAST(Bool, std::int32_t))        \
  X(cast_bool_i64, CARILLON_CAST(Bool, std::int64_t))        \
  X(cast_f32_f16, CARILLON_CAST(float, Half))                \
  X(cast_f32_bf16, CARILLON_CAST(float, Bfloat))             \
  X(cast_f16_f32, CARILLON_CAST(Half, float))                \
  X(cast_f16_bf16, CARILLON_CAST(Half, Bfloat))              \
  X(cast_bf16_f32, CARILLON_CAST(Bfloat, float))             \
  X(cast_bf16_f16, CARILLON_CAST(Bfloat, Half))
#define CARILLON_CAST(From, To) Cast<From, To>
#define CARILLON_TENSOR_ATTENTION_OF(T, wide) TensorAttention<T, wide>

}  // namespace carillon::engine::cuda::kernels
