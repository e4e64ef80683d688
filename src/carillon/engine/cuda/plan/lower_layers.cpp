#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "carillon/engine/cuda/plan/lower.h"

namespace carillon::engine::cuda {

namespace {

using graph::DataType;

// Images of any number of spatial dimensions up to two, seen as of two.
std::optional<Lying> as_images(const Lying& tensor) {
  if (tensor.shape.size() == 4) return tensor;
  if (tensor.shape.size() != 3) return std::nullopt;
  Lying out = tensor;
  out.shape.insert(out.shape.begin() + 2, 1);
  out.strides.insert(out.strides.begin() + 2, 0);
  return out;
}
Lying without_height(Lying tensor) {
  tensor.shape.erase(tensor.shape.begin() + 2);
  tensor.strides.erase(tensor.strides.begin() + 2);
  return tensor;
}
// A node's attribute of one number a spatial dimension: {of the height, of the width}.
std::array<std::int32_t, 2> pair_of(std::span<const std::int64_t> values, std::int32_t otherwise) {
  if (values.empty()) return {otherwise, otherwise};
  if (values.size() == 1) return {otherwise, static_cast<std::int32_t>(values[0])};
  return {static_cast<std::int32_t>(values[0]), static_cast<std::int32_t>(values[1])};
}
struct Pads {
  std::int32_t top = 0, left = 0, bottom = 0, right = 0;
};
Pads pads_of(const graph::Node& node) {
  const auto p = node.integers("pads");
  const auto at = [&](std::size_t i) { return static_cast<std::int32_t>(p[i]); };
  if (p.size() == 4) return {at(0), at(1), at(2), at(3)};
  if (p.size() == 2) return {0, at(0), 0, at(1)};
  return {};
}

Result<> set(Builder& builder, const graph::Node& node, Result<Lying> out, std::size_t post_ops_done = 0) {
  if (out) out = apply_post_ops(builder, node, std::move(*out), post_ops_done);
  if (!out) return std::unexpected(out.error());
  builder.set(node.outputs[0], std::move(*out));
  return {};
}

// A constant [filters][channels][h][w] as [filters][h][w][wide]; zeros from `channels` on.
Lying weights_last(Builder& builder, const graph::SharedTensor& from, DataType type, std::int64_t wide) {
  const Shape& s = from->type().shape;
  const std::int64_t k = s[0], c = s[1], taps = from->type().elements() / std::max<std::int64_t>(1, k * c);
  const std::string what = wide == c ? "channels last" : "channels last of " + std::to_string(wide);
  return builder.packed(from, what, {k, taps, wide}, type, [&](std::span<float> to) {
    const auto values = from->as<float>();
    for (std::int64_t f = 0; f < k; ++f)
      for (std::int64_t i = 0; i < c; ++i)
        for (std::int64_t t = 0; t < taps; ++t)
          to[static_cast<std::size_t>((f * taps + t) * wide + i)] =
              values[static_cast<std::size_t>((f * c + i) * taps + t)];
  });
}

// A whole operand of the result's shape that is added first, as networks with shortcuts have it.
bool starts_with_residual(Builder& builder, const graph::Node& node) {
  if (node.post_ops.empty() || node.post_ops[0].kind != graph::PostOp::Kind::add) return false;
  const graph::ValueId id = node.post_ops[0].operand;
  return builder.constant(id) == nullptr && builder.type(id).shape == builder.type(node.outputs[0]).shape;
}

Activation activation_of(const graph::Node& node, std::size_t i) {
  if (i >= node.post_ops.size()) return Activation::none;
  switch (node.post_ops[i].kind) {
    case graph::PostOp::Kind::relu:
      return Activation::relu;
    case graph::PostOp::Kind::gelu_erf:
      return Activation::gelu_erf;
    case graph::PostOp::Kind::gelu_tanh:
      return Activation::gelu_tanh;
    default:
      return Activation::none;
  }
}

Result<> lower_depthwise(Builder& builder, const graph::Node& node, const Lying& x, const Shape& out_shape) {
  auto in = builder.images(x);
  if (in && pixel_pitch(*in) != in->shape[1]) {  // its pixels lie apart
    Lying whole = builder.fresh(in->type, in->shape, channels_last(in->shape));
    if (auto moved = builder.move(*in, whole); !moved) return moved;
    in = whole;
  }
  if (!in) return std::unexpected(in.error());
  const graph::SharedTensor& w = builder.constant(node.inputs[1]);
  const std::int64_t channels = in->shape[1];
  const auto kernel = pair_of(node.integers("kernel_shape"), 1),
             stride = pair_of(node.integers("strides"), 1), dilation = pair_of(node.integers("dilations"), 1);
  const std::int64_t taps = w->type().elements() / channels;
  const Lying weights = builder.packed(w, "depthwise", {taps, channels}, in->type, [&](std::span<float> to) {
    const auto values = w->as<float>();
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t t = 0; t < taps; ++t)
        to[static_cast<std::size_t>(t * channels + c)] = values[static_cast<std::size_t>(c * taps + t)];
  });
  const Pads pads = pads_of(node);
  const auto narrow = [](std::int64_t extent) { return static_cast<std::int32_t>(extent); };
  kernels::DepthwiseParams params{};
  params.window = {narrow(in->shape[0]),
                   narrow(in->shape[2]),
                   narrow(in->shape[3]),
                   narrow(channels),
                   narrow(out_shape[2]),
                   narrow(out_shape[3]),
                   kernel[0],
                   kernel[1],
                   stride[0],
                   stride[1],
                   pads.top,
                   pads.left,
                   dilation[0],
                   dilation[1]};
  std::size_t fused = 0;
  if (!node.post_ops.empty()) {
    const graph::PostOp& first = node.post_ops[0];
    if (first.kind == graph::PostOp::Kind::clip && first.alpha == 0 && first.beta == 6)
      params.activation = Activation::relu6;
    else if (first.kind == graph::PostOp::Kind::silu)
      params.activation = Activation::swish;
    else
      params.activation = activation_of(node, 0);
    fused = params.activation == Activation::none ? 0 : 1;
  }
  Lying out = builder.fresh(in->type, out_shape, channels_last(out_shape));
  std::optional<Lying> bias;
  if (builder.has(2)) {
    auto given = builder.dense(builder.in(node.inputs[2]));
    if (!given) return std::unexpected(given.error());
    bias = *given;
  }
  const auto launch = kernels::launch(params, *kernel_type(in->type), builder.processors());
  using P = kernels::DepthwiseParams;
  const auto put =
      bias ? builder.kernel(
                 params, launch,
                 {{offsetof(P, input), &*in}, {offsetof(P, weights), &weights}, {offsetof(P, bias), &*bias}},
                 offsetof(P, output), out)
           : builder.kernel(params, launch, {{offsetof(P, input), &*in}, {offsetof(P, weights), &weights}},
                            offsetof(P, output), out);
  if (!put) return put;
  if (builder.type(node.outputs[0]).shape.size() == 3) out = without_height(out);
  return set(builder, node, out, fused);
}

// An operand of a product as a list of matrices: what its last two axes are, and how those before go on.
struct Matrices {
  Lying tensor;  // [batch, rows, columns]
  Product::Matrix matrix;
};
Result<Matrices> as_matrices(Builder& builder, const Lying& given, const Shape& batch) {
  Shape shape = batch;
  const std::size_t rank = given.shape.size();
  const std::int64_t rows = given.shape[rank - 2], columns = given.shape[rank - 1];
  shape.push_back(rows);
  shape.push_back(columns);
  const std::int64_t matrices =
      std::accumulate(batch.begin(), batch.end(), std::int64_t{1}, std::multiplies<>());
  const auto read = [&](const Lying& whole) -> std::optional<Matrices> {
    const auto view = reshaped(broadcast(whole, shape), {matrices, rows, columns});
    if (!view) return std::nullopt;
    Matrices out{*view, {}};
    out.matrix.step = matrices == 1 ? 0 : view->strides[0];
    const std::int64_t row = rows == 1 ? columns : view->strides[1],
                       column = columns == 1 ? 1 : view->strides[2];
    if (column == 1 && row >= columns) {
      out.matrix.pitch = row;
      return out;
    }
    const std::int64_t turned_column = columns == 1 ? rows : view->strides[2];
    if ((rows == 1 || view->strides[1] == 1) && turned_column >= rows) {
      out.matrix.turned = true;
      out.matrix.pitch = turned_column;
      return out;
    }
    return std::nullopt;
  };
  if (auto out = read(given)) return *out;
  auto moved = builder.dense(given);
  if (!moved) return std::unexpected(moved.error());
  if (auto out = read(*moved)) return *out;
  // Repeated along some of the axes in front, and not along others.
  moved = builder.dense(broadcast(*moved, shape));
  if (!moved) return std::unexpected(moved.error());
  if (auto out = read(*moved)) return *out;
  return builder.refuse("operands that cannot be laid out as matrices");
}

// A constant row that the first post-op adds: [columns], or with 1s in front.
bool starts_with_bias(Builder& builder, const graph::Node& node, std::int64_t columns) {
  if (node.post_ops.empty() || node.post_ops[0].kind != graph::PostOp::Kind::add) return false;
  const graph::TensorType& type = builder.type(node.post_ops[0].operand);
  return builder.constant(node.post_ops[0].operand) != nullptr && type.elements() == columns &&
         !type.shape.empty() && type.shape.back() == columns;
}

// a b as it is asked of a library.
struct Factors {
  Lying left, right;
  Product spec;
};
Result<Factors> factors_of(Builder& builder, const Lying& a, const Lying& b, const Shape& batch) {
  if (a.type != b.type) return builder.refuse("operands of different types");
  const auto number = builder.number_of(a.type);
  if (!number) return builder.refuse("a product of " + std::string(graph::onnx_name(a.type)));
  const auto left = as_matrices(builder, a, batch);
  if (!left) return std::unexpected(left.error());
  const auto right = as_matrices(builder, b, batch);
  if (!right) return std::unexpected(right.error());
  Product spec{.number = *number,
               .batch = left->tensor.shape[0],
               .rows = left->tensor.shape[1],
               .columns = right->tensor.shape[2],
               .depth = left->tensor.shape[2],
               .a = left->matrix,
               .b = right->matrix};
  // One matrix of many rows rather than many of few.
  if (spec.batch > 1 && spec.b.step == 0 && !spec.a.turned && spec.a.step == spec.rows * spec.a.pitch) {
    spec.rows *= spec.batch;
    spec.batch = 1;
    spec.a.step = 0;
  }
  return Factors{left->tensor, right->tensor, spec};
}

// scale * a b with what follows; `bias` is [columns] or absent.
Result<> lower_product(Builder& builder, const graph::Node& node, const Lying& a, const Lying& b,
                       const Shape& batch, float scale, const Lying* bias, const Lying* added) {
  const auto factors = factors_of(builder, a, b, batch);
  if (!factors) return std::unexpected(factors.error());
  Product spec = factors->spec;
  spec.scale = scale;
  std::size_t fused = 0;
  std::optional<Lying> row;
  if (bias != nullptr) {
    row = *bias;
  } else if (added == nullptr && starts_with_bias(builder, node, spec.columns)) {
    row = builder.in(node.post_ops[0].operand);
    fused = 1;
  }
  spec.bias = row.has_value();
  if (added == nullptr) {
    const Activation activation = activation_of(node, fused);
    spec.epilogue = activation == Activation::relu        ? Epilogue::relu
                    : activation == Activation::gelu_erf  ? Epilogue::gelu_erf
                    : activation == Activation::gelu_tanh ? Epilogue::gelu_tanh
                                                          : Epilogue::none;
    if (spec.epilogue != Epilogue::none && !builder.library().fuses(spec)) spec.epilogue = Epilogue::none;
    if (spec.epilogue != Epilogue::none) ++fused;
  }
  const Shape& shape = builder.type(node.outputs[0]).shape;
  Lying out = builder.fresh(a.type, shape, row_major(shape));
  if (auto put = builder.multiply(spec, factors->left, factors->right, out, row ? &*row : nullptr); !put)
    return put;
  if (added == nullptr) return set(builder, node, out, fused);
  return set(builder, node, builder.elementwise(Op::add, {out, *added}, shape), fused);
}

Result<> not_empty_rows(Builder& builder, const Lying& tensor) {
  if (tensor.elements() == 0) return builder.refuse("a tensor without elements");
  return {};
}

}  // namespace

