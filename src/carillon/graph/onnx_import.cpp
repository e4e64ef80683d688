#include "carillon/graph/onnx_import.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <queue>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <onnx/onnx_pb.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/operators.h"
#include "carillon/graph/opset.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

constexpr std::size_t longest_name = 4096;

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t more = lead < 0x80                    ? 0
                             : lead >= 0xc2 && lead <= 0xdf ? 1
                             : lead >= 0xe0 && lead <= 0xef ? 2
                             : lead >= 0xf0 && lead <= 0xf4 ? 3
                                                            : 4;
    if (more == 4 || text.size() - i <= more) return false;
    for (std::size_t k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0U) != 0x80U) return false;
    i += more + 1;
  }
  return true;
}

Result<> check_name(std::string_view name, std::string_view what) {
  if (name.size() > longest_name || !is_utf8(name))
    return invalid("a name of " + std::string(what) + " is not UTF-8 text of at most " +
                   std::to_string(longest_name) + " bytes");
  return {};
}

struct Descriptor {
  int number = -1;
  Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

Result<std::uint64_t> parse_file(const std::filesystem::path& path, onnx::ModelProto& model) {
  Descriptor file;
  // NONBLOCK: a named pipe must not hang us; it is refused below.
  file.number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.number < 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::not_found : ErrorCode::invalid_argument;
    return fail(code, "cannot open it: " + std::generic_category().message(errno));
  }
  struct stat status {};
  if (::fstat(file.number, &status) != 0 || !S_ISREG(status.st_mode))
    return invalid("it is not a regular file");
  if (status.st_size == 0) return invalid("the file is empty; expected an ONNX model");
  if (status.st_size > std::numeric_limits<int>::max())
    return invalid("the file has " + std::to_string(status.st_size) +
                   " bytes, more than the 2 GiB that protobuf allows; keep the weights as external data");
  google::protobuf::io::FileInputStream stream(file.number);
  google::protobuf::io::CodedInputStream coded(&stream);
  coded.SetTotalBytesLimit(std::numeric_limits<int>::max());
  if (!model.ParseFromCodedStream(&coded) || !coded.ConsumedEntireMessage())
    return invalid("it is not an ONNX model, or it is cut off: its protobuf data cannot be parsed");
  return static_cast<std::uint64_t>(status.st_size);
}

Result<int> find_opset(const onnx::ModelProto& model) {
  std::int64_t version = 0;
  for (const auto& import : model.opset_import())
    if (import.domain().empty() || import.domain() == "ai.onnx")
      version = std::max(version, import.version());
  if (version == 0) return invalid("it does not say which opset of ONNX's operators it uses");
  if (version < first_opset || version > last_opset)
    return fail(ErrorCode::unsupported, "it uses opset " + std::to_string(version) + "; supported are " +
                                            std::to_string(first_opset) + " to " +
                                            std::to_string(last_opset));
  return static_cast<int>(version);
}

// Builds an OnnxGraph from a message, taking its weights out as it goes.
class Importer {
 public:
  Importer(onnx::ModelProto& model, TensorReader& reader, int opset)
      : proto_(*model.mutable_graph()), reader_(reader), functions_(model.functions_size() > 0) {
    out_.opset = opset;
  }

  Result<OnnxGraph> run() {
    for (const auto step :
         {&Importer::initializers, &Importer::inputs, &Importer::nodes, &Importer::order, &Importer::outputs})
      if (auto ok = (this->*step)(); !ok) return std::unexpected(ok.error());
    out_.name = is_utf8(proto_.name()) ? proto_.name().substr(0, longest_name) : "";
    return std::move(out_);
  }

 private:
  Graph& graph() { return out_.graph; }

  ValueId add_value(std::string name) {
    const ValueId id{static_cast<std::uint32_t>(graph().values.size())};
    graph().values.push_back({std::move(name), {}, nullptr});
    return id;
  }

  // The id of a name that something makes; an error where two do.
  Result<ValueId> make(const std::string& name, std::string_view what) {
    if (auto ok = check_name(name, what); !ok) return std::unexpected(ok.error());
    if (name.empty()) return invalid(std::string(what) + " has no name");
    const auto [entry, fresh] = ids_.try_emplace(name, no_value);
    if (!fresh) return invalid("the name '" + name + "' is given to two values");
    entry->second = add_value(name);
    return entry->second;
  }

