#pragma once

// The kernels of attention, one query at a time and by tensor cores (params.h says what they compute). T is
// the type of elements in memory; sums are in float.

#include "carillon/engine/cuda/kernels/elements.h"
#include "carillon/engine/cuda/kernels/kernel.h"
#include "carillon/engine/cuda/kernels/params.h"
#include "carillon/engine/cuda/kernels/warp.h"

namespace carillon::engine::cuda::kernels {

// The index of a tile among all of `outer`, as offsets by some strides.
CARILLON_DEVICE std::int64_t outer_offset(const AttentionParams& p, std::uint32_t index,
                                          const std::int64_t* strides) {
  const auto middle = static_cast<std::uint32_t>(p.outer[1]), inner = static_cast<std::uint32_t>(p.outer[2]);
  const std::uint32_t front = index / inner;
  return front / middle * strides[0] + front % middle * strides[1] + index % inner * strides[2];
}
CARILLON_DEVICE std::int64_t outer_count(const AttentionParams& p) {
  return static_cast<std::int64_t>(p.outer[0]) * p.outer[1] * p.outer[2];
}

// A tile is one query of one head: its scores lie in shared memory.
template <typename T>
struct Attention {
  using Params = AttentionParams;
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) { return outer_count(p) * p.queries; }
  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const auto index = static_cast<std::uint32_t>(tile), queries = static_cast<std::uint32_t>(p.queries);
    const std::uint32_t position = index % queries, outer = index / queries;
    float* scores = shared();
    float* query = shared() + 512;
    const T* q = as<T>(p.q) + outer_offset(p, outer, p.q_strides) + position * p.q_strides[3];
    for (int d = thread(); d < p.head_size; d += threads()) query[d] = to_float(q[d]) * p.scale;
    sync();
    const T* keys = as<T>(p.k) + outer_offset(p, outer, p.k_strides);
    const T* mask = p.mask == nullptr ? nullptr
                                      : as<T>(p.mask) + outer_offset(p, outer, p.mask_strides) +
                                            position * p.mask_strides[3];
    float largest = -INFINITY;
    for (int key = thread(); key < p.keys; key += threads()) {
      const T* k = keys + key * p.k_strides[3];
      float score = 0;
      int d = 0;
      if (aligned(k)) {
        CARILLON_UNROLL_TWICE
        for (; d + per_pack<T> <= p.head_size; d += per_pack<T>) {
          const auto in = load<T, per_pack<T>>(k + d);
          for (int j = 0; j < per_pack<T>; ++j) score += query[d + j] * to_float(in.at[j]);
        }
      }
      CARILLON_NO_UNROLL
      for (; d < p.head_size; ++d) score += query[d] * to_float(k[d]);
      if (mask != nullptr) score += to_float(mask[key * p.mask_strides[4]]);
      scores[key] = score;
      largest = Max{}(largest, score);
    }
    largest = block_max(largest);
    const bool nothing = largest == -INFINITY;
    float total = 0;
    for (int key = thread(); key < p.keys; key += threads()) {
      scores[key] = nothing ? 0.0F : expf(scores[key] - largest);
      total += scores[key];
    }
    total = block_sum(total);  // after which all threads see all scores
    const T* values = as<T>(p.v) + outer_offset(p, outer, p.v_strides);
    T* out = as<T>(p.output) + outer_offset(p, outer, p.out_strides) + position * p.out_strides[3];
    for (int d = thread(); d < p.head_size; d += threads()) {
      float sum = 0;
      for (int key = 0; key < p.keys; ++key) sum += scores[key] * to_float(values[key * p.v_strides[3] + d]);
      out[d] = from_float<T>(nothing ? 0.0F : sum / total);
    }
    sync();  // the next tile writes the scores
  }
};

// By tensor cores. A tile is 16 queries for each of block_warps / key_warps groups of warps; the warps of a
// group share the keys, each with sums of its own, and put these together at the end. All of a warp's
// matrices lie in its registers: queries, keys and values come from memory as fragments, in pieces of 16
// bytes (of values, 8 where fewer than 64 elements of a head are left).
//
// Which element of a head stands in which column of a fragment is ours to choose, as long as both factors of
// a product agree: a lane takes eight neighbours. So of 32 elements, lane % 4 = t has 8t to 8t + 7, which are
// its words of two products one after the other; and of 64 elements of a value, lane / 4 = g has 8g to 8g +
// 7, its columns of eight products. Scores leave their product as the next one wants its left factor: lane t
// has the keys 2t, 2t + 1, 2t + 8 and 2t + 9 of sixteen.
//
// Heads of at most Wide elements, a multiple of 8; addresses and strides of whole 16 bytes.
template <typename T, int Wide>
struct TensorAttention {
  using Params = AttentionParams;
  // Queries of a warp, and keys that it looks at together: no more than registers hold.
  static constexpr int rows = 16, step = Wide > 96 || !by_tensor_cores<T> ? 16 : 32;

