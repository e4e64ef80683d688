#include "carillon/engine/cuda/plan/builder.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <ranges>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/engine/cuda/kernels/number.h"
#include "carillon/engine/cuda/plan/chains.h"

namespace carillon::engine::cuda {

namespace {

using graph::DataType;

std::int64_t count(std::span<const std::int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Whether `strides` are those of a dense tensor whose axes lie in `order`, outermost first.
bool lies_in(const Lying& tensor, std::span<const std::int64_t> strides) {
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    if (tensor.shape[i] != 1 && tensor.strides[i] != strides[i]) return false;
  return true;
}

// Axes of one index space whose neighbours go on as one, for every operand, joined.
struct Axes {
  std::vector<std::int64_t> extents;
  std::vector<std::vector<std::int64_t>> strides;  // by operand

  void join() {
    Axes out;
    out.strides.resize(strides.size());
    for (std::size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] == 1) continue;
      const bool goes_on = !out.extents.empty() &&
                           std::ranges::all_of(std::views::iota(0U, strides.size()), [&](std::size_t k) {
                             return out.strides[k].back() == strides[k][i] * extents[i];
                           });
      if (goes_on) {
        out.extents.back() *= extents[i];
        for (std::size_t k = 0; k < strides.size(); ++k) out.strides[k].back() = strides[k][i];
      } else {
        out.extents.push_back(extents[i]);
        for (std::size_t k = 0; k < strides.size(); ++k) out.strides[k].push_back(strides[k][i]);
      }
    }
    *this = std::move(out);
  }
};

// How a step goes through an operand of the joined axes.
kernels::ChainOperand read_by(const Axes& axes, std::size_t operand) {
  kernels::ChainOperand out{};
  out.rank = static_cast<int>(axes.extents.size());
  for (std::size_t i = 0; i < axes.extents.size(); ++i) {
    out.extents[i] = static_cast<std::uint32_t>(axes.extents[i]);
    out.strides[i] = axes.strides[operand][i];
  }
  return out;
}

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

std::int64_t Lying::elements() const {
  return count(shape);
}

std::vector<std::int64_t> row_major(const Shape& shape) {
  std::vector<std::int64_t> out(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0; step *= shape[i]) out[i] = step;
  return out;
}

std::vector<std::int64_t> channels_last(const Shape& shape) {
  const std::int64_t c = shape[1], h = shape[2], w = shape[3];
  return {h * w * c, 1, w * c, c};
}

bool is_row_major(const Lying& tensor) {
  return lies_in(tensor, row_major(tensor.shape));
}

std::int64_t pixel_pitch(const Lying& tensor) {
  const auto& s = tensor.shape;
  if (s.size() != 4 || (s[1] != 1 && tensor.strides[1] != 1)) return 0;
  // What the first axis that moves says a pixel takes.
  std::int64_t pitch = s[1];
  if (s[3] != 1) {
    pitch = tensor.strides[3];
  } else if (s[2] != 1) {
    pitch = tensor.strides[2];
  } else if (s[0] != 1) {
    pitch = tensor.strides[0];
  }
  if (pitch < s[1]) return 0;
  const std::int64_t wanted[] = {s[2] * s[3] * pitch, 1, s[3] * pitch, pitch};
  return lies_in(tensor, wanted) ? pitch : 0;
}

Lying transposed(const Lying& tensor, std::span<const std::int64_t> order) {
  Lying out = tensor;
  for (std::size_t i = 0; i < order.size(); ++i) {
    out.shape[i] = tensor.shape[static_cast<std::size_t>(order[i])];
    out.strides[i] = tensor.strides[static_cast<std::size_t>(order[i])];
  }
  return out;
}

std::optional<Lying> reshaped(const Lying& tensor, const Shape& shape) {
  // Both shapes fall into groups of axes with the same product; each group of the old one has to go on as
  // one.
  Lying out = tensor;
  out.shape = shape;
  out.strides.assign(shape.size(), 0);
  std::size_t i = 0, j = 0;
  while (i < tensor.shape.size() || j < shape.size()) {
    std::int64_t old_count = 1, new_count = 1;
    const std::size_t i0 = i, j0 = j;
    if (i < tensor.shape.size()) old_count = tensor.shape[i++];
    if (j < shape.size()) new_count = shape[j++];
    while (old_count != new_count) {
      if (old_count < new_count) {
        if (i == tensor.shape.size()) return std::nullopt;
        old_count *= tensor.shape[i++];
      } else {
        if (j == shape.size()) return std::nullopt;
        new_count *= shape[j++];
      }
    }
    std::int64_t step = 0;  // of the group's innermost element
    std::int64_t expected = 0;
    for (std::size_t k = i; k-- > i0;) {
      if (tensor.shape[k] == 1) continue;
      if (step == 0) {
        step = tensor.strides[k];
        if (step == 0 && old_count != tensor.shape[k]) return std::nullopt;
      } else if (tensor.strides[k] != expected) {
        return std::nullopt;
      }
      expected = tensor.strides[k] * tensor.shape[k];
    }
    if (step == 0 && old_count == 1) step = 1;
    for (std::size_t k = j; k-- > j0; step *= shape[k]) out.strides[k] = step;
  }
  return out;
}

Lying broadcast(const Lying& tensor, const Shape& shape) {
  Lying out = tensor;
  const std::size_t front = shape.size() - tensor.shape.size();
  out.shape = shape;
  out.strides.assign(shape.size(), 0);
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    if (tensor.shape[i] != 1) out.strides[front + i] = tensor.strides[i];
  return out;
}

Lying sliced(const Lying& tensor, std::size_t axis, std::int64_t first, std::int64_t count,
             std::int64_t step) {
  Lying out = tensor;
  out.offset += static_cast<std::uint64_t>(first * tensor.strides[axis]) * graph::size_of(tensor.type);
  out.shape[axis] = count;
  out.strides[axis] *= step;
  return out;
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
  const auto elements = static_cast<std::size_t>(count(shape));
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

Result<Lying> Builder::dense(const Lying& tensor) {
  if (is_row_major(tensor)) {
    Lying out = tensor;
    out.strides = row_major(tensor.shape);
    return out;
  }
  Lying out = fresh(tensor.type, tensor.shape, row_major(tensor.shape));
  if (auto moved = move(tensor, out); !moved) return std::unexpected(moved.error());
  return out;
}

Result<Lying> Builder::images(const Lying& tensor) {
  if (pixel_pitch(tensor) != 0) return tensor;
  Lying out = fresh(tensor.type, tensor.shape, channels_last(tensor.shape));
  if (auto moved = move(tensor, out); !moved) return std::unexpected(moved.error());
  return out;
}

Result<Lying> Builder::padded_images(const Lying& tensor, std::int64_t channels) {
  Shape shape = tensor.shape;
  shape[1] = channels;
  // All of it: what lies there from before may be no number, and its products with zeros none either.
  auto zeros = elementwise(Op::copy, {scalar(0, tensor.type)}, {count(shape)});
  if (!zeros) return zeros;
  Lying out = *zeros;
  out.strides = channels_last(shape);
  out.shape = std::move(shape);
  if (auto moved = move(tensor, sliced(out, 1, 0, tensor.shape[1])); !moved)
    return std::unexpected(moved.error());
  return out;
}

Result<Lying> Builder::as_type(const Lying& tensor, DataType type) {
  if (tensor.type == type) return tensor;
  const auto from = kernel_type(tensor.type), to = kernel_type(type);
  if (!from || !to)
    return refuse("conversion from " + std::string(graph::onnx_name(tensor.type)) + " to " +
                  std::string(graph::onnx_name(type)));
  Lying source = tensor;
  const bool any_order =
      is_row_major(tensor) || (pixel_pitch(tensor) == tensor.shape[1] && tensor.shape.size() == 4);
  if (!any_order) {
    auto moved = dense(tensor);
    if (!moved) return moved;
    source = *moved;
  }
  Lying out = fresh(type, source.shape, source.strides);
  const std::size_t before = recipe_.steps.size();
  kernels::CastParams params{};
  params.count = source.elements();
  if (auto put = kernel(params, kernels::launch(params, *from, *to, options_.processors),
                        {{offsetof(kernels::CastParams, input), &source}},
                        offsetof(kernels::CastParams, output), out);
      !put)
    return std::unexpected(put.error());
  ElementStep::Operand operand{.tensor = source};
  operand.read.rank = 1;
  operand.read.extents[0] = static_cast<std::uint32_t>(params.count);
  operand.read.strides[0] = 1;
  note(before, {.step = {.kind = kernels::Chain::Step::Kind::cast, .type = *from, .result = *to},
                .operands = {operand},
                .out = out});
  return out;
}

Result<> Builder::move(const Lying& from, const Lying& to) {
  // In the order in which the result lies.
  std::vector<std::size_t> order(to.shape.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t i) { return to.shape[i] == 1 ? 0 : to.strides[i]; });
  Axes axes;
  axes.strides.resize(2);
  for (const std::size_t i : order) {
    axes.extents.push_back(to.shape[i]);
    axes.strides[0].push_back(from.strides[i]);
    axes.strides[1].push_back(to.strides[i]);
  }
  axes.join();
  if (axes.extents.size() > kernels::max_rank) return refuse("more than six axes that lie apart");
  kernels::MoveParams params{};
  params.rank = static_cast<int>(axes.extents.size());
  for (std::size_t i = 0; i < axes.extents.size(); ++i) {
    params.extents[i] = static_cast<std::uint32_t>(axes.extents[i]);
    params.from[i] = axes.strides[0][i];
    params.to[i] = axes.strides[1][i];
  }
  return kernel(params, kernels::launch(params, graph::size_of(from.type), options_.processors),
                {{offsetof(kernels::MoveParams, input), &from}}, offsetof(kernels::MoveParams, output), to);
}

Result<Lying> Builder::elementwise(Op op, std::initializer_list<Lying> operands, const Shape& shape,
                                   Activation activation, float low, float high) {
  const DataType type = operands.begin()->type;
  const auto known = kernel_type(type);
  const bool whole_numbers = known == kernels::Type::i32 || known == kernels::Type::i64;
  constexpr Op of_whole_numbers[] = {Op::copy, Op::neg, Op::abs, Op::add, Op::sub,
                                     Op::mul,  Op::div, Op::min, Op::max};
  if (!known || known == kernels::Type::boolean ||
      (whole_numbers && (activation != Activation::none ||
                         std::ranges::find(of_whole_numbers, op) == std::end(of_whole_numbers))))
    return refuse("arithmetic of " + std::string(graph::onnx_name(type)));
  std::vector<Lying> read;
  const Lying* whole = nullptr;
  for (const Lying& operand : operands) {
    if (operand.type != type) return refuse("operands of different types");
    if (whole == nullptr && operand.shape == shape) whole = &operand;
    read.push_back(broadcast(operand, shape));
  }
  // As the first whole operand lies, without its gaps.
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0U);
  if (whole != nullptr)
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) {
      return shape[i] == 1 ? std::int64_t{0} : whole->strides[i];
    });
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t k = order.size(); k-- > 0; step *= shape[order[k]]) strides[order[k]] = step;
  Lying out = fresh(type, shape, strides);
  Axes axes;
  axes.strides.resize(read.size() + 1);
  for (const std::size_t i : order) {
    axes.extents.push_back(shape[i]);
    for (std::size_t k = 0; k < read.size(); ++k) axes.strides[k].push_back(read[k].strides[i]);
    axes.strides.back().push_back(strides[i]);
  }
  axes.join();
  if (axes.extents.size() > kernels::max_rank) return refuse("more than six axes that lie apart");
  kernels::ElementwiseParams params{};
  params.op = op;
  params.activation = activation;
  params.low = low;
  params.high = high;
  params.rank = static_cast<int>(axes.extents.size());
  for (std::size_t i = 0; i < axes.extents.size(); ++i) {
    params.extents[i] = static_cast<std::uint32_t>(axes.extents[i]);
    for (std::size_t k = 0; k < read.size(); ++k) params.strides[k][i] = axes.strides[k][i];
  }
  std::vector<std::pair<std::size_t, const Lying*>> reads;
  for (std::size_t k = 0; k < read.size(); ++k)
    reads.emplace_back(offsetof(kernels::ElementwiseParams, operands) + k * sizeof(void*), &read[k]);
  const std::size_t before = recipe_.steps.size();
  if (auto put = append({reinterpret_cast<const std::byte*>(&params), sizeof params},
                        kernels::launch(params, *known, options_.processors), reads,
                        offsetof(kernels::ElementwiseParams, output), out);
      !put)
    return std::unexpected(put.error());
  ElementStep made{.step = {.kind = kernels::Chain::Step::Kind::arithmetic,
                            .type = *known,
                            .result = *known,
                            .op = op,
                            .activation = activation,
                            .low = low,
                            .high = high},
                   .out = out};
  for (std::size_t k = 0; k < read.size(); ++k) made.operands.push_back({read[k], read_by(axes, k)});
  note(before, std::move(made));
  return out;
}

