#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

namespace {

using dnnl::memory;

// `desc` as oneDNN's fast kernels take matrices: of the last two dimensions one has a stride of 1. Where one
// of them has a single element its stride says nothing, and is made to fit. A zero descriptor: neither has.
Desc as_matrix(const Desc& desc) {
  if (desc.get_inner_nblks() != 0) return Desc();
  const Dims dims = desc.get_dims();
  Dims strides = desc.get_strides();
  const std::size_t n = dims.size();
  if (n < 2) return Desc();
  std::int64_t &row = strides[n - 2], &column = strides[n - 1];
  if (dims[n - 1] == 1) {
    column = 1;
    if (dims[n - 2] == 1) row = 1;
  } else if (dims[n - 2] == 1) {
    row = column == 1 ? dims[n - 1] : 1;
  }
  return row == 1 || column == 1 ? Desc(dims, desc.get_data_type(), strides) : Desc();
}

// The operand as row-major matrices of `dims` and type `type`; a reorder where it must be.
Operand as_rows(PlanBuilder& builder, graph::ValueId id, const Dims& dims, DnnlType type) {
  Operand operand = builder.in_layout(id, row_major(builder.shape(id), type));
  operand.desc = row_major(dims, type);
  return operand;
}

// The operand as matrices of `dims` and type `type` in the layout that it has, if they can be read so.
Operand as_matrices(PlanBuilder& builder, graph::ValueId id, const Dims& dims, DnnlType type) {
  Operand operand = builder.current(id);
  const Desc reshape = reshaped(operand.desc, dims);
  const Desc seen = reshape.is_zero() ? Desc() : as_matrix(reshape);
  if (!seen.is_zero()) {
    operand.desc = seen;
    if (seen.get_data_type() == type) return operand;
    if (builder.is_constant(id)) return builder.packed(id, seen, with_type(seen, type));
  }
  return as_rows(builder, id, dims, type);
}

// A bias of one row: the first post-op adds a constant to every row.
bool starts_with_bias(PlanBuilder& builder, const graph::Node& node, std::int64_t columns) {
  if (node.post_ops.empty() || node.post_ops[0].kind != graph::PostOp::Kind::add) return false;
  const auto id = node.post_ops[0].operand;
  return builder.is_constant(id) && builder.is_real(id) && builder.type(id).elements() == columns &&
         !builder.shape(id).empty() && builder.shape(id).back() == columns;
}

struct Product {
  Operand a;                                  // how it lies
  graph::ValueId packed_b = graph::no_value;  // a constant to be packed, seen as `b.desc`
  Operand b;
  float b_factor = 1;
  Operand bias;  // buffer -1: none
  Desc result;   // as oneDNN sees it
  Desc output;   // as the node's output lies then
  std::size_t first_post_op = 0;
};

// How oneDNN is asked for a product of matrices that Product describes: as what it is.
struct AsMatmul {
  using Primitive = dnnl::matmul;
  using PrimitiveDesc = Primitive::primitive_desc;

  static constexpr std::string_view name = "product ";
  static constexpr bool sees_strides = true;  // of post-ops' operands
  static Desc seen(const Desc& matrix) { return matrix; }
  static Desc weights(const Desc& matrix) { return matrix; }
  static Desc bias(const Desc& row) { return row; }
  static PrimitiveDesc make(PlanBuilder& builder, const Product& p, const Desc& weights,
                            const dnnl::primitive_attr& attributes) {
    return p.bias.buffer >= 0
               ? PrimitiveDesc(builder.engine(), p.a.desc, weights, p.bias.desc, p.result, attributes, true)
               : PrimitiveDesc(builder.engine(), p.a.desc, weights, p.result, attributes, true);
  }
  static bool serves(const PrimitiveDesc& desc) { return !is_slow(desc.impl_info_str()); }
  // One that is measured.
  static bool may_serve(const PrimitiveDesc& desc) {
    return std::string_view(desc.impl_info_str()).ends_with("avx512_core") && serves(desc);
  }
};

// Or as a convolution of one pixel, whose pixels are the rows and whose channels the columns. oneDNN divides
// that by columns before rows, so that parts share what is read of the weights.
struct AsConvolution {
  using Primitive = dnnl::convolution_forward;
  using PrimitiveDesc = Primitive::primitive_desc;

