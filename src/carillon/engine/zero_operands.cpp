#include "carillon/engine/zero_operands.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "carillon/engine/made_up.h"
#include "carillon/graph/bounded.h"

namespace carillon::engine {
namespace {

std::vector<graph::Tensor> zero_blocks(std::span<const graph::TensorSpec> specs) {
  std::vector<graph::Tensor> made;
  for (const graph::TensorSpec& spec : specs)
    made.push_back(zero_block(graph::memory_of(spec.type, spec.shape)));
  return made;
}

}  // namespace

graph::Tensor zero_block(Bytes size) {
  return graph::Tensor(
      {graph::DataType::u8, {static_cast<std::int64_t>(std::max<std::uint64_t>(size.count, 1))}});
}

ZeroOperands::ZeroOperands(const Plan& plan, const std::byte* weights, Team* team)
    : plan_(plan),
      inputs_(zero_blocks(plan.inputs())),
      outputs_(zero_blocks(plan.outputs())),
      workspace_(zero_block(plan.workspace())),
      state_(plan.make_state(team)) {
  for (const graph::Tensor& tensor : inputs_) from_.push_back(tensor.bytes().data());
  for (graph::Tensor& tensor : outputs_) to_.push_back(tensor.bytes().data());
  faults_.results_unwanted = true;
  binding_ = {.inputs = from_,
              .outputs = to_,
              .workspace = workspace_.bytes().data(),
              .weights = weights,
              .faults = &faults_,
              .state = state_.get()};
}

void ZeroOperands::fill(int way) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const graph::TensorSpec& spec = plan_.inputs()[i];
    make_up(way, i, spec.type, inputs_[i].bytes().first(graph::memory_of(spec.type, spec.shape).count));
  }
}

const Binding& ZeroOperands::binding() {
  faults_.clear();
  return binding_;
}

}  // namespace carillon::engine
