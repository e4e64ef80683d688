#include "carillon/engine/openvino/module/doubles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include <openvino/op/constant.hpp>
#include <openvino/op/convert.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/result.hpp>
#include <openvino/op/util/shape_of_base.hpp>

#include "carillon/engine/openvino/module/nodes.h"

namespace carillon::engine::second {
namespace {

bool has_double(const ov::Node& node) {
  const auto is = [](const auto& port) { return port.get_element_type() == ov::element::f64; };
  return std::ranges::any_of(node.inputs(), is) || std::ranges::any_of(node.outputs(), is);
}

// Whether OpenVINO leaves it to a run: its value follows from inputs, or from extents that are open.
bool at_run_time(const ov::Node& node, const std::unordered_set<const ov::Node*>& known) {
  if (ov::is_type<ov::op::v0::Parameter>(&node)) return true;
  if (dynamic_cast<const ov::op::util::ShapeOfBase*>(&node) != nullptr)
    return node.get_input_partial_shape(0).is_dynamic();
  return std::ranges::any_of(node.input_values(),
                             [&](const auto& input) { return known.contains(input.get_node()); });
}

void refuse_wide(const ov::Node& node) {
  const auto values = ov::as_type_ptr<ov::op::v0::Constant>(node.get_input_node_shared_ptr(0));
  if (values == nullptr || values->get_element_type() != ov::element::f64 ||
      !node.get_output_element_type(0).is_real() || node.get_output_element_type(0) == ov::element::f64)
    return;
  for (const double value : values->cast_vector<double>())
    if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
      throw std::runtime_error(name_of(node) + " casts the FP64 constant " + std::to_string(value) + " to " +
                               node.get_output_element_type(0).to_string() +
                               ", and OpenVINO gives the largest number of FP32 for it");
}

void look_through(const ov::Model& model) {
  std::unordered_set<const ov::Node*> at_run;
  for (const auto& node : model.get_ordered_ops()) {
    if (at_run_time(*node, at_run)) at_run.insert(node.get());
    each_body(*node, look_through);
    if (ov::is_type<ov::op::v0::Convert>(node)) refuse_wide(*node);
    const bool computes = !ov::is_type<ov::op::v0::Parameter>(node) &&
                          !ov::is_type<ov::op::v0::Result>(node) &&
                          dynamic_cast<const ov::op::util::ShapeOfBase*>(node.get()) == nullptr;
    if (computes && at_run.contains(node.get()) && has_double(*node))
      throw std::runtime_error(name_of(*node) +
                               " has FP64 values, and OpenVINO computes FP64 as FP32: infinities and numbers "
                               "beyond FP32 would come out wrong");
  }
}

}  // namespace

void refuse_doubles(const ov::Model& model) {
  look_through(model);
}

}  // namespace carillon::engine::second
