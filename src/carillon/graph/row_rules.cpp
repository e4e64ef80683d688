#include "carillon/graph/row_rules.h"

#include <algorithm>
#include <array>

#include "carillon/graph/einsum.h"
#include "carillon/graph/recurrence.h"

namespace carillon::graph {

namespace {

int rank_of(const Shape& shape) {
  return static_cast<int>(shape.size());
}
std::size_t at(int axis) {
  return static_cast<std::size_t>(axis);
}

// An axis that an attribute or an operand names, counted from the front.
int from_front(std::int64_t axis, int rank) {
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

std::int64_t product(const Shape& shape, int from, int to) {
  std::int64_t out = 1;
  for (int d = from; d < to; ++d) out *= shape[at(d)];
  return out;
}

RowLayout moved(const RowLayout& layout, int axis) {
  return {axis, layout.outer, layout.inner};
}

// The operand of `candidates` that has rows, which are to say where those of the others are.
const RowLayout* first_rows(const RowView& v, std::initializer_list<std::size_t> candidates) {
  for (const std::size_t i : candidates)
    if (const RowLayout* rows = v.rows(i)) return rows;
  return nullptr;
}

// --- Element by element

// Of the element of operand 0 at the same place.
void each(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x != nullptr && v.fixed_from(1)) v.set_all(*x);
}

// Likewise, and of scales, of which there may be one for each index of an axis.
void scaled(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr || !v.fixed_from(1)) return;
  const bool one = v.elements(1) == 1 && (!v.present(2) || v.elements(2) == 1);
  const int axis = from_front(v.node().integer("axis", 1), rank_of(v.shape(0)));
  if (one || (v.node().integer("block_size", 0) == 0 && axis != x->axis)) v.set_all(*x);
}

// Of the elements of all operands at the same place, by ONNX's rules of broadcasting.
void broadcast_all(RowView& v) {
  const int rank = rank_of(v.out_shape(0));
  for (std::size_t i = 0; i < v.inputs(); ++i)
    if (const RowLayout* rows = v.rows(i)) {
      const RowLayout result = moved(*rows, rows->axis + rank - rank_of(v.shape(i)));
      for (std::size_t j = 0; j < v.inputs(); ++j)
        if (v.present(j) && !v.broadcasts(j, result, at(rank))) return;
      return v.set_all(result);
    }
}

// --- Batches: each index of dimension 0 by itself

void leading(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x != nullptr && x->axis == 0 && v.fixed_from(1)) v.set_all(*x);
}

// The other results of a MaxPool are places among all elements.
void max_pool(RowView& v) {
  if (const RowLayout* x = v.rows(0); x != nullptr && x->axis == 0) v.set(0, *x);
}

// Matrices of rows and columns; one dimension would be columns.
void table_of_rows(RowView& v) {
  if (rank_of(v.shape(0)) == 2) leading(v);
}

// A tensor of channels in dimension 1, each by itself.
void by_channel(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x != nullptr && x->axis != 1 && v.fixed_from(1)) v.set_all(*x);
}

// --- Along one axis, or several

template <std::int64_t otherwise>
void along(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr || !v.fixed_from(1)) return;
  if (from_front(v.node().integer("axis", otherwise), rank_of(v.shape(0))) != x->axis) v.set_all(*x);
}

// How rows lie once these axes are gone, or have become 1.
void reduced(RowView& v, const RowLayout& rows, const std::vector<std::int64_t>& axes, bool keep) {
  const int rank = rank_of(v.shape(0));
  int before = 0;
  for (const std::int64_t axis : axes) {
    const int d = from_front(axis, rank);
    if (d == rows.axis) return;
    if (d < rows.axis) ++before;
  }
  v.set_all(moved(rows, rows.axis - (keep ? 0 : before)));
}

void arg_reduce(RowView& v) {
  if (const RowLayout* x = v.rows(0))
    reduced(v, *x, {v.node().integer("axis", 0)}, v.node().integer("keepdims", 1) != 0);
}

void reduce(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr || !v.fixed_from(1)) return;
  const auto axes = v.present(1) ? v.numbers(1) : std::vector<std::int64_t>{};
  if (!axes) return;
  if (!axes->empty())
    reduced(v, *x, *axes, v.node().integer("keepdims", 1) != 0);
  else if (v.node().integer("noop_with_empty_axes", 0) != 0)
    v.set_all(*x);
}