Result<> lower_convolution(Builder& builder, const graph::Node& node) {
  const auto x = as_images(builder.in(node.inputs[0]));
  const graph::SharedTensor& w = builder.constant(node.inputs[1]);
  if (!x) return builder.refuse("images of other than one or two dimensions");
  const auto number = builder.number_of(x->type);
  if (!number) return builder.refuse("a convolution of " + std::string(graph::onnx_name(x->type)));
  if (w != nullptr && w->type().type != DataType::f32) return builder.refuse("weights that are not float");
  Shape out_shape = builder.type(node.outputs[0]).shape;
  const bool line = out_shape.size() == 3;
  if (line) out_shape.insert(out_shape.begin() + 2, 1);
  const Shape& ws = builder.type(node.inputs[1]).shape;
  const std::int64_t groups = node.integer("group", 1);
  if (w != nullptr && groups == x->shape[1] && groups == ws[0] && groups > 1)
    return lower_depthwise(builder, node, *x, out_shape);

  Lying weights;
  if (w == nullptr) {
    const auto given = as_images(builder.in(node.inputs[1]));
    if (!given) return builder.refuse("weights of other than one or two dimensions");
    weights = builder.fresh(given->type, given->shape, channels_last(given->shape));
    if (auto moved = builder.move(*given, weights); !moved) return moved;
  }
  const auto kernel = pair_of(node.integers("kernel_shape"), 1),
             stride = pair_of(node.integers("strides"), 1), dilation = pair_of(node.integers("dilations"), 1);
  const Pads pads = pads_of(node);
  const auto narrow = [](std::int64_t extent) { return static_cast<std::int32_t>(extent); };
  const Shape& xs = x->shape;
  Convolution spec{.number = *number,
                   .batch = narrow(xs[0]),
                   .channels = narrow(xs[1]),
                   .height = narrow(xs[2]),
                   .width = narrow(xs[3]),
                   .filters = narrow(ws[0]),
                   .kernel_h = kernel[0],
                   .kernel_w = kernel[1],
                   .out_height = narrow(out_shape[2]),
                   .out_width = narrow(out_shape[3]),
                   .stride_h = stride[0],
                   .stride_w = stride[1],
                   .dilation_h = dilation[0],
                   .dilation_w = dilation[1],
                   .groups = narrow(groups),
                   .pad_top = pads.top,
                   .pad_left = pads.left,
                   .pad_bottom = pads.bottom,
                   .pad_right = pads.right,
                   .in_pitch = xs[1],
                   .out_pitch = ws[0]};
  // Images that have to be moved may get channels of zeros on the way.
  if (w != nullptr && pixel_pitch(*x) == 0) spec.channels = builder.library().channels_for(spec);
  auto in = spec.channels == xs[1] ? builder.images(*x) : builder.padded_images(*x, spec.channels);
  if (!in) return std::unexpected(in.error());
  spec.in_pitch = pixel_pitch(*in);
  spec.out_pitch = 1;
  if (w != nullptr) weights = weights_last(builder, w, in->type, spec.channels / groups);
  std::optional<Lying> bias, residual, added;
  if (builder.has(2)) {
    auto given = builder.dense(builder.in(node.inputs[2]));
    if (!given) return std::unexpected(given.error());
    bias = *given;
    spec.bias = true;
    spec.out_pitch = spec.filters;
    if (!builder.library().fuses(spec)) {
      added = *std::exchange(bias, std::nullopt);
      spec.bias = false;
    }
  }
  std::size_t fused = 0;
  if (!added && starts_with_residual(builder, node)) {
    const auto seen = as_images(builder.in(node.post_ops[0].operand));
    auto given = builder.images(*seen);
    if (!given) return std::unexpected(given.error());
    if (given->type == in->type) {
      residual = *given;
      spec.residual_pitch = pixel_pitch(*given);
      spec.out_pitch = spec.filters;
      if (builder.library().fuses(spec)) {
        ++fused;
      } else {
        residual.reset();
        spec.residual_pitch = 0;
      }
    }
  }
  if (!added && activation_of(node, fused) == Activation::relu) {
    spec.relu = true;
    spec.out_pitch = spec.filters;
    spec.relu = builder.library().fuses(spec);
    if (spec.relu) ++fused;
  }
  std::optional<Lying> out;
  if (!line && !added && fused == node.post_ops.size()) out = builder.home(node.outputs[0]);
  if (!out) out = builder.fresh(in->type, out_shape, channels_last(out_shape));
  spec.out_pitch = pixel_pitch(*out);
  if (spec.out_pitch == 0) return builder.refuse("a result that cannot lie channels last");
  if (auto put = builder.convolve(spec, *in, weights, *out, bias ? &*bias : nullptr,
                                  residual ? &*residual : nullptr);
      !put)
    return put;
  if (added) {
    const auto row = reshaped(*added, {1, spec.filters, 1, 1});
    auto sum = builder.elementwise(Op::add, {*out, *row}, out_shape);
    if (!sum) return std::unexpected(sum.error());
    out = *sum;
  }
  return set(builder, node, line ? without_height(*out) : *out, fused);
}

