#include "carillon/graph/rows.h"

#include <algorithm>
#include <cstring>

#include "carillon/base/assert.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/row_rules.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

bool same_contents(const SharedTensor& a, const SharedTensor& b) {
  return a == b || (a->type() == b->type() && std::ranges::equal(a->bytes(), b->bytes()));
}

std::int64_t extents_product(const Shape& shape, std::size_t from, std::size_t to) {
  std::int64_t out = 1;
  for (std::size_t d = from; d < to; ++d) out *= shape[d];
  return out;
}

}  // namespace

RowTrace::RowTrace(const Graph& together, std::int64_t batch, const Graph* alone)
    : together_(together), alone_(alone), batch_(batch), states_(together.values.size()) {
  CARILLON_ASSERT(batch >= 2);
  start();
  for (std::size_t i = 0; i < together.nodes.size(); ++i) enter(static_cast<int>(i));
}

void RowTrace::start() {
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (together_.values[i].constant != nullptr) states_[i] = constant_state(i);
  for (const ValueId id : together_.inputs) {
    const Shape& shape = together_.value(id).type.shape;
    if (shape.empty() || shape[0] < 1 || shape[0] % batch_ != 0) continue;
    const RowLayout layout{0, 1, shape[0] / batch_};
    if (fits(id, layout)) states_[id.index()] = {RowState::Kind::rows, layout, -1};
  }
}

RowState RowTrace::constant_state(std::size_t id) const {
  if (alone_ == nullptr) return {RowState::Kind::shared, {}, -1};
  const SharedTensor& here = together_.values[id].constant;
  const SharedTensor there = id < alone_->values.size() ? alone_->values[id].constant : nullptr;
  if (there == nullptr) return {RowState::Kind::mixed, {}, -1};
  return {same_contents(here, there) ? RowState::Kind::shared : RowState::Kind::varies, {}, -1};
}

// Of a value without elements, by its extents alone: whoever made it, there is nothing to mix.
RowState RowTrace::state_of_nothing(ValueId id) const {
  const Shape& shape = together_.value(id).type.shape;
  if (alone_ == nullptr || std::ranges::find(shape, 0) == shape.end()) return {};
  const Shape& one = alone_->value(id).type.shape;
  if (shape == one) return {RowState::Kind::shared, {}, -1};
  if (shape.size() != one.size()) return {};
  const auto axis = std::ranges::mismatch(shape, one).in1 - shape.begin();
  const RowLayout layout{static_cast<int>(axis), 1, one[static_cast<std::size_t>(axis)]};
  return fits(id, layout) ? RowState{RowState::Kind::rows, layout, -1} : RowState{};
}

// Whether the value's extents are those of rows laid out like that, here and where one is alone.
bool RowTrace::fits(ValueId id, const RowLayout& layout) const {
  const Shape& shape = together_.value(id).type.shape;
  const auto axis = static_cast<std::size_t>(layout.axis);
  if (layout.axis < 0 || axis >= shape.size() || layout.outer < 1 || layout.inner < 1) return false;
  if (shape[axis] != layout.outer * batch_ * layout.inner) return false;
  if (alone_ == nullptr) return true;
  Shape one = shape;
  one[axis] = layout.outer * layout.inner;
  return alone_->value(id).type.shape == one;
}

bool RowTrace::alike(const Node& node, int index) const {
  if (alone_ == nullptr) return true;
  if (static_cast<std::size_t>(index) >= alone_->nodes.size()) return false;
  const Node& other = alone_->nodes[static_cast<std::size_t>(index)];
  const auto known = [&](ValueId id) { return id == no_value || id.index() < alone_->values.size(); };
  if (node.op != other.op || node.guard != other.guard || node.inputs != other.inputs ||
      node.outputs != other.outputs || !std::ranges::all_of(node.inputs, known) ||
      !std::ranges::all_of(node.outputs, known))
    return false;
  const auto same_kind = [&](ValueId id) {
    return id == no_value || (together_.is_constant(id) == alone_->is_constant(id) &&
                              together_.value(id).type.type == alone_->value(id).type.type);
  };
  return std::ranges::all_of(node.inputs, same_kind) && std::ranges::all_of(node.outputs, same_kind) &&
         signature(node) == signature(other);
}

