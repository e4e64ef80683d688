#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "carillon/graph/kernel.h"
#include "carillon/graph/passes/byte_scale.h"
#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"
#include "carillon/graph/plain/quantised.h"

namespace carillon::graph {
namespace {

// A tensor of bytes and what they stand for, as three operands of QLinearConv and its like.
struct Bytes3 {
  ValueId x = no_value, scale = no_value, zero = no_value;
};

class QuantisedFuser {
 public:
  QuantisedFuser(Graph& graph, Folder& folder) : editor_(graph), graph_(graph), folder_(folder) {}

  // A DequantizeLinear behind what only moves bytes is nearer to who computes with it.
  void move_all() {
    for (std::size_t i = 0; i < editor_.nodes(); ++i)
      if (editor_.alive(i)) move(i);
    editor_.finish();
  }

  Result<> run() {
    for (std::size_t i = 0; i < editor_.nodes(); ++i)
      if (editor_.alive(i) && editor_.node(i).op == "QuantizeLinear")
        if (auto ok = quantise(i); !ok) return ok;
    for (std::size_t i = 0; i < editor_.nodes(); ++i) {
      if (!editor_.alive(i)) continue;
      const std::string_view op = editor_.node(i).op;
      if (op == "Conv" || op == "MatMul" || op == "Gemm") {
        auto made = product(i, nullptr);
        if (!made) return std::unexpected(made.error());
        if (*made) editor_.replace(i, std::move(**made));
      } else if (op == "Mul") {
        rescale(i);
      }
    }
    editor_.finish();
    return {};
  }

 private:
  using Made = Result<std::optional<Node>>;

  const Graph& graph() const { return graph_; }
  const TensorType& type(ValueId id) const { return editor_.type(id); }
  bool constant(ValueId id) const { return graph_.is_constant(id); }

  // --- What only moves bytes

