#include "carillon/engine/cuda/plan/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "carillon/engine/cuda/plan/lower.h"

namespace carillon::engine::cuda {

namespace {

using graph::DataType;
using graph::Node;
using graph::PostOp;
using graph::ValueId;

// Such a number gives a score no weight beside others: it is there to mask.
constexpr float hides_any_score = -1e30F;
constexpr float infinity = std::numeric_limits<float>::infinity();

class Finder {
 public:
  explicit Finder(const graph::Graph& graph)
      : graph_(graph), uses_(graph.values.size(), 0), maker_(graph.values.size(), none) {
    readers_.resize(graph.values.size(), none);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      for (const ValueId id : node.inputs) use(id, n);
      for (const PostOp& post : node.post_ops) use(post.operand, n);
      for (const ValueId id : node.outputs)
        if (id != graph::no_value) maker_[id.index()] = n;
    }
    for (const ValueId id : graph.outputs) use(id, none);
  }

  std::vector<Attention> all() const {
    std::vector<Attention> out;
    std::vector<bool> taken(graph_.nodes.size(), false);
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op != "Softmax") continue;
      auto found = around(n);
      if (!found || std::ranges::any_of(found->nodes, [&](std::size_t node) { return taken[node]; }))
        continue;
      for (const std::size_t node : found->nodes) taken[node] = true;
      out.push_back(std::move(*found));
    }
    return out;
  }

 private:
  static constexpr std::size_t none = ~std::size_t{0};

  void use(ValueId id, std::size_t by) {
    if (id == graph::no_value) return;
    ++uses_[id.index()];
    readers_[id.index()] = by;
  }
  const graph::TensorType& type(ValueId id) const { return graph_.value(id).type; }
  const Node& node(std::size_t n) const { return graph_.nodes[n]; }
  // Of a value that one node alone reads, once: that; else none.
  std::size_t only_reader(ValueId id) const { return uses_[id.index()] == 1 ? readers_[id.index()] : none; }
  std::optional<float> number(ValueId id) const {
    if (!graph_.is_constant(id)) return std::nullopt;
    const graph::Tensor& tensor = *graph_.value(id).constant;
    if (tensor.type().type != DataType::f32 || tensor.type().elements() != 1) return std::nullopt;
    return tensor.as<float>()[0];
  }
  static bool plain(const Node& node) {
    return node.guard < 0 && node.outputs.size() == 1 && node.outputs[0] != graph::no_value;
  }

  std::optional<Attention> around(std::size_t softmax) const {
    const Node& soft = node(softmax);
    if (!plain(soft) || soft.inputs.size() != 1) return std::nullopt;
    const auto rank = static_cast<std::int64_t>(type(soft.inputs[0]).shape.size());
    const std::int64_t axis = soft.integer("axis", -1);
    if (rank < 2 || (axis != -1 && axis != rank - 1)) return std::nullopt;
    Attention found;
    found.nodes.push_back(softmax);
    if (!scores(soft.inputs[0], found)) return std::nullopt;
    auto after = weights(soft.outputs[0], found);
    if (!after || !product(*after, found)) return std::nullopt;
    std::ranges::sort(found.nodes);
    tail(found);
    return found;
  }

  // From the softmax's operand back to the product that it comes from.
  bool scores(ValueId id, Attention& found) const {
    const std::size_t made = maker_[id.index()];
    if (made == none || uses_[id.index()] != 1) return false;
    const Node& at = node(made);
    if (!plain(at)) return false;
    for (std::size_t i = at.post_ops.size(); i-- > 0;) {
      const PostOp& post = at.post_ops[i];
      if (post.kind == PostOp::Kind::linear && post.beta == 0) {
        if (!scaled(post.alpha, found)) return false;
      } else if (post.kind == PostOp::Kind::mul && number(post.operand)) {
        if (!scaled(*number(post.operand), found)) return false;
      } else if (post.kind == PostOp::Kind::add) {
        if (!masked(post.operand, found)) return false;
      } else if (post.kind == PostOp::Kind::at_most) {
        if (!bounded(post.operand, infinity, found)) return false;
      } else if (post.kind == PostOp::Kind::at_least) {
        if (!bounded(post.operand, -infinity, found)) return false;
      } else {
        return false;
      }
    }
    found.nodes.push_back(made);
    if (at.op == "MatMul") {
      found.q = at.inputs[0];
      found.k = at.inputs[1];
      return type(id).type == type(found.q).type && type(found.q).type == type(found.k).type &&
             type(found.q).shape.size() >= 2 && type(found.k).shape.size() >= 2;
    }
    if (at.op == "Add") {
      if (at.inputs.size() != 2) return false;
      for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
        Attention tried = found;
        if (type(at.inputs[side]) == type(id) && masked(at.inputs[1 - side], tried) &&
            scores(at.inputs[side], tried)) {
          found = std::move(tried);
          return true;
        }
      }
      return false;
    }
    if (at.op == "Mul" || at.op == "Div") {
      for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
        if (side == 1 && at.op == "Div") break;
        const auto factor = number(at.inputs[1 - side]);
        if (!factor || type(at.inputs[side]) != type(id)) continue;
        if (at.op == "Div" && *factor == 0) return false;
        return scaled(at.op == "Div" ? 1 / *factor : *factor, found) && scores(at.inputs[side], found);
      }
      return false;
    }
    if (at.op == "AtMost" || at.op == "AtLeast")
      return bounded(at.inputs[1], at.op == "AtMost" ? infinity : -infinity, found) &&
             scores(at.inputs[0], found);
    if (at.op == "Where") {
      if (found.mask != graph::no_value || found.condition != graph::no_value || found.scale != 1)
        return false;
      for (const std::size_t side : {std::size_t{1}, std::size_t{2}}) {
        const auto fill = number(at.inputs[side]);
        if (!fill || *fill > hides_any_score || type(at.inputs[3 - side]) != type(id)) continue;
        found.condition = at.inputs[0];
        found.hides = side == 1;
        found.hidden = *fill;
        return scores(at.inputs[3 - side], found);
      }
    }
    return false;
  }
  // What stands further in front is met later: a mask must not be scaled after it was added.
  static bool scaled(float factor, Attention& found) {
    found.scale *= factor;
    return std::isfinite(found.scale);
  }
  bool masked(ValueId id, Attention& found) const {
    if (found.mask != graph::no_value || found.condition != graph::no_value || found.scale != 1) return false;
    found.mask = id;
    return true;
  }

  // A bound of scores, which is `shown` where they are not masked (graph/passes/attention_mask.cpp).
  bool bounded(ValueId id, float shown, Attention& found) const {
    const std::size_t made = maker_[id.index()];
    if (made == none || found.mask != graph::no_value || found.scale != 1) return false;
    const Node& where = node(made);
    if (!plain(where) || where.op != "Where") return false;
    for (const std::size_t side : {std::size_t{1}, std::size_t{2}}) {
      const auto fill = number(where.inputs[side]);
      if (!fill || *fill > hides_any_score || *fill == shown || number(where.inputs[3 - side]) != shown)
        continue;
      if (found.condition != graph::no_value)  // the other bound of the same mask
        return found.condition == where.inputs[0] && found.hides == (side == 1) && found.hidden == *fill;
      found.condition = where.inputs[0];
      found.hides = side == 1;
      found.hidden = *fill;
      return true;
    }
    return false;
  }

  // The softmax's result, with NaNs replaced where that is what is read of it; nothing where others read it.
  std::optional<ValueId> weights(ValueId id, Attention& found) const {
    if (uses_[id.index()] == 1) return id;
    if (uses_[id.index()] != 2) return std::nullopt;
    const std::size_t made = readers_[id.index()];  // the later of its readers
    if (made == none) return std::nullopt;
    const Node& where = node(made);
    if (!plain(where) || where.op != "Where" || where.inputs[2] != id || uses_[where.outputs[0].index()] != 1)
      return std::nullopt;
    const auto zero = number(where.inputs[1]);
    const std::size_t asks = maker_[where.inputs[0].index()];
    if (!zero || *zero != 0 || asks == none || uses_[where.inputs[0].index()] != 1) return std::nullopt;
    const Node& is_nan = node(asks);
    if (!plain(is_nan) || is_nan.op != "IsNaN" || is_nan.inputs[0] != id) return std::nullopt;
    found.nodes.push_back(asks);
    found.nodes.push_back(made);
    return where.outputs[0];
  }

  bool product(ValueId weights, Attention& found) const {
    const std::size_t by = only_reader(weights);
    if (by == none) return false;
    const Node& at = node(by);
    if (!plain(at) || at.op != "MatMul" || at.inputs[0] != weights || at.inputs[1] == weights) return false;
    found.v = at.inputs[1];
    found.product = by;
    found.nodes.push_back(by);
    const auto& q = type(found.q).shape;
    const auto& v = type(found.v).shape;
    return type(found.v).type == type(found.q).type && v.size() >= 2 && v.back() == q.back() &&
           (found.mask == graph::no_value || type(found.mask).type == type(found.q).type);
  }

  void tail(Attention& found) const {
    ValueId id = node(found.product).outputs[0];
    for (const std::string_view op : {"Transpose", "Reshape"}) {
      const std::size_t by = only_reader(id);
      if (by == none || !plain(node(by)) || node(by).op != op || node(by).inputs[0] != id) return;
      found.turned.push_back(by);
      id = node(by).outputs[0];
    }
  }

  const graph::Graph& graph_;
  std::vector<std::uint32_t> uses_;
  std::vector<std::size_t> maker_, readers_;
};

