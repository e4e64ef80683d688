#include "carillon/graph/graph.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/guards.h"

namespace carillon::graph {
namespace {

template <typename T>
const T* find_attribute(const Node& node, std::string_view name) {
  const auto found = node.attributes.find(name);
  if (found == node.attributes.end()) return nullptr;
  const T* value = std::get_if<T>(&found->second);
  CARILLON_ASSERT(value != nullptr);
  return value;
}

std::string_view name_of(PostOp::Kind kind) {
  switch (kind) {
    case PostOp::Kind::relu:
      return "relu";
    case PostOp::Kind::leaky_relu:
      return "leaky_relu";
    case PostOp::Kind::clip:
      return "clip";
    case PostOp::Kind::sigmoid:
      return "sigmoid";
    case PostOp::Kind::tanh:
      return "tanh";
    case PostOp::Kind::elu:
      return "elu";
    case PostOp::Kind::gelu_erf:
      return "gelu_erf";
    case PostOp::Kind::gelu_tanh:
      return "gelu_tanh";
    case PostOp::Kind::hard_sigmoid:
      return "hard_sigmoid";
    case PostOp::Kind::hard_swish:
      return "hard_swish";
    case PostOp::Kind::silu:
      return "silu";
    case PostOp::Kind::linear:
      return "linear";
    case PostOp::Kind::add:
      return "add";
    case PostOp::Kind::mul:
      return "mul";
    case PostOp::Kind::at_most:
      return "at_most";
    case PostOp::Kind::at_least:
      return "at_least";
  }
  return "?";
}

std::string number(float value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", static_cast<double>(value));
  return text.data();
}

std::string value_text(const Graph& graph, ValueId id) {
  if (id == no_value) return "-";
  const Value& value = graph.value(id);
  std::string text = "%" + std::to_string(id.value);
  if (value.constant != nullptr) text += "!";
  return text + ":" + std::string(onnx_name(value.type.type)) + to_text(value.type.shape);
}

std::string attribute_text(const Attribute& attribute) {
  struct Print {
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(float v) const { return number(v); }
    std::string operator()(const std::string& v) const { return '"' + v + '"'; }
    std::string operator()(const std::vector<std::int64_t>& v) const { return to_text(v); }
    std::string operator()(const std::vector<float>& v) const {
      std::string text = "[";
      for (std::size_t i = 0; i < v.size(); ++i) text += (i == 0 ? "" : ",") + number(v[i]);
      return text + "]";
    }
    std::string operator()(const std::vector<std::string>& v) const {
      std::string text = "[";
      for (std::size_t i = 0; i < v.size(); ++i) text += (i == 0 ? "\"" : ",\"") + v[i] + '"';
      return text + "]";
    }
    std::string operator()(const SharedTensor& v) const {
      return v == nullptr ? "none" : "tensor" + to_text(v->type().shape);
    }
  };
  return std::visit(Print{}, attribute);
}

std::string describe(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return "value '" + value.name + "' (%" + std::to_string(id.value) + ")";
}

// Whether `from` broadcasts to `to` by ONNX's rules without changing it.
bool broadcasts_to(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::int64_t extent = from[from.size() - 1 - i];
    if (extent != 1 && extent != to[to.size() - 1 - i]) return false;
  }
  return true;
}

}  // namespace

bool takes_operand(PostOp::Kind kind) {
  return kind == PostOp::Kind::add || kind == PostOp::Kind::mul || kind == PostOp::Kind::at_most ||
         kind == PostOp::Kind::at_least;
}

std::int64_t Node::integer(std::string_view attribute, std::int64_t fallback) const {
  const auto* value = find_attribute<std::int64_t>(*this, attribute);
  return value == nullptr ? fallback : *value;
}

float Node::real(std::string_view attribute, float fallback) const {
  const auto* value = find_attribute<float>(*this, attribute);
  return value == nullptr ? fallback : *value;
}

std::string_view Node::text(std::string_view attribute, std::string_view fallback) const {
  const auto* value = find_attribute<std::string>(*this, attribute);
  return value == nullptr ? fallback : std::string_view(*value);
}

std::span<const std::int64_t> Node::integers(std::string_view attribute) const {
  const auto* value = find_attribute<std::vector<std::int64_t>>(*this, attribute);
  return value == nullptr ? std::span<const std::int64_t>{} : std::span<const std::int64_t>(*value);
}

std::span<const float> Node::reals(std::string_view attribute) const {
  const auto* value = find_attribute<std::vector<float>>(*this, attribute);
  return value == nullptr ? std::span<const float>{} : std::span<const float>(*value);
}

