#include "carillon/engine/cpu/kernel.h"

#include <cstring>

#include "carillon/base/assert.h"

namespace carillon::engine::cpu {

DnnlKernel::DnnlKernel(const dnnl::engine& engine, dnnl::primitive primitive,
                       const std::vector<Argument>& arguments)
    : primitive_(std::move(primitive)) {
  memories_.reserve(arguments.size());
  for (const auto& [id, desc] : arguments) {
    memories_.push_back(dnnl::memory(desc, engine, nullptr));
    arguments_.emplace(id, memories_.back());
  }
}

Result<> DnnlKernel::run(dnnl::stream& stream) {
  try {
    primitive_.execute(stream, arguments_);  // returns when done: the CPU stream over OpenMP is synchronous
  } catch (const dnnl::error& e) {
    return fail(ErrorCode::internal, std::string("oneDNN: ") + e.what());
  }
  return {};
}

void DnnlKernel::place(int operand, std::byte* address) {
  memories_[static_cast<std::size_t>(operand)].set_data_handle(address);
}

PlainKernelStep::PlainKernelStep(graph::Node node, graph::PlainKernel kernel,
                                 const std::vector<const graph::TensorType*>& inputs,
                                 const std::vector<const graph::TensorType*>& outputs,
                                 const std::vector<const graph::TensorType*>& post_op_operands)
    : node_(std::move(node)), kernel_(kernel) {
  const auto keep = [this](const graph::TensorType* type) -> const graph::TensorType* {
    if (type == nullptr) return nullptr;
    types_.push_back(std::make_unique<graph::TensorType>(*type));
    return types_.back().get();
  };
  for (const auto* type : inputs) inputs_.push_back({.type = keep(type)});
  for (const auto* type : outputs) outputs_.push_back({.type = keep(type)});
  for (const auto* type : post_op_operands) post_op_operands_.push_back({.type = keep(type)});
}

void PlainKernelStep::take_notes(graph::Faults& faults, std::vector<std::optional<graph::Origin>> origins) {
  CARILLON_ASSERT(origins.size() == inputs_.size());
  origins_ = std::move(origins);
  for (std::size_t i = 0; i < inputs_.size(); ++i) inputs_[i].origin = origins_[i] ? &*origins_[i] : nullptr;
  outputs_.front().faults = &faults;
}

Result<> PlainKernelStep::run(dnnl::stream&) {
  if (auto done = kernel_(node_, inputs_, outputs_); !done) return done;
  if (!node_.post_ops.empty()) graph::apply_post_ops(node_, post_op_operands_, outputs_.front());
  return {};
}

void PlainKernelStep::place(int operand, std::byte* address) {
  auto i = static_cast<std::size_t>(operand);
  if (i < inputs_.size()) {
    inputs_[i].data = address;
    return;
  }
  i -= inputs_.size();
  if (i < outputs_.size()) {
    outputs_[i].data = address;
    return;
  }
  i -= outputs_.size();
  CARILLON_ASSERT(i < post_op_operands_.size());
  post_op_operands_[i].data = address;
}

Result<> CopyKernel::run(dnnl::stream&) {
  if (size_ > 0) std::memcpy(to_, from_, size_);
  return {};
}

void CopyKernel::place(int operand, std::byte* address) {
  (operand == 0 ? from_ : to_) = address;
}

}  // namespace carillon::engine::cpu