// An operand as the kernel reads it, [.., positions, head]: a copy where it does not lie so.
struct Operand {
  Lying lies;
  bool copied = false;
};
Operand operand(Lying tensor) {
  const std::size_t rank = tensor.shape.size();
  const std::uint64_t size = graph::size_of(tensor.type);
  bool fits = tensor.shape[rank - 1] == 1 || tensor.strides[rank - 1] == 1;
  if (size == 2 && tensor.shape[rank - 1] % 8 == 0) {  // for tensor cores
    fits = fits && tensor.offset % 16 == 0;
    for (std::size_t i = 0; i + 1 < rank; ++i)
      fits = fits && (tensor.shape[i] == 1 || tensor.strides[i] % 8 == 0);
  }
  return {std::move(tensor), !fits};
}
std::vector<std::int64_t> strides_of(const Operand& operand) {
  return operand.copied ? row_major(operand.lies.shape) : operand.lies.strides;
}

// The leading axes of all operands, joined where they go on as one in each.
struct Leading {
  static constexpr std::size_t operands = 5;
  std::vector<std::int64_t> extents;
  std::array<std::vector<std::int64_t>, operands> strides;

  void join() {
    Leading out;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] == 1) continue;
      bool goes_on = !out.extents.empty();
      for (std::size_t k = 0; goes_on && k < operands; ++k)
        goes_on = out.strides[k].back() == strides[k][i] * extents[i];
      if (goes_on)
        out.extents.back() *= extents[i];
      else
        out.extents.push_back(extents[i]);
      for (std::size_t k = 0; k < operands; ++k) {
        if (goes_on)
          out.strides[k].back() = strides[k][i];
        else
          out.strides[k].push_back(strides[k][i]);
      }
    }
    *this = std::move(out);
  }
};

