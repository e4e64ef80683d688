#include <cmath>
#include <limits>

#include "carillon/engine/cuda/plan/lower.h"

namespace carillon::engine::cuda {

namespace {

// What one operand becomes, step by step: each writes the names of the operators that it is made of.
class Chain {
 public:
  Chain(Builder& builder, Lying tensor)
      : builder_(builder), tensor_(std::move(tensor)), shape_(tensor_.shape) {}

  Chain& activate(Activation activation, float low = 0, float high = 0) {
    return put([&] { return builder_.elementwise(Op::copy, {tensor_}, shape_, activation, low, high); });
  }
  Chain& unary(Op op) {
    return put([&] { return builder_.elementwise(op, {tensor_}, shape_); });
  }
  Chain& binary(Op op, float right, Activation activation = Activation::none, float low = 0, float high = 0) {
    return put([&] {
      return builder_.elementwise(op, {tensor_, builder_.scalar(right, tensor_.type)}, shape_, activation,
                                  low, high);
    });
  }
  Chain& binary(Op op, const Lying& right) {
    return put([&] { return builder_.elementwise(op, {tensor_, right}, shape_); });
  }
  // scale * x + shift
  Chain& linear(float scale, float shift, Activation activation = Activation::none, float low = 0,
                float high = 0) {
    return put([&] {
      return builder_.elementwise(
          Op::fma, {tensor_, builder_.scalar(scale, tensor_.type), builder_.scalar(shift, tensor_.type)},
          shape_, activation, low, high);
    });
  }
  Chain& leaky(float alpha) {
    // max(x, 0) + alpha * min(x, 0), whatever alpha is.
    const Lying x = tensor_;
    binary(Op::min, 0.0F).binary(Op::mul, alpha);
    const Lying below = tensor_;
    return put([&] { return builder_.elementwise(Op::copy, {x}, shape_, Activation::relu); })
        .binary(Op::add, below);
  }
  Chain& elu(float alpha) {
    const Lying x = tensor_;
    binary(Op::min, 0.0F).unary(Op::exp).linear(alpha, -alpha);
    const Lying below = tensor_;
    return put([&] { return builder_.elementwise(Op::copy, {x}, shape_, Activation::relu); })
        .binary(Op::add, below);
  }
  Chain& hard_sigmoid(float alpha, float beta) { return linear(alpha, beta, Activation::clip, 0, 1); }
  Chain& hard_swish() {
    const Lying x = tensor_;
    return hard_sigmoid(1.0F / 6, 0.5F).binary(Op::mul, x);
  }

  Result<Lying> done() const {
    if (!failed_) return std::unexpected(failed_.error());
    return tensor_;
  }

 private:
  template <typename Make>
  Chain& put(Make make) {
    if (!failed_) return *this;
    Result<Lying> made = make();
    if (made)
      tensor_ = std::move(*made);
    else
      failed_ = std::unexpected(made.error());
    return *this;
  }

