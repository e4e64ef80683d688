#include "carillon/engine/openvino/module/unwritten.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <openvino/op/constant.hpp>
#include <openvino/op/loop.hpp>
#include <openvino/op/result.hpp>
#include <openvino/op/shape_of.hpp>
#include <openvino/op/util/gather_nd_base.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>

namespace carillon::engine::second {
namespace {

using Body = ov::op::util::MultiSubGraphOp;
using ov::op::v5::Loop;

// With an operand of no elements these write their result, or have none to write. Found by running each so.
bool always_writes(const ov::Node& node) {
  static constexpr std::array names = {std::string_view("Broadcast"),
                                       std::string_view("Concat"),
                                       std::string_view("Constant"),
                                       std::string_view("NullNode"),
                                       std::string_view("Pad"),
                                       std::string_view("Parameter"),
                                       std::string_view("ReduceL1"),
                                       std::string_view("ReduceL2"),
                                       std::string_view("ReduceProd"),
                                       std::string_view("ReduceSum"),
                                       std::string_view("Reshape"),
                                       std::string_view("Result"),
                                       std::string_view("ScatterElementsUpdate"),
                                       std::string_view("ScatterNDUpdate"),
                                       std::string_view("ScatterUpdate"),
                                       std::string_view("ShapeOf"),
                                       std::string_view("Slice"),
                                       std::string_view("Squeeze"),
                                       std::string_view("StridedSlice"),
                                       std::string_view("Tile"),
                                       std::string_view("Transpose"),
                                       std::string_view("Unsqueeze")};
  return std::ranges::find(names, std::string_view(node.get_type_name())) != names.end();
}

bool may_be_empty(const ov::PartialShape& shape) {
  return shape.rank().is_static() &&
         std::ranges::any_of(shape, [](const ov::Dimension& extent) { return extent.get_min_length() == 0; });
}
bool is_empty(const ov::PartialShape& shape) {
  return shape.rank().is_static() &&
         std::ranges::any_of(shape, [](const ov::Dimension& extent) { return extent == ov::Dimension(0); });
}
bool has_elements(const ov::PartialShape& shape) {
  return shape.rank().is_static() &&
         std::ranges::all_of(shape, [](const ov::Dimension& extent) { return extent.get_min_length() > 0; });
}

bool is_constant(const ov::Output<ov::Node>& value) {
  return ov::is_type<ov::op::v0::Constant>(value.get_node_shared_ptr());
}
// A constant's only element.
std::int64_t element_of(const ov::Output<ov::Node>& value) {
  const auto elements =
      ov::as_type_ptr<ov::op::v0::Constant>(value.get_node_shared_ptr())->cast_vector<std::int64_t>();
  return elements.empty() ? 0 : elements.front();
}
// A trip count of -1 is none: the condition alone ends the Loop.
bool no_iterations(std::int64_t trips) {
  return trips == 0 || trips < -1;
}

// Whether something of it that is read has no value before its first iteration has ended.
bool collects(const Body& node) {
  std::set<std::uint64_t> carried;
  for (const auto& input : node.get_input_descriptions(0))
    if (const auto merged = ov::as_type_ptr<Body::MergedInputDescription>(input))
      carried.insert(merged->m_body_value_index);
  return std::ranges::any_of(node.get_output_descriptions(0), [&](const auto& output) {
    return !node.output(output->m_output_index).get_target_inputs().empty() &&
           (ov::is_type<Body::ConcatOutputDescription>(output) ||
            !carried.contains(output->m_body_value_index));
  });
}

// OpenVINO names some of its nodes itself; of their operands one has a name of the file's.
std::string name_of(const ov::Node& node) {
  return std::string(node.get_type_name()) + " '" + node.get_friendly_name() + "'";
}
[[noreturn]] void refuse(const ov::Node& node, const std::string& why) {
  throw std::runtime_error(name_of(node) + " " + why);
}
constexpr const char* unwritten_collection =
    "runs 0 times, and OpenVINO leaves unwritten what such a Loop collects";
std::string unwritten_result(const ov::Output<ov::Node>& operand) {
  return "has an operand without elements, '" + operand.get_node()->get_friendly_name() +
         "', for which OpenVINO leaves its result unwritten";
}

// OpenVINO's GatherND reads whatever lies where an index points, its own data or not. So all indices and
// extents must be known, and go together.
void refuse_unchecked(const ov::Node& node) {
  const auto* const gather = dynamic_cast<const ov::op::util::GatherNDBase*>(&node);
  if (gather == nullptr) return;
  const ov::PartialShape& data = node.get_input_partial_shape(0);
  const ov::PartialShape& indices = node.get_input_partial_shape(1);
  if (!is_constant(node.input_value(1)) || data.is_dynamic())
    refuse(
        node,
        "has indices or extents that are known at run time alone, and OpenVINO does not check its indices");
  const auto values = ov::as_type_ptr<ov::op::v0::Constant>(node.input_value(1).get_node_shared_ptr())
                          ->cast_vector<std::int64_t>();
  const auto depth = static_cast<std::size_t>(indices[indices.size() - 1].get_length());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t extent = data[gather->get_batch_dims() + i % depth].get_length();
    if (values[i] < -extent || values[i] >= extent)
      refuse(node, "has the index " + std::to_string(values[i]) + ", which is outside of " +
                       std::to_string(extent));
  }
}

// Calls `visit` for each operator of the model and, with `inside`, of the bodies in it.
template <typename Visit>
void each_node(const ov::Model& model, const Visit& visit, bool inside = false) {
  for (const auto& node : model.get_ordered_ops()) {
    visit(*node, inside);
    if (const auto body = ov::as_type_ptr<Body>(node))
      for (std::size_t i = 0; i < body->get_internal_subgraphs_size(); ++i)
        each_node(*body->get_function(i), visit, true);
  }
}

}  // namespace