void cum_sum(RowView& v) {
  const RowLayout* x = v.rows(0);
  const auto axis = v.numbers(1);
  if (x == nullptr || !v.fixed(1) || !axis || axis->size() != 1) return;
  if (from_front(axis->front(), rank_of(v.shape(0))) != x->axis) v.set_all(*x);
}

// All dimensions from an axis on are one.
void layer_normalization(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr || !v.fixed_from(1)) return;
  if (x->axis < from_front(v.node().integer("axis", -1), rank_of(v.shape(0)))) v.set_all(*x);
}

void mean_variance(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr) return;
  const auto given = v.node().integers("axes");
  const std::vector<std::int64_t> axes = given.empty()
                                             ? std::vector<std::int64_t>{0, 2, 3}
                                             : std::vector<std::int64_t>(given.begin(), given.end());
  reduced(v, *x, axes, true);
}

// The last `inner` dimensions are matrices, or the like.
template <int inner>
void of_matrices(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x != nullptr && x->axis < rank_of(v.shape(0)) - inner && v.fixed_from(1)) v.set_all(*x);
}

// --- Other shapes of the same elements

// The rows are a digit of an element's place: so many parts before them, so many elements behind.
void reshape(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr) return;
  const Shape &from = v.shape(0), &to = v.out_shape(0);
  const std::int64_t before = product(from, 0, x->axis) * x->outer;
  const std::int64_t behind = x->inner * product(from, x->axis + 1, rank_of(from));
  if (before < 1 || behind < 1) return;
  std::int64_t passed = 1;
  for (int d = 0; d < rank_of(to); ++d) {
    const std::int64_t extent = to[at(d)];
    if (before % passed != 0) return;
    const std::int64_t outer = before / passed;
    if (extent % (outer * v.batch()) == 0) {
      const std::int64_t inner = extent / (outer * v.batch());
      if (inner * product(to, d + 1, rank_of(to)) == behind) v.set(0, {d, outer, inner});
      return;
    }
    passed *= extent;
  }
}

void transpose(RowView& v) {
  const RowLayout* x = v.rows(0);
  const auto perm = v.node().integers("perm");
  if (x == nullptr) return;
  const auto found = std::ranges::find(perm, x->axis);
  if (found != perm.end()) v.set(0, moved(*x, static_cast<int>(found - perm.begin())));
}

void expand(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr) return;
  const int axis = x->axis + rank_of(v.out_shape(0)) - rank_of(v.shape(0));
  if (v.out_shape(0)[at(axis)] == v.shape(0)[at(x->axis)]) v.set(0, moved(*x, axis));
}

void tile(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr) return;
  const std::int64_t times = v.out_shape(0)[at(x->axis)] / v.shape(0)[at(x->axis)];
  v.set(0, {x->axis, x->outer * times, x->inner});
}

// --- Parts and sums of parts

// One dimension's part of a Slice.
struct Cut {
  std::int64_t start = 0, step = 1;
  friend bool operator==(const Cut&, const Cut&) = default;
};

// What a Slice takes of each dimension of `shape`; nothing where that is not known.
std::optional<std::vector<Cut>> cuts_of(const Shape& shape,
                                        const std::optional<std::vector<std::int64_t>>& starts,
                                        const std::optional<std::vector<std::int64_t>>& axes,
                                        const std::optional<std::vector<std::int64_t>>& steps) {
  std::vector<Cut> out(shape.size());
  if (!starts) return std::nullopt;
  for (std::size_t i = 0; i < starts->size(); ++i) {
    const int d = axes ? from_front((*axes)[i], rank_of(shape)) : static_cast<int>(i);
    const std::int64_t extent = shape[at(d)];
    Cut& cut = out[at(d)];
    cut.step = steps ? (*steps)[i] : 1;
    const std::int64_t start = (*starts)[i] < 0 ? (*starts)[i] + extent : (*starts)[i];
    cut.start =
        std::clamp<std::int64_t>(start, 0, cut.step > 0 ? extent : std::max<std::int64_t>(extent - 1, 0));
  }
  return out;
}

