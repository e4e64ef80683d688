// Arithmetic of two or more tensors that broadcast to one shape.

#include <cmath>
#include <optional>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// y[i] = op(a[i], b[i]) over one row; a stride is 1, or 0 where the operand is
// one element.
template <typename T, typename A, typename B, typename Op>
inline void binary_row(T* __restrict y, const A* a, const B* b, std::int64_t stride_a, std::int64_t stride_b,
                       std::int64_t count, const Op& op) {
  if (stride_a != 0 && stride_b != 0) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = store<T>(op(load(a[i]), load(b[i])));
  } else if (stride_a != 0) {
    const auto right = load(*b);
    for (std::int64_t i = 0; i < count; ++i) y[i] = store<T>(op(load(a[i]), right));
  } else {
    const auto left = load(*a);
    for (std::int64_t i = 0; i < count; ++i) y[i] = store<T>(op(left, load(b[i * stride_b])));
  }
}

template <typename T, typename A, typename B, typename Op>
Result<> binary_with(const Node& node, Inputs inputs, Outputs outputs, const Op& op) {
  Loops<3> loops;
  if (!broadcast<2>(outputs[0].type->shape, {inputs[0].type->shape, inputs[1].type->shape}, loops)) {
    return misfit(node, inputs, outputs);
  }
  T* y = outputs[0].as<T>();
  const A* a = inputs[0].as<A>();
  const B* b = inputs[1].as<B>();
  const std::int64_t stride_a = loops.inner_stride(1);
  const std::int64_t stride_b = loops.inner_stride(2);
  for_each_row(loops, [&](const auto& at, std::int64_t count) {
    binary_row(y + at[0], a + at[1], b + at[2], stride_a, stride_b, count, op);
  });
  return {};
}

struct Add {
  template <typename C>
  C operator()(C a, C b) const {
    return add(a, b);
  }
};
struct Subtract {
  template <typename C>
  C operator()(C a, C b) const {
    return subtract(a, b);
  }
};
struct Multiply {
  template <typename C>
  C operator()(C a, C b) const {
    return multiply(a, b);
  }
};
// Integers truncate towards zero. What a divisor of 0 makes means nothing (the kernel has noted it), but it
// must not trap.
struct Divide {
  template <typename C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      if (b == C{0}) return C{0};
    }
    if constexpr (std::is_signed_v<C> && std::is_integral_v<C>) {
      if (b == C(-1)) return subtract(C{0}, a);  // the least value has no opposite: wraps
    }
    return static_cast<C>(a / b);
  }
};
// ONNX's Mod: the sign of the divisor; with fmod=1 that of the dividend.
struct Modulo {
  template <typename C>
  C operator()(C a, C b) const {
    if constexpr (std::is_floating_point_v<C>) {
      const C r = std::fmod(a, b);
      return r != C{0} && (r < C{0}) != (b < C{0}) ? r + b : r;
    } else {
      if (b == C{0}) return C{0};
      if constexpr (std::is_signed_v<C>) {
        if (b == C(-1)) return C{0};
      }
      const C r = static_cast<C>(a % b);
      if constexpr (std::is_signed_v<C>) {
        if (r != C{0} && (r < C{0}) != (b < C{0})) return static_cast<C>(r + b);
      }
      return r;
    }
  }
};
struct Remainder {
  template <typename C>
  C operator()(C a, C b) const {
    if constexpr (std::is_floating_point_v<C>) {
      return std::fmod(a, b);
    } else {
      if (b == C{0}) return C{0};
      if constexpr (std::is_signed_v<C>) {
        if (b == C(-1)) return C{0};
      }
      return static_cast<C>(a % b);
    }
  }
};
struct Minimum {
  template <typename C>
  C operator()(C a, C b) const {
    return minimum(a, b);
  }
};
struct Maximum {
  template <typename C>
  C operator()(C a, C b) const {
    return maximum(a, b);
  }
};
// As the post-ops of these names.
struct AtMost {
  template <typename C>
  C operator()(C a, C b) const {
    return a < b ? a : b;
  }
};
struct AtLeast {
  template <typename C>
  C operator()(C a, C b) const {
    return a > b ? a : b;
  }
};
struct ParametricRelu {
  template <typename C>
  C operator()(C x, C slope) const {
    return x < C{0} ? multiply(x, slope) : x;
  }
};
struct BitwiseAnd {
  template <typename C>
  C operator()(C a, C b) const {
    return static_cast<C>(a & b);
  }
};
struct BitwiseOr {
  template <typename C>
  C operator()(C a, C b) const {
    return static_cast<C>(a | b);
  }
};
struct BitwiseXor {
  template <typename C>
  C operator()(C a, C b) const {
    return static_cast<C>(a ^ b);
  }
};
struct ShiftLeft {
  template <typename C>
  C operator()(C a, C b) const {
    return b >= C{8 * sizeof(C)} ? C{0} : static_cast<C>(a << b);
  }
};
struct ShiftRight {
  template <typename C>
  C operator()(C a, C b) const {
    return b >= C{8 * sizeof(C)} ? C{0} : static_cast<C>(a >> b);
  }
};

