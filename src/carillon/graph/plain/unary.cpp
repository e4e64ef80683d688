// Operators of one tensor, element by element.

#include <cmath>
#include <numbers>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

template <template <typename> typename Op, typename T>
Result<> unary(const Node& node, Inputs inputs, Outputs outputs) {
  const std::int64_t count = inputs[0].type->elements();
  if (outputs[0].type->elements() != count) return misfit(node, inputs, outputs);
  const Op<Compute<T>> op(node);
  const T* x = inputs[0].as<T>();
  T* __restrict y = outputs[0].as<T>();
  for (std::int64_t i = 0; i < count; ++i) y[i] = store<T>(op(load(x[i])));
  return {};
}

template <template <typename> typename Op, typename Set>
PlainKernel find(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Set::pick(types[0]->type, []<typename T>() -> PlainKernel { return &unary<Op, T>; });
}

using SignedNumbers =
    Types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::int16_t, std::int8_t>;

// What takes no attribute: a formula over x in the compute type C.
#define CARILLON_UNARY(NAME, FORMULA)             \
  template <typename C>                           \
  struct NAME {                                   \
    explicit NAME(const Node&) {}                 \
    C operator()(C x) const { return (FORMULA); } \
  };

CARILLON_UNARY(Exp, exponential(x))
CARILLON_UNARY(Log, std::log(x))
CARILLON_UNARY(Sqrt, std::sqrt(x))
CARILLON_UNARY(Reciprocal, C{1} / x)
CARILLON_UNARY(Neg, subtract(C{0}, x))
CARILLON_UNARY(Floor, std::floor(x))
CARILLON_UNARY(Ceil, std::ceil(x))
CARILLON_UNARY(Round, std::nearbyint(x))  // half to even, the default rounding mode
CARILLON_UNARY(Sin, std::sin(x))
CARILLON_UNARY(Cos, std::cos(x))
CARILLON_UNARY(Tan, std::tan(x))
CARILLON_UNARY(Asin, std::asin(x))
CARILLON_UNARY(Acos, std::acos(x))
CARILLON_UNARY(Atan, std::atan(x))
CARILLON_UNARY(Sinh, std::sinh(x))
CARILLON_UNARY(Cosh, std::cosh(x))
CARILLON_UNARY(Tanh, std::tanh(x))
CARILLON_UNARY(Asinh, std::asinh(x))
CARILLON_UNARY(Acosh, std::acosh(x))
CARILLON_UNARY(Atanh, std::atanh(x))
CARILLON_UNARY(Erf, error_function(x))
CARILLON_UNARY(Relu, x < C{0} ? C{0} : x)
CARILLON_UNARY(Sigmoid, C{1} / (C{1} + exponential(-x)))
CARILLON_UNARY(BitwiseNot, static_cast<C>(~x))
CARILLON_UNARY(Softplus, x > C{20} ? x : std::log1p(std::exp(x)))
CARILLON_UNARY(Softsign, x / (C{1} + std::abs(x)))
CARILLON_UNARY(Mish, x* std::tanh(x > C{20} ? x : std::log1p(std::exp(x))))
CARILLON_UNARY(HardSwish, x* minimum(maximum(x / C{6} + C{0.5}, C{0}), C{1}))

#undef CARILLON_UNARY

template <typename C>
struct Sign {
  explicit Sign(const Node&) {}
  C operator()(C x) const {
    return static_cast<C>(x > C{0} ? C{1} : static_cast<C>(x < C{0} ? C(-1) : (x == x ? C{0} : x)));
  }
};
template <typename C>
struct Abs {
  explicit Abs(const Node&) {}
  C operator()(C x) const {
    if constexpr (std::is_floating_point_v<C>) {
      return std::abs(x);
    } else if constexpr (std::is_signed_v<C>) {
      return x < C{0} ? subtract(C{0}, x) : x;
    } else {
      return x;
    }
  }
};

// Those with attributes. ONNX's are floats, whatever the tensor's type.
template <typename C>
struct LeakyRelu {
  C alpha;
  explicit LeakyRelu(const Node& node) : alpha(static_cast<C>(node.real("alpha", 0.01F))) {}
  C operator()(C x) const { return x < C{0} ? alpha * x : x; }
};
template <typename C>
struct Elu {
  C alpha;
  explicit Elu(const Node& node) : alpha(static_cast<C>(node.real("alpha", 1.0F))) {}
  C operator()(C x) const { return x < C{0} ? alpha * std::expm1(x) : x; }
};
template <typename C>
struct Selu {
  C alpha;
  C gamma;
  explicit Selu(const Node& node)
      : alpha(static_cast<C>(node.real("alpha", 1.67326319217681884765625F))),
        gamma(static_cast<C>(node.real("gamma", 1.05070102214813232421875F))) {}
  C operator()(C x) const { return gamma * (x > C{0} ? x : alpha * std::expm1(x)); }
};
template <typename C>
struct Celu {
  C alpha;
  explicit Celu(const Node& node) : alpha(static_cast<C>(node.real("alpha", 1.0F))) {}
  C operator()(C x) const { return x < C{0} ? alpha * std::expm1(x / alpha) : x; }
};
template <typename C>
struct ThresholdedRelu {
  C alpha;
  explicit ThresholdedRelu(const Node& node) : alpha(static_cast<C>(node.real("alpha", 1.0F))) {}
  C operator()(C x) const { return x > alpha ? x : C{0}; }
};
template <typename C>
struct HardSigmoid {
  C alpha;
  C beta;
  explicit HardSigmoid(const Node& node)
      : alpha(static_cast<C>(node.real("alpha", 0.2F))), beta(static_cast<C>(node.real("beta", 0.5F))) {}
  C operator()(C x) const { return minimum(maximum(alpha * x + beta, C{0}), C{1}); }
};
template <typename C>
struct Shrink {
  C lambda;
  C bias;
  explicit Shrink(const Node& node)
      : lambda(static_cast<C>(node.real("lambd", 0.5F))), bias(static_cast<C>(node.real("bias", 0.0F))) {}
  C operator()(C x) const { return x < -lambda ? x + bias : (x > lambda ? x - bias : C{0}); }
};

