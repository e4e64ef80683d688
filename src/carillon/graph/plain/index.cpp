// Gathers and scatters: elements named by indices from outside, each checked
// against its axis.

#include <algorithm>
#include <cstring>
#include <optional>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// A checked index counted from the front, or -1.
template <typename I>
inline std::int64_t resolve(I index, std::int64_t extent) {
  const std::int64_t at = index < 0 ? static_cast<std::int64_t>(index) + extent : index;
  return at >= 0 && at < extent ? at : -1;
}
// The same, or 0: for one that has been noted.
template <typename I>
inline std::int64_t resolve_or_first(I index, std::int64_t extent) {
  return std::max<std::int64_t>(resolve(index, extent), 0);
}

// Elements of T, `inner` to an index: a row of an embedding, or a single
// element.
template <typename T, typename I>
Result<> gather_runs(const Node& node, Inputs inputs, Outputs outputs, const Around& data) {
  const I* indices = inputs[1].as<I>();
  const std::int64_t count = inputs[1].type->elements();
  for (std::int64_t i = 0; i < count; ++i) {
    if (resolve(indices[i], data.extent) >= 0) continue;
    if (auto noted = note_index(node, outputs[0], inputs[1], i, data.extent); !noted) return noted;
  }
  const T* x = inputs[0].as<T>();
  T* __restrict y = outputs[0].as<T>();
  const auto bytes = static_cast<std::size_t>(data.inner) * sizeof(T);
  for (std::int64_t o = 0; o < data.outer; ++o, x += data.extent * data.inner) {
    if (data.inner == 1) {
      for (std::int64_t i = 0; i < count; ++i) y[i] = x[resolve_or_first(indices[i], data.extent)];
      y += count;
      continue;
    }
    for (std::int64_t i = 0; i < count; ++i, y += data.inner) {
      std::memcpy(y, x + resolve_or_first(indices[i], data.extent) * data.inner, bytes);
    }
  }
  return {};
}
template <typename T>
Result<> gather(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  const auto axis = node_axis(node, 0, shape.size());
  if (!axis) return bad_axis(node, shape.size());
  const Around data = around(shape, *axis);
  if (outputs[0].type->elements() != data.outer * inputs[1].type->elements() * data.inner) {
    return misfit(node, inputs, outputs);
  }
  return inputs[1].type->type == DataType::i32 ? gather_runs<T, std::int32_t>(node, inputs, outputs, data)
                                               : gather_runs<T, std::int64_t>(node, inputs, outputs, data);
}

// How a scatter joins an update with what is there.
enum class Join { replace, add, multiply, maximum, minimum };
template <Join join, typename T>
inline void put(T& place, T update) {
  if constexpr (join == Join::replace) {
    place = update;
  } else if constexpr (join == Join::add) {
    place = store<T>(add(load(place), load(update)));
  } else if constexpr (join == Join::multiply) {
    place = store<T>(multiply(load(place), load(update)));
  } else if constexpr (join == Join::maximum) {
    place = store<T>(maximum(load(place), load(update)));
  } else {
    place = store<T>(minimum(load(place), load(update)));
  }
}

// GatherElements and ScatterElements: loops over the indices (operand 0) and
// over the data (operand 1), which stands still along the axis.
struct ElementLoops {
  Loops<2> loops;
  std::int64_t extent = 0;  // of the data along the axis
  std::int64_t step = 0;
};
Result<ElementLoops> element_loops(const Node& node, const ConstView& indices, const Shape& data) {
  const Shape& shape = indices.type->shape;
  const auto axis = node_axis(node, 0, data.size());
  if (!axis) return bad_axis(node, data.size());
  if (shape.size() != data.size()) return failed(node, "data and indices differ in rank");
  const auto index_strides = dense_strides(shape);
  const auto data_strides = dense_strides(data);
  ElementLoops result;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const bool along = static_cast<std::int64_t>(d) == *axis;
    if (!along && shape[d] > data[d]) return failed(node, "indices reach beyond the data");
    result.loops.push(shape[d], {index_strides[d], along ? 0 : data_strides[d]});
  }
  result.loops.collapse();
  result.extent = data[*axis];
  result.step = data_strides[*axis];
  return result;
}
// What becomes of an element whose index is bad, and noted.
enum class Bad { reads_the_first, is_left_out };
// Calls with(place in indices, place in data).
template <Bad bad, typename With>
Result<> for_each_element(const Node& node, const ConstView& indices, const Shape& data,
                          const MutableView& output, With&& with) {
  const auto plan = element_loops(node, indices, data);
  if (!plan) return std::unexpected(plan.error());
  const std::int64_t inner_index = plan->loops.inner_stride(0);
  const std::int64_t inner_data = plan->loops.inner_stride(1);
  Result<> done;
  for_each_row(plan->loops, [&](const auto& at, std::int64_t count) {
    for (std::int64_t i = 0; i < count && done; ++i) {
      const std::int64_t place = at[0] + i * inner_index;
      std::int64_t index = resolve(index_at(indices, place), plan->extent);
      if (index < 0) {
        done = note_index(node, output, indices, place, plan->extent);
        if (!done || bad == Bad::is_left_out) continue;
        index = 0;
      }
      with(place, at[1] + i * inner_data + index * plan->step);
    }
  });
  return done;
}