  Result<> initializers() {
    if (proto_.sparse_initializer_size() > 0)
      return fail(ErrorCode::unsupported, "sparse initializers are not supported");
    for (auto& initializer : *proto_.mutable_initializer()) {
      auto id = make(initializer.name(), "an initializer");
      if (!id) return std::unexpected(id.error());
      auto tensor = reader_.read(initializer);
      if (!tensor) return in_context("initializer '" + initializer.name() + "'", tensor.error());
      set_constant(*id, *std::move(tensor));
      // The largest models fill memory once, not twice.
      delete initializer.release_raw_data();
      initializer.clear_float_data();
    }
    return {};
  }

  void set_constant(ValueId id, SharedTensor tensor) {
    Value& value = graph().value(id);
    value.type = tensor->type();
    value.constant = std::move(tensor);
  }

  Result<> inputs() {
    for (const auto& proto : proto_.input()) {
      // Before IR version 4 every initializer was listed as an input too.
      if (const auto found = ids_.find(proto.name());
          found != ids_.end() && graph().value(found->second).constant != nullptr)
        continue;
      auto id = make(proto.name(), "an input");
      if (!id) return std::unexpected(id.error());
      const std::string where = "input '" + proto.name() + "'";
      if (!proto.type().has_tensor_type())
        return fail(ErrorCode::unsupported,
                    where + " is not a tensor; sequences, maps and optionals are not supported");
      const auto& tensor = proto.type().tensor_type();
      auto type = from_onnx_type(tensor.elem_type());
      if (!type) return in_context(where, type.error());
      if (*type == DataType::string)
        return fail(ErrorCode::unsupported, where + ": tensors of type string are not supported");
      OnnxGraph::Input input{.id = *id, .type = *type, .ranked = tensor.has_shape()};
      if (tensor.shape().dim_size() > 64)
        return invalid(where + " has " + std::to_string(tensor.shape().dim_size()) + " dimensions");
      for (const auto& dim : tensor.shape().dim()) {
        if (!dim.has_dim_value()) {
          input.dimensions.push_back({-1, dim.dim_param()});
          continue;
        }
        if (dim.dim_value() < 0 || dim.dim_value() > (std::int64_t{1} << 40))
          return invalid(where + " has an extent of " + std::to_string(dim.dim_value()));
        // Some exporters write 0 for "not known".
        input.dimensions.push_back({dim.dim_value() == 0 ? -1 : dim.dim_value(), ""});
      }
      graph().inputs.push_back(*id);
      out_.inputs.push_back(std::move(input));
    }
    return {};
  }

  Result<> nodes() {
    int index = 0;
    for (auto& proto : *proto_.mutable_node()) {
      Node node;
      node.op = proto.op_type();
      if (auto ok = check_name(node.op, "an operator"); !ok) return ok;
      if (auto ok = check_name(proto.name(), "a node"); !ok) return ok;
      node.name = proto.name().empty() ? node.op + "_" + std::to_string(index) : proto.name();
      ++index;
      if (auto ok = import_node(proto, std::move(node)); !ok) return ok;
    }
    return {};
  }

  Result<const Operator*> know(const onnx::NodeProto& proto, const Node& node) const {
    const bool standard = proto.domain().empty() || proto.domain() == "ai.onnx";
    if (!standard) {
      return fail(ErrorCode::unsupported,
                  describe(node) + ": operators of domain '" + proto.domain().substr(0, 100) +
                      "' are not supported" +
                      (functions_ ? "; export the model with its functions inlined" : ""));
    }
    if (node.op == "If" || node.op == "Loop" || node.op == "Scan" || node.op == "SequenceMap")
      return fail(ErrorCode::unsupported,
                  describe(node) + ": control flow is not supported; export the model without it");
    const Operator* op = find_operator(node.op);
    if (op == nullptr)
      return fail(ErrorCode::unsupported, describe(node) + ": the operator is not supported (opset " +
                                              std::to_string(out_.opset) + ")");
    if (out_.opset < op->since && op->since <= whole_opset)
      return fail(ErrorCode::unsupported,
                  describe(node) + ": its form of opset " + std::to_string(out_.opset) +
                      " is not supported; export the model with opset " + std::to_string(whole_opset) +
                      " to " + std::to_string(last_opset));
    if (out_.opset < op->since || out_.opset > op->last)
      return invalid(describe(node) + ": the operator is known from opset " + std::to_string(op->since) +
                     " to " + std::to_string(op->last) + ", but the file uses opset " +
                     std::to_string(out_.opset));
    return op;
  }