  // M(DequantizeLinear(x)) becomes DequantizeLinear(M(x)).
  void move(std::size_t index) {
    const Node& node = editor_.node(index);
    if (node.op == "Concat") return join(index);
    if (node.op == "Split") return split(index);
    static constexpr std::array movers{std::string_view("Reshape"),      std::string_view("Transpose"),
                                       std::string_view("Slice"),        std::string_view("Gather"),
                                       std::string_view("Expand"),       std::string_view("Tile"),
                                       std::string_view("MaxPool"),      std::string_view("Resize"),
                                       std::string_view("DepthToSpace"), std::string_view("SpaceToDepth")};
    if (std::ranges::find(movers, node.op) == movers.end() || node.outputs.size() != 1) return;
    // What lies outside of a crop is a number, and no byte.
    if (node.op == "Resize" &&
        (node.text("mode", "nearest") != "nearest" ||
         node.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"))
      return;
    const ValueId real = node.inputs[0], result = node.outputs[0];
    const Node* dequantise = only_dequantised(real);
    if (dequantise == nullptr || type(result).type != DataType::f32) return;
    // The other operands must be there where the bytes are.
    for (std::size_t i = 1; i < node.inputs.size(); ++i)
      if (node.inputs[i] != no_value && !constant(node.inputs[i])) return;
    Node moved = node;
    moved.inputs[0] = dequantise->inputs[0];
    std::vector<const TensorType*> types;
    for (const ValueId id : moved.inputs) types.push_back(id == no_value ? nullptr : &type(id));
    if (find_plain_kernel(moved, types) == nullptr) return;
    Node after = *dequantise;
    after.inputs[0] = real;
    const auto at = static_cast<std::size_t>(editor_.maker(real));
    const DataType bytes = type(dequantise->inputs[0]).type;
    editor_.replace(at, std::move(moved));
    graph_.value(real).type = {bytes, type(result).shape};
    editor_.replace(index, std::move(after));
  }

  // Concat whose parts all are bytes and whose result becomes bytes again.
  void join(std::size_t index) {
    const Node& node = editor_.node(index);
    const ValueId result = node.outputs[0];
    const auto reader = only_quantise(result);
    if (!reader) return;
    const ByteScale to = *byte_scale(graph_, editor_.node(*reader));
    std::vector<ValueId> parts = node.inputs;
    std::ranges::sort(parts);
    if (std::ranges::adjacent_find(parts) != parts.end()) return;
    if (!std::ranges::all_of(parts, [&](ValueId id) { return only_dequantised(id) != nullptr; })) return;
    for (const ValueId part : node.inputs) requantise(part, to);
    graph_.value(result).type.type = to.type;
    Node same{.name = editor_.node(*reader).name, .op = "Identity", .inputs = {result}};
    editor_.replace(*reader, std::move(same));
  }
  // What a DequantizeLinear makes becomes bytes of scale `to`.
  void requantise(ValueId real, const ByteScale& to) {
    const auto at = static_cast<std::size_t>(editor_.maker(real));
    const Node& old = editor_.node(at);
    const ByteScale from = *byte_scale(graph_, old);
    Node made{.name = old.name, .op = "Identity", .inputs = {old.inputs[0]}};
    if (from != to) {
      made.op = "ByteLookup";
      const TensorType type{to.type, {256}};
      auto table = std::make_shared<Tensor>(type);
      for (int b = 0; b < 256; ++b) {
        const int number = from.type == DataType::i8 ? static_cast<std::int8_t>(b) : b;
        const float value = static_cast<float>(number - from.zero) * from.scale / to.scale;
        // Of scales that are zero, too, of which the file may have any: NaN, as where it is run.
        table->as<std::uint8_t>()[static_cast<std::size_t>(b)] =
            to.type == DataType::i8 ? static_cast<std::uint8_t>(plain::quantised<std::int8_t>(value, to.zero))
                                    : plain::quantised<std::uint8_t>(value, to.zero);
      }
      made.inputs.push_back(
          editor_.add_value(old.name + ".table", type, folder_.store().intern(std::move(table))));
    }
    editor_.replace(at, std::move(made));
    graph_.value(real).type.type = to.type;
  }

  void split(std::size_t index) {
    const Node& node = editor_.node(index);
    const Node* dequantise = only_dequantised(node.inputs[0]);
    if (dequantise == nullptr) return;
    for (std::size_t i = 1; i < node.inputs.size(); ++i)
      if (node.inputs[i] != no_value && !constant(node.inputs[i])) return;
    const ByteScale from = *byte_scale(graph_, *dequantise);
    std::vector<std::size_t> readers;
    for (const ValueId id : node.outputs) {
      const auto reader = id == no_value ? std::nullopt : only_quantise(id);
      if (!reader || *byte_scale(graph_, editor_.node(*reader)) != from) return;
      readers.push_back(*reader);
    }
    const std::vector<ValueId> outputs = node.outputs;
    requantise(node.inputs[0], from);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      graph_.value(outputs[i]).type.type = from.type;
      Node same{.name = editor_.node(readers[i]).name, .op = "Identity", .inputs = {outputs[i]}};
      editor_.replace(readers[i], std::move(same));
    }
  }

  // The DequantizeLinear of bytes, with one scale for all, that makes `id`, which is read once.
  const Node* only_dequantised(ValueId id) const {
    if (id == no_value || editor_.uses(id) != 1) return nullptr;
    const Node* node = editor_.made_by(id, "DequantizeLinear");
    return node != nullptr && !constant(node->inputs[0]) && byte_scale(graph_, *node) ? node : nullptr;
  }
  // The QuantizeLinear, with one scale for all, that alone reads `id`.
  std::optional<std::size_t> only_quantise(ValueId id) const {
    if (editor_.uses(id) != 1) return std::nullopt;
    if (readers_.empty())
      for (std::size_t i = 0; i < editor_.nodes(); ++i)
        if (editor_.alive(i) && editor_.node(i).op == "QuantizeLinear")
          readers_.emplace_back(editor_.node(i).inputs[0], i);
    const auto found = std::ranges::find(readers_, id, &std::pair<ValueId, std::size_t>::first);
    if (found == readers_.end() || !editor_.alive(found->second)) return std::nullopt;
    const Node& node = editor_.node(found->second);
    if (node.op != "QuantizeLinear" || node.inputs[0] != id || !byte_scale(graph_, node)) return std::nullopt;
    return found->second;
  }

  // --- What computes with them

  std::optional<Bytes3> dequantised(ValueId id) {
    const Node* node = id == no_value ? nullptr : editor_.made_by(id, "DequantizeLinear");
    if (node == nullptr || constant(node->inputs[0])) return std::nullopt;
    const auto scale = byte_scale(graph_, *node);
    if (!scale) return std::nullopt;
    return Bytes3{node->inputs[0], node->inputs[1], zero_of(*node, *scale)};
  }
  ValueId zero_of(const Node& node, const ByteScale& scale) {
    if (node.inputs.size() > 2 && node.inputs[2] != no_value) return node.inputs[2];
    return editor_.add_value(node.name + ".zero", {scale.type, {}},
                             folder_.store().intern(std::make_shared<Tensor>(TensorType{scale.type, {}})));
  }
  // Constant bytes with a scale for all or for each index of `axis`.
  std::optional<Bytes3> weights(ValueId id, std::int64_t axis) {
    const Node* node = id == no_value ? nullptr : editor_.made_by(id, "DequantizeLinear");
    if (node == nullptr || !constant(node->inputs[0]) || !constant(node->inputs[1])) return std::nullopt;
    const TensorType w = type(node->inputs[0]);  // a copy: zero_of() may add a value
    const Tensor& scale = *graph_.value(node->inputs[1]).constant;
    if (!holds_bytes(w.type) || scale.type().type != DataType::f32 || node->integer("block_size", 0) != 0)
      return std::nullopt;
    std::int64_t along = node->integer("axis", 1);
    if (along < 0) along += static_cast<std::int64_t>(w.shape.size());
    if (scale.type().elements() != 1 && along != axis) return std::nullopt;
    const ByteScale bytes{.type = w.type};
    const ValueId zero = zero_of(*node, bytes);
    if (!constant(zero) || type(zero).type != w.type) return std::nullopt;
    return Bytes3{node->inputs[0], node->inputs[1], zero};
  }

  // Whether what Relu or Clip does to numbers, rounding to bytes of scale `to` does anyway.
  bool is_done_by_rounding(const Node& node, const ByteScale& to) const {
    const int low = to.type == DataType::i8 ? -128 : 0;
    const auto rounded = [&](float value) {
      return std::nearbyint(value / to.scale) + static_cast<float>(to.zero);
    };
    float least = 0, most = 0;
    if (node.op == "Clip") {
      if (node.inputs.size() < 2 || !editor_.scalar(node.inputs[1], least)) return false;
      if (node.inputs.size() > 2 && node.inputs[2] != no_value &&
          (!editor_.scalar(node.inputs[2], most) || rounded(most) < static_cast<float>(low + 255)))
        return false;
    } else if (node.op != "Relu") {
      return false;
    }
    return rounded(least) <= static_cast<float>(low);
  }

  Result<> quantise(std::size_t index) {
    const Node& node = editor_.node(index);
    const auto to = byte_scale(graph_, node);
    if (!to) return {};
    ValueId real = node.inputs[0];
    for (std::int64_t made = editor_.maker(real);
         made >= 0 && editor_.uses(real) == 1 &&
         editor_.node(static_cast<std::size_t>(made)).post_ops.empty() &&
         is_done_by_rounding(editor_.node(static_cast<std::size_t>(made)), *to);
         made = editor_.maker(real))
      real = editor_.node(static_cast<std::size_t>(made)).inputs[0];
    const std::int64_t maker = editor_.maker(real);
    if (maker < 0 || editor_.uses(real) != 1) return {};
    const auto at = static_cast<std::size_t>(maker);
    const std::string_view op = editor_.node(at).op;
    if (!editor_.node(at).post_ops.empty()) return {};
    const Bytes3 result{no_value, node.inputs[1], zero_of(node, *to)};
    std::optional<Node> made;
    if (op == "Conv" || op == "MatMul" || op == "Gemm") {
      auto fused = product(at, &result);
      if (!fused) return std::unexpected(fused.error());
      made = std::move(*fused);
    } else if (op == "Add" || op == "Mul") {
      // A copy of the shape: dequantised() may add a value.
      made = arithmetic(editor_.node(at), result, *to, Shape(type(editor_.node(index).outputs[0]).shape));
    } else if (op == "GlobalAveragePool") {
      made = mean(editor_.node(at), result, *to);
    }
    if (made) editor_.replace(index, std::move(*made));
    return {};
  }

  std::optional<Node> arithmetic(const Node& node, const Bytes3& result, const ByteScale& to,
                                 const Shape& shape) {
    auto first = node.inputs[0], second = node.inputs[1];
    if (type(first).shape != shape || !dequantised(first)) std::swap(first, second);
    const auto a = dequantised(first);
    if (!a || type(first).shape != shape || type(a->x).type != to.type) return std::nullopt;
    Node made{.name = node.name, .op = "QLinear" + node.op, .inputs = {a->x, a->scale, a->zero}};
    if (const auto b = dequantised(second)) {
      if (type(b->x).type != to.type) return std::nullopt;
      made.inputs.insert(made.inputs.end(), {b->x, b->scale, b->zero});
    } else if (constant(second) && type(second).type == DataType::f32) {
      made.inputs.insert(made.inputs.end(), {second, no_value, no_value});
    } else {
      return std::nullopt;
    }
    made.inputs.insert(made.inputs.end(), {result.scale, result.zero});
    return made;
  }

  std::optional<Node> mean(const Node& node, const Bytes3& result, const ByteScale& to) {
    const auto x = dequantised(node.inputs[0]);
    constexpr std::int64_t most = std::int64_t{1} << 22;
    if (!x || type(x->x).type != to.type || type(x->x).elements() > most) return std::nullopt;
    return Node{.name = node.name,
                .op = "QLinearGlobalAveragePool",
                .inputs = {x->x, x->scale, x->zero, result.scale, result.zero}};
  }

  // Conv, MatMul or Gemm as QLinearConv or QLinearMatMul; without a `result` what it makes stays real.
  Made product(std::size_t index, const Bytes3* result) {
    const Node node = editor_.node(index);
    if (!node.post_ops.empty() || type(node.outputs[0]).type != DataType::f32) return std::nullopt;
    const auto a = dequantised(node.inputs[0]);
    if (!a) return std::nullopt;
    const bool convolution = node.op == "Conv", gemm = node.op == "Gemm";
    const ValueId right = node.inputs[1];
    const auto rank = static_cast<std::int64_t>(type(right).shape.size());
    if (rank < 2) return std::nullopt;  // a vector has no columns to have scales
    const bool flip = gemm && node.integer("transB", 0) != 0;
    const std::int64_t axis = convolution || flip ? 0 : rank - 1;
    if (gemm && (node.integer("transA", 0) != 0 || node.real("alpha", 1) != 1 || node.real("beta", 1) != 1))
      return std::nullopt;
    // Products of two that change, as in attention, are as fast in real numbers: there is nothing to pack.
    auto b = weights(right, axis);
    if (!b) return std::nullopt;
    ValueId bias = no_value;
    if (node.op != "MatMul" && node.inputs.size() > 2 && node.inputs[2] != no_value) {
      const std::int64_t channels = type(right).shape[static_cast<std::size_t>(axis)];
      auto whole = whole_bias(node.inputs[2], *a, *b, channels);
      if (!whole) return std::unexpected(whole.error());
      if (*whole == no_value) return std::nullopt;
      bias = *whole;
    }
    if (flip) {
      auto turned = transposed(b->x);
      if (!turned) return std::unexpected(turned.error());
      b->x = *turned;
    }
    Node made{.name = node.name,
              .op = convolution ? "QLinearConv" : "QLinearMatMul",
              .inputs = {a->x, a->scale, a->zero, b->x, b->scale, b->zero,
                         result == nullptr ? no_value : result->scale,
                         result == nullptr ? no_value : result->zero}};
    if (bias != no_value) made.inputs.push_back(bias);
    if (convolution) made.attributes = node.attributes;
    return made;
  }

  // A real bias of each channel in units of both scales; no_value where it has no such form.
  Result<ValueId> whole_bias(ValueId id, const Bytes3& a, const Bytes3& b, std::int64_t channels) {
    if (!constant(id) || type(id).type != DataType::f32 || type(id).elements() != channels ||
        (!type(id).shape.empty() && type(id).shape.back() != channels))
      return no_value;
    const SharedTensor real = graph_.value(id).constant, x = graph_.value(a.scale).constant,
                       w = graph_.value(b.scale).constant;
    const auto unit = [&](std::size_t i) {
      const auto scales = w->as<float>();
      return static_cast<double>(x->as<float>()[0]) * static_cast<double>(scales[scales.size() == 1 ? 0 : i]);
    };
    const auto values = real->as<float>();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!(std::abs(static_cast<double>(values[i]) / unit(i)) < 0x1p30)) return no_value;
    const TensorType whole{DataType::i32, {channels}};
    auto made = folder_.derive(
        "bias in units of scales", {real, x, w}, {whole}, [&](std::span<Tensor> out) -> Result<> {
          const auto to = out[0].as<std::int32_t>();
          for (std::size_t i = 0; i < to.size(); ++i)
            to[i] = static_cast<std::int32_t>(std::nearbyint(static_cast<double>(values[i]) / unit(i)));
          return {};
        });
    if (!made) return std::unexpected(made.error());
    return editor_.add_value(graph_.value(id).name + ".whole", whole, (*made)[0]);
  }

