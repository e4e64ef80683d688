#include "carillon/engine/openvino/module/data_watch.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <openvino/op/add.hpp>
#include <openvino/op/concat.hpp>
#include <openvino/op/constant.hpp>
#include <openvino/op/convert.hpp>
#include <openvino/op/convolution.hpp>
#include <openvino/op/gather.hpp>
#include <openvino/op/gather_elements.hpp>
#include <openvino/op/loop.hpp>
#include <openvino/op/matmul.hpp>
#include <openvino/op/maximum.hpp>
#include <openvino/op/minimum.hpp>
#include <openvino/op/multiply.hpp>
#include <openvino/op/not_equal.hpp>
#include <openvino/op/reduce_sum.hpp>
#include <openvino/op/reshape.hpp>
#include <openvino/op/result.hpp>
#include <openvino/op/shape_of.hpp>
#include <openvino/op/slice.hpp>
#include <openvino/op/squeeze.hpp>
#include <openvino/op/subtract.hpp>
#include <openvino/op/topk.hpp>
#include <openvino/op/util/gather_base.hpp>
#include <openvino/op/util/gather_nd_base.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>
#include <openvino/op/util/scatter_elements_update_base.hpp>
#include <openvino/op/util/scatter_nd_base.hpp>
#include <openvino/op/util/topk_base.hpp>

#include "carillon/engine/openvino/module/nodes.h"

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

// Of an operand of no elements these make some, though their shapes say none.
bool makes_some_of_none(const ov::Node& node) {
  return std::string_view(node.get_type_name()) == "Unique";
}

// With an operand of no elements these end the process: they divide by what they have none of.
bool ends_of_none(const ov::Node& node) {
  static constexpr std::array names = {std::string_view("GRUSequence"), std::string_view("LSTMSequence"),
                                       std::string_view("RNNSequence")};
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

[[noreturn]] void refuse(const ov::Node& node, const std::string& why) {
  throw std::runtime_error(name_of(node) + " " + why);
}
constexpr const char* unwritten_collection =
    "runs 0 times, and OpenVINO leaves unwritten what such a Loop collects";
constexpr const char* unchecked_place =
    "may have data without elements, and OpenVINO does not check its indices";
std::string unwritten_result(const ov::Output<ov::Node>& operand) {
  return "has an operand without elements, '" + operand.get_node()->get_friendly_name() +
         "', for which OpenVINO leaves its result unwritten";
}

// An operator that is given places in its operand 0 by its operand 1.
struct Indexed {
  std::vector<std::int64_t> axes;  // of operand 0, for each index of a place; one for all, where it has one
  // OpenVINO reads or writes whatever lies at an index outside of its axis, its own data or not. (The others
  // give zeros, or an error that names no index.)
  bool goes_beyond = false;
};

std::optional<std::int64_t> axis_in(const ov::Output<ov::Node>& value, const ov::Rank& rank) {
  if (!is_constant(value)) return std::nullopt;
  const std::int64_t axis = element_of(value);
  return axis < 0 ? axis + rank.get_length() : axis;
}

// Nothing for any other operator, and where no axis is known.
std::optional<Indexed> indexed(const ov::Node& node) {
  using namespace ov::op;
  const auto* const gather_nd = dynamic_cast<const util::GatherNDBase*>(&node);
  const auto* const scatter_nd = dynamic_cast<const util::ScatterNDBase*>(&node);
  if (gather_nd != nullptr || scatter_nd != nullptr) {
    const ov::PartialShape& indices = node.get_input_partial_shape(1);
    if (node.get_input_partial_shape(0).rank().is_dynamic() || indices.rank().is_dynamic() ||
        indices[indices.size() - 1].is_dynamic())
      refuse(
          node,
          "has places of which the data decide the number of dimensions, and OpenVINO does not check them");
    Indexed out{.axes = {}, .goes_beyond = gather_nd != nullptr};
    const auto first = static_cast<std::int64_t>(gather_nd != nullptr ? gather_nd->get_batch_dims() : 0);
    for (std::int64_t i = 0; i < indices[indices.size() - 1].get_length(); ++i) out.axes.push_back(first + i);
    return out;
  }
  const ov::Rank rank = node.get_input_size() == 0 ? ov::Rank() : node.get_input_partial_shape(0).rank();
  std::optional<std::int64_t> axis;
  bool goes_beyond = false;
  if (dynamic_cast<const util::GatherBase*>(&node) != nullptr) {
    if (rank.is_static()) axis = axis_in(node.input_value(2), rank);
  } else if (const auto* const elements = dynamic_cast<const v6::GatherElements*>(&node)) {
    if (rank.is_static())
      axis = elements->get_axis() < 0 ? elements->get_axis() + rank.get_length() : elements->get_axis();
  } else if (dynamic_cast<const util::ScatterElementsUpdateBase*>(&node) != nullptr) {
    goes_beyond = true;
    if (rank.is_static()) axis = axis_in(node.input_value(3), rank);
    if (!axis) refuse(node, "has an axis that the data decide, and OpenVINO does not check its indices");
  }
  if (!axis) return std::nullopt;
  return Indexed{.axes = {*axis}, .goes_beyond = goes_beyond};
}

// Whether all indices are known and within the least that the extents can be. Throws where an index is known
// to be outside.
bool surely_inside(const ov::Node& node, const Indexed& how) {
  if (how.axes.empty()) return true;
  if (!is_constant(node.input_value(1))) return false;
  const ov::PartialShape& data = node.get_input_partial_shape(0);
  const auto values = ov::as_type_ptr<ov::op::v0::Constant>(node.input_value(1).get_node_shared_ptr())
                          ->cast_vector<std::int64_t>();
  bool inside = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ov::Dimension& extent = data[how.axes[i % how.axes.size()]];
    const std::int64_t least = extent.get_min_length();
    const bool within = values[i] >= -least && values[i] < least;
    if (!within && extent.is_static())
      refuse(node,
             "has the index " + std::to_string(values[i]) + ", which is outside of " + std::to_string(least));
    inside = inside && within;
  }
  return inside;
}

