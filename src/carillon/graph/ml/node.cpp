#include "carillon/graph/ml/node.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "carillon/graph/ml/expand.h"
#include "carillon/graph/onnx_tensor.h"

namespace carillon::graph::ml {
namespace {

std::string words_of(std::span<const std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

}  // namespace

MlNode::MlNode(const onnx::GraphProto& graph, const onnx::NodeProto& node)
    : graph_(graph), node_(node), asked_(static_cast<std::size_t>(node.attribute_size()), false) {
  const auto named =
      std::ranges::find_if(node.output(), [](const std::string& name) { return !name.empty(); });
  base_ = named == node.output().end() ? node.name() : *named;
}

void MlNode::fail(std::string_view what) {
  if (error_) return;
  error_ = Error{ErrorCode::invalid_argument,
                 "node '" + node_.name().substr(0, 100) + "' (" + op() + "): " + std::string(what)};
}
void MlNode::unsupported(std::string_view what) {
  if (error_) return;
  fail(what);
  error_->code = ErrorCode::unsupported;
}
Result<> MlNode::result() const {
  if (error_) return std::unexpected(*error_);
  return {};
}

bool MlNode::has(std::string_view name) const {
  return std::ranges::any_of(node_.attribute(), [&](const auto& a) { return a.name() == name; });
}

const onnx::AttributeProto* MlNode::find(std::string_view name, onnx::AttributeProto::AttributeType type) {
  const onnx::AttributeProto* found = nullptr;
  for (int i = 0; i < node_.attribute_size(); ++i) {
    const auto& a = node_.attribute(i);
    if (a.name() != name) continue;
    if (found != nullptr) fail("attribute '" + std::string(name) + "' is given twice");
    if (a.type() != type || !a.ref_attr_name().empty())
      fail("attribute '" + std::string(name) + "' has the wrong type");
    asked_[static_cast<std::size_t>(i)] = true;
    found = &a;
  }
  return error_ ? nullptr : found;
}

std::int64_t MlNode::integer(std::string_view name, std::int64_t fallback) {
  const auto* a = find(name, onnx::AttributeProto::INT);
  return a == nullptr ? fallback : a->i();
}
float MlNode::real(std::string_view name, float fallback) {
  const auto* a = find(name, onnx::AttributeProto::FLOAT);
  return a == nullptr ? fallback : a->f();
}
std::string MlNode::text(std::string_view name, std::string_view fallback) {
  const auto* a = find(name, onnx::AttributeProto::STRING);
  return a == nullptr ? std::string(fallback) : a->s();
}
std::vector<std::int64_t> MlNode::integers(std::string_view name) {
  const auto* a = find(name, onnx::AttributeProto::INTS);
  if (a == nullptr) return {};
  return {a->ints().begin(), a->ints().end()};
}
std::vector<float> MlNode::reals(std::string_view name) {
  const auto* a = find(name, onnx::AttributeProto::FLOATS);
  if (a == nullptr) return {};
  return {a->floats().begin(), a->floats().end()};
}
const google::protobuf::RepeatedPtrField<std::string>& MlNode::texts(std::string_view name) {
  const auto* a = find(name, onnx::AttributeProto::STRINGS);
  return a == nullptr ? onnx::AttributeProto::default_instance().strings() : a->strings();
}
const onnx::AttributeProto* MlNode::tensor(std::string_view name) {
  return find(name, onnx::AttributeProto::TENSOR);
}

std::vector<double> MlNode::wide_reals(std::string_view name, bool& wide) {
  const std::string as_tensor = std::string(name) + "_as_tensor";
  if (!has(as_tensor)) {
    const std::vector<float> values = reals(name);
    return {values.begin(), values.end()};
  }
  if (has(name)) fail("it has both '" + std::string(name) + "' and '" + as_tensor + "'");
  bool doubles = false;
  std::vector<double> values = real_tensor(as_tensor, doubles);
  wide = wide || doubles;
  return values;
}

SharedTensor MlNode::read_tensor(std::string_view name) {
  const auto* given = tensor(name);
  if (given == nullptr) return nullptr;
  // No file beside the model's: an attribute's tensor is inside it.
  auto read = TensorReader({}).read(given->t());
  if (read) return *read;
  fail("attribute '" + std::string(name) + "': " + read.error().message);
  return nullptr;
}

std::vector<double> MlNode::real_tensor(std::string_view name, bool& wide) {
  const auto read = read_tensor(name);
  if (read == nullptr) return {};
  const auto as_doubles = [](const auto& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  wide = read->type().type == DataType::f64;
  if (wide) return as_doubles(read->as<double>());
  if (read->type().type == DataType::f32) return as_doubles(read->as<float>());
  fail("attribute '" + std::string(name) + "' must be of floats or doubles");
  return {};
}

std::vector<std::uint8_t> MlNode::byte_tensor(std::string_view name) {
  const auto read = read_tensor(name);
  if (read == nullptr) return {};
  if (read->type().type != DataType::u8) {
    fail("attribute '" + std::string(name) + "' must be of uint8");
    return {};
  }
  const auto values = read->as<std::uint8_t>();
  return {values.begin(), values.end()};
}

std::size_t MlNode::choice(std::string_view name, std::string_view fallback,
                           std::span<const std::string_view> words) {
  const std::string given = text(name, fallback);
  const auto found = std::ranges::find(words, std::string_view(given));
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  fail("attribute '" + std::string(name) + "' is '" + given.substr(0, 40) + "', but must be one of " +
       words_of(words));
  return 0;
}

void MlNode::nothing_else() {
  for (int i = 0; i < node_.attribute_size(); ++i)
    if (!asked_[static_cast<std::size_t>(i)])
      unsupported("attribute '" + node_.attribute(i).name().substr(0, 100) +
                  "' is not one that is known here");
}

std::string MlNode::input(int i) const {
  return i < node_.input_size() ? node_.input(i) : std::string();
}
void MlNode::counts(int inputs_at_least, int inputs_at_most, int outputs_at_most) {
  const auto check = [&](int count, int least, int most, std::string_view what) {
    if (count >= least && count <= most) return;
    fail("it has " + std::to_string(count) + " " + std::string(what) + ", but takes " +
         (least == most ? std::to_string(least) : std::to_string(least) + " to " + std::to_string(most)));
  };
  check(node_.input_size(), inputs_at_least, inputs_at_most, "inputs");
  check(node_.output_size(), 1, outputs_at_most, "outputs");
  for (int i = 0; i < node_.input_size(); ++i)
    if (node_.input(i).empty()) fail("input " + std::to_string(i) + " is missing");
  if (base_.empty()) fail("it has neither a name nor an output");
}
std::string MlNode::output(int i) {
  if (i < node_.output_size() && !node_.output(i).empty()) return node_.output(i);
  return base_ + "/unused_" + std::to_string(i);
}
bool MlNode::is_read(int i) const {
  if (i >= node_.output_size() || node_.output(i).empty()) return false;
  const std::string& name = node_.output(i);
  const auto read_in = [&](const onnx::GraphProto& graph, const auto& self) -> bool {
    if (std::ranges::any_of(graph.output(), [&](const auto& out) { return out.name() == name; })) return true;
    for (const auto& node : graph.node()) {
      if (std::ranges::find(node.input(), name) != node.input().end()) return true;
      // As deep as protobuf lets messages be.
      for (const auto& a : node.attribute())
        if (a.has_g() && self(a.g(), self)) return true;
    }
    return false;
  };
  return read_in(graph_, read_in);
}

int MlNode::declared_type(const std::string& name) const {
  for (const auto* list : {&graph_.input(), &graph_.value_info()})
    for (const auto& info : *list)
      if (info.name() == name) return info.type().tensor_type().elem_type();
  for (const auto& tensor : graph_.initializer())
    if (tensor.name() == name) return tensor.data_type();
  return 0;
}
onnx::NodeProto& MlNode::add(std::string_view op, const std::vector<std::string>& inputs,
                             const std::vector<std::string>& outputs) {
  onnx::NodeProto& made = nodes_.emplace_back();
  made.set_op_type(std::string(op));
  // Standard ones, too: they are in their newest form, whatever opset the file uses.
  made.set_domain(std::string(own_domain));
  made.set_name((node_.name().empty() ? base_ : node_.name()) + "/" + std::string(op));
  for (const std::string& name : inputs) made.add_input(name);
  for (const std::string& name : outputs) made.add_output(name);
  return made;
}
std::string MlNode::between(std::string_view op, const std::vector<std::string>& inputs) {
  std::string name = base_ + "/" + std::string(op) + "_" + std::to_string(nodes_.size());
  add(op, inputs, {name});
  return name;
}

std::string MlNode::constant_bytes(std::string_view what, DataType type, const Shape& shape,
                                   std::string bytes) {
  std::string name = base_ + "/" + std::string(what) + "_" + std::to_string(nodes_.size());
  auto& a = *add("Constant", {}, {name}).add_attribute();
  a.set_name("value");
  a.set_type(onnx::AttributeProto::TENSOR);
  for (const std::int64_t extent : shape) a.mutable_t()->add_dims(extent);
  a.mutable_t()->set_data_type(static_cast<int>(to_onnx_type(type)));
  a.mutable_t()->set_raw_data(std::move(bytes));
  return name;
}
std::string MlNode::constant_texts(std::string_view what, const std::vector<std::string>& texts,
                                   const Shape& shape) {
  std::string name = base_ + "/" + std::string(what) + "_" + std::to_string(nodes_.size());
  auto& a = *add("Constant", {}, {name}).add_attribute();
  a.set_name("value");
  a.set_type(onnx::AttributeProto::TENSOR);
  for (const std::int64_t extent : shape) a.mutable_t()->add_dims(extent);
  a.mutable_t()->set_data_type(static_cast<int>(to_onnx_type(DataType::string)));
  for (const std::string& text : texts) a.mutable_t()->add_string_data(text);
  return name;
}
std::string MlNode::constant(std::string_view what, const std::vector<float>& values, const Shape& shape) {
  return constant_bytes(
      what, DataType::f32, shape,
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
}
std::string MlNode::constant(std::string_view what, const std::vector<std::int64_t>& values,
                             const Shape& shape) {
  return constant_bytes(
      what, DataType::i64, shape,
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::int64_t)));
}
std::string MlNode::as_floats(const std::string& name) {
  std::string made = between("Cast", {name});
  set(nodes_.back(), "to", std::int64_t{onnx::TensorProto::FLOAT});
  return made;
}

void set(onnx::NodeProto& node, std::string_view name, std::int64_t value) {
  auto& a = *node.add_attribute();
  a.set_name(std::string(name));
  a.set_type(onnx::AttributeProto::INT);
  a.set_i(value);
}
void set(onnx::NodeProto& node, std::string_view name, float value) {
  auto& a = *node.add_attribute();
  a.set_name(std::string(name));
  a.set_type(onnx::AttributeProto::FLOAT);
  a.set_f(value);
}
void set(onnx::NodeProto& node, std::string_view name, std::string_view value) {
  auto& a = *node.add_attribute();
  a.set_name(std::string(name));
  a.set_type(onnx::AttributeProto::STRING);
  a.set_s(std::string(value));
}

std::vector<std::int64_t> labels_of(MlNode& node, std::string_view integers) {
  std::vector<std::int64_t> labels = node.integers(integers);
  const auto& texts = node.texts("classlabels_strings");
  if (texts.empty()) {
    if (labels.empty()) node.fail("it has neither '" + std::string(integers) + "' nor 'classlabels_strings'");
    return labels;
  }
  if (!labels.empty()) {
    node.fail("it has both '" + std::string(integers) + "' and 'classlabels_strings'");
    return labels;
  }
  for (int i = 0; i < texts.size(); ++i) labels.push_back(i);
  return labels;
}

std::string labels_output(MlNode& node) {
  const bool texts = !node.texts("classlabels_strings").empty();
  return texts && node.is_read(0) ? node.output(0) + "/places" : node.output(0);
}

void name_labels(MlNode& node) {
  const std::string places = labels_output(node);
  if (places == node.output(0)) return;
  const auto& given = node.texts("classlabels_strings");
  const std::vector<std::string> texts(given.begin(), given.end());
  node.add("Gather", {node.constant_texts("classlabels", texts, {given.size()}), places}, {node.output(0)});
}

}  // namespace carillon::graph::ml
