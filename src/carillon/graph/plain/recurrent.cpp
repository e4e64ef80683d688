#include "carillon/graph/plain/recurrent.h"

// LSTM, GRU and RNN.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/recurrence.h"

namespace carillon::graph::plain {

std::int64_t length_of(const ConstView& lengths, std::int64_t n, std::int64_t steps) {
  return std::clamp<std::int64_t>(index_at(lengths, n), 0, steps);
}

Result<> check_lengths(const Node& node, const ConstView& lengths, std::int64_t steps,
                       const MutableView& output) {
  for (std::int64_t n = 0; n < lengths.type->elements(); ++n) {
    if (index_at(lengths, n) >= 0 && index_at(lengths, n) <= steps) continue;
    const auto noted = note(output, lengths, n, [&] {
      return failed(node, "length " + std::to_string(index_at(lengths, n)) + source_of(lengths) +
                              " is outside a sequence of " + std::to_string(steps) + " steps");
    });
    if (!noted) return noted;
  }
  return {};
}

namespace {

using Activation = Recurrence::Activation;
using Cell = Recurrence::Cell;
using Direction = Recurrence::Direction;
using Function = Recurrence::Function;

// 16 bytes of elements: what every processor we run on multiplies at once.
template <typename T>
struct Lanes {
  static constexpr std::int64_t count = 16 / sizeof(T);
  typedef T type __attribute__((vector_size(16)));
  static type load(const T* from) {
    type lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
  }
};

// A row of a product: out[c] += sum over i of a[i] * b[c][i]. Without `out` it is passed over.
template <typename T>
struct Line {
  const T* a = nullptr;
  T* out = nullptr;
};

template <typename T, int rows, int columns>
void add_tile(const std::array<Line<T>, rows>& lines, const T* b, std::int64_t depth, std::int64_t column) {
  using V = Lanes<T>;
  typename V::type sum[rows][columns] = {};
  T rest[rows][columns] = {};
  std::int64_t i = 0;
  for (; i + V::count <= depth; i += V::count) {
    for (int c = 0; c < columns; ++c) {
      const auto weights = V::load(b + (column + c) * depth + i);
      for (int r = 0; r < rows; ++r) sum[r][c] += V::load(lines[r].a + i) * weights;
    }
  }
  for (; i < depth; ++i) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) rest[r][c] += lines[r].a[i] * b[(column + c) * depth + i];
  }
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      T all = rest[r][c];
      for (std::int64_t l = 0; l < V::count; ++l) all += sum[r][c][l];
      lines[r].out[column + c] += all;
    }
  }
}

template <typename T, int rows>
void add_tiles(const std::array<Line<T>, rows>& lines, const T* b, std::int64_t depth, std::int64_t from,
               std::int64_t to) {
  std::int64_t c = from;
  for (; c + 4 <= to; c += 4) add_tile<T, rows, 4>(lines, b, depth, c);
  for (; c < to; ++c) add_tile<T, rows, 1>(lines, b, depth, c);
}

// Adds the products of line(0) to line(count - 1) with b, [columns, depth], columns after columns, so that
// those at hand are read once for all rows.
template <typename T, typename LineAt>
void add_products(std::int64_t count, const LineAt& line, const T* b, std::int64_t columns,
                  std::int64_t depth) {
  constexpr std::int64_t width = 32;
  for (std::int64_t from = 0; from < columns; from += width) {
    const std::int64_t to = std::min(from + width, columns);
    Line<T> first;
    for (std::int64_t i = 0; i < count; ++i) {
      const Line<T> second = line(i);
      if (second.out == nullptr) continue;
      if (first.out == nullptr) {
        first = second;
        continue;
      }
      add_tiles<T, 2>({first, second}, b, depth, from, to);
      first = {};
    }
    if (first.out != nullptr) add_tiles<T, 1>({first}, b, depth, from, to);
  }
}

template <typename C>
C tanh_of(C x) {
  if constexpr (std::is_same_v<C, float>) {
    return fast_tanh(x);
  } else {
    return std::tanh(x);
  }
}

