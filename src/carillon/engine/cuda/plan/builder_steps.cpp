#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <ranges>
#include <utility>

#include "carillon/engine/cuda/plan/builder.h"

namespace carillon::engine::cuda {
namespace {

using graph::DataType;

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

}  // namespace

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
  auto zeros = elementwise(Op::copy, {scalar(0, tensor.type)}, {elements_in(shape)});
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

}  // namespace carillon::engine::cuda
