#include "carillon/engine/cuda/kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "carillon/engine/cuda/kernels/number.h"
#include "carillon/engine/cuda/kernels/warp.h"

namespace carillon::engine::cuda::kernels {
namespace {

// The reference works on doubles of what a tensor of T holds; a result may be off by T's rounding.
template <typename T>
struct Traits;
template <>
struct Traits<float> {
  static constexpr Type type = Type::f32;
  static constexpr double tolerance = 1e-5;
};
template <>
struct Traits<Half> {
  static constexpr Type type = Type::f16;
  static constexpr double tolerance = 0x1p-10;
};
template <>
struct Traits<Bfloat> {
  static constexpr Type type = Type::bf16;
  static constexpr double tolerance = 0x1p-7;
};

std::mt19937 generator(std::uint32_t seed) {
  return std::mt19937(seed);
}
int pick(std::mt19937& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<std::uint32_t>(high - low + 1));
}

template <typename T>
std::vector<T> numbers(std::mt19937& random, std::size_t count) {
  std::vector<T> result(count);
  for (T& x : result) x = from_float<T>(static_cast<float>(random() % 4001) / 1000.0F - 2.0F);
  return result;
}
template <typename T>
double d(T x) {
  return static_cast<double>(to_float(x));
}
template <typename T>
void expect_near(const std::vector<T>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(d(got[i]), want[i], Traits<T>::tolerance * std::max(1.0, std::abs(want[i])))
        << what << " at " << i;
  }
}

// Runs by the host, checks the spans, and then that a run that was told to stop before it began writes
// nothing.
template <typename P, typename T, typename... How>
void run_kernel(P params, std::vector<T>& output, How... how) {
  const auto launched = launch(params, how..., 132U);
  ASSERT_TRUE(launched.has_value()) << launched.error().message;
  const Kernel& kernel = *launched->kernel;
  EXPECT_EQ(kernel.parameter_bytes, sizeof(P));
  EXPECT_LE(launched->grid, 132U * 4);
  std::vector<Bytes> reads, writes;
  kernel.accesses(&params, reads, writes);
  if (!output.empty()) {
    ASSERT_EQ(writes.size(), 1U);
    EXPECT_EQ(writes[0].at, output.data());
    EXPECT_EQ(writes[0].count, output.size() * sizeof(T));
  }
  const auto before = output;
  volatile unsigned stop = 1;
  params.stop = &stop;
  kernel.run(&params);
  const auto same = [&] {
    return output.empty() || std::memcmp(before.data(), output.data(), output.size() * sizeof(T)) == 0;
  };
  EXPECT_TRUE(same()) << "it ran though it was stopped";
  stop = 0;
  kernel.run(&params);
  const auto whole = output;
  const std::int64_t tiles = kernel.tiles(&params);
  for (std::int64_t some = 0; some <= tiles; ++some) {
    output = before;
    kernel.run_some(&params, some);
    if (some == tiles && !output.empty()) {
      EXPECT_EQ(std::memcmp(whole.data(), output.data(), output.size() * sizeof(T)), 0)
          << "all tiles, not the whole";
    }
    kernel.run(&params);
    if (output.empty()) continue;
    ASSERT_EQ(std::memcmp(whole.data(), output.data(), output.size() * sizeof(T)), 0)
        << "stopped after " << some;
  }
}

template <typename T>
class CudaKernels : public ::testing::Test {};
using Types = ::testing::Types<float, Half, Bfloat>;
TYPED_TEST_SUITE(CudaKernels, Types);

