#include "carillon/engine/cpu/nan.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/team.h"

namespace carillon::engine::cpu {

namespace {

// Calls pass(from, to) for pieces of [0, count) that begin at multiples of 8, divided where that is worth it.
template <typename Pass>
void in_pieces(std::int64_t count, const Pass& pass) {
  if (!worth_dividing(static_cast<std::uint64_t>(count))) return pass(std::int64_t{0}, count);
  constexpr auto size = static_cast<std::int64_t>(piece);
  in_parts(pieces_of(static_cast<std::uint64_t>(count)),
           [&](std::int64_t i) { pass(i * size, std::min((i + 1) * size, count)); });
}

// Elements as bits: NaN, infinities and large numbers are those whose magnitude, seen as an integer, is
// large.
template <typename Bits>
struct Format {
  Bits magnitude;  // all but the sign
  Bits infinity;   // greater ones are NaN
  Bits large;      // the least that is not ordinary: 2^60; of f16, infinity
};
constexpr Format<std::uint32_t> f32_bits{0x7fffffffU, 0x7f800000U, (127U + 60U) << 23};
constexpr Format<std::uint16_t> bf16_bits{0x7fffU, 0x7f80U, static_cast<std::uint16_t>((127U + 60U) << 7)};
constexpr Format<std::uint16_t> f16_bits{0x7fffU, 0x7c00U, 0x7c00U};
constexpr Format<std::uint64_t> f64_bits{0x7fffffffffffffffULL, 0x7ff0000000000000ULL, (1023ULL + 60) << 52};

// Calls with(format) for a floating-point type; false for others.
template <typename With>
bool with_format(graph::DataType type, With&& with) {
  switch (type) {
    case graph::DataType::f32:
      with(f32_bits);
      return true;
    case graph::DataType::bf16:
      with(bf16_bits);
      return true;
    case graph::DataType::f16:
      with(f16_bits);
      return true;
    case graph::DataType::f64:
      with(f64_bits);
      return true;
    case graph::DataType::i8:
    case graph::DataType::i16:
    case graph::DataType::i32:
    case graph::DataType::i64:
    case graph::DataType::u8:
    case graph::DataType::u16:
    case graph::DataType::u32:
    case graph::DataType::u64:
    case graph::DataType::boolean:
    case graph::DataType::string:
      return false;
  }
  return false;
}

// Whether the magnitude of one of x[from, to) is `least` or more.
template <typename Bits>
bool any_from(const Bits* x, std::int64_t from, std::int64_t to, Bits magnitude, Bits least) {
  // Signed, as vector units compare: magnitudes have no sign bit.
  using Signed = std::make_signed_t<Bits>;
  const auto below = static_cast<Signed>(least - 1);
  Signed found = 0;
  for (std::int64_t i = from; i < to; ++i)
    found = static_cast<Signed>(
        found | (static_cast<Signed>(static_cast<Bits>(x[i] & magnitude)) > below ? Signed{-1} : Signed{0}));
  return found != 0;
}
template <typename Bits>
bool any_from(const std::byte* data, std::int64_t count, Bits magnitude, Bits least) {
  const auto* x = reinterpret_cast<const Bits*>(data);
  std::atomic<bool> found{false};
  in_pieces(count, [&](std::int64_t from, std::int64_t to) {
    if (any_from(x, from, to, magnitude, least)) found.store(true, std::memory_order_relaxed);
  });
  return found.load(std::memory_order_relaxed);
}

template <typename Bits>
bool is_nan(Bits element, const Format<Bits>& format) {
  return static_cast<Bits>(element & format.magnitude) > format.infinity;
}

// Of up to eight elements of f32 or bf16, a bit each.
std::uint8_t nan_bits(const float* x, std::int64_t count) {
#if defined(__x86_64__)
  if (count >= 8) {
    const __m128 low = _mm_loadu_ps(x), high = _mm_loadu_ps(x + 4);
    return static_cast<std::uint8_t>(_mm_movemask_ps(_mm_cmpunord_ps(low, low)) |
                                     (_mm_movemask_ps(_mm_cmpunord_ps(high, high)) << 4));
  }
#endif
  unsigned bits = 0;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count, 8); ++i) bits |= (x[i] != x[i] ? 1U : 0U) << i;
  return static_cast<std::uint8_t>(bits);
}
std::uint8_t nan_bits(const std::uint16_t* x, std::int64_t count) {
  unsigned bits = 0;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count, 8); ++i)
    bits |= (is_nan(x[i], bf16_bits) ? 1U : 0U) << i;
  return static_cast<std::uint8_t>(bits);
}
void set_nan(float& x) {
  x = std::numeric_limits<float>::quiet_NaN();
}
void set_nan(std::uint16_t& x) {
  x = 0x7fc0U;
}

