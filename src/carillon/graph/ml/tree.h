#pragma once

#include <cstdint>

namespace carillon::graph::ml {

// A tree ensemble as its kernel walks it: nodes in one list, children by their places in it.
enum class Branch : std::uint32_t { leq, lt, gte, gt, eq, neq, leaf };

inline constexpr std::uint32_t feature_bits = 27;  // features are below 2^27
inline constexpr std::uint32_t missing_bit = 1U << feature_bits;
inline constexpr std::uint32_t branch_shift = feature_bits + 1;

template <typename T>
struct TreeNode {
  T value = 0;             // what the feature is compared with; of a leaf: the sum of its weights
  std::uint32_t what = 0;  // the feature, whether NaN goes the true way, and the Branch
  std::uint32_t yes = 0;   // where to go if it holds; of a leaf: its first weight
  std::uint32_t no = 0;    // of a leaf: how many weights

  Branch branch() const { return static_cast<Branch>(what >> branch_shift); }
  std::uint32_t feature() const { return what & (missing_bit - 1); }
  bool missing_is_yes() const { return (what & missing_bit) != 0; }
};

}  // namespace carillon::graph::ml
