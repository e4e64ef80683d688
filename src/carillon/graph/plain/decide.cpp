// Operators whose results' extents the data decide: NonZero, Compress, Unique, NonMaxSuppression. See
// deciding_operators() for what tells the extents.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// Says that output `index` has these extents.
void tell(const Node& node, Outputs outputs, std::size_t index, std::span<const std::int64_t> extents) {
  const MutableView to = output(outputs, node.outputs.size() + index);
  if (to) std::ranges::copy(extents, to.as<std::int64_t>());
}

// Places of the elements that are not zero, one row a dimension.
template <typename T>
Result<> non_zero(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  const std::int64_t elements = inputs[0].type->elements();
  const auto rank = static_cast<std::int64_t>(shape.size());
  if (outputs[0].type->elements() < rank * elements) return misfit(node, inputs, outputs);
  const T* x = inputs[0].as<T>();
  const auto is_zero = [x](std::int64_t i) { return load(x[i]) == Compute<T>{}; };
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < elements; ++i) count += is_zero(i) ? 0 : 1;
  std::int64_t* y = outputs[0].as<std::int64_t>();
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < elements; ++i) {
    if (is_zero(i)) continue;
    std::int64_t rest = i;
    for (std::int64_t d = rank; d-- > 0;) {
      y[d * count + at] = rest % shape[d];
      rest /= shape[d];
    }
    ++at;
  }
  const std::int64_t extents[] = {rank, count};
  tell(node, outputs, 0, extents);
  return {};
}
PlainKernel find_non_zero(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return AllTypes::pick(types[0]->type, []<typename T>() -> PlainKernel { return &non_zero<T>; });
}

// An axis of a tensor, or all of it as one axis.
Result<Around> along_axis(const Node& node, const TensorType& type) {
  if (!node.has("axis")) return Around{.outer = 1, .extent = type.elements(), .inner = 1};
  const auto axis = node_axis(node, 0, type.shape.size());
  if (!axis) return bad_axis(node, type.shape.size());
  return around(type.shape, *axis);
}

// The extents of `whole` where that axis has `count` elements.
Shape shortened(const Node& node, const TensorType& whole, std::int64_t count) {
  if (!node.has("axis")) return {count};
  Shape out = whole.shape;
  out[*node_axis(node, 0, out.size())] = count;
  return out;
}

Result<> compress(const Node& node, Inputs inputs, Outputs outputs) {
  const auto along = along_axis(node, *inputs[0].type);
  if (!along) return std::unexpected(along.error());
  const auto* wanted = inputs[1].as<std::uint8_t>();
  // What the condition does not reach is not wanted, and what it has beyond the axis is not there.
  const std::int64_t told = std::min(along->extent, inputs[1].type->elements());
  const std::int64_t count = std::count_if(wanted, wanted + told, [](std::uint8_t w) { return w != 0; });
  if (outputs[0].type->elements() < along->outer * count * along->inner) return misfit(node, inputs, outputs);
  const std::size_t bytes = static_cast<std::size_t>(along->inner) * size_of(inputs[0].type->type);
  std::byte* to = outputs[0].data;
  for (std::int64_t o = 0; o < along->outer; ++o)
    for (std::int64_t k = 0; k < told; ++k) {
      if (wanted[k] == 0) continue;
      if (bytes > 0)
        std::memcpy(to, inputs[0].data + static_cast<std::size_t>(o * along->extent + k) * bytes, bytes);
      to += bytes;
    }
  tell(node, outputs, 0, shortened(node, *inputs[0].type, count));
  return {};
}
PlainKernel find_compress(const Node&, InputTypes types) {
  return type_at(types, 0) != nullptr && has_type(types, 1, DataType::boolean) ? &compress : nullptr;
}