TEST(CudaNumbers, EveryHalfAndBfloatComesBackAndHalvesRoundToEven) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const Bfloat bfloat{static_cast<std::uint16_t>(bits)};
    const bool nan = std::isnan(to_float(half));
    ASSERT_EQ(from_float<Half>(to_float(half)).bits, nan ? 0x7fff : half.bits);
    ASSERT_EQ(from_float<Bfloat>(to_float(bfloat)).bits, std::isnan(to_float(bfloat)) ? 0x7fff : bfloat.bits);
    // Half way to the next, and one step to either side of it.
    if ((bits & 0x7fffU) >= 0x7bffU) continue;
    const Half next{static_cast<std::uint16_t>(bits + 1)};
    const float middle = (to_float(half) + to_float(next)) / 2;
    const float away = std::copysign(INFINITY, to_float(next));
    ASSERT_EQ(from_float<Half>(middle).bits, bits % 2 == 0 ? half.bits : next.bits) << bits;
    ASSERT_EQ(from_float<Half>(std::nextafter(middle, away)).bits, next.bits) << bits;
    ASSERT_EQ(from_float<Half>(std::nextafter(middle, 0.0F)).bits, half.bits) << bits;
  }
  const struct {
    float value;
    std::uint16_t half, bfloat;
  } rows[] = {
      {65519.0F, 0x7bff, 0x4780},
      {65520.0F, 0x7c00, 0x4780},
      {-1e30F, 0xfc00, 0xf14a},
      {1e-9F, 0, 0x3089},
      {0x1.01p0F, 0x3c04, 0x3f80},
      {0x1.03p0F, 0x3c0c, 0x3f82},
      {std::numeric_limits<float>::max(), 0x7c00, 0x7f80},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(from_float<Half>(row.value).bits, row.half) << row.value;
    EXPECT_EQ(from_float<Bfloat>(row.value).bits, row.bfloat) << row.value;
  }
}

TYPED_TEST(CudaKernels, ElementwiseBroadcastsAndActivates) {
  using T = TypeParam;
  auto random = generator(1);
  for (int trial = 0; trial < 60; ++trial) {
    ElementwiseParams p{};
    const Op ops[] = {Op::copy, Op::neg, Op::abs, Op::sigmoid, Op::add, Op::sub,
                      Op::mul,  Op::min, Op::max, Op::where,   Op::fma};
    p.op = ops[trial % 11];
    p.activation = static_cast<Activation>(trial % 8);
    p.low = -0.5F, p.high = 0.75F;
    p.rank = pick(random, 0, 6);
    std::size_t count = 1;
    for (int i = 0; i < p.rank; ++i)
      count *= p.extents[i] = static_cast<std::uint32_t>(pick(random, trial % 9 == 8 ? 0 : 1, 5));
    if (trial % 10 == 0) p.rank = 1, p.extents[0] = 4999, count = 4999;
    std::vector<T> in[3];
    for (int o = 0; o < 3; ++o) {
      std::int64_t stride = 1;
      const bool whole = trial % 10 == 0 || pick(random, 0, 1) == 0;
      for (int i = p.rank - 1; i >= 0; --i) {
        const bool repeat = !whole && pick(random, 0, 1) == 0;
        p.strides[o][i] = repeat ? 0 : stride;
        if (!repeat) stride *= p.extents[i];
      }
      in[o] = numbers<T>(random, static_cast<std::size_t>(stride));
      p.operands[o] = in[o].data();
    }
    std::vector<T> out(count);
    p.output = out.data();
    run_kernel(p, out, Traits<T>::type);
    std::vector<double> want;
    for (std::size_t i = 0; i < count; ++i) {
      double x[3];
      for (int o = 0; o < 3; ++o) {
        std::size_t rest = i, at = 0;
        for (int axis = p.rank - 1; axis >= 0; --axis) {
          at += rest % p.extents[axis] * static_cast<std::size_t>(p.strides[o][axis]);
          rest /= p.extents[axis];
        }
        x[o] = d(in[o][at]);
      }
      const double values[] = {x[0],
                               -x[0],
                               std::abs(x[0]),
                               1 / (1 + std::exp(-x[0])),
                               x[0] + x[1],
                               x[0] - x[1],
                               x[0] * x[1],
                               std::min(x[0], x[1]),
                               std::max(x[0], x[1]),
                               x[0] != 0 ? x[1] : x[2],
                               x[0] * x[1] + x[2]};
      const double v = values[trial % 11];
      const double activated[] = {v,
                                  std::max(v, 0.0),
                                  std::clamp(v, 0.0, 6.0),
                                  v / 2 * (1 + std::erf(v / std::sqrt(2.0))),
                                  v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))),
                                  v / (1 + std::exp(-v)),
                                  std::tanh(v),
                                  std::clamp(v, -0.5, 0.75)};
      want.push_back(activated[trial % 8]);
    }
    expect_near(out, want, "elementwise");
  }
}