// Calls with(elements) for data of f32 or bf16.
template <typename Byte, typename With>
void as_elements(graph::DataType type, Byte* data, With&& with) {
  constexpr bool constant = std::is_const_v<Byte>;
  CARILLON_ASSERT(type == graph::DataType::f32 || type == graph::DataType::bf16);
  if (type == graph::DataType::f32)
    with(reinterpret_cast<std::conditional_t<constant, const float*, float*>>(data));
  else
    with(reinterpret_cast<std::conditional_t<constant, const std::uint16_t*, std::uint16_t*>>(data));
}

// A descriptor's elements as nested loops, the widest steps first: the order in which they lie.
class Walk {
 public:
  explicit Walk(const Desc& desc) : dims_(desc.get_dims()) {
    const Dims strides = desc.get_strides();
    const Dims blocks = desc.get_inner_blks(), of = desc.get_inner_idxs();
    Dims whole(dims_.size(), 1);  // what a step of the dimension's outer loop counts
    std::int64_t step = 1;
    for (std::size_t i = blocks.size(); i-- > 0;) {
      const auto d = static_cast<std::size_t>(of[i]);
      loops_.push_back({d, blocks[i], step, whole[d]});
      step *= blocks[i];
      whole[d] *= blocks[i];
    }
    for (std::size_t d = 0; d < dims_.size(); ++d)
      loops_.push_back({d, (dims_[d] + whole[d] - 1) / whole[d], strides[d], whole[d]});
    std::ranges::stable_sort(loops_, std::ranges::greater{}, &Loop::stride);
    start_ = desc.get_submemory_offset();
  }

  // Calls at(place, index) for every element that select(place) wants; padding has no index.
  template <typename Select, typename At>
  void for_each(const Select& select, const At& at) const {
    std::vector<std::int64_t> counts(loops_.size(), 0), index(dims_.size(), 0);
    std::int64_t place = start_;
    for (;;) {
      if (select(place)) {
        std::ranges::fill(index, 0);
        for (std::size_t l = 0; l < loops_.size(); ++l) index[loops_[l].dim] += counts[l] * loops_[l].unit;
        if (std::ranges::equal(index, dims_, std::less{})) at(place, index);
      }
      std::size_t l = loops_.size();
      for (; l > 0; --l) {
        place += loops_[l - 1].stride;
        if (++counts[l - 1] < loops_[l - 1].extent) break;
        place -= loops_[l - 1].stride * loops_[l - 1].extent;
        counts[l - 1] = 0;
      }
      if (l == 0) return;
    }
  }

  std::int64_t place(const std::vector<std::int64_t>& index) const {
    std::int64_t place = start_;
    for (const Loop& loop : loops_) place += index[loop.dim] / loop.unit % loop.extent * loop.stride;
    return place;
  }

 private:
  struct Loop {
    std::size_t dim = 0;
    std::int64_t extent = 1, stride = 1, unit = 1;
  };
  Dims dims_;
  std::vector<Loop> loops_;
  std::int64_t start_ = 0;
};

graph::DataType type_of(const Desc& desc) {
  const DnnlType type = desc.get_data_type();
  CARILLON_ASSERT(type == DnnlType::f32 || type == DnnlType::bf16);
  return type == DnnlType::f32 ? graph::DataType::f32 : graph::DataType::bf16;
}

}  // namespace

