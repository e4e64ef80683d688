#include <algorithm>
#include <functional>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/shape_inference.h"
#include "carillon/graph/specializer.h"

namespace carillon::graph {
namespace {

// Each If whose branches stay apart doubles what follows: a model is not to grow without an end.
constexpr std::size_t most_sides = 20000;

// Of an output whose rank is open: even a tensor without dimensions has an element.
constexpr std::int64_t least_elements = 1;

std::string side(bool when) {
  return when ? ".then" : ".else";
}

}  // namespace

const Specializer::Split* Specializer::split(ValueId id) const {
  const auto found = splits_.find(id);
  return found == splits_.end() ? nullptr : &found->second;
}

// What a condition is under the present guard, where that tells.
std::optional<bool> Specializer::known(ValueId condition) const {
  for (int g = guard_; g >= 0; g = graph_.guards[static_cast<std::size_t>(g)].parent) {
    const Guard& around = graph_.guards[static_cast<std::size_t>(g)];
    if (around.condition == condition) return around.when;
  }
  return std::nullopt;
}

// What a split value is under the present guard.
ValueId Specializer::resolved(ValueId id) const {
  for (const Split* found = split(id); found != nullptr; found = split(id)) {
    const std::optional<bool> is = known(found->condition);
    if (!is) return id;
    id = *is ? found->yes : found->no;
  }
  return id;
}

ValueId Specializer::find_split(std::span<const ValueId> ids) const {
  const auto found =
      std::ranges::find_if(ids, [this](ValueId id) { return id != no_value && split(id) != nullptr; });
  return found == ids.end() ? no_value : *found;
}

// `to` is `from` if the condition is `when`; else the data are bad, and why is told.
Result<> Specializer::only(const std::string& name, ValueId condition, bool when, const std::string& why,
                           ValueId from, ValueId to) {
  Node check{.name = name, .op = "Only", .inputs = {from, condition}, .outputs = {to}};
  check.attributes.insert_or_assign("when", Attribute{std::int64_t{when}});
  check.attributes.insert_or_assign("why", Attribute{why});
  if (is_bounded(from))
    return fail(ErrorCode::unsupported,
                describe(check) + ": " + why + "; and data decide the extents of what the other gives");
  return infer(std::move(check));
}

// `to`, which is to be made if the condition is not `when`, is of `like`'s type and has no sense; that it is
// made at all is bad data, and why is told.
Result<> Specializer::unfit(const std::string& name, ValueId condition, bool when, const std::string& why,
                            ValueId like, ValueId to) {
  while (split(like) != nullptr) like = split(like)->yes;
  const TensorType type = type_of(like);
  Node node{.name = name, .op = "Unfit", .inputs = {condition}, .outputs = {to}};
  node.attributes.insert_or_assign("shape", Attribute{type.shape});
  node.attributes.insert_or_assign("type", Attribute{static_cast<std::int64_t>(type.type)});
  node.attributes.insert_or_assign("why", Attribute{why});
  const int around = std::exchange(guard_, guard(condition, !when));
  auto ok = infer(std::move(node));
  guard_ = around;
  return ok;
}

// `to` are the results. A side whose shapes do not fit together matters only where the run takes it, as bad
// data do.
Result<> Specializer::enter_both(const std::string& name, ValueId id, std::span<const ValueId> to,
                                 const EnterSide& enter) {
  const Split by = *split(id);
  std::vector<std::vector<ValueId>> results;
  std::optional<Error> misfit;
  bool fits = true;  // which side does, where one does not
  for (const bool when : {true, false}) {
    const int around = guard_, loops = loops_;
    const std::string suffix = suffix_;
    const std::size_t before = graph_.nodes.size();
    guard_ = guard(by.condition, when);
    suffix_ += side(when);
    auto made = enter(when);
    guard_ = around;
    loops_ = loops;
    suffix_ = suffix;
    if (!made) {
      if (made.error().code != ErrorCode::invalid_argument || misfit) return std::unexpected(made.error());
      misfit = made.error();
      fits = !when;
      graph_.nodes.resize(before);
      made.emplace();
    }
    results.push_back(*std::move(made));
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] == no_value) continue;
    const std::string own = counted(name, i, to.size());
    if (misfit) {
      const ValueId made = results[fits ? 0 : 1][i],
                    other = new_value(graph_.value(to[i]).name + side(!fits));
      if (auto ok = unfit(own + side(!fits), by.condition, fits,
                          "what follows the " + std::string(fits ? "else" : "then") +
                              "_branch of an If does not fit what it gives: " + misfit->message,
                          made, other);
          !ok)
        return ok;
      results[fits ? 1 : 0].resize(to.size());
      results[fits ? 1 : 0][i] = other;
    }
    if (auto ok = combine(own, by.condition, results[0][i], results[1][i], to[i], true); !ok) return ok;
  }
  return {};
}

// Splits of splits double with each If, nodes and values alike: so both count.
Result<> Specializer::count_sides(const std::string& what, std::size_t count) {
  sides_ += count;
  if (sides_ <= most_sides) return {};
  return fail(ErrorCode::unsupported,
              what +
                  ": branches of If give unlike shapes by data, and with all that follows each of them the " +
                  "graph has more than " + std::to_string(most_sides) + " nodes");
}

// A node that reads a split value. `whole`: by enter(), else by infer().
Result<> Specializer::enter_sides(Node node, ValueId id, bool whole) {
  if (auto room = count_sides(describe(node), 2); !room) return room;
  return enter_both(node.name, id, node.outputs, [&](bool when) -> Result<std::vector<ValueId>> {
    Node copy = node;
    copy.name += side(when);
    for (ValueId& output : copy.outputs)
      if (output != no_value) output = new_value(graph_.value(output).name + side(when));
    std::vector<ValueId> results = copy.outputs;
    if (auto ok = whole ? enter(std::move(copy)) : infer(std::move(copy)); !ok)
      return std::unexpected(ok.error());
    return results;
  });
}