TYPED_TEST(CudaKernels, RowsAreNormalisedAndReduced) {
  using T = TypeParam;
  auto random = generator(2);
  for (const int columns : {0, 1, 3, 8, 17, 64, 129, 1000}) {
    const std::int64_t rows = columns == 8 ? 0 : 5;
    const auto size = static_cast<std::size_t>(rows * columns);
    const auto in = numbers<T>(random, size), residual = numbers<T>(random, size);
    const auto scale = numbers<T>(random, static_cast<std::size_t>(columns)),
               bias = numbers<T>(random, static_cast<std::size_t>(columns));
    std::vector<double> softmax(size), normal(size), sums, means, largest;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      const std::size_t n = static_cast<std::size_t>(columns), at = r * n;
      double total = 0, sum = 0, most = -INFINITY, mean = 0, variance = 0;
      for (std::size_t c = 0; c < n; ++c) {
        total += std::exp(d(in[at + c])), sum += d(in[at + c]), most = std::max(most, d(in[at + c]));
        mean += (d(in[at + c]) + d(residual[at + c])) / columns;
      }
      for (std::size_t c = 0; c < n; ++c)
        variance += std::pow(d(in[at + c]) + d(residual[at + c]) - mean, 2) / columns;
      for (std::size_t c = 0; c < n; ++c) {
        softmax[at + c] = std::exp(d(in[at + c])) / total;
        normal[at + c] =
            (d(in[at + c]) + d(residual[at + c]) - mean) / std::sqrt(variance + 1e-3) * d(scale[c]) +
            d(bias[c]);
      }
      sums.push_back(sum), means.push_back(sum / columns), largest.push_back(most);
    }
    std::vector<T> out(size);
    run_kernel(SoftmaxParams{rows, columns, in.data(), out.data(), nullptr}, out, Traits<T>::type);
    expect_near(out, softmax, "softmax");
    run_kernel(LayerNormParams{rows, columns, 1e-3F, in.data(), residual.data(), scale.data(), bias.data(),
                               out.data(), nullptr},
               out, Traits<T>::type);
    expect_near(out, normal, "layer norm");
    if (columns == 0) continue;
    std::vector<T> each(static_cast<std::size_t>(rows));
    for (const auto& [how, want] :
         {std::pair{Reduction::sum, &sums}, {Reduction::mean, &means}, {Reduction::max, &largest}}) {
      ReduceParams p{how,
                     1,
                     1,
                     {static_cast<std::uint32_t>(rows)},
                     {static_cast<std::uint32_t>(columns)},
                     {columns},
                     {1},
                     in.data(),
                     each.data(),
                     nullptr};
      run_kernel(p, each, Traits<T>::type);
      // A sum in float is off by its addends' size, not its own.
      if (how != Reduction::sum || columns <= 129) expect_near(each, *want, "reduction");
    }
  }
}

// Images whose channels come last, by packs of channels where these divide them; none of no channels.
TYPED_TEST(CudaKernels, ImagesAreReducedChannelByChannel) {
  using T = TypeParam;
  auto random = generator(7);
  for (const std::size_t channels : {0, 1, 4, 8, 12, 128, 136, 264})
    for (const std::size_t pixels : {1, 5, 49}) {
      SCOPED_TRACE(::testing::Message() << channels << " channels of " << pixels << " pixels");
      constexpr std::size_t images = 3;
      const auto in = numbers<T>(random, images * pixels * channels);
      std::vector<double> want[3];
      for (std::size_t n = 0; n < images; ++n)
        for (std::size_t c = 0; c < channels; ++c) {
          double sum = 0, most = -INFINITY;
          for (std::size_t i = 0; i < pixels; ++i) {
            const double x = d(in[(n * pixels + i) * channels + c]);
            sum += x;
            most = std::max(most, x);
          }
          want[0].push_back(sum);
          want[1].push_back(sum / static_cast<double>(pixels));
          want[2].push_back(most);
        }
      const auto stride = static_cast<std::int64_t>(channels);
      std::vector<T> out(images * channels);
      for (const Reduction how : {Reduction::sum, Reduction::mean, Reduction::max}) {
        ReduceParams p{how,
                       2,
                       1,
                       {images, static_cast<std::uint32_t>(channels)},
                       {static_cast<std::uint32_t>(pixels)},
                       {static_cast<std::int64_t>(pixels) * stride, 1},
                       {stride},
                       in.data(),
                       out.data(),
                       nullptr};
        run_kernel(p, out, Traits<T>::type);
        expect_near(out, want[static_cast<int>(how)], "reduction");
      }
    }
}