template <typename T>
Result<> gather_elements(const Node& node, Inputs inputs, Outputs outputs) {
  if (outputs[0].type->elements() != inputs[1].type->elements()) return misfit(node, inputs, outputs);
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  return for_each_element<Bad::reads_the_first>(
      node, inputs[1], inputs[0].type->shape, outputs[0],
      [&](std::int64_t place, std::int64_t at) { y[place] = x[at]; });
}

// The output begins as the data; `updates` of them are to follow.
Result<> begin_scatter(const Node& node, Inputs inputs, Outputs outputs, std::int64_t updates) {
  const std::size_t bytes = inputs[0].type->bytes().count;
  if (outputs[0].type->bytes().count != bytes || inputs[2].type->elements() != updates) {
    return misfit(node, inputs, outputs);
  }
  if (bytes > 0) std::memcpy(outputs[0].data, inputs[0].data, bytes);
  return {};
}

template <Join join, typename T>
Result<> scatter_elements(const Node& node, Inputs inputs, Outputs outputs) {
  if (auto begun = begin_scatter(node, inputs, outputs, inputs[1].type->elements()); !begun) return begun;
  const T* updates = inputs[2].as<T>();
  T* y = outputs[0].as<T>();
  return for_each_element<Bad::is_left_out>(
      node, inputs[1], inputs[0].type->shape, outputs[0],
      [&](std::int64_t place, std::int64_t at) { put<join>(y[at], updates[place]); });
}

// GatherND and ScatterND: the last axis of the indices names a place in the
// data's axes [batch, batch + depth).
struct Tuples {
  std::int64_t count = 0;  // in all
  std::int64_t depth = 0;  // indices in one
  std::int64_t run = 1;    // elements that one names
  std::int64_t per_batch = 1;
  std::int64_t batch_step = 0;  // elements of data in one batch
};
Result<Tuples> tuples_of(const Node& node, const Shape& data, const Shape& indices, std::int64_t batch) {
  if (indices.empty()) return failed(node, "indices are a scalar");
  Tuples tuples;
  tuples.depth = indices.back();
  const auto rank = static_cast<std::int64_t>(data.size());
  const auto index_rank = static_cast<std::int64_t>(indices.size());
  if (batch < 0 || batch >= index_rank || batch + tuples.depth > rank || tuples.depth < 1) {
    return failed(node,
                  "indices of shape " + to_text(indices) + " do not fit data of shape " + to_text(data));
  }
  tuples.count = 1;
  for (std::int64_t d = 0; d + 1 < index_rank; ++d) {
    if (d < batch && indices[d] != data[d]) return failed(node, "the batches of data and indices differ");
    if (d >= batch) tuples.per_batch *= indices[d];
    tuples.count *= indices[d];
  }
  for (std::int64_t d = batch + tuples.depth; d < rank; ++d) tuples.run *= data[d];
  tuples.batch_step = 1;
  for (std::int64_t d = batch; d < rank; ++d) tuples.batch_step *= data[d];
  return tuples;
}
// Where tuple `t` points, in elements of the data. Nowhere, for one with an index outside, which is noted; an
// error where nobody takes notes.
Result<std::optional<std::int64_t>> place_of(const Node& node, const Tuples& tuples, const ConstView& indices,
                                             const Shape& data, std::int64_t batch, std::int64_t t,
                                             const MutableView& output) {
  std::int64_t at = 0;
  bool inside = true;
  for (std::int64_t k = 0; k < tuples.depth; ++k) {
    const std::int64_t extent = data[batch + k];
    const std::int64_t place = t * tuples.depth + k;
    const std::int64_t index = resolve(index_at(indices, place), extent);
    if (index < 0) {
      if (auto noted = note_index(node, output, indices, place, extent); !noted)
        return std::unexpected(noted.error());
      inside = false;
      continue;
    }
    at = at * extent + index;
  }
  if (!inside) return std::nullopt;
  return t / tuples.per_batch * tuples.batch_step + at * tuples.run;
}

