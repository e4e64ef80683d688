#include "carillon/graph/onnx_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <google/protobuf/unknown_field_set.h>
#include <onnx/onnx_pb.h>

#include "carillon/graph/tensor.h"
#include "carillon/graph/text.h"

namespace carillon::graph {
namespace {

// By ONNX's number.
constexpr std::array<std::string_view, 27> names_of_types{
    "UNDEFINED", "FLOAT",      "UINT8",      "INT8",         "UINT16",         "INT16",      "INT32",
    "INT64",     "STRING",     "BOOL",       "FLOAT16",      "DOUBLE",         "UINT32",     "UINT64",
    "COMPLEX64", "COMPLEX128", "BFLOAT16",   "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ",
    "UINT4",     "INT4",       "FLOAT4E2M1", "FLOAT8E8M0",   "UINT2",          "INT2"};

constexpr int deepest_graph = 16;

constexpr std::int64_t first_narrow = 17, last_narrow = 26;

bool is_narrow(std::int64_t type) {
  return type >= first_narrow && type <= last_narrow;
}

// The narrow types whose constants other engines read as ONNX has them.
bool is_read_by_others(std::int64_t type) {
  constexpr std::array<std::int64_t, 5> all{17, 19, 21, 22, 23};
  return std::ranges::find(all, type) != all.end();
}

// Of an element, of those types.
int bits_of(std::int64_t type) {
  return type == 17 || type == 19 ? 8 : 4;
}

std::string shown(std::string_view text) {
  return is_text(text) ? std::string(text.substr(0, 100)) : "(no text)";
}

struct KnownDomain {
  std::string_view name;
  std::int64_t newest;
};
constexpr std::array<KnownDomain, 6> known_domains{{{"ai.onnx", newest_opset},
                                                    {"ai.onnx.ml", 5},
                                                    {"ai.onnx.preview", 1},
                                                    {"ai.onnx.preview.training", 1},
                                                    {"ai.onnx.training", 1},
                                                    {"com.microsoft", 1}}};

// One of a tensor's fields that can hold its data.
struct Field {
  std::string_view name;
  bool used;
};

std::array<Field, 7> fields_of(const onnx::TensorProto& tensor) {
  return {{{"raw_data", tensor.has_raw_data() && !tensor.raw_data().empty()},
           {"float_data", tensor.float_data_size() > 0},
           {"int32_data", tensor.int32_data_size() > 0},
           {"string_data", tensor.string_data_size() > 0},
           {"int64_data", tensor.int64_data_size() > 0},
           {"double_data", tensor.double_data_size() > 0},
           {"uint64_data", tensor.uint64_data_size() > 0}}};
}

// The typed field for elements of that type.
std::string_view field_for(std::int64_t type) {
  switch (type) {
    case onnx::TensorProto::FLOAT:
    case onnx::TensorProto::COMPLEX64:
      return "float_data";
    case onnx::TensorProto::DOUBLE:
    case onnx::TensorProto::COMPLEX128:
      return "double_data";
    case onnx::TensorProto::INT64:
      return "int64_data";
    case onnx::TensorProto::UINT32:
    case onnx::TensorProto::UINT64:
      return "uint64_data";
    case onnx::TensorProto::STRING:
      return "string_data";
    default:
      return "int32_data";
  }
}

// Texts that an attribute may have, by its name and, where operators differ, the operator.
struct Texts {
  std::string_view attribute, op;
  std::array<std::string_view, 8> known;
};
constexpr std::array<Texts, 20> texts{{
    {"approximate", "", {"none", "tanh"}},
    {"auto_pad", "", {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""}},
    {"coordinate_transformation_mode", "RoiAlign", {"half_pixel", "output_half_pixel"}},
    {"coordinate_transformation_mode",
     "",
     {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
      "tf_crop_and_resize", "tf_half_pixel_for_nn"}},
    {"direction", "BitShift", {"LEFT", "RIGHT"}},
    {"direction", "", {"forward", "reverse", "bidirectional"}},
    {"keep_aspect_ratio_policy", "", {"stretch", "not_larger", "not_smaller"}},
    {"mode", "DepthToSpace", {"DCR", "CRD"}},
    {"mode", "GridSample", {"bilinear", "linear", "nearest", "bicubic", "cubic"}},
    {"mode", "Momentum", {"standard", "nesterov"}},
    {"mode", "Pad", {"constant", "reflect", "edge", "wrap"}},
    {"mode", "Resize", {"nearest", "linear", "cubic"}},
    {"mode", "RoiAlign", {"avg", "max"}},
    {"mode", "TfIdfVectorizer", {"TF", "IDF", "TFIDF"}},
    {"mode", "Upsample", {"nearest", "linear", "bilinear"}},
    {"nearest_mode", "", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}},
    {"padding_mode", "", {"zeros", "border", "reflection"}},
    {"reduction", "NegativeLogLikelihoodLoss", {"none", "sum", "mean"}},
    {"reduction", "SoftmaxCrossEntropyLoss", {"none", "sum", "mean"}},
    {"reduction", "", {"none", "add", "mul", "max", "min"}},
}};

// Goes through all of a model, with what is known of the names in it. Names that a graph inside a node gives
// are not told apart from those around it: ONNX wants them to differ.
class ReadByOthers {
 public:
  Result<> check(const onnx::GraphProto& graph) {
    for (const auto& tensor : graph.initializer())
      if (auto ok = check(tensor); !ok) return ok;
    for (const auto& tensor : graph.sparse_initializer()) {
      if (auto ok = check(tensor.values()); !ok) return ok;
      if (auto ok = check(tensor.indices()); !ok) return ok;
    }
    // OpenVINO takes twice the time for each level.
    if (depth_ > deepest_graph)
      return fail(ErrorCode::unsupported,
                  "graphs are nested more than " + std::to_string(deepest_graph) + " deep");
    ++depth_;
    auto ok = check(graph.node());
    --depth_;
    return ok;
  }