  struct State {
    Lanes<FragmentC> out[Wide / 8];  // sums of values, not yet divided by `total`
    Lanes<float> largest[2];         // score of rows group and group + 8, in powers of 2
    Lanes<float> total[2];           // of this lane's weights
  };
  // What one warp hands to another: each lane's part of a State.
  static constexpr int handed = Wide / 8 * 4 + 4;

  static CARILLON_DEVICE int tile_queries(const Params& p) { return rows * (block_warps / p.key_warps); }
  static CARILLON_DEVICE std::int64_t tiles(const Params& p) {
    return p.keys == 0 ? 0 : outer_count(p) * in_tiles(p.queries, tile_queries(p));
  }

  static CARILLON_DEVICE void tile(const Params& p, std::int64_t tile) {
    const std::int64_t groups = in_tiles(p.queries, tile_queries(p));
    const auto outer = static_cast<std::uint32_t>(tile / groups);
    const auto first_of = [&](int warp) {
      return static_cast<int>(tile % groups) * tile_queries(p) + warp / p.key_warps * rows;
    };
    Warps<State> states;
    each_warp([&](int warp) { attend(p, outer, first_of(warp), warp % p.key_warps, states[warp]); });
    for (int apart = 1; apart < p.key_warps; apart *= 2) {
      each_warp([&](int warp) {
        if (warp % (2 * apart) == apart) hand(states[warp], handover(warp / 2));
      });
      sync();
      each_warp([&](int warp) {
        if (warp % (2 * apart) == 0) take(states[warp], handover((warp + apart) / 2));
      });
      sync();
    }
    each_warp([&](int warp) {
      if (warp % p.key_warps == 0) put(p, outer, first_of(warp), states[warp]);
    });
  }

 private:
  static CARILLON_DEVICE float* handover(int slot) {
    return shared_of<block_warps / 2 * handed * warp_lanes>() + slot * handed * warp_lanes;
  }
  static CARILLON_DEVICE float base_of(float largest) { return largest == -INFINITY ? 0.0F : largest; }

  // Sums over the keys that are this warp's: every key_warps-th step from `part` on.
  static CARILLON_DEVICE void attend(const Params& p, std::uint32_t outer, int first, int part,
                                     State& state) {
    each_lane([&](int lane) {
      CARILLON_UNROLL
      for (int i = 0; i < Wide / 8; ++i) state.out[i][lane] = {};
      CARILLON_UNROLL
      for (int r = 0; r < 2; ++r) {
        state.largest[r][lane] = -INFINITY;
        state.total[r][lane] = 0;
      }
    });
    if (first >= p.queries) return;
    const T* q = as<T>(p.q) + outer_offset(p, outer, p.q_strides);
    const T* k = as<T>(p.k) + outer_offset(p, outer, p.k_strides);
    const T* v = as<T>(p.v) + outer_offset(p, outer, p.v_strides);
    const T* mask = p.mask == nullptr ? nullptr : as<T>(p.mask) + outer_offset(p, outer, p.mask_strides);
    Lanes<FragmentA> queries[Wide / 16];
    each_lane([&](int lane) {
      const int group = lane / 4, t = lane % 4;
      CARILLON_UNROLL
      for (int c = 0; c < Wide / 32; ++c) {
        const int d = c * 32 + t * 8;
        Words<8> row[2];
        CARILLON_UNROLL
        for (int r = 0; r < 2; ++r) {
          const int query = first + group + r * 8;
          row[r] = words<8>(q + query * p.q_strides[3] + d, query < p.queries && d < p.head_size);
        }
        CARILLON_UNROLL
        for (int i = 0; i < 8; ++i) queries[c * 2 + i / 4][lane].at[i % 4] = row[i % 2].at[i / 2];
      }
    });
    for (int at = part * step; at < p.keys; at += p.key_warps * step) {
      Lanes<FragmentC> scores[step / 8];
      multiply_by_keys(p, k, at, queries, scores);
      weigh(p, mask, first, at, scores, state);
      add_values(p, v, at, scores, state);
    }
  }