UnwrittenWatch UnwrittenWatch::add(ov::Model& model) {
  UnwrittenWatch out;
  ov::ResultVector results;
  const std::size_t own = model.get_output_size();
  const auto watch = [&](What what, const ov::Output<ov::Node>& value, std::string error) {
    out.watched_.push_back({what, own + results.size(), std::move(error)});
    results.push_back(std::make_shared<ov::op::v0::Result>(value));
  };
  each_node(model, [&](ov::Node& node, bool inside) {
    if (const auto* const body = dynamic_cast<const Body*>(&node)) {
      out.may_leave_ = true;
      if (!ov::is_type<Loop>(&node) || !collects(*body)) return;
      const struct {
        What what;
        ov::Output<ov::Node> value;
      } deciding[] = {{What::iterations, node.input_value(0)}, {What::condition, node.input_value(1)}};
      for (const auto& [what, value] : deciding) {
        if (is_constant(value)) {
          const std::int64_t is = element_of(value);
          if (what == What::iterations ? no_iterations(is) : is == 0) refuse(node, unwritten_collection);
        } else if (inside) {
          refuse(node,
                 "is inside the body of another operator and may run 0 times, and OpenVINO leaves unwritten "
                 "what such a Loop collects");
        } else {
          watch(what, value, name_of(node) + " " + unwritten_collection);
        }
      }
      return;
    }
    refuse_unchecked(node);
    if (inside || always_writes(node)) return;
    const auto outputs = node.outputs();
    if (std::ranges::none_of(outputs,
                             [](const auto& each) { return has_elements(each.get_partial_shape()); }))
      return;
    for (const ov::Output<ov::Node>& operand : node.input_values()) {
      if (is_constant(operand) || !may_be_empty(operand.get_partial_shape())) continue;
      out.may_leave_ = true;
      watch(What::elements, std::make_shared<ov::op::v3::ShapeOf>(operand),
            name_of(node) + " " + unwritten_result(operand));
    }
  });
  model.add_results(results);
  return out;
}

void UnwrittenWatch::check(ov::InferRequest& request) const {
  for (const Watched& each : watched_) {
    const ov::Tensor told = request.get_output_tensor(each.output);
    const auto first = [&]() -> std::int64_t {
      if (told.get_size() == 0) return 0;
      if (told.get_element_type() == ov::element::i64) return *told.data<const std::int64_t>();
      if (told.get_element_type() == ov::element::i32) return *told.data<const std::int32_t>();
      if (told.get_element_type() == ov::element::boolean) return *told.data<const bool>() ? 1 : 0;
      return 0;
    };
    bool unwritten = false;
    switch (each.what) {
      case What::iterations:
        unwritten = no_iterations(first());
        break;
      case What::condition:
        unwritten = first() == 0;
        break;
      case What::elements: {
        const auto* const extents = told.data<const std::int64_t>();
        unwritten = std::find(extents, extents + told.get_size(), 0) != extents + told.get_size();
        break;
      }
    }
    if (unwritten) throw BadData(each.error);
  }
}

void refuse_unwritten(const ov::Model& model) {
  each_node(model, [](const ov::Node& node, bool) {
    if (always_writes(node) || dynamic_cast<const Body*>(&node) != nullptr) return;
    const auto outputs = node.outputs();
    if (std::ranges::all_of(outputs, [](const auto& each) { return is_empty(each.get_partial_shape()); }))
      return;
    for (const ov::Output<ov::Node>& operand : node.input_values())
      if (!is_constant(operand) && is_empty(operand.get_partial_shape()))
        refuse(node, unwritten_result(operand));
  });
}

}  // namespace carillon::engine::second