  Result<> check(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
    for (const auto& node : nodes) {
      if (auto ok = check(node); !ok)
        return in_context("node '" + shown(node.name()) + "' (" + shown(node.op_type()) + ")", ok.error());
    }
    return {};
  }

 private:
  Result<> check(const onnx::TensorProto& tensor) {
    const std::int64_t type = tensor.data_type();
    if (const auto count = element_count(Shape(tensor.dims().begin(), tensor.dims().end())); !count)
      return in_context("tensor '" + shown(tensor.name()) + "'", count.error());
    if (type == onnx::TensorProto::BFLOAT16 && tensor.int32_data_size() > 0)
      return fail(ErrorCode::unsupported,
                  "tensor '" + shown(tensor.name()) +
                      "' of type BFLOAT16 is in int32_data, of which OpenVINO takes the bits for whole "
                      "numbers; export the model with raw_data");
    if (!is_narrow(type)) return {};
    const std::string where = "tensor '" + shown(tensor.name()) + "' of type " + onnx_type_name(type);
    if (!is_read_by_others(type))
      return fail(ErrorCode::unsupported, where + ": no engine here has that type as ONNX has it");
    const bool whole = bits_of(type) == 8;
    if (tensor.int32_data_size() > 0 && whole)
      return fail(ErrorCode::unsupported,
                  where +
                      " is in int32_data, which engines read otherwise than ONNX says; export the model " +
                      "with raw_data");
    if (tensor.data_location() != onnx::TensorProto::EXTERNAL) {
      auto count = element_count(Shape(tensor.dims().begin(), tensor.dims().end()));
      if (!count) return in_context(where, count.error());
      const auto needed = static_cast<std::size_t>(whole ? *count : (*count + 1) / 2);
      const std::size_t held = tensor.int32_data_size() > 0
                                   ? static_cast<std::size_t>(tensor.int32_data_size())
                                   : tensor.raw_data().size();
      if (held != needed)
        return invalid(where + " has " + std::to_string(held) + " bytes, but its dims need " +
                       std::to_string(needed));
    }
    narrow_.insert(tensor.name());
    return {};
  }

  Result<> check(const onnx::NodeProto& node) {
    bool makes = false;  // a narrow value, by a constant or by passing one on
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_t()) {
        if (auto ok = check(attribute.t()); !ok) return ok;
        makes = makes || is_narrow(attribute.t().data_type());
      }
      for (const auto& tensor : attribute.tensors())
        if (auto ok = check(tensor); !ok) return ok;
      if (attribute.has_g())
        if (auto ok = check(attribute.g()); !ok) return ok;
      for (const auto& graph : attribute.graphs())
        if (auto ok = check(graph); !ok) return ok;
      const bool names_type = attribute.name() == "to" || attribute.name() == "output_dtype" ||
                              attribute.name() == "dtype" || attribute.name() == "output_datatype";
      if (names_type && is_narrow(attribute.i())) return makes_narrow(onnx_type_name(attribute.i()));
    }
    const auto reads = [&](int i) { return i < node.input_size() && narrow_.contains(node.input(i)); };
    const std::string& op = node.op_type();
    if ((op == "QuantizeLinear" && reads(2)) || (op == "CastLike" && reads(1)))
      return makes_narrow("the type of '" + shown(node.input(op == "CastLike" ? 1 : 2)) + "'");
    // These leave the type, whatever they read; all others may pass it on.
    if (op == "DequantizeLinear" || op == "Cast" || op == "CastLike" || op == "QuantizeLinear") return {};
    for (int i = 0; i < node.input_size() && !makes; ++i) makes = reads(i);
    if (makes)
      for (const std::string& name : node.output()) narrow_.insert(name);
    return {};
  }

  static Result<> makes_narrow(const std::string& type) {
    return fail(ErrorCode::unsupported, "it makes values of " + type +
                                            ": no engine here rounds to that as ONNX says (NaN, and numbers "
                                            "out of its range)");
  }

  std::unordered_set<std::string> narrow_;  // names of narrow values
  int depth_ = 0;                           // of graphs in graphs
};