bool loses_nan(const dnnl::engine& engine, const Eltwise& eltwise) {
  constexpr std::int64_t count = 64;
  std::array<float, count> from, to{};
  from.fill(std::numeric_limits<float>::quiet_NaN());
  const Desc desc = row_major(std::array{count}, DnnlType::f32);
  const dnnl::eltwise_forward::primitive_desc made(
      engine, dnnl::prop_kind::forward_inference, eltwise.algorithm, desc, desc, eltwise.alpha, eltwise.beta);
  dnnl::stream stream(engine);
  dnnl::eltwise_forward(made).execute(
      stream, {{DNNL_ARG_SRC, {desc, engine, from.data()}}, {DNNL_ARG_DST, {desc, engine, to.data()}}});
  stream.wait();
  return std::ranges::any_of(to, [](float y) { return y == y; });
}

bool loses_nan(const dnnl::engine& engine, std::string_view op) {
  static constexpr std::array always{"Relu", "Clip", "HardSigmoid", "MaxPool",   "GlobalMaxPool",
                                     "Max",  "Min",  "Softmax",     "LogSoftmax"};
  if (std::ranges::find(always, op) != always.end()) return true;
  using Algorithm = dnnl::algorithm;
  static constexpr std::array perhaps{
      std::pair{"LeakyRelu", Eltwise{Algorithm::eltwise_relu, 0.01F}},
      std::pair{"Sigmoid", Eltwise{Algorithm::eltwise_logistic}},
      std::pair{"Tanh", Eltwise{Algorithm::eltwise_tanh}},
      std::pair{"Elu", Eltwise{Algorithm::eltwise_elu, 1}},
      std::pair{"HardSwish", Eltwise{Algorithm::eltwise_hardswish, 1.0F / 6, 0.5F}},
      std::pair{"Gelu", Eltwise{Algorithm::eltwise_gelu_erf}},
  };
  const auto found = std::ranges::find(perhaps, op, &std::pair<const char*, Eltwise>::first);
  return found != perhaps.end() && loses_nan(engine, found->second);
}

bool makes_nan(std::string_view op) {
  static constexpr std::array makers{
      "Div",  "Mod",  "Pow",   "Log",   "Sqrt",         "Reciprocal",     "Exp",
      "Asin", "Acos", "Acosh", "Atanh", "ReduceLogSum", "ReduceLogSumExp"};
  return std::ranges::find(makers, op) != makers.end();
}

bool has_nan(const graph::Tensor& tensor) {
  bool found = false;
  with_format(tensor.type().type, [&]<typename Bits>(const Format<Bits>& format) {
    found = any_from<Bits>(tensor.bytes().data(), tensor.type().elements(), format.magnitude,
                           static_cast<Bits>(format.infinity + 1));
  });
  return found;
}

Elements elements_of(const Desc& desc) {
  return {.type = type_of(desc),
          .count = desc.get_size() / dnnl::memory::data_type_size(desc.get_data_type())};
}

WatchKernel::WatchKernel(std::vector<Elements> tensors, bool always)
    : tensors_(std::move(tensors)), always_(always), data_(tensors_.size(), nullptr) {}

std::unique_ptr<Kernel> WatchKernel::copy(graph::Faults&) const {
  return std::make_unique<WatchKernel>(tensors_, always_);
}

bool WatchKernel::divides() const {
  return std::ranges::any_of(tensors_, [](const Elements& each) { return worth_dividing(each.count); });
}

int WatchKernel::pieces() const {
  std::uint64_t most = 0;
  for (const Elements& each : tensors_) most = std::max(most, each.count);
  return pieces_of(most);
}

Result<> WatchKernel::run(dnnl::stream&) {
  bool found = always_ || (before_ != nullptr && *before_ != std::byte{0});
  for (std::size_t i = 0; i < tensors_.size() && !found; ++i)
    with_format(tensors_[i].type, [&]<typename Bits>(const Format<Bits>& format) {
      found = any_from<Bits>(data_[i], static_cast<std::int64_t>(tensors_[i].count), format.magnitude,
                             format.large);
    });
  *flag_ = found ? std::byte{1} : std::byte{0};
  return {};
}

void WatchKernel::place(int operand, std::byte* address) {
  if (operand == 0)
    flag_ = address;
  else if (operand == 1)
    before_ = address;
  else
    data_[static_cast<std::size_t>(operand) - 2] = address;
}

std::unique_ptr<Kernel> NoteNanKernel::copy(graph::Faults&) const {
  return std::make_unique<NoteNanKernel>(elements_, more_);
}

