#include "carillon/graph/bounded.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/operators.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

std::uint64_t bit(std::size_t dimension) {
  return std::uint64_t{1} << dimension;
}

}  // namespace

bool has_bounded(std::span<const std::int64_t> shape) {
  return std::ranges::any_of(shape, [](std::int64_t extent) { return is_bounded(extent); });
}

Shape any_open_rank() {
  return {open_rank(most_rank), any_bounded_dimension};
}

Shape bounds_of(std::span<const std::int64_t> shape) {
  Shape out(shape.begin() + (has_open_rank(shape) ? 1 : 0), shape.end());
  for (std::int64_t& extent : out)
    if (is_bounded(extent)) extent = bounded_dimension(0) - extent;
  return out;
}

std::uint64_t extents_offset(DataType type, std::span<const std::int64_t> shape) {
  return round_up(TensorType{type, bounds_of(shape)}.bytes().count, sizeof(std::int64_t));
}

Bytes memory_of(DataType type, std::span<const std::int64_t> shape) {
  if (!has_bounded(shape)) return TensorType{type, Shape(shape.begin(), shape.end())}.bytes();
  return {extents_offset(type, shape) + extents_bytes(shape).count};
}

Bytes extents_bytes(std::span<const std::int64_t> shape) {
  const std::size_t numbers =
      has_open_rank(shape) ? 1 + static_cast<std::size_t>(open_rank(0) - shape.front()) : shape.size();
  return {numbers * sizeof(std::int64_t)};
}

void write_extents(std::span<const std::int64_t> shape, std::span<const std::int64_t> is, std::byte* to) {
  if (has_open_rank(shape)) {
    const auto rank = static_cast<std::int64_t>(is.size());
    std::memcpy(to, &rank, sizeof rank);
    to += sizeof rank;
  }
  if (!is.empty()) std::memcpy(to, is.data(), is.size_bytes());
}

Result<Shape> shape_in(DataType type, std::span<const std::int64_t> shape,
                       std::span<const std::byte> memory) {
  Shape out(shape.begin(), shape.end());
  if (!has_bounded(shape)) return out;
  CARILLON_ASSERT(memory.size() == memory_of(type, shape).count);
  const Shape most = bounds_of(shape);
  const std::byte* extents = memory.data() + extents_offset(type, shape);
  if (has_open_rank(shape)) {
    std::int64_t rank = 0;
    std::memcpy(&rank, extents, sizeof rank);
    const std::int64_t most_dimensions = open_rank(0) - shape.front();
    if (rank < 0 || rank > most_dimensions)
      return fail(ErrorCode::internal, "it has " + std::to_string(rank) +
                                           " dimensions, and can have at most " +
                                           std::to_string(most_dimensions));
    out.resize(static_cast<std::size_t>(rank));
    if (rank > 0) std::memcpy(out.data(), extents + sizeof rank, out.size() * sizeof(std::int64_t));
    const auto elements = element_count(out);
    if (!elements || *elements > most.front())
      return fail(ErrorCode::internal, "its extents are " + to_text(out) + ", and it can have at most " +
                                           std::to_string(most.front()) + " elements");
    return out;
  }
  std::memcpy(out.data(), extents, out.size() * sizeof(std::int64_t));
  for (std::size_t d = 0; d < out.size(); ++d)
    if (is_bounded(shape[d]) ? out[d] < 0 || out[d] > most[d] : out[d] != shape[d])
      return fail(ErrorCode::internal,
                  "its extents are " + to_text(out) + ", and can be at most " + to_text(most));
  return out;
}

bool decides_extents(std::string_view op) {
  return op == "NonZero" || op == "NonMaxSuppression" || op == "Compress" || op == "Unique";
}

std::uint64_t decided_dimensions(const Node& node, std::size_t output, std::size_t rank) {
  if (rank == 0) return 0;
  if (node.op == "NonZero") return bit(1);
  if (node.op == "NonMaxSuppression") return bit(0);
  // Unique: which of its values each element is, is known to be one an element.
  if (node.op == "Unique" && output == 2) return 0;
  if (!node.has("axis") || output > 0) return bit(0);
  const std::int64_t axis = node.integer("axis", 0);
  return bit(static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis));
}

Node inner_node(const Node& node) {
  CARILLON_ASSERT(node.op == bounded_node);
  Node out = node;
  out.op = node.text(bounded_operator, {});
  out.guard = -1;
  for (const std::string_view name : {bounded_operator, bounded_dimensions, bounded_contents})
    if (const auto found = out.attributes.find(name); found != out.attributes.end())
      out.attributes.erase(found);
  return out;
}