namespace {

// Operands of one shape, row by row; nothing where they fall into too many axes.
std::optional<Axes> row_by_row(std::initializer_list<const Lying*> operands, const Shape& shape) {
  Axes axes;
  axes.extents = shape;
  for (const Lying* each : operands) axes.strides.push_back(broadcast(*each, shape).strides);
  axes.join();
  if (axes.extents.size() > kernels::max_rank) return std::nullopt;
  return axes;
}
template <typename Params>
void put_extents(Params& params, const Axes& axes) {
  params.rank = static_cast<int>(axes.extents.size());
  for (std::size_t i = 0; i < axes.extents.size(); ++i)
    params.extents[i] = static_cast<std::uint32_t>(axes.extents[i]);
}
void put_strides(std::int64_t* to, const std::vector<std::int64_t>& from) {
  std::ranges::copy(from, to);
}

}  // namespace

Result<Lying> Builder::compare(kernels::Comparison comparison, const Lying& a, const Lying& b,
                               const Shape& shape) {
  const auto known = kernel_type(a.type);
  if (!known || a.type != b.type) return refuse("a comparison of " + std::string(graph::onnx_name(a.type)));
  const auto axes = row_by_row({&a, &b}, shape);
  if (!axes) return refuse("more than six axes that lie apart");
  using P = kernels::CompareParams;
  P params{};
  params.comparison = comparison;
  put_extents(params, *axes);
  for (std::size_t k = 0; k < 2; ++k) put_strides(params.strides[k], axes->strides[k]);
  Lying out = fresh(DataType::boolean, shape, row_major(shape));
  const std::size_t before = recipe_.steps.size();
  if (auto put = kernel(params, kernels::launch(params, *known, options_.processors),
                        {{offsetof(P, operands), &a}, {offsetof(P, operands) + sizeof(void*), &b}},
                        offsetof(P, output), out);
      !put)
    return std::unexpected(put.error());
  note(before, {.step = {.kind = kernels::Chain::Step::Kind::compare,
                         .type = *known,
                         .result = kernels::Type::boolean,
                         .comparison = comparison},
                .operands = {{a, read_by(*axes, 0)}, {b, read_by(*axes, 1)}},
                .out = out});
  return out;
}