  static CARILLON_DEVICE void multiply_by_keys(const Params& p, const T* k, int at,
                                               const Lanes<FragmentA> (&queries)[Wide / 16],
                                               Lanes<FragmentC> (&scores)[step / 8]) {
    CARILLON_UNROLL
    for (int n = 0; n < step / 8; ++n) {
      each_lane([&](int lane) { scores[n][lane] = {}; });
      CARILLON_UNROLL
      for (int c = 0; c < Wide / 32; ++c) {
        Lanes<FragmentB> keys[2];
        each_lane([&](int lane) {
          const int key = at + n * 8 + lane / 4, d = c * 32 + lane % 4 * 8;
          const auto in = words<8>(k + key * p.k_strides[3] + d, key < p.keys && d < p.head_size);
          CARILLON_UNROLL
          for (int i = 0; i < 4; ++i) keys[i / 2][lane].at[i % 2] = in.at[i];
        });
        multiply_add<T>(queries[c * 2], keys[0], scores[n]);
        multiply_add<T>(queries[c * 2 + 1], keys[1], scores[n]);
      }
    }
  }

  // Scores become weights, relative to the largest score so far, and so do the sums before them.
  static CARILLON_DEVICE void weigh(const Params& p, const T* mask, int first, int at,
                                    Lanes<FragmentC> (&scores)[step / 8], State& state) {
    constexpr float log2_e = 1.4426950408889634F;
    const float scale = p.scale * log2_e;
    Lanes<float> largest[2];
    each_lane([&](int lane) {
      const int group = lane / 4, pair = lane % 4 * 2;
      CARILLON_UNROLL
      for (int r = 0; r < 2; ++r) largest[r][lane] = state.largest[r][lane];
      CARILLON_UNROLL
      for (int n = 0; n < step / 8; ++n) {
        CARILLON_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int query = first + group + i / 2 * 8, key = at + n * 8 + pair + i % 2;
          float score = scores[n][lane].at[i] * scale;
          if (key >= p.keys)
            score = -INFINITY;
          else if (mask != nullptr && query < p.queries)
            score += to_float(mask[query * p.mask_strides[3] + key * p.mask_strides[4]]) * log2_e;
          scores[n][lane].at[i] = score;
          largest[i / 2][lane] = Max{}(largest[i / 2][lane], score);
        }
      }
    });
    CARILLON_UNROLL
    for (int r = 0; r < 2; ++r) {
      combine_across(largest[r], 1, Max{});
      combine_across(largest[r], 2, Max{});
    }
    each_lane([&](int lane) {
      CARILLON_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float base = base_of(largest[r][lane]);
        const float factor = exp2f(state.largest[r][lane] - base);
        state.largest[r][lane] = largest[r][lane];
        state.total[r][lane] *= factor;
        CARILLON_UNROLL
        for (int i = 0; i < Wide / 8; ++i) {
          state.out[i][lane].at[r * 2] *= factor;
          state.out[i][lane].at[r * 2 + 1] *= factor;
        }
        CARILLON_UNROLL
        for (int n = 0; n < step / 8; ++n) {
          CARILLON_UNROLL
          for (int i = r * 2; i < r * 2 + 2; ++i) {
            const float weight = exp2f(scores[n][lane].at[i] - base);
            scores[n][lane].at[i] = weight;
            state.total[r][lane] += weight;
          }
        }
      }
    });
  }

  static CARILLON_DEVICE void add_values(const Params& p, const T* v, int at,
                                         const Lanes<FragmentC> (&weights)[step / 8], State& state) {
    CARILLON_UNROLL
    for (int n = 0; n < step / 8; n += 2) {
      Lanes<FragmentA> left;
      each_lane([&](int lane) {
        CARILLON_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float* pair = weights[n + i / 2][lane].at + i % 2 * 2;
          left[lane].at[i] = packed<T>(pair[0], pair[1]);
        }
      });
      CARILLON_UNROLL
      for (int d = 0; d + 64 <= Wide; d += 64) add_values_of<8>(p, v, at + n * 8, d, left, state);
      if constexpr (Wide % 64 != 0) add_values_of<4>(p, v, at + n * 8, Wide / 64 * 64, left, state);
    }
  }
  // Of sixteen keys, elements [d, d + 8 N).
  template <int N>
  static CARILLON_DEVICE void add_values_of(const Params& p, const T* v, int at, int d,
                                            const Lanes<FragmentA>& left, State& state) {
    Lanes<FragmentB> values[N];
    each_lane([&](int lane) {
      const int own = d + lane / 4 * N;
      Words<N> in[4];
      CARILLON_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = at + lane % 4 * 2 + i % 2 + i / 2 * 8;
        in[i] = words<N>(v + key * p.v_strides[3] + own, key < p.keys && own < p.head_size);
      }
      CARILLON_UNROLL
      for (int j = 0; j < N; ++j) {
        values[j][lane].at[0] = neighbours(in[0], in[1], j);
        values[j][lane].at[1] = neighbours(in[2], in[3], j);
      }
    });
    CARILLON_UNROLL
    for (int j = 0; j < N; ++j) multiply_add<T>(left, values[j], state.out[d / 8 + j]);
  }

  static CARILLON_DEVICE void hand(const State& state, float* to) {
    each_lane([&](int lane) {
      CARILLON_UNROLL
      for (int i = 0; i < Wide / 8 * 4; ++i) to[i * warp_lanes + lane] = state.out[i / 4][lane].at[i % 4];
      float* const rest = to + Wide / 8 * 4 * warp_lanes;
      CARILLON_UNROLL
      for (int r = 0; r < 2; ++r) {
        rest[r * warp_lanes + lane] = state.largest[r][lane];
        rest[(2 + r) * warp_lanes + lane] = state.total[r][lane];
      }
    });
  }
  static CARILLON_DEVICE void take(State& state, const float* from) {
    each_lane([&](int lane) {
      const float* const rest = from + Wide / 8 * 4 * warp_lanes;
      CARILLON_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float theirs = rest[r * warp_lanes + lane];
        const float largest = Max{}(state.largest[r][lane], theirs), base = base_of(largest);
        const float own = exp2f(state.largest[r][lane] - base), other = exp2f(theirs - base);
        state.largest[r][lane] = largest;
        state.total[r][lane] = state.total[r][lane] * own + rest[(2 + r) * warp_lanes + lane] * other;
        CARILLON_UNROLL
        for (int i = 0; i < Wide / 8; ++i) {
          CARILLON_UNROLL
          for (int j = r * 2; j < r * 2 + 2; ++j) {
            float& sum = state.out[i][lane].at[j];
            sum = sum * own + from[(i * 4 + j) * warp_lanes + lane] * other;
          }
        }
      }
    });
  }

  static CARILLON_DEVICE void put(const Params& p, std::uint32_t outer, int first, State& state) {
    if (first >= p.queries) return;
    CARILLON_UNROLL
    for (int r = 0; r < 2; ++r) {
      combine_across(state.total[r], 1, Sum{});
      combine_across(state.total[r], 2, Sum{});
    }
    T* out = as<T>(p.output) + outer_offset(p, outer, p.out_strides);
    each_lane([&](int lane) {
      CARILLON_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int query = first + lane / 4 + r * 8;
        if (query >= p.queries) continue;
        const float total = state.total[r][lane];
        const float factor = total == 0.0F ? 0.0F : 1.0F / total;
        T* const to = out + query * p.out_strides[3];
        CARILLON_UNROLL
        for (int d = 0; d + 64 <= Wide; d += 64) {
          CARILLON_UNROLL
          for (int half = 0; half < 2; ++half) {
            Pack<T, 8> pack;
            CARILLON_UNROLL
            for (int j = 0; j < 8; ++j)
              pack.at[j] = from_float<T>(state.out[d / 8 + j][lane].at[r * 2 + half] * factor);
            const int own = d + (lane % 4 * 2 + half) * 8;
            if (own < p.head_size) store(to + own, pack);
          }
        }
        if constexpr (Wide % 64 != 0) {
          constexpr int d = Wide / 64 * 64;
          Pack<T, 8> pack;
          CARILLON_UNROLL
          for (int j = 0; j < 8; ++j)
            pack.at[j] = from_float<T>(state.out[d / 8 + j % 4][lane].at[r * 2 + j / 4] * factor);
          const int own = d + lane % 4 * 8;
          if (own < p.head_size) store(to + own, pack);
        }
      }
    });
  }
};

}  // namespace carillon::engine::cuda::kernels
