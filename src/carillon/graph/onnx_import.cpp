#include "carillon/graph/onnx_import.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <queue>
#include <set>
#include <string_view>
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

#include "carillon/graph/ml/expand.h"
#include "carillon/graph/onnx_attribute.h"
#include "carillon/graph/onnx_check.h"
#include "carillon/graph/onnx_contrib.h"
#include "carillon/graph/onnx_tensor.h"
#include "carillon/graph/operators.h"
#include "carillon/graph/opset.h"
#include "carillon/graph/shape_inference.h"
#include "carillon/graph/text.h"

namespace carillon::graph {
namespace {

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
  // XGBoost's converter names only that of ai.onnx.ml where it uses no other.
  const bool other = std::ranges::none_of(model.graph().node(), [](const auto& node) {
    return node.domain().empty() || node.domain() == "ai.onnx";
  });
  if (version == 0 && other && model.graph().node_size() > 0) return last_opset;
  if (version == 0) return invalid("it does not say which opset of ONNX's operators it uses");
  if (version < 1)
    return invalid("it uses opset " + std::to_string(version) + ", which ONNX does not have; supported are " +
                   std::to_string(first_opset) + " to " + std::to_string(last_opset));
  if (version < first_opset || version > last_opset)
    return fail(ErrorCode::unsupported, "it uses opset " + std::to_string(version) + "; supported are " +
                                            std::to_string(first_opset) + " to " +
                                            std::to_string(last_opset));
  return static_cast<int>(version);
}

Result<std::vector<Dimension>> dimensions_of(const onnx::TensorShapeProto& shape, const std::string& where) {
  if (shape.dim_size() > 64)
    return invalid(where + " has " + std::to_string(shape.dim_size()) + " dimensions");
  std::vector<Dimension> out;
  for (const auto& dim : shape.dim()) {
    if (!dim.has_dim_value()) {
      // Paddle's converter writes "?" for each extent that it does not know: no name that they would share.
      out.push_back({-1, dim.dim_param() == "?" ? std::string() : dim.dim_param()});
      continue;
    }
    if (dim.dim_value() < -1 || dim.dim_value() > (std::int64_t{1} << 40))
      return invalid(where + " has an extent of " + std::to_string(dim.dim_value()));
    // Some exporters write -1 for "not known".
    out.push_back({dim.dim_value(), ""});
  }
  return out;
}

// Graphs in graphs may go this deep; beyond it no exporter goes, and recursion is ours to bound.
constexpr std::size_t deepest_scope = 16;

// The attributes that hold a node's graphs, in the order of Node::subgraphs.
std::vector<std::string> graphs_of(std::string_view op) {
  if (op == "If") return {"then_branch", "else_branch"};
  if (op == "Loop" || op == "Scan") return {"body"};
  return {};
}

// Builds an OnnxGraph from a message, taking its weights out as it goes.
class Importer {
 public:
  Importer(onnx::ModelProto& model, TensorReader& reader, int opset)
      : proto_(*model.mutable_graph()), reader_(reader), functions_(model.functions_size() > 0) {
    out_.opset = opset;
  }

  Result<OnnxGraph> run() {
    Scope scope{.proto = proto_};
    scopes_.push_back(&scope);
    for (const auto step : {&Importer::contrib, &Importer::initializers, &Importer::inputs, &Importer::nodes})
      if (auto ok = (this->*step)(scope); !ok) return std::unexpected(ok.error());
    auto ordered = order(scope);
    if (!ordered) return std::unexpected(ordered.error());
    graph().nodes = *std::move(ordered);
    if (auto ok = outputs(scope); !ok) return std::unexpected(ok.error());
    out_.name = is_utf8(proto_.name()) ? proto_.name().substr(0, longest_name) : "";
    return std::move(out_);
  }

 private:
  // A node whose operands are still names.
  struct Pending {
    Node node;
    std::vector<std::string> names;
    std::vector<onnx::GraphProto*> graphs;  // as graphs_of()
  };
  // What one graph names; those around it are seen from it.
  struct Scope {
    onnx::GraphProto& proto;
    std::unordered_map<std::string, ValueId> ids = {};
    std::vector<Pending> pending = {};
    std::set<std::string> captured = {};  // names of graphs around it that it uses
  };