std::shared_ptr<ov::Node> constant(const std::vector<std::int64_t>& values) {
  return ov::op::v0::Constant::create(ov::element::i64, {values.size()}, values);
}

// All elements in a row, as i64, with a 0 behind them, so that a reduction has one at least.
ov::Output<ov::Node> flat_and_0(const ov::Output<ov::Node>& values) {
  using namespace ov::op;
  const auto flat = std::make_shared<v1::Reshape>(std::make_shared<v0::Convert>(values, ov::element::i64),
                                                  constant({-1}), false);
  return std::make_shared<v0::Concat>(ov::OutputVector{flat, constant({0})}, 0);
}

// [1]: how many flags are set, 0 for none at all.
ov::Output<ov::Node> count(const ov::Output<ov::Node>& flags) {
  return std::make_shared<ov::op::v1::ReduceSum>(flat_and_0(flags), constant({0}), true);
}

// Bounds the indices by the extents of that run's data, in front of the node. Returns [1]: how many were out
// of bounds, 0 for no indices.
ov::Output<ov::Node> bound_indices(ov::Node& node, const Indexed& how) {
  using namespace ov::op;
  const ov::Output<ov::Node> indices = node.input_value(1);
  const auto wide = std::make_shared<v0::Convert>(indices, ov::element::i64);
  const auto extents = std::make_shared<v8::Gather>(std::make_shared<v3::ShapeOf>(node.input_value(0)),
                                                    constant(how.axes), constant({0}));
  const auto lowest = std::make_shared<v1::Multiply>(extents, constant({-1}));
  const auto highest = std::make_shared<v1::Subtract>(extents, constant({1}));
  const auto zero = v0::Constant::create(ov::element::i64, {}, {0});
  // An index alone has no dimension that the extents' one could be laid along.
  const bool alone =
      indices.get_partial_shape().rank().is_static() && indices.get_partial_shape().size() == 0;
  const auto along = [&](const std::shared_ptr<ov::Node>& limits) -> std::shared_ptr<ov::Node> {
    return alone ? std::static_pointer_cast<ov::Node>(std::make_shared<v0::Squeeze>(limits, zero)) : limits;
  };
  const auto bounded =
      std::make_shared<v1::Maximum>(std::make_shared<v1::Minimum>(wide, along(highest)), along(lowest));
  node.input(1).replace_source_output(std::make_shared<v0::Convert>(bounded, indices.get_element_type()));
  return count(std::make_shared<v1::NotEqual>(wide, bounded));
}