  Result<ValueId> transposed(ValueId id) {
    const SharedTensor tensor = graph_.value(id).constant;
    const TensorType from = tensor->type();
    const TensorType to{from.type, {from.shape[1], from.shape[0]}};
    auto made = folder_.derive("transposed bytes", {tensor}, {to}, [&](std::span<Tensor> out) -> Result<> {
      const auto x = tensor->bytes();
      const auto y = out[0].bytes();
      const auto rows = static_cast<std::size_t>(from.shape[0]),
                 columns = static_cast<std::size_t>(from.shape[1]);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns; ++c) y[c * rows + r] = x[r * columns + c];
      return {};
    });
    if (!made) return std::unexpected(made.error());
    return editor_.add_value(graph_.value(id).name + ".transposed", to, (*made)[0]);
  }

  // --- Ranges that are found at run time

  // Cast(MatMulInteger(q, w, ...)) * (scale of q * scale of w), and likewise for ConvInteger.
  void rescale(std::size_t index) {
    const Node& node = editor_.node(index);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      const Node* cast = editor_.made_by(node.inputs[i], "Cast");
      if (cast == nullptr || editor_.uses(node.inputs[i]) != 1 || editor_.uses(cast->inputs[0]) != 1)
        continue;
      const Node* sums = editor_.made_by(cast->inputs[0], "MatMulInteger");
      if (sums == nullptr) sums = editor_.made_by(cast->inputs[0], "ConvInteger");
      const Node* scales = editor_.made_by(node.inputs[1 - i], "Mul");
      if (sums == nullptr || scales == nullptr) continue;
      for (const std::size_t s : {std::size_t{0}, std::size_t{1}})
        if (auto made = rescaled(node, *sums, scales->inputs[s], scales->inputs[1 - s])) {
          editor_.replace(index, std::move(*made));
          return;
        }
    }
  }
  std::optional<Node> rescaled(const Node& node, const Node& sums, ValueId x_scale, ValueId w_scale) {
    const ValueId result = node.outputs[0];
    if (type(result) != TensorType{DataType::f32, type(sums.outputs[0]).shape}) return std::nullopt;
    const Node* dynamic = editor_.made_by(sums.inputs[0], "DynamicQuantizeLinear");
    if (dynamic == nullptr || dynamic->outputs.size() != 3 || x_scale != dynamic->outputs[1] ||
        sums.inputs.size() < 3 || sums.inputs[2] != dynamic->outputs[2])
      return std::nullopt;
    const ValueId w = sums.inputs[1];
    const TensorType& weights = type(w);
    if (!constant(w) || !constant(w_scale) || type(w_scale).type != DataType::f32) return std::nullopt;
    const bool convolution = sums.op == "ConvInteger";
    const std::int64_t count = type(w_scale).elements();
    // Scales by column lie along the last dimension, as the result's columns do.
    if (count != 1 && (convolution || weights.shape.size() != 2 || count != weights.shape[1] ||
                       type(w_scale).shape.back() != count))
      return std::nullopt;
    const ValueId zero = sums.inputs.size() > 3 && sums.inputs[3] != no_value
                             ? sums.inputs[3]
                             : zero_of(Node{.name = node.name}, {.type = weights.type});
    if (!constant(zero)) return std::nullopt;
    Node made{.name = node.name,
              .op = convolution ? "QLinearConv" : "QLinearMatMul",
              .inputs = {sums.inputs[0], x_scale, sums.inputs[2], w, w_scale, zero, no_value, no_value}};
    if (convolution) made.attributes = sums.attributes;
    return made;
  }

