#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "carillon/graph/kernel.h"

namespace carillon::graph {

// How the plain kernel of a node can run slice by slice: on views of equal parts of some of its operands and
// of the whole of the others it computes equal parts of the outputs, and the same as at once. Slices lie one
// behind the other, are independent of each other, and may be taken together: so many of them are a view as
// one is.
class Slices {
 public:
  // Of these operands; those that are absent are nullptr. `constants`: what inputs hold, where it is known
  // (shorter or nullptr: it is not). Nothing where the kernel has to run at once: where slices depend on each
  // other, or where nobody has worked out that they do not; where it takes notes of bad data; where there is
  // only one.
  static std::optional<Slices> of(const Node& node, std::span<const TensorType* const> inputs,
                                  std::span<const TensorType* const> outputs,
                                  std::span<const TensorType* const> post_op_operands,
                                  std::span<const Tensor* const> constants);

  std::int64_t count() const { return count_; }  // at least 2

  // An operand as slices see it.
  struct Operand {
    std::uint64_t stride = 0;  // bytes from one slice to the next; 0: all have the whole of it
    Shape shape;               // of one slice
    std::size_t along = 0;     // the dimension that grows where several are taken together
  };
  // Inputs, outputs, the post-ops' operands, in this order.
  std::span<const Operand> operands() const { return operands_; }
  // What operand `index`, of type `whole`, is in a view of `slices` of them.
  TensorType type(std::size_t index, const TensorType& whole, std::int64_t slices) const;

 private:
  std::int64_t count_ = 0;
  std::vector<Operand> operands_;
};

}  // namespace carillon::graph