// Has TopK find one at least, and as many as its axis has at most, and gives on as many of these as k says:
// none for 0. Returns [1]: 1 where k was outside of the axis, else 0.
ov::Output<ov::Node> bound_k(ov::op::util::TopKBase& node) {
  using namespace ov::op;
  const auto axis = constant({static_cast<std::int64_t>(node.get_axis())});
  const auto zero = constant({0}), one = constant({1});
  const auto k = std::make_shared<v1::Reshape>(
      std::make_shared<v0::Convert>(node.input_value(1), ov::element::i64), one, false);
  const auto extent =
      std::make_shared<v8::Gather>(std::make_shared<v3::ShapeOf>(node.input_value(0)), axis, zero);
  const auto wanted = std::make_shared<v1::Maximum>(std::make_shared<v1::Minimum>(k, extent), zero);
  const auto found = std::make_shared<v0::Squeeze>(std::make_shared<v1::Maximum>(wanted, one), zero);
  node.input(1).replace_source_output(found);
  for (ov::Output<ov::Node>& all : node.outputs()) {
    const auto readers = all.get_target_inputs();
    const auto some = std::make_shared<v8::Slice>(all, zero, wanted, one, axis);
    some->set_friendly_name(node.get_friendly_name());
    for (auto reader : readers) reader.replace_source_output(some);
    // Outputs of the model keep their names.
    some->output(0).set_names(all.get_names());
    all.set_names({});
  }
  return std::make_shared<v0::Convert>(std::make_shared<v1::NotEqual>(k, wanted), ov::element::i64);
}

// The same values, but 0 for each that is negative.
ov::Output<ov::Node> at_least_0(const ov::Output<ov::Node>& values) {
  return std::make_shared<ov::op::v1::Maximum>(
      values, ov::op::v0::Constant::create(values.get_element_type(), {}, {0}));
}

// A trip count below 0 is 0 in ONNX. OpenVINO takes -1 for no count at all.
void hold_trip_count(Loop& loop) {
  const ov::Output<ov::Node> trips = loop.input_value(0);
  if (!is_constant(trips)) loop.input(0).replace_source_output(at_least_0(trips));
}

// Where such a convolution comes to a width of 1, OpenVINO computes with memory that is none of its
// operands'.
void refuse_foreign_memory(const ov::Node& node) {
  const auto* const convolution = dynamic_cast<const ov::op::v1::Convolution*>(&node);
  if (convolution == nullptr || convolution->get_strides().size() != 3) return;
  const ov::PartialShape& data = node.get_input_partial_shape(0);
  const bool one_channel = data.rank().is_dynamic() || data[1].is_dynamic() || data[1].get_length() == 1;
  if (one_channel && convolution->get_strides()[1] == 1 && convolution->get_strides()[2] > 1)
    refuse(
        node,
        "convolves volumes of one channel with a stride of 1 in its second-last dimension and a larger one "
        "in its last, where OpenVINO may read memory that is none of its operands'");
}