Result<> gather_nd(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& data = inputs[0].type->shape;
  const std::int64_t batch = node.integer("batch_dims", 0);
  const auto tuples = tuples_of(node, data, inputs[1].type->shape, batch);
  if (!tuples) return std::unexpected(tuples.error());
  if (outputs[0].type->elements() != tuples->count * tuples->run) return misfit(node, inputs, outputs);
  const std::size_t size = size_of(inputs[0].type->type);
  const std::size_t bytes = static_cast<std::size_t>(tuples->run) * size;
  for (std::int64_t t = 0; t < tuples->count; ++t) {
    const auto place = place_of(node, *tuples, inputs[1], data, batch, t, outputs[0]);
    if (!place) return std::unexpected(place.error());
    std::byte* to = outputs[0].data + static_cast<std::size_t>(t) * bytes;
    if (*place)
      std::memcpy(to, inputs[0].data + static_cast<std::size_t>(**place) * size, bytes);
    else
      std::memset(to, 0, bytes);
  }
  return {};
}

template <Join join, typename T>
Result<> scatter_nd(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& data = inputs[0].type->shape;
  const auto tuples = tuples_of(node, data, inputs[1].type->shape, 0);
  if (!tuples) return std::unexpected(tuples.error());
  if (auto begun = begin_scatter(node, inputs, outputs, tuples->count * tuples->run); !begun) return begun;
  const T* updates = inputs[2].as<T>();
  for (std::int64_t t = 0; t < tuples->count; ++t) {
    const auto place = place_of(node, *tuples, inputs[1], data, 0, t, outputs[0]);
    if (!place) return std::unexpected(place.error());
    if (!*place) continue;
    T* y = outputs[0].as<T>() + **place;
    for (std::int64_t i = 0; i < tuples->run; ++i) put<join>(y[i], updates[t * tuples->run + i]);
  }
  return {};
}

// Inputs: indices, depth, [off, on]. Indices may be of any number type; those
// outside choose nothing.
template <typename T, typename I>
Result<> one_hot_of(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = outputs[0].type->shape;
  const auto axis = node_axis(node, -1, shape.size());
  if (!axis) return bad_axis(node, shape.size());
  const Around out = around(shape, *axis);
  if (inputs[0].type->elements() != out.outer * out.inner || inputs[2].type->elements() != 2) {
    return misfit(node, inputs, outputs);
  }
  const T off = inputs[2].as<T>()[0];
  const T on = inputs[2].as<T>()[1];
  T* y = outputs[0].as<T>();
  std::fill_n(y, outputs[0].type->elements(), off);
  const I* indices = inputs[0].as<I>();
  for (std::int64_t o = 0; o < out.outer; ++o) {
    for (std::int64_t i = 0; i < out.inner; ++i) {
      const auto index = number_cast<std::int64_t>(load(indices[o * out.inner + i]));
      const std::int64_t at = resolve(index, out.extent);
      if (at >= 0) y[(o * out.extent + at) * out.inner + i] = on;
    }
  }
  return {};
}
PlainKernel find_one_hot(const Node&, InputTypes types) {
  if (!type_at(types, 0) || !type_at(types, 1) || !type_at(types, 2)) return nullptr;
  const DataType index = types[0]->type;
  return pick_size(types[2]->type, [index]<typename T>() -> PlainKernel {
    return Numbers::pick(index, []<typename I>() -> PlainKernel { return &one_hot_of<T, I>; });
  });
}