std::vector<std::uint64_t> find_bounded(const Graph& graph) {
  std::vector<std::uint64_t> out(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    if (node.op != bounded_node) continue;
    const auto dimensions = node.integers(bounded_dimensions);
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] != no_value)
        out[node.outputs[i].index()] = static_cast<std::uint64_t>(dimensions[i]);
  }
  return out;
}

std::vector<Shape> marked_shapes(const Graph& graph) {
  std::vector<Shape> out;
  out.reserve(graph.values.size());
  for (const Value& value : graph.values) out.push_back(value.type.shape);
  for (const Node& node : graph.nodes) {
    if (node.op != bounded_node) continue;
    const auto dimensions = node.integers(bounded_dimensions);
    const std::int64_t rank = node.integer(choose_rank, -1);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == no_value) continue;
      Shape& shape = out[node.outputs[i].index()];
      for (std::size_t d = 0; d < shape.size(); ++d)
        if ((static_cast<std::uint64_t>(dimensions[i]) & bit(d)) != 0) shape[d] = bounded_dimension(shape[d]);
      if (rank >= 0) shape.insert(shape.begin(), open_rank(rank));
    }
  }
  return out;
}

bool is_choose(const Node& node) {
  return node.op == bounded_node && node.text(bounded_operator, {}) == choose_operator;
}

std::vector<std::vector<ChoosePath>> choose_paths(const Node& node) {
  CARILLON_ASSERT(is_choose(node));
  const auto tree = node.integers(choose_tree);
  std::vector<std::vector<ChoosePath>> out(node.inputs.size());
  std::vector<std::pair<std::size_t, std::vector<ChoosePath>>> open{{0, {}}};
  while (!open.empty()) {
    auto [choice, path] = std::move(open.back());
    open.pop_back();
    const auto condition = static_cast<std::size_t>(tree[3 * choice]);
    out[condition] = path;
    for (const bool when : {true, false}) {
      std::vector<ChoosePath> next = path;
      next.push_back({condition, when});
      const std::int64_t to = tree[3 * choice + (when ? 1 : 2)];
      if (to < 0)
        out[static_cast<std::size_t>(-1 - to)] = std::move(next);
      else
        open.emplace_back(static_cast<std::size_t>(to), std::move(next));
    }
  }
  return out;
}

BoundedNode::BoundedNode(const Graph& graph, const Node& node)
    : call_(inner_node(node)),
      name_(node.name),
      constants_(node.inputs.size()),
      looked_at_(node.inputs.size(), false),
      from_(node.inputs.size(), nullptr) {
  for (std::size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i] != no_value) constants_[i] = graph.value(node.inputs[i]).constant;
  if (is_choose(node)) {
    const auto tree = node.integers(choose_tree);
    tree_.assign(tree.begin(), tree.end());
  }
  for (const std::int64_t i : node.integers(bounded_contents)) looked_at_[static_cast<std::size_t>(i)] = true;
  const auto dimensions = node.integers(bounded_dimensions);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    most_.push_back(node.outputs[i] == no_value ? TensorType{} : graph.value(node.outputs[i]).type);
    bounded_.push_back(static_cast<std::uint64_t>(dimensions[i]));
  }
}

std::optional<std::size_t> BoundedNode::chosen(std::span<const ConstView> inputs) const {
  if (tree_.empty()) return std::nullopt;
  std::int64_t at = 0;
  while (at >= 0) {
    const auto choice = 3 * static_cast<std::size_t>(at);
    const bool is_true = *inputs[static_cast<std::size_t>(tree_[choice])].data != std::byte{0};
    at = tree_[choice + (is_true ? 1 : 2)];
  }
  return static_cast<std::size_t>(-1 - at);
}

Result<> BoundedNode::run(std::span<const ConstView> inputs, std::span<std::byte* const> outputs) {
  CARILLON_ASSERT(inputs.size() == constants_.size() && outputs.size() == most_.size());
  if (const auto from = chosen(inputs)) {
    chosen_ = *inputs[*from].type;
    const std::size_t bytes = chosen_.bytes().count;
    CARILLON_ASSERT(bytes <= most_[0].bytes().count);
    if (bytes > 0 && outputs[0] != nullptr) std::memcpy(outputs[0], inputs[*from].data, bytes);
    return {};
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    from_[i] = inputs[i].data;
    if (!inputs[i]) continue;
    SharedTensor contents = constants_[i];
    if (looked_at_[i]) {
      auto copy = std::make_shared<Tensor>(*inputs[i].type);
      if (!copy->bytes().empty()) std::memcpy(copy->bytes().data(), inputs[i].data, copy->bytes().size());
      contents = std::move(copy);
    }
    call_.set(i, *inputs[i].type, std::move(contents));
  }
  if (auto types = call_.infer(); !types) return std::unexpected(types.error());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i] != nullptr)
      if (auto fits = check(i); !fits) return fits;
  return call_.run(from_, outputs);
}

