#include "carillon/graph/onnx_contrib.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <onnx/onnx_pb.h>

#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/recurrence.h"

namespace carillon::graph {
namespace {

using Names = std::vector<std::string>;

// One node of domain com.microsoft, and what is made of it.
class Expansion {
 public:
  Expansion(const onnx::GraphProto& graph, const onnx::NodeProto& node) : graph_(graph), node_(node) {}

  // False where the operator is not one of ours.
  Result<bool> expand() {
    const std::string& op = node_.op_type();
    // An LSTM may lack its first output.
    const auto named =
        std::ranges::find_if(node_.output(), [](const std::string& name) { return !name.empty(); });
    if (named == node_.output().end() || (op != "DynamicQuantizeLSTM" && node_.output(0).empty()))
      return false;
    base_ = *named;
    Result<> done;
    if (op == "QLinearAdd" || op == "QLinearMul")
      done = quantised(op.substr(7), {0, 3}, 6);
    else if (op == "QLinearSigmoid" || op == "QLinearLeakyRelu" || op == "QLinearSoftmax" ||
             op == "QLinearGlobalAveragePool" || op == "QLinearAveragePool")
      done = quantised(op.substr(7), {0}, 3);
    else if (op == "QLinearConcat")
      done = concat();
    else if (op == "QGemm")
      done = gemm();
    else if (op == "DynamicQuantizeLSTM")
      done = lstm();
    else
      return false;
    if (!done) return std::unexpected(done.error());
    return true;
  }

  std::vector<onnx::NodeProto>& nodes() { return nodes_; }

 private:
  std::unexpected<Error> error(std::string_view what) const {
    return invalid("node '" + node_.name().substr(0, 100) + "' (" + node_.op_type() +
                   "): " + std::string(what));
  }
  Result<> need(int inputs) const {
    if (node_.input_size() >= inputs) return {};
    return error("it has " + std::to_string(node_.input_size()) + " inputs, but takes at least " +
                 std::to_string(inputs));
  }
  std::string input(int i) const { return i < node_.input_size() ? node_.input(i) : std::string(); }

  const onnx::AttributeProto* attribute(std::string_view name) const {
    for (const auto& a : node_.attribute())
      if (a.name() == name) return &a;
    return nullptr;
  }
  std::int64_t integer(std::string_view name) const {
    const auto* a = attribute(name);
    return a == nullptr ? 0 : a->i();
  }

  onnx::NodeProto& add(std::string_view op, const Names& inputs, const std::string& output) {
    onnx::NodeProto& made = nodes_.emplace_back();
    made.set_op_type(std::string(op));
    made.set_name(node_.name() + "/" + std::string(op));
    for (const std::string& name : inputs) made.add_input(name);
    made.add_output(output);
    return made;
  }
  // The same, of a value between that is given back.
  std::string between(std::string_view op, const Names& inputs) {
    std::string name = base_ + "/" + std::string(op) + "_" + std::to_string(nodes_.size());
    add(op, inputs, name);
    return name;
  }
  static void set(onnx::NodeProto& node, std::string_view name, std::int64_t value) {
    auto& a = *node.add_attribute();
    a.set_name(std::string(name));
    a.set_type(onnx::AttributeProto::INT);
    a.set_i(value);
  }
  static void set(onnx::NodeProto& node, std::string_view name, const std::vector<std::int64_t>& values) {
    auto& a = *node.add_attribute();
    a.set_name(std::string(name));
    a.set_type(onnx::AttributeProto::INTS);
    for (const std::int64_t value : values) a.add_ints(value);
  }
  void copy_attributes(onnx::NodeProto& to, std::initializer_list<std::string_view> but) const {
    for (const auto& a : node_.attribute())
      if (std::ranges::find(but, std::string_view(a.name())) == but.end()) *to.add_attribute() = a;
  }

  // Inputs i, i + 1, i + 2 are a tensor, its scale and its zero point.
  std::string real(int i) {
    return between("DequantizeLinear", without_end({input(i), input(i + 1), input(i + 2)}));
  }
  static Names without_end(Names names) {
    while (!names.empty() && names.back().empty()) names.pop_back();
    return names;
  }

  // The standard operator over what the inputs at `operands` stand for; its result's scale is input `scale`.
  Result<> quantised(std::string_view op, std::initializer_list<int> operands, int scale) {
    if (auto ok = need(scale + 1); !ok) return ok;
    if (integer("channels_last") != 0) return error("channels_last is not supported");
    Names inputs;
    for (const int i : operands) inputs.push_back(real(i));
    const std::string result = between(op, inputs);
    copy_attributes(nodes_.back(), {"channels_last", "opset"});
    add("QuantizeLinear", without_end({result, input(scale), input(scale + 1)}), node_.output(0));
    return {};
  }

  Result<> concat() {
    if (node_.input_size() < 5 || node_.input_size() % 3 != 2)
      return error("it has " + std::to_string(node_.input_size()) +
                   " inputs, but takes a scale, a zero point, and three for each part");
    Names parts;
    for (int i = 2; i < node_.input_size(); i += 3) parts.push_back(real(i));
    const std::string result = between("Concat", parts);
    copy_attributes(nodes_.back(), {});
    add("QuantizeLinear", without_end({result, input(0), input(1)}), node_.output(0));
    return {};
  }