template <typename T>
constexpr T unbounded = std::numeric_limits<T>::infinity();
// What goes into an activation is bounded first.
template <typename T>
void activate(const Activation& activation, T clip, T* __restrict x, std::int64_t count) {
  if (clip < unbounded<T>)
    for (std::int64_t i = 0; i < count; ++i) x[i] = minimum(maximum(x[i], -clip), clip);
  const T alpha = static_cast<T>(activation.alpha), beta = static_cast<T>(activation.beta);
  const auto each = [&](const auto& function) {
    for (std::int64_t i = 0; i < count; ++i) x[i] = function(x[i]);
  };
  switch (activation.function) {
    case Function::relu:
      return each([](T v) { return v < T{0} ? T{0} : v; });
    case Function::tanh:
      return each([](T v) { return tanh_of(v); });
    case Function::sigmoid:
      return each([](T v) { return T{1} / (T{1} + exponential(-v)); });
    case Function::affine:
      return each([=](T v) { return alpha * v + beta; });
    case Function::leaky_relu:
      return each([=](T v) { return v < T{0} ? alpha * v : v; });
    case Function::thresholded_relu:
      return each([=](T v) { return v <= alpha ? T{0} : v; });
    case Function::scaled_tanh:
      return each([=](T v) { return alpha * tanh_of(beta * v); });
    case Function::hard_sigmoid:
      return each([=](T v) { return minimum(maximum(alpha * v + beta, T{0}), T{1}); });
    case Function::elu:
      return each([=](T v) { return v < T{0} ? alpha * std::expm1(v) : v; });
    case Function::softsign:
      return each([](T v) { return v / (T{1} + std::abs(v)); });
    case Function::softplus:
      return each([](T v) { return maximum(v, T{0}) + std::log1p(std::exp(-std::abs(v))); });
  }
}

// One direction of one node. The products of x and W are made of all steps at once, into `gates`, by rows as
// those of x; each step adds those of the state, and goes on in their place.
template <typename T>
class Run {
 public:
  Run(const Recurrence& shape, Inputs inputs, Outputs outputs, T* room)
      : s_(shape),
        inputs_(inputs),
        y_(output(outputs, 0)),
        y_h_(output(outputs, 1)),
        y_c_(output(outputs, 2)),
        h_(room),
        c_(h_ + s_.batch * s_.hidden),
        other_(c_ + s_.batch * s_.hidden),
        gates_(other_ + s_.batch * s_.hidden),
        row_(s_.gates() * s_.hidden),
        clip_(static_cast<T>(s_.clip)) {}

  static std::int64_t room(const Recurrence& s) { return s.batch * s.hidden * (3 + s.steps * s.gates()); }

  void run(std::int64_t direction) {
    d_ = direction;
    backward_ = s_.direction == Direction::reverse || direction == 1;
    begin();
    for (std::int64_t k = 0; k < s_.steps; ++k) {
      bool any = false;
      for (std::int64_t n = 0; n < s_.batch && !any; ++n) any = k < length(n);
      if (!any) break;
      step(k);
    }
    end();
  }

 private:
  std::int64_t length(std::int64_t n) const {
    const ConstView lengths = input(inputs_, Recurrence::sequence_lens);
    return lengths ? length_of(lengths, n, s_.steps) : s_.steps;
  }
  // Of row n, the time of its step k.
  std::int64_t time(std::int64_t n, std::int64_t k) const { return backward_ ? length(n) - 1 - k : k; }
  T* gates(std::int64_t n, std::int64_t t) const {
    return gates_ + (s_.batch_first ? n * s_.steps + t : t * s_.batch + n) * row_;
  }
  T* h(std::int64_t n) const { return h_ + n * s_.hidden; }
  T* c(std::int64_t n) const { return c_ + n * s_.hidden; }
  T* other(std::int64_t n) const { return other_ + n * s_.hidden; }
  std::int64_t in_state(std::int64_t n) const {
    return (s_.batch_first ? n * s_.directions() + d_ : d_ * s_.batch + n) * s_.hidden;
  }
  T* y(std::int64_t n, std::int64_t t) const {
    const std::int64_t at = s_.batch_first ? (n * s_.steps + t) * s_.directions() + d_
                                           : (t * s_.directions() + d_) * s_.batch + n;
    return y_.as<T>() + at * s_.hidden;
  }
  // This direction's part of an operand that has them in front.
  const T* part(std::size_t operand, std::int64_t size) const {
    const ConstView view = input(inputs_, operand);
    return view ? view.as<T>() + d_ * size : nullptr;
  }
  const Activation& activation(int function) const {
    return s_.activations[static_cast<std::size_t>(d_ * s_.functions() + function)];
  }
  // Calls at(n, t) for each row that has a step k.
  template <typename At>
  void for_each(std::int64_t k, const At& at) const {
    for (std::int64_t n = 0; n < s_.batch; ++n)
      if (k < length(n)) at(n, time(n, k));
  }
  // To each row's `to(n, t)` the products of `from(n)` with rows [first, last) of R, in hidden states.
  template <typename From, typename To>
  void add_state_products(std::int64_t k, std::int64_t first, std::int64_t last, const From& from,
                          const To& to) const {
    const T* weights = part(Recurrence::r, row_ * s_.hidden) + first * s_.hidden * s_.hidden;
    add_products(
        s_.batch,
        [&](std::int64_t n) {
          return k < length(n) ? Line<T>{from(n), to(n, time(n, k))} : Line<T>{};
        },
        weights, (last - first) * s_.hidden, s_.hidden);
  }

