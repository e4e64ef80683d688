#include "carillon/engine/openvino/module/reading.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <openvino/op/add.hpp>
#include <openvino/op/constant.hpp>
#include <openvino/op/convert.hpp>
#include <openvino/op/divide.hpp>
#include <openvino/op/equal.hpp>
#include <openvino/op/exp.hpp>
#include <openvino/op/if.hpp>
#include <openvino/op/max_pool.hpp>
#include <openvino/op/maximum.hpp>
#include <openvino/op/minimum.hpp>
#include <openvino/op/multiply.hpp>
#include <openvino/op/negative.hpp>
#include <openvino/op/range.hpp>
#include <openvino/op/rdft.hpp>
#include <openvino/op/reduce_max.hpp>
#include <openvino/op/reduce_min.hpp>
#include <openvino/op/reduce_sum.hpp>
#include <openvino/op/select.hpp>
#include <openvino/op/softmax.hpp>
#include <openvino/op/squeeze.hpp>
#include <openvino/op/subtract.hpp>
#include <openvino/op/unsqueeze.hpp>
#include <openvino/op/util/convolution_backprop_base.hpp>

#include "carillon/engine/openvino/module/nodes.h"

namespace carillon::engine::second {
namespace {

bool has_if(const ov::Model& model) {
  bool found = false;
  each_node(model, [&](const ov::Node& node, bool) { found = found || ov::is_type<ov::op::v8::If>(&node); });
  return found;
}

// The key of an entry of TensorProto's external_data, as protobuf writes it.
constexpr const char* elsewhere = "\x0a\x08location";

std::shared_ptr<ov::Model> read_as_it_is(ov::Core& core, const std::string& file) {
  const std::shared_ptr<ov::Model> model = core.read_model(file);
  if (!has_if(*model)) return model;
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream)
    throw std::runtime_error("'" + file + "' cannot be read: " + std::generic_category().message(errno));
  if (bytes.find(elsewhere) != std::string::npos)
    throw std::runtime_error(
        "the file has an If, and weights in other files; OpenVINO reads an If well from the file alone");
  return core.read_model(bytes, ov::Tensor());
}

// Of such a DFT; false where it is none, or its axes are not known.
bool take_out_last(ov::Node& transform) {
  const ov::Output<ov::Node> signal = transform.input_value(0);
  const ov::PartialShape& shape = signal.get_partial_shape();
  const auto axes = ov::as_type_ptr<ov::op::v0::Constant>(transform.get_input_node_shared_ptr(1));
  if (shape.rank().is_dynamic() || shape.size() < 2 || !shape[shape.size() - 1].compatible(1) ||
      axes == nullptr)
    return false;
  std::vector<std::int64_t> counted = axes->cast_vector<std::int64_t>();
  for (std::int64_t& axis : counted)
    if (axis < 0) axis += static_cast<std::int64_t>(shape.size());
  const auto last = ov::op::v0::Constant::create(ov::element::i64, {1}, {-1});
  transform.input(0).replace_source_output(std::make_shared<ov::op::v0::Squeeze>(signal, last));
  transform.input(1).replace_source_output(
      ov::op::v0::Constant::create(ov::element::i64, axes->get_shape(), counted));
  return true;
}

// `made` in the place of `node`, which had its outputs.
void put_in_place(ov::Node& node, const std::shared_ptr<ov::Node>& made) {
  made->set_friendly_name(node.get_friendly_name());
  for (std::size_t i = 0; i < node.get_output_size(); ++i) node.output(i).replace(made->output(i));
}

// The opset of ONNX's own operators that the file was written for; 0 where it does not say. Of the file's
// fields, each of a number and a kind, only ModelProto's opset_import is looked into.
class FileOpset {
 public:
  explicit FileOpset(const std::string& file) : stream_(file, std::ios::binary) {}

  std::int64_t find() {
    std::int64_t opset = 0;
    std::uint64_t key = 0, size = 0;
    while (number(key)) {
      if ((key & 7U) == 0) {
        if (!number(size)) break;
      } else if ((key & 7U) == 2) {
        if (!number(size)) break;
        if (key >> 3U == opset_import)
          opset = std::max(opset, one_import(size));
        else
          stream_.seekg(static_cast<std::streamoff>(size), std::ios::cur);
      } else {
        break;
      }
    }
    return opset;
  }

 private:
  static constexpr std::uint64_t opset_import = 8, domain = 1, version = 2;

  bool number(std::uint64_t& out) {
    out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const int byte = stream_.get();
      if (!stream_) return false;
      out |= (static_cast<std::uint64_t>(byte) & 127U) << shift;
      if (byte < 128) return true;
    }
    return false;
  }
  // An OperatorSetIdProto's version, if it is of ONNX's own domain.
  std::int64_t one_import(std::uint64_t size) {
    const std::streamoff end = stream_.tellg() + static_cast<std::streamoff>(size);
    std::uint64_t key = 0, value = 0;
    std::string name;
    std::int64_t found = 0;
    while (stream_.tellg() < end && number(key) && number(value)) {
      if (key == (version << 3U)) {
        found = static_cast<std::int64_t>(value);
      } else if (key == (domain << 3U | 2U) && value <= size) {
        name.resize(value);
        stream_.read(name.data(), static_cast<std::streamsize>(value));
      }
    }
    return name.empty() || name == "ai.onnx" ? found : 0;
  }