  static constexpr std::string_view name = "convolution ";
  static constexpr bool sees_strides = false;
  // A row-major matrix, or what broadcasts to one.
  static Desc seen(const Desc& matrix) {
    const Dims dims = matrix.get_dims();
    return channels_last({1, dims[1], 1, dims[0]}, matrix.get_data_type());
  }
  static Desc weights(const Desc& matrix) {
    const Dims dims = matrix.get_dims(), strides = matrix.get_strides();
    return Desc({dims[1], dims[0], 1, 1}, matrix.get_data_type(), Dims{strides[1], strides[0], 1, 1});
  }
  static Desc bias(const Desc& row) { return row_major(Dims{row.get_dims()[1]}, row.get_data_type()); }
  static PrimitiveDesc make(PlanBuilder& builder, const Product& p, const Desc& weights,
                            const dnnl::primitive_attr& attributes) {
    const Dims ones{1, 1}, zeros{0, 0};
    return PrimitiveDesc(builder.engine(), dnnl::prop_kind::forward_inference,
                         dnnl::algorithm::convolution_direct, seen(p.a.desc), weights,
                         p.bias.buffer >= 0 ? bias(p.bias.desc) : Desc(), seen(p.result), ones, zeros, zeros,
                         zeros, attributes, true);
  }
  // Of no other is it known that it is faster than a product.
  static bool serves(const PrimitiveDesc& desc) {
    return std::string_view(desc.impl_info_str()).starts_with("brgconv_1x1");
  }
  // The older one reads packed weights once and in order, which suits few rows.
  static bool may_serve(const PrimitiveDesc& desc) {
    const std::string_view name = desc.impl_info_str();
    return name == "brgconv_1x1:avx512_core" || name == "jit_1x1:avx512_core";
  }
};

// The same post-ops for a result that is seen otherwise.
template <typename Form>
FusedPostOps seen_by(const FusedPostOps& ops) {
  FusedPostOps result;
  for (int i = 0; i < ops.ops.len(); ++i) {
    dnnl::algorithm algorithm{};
    if (ops.ops.kind(i) == dnnl::primitive::kind::eltwise) {
      float alpha = 0, beta = 0;
      ops.ops.get_params_eltwise(i, algorithm, alpha, beta);
      result.ops.append_eltwise(algorithm, alpha, beta);
    } else {
      Desc operand;
      ops.ops.get_params_binary(i, algorithm, operand);
      result.ops.append_binary(algorithm, Form::seen(operand));
    }
  }
  for (auto [id, operand] : ops.arguments) {
    operand.desc = Form::seen(operand.desc);
    result.arguments.emplace_back(id, operand);
  }
  return result;
}

// Emits the product if oneDNN has a fast kernel for it, with the node's post-ops in it or behind it; else
// nothing. With `implementation` it is that one's or nothing. With `candidates` nothing is emitted: they get what
// could be.
template <typename Form>
bool emit(PlanBuilder& builder, const graph::Node& node, const Product& p,
          std::string_view implementation = {}, std::vector<Candidate>* candidates = nullptr) {
  using PrimitiveDesc = typename Form::PrimitiveDesc;
  using Primitive = typename Form::Primitive;
  const DnnlType type = builder.heavy_type();
  const float factor = p.a.factor * p.b.factor;
  const Dims dims = p.result.get_dims();
  const Desc source_b = Form::weights(p.b.desc);
  const Desc any_b(source_b.get_dims(), type, memory::format_tag::any);

  // The factor comes before what follows the product. oneDNN adds the bias first, so without one here.
  if (factor != 1 && p.bias.buffer >= 0) return false;
  // Nothing where an operand cannot be shown to oneDNN.
  const auto ops_up_to = [&](std::size_t last) -> std::optional<FusedPostOps> {
    FusedPostOps ops;
    if (factor != 1) ops.ops.append_eltwise(dnnl::algorithm::eltwise_linear, factor, 0);
    if (!append_post_ops(builder, node, p.first_post_op, last, dims, ops)) return std::nullopt;
    if (!Form::sees_strides && !std::ranges::all_of(ops.arguments, [](const auto& argument) {
          return is_row_major(argument.second.desc);
        }))
      return std::nullopt;
    return seen_by<Form>(ops);
  };
  std::optional<FusedPostOps> fused = ops_up_to(node.post_ops.size());
  if (!Form::sees_strides && !fused) return false;  // a product may have it in one
  const std::optional<FusedPostOps> separate = ops_up_to(p.first_post_op);
  const auto asked = [&](const Desc& b, const FusedPostOps& ops) {
    dnnl::primitive_attr attributes = PlanBuilder::attributes();
    attributes.set_post_ops(ops.ops);
    return Form::make(builder, p, b, attributes);
  };
  // To look at the first implementation only: copies of a descriptor go on to the next one together.
  const auto with_ops = [&](const Desc& b, const FusedPostOps& ops) -> PrimitiveDesc {
    Looks looks{.what = std::string(Form::name), .descs = {p.a.desc, b, p.result}};
    if (p.bias.buffer >= 0) looks.descs.push_back(p.bias.desc);
    describe(ops, looks);
    return builder.once<PrimitiveDesc>(looks, [&] { return asked(b, ops); });
  };
  const auto attempt = [&](const Desc& b) -> std::optional<PrimitiveDesc> {
    const FusedPostOps& ops = fused ? *fused : *separate;
    PrimitiveDesc desc = implementation.empty() ? with_ops(b, ops) : asked(b, ops);
    if (!desc) return std::nullopt;
    if (!implementation.empty()) return seek(desc, implementation) ? std::optional(desc) : std::nullopt;
    if (!Form::serves(desc)) return std::nullopt;
    return desc;
  };
  const bool pack = p.packed_b != graph::no_value;
  if (candidates != nullptr) {
    // In the layout that the weights have, if any: no second copy of them is worth it.
    const Desc* known = builder.known_layout(p.packed_b, any_b.get_dims(), type);
    PrimitiveDesc desc = fused ? asked(known != nullptr ? *known : any_b, *fused) : PrimitiveDesc();
    for (bool more = static_cast<bool>(desc); more; more = desc.next_impl())
      if (Form::may_serve(desc))
        candidates->push_back(builder.candidate<Primitive>(std::string(Form::name) + desc.impl_info_str(), desc,
                                                           fused->arguments));
    return true;
  }
  std::optional<PrimitiveDesc> chosen;
  // Weights that lie packed for an implementation that is taken only where it was measured.
  if (const Desc* known =
          pack && implementation.empty() ? builder.known_layout(p.packed_b, any_b.get_dims(), type) : nullptr;
      known != nullptr && fused) {
    PrimitiveDesc desc = with_ops(*known, *fused);
    if (desc && Form::may_serve(desc) && !Form::serves(desc)) chosen = desc;
  }
  if (!chosen) chosen = attempt(pack ? any_b : source_b);
  if (!chosen && fused && node.post_ops.size() > p.first_post_op) {
    fused.reset();
    chosen = attempt(pack ? any_b : source_b);
  }
  if (!chosen) return false;
  if (pack) {
    if (const Desc* known = builder.known_layout(p.packed_b, any_b.get_dims(), type);
        known != nullptr && *known != chosen->weights_desc()) {
      if (auto same = attempt(*known);
          same && std::string_view(same->impl_info_str()) == chosen->impl_info_str())
        chosen = same;
    }
  }
  // Up to what would lose NaN, for runs that must not.
  const std::size_t split =
      fused ? first_that_loses_nan(builder, node, p.first_post_op) : node.post_ops.size();
  PrimitiveDesc part;
  FusedPostOps kept;
  if (split < node.post_ops.size()) {
    kept = *ops_up_to(split);
    part = asked(chosen->weights_desc(), kept);
    if (!part) return false;
    (void)seek(part, chosen->impl_info_str());
  }
  Operand a = p.a, b = p.b, bias = p.bias;
  a.desc = Form::seen(a.desc);
  b.desc = source_b;
  if (pack) b = builder.packed(p.packed_b, source_b, chosen->weights_desc(), p.b_factor);
  PlanBuilder::Arguments arguments{{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}};
  if (p.bias.buffer >= 0) {
    bias.desc = Form::bias(bias.desc);
    arguments.emplace_back(DNNL_ARG_BIAS, bias);
  }
  const auto output = node.outputs[0];
  const Operand defined = fused ? builder.define(output, p.output) : builder.temporary(p.output);
  Operand to = defined, written = defined;
  to.desc = p.result;
  written.desc = Form::seen(p.result);
  arguments.emplace_back(DNNL_ARG_DST, written);
  if (!fused) {
    builder.emit(node.name, *chosen, Primitive(*chosen), arguments);
    apply_separately(builder, node, p.first_post_op, defined);
    return true;
  }
  const auto with = [&](const FusedPostOps& ops) {
    PlanBuilder::Arguments all = arguments;
    all.insert(all.end(), ops.arguments.begin(), ops.arguments.end());
    return all;
  };
  emit_keeping_nan(
      builder, node, {.first = split, .last = node.post_ops.size()}, to,
      [&] { builder.emit(node.name, *chosen, Primitive(*chosen), with(*fused)); },
      [&] { builder.emit(node.name, part, Primitive(part), with(kept)); });
  return true;
}

// Whether a product of weights and so many rows is better made as a convolution: not where there are few rows
// to a request, of which each takes longer so. Both want the weights in layouts of their own, so that the
// first batch size decides for all; and where columns do not come in blocks of 48, oneDNN's layout for the
// convolution depends on the rows, so that batch sizes could not share the weights.
bool suits_convolution(PlanBuilder& builder, const Product& p, std::int64_t rows, bool may_be_convolution) {
  constexpr std::int64_t least_rows = 32, block = 48;
  if (builder.heavy_type() != DnnlType::f32 || !is_row_major(p.a.desc)) return false;
  if (builder.known_layout(p.packed_b, p.b.desc.get_dims(), DnnlType::f32) != nullptr) return false;
  const Dims as_convolution = AsConvolution::weights(p.b.desc).get_dims();
  if (builder.known_layout(p.packed_b, as_convolution, DnnlType::f32) != nullptr) return true;
  return may_be_convolution && p.b.desc.get_dims()[1] % block == 0 && rows >= least_rows * builder.batch();
}

// Emits a product of packed weights and so many rows: as was chosen, else by the rule.
bool emit_with_weights(PlanBuilder& builder, const graph::Node& node, const Product& p, std::int64_t rows,
                       bool may_be_convolution) {
  const bool as_convolution = suits_convolution(builder, p, rows, may_be_convolution);
  Chooser* const chooser = builder.ways().chooser;
  if (chooser != nullptr && builder.heavy_type() == DnnlType::f32 && p.a.factor * p.b.factor == 1 &&
      is_row_major(p.a.desc)) {
    std::string key = "product parts " + std::to_string(builder.threads()) + (as_convolution ? " c " : " m ") +
                      to_text(p.a.desc) + " by " + to_text(p.b.desc) + (p.bias.buffer >= 0 ? " bias" : "");
    for (const Dims& dims : {p.b.desc.get_dims(), AsConvolution::weights(p.b.desc).get_dims()})
      if (const Desc* known = builder.known_layout(p.packed_b, dims, DnnlType::f32); known != nullptr)
        key += " as " + to_text(*known);
    for (std::size_t i = p.first_post_op; i < node.post_ops.size(); ++i) {
      const auto& op = node.post_ops[i];
      key += " then " + std::to_string(static_cast<int>(op.kind));
      if (op.operand != graph::no_value) key += " " + graph::to_text(builder.shape(op.operand));
    }
    const std::string name = chooser->choose(node.name, key, [&] {
      std::vector<Candidate> all;
      const auto known = [&](const Dims& dims) {
        return builder.known_layout(p.packed_b, dims, DnnlType::f32) != nullptr;
      };
      const bool packed_matmul = known(p.b.desc.get_dims()),
                 packed_convolution = known(AsConvolution::weights(p.b.desc).get_dims());
      if (packed_matmul || !packed_convolution) emit<AsMatmul>(builder, node, p, {}, &all);
      const std::size_t products = all.size();
      if (packed_convolution || !packed_matmul) emit<AsConvolution>(builder, node, p, {}, &all);
      if (as_convolution)
        std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(products), all.end());
      return all;
    });
    if (name.starts_with(AsConvolution::name)) {
      if (emit<AsConvolution>(builder, node, p, std::string_view(name).substr(AsConvolution::name.size())))
        return true;
    } else if (name.starts_with(AsMatmul::name)) {
      if (emit<AsMatmul>(builder, node, p, std::string_view(name).substr(AsMatmul::name.size()))) return true;
    }
  }
  return (as_convolution && emit<AsConvolution>(builder, node, p)) || emit<AsMatmul>(builder, node, p);
}