template <typename Op, typename T>
Result<> binary(const Node& node, Inputs inputs, Outputs outputs) {
  constexpr bool divides =
      std::is_same_v<Op, Divide> || std::is_same_v<Op, Modulo> || std::is_same_v<Op, Remainder>;
  if constexpr (divides && !is_float<T>) {
    const T* divisor = inputs[1].as<T>();
    const std::int64_t count = inputs[1].type->elements();
    bool zero = false;
    for (std::int64_t i = 0; i < count; ++i) zero |= divisor[i] == T{0};
    for (std::int64_t i = 0; zero && i < count; ++i) {
      if (divisor[i] != T{0}) continue;
      auto noted = note(outputs[0], inputs[1], i, [&] {
        return failed(node, "division of integers by zero: no element of the divisor" + source_of(inputs[1]) +
                                " may be 0");
      });
      if (!noted) return noted;
    }
  }
  return binary_with<T, T, T>(node, inputs, outputs, Op{});
}

template <typename Op, typename Set>
PlainKernel find(const Node&, InputTypes types) {
  if (!same_types(types, 2)) return nullptr;
  return Set::pick(types[0]->type, []<typename T>() -> PlainKernel { return &binary<Op, T>; });
}

PlainKernel find_mod(const Node& node, InputTypes types) {
  return node.integer("fmod", 0) != 0 ? find<Remainder, Numbers>(node, types)
                                      : find<Modulo, Numbers>(node, types);
}

using Unsigned = Types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;
PlainKernel find_shift(const Node& node, InputTypes types) {
  return node.text("direction", "") == "LEFT" ? find<ShiftLeft, Unsigned>(node, types)
                                              : find<ShiftRight, Unsigned>(node, types);
}

// Pow: the result has the base's type, whatever the exponent's.
template <typename C, typename E>
C power(C base, E exponent) {
  if constexpr (std::is_integral_v<C> && std::is_integral_v<E>) {
    if (exponent < E{0}) {  // an integer, so only those of 1 and -1 are not 0
      if (base == C{1}) return C{1};
      if constexpr (std::is_signed_v<C>) {
        if (base == C(-1)) return exponent % 2 == 0 ? C{1} : C(-1);
      }
      return C{0};
    }
    C result{1};
    for (auto left = static_cast<std::uint64_t>(exponent); left != 0; left >>= 1) {
      if ((left & 1U) != 0) result = multiply(result, base);
      base = multiply(base, base);
    }
    return result;
  } else if constexpr (std::is_same_v<C, float> && (std::is_same_v<E, float> || sizeof(E) < 4)) {
    return std::pow(base, static_cast<float>(exponent));
  } else {
    return number_cast<C>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
}

// x to the one exponent of a normalisation or GELU, or nothing where it is
// another.
template <typename T>
std::optional<Result<>> power_of_floats(const Node& node, Inputs inputs, Outputs outputs, double exponent) {
  using C = Compute<T>;
  const ConstView base_twice[] = {inputs[0], inputs[0]};
  const auto each = [&](auto op) {
    return binary_with<T, T, T>(node, base_twice, outputs, [op](C x, C) { return op(x); });
  };
  if (exponent == 2.0) return each([](C x) { return x * x; });
  if (exponent == 3.0) return each([](C x) { return x * x * x; });
  if (exponent == 0.5) return each([](C x) { return std::sqrt(x); });
  if (exponent == -1.0) return each([](C x) { return C{1} / x; });
  return std::nullopt;
}

template <typename T, typename E>
Result<> pow(const Node& node, Inputs inputs, Outputs outputs) {
  if constexpr (is_float<T>) {
    if (inputs[1].type->elements() == 1) {
      const auto exponent = static_cast<double>(load(*inputs[1].as<E>()));
      if (auto done = power_of_floats<T>(node, inputs, outputs, exponent)) return *std::move(done);
    }
  }
  return binary_with<T, T, E>(node, inputs, outputs, [](Compute<T> x, Compute<E> e) { return power(x, e); });
}
using PowBases = Types<float, double, Half, BFloat16, std::int64_t, std::int32_t>;
PlainKernel find_pow(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || type_at(types, 1) == nullptr) return nullptr;
  const DataType exponent = types[1]->type;
  return PowBases::pick(types[0]->type, [exponent]<typename T>() -> PlainKernel {
    return Numbers::pick(exponent, []<typename E>() -> PlainKernel { return &pow<T, E>; });
  });
}