// That result `i` has its place, and that who counts on its extents finds them.
Result<> BoundedNode::check(std::size_t i) const {
  const Shape &is = results()[i].shape, &most = most_[i].shape;
  bool fits = is.size() == most.size() && results()[i].type == most_[i].type;
  for (std::size_t d = 0; fits && d < is.size(); ++d)
    fits = (bounded_[i] & bit(d)) != 0 ? is[d] <= most[d] : is[d] == most[d];
  if (fits) return {};
  return invalid("node '" + name_ + "': with these data its result " + std::to_string(i) + " has shape " +
                 to_text(is) + ", and the model was prepared for " + (bounded_[i] != 0 ? "at most " : "") +
                 to_text(most));
}

LateCall::LateCall(Node node) : node_(std::move(node)) {
  const auto number = [this](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) {
      const ValueId own{static_cast<std::uint32_t>(operands_.values.size())};
      operands_.values.emplace_back();
      if (id != no_value) id = own;
    }
  };
  number(node_.inputs);
  number(node_.outputs);
}

void LateCall::set(std::size_t i, TensorType type, SharedTensor contents) {
  CARILLON_ASSERT(i < node_.inputs.size() && node_.inputs[i] != no_value);
  CARILLON_ASSERT(contents == nullptr || contents->type() == type);
  operands_.values[i].type = std::move(type);
  operands_.values[i].constant = std::move(contents);
}

Result<std::span<const TensorType>> LateCall::infer() {
  operands_.values.resize(node_.inputs.size() + node_.outputs.size());
  inferred_ = node_;
  results_.assign(node_.outputs.size(), {});
  const Operator* op = find_any_operator(inferred_.op);
  CARILLON_ASSERT(op != nullptr && op->infer != nullptr);
  Inference inference(operands_, inferred_);
  if (auto ok = op->infer(inference); !ok) return std::unexpected(ok.error());
  for (std::size_t i = 0; i < results_.size(); ++i) {
    if (node_.outputs[i] == no_value) continue;
    results_[i] = inference.results()[i];
    if (auto count = element_count(results_[i].shape); !count)
      return in_context(describe(inferred_), count.error());
    if (results_[i].shape.size() > static_cast<std::size_t>(most_rank))
      return invalid(describe(inferred_) + ": its result has " + std::to_string(results_[i].shape.size()) +
                     " dimensions; at most " + std::to_string(most_rank) + " are supported");
  }
  return std::span<const TensorType>(results_);
}

Result<> LateCall::run(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs) {
  CARILLON_ASSERT(inputs.size() == node_.inputs.size() && outputs.size() == node_.outputs.size());
  std::vector<ConstView> from;
  std::vector<const TensorType*> types;
  for (const ValueId id : inferred_.inputs) {
    ConstView view;
    if (id != no_value) {
      const Value& value = operands_.value(id);
      view.type = &value.type;
      view.data = id.index() < inputs.size() ? inputs[id.index()] : value.constant->bytes().data();
    }
    types.push_back(view.type);
    from.push_back(view);
  }
  std::vector<MutableView> to;
  for (std::size_t i = 0; i < inferred_.outputs.size(); ++i)
    to.push_back(inferred_.outputs[i] == no_value ? MutableView{} : MutableView{&results_[i], outputs[i]});
  std::vector<std::pair<TensorType, Shape>> extents;
  if (decides_extents(inferred_.op)) {
    for (const TensorType& result : results_)
      extents.emplace_back(TensorType{DataType::i64, {static_cast<std::int64_t>(result.shape.size())}},
                           result.shape);
    for (std::size_t i = 0; i < extents.size(); ++i)
      to.push_back(
          !to[i] ? MutableView{}
                 : MutableView{&extents[i].first, reinterpret_cast<std::byte*>(extents[i].second.data())});
  }
  if (auto ok = check_dimensions(types); !ok) return in_context(describe(inferred_), ok.error());
  const PlainKernel kernel = find_plain_kernel(inferred_, types);
  if (kernel == nullptr)
    return fail(ErrorCode::unsupported, describe(inferred_) + ": no kernel for its operands' types");
  if (auto ok = kernel(inferred_, from, to); !ok) return ok;
  for (std::size_t i = 0; i < extents.size(); ++i)
    if (to[i]) results_[i].shape = std::move(extents[i].second);
  return {};
}

}  // namespace carillon::graph