// OpenVINO multiplies by fixed weights whatever extent the data give the other operand's inner dimension: it
// reads what lies beyond, or drops what is too much. A Reshape in front, to the extent that there should be,
// refuses any other.
void hold_inner_extent(ov::op::v0::MatMul& node) {
  using namespace ov::op;
  std::array<ov::Dimension, 2> inner;
  std::array<std::size_t, 2> axes{};
  for (const std::size_t side : {0U, 1U}) {
    const ov::PartialShape& shape = node.get_input_partial_shape(side);
    if (shape.rank().is_dynamic() || shape.size() == 0) return;
    const bool last = side == 0 ? !node.get_transpose_a() : node.get_transpose_b();
    axes[side] = shape.size() == 1 ? 0 : shape.size() - (last ? 1 : 2);
    inner[side] = shape[axes[side]];
  }
  if (inner[0].is_static() == inner[1].is_static()) return;
  const std::size_t open = inner[0].is_static() ? 1 : 0;
  const ov::Output<ov::Node> value = node.input_value(open);
  const ov::PartialShape& shape = value.get_partial_shape();
  const auto extents = std::make_shared<v3::ShapeOf>(value);
  ov::OutputVector wanted;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const ov::Dimension& extent = d == axes[open] ? inner[1 - open] : shape[d];
    if (extent.is_static())
      wanted.push_back(constant({extent.get_length()}));
    else
      wanted.push_back(
          std::make_shared<v8::Gather>(extents, constant({static_cast<std::int64_t>(d)}), constant({0})));
  }
  const auto held = std::make_shared<v1::Reshape>(value, std::make_shared<v0::Concat>(wanted, 0), false);
  held->set_friendly_name(node.get_friendly_name());
  node.input(open).replace_source_output(held);
}

}  // namespace

DataWatch DataWatch::add(ov::Model& model) {
  DataWatch out;
  ov::ResultVector results;
  const std::size_t own = model.get_output_size();
  const auto watch = [&](What what, const ov::Output<ov::Node>& value, std::string error) {
    out.watched_.push_back({what, own + results.size(), std::move(error)});
    results.push_back(std::make_shared<ov::op::v0::Result>(value));
  };
  const auto watch_indices = [&](ov::Node& node, bool inside) {
    const std::optional<Indexed> how = indexed(node);
    if (!how || surely_inside(node, *how)) return;
    if (how->goes_beyond && inside)
      refuse(node,
             "is inside the body of another operator and has indices that are known at run time alone, and "
             "OpenVINO does not check them");
    if (how->goes_beyond && may_be_empty(node.get_input_partial_shape(0))) refuse(node, unchecked_place);
    if (inside) return;  // nothing in a body can be watched
    watch(What::outside, bound_indices(node, *how), name_of(node) + " has an index outside of its axis");
  };
  each_node(model, [&](ov::Node& node, bool inside) {
    if (const auto* const body = dynamic_cast<const Body*>(&node)) {
      out.may_leave_ = true;
      if (auto* const loop = dynamic_cast<Loop*>(&node)) hold_trip_count(*loop);
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
    watch_indices(node, inside);
    refuse_foreign_memory(node);
    if (auto* const product = dynamic_cast<ov::op::v0::MatMul*>(&node)) hold_inner_extent(*product);
    if (auto* const top = dynamic_cast<ov::op::v11::TopK*>(&node);
        top != nullptr && top->get_sort_type() == ov::op::TopKSortType::SORT_VALUES)
      top->set_stable(true);
    if (auto* const top = dynamic_cast<ov::op::util::TopKBase*>(&node);
        top != nullptr && !inside && !is_constant(node.input_value(1)) &&
        node.get_input_partial_shape(0).rank().is_static())
      watch(What::outside, bound_k(*top), name_of(node) + " has a k outside of its axis");
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

void DataWatch::check(const std::function<ov::Tensor(std::size_t)>& result) const {
  for (const Watched& each : watched_) {
    const ov::Tensor told = result(each.result);
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
      case What::outside:
        unwritten = first() != 0;
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
    if (const auto how = indexed(node); how && how->goes_beyond &&
                                        is_empty(node.get_input_partial_shape(0)) &&
                                        !is_empty(node.get_input_partial_shape(1)))
      refuse(node, unchecked_place);
    if (always_writes(node) || dynamic_cast<const Body*>(&node) != nullptr) return;
    const auto outputs = node.outputs();
    if (!makes_some_of_none(node) && !ends_of_none(node) &&
        std::ranges::all_of(outputs, [](const auto& each) { return is_empty(each.get_partial_shape()); }))
      return;
    for (const ov::Output<ov::Node>& operand : node.input_values())
      if (!is_constant(operand) && is_empty(operand.get_partial_shape()))
        refuse(node, unwritten_result(operand));
  });
}

}  // namespace carillon::engine::second
