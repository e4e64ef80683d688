#include "carillon/engine/openvino/module/loop_shapes.h"

#include <cstddef>
#include <memory>
#include <string>

#include <openvino/op/loop.hpp>
#include <openvino/op/reshape.hpp>
#include <openvino/op/shape_of.hpp>

#include "carillon/engine/openvino/module/guard.h"
#include "carillon/engine/openvino/module/nodes.h"

namespace carillon::engine::second {
namespace {

using ov::op::v5::Loop;

// Puts a Reshape to the extents that the value has in front of the input. The extents pass a guard that
// judges nothing: OpenVINO does not foresee what a guard gives.
void open(ov::Node& node, std::size_t input) {
  const auto extents = std::make_shared<ov::op::v3::ShapeOf>(node.input_value(input));
  const Judge judge = [](auto, auto&) { return std::string(); };
  const auto opened = std::make_shared<ov::op::v1::Reshape>(
      node.input_value(input), guarded_values({extents}, judge, std::make_shared<Faults>()), false);
  opened->set_friendly_name(node.get_friendly_name());
  node.input(input).replace_source_output(opened);
}

bool open_in(ov::Model& model) {
  bool opened = false;
  for (const auto& node : model.get_ordered_ops()) {
    each_body(*node, [&](ov::Model& body) { opened = open_in(body) || opened; });
    const auto loop = ov::as_type_ptr<Loop>(node);
    if (loop == nullptr) continue;
    const auto& ports = loop->get_special_body_ports();
    const auto& results = loop->get_function()->get_results();
    const bool goes_on =
        ports.body_condition_output_idx >= 0 &&
        is_constant(results.at(static_cast<std::size_t>(ports.body_condition_output_idx))->input_value(0));
    if (is_constant(loop->input_value(0)) && is_constant(loop->input_value(1)) && goes_on) continue;
    for (const auto& input : loop->get_input_descriptions()) {
      const auto carried = ov::as_type_ptr<Loop::MergedInputDescription>(input);
      if (carried == nullptr) continue;
      const ov::PartialShape& first = loop->get_input_partial_shape(carried->m_input_index);
      const ov::PartialShape& next = results.at(carried->m_body_value_index)->get_input_partial_shape(0);
      if (first.rank().is_dynamic() || first.size() == 0 || first == next) continue;
      open(*loop, carried->m_input_index);
      open(*results.at(carried->m_body_value_index), 0);
      loop->get_function()
          ->get_parameters()
          .at(carried->m_body_parameter_index)
          ->set_partial_shape(ov::PartialShape::dynamic(first.rank()));
      opened = true;
    }
  }
  return opened;
}

}  // namespace

void open_carried_shapes(ov::Model& model) {
  if (open_in(model)) model.validate_nodes_and_infer_types();
}

}  // namespace carillon::engine::second