// A node of the file with graphs inside that reads a split value.
Result<> Specializer::enter_source_sides(const Node& node, ValueId id) {
  std::vector<ValueId> to;
  for (const ValueId output : node.outputs) to.push_back(begin(output));
  auto ok = enter_both(node.name + suffix_, id, to, [&](bool) -> Result<std::vector<ValueId>> {
    if (auto entered = enter_source(node); !entered) return std::unexpected(entered.error());
    return now(node.outputs);
  });
  for (std::size_t i = 0; i < to.size(); ++i)
    if (to[i] != no_value) now_[node.outputs[i].index()] = to[i];
  return ok;
}

// `to` is `yes` where the condition holds, else `no`; split where they are not of one type. `constants`:
// where they are two constants, too, as shapes may follow from them.
Result<> Specializer::combine(const std::string& name, ValueId condition, ValueId yes, ValueId no, ValueId to,
                              bool constants) {
  const auto mergeable = [&](ValueId a, ValueId b) {
    return split(a) == nullptr && split(b) == nullptr && type_of(a) == type_of(b) && !is_bounded(a) &&
           !is_bounded(b) &&
           !(constants && graph_.is_constant(a) && graph_.is_constant(b) &&
             graph_.value(a).constant != graph_.value(b).constant);
  };
  if (yes == no || mergeable(yes, no)) return merge(name, condition, yes, no, to);
  if (type_of(yes).type != type_of(no).type)
    return invalid("node '" + name + "': it gives " + std::string(onnx_name(type_of(yes).type)) + " and " +
                   std::string(onnx_name(type_of(no).type)) + " in the branches of an If");
  if (auto room = count_sides("node '" + name + "'", 1); !room) return room;
  Split made{condition, yes, no};
  if (split(yes) != nullptr && split(no) != nullptr && split(yes)->condition == split(no)->condition) {
    // Both were split by the same condition before: where that is known they may be of one type.
    const Split a = *split(yes), b = *split(no);
    made = {a.condition, new_value(graph_.value(to).name + side(true)),
            new_value(graph_.value(to).name + side(false))};
    for (const bool when : {true, false}) {
      const int around = std::exchange(guard_, guard(a.condition, when));
      auto ok = combine(name + side(when), condition, when ? a.yes : a.no, when ? b.yes : b.no,
                        when ? made.yes : made.no, constants);
      guard_ = around;
      if (!ok) return ok;
    }
    if (mergeable(made.yes, made.no)) return merge(name, made.condition, made.yes, made.no, to);
  }
  splits_.insert_or_assign(to, made);
  graph_.value(to).type = type_of(made.yes);
  return {};
}

// A split value that is an output of the model becomes one value, of the shape that the run's way gives it.
Result<> Specializer::choose(ValueId output) {
  if (split(output) == nullptr) return {};
  Node node{.name = graph_.value(output).name, .op = std::string(bounded_node), .outputs = {output}};
  std::vector<std::int64_t> tree;
  std::vector<ValueId> leaves;
  // A value may be on several ways through the splits, and is a leaf on each.
  Result<> room;
  const std::function<std::int64_t(ValueId)> add = [&](ValueId id) -> std::int64_t {
    if (room) room = count_sides("output '" + node.name + "'", 1);
    const Split* const by = room ? split(id) : nullptr;
    node.inputs.push_back(by == nullptr ? id : by->condition);
    const auto input = static_cast<std::int64_t>(node.inputs.size()) - 1;
    if (by == nullptr) {
      leaves.push_back(id);
      return -1 - input;
    }
    const std::size_t at = tree.size();
    tree.insert(tree.end(), {input, 0, 0});
    tree[at + 1] = add(by->yes);
    tree[at + 2] = add(by->no);
    return static_cast<std::int64_t>(at / 3);
  };
  add(output);
  if (!room) return room;

  TensorType type = type_of(leaves.front());
  std::uint64_t bounded = 0;
  std::int64_t most = least_elements, rank = 0;
  bool one_rank = true;
  for (const ValueId id : leaves) {
    const Shape& shape = type_of(id).shape;
    most = std::max(most, type_of(id).elements());
    rank = std::max(rank, static_cast<std::int64_t>(shape.size()));
    one_rank = one_rank && shape.size() == type.shape.size();
    if (!one_rank) continue;
    if (is_bounded(id)) bounded |= supposed(id)->dimensions;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == type.shape[d]) continue;
      bounded |= std::uint64_t{1} << d;
      type.shape[d] = std::max(type.shape[d], shape[d]);
    }
  }
  if (!one_rank) {
    type.shape = {most};
    bounded = 1;
    node.attributes.insert_or_assign(std::string(choose_rank), Attribute{rank});
  }
  if (auto count = element_count(type.shape); !count)
    return in_context("output '" + node.name + "', at the most that it can be", count.error());
  node.attributes.insert_or_assign(std::string(choose_tree), Attribute{std::move(tree)});
  node.attributes.insert_or_assign(std::string(bounded_operator), Attribute{std::string(choose_operator)});
  node.attributes.insert_or_assign(std::string(bounded_dimensions),
                                   Attribute{std::vector<std::int64_t>{static_cast<std::int64_t>(bounded)}});
  node.attributes.insert_or_assign(std::string(bounded_contents), Attribute{std::vector<std::int64_t>{}});
  graph_.value(output).type = std::move(type);
  graph_.nodes.push_back(std::move(node));
  splits_.erase(output);
  return {};
}

}  // namespace carillon::graph
