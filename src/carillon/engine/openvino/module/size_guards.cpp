#include "carillon/engine/openvino/module/size_guards.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <openvino/op/add.hpp>
#include <openvino/op/constant.hpp>
#include <openvino/op/convert.hpp>
#include <openvino/op/divide.hpp>
#include <openvino/op/eye.hpp>
#include <openvino/op/floor_mod.hpp>
#include <openvino/op/interpolate.hpp>
#include <openvino/op/loop.hpp>
#include <openvino/op/mod.hpp>
#include <openvino/op/multiply.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/power.hpp>
#include <openvino/op/range.hpp>
#include <openvino/op/reduce_prod.hpp>
#include <openvino/op/reduce_sum.hpp>
#include <openvino/op/reshape.hpp>
#include <openvino/op/result.hpp>
#include <openvino/op/shape_of.hpp>
#include <openvino/op/subtract.hpp>
#include <openvino/op/tile.hpp>
#include <openvino/op/util/broadcast_base.hpp>
#include <openvino/op/util/fft_base.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>
#include <openvino/op/util/one_hot_base.hpp>
#include <openvino/op/util/pad_base.hpp>
#include <openvino/op/util/shape_of_base.hpp>
#include <openvino/op/variadic_split.hpp>

#include "carillon/engine/openvino/module/judges.h"
#include "carillon/engine/openvino/module/nodes.h"
#include "carillon/engine/openvino/module/origins.h"