void slice(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr) return;
  const auto given = [&](std::size_t i) { return !v.present(i) || v.numbers(i); };
  if (!given(3) || !given(4)) return;
  const auto here = cuts_of(v.shape(0), v.numbers(1), v.numbers(3), v.numbers(4));
  const auto there = cuts_of(v.shape_alone(0), v.numbers_alone(1), v.numbers_alone(3), v.numbers_alone(4));
  if (!here || !there) return;
  for (int d = 0; d < rank_of(v.shape(0)); ++d)
    if (d != x->axis && (*here)[at(d)] != (*there)[at(d)]) return;
  // Of the rows, all, of one outer index after the other.
  const Cut& cut = (*here)[at(x->axis)];
  const std::int64_t unit = v.batch() * x->inner, count = v.out_shape(0)[at(x->axis)];
  if (cut.step != 1 || cut.start % unit != 0 || count % unit != 0) return;
  if (v.proves() && (*there)[at(x->axis)] != Cut{cut.start / v.batch(), 1}) return;
  v.set(0, {x->axis, count / unit, x->inner});
}

void split_rows(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr) return;
  const int axis = from_front(v.node().integer("axis", 0), rank_of(v.shape(0)));
  if (axis != x->axis) return v.set_all(*x);
  const std::int64_t unit = v.batch() * x->inner;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < v.outputs(); ++i) {
    if (v.node().outputs[i] == no_value) return;
    const std::int64_t count = v.out_shape(i)[at(axis)];
    if (start % unit == 0 && count % unit == 0) v.set(i, {axis, count / unit, x->inner});
    start += count;
  }
}

void concat(RowView& v) {
  const int rank = rank_of(v.out_shape(0));
  const int axis = from_front(v.node().integer("axis", 0), rank);
  const RowLayout* rows = nullptr;
  for (std::size_t i = 0; rows == nullptr && i < v.inputs(); ++i) rows = v.rows(i);
  if (rows == nullptr) return;
  std::int64_t outer = 0;
  for (std::size_t i = 0; i < v.inputs(); ++i) {
    RowLayout wanted = *rows;
    if (axis == rows->axis) {
      const std::int64_t unit = v.batch() * rows->inner;
      if (v.shape(i)[at(axis)] % unit != 0) return;
      wanted.outer = v.shape(i)[at(axis)] / unit;
      outer += wanted.outer;
    }
    if (!v.has(i, wanted)) return;
  }
  v.set(0, {rows->axis, axis == rows->axis ? outer : rows->outer, rows->inner});
}

void pad(RowView& v) {
  const RowLayout* x = v.rows(0);
  const auto here = v.numbers(1), there = v.numbers_alone(1);
  if (x == nullptr || !here || !there || here->size() != there->size() || !v.fixed(2) || !v.fixed(3)) return;
  const auto axes = v.present(3) ? v.numbers(3) : std::nullopt;
  if (v.present(3) && !axes) return;
  const std::size_t count = here->size() / 2;
  for (std::size_t i = 0; i < count; ++i) {
    const int d = axes ? from_front((*axes)[i], rank_of(v.shape(0))) : static_cast<int>(i);
    const auto none = [&](std::size_t side) { return (*here)[i + side] == 0 && (*there)[i + side] == 0; };
    if (d == x->axis && !(none(0) && none(count))) return;
    if ((*here)[i] != (*there)[i] || (*here)[i + count] != (*there)[i + count]) return;
  }
  v.set(0, *x);
}

// Leaves dimensions alone whose scale is 1, but where places are shifted, or cut out of the whole.
void resize(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr || !v.fixed(1) || !v.fixed(2) || v.present(1)) return;
  const std::string_view way = v.node().text("coordinate_transformation_mode", "half_pixel");
  if (way == "tf_half_pixel_for_nn" || way == "tf_crop_and_resize") return;
  if (v.out_shape(0)[at(x->axis)] != v.shape(0)[at(x->axis)]) return;
  if (v.present(2)) {
    const auto scales = v.reals(2);
    if (!scales || scales->size() != v.shape(0).size() || (*scales)[at(x->axis)] != 1.0F) return;
  }
  v.set(0, *x);
}

// --- By indices