// Outputs: the slices along the axis that are different, where each stands first, which of them each slice of
// the input is, and how often it is there. NaN is equal to NaN, and the greatest. Sorting takes two numbers a
// slice.
template <typename T>
Result<> unique(const Node& node, Inputs inputs, Outputs outputs) {
  const auto found = along_axis(node, *inputs[0].type);
  if (!found) return std::unexpected(found.error());
  const Around along = *found;
  const T* x = inputs[0].as<T>();
  const auto element = [&](std::int64_t o, std::int64_t k, std::int64_t i) {
    return load(x[(o * along.extent + k) * along.inner + i]);
  };
  // -1, 0 or 1.
  const auto compare = [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t o = 0; o < along.outer; ++o)
      for (std::int64_t i = 0; i < along.inner; ++i) {
        const auto p = element(o, a, i), q = element(o, b, i);
        if (p == q) continue;
        const bool p_nan = p != p, q_nan = q != q;
        if (p_nan && q_nan) continue;
        return q_nan || (!p_nan && p < q) ? -1 : 1;
      }
    return 0;
  };
  // Equal ones side by side, the first of them in front.
  std::vector<std::int64_t> order(static_cast<std::size_t>(along.extent));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) {
    const int c = compare(a, b);
    return c != 0 ? c < 0 : a < b;
  });
  // Where each group begins, in the order in which groups are given.
  std::vector<std::int64_t> groups;
  for (std::size_t i = 0; i < order.size(); ++i)
    if (i == 0 || compare(order[i - 1], order[i]) != 0) groups.push_back(static_cast<std::int64_t>(i));
  const auto all = static_cast<std::int64_t>(order.size());
  const auto end_of = [&](std::int64_t begin) {
    std::int64_t end = begin + 1;
    while (end < all &&
           compare(order[static_cast<std::size_t>(begin)], order[static_cast<std::size_t>(end)]) == 0)
      ++end;
    return end;
  };
  if (node.integer("sorted", 1) == 0)
    std::ranges::sort(groups, {}, [&](std::int64_t g) { return order[static_cast<std::size_t>(g)]; });

  const auto count = static_cast<std::int64_t>(groups.size());
  const Outputs own = outputs.first(std::min(outputs.size(), node.outputs.size()));
  const MutableView values = output(own, 0), first = output(own, 1), inverse = output(own, 2),
                    counts = output(own, 3);
  for (std::int64_t g = 0; g < count; ++g) {
    const std::int64_t begin = groups[static_cast<std::size_t>(g)], end = end_of(begin);
    const std::int64_t k = order[static_cast<std::size_t>(begin)];
    if (values)
      for (std::int64_t o = 0; o < along.outer; ++o)
        std::copy_n(x + (o * along.extent + k) * along.inner, along.inner,
                    values.as<T>() + (o * count + g) * along.inner);
    if (first) first.as<std::int64_t>()[g] = k;
    if (counts) counts.as<std::int64_t>()[g] = end - begin;
    if (inverse)
      for (std::int64_t i = begin; i < end; ++i)
        inverse.as<std::int64_t>()[order[static_cast<std::size_t>(i)]] = g;
  }
  tell(node, outputs, 0, shortened(node, *inputs[0].type, count));
  for (std::size_t i = 1; i < own.size(); ++i) tell(node, outputs, i, std::span(i == 2 ? &all : &count, 1));
  return {};
}
PlainKernel find_unique(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  return AllTypes::pick(types[0]->type, []<typename T>() -> PlainKernel { return &unique<T>; });
}

struct Box {
  float low_y = 0, low_x = 0, high_y = 0, high_x = 0;
  float area() const { return (high_y - low_y) * (high_x - low_x); }
};

// `corners`: two opposite ones, in any order. `center`: x and y of the middle, width, height.
Box box_of(const float* corners, bool center) {
  if (center) {
    const float half_x = corners[2] / 2, half_y = corners[3] / 2;
    return {corners[1] - half_y, corners[0] - half_x, corners[1] + half_y, corners[0] + half_x};
  }
  return {std::min(corners[0], corners[2]), std::min(corners[1], corners[3]),
          std::max(corners[0], corners[2]), std::max(corners[1], corners[3])};
}