  void begin() {
    const auto set = [&](T* to, std::size_t operand) {
      const ConstView from = input(inputs_, operand);
      for (std::int64_t n = 0; n < s_.batch; ++n) {
        if (from)
          std::copy_n(from.as<T>() + in_state(n), s_.hidden, to + n * s_.hidden);
        else
          std::fill_n(to + n * s_.hidden, s_.hidden, T{0});
      }
    };
    set(h_, Recurrence::initial_h);
    if (s_.cell == Cell::lstm) set(c_, Recurrence::initial_c);
    const std::int64_t rows = s_.steps * s_.batch;
    const T* bias = part(Recurrence::b, 2 * row_);
    // The bias of the state's product, of which there is one, stays with that where a gate comes between.
    const std::int64_t both = s_.cell == Cell::gru && s_.linear_before_reset ? 2 * s_.hidden : row_;
    for (std::int64_t i = 0; i < rows; ++i) {
      T* __restrict to = gates_ + i * row_;
      for (std::int64_t j = 0; j < row_; ++j) to[j] = bias == nullptr ? T{0} : bias[j];
      if (bias != nullptr)
        for (std::int64_t j = 0; j < both; ++j) to[j] += bias[row_ + j];
    }
    const T* x = inputs_[Recurrence::x].as<T>();
    add_products(
        rows,
        [&](std::int64_t i) {
          return Line<T>{x + i * s_.width, gates_ + i * row_};
        },
        part(Recurrence::w, row_ * s_.width), row_, s_.width);
  }

  void step(std::int64_t k) {
    switch (s_.cell) {
      case Cell::lstm:
        step_lstm(k);
        break;
      case Cell::gru:
        step_gru(k);
        break;
      case Cell::rnn:
        step_rnn(k);
        break;
    }
    if (y_) for_each(k, [&](std::int64_t n, std::int64_t t) { std::copy_n(h(n), s_.hidden, y(n, t)); });
  }

  void step_lstm(std::int64_t k) {
    add_state_products(
        k, 0, 4, [&](std::int64_t n) { return h(n); },
        [&](std::int64_t n, std::int64_t t) { return gates(n, t); });
    const std::int64_t size = s_.hidden;
    const T* p = part(Recurrence::p, 3 * size);
    for_each(k, [&](std::int64_t n, std::int64_t t) {
      T* __restrict i = gates(n, t);
      T* __restrict o = i + size, * __restrict f = i + 2 * size, * __restrict g = i + 3 * size;
      T* __restrict cell = c(n), * __restrict hidden = h(n);
      if (p != nullptr) {
        for (std::int64_t j = 0; j < size; ++j) i[j] += p[j] * cell[j];
        for (std::int64_t j = 0; j < size; ++j) f[j] += p[2 * size + j] * cell[j];
      }
      activate(activation(0), clip_, i, size);
      if (s_.input_forget)
        for (std::int64_t j = 0; j < size; ++j) f[j] = T{1} - i[j];
      else
        activate(activation(0), clip_, f, size);
      activate(activation(1), clip_, g, size);
      for (std::int64_t j = 0; j < size; ++j) cell[j] = f[j] * cell[j] + i[j] * g[j];
      if (p != nullptr)
        for (std::int64_t j = 0; j < size; ++j) o[j] += p[size + j] * cell[j];
      activate(activation(0), clip_, o, size);
      std::copy_n(cell, size, g);
      activate(activation(2), unbounded<T>, g, size);  // as onnxruntime: what is bounded are the gates
      for (std::int64_t j = 0; j < size; ++j) hidden[j] = o[j] * g[j];
    });
  }