void gather(RowView& v) {
  const int axis = from_front(v.node().integer("axis", 0), rank_of(v.shape(0)));
  const RowLayout *data = v.rows(0), *indices = v.rows(1);
  if (data != nullptr && v.fixed(1) && data->axis != axis) {
    // A dimension for each of the indices', in the place of one.
    const int more = rank_of(v.out_shape(0)) - rank_of(v.shape(0));
    v.set(0, moved(*data, data->axis + (data->axis > axis ? more : 0)));
  } else if (v.fixed(0) && indices != nullptr) {
    v.set(0, moved(*indices, indices->axis + axis));
  } else if (data != nullptr && data->axis == axis) {
    if (const auto own = v.own_rows(1, *data)) v.set(0, moved(*own, own->axis + axis));
  }
}

void gather_elements(RowView& v) {
  const int axis = from_front(v.node().integer("axis", 0), rank_of(v.shape(0)));
  const RowLayout* rows = first_rows(v, {0, 1});
  if (rows == nullptr) return;
  // Along other axes an element is looked for at its own place.
  const bool own = rows->axis != axis && v.has(0, *rows) && v.has(1, *rows);
  const bool looked_up = rows->axis == axis && v.fixed(0) && v.has(1, *rows);
  if (own || looked_up) v.set(0, *rows);
}

void gather_nd(RowView& v) {
  const int shared = static_cast<int>(v.node().integer("batch_dims", 0));
  const int deep = static_cast<int>(v.shape(1).back()), depth = rank_of(v.shape(1)) - 1;
  const RowLayout *data = v.rows(0), *indices = v.rows(1);
  const RowLayout* rows = data != nullptr ? data : indices;
  if (rows == nullptr) return;
  if (rows->axis < shared) {
    if (v.has(0, *rows) && v.has(1, *rows)) v.set(0, *rows);
  } else if (data != nullptr) {
    if (data->axis < shared + deep) {
      if (const auto own = v.own_rows(1, *data, data->axis - shared)) v.set(0, *own);
    } else if (v.fixed(1)) {
      v.set(0, moved(*data, depth + data->axis - shared - deep));
    }
  } else if (v.fixed(0) && indices->axis < depth) {
    v.set(0, *indices);
  }
}

void scatter_elements(RowView& v) {
  const int axis = from_front(v.node().integer("axis", 0), rank_of(v.shape(0)));
  const RowLayout* rows = first_rows(v, {0, 1, 2});
  if (rows == nullptr || rows->axis == axis) return;
  if (v.has(0, *rows) && v.has(1, *rows) && v.has(2, *rows)) v.set(0, *rows);
}

void scatter_nd(RowView& v) {
  const int deep = static_cast<int>(v.shape(1).back()), depth = rank_of(v.shape(1)) - 1;
  const RowLayout *data = v.rows(0), *updates = v.rows(2);
  if (data != nullptr && data->axis < deep) {
    // Each row's updates go to places of that row.
    const auto own = v.own_rows(1, *data, data->axis);
    if (own && v.has(2, *own)) v.set(0, *data);
    return;
  }
  if (!v.fixed(1) || (data == nullptr && updates == nullptr)) return;
  // Behind what the indices say, data and updates have the same dimensions.
  const RowLayout result = data != nullptr ? *data : moved(*updates, updates->axis - depth + deep);
  if (result.axis < deep) return;
  if (v.has(0, result) && v.has(2, moved(result, result.axis - deep + depth))) v.set(0, result);
}

void one_hot(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr || !v.fixed_from(1)) return;
  const int axis = from_front(v.node().integer("axis", -1), rank_of(v.out_shape(0)));
  v.set(0, moved(*x, x->axis + (axis <= x->axis ? 1 : 0)));
}

void reverse_sequence(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr) return;
  const int batch = from_front(v.node().integer("batch_axis", 1), rank_of(v.shape(0)));
  const int time = from_front(v.node().integer("time_axis", 0), rank_of(v.shape(0)));
  if (x->axis == time) return;
  if (x->axis == batch ? v.has(1, moved(*x, 0)) : v.fixed(1)) v.set(0, *x);
}

// --- Products

