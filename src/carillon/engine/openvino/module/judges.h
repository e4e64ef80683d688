#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <openvino/openvino.hpp>

// What sizes may be that operators are told, on plain numbers: each judge says what is wrong, or nothing, and
// puts harmless sizes in the place of what is wrong.
namespace carillon::engine::second {

using Extents = std::vector<double>;

// The least and the greatest whole number that OpenVINO computes with.
inline constexpr double least_whole = std::numeric_limits<std::int32_t>::min();
inline constexpr double most_whole = std::numeric_limits<std::int32_t>::max();

std::string text(double number);
std::string text(const Extents& extents);

// What a result of these extents may not be: empty if it may. Doubles hold any product, so nothing wraps.
class Room {
 public:
  Room(const ov::Node& node, std::uint64_t most);

  std::string look_at(const Extents& extents) const;
  std::string operator()(const std::string& wrong) const { return name_ + " " + wrong; }

 private:
  std::string name_;
  double element_;
  std::uint64_t most_;
};

// An axis as a place; one below 0 counts from the end of `rank`.
std::size_t place_of(double axis, std::size_t rank);

// Of sizes that are told: "has a length of -2; it must be at least 0", or nothing.
std::string below_0(const Room& room, const char* what, const std::vector<double>& sizes);

std::string judge_repeats(const Room& room, const Extents& data, std::vector<double>& repeats);

// `axes`: of the extents that the data have, where they are not aligned at their ends.
std::string judge_broadcast(const Room& room, const Extents& data, std::vector<double>& wanted,
                            const std::optional<std::vector<std::int64_t>>& axes, bool both);

// `copies`: an extent of 0 is that of the data. Of nothing there is nothing to put in the wrong place.
std::string judge_reshape(const Room& room, const Extents& data, bool copies, std::vector<double>& wanted);

// `which` of start, stop and step `values` are, whose others are `all`. `sizes`: the file has a size there
// that OpenVINO makes a Range of.
std::string judge_range(const Room& room, const std::array<double, 3>& all, int which, bool whole, bool sizes,
                        std::vector<double>& values);

}  // namespace carillon::engine::second