// Input 1 tells how much of each batch entry to turn round; the rest stays.
Result<> reverse_sequence(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  const bool time_first = node.integer("time_axis", 0) == 0;
  if (shape.size() < 2 || outputs[0].type->elements() != inputs[0].type->elements() ||
      inputs[1].type->elements() != shape[time_first ? 1 : 0]) {
    return misfit(node, inputs, outputs);
  }
  const std::int64_t times = shape[time_first ? 0 : 1];
  const std::int64_t entries = shape[time_first ? 1 : 0];
  const std::int64_t time_step = time_first ? entries : 1;
  const std::int64_t entry_step = time_first ? 1 : times;
  std::int64_t run = 1;
  for (std::size_t d = 2; d < shape.size(); ++d) run *= shape[d];
  const std::size_t bytes = static_cast<std::size_t>(run) * size_of(inputs[0].type->type);
  for (std::int64_t e = 0; e < entries; ++e) {
    std::int64_t length = index_at(inputs[1], e);
    if (length < 0 || length > times) {
      auto noted = note(outputs[0], inputs[1], e, [&] {
        return failed(node, "length " + std::to_string(length) + source_of(inputs[1]) +
                                " is outside an axis of " + std::to_string(times) +
                                " elements: it must be 0 to " + std::to_string(times));
      });
      if (!noted) return noted;
      length = 0;
    }
    for (std::int64_t t = 0; t < times; ++t) {
      const std::int64_t source = t < length ? length - 1 - t : t;
      std::memcpy(outputs[0].data + static_cast<std::size_t>(e * entry_step + t * time_step) * bytes,
                  inputs[0].data + static_cast<std::size_t>(e * entry_step + source * time_step) * bytes,
                  bytes);
    }
  }
  return {};
}

bool takes_indices(InputTypes types) {
  return type_at(types, 0) != nullptr && type_at(types, 1) != nullptr && is_index(types[1]->type);
}
PlainKernel find_gather(const Node&, InputTypes types) {
  if (!takes_indices(types)) return nullptr;
  return pick_size(types[0]->type, []<typename T>() -> PlainKernel { return &gather<T>; });
}
PlainKernel find_gather_elements(const Node&, InputTypes types) {
  if (!takes_indices(types)) return nullptr;
  return pick_size(types[0]->type, []<typename T>() -> PlainKernel { return &gather_elements<T>; });
}
PlainKernel find_gather_nd(const Node&, InputTypes types) {
  return takes_indices(types) ? &gather_nd : nullptr;
}

PlainKernel find_reverse(const Node&, InputTypes types) {
  return takes_indices(types) ? &reverse_sequence : nullptr;
}

template <template <Join, typename> typename Kernel>
PlainKernel find_scatter(const Node& node, InputTypes types) {
  if (!takes_indices(types) || type_at(types, 2) == nullptr || types[2]->type != types[0]->type) {
    return nullptr;
  }
  const DataType type = types[0]->type;
  const std::string_view reduction = node.text("reduction", "none");
  if (reduction == "none") {
    return pick_size(type, []<typename T>() -> PlainKernel { return &Kernel<Join::replace, T>::run; });
  }
  if (reduction == "add") {
    return Numbers::pick(type, []<typename T>() -> PlainKernel { return &Kernel<Join::add, T>::run; });
  }
  if (reduction == "mul") {
    return Numbers::pick(type, []<typename T>() -> PlainKernel { return &Kernel<Join::multiply, T>::run; });
  }
  if (reduction == "max") {
    return Numbers::pick(type, []<typename T>() -> PlainKernel { return &Kernel<Join::maximum, T>::run; });
  }
  if (reduction == "min") {
    return Numbers::pick(type, []<typename T>() -> PlainKernel { return &Kernel<Join::minimum, T>::run; });
  }
  return nullptr;
}
template <Join join, typename T>
struct ScatterElements {
  static Result<> run(const Node& node, Inputs inputs, Outputs outputs) {
    return scatter_elements<join, T>(node, inputs, outputs);
  }
};
template <Join join, typename T>
struct ScatterNd {
  static Result<> run(const Node& node, Inputs inputs, Outputs outputs) {
    return scatter_nd<join, T>(node, inputs, outputs);
  }
};

constexpr Operator operators[] = {
    {"Gather", &find_gather},
    {"GatherElements", &find_gather_elements},
    {"GatherND", &find_gather_nd},
    {"ScatterElements", &find_scatter<ScatterElements>},
    {"Scatter", &find_scatter<ScatterElements>},
    {"ScatterND", &find_scatter<ScatterNd>},
    {"ReverseSequence", &find_reverse},
    {"OneHot", &find_one_hot},
};

}  // namespace

std::span<const Operator> index_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