Result<Lying> multiply_by_constant(Builder& builder, const Lying& a, const Lying& weights, const Shape& shape,
                                   const std::optional<Lying>& bias) {
  const auto factors = factors_of(builder, a, weights, {a.shape.begin(), a.shape.end() - 2});
  if (!factors) return std::unexpected(factors.error());
  Product spec = factors->spec;
  spec.bias = bias.has_value();
  Lying out = builder.fresh(a.type, shape, row_major(shape));
  if (auto put = builder.multiply(spec, factors->left, factors->right, out, bias ? &*bias : nullptr); !put)
    return std::unexpected(put.error());
  return out;
}

Result<> lower_matmul(Builder& builder, const graph::Node& node) {
  Lying a = builder.in(node.inputs[0]), b = builder.in(node.inputs[1]);
  if (a.shape.empty() || b.shape.empty()) return builder.refuse("an operand without dimensions");
  if (auto ok = not_empty_rows(builder, a); !ok) return ok;
  // A vector is a matrix of one row on the left, of one column on the right.
  if (a.shape.size() == 1) {
    a.shape.insert(a.shape.begin(), 1);
    a.strides.insert(a.strides.begin(), 0);
  }
  if (b.shape.size() == 1) {
    b.shape.push_back(1);
    b.strides.push_back(0);
  }
  const std::size_t rank = std::max(a.shape.size(), b.shape.size()) - 2;
  Shape batch(rank, 1);
  for (const Lying* each : {&a, &b})
    for (std::size_t i = 0; i + 2 < each->shape.size(); ++i) {
      std::int64_t& extent = batch[rank + 2 - each->shape.size() + i];
      extent = std::max(extent, each->shape[i]);
    }
  return lower_product(builder, node, a, b, batch, 1, nullptr, nullptr);
}

