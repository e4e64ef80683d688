#include "carillon/engine/openvino/module/reading.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

#include <openvino/op/constant.hpp>
#include <openvino/op/if.hpp>
#include <openvino/op/rdft.hpp>
#include <openvino/op/squeeze.hpp>

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
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream) throw std::runtime_error("'" + file + "' cannot be read");
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

bool take_out_in(const ov::Model& model) {
  bool any = false;
  each_node(model, [&](ov::Node& node, bool) {
    // What OpenVINO makes of other operators has its own names.
    if (ov::is_type<ov::op::v9::RDFT>(&node) && !named_by_openvino(node)) any = take_out_last(node) || any;
  });
  return any;
}

}  // namespace

std::shared_ptr<ov::Model> read_onnx(ov::Core& core, const std::string& file) {
  std::shared_ptr<ov::Model> model = read_as_it_is(core, file);
  if (!file.ends_with(".xml") && take_out_in(*model)) model->validate_nodes_and_infer_types();
  return model;
}

}  // namespace carillon::engine::second
