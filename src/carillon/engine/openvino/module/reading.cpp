#include "carillon/engine/openvino/module/reading.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <openvino/op/if.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>

namespace carillon::engine::second {
namespace {

bool has_if(const ov::Model& model) {
  const auto ops = model.get_ops();
  return std::ranges::any_of(ops, [](const auto& node) {
    if (ov::is_type<ov::op::v8::If>(node)) return true;
    const auto body = ov::as_type_ptr<ov::op::util::MultiSubGraphOp>(node);
    for (std::size_t i = 0; body != nullptr && i < body->get_internal_subgraphs_size(); ++i)
      if (has_if(*body->get_function(i))) return true;
    return false;
  });
}

// The key of an entry of TensorProto's external_data, as protobuf writes it.
constexpr const char* elsewhere = "\x0a\x08location";

}  // namespace

std::shared_ptr<ov::Model> read_onnx(ov::Core& core, const std::string& file) {
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

}  // namespace carillon::engine::second
