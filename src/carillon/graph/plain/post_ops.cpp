// Post-ops on f32, the fused tail of a node.

#include <cmath>
#include <numbers>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph {
namespace {

using plain::fast_erf;
using plain::fast_exp;

template <typename Op>
void each(float* y, std::int64_t count, Op op) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = op(y[i]);
}

template <typename Op>
void with_operand(const MutableView& output, const ConstView& operand, Op op) {
  CARILLON_ASSERT(operand && operand.type->type == DataType::f32);
  plain::Loops<2> loops;
  CARILLON_ASSERT(plain::broadcast<1>(output.type->shape, {operand.type->shape}, loops));
  const bool wide = loops.inner_stride(1) != 0;
  plain::for_each_row(loops, [&](const auto& at, std::int64_t count) {
    float* __restrict y = output.as<float>() + at[0];
    const float* x = operand.as<float>() + at[1];
    if (wide) {
      for (std::int64_t i = 0; i < count; ++i) y[i] = op(y[i], x[i]);
    } else {
      const float value = *x;
      for (std::int64_t i = 0; i < count; ++i) y[i] = op(y[i], value);
    }
  });
}

void apply(const PostOp& post, const ConstView& operand, const MutableView& output) {
  using Kind = PostOp::Kind;
  float* y = output.as<float>();
  const std::int64_t count = output.type->elements();
  const float alpha = post.alpha;
  const float beta = post.beta;
  switch (post.kind) {
    case Kind::relu:
      return each(y, count, [](float x) { return x < 0 ? 0.0F : x; });
    case Kind::leaky_relu:
      return each(y, count, [alpha](float x) { return x < 0 ? alpha * x : x; });
    case Kind::clip:
      return each(y, count, [alpha, beta](float x) {
        const float raised = x < alpha ? alpha : x;
        return raised > beta ? beta : raised;
      });
    case Kind::sigmoid:
      return each(y, count, [](float x) { return 1.0F / (1.0F + fast_exp(-x)); });
    case Kind::tanh:
      return each(y, count, [](float x) { return std::tanh(x); });
    case Kind::elu:
      return each(y, count, [alpha](float x) { return x < 0 ? alpha * std::expm1(x) : x; });
    case Kind::gelu_erf:
      return each(y, count, [](float x) {
        return 0.5F * x * (1.0F + fast_erf(x * static_cast<float>(1 / std::numbers::sqrt2)));
      });
    case Kind::gelu_tanh:
      return each(y, count, [](float x) {
        constexpr auto twice = static_cast<float>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
        return x / (1.0F + fast_exp(-twice * (x + 0.044715F * x * x * x)));
      });
    case Kind::hard_sigmoid:
      return each(y, count, [alpha, beta](float x) {
        return plain::minimum(plain::maximum(alpha * x + beta, 0.0F), 1.0F);
      });
    case Kind::hard_swish:
      return each(y, count,
                  [](float x) { return x * plain::minimum(plain::maximum(x / 6.0F + 0.5F, 0.0F), 1.0F); });
    case Kind::silu:
      return each(y, count, [](float x) { return x / (1.0F + fast_exp(-x)); });
    case Kind::linear:
      return each(y, count, [alpha, beta](float x) { return alpha * x + beta; });
    case Kind::add:
      return with_operand(output, operand, [](float a, float b) { return a + b; });
    case Kind::mul:
      return with_operand(output, operand, [](float a, float b) { return a * b; });
    case Kind::at_most:
      return with_operand(output, operand, [](float a, float b) { return a < b ? a : b; });
    case Kind::at_least:
      return with_operand(output, operand, [](float a, float b) { return a > b ? a : b; });
  }
}

}  // namespace

void apply_post_ops(const Node& node, std::span<const ConstView> operands, const MutableView& output) {
  if (node.post_ops.empty()) return;
  CARILLON_ASSERT(output && output.type->type == DataType::f32);
  CARILLON_ASSERT(operands.size() >= node.post_ops.size());
  for (std::size_t i = 0; i < node.post_ops.size(); ++i) apply(node.post_ops[i], operands[i], output);
}

}  // namespace carillon::graph