TYPED_TEST(CudaKernels, WindowsPoolAndConvolve) {
  using T = TypeParam;
  auto random = generator(3);
  for (int trial = 0; trial < 40; ++trial) {
    Window w{pick(random, 0, 2),
             pick(random, 3, 9),
             pick(random, 3, 9),
             trial % 3 == 0 ? 16 : pick(random, 1, 9),
             0,
             0,
             pick(random, 1, 3),
             pick(random, 1, 3),
             pick(random, 1, 2),
             pick(random, 1, 2),
             0,
             0,
             1,
             1};
    w.pad_top = pick(random, 0, w.kernel_h - 1), w.pad_left = pick(random, 0, w.kernel_w - 1);
    w.out_height = (w.height + w.pad_top + pick(random, 0, w.kernel_h - 1) - w.kernel_h) / w.stride_h + 1;
    w.out_width = (w.width + w.pad_left + pick(random, 0, w.kernel_w - 1) - w.kernel_w) / w.stride_w + 1;
    const auto channels = static_cast<std::size_t>(w.channels);
    const auto in = numbers<T>(random, static_cast<std::size_t>(w.batch * w.height * w.width) * channels);
    const auto weights = numbers<T>(random, static_cast<std::size_t>(w.kernel_h * w.kernel_w) * channels),
               bias = numbers<T>(random, channels);
    const bool padded = trial % 2 == 0;
    std::vector<double> max, mean, convolved;
    for (int n = 0; n < w.batch; ++n)
      for (int y = 0; y < w.out_height; ++y)
        for (int x = 0; x < w.out_width; ++x)
          for (std::size_t c = 0; c < channels; ++c) {
            double most = -INFINITY, sum = 0, product = d(bias[c]);
            int seen = 0;
            for (int i = 0; i < w.kernel_h; ++i)
              for (int j = 0; j < w.kernel_w; ++j) {
                const int row = y * w.stride_h - w.pad_top + i, column = x * w.stride_w - w.pad_left + j;
                if (row < 0 || column < 0 || row >= w.height || column >= w.width) continue;
                const double v =
                    d(in[static_cast<std::size_t>((n * w.height + row) * w.width + column) * channels + c]);
                most = std::max(most, v), sum += v, ++seen;
                product += v * d(weights[static_cast<std::size_t>(i * w.kernel_w + j) * channels + c]);
              }
            max.push_back(most), mean.push_back(sum / (padded ? w.kernel_h * w.kernel_w : seen));
            convolved.push_back(std::clamp(product, 0.0, 6.0));
          }
    std::vector<T> out(max.size());
    run_kernel(PoolParams{w, true, false, in.data(), out.data(), nullptr}, out, Traits<T>::type);
    expect_near(out, max, "max pool");
    run_kernel(PoolParams{w, false, padded, in.data(), out.data(), nullptr}, out, Traits<T>::type);
    expect_near(out, mean, "average pool");
    run_kernel(
        DepthwiseParams{w, Activation::relu6, in.data(), weights.data(), bias.data(), out.data(), nullptr},
        out, Traits<T>::type);
    expect_near(out, convolved, "depthwise");
  }
}

// Attention of random extents, layouts and masks; `like` is made what it is, for T.
template <typename T>
struct AttentionCase {
  AttentionParams p{};
  std::vector<T> q, k, v, mask, out;