  Result<> import_node(onnx::NodeProto& proto, Node node) {
    auto op = know(proto, node);
    if (!op) return std::unexpected(op.error());
    const auto count_text = [](int low, int high) {
      return high < 0 ? "at least " + std::to_string(low)
                      : std::to_string(low) + " to " + std::to_string(high);
    };
    const int inputs = proto.input_size();
    const int outputs = proto.output_size();
    if (inputs < (*op)->min_inputs || ((*op)->max_inputs >= 0 && inputs > (*op)->max_inputs))
      return invalid(describe(node) + ": it has " + std::to_string(inputs) + " inputs, but takes " +
                     count_text((*op)->min_inputs, (*op)->max_inputs));
    if (outputs < 1 || ((*op)->max_outputs >= 0 && outputs > (*op)->max_outputs))
      return invalid(describe(node) + ": it has " + std::to_string(outputs) + " outputs, but takes " +
                     count_text(1, (*op)->max_outputs));
    for (auto& attribute : *proto.mutable_attribute())
      if (auto ok = import_attribute(**op, attribute, node); !ok) return ok;

    std::vector<std::string> names(proto.input().begin(), proto.input().end());
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (auto ok = check_name(names[i], "a value"); !ok) return ok;
      const bool required = static_cast<int>(i) < (*op)->min_inputs || (*op)->max_inputs < 0;
      if (names[i].empty() && required)
        return invalid(describe(node) + ": input " + std::to_string(i) + " is missing");
    }
    for (const auto& name : proto.output()) {
      if (name.empty()) {
        node.outputs.push_back(no_value);
        continue;
      }
      auto id = make(name, "a node's output");
      if (!id) return in_context(describe(node), id.error());
      node.outputs.push_back(*id);
    }
    if (node.outputs[0] == no_value && (*op)->max_outputs == 1)
      return invalid(describe(node) + ": its output has no name");
    if (node.op == "Constant") return import_constant(node);
    pending_.push_back({std::move(node), std::move(names)});
    return {};
  }

  Result<> import_attribute(const Operator& op, onnx::AttributeProto& proto, Node& node) {
    const std::string where = describe(node) + ": attribute '" + proto.name().substr(0, 100) + "'";
    const char type = attribute_type(op, proto.name());
    if (type == 0) return fail(ErrorCode::unsupported, where + " is not one that the operator has");
    if (node.has(proto.name())) return invalid(where + " is given twice");
    if (!proto.ref_attr_name().empty()) return invalid(where + " refers to a function's attribute");
    Attribute value;
    char given = 0;
    switch (proto.type()) {
      case onnx::AttributeProto::INT:
        given = 'i';
        value = proto.i();
        break;
      case onnx::AttributeProto::FLOAT:
        given = 'f';
        value = proto.f();
        break;
      case onnx::AttributeProto::STRING:
        given = 's';
        if (auto ok = check_name(proto.s(), "an attribute's text"); !ok) return in_context(where, ok.error());
        value = proto.s();
        break;
      case onnx::AttributeProto::INTS:
        given = 'I';
        value = std::vector<std::int64_t>(proto.ints().begin(), proto.ints().end());
        break;
      case onnx::AttributeProto::FLOATS:
        given = 'F';
        value = std::vector<float>(proto.floats().begin(), proto.floats().end());
        break;
      case onnx::AttributeProto::TENSOR: {
        given = 't';
        auto tensor = reader_.read(proto.t());
        if (!tensor) return in_context(where, tensor.error());
        value = *std::move(tensor);
        proto.clear_t();
        break;
      }
      case onnx::AttributeProto::UNDEFINED:
      case onnx::AttributeProto::GRAPH:
      case onnx::AttributeProto::SPARSE_TENSOR:
      case onnx::AttributeProto::TYPE_PROTO:
      case onnx::AttributeProto::STRINGS:
      case onnx::AttributeProto::TENSORS:
      case onnx::AttributeProto::GRAPHS:
      case onnx::AttributeProto::SPARSE_TENSORS:
      case onnx::AttributeProto::TYPE_PROTOS:
        break;
    }
    if (given != type) return invalid(where + " has the wrong type");
    node.attributes.emplace(proto.name(), std::move(value));
    return {};
  }

  Result<> import_constant(const Node& node) {
    if (node.attributes.size() != 1) return invalid(describe(node) + ": it needs exactly one value");
    const Attribute& attribute = node.attributes.begin()->second;
    SharedTensor tensor;
    if (const auto* given = std::get_if<SharedTensor>(&attribute)) {
      tensor = *given;
    } else if (const auto* number = std::get_if<std::int64_t>(&attribute)) {
      tensor = std::make_shared<const Tensor>(Tensor::of_i64({}, {number, 1}));
    } else if (const auto* real = std::get_if<float>(&attribute)) {
      tensor = std::make_shared<const Tensor>(Tensor::of_f32({}, {real, 1}));
    } else if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&attribute)) {
      tensor = std::make_shared<const Tensor>(
          Tensor::of_i64({static_cast<std::int64_t>(numbers->size())}, *numbers));
    } else if (const auto* reals = std::get_if<std::vector<float>>(&attribute)) {
      tensor =
          std::make_shared<const Tensor>(Tensor::of_f32({static_cast<std::int64_t>(reals->size())}, *reals));
    } else {
      return invalid(describe(node) + ": its value is of a kind that is not supported");
    }
    set_constant(node.outputs[0], std::move(tensor));
    return {};
  }

  // ONNX wants nodes in order; some tools do not keep to it. File order decides between nodes that are ready.
  Result<> order() {
    const std::size_t count = pending_.size();
    std::vector<std::vector<std::uint32_t>> waiting(ids_.size());  // by value: nodes that use it
    std::vector<std::uint32_t> missing(count, 0);
    std::vector<bool> ready(ids_.size(), false);
    for (std::size_t i = 0; i < graph().values.size(); ++i) ready[i] = graph().values[i].constant != nullptr;
    for (const ValueId id : graph().inputs) ready[id.index()] = true;
    for (std::size_t n = 0; n < count; ++n) {
      auto& [node, names] = pending_[n];
      for (const std::string& name : names) {
        if (name.empty()) {
          node.inputs.push_back(no_value);
          continue;
        }
        const auto found = ids_.find(name);
        if (found == ids_.end())
          return invalid(describe(node) + ": its input '" + name + "' is not made by anything");
        node.inputs.push_back(found->second);
        if (ready[found->second.index()]) continue;
        waiting[found->second.index()].push_back(static_cast<std::uint32_t>(n));
        ++missing[n];
      }
    }
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> next;
    for (std::size_t n = 0; n < count; ++n)
      if (missing[n] == 0) next.push(static_cast<std::uint32_t>(n));
    std::size_t done = 0;
    while (!next.empty()) {
      Node node = std::move(pending_[next.top()].first);
      next.pop();
      ++done;
      for (const ValueId id : node.outputs)
        if (id != no_value)
          for (const std::uint32_t user : waiting[id.index()])
            if (--missing[user] == 0) next.push(user);
      if (auto ok = to_newest_form(graph(), node, out_.opset); !ok) return ok;
      graph().nodes.push_back(std::move(node));
    }
    if (done == count) return {};
    for (std::size_t n = 0; n < count; ++n)
      if (missing[n] > 0)
        return invalid(describe(pending_[n].first) + ": it is part of a cycle, or waits for one");
    return {};
  }

  Result<> outputs() {
    if (proto_.output_size() == 0) return invalid("the graph has no outputs");
    std::unordered_set<ValueId> listed;
    for (const auto& proto : proto_.output()) {
      if (auto ok = check_name(proto.name(), "an output"); !ok) return ok;
      const auto found = ids_.find(proto.name());
      if (found == ids_.end()) return invalid("output '" + proto.name() + "' is not made by anything");
      if (!listed.insert(found->second).second)
        return invalid("output '" + proto.name() + "' is listed twice");
      OnnxGraph::Output output{.id = found->second};
      if (proto.type().has_tensor_type() && proto.type().tensor_type().elem_type() != 0) {
        auto type = from_onnx_type(proto.type().tensor_type().elem_type());
        if (!type) return in_context("output '" + proto.name() + "'", type.error());
        output.typed = true;
        output.type = *type;
      }
      graph().outputs.push_back(found->second);
      out_.outputs.push_back(output);
    }
    return {};
  }

  onnx::GraphProto& proto_;
  TensorReader& reader_;
  bool functions_;
  OnnxGraph out_;
  std::unordered_map<std::string, ValueId> ids_;
  std::vector<std::pair<Node, std::vector<std::string>>> pending_;
};

Result<OnnxGraph> read_checked(const std::filesystem::path& file) {
  onnx::ModelProto model;
  auto size = parse_file(file, model);
  if (!size) return std::unexpected(size.error());
  if (!model.has_graph()) return invalid("it is not an ONNX model: it holds no graph");
  auto opset = find_opset(model);
  if (!opset) return std::unexpected(opset.error());
  TensorReader reader(file.parent_path());
  auto imported = Importer(model, reader, *opset).run();
  if (imported) imported->bytes_on_disk = *size + reader.external_bytes();
  return imported;
}

}  // namespace

Result<OnnxGraph> read_onnx(const std::filesystem::path& file) {
  const std::string where = "model file '" + file.string() + "'";
  try {
    auto imported = read_checked(file);
    if (!imported) return in_context(where, imported.error());
    return imported;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::resource_exhausted, where + ": not enough memory to read it");
  } catch (const std::exception& error) {  // protobuf, the file system library
    return invalid(where + ": " + error.what());
  }
}

}  // namespace carillon::graph
