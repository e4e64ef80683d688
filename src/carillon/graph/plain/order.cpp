// Operators that look for places along an axis: ArgMax, ArgMin, TopK; and CumSum.

#include <cmath>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

template <typename T, bool largest>
Result<> arg(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  const auto axis = node_axis(node, 0, shape.size());
  if (!axis) return bad_axis(node, shape.size());
  const Around along = around(shape, *axis);
  if (outputs[0].type->elements() != along.outer * along.inner) return misfit(node, inputs, outputs);
  if (along.extent == 0) return failed(node, "the axis is empty");
  const bool last = node.integer("select_last_index", 0) != 0;
  const T* x = inputs[0].as<T>();
  std::int64_t* y = outputs[0].as<std::int64_t>();
  constexpr std::int64_t tile = 64;  // neighbouring results that grow together
  for (std::int64_t o = 0; o < along.outer; ++o, x += along.extent * along.inner, y += along.inner) {
    for (std::int64_t i = 0; i < along.inner; i += tile) {
      const std::int64_t width = std::min(tile, along.inner - i);
      std::array<Compute<T>, tile> best;
      for (std::int64_t j = 0; j < width; ++j) {
        best[j] = load(x[i + j]);
        y[i + j] = 0;
      }
      for (std::int64_t k = 1; k < along.extent; ++k) {
        const T* row = x + k * along.inner + i;
        for (std::int64_t j = 0; j < width; ++j) {
          const auto value = load(row[j]);
          const bool better = (largest ? value > best[j] : value < best[j]) || (last && value == best[j]);
          if (better) {
            best[j] = value;
            y[i + j] = k;
          }
        }
      }
    }
  }
  return {};
}
template <bool largest>
PlainKernel find_arg(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Numbers::pick(types[0]->type, []<typename T>() -> PlainKernel { return &arg<T, largest>; });
}

// The best k places of one line, kept as a heap (the worst of them on top) in the output itself, then sorted.
// Of equal elements the earlier is the better.
template <typename T>
class BestPlaces {
 public:
  BestPlaces(const T* line, std::int64_t step, bool largest, std::int64_t* places, std::int64_t place_step)
      : line_(line), step_(step), largest_(largest), places_(places), place_step_(place_step) {}

  void find(std::int64_t extent, std::int64_t k) {
    for (std::int64_t i = 0; i < k; ++i) place(i) = i;
    for (std::int64_t i = k / 2 - 1; i >= 0; --i) sink(i, k);
    for (std::int64_t i = k; i < extent; ++i) {
      if (k > 0 && better(i, place(0))) {
        place(0) = i;
        sink(0, k);
      }
    }
    for (std::int64_t left = k - 1; left > 0; --left) {
      std::swap(place(0), place(left));
      sink(0, left);
    }
  }

 private:
  std::int64_t& place(std::int64_t i) { return places_[i * place_step_]; }
  bool better(std::int64_t a, std::int64_t b) const {
    const auto x = load(line_[a * step_]);
    const auto y = load(line_[b * step_]);
    return x != y ? (largest_ ? x > y : x < y) : a < b;
  }
  void sink(std::int64_t at, std::int64_t count) {
    for (;;) {
      std::int64_t worst = at;
      for (const std::int64_t child : {2 * at + 1, 2 * at + 2}) {
        if (child < count && better(place(worst), place(child))) worst = child;
      }
      if (worst == at) return;
      std::swap(place(at), place(worst));
      at = worst;
    }
  }

  const T* line_;
  std::int64_t step_;
  bool largest_;
  std::int64_t* places_;
  std::int64_t place_step_;
};

// Outputs: values, indices. Always sorted, which is also right where the node does not ask for it.
template <typename T>
Result<> top_k(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  const auto axis = node_axis(node, -1, shape.size());
  if (!axis) return bad_axis(node, shape.size());
  const Around along = around(shape, *axis);
  const MutableView values = output(outputs, 0);
  const MutableView indices = output(outputs, 1);
  const TensorType* result = indices ? indices.type : values.type;
  if (result == nullptr) return {};
  if (result->shape.size() != shape.size()) return misfit(node, inputs, outputs);
  const std::int64_t k = result->shape[*axis];
  if (k > along.extent) {
    return failed(node, "k is " + std::to_string(k) + ", but the axis has " + std::to_string(along.extent) +
                            " elements");
  }
  if ((values && values.type->elements() != along.outer * k * along.inner) ||
      (indices && indices.type->elements() != along.outer * k * along.inner)) {
    return misfit(node, inputs, outputs);
  }
  const bool largest = node.integer("largest", 1) != 0;
  const T* x = inputs[0].as<T>();
  // Nobody wants the indices: the one case with memory of its own, one line of k.
  std::vector<std::int64_t> own(indices ? 0 : static_cast<std::size_t>(k));
  for (std::int64_t o = 0; o < along.outer; ++o) {
    for (std::int64_t i = 0; i < along.inner; ++i) {
      const T* line = x + o * along.extent * along.inner + i;
      const std::int64_t base = o * k * along.inner + i;
      std::int64_t* places = indices ? indices.as<std::int64_t>() + base : own.data();
      const std::int64_t place_step = indices ? along.inner : 1;
      BestPlaces<T>(line, along.inner, largest, places, place_step).find(along.extent, k);
      if (values) {
        T* y = values.as<T>() + base;
        for (std::int64_t j = 0; j < k; ++j) y[j * along.inner] = line[places[j * place_step] * along.inner];
      }
    }
  }
  return {};
}
PlainKernel find_top_k(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return Numbers::pick(types[0]->type, []<typename T>() -> PlainKernel { return &top_k<T>; });
}

// Input 1 is the axis.
template <typename T>
Result<> cumulative_sum(const Node& node, Inputs inputs, Outputs outputs) {
  using C = Compute<T>;
  const Shape& shape = inputs[0].type->shape;
  if (inputs[1].type->elements() != 1 || outputs[0].type->elements() != inputs[0].type->elements()) {
    return misfit(node, inputs, outputs);
  }
  const auto axis = axis_of(index_at(inputs[1], 0), shape.size());
  if (!axis) return failed(node, "axis " + std::to_string(index_at(inputs[1], 0)) + " is outside the tensor");
  const Around along = around(shape, *axis);
  const bool exclusive = node.integer("exclusive", 0) != 0;
  const bool reverse = node.integer("reverse", 0) != 0;
  for (std::int64_t o = 0; o < along.outer; ++o) {
    for (std::int64_t i = 0; i < along.inner; ++i) {
      C sum{};
      for (std::int64_t k = 0; k < along.extent; ++k) {
        const std::int64_t place = reverse ? along.extent - 1 - k : k;
        const std::int64_t at = (o * along.extent + place) * along.inner + i;
        const C with = add(sum, load(inputs[0].as<T>()[at]));
        outputs[0].as<T>()[at] = store<T>(exclusive ? sum : with);
        sum = with;
      }
    }
  }
  return {};
}
PlainKernel find_cumulative_sum(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || type_at(types, 1) == nullptr || !is_index(types[1]->type)) {
    return nullptr;
  }
  return Numbers::pick(types[0]->type, []<typename T>() -> PlainKernel { return &cumulative_sum<T>; });
}

constexpr Operator operators[] = {
    {"ArgMax", &find_arg<true>},
    {"ArgMin", &find_arg<false>},
    {"TopK", &find_top_k},
    {"CumSum", &find_cumulative_sum},
};

}  // namespace

std::span<const Operator> order_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