Result<Lying> Builder::select(const Lying& condition, const Lying& a, const Lying& b, const Shape& shape) {
  if (a.type != b.type || condition.type != DataType::boolean) return refuse("operands of different types");
  const auto axes = row_by_row({&condition, &a, &b}, shape);
  if (!axes) return refuse("more than six axes that lie apart");
  using P = kernels::SelectParams;
  P params{};
  put_extents(params, *axes);
  put_strides(params.condition_strides, axes->strides[0]);
  for (std::size_t k = 0; k < 2; ++k) put_strides(params.strides[k], axes->strides[k + 1]);
  Lying out = fresh(a.type, shape, row_major(shape));
  const std::size_t before = recipe_.steps.size();
  if (auto put = kernel(params, kernels::launch(params, graph::size_of(a.type), options_.processors),
                        {{offsetof(P, condition), &condition},
                         {offsetof(P, operands), &a},
                         {offsetof(P, operands) + sizeof(void*), &b}},
                        offsetof(P, output), out);
      !put)
    return std::unexpected(put.error());
  if (const auto known = kernel_type(a.type))
    note(before,
         {.step = {.kind = kernels::Chain::Step::Kind::select, .type = *known, .result = *known},
          .operands = {{condition, read_by(*axes, 0)}, {a, read_by(*axes, 1)}, {b, read_by(*axes, 2)}},
          .out = out});
  return out;
}

