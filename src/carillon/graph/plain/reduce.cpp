// Reductions over any set of axes.

#include <cmath>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// Integers add up in 64 bits, wrapping; Half and BFloat16 in float.
template <typename C>
using Sum = std::conditional_t<std::is_floating_point_v<C>, C,
                               std::conditional_t<std::is_signed_v<C>, std::int64_t, std::uint64_t>>;

// A reduction is a state that takes elements, joins another state, and ends as
// the result over `count` of them.
template <typename C>
struct SumOf {
  Sum<C> sum{};
  void take(C x) { sum = add(sum, static_cast<Sum<C>>(x)); }
  void join(const SumOf& other) { sum = add(sum, other.sum); }
  C end(std::int64_t) const { return static_cast<C>(sum); }
};
template <typename C>
struct MeanOf : SumOf<C> {
  void join(const MeanOf& other) { SumOf<C>::join(other); }
  C end(std::int64_t count) const {
    if constexpr (std::is_floating_point_v<C>) {
      return this->sum / static_cast<C>(count);
    } else {
      return count == 0 ? C{0} : static_cast<C>(this->sum / static_cast<Sum<C>>(count));
    }
  }
};
template <typename C>
struct ProductOf {
  Sum<C> product{1};
  void take(C x) { product = multiply(product, static_cast<Sum<C>>(x)); }
  void join(const ProductOf& other) { product = multiply(product, other.product); }
  C end(std::int64_t) const { return static_cast<C>(product); }
};
template <typename C>
struct MaximumOf {
  C best =
      std::is_floating_point_v<C> ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::lowest();
  void take(C x) { best = maximum(best, x); }
  void join(const MaximumOf& other) { best = maximum(best, other.best); }
  C end(std::int64_t) const { return best; }
};
template <typename C>
struct MinimumOf {
  C best = std::is_floating_point_v<C> ? std::numeric_limits<C>::infinity() : std::numeric_limits<C>::max();
  void take(C x) { best = minimum(best, x); }
  void join(const MinimumOf& other) { best = minimum(best, other.best); }
  C end(std::int64_t) const { return best; }
};
template <typename C>
struct AbsoluteOf : SumOf<C> {
  void take(C x) {
    if constexpr (std::is_signed_v<C> && std::is_integral_v<C>) {
      SumOf<C>::take(x < C{0} ? subtract(C{0}, x) : x);
    } else if constexpr (std::is_floating_point_v<C>) {
      SumOf<C>::take(std::abs(x));
    } else {
      SumOf<C>::take(x);
    }
  }
  void join(const AbsoluteOf& other) { SumOf<C>::join(other); }
};
template <typename C>
struct SquareOf : SumOf<C> {
  void take(C x) { this->sum = add(this->sum, multiply(static_cast<Sum<C>>(x), static_cast<Sum<C>>(x))); }
  void join(const SquareOf& other) { SumOf<C>::join(other); }
};
template <typename C>
struct NormOf : SquareOf<C> {
  void join(const NormOf& other) { SumOf<C>::join(other); }
  C end(std::int64_t) const { return number_cast<C>(std::sqrt(this->sum)); }
};
template <typename C>
struct LogSumOf : SumOf<C> {
  void join(const LogSumOf& other) { SumOf<C>::join(other); }
  C end(std::int64_t) const { return number_cast<C>(std::log(this->sum)); }
};
// Keeps the largest element outside the exponentials, so that none overflows.
template <typename C>
struct LogSumExpOf {
  using S = std::conditional_t<std::is_floating_point_v<C>, C, double>;
  S top = -std::numeric_limits<S>::infinity();
  S sum{};
  void take(C element) { join({static_cast<S>(element), S{1}}); }
  void join(const LogSumExpOf& other) {
    if (other.sum == S{0}) return;
    if (other.top > top) {
      sum = sum * std::exp(top - other.top) + other.sum;
      top = other.top;
    } else {
      sum += other.top == top ? other.sum : other.sum * std::exp(other.top - top);
    }
  }
  C end(std::int64_t) const { return number_cast<C>(top + std::log(sum)); }
};

// The state of `count` contiguous elements.
template <typename State, typename T>
void take_row(State& state, const T* x, std::int64_t count) {
  constexpr std::int64_t lanes = 16;
  std::int64_t i = 0;
  if (count >= 2 * lanes) {
    std::array<State, lanes> part{};
    for (; i + lanes <= count; i += lanes) {
      for (std::int64_t j = 0; j < lanes; ++j) part[j].take(load(x[i + j]));
    }
    for (const State& p : part) state.join(p);
  }
  for (; i < count; ++i) state.take(load(x[i]));
}

