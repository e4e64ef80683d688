#pragma once

#include <map>
#include <memory>
#include <vector>

#include "carillon/engine/cpu/kernel.h"
#include "carillon/engine/cpu/plan_builder.h"
#include "carillon/graph/bounded.h"

namespace carillon::engine::cpu {

// Node "Bounded" at the extents of a run. A bounded value has a list of its extents beside its bytes: its
// maker writes it, its readers look there. Operands: inputs, outputs, the extents of inputs, those of
// outputs; absent ones, and the extents of values that have none, are counted and never placed. What cannot
// be computed with the data of the run is noted as a fault, and the results then have as few elements as they
// can.
class BoundedStep final : public Kernel {
 public:
  // `inputs`: the types in the graph (nullptr: absent), and which of their dimensions are bounded.
  struct Input {
    const graph::TensorType* type = nullptr;
    std::uint64_t bounded = 0;
  };
  // `wanted`: the node has it; `marked`: its shape as graph::marked_shapes() has it.
  struct Output {
    bool wanted = false;
    graph::Shape marked;
  };
  BoundedStep(const graph::BoundedNode& node, const std::vector<Input>& inputs, std::vector<Output> outputs);
  std::unique_ptr<Kernel> copy(graph::Faults& faults) const override;
  Result<> run(dnnl::stream& stream) override;
  void place(int operand, std::byte* address) override;
  int operand_count() const override { return static_cast<int>(2 * (inputs_.size() + outputs_.size())); }
  bool may_lack(int operand) const override;

 private:
  struct Made {
    std::vector<graph::TensorType> types;  // of inputs
    std::vector<bool> present;
    std::vector<Output> outputs;
    std::vector<std::uint64_t> bounded;
  };
  BoundedStep(const BoundedStep&) = default;
  void leave_empty();

  std::shared_ptr<const Made> made_;
  graph::BoundedNode node_;
  graph::Faults* faults_ = nullptr;
  std::vector<graph::TensorType> types_;  // of inputs, in this run
  std::vector<graph::ConstView> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<std::byte*> input_extents_, output_extents_;
};

// Lowers "Bounded" nodes, and remembers where extents lie.
class BoundedLowering {
 public:
  explicit BoundedLowering(PlanBuilder& builder)
      : builder_(builder),
        bounded_(graph::find_bounded(builder.graph())),
        marked_(graph::marked_shapes(builder.graph())) {}

  void lower(const graph::Node& node);
  // Once all nodes are lowered: appends what brings the extents of outputs to where clients find them.
  void finish();

 private:
  PlanBuilder& builder_;
  std::vector<std::uint64_t> bounded_;         // by value
  std::vector<graph::Shape> marked_;           // likewise
  std::map<graph::ValueId, Operand> extents_;  // of bounded ones
};

}  // namespace carillon::engine::cpu