  // Axes [outer 0, 1, 2, position, element] in a random order of the first four, or as they come.
  std::vector<T> tensor(std::mt19937& random, int positions, std::int64_t (&strides)[4], int shared_axes) {
    int order[] = {0, 1, 2, 3};
    if (pick(random, 0, 1) != 0) std::shuffle(std::begin(order), std::end(order), random);
    const int extents[] = {p.outer[0], p.outer[1], p.outer[2], positions};
    std::int64_t step = p.head_size;
    for (int i = 3; i >= 0; --i) {
      const bool is_shared = order[i] < 3 && (shared_axes >> order[i] & 1) != 0;
      strides[order[i]] = is_shared ? 0 : step;
      if (!is_shared) step *= extents[order[i]];
    }
    return numbers<T>(random, static_cast<std::size_t>(step));
  }
  AttentionCase(std::mt19937& random, int queries, int keys, int head_size, bool masked) {
    for (auto& extent : p.outer) extent = pick(random, 1, 2);
    p.queries = queries, p.keys = keys, p.head_size = head_size;
    p.scale = static_cast<float>(pick(random, 1, 8)) / 16.0F;
    const int shared_axes = pick(random, 0, 2) == 0 ? pick(random, 1, 7) : 0;  // of keys and values
    q = tensor(random, queries, p.q_strides, 0);
    k = tensor(random, keys, p.k_strides, shared_axes);
    v = tensor(random, keys, p.v_strides, shared_axes);
    out = tensor(random, queries, p.out_strides, 0);
    if (masked) {
      const int extents[] = {p.outer[0], p.outer[1], p.outer[2], queries, keys};
      std::int64_t step = 1;
      for (int i = 4; i >= 0; --i) {
        const bool repeated = pick(random, 0, 2) == 0;
        p.mask_strides[i] = repeated ? 0 : step;
        if (!repeated) step *= extents[i];
      }
      mask = numbers<T>(random, static_cast<std::size_t>(step));
      for (T& each : mask)
        if (pick(random, 0, 3) == 0) each = from_float<T>(pick(random, 0, 1) == 0 ? -INFINITY : -20.0F);
    }
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.output = out.data();
    p.mask = masked ? mask.data() : nullptr;
  }
  std::vector<double> want() const {
    std::vector<double> result(out.size());
    for (std::int64_t a = 0; a < p.outer[0]; ++a)
      for (std::int64_t b = 0; b < p.outer[1]; ++b)
        for (std::int64_t c = 0; c < p.outer[2]; ++c)
          for (std::int64_t s = 0; s < p.queries; ++s) {
            const auto at = [&](const std::int64_t* strides, std::int64_t position) {
              return static_cast<std::size_t>(a * strides[0] + b * strides[1] + c * strides[2] +
                                              position * strides[3]);
            };
            std::vector<double> scores;
            for (std::int64_t t = 0; t < p.keys; ++t) {
              double score = 0;
              for (std::size_t x = 0; x < static_cast<std::size_t>(p.head_size); ++x)
                score += d(q[at(p.q_strides, s) + x]) * d(k[at(p.k_strides, t) + x]);
              score *= static_cast<double>(p.scale);
              if (!mask.empty())
                score += d(mask[at(p.mask_strides, s) + static_cast<std::size_t>(t * p.mask_strides[4])]);
              scores.push_back(score);
            }
            const double largest = *std::ranges::max_element(scores);
            double total = 0;
            std::vector<double> sum(static_cast<std::size_t>(p.head_size));
            for (std::int64_t t = 0; t < p.keys && largest > -INFINITY; ++t) {
              const double weight = std::exp(scores[static_cast<std::size_t>(t)] - largest);
              total += weight;
              for (std::size_t x = 0; x < sum.size(); ++x) sum[x] += weight * d(v[at(p.v_strides, t) + x]);
            }
            for (std::size_t x = 0; x < sum.size(); ++x)
              result[at(p.out_strides, s) + x] = total == 0 ? 0 : sum[x] / total;
          }
    return result;
  }
};

TYPED_TEST(CudaKernels, AttentionByElements) {
  using T = TypeParam;
  auto random = generator(4);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE(trial);
    const int head = trial == 0 ? 127 : 2 * pick(random, 0, 4) + 1;  // which tensor cores do not take
    AttentionCase<T> each(random, pick(random, 1, 5), trial == 0 ? 512 : pick(random, 1, 20), head,
                          trial % 2 == 1);
    ASSERT_EQ(attention_by(each.p, Traits<T>::type), AttentionBy::elements);
    const auto want = each.want();
    run_kernel(each.p, each.out, Traits<T>::type);
    expect_near(each.out, want, "attention");
  }
}