Result<Lying> Builder::reduce(kernels::Reduction reduction, const Lying& tensor,
                              std::span<const std::size_t> axes, const Shape& shape) {
  const auto known = kernel_type(tensor.type);
  if (!known) return refuse("a reduction of " + std::string(graph::onnx_name(tensor.type)));
  Axes kept, reduced;
  kept.strides.resize(1);
  reduced.strides.resize(1);
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    Axes& to = std::ranges::find(axes, i) == axes.end() ? kept : reduced;
    to.extents.push_back(tensor.shape[i]);
    to.strides[0].push_back(tensor.strides[i]);
  }
  kept.join();
  reduced.join();
  if (kept.extents.size() > kernels::max_rank || reduced.extents.size() > kernels::max_rank)
    return refuse("more than six axes that lie apart");
  kernels::ReduceParams params{};
  params.reduction = reduction;
  params.kept_rank = static_cast<int>(kept.extents.size());
  params.reduced_rank = static_cast<int>(reduced.extents.size());
  for (std::size_t i = 0; i < kept.extents.size(); ++i) {
    params.kept[i] = static_cast<std::uint32_t>(kept.extents[i]);
    params.kept_strides[i] = kept.strides[0][i];
  }
  for (std::size_t i = 0; i < reduced.extents.size(); ++i) {
    params.reduced[i] = static_cast<std::uint32_t>(reduced.extents[i]);
    params.reduced_strides[i] = reduced.strides[0][i];
  }
  Lying out = fresh(tensor.type, shape, row_major(shape));
  if (auto put = kernel(params, kernels::launch(params, *known, options_.processors),
                        {{offsetof(kernels::ReduceParams, input), &tensor}},
                        offsetof(kernels::ReduceParams, output), out);
      !put)
    return std::unexpected(put.error());
  return out;
}