// Where the output's only reader is a Transpose that keeps the last dimension: strides with which the
// transposed result is row-major. Not with operands in the node's post-ops: oneDNN 3.2 looks for their
// elements at the wrong addresses then.
Desc result_layout(PlanBuilder& builder, const graph::Node& node, DnnlType type) {
  const auto output = node.outputs[0];
  const graph::Shape& shape = builder.shape(output);
  Desc plain = row_major(shape, type);
  const auto& readers = builder.consumers(output);
  if (readers.size() != 1 || builder.is_output(output)) return plain;
  if (std::ranges::any_of(node.post_ops, [](const auto& op) { return op.operand != graph::no_value; }))
    return plain;
  const graph::Node& reader = builder.node(readers[0]);
  if (reader.op != "Transpose" || !reader.has("perm")) return plain;
  const auto perm = reader.integers("perm");
  if (perm.size() != shape.size() || perm.back() != static_cast<std::int64_t>(perm.size()) - 1) return plain;
  Dims strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = perm.size(); i-- > 0;) {
    const auto from = static_cast<std::size_t>(perm[i]);
    strides[from] = stride;
    stride *= shape[from];
  }
  return Desc(Dims(shape.begin(), shape.end()), type, strides);
}

}  // namespace

bool lower_matmul(PlanBuilder& builder, const graph::Node& node) {
  const auto a = node.inputs[0], b = node.inputs[1], output = node.outputs[0];
  if (!builder.is_real(a) || !builder.is_real(b) || !builder.is_real(output)) return false;
  graph::Shape as = builder.shape(a), bs = builder.shape(b);
  if (as.empty() || bs.empty()) return false;
  if (as.size() == 1) as.insert(as.begin(), 1);
  if (bs.size() == 1) bs.push_back(1);
  const DnnlType type = builder.heavy_type(), result = builder.result_type(output);
  const std::int64_t inner = as.back(), columns = bs.back();
  if (inner == 0 || columns == 0) return false;

  Product p;
  if (builder.is_constant(b) && bs.size() == 2 && !builder.is_constant(a)) {
    const std::int64_t rows = builder.type(a).elements() / inner;
    p.a = as_matrices(builder, a, {rows, inner}, type);
    p.packed_b = b;
    p.b.desc = row_major(bs, DnnlType::f32);
    p.result = row_major(Dims{rows, columns}, result);
    p.output = row_major(builder.shape(output), result);
    if (starts_with_bias(builder, node, columns) && p.a.factor == 1) {
      p.bias = builder.current(node.post_ops[0].operand);
      p.bias.desc = row_major(Dims{1, columns}, DnnlType::f32);
      p.first_post_op = 1;
    }
    return emit_with_weights(builder, node, p, rows, true);
  }
  const std::size_t rank = std::max(as.size(), bs.size());
  if (builder.shape(output).size() != rank) return false;  // a vector operand in a batch
  p.a = as_matrices(builder, a, with_rank(as, rank), type);
  p.b = as_matrices(builder, b, with_rank(bs, rank), type);
  p.result = p.output = result_layout(builder, node, result);
  if (emit<AsMatmul>(builder, node, p)) return true;
  // Copies, where oneDNN has nothing fast for the layouts that there are.
  p.a = as_rows(builder, a, with_rank(as, rank), type);
  p.b = as_rows(builder, b, with_rank(bs, rank), type);
  p.result = p.output = row_major(builder.shape(output), result);
  return emit<AsMatmul>(builder, node, p);
}