Result<> NoteNanKernel::run(dnnl::stream&) {
  as_elements(elements_.type, data_, [&](const auto* x) {
    const auto count = static_cast<std::int64_t>(elements_.count);
    in_pieces(count, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; i += 8) {
        const std::uint8_t bits = nan_bits(x + i, to - i);
        std::uint8_t& noted = bits_[i / 8];
        noted = static_cast<std::uint8_t>(more_ ? noted | bits : bits);
      }
    });
  });
  return {};
}

void NoteNanKernel::place(int operand, std::byte* address) {
  if (operand == 0)
    data_ = address;
  else
    bits_ = reinterpret_cast<std::uint8_t*>(address);
}

std::unique_ptr<Kernel> RestoreNanKernel::copy(graph::Faults&) const {
  return std::make_unique<RestoreNanKernel>(elements_);
}

Result<> RestoreNanKernel::run(dnnl::stream&) {
  as_elements(elements_.type, data_, [&](auto* y) {
    const auto count = static_cast<std::int64_t>(elements_.count);
    in_pieces(count, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; i += 8)
        for (unsigned bits = bits_[i / 8], k = 0; bits != 0; bits >>= 1, ++k)
          if ((bits & 1U) != 0) set_nan(y[i + k]);
    });
  });
  return {};
}

void RestoreNanKernel::place(int operand, std::byte* address) {
  if (operand == 0)
    bits_ = reinterpret_cast<const std::uint8_t*>(address);
  else
    data_ = address;
}

SpreadNanKernel::SpreadNanKernel(const Desc& from, const Desc& to, Reached reached)
    : from_(from), to_(to), reached_(std::move(reached)) {}

std::unique_ptr<Kernel> SpreadNanKernel::elementwise(const Desc& from, const Desc& to) {
  if (same_layout(with_type(from, to.get_data_type()), to))
    return std::make_unique<SpreadNanKernel>(from, to, Reached{});
  const Dims own = from.get_dims(), all = to.get_dims();
  CARILLON_ASSERT(own.size() == all.size());
  return std::make_unique<SpreadNanKernel>(
      from, to, [own, all](const Index& at, std::vector<Range>& reached) {
        for (std::size_t d = 0; d < own.size(); ++d)
          reached[d] = own[d] == all[d] ? Range{at[d], at[d] + 1} : Range{0, all[d]};
      });
}

std::unique_ptr<Kernel> SpreadNanKernel::pool(const Desc& from, const Desc& to, Window window) {
  const Dims all = to.get_dims();
  return std::make_unique<SpreadNanKernel>(
      from, to, [all, window = std::move(window)](const Index& at, std::vector<Range>& reached) {
        for (std::size_t d = 0; d < 2; ++d) reached[d] = {at[d], at[d] + 1};
        for (std::size_t i = 0; i < window.kernel.size(); ++i) {
          // The window of result o takes the padded places o * stride + k * step.
          const std::int64_t stride = window.strides[i], step = window.dilations[i] + 1;
          const std::int64_t x = at[i + 2] + window.pads[i], reach = step * (window.kernel[i] - 1);
          Range& results = reached[i + 2];
          results.first = x <= reach ? 0 : (x - reach + stride - 1) / stride;
          results.last = std::min(all[i + 2], x / stride + 1);
          results.step = step / std::gcd(step, stride);
          for (std::int64_t tries = 0; tries < results.step && (x - results.first * stride) % step != 0;
               ++tries)
            ++results.first;
          if ((x - results.first * stride) % step != 0) results.last = 0;
        }
      });
}

std::unique_ptr<Kernel> SpreadNanKernel::copy(graph::Faults&) const {
  return std::make_unique<SpreadNanKernel>(from_, to_, reached_);
}

