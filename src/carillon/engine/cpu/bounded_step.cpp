#include "carillon/engine/cpu/bounded_step.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::engine::cpu {
namespace {

// Room for the extents of a value of that shape, marked.
Desc extents_desc(const graph::Shape& shape) {
  return Desc({static_cast<std::int64_t>(std::max<std::size_t>(1, graph::extents_bytes(shape).count))},
              DnnlType::u8, dnnl::memory::format_tag::a);
}

}  // namespace

BoundedStep::BoundedStep(const graph::BoundedNode& node, const std::vector<Input>& inputs,
                         std::vector<Output> outputs)
    : node_(node),
      types_(inputs.size()),
      inputs_(inputs.size()),
      outputs_(node.most().size(), nullptr),
      input_extents_(inputs.size(), nullptr),
      output_extents_(outputs_.size(), nullptr) {
  Made made;
  for (const Input& input : inputs) {
    made.present.push_back(input.type != nullptr);
    made.types.push_back(input.type == nullptr ? graph::TensorType{} : *input.type);
    made.bounded.push_back(input.bounded);
  }
  made.outputs = std::move(outputs);
  types_ = made.types;
  made_ = std::make_shared<const Made>(std::move(made));
}

std::unique_ptr<Kernel> BoundedStep::copy(graph::Faults& faults) const {
  std::unique_ptr<BoundedStep> made(new BoundedStep(*this));
  made->faults_ = &faults;
  for (std::size_t i = 0; i < made->inputs_.size(); ++i)
    made->inputs_[i].type = made_->present[i] ? &made->types_[i] : nullptr;
  return made;
}

Result<> BoundedStep::run(dnnl::stream&) {
  const auto only = node_.chosen(inputs_);
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (made_->bounded[i] == 0 || (only && *only != i)) continue;
    graph::Shape& shape = types_[i].shape;
    std::memcpy(shape.data(), input_extents_[i], shape.size() * sizeof(std::int64_t));
    const graph::Shape& most = made_->types[i].shape;
    // Its maker is held to it.
    for (std::size_t d = 0; d < shape.size(); ++d) CARILLON_ASSERT(shape[d] >= 0 && shape[d] <= most[d]);
  }
  if (auto done = node_.run(inputs_, outputs_); !done) {
    leave_empty();
    if (done.error().code != ErrorCode::invalid_argument) return done;
    if (faults_->is_news(graph::Faults::unknown)) faults_->add(graph::Faults::unknown, done.error());
    return {};
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    if (output_extents_[i] != nullptr)
      graph::write_extents(made_->outputs[i].marked, node_.results()[i].shape, output_extents_[i]);
  return {};
}

// What follows finds something, though it means nothing.
void BoundedStep::leave_empty() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i] == nullptr) continue;
    graph::Shape shape = node_.most()[i].shape;
    for (std::size_t d = 0; d < shape.size(); ++d)
      if ((node_.bounded(i) >> d & 1) != 0) shape[d] = 0;
    if (output_extents_[i] != nullptr)
      graph::write_extents(made_->outputs[i].marked, shape, output_extents_[i]);
    else
      std::memset(outputs_[i], 0, node_.most()[i].bytes().count);
  }
}

void BoundedStep::place(int operand, std::byte* address) {
  auto i = static_cast<std::size_t>(operand);
  if (i < inputs_.size()) {
    inputs_[i].data = address;
    return;
  }
  i -= inputs_.size();
  for (auto* list : {&outputs_, &input_extents_, &output_extents_}) {
    if (i < list->size()) {
      (*list)[i] = address;
      return;
    }
    i -= list->size();
  }
  CARILLON_ASSERT(false);
}

bool BoundedStep::may_lack(int operand) const {
  auto i = static_cast<std::size_t>(operand);
  if (i < inputs_.size()) return !made_->present[i];
  i -= inputs_.size();
  if (i < outputs_.size()) return !made_->outputs[i].wanted;
  i -= outputs_.size();
  if (i < inputs_.size()) return made_->bounded[i] == 0;
  i -= inputs_.size();
  return !made_->outputs[i].wanted || node_.bounded(i) == 0;
}

void BoundedLowering::lower(const graph::Node& node) {
  builder_.enter(node.guard);
  std::vector<Operand> operands;
  std::vector<BoundedStep::Input> inputs;
  std::vector<BoundedStep::Output> outputs;
  const auto ways = graph::is_choose(node) ? graph::choose_paths(node)
                                           : std::vector<std::vector<graph::ChoosePath>>(node.inputs.size());
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const auto id = node.inputs[i];
    const bool there = id != graph::no_value;
    // A kernel that brings the input into that layout runs only where the input was made.
    for (const auto& [condition, when] : ways[i])
      builder_.enter(builder_.under(node.inputs[condition], when));
    operands.push_back(there ? builder_.row_major(id) : Operand{});
    builder_.enter(node.guard);
    inputs.push_back(there ? BoundedStep::Input{&builder_.type(id), bounded_[id.index()]}
                           : BoundedStep::Input{});
  }
  for (const auto id : node.outputs) {
    const Desc desc =
        id != graph::no_value && builder_.is_real(id) ? row_major(builder_.shape(id), DnnlType::f32) : Desc();
    operands.push_back(id == graph::no_value ? Operand{} : builder_.define(id, desc));
    outputs.push_back({.wanted = id != graph::no_value,
                       .marked = id == graph::no_value ? graph::Shape{} : marked_[id.index()]});
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    operands.push_back(inputs[i].bounded == 0 ? Operand{} : extents_.at(node.inputs[i]));
  for (const auto id : node.outputs) {
    const bool bounded = id != graph::no_value && bounded_[id.index()] != 0;
    operands.push_back(bounded ? builder_.temporary(extents_desc(marked_[id.index()])) : Operand{});
    if (bounded) extents_.insert_or_assign(id, operands.back());
  }
  const graph::BoundedNode late(builder_.graph(), node);
  builder_.append(node.name + " bounded:" + std::string(node.text(graph::bounded_operator, {})),
                  std::make_unique<BoundedStep>(late, inputs, std::move(outputs)), operands);
}

void BoundedLowering::finish() {
  builder_.enter(-1);
  const graph::Graph& graph = builder_.graph();
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const auto id = graph.outputs[i];
    if (bounded_[id.index()] == 0) continue;
    const graph::Shape& shape = marked_[id.index()];
    const Operand to{.buffer = static_cast<int>(1 + graph.inputs.size() + i),
                     .offset = graph::extents_offset(builder_.type(id).type, shape)};
    builder_.append(graph.value(id).name + " extents",
                    std::make_unique<CopyKernel>(graph::extents_bytes(shape).count), {extents_.at(id), to});
  }
}

}  // namespace carillon::engine::cpu
