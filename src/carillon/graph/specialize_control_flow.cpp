#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/graph/shape_inference.h"
#include "carillon/graph/specializer.h"

namespace carillon::graph {
namespace {

// A plan is a list of kernels: a loop's iterations all stand in it, whether they run or not.
constexpr std::int64_t most_iterations = 256;
constexpr std::size_t most_unrolled = 20000;  // nodes, over all loops

std::string type_text(const TensorType& type) {
  return std::string(onnx_name(type.type)) + to_text(type.shape);
}

std::string counted(const std::string& name, std::size_t i, std::size_t of) {
  return of == 1 ? name : name + "." + std::to_string(i);
}

}  // namespace

ValueId Specializer::now(ValueId source) const {
  return source == no_value ? no_value : now_[source.index()];
}

std::vector<ValueId> Specializer::now(std::span<const ValueId> sources) const {
  std::vector<ValueId> out;
  for (const ValueId id : sources) out.push_back(now(id));
  return out;
}

// The value of the graph that a value of the file stands for from here on: the first is the file's own.
ValueId Specializer::begin(ValueId source) {
  if (source == no_value) return no_value;
  if (entered_[source.index()]) now_[source.index()] = new_value(graph_.value(source).name + suffix_);
  entered_[source.index()] = true;
  return now_[source.index()];
}

Result<> Specializer::enter_source(const Node& node) {
  if (node.op == "If") return enter_if(node);
  if (node.op == "Loop") return enter_loop(node);
  CARILLON_ASSERT(node.subgraphs.empty());
  Node copy = node;
  copy.name += suffix_;
  copy.inputs = now(node.inputs);
  for (ValueId& id : copy.outputs) id = begin(id);
  return enter(std::move(copy));
}

Result<> Specializer::enter_body(const Subgraph& body) {
  for (const Node& node : body.nodes) {
    if (auto ok = spend(node, 1); !ok) return ok;
    if (auto ok = enter_source(node); !ok) return ok;
  }
  return {};
}

// What is outside loops is there only once, as in the file.
Result<> Specializer::spend(const Node& node, std::size_t nodes) {
  if (loops_ == 0) return {};
  spent_ += nodes;
  if (spent_ <= most_unrolled) return {};
  return fail(ErrorCode::unsupported, describe(node) + ": with loops unrolled the graph has more than " +
                                          std::to_string(most_unrolled) + " nodes");
}

// The condition's value, where it is known here.
Result<std::optional<bool>> Specializer::condition(const Node& node, ValueId id) const {
  const TensorType& type = type_of(id);
  if (type.type != DataType::boolean || type.elements() != 1)
    return invalid(describe(node) + ": its condition is " + type_text(type) +
                   ", but must be one bool (of a whole batch, where the model batches)");
  if (graph_.is_constant(id)) return graph_.value(id).constant->bytes()[0] != std::byte{0};
  for (int g = guard_; g >= 0; g = graph_.guards[static_cast<std::size_t>(g)].parent) {
    const Guard& around = graph_.guards[static_cast<std::size_t>(g)];
    if (around.condition == id) return around.when;
  }
  return std::nullopt;
}

// A guard under the present one.
int Specializer::guard(ValueId condition, bool when) {
  const auto [entry, fresh] =
      guards_.try_emplace({condition, when, guard_}, static_cast<int>(graph_.guards.size()));
  if (fresh) graph_.guards.push_back({condition, when, guard_});
  return entry->second;
}

Result<> Specializer::same(std::string name, ValueId from, ValueId to) {
  if (to == no_value) return {};
  return infer(Node{.name = std::move(name), .op = "Identity", .inputs = {from}, .outputs = {to}});
}

// `to` is `yes` or `no`, which are of one type.
Result<> Specializer::merge(std::string name, ValueId condition, ValueId yes, ValueId no, ValueId to) {
  const bool one = graph_.is_constant(yes) && graph_.value(yes).constant == graph_.value(no).constant;
  if (yes == no || one) return same(std::move(name), yes, to);
  graph_.value(to).type = type_of(yes);
  graph_.nodes.push_back(Node{.name = std::move(name),
                              .op = "Merge",
                              .inputs = {condition, yes, no},
                              .outputs = {to},
                              .guard = guard_});
  return {};
}

Result<> Specializer::enter_if(const Node& node) {
  const std::string name = node.name + suffix_;
  const ValueId chooses = now(node.inputs[0]);
  auto known = condition(node, chooses);
  if (!known) return std::unexpected(known.error());
  if (*known) {
    const Subgraph& taken = node.subgraphs[**known ? 0 : 1];
    if (auto ok = enter_body(taken); !ok) return ok;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId from = now(taken.outputs[i]);
      if (auto ok = same(counted(name, i, node.outputs.size()), from, begin(node.outputs[i])); !ok) return ok;
    }
    return {};
  }