namespace {

// Of an address that is aligned to 256, and these bytes further.
std::int32_t alignment_of(std::initializer_list<std::uint64_t> offsets) {
  std::uint64_t all = 16;
  for (const std::uint64_t each : offsets) all |= each;
  return static_cast<std::int32_t>(std::uint64_t{1} << std::countr_zero(all));
}

}  // namespace

Result<> Builder::convolve(Convolution spec, const Lying& x, const Lying& w, const Lying& out,
                           const Lying* bias, const Lying* residual) {
  spec.alignment = alignment_of({x.offset, out.offset, residual == nullptr ? 0 : residual->offset});
  auto call = library_.convolution(spec);
  if (!call) return refuse(call.error().message);
  return append(std::move(*call), x, w, out, bias, residual);
}

Result<> Builder::multiply(Product spec, const Lying& a, const Lying& b, const Lying& out,
                           const Lying* bias) {
  const std::uint64_t size = size_of(spec.number);
  spec.alignment =
      alignment_of({a.offset, b.offset, out.offset, static_cast<std::uint64_t>(spec.a.step) * size,
                    static_cast<std::uint64_t>(spec.b.step) * size,
                    static_cast<std::uint64_t>(spec.rows * spec.columns) * size * (spec.batch > 1)});
  auto call = library_.product(spec);
  if (!call) return refuse(call.error().message);
  return append(std::move(*call), a, b, out, bias, nullptr);
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