// Rows of operands `left` and `right` of a MatMul, where the other operands allow them.
void product_of(RowView& v, std::size_t left, std::size_t right, std::initializer_list<std::size_t> left_only,
                std::initializer_list<std::size_t> right_only) {
  const RowLayout *a = v.rows(left), *b = v.rows(right);
  const int rank_a = rank_of(v.shape(left)), rank_b = rank_of(v.shape(right));
  const int rank = rank_of(v.out_shape(0));
  const auto single = [&](std::initializer_list<std::size_t> operands) {
    return std::ranges::all_of(operands, [&](std::size_t i) { return !v.present(i) || v.elements(i) == 1; });
  };
  // How many dimensions are behind the rows.
  const int behind_a = a != nullptr ? rank_a - 1 - a->axis : -1;
  const int behind_b = b != nullptr ? rank_b - 1 - b->axis : -1;
  if (a != nullptr && behind_a == 1 && v.fixed(right)) {
    // Rows are lines of the left matrix; a right operand of one dimension takes the last away.
    if (single(left_only)) v.set(0, moved(*a, rank_b == 1 ? rank - 1 : rank - 2));
    return;
  }
  if (b != nullptr && behind_b == 0 && rank_b > 1 && v.fixed(left)) {
    if (single(right_only)) v.set(0, moved(*b, rank - 1));
    return;
  }
  // Rows are whole matrices.
  const int behind = std::max(behind_a, behind_b);
  if (behind < 2 || (a != nullptr && behind_a != behind) || (b != nullptr && behind_b != behind)) return;
  const RowLayout& rows = a != nullptr ? *a : *b;
  for (const auto& [i, operand_rank] : {std::pair{left, rank_a}, std::pair{right, rank_b}}) {
    const int axis = operand_rank - 1 - behind;
    const bool repeats = axis < 0 || v.shape(i)[at(axis)] == 1;
    if (!(repeats ? v.fixed(i) : v.has(i, moved(rows, axis)))) return;
  }
  const int less = (rank_a == 1 ? 1 : 0) + (rank_b == 1 ? 1 : 0);
  v.set(0, moved(rows, rank - 1 - behind + less));
}

void matmul(RowView& v) {
  product_of(v, 0, 1, {}, {});
}
void matmul_integer(RowView& v) {
  if (v.fixed_from(2)) product_of(v, 0, 1, {2}, {3});
}
void qlinear_matmul(RowView& v) {
  for (const std::size_t i : {1U, 2U, 4U, 5U})
    if (!v.fixed(i)) return;
  if (v.fixed_from(6)) product_of(v, 0, 3, {1, 2}, {4, 5});
}

void gemm(RowView& v) {
  const RowLayout *a = v.rows(0), *b = v.rows(1);
  const int lines = v.node().integer("transA", 0) != 0 ? 1 : 0;
  const int columns = v.node().integer("transB", 0) != 0 ? 0 : 1;
  std::optional<RowLayout> result;
  if (a != nullptr && a->axis == lines && v.fixed(1)) result = moved(*a, 0);
  if (b != nullptr && b->axis == columns && v.fixed(0)) result = moved(*b, 1);
  if (result && (!v.present(2) || v.broadcasts(2, *result, 2))) v.set(0, *result);
}

// The label of the rows must be one of the result, and the rows of every operand that has it.
void einsum(RowView& v) {
  const std::vector<const TensorType*> types = v.types();
  const auto read = einsum_of(v.node(), types);
  if (!read) return;
  const RowLayout* rows = nullptr;
  int label = -1;
  for (std::size_t i = 0; i < v.inputs(); ++i) {
    const RowLayout* mine = v.rows(i);
    if (mine == nullptr) {
      if (!v.fixed(i)) return;
      continue;
    }
    // A label that stands twice in one operand walks a diagonal: strides do not tell dimensions apart then.
    std::ptrdiff_t dimensions = 0;
    for (int l = 0; l < read->count; ++l) dimensions += read->labels[at(l)].stride[i] != 0 ? 1 : 0;
    if (dimensions != std::ranges::count_if(v.shape(i), [](std::int64_t extent) { return extent != 1; }))
      return;
    const std::int64_t stride = product(v.shape(i), mine->axis + 1, rank_of(v.shape(i)));
    int found = 0;
    while (found < read->count && read->labels[at(found)].stride[i] != stride) ++found;
    if (found >= read->kept || (rows != nullptr && (found != label || moved(*mine, 0) != moved(*rows, 0))))
      return;
    rows = mine;
    label = found;
  }
  for (std::size_t i = 0; i < v.inputs(); ++i)
    if (v.rows(i) == nullptr && read->labels[at(label)].stride[i] != 0) return;
  v.set(0, moved(*rows, label));
}