template <typename T>
class CudaTensorCores : public ::testing::Test {};
using TensorCoreTypes = ::testing::Types<Half, Bfloat>;
TYPED_TEST_SUITE(CudaTensorCores, TensorCoreTypes);

// The one way computes by PTX's tables, the other by what each lane fetches of others.
TYPED_TEST(CudaTensorCores, BothProductsOfFragmentsAreThatOfTheirMatrices) {
  using T = TypeParam;
  auto random = generator(6);
  const auto left = numbers<T>(random, 16 * 16), right = numbers<T>(random, 16 * 8);
  Lanes<FragmentA> a;
  Lanes<FragmentB> b;
  // As PTX numbers elements: a_i at row group (+ 8 for i = 2, 3, 6, 7), column pair + i % 2 (+ 8 from i = 4
  // on).
  for (int lane = 0; lane < 32; ++lane) {
    const auto at = [&](int row, int column) {
      return left[static_cast<std::size_t>(row * 16 + column)].bits;
    };
    const auto of_right = [&](int row, int column) {
      return right[static_cast<std::size_t>(row * 8 + column)].bits;
    };
    for (int i = 0; i < 8; i += 2) {
      const int row = lane / 4 + (i / 2 % 2 == 1 ? 8 : 0), column = lane % 4 * 2 + (i >= 4 ? 8 : 0);
      a[lane].at[i / 2] = at(row, column) | static_cast<std::uint32_t>(at(row, column + 1)) << 16;
    }
    for (int i = 0; i < 4; i += 2) {
      const int row = lane % 4 * 2 + (i >= 2 ? 8 : 0), column = lane / 4;
      b[lane].at[i / 2] = of_right(row, column) | static_cast<std::uint32_t>(of_right(row + 1, column)) << 16;
    }
  }
  Lanes<FragmentC> c{}, by_words{};
  multiply_add<T>(a, b, c);
  multiply_add_by_words<T>(a, b, by_words);
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
      double want = 0;
      for (int k = 0; k < 16; ++k)
        want += d(left[static_cast<std::size_t>(row * 16 + k)]) *
                d(right[static_cast<std::size_t>(k * 8 + column)]);
      ASSERT_NEAR(c[lane].at[i], want, 1e-4) << lane << " " << i;
      ASSERT_NEAR(by_words[lane].at[i], want, 1e-4) << lane << " " << i;
    }
}

TYPED_TEST(CudaTensorCores, Attention) {
  using T = TypeParam;
  auto random = generator(7);
  for (int trial = 0; trial < 160; ++trial) {
    const int head = 8 * (trial % 16 + 1);
    const int keys = trial % 3 == 0 ? pick(random, 1, 9) : pick(random, 1, 150);
    AttentionCase<T> each(random, pick(random, 1, trial % 5 == 0 ? 140 : 40), keys, head, trial % 2 == 1);
    each.p.key_warps = 1 << pick(random, 0, 3);
    SCOPED_TRACE(::testing::Message() << "trial " << trial << " head " << head << " queries "
                                      << each.p.queries << " keys " << keys << " warps " << each.p.key_warps);
    ASSERT_EQ(attention_by(each.p, Traits<T>::type), AttentionBy::tensor_cores);
    const auto want = each.want();
    run_kernel(each.p, each.out, Traits<T>::type);
    if (this->HasFatalFailure()) return;
    // Weights are rounded to T before they are multiplied by values of up to 2.
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(d(each.out[i]), want[i], 3 * Traits<T>::tolerance) << "at " << i;
  }
}

TEST(CudaTensorAttention, SharesKeysWhereADeviceWouldBeIdle) {
  const auto shared_by = [](int outer, int queries, int keys, unsigned processors) {
    AttentionParams p{};
    p.outer[0] = outer, p.outer[1] = p.outer[2] = 1;
    p.queries = queries, p.keys = keys, p.head_size = 64;
    return key_warps(p, processors);
  };
  EXPECT_EQ(shared_by(12, 128, 128, 132), 4);   // DistilBERT at batch 1: a step of keys for each warp
  EXPECT_EQ(shared_by(384, 128, 128, 132), 1);  // and at batch 32
  EXPECT_EQ(shared_by(384, 1, 4096, 132), 8);   // one query: the other warps would have none
  EXPECT_EQ(shared_by(1, 128, 16, 132), 1);
}