void RowTrace::enter(int index) {
  const Node& node = together_.nodes[static_cast<std::size_t>(index)];
  const auto set_all = [&](const RowState& state) {
    for (const ValueId id : node.outputs) {
      if (id == no_value) continue;
      const RowState empty = unlike_ < 0 ? state_of_nothing(id) : RowState{};
      states_[id.index()] = empty.kind == RowState::Kind::mixed ? state : empty;
    }
  };
  // Behind the first difference nothing can be compared any more.
  if (unlike_ < 0 && !alike(node, index)) unlike_ = index;
  if (unlike_ >= 0) return set_all({RowState::Kind::mixed, {}, unlike_});
  set_all({RowState::Kind::mixed, {}, index});
  bool shared = true;
  const auto look = [&](ValueId id) {
    if (id == no_value) return true;
    const RowState& state = states_[id.index()];
    shared = shared && state.kind == RowState::Kind::shared;
    if (state.kind == RowState::Kind::mixed && state.culprit >= 0) set_all(state);
    return state.kind != RowState::Kind::mixed;
  };
  if (!std::ranges::all_of(node.inputs, look)) return;
  for (const PostOp& post : node.post_ops)
    if (!look(post.operand)) return;
  // A condition is one for all rows, so what it decides is made of all of them.
  if (node.guard >= 0) return;
  if (shared) return set_all({RowState::Kind::shared, {}, -1});
  const RowRule rule = find_row_rule(node.op);
  if (rule == nullptr) return;
  RowView view(*this, index);
  rule(view);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId id = node.outputs[i];
    const auto& layout = view.results()[i];
    if (id == no_value || !layout || !fits(id, *layout)) continue;
    const std::size_t rank = together_.value(id).type.shape.size();
    if (std::ranges::all_of(node.post_ops, [&](const PostOp& post) {
          return post.operand == no_value || broadcasts_by_rows(*this, post.operand, *layout, rank);
        }))
      states_[id.index()] = {RowState::Kind::rows, *layout, -1};
  }
}

bool RowTrace::constant_has(ValueId id, const RowLayout& layout) const {
  if (!together_.is_constant(id)) return false;
  if (alone_ == nullptr) return true;
  if (id.index() >= alone_->values.size() || !alone_->is_constant(id) || !fits(id, layout)) return false;
  const Shape& shape = together_.value(id).type.shape;
  const auto axis = static_cast<std::size_t>(layout.axis);
  const auto parts = static_cast<std::size_t>(extents_product(shape, 0, axis) * layout.outer);
  const auto here = together_.value(id).constant->bytes(), there = alone_->value(id).constant->bytes();
  if (parts == 0 || there.empty()) return here.empty();
  const std::size_t block = there.size() / parts;
  const auto rows = static_cast<std::size_t>(batch_);
  for (std::size_t part = 0; part < parts; ++part)
    for (std::size_t row = 0; row < rows; ++row)
      if (std::memcmp(here.data() + (part * rows + row) * block, there.data() + part * block, block) != 0)
        return false;
  return true;
}

bool RowTrace::is_batch(ValueId id) const {
  constexpr RowLayout batch{0, 1, 1};
  const RowState& state = of(id);
  if (state.kind == RowState::Kind::rows) return state.layout == batch;
  return state.kind == RowState::Kind::varies && constant_has(id, batch);
}

std::string RowTrace::why_not(ValueId id) const {
  const RowState& state = of(id);
  const std::string at = " (at a batch of " + std::to_string(batch_) + ")";
  const auto maker = [&]() -> const Node* {
    const auto found = std::ranges::find_if(together_.nodes, [&](const Node& node) {
      return std::ranges::find(node.outputs, id) != node.outputs.end();
    });
    return found == together_.nodes.end() ? nullptr : &*found;
  };
  if (state.kind == RowState::Kind::mixed && state.culprit >= 0) {
    const Node& node = together_.nodes[static_cast<std::size_t>(state.culprit)];
    if (state.culprit == unlike_)
      return describe(node) +
             " is not there, or another, at a batch of one: the model looks at its batch size" + at;
    for (const ValueId operand : node.inputs)
      if (operand != no_value && of(operand).kind == RowState::Kind::varies)
        return describe(node) + " is not known to keep rows apart with '" + together_.value(operand).name +
               "', which the model makes of its batch size" + at;
    return describe(node) + " makes a row's result of other rows, or is not known to keep them apart" + at;
  }
  const Node* const node = maker();
  const std::string name = "output '" + together_.value(id).name + "'";
  if (node == nullptr) return name + " is made of the batch size, or of nothing" + at;
  return describe(*node) + " makes " + name + ", whose rows are not its dimension 0" + at;
}

std::string why_not_row_by_row(const Graph& alone, const Graph& together, std::int64_t batch) {
  const RowTrace trace(together, batch, &alone);
  for (const ValueId id : together.outputs)
    if (!trace.is_batch(id)) return trace.why_not(id);
  return {};
}

}  // namespace carillon::graph
