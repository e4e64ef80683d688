#include "carillon/engine/openvino/module/judges.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>

#include "carillon/engine/openvino/module/nodes.h"

namespace carillon::engine::second {

std::string text(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-infinity" : "infinity";
  if (number != std::floor(number) || std::abs(number) >= 1e15) {
    std::array<char, 32> out{};
    std::snprintf(out.data(), out.size(), "%g", number);
    return out.data();
  }
  return std::to_string(static_cast<std::int64_t>(number));
}

std::string text(const Extents& extents) {
  std::string out = "[";
  for (std::size_t i = 0; i < extents.size(); ++i) out += (i == 0 ? "" : ",") + text(extents[i]);
  return out + "]";
}

Room::Room(const ov::Node& node, std::uint64_t most)
    : name_(name_of(node)),
      element_(static_cast<double>(node.get_output_element_type(0).size())),
      most_(most) {}

std::string Room::look_at(const Extents& extents) const {
  double bytes = element_;
  for (const double extent : extents) {
    if (!(extent >= 0)) return name_ + " would give " + text(extents) + "; an extent must be at least 0";
    bytes *= extent;
  }
  // Infinity times 0, too.
  if (bytes <= static_cast<double>(most_)) return {};
  return name_ + " would give " + text(extents) + ", " + text(bytes) +
         " bytes; where data decide a size, a result may have at most " + std::to_string(most_) +
         " bytes, the device's workspace";
}

std::size_t place_of(double axis, std::size_t rank) {
  return static_cast<std::size_t>(axis < 0 ? axis + static_cast<double>(rank) : axis);
}

std::string below_0(const Room& room, const char* what, const std::vector<double>& sizes) {
  const auto worst = std::ranges::min_element(sizes);
  if (worst == sizes.end() || *worst >= 0) return {};
  return room(std::string("has ") + what + " of " + text(*worst) + "; it must be at least 0");
}

std::string judge_repeats(const Room& room, const Extents& data, std::vector<double>& repeats) {
  std::string fault = below_0(room, "a number of repeats", repeats);
  const std::size_t rank = std::max(data.size(), repeats.size());
  Extents extents(rank, 1);
  for (std::size_t i = 0; i < rank; ++i) {
    if (i < data.size()) extents[rank - 1 - i] *= data[data.size() - 1 - i];
    if (i < repeats.size()) extents[rank - 1 - i] *= repeats[repeats.size() - 1 - i];
  }
  if (fault.empty()) fault = room.look_at(extents);
  if (!fault.empty()) std::ranges::fill(repeats, 1);
  return fault;
}

std::string judge_broadcast(const Room& room, const Extents& data, std::vector<double>& wanted,
                            const std::optional<std::vector<std::int64_t>>& axes, bool both) {
  std::string fault = below_0(room, "an extent", wanted);
  std::vector<double> small(wanted.size(), 1);
  Extents extents = wanted;
  if (both && data.size() > extents.size()) extents.insert(extents.begin(), data.size() - extents.size(), 1);
  for (std::size_t i = 0; i < data.size(); ++i) {
    std::size_t at = wanted.size() - data.size() + i;
    if (axes) at = i < axes->size() ? static_cast<std::size_t>((*axes)[i]) : small.size();
    if (at < small.size()) small[at] = data[i];
    if (both) {
      double& extent = extents[extents.size() - data.size() + i];
      if (fault.empty() && extent != data[i] && extent != 1 && data[i] != 1)
        fault = room("is told " + text(wanted) + ", to which " + text(data) + " cannot be broadcast");
      extent = extent == 0 || data[i] == 0 ? 0 : std::max(extent, data[i]);
    }
  }
  if (fault.empty()) fault = room.look_at(extents);
  if (!fault.empty()) wanted = small;
  return fault;
}

std::string judge_reshape(const Room& room, const Extents& data, bool copies, std::vector<double>& wanted) {
  const auto product = [](const Extents& extents) {
    return std::accumulate(extents.begin(), extents.end(), 1.0, std::multiplies());
  };
  const double elements = product(data);
  if (elements == 0) return {};
  Extents extents = wanted;
  std::size_t open = 0;
  bool fits = true;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    double& extent = extents[i];
    if (extent == 0 && copies && i < data.size()) extent = data[i];
    open += extent == -1;
    if (extent == -1) extent = 1;
    fits = fits && extent > 0;
  }
  const double told = product(extents);
  if (fits && (open == 0 ? told == elements : open == 1 && std::fmod(elements, told) == 0)) return {};
  std::string fault = room("is told " + text(wanted) + ", which " + text(data) + " cannot be reshaped to");
  std::ranges::fill(wanted, 1);
  wanted.front() = elements;
  return fault;
}

namespace {

// How many elements a Range has, by ONNX's text: none against the direction of its step.
double steps_in(double start, double stop, double step) {
  return std::max(std::ceil((stop - start) / step), 0.0);
}

}  // namespace

std::string judge_range(const Room& room, const std::array<double, 3>& all, int which, bool whole, bool sizes,
                        std::vector<double>& values) {
  const auto [start, stop, step] = all;
  std::string fault;
  const double steps = steps_in(start, stop, step);
  if (step == 0)
    fault = room("has a delta of 0");
  else if (!std::isfinite(steps))
    fault = room("has the start " + text(start) + ", the limit " + text(stop) + " and the delta " +
                 text(step) + ", which give no number of elements");
  else if (whole && std::abs(stop - start) > most_whole)
    fault = room("goes from " + text(start) + " to " + text(stop) +
                 ", and OpenVINO computes whole numbers in 32 bits");
  else if (sizes && stop < 0)
    fault = room("has a size of " + text(stop) + "; it must be at least 0");
  else
    fault = room.look_at({steps});
  if (values.empty()) return fault;
  // One element, and a step that is a number.
  if (!fault.empty()) values[0] = which == 0 ? 0 : 1;
  if (!fault.empty()) return fault;
  if (steps == 0)  // whatever is infinite
    values[0] = which == 2 ? 1 : 0;
  else if (which == 1 &&
           !whole)  // OpenVINO rounds where it divides: half a step from either number of elements
    values[0] = start + (steps - 0.5) * step;
  return {};
}

}  // namespace carillon::engine::second