  std::ifstream stream_;
};

// Softmax of all dimensions from its axis on.
bool put_right(ov::op::v8::Softmax& node) {
  using namespace ov::op;
  const ov::Output<ov::Node> x = node.input_value(0);
  const ov::Rank rank = x.get_partial_shape().rank();
  std::int64_t axis = node.get_axis();
  if (rank.is_dynamic())
    throw std::runtime_error(name_of(node) + ": the file does not say how many dimensions its operand has, " +
                             "and OpenVINO reads a Softmax of opsets 11 and 12 along one of them alone");
  if (axis < 0) axis += rank.get_length();
  if (axis + 1 >= rank.get_length()) return false;
  std::vector<std::int64_t> axes;
  for (std::int64_t d = axis; d < rank.get_length(); ++d) axes.push_back(d);
  const auto all = v0::Constant::create(ov::element::i64, {axes.size()}, axes);
  const auto powers = std::make_shared<v0::Exp>(
      std::make_shared<v1::Subtract>(x, std::make_shared<v1::ReduceMax>(x, all, true)));
  put_in_place(node,
               std::make_shared<v1::Divide>(powers, std::make_shared<v1::ReduceSum>(powers, all, true)));
  return true;
}

// MaxPool without windows that begin behind the data.
bool put_right(ov::op::v8::MaxPool& node) {
  if (node.get_rounding_type() != ov::op::RoundingType::CEIL) return false;
  put_in_place(node, std::make_shared<ov::op::v14::MaxPool>(
                         node.input_value(0), node.get_strides(), node.get_dilations(), node.get_pads_begin(),
                         node.get_pads_end(), node.get_kernel(), ov::op::RoundingType::CEIL_TORCH,
                         node.get_auto_pad(), node.get_index_element_type(), node.get_axis()));
  return true;
}

// Arithmetic of whole numbers of a byte in 32 bits, of which the lowest 8 are the result.
bool wrap_around(ov::Node& node) {
  using namespace ov::op;
  const ov::element::Type type = node.get_output_element_type(0);
  if (type != ov::element::i8 && type != ov::element::u8) return false;
  const auto wide = [&](std::size_t i) {
    return std::make_shared<v0::Convert>(node.input_value(i), ov::element::i32);
  };
  std::shared_ptr<ov::Node> made;
  if (ov::is_type<v1::Add>(&node))
    made = std::make_shared<v1::Add>(wide(0), wide(1));
  else if (ov::is_type<v1::Subtract>(&node))
    made = std::make_shared<v1::Subtract>(wide(0), wide(1));
  else if (ov::is_type<v1::Multiply>(&node))
    made = std::make_shared<v1::Multiply>(wide(0), wide(1));
  else if (ov::is_type<v0::Negative>(&node))
    made = std::make_shared<v0::Negative>(wide(0));
  else
    return false;
  put_in_place(node, std::make_shared<v0::Convert>(made, type));
  return true;
}

bool is_scalar(const ov::Output<ov::Node>& value, float is) {
  const auto constant = ov::as_type_ptr<ov::op::v0::Constant>(value.get_node_shared_ptr());
  return constant != nullptr && ov::shape_size(constant->get_shape()) == 1 &&
         constant->cast_vector<float>().front() == is;
}

// The tensor whose least or largest number, or 0, the node gives; empty where it is another node.
template <typename Limit, typename Reduction>
ov::Output<ov::Node> limited(const ov::Output<ov::Node>& value) {
  const auto limit = ov::as_type_ptr<Limit>(value.get_node_shared_ptr());
  if (limit == nullptr || !named_by_openvino(*limit) || !is_scalar(limit->input_value(0), 0)) return {};
  const auto reduction = ov::as_type_ptr<Reduction>(limit->get_input_node_shared_ptr(1));
  return reduction == nullptr ? ov::Output<ov::Node>() : reduction->input_value(0);
}

