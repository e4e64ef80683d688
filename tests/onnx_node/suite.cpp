#include "onnx_node/suite.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "onnx/onnx_pb.h"

#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/operators.h"
#include "carillon/graph/plain/number.h"

namespace carillon::onnx_node {
namespace {

namespace fs = std::filesystem;
using graph::DataType;
using graph::Tensor;
using graph::plain::AllTypes;

template <typename Proto>
Result<> parse(const fs::path& file, Proto& proto) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream || !proto.ParseFromIstream(&stream)) return invalid(file.string() + " cannot be read");
  return {};
}

// Operands that decide a shape, or that import wants to know for another reason (CumSum's axis): first and
// last input of each operator.
struct Operands {
  int first;
  int last;
};
const std::map<std::string_view, Operands> shape_operands = {
    {"Reshape", {1, 1}},
    {"Expand", {1, 1}},
    {"Slice", {1, 4}},
    {"Squeeze", {1, 1}},
    {"Unsqueeze", {1, 1}},
    {"Pad", {1, 1}},
    {"Tile", {1, 1}},
    {"TopK", {1, 1}},
    {"Split", {1, 1}},
    {"Range", {0, 2}},
    {"OneHot", {1, 1}},
    {"Resize", {1, 3}},
    {"Upsample", {1, 1}},
    {"Dropout", {1, 2}},
    {"ReduceL1", {1, 1}},
    {"ReduceL2", {1, 1}},
    {"ReduceLogSum", {1, 1}},
    {"ReduceLogSumExp", {1, 1}},
    {"ReduceMax", {1, 1}},
    {"ReduceMean", {1, 1}},
    {"ReduceMin", {1, 1}},
    {"ReduceProd", {1, 1}},
    {"ReduceSum", {1, 1}},
    {"ReduceSumSquare", {1, 1}},
    {"ConstantOfShape", {0, 0}},
    {"CumSum", {1, 1}},
    {"Loop", {0, 1}},
    {"DFT", {1, 2}},
    {"STFT", {1, 3}},
    {"BlackmanWindow", {0, 0}},
    {"HammingWindow", {0, 0}},
    {"HannWindow", {0, 0}},
    {"MelWeightMatrix", {0, 4}},
    {"MaxUnpool", {2, 2}},
};

// The tensor of `file` as the model declares it. ONNX's files hold bfloat16 data as the uint16 of the same
// bits.
Result<Tensor> read_tensor(const fs::path& file, const onnx::ValueInfoProto& declared,
                           graph::TensorReader& reader) {
  onnx::TensorProto proto;
  if (const auto read = parse(file, proto); !read) return std::unexpected(read.error());
  auto tensor = reader.read(proto);
  if (!tensor) return in_context(file.filename().string(), tensor.error());
  graph::TensorType type = (*tensor)->type();
  if (declared.type().tensor_type().elem_type() == onnx::TensorProto::BFLOAT16 &&
      type.type == DataType::u16) {
    type.type = DataType::bf16;
  }
  Tensor made(type);
  std::ranges::copy((*tensor)->bytes(), made.bytes().begin());
  return made;
}

// Whether data of `shape` is what the model declares.
bool declares(const onnx::ValueInfoProto& declared, const graph::Shape& shape) {
  const auto& type = declared.type().tensor_type();
  if (!type.has_shape()) return true;
  if (type.shape().dim_size() != static_cast<int>(shape.size())) return false;
  for (int d = 0; d < type.shape().dim_size(); ++d) {
    const auto& dim = type.shape().dim(d);
    if (dim.has_dim_value() && dim.dim_value() != shape[static_cast<std::size_t>(d)]) return false;
  }
  return true;
}

// Values from which operands that decide shapes are computed, by something else than a shape.
std::set<std::string> deciding_values(const onnx::GraphProto& graph) {
  std::map<std::string, const onnx::NodeProto*> makers;
  std::vector<std::string> work;
  for (const auto& node : graph.node()) {
    for (const auto& output : node.output()) makers[output] = &node;
    const auto found = shape_operands.find(node.op_type());
    if (found == shape_operands.end()) continue;
    for (int i = found->second.first; i <= found->second.last && i < node.input_size(); ++i) {
      work.push_back(node.input(i));
    }
  }
  std::set<std::string> seen;
  while (!work.empty()) {
    const std::string value = work.back();
    work.pop_back();
    if (value.empty() || !seen.insert(value).second) continue;
    const auto maker = makers.find(value);
    if (maker == makers.end() || maker->second->op_type() == "Shape" || maker->second->op_type() == "Size") {
      continue;
    }
    for (const auto& input : maker->second->input()) work.push_back(input);
  }
  return seen;
}