Result<> lower_gemm(Builder& builder, const graph::Node& node) {
  const std::int64_t turn[] = {1, 0};
  Lying a = builder.in(node.inputs[0]), b = builder.in(node.inputs[1]);
  if (node.integer("transA", 0) != 0) a = transposed(a, turn);
  if (node.integer("transB", 0) != 0) b = transposed(b, turn);
  const float beta = node.real("beta", 1);
  std::optional<Lying> c;
  if (builder.has(2) && beta != 0) {
    c = builder.in(node.inputs[2]);
    if (beta != 1) {
      auto scaled = builder.elementwise(Op::mul, {*c, builder.scalar(beta, c->type)}, c->shape);
      if (!scaled) return std::unexpected(scaled.error());
      c = *scaled;
    }
  }
  const bool is_row = c && c->elements() == b.shape[1] && !c->shape.empty() &&
                      c->shape.back() == b.shape[1] && is_row_major(*c);
  return lower_product(builder, node, a, b, {}, node.real("alpha", 1), is_row ? &*c : nullptr,
                       c && !is_row ? &*c : nullptr);
}

Result<> lower_pool(Builder& builder, const graph::Node& node) {
  const auto x = as_images(builder.in(node.inputs[0]));
  if (!x) return builder.refuse("images of other than one or two dimensions");
  const auto known = kernel_type(x->type);
  if (!known) return builder.refuse("a pool of " + std::string(graph::onnx_name(x->type)));
  const bool counts = node.integer("count_include_pad", 0) != 0;
  if (counts && node.integer("ceil_mode", 0) != 0) return builder.refuse("ceil_mode with count_include_pad");
  Shape out_shape = builder.type(node.outputs[0]).shape;
  const bool line = out_shape.size() == 3;
  if (line) out_shape.insert(out_shape.begin() + 2, 1);
  Lying in = *x;
  if (pixel_pitch(in) != in.shape[1]) {
    in = builder.fresh(x->type, x->shape, channels_last(x->shape));
    if (auto moved = builder.move(*x, in); !moved) return moved;
  }
  const auto kernel = pair_of(node.integers("kernel_shape"), 1),
             stride = pair_of(node.integers("strides"), 1), dilation = pair_of(node.integers("dilations"), 1);
  const Pads pads = pads_of(node);
  const auto narrow = [](std::int64_t extent) { return static_cast<std::int32_t>(extent); };
  kernels::PoolParams params{};
  params.window = {narrow(in.shape[0]),
                   narrow(in.shape[2]),
                   narrow(in.shape[3]),
                   narrow(in.shape[1]),
                   narrow(out_shape[2]),
                   narrow(out_shape[3]),
                   kernel[0],
                   kernel[1],
                   stride[0],
                   stride[1],
                   pads.top,
                   pads.left,
                   dilation[0],
                   dilation[1]};
  params.max = node.op == "MaxPool";
  params.count_padding = counts;
  Lying out = builder.fresh(in.type, out_shape, channels_last(out_shape));
  if (auto put = builder.kernel(params, kernels::launch(params, *known, builder.processors()),
                                {{offsetof(kernels::PoolParams, input), &in}},
                                offsetof(kernels::PoolParams, output), out);
      !put)
    return put;
  return set(builder, node, line ? without_height(out) : out);
}