// --- What goes on from step to step

void recurrent(RowView& v) {
  const bool first = v.node().integer("layout", 0) == 1;
  const int sequence = first ? 0 : 1, state = first ? 0 : 1;
  const RowLayout* x = v.rows(Recurrence::x);
  const RowLayout* rows = x != nullptr ? x : first_rows(v, {Recurrence::initial_h, Recurrence::initial_c});
  if (rows == nullptr) return;
  if (!v.has(Recurrence::x, moved(*rows, sequence))) return;
  for (const std::size_t i : {Recurrence::w, Recurrence::r, Recurrence::b, Recurrence::p})
    if (!v.fixed(i)) return;
  if (v.present(Recurrence::sequence_lens) && !v.has(Recurrence::sequence_lens, moved(*rows, 0))) return;
  for (const std::size_t i : {Recurrence::initial_h, Recurrence::initial_c})
    if (v.present(i) && !v.has(i, moved(*rows, state))) return;
  for (std::size_t i = 0; i < v.outputs(); ++i) v.set(i, moved(*rows, i > 0 ? state : first ? 0 : 2));
}

// --- Images, signals and losses

void grid_sample(RowView& v) {
  const RowLayout* rows = first_rows(v, {0, 1});
  if (rows != nullptr && rows->axis == 0 && v.has(0, *rows) && v.has(1, *rows)) v.set(0, *rows);
}

// `axis` is complete, and the last dimension is not among what it may be.
void dft(RowView& v) {
  const RowLayout* x = v.rows(0);
  if (x == nullptr || !v.fixed_from(1) || x->axis == rank_of(v.shape(0)) - 1) return;
  if (from_front(v.node().integer("axis", -2), rank_of(v.shape(0))) != x->axis) v.set(0, *x);
}

// Scores [N, C, d...] and classes [N, d...], one loss for each of the latter.
void loss(RowView& v) {
  const RowLayout* rows = v.rows(0);
  if (rows == nullptr || rows->axis == 1 || v.node().text("reduction", "mean") != "none" || !v.fixed(2))
    return;
  const RowLayout result = moved(*rows, rows->axis == 0 ? 0 : rows->axis - 1);
  if (!v.has(1, result)) return;
  v.set(0, result);
  if (v.outputs() > 1) v.set(1, *rows);
}