  std::vector<std::vector<ValueId>> results;
  for (const bool when : {true, false}) {
    const int around = std::exchange(guard_, guard(chooses, when));
    const Subgraph& branch = node.subgraphs[when ? 0 : 1];
    if (auto ok = enter_body(branch); !ok) return ok;
    results.push_back(now(branch.outputs));
    guard_ = around;
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId yes = results[0][i], no = results[1][i];
    if (type_of(yes) != type_of(no))
      return fail(ErrorCode::unsupported,
                  describe(node) + ": output " + std::to_string(i) + " is " + type_text(type_of(yes)) +
                      " in then_branch, but " + type_text(type_of(no)) +
                      " in else_branch; both must be the same where the condition depends on data");
    if (node.outputs[i] == no_value) continue;
    const ValueId to = begin(node.outputs[i]);
    if (auto ok = merge(counted(name, i, node.outputs.size()), chooses, yes, no, to); !ok) return ok;
  }
  return {};
}

// How far a loop has come.
struct Specializer::Unrolled {
  // Where it may have ended: before an iteration that runs only if `condition` holds.
  struct Exit {
    ValueId condition;
    int guard;                     // around the iteration's own
    std::vector<ValueId> carried;  // the results, if it ended there
  };
  std::vector<ValueId> carried;
  std::vector<std::vector<ValueId>> scans;  // by scan output: of each iteration
  std::vector<Exit> exits;
};

Result<> Specializer::enter_loop(const Node& node) {
  Unrolled loop;
  loop.carried = now(std::span(node.inputs).subspan(2));
  loop.scans.resize(node.outputs.size() - loop.carried.size());
  const int around = guard_;
  const std::string suffix = suffix_;
  ++loops_;
  if (auto ok = unroll(node, loop); !ok) return ok;
  suffix_ = suffix;
  if (auto ok = finish_loop(node, loop); !ok) return ok;
  --loops_;
  guard_ = around;
  return {};
}

Result<std::optional<std::int64_t>> Specializer::trip_count(const Node& node) const {
  const ValueId id = now(node.inputs[0]);
  if (id == no_value) return std::nullopt;
  if (!graph_.is_constant(id))
    return fail(ErrorCode::unsupported,
                describe(node) +
                    ": its trip count (input 0) is not a constant; loops are unrolled, for at "
                    "most " +
                    std::to_string(most_iterations) + " iterations");
  const TensorType& type = type_of(id);
  if (type.type != DataType::i64 || type.elements() != 1)
    return invalid(describe(node) + ": its trip count (input 0) is " + type_text(type) +
                   ", but must be one int64");
  return graph_.value(id).constant->as<std::int64_t>()[0];
}