  Builder& builder_;
  Lying tensor_;
  Shape shape_;
  Result<> failed_;
};

// A bound of Clip: a constant of one element, or none.
Result<float> bound(Builder& builder, const graph::Node& node, std::size_t input, float otherwise) {
  if (!builder.has(input)) return otherwise;
  const graph::SharedTensor& tensor = builder.constant(node.inputs[input]);
  if (tensor == nullptr || tensor->type().type != graph::DataType::f32 || tensor->type().elements() != 1)
    return builder.refuse("a bound that is no constant");
  return tensor->as<float>()[0];
}

}  // namespace

Result<Lying> apply_post_ops(Builder& builder, const graph::Node& node, Lying tensor, std::size_t first) {
  Chain chain(builder, std::move(tensor));
  for (std::size_t i = first; i < node.post_ops.size(); ++i) {
    const graph::PostOp& post = node.post_ops[i];
    using Kind = graph::PostOp::Kind;
    switch (post.kind) {
      case Kind::relu:
        chain.activate(Activation::relu);
        break;
      case Kind::leaky_relu:
        chain.leaky(post.alpha);
        break;
      case Kind::clip:
        chain.activate(Activation::clip, post.alpha, post.beta);
        break;
      case Kind::sigmoid:
        chain.unary(Op::sigmoid);
        break;
      case Kind::tanh:
        chain.activate(Activation::tanh);
        break;
      case Kind::elu:
        chain.elu(post.alpha);
        break;
      case Kind::gelu_erf:
        chain.activate(Activation::gelu_erf);
        break;
      case Kind::gelu_tanh:
        chain.activate(Activation::gelu_tanh);
        break;
      case Kind::hard_sigmoid:
        chain.hard_sigmoid(post.alpha, post.beta);
        break;
      case Kind::hard_swish:
        chain.hard_swish();
        break;
      case Kind::silu:
        chain.activate(Activation::swish);
        break;
      case Kind::linear:
        chain.linear(post.alpha, post.beta);
        break;
      case Kind::add:
        chain.binary(Op::add, builder.in(post.operand));
        break;
      case Kind::mul:
        chain.binary(Op::mul, builder.in(post.operand));
        break;
      // A NaN stays here, although the graph wants the operand.
      case Kind::at_most:
        chain.binary(Op::min, builder.in(post.operand));
        break;
      case Kind::at_least:
        chain.binary(Op::max, builder.in(post.operand));
        break;
    }
  }
  return chain.done();
}

Result<> lower_unary(Builder& builder, const graph::Node& node) {
  Chain chain(builder, builder.in(node.inputs[0]));
  const std::string_view op = node.op;
  if (op == "Relu") {
    chain.activate(Activation::relu);
  } else if (op == "LeakyRelu") {
    chain.leaky(node.real("alpha", 0.01F));
  } else if (op == "Clip") {
    const auto low = bound(builder, node, 1, std::numeric_limits<float>::lowest());
    const auto high = bound(builder, node, 2, std::numeric_limits<float>::max());
    if (!low) return std::unexpected(low.error());
    if (!high) return std::unexpected(high.error());
    chain.activate(Activation::clip, *low, *high);
  } else if (op == "Tanh") {
    chain.activate(Activation::tanh);
  } else if (op == "Elu") {
    chain.elu(node.real("alpha", 1));
  } else if (op == "HardSigmoid") {
    chain.hard_sigmoid(node.real("alpha", 0.2F), node.real("beta", 0.5F));
  } else if (op == "HardSwish") {
    chain.hard_swish();
  } else if (op == "Gelu") {
    chain.activate(node.text("approximate", "none") == "tanh" ? Activation::gelu_tanh : Activation::gelu_erf);
  } else {
    struct Row {
      std::string_view op;
      Op kernel;
    };
    static constexpr Row rows[] = {{"Sigmoid", Op::sigmoid}, {"Erf", Op::erf},
                                   {"Exp", Op::exp},         {"Log", Op::log},
                                   {"Sqrt", Op::sqrt},       {"Reciprocal", Op::reciprocal},
                                   {"Neg", Op::neg},         {"Abs", Op::abs},
                                   {"Floor", Op::floor},     {"Ceil", Op::ceil}};
    for (const Row& row : rows)
      if (row.op == op) chain.unary(row.kernel);
  }
  auto out = chain.done();
  if (out) out = apply_post_ops(builder, node, std::move(*out));
  if (!out) return std::unexpected(out.error());
  builder.set(node.outputs[0], std::move(*out));
  return {};
}

Result<> lower_binary(Builder& builder, const graph::Node& node) {
  const std::string_view op = node.op;
  const Shape& shape = builder.type(node.outputs[0]).shape;
  Result<Lying> out = builder.in(node.inputs[0]);
  if (op == "PRelu") {
    // max(x, 0) + slope * min(x, 0)
    const Lying x = *out;
    auto above = builder.elementwise(Op::copy, {x}, shape, Activation::relu);
    auto below = builder.elementwise(Op::min, {x, builder.scalar(0, x.type)}, shape);
    if (!above || !below) return std::unexpected(above ? below.error() : above.error());
    out = builder.elementwise(Op::fma, {*below, builder.in(node.inputs[1]), *above}, shape);
  } else {
    const Op kernel = op == "Add" || op == "Sum" || op == "Mean" ? Op::add
                      : op == "Sub"                              ? Op::sub
                      : op == "Mul"                              ? Op::mul
                      : op == "Div"                              ? Op::div
                      : op == "Pow"                              ? Op::pow
                      : op == "Min" || op == "AtMost"            ? Op::min
                                                                 : Op::max;
    if (node.inputs.size() == 1) out = builder.elementwise(Op::copy, {*out}, shape);
    for (std::size_t i = 1; out && i < node.inputs.size(); ++i) {
      const Lying right = builder.in(node.inputs[i]);
      // With more than two, the shapes between are those of the operands so far.
      Shape both = shape;
      if (node.inputs.size() > 2 && i + 1 < node.inputs.size()) {
        const std::size_t rank = std::max(out->shape.size(), right.shape.size());
        both.assign(rank, 1);
        for (const Lying* each : {static_cast<const Lying*>(&*out), &right})
          for (std::size_t k = 0; k < each->shape.size(); ++k) {
            std::int64_t& extent = both[rank - each->shape.size() + k];
            extent = std::max(extent, each->shape[k]);
          }
      }
      // A post-op that the kernel has itself.
      const bool last = i + 1 == node.inputs.size() && op != "Mean";
      const bool relu = last && !node.post_ops.empty() && node.post_ops[0].kind == graph::PostOp::Kind::relu;
      out = builder.elementwise(kernel, {*out, right}, both, relu ? Activation::relu : Activation::none);
      if (last && relu && out) out = apply_post_ops(builder, node, std::move(*out), 1);
      if (last && relu) {
        if (!out) return std::unexpected(out.error());
        builder.set(node.outputs[0], std::move(*out));
        return {};
      }
    }
    if (op == "Mean" && out && !builder.number_of(out->type))
      return builder.refuse("a mean of whole numbers");
    if (out && op == "Mean")
      out = builder.elementwise(
          Op::mul, {*out, builder.scalar(1.0F / static_cast<float>(node.inputs.size()), out->type)}, shape);
  }
  if (out) out = apply_post_ops(builder, node, std::move(*out));
  if (!out) return std::unexpected(out.error());
  builder.set(node.outputs[0], std::move(*out));
  return {};
}

Result<> lower_compare(Builder& builder, const graph::Node& node) {
  using kernels::Comparison;
  struct Row {
    std::string_view op;
    Comparison comparison;
  };
  static constexpr Row rows[] = {{"Equal", Comparison::equal},
                                 {"Less", Comparison::less},
                                 {"LessOrEqual", Comparison::less_equal},
                                 {"Greater", Comparison::greater},
                                 {"GreaterOrEqual", Comparison::greater_equal},
                                 {"And", Comparison::logical_and},
                                 {"Or", Comparison::logical_or},
                                 {"Xor", Comparison::logical_xor},
                                 {"Not", Comparison::equal},
                                 {"IsNaN", Comparison::equal}};
  const Shape& shape = builder.type(node.outputs[0]).shape;
  const Lying a = builder.in(node.inputs[0]);
  const Lying b = node.op == "Not"     ? builder.truth(false)
                  : node.op == "IsNaN" ? a  // a number equals itself
                                       : builder.in(node.inputs[1]);
  const bool is_nan = node.op == "IsNaN";
  for (const Row& row : rows) {
    if (row.op != node.op) continue;
    auto out = builder.compare(row.comparison, a, b, shape);
    if (out && is_nan) out = builder.compare(Comparison::equal, *out, builder.truth(false), shape);
    if (!out) return std::unexpected(out.error());
    builder.set(node.outputs[0], std::move(*out));
  }
  return {};
}

Result<> lower_where(Builder& builder, const graph::Node& node) {
  auto out = builder.select(builder.in(node.inputs[0]), builder.in(node.inputs[1]),
                            builder.in(node.inputs[2]), builder.type(node.outputs[0]).shape);
  if (!out) return std::unexpected(out.error());
  builder.set(node.outputs[0], std::move(*out));
  return {};
}

Result<> lower_cast(Builder& builder, const graph::Node& node) {
  auto out = builder.as_type(builder.in(node.inputs[0]), builder.stored(builder.type(node.outputs[0]).type));
  if (!out) return std::unexpected(out.error());
  builder.set(node.outputs[0], std::move(*out));
  return {};
}

}  // namespace carillon::engine::cuda
