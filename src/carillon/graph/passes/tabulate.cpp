#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "carillon/graph/kernel.h"
#include "carillon/graph/passes/byte_scale.h"
#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

constexpr std::array pointwise{
    std::string_view("Abs"),       std::string_view("Add"),        std::string_view("Clip"),
    std::string_view("Div"),       std::string_view("Elu"),        std::string_view("Erf"),
    std::string_view("Exp"),       std::string_view("Gelu"),       std::string_view("HardSigmoid"),
    std::string_view("HardSwish"), std::string_view("LeakyRelu"),  std::string_view("Log"),
    std::string_view("Max"),       std::string_view("Min"),        std::string_view("Mish"),
    std::string_view("Mul"),       std::string_view("Neg"),        std::string_view("PRelu"),
    std::string_view("Pow"),       std::string_view("Reciprocal"), std::string_view("Relu"),
    std::string_view("Selu"),      std::string_view("Sigmoid"),    std::string_view("Softplus"),
    std::string_view("Sqrt"),      std::string_view("Sub"),        std::string_view("Tanh")};

// A value each of whose elements depends on the element of `source` at the same place alone.
template <typename T>
struct OfByte {
  ValueId source = no_value;
  std::array<T, 256> values{};  // by the source's bits
};
using RealFunction = std::shared_ptr<const OfByte<float>>;
using ByteFunction = std::shared_ptr<const OfByte<std::uint8_t>>;

class Tabulator {
 public:
  Tabulator(Graph& graph, ConstantStore& store) : editor_(graph), graph_(graph), store_(store) {}

  void run() {
    for (std::size_t i = 0; i < editor_.nodes(); ++i) {
      if (!editor_.alive(i) || editor_.node(i).outputs.size() != 1) continue;
      const Node& node = editor_.node(i);
      if (node.op == "DequantizeLinear")
        dequantise(node);
      else if (node.op == "QuantizeLinear")
        quantise(i);
      else if (std::ranges::find(pointwise, node.op) != pointwise.end() && node.post_ops.empty())
        follow(node);
    }
    editor_.finish();
  }

 private:
  static float number(DataType type, std::uint8_t bits) {
    return type == DataType::i8 ? static_cast<float>(static_cast<std::int8_t>(bits))
                                : static_cast<float>(bits);
  }

  void dequantise(const Node& node) {
    const ValueId x = node.inputs[0];
    const auto scale = byte_scale(graph_, node);
    if (!scale || graph_.is_constant(x)) return;
    auto made = std::make_shared<OfByte<float>>();
    const auto known = bytes_.find(x);
    made->source = known == bytes_.end() ? x : known->second->source;
    for (std::size_t b = 0; b < 256; ++b) {
      const auto bits = known == bytes_.end() ? static_cast<std::uint8_t>(b) : known->second->values[b];
      made->values[b] = (number(scale->type, bits) - static_cast<float>(scale->zero)) * scale->scale;
    }
    reals_[node.outputs[0]] = std::move(made);
  }

  // The function's values after `node`, whose other operands are single constants.
  void follow(const Node& node) {
    const TensorType& result = editor_.type(node.outputs[0]);
    if (result.type != DataType::f32) return;
    const TensorType all{DataType::f32, {256}}, one{DataType::f32, {}};
    std::vector<const TensorType*> types;
    std::vector<ConstView> views;
    ValueId source = no_value;
    for (const ValueId id : node.inputs) {
      if (id == no_value) {
        types.push_back(nullptr);
        views.emplace_back();
      } else if (const auto known = reals_.find(id); known != reals_.end()) {
        if (source != no_value && known->second->source != source) return;
        source = known->second->source;
        types.push_back(&all);
        views.push_back({&all, std::as_bytes(std::span(known->second->values)).data()});
      } else {
        float value = 0;
        if (!editor_.scalar(id, value)) return;
        types.push_back(&one);
        views.push_back({&one, graph_.value(id).constant->bytes().data()});
      }
    }
    if (source == no_value || result.shape != editor_.type(source).shape) return;
    const PlainKernel kernel = find_plain_kernel(node, types);
    auto made = std::make_shared<OfByte<float>>();
    made->source = source;
    const std::array outputs{MutableView{&all, std::as_writable_bytes(std::span(made->values)).data()}};
    if (kernel == nullptr || !kernel(node, views, outputs)) return;
    reals_[node.outputs[0]] = std::move(made);
  }