  Editor editor_;
  Graph& graph_;
  Folder& folder_;
  mutable std::vector<std::pair<ValueId, std::size_t>> readers_;  // QuantizeLinear nodes by what they read
};

// One DequantizeLinear for each reader: what becomes of it is then a matter of the two.
void separate(Graph& graph) {
  std::vector<std::ptrdiff_t> maker(graph.values.size(), -1);
  std::vector<bool> read(graph.values.size(), false);
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    for (ValueId& id : node.inputs) {
      if (id == no_value || id.index() >= maker.size() || maker[id.index()] < 0) continue;
      if (!read[id.index()]) {
        read[id.index()] = true;
        continue;
      }
      Node copy = nodes[static_cast<std::size_t>(maker[id.index()])];
      graph.values.push_back(Value(graph.value(id)));
      id = ValueId{static_cast<std::uint32_t>(graph.values.size() - 1)};
      copy.outputs = {id};
      nodes.push_back(std::move(copy));
    }
    if (node.op == "DequantizeLinear" && !graph.is_constant(node.inputs[0]) && byte_scale(graph, node))
      maker[node.outputs[0].index()] = static_cast<std::ptrdiff_t>(nodes.size());
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

}  // namespace

Result<> fuse_quantised(Graph& graph, Folder& folder) {
  if (std::ranges::none_of(graph.nodes, [](const Node& node) {
        return node.op == "DequantizeLinear" || node.op == "DynamicQuantizeLinear";
      }))
    return {};
  separate(graph);
  QuantisedFuser(graph, folder).move_all();
  tabulate_bytes(graph, folder.store());
  return QuantisedFuser(graph, folder).run();
}

Result<> fold_dequantised(Graph& graph, Folder& folder) {
  std::vector<Node> kept;
  for (Node& node : graph.nodes) {
    if (node.op == "DequantizeLinear") {
      auto folded = folder.fold(graph, node);
      if (!folded) return std::unexpected(folded.error());
      if (*folded) continue;
    }
    kept.push_back(std::move(node));
  }
  graph.nodes = std::move(kept);
  return {};
}

}  // namespace carillon::graph