  // Inputs: a and b with scale and zero point, a bias in units of both scales, the result's scale and zero
  // point.
  Result<> gemm() {
    if (auto ok = need(6); !ok) return ok;
    Names inputs{real(0), real(3)};
    // Where b's columns have scales of their own.
    set(nodes_.back(), "axis", integer("transB") != 0 ? 0 : 1);
    if (!input(6).empty()) {
      const std::string bias = between("Cast", {input(6)});
      set(nodes_.back(), "to", onnx::TensorProto::FLOAT);
      inputs.push_back(between("Mul", {between("Mul", {bias, input(1)}), input(4)}));
    }
    const bool real_result = input(7).empty();
    const std::string result = real_result ? node_.output(0) : node_.output(0) + "/Gemm";
    onnx::NodeProto& product = add("Gemm", inputs, result);
    copy_attributes(product, {});
    if (const auto* alpha = attribute("alpha"); alpha != nullptr) {
      auto& beta = *product.add_attribute() = *alpha;  // the bias is in units of alpha, too
      beta.set_name("beta");
    }
    if (!real_result) add("QuantizeLinear", without_end({result, input(7), input(8)}), node_.output(0));
    return {};
  }

  // Weights [directions, inputs, 4 * hidden] in bytes, with a scale for each direction, or for each column of
  // it.
  Result<> lstm() {
    if (auto ok = need(11); !ok) return ok;
    const auto weights = [&](int at, int scale) -> Result<std::string> {
      const std::string zero = input(scale + 1);
      const auto rank = rank_of(input(scale));
      if (!rank || *rank > 2)
        return error("the scale of its weights must be an initializer of one or two dimensions");
      std::string whole;
      if (*rank < 2) {
        whole = between("DequantizeLinear", without_end({input(at), input(scale), zero}));
        set(nodes_.back(), "axis", 0);
      } else {
        whole = floats(input(at));
        if (!zero.empty()) whole = between("Sub", {whole, floats(by_column(zero))});
        whole = between("Mul", {whole, by_column(input(scale))});
      }
      std::string turned = between("Transpose", {whole});
      set(nodes_.back(), "perm", std::vector<std::int64_t>{0, 2, 1});
      return turned;
    };
    const auto w = weights(1, 8);
    if (!w) return std::unexpected(w.error());
    const auto r = weights(2, 10);
    if (!r) return std::unexpected(r.error());
    onnx::NodeProto& made =
        add("LSTM", without_end({input(0), *w, *r, input(3), input(4), input(5), input(6), input(7)}),
            node_.output(0));
    for (int i = 1; i < node_.output_size(); ++i) made.add_output(node_.output(i));
    copy_attributes(made, {input_weight_scales, state_weight_scales});
    set_scales(made, input_weight_scales, input(8));
    set_scales(made, state_weight_scales, input(10));
    return {};
  }
  // For engines that multiply bytes; left out where they are not in the file itself.
  void set_scales(onnx::NodeProto& node, std::string_view name, const std::string& tensor) const {
    const auto found = std::ranges::find(graph_.initializer(), tensor, &onnx::TensorProto::name);
    if (found == graph_.initializer().end() || found->data_location() == onnx::TensorProto::EXTERNAL) return;
    const auto values = TensorReader({}).read(*found);
    if (!values || (*values)->type().type != DataType::f32) return;
    auto& a = *node.add_attribute();
    a.set_name(std::string(name));
    a.set_type(onnx::AttributeProto::FLOATS);
    for (const float value : (*values)->as<float>()) a.add_floats(value);
  }
  std::string floats(const std::string& name) {
    std::string made = between("Cast", {name});
    set(nodes_.back(), "to", onnx::TensorProto::FLOAT);
    return made;
  }
  std::string by_column(const std::string& name) {
    std::string made = between("Unsqueeze", {name});
    set(nodes_.back(), "axes", std::vector<std::int64_t>{1});
    return made;
  }
  std::optional<int> rank_of(const std::string& name) const {
    for (const auto& tensor : graph_.initializer())
      if (tensor.name() == name) return tensor.dims_size();
    return std::nullopt;
  }

  const onnx::GraphProto& graph_;
  const onnx::NodeProto& node_;
  std::string base_;  // what values between are named after
  std::vector<onnx::NodeProto> nodes_;
};

bool is_contrib(const onnx::NodeProto& node) {
  return node.domain() == "com.microsoft";
}

}  // namespace

Result<> expand_contrib(onnx::GraphProto& graph) {
  // What expansions alone may say of an LSTM no file does.
  for (const auto& node : graph.node()) {
    if (node.op_type() != "LSTM") continue;
    for (const auto& a : node.attribute())
      if (a.name() == input_weight_scales || a.name() == state_weight_scales)
        return invalid("node '" + node.name().substr(0, 100) + "' (LSTM): attribute '" + a.name() +
                       "' is not one that the operator has");
  }
  if (std::ranges::none_of(graph.node(), is_contrib)) return {};
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
  for (auto& node : *graph.mutable_node()) {
    if (is_contrib(node)) {
      Expansion expansion(graph, node);
      auto expanded = expansion.expand();
      if (!expanded) return std::unexpected(expanded.error());
      if (*expanded) {
        for (auto& made : expansion.nodes()) *nodes.Add() = std::move(made);
        continue;
      }
    }
    *nodes.Add() = std::move(node);
  }
  graph.mutable_node()->Swap(&nodes);
  return {};
}

}  // namespace carillon::graph