// Names as in ReadByOthers.
class Transforms {
 public:
  std::string find(const onnx::GraphProto& graph) {
    for (const auto& tensor : graph.initializer()) note(tensor.name(), tensor);
    for (const auto* values : {&graph.input(), &graph.value_info(), &graph.output()})
      for (const auto& value : *values)
        if (value.type().has_tensor_type() && value.type().tensor_type().has_shape())
          ranks_[value.name()] = value.type().tensor_type().shape().dim_size();
    return find(graph.node());
  }
  std::string find(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
    for (const auto& node : nodes) {
      for (const auto& attribute : node.attribute()) {
        if (node.op_type() == "Constant" && attribute.has_t() && node.output_size() == 1)
          note(node.output(0), attribute.t());
        if (node.op_type() == "Constant" && attribute.name() == "value_int" && node.output_size() == 1)
          axes_[node.output(0)] = attribute.i();
        if (attribute.has_g())
          if (auto found = find(attribute.g()); !found.empty()) return found;
        for (const auto& graph : attribute.graphs())
          if (auto found = find(graph); !found.empty()) return found;
      }
      if (node.op_type() != "DFT" || !(node.domain().empty() || node.domain() == "ai.onnx")) continue;
      if (auto why = wrong(node); !why.empty())
        return "node '" + shown(node.name()) + "' (DFT): OpenVINO transforms axis 1, and " + why;
    }
    return {};
  }

 private:
  void note(const std::string& name, const onnx::TensorProto& tensor) {
    ranks_[name] = tensor.dims_size();
    std::int64_t count = 1;
    for (const std::int64_t extent : tensor.dims()) count = extent == 1 ? count : 0;
    if (count != 1 || tensor.data_location() == onnx::TensorProto::EXTERNAL) return;
    if (tensor.data_type() == onnx::TensorProto::INT64 && tensor.int64_data_size() == 1)
      axes_[name] = tensor.int64_data(0);
    else if (tensor.data_type() == onnx::TensorProto::INT64 && tensor.raw_data().size() == 8)
      axes_[name] = from_raw<std::int64_t>(tensor.raw_data());
    else if (tensor.data_type() == onnx::TensorProto::INT32 && tensor.int32_data_size() == 1)
      axes_[name] = tensor.int32_data(0);
    else if (tensor.data_type() == onnx::TensorProto::INT32 && tensor.raw_data().size() == 4)
      axes_[name] = from_raw<std::int32_t>(tensor.raw_data());
  }
  // ONNX's numbers are little-endian.
  template <typename T>
  static T from_raw(const std::string& raw) {
    std::make_unsigned_t<T> value = 0;
    for (std::size_t i = sizeof value; i-- > 0;)
      value = static_cast<decltype(value)>(value << 8U | static_cast<unsigned char>(raw[i]));
    return static_cast<T>(value);
  }
  std::string wrong(const onnx::NodeProto& node) const {
    std::int64_t axis = -2;
    if (node.input_size() > 2 && !node.input(2).empty()) {
      const auto known = axes_.find(node.input(2));
      if (known == axes_.end()) return "the file does not say which axis is meant: it is no constant in it";
      axis = known->second;
    }
    if (axis >= 0) return axis == 1 ? "" : "axis " + std::to_string(axis) + " is meant";
    const auto rank = node.input_size() > 0 ? ranks_.find(node.input(0)) : ranks_.end();
    if (rank == ranks_.end())
      return "axis " + std::to_string(axis) + " is meant, of a signal whose rank the file does not say";
    return axis + rank->second == 1 ? "" : "axis " + std::to_string(axis + rank->second) + " is meant";
  }

  std::unordered_map<std::string, std::int64_t> axes_;  // of constants of one whole number
  std::unordered_map<std::string, int> ranks_;
};