struct RuleRow {
  std::string_view op;
  RowRule rule;
};
// In the order of their names, which find_row_rule relies on. An operator that is not here mixes rows, or
// may: it looks at the whole tensor (DynamicQuantizeLinear, the steps of training), lets data decide extents,
// or counts places among all elements (MaxUnpool).
constexpr auto rules = std::to_array<RuleRow>({
    {"Abs", each},
    {"Acos", each},
    {"Acosh", each},
    {"Add", broadcast_all},
    {"And", broadcast_all},
    {"ArgMax", arg_reduce},
    {"ArgMin", arg_reduce},
    {"Asin", each},
    {"Asinh", each},
    {"AtLeast", broadcast_all},
    {"AtMost", broadcast_all},
    {"Atan", each},
    {"Atanh", each},
    {"AveragePool", leading},
    {"BatchNormalization", by_channel},
    {"BitShift", broadcast_all},
    {"BitwiseAnd", broadcast_all},
    {"BitwiseNot", each},
    {"BitwiseOr", broadcast_all},
    {"BitwiseXor", broadcast_all},
    {"ByteLookup", each},
    {"Cast", each},
    {"Ceil", each},
    {"Celu", each},
    {"Clip", each},
    {"Concat", concat},
    {"Conv", leading},
    {"ConvInteger", leading},
    {"ConvTranspose", leading},
    {"Cos", each},
    {"Cosh", each},
    {"CumSum", cum_sum},
    {"DFT", dft},
    {"DepthToSpace", leading},
    {"DequantizeLinear", scaled},
    {"Det", of_matrices<2>},
    {"Div", broadcast_all},
    {"Einsum", einsum},
    {"Elu", each},
    {"Equal", broadcast_all},
    {"Erf", each},
    {"Exp", each},
    {"Expand", expand},
    {"Floor", each},
    {"GRU", recurrent},
    {"Gather", gather},
    {"GatherElements", gather_elements},
    {"GatherND", gather_nd},
    {"Gelu", each},
    {"Gemm", gemm},
    {"GlobalAveragePool", leading},
    {"GlobalLpPool", leading},
    {"GlobalMaxPool", leading},
    {"Greater", broadcast_all},
    {"GreaterOrEqual", broadcast_all},
    {"GridSample", grid_sample},
    {"GroupNormalization", leading},
    {"HardSigmoid", each},
    {"HardSwish", each},
    {"Hardmax", along<-1>},
    {"Identity", each},
    {"InstanceNormalization", leading},
    {"IsInf", each},
    {"IsNaN", each},
    {"LRN", leading},
    {"LSTM", recurrent},
    {"LabelEncoder", each},
    {"LayerNormalization", layer_normalization},
    {"LeakyRelu", each},
    {"Less", broadcast_all},
    {"LessOrEqual", broadcast_all},
    {"LinearScores", table_of_rows},
    {"Log", each},
    {"LogSoftmax", along<-1>},
    {"LpNormalization", along<-1>},
    {"LpPool", leading},
    {"MatMul", matmul},
    {"MatMulInteger", matmul_integer},
    {"Max", broadcast_all},
    {"MaxPool", max_pool},
    {"Mean", broadcast_all},
    {"MeanVarianceNormalization", mean_variance},
    {"Min", broadcast_all},
    {"Mish", each},
    {"Mod", broadcast_all},
    {"Mul", broadcast_all},
    {"Neg", each},
    {"NegativeLogLikelihoodLoss", loss},
    {"Not", each},
    {"OneHot", one_hot},
    {"OneHotEncoder", each},
    {"Or", broadcast_all},
    {"PRelu", broadcast_all},
    {"Pad", pad},
    {"PostTransform", table_of_rows},
    {"Pow", broadcast_all},
    {"QLinearAdd", broadcast_all},
    {"QLinearConv", leading},
    {"QLinearGlobalAveragePool", leading},
    {"QLinearMatMul", qlinear_matmul},
    {"QLinearMul", broadcast_all},
    {"QuantizeLinear", scaled},
    {"RNN", recurrent},
    {"RbfKernel", table_of_rows},
    {"Reciprocal", each},
    {"ReduceL1", reduce},
    {"ReduceL2", reduce},
    {"ReduceLogSum", reduce},
    {"ReduceLogSumExp", reduce},
    {"ReduceMax", reduce},
    {"ReduceMean", reduce},
    {"ReduceMin", reduce},
    {"ReduceProd", reduce},
    {"ReduceSum", reduce},
    {"ReduceSumSquare", reduce},
    {"Relu", each},
    {"Reshape", reshape},
    {"Resize", resize},
    {"ReverseSequence", reverse_sequence},
    {"Round", each},
    {"STFT", leading},
    {"ScatterElements", scatter_elements},
    {"ScatterND", scatter_nd},
    {"Selu", each},
    {"Shrink", each},
    {"Sigmoid", each},
    {"Sign", each},
    {"Sin", each},
    {"Sinh", each},
    {"Slice", slice},
    {"Softmax", along<-1>},
    {"SoftmaxCrossEntropyLoss", loss},
    {"Softplus", each},
    {"Softsign", each},
    {"SpaceToDepth", leading},
    {"Split", split_rows},
    {"Sqrt", each},
    {"Sub", broadcast_all},
    {"Sum", broadcast_all},
    {"SvmScores", table_of_rows},
    {"Tan", each},
    {"Tanh", each},
    {"TfIdfVectorizer", table_of_rows},
    {"ThresholdedRelu", each},
    {"Tile", tile},
    {"TopK", along<-1>},
    {"Transpose", transpose},
    {"TreeClassifier", table_of_rows},
    {"TreeRegressor", table_of_rows},
    {"Trilu", of_matrices<2>},
    {"Where", broadcast_all},
    {"Xor", broadcast_all},
});
static_assert(std::is_sorted(rules.begin(), rules.end(),
                             [](const RuleRow& a, const RuleRow& b) { return a.op < b.op; }));

}  // namespace

RowRule find_row_rule(std::string_view op) {
  const auto found =
      std::lower_bound(rules.begin(), rules.end(), op,
                       [](const RuleRow& row, std::string_view name) { return row.op < name; });
  return found != rules.end() && found->op == op ? found->rule : nullptr;
}

}  // namespace carillon::graph