// Any number of operands: the first is copied, the others are folded into the
// output.
template <typename Op, typename T, bool mean>
Result<> variadic(const Node& node, Inputs inputs, Outputs outputs) {
  T* y = outputs[0].as<T>();
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    Loops<2> loops;
    if (!broadcast<1>(outputs[0].type->shape, {inputs[k].type->shape}, loops)) {
      return misfit(node, inputs, outputs);
    }
    if (k == 0) {
      strided_copy(loops, outputs[0].data, inputs[0].data, sizeof(T));
      continue;
    }
    const T* x = inputs[k].as<T>();
    const std::int64_t stride = loops.inner_stride(1);
    for_each_row(loops, [&](const auto& at, std::int64_t count) {
      T* __restrict row = y + at[0];
      const T* from = x + at[1];
      const Op op;
      if (stride != 0) {
        for (std::int64_t i = 0; i < count; ++i) row[i] = store<T>(op(load(row[i]), load(from[i])));
      } else {
        const auto value = load(*from);
        for (std::int64_t i = 0; i < count; ++i) row[i] = store<T>(op(load(row[i]), value));
      }
    });
  }
  if constexpr (mean) {
    const std::int64_t count = outputs[0].type->elements();
    const auto parts = static_cast<Compute<T>>(inputs.size());
    for (std::int64_t i = 0; i < count; ++i) y[i] = store<T>(load(y[i]) / parts);
  }
  return {};
}
template <typename Op, typename Set, bool mean = false>
PlainKernel find_variadic(const Node&, InputTypes types) {
  if (!same_types(types, types.size())) return nullptr;
  return Set::pick(types[0]->type, [&]<typename T>() -> PlainKernel {
    if constexpr (!mean) {
      if (types.size() == 2) return &binary<Op, T>;
    }
    return &variadic<Op, T, mean>;
  });
}

constexpr Operator operators[] = {
    {"Add", &find<Add, Numbers>},
    {"Sub", &find<Subtract, Numbers>},
    {"Mul", &find<Multiply, Numbers>},
    {"Div", &find<Divide, Numbers>},
    {"Mod", &find_mod},
    {"Pow", &find_pow},
    {"PRelu", &find<ParametricRelu, Numbers>},
    {"BitShift", &find_shift},
    {"BitwiseAnd", &find<BitwiseAnd, Integers>},
    {"BitwiseOr", &find<BitwiseOr, Integers>},
    {"BitwiseXor", &find<BitwiseXor, Integers>},
    {"Min", &find_variadic<Minimum, Numbers>},
    {"Max", &find_variadic<Maximum, Numbers>},
    {"AtMost", &find<AtMost, Types<float>>},
    {"AtLeast", &find<AtLeast, Types<float>>},
    {"Sum", &find_variadic<Add, Floats>},
    {"Mean", &find_variadic<Add, Floats, true>},
};

}  // namespace

std::span<const Operator> binary_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
