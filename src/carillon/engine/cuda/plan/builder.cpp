#include "carillon/engine/cuda/plan/builder.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/kernels/number.h"
#include "carillon/engine/cuda/plan/chains.h"

namespace carillon::engine::cuda {
namespace {

using graph::DataType;

// How f32 values become bytes of `type`.
void store(std::span<const float> from, DataType type, std::span<std::byte> to) {
  const auto as = [&]<typename T>(T*) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const T value = kernels::from_float<T>(from[i]);
      std::memcpy(to.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  if (type == DataType::f16) return as(static_cast<kernels::Half*>(nullptr));
  if (type == DataType::bf16) return as(static_cast<kernels::Bfloat*>(nullptr));
  as(static_cast<float*>(nullptr));
}

}  // namespace

std::optional<kernels::Type> kernel_type(DataType type) {
  switch (type) {
    case DataType::f32:
      return kernels::Type::f32;
    case DataType::f16:
      return kernels::Type::f16;
    case DataType::bf16:
      return kernels::Type::bf16;
    case DataType::i32:
      return kernels::Type::i32;
    case DataType::i64:
      return kernels::Type::i64;
    case DataType::boolean:
      return kernels::Type::boolean;
    default:
      return std::nullopt;
  }
}

std::uint64_t Weights::place(const std::vector<graph::SharedTensor>& from, const std::string& what,
                             std::size_t bytes, const std::function<void(std::span<std::byte>)>& make) {
  std::vector<const graph::Tensor*> tensors;
  for (const graph::SharedTensor& each : from) tensors.push_back(each.get());
  const auto [it, is_new] = places_.try_emplace({std::move(tensors), what}, 0);
  if (!is_new) return it->second;
  const std::uint64_t at = round_up(bytes_.size(), 256);
  it->second = at;
  kept_.insert(kept_.end(), from.begin(), from.end());
  bytes_.resize(at + bytes);
  make(std::span(bytes_).subspan(at, bytes));
  return at;
}

Builder::Builder(const graph::Graph& graph, const RecipeOptions& options, MathLibrary& library,
                 Weights& weights)
    : graph_(graph), options_(options), library_(library), weights_(weights), values_(graph.values.size()) {
  find_homes();
  for (const graph::ValueId id : graph.inputs) {
    const graph::TensorType& type = graph.value(id).type;
    Lying at = fresh(type.type, type.shape, row_major(type.shape));
    recipe_.inputs.push_back({.bytes = type.bytes().count, .of_numbers = type.type == graph::DataType::f32});
    buffers_[static_cast<std::size_t>(at.buffer)].first = 0;
    buffers_[static_cast<std::size_t>(at.buffer)].last = 0;
    values_[id.index()] = at;
  }
}

DataType Builder::stored(DataType type) const {
  if (type != DataType::f32) return type;
  return options_.number == Number::f16    ? DataType::f16
         : options_.number == Number::bf16 ? DataType::bf16
                                           : DataType::f32;
}

std::optional<Number> Builder::number_of(DataType stored) const {
  switch (stored) {
    case DataType::f32:
      return options_.number == Number::tf32 ? Number::tf32 : Number::f32;
    case DataType::f16:
      return Number::f16;
    case DataType::bf16:
      return Number::bf16;
    default:
      return std::nullopt;
  }
}

void Builder::enter(const graph::Node& node) {
  node_ = &node;
}

std::unexpected<Error> Builder::refuse(const std::string& why) const {
  std::string operands;
  for (const graph::ValueId id : node_->inputs) {
    if (!operands.empty()) operands += ", ";
    operands += id == graph::no_value
                    ? "none"
                    : std::string(graph::onnx_name(type(id).type)) + graph::to_text(type(id).shape);
  }
  return fail(ErrorCode::unsupported,
              "node '" + node_->name + "' (" + node_->op + " of " + operands + "): no CUDA kernel: " + why);
}

bool Builder::has(std::size_t input) const {
  return input < node_->inputs.size() && node_->inputs[input] != graph::no_value;
}

Lying Builder::in(graph::ValueId id) {
  auto& known = values_[id.index()];
  const graph::SharedTensor& tensor = constant(id);
  if (!known && tensor != nullptr) {
    const graph::TensorType& type = tensor->type();
    const DataType to = stored(type.type);
    Lying out{.type = to, .shape = type.shape, .strides = row_major(type.shape)};
    out.offset = weights_.place({tensor}, "as " + std::string(graph::onnx_name(to)),
                                static_cast<std::size_t>(type.elements()) * graph::size_of(to),
                                [&](std::span<std::byte> bytes) {
                                  if (to == type.type)
                                    std::ranges::copy(tensor->bytes(), bytes.begin());
                                  else
                                    store(tensor->as<float>(), to, bytes);
                                });
    known = out;
  }
  CARILLON_ASSERT(known);
  // An input of numbers is brought into the recipe's once.
  const DataType wanted = stored(type(id).type);
  if (known->type != wanted) {
    auto converted = as_type(*known, wanted);
    CARILLON_ASSERT(converted);
    known = *converted;
  }
  return *known;
}

void Builder::set(graph::ValueId id, Lying tensor) {
  if (id != graph::no_value) values_[id.index()] = std::move(tensor);
}

Result<std::vector<std::int64_t>> Builder::integers(std::size_t input) const {
  const graph::SharedTensor& tensor = constant(node_->inputs[input]);
  if (tensor == nullptr) return refuse("operand " + std::to_string(input) + " is no constant");
  std::vector<std::int64_t> out;
  if (tensor->type().type == DataType::i64)
    out.assign(tensor->as<std::int64_t>().begin(), tensor->as<std::int64_t>().end());
  else if (tensor->type().type == DataType::i32)
    out.assign(tensor->as<std::int32_t>().begin(), tensor->as<std::int32_t>().end());
  else
    return refuse("operand " + std::to_string(input) + " is neither int32 nor int64");
  return out;
}

Lying Builder::packed(const std::vector<graph::SharedTensor>& from, const std::string& what,
                      const Shape& shape, DataType type,
                      const std::function<void(std::span<float>)>& values) {
  Lying out{.type = type, .shape = shape, .strides = row_major(shape)};
  const auto elements = static_cast<std::size_t>(elements_in(shape));
  out.offset = weights_.place(from, what + " " + std::string(graph::onnx_name(type)),
                              elements * graph::size_of(type), [&](std::span<std::byte> bytes) {
                                std::vector<float> made(elements);
                                values(made);
                                store(made, type, bytes);
                              });
  return out;
}

Lying Builder::scalar(float value, DataType type) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return packed(std::vector<graph::SharedTensor>{}, "number " + std::to_string(bits), {}, type,
                [&](std::span<float> to) { to[0] = value; });
}

Lying Builder::truth(bool value) {
  Lying out{.type = DataType::boolean};
  out.offset = weights_.place({}, value ? "true" : "false", 1,
                              [&](std::span<std::byte> to) { to[0] = value ? std::byte{1} : std::byte{0}; });
  return out;
}

Lying Builder::fresh(DataType type, const Shape& shape, std::vector<std::int64_t> strides) {
  Lying out{.buffer = static_cast<int>(buffers_.size()),
            .type = type,
            .shape = shape,
            .strides = std::move(strides)};
  buffers_.push_back({.bytes = static_cast<std::uint64_t>(out.elements()) * graph::size_of(type)});
  return out;
}

Result<> Builder::append(std::span<const std::byte> params, const Result<kernels::Launch>& launch,
                         std::span<const std::pair<std::size_t, const Lying*>> reads, std::size_t out_at,
                         const Lying& out) {
  if (!launch) return refuse(launch.error().message);
  if (launch->grid == 0) return {};
  const std::size_t step = recipe_.steps.size();
  recipe_.steps.push_back(
      {.name = (node_ == nullptr ? "edge" : node_->name) + " " + std::string(launch->kernel->symbol),
       .launch = *launch,
       .params = {params.begin(), params.end()}});
  for (const auto& [at, tensor] : reads) {
    touch(*tensor, step);
    pointers_.push_back({step, at, *tensor});
  }
  touch(out, step);
  pointers_.push_back({step, out_at, out});
  return {};
}

Result<> Builder::append(std::shared_ptr<const Call> call, const Lying& a, const Lying& b, const Lying& out,
                         const Lying* bias, const Lying* residual) {
  const std::size_t step = recipe_.steps.size();
  CallOperands operands{.step = step, .a = a, .b = b, .out = out};
  for (const Lying* each : {&a, &b, &out, bias, residual})
    if (each != nullptr) touch(*each, step);
  if (bias != nullptr) operands.bias = *bias;
  if (residual != nullptr) operands.residual = *residual;
  if (call->workspace() != 0) {
    operands.scratch = fresh(DataType::u8, {static_cast<std::int64_t>(call->workspace())}, {1});
    touch(*operands.scratch, step);
  }
  Step made;
  made.name = node_->name + " " + std::string(call->name());
  made.call = std::move(call);
  recipe_.steps.push_back(std::move(made));
  calls_.push_back(std::move(operands));
  return {};
}

void Builder::touch(const Lying& tensor, std::size_t step) {
  if (tensor.buffer < 0) return;
  Buffer& buffer = buffers_[static_cast<std::size_t>(tensor.buffer)];
  const int at = static_cast<int>(step);
  buffer.first = buffer.first < 0 ? at : std::min(buffer.first, at);
  buffer.last = std::max(buffer.last, at);
}

void Builder::note(std::size_t before, ElementStep step) {
  if (recipe_.steps.size() == before) return;  // of no elements
  step.node = node_ == nullptr ? "edge" : node_->name;
  elements_.resize(recipe_.steps.size());
  elements_.back() = std::move(step);
}

Result<> Builder::join_chains(std::span<const Lying> outputs) {
  elements_.resize(recipe_.steps.size());
  // Which steps use a buffer, and which buffers are used by what is no step.
  std::vector<std::vector<std::size_t>> users(buffers_.size());
  std::vector<bool> is_edge(buffers_.size(), false);
  const auto use = [&](const Lying& tensor, std::size_t step) {
    if (tensor.buffer >= 0) users[static_cast<std::size_t>(tensor.buffer)].push_back(step);
  };
  for (const PendingPointer& each : pointers_) use(each.tensor, each.step);
  for (const CallOperands& each : calls_) {
    for (const Lying* tensor : {&each.a, &each.b, &each.out}) use(*tensor, each.step);
    for (const auto* tensor : {&each.bias, &each.residual, &each.scratch})
      if (*tensor) use(**tensor, each.step);
  }
  for (const Lying& output : outputs)
    if (output.buffer >= 0) is_edge[static_cast<std::size_t>(output.buffer)] = true;
  std::vector<ChainOf> chains;
  for (ChainOf& chain : find_chains(elements_, users, is_edge)) {
    auto made = options_.chains->kernel(chain.launch.chain);
    if (!made && made.error().code == ErrorCode::unavailable) return std::unexpected(made.error());
    if (!made) continue;
    chain.kernel = std::move(*made);
    chains.push_back(std::move(chain));
  }
  if (chains.empty()) return {};

  // The last step of a chain becomes the chain, and the others go.
  constexpr std::size_t gone = static_cast<std::size_t>(-1);
  const std::size_t old_steps = recipe_.steps.size();
  std::vector<std::size_t> now(old_steps, 0);
  std::vector<const ChainOf*> ends_chain(old_steps, nullptr);
  for (const ChainOf& chain : chains) {
    for (const std::size_t step : chain.steps) now[step] = gone;
    ends_chain[chain.steps.back()] = &chain;
  }
  std::vector<Step> steps;
  std::vector<PendingPointer> pointers;
  std::vector<int> begins;  // of each old step: how many new ones are before it
  for (std::size_t i = 0; i < old_steps; ++i) {
    begins.push_back(static_cast<int>(steps.size()));
    if (const ChainOf* const chain = ends_chain[i]) {
      const auto launched = kernels::launch(chain->launch, options_.processors);
      CARILLON_ASSERT(launched);
      const auto* const bytes = reinterpret_cast<const std::byte*>(&chain->launch);
      for (std::size_t k = 0; k < chain->operands.size(); ++k)
        pointers.push_back({steps.size(),
                            offsetof(kernels::ChainLaunch, params) +
                                offsetof(kernels::ChainParams, operands) + k * sizeof(kernels::ChainOperand) +
                                offsetof(kernels::ChainOperand, at),
                            chain->operands[k]});
      pointers.push_back({steps.size(),
                          offsetof(kernels::ChainLaunch, params) + offsetof(kernels::ChainParams, output),
                          elements_[i]->out});
      Step made;
      made.name = chain->name;
      made.launch = *launched;
      made.params = {bytes, bytes + sizeof chain->launch};
      made.chain = chain->kernel;
      steps.push_back(std::move(made));
    } else if (now[i] != gone) {
      now[i] = steps.size();
      steps.push_back(std::move(recipe_.steps[i]));
    }
  }
  begins.push_back(static_cast<int>(steps.size()));
  for (Recipe::Attention& each : recipe_.attentions) {
    each.first = begins[static_cast<std::size_t>(each.first)];
    each.last = begins[static_cast<std::size_t>(each.last)];
  }
  for (PendingPointer& each : pointers_)
    if (now[each.step] != gone) pointers.push_back({now[each.step], each.at, std::move(each.tensor)});
  for (CallOperands& each : calls_) each.step = now[each.step];
  recipe_.steps = std::move(steps);
  pointers_ = std::move(pointers);
  // From when to when buffers are used, by the new numbers; inputs are there from the start.
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const bool is_input = i < graph_.inputs.size();
    buffers_[i].first = buffers_[i].last = is_input ? 0 : -1;
  }
  for (const PendingPointer& each : pointers_) touch(each.tensor, each.step);
  for (const CallOperands& each : calls_) {
    for (const Lying* tensor : {&each.a, &each.b, &each.out}) touch(*tensor, each.step);
    for (const auto* tensor : {&each.bias, &each.residual, &each.scratch})
      if (*tensor) touch(**tensor, each.step);
  }
  return {};
}