namespace carillon::engine::second {
namespace {

using Body = ov::op::util::MultiSubGraphOp;
using ov::op::v5::Loop;

bool is_cut(const ov::element::Type& type) {
  return type == ov::element::i64 || type == ov::element::u64 || type == ov::element::u32;
}

// Below this FP32 has all whole numbers, and rounds none to one of them.
constexpr double most_exact = 16777215;
bool is_wide(const ov::element::Type& type) {
  return is_cut(type) || type == ov::element::i32;
}

std::optional<std::vector<std::int64_t>> constant_of(const ov::Output<ov::Node>& value) {
  const auto constant = ov::as_type_ptr<ov::op::v0::Constant>(value.get_node_shared_ptr());
  if (constant == nullptr) return std::nullopt;
  return constant->cast_vector<std::int64_t>();
}

// Whether no result is outside, as far as the operands' least and greatest elements show.
template <typename Two, typename Outside>
bool fits_at_ends(const Two& two, const Outside& outside, const std::vector<double>& a,
                  const std::vector<double>& b) {
  if (a.empty() || b.empty()) return true;
  const auto in_a = std::ranges::minmax(a), in_b = std::ranges::minmax(b);
  for (const double x : {in_a.min, in_a.max})
    for (const double y : {in_b.min, in_b.max})
      if (!(std::abs(two(x, y)) <= most_whole) || outside(two(x, y))) return false;
  return true;
}
// Calls `use` for each pair of elements that a broadcasting operator brings together.
template <typename Use>
void each_pair(const Seen& a, const Seen& b, const Use& use) {
  const std::size_t rank = std::max(a.shape.size(), b.shape.size());
  std::vector<std::size_t> extents(rank, 1), steps_a(rank, 0), steps_b(rank, 0);
  std::size_t step_a = 1, step_b = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::size_t d = rank - 1 - i;
    const std::size_t in_a = i < a.shape.size() ? a.shape[a.shape.size() - 1 - i] : 1;
    const std::size_t in_b = i < b.shape.size() ? b.shape[b.shape.size() - 1 - i] : 1;
    if (in_a != in_b && in_a != 1 && in_b != 1) return;  // the operator refuses them
    extents[d] = in_a == 1 ? in_b : in_a;
    if (extents[d] == 0) return;
    steps_a[d] = in_a == 1 ? 0 : step_a;
    steps_b[d] = in_b == 1 ? 0 : step_b;
    step_a *= in_a;
    step_b *= in_b;
  }
  std::vector<std::size_t> at(rank, 0);
  std::size_t place_a = 0, place_b = 0;
  for (;;) {
    use(a.values[place_a], b.values[place_b]);
    std::size_t d = rank;
    for (; d > 0; --d) {
      place_a += steps_a[d - 1];
      place_b += steps_b[d - 1];
      if (++at[d - 1] < extents[d - 1]) break;
      place_a -= steps_a[d - 1] * extents[d - 1];
      place_b -= steps_b[d - 1] * extents[d - 1];
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}
std::vector<double> reduced(const Seen& data, const std::vector<double>& axes, bool sums) {
  std::vector<bool> gone(data.shape.size(), false);
  for (const double axis : axes) {
    const double at = axis < 0 ? axis + static_cast<double>(gone.size()) : axis;
    if (at >= 0 && at < static_cast<double>(gone.size())) gone[static_cast<std::size_t>(at)] = true;
  }
  std::vector<std::size_t> steps(gone.size(), 0);
  std::size_t size = 1;
  for (std::size_t d = gone.size(); d-- > 0;) {
    if (gone[d]) continue;
    steps[d] = size;
    size *= data.shape[d];
  }
  std::vector<double> out(size, sums ? 0 : 1);
  for (std::size_t i = 0; i < data.values.size(); ++i) {
    std::size_t left = i, place = 0;
    for (std::size_t d = gone.size(); d-- > 0;) {
      place += left % data.shape[d] * steps[d];
      left /= data.shape[d];
    }
    out[place] = sums ? out[place] + data.values[i] : out[place] * data.values[i];
  }
  return out;
}

class SizeGuards {
 public:
  SizeGuards(std::uint64_t most, std::shared_ptr<Faults> faults) : most_(most), faults_(std::move(faults)) {}

  void add(ov::Model& model) {
    std::vector<std::pair<std::shared_ptr<ov::Node>, bool>> all;
    each_node(model, [&](ov::Node& node, bool inside) {
      all.emplace_back(node.shared_from_this(), inside);
      origins_.add(node, inside);
    });
    for (const auto& [node, inside] : all) {
      guard_grown(*node);  // in front of the others
      guard_told(*node, inside);
      guard_whole(*node);
      guard_division(*node);
      guard_exact(*node);
      guard_regions(*node);
      guard_steps(*node);
      guard_axis(*node);
      if (const auto loop = ov::as_type_ptr<Loop>(node)) guard_collected(*loop);
    }
    model.add_results(kept_);
  }

 private:
  using Inputs = ov::OutputVector;

  // A scalar's are those of one element in a row: OpenVINO does not run what has an operand without elements.
  static ov::Output<ov::Node> extents(const ov::Output<ov::Node>& value) {
    const ov::Rank rank = value.get_partial_shape().rank();
    if (rank.is_static() && rank.get_length() == 0)
      return ov::op::v0::Constant::create(ov::element::i64, {1}, {1});
    return std::make_shared<ov::op::v3::ShapeOf>(value);
  }
  // Puts a guard on the node's input `i`, which sees `more` behind it.
  void guard(ov::Node& node, std::size_t i, const Inputs& more, Judge judge) {
    Inputs operands{node.input_value(i)};
    operands.insert(operands.end(), more.begin(), more.end());
    replace(node, i, guarded_values(operands, std::move(judge), faults_));
  }
  void replace(ov::Node& node, std::size_t i, const ov::Output<ov::Node>& by) {
    origins_.add_guard(by, node.input_value(i));
    node.input(i).replace_source_output(by);
  }
  bool decided(const ov::Node& node) const {
    const std::size_t sizes = first_size(node);
    for (std::size_t i = 0; i < node.get_input_size(); ++i) {
      const Decided is = origins_.of(node.input_value(i));
      if (is.extents || (i >= sizes && is.contents)) return true;
    }
    return false;
  }
  // Whether all of its results have room whatever the data are, as far as their bounds are known.
  bool fits(const ov::Node& node) const {
    for (const auto& output : node.outputs()) {
      const ov::PartialShape& shape = output.get_partial_shape();
      if (shape.rank().is_dynamic()) return false;
      auto bytes = static_cast<double>(output.get_element_type().size());
      for (const ov::Dimension& extent : shape) {
        if (extent.get_max_length() < 0) return false;
        bytes *= static_cast<double>(extent.get_max_length());
      }
      if (bytes > static_cast<double>(most_)) return false;
    }
    return true;
  }

  void guard_told(ov::Node& node, bool inside) {
    using namespace ov::op;
    if (!decided(node)) return;
    const Room room(node, most_);
    if (ov::is_type<v0::Tile>(&node)) {
      guard(node, 1, {extents(node.input_value(0))},
            [room](auto seen, auto& values) { return judge_repeats(room, seen[1].values, values); });
    } else if (const auto* const broadcast = dynamic_cast<const util::BroadcastBase*>(&node)) {
      std::optional<std::vector<std::int64_t>> axes;
      if (node.get_input_size() > 2) axes = constant_of(node.input_value(2));
      const bool both = broadcast->get_broadcast_spec().m_type == BroadcastType::BIDIRECTIONAL;
      guard(node, 1, {extents(node.input_value(0))}, [room, axes, both](auto seen, auto& values) {
        return judge_broadcast(room, seen[1].values, values, axes, both);
      });
      // OpenVINO takes out a Broadcast that changes nothing, and the guard on its sizes with it.
      if (!inside && node.get_output_partial_shape(0).is_static())
        kept_.push_back(std::make_shared<v0::Result>(node.input_value(1)));
    } else if (dynamic_cast<const util::PadBase*>(&node) != nullptr) {
      const Inputs begin{node.input_value(2), extents(node.input_value(0))},
          end{node.input_value(1), extents(node.input_value(0))};
      for (const std::size_t input : {1U, 2U})
        guard(node, input, input == 1 ? begin : end, [room](auto seen, auto& values) {
          Extents wanted = seen[2].values;
          for (std::size_t i = 0; i < wanted.size() && i < values.size() && i < seen[1].values.size(); ++i)
            wanted[i] += values[i] + seen[1].values[i];
          const std::string fault = room.look_at(wanted);
          if (!fault.empty()) std::ranges::fill(values, 0);
          return fault;
        });
    } else if (const auto* const one_hot = dynamic_cast<const util::OneHotBase*>(&node)) {
      const std::int64_t axis = one_hot->get_axis();
      guard(node, 1, {extents(node.input_value(0))}, [room, axis](auto seen, auto& values) {
        Extents wanted = seen[1].values;
        const std::int64_t at = axis < 0 ? axis + static_cast<std::int64_t>(wanted.size()) + 1 : axis;
        if (values.size() != 1) return std::string();
        std::string fault = below_0(room, "a depth", values);
        wanted.insert(wanted.begin() + at, values[0]);
        if (fault.empty()) fault = room.look_at(wanted);
        if (!fault.empty()) values[0] = 1;
        return fault;
      });
    } else if (ov::is_type<v4::Range>(&node) || ov::is_type<v0::Range>(&node)) {
      guard_range(node, room);
    } else if (std::string_view(node.get_type_name()) == "Interpolate") {
      guard_resize(node, room);
    } else if (dynamic_cast<const util::FFTBase*>(&node) != nullptr && node.get_input_size() > 2) {
      guard(node, 2, {extents(node.input_value(0)), node.input_value(1)}, [room](auto seen, auto& values) {
        Extents wanted = seen[1].values;
        std::string fault;
        for (std::size_t i = 0; i < values.size() && i < seen[2].values.size(); ++i) {
          const std::size_t at = place_of(seen[2].values[i], wanted.size());
          if (values[i] < 1) fault = room("has a length of " + text(values[i]) + "; it must be at least 1");
          if (at < wanted.size()) wanted[at] = values[i];
        }
        if (fault.empty()) fault = room.look_at(wanted);
        if (!fault.empty()) std::ranges::fill(values, 1);
        return fault;
      });
    } else if (ov::is_type<v9::Eye>(&node)) {
      const Inputs rows{node.input_value(0)}, columns{node.input_value(1)};
      for (const std::size_t input : {0U, 1U})
        guard(node, input, input == 0 ? columns : rows, [room](auto seen, auto& values) {
          if (values.size() != 1 || seen[1].values.size() != 1) return std::string();
          const std::string fault = room.look_at({values[0], seen[1].values[0]});
          if (!fault.empty()) values[0] = 1;
          return fault;
        });
    } else if (const auto* const reshape = ov::as_type<v1::Reshape>(&node)) {
      guard_reshape(node, room, reshape->get_special_zero(), inside);
    } else if (ov::is_type<v1::VariadicSplit>(&node) && !named_by_openvino(node)) {
      // OpenVINO's own splits, in what it makes of other operators, have lengths of -1.
      guard(node, 2, {}, [room](auto, auto& values) { return below_0(room, "a length", values); });
    }
  }

  // Not where only shapes say the extents: a guard would hide what is known of them.
  void guard_reshape(ov::Node& node, const Room& room, bool copies, bool inside) {
    const ov::PartialShape &shape = node.get_input_partial_shape(0), &told = node.get_input_partial_shape(1);
    if (shape.rank().is_dynamic() || told.is_dynamic() || ov::shape_size(told.get_shape()) == 0 ||
        !follows_from_numbers(node.input_value(1)))
      return;
    const bool scalar = shape.rank().get_length() == 0;
    guard(node, 1, {extents(node.input_value(0))}, [room, copies, scalar](auto seen, auto& values) {
      return judge_reshape(room, scalar ? Extents() : seen[1].values, copies, values);
    });
    // OpenVINO takes out a Reshape whose result another reshapes, and the guard with it.
    if (!inside) kept_.push_back(std::make_shared<ov::op::v0::Result>(node.input_value(1)));
  }
  // Whether what an input holds decides the value, and not extents alone.
  static bool follows_from_numbers(const ov::Output<ov::Node>& value) {
    std::vector<ov::Node*> open{value.get_node()};
    std::unordered_set<ov::Node*> seen{open.front()};
    while (!open.empty()) {
      ov::Node* const node = open.back();
      open.pop_back();
      if (ov::is_type<ov::op::v0::Parameter>(node)) return true;
      if (dynamic_cast<const ov::op::util::ShapeOfBase*>(node) != nullptr) continue;
      for (const auto& input : node->input_values())
        if (seen.insert(input.get_node()).second) open.push_back(input.get_node());
    }
    return false;
  }

  void guard_range(ov::Node& node, const Room& room) {
    const Inputs all = node.input_values();
    // A window of a size, which begins at 0.
    const auto first = constant_of(all[0]);
    const bool sizes = named_by_openvino(node) && first && *first == std::vector<std::int64_t>{0};
    for (std::size_t which = 0; which < 3; ++which) {
      const bool whole = all[which].get_element_type().is_integral();
      guard(node, which, all, [room, which, whole, sizes](auto seen, auto& values) {
        std::array<double, 3> numbers{};
        for (std::size_t i = 0; i < 3; ++i)
          if (!seen[i + 1].values.empty()) numbers[i] = seen[i + 1].values.front();
        return judge_range(room, numbers, static_cast<int>(which), whole, sizes, values);
      });
    }
  }

  void guard_resize(ov::Node& node, const Room& room) {
    using namespace ov::op;
    std::size_t input = 1;
    bool scales = false;
    if (const auto* const newer = dynamic_cast<const v11::Interpolate*>(&node)) {
      scales = newer->get_attrs().shape_calculation_mode == util::InterpolateBase::ShapeCalcMode::SCALES;
    } else if (const auto* const older = dynamic_cast<const v4::Interpolate*>(&node)) {
      scales = older->get_attrs().shape_calculation_mode == util::InterpolateBase::ShapeCalcMode::SCALES;
      if (scales) input = 2;
    }
    const std::size_t axes_at = ov::is_type<v11::Interpolate>(&node) ? 2 : 3;
    Inputs more{extents(node.input_value(0))};
    if (node.get_input_size() > axes_at) more.push_back(node.input_value(axes_at));
    guard(node, input, more, [room, scales](auto seen, auto& values) {
      const Extents image = seen[1].values;
      Extents wanted = image;
      std::vector<double> same = values;
      std::string fault;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double axis =
            seen.size() > 2 && i < seen[2].values.size() ? seen[2].values[i] : static_cast<double>(i);
        const std::size_t at = place_of(axis, image.size());
        if (at >= image.size()) return std::string();
        if (scales && !(values[i] > 0 && std::isfinite(values[i])))
          fault = room("has a scale of " + text(values[i]) + "; it must be above 0 and finite");
        if (!scales && values[i] < 0)
          fault = room("has a size of " + text(values[i]) + "; it must be at least 0");
        same[i] = scales ? 1 : image[at];
        wanted[at] = scales ? std::floor(image[at] * values[i]) : values[i];
      }
      if (fault.empty()) fault = room.look_at(wanted);
      if (!fault.empty()) values = same;
      return fault;
    });
  }

  // Whole numbers that OpenVINO computes in 32 bits.
  void guard_whole(ov::Node& node) {
    using namespace ov::op;
    const bool sums = ov::is_type<v1::ReduceSum>(&node), multiplies = ov::is_type<v1::ReduceProd>(&node);
    const bool fits_none = sums || multiplies || ov::is_type<v1::Power>(&node);  // in FP32, of any width
    if (node.get_output_size() != 1 || !origins_.of(node.output(0)).contents ||
        !(fits_none ? is_wide(node.get_output_element_type(0)) : is_cut(node.get_output_element_type(0))))
      return;
    const std::string name = name_of(node);
    const auto beyond = [name](double number) {
      return name + " gives " + text(number) +
             "; OpenVINO computes whole numbers in 32 bits: " + text(least_whole) + " to " + text(most_whole);
    };
    using Two = double (*)(double, double);
    Two two = nullptr;
    double harmless = 0;
    if (ov::is_type<v1::Add>(&node)) two = [](double a, double b) { return a + b; };
    if (ov::is_type<v1::Subtract>(&node)) two = [](double a, double b) { return a - b; };
    if (ov::is_type<v1::Multiply>(&node)) {
      two = [](double a, double b) { return a * b; };
      harmless = 1;
    }
    if (ov::is_type<v1::Power>(&node)) {
      two = [](double a, double b) { return std::pow(a, b); };
      harmless = 1;
    }
    const bool casts = ov::is_type<v0::Convert>(&node) && node.get_input_element_type(0).is_real();
    if (two == nullptr && !sums && !multiplies && !casts) return;
    refuse_wide_constants(node);
    const auto outside = [](double number) { return number < least_whole || number > most_whole; };
    if (casts) {
      // What ONNX has no whole number for is any.
      constexpr double most_known = 0x1p63;
      guard(node, 0, {}, [beyond, outside](auto, auto& values) {
        std::string fault;
        for (double& each : values)
          if (outside(std::trunc(each)) && std::abs(each) < most_known) {
            if (fault.empty()) fault = beyond(std::trunc(each));
            each = 0;
          }
        return fault;
      });
      return;
    }
    if (two != nullptr) {
      const bool powers = ov::is_type<v1::Power>(&node);  // of which the ends of operands tell nothing
      guard(node, 0, {node.input_value(1)},
            [two, harmless, beyond, outside, powers, name](auto seen, auto& values) {
              std::string fault;
              if (!powers && fits_at_ends(two, outside, seen[0].values, seen[1].values)) return fault;
              each_pair(seen[0], seen[1], [&](double a, double b) {
                const double made = two(a, b);
                if (powers && std::abs(made) > most_exact && fault.empty()) fault = inexact(name, made);
                if (!powers && outside(made) && fault.empty()) fault = beyond(made);
              });
              if (!fault.empty()) std::ranges::fill(values, harmless);
              return fault;
            });
      return;
    }
    guard(node, 0, {node.input_value(1)}, [sums, name](auto seen, auto& values) {
      std::string fault;
      Seen sizes = seen[0];
      double most = sums ? 0 : 1;
      for (double& each : sizes.values) {
        each = std::abs(each);
        most = sums ? most + each : most * std::max(each, 1.0);
      }
      if (most <= most_exact) return fault;
      for (const double made : reduced(sizes, seen[1].values, sums))
        if (made > most_exact && fault.empty()) fault = inexact(name, made);
      if (!fault.empty()) std::ranges::fill(values, sums ? 0 : 1);
      return fault;
    });
  }
  static void refuse_wide_constants(const ov::Node& node) {
    for (const auto& operand : node.input_values()) {
      const auto values = constant_of(operand);
      if (!values || !is_cut(operand.get_element_type())) continue;
      for (const std::int64_t value : *values)
        if (!std::in_range<std::int32_t>(value))
          throw std::runtime_error(name_of(node) + " computes with the constant " + std::to_string(value) +
                                   ", and OpenVINO computes whole numbers in 32 bits: " + text(least_whole) +
                                   " to " + text(most_whole));
    }
  }
  // Some operators compute whole numbers in FP32.
  void guard_exact(ov::Node& node) {
    static constexpr std::array<std::string_view, 13> names = {
        "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL1",  "Divide",  "Mod",         "FloorMod",
        "Equal",     "NotEqual",  "Less",       "LessEqual", "Greater", "GreaterEqual"};
    if (!is_one_of(node, names)) return;
    const bool reduces = std::string_view(node.get_type_name()).starts_with("Reduce");
    for (std::size_t i = 0; i < (reduces ? 1 : node.get_input_size()); ++i) {
      if (!is_wide(node.get_input_element_type(i)) || !origins_.of(node.input_value(i)).contents) continue;
      guard(node, i, {}, [name = name_of(node)](auto, auto& values) {
        std::string fault;
        for (double& each : values) {
          if (std::abs(each) <= most_exact) continue;
          if (fault.empty()) fault = inexact(name, each);
          each = 1;
        }
        return fault;
      });
    }
  }
  static std::string inexact(const std::string& name, double number) {
    return name + " has or makes the number " + text(number) +
           "; OpenVINO computes this operator in FP32, and whole numbers are exact there up to " +
           text(most_exact);
  }
  // OpenVINO gives some number for a whole one that is divided by 0.
  void guard_division(ov::Node& node) {
    using namespace ov::op;
    const bool divides =
        ov::is_type<v1::Divide>(&node) || ov::is_type<v1::Mod>(&node) || ov::is_type<v1::FloorMod>(&node);
    if (!divides || !node.get_output_element_type(0).is_integral() ||
        !origins_.of(node.input_value(1)).contents)
      return;
    guard(node, 1, {}, [name = name_of(node)](auto, auto& values) {
      if (std::ranges::find(values, 0.0) == values.end()) return std::string();
      std::ranges::replace(values, 0.0, 1.0);
      return name + " divides by 0";
    });
  }
  // OpenVINO takes the index -1 for the end of the regions, and leaves unwritten what follows.
  void guard_regions(ov::Node& node) {
    if (std::string_view(node.get_type_name()) != "ROIAlign" || node.get_input_size() < 3) return;
    guard(node, 2, {extents(node.input_value(0))}, [name = name_of(node)](auto seen, auto& values) {
      const double images = seen[1].values.front();
      for (const double value : values)
        if (!(value >= 0 && value < images)) {
          std::ranges::fill(values, 0);
          return name + " has the batch index " + text(value) +
                 (images > 0 ? "; it must be 0 to " + text(images - 1) : ", and there are no images");
        }
      return std::string();
    });
  }

  // Of a Slice by the least number of 32 bits OpenVINO ends its process, and 0 is no step.
  void guard_steps(ov::Node& node) {
    if (std::string_view(node.get_type_name()) != "Slice" || node.get_input_size() < 4 ||
        !origins_.of(node.input_value(3)).contents)
      return;
    guard(node, 3, {}, [name = name_of(node)](auto, auto& values) {
      std::string fault;
      for (double& step : values) {
        if (step != 0 && std::abs(step) <= most_whole) continue;
        if (fault.empty()) fault = name + " has the step " + text(step);
        step = 1;
      }
      return fault;
    });
  }
  // The compiled model is lost where OpenVINO itself refuses an axis.
  void guard_axis(ov::Node& node) {
    const ov::Rank rank = node.get_input_size() > 1 ? node.get_input_partial_shape(0).rank() : ov::Rank();
    if (std::string_view(node.get_type_name()) != "CumSum" || rank.is_dynamic() ||
        !origins_.of(node.input_value(1)).contents)
      return;
    const auto dimensions = static_cast<double>(rank.get_length());
    guard(node, 1, {}, [name = name_of(node), dimensions](auto, auto& values) {
      std::string fault;
      for (double& axis : values) {
        if (axis >= -dimensions && axis < dimensions) continue;
        if (fault.empty()) fault = name + " has the axis " + text(axis) + ", of " + text(dimensions);
        axis = 0;
      }
      return fault;
    });
  }

  // Whether one operand has all of the others' extents.
  static bool one_covers(const ov::Node& node) {
    const auto covers = [](const ov::PartialShape& large, const ov::PartialShape& small) {
      if (large.rank().is_dynamic() || small.rank().is_dynamic() || small.size() > large.size()) return false;
      for (std::size_t i = 1; i <= small.size(); ++i) {
        const ov::Dimension& in = small[small.size() - i];
        if (in != ov::Dimension(1) && (in.is_dynamic() || in != large[large.size() - i])) return false;
      }
      return true;
    };
    for (std::size_t i = 0; i < node.get_input_size(); ++i) {
      bool all = true;
      for (std::size_t j = 0; j < node.get_input_size(); ++j)
        all = all && (i == j || covers(node.get_input_partial_shape(i), node.get_input_partial_shape(j)));
      if (all) return true;
    }
    return false;
  }
  static bool broadcasts(const ov::Node& node) {
    return node.get_autob().m_type == ov::op::AutoBroadcastType::NUMPY;
  }

  // An operator that makes more of what data have sized. Its result is known by its own rules for shapes.
  void guard_grown(ov::Node& node) {
    if (never_grows(node) || dynamic_cast<const Body*>(&node) != nullptr || fits(node) ||
        (broadcasts(node) && one_covers(node)))
      return;
    const std::size_t sizes = first_size(node);
    static constexpr std::array<std::string_view, 7> judged = {"Tile",  "Broadcast",   "Pad", "OneHot",
                                                               "Range", "Interpolate", "Eye"};
    if (is_one_of(node, judged)) return;
    std::optional<std::size_t> held;
    bool told = false;
    for (std::size_t i = 0; i < node.get_input_size(); ++i) {
      const Decided is = origins_.of(node.input_value(i));
      told = told || (i >= sizes && is.contents);
      const ov::PartialShape& shape = node.get_input_partial_shape(i);
      const bool holds = i < sizes && shape.rank().is_static() && shape.size() > 0;
      if (holds && (is.extents || (told && !held))) held = held && is.extents ? std::min(*held, i) : i;
    }
    for (std::size_t i = 0; told && !held && i < std::min(sizes, node.get_input_size()); ++i)
      if (const auto& shape = node.get_input_partial_shape(i); shape.rank().is_static() && shape.size() > 0)
        held = i;
    if (held) hold(node, *held, sizes);
  }
  // Has the run end before the node has its input `i`, where its result would be too large.
  void hold(ov::Node& node, std::size_t i, std::size_t sizes) {
    ov::OutputVector prototypes;
    Inputs seen;
    std::vector<bool> by_value;
    for (std::size_t j = 0; j < node.get_input_size(); ++j) {
      const ov::Output<ov::Node> operand = node.input_value(j);
      if (is_constant(operand)) {
        prototypes.push_back(operand);
        continue;
      }
      prototypes.push_back(
          std::make_shared<ov::op::v0::Parameter>(operand.get_element_type(), operand.get_partial_shape()));
      by_value.push_back(j >= sizes);
      seen.push_back(j >= sizes ? operand : extents(operand));
    }
    const auto prototype = node.clone_with_new_inputs(prototypes);
    const Judge judge = [prototype, by_value, room = Room(node, most_)](auto operands, auto&) {
      return judge_by_rules(*prototype, by_value, room, operands);
    };
    replace(node, i, guarded(node.input_value(i), seen, judge, faults_));
  }
  static std::string judge_by_rules(const ov::Node& prototype, const std::vector<bool>& by_value,
                                    const Room& room, std::span<const Seen> operands) {
    try {
      ov::OutputVector inputs;
      std::size_t next = 0;
      for (const auto& operand : prototype.input_values()) {
        if (is_constant(operand)) {
          inputs.push_back(operand);
          continue;
        }
        const Seen& is = operands[next];
        if (by_value[next++])
          inputs.push_back(ov::op::v0::Constant::create(operand.get_element_type(), is.shape, is.values));
        else
          inputs.push_back(std::make_shared<ov::op::v0::Parameter>(
              operand.get_element_type(), ov::PartialShape(ov::Shape(is.values.begin(), is.values.end()))));
      }
      const auto at = prototype.clone_with_new_inputs(inputs);
      for (const auto& output : at->outputs()) {
        if (output.get_partial_shape().is_dynamic()) continue;
        const ov::Shape shape = output.get_shape();
        if (std::string fault = room.look_at(Extents(shape.begin(), shape.end())); !fault.empty())
          return fault;
      }
    } catch (const ov::Exception&) {  // the operator itself refuses them
    }
    return {};
  }
  // What a Loop collects grows with each iteration.
  void guard_collected(Loop& loop) {
    using namespace ov::op;
    const auto trips = constant_of(loop.input_value(0));
    const auto body = loop.get_function();
    for (const auto& output : loop.get_output_descriptions()) {
      const auto collected = ov::as_type_ptr<Body::ConcatOutputDescription>(output);
      if (collected == nullptr || fits(loop)) continue;
      const auto result = body->get_results().at(collected->m_body_value_index);
      const ov::PartialShape& shape = result->get_input_partial_shape(0);
      if (shape.rank().is_dynamic() || shape.size() == 0 || (trips && shape.is_static())) continue;
      const Room room(loop, most_);
      const auto axis = collected->m_axis;
      const Judge judge = [room, axis](auto seen, auto&) {
        Extents wanted = seen[0].values;
        const std::size_t at = place_of(static_cast<double>(axis), wanted.size());
        if (at < wanted.size() && !seen[1].values.empty()) wanted[at] *= seen[1].values.front() + 1;
        return room.look_at(wanted);
      };
      const Inputs seen{extents(result->input_value(0)), iteration_of(loop)};
      result->input(0).replace_source_output(guarded(result->input_value(0), seen, judge, faults_));
    }
  }
  // The number of the iteration, from 0, inside the body.
  static ov::Output<ov::Node> iteration_of(Loop& loop) {
    auto ports = loop.get_special_body_ports();
    const auto body = loop.get_function();
    if (ports.current_iteration_input_idx >= 0)
      return body->get_parameters().at(static_cast<std::size_t>(ports.current_iteration_input_idx));
    const auto number = std::make_shared<ov::op::v0::Parameter>(ov::element::i64, ov::PartialShape{1});
    body->add_parameters({number});
    ports.current_iteration_input_idx = static_cast<std::int64_t>(body->get_parameters().size()) - 1;
    loop.set_special_body_ports(ports);
    return number;
  }

  std::uint64_t most_;
  std::shared_ptr<Faults> faults_;
  Origins origins_;
  ov::ResultVector kept_;
};

}  // namespace

void guard_sizes(ov::Model& model, std::uint64_t most_bytes, const std::shared_ptr<Faults>& faults) {
  SizeGuards(most_bytes, faults).add(model);
}

}  // namespace carillon::engine::second
