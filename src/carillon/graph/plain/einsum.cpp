// Einsum of one or two operands: every product added to where it belongs.

#include "carillon/graph/einsum.h"

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

static_assert(Einsum::most_labels <= max_loops);

template <typename T>
Result<> einsum(const Node& node, Inputs inputs, Outputs outputs) {
  std::array<const TensorType*, 2> types{inputs[0].type, nullptr};
  const bool two = static_cast<bool>(input(inputs, 1));
  if (two) types[1] = inputs[1].type;
  const auto asked = einsum_of(node, types);
  if (!asked) return std::unexpected(asked.error());
  Loops<3> loops;  // the result, and the operands
  std::int64_t step = 1;
  std::array<std::int64_t, Einsum::most_labels> strides{};
  for (int i = asked->kept; i-- > 0;) {
    strides[i] = step;
    step *= asked->labels[i].extent;
  }
  if (step != outputs[0].type->elements()) return misfit(node, inputs, outputs);
  for (int i = 0; i < asked->count; ++i)
    loops.push(asked->labels[i].extent,
               {i < asked->kept ? strides[i] : 0, asked->labels[i].stride[0], asked->labels[i].stride[1]});
  loops.collapse();
  T* y = outputs[0].as<T>();
  std::fill_n(y, step, T{0});
  const T one{1};
  const T* a = inputs[0].as<T>();
  const T* b = two ? inputs[1].as<T>() : &one;
  for_each_row(loops, [&](const auto& at, std::int64_t count) {
    T* to = y + at[0];
    const T* left = a + at[1];
    const T* right = b + at[2];
    const std::int64_t y_step = loops.inner_stride(0);
    const std::int64_t a_step = loops.inner_stride(1);
    const std::int64_t b_step = loops.inner_stride(2);
    if (y_step == 0) {
      T sum = *to;
      for (std::int64_t i = 0; i < count; ++i) sum = add(sum, multiply(left[i * a_step], right[i * b_step]));
      *to = sum;
    } else {
      for (std::int64_t i = 0; i < count; ++i)
        to[i * y_step] = add(to[i * y_step], multiply(left[i * a_step], right[i * b_step]));
    }
  });
  return {};
}

PlainKernel find(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || types.size() > 2) return nullptr;
  if (type_at(types, 1) != nullptr && types[1]->type != types[0]->type) return nullptr;
  return Types<float, double, std::int32_t, std::int64_t>::pick(
      types[0]->type, []<typename T>() -> PlainKernel { return &einsum<T>; });
}

constexpr Operator operators[] = {{"Einsum", &find}};

}  // namespace

std::span<const Operator> einsum_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
