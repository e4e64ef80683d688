#pragma once

#include <optional>
#include <span>

#include "carillon/base/result.h"
#include "carillon/graph/faults.h"
#include "carillon/graph/graph.h"
#include "carillon/graph/origin.h"

namespace carillon::graph {

// Of the tensors that plain kernels read and write.
inline constexpr int most_plain_dimensions = 16;

// A dense row-major tensor somewhere in memory.
struct ConstView {
  const TensorType* type = nullptr;  // nullptr: an absent optional input
  const std::byte* data = nullptr;
  const Origin* origin = nullptr;  // whose data it is; nullptr: no request's

  explicit operator bool() const { return type != nullptr; }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};
struct MutableView {
  const TensorType* type = nullptr;  // nullptr: an output that nobody wants
  std::byte* data = nullptr;
  Faults* faults = nullptr;  // see PlainKernel; nullptr: nobody takes notes

  explicit operator bool() const { return type != nullptr; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

// A plain kernel: computes `outputs` from `inputs`, whose types are those of the node's values, post-ops
// excluded. Thread-safe, allocates nothing that grows with the tensors (but see plain_workspace()), fails
// only for bad data (an index out of range), and then says which node. Outputs never overlap inputs.
//
// Bad data of a request (an operand with an origin) is no failure where the first output has `faults`: it is
// noted there, against its row, and the kernel goes on with a harmless value. Not where it can be told only
// when the whole operand has been read, or has no harmless value.
using PlainKernel = Result<> (*)(const Node& node, std::span<const ConstView> inputs,
                                 std::span<const MutableView> outputs);

// The plain kernel for `node` with these input types (absent inputs: nullptr), or nullptr where there is none
// for the operator or these types, or an input has more than most_plain_dimensions. Plain kernels fold
// constants, serve as the reference in tests, and run where an engine has nothing faster.
PlainKernel find_plain_kernel(const Node& node, std::span<const TensorType* const> inputs);

// Whether no operand (absent: nullptr) has more than most_plain_dimensions. Errors (unsupported): how many it
// has.
Result<> check_dimensions(std::span<const TensorType* const> operands);

// What the node's plain kernel works in, of those few whose room grows with their tensors. Whoever plans
// memory gives it as one more output behind the node's; where it is not given the kernel allocates it.
std::optional<TensorType> plain_workspace(const Node& node, std::span<const TensorType* const> inputs);

// Applies `node.post_ops` to `output` (f32 only) in place; `operands` views each post-op's operand (empty
// where none).
void apply_post_ops(const Node& node, std::span<const ConstView> operands, const MutableView& output);

}  // namespace carillon::graph