// If the node is the scale of a DynamicQuantizeLinear: OpenVINO divides its range by 255, and the operand by
// the range, which is 0 where all numbers are. ONNX has a scale of 1 then, and divides by the scale.
bool put_right(ov::op::v1::Divide& scale) {
  using namespace ov::op;
  const auto range = ov::as_type_ptr<v1::Subtract>(scale.get_input_node_shared_ptr(0));
  if (range == nullptr || !named_by_openvino(*range) || !is_scalar(scale.input_value(1), 255)) return false;
  const ov::Output<ov::Node> x = limited<v1::Maximum, v1::ReduceMax>(range->input_value(0));
  if (x == ov::Output<ov::Node>() || x != limited<v1::Minimum, v1::ReduceMin>(range->input_value(1)))
    return false;
  const ov::element::Type type = scale.get_output_element_type(0);
  const auto made = std::make_shared<v1::Select>(
      std::make_shared<v1::Equal>(range, v0::Constant::create(type, {}, {0})),
      v0::Constant::create(type, {}, {1}), std::make_shared<v1::Divide>(range, scale.input_value(1)));
  for (const auto& reader : range->output(0).get_target_inputs()) {
    ov::Node& steps = *reader.get_node();
    if (ov::is_type<v1::Divide>(&steps) && &steps != &scale && reader.get_index() == 1)
      steps.output(0).replace(std::make_shared<v1::Divide>(x, made));
  }
  put_in_place(scale, made);
  return true;
}

// The Range behind an Unsqueeze, as OpenVINO makes them; empty where there is none.
std::shared_ptr<ov::op::v4::Range> range_of(const ov::Output<ov::Node>& value) {
  const auto row = ov::as_type_ptr<ov::op::v0::Unsqueeze>(value.get_node_shared_ptr());
  if (row == nullptr || !named_by_openvino(*row)) return nullptr;
  auto range = ov::as_type_ptr<ov::op::v4::Range>(row->get_input_node_shared_ptr(0));
  return range != nullptr && named_by_openvino(*range) ? range : nullptr;
}

// If the node is the last of a Trilu: OpenVINO counts the columns from 0 on, and the rows from k on, and
// refuses a k from which rows are counted beyond 32 bits. Beyond the corners k changes nothing, so it ends
// there.
bool put_right(ov::op::v1::Select& triangle) {
  using namespace ov::op;
  const ov::Node& compared = *triangle.get_input_node_ptr(0);
  if (!named_by_openvino(compared) || compared.get_input_size() != 2) return false;
  const auto columns = range_of(compared.input_value(0)), rows = range_of(compared.input_value(1));
  if (columns == nullptr || rows == nullptr || !is_scalar(columns->input_value(0), 0)) return false;
  const ov::Output<ov::Node> k = rows->input_value(0);
  const auto end = ov::as_type_ptr<v1::Add>(rows->get_input_node_shared_ptr(1));
  if (is_constant(k) || end == nullptr || !named_by_openvino(*end) || end->input_value(1) != k) return false;
  const auto least = std::make_shared<v0::Negative>(end->input_value(0));
  const auto held =
      std::make_shared<v1::Maximum>(std::make_shared<v1::Minimum>(k, columns->input_value(1)), least);
  rows->input(0).replace_source_output(held);
  end->input(1).replace_source_output(held);
  return true;
}

// Of open extents OpenVINO adds to the result what the padding should take from it.
void refuse_same_padding(const ov::Node& node) {
  const auto* const turned = dynamic_cast<const ov::op::util::ConvolutionBackPropBase*>(&node);
  if (turned == nullptr) return;
  const ov::op::PadType padding = turned->get_auto_pad();
  if (padding != ov::op::PadType::SAME_LOWER && padding != ov::op::PadType::SAME_UPPER) return;
  const ov::PartialShape& shape = node.get_input_partial_shape(0);
  bool open = shape.rank().is_dynamic();
  for (std::size_t d = 2; !open && d < shape.size(); ++d) open = shape[d].is_dynamic();
  if (open)
    throw std::runtime_error(name_of(node) + " pads by auto_pad what has open extents, and OpenVINO gives " +
                             "a larger result than ONNX");
}

bool put_right_in(const ov::Model& model, std::int64_t opset) {
  bool any = false;
  each_node(model, [&](ov::Node& node, bool) {
    // What OpenVINO makes of other operators has its own names.
    if (named_by_openvino(node)) return;
    refuse_same_padding(node);
    if (ov::is_type<ov::op::v9::RDFT>(&node)) any = take_out_last(node) || any;
    if (auto* const softmax = ov::as_type<ov::op::v8::Softmax>(&node); softmax && opset >= 11 && opset <= 12)
      any = put_right(*softmax) || any;
    if (auto* const pool = ov::as_type<ov::op::v8::MaxPool>(&node)) any = put_right(*pool) || any;
    if (auto* const scale = ov::as_type<ov::op::v1::Divide>(&node)) any = put_right(*scale) || any;
    if (auto* const select = ov::as_type<ov::op::v1::Select>(&node)) any = put_right(*select) || any;
    any = wrap_around(node) || any;
  });
  return any;
}

}  // namespace

std::shared_ptr<ov::Model> read_onnx(ov::Core& core, const std::string& file) {
  std::shared_ptr<ov::Model> model = read_as_it_is(core, file);
  if (!file.ends_with(".xml") && put_right_in(*model, FileOpset(file).find()))
    model->validate_nodes_and_infer_types();
  return model;
}

}  // namespace carillon::engine::second
