#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/faults.h"
#include "carillon/graph/tensor.h"

namespace carillon::engine {

// Zeros, at an address that plans want; at least one byte.
graph::Tensor zero_block(Bytes size);

// Operands of a plan in memory of their own, for runs that are measured: inputs are zeros, or made up in
// another way (made_up.h). One run at a time. `weights` are as Binding has them; these, the plan and the team
// outlive it.
class ZeroOperands {
 public:
  ZeroOperands(const Plan& plan, const std::byte* weights, Team* team);
  ZeroOperands(const ZeroOperands&) = delete;
  ZeroOperands& operator=(const ZeroOperands&) = delete;

  // Makes up all inputs.
  void fill(int way);
  // For the next run.
  const Binding& binding();
  graph::Faults& faults() { return faults_; }

 private:
  const Plan& plan_;
  std::vector<graph::Tensor> inputs_, outputs_;
  graph::Tensor workspace_;
  std::vector<const std::byte*> from_;
  std::vector<std::byte*> to_;
  std::unique_ptr<RunState> state_;
  graph::Faults faults_;
  Binding binding_;
};

}  // namespace carillon::engine