  void quantise(std::size_t index) {
    const Node& node = editor_.node(index);
    const auto known = reals_.find(node.inputs[0]);
    const auto scale = byte_scale(graph_, node);
    if (known == reals_.end() || !scale) return;
    const TensorType real{DataType::f32, {256}}, bytes{scale->type, {256}};
    std::vector<const TensorType*> types{&real};
    std::vector<ConstView> views{{&real, std::as_bytes(std::span(known->second->values)).data()}};
    for (std::size_t i = 1; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == no_value) {
        types.push_back(nullptr);
        views.emplace_back();
        continue;
      }
      const SharedTensor& tensor = graph_.value(node.inputs[i]).constant;
      types.push_back(&tensor->type());
      views.push_back({types.back(), tensor->bytes().data()});
    }
    const PlainKernel kernel = find_plain_kernel(node, types);
    auto made = std::make_shared<OfByte<std::uint8_t>>();
    made->source = known->second->source;
    const std::array outputs{MutableView{&bytes, std::as_writable_bytes(std::span(made->values)).data()}};
    if (kernel == nullptr || !kernel(node, views, outputs)) return;
    bool same = scale->type == editor_.type(made->source).type;
    for (std::size_t b = 0; b < 256; ++b) same = same && made->values[b] == static_cast<std::uint8_t>(b);
    Node lookup{.name = node.name, .op = same ? "Identity" : "ByteLookup", .inputs = {made->source}};
    if (!same) {
      auto table = std::make_shared<Tensor>(bytes);
      std::ranges::copy(std::as_bytes(std::span(made->values)), table->bytes().begin());
      lookup.inputs.push_back(
          editor_.add_value(node.name + ".table", bytes, store_.intern(std::move(table))));
    }
    bytes_[node.outputs[0]] = std::move(made);
    editor_.replace(index, std::move(lookup));
  }

  Editor editor_;
  Graph& graph_;
  ConstantStore& store_;
  std::map<ValueId, RealFunction> reals_;
  std::map<ValueId, ByteFunction> bytes_;
};

}  // namespace

std::optional<ByteScale> byte_scale(const Graph& graph, const Node& node) {
  const bool quantises = node.op == "QuantizeLinear";
  const DataType type = graph.value(quantises ? node.outputs[0] : node.inputs[0]).type.type;
  const DataType real = graph.value(quantises ? node.inputs[0] : node.outputs[0]).type.type;
  if (!holds_bytes(type) || real != DataType::f32 || !graph.is_constant(node.inputs[1])) return std::nullopt;
  const Tensor& scale = *graph.value(node.inputs[1]).constant;
  if (scale.type().type != DataType::f32 || scale.type().elements() != 1) return std::nullopt;
  ByteScale out{.scale = scale.as<float>()[0], .type = type};
  if (node.inputs.size() < 3 || node.inputs[2] == no_value) return out;
  if (!graph.is_constant(node.inputs[2])) return std::nullopt;
  const Tensor& zero = *graph.value(node.inputs[2]).constant;
  if (zero.type().type != type || zero.type().elements() != 1) return std::nullopt;
  out.zero = type == DataType::i8 ? zero.as<std::int8_t>()[0] : zero.as<std::uint8_t>()[0];
  return out;
}

void tabulate_bytes(Graph& graph, ConstantStore& store) {
  if (std::ranges::none_of(graph.nodes, [](const Node& node) { return node.op == "QuantizeLinear"; })) return;
  Tabulator(graph, store).run();
}

}  // namespace carillon::graph