Result<> SpreadNanKernel::run(dnnl::stream&) {
  as_elements(type_of(from_), source_, [&](const auto* x) {
    as_elements(type_of(to_), result_, [&](auto* y) {
      if (!reached_) {
        const auto count = static_cast<std::int64_t>(elements_of(to_).count);
        in_pieces(count, [&](std::int64_t from, std::int64_t to) {
          for (std::int64_t i = from; i < to; i += 8)
            for (unsigned bits = nan_bits(x + i, to - i), k = 0; bits != 0; bits >>= 1, ++k)
              if ((bits & 1U) != 0) set_nan(y[i + k]);
        });
        return;
      }
      bool any = false;
      with_format(type_of(from_), [&]<typename Bits>(const Format<Bits>& format) {
        any = any_from<Bits>(source_, static_cast<std::int64_t>(elements_of(from_).count), format.magnitude,
                             static_cast<Bits>(format.infinity + 1));
      });
      if (!any) return;
      const Walk from(from_), to(to_);
      std::vector<Range> ranges(to_.get_dims().size());
      Index index(ranges.size());
      from.for_each([&](std::int64_t place) { return (nan_bits(x + place, 1) & 1U) != 0; },
                    [&](std::int64_t, const Index& at) {
                      reached_(at, ranges);
                      if (std::ranges::any_of(ranges, [](const Range& r) { return r.first >= r.last; }))
                        return;
                      for (std::size_t d = 0; d < ranges.size(); ++d) index[d] = ranges[d].first;
                      for (;;) {
                        set_nan(y[to.place(index)]);
                        std::size_t d = ranges.size();
                        for (; d > 0; --d) {
                          if ((index[d - 1] += ranges[d - 1].step) < ranges[d - 1].last) break;
                          index[d - 1] = ranges[d - 1].first;
                        }
                        if (d == 0) break;
                      }
                    });
    });
  });
  return {};
}

void SpreadNanKernel::place(int operand, std::byte* address) {
  if (operand == 0)
    source_ = address;
  else
    result_ = address;
}

std::unique_ptr<Kernel> SoftmaxNanKernel::copy(graph::Faults&) const {
  return std::make_unique<SoftmaxNanKernel>(type_, outer_, extent_, inner_);
}

Result<> SoftmaxNanKernel::run(dnnl::stream&) {
  as_elements(type_, source_, [&](const auto* x) {
    as_elements(type_, result_, [&](auto* y) {
      using T = std::remove_cvref_t<decltype(*x)>;
      const auto breaks = [](T element) {
        if constexpr (std::is_same_v<T, float>)
          return !(element < std::numeric_limits<float>::infinity());
        else
          return is_nan(element, bf16_bits) || element == bf16_bits.infinity;
      };
      const std::int64_t size = extent_ * inner_;
      const auto lines_at = [&](std::int64_t o) {
        for (std::int64_t i = 0; i < inner_; ++i) {
          const std::int64_t line = o * size + i;
          bool broken = false;
          for (std::int64_t k = 0; k < extent_; ++k) broken |= breaks(x[line + k * inner_]);
          for (std::int64_t k = 0; broken && k < extent_; ++k) set_nan(y[line + k * inner_]);
        }
      };
      if (divides()) return in_parts(outer_, lines_at);
      for (std::int64_t o = 0; o < outer_; ++o) lines_at(o);
    });
  });
  return {};
}

void SoftmaxNanKernel::place(int operand, std::byte* address) {
  if (operand == 0)
    source_ = address;
  else
    result_ = address;
}

std::unique_ptr<Kernel> SequenceKernel::copy(graph::Faults& faults) const {
  std::vector<Part> parts;
  for (const auto& [kernel, operands] : parts_) parts.push_back({kernel->copy(faults), operands});
  return std::make_unique<SequenceKernel>(std::move(parts));
}

bool SequenceKernel::divides() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.kernel->divides(); });
}

Result<> SequenceKernel::run(dnnl::stream& stream) {
  for (const Part& part : parts_)
    if (auto done = part.kernel->run(stream); !done) return done;
  return {};
}

void SequenceKernel::place(int operand, std::byte* address) {
  for (const Part& part : parts_) {
    if (operand < part.operands) return part.kernel->place(operand, address);
    operand -= part.operands;
  }
  CARILLON_ASSERT(false);
}

int SequenceKernel::operand_count() const {
  int sum = 0;
  for (const Part& part : parts_) sum += part.operands;
  return sum;
}

bool SequenceKernel::may_lack(int operand) const {
  for (const Part& part : parts_) {
    if (operand < part.operands) return part.kernel->may_lack(operand);
    operand -= part.operands;
  }
  return false;
}

}  // namespace carillon::engine::cpu