void Builder::find_homes() {
  // The last concatenation first: what the earlier ones make, or read, are parts of it.
  std::vector<bool> is_edge(graph_.values.size(), false);
  for (const auto ids : {&graph_.inputs, &graph_.outputs})
    for (const graph::ValueId id : *ids) is_edge[id.index()] = true;
  for (std::size_t n = graph_.nodes.size(); n-- > 0;) {
    const graph::Node& node = graph_.nodes[n];
    if (node.op != "Concat" || node.outputs.empty() || node.outputs[0] == graph::no_value) continue;
    const graph::TensorType& out = graph_.value(node.outputs[0]).type;
    if (out.shape.size() != 4 || node.integer("axis", 0) != 1 || !kernel_type(stored(out.type))) continue;
    Home at{node.outputs[0], 0};
    if (const auto own = homes_.find(at.whole.value); own != homes_.end()) at = own->second;
    for (const graph::ValueId id : node.inputs) {
      if (!graph_.is_constant(id) && !is_edge[id.index()]) homes_.try_emplace(id.value, at);
      at.channel += graph_.value(id).type.shape[1];
    }
  }
}

std::optional<Lying> Builder::home(graph::ValueId id) {
  const auto found = homes_.find(id.value);
  if (found == homes_.end()) return std::nullopt;
  const graph::ValueId whole = found->second.whole;
  const auto [it, is_new] = wholes_.try_emplace(whole.value);
  const graph::TensorType& type = graph_.value(whole).type;
  if (is_new) it->second = fresh(stored(type.type), type.shape, channels_last(type.shape));
  return sliced(it->second, 1, found->second.channel, graph_.value(id).type.shape[1]);
}