  Graph& graph() { return out_.graph; }

  ValueId add_value(std::string name) {
    const ValueId id{static_cast<std::uint32_t>(graph().values.size())};
    graph().values.push_back({std::move(name), {}, nullptr});
    return id;
  }

  // The id of a name that something makes; an error where two do.
  Result<ValueId> make(Scope& scope, const std::string& name, std::string_view what) {
    if (auto ok = check_name(name, what); !ok) return std::unexpected(ok.error());
    if (name.empty()) return invalid(std::string(what) + " has no name");
    for (const Scope* outer : scopes_)
      if (outer->ids.contains(name))
        return invalid("the name '" + name + "' is given to two values" +
                       (outer == &scope ? "" : ", one of them in a graph around the other's"));
    const ValueId id = add_value(name);
    scope.ids.emplace(name, id);
    return id;
  }

  // Before the initializers, of which it looks into some, give up their bytes.
  Result<> contrib(Scope& scope) { return expand_contrib(scope.proto); }

  Result<> initializers(Scope& scope) {
    if (scope.proto.sparse_initializer_size() > 0)
      return fail(ErrorCode::unsupported, "sparse initializers are not supported");
    for (auto& initializer : *scope.proto.mutable_initializer()) {
      auto id = make(scope, initializer.name(), "an initializer");
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

  static Result<> check_tensor(const onnx::ValueInfoProto& proto, const std::string& where) {
    if (proto.type().has_tensor_type()) return {};
    return fail(ErrorCode::unsupported,
                where + " is not a tensor; sequences, maps and optionals are not supported");
  }

  Result<> inputs(Scope& scope) {
    for (const auto& proto : scope.proto.input()) {
      // Before IR version 4 every initializer was listed as an input too.
      if (const auto found = scope.ids.find(proto.name());
          found != scope.ids.end() && graph().value(found->second).constant != nullptr) {
        const TensorType& type = graph().value(found->second).constant->type();
        out_.fixed.push_back({.name = proto.name(), .type = type.type, .shape = type.shape});
        continue;
      }
      auto id = make(scope, proto.name(), "an input");
      if (!id) return std::unexpected(id.error());
      const std::string where = "input '" + proto.name() + "'";
      if (auto ok = check_tensor(proto, where); !ok) return ok;
      const auto& tensor = proto.type().tensor_type();
      auto type = from_onnx_type(tensor.elem_type());
      if (!type) return in_context(where, type.error());
      auto dimensions = dimensions_of(tensor.shape(), where);
      if (!dimensions) return std::unexpected(dimensions.error());
      graph().inputs.push_back(*id);
      out_.inputs.push_back(
          {.id = *id, .type = *type, .ranked = tensor.has_shape(), .dimensions = *std::move(dimensions)});
    }
    return {};
  }

  // Of two faults that is told which makes the file wrong, rather than what is not supported: another engine
  // is to see whole files alone.
  Result<> nodes(Scope& scope) {
    Result<> unsupported;
    if (auto ok = ml::expand(scope.proto); !ok) return ok;
    int index = 0;
    for (auto& proto : *scope.proto.mutable_node()) {
      Node node;
      node.op = proto.op_type();
      if (auto ok = check_name(node.op, "an operator"); !ok) return ok;
      if (auto ok = check_name(proto.name(), "a node"); !ok) return ok;
      node.name = proto.name().empty() ? node.op + "_" + std::to_string(index) : proto.name();
      ++index;
      auto ok = import_node(scope, proto, std::move(node));
      if (ok) continue;
      if (ok.error().code != ErrorCode::unsupported) return ok;
      if (unsupported) unsupported = std::move(ok);
    }
    return unsupported;
  }

  Result<const Operator*> know(const onnx::NodeProto& proto, const Node& node) const {
    // Written by expansion: out of a file it would not have come this far.
    if (proto.domain() == ml::own_domain) return find_any_operator(node.op);
    if (const Operator* step = find_training_operator(proto.domain(), node.op); step != nullptr) return step;
    const bool standard = proto.domain().empty() || proto.domain() == "ai.onnx";
    if (!standard) {
      // Other engines may know operators of these, and are asked where the code says so.
      constexpr std::array<std::string_view, 4> published{"ai.onnx", "com.microsoft", "org.openvinotoolkit",
                                                          "org.pytorch"};
      const bool elsewhere = std::ranges::any_of(
          published, [&](std::string_view name) { return proto.domain().starts_with(name); });
      return fail(elsewhere ? ErrorCode::unsupported : ErrorCode::invalid_argument,
                  describe(node) + ": operators of domain '" + proto.domain().substr(0, 100) +
                      "' are not supported" +
                      (functions_ ? "; export the model with its functions inlined" : ""));
    }
    if (node.op == "SequenceMap")
      return fail(
          ErrorCode::unsupported,
          describe(node) + ": of control flow only If, Loop and Scan are supported; export the model so");
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

  Result<> import_node(Scope& scope, onnx::NodeProto& proto, Node node) {
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
    auto graphs = import_attributes(**op, proto, node);
    if (!graphs) return std::unexpected(graphs.error());

    std::vector<std::string> names(proto.input().begin(), proto.input().end());
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (auto ok = check_name(names[i], "a value"); !ok) return ok;
      // A Loop may lack its trip count and its condition, a Scan of opset 8 its lengths.
      const std::size_t optional = node.op == "Loop" ? 2 : node.op == "Scan" && out_.opset < 9 ? 1 : 0;
      const bool required =
          (static_cast<int>(i) < (*op)->min_inputs || (*op)->max_inputs < 0) && i >= optional;
      if (names[i].empty() && required)
        return invalid(describe(node) + ": input " + std::to_string(i) + " is missing");
    }
    for (const auto& name : proto.output()) {
      if (name.empty()) {
        node.outputs.push_back(no_value);
        continue;
      }
      auto id = make(scope, name, "a node's output");
      if (!id) return in_context(describe(node), id.error());
      node.outputs.push_back(*id);
    }
    if (node.outputs[0] == no_value && (*op)->max_outputs == 1)
      return invalid(describe(node) + ": its output has no name");
    if (node.op == "Constant") {
      auto tensor = constant_of(node);
      if (!tensor) return std::unexpected(tensor.error());
      set_constant(node.outputs[0], *std::move(tensor));
      return {};
    }
    scope.pending.push_back({std::move(node), std::move(names), *std::move(graphs)});
    return {};
  }

  // Reads the attributes into `node`; its graphs are given back.
  Result<std::vector<onnx::GraphProto*>> import_attributes(const Operator& op, onnx::NodeProto& proto,
                                                           Node& node) {
    const std::vector<std::string> names = graphs_of(op.name);
    std::vector<onnx::GraphProto*> graphs(names.size(), nullptr);
    for (auto& attribute : *proto.mutable_attribute()) {
      if (auto ok = read_attribute(op, attribute, reader_, node); !ok) return std::unexpected(ok.error());
      const auto found = std::find(names.begin(), names.end(), attribute.name());
      if (found == names.end()) continue;
      auto& place = graphs[static_cast<std::size_t>(found - names.begin())];
      if (place != nullptr) return invalid(describe(node) + ": it has two graphs '" + *found + "'");
      place = attribute.mutable_g();
    }
    for (std::size_t i = 0; i < names.size(); ++i)
      if (graphs[i] == nullptr) return invalid(describe(node) + ": it has no graph '" + names[i] + "'");
    return graphs;
  }

  // ONNX wants nodes in order; some tools do not keep to it. File order decides between nodes that are ready.
  // A node needs what its graphs use, too.
  Result<std::vector<Node>> order(Scope& scope) {
    const std::size_t count = scope.pending.size();
    std::unordered_set<ValueId> to_come;
    for (const Pending& pending : scope.pending)
      for (const ValueId id : pending.node.outputs)
        if (id != no_value) to_come.insert(id);
    std::unordered_map<ValueId, std::vector<std::uint32_t>> waiting;  // nodes that use it
    std::vector<std::uint32_t> missing(count, 0);
    const auto wait_for = [&](std::size_t n, ValueId id) {
      if (!to_come.contains(id)) return;
      waiting[id].push_back(static_cast<std::uint32_t>(n));
      ++missing[n];
    };
    for (std::size_t n = 0; n < count; ++n) {
      Pending& pending = scope.pending[n];
      for (const std::string& name : pending.names) {
        if (name.empty()) {
          pending.node.inputs.push_back(no_value);
          continue;
        }
        const ValueId id = find(scope, name);
        if (id == no_value)
          return invalid(describe(pending.node) + ": its input '" + name + "' is not made by anything");
        pending.node.inputs.push_back(id);
        wait_for(n, id);
      }
      auto captured = import_subgraphs(pending);
      if (!captured) return std::unexpected(captured.error());
      for (const std::string& name : *captured) wait_for(n, find(scope, name));
    }
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> next;
    for (std::size_t n = 0; n < count; ++n)
      if (missing[n] == 0) next.push(static_cast<std::uint32_t>(n));
    std::vector<Node> ordered;
    while (!next.empty()) {
      Node node = std::move(scope.pending[next.top()].node);
      next.pop();
      for (const ValueId id : node.outputs)
        if (const auto users = waiting.find(id); users != waiting.end())
          for (const std::uint32_t user : users->second)
            if (--missing[user] == 0) next.push(user);
      if (auto ok = to_newest_form(graph(), node, out_.opset); !ok) return std::unexpected(ok.error());
      ordered.push_back(std::move(node));
    }
    for (std::size_t n = 0; n < count; ++n)
      if (missing[n] > 0)
        return invalid(describe(scope.pending[n].node) + ": it is part of a cycle, or waits for one");
    return ordered;
  }

  // What `name` stands for in `scope`; no_value where nothing makes it. A name of a graph around it is noted.
  ValueId find(Scope& scope, const std::string& name) const {
    if (const auto found = scope.ids.find(name); found != scope.ids.end()) return found->second;
    for (const Scope* outer : scopes_) {
      const auto found = outer->ids.find(name);
      if (found == outer->ids.end()) continue;
      scope.captured.insert(name);
      return found->second;
    }
    return no_value;
  }

  // Imports the node's graphs, and tells the names from outside that they use.
  Result<std::set<std::string>> import_subgraphs(Pending& pending) {
    std::set<std::string> captured;
    const std::vector<std::string> names = graphs_of(pending.node.op);
    for (std::size_t i = 0; i < pending.graphs.size(); ++i) {
      const std::string where = describe(pending.node) + ": in its " + names[i];
      if (scopes_.size() > deepest_scope)
        return fail(ErrorCode::unsupported, describe(pending.node) + ": graphs are nested more than " +
                                                std::to_string(deepest_scope) + " deep");
      Scope scope{.proto = *pending.graphs[i]};
      scopes_.push_back(&scope);
      auto subgraph = import_subgraph(scope);
      scopes_.pop_back();
      if (!subgraph) return in_context(where, subgraph.error());
      if (auto ok = check_ends(pending.node, *subgraph); !ok) return in_context(where, ok.error());
      pending.node.subgraphs.push_back(*std::move(subgraph));
      captured.merge(scope.captured);
    }
    return captured;
  }

  Result<Subgraph> import_subgraph(Scope& scope) {
    Subgraph out;
    if (auto ok = contrib(scope); !ok) return std::unexpected(ok.error());
    if (auto ok = initializers(scope); !ok) return std::unexpected(ok.error());
    for (const auto& proto : scope.proto.input()) {
      auto id = make(scope, proto.name(), "an input");
      if (!id) return std::unexpected(id.error());
      // The type may be left to whoever gives the value.
      if (proto.has_type())
        if (auto ok = check_tensor(proto, "input '" + proto.name() + "'"); !ok)
          return std::unexpected(ok.error());
      out.inputs.push_back(*id);
    }
    if (auto ok = nodes(scope); !ok) return std::unexpected(ok.error());
    auto ordered = order(scope);
    if (!ordered) return std::unexpected(ordered.error());
    out.nodes = *std::move(ordered);
    for (const auto& proto : scope.proto.output()) {
      if (auto ok = check_name(proto.name(), "an output"); !ok) return std::unexpected(ok.error());
      const ValueId id = find(scope, proto.name());
      if (id == no_value) return invalid("output '" + proto.name() + "' is not made by anything");
      out.outputs.push_back(id);
    }
    return out;
  }

  // Whether the graph takes and gives as many values as its node.
  Result<> check_ends(const Node& node, const Subgraph& graph) const {
    const bool loop = node.op == "Loop";
    // A Loop's graph takes the iteration for the trip count, and gives a condition first.
    const std::size_t inputs = loop                ? node.inputs.size()
                               : node.op != "Scan" ? 0
                               : out_.opset < 9    ? node.inputs.size() - 1
                                                   : node.inputs.size();
    const std::size_t outputs = node.outputs.size() + (loop ? 1 : 0);
    const auto number = [](std::size_t n, std::string_view what) {
      return std::to_string(n) + " " + std::string(what);
    };
    if (graph.inputs.size() != inputs)
      return invalid("it has " + number(graph.inputs.size(), "inputs") + ", but " +
                     number(inputs, "are wanted for a node with ") + number(node.inputs.size(), "inputs"));
    if (graph.outputs.size() != outputs)
      return invalid("it has " + number(graph.outputs.size(), "outputs") + ", but " +
                     number(outputs, "are wanted for a node with ") + number(node.outputs.size(), "outputs"));
    if (loop && node.outputs.size() + 2 < node.inputs.size())
      return invalid("the node has " + number(node.inputs.size() - 2, "values that the loop carries, but ") +
                     number(node.outputs.size(), "outputs"));
    return {};
  }

  Result<> outputs(Scope& scope) {
    if (scope.proto.output_size() == 0) return invalid("the graph has no outputs");
    std::unordered_set<ValueId> listed;
    for (const auto& proto : scope.proto.output()) {
      if (auto ok = check_name(proto.name(), "an output"); !ok) return ok;
      const auto found = scope.ids.find(proto.name());
      if (found == scope.ids.end()) return invalid("output '" + proto.name() + "' is not made by anything");
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
  std::vector<Scope*> scopes_;  // outermost first
};

Result<OnnxGraph> read_checked(const std::filesystem::path& file) {
  onnx::ModelProto model;
  auto size = parse_file(file, model);
  if (!size) return std::unexpected(size.error());
  if (!model.has_graph()) return invalid("it is not an ONNX model: it holds no graph");
  if (auto ok = check_versions(model); !ok) return std::unexpected(ok.error());
  auto opset = find_opset(model);
  if (!opset) return std::unexpected(opset.error());
  TensorReader reader(file.parent_path());
  auto imported = Importer(model, reader, *opset).run();
  if (imported) imported->bytes_on_disk = *size + reader.external_bytes();
  return imported;
}

// That all external data of a graph or of a function's nodes are where they may be.
class DataLocations {
 public:
  explicit DataLocations(const std::filesystem::path& folder) : reader_(folder) {}

  Result<> check(const onnx::GraphProto& graph) {
    for (const auto& tensor : graph.initializer())
      if (auto ok = check(tensor); !ok) return ok;
    for (const auto& tensor : graph.sparse_initializer())
      if (auto ok = check(tensor); !ok) return ok;
    return check(graph.node());
  }
  Result<> check(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
    for (const auto& node : nodes)
      for (const auto& attribute : node.attribute())
        if (auto ok = check(attribute); !ok) return ok;
    return {};
  }
  std::uint64_t bytes() const { return reader_.external_bytes(); }

 private:
  Result<> check(const onnx::AttributeProto& attribute) {
    if (auto ok = check(attribute.t()); !ok) return ok;
    for (const auto& tensor : attribute.tensors())
      if (auto ok = check(tensor); !ok) return ok;
    if (auto ok = check(attribute.sparse_tensor()); !ok) return ok;
    for (const auto& tensor : attribute.sparse_tensors())
      if (auto ok = check(tensor); !ok) return ok;
    // As deep as protobuf lets messages be.
    if (attribute.has_g())
      if (auto ok = check(attribute.g()); !ok) return ok;
    for (const auto& graph : attribute.graphs())
      if (auto ok = check(graph); !ok) return ok;
    return {};
  }
  Result<> check(const onnx::SparseTensorProto& tensor) {
    if (auto ok = check(tensor.values()); !ok) return ok;
    return check(tensor.indices());
  }
  Result<> check(const onnx::TensorProto& tensor) {
    auto ok = check_encoding(tensor);
    if (ok) ok = reader_.locate(tensor);
    if (!ok) return in_context("tensor '" + tensor.name().substr(0, 100) + "'", ok.error());
    return ok;
  }

  TensorReader reader_;
};

Result<OnnxOutline> outline(const std::filesystem::path& file) {
  onnx::ModelProto model;
  auto size = parse_file(file, model);
  if (!size) return std::unexpected(size.error());
  if (!model.has_graph()) return invalid("it is not an ONNX model: it holds no graph");
  if (auto ok = check_versions(model); !ok) return std::unexpected(ok.error());
  if (auto ok = check_for_others(model); !ok) return std::unexpected(ok.error());
  DataLocations locations(file.parent_path());
  if (auto ok = locations.check(model.graph()); !ok) return std::unexpected(ok.error());
  for (const auto& function : model.functions())
    if (auto ok = locations.check(function.node()); !ok) return std::unexpected(ok.error());
  OnnxOutline out{.name = is_utf8(model.graph().name()) ? model.graph().name().substr(0, longest_name) : "",
                  .inputs = {},
                  .fixed = {},
                  .bytes_on_disk = *size + locations.bytes(),
                  .misread_node = misread_node(model)};
  std::map<std::string_view, const onnx::TensorProto*> set;  // null: a sparse one
  for (const auto& tensor : model.graph().initializer()) set.emplace(tensor.name(), &tensor);
  for (const auto& tensor : model.graph().sparse_initializer()) set.emplace(tensor.values().name(), nullptr);
  for (const auto& proto : model.graph().input()) {
    if (const auto by = set.find(proto.name()); by != set.end()) {
      if (by->second == nullptr || !is_utf8(proto.name())) continue;
      if (const auto type = from_onnx_type(by->second->data_type()))
        out.fixed.push_back({.name = proto.name(),
                             .type = *type,
                             .shape = {by->second->dims().begin(), by->second->dims().end()}});
      continue;
    }
    const std::string where = "input '" + proto.name().substr(0, longest_name) + "'";
    if (!is_utf8(proto.name())) return invalid("an input's name is not UTF-8");
    if (!proto.type().has_tensor_type())
      return fail(ErrorCode::unsupported,
                  where + " is not a tensor; sequences, maps and optionals are not supported");
    const auto& tensor = proto.type().tensor_type();
    auto type = from_onnx_type(tensor.elem_type());
    if (!type) return in_context(where, type.error());
    auto dimensions = dimensions_of(tensor.shape(), where);
    if (!dimensions) return std::unexpected(dimensions.error());
    out.inputs.push_back({.name = proto.name(),
                          .type = *type,
                          .ranked = tensor.has_shape(),
                          .dimensions = *std::move(dimensions)});
  }
  return out;
}

// What `read` makes of `file`, its failures put into words.
template <typename Read>
auto reading(const std::filesystem::path& file, const Read& read) -> decltype(read(file)) {
  const std::string where = "model file '" + file.string() + "'";
  try {
    auto made = read(file);
    if (!made) return in_context(where, made.error());
    return made;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::resource_exhausted, where + ": not enough memory to read it");
  } catch (const std::exception& error) {  // protobuf, the file system library
    return invalid(where + ": " + error.what());
  }
}

}  // namespace

Result<OnnxGraph> read_onnx(const std::filesystem::path& file) {
  return reading(file, read_checked);
}

Result<OnnxOutline> outline_onnx(const std::filesystem::path& file) {
  return reading(file, outline);
}

}  // namespace carillon::graph