Result<> Specializer::unroll(const Node& node, Unrolled& loop) {
  const Subgraph& body = node.subgraphs[0];
  const std::string suffix = suffix_;
  auto trips = trip_count(node);
  if (!trips) return std::unexpected(trips.error());
  const auto too_long = [&](std::string_view why) {
    return fail(ErrorCode::unsupported, describe(node) + ": it runs for more than " +
                                            std::to_string(most_iterations) + " iterations" +
                                            std::string(why));
  };
  ValueId goes_on = now(node.inputs[1]);
  for (std::int64_t i = 0; !*trips || i < **trips; ++i) {
    std::optional<bool> known = true;
    if (goes_on != no_value) {
      auto found = condition(node, goes_on);
      if (!found) return std::unexpected(found.error());
      known = *found;
    }
    if (known == false) return {};
    if (!known && (!*trips || **trips > most_iterations))
      return too_long(" unless its condition, which depends on data, ends it; give it a trip count");
    if (i == most_iterations) return too_long("");
    if (!known) {
      loop.exits.push_back({goes_on, guard_, loop.carried});
      guard_ = guard(goes_on, true);
    }
    // Values that are only passed on are work, too.
    if (auto ok = spend(node, 1 + (body.inputs.size() + body.outputs.size()) / 16); !ok) return ok;

    suffix_ = suffix + "#" + std::to_string(i);
    const ValueId iteration = new_value(node.name + suffix_), yes = new_value(node.name + suffix_ + ".on");
    const std::int64_t number[] = {i};
    set_constant(iteration, Tensor::of_i64({}, number));
    Tensor truth(TensorType{DataType::boolean, goes_on == no_value ? Shape{} : type_of(goes_on).shape});
    truth.bytes()[0] = std::byte{1};
    set_constant(yes, std::move(truth));
    now_[body.inputs[0].index()] = iteration;
    now_[body.inputs[1].index()] = yes;
    for (std::size_t k = 0; k < loop.carried.size(); ++k) now_[body.inputs[2 + k].index()] = loop.carried[k];
    if (auto ok = enter_body(body); !ok) return ok;

    goes_on = now(body.outputs[0]);
    for (std::size_t k = 0; k < loop.carried.size(); ++k) {
      const ValueId next = now(body.outputs[1 + k]);
      const TensorType &was = type_of(loop.carried[k]), &is = type_of(next);
      if (was.type != is.type || (!loop.exits.empty() && was != is))
        return fail(ErrorCode::unsupported, describe(node) + ": the value that it carries as input " +
                                                std::to_string(2 + k) + " is " + type_text(was) +
                                                " before iteration " + std::to_string(i) + ", but " +
                                                type_text(is) + " after it; it must stay the same");
      loop.carried[k] = next;
    }
    for (std::size_t k = 0; k < loop.scans.size(); ++k)
      loop.scans[k].push_back(now(body.outputs[1 + loop.carried.size() + k]));
  }
  return {};
}

Result<> Specializer::finish_loop(const Node& node, const Unrolled& loop) {
  const std::string name = node.name + suffix_;
  const std::size_t count = node.outputs.size();
  for (std::size_t k = 0; k < loop.carried.size(); ++k) {
    if (node.outputs[k] == no_value) continue;
    const std::string own = counted(name, k, count);
    ValueId value = loop.carried[k];
    // From the last exit to the first: each value is asked for only where its iteration's guard holds.
    for (std::size_t e = loop.exits.size(); e-- > 0;) {
      const Unrolled::Exit& exit = loop.exits[e];
      if (value == exit.carried[k]) continue;
      guard_ = exit.guard;
      const ValueId to = new_value(own + ".exit" + std::to_string(e));
      if (auto ok = spend(node, 1); !ok) return ok;
      if (auto ok = merge(own + ".exit" + std::to_string(e), exit.condition, value, exit.carried[k], to); !ok)
        return ok;
      value = to;
    }
    if (!loop.exits.empty()) guard_ = loop.exits.front().guard;
    if (auto ok = same(own, value, begin(node.outputs[k])); !ok) return ok;
  }
  for (std::size_t k = 0; k < loop.scans.size(); ++k) {
    const std::size_t i = loop.carried.size() + k;
    if (node.outputs[i] == no_value) continue;
    const std::string where = describe(node) + ": scan output " + std::to_string(i);
    if (!loop.exits.empty())
      return fail(ErrorCode::unsupported,
                  where +
                      " is as long as the loop runs, which depends on data; only shapes known from the "
                      "batch size are supported");
    if (auto ok = stack(where, counted(name, i, count), loop.scans[k], begin(node.outputs[i])); !ok)
      return ok;
  }
  return {};
}

// `to` has one row for each iteration's value.
Result<> Specializer::stack(const std::string& where, const std::string& name,
                            std::span<const ValueId> values, ValueId to) {
  if (values.empty())
    return fail(ErrorCode::unsupported, where + " is empty: the loop runs for no iteration");
  Node all{.name = name, .op = "Concat", .outputs = {to}};
  all.attributes.insert_or_assign("axis", Attribute{std::int64_t{0}});
  const std::int64_t front[] = {0};
  const ValueId axes = new_value(name + ".axes");
  set_constant(axes, Tensor::of_i64({1}, front));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type_of(values[i]) != type_of(values[0]))
      return fail(ErrorCode::unsupported, where + " is " + type_text(type_of(values[0])) +
                                              " in iteration 0, but " + type_text(type_of(values[i])) +
                                              " in iteration " + std::to_string(i));
    const std::string row = name + ".row" + std::to_string(i);
    all.inputs.push_back(new_value(row));
    if (auto ok = infer(Node{
            .name = row, .op = "Unsqueeze", .inputs = {values[i], axes}, .outputs = {all.inputs.back()}});
        !ok)
      return ok;
  }
  return infer(std::move(all));
}

}  // namespace carillon::graph