const onnx::AttributeProto* attribute_of(const onnx::NodeProto& node, std::string_view name) {
  const auto found =
      std::ranges::find_if(node.attribute(), [&](const auto& attribute) { return attribute.name() == name; });
  return found == node.attribute().end() ? nullptr : &*found;
}
std::int64_t number_of(const onnx::NodeProto& node, std::string_view name, std::int64_t otherwise) {
  const onnx::AttributeProto* const attribute = attribute_of(node, name);
  return attribute == nullptr ? otherwise : attribute->i();
}

// A form of an operator that OpenVINO 2026.4 computes otherwise than ONNX says. Found by running each beside
// onnxruntime and onnx.reference.
struct MisreadForm {
  std::string_view op;
  std::int64_t first, last;  // opsets
  bool (*is)(const onnx::NodeProto&);
  std::string_view what;
};
bool with_axes(const onnx::NodeProto& node) {
  return attribute_of(node, "axes") != nullptr;
}
constexpr std::array misread_forms{
    MisreadForm{"AveragePool", 10, newest_opset,
                [](const onnx::NodeProto& node) {
                  return number_of(node, "ceil_mode", 0) != 0 && number_of(node, "count_include_pad", 0) != 0;
                },
                "divides by the elements of whole windows where ceil_mode and count_include_pad are set"},
    MisreadForm{"LRN", 1, newest_opset,
                [](const onnx::NodeProto& node) { return number_of(node, "size", 1) % 2 == 0; },
                "has other channels in a window of an even size"},
    MisreadForm{"LSTM", 1, newest_opset,
                [](const onnx::NodeProto& node) { return number_of(node, "input_forget", 0) != 0; },
                "does not read input_forget"},
    MisreadForm{"MaxPool", 8, newest_opset,
                [](const onnx::NodeProto& node) {
                  return number_of(node, "storage_order", 0) != 0 && node.output_size() > 1 &&
                         !node.output(1).empty();
                },
                "does not read storage_order"},
    MisreadForm{"ReduceL1", 13, 17, with_axes, "reduces all axes, whatever its axes are"},
    MisreadForm{"ReduceLogSum", 13, 17, with_axes, "reduces all axes, whatever its axes are"},
    MisreadForm{"ReduceLogSum", 18, newest_opset,
                [](const onnx::NodeProto& node) { return number_of(node, "noop_with_empty_axes", 0) != 0; },
                "takes no logarithm where noop_with_empty_axes is set"},
    MisreadForm{"ReduceLogSumExp", 13, 17, with_axes, "reduces all axes, whatever its axes are"},
    MisreadForm{"Resize", 18, newest_opset,
                [](const onnx::NodeProto& node) {
                  const onnx::AttributeProto* const mode = attribute_of(node, "mode");
                  return number_of(node, "antialias", 0) != 0 && mode != nullptr && mode->s() != "nearest";
                },
                "does not read antialias"},
    MisreadForm{"RoiAlign", 10, newest_opset,
                [](const onnx::NodeProto& node) {
                  const onnx::AttributeProto* const mode = attribute_of(node, "mode");
                  return mode != nullptr && mode->s() == "max";
                },
                "takes the largest of other numbers where mode is max"},
};

// The first node of these, and of the graphs in them, that is such a form.
std::string misread_in(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, std::int64_t opset) {
  for (const auto& node : nodes) {
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g())
        if (auto found = misread_in(attribute.g().node(), opset); !found.empty()) return found;
      for (const auto& graph : attribute.graphs())
        if (auto found = misread_in(graph.node(), opset); !found.empty()) return found;
    }
    if (!node.domain().empty() && node.domain() != "ai.onnx") continue;
    const auto form = std::ranges::find_if(misread_forms, [&](const MisreadForm& each) {
      return each.op == node.op_type() && each.first <= opset && opset <= each.last && each.is(node);
    });
    if (form != misread_forms.end())
      return "node '" + shown(node.name()) + "' (" + shown(node.op_type()) + "): OpenVINO " +
             std::string(form->what);
  }
  return {};
}
std::string misread_in(const onnx::ModelProto& model, std::int64_t opset) {
  for (const auto& function : model.functions())
    if (auto found = misread_in(function.node(), opset); !found.empty()) return found;
  return misread_in(model.graph().node(), opset);
}

}  // namespace

std::string onnx_type_name(std::int64_t number) {
  if (number >= 0 && number < static_cast<std::int64_t>(names_of_types.size()))
    return std::string(names_of_types[static_cast<std::size_t>(number)]);
  return "number " + std::to_string(number);
}