Result<> lower_reduce(Builder& builder, const graph::Node& node) {
  Lying in = builder.in(node.inputs[0]);
  if (auto ok = not_empty_rows(builder, in); !ok) return ok;
  const auto rank = static_cast<std::int64_t>(in.shape.size());
  std::vector<std::size_t> axes;
  const bool global = node.op.starts_with("Global");
  if (global) {
    for (std::int64_t i = 2; i < rank; ++i) axes.push_back(static_cast<std::size_t>(i));
  } else if (builder.has(1)) {
    const auto given = builder.integers(1);
    if (!given) return std::unexpected(given.error());
    for (const std::int64_t axis : *given)
      axes.push_back(static_cast<std::size_t>(axis < 0 ? axis + rank : axis));
  }
  if (axes.empty()) {
    if (node.integer("noop_with_empty_axes", 0) != 0 || global)
      return builder.refuse("a reduction over no axis");
    for (std::int64_t i = 0; i < rank; ++i) axes.push_back(static_cast<std::size_t>(i));
  }
  const Shape& shape = builder.type(node.outputs[0]).shape;
  const std::string_view op = node.op;
  const auto each = [&](Op what, Result<Lying> of) -> Result<Lying> {
    if (!of) return of;
    return builder.elementwise(what, {*of}, of->shape);
  };
  const auto reduced = [&](kernels::Reduction how, Result<Lying> of) -> Result<Lying> {
    if (!of) return of;
    return builder.reduce(how, *of, axes, shape);
  };
  using kernels::Reduction;
  Result<Lying> out = in;
  if (op == "ReduceMean" || op == "GlobalAveragePool") {
    out = reduced(Reduction::mean, in);
  } else if (op == "ReduceMax" || op == "GlobalMaxPool") {
    out = reduced(Reduction::max, in);
  } else if (op == "ReduceSum") {
    out = reduced(Reduction::sum, in);
  } else if (op == "ReduceMin") {
    out = each(Op::neg, reduced(Reduction::max, each(Op::neg, in)));
  } else if (op == "ReduceL1") {
    out = reduced(Reduction::sum, each(Op::abs, in));
  } else if (op == "ReduceLogSum") {
    out = each(Op::log, reduced(Reduction::sum, in));
  } else {  // sums of squares
    out = reduced(Reduction::sum, builder.elementwise(Op::mul, {in, in}, in.shape));
    if (op == "ReduceL2") out = each(Op::sqrt, std::move(out));
  }
  return set(builder, node, std::move(out));
}