// The loops of one reduction: over its results, and over the elements that one
// of them joins.
struct Reduction {
  Loops<1> kept;
  Loops<1> gone;
  std::int64_t count = 1;   // elements to a result
  bool inner_kept = false;  // neighbouring elements belong to neighbouring results
};

// Axes from input 1 (absent or empty: all, unless noop_with_empty_axes). The
// output's places follow from the kept axes in order, whether or not the
// reduced ones stay as 1.
Result<Reduction> reduction_of(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  const int rank = static_cast<int>(shape.size());
  std::array<bool, max_rank> reduced{};
  const ConstView axes = input(inputs, 1);
  if (axes && axes.type->elements() > 0) {
    for (std::int64_t i = 0; i < axes.type->elements(); ++i) {
      const auto axis = axis_of(index_at(axes, i), shape.size());
      if (!axis) {
        return failed(node, "axis " + std::to_string(index_at(axes, i)) + " is outside a tensor of rank " +
                                std::to_string(rank));
      }
      reduced[*axis] = true;
    }
  } else if (node.integer("noop_with_empty_axes", 0) == 0) {
    reduced.fill(true);
  }

  // Neighbouring axes of one kind become one loop.
  Reduction plan;
  const auto strides = dense_strides(shape);
  std::int64_t results = 1;
  for (int d = 0; d < rank; ++d) {
    (reduced[d] ? plan.gone : plan.kept).push(shape[d], {strides[d]});
    (reduced[d] ? plan.count : results) *= shape[d];
    if (shape[d] != 1) plan.inner_kept = !reduced[d];
  }
  plan.kept.collapse();
  plan.gone.collapse();
  if (outputs[0].type->elements() != results) return misfit(node, inputs, outputs);
  return plan;
}

template <template <typename> typename StateOf, typename T>
Result<> reduce(const Node& node, Inputs inputs, Outputs outputs) {
  using State = StateOf<Compute<T>>;
  const auto plan = reduction_of(node, inputs, outputs);
  if (!plan) return std::unexpected(plan.error());
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  const std::int64_t inner_step = plan->gone.inner_stride(0);

  if (!plan->inner_kept) {
    const std::int64_t step = plan->kept.inner_stride(0);
    for_each_row(plan->kept, [&](const auto& at, std::int64_t rows) {
      for (std::int64_t r = 0; r < rows; ++r) {
        State state{};
        const T* from = x + at[0] + r * step;
        for_each_row(plan->gone, [&](const auto& within, std::int64_t run) {
          if (inner_step == 1 || run == 1) {
            take_row(state, from + within[0], run);
          } else {
            for (std::int64_t i = 0; i < run; ++i) state.take(load(from[within[0] + i * inner_step]));
          }
        });
        *y++ = store<T>(state.end(plan->count));
      }
    });
    return {};
  }
  // The innermost axis stays: a tile of neighbouring results grows together.
  constexpr std::int64_t tile = 64;
  for_each_row(plan->kept, [&](const auto& at, std::int64_t columns) {
    for (std::int64_t c = 0; c < columns; c += tile) {
      const std::int64_t width = std::min(tile, columns - c);
      std::array<State, tile> states{};
      const T* from = x + at[0] + c;
      for_each_row(plan->gone, [&](const auto& within, std::int64_t run) {
        const T* row = from + within[0];
        for (std::int64_t r = 0; r < run; ++r, row += inner_step) {
          for (std::int64_t j = 0; j < width; ++j) states[j].take(load(row[j]));
        }
      });
      for (std::int64_t j = 0; j < width; ++j) *y++ = store<T>(states[j].end(plan->count));
    }
  });
  return {};
}

template <template <typename> typename StateOf>
PlainKernel find(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  if (const TensorType* axes = type_at(types, 1); axes != nullptr && !is_index(axes->type)) return nullptr;
  return Numbers::pick(types[0]->type, []<typename T>() -> PlainKernel { return &reduce<StateOf, T>; });
}

constexpr Operator operators[] = {
    {"ReduceSum", &find<SumOf>},       {"ReduceMean", &find<MeanOf>},
    {"ReduceProd", &find<ProductOf>},  {"ReduceMax", &find<MaximumOf>},
    {"ReduceMin", &find<MinimumOf>},   {"ReduceL1", &find<AbsoluteOf>},
    {"ReduceL2", &find<NormOf>},       {"ReduceSumSquare", &find<SquareOf>},
    {"ReduceLogSum", &find<LogSumOf>}, {"ReduceLogSumExp", &find<LogSumExpOf>},
};

}  // namespace

std::span<const Operator> reduce_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