bool overlaps(const Box& a, const Box& b, float threshold) {
  const float height = std::min(a.high_y, b.high_y) - std::max(a.low_y, b.low_y);
  const float width = std::min(a.high_x, b.high_x) - std::max(a.low_x, b.low_x);
  if (!(height > 0) || !(width > 0)) return false;
  const float both = height * width;
  const float either = a.area() + b.area() - both;
  return a.area() > 0 && b.area() > 0 && either > 0 && both / either > threshold;
}

// Of each batch and class the boxes that score most, but for those that overlap one before them. Of equal
// scores the earlier box goes first. Few of many are kept, so candidates lie in a heap, as many as have a
// score that is enough.
Result<> non_max_suppression(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape &boxes = inputs[0].type->shape, &scores = inputs[1].type->shape;
  const std::int64_t batches = scores[0], classes = scores[1], count = scores[2];
  if (boxes != Shape{batches, count, 4}) return misfit(node, inputs, outputs);
  const ConstView limit = input(inputs, 2), overlap = input(inputs, 3), least = input(inputs, 4);
  const std::int64_t most = limit ? std::clamp<std::int64_t>(limit.as<std::int64_t>()[0], 0, count) : 0;
  const float threshold = overlap ? overlap.as<float>()[0] : 0;
  if (!(threshold >= 0 && threshold <= 1))
    return failed(node, "iou_threshold is " + std::to_string(threshold) + ": it must be 0 to 1");
  const bool center = node.integer("center_point_box", 0) != 0;
  std::int64_t* y = outputs[0].as<std::int64_t>();
  std::int64_t rows = 0;
  struct Candidate {
    float score;
    std::int64_t box;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.box > b.box;
  };
  std::vector<Candidate> candidates;
  std::vector<Box> kept;
  for (std::int64_t b = 0; b < batches; ++b) {
    const float* corners = inputs[0].as<float>() + b * count * 4;
    for (std::int64_t c = 0; c < classes; ++c) {
      const float* score = inputs[1].as<float>() + (b * classes + c) * count;
      candidates.clear();
      kept.clear();
      for (std::int64_t i = 0; i < count; ++i)
        if (least ? score[i] > least.as<float>()[0] : score[i] == score[i])
          candidates.push_back({score[i], i});
      std::ranges::make_heap(candidates, later);
      while (!candidates.empty() && static_cast<std::int64_t>(kept.size()) < most) {
        std::ranges::pop_heap(candidates, later);
        const std::int64_t i = candidates.back().box;
        candidates.pop_back();
        const Box box = box_of(corners + i * 4, center);
        if (std::ranges::any_of(kept, [&](const Box& other) { return overlaps(other, box, threshold); }))
          continue;
        kept.push_back(box);
        if ((rows + 1) * 3 > outputs[0].type->elements()) return misfit(node, inputs, outputs);
        std::int64_t* row = y + 3 * rows++;
        row[0] = b;
        row[1] = c;
        row[2] = i;
      }
    }
  }
  const std::int64_t extents[] = {rows, 3};
  tell(node, outputs, 0, extents);
  return {};
}
PlainKernel find_non_max_suppression(const Node&, InputTypes types) {
  if (!has_type(types, 0, DataType::f32) || !has_type(types, 1, DataType::f32)) return nullptr;
  if (type_at(types, 2) != nullptr && !has_type(types, 2, DataType::i64)) return nullptr;
  for (const std::size_t i : {3U, 4U})
    if (type_at(types, i) != nullptr && !has_type(types, i, DataType::f32)) return nullptr;
  return types[0]->shape.size() == 3 && types[1]->shape.size() == 3 ? &non_max_suppression : nullptr;
}

constexpr Operator operators[] = {
    {"Compress", &find_compress},
    {"NonMaxSuppression", &find_non_max_suppression},
    {"NonZero", &find_non_zero},
    {"Unique", &find_unique},
};

}  // namespace

std::span<const Operator> deciding_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