Result<> lower_softmax(Builder& builder, const graph::Node& node) {
  const Lying in = builder.in(node.inputs[0]);
  const auto known = kernel_type(in.type);
  if (!known) return builder.refuse("a softmax of " + std::string(graph::onnx_name(in.type)));
  if (in.shape.empty()) return builder.refuse("an operand without dimensions");
  const auto rank = static_cast<std::int64_t>(in.shape.size());
  std::int64_t axis = node.integer("axis", -1);
  if (axis < 0) axis += rank;
  const auto at = static_cast<std::size_t>(axis);
  if (node.op == "LogSoftmax") {
    // x - max - log(sum(exp(x - max))): the logarithm of a softmax loses what is near 0.
    Shape one = in.shape;
    one[at] = 1;
    const std::size_t axes[] = {at};
    const auto most = builder.reduce(kernels::Reduction::max, in, axes, one);
    if (!most) return std::unexpected(most.error());
    const auto less = builder.elementwise(Op::sub, {in, *most}, in.shape);
    if (!less) return std::unexpected(less.error());
    const auto raised = builder.elementwise(Op::exp, {*less}, in.shape);
    if (!raised) return std::unexpected(raised.error());
    const auto sum = builder.reduce(kernels::Reduction::sum, *raised, axes, one);
    if (!sum) return std::unexpected(sum.error());
    const auto log = builder.elementwise(Op::log, {*sum}, one);
    if (!log) return std::unexpected(log.error());
    return set(builder, node, builder.elementwise(Op::sub, {*less, *log}, in.shape));
  }
  // With the axis innermost.
  std::vector<std::int64_t> order, back(in.shape.size());
  for (std::int64_t i = 0; i < rank; ++i)
    if (i != axis) order.push_back(i);
  order.push_back(axis);
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  auto rows = builder.dense(transposed(in, order));
  if (!rows) return std::unexpected(rows.error());
  kernels::SoftmaxParams params{};
  params.columns = in.shape[at];
  params.rows = params.columns == 0 ? 0 : in.elements() / params.columns;
  Lying out = builder.fresh(in.type, rows->shape, row_major(rows->shape));
  if (auto put = builder.kernel(params, kernels::launch(params, *known, builder.processors()),
                                {{offsetof(kernels::SoftmaxParams, input), &*rows}},
                                offsetof(kernels::SoftmaxParams, output), out);
      !put)
    return put;
  return set(builder, node, transposed(out, back));
}