std::optional<Lying> Builder::in_place(const graph::Node& node) {
  std::int64_t first = 0, next = 0;
  graph::ValueId root = graph::no_value;
  for (const graph::ValueId id : node.inputs) {
    const auto found = homes_.find(id.value);
    if (found == homes_.end()) return std::nullopt;
    const Home& at = found->second;
    if (root == graph::no_value) {
      root = at.whole;
      first = next = at.channel;
    }
    if (at.whole != root || at.channel != next) return std::nullopt;
    next += graph_.value(id).type.shape[1];
  }
  if (root == graph::no_value) return std::nullopt;
  (void)home(node.inputs[0]);  // it has a buffer from now on
  return sliced(wholes_.at(root.value), 1, first, next - first);
}

Place Builder::place(const Lying& tensor, const MemoryPlan& plan) const {
  if (tensor.buffer < 0) return {Place::Area::weights, tensor.offset};
  return {Place::Area::workspace, plan.offsets[static_cast<std::size_t>(tensor.buffer)] + tensor.offset};
}

Result<Recipe> Builder::finish() {
  node_ = nullptr;
  static const graph::Node edge{.name = "output", .op = "output"};
  node_ = &edge;
  std::vector<Lying> outputs;
  for (const graph::ValueId id : graph_.outputs) {
    auto tensor = dense(in(id));
    if (tensor) tensor = as_type(*tensor, type(id).type);
    if (!tensor) return std::unexpected(tensor.error());
    outputs.push_back(*tensor);
  }
  if (options_.chains != nullptr)
    if (auto joined = join_chains(outputs); !joined) return std::unexpected(joined.error());
  const std::size_t steps = recipe_.steps.size();
  const int last = steps == 0 ? 0 : static_cast<int>(steps) - 1;
  for (const Lying& output : outputs)
    if (output.buffer >= 0) {
      touch(output, static_cast<std::size_t>(last));
    }
  std::vector<int>& ends = recipe_.segment_ends;
  ends = options_.segment_ends;
  if (ends.empty()) {
    const int all = static_cast<int>(steps), longest = options_.longest_segment;
    for (int end = longest; longest > 0 && end < all; end += longest) ends.push_back(end);
    ends.push_back(all);
  }
  std::vector<BufferNeed> needs;
  for (const Buffer& buffer : buffers_) {
    if (buffer.first < 0) {
      needs.push_back({});
      continue;
    }
    int until = buffer.last;
    const auto end = std::ranges::upper_bound(ends, until);  // of the segment that reads it last
    if (end != ends.begin() && buffer.first < *std::prev(end)) until = *end - 1;
    needs.push_back({round_up(buffer.bytes, 256), buffer.first, until});
  }
  const MemoryPlan plan = plan_memory(needs);
  recipe_.workspace = plan.total;
  for (const PendingPointer& each : pointers_)
    recipe_.steps[each.step].pointers.emplace_back(each.at, place(each.tensor, plan));
  for (const CallOperands& each : calls_) {
    Step& step = recipe_.steps[each.step];
    step.a = place(each.a, plan);
    step.b = place(each.b, plan);
    step.out = place(each.out, plan);
    if (each.bias) step.bias = place(*each.bias, plan);
    if (each.residual) step.residual = place(*each.residual, plan);
    if (each.scratch) step.scratch = place(*each.scratch, plan);
  }
  for (std::size_t i = 0; i < graph_.inputs.size(); ++i)
    recipe_.inputs[i].at = {Place::Area::workspace, plan.offsets[i]};  // the first buffers are theirs
  for (std::size_t i = 0; i < outputs.size(); ++i)
    recipe_.outputs.push_back({place(outputs[i], plan), type(graph_.outputs[i]).bytes().count});
  return std::move(recipe_);
}

}  // namespace carillon::engine::cuda