Result<> check_versions(const onnx::ModelProto& model) {
  if (model.ir_version() > newest_ir_version)
    return invalid("its IR version is " + std::to_string(model.ir_version()) + "; the newest known is " +
                   std::to_string(newest_ir_version));
  std::map<std::string, std::int64_t, std::less<>> seen;
  for (const auto& import : model.opset_import()) {
    const std::string domain = import.domain().empty() ? "ai.onnx" : import.domain();
    const auto known = std::ranges::find(known_domains, domain, &KnownDomain::name);
    const std::string where = "it uses opset " + std::to_string(import.version()) +
                              (domain == "ai.onnx" ? "" : " of domain '" + shown(domain) + "'");
    if (known != known_domains.end() && import.version() < 1) return invalid(where + "; the first is 1");
    if (known != known_domains.end() && import.version() > known->newest)
      return invalid(where + "; the newest known is " + std::to_string(known->newest));
    const auto [entry, fresh] = seen.try_emplace(domain, import.version());
    if (!fresh && entry->second != import.version())
      return invalid(where + " and also " + std::to_string(entry->second) + "; there can be one");
  }
  return {};
}

Result<> check_encoding(const onnx::TensorProto& tensor) {
  if (tensor.has_segment()) return fail(ErrorCode::unsupported, "tensors in segments are not supported");
  // Numbers that the format's older description does not have are kept apart by protobuf.
  const auto& unknown = tensor.unknown_fields();
  for (int i = 0; i < unknown.field_count(); ++i)
    if (unknown.field(i).number() == onnx::TensorProto::kDataLocationFieldNumber)
      return invalid("its data_location is one that ONNX does not have");
  const auto fields = fields_of(tensor);
  const auto used = std::ranges::find(fields, true, &Field::used);
  if (used == fields.end()) return {};
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL)
    return invalid("its data are outside the file, and in " + std::string(used->name));
  if (const auto second = std::find_if(used + 1, fields.end(), [](const Field& field) { return field.used; });
      second != fields.end())
    return invalid("its data are in " + std::string(used->name) + " and in " + std::string(second->name));
  if (used->name != "raw_data" && used->name != field_for(tensor.data_type()))
    return invalid("its data are in " + std::string(used->name) + ", and those of type " +
                   onnx_type_name(tensor.data_type()) + " belong into " +
                   std::string(field_for(tensor.data_type())));
  return {};
}

Result<> check_value(std::string_view op, const onnx::AttributeProto& attribute) {
  const int values = (attribute.has_f() ? 1 : 0) + (attribute.has_i() ? 1 : 0) + (attribute.has_s() ? 1 : 0) +
                     (attribute.has_t() ? 1 : 0) + (attribute.has_g() ? 1 : 0) +
                     (attribute.has_sparse_tensor() ? 1 : 0) + (attribute.floats_size() > 0 ? 1 : 0) +
                     (attribute.ints_size() > 0 ? 1 : 0) + (attribute.strings_size() > 0 ? 1 : 0) +
                     (attribute.tensors_size() > 0 ? 1 : 0) + (attribute.graphs_size() > 0 ? 1 : 0);
  if (values > 1) return invalid("it has values of " + std::to_string(values) + " types");
  if (attribute.type() != onnx::AttributeProto::STRING) return {};
  const auto row = std::ranges::find_if(texts, [&](const Texts& each) {
    return each.attribute == attribute.name() && (each.op.empty() || each.op == op);
  });
  if (row == texts.end()) return {};
  std::string list;
  for (const std::string_view known : row->known) {
    if (known == attribute.s() && (!known.empty() || row->attribute == "auto_pad")) return {};
    if (!known.empty()) list += (list.empty() ? "" : ", ") + std::string(known);
  }
  return invalid("it is '" + shown(attribute.s()) + "', and must be one of " + list);
}

Result<> check_for_others(const onnx::ModelProto& model) {
  ReadByOthers types;
  for (const auto& function : model.functions())
    if (auto ok = types.check(function.node()); !ok) return ok;
  return types.check(model.graph());
}

std::string misread_node(const onnx::ModelProto& model) {
  std::int64_t opset = 1;
  for (const auto& import : model.opset_import())
    if (import.domain().empty() || import.domain() == "ai.onnx") opset = import.version();
  if (auto found = misread_in(model, opset); !found.empty()) return found;
  if (opset < 20) return {};
  Transforms transforms;
  for (const auto& function : model.functions())
    if (auto found = transforms.find(function.node()); !found.empty()) return found;
  return transforms.find(model.graph());
}

}  // namespace carillon::graph
