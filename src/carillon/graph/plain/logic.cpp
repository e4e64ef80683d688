// Comparisons, logic, tests of numbers, and Where.

#include <cmath>
#include <cstring>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

struct Equal {
  template <typename C>
  bool operator()(C a, C b) const {
    return a == b;
  }
};
struct Greater {
  template <typename C>
  bool operator()(C a, C b) const {
    return a > b;
  }
};
struct GreaterOrEqual {
  template <typename C>
  bool operator()(C a, C b) const {
    return a >= b;
  }
};
struct Less {
  template <typename C>
  bool operator()(C a, C b) const {
    return a < b;
  }
};
struct LessOrEqual {
  template <typename C>
  bool operator()(C a, C b) const {
    return a <= b;
  }
};
// On the bytes' truth, without branches.
struct And {
  bool operator()(bool a, bool b) const { return (a & b) != 0; }
};
struct Or {
  bool operator()(bool a, bool b) const { return (a | b) != 0; }
};
struct Xor {
  bool operator()(bool a, bool b) const { return a != b; }
};

template <typename Op, typename T>
Result<> compare(const Node& node, Inputs inputs, Outputs outputs) {
  Loops<3> loops;
  if (!broadcast<2>(outputs[0].type->shape, {inputs[0].type->shape, inputs[1].type->shape}, loops)) {
    return misfit(node, inputs, outputs);
  }
  std::uint8_t* y = outputs[0].as<std::uint8_t>();
  const T* a = inputs[0].as<T>();
  const T* b = inputs[1].as<T>();
  const std::int64_t stride_a = loops.inner_stride(1);
  const std::int64_t stride_b = loops.inner_stride(2);
  for_each_row(loops, [&](const auto& at, std::int64_t count) {
    const Op op;
    std::uint8_t* __restrict to = y + at[0];
    const T* left = a + at[1];
    const T* right = b + at[2];
    if (stride_a != 0 && stride_b != 0) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = op(load(left[i]), load(right[i])) ? 1 : 0;
    } else if (stride_a != 0) {
      const auto value = load(*right);
      for (std::int64_t i = 0; i < count; ++i) to[i] = op(load(left[i]), value) ? 1 : 0;
    } else {
      const auto value = load(*left);
      for (std::int64_t i = 0; i < count; ++i) to[i] = op(value, load(right[i * stride_b])) ? 1 : 0;
    }
  });
  return {};
}

template <typename Op, typename Set>
PlainKernel find(const Node&, InputTypes types) {
  if (!same_types(types, 2)) return nullptr;
  return Set::pick(types[0]->type, []<typename T>() -> PlainKernel { return &compare<Op, T>; });
}

Result<> logical_not(const Node&, Inputs inputs, Outputs outputs) {
  const std::int64_t count = inputs[0].type->elements();
  const std::uint8_t* x = inputs[0].as<std::uint8_t>();
  std::uint8_t* __restrict y = outputs[0].as<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] == 0 ? 1 : 0;
  return {};
}
PlainKernel find_not(const Node&, InputTypes types) {
  return has_type(types, 0, DataType::boolean) ? &logical_not : nullptr;
}

template <typename T>
Result<> is_nan(const Node&, Inputs inputs, Outputs outputs) {
  const std::int64_t count = inputs[0].type->elements();
  const T* x = inputs[0].as<T>();
  std::uint8_t* __restrict y = outputs[0].as<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = load(x[i]);
    y[i] = value != value ? 1 : 0;
  }
  return {};
}
PlainKernel find_is_nan(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &is_nan<T>; });
}

template <typename T>
Result<> is_inf(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  constexpr C infinity = std::numeric_limits<C>::infinity();
  const bool positive = node.integer("detect_positive", 1) != 0;
  const bool negative = node.integer("detect_negative", 1) != 0;
  const std::int64_t count = inputs[0].type->elements();
  const T* x = inputs[0].as<T>();
  std::uint8_t* __restrict y = outputs[0].as<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const C value = load(x[i]);
    y[i] = (positive && value == infinity) || (negative && value == -infinity) ? 1 : 0;
  }
  return {};
}
PlainKernel find_is_inf(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Floats::pick(types[0]->type, []<typename T>() -> PlainKernel { return &is_inf<T>; });
}

// One row of Where with the strides of its operands (0 or 1) known to the compiler.
template <int stride_a, int stride_b, typename T>
void select_row(T* __restrict y, const std::uint8_t* chosen, const T* a, const T* b, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T left = a[i * stride_a];
    const T right = b[i * stride_b];
    y[i] = chosen[i] != 0 ? left : right;
  }
}