Result<> validate(const Graph& graph) {
  enum class Made : std::uint8_t { none, constant, input, node };
  std::vector<Made> origin(graph.values.size(), Made::none);
  const auto known = [&](ValueId id) { return id.index() < graph.values.size(); };

  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    const ValueId id{static_cast<std::uint32_t>(i)};
    if (auto count = element_count(value.type.shape); !count)
      return in_context(describe(graph, id), count.error());
    if (value.constant == nullptr) continue;
    if (value.constant->type() != value.type)
      return fail(ErrorCode::internal, describe(graph, id) + " has type " +
                                           std::string(onnx_name(value.type.type)) +
                                           to_text(value.type.shape) + " but its constant has " +
                                           std::string(onnx_name(value.constant->type().type)) +
                                           to_text(value.constant->type().shape));
    origin[i] = Made::constant;
  }
  for (const ValueId id : graph.inputs) {
    if (!known(id)) return fail(ErrorCode::internal, "a graph input is not a value");
    if (graph.value(id).name.empty())
      return fail(ErrorCode::internal, describe(graph, id) + " is a graph input without a name");
    if (origin[id.index()] != Made::none)
      return fail(ErrorCode::internal, describe(graph, id) + " is a graph input and also something else");
    origin[id.index()] = Made::input;
  }
  const std::vector<std::uint64_t> bounded = find_bounded(graph);
  for (const Node& node : graph.nodes) {
    if (node.name.empty()) return fail(ErrorCode::internal, "a node of operator " + node.op + " has no name");
    const std::string where = "node '" + node.name + "' (" + node.op + ")";
    const bool late = node.op == bounded_node;
    const auto check_use = [&](ValueId id) -> Result<> {
      if (id == no_value) return {};
      if (!known(id)) return fail(ErrorCode::internal, where + " uses a value that does not exist");
      if (origin[id.index()] == Made::none)
        return fail(ErrorCode::internal, where + " uses " + describe(graph, id) + " before it is made");
      if (!late && bounded[id.index()] != 0)
        return fail(ErrorCode::internal,
                    where + " uses " + describe(graph, id) + ", whose extents the data of a run decide");
      return {};
    };
    for (const ValueId id : node.inputs)
      if (auto ok = check_use(id); !ok) return ok;
    for (const PostOp& post : node.post_ops) {
      if (takes_operand(post.kind) != (post.operand != no_value))
        return fail(ErrorCode::internal, where + ": post-op " + std::string(name_of(post.kind)) +
                                             " and its operand do not fit together");
      if (auto ok = check_use(post.operand); !ok) return ok;
    }
    for (const ValueId id : node.outputs) {
      if (id == no_value) continue;
      if (!known(id)) return fail(ErrorCode::internal, where + " makes a value that does not exist");
      if (origin[id.index()] != Made::none)
        return fail(ErrorCode::internal,
                    where + " makes " + describe(graph, id) + ", which already is there");
      origin[id.index()] = Made::node;
    }
    for (const PostOp& post : node.post_ops) {
      if (post.operand == no_value) continue;
      if (node.outputs.empty() || node.outputs[0] == no_value ||
          !broadcasts_to(graph.value(post.operand).type.shape, graph.value(node.outputs[0]).type.shape))
        return fail(ErrorCode::internal, where + ": a post-op's operand " + describe(graph, post.operand) +
                                             " does not broadcast to the output");
    }
  }
  for (const ValueId id : graph.outputs) {
    if (!known(id)) return fail(ErrorCode::internal, "a graph output is not a value");
    if (graph.value(id).name.empty())
      return fail(ErrorCode::internal, describe(graph, id) + " is a graph output without a name");
    if (origin[id.index()] == Made::none)
      return fail(ErrorCode::internal, describe(graph, id) + " is a graph output that nothing makes");
  }
  return validate_guards(graph);
}

std::string to_text(const Graph& graph) {
  std::string text;
  const auto list = [&](const std::vector<ValueId>& ids) {
    std::string line;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) line += ", ";
      line += value_text(graph, ids[i]);
    }
    return line;
  };
  for (const ValueId id : graph.inputs)
    text += "input " + graph.value(id).name + " " + value_text(graph, id) + "\n";
  for (const Node& node : graph.nodes) {
    text += list(node.outputs) + " = " + node.op + "(" + list(node.inputs) + ")";
    if (!node.attributes.empty()) {
      text += " {";
      bool first = true;
      for (const auto& [name, attribute] : node.attributes) {
        text += (first ? "" : ", ") + name + "=" + attribute_text(attribute);
        first = false;
      }
      text += "}";
    }
    for (const PostOp& post : node.post_ops) {
      text += " | " + std::string(name_of(post.kind));
      if (post.operand != no_value) text += "(" + value_text(graph, post.operand) + ")";
      if (post.kind == PostOp::Kind::linear || post.kind == PostOp::Kind::clip ||
          post.kind == PostOp::Kind::hard_sigmoid)
        text += "(" + number(post.alpha) + "," + number(post.beta) + ")";
      if (post.kind == PostOp::Kind::leaky_relu || post.kind == PostOp::Kind::elu)
        text += "(" + number(post.alpha) + ")";
    }
    for (int g = node.guard; g >= 0;) {
      const Guard& guard = graph.guards[static_cast<std::size_t>(g)];
      text += (g == node.guard ? "  if " : " and ") + std::string(guard.when ? "" : "not ") +
              value_text(graph, guard.condition);
      g = guard.parent;
    }
    text += "  # " + node.name + "\n";
  }
  for (const ValueId id : graph.outputs)
    text += "output " + graph.value(id).name + " " + value_text(graph, id) + "\n";
  return text;
}

}  // namespace carillon::graph