// The nodes of a graph and of those in it.
std::vector<const onnx::NodeProto*> all_nodes(const onnx::GraphProto& graph) {
  std::vector<const onnx::NodeProto*> nodes;
  for (const auto& node : graph.node()) {
    nodes.push_back(&node);
    for (const auto& attribute : node.attribute()) {
      if (!attribute.has_g()) continue;
      const auto inner = all_nodes(attribute.g());
      nodes.insert(nodes.end(), inner.begin(), inner.end());
    }
  }
  return nodes;
}

// The rules that leave a test out of what our own engine is held to. Empty: none does.
std::string rule_against(const onnx::ModelProto& model) {
  const onnx::GraphProto& graph = model.graph();
  const auto nodes = all_nodes(graph);
  std::set<std::string> unknown;
  for (const auto* at : nodes) {
    const auto& node = *at;
    const bool ours = node.domain().empty() || node.domain() == "ai.onnx";
    const bool trains = graph::find_training_operator(node.domain(), node.op_type()) != nullptr;
    if (!trains && (!ours || graph::find_operator(node.op_type()) == nullptr)) {
      unknown.insert(ours ? node.op_type() : node.domain() + "." + node.op_type());
    }
  }
  if (!unknown.empty()) {
    std::string names;
    for (const std::string& name : unknown) names += (names.empty() ? "" : ", ") + name;
    return "operator not claimed: " + names;
  }
  for (const auto* node : nodes) {
    const auto says = [&](std::string_view attribute) {
      return std::ranges::any_of(node->attribute(), [&](const auto& a) { return a.name() == attribute; });
    };
    // ONNX's script computes with 0.01, and the node has the default.
    if (node->op_type() == "Adam" && !says("epsilon"))
      return "its data are of another epsilon than its node's";
  }
  return {};
}

// Types of a model's inputs and outputs that we have no tensors of. Empty: there are none.
std::string rule_against_types(const onnx::GraphProto& graph) {
  for (const auto* values : {&graph.input(), &graph.output()}) {
    for (const auto& value : *values) {
      if (!value.type().has_tensor_type()) return "type not claimed: sequence or optional";
      if (!graph::from_onnx_type(value.type().tensor_type().elem_type()) ||
          value.type().tensor_type().elem_type() == onnx::TensorProto::STRING) {
        return "type not claimed: " +
               onnx::TensorProto::DataType_Name(
                   static_cast<onnx::TensorProto::DataType>(value.type().tensor_type().elem_type()));
      }
    }
  }
  return {};
}

// Whether the graph drops elements at random: a Dropout in training, of a ratio that is not 0.
bool drops(const onnx::GraphProto& graph) {
  for (const auto& node : graph.node()) {
    if (node.op_type() != "Dropout" || node.input_size() < 3 || node.input(2).empty()) continue;
    if (std::ranges::any_of(node.attribute(), [](const auto& a) { return a.name() == "seed"; })) continue;
    const auto ratio = std::find_if(graph.initializer().begin(), graph.initializer().end(),
                                    [&](const auto& tensor) { return tensor.name() == node.input(1); });
    if (ratio == graph.initializer().end() ||
        !std::ranges::all_of(ratio->raw_data(), [](char byte) { return byte == 0; })) {
      return true;
    }
  }
  return false;
}

// Declares the input as its data is: of some only the type is looked at (CastLike), and these tests declare
// another shape.
void declare_as(const graph::Shape& shape, onnx::ValueInfoProto& input) {
  auto& declared = *input.mutable_type()->mutable_tensor_type()->mutable_shape();
  declared.clear_dim();
  for (const std::int64_t extent : shape) declared.add_dim()->set_dim_value(extent);
}

}  // namespace

fs::path default_folder() {
  return "/usr/share/libonnx-testdata/data/node";
}

Result<std::vector<Case>> find_cases(const fs::path& folder) {
  std::vector<Case> cases;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (fs::exists(entry.path() / "model.onnx")) cases.push_back({entry.path().filename(), entry.path()});
  }
  if (error) return invalid(folder.string() + ": " + error.message() + " (Debian: libonnx-testdata)");
  if (cases.empty()) return invalid(folder.string() + " holds no node tests");
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.name < b.name; });
  return cases;
}

