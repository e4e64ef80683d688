// Gemm and MatMul.

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// A matrix somewhere in memory: element (r, c) at data[r * row + c * column].
template <typename T>
struct Matrix {
  const T* data;
  std::int64_t row;
  std::int64_t column;
};

// Calls put(r, c, sum over k of a(r, k) * b(k, c)) for an [m, n] product, tile by tile.
template <typename T, typename Put>
void product(const Matrix<T>& a, const Matrix<T>& b, std::int64_t m, std::int64_t n, std::int64_t k,
             Put&& put) {
  using C = Compute<T>;
  constexpr std::int64_t width = 64;
  constexpr std::int64_t height = 4;  // rows that share each load of b
  for (std::int64_t c0 = 0; c0 < n; c0 += width) {
    const std::int64_t columns = std::min(width, n - c0);
    for (std::int64_t r0 = 0; r0 < m; r0 += height) {
      const std::int64_t rows = std::min(height, m - r0);
      std::array<std::array<C, width>, height> sum{};
      for (std::int64_t i = 0; i < k; ++i) {
        const T* line = b.data + i * b.row + c0 * b.column;
        for (std::int64_t r = 0; r < rows; ++r) {
          const C left = load(a.data[(r0 + r) * a.row + i * a.column]);
          if (b.column == 1) {
            for (std::int64_t c = 0; c < columns; ++c)
              sum[r][c] = add(sum[r][c], multiply(left, load(line[c])));
          } else {
            for (std::int64_t c = 0; c < columns; ++c) {
              sum[r][c] = add(sum[r][c], multiply(left, load(line[c * b.column])));
            }
          }
        }
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) put(r0 + r, c0 + c, sum[r][c]);
      }
    }
  }
}

// alpha * A' * B' + beta * C, where C broadcasts to the output.
template <typename T>
Result<> gemm(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& as = inputs[0].type->shape;
  const Shape& bs = inputs[1].type->shape;
  const Shape& ys = outputs[0].type->shape;
  if (as.size() != 2 || bs.size() != 2 || ys.size() != 2) return misfit(node, inputs, outputs);
  const bool turn_a = node.integer("transA", 0) != 0;
  const bool turn_b = node.integer("transB", 0) != 0;
  const std::int64_t m = as[turn_a ? 1 : 0];
  const std::int64_t k = as[turn_a ? 0 : 1];
  const std::int64_t n = bs[turn_b ? 0 : 1];
  if (bs[turn_b ? 1 : 0] != k || ys[0] != m || ys[1] != n) return misfit(node, inputs, outputs);
  const ConstView bias = input(inputs, 2);
  std::int64_t bias_row = 0;
  std::int64_t bias_column = 0;
  if (bias) {
    const Shape& cs = bias.type->shape;
    const std::int64_t rows = cs.size() == 2 ? cs[0] : 1;
    const std::int64_t columns = cs.empty() ? 1 : cs.back();
    if (cs.size() > 2 || (rows != 1 && rows != m) || (columns != 1 && columns != n)) {
      return misfit(node, inputs, outputs);
    }
    bias_row = rows == 1 ? 0 : columns;
    bias_column = columns == 1 ? 0 : 1;
  }
  const auto alpha = number_cast<C>(node.real("alpha", 1.0F));
  const auto beta = number_cast<C>(node.real("beta", 1.0F));
  const T* c = bias ? bias.as<T>() : nullptr;
  T* y = outputs[0].as<T>();
  const Matrix<T> a{inputs[0].as<T>(), turn_a ? 1 : k, turn_a ? m : 1};
  const Matrix<T> b{inputs[1].as<T>(), turn_b ? 1 : n, turn_b ? k : 1};
  product(a, b, m, n, k, [&](std::int64_t row, std::int64_t column, C sum) {
    C value = multiply(alpha, sum);
    if (c != nullptr) {
      value = add(value, multiply(beta, load(c[row * bias_row + column * bias_column])));
    }
    y[row * n + column] = store<T>(value);
  });
  return {};
}

// numpy's matmul: an operand of rank 1 is a row (left) or a column (right) whose axis vanishes; what lies
// before the last two axes broadcasts.
template <typename T>
Result<> matmul(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& as = inputs[0].type->shape;
  const Shape& bs = inputs[1].type->shape;
  if (as.empty() || bs.empty()) return misfit(node, inputs, outputs);
  const std::int64_t m = as.size() == 1 ? 1 : as[as.size() - 2];
  const std::int64_t k = as.back();
  const std::int64_t n = bs.size() == 1 ? 1 : bs.back();
  if ((bs.size() == 1 ? bs[0] : bs[bs.size() - 2]) != k) return misfit(node, inputs, outputs);
  const auto batches = [](const Shape& shape) {
    return std::span(shape).first(shape.size() < 2 ? 0 : shape.size() - 2);
  };
  const Shape& ys = outputs[0].type->shape;
  const std::size_t matrix_axes = (as.size() > 1 ? 1U : 0U) + (bs.size() > 1 ? 1U : 0U);
  if (ys.size() < matrix_axes) return misfit(node, inputs, outputs);
  const auto result = std::span(ys).first(ys.size() - matrix_axes);
  std::int64_t count = 1;
  for (const std::int64_t extent : result) count *= extent;
  Loops<3> loops;
  if (!broadcast<2>(result, {batches(as), batches(bs)}, loops) ||
      outputs[0].type->elements() != count * m * n) {
    return misfit(node, inputs, outputs);
  }
  for_each_row(loops, [&](const auto& at, std::int64_t run) {
    for (std::int64_t i = 0; i < run; ++i) {
      const Matrix<T> a{inputs[0].as<T>() + (at[1] + i * loops.inner_stride(1)) * m * k, k, 1};
      const Matrix<T> b{inputs[1].as<T>() + (at[2] + i * loops.inner_stride(2)) * k * n, n, 1};
      T* y = outputs[0].as<T>() + (at[0] + i * loops.inner_stride(0)) * m * n;
      product(a, b, m, n, k, [&](std::int64_t row, std::int64_t column, Compute<T> sum) {
        y[row * n + column] = store<T>(sum);
      });
    }
  });
  return {};
}

using Multipliable =
    Types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint32_t, std::uint64_t>;
PlainKernel find_gemm(const Node&, InputTypes types) {
  const TensorType* bias = type_at(types, 2);
  if (!same_types(types, 2) || (bias != nullptr && bias->type != types[0]->type)) return nullptr;
  return Multipliable::pick(types[0]->type, []<typename T>() -> PlainKernel { return &gemm<T>; });
}
PlainKernel find_matmul(const Node&, InputTypes types) {
  if (!same_types(types, 2)) return nullptr;
  return Multipliable::pick(types[0]->type, []<typename T>() -> PlainKernel { return &matmul<T>; });
}

constexpr Operator operators[] = {{"Gemm", &find_gemm}, {"MatMul", &find_matmul}};

}  // namespace

std::span<const Operator> matmul_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