TEST(CudaMoves, TransposeGatherAndCast) {
  auto random = generator(5);
  // NCHW to NHWC, and into a slice of more channels.
  const std::uint32_t n = 2, c = 5, h = 3, w = 7, wide = 9;
  const auto in = numbers<Half>(random, n * c * h * w);
  std::vector<Half> out(n * h * w * wide, Half{0x1234}), before = out;
  MoveParams p{4,
               {n, h, w, c},
               {c * h * w, w, 1, h * w},
               {h * w * wide, w * wide, wide, 1},
               in.data(),
               out.data() + 2,
               nullptr};
  const auto launched = launch(p, 2, 8);
  ASSERT_TRUE(launched.has_value());
  launched->kernel->run(&p);
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    const std::uint32_t channel = i % wide, pixel = i / wide;
    const bool inside = channel >= 2 && channel < 2 + c;
    const auto want = inside ? in[(pixel / (h * w) * c + channel - 2) * h * w + pixel % (h * w)] : before[i];
    ASSERT_EQ(out[i].bits, want.bits) << i;
  }

  const std::vector<std::int64_t> indices = {2, -1, 0, 7};
  const auto table = numbers<float>(random, 2 * 3 * 5);
  std::vector<float> rows(2 * 4 * 5);
  run_kernel(GatherParams{2, 3, 4, 5, table.data(), indices.data(), rows.data(), nullptr}, rows,
             std::size_t{4});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t from[] = {2, 2, 0, 0}, which = i / 5 % 4;
    ASSERT_EQ(rows[i], which == 3 ? 0.0F : table[(i / 20 * 3 + from[which]) * 5 + i % 5]) << i;
  }

  const auto floats = numbers<float>(random, 4101);
  std::vector<Bfloat> short_ones(4101);
  run_kernel(CastParams{4101, floats.data(), short_ones.data(), nullptr}, short_ones, Type::f32, Type::bf16);
  for (std::size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(short_ones[i].bits, from_float<Bfloat>(floats[i]).bits);
}

TEST(CudaLaunches, WhatDoesNotFitIsRefused) {
  ElementwiseParams elementwise{};
  elementwise.rank = 7;
  EXPECT_FALSE(launch(elementwise, Type::f32, 8).has_value());
  elementwise.rank = 2, elementwise.extents[0] = elementwise.extents[1] = 1U << 16;
  EXPECT_FALSE(launch(elementwise, Type::f32, 8).has_value());
  EXPECT_FALSE(launch(MoveParams{}, 3, 8).has_value());
  EXPECT_FALSE(launch(CastParams{}, Type::f16, Type::f16, 8).has_value());
  EXPECT_FALSE(launch(SoftmaxParams{-1, 2, nullptr, nullptr, nullptr}, Type::f32, 8).has_value());
  EXPECT_FALSE(launch(SoftmaxParams{1, 2, nullptr, nullptr, nullptr}, Type::f32, 0).has_value());
  EXPECT_FALSE(launch(PoolParams{}, Type::f32, 8).has_value());
  AttentionParams attention{.outer = {1, 1, 1}, .queries = 1, .keys = 513, .head_size = 64, .key_warps = 1};
  EXPECT_FALSE(launch(attention, Type::f32, 8).has_value());
  EXPECT_EQ(launch(attention, Type::f16, 8)->kernel->symbol, "carillon_attention_64_f16");
  attention.key_warps = 3;
  EXPECT_FALSE(launch(attention, Type::f16, 8).has_value());
  attention.key_warps = 1, attention.head_size = 136;
  EXPECT_FALSE(launch(attention, Type::f16, 8).has_value());
  attention.head_size = 64, attention.v_strides[3] = 4;
  EXPECT_FALSE(launch(attention, Type::f16, 8).has_value());
  attention.keys = 512;
  EXPECT_EQ(launch(attention, Type::f16, 8)->kernel->symbol, "carillon_attention_f16");
  EXPECT_EQ(find("carillon_softmax"), nullptr);
}

}  // namespace
}  // namespace carillon::engine::cuda::kernels