bool lower_gemm(PlanBuilder& builder, const graph::Node& node) {
  const auto a = node.inputs[0], b = node.inputs[1], output = node.outputs[0];
  const auto c = node.inputs.size() > 2 ? node.inputs[2] : graph::no_value;
  if (!builder.is_real(a) || !builder.is_real(b) || !builder.is_real(output)) return false;
  if (builder.shape(a).size() != 2 || builder.shape(b).size() != 2) return false;
  const graph::Shape& y = builder.shape(output);
  const DnnlType type = builder.heavy_type(), result = builder.result_type(output);
  const float alpha = node.real("alpha", 1), beta = node.real("beta", 1);

  Product p;
  p.a = as_matrices(builder, a, with_rank(builder.shape(a), 2), type);
  constexpr std::int64_t swap[] = {1, 0};
  if (node.integer("transA", 0) != 0) p.a.desc = transposed(p.a.desc, swap);
  const bool flip_b = node.integer("transB", 0) != 0;
  if (builder.is_constant(b)) {
    p.packed_b = b;
    p.b.desc = row_major(builder.shape(b), DnnlType::f32);
    p.b_factor = alpha;
  } else {
    if (alpha != 1) return false;
    p.b = as_matrices(builder, b, with_rank(builder.shape(b), 2), type);
  }
  if (flip_b) p.b.desc = transposed(p.b.desc, swap);
  if (c != graph::no_value && beta != 0) {
    // A constant row is a bias; anything else is left to the plain kernel.
    if (!builder.is_real(c) || !builder.is_constant(c) || builder.type(c).elements() != y[1] ||
        builder.shape(c).back() != y[1])
      return false;
    const Desc row = row_major(Dims{1, y[1]}, DnnlType::f32);
    p.bias = builder.packed(c, row, row, beta);
  }
  p.result = p.output = row_major(y, result);
  if (p.packed_b != graph::no_value) return emit_with_weights(builder, node, p, y[0], false);
  return emit<AsMatmul>(builder, node, p);
}

}  // namespace carillon::engine::cpu