  void step_gru(std::int64_t k) {
    const std::int64_t size = s_.hidden;
    const auto state = [&](std::int64_t n) { return h(n); };
    const auto beside = [&](std::int64_t n) { return other(n); };
    add_state_products(k, 0, 2, state, [&](std::int64_t n, std::int64_t t) { return gates(n, t); });
    for_each(k, [&](std::int64_t n, std::int64_t t) {
      T* __restrict z = gates(n, t);
      T* __restrict r = z + size;
      activate(activation(0), clip_, z, 2 * size);
      T* __restrict to = other(n), * __restrict hidden = h(n);
      if (!s_.linear_before_reset) {
        for (std::int64_t j = 0; j < size; ++j) to[j] = r[j] * hidden[j];
      } else if (const T* bias = part(Recurrence::b, 2 * row_); bias != nullptr) {
        std::copy_n(bias + row_ + 2 * size, size, to);
      } else {
        std::fill_n(to, size, T{0});
      }
    });
    if (s_.linear_before_reset)
      add_state_products(k, 2, 3, state, [&](std::int64_t n, std::int64_t) { return other(n); });
    else
      add_state_products(k, 2, 3, beside,
                         [&](std::int64_t n, std::int64_t t) { return gates(n, t) + 2 * size; });
    for_each(k, [&](std::int64_t n, std::int64_t t) {
      T* __restrict z = gates(n, t);
      T* __restrict r = z + size, * __restrict g = z + 2 * size;
      T* __restrict hidden = h(n), * __restrict products = other(n);
      if (s_.linear_before_reset)
        for (std::int64_t j = 0; j < size; ++j) g[j] += r[j] * products[j];
      activate(activation(1), clip_, g, size);
      for (std::int64_t j = 0; j < size; ++j) hidden[j] = (T{1} - z[j]) * g[j] + z[j] * hidden[j];
    });
  }

  void step_rnn(std::int64_t k) {
    add_state_products(
        k, 0, 1, [&](std::int64_t n) { return h(n); },
        [&](std::int64_t n, std::int64_t t) { return gates(n, t); });
    for_each(k, [&](std::int64_t n, std::int64_t t) {
      activate(activation(0), clip_, gates(n, t), s_.hidden);
      std::copy_n(gates(n, t), s_.hidden, h(n));
    });
  }

  // The last states, and zeros behind the end of what is short; zeros too, as onnxruntime has them, for the
  // states of a sequence of length 0.
  void end() {
    for (std::int64_t n = 0; n < s_.batch; ++n) {
      const bool none = input(inputs_, Recurrence::sequence_lens) && length(n) == 0;
      for (const auto& [to, from] : {std::pair{y_h_, h(n)}, std::pair{y_c_, c(n)}}) {
        if (!to) continue;
        T* const at = to.template as<T>() + in_state(n);
        if (none)
          std::fill_n(at, s_.hidden, T{0});
        else
          std::copy_n(from, s_.hidden, at);
      }
      if (!y_) continue;
      for (std::int64_t t = length(n); t < s_.steps; ++t) std::fill_n(y(n, t), s_.hidden, T{0});
    }
  }

  const Recurrence& s_;
  Inputs inputs_;
  MutableView y_, y_h_, y_c_;
  T *h_, *c_, *other_, *gates_;
  std::int64_t row_;  // elements of all gates of a row
  T clip_;
  std::int64_t d_ = 0;
  bool backward_ = false;
};

Result<Recurrence> recurrence_of(const Node& node, Inputs inputs) {
  std::array<const TensorType*, 8> types{};
  if (inputs.size() > types.size()) return failed(node, "it has too many inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) types[i] = inputs[i].type;
  return graph::recurrence_of(node, std::span(types).first(inputs.size()));
}

template <typename T>
Result<> recurrent(const Node& node, Inputs inputs, Outputs outputs) {
  const auto shape = recurrence_of(node, inputs);
  if (!shape) return std::unexpected(shape.error());
  const Outputs results = outputs.first(std::min(outputs.size(), node.outputs.size()));
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i] && results[i].type->shape != (i == 0 ? shape->sequence_shape() : shape->state_shape()))
      return misfit(node, inputs, results);
  }
  if (const ConstView lengths = input(inputs, Recurrence::sequence_lens))
    if (auto ok = check_lengths(node, lengths, shape->steps, outputs.front()); !ok) return ok;
  const MutableView given = output(outputs, node.outputs.size());
  std::vector<T> own(given ? 0 : static_cast<std::size_t>(Run<T>::room(*shape)));
  Run<T> run(*shape, inputs, results, given ? given.as<T>() : own.data());
  for (int d = 0; d < shape->directions(); ++d) run.run(d);
  return {};
}

PlainKernel find_recurrent(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Types<float, double>::pick(types[0]->type,
                                    []<typename T>() -> PlainKernel { return &recurrent<T>; });
}

constexpr Operator operators[] = {
    {"LSTM", &find_recurrent}, {"GRU", &find_recurrent}, {"RNN", &find_recurrent}};

}  // namespace

std::span<const Operator> recurrent_operators() {
  return operators;
}

std::optional<TensorType> recurrent_workspace(const Node& node, InputTypes types) {
  const auto shape = graph::recurrence_of(node, types);
  if (!shape) return std::nullopt;
  return TensorType{types[0]->type, {Run<float>::room(*shape)}};
}

}  // namespace carillon::graph::plain