Result<> lower_layer_norm(Builder& builder, const graph::Node& node) {
  auto in = builder.dense(builder.in(node.inputs[0]));
  if (!in) return std::unexpected(in.error());
  const auto known = kernel_type(in->type);
  if (!known) return builder.refuse("a normalization of " + std::string(graph::onnx_name(in->type)));
  std::int64_t axis = node.integer("axis", -1);
  if (axis < 0) axis += static_cast<std::int64_t>(in->shape.size());
  kernels::LayerNormParams params{};
  params.columns = 1;
  for (std::size_t i = static_cast<std::size_t>(axis); i < in->shape.size(); ++i)
    params.columns *= in->shape[i];
  params.rows = params.columns == 0 ? 0 : in->elements() / params.columns;
  params.epsilon = node.real("epsilon", 1e-5F);
  const Shape inner(in->shape.begin() + axis, in->shape.end());
  std::vector<Lying> rows;
  for (std::size_t i = 1; i <= 2 && builder.has(i); ++i) {
    Lying given = builder.in(node.inputs[i]);
    if (given.type != in->type) return builder.refuse("a scale of another type");
    auto whole = builder.dense(broadcast(given, inner));
    if (!whole) return std::unexpected(whole.error());
    rows.push_back(*whole);
  }
  using P = kernels::LayerNormParams;
  const auto launch = kernels::launch(params, *known, builder.processors());
  Lying out = builder.fresh(in->type, in->shape, row_major(in->shape));
  const auto put =
      rows.size() == 2
          ? builder.kernel(
                params, launch,
                {{offsetof(P, input), &*in}, {offsetof(P, scale), &rows[0]}, {offsetof(P, bias), &rows[1]}},
                offsetof(P, output), out)
          : builder.kernel(params, launch, {{offsetof(P, input), &*in}, {offsetof(P, scale), &rows[0]}},
                           offsetof(P, output), out);
  if (!put) return put;
  return set(builder, node, out);
}