// The result's strides, so that what turns it reads it as it lies.
std::vector<std::int64_t> result_strides(const Builder& builder, const Attention& attention,
                                         const Shape& shape) {
  if (attention.turned.empty()) return row_major(shape);
  const auto perm = builder.graph().nodes[attention.turned[0]].integers("perm");
  if (perm.empty() || perm.back() != static_cast<std::int64_t>(shape.size()) - 1) return row_major(shape);
  Shape there;
  for (const std::int64_t axis : perm) there.push_back(shape[static_cast<std::size_t>(axis)]);
  const auto strides = row_major(there);
  std::vector<std::int64_t> out(shape.size());
  for (std::size_t i = 0; i < perm.size(); ++i) out[static_cast<std::size_t>(perm[i])] = strides[i];
  return out;
}

// How one kernel computes it, once its operands lie as they should.
struct ByKernel {
  kernels::AttentionParams params{};
  kernels::Type type = kernels::Type::f32;
  Operand q, k, v;
  std::vector<std::int64_t> out_strides;
};

std::optional<ByKernel> by_kernel(Builder& builder, const Attention& attention) {
  ByKernel out;
  const Shape& shape = builder.type(builder.graph().nodes[attention.product].outputs[0]).shape;
  const auto rows = [](const Lying& columns) {
    std::vector<std::int64_t> order(columns.shape.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    std::swap(order[order.size() - 1], order[order.size() - 2]);
    return transposed(columns, order);
  };
  out.q = operand(builder.in(attention.q));
  out.k = operand(rows(builder.in(attention.k)));
  out.v = operand(builder.in(attention.v));
  const DataType type = out.q.lies.type;
  const auto known = kernel_type(type);
  if (!known || out.k.lies.type != type || out.v.lies.type != type) return std::nullopt;
  out.type = *known;
  const std::int64_t queries = shape[shape.size() - 2], head = shape.back(),
                     keys = out.k.lies.shape[out.k.lies.shape.size() - 2];
  out.out_strides = result_strides(builder, attention, shape);

  // With the result's leading axes, and their own last two.
  const auto whole = [&](Lying tensor, std::int64_t position, std::int64_t last) {
    Shape to = shape;
    to[to.size() - 2] = position;
    to.back() = last;
    return broadcast(tensor, to).strides;
  };
  const auto of = [&](const Operand& each, std::int64_t positions) {
    Lying lies = each.lies;
    lies.strides = strides_of(each);
    return whole(std::move(lies), positions, head);
  };
  std::vector<std::int64_t> mask(shape.size(), 0);
  const ValueId masked = attention.mask != graph::no_value ? attention.mask : attention.condition;
  if (masked != graph::no_value) {
    const Shape& its = builder.type(masked).shape;
    if (its.size() > shape.size()) return std::nullopt;
    Lying lies;
    if (attention.mask != graph::no_value) {
      lies = builder.in(masked);
      if (lies.type != type) return std::nullopt;
    } else {
      lies = {.type = type, .shape = its, .strides = row_major(its)};  // as it will be made
    }
    mask = whole(std::move(lies), queries, keys);
  }
  const std::array<std::vector<std::int64_t>, Leading::operands> strides{
      of(out.q, queries), of(out.k, keys), of(out.v, keys), out.out_strides, std::move(mask)};
  Leading leading{{shape.begin(), shape.end() - 2}, strides};
  leading.join();
  if (leading.extents.size() > 3) return std::nullopt;
  constexpr std::int64_t most = std::int64_t{1} << 31;
  for (const std::int64_t extent : leading.extents)
    if (extent >= most) return std::nullopt;
  if (std::max({queries, keys, head}) >= most) return std::nullopt;
  kernels::AttentionParams& p = out.params;
  std::int64_t* const to[] = {p.q_strides, p.k_strides, p.v_strides, p.out_strides, p.mask_strides};
  std::ranges::fill(p.outer, 1);
  const std::size_t first = 3 - leading.extents.size();
  for (std::size_t i = 0; i < leading.extents.size(); ++i) {
    p.outer[first + i] = static_cast<std::int32_t>(leading.extents[i]);
    for (std::size_t k = 0; k < Leading::operands; ++k) to[k][first + i] = leading.strides[k][i];
  }
  for (std::size_t k = 0; k < Leading::operands; ++k) to[k][3] = strides[k][shape.size() - 2];
  p.mask_strides[4] = strides[4].back();
  // Of one position there is no next.
  for (std::size_t k = 0; k < 4; ++k)
    if ((k == 0 || k == 3 ? queries : keys) == 1) to[k][3] = 0;
  p.queries = static_cast<std::int32_t>(queries);
  p.keys = static_cast<std::int32_t>(keys);
  p.head_size = static_cast<std::int32_t>(head);
  p.scale = attention.scale;
  p.key_warps = kernels::key_warps(p, builder.processors());
  if (queries == 0 || keys == 0 || head == 0 ||
      kernels::attention_by(p, out.type) == kernels::AttentionBy::nothing)
    return std::nullopt;
  return out;
}

// All that makes a difference to how long it takes, either way.
std::string key_of(const Builder& builder, const Attention& attention, const ByKernel& by) {
  const kernels::AttentionParams& p = by.params;
  const auto number = builder.number_of(by.q.lies.type);
  return fmt::format(
      "attention {} {}x{}x{} queries {} keys {} head {} warps {} at {} {} {}{}{}{} {} mask {} {}{}{}{} "
      "kernel {}",
      number ? name_of(*number) : "", p.outer[0], p.outer[1], p.outer[2], p.queries, p.keys, p.head_size,
      p.key_warps, fmt::join(p.q_strides, ","), fmt::join(p.k_strides, ","), fmt::join(p.v_strides, ","),
      by.q.copied ? " q moved" : "", by.k.copied ? " k moved" : "", by.v.copied ? " v moved" : "",
      fmt::join(p.out_strides, ","),
      attention.mask != graph::no_value        ? "added"
      : attention.condition != graph::no_value ? "chosen"
                                               : "none",
      fmt::join(p.mask_strides, ","), p.scale == 1 ? "" : " scaled",
      attention.nodes.size() > 2 ? fmt::format(" of {} nodes", attention.nodes.size()) : "",
      attention.turned.empty() ? "" : fmt::format(" turned {}", attention.turned.size()),
      kernels::attention_version);
}

Result<> put_kernel(Builder& builder, const Attention& attention, const ByKernel& by) {
  const graph::Node& product = builder.graph().nodes[attention.product];
  builder.enter(product);
  const auto ready = [&](const Operand& each) -> Result<Lying> {
    if (!each.copied) return each.lies;
    Lying out = builder.fresh(each.lies.type, each.lies.shape, row_major(each.lies.shape));
    if (auto moved = builder.move(each.lies, out); !moved) return std::unexpected(moved.error());
    return out;
  };
  const auto q = ready(by.q), k = ready(by.k), v = ready(by.v);
  for (const auto* each : {&q, &k, &v})
    if (!*each) return std::unexpected(each->error());
  Result<Lying> mask = Lying{};
  const bool masked = attention.mask != graph::no_value || attention.condition != graph::no_value;
  if (attention.mask != graph::no_value) {
    mask = builder.in(attention.mask);
  } else if (masked) {
    const Lying hidden = builder.scalar(attention.hidden, q->type), shown = builder.scalar(0, q->type);
    const Lying condition = builder.in(attention.condition);
    mask = builder.select(condition, attention.hides ? hidden : shown, attention.hides ? shown : hidden,
                          condition.shape);
    if (!mask) return std::unexpected(mask.error());
  }
  Lying out = builder.fresh(q->type, builder.type(product.outputs[0]).shape, by.out_strides);
  using P = kernels::AttentionParams;
  const auto launch = kernels::launch(by.params, by.type, builder.processors());
  const auto put = masked
                       ? builder.kernel(by.params, launch,
                                        {{offsetof(P, q), &*q},
                                         {offsetof(P, k), &*k},
                                         {offsetof(P, v), &*v},
                                         {offsetof(P, mask), &*mask}},
                                        offsetof(P, output), out)
                       : builder.kernel(by.params, launch,
                                        {{offsetof(P, q), &*q}, {offsetof(P, k), &*k}, {offsetof(P, v), &*v}},
                                        offsetof(P, output), out);
  if (!put) return put;
  auto result = apply_post_ops(builder, product, std::move(out));
  if (!result) return std::unexpected(result.error());
  builder.set(product.outputs[0], std::move(*result));
  return {};
}

}  // namespace

std::vector<Attention> find_attention(const graph::Graph& graph) {
  return Finder(graph).all();
}

Result<> lower_attention(Builder& builder, const Attention& attention) {
  const auto& nodes = builder.graph().nodes;
  builder.enter(nodes[attention.product]);
  // Operands in the recipe's number first: that is no part of either way.
  const auto by = by_kernel(builder, attention);
  Recipe::Attention made{.node = nodes[attention.product].name, .first = builder.steps()};
  if (by) {
    made.key = key_of(builder, attention, *by);
    made.one_kernel = builder.wants_one_kernel(made.key);
  }
  if (made.one_kernel) {
    if (auto put = put_kernel(builder, attention, *by); !put) return put;
  } else {
    for (const std::size_t n : attention.nodes)
      if (auto lowered = lower(builder, nodes[n]); !lowered) return lowered;
  }
  for (const std::size_t n : attention.turned)
    if (auto lowered = lower(builder, nodes[n]); !lowered) return lowered;
  made.last = builder.steps();
  if (by) builder.tell(std::move(made));
  return {};
}

}  // namespace carillon::engine::cuda
