#include "carillon/engine/cpu/kernel.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/team.h"

namespace carillon::engine::cpu {

DnnlKernel::DnnlKernel(const dnnl::engine& engine, dnnl::primitive primitive, std::vector<Argument> arguments)
    : made_(std::make_shared<const Made>(Made{engine, std::move(primitive), std::move(arguments)})) {}

DnnlKernel::DnnlKernel(std::shared_ptr<const Made> made) : made_(std::move(made)) {
  memories_.reserve(made_->arguments.size());
  for (const auto& [id, desc] : made_->arguments) {
    memories_.push_back(dnnl::memory(desc, made_->engine, nullptr));
    arguments_.emplace(id, memories_.back());
  }
}

std::unique_ptr<Kernel> DnnlKernel::copy(graph::Faults&) const {
  return std::unique_ptr<Kernel>(new DnnlKernel(made_));
}

Result<> DnnlKernel::run(dnnl::stream& stream) {
  try {
    made_->primitive.execute(stream, arguments_);  // returns when done
  } catch (const dnnl::error& e) {
    return fail(ErrorCode::internal, std::string("oneDNN: ") + e.what());
  }
  return {};
}

void DnnlKernel::place(int operand, std::byte* address) {
  memories_[static_cast<std::size_t>(operand)].set_data_handle(address);
}

namespace {
constexpr std::size_t most_operands = 16;  // of a plain kernel that is divided: it allocates nothing
}  // namespace

PlainKernelStep::PlainKernelStep(graph::Node node, graph::PlainKernel kernel,
                                 const std::vector<const graph::TensorType*>& inputs,
                                 const std::vector<const graph::TensorType*>& outputs,
                                 const std::vector<const graph::TensorType*>& post_op_operands)
    : made_(std::make_shared<Made>(Made{.node = std::move(node), .kernel = kernel})) {
  const auto keep = [this](const graph::TensorType* type) -> const graph::TensorType* {
    if (type == nullptr) return nullptr;
    made_->types.push_back(std::make_unique<graph::TensorType>(*type));
    return made_->types.back().get();
  };
  for (const auto* type : inputs) inputs_.push_back({.type = keep(type)});
  for (const auto* type : outputs) outputs_.push_back({.type = keep(type)});
  for (const auto* type : post_op_operands) post_op_operands_.push_back({.type = keep(type)});
}

void PlainKernelStep::take_notes(std::vector<std::optional<graph::Origin>> origins) {
  CARILLON_ASSERT(origins.size() == inputs_.size());
  made_->origins = std::move(origins);
  made_->takes_notes = true;
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    inputs_[i].origin = made_->origins[i] ? &*made_->origins[i] : nullptr;
}

std::unique_ptr<Kernel> PlainKernelStep::copy(graph::Faults& faults) const {
  std::unique_ptr<PlainKernelStep> made(new PlainKernelStep(*this));
  if (made_->takes_notes) made->outputs_.front().faults = &faults;
  return made;
}

void PlainKernelStep::divide(graph::Slices slices, int parts) {
  const std::size_t operands = inputs_.size() + outputs_.size() + post_op_operands_.size();
  if (operands > most_operands) return;
  made_->parts = static_cast<int>(std::min<std::int64_t>(parts, slices.count()));
  made_->fewest = slices.count() / made_->parts;
  const auto add = [&](const graph::TensorType* type) {
    auto& of_part = made_->of_part.emplace_back();
    if (type == nullptr) return;
    const std::size_t operand = made_->of_part.size() - 1;
    of_part = {slices.type(operand, *type, made_->fewest), slices.type(operand, *type, made_->fewest + 1)};
  };
  for (const auto& view : inputs_) add(view.type);
  for (const auto& view : outputs_) add(view.type);
  for (const auto& view : post_op_operands_) add(view.type);
  made_->slices = std::move(slices);
}

std::uint64_t PlainKernelStep::elements() const {
  std::uint64_t sum = 0;
  for (const auto& view : outputs_)
    if (view) sum += static_cast<std::uint64_t>(view.type->elements());
  return sum;
}

Result<> PlainKernelStep::run_part(int part) const {
  const std::int64_t count = made_->slices->count();
  const std::int64_t first = count * part / made_->parts, last = count * (part + 1) / made_->parts;
  std::array<graph::ConstView, most_operands> read;
  std::array<graph::MutableView, most_operands> written;
  std::size_t operand = 0;
  const auto narrow = [&](const auto& all, auto* narrowed) {
    for (std::size_t i = 0; i < all.size(); ++i, ++operand) {
      if (!all[i]) continue;
      narrowed[i].type = &made_->of_part[operand][static_cast<std::size_t>(last - first - made_->fewest)];
      narrowed[i].data =
          all[i].data + made_->slices->operands()[operand].stride * static_cast<std::uint64_t>(first);
    }
    return std::span(narrowed, all.size());
  };
  const auto inputs = narrow(inputs_, read.data());
  const auto outputs = narrow(outputs_, written.data());
  if (auto done = made_->kernel(made_->node, inputs, outputs); !done) return done;
  if (!made_->node.post_ops.empty())
    graph::apply_post_ops(made_->node, narrow(post_op_operands_, read.data() + inputs.size()),
                          outputs.front());
  return {};
}

Result<> PlainKernelStep::run(dnnl::stream&) {
  if (made_->parts > 1) {
    std::atomic<int> failed = made_->parts;
    in_parts(made_->parts, [&](std::int64_t part) {
      if (run_part(static_cast<int>(part))) return;
      for (int before = failed;
           before > part && !failed.compare_exchange_weak(before, static_cast<int>(part));) {
      }
    });
    return failed < made_->parts ? run_part(failed) : Result<>();
  }
  if (auto done = made_->kernel(made_->node, inputs_, outputs_); !done) return done;
  if (!made_->node.post_ops.empty()) graph::apply_post_ops(made_->node, post_op_operands_, outputs_.front());
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

bool PlainKernelStep::may_lack(int operand) const {
  auto i = static_cast<std::size_t>(operand);
  if (i < inputs_.size()) return !inputs_[i];
  i -= inputs_.size();
  return i < outputs_.size() ? !outputs_[i] : !post_op_operands_[i - outputs_.size()];
}

std::unique_ptr<Kernel> CopyKernel::copy(graph::Faults&) const {
  return std::make_unique<CopyKernel>(size_);
}

Result<> CopyKernel::run(dnnl::stream&) {
  const auto piece_at = [this](std::int64_t i) {
    const std::size_t first = static_cast<std::size_t>(i) * piece;
    std::memcpy(to_ + first, from_ + first, std::min(piece, size_ - first));
  };
  if (divides())
    in_parts(pieces(), piece_at);
  else if (size_ > 0)
    piece_at(0);
  return {};
}

void CopyKernel::place(int operand, std::byte* address) {
  (operand == 0 ? from_ : to_) = address;
}

}  // namespace carillon::engine::cpu