Result<Prepared> prepare(const Case& test, const fs::path& scratch) {
  Prepared prepared;
  onnx::ModelProto model;
  if (const auto read = parse(test.folder / "model.onnx", model); !read) return std::unexpected(read.error());
  std::set<std::string> operators;
  for (const auto* node : all_nodes(model.graph())) operators.insert(node->op_type());
  prepared.operators.assign(operators.begin(), operators.end());
  prepared.left_out = rule_against(model);
  if (std::string types = rule_against_types(model.graph()); !types.empty()) {
    if (prepared.left_out.empty()) prepared.left_out = std::move(types);
    return prepared;
  }

  prepared.options.batched = false;
  prepared.model = test.folder / "model.onnx";
  const fs::path data = test.folder / "test_data_set_0";
  const std::set<std::string> deciding = deciding_values(model.graph());
  graph::TensorReader reader(data);
  google::protobuf::RepeatedPtrField<onnx::ValueInfoProto> kept;
  bool rewritten = false;
  for (int i = 0; i < model.graph().input_size(); ++i) {
    auto& input = *model.mutable_graph()->mutable_input(i);
    const fs::path file = data / ("input_" + std::to_string(i) + ".pb");
    onnx::TensorProto proto;
    if (const auto read = parse(file, proto); !read) return std::unexpected(read.error());
    if (deciding.contains(input.name()) || std::ranges::find(proto.dims(), 0) != proto.dims().end()) {
      proto.set_name(input.name());
      *model.mutable_graph()->add_initializer() = proto;
      rewritten = true;
      continue;
    }
    auto tensor = read_tensor(file, input, reader);
    if (!tensor) return std::unexpected(tensor.error());
    if (!declares(input, tensor->type().shape)) {
      declare_as(tensor->type().shape, input);
      rewritten = true;
    }
    prepared.options.input_shapes.emplace_back(input.name(), tensor->type().shape);
    prepared.inputs.push_back(std::move(*tensor));
    *kept.Add() = input;
  }
  for (int i = 0; i < model.graph().output_size(); ++i) {
    auto tensor =
        read_tensor(data / ("output_" + std::to_string(i) + ".pb"), model.graph().output(i), reader);
    if (!tensor) return std::unexpected(tensor.error());
    prepared.outputs.push_back(std::move(*tensor));
    prepared.output_names.push_back(model.graph().output(i).name());
  }
  if (prepared.left_out.empty() && drops(model.graph())) prepared.left_out = "it draws random numbers";
  if (rewritten) {
    model.mutable_graph()->mutable_input()->Swap(&kept);
    prepared.model = scratch / (test.name + ".onnx");
    std::ofstream stream(prepared.model, std::ios::binary);
    if (!model.SerializeToOstream(&stream)) return invalid(prepared.model.string() + " cannot be written");
  }
  return prepared;
}

Result<> compare(std::size_t output, const Tensor& got, const Tensor& wanted) {
  const auto wrong = [output](const std::string& what) {
    return invalid("output " + std::to_string(output) + ": " + what);
  };
  if (got.type().type != wanted.type().type) {
    return wrong("type " + std::string(graph::onnx_name(got.type().type)) + ", not " +
                 std::string(graph::onnx_name(wanted.type().type)));
  }
  if (got.type().shape != wanted.type().shape) {
    return wrong("shape " + graph::to_text(got.type().shape) + ", not " +
                 graph::to_text(wanted.type().shape));
  }
  std::string difference;
  AllTypes::pick(got.type().type, [&]<typename T>() {
    using graph::plain::load;
    // This package's bfloat16 data was made by truncation, where we round to the nearest: one unit apart.
    constexpr double relative = std::is_same_v<T, graph::plain::BFloat16> ? 0x1p-7 : 1e-3;
    const auto x = got.as<T>();
    const auto y = wanted.as<T>();
    for (std::size_t i = 0; i < x.size() && difference.empty(); ++i) {
      const auto a = load(x[i]);
      const auto b = load(y[i]);
      if constexpr (graph::plain::is_float<T>) {
        const auto left = static_cast<double>(a);
        const auto right = static_cast<double>(b);
        const bool same = left == right || (std::isnan(left) && std::isnan(right)) ||
                          std::abs(left - right) <= 1e-5 + relative * std::abs(right);
        if (same) continue;
      } else {
        if (a == b) continue;
      }
      difference = "element " + std::to_string(i) + " is " + std::to_string(a) + ", not " + std::to_string(b);
    }
    return true;
  });
  return difference.empty() ? Result<>{} : wrong(difference);
}

Result<std::shared_ptr<const graph::Model>> import_test(const Prepared& test) {
  auto model = graph::import_onnx(test.model, test.options);
  if (!model) return in_context("import", model.error());
  if ((*model)->inputs().size() != test.inputs.size()) {
    return invalid("the model has " + std::to_string((*model)->inputs().size()) + " inputs, the test " +
                   std::to_string(test.inputs.size()));
  }
  return model;
}

Result<> run_prepared(const Prepared& test, Backend& backend) {
  const auto outputs = backend.run(test);
  if (!outputs) return std::unexpected(outputs.error());
  if (outputs->size() != test.outputs.size()) return invalid("the number of outputs differs");
  for (std::size_t i = 0; i < outputs->size(); ++i) {
    if (const auto same = compare(i, (*outputs)[i], test.outputs[i]); !same) return same;
  }
  return {};
}

}  // namespace carillon::onnx_node