template <typename C>
struct GeluErf {
  explicit GeluErf(const Node&) {}
  C operator()(C x) const {
    return C{0.5} * x * (C{1} + error_function(x * static_cast<C>(1 / std::numbers::sqrt2)));
  }
};
template <typename C>
struct GeluTanh {
  explicit GeluTanh(const Node&) {}
  C operator()(C x) const {
    // 0.5 * (1 + tanh(u)) is the sigmoid of 2u.
    const C u = static_cast<C>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi) *
                (x + static_cast<C>(0.044715) * x * x * x);
    return x / (C{1} + exponential(-u));
  }
};
PlainKernel find_gelu(const Node& node, InputTypes types) {
  return node.text("approximate", "none") == "tanh" ? find<GeluTanh, Floats>(node, types)
                                                    : find<GeluErf, Floats>(node, types);
}

// Inputs 1 and 2, each a scalar that may be absent, are the bounds.
template <typename T>
Result<> clip(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const std::int64_t count = inputs[0].type->elements();
  C low = std::numeric_limits<C>::lowest();
  C high = std::numeric_limits<C>::max();
  if (std::is_floating_point_v<C>) {
    low = -std::numeric_limits<C>::infinity();
    high = std::numeric_limits<C>::infinity();
  }
  if (const ConstView view = input(inputs, 1)) {
    if (view.type->elements() != 1) return failed(node, "min is not a scalar");
    low = load(*view.as<T>());
  }
  if (const ConstView view = input(inputs, 2)) {
    if (view.type->elements() != 1) return failed(node, "max is not a scalar");
    high = load(*view.as<T>());
  }
  const T* x = inputs[0].as<T>();
  T* __restrict y = outputs[0].as<T>();
  for (std::int64_t i = 0; i < count; ++i) {
    const C v = load(x[i]);
    const C raised = v < low ? low : v;
    y[i] = store<T>(raised > high ? high : raised);
  }
  return {};
}
PlainKernel find_clip(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  for (std::size_t i = 1; i < types.size() && i < 3; ++i) {
    if (types[i] != nullptr && types[i]->type != types[0]->type) return nullptr;
  }
  return Numbers::pick(types[0]->type, []<typename T>() -> PlainKernel { return &clip<T>; });
}

constexpr Operator operators[] = {
    {"Abs", &find<Abs, Numbers>},
    {"Neg", &find<Neg, SignedNumbers>},
    {"Sign", &find<Sign, Numbers>},
    {"BitwiseNot", &find<BitwiseNot, Integers>},
    {"Exp", &find<Exp, Floats>},
    {"Log", &find<Log, Floats>},
    {"Sqrt", &find<Sqrt, Floats>},
    {"Reciprocal", &find<Reciprocal, Floats>},
    {"Floor", &find<Floor, Floats>},
    {"Ceil", &find<Ceil, Floats>},
    {"Round", &find<Round, Floats>},
    {"Sin", &find<Sin, Floats>},
    {"Cos", &find<Cos, Floats>},
    {"Tan", &find<Tan, Floats>},
    {"Asin", &find<Asin, Floats>},
    {"Acos", &find<Acos, Floats>},
    {"Atan", &find<Atan, Floats>},
    {"Sinh", &find<Sinh, Floats>},
    {"Cosh", &find<Cosh, Floats>},
    {"Tanh", &find<Tanh, Floats>},
    {"Asinh", &find<Asinh, Floats>},
    {"Acosh", &find<Acosh, Floats>},
    {"Atanh", &find<Atanh, Floats>},
    {"Erf", &find<Erf, Floats>},
    {"Relu", &find<Relu, SignedNumbers>},
    {"LeakyRelu", &find<LeakyRelu, Floats>},
    {"Elu", &find<Elu, Floats>},
    {"Selu", &find<Selu, Floats>},
    {"Celu", &find<Celu, Floats>},
    {"ThresholdedRelu", &find<ThresholdedRelu, Floats>},
    {"Sigmoid", &find<Sigmoid, Floats>},
    {"HardSigmoid", &find<HardSigmoid, Floats>},
    {"HardSwish", &find<HardSwish, Floats>},
    {"Softplus", &find<Softplus, Floats>},
    {"Softsign", &find<Softsign, Floats>},
    {"Mish", &find<Mish, Floats>},
    {"Shrink", &find<Shrink, Floats>},
    {"Gelu", &find_gelu},
    {"Clip", &find_clip},
};

}  // namespace

std::span<const Operator> unary_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