template <typename T>
Result<> where(const Node& node, Inputs inputs, Outputs outputs) {
  Loops<4> loops;
  if (!broadcast<3>(outputs[0].type->shape,
                    {inputs[0].type->shape, inputs[1].type->shape, inputs[2].type->shape}, loops)) {
    return misfit(node, inputs, outputs);
  }
  T* y = outputs[0].as<T>();
  const std::uint8_t* condition = inputs[0].as<std::uint8_t>();
  const T* a = inputs[1].as<T>();
  const T* b = inputs[2].as<T>();
  const bool wide_condition = loops.inner_stride(1) != 0;
  const bool wide_a = loops.inner_stride(2) != 0;
  const bool wide_b = loops.inner_stride(3) != 0;
  for_each_row(loops, [&](const auto& at, std::int64_t count) {
    T* row = y + at[0];
    const std::uint8_t* chosen = condition + at[1];
    const T* left = a + at[2];
    const T* right = b + at[3];
    if (!wide_condition) {
      const bool takes_a = *chosen != 0;
      const T* from = takes_a ? left : right;
      if (takes_a ? wide_a : wide_b) {
        std::memcpy(row, from, static_cast<std::size_t>(count) * sizeof(T));
      } else {
        std::fill_n(row, count, *from);
      }
    } else if (wide_a) {
      wide_b ? select_row<1, 1>(row, chosen, left, right, count)
             : select_row<1, 0>(row, chosen, left, right, count);
    } else {
      wide_b ? select_row<0, 1>(row, chosen, left, right, count)
             : select_row<0, 0>(row, chosen, left, right, count);
    }
  });
  return {};
}
PlainKernel find_where(const Node&, InputTypes types) {
  if (types.size() < 3 || !has_type(types, 0, DataType::boolean) || !same_types(types.subspan(1), 2)) {
    return nullptr;
  }
  return pick_size(types[1]->type, []<typename T>() -> PlainKernel { return &where<T>; });
}

// One of two values of the output's type, as they are.
Result<> merge(const Node& node, Inputs inputs, Outputs outputs) {
  const ConstView& from = inputs[*inputs[0].as<std::uint8_t>() != 0 ? 1 : 2];
  if (*from.type != *outputs[0].type) return misfit(node, inputs, outputs);
  const std::size_t size = from.type->bytes().count;
  if (size > 0) std::memcpy(outputs[0].data, from.data, size);
  return {};
}
PlainKernel find_merge(const Node&, InputTypes types) {
  if (types.size() != 3 || !has_type(types, 0, DataType::boolean) || types[0]->elements() != 1 ||
      type_at(types, 1) == nullptr || type_at(types, 2) == nullptr || *types[1] != *types[2])
    return nullptr;
  return &merge;
}

// The first operand as it is, where the second says what it must: else the request cannot be answered.
Result<> only(const Node& node, Inputs inputs, Outputs outputs) {
  if (*inputs[0].type != *outputs[0].type) return misfit(node, inputs, outputs);
  const std::size_t size = inputs[0].type->bytes().count;
  if (size > 0) std::memcpy(outputs[0].data, inputs[0].data, size);
  const bool when = node.integer("when", 1) != 0;
  if ((*inputs[1].as<std::uint8_t>() != 0) == when) return {};
  return note(outputs[0], inputs[1], 0, [&] { return failed(node, node.text("why", "")); });
}
PlainKernel find_only(const Node&, InputTypes types) {
  if (types.size() != 2 || type_at(types, 0) == nullptr || !has_type(types, 1, DataType::boolean) ||
      types[1]->elements() != 1)
    return nullptr;
  return &only;
}

// Zeros, in a place where no data belong: the request cannot be answered.
Result<> unfit(const Node& node, Inputs inputs, Outputs outputs) {
  const std::size_t size = outputs[0].type->bytes().count;
  if (size > 0) std::memset(outputs[0].data, 0, size);
  return note(outputs[0], inputs[0], 0, [&] { return failed(node, node.text("why", "")); });
}
PlainKernel find_unfit(const Node&, InputTypes types) {
  return has_type(types, 0, DataType::boolean) ? &unfit : nullptr;
}

constexpr Operator operators[] = {
    {"Equal", &find<Equal, AllTypes>},
    {"Greater", &find<Greater, Numbers>},
    {"GreaterOrEqual", &find<GreaterOrEqual, Numbers>},
    {"Less", &find<Less, Numbers>},
    {"LessOrEqual", &find<LessOrEqual, Numbers>},
    {"And", &find<And, Types<Boolean>>},
    {"Or", &find<Or, Types<Boolean>>},
    {"Xor", &find<Xor, Types<Boolean>>},
    {"Not", &find_not},
    {"IsNaN", &find_is_nan},
    {"IsInf", &find_is_inf},
    {"Where", &find_where},
    {"Merge", &find_merge},
    {"Only", &find_only},
    {"Unfit", &find_unfit},
};

}  // namespace

std::span<const Operator> logic_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