Result<> lower_batch_norm(Builder& builder, const graph::Node& node) {
  const Lying x = builder.in(node.inputs[0]);
  if (node.integer("training_mode", 0) != 0) return builder.refuse("training");
  if (x.shape.size() < 2) return builder.refuse("an operand without channels");
  Shape channel(x.shape.size() - 1, 1);
  channel[0] = x.shape[1];
  const float epsilon = node.real("epsilon", 1e-5F);
  graph::SharedTensor constants[4];
  bool known = true;
  for (std::size_t i = 0; i < 4; ++i) {
    constants[i] = builder.constant(node.inputs[i + 1]);
    known = known && constants[i] != nullptr && constants[i]->type().type == DataType::f32;
  }
  if (known) {
    const auto scale = constants[0]->as<float>(), shift = constants[1]->as<float>(),
               mean = constants[2]->as<float>(), variance = constants[3]->as<float>();
    const auto factor = [&](std::size_t c) { return scale[c] / std::sqrt(variance[c] + epsilon); };
    const std::string what = "norm " + node.name + " ";
    const Lying a = builder.packed(constants[0], what + "factor", channel, x.type, [&](std::span<float> to) {
      for (std::size_t c = 0; c < to.size(); ++c) to[c] = factor(c);
    });
    const Lying b = builder.packed(constants[0], what + "shift", channel, x.type, [&](std::span<float> to) {
      for (std::size_t c = 0; c < to.size(); ++c) to[c] = shift[c] - mean[c] * factor(c);
    });
    const bool relu = activation_of(node, 0) == Activation::relu;
    return set(builder, node,
               builder.elementwise(Op::fma, {x, a, b}, x.shape, relu ? Activation::relu : Activation::none),
               relu ? 1 : 0);
  }
  Lying rows[4];
  for (std::size_t i = 0; i < 4; ++i) {
    const auto view = reshaped(builder.in(node.inputs[i + 1]), channel);
    if (!view || view->type != x.type) return builder.refuse("a statistic of another type");
    rows[i] = *view;
  }
  const auto above = builder.elementwise(Op::add, {rows[3], builder.scalar(epsilon, x.type)}, channel);
  if (!above) return std::unexpected(above.error());
  const auto inverse = builder.elementwise(Op::rsqrt, {*above}, channel);
  if (!inverse) return std::unexpected(inverse.error());
  const auto factor = builder.elementwise(Op::mul, {*inverse, rows[0]}, channel);
  if (!factor) return std::unexpected(factor.error());
  const auto centred = builder.elementwise(Op::sub, {x, rows[2]}, x.shape);
  if (!centred) return std::unexpected(centred.error());
  return set(builder, node, builder.elementwise(Op::fma, {*centred, *factor, rows[1]}, x.shape));
}

}  // namespace carillon::engine::cuda
