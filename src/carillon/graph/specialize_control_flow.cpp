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

}  // namespace

std::string Specializer::counted(const std::string& name, std::size_t i, std::size_t of) {
  return of == 1 ? name : name + "." + std::to_string(i);
}

ValueId Specializer::now(ValueId source) const {
  return source == no_value ? no_value : resolved(now_[source.index()]);
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
  if (!node.subgraphs.empty())
    if (const ValueId id = find_split(now(node.inputs)); id != no_value) return enter_source_sides(node, id);
  if (node.op == "If") return enter_if(node);
  if (node.op == "Loop") return enter_loop(node);
  if (node.op == "Scan") return enter_scan(node);
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
  if (split(id) != nullptr)
    return fail(ErrorCode::unsupported, describe(node) + ": its condition '" + graph_.value(id).name +
                                            "' has unlike shapes in the branches of an If");
  const TensorType& type = type_of(id);
  if (type.type != DataType::boolean || type.elements() != 1)
    return invalid(describe(node) + ": its condition is " + type_text(type) +
                   ", but must be one bool (of a whole batch, where the model batches)");
  if (graph_.is_constant(id)) return graph_.value(id).constant->bytes()[0] != std::byte{0};
  return known(id);
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

// `to` is `yes` or `no`, which are of one exact type.
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

// The types of what an iteration would give that never runs: the body is entered to see them, and its nodes
// are forgotten.
Result<std::vector<TensorType>> Specializer::body_types(const Node& node, const Subgraph& body) {
  const auto nodes = static_cast<std::ptrdiff_t>(graph_.nodes.size());
  const std::string suffix = std::exchange(suffix_, suffix_ + "#none");
  auto ok = enter_body(body);
  suffix_ = suffix;
  graph_.nodes.erase(graph_.nodes.begin() + nodes, graph_.nodes.end());
  if (!ok) return in_context(describe(node) + ": it runs for no iteration; in one", ok.error());
  std::vector<TensorType> types;
  for (const ValueId id : now(body.outputs)) {
    if (is_bounded(id) || split(id) != nullptr)
      return fail(ErrorCode::unsupported, describe(node) +
                                              ": it runs for no iteration, and data decide the " +
                                              "extents of '" + graph_.value(id).name + "'");
    types.push_back(type_of(id));
  }
  return types;
}

// Where it fails, what it has left of itself is nodes alone.
Result<> Specializer::enter_branch(const Subgraph& branch, int guard) {
  const int around = std::exchange(guard_, guard), loops = loops_;
  const std::string suffix = suffix_;
  auto ok = enter_body(branch);
  guard_ = around;
  loops_ = loops;
  suffix_ = suffix;
  return ok;
}

// A branch whose shapes do not fit together at this size matters only where it is taken, as bad data do: the
// other one runs, and its results are checked to be those that the condition asks for.
Result<> Specializer::enter_only(const Node& node, ValueId condition, bool when, std::string_view why) {
  const Subgraph& branch = node.subgraphs[when ? 0 : 1];
  if (auto ok = enter_branch(branch, guard_); !ok) return ok;
  const std::string text = std::string(when ? "else" : "then") + "_branch does not fit inputs of this size: ";
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == no_value) continue;
    const ValueId from = now(branch.outputs[i]);
    if (auto ok = only(counted(node.name + suffix_, i, node.outputs.size()), condition, when,
                       text + std::string(why), from, begin(node.outputs[i]));
        !ok)
      return ok;
  }
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

  const std::size_t nodes = graph_.nodes.size();
  std::vector<std::vector<ValueId>> results;
  std::optional<Error> misfit;
  bool fits = true;  // which branch does, where one does not
  for (const bool when : {true, false}) {
    const Subgraph& branch = node.subgraphs[when ? 0 : 1];
    if (auto ok = enter_branch(branch, guard(chooses, when)); !ok) {
      if (ok.error().code != ErrorCode::invalid_argument || misfit) return ok;
      misfit = ok.error();
      fits = !when;
    }
    const int around = std::exchange(guard_, guard(chooses, when));
    results.push_back(now(branch.outputs));
    guard_ = around;
  }
  if (misfit) {
    graph_.nodes.resize(nodes);
    return enter_only(node, chooses, fits, misfit->message);
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId yes = results[0][i], no = results[1][i];
    if (type_of(yes).type != type_of(no).type)
      return invalid(describe(node) + ": output " + std::to_string(i) + " is of type " +
                     std::string(onnx_name(type_of(yes).type)) + " in then_branch, but of " +
                     std::string(onnx_name(type_of(no).type)) + " in else_branch");
    if (node.outputs[i] == no_value) continue;
    const ValueId to = begin(node.outputs[i]);
    if (auto ok = combine(counted(name, i, node.outputs.size()), chooses, yes, no, to); !ok) return ok;
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
  std::vector<TensorType> elements;  // by scan output, where there is no iteration: what one would give
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
  if (!loop.scans.empty() && loop.scans.front().empty())
    if (auto ok = type_elements(node, loop); !ok) return ok;
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

// Gives the body's inputs what they are in iteration `number`, which runs as `goes_on` says (no_value:
// always).
void Specializer::begin_iteration(const Node& node, const Unrolled& loop, std::int64_t number,
                                  ValueId goes_on) {
  const Subgraph& body = node.subgraphs[0];
  const ValueId iteration = new_value(node.name + suffix_), yes = new_value(node.name + suffix_ + ".on");
  set_constant(iteration, Tensor::of_i64({}, std::span(&number, 1)));
  Tensor truth(TensorType{DataType::boolean, goes_on == no_value ? Shape{} : type_of(goes_on).shape});
  truth.bytes()[0] = std::byte{1};
  set_constant(yes, std::move(truth));
  now_[body.inputs[0].index()] = iteration;
  now_[body.inputs[1].index()] = yes;
  for (std::size_t k = 0; k < loop.carried.size(); ++k) now_[body.inputs[2 + k].index()] = loop.carried[k];
}

// Of a loop without an iteration.
Result<> Specializer::type_elements(const Node& node, Unrolled& loop) {
  begin_iteration(node, loop, 0, now(node.inputs[1]));
  auto types = body_types(node, node.subgraphs[0]);
  if (!types) return std::unexpected(types.error());
  loop.elements.assign(types->begin() + 1 + static_cast<std::ptrdiff_t>(loop.carried.size()), types->end());
  return {};
}

// Ends the loop before an iteration whose shapes do not fit together at this size. Only data that go on to
// that iteration are bad data. So the loop's condition is checked to end it there.
Result<> Specializer::end_before(const Node& node, Unrolled& loop, std::int64_t number,
                                 std::string_view why) {
  const Unrolled::Exit exit = std::move(loop.exits.back());
  loop.exits.pop_back();
  guard_ = exit.guard;
  for (std::size_t k = 0; k < loop.carried.size(); ++k) {
    const std::string name = counted(node.name + suffix_, k, loop.carried.size());
    const ValueId to = new_value(name + ".end");
    if (auto ok = only(name + ".end", exit.condition, false,
                       "iteration " + std::to_string(number) +
                           " of the Loop does not fit inputs of this size: " + std::string(why),
                       loop.carried[k], to);
        !ok)
      return ok;
    loop.carried[k] = to;
  }
  return {};
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
    begin_iteration(node, loop, i, goes_on);
    const std::size_t nodes = graph_.nodes.size();
    const int loops = loops_;
    if (auto ok = enter_body(body); !ok) {
      // A Loop with scan outputs that data end is refused in any case.
      if (known || ok.error().code != ErrorCode::invalid_argument || !loop.scans.empty()) return ok;
      graph_.nodes.resize(nodes);
      loops_ = loops;
      suffix_ = suffix;
      return end_before(node, loop, i, ok.error().message);
    }

    goes_on = now(body.outputs[0]);
    for (std::size_t k = 0; k < loop.carried.size(); ++k) {
      const ValueId next = now(body.outputs[1 + k]);
      const TensorType &was = type_of(loop.carried[k]), &is = type_of(next);
      if (was.type != is.type)
        return fail(ErrorCode::unsupported, describe(node) + ": the value that it carries as input " +
                                                std::to_string(2 + k) + " is " + type_text(was) +
                                                " before iteration " + std::to_string(i) + ", but " +
                                                type_text(is) + " after it; its type must stay the same");
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
      if (auto ok = combine(own + ".exit" + std::to_string(e), exit.condition, value, exit.carried[k], to);
          !ok)
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
    const ValueId to = begin(node.outputs[i]);
    if (auto ok = loop.elements.empty() ? stack(where, counted(name, i, count), loop.scans[k], to)
                                        : stack_none(where, loop.elements[k], to);
        !ok)
      return ok;
  }
  return {};
}

// Element `index` of an axis.
Result<ValueId> Specializer::pick(const std::string& name, ValueId from, std::int64_t axis,
                                  std::int64_t index) {
  const ValueId at = new_value(name + ".index"), to = new_value(name);
  set_constant(at, Tensor::of_i64({}, std::span(&index, 1)));
  Node node{.name = name, .op = "Gather", .inputs = {from, at}, .outputs = {to}};
  node.attributes.insert_or_assign("axis", Attribute{axis});
  if (auto ok = infer(std::move(node)); !ok) return std::unexpected(ok.error());
  return to;
}

Result<> Specializer::enter_scan(const Node& node) {
  const std::string name = node.name + suffix_, suffix = suffix_;
  const std::vector<ValueId> inputs = now(node.inputs);
  std::vector<std::vector<ValueId>> results;  // by batch entry, where it has a batch: opset 8
  std::int64_t batch = 1;
  const bool batched = node.integer("batched", 0) != 0;
  for (const ValueId id : inputs) {
    if (is_bounded(id))
      return fail(ErrorCode::unsupported, describe(node) + ": data decide the extents of its input '" +
                                              graph_.value(id).name +
                                              "'; it is unrolled, so they must be known");
    if (!batched) continue;
    const Shape& shape = type_of(id).shape;
    if (shape.empty() || shape[0] != type_of(inputs[0]).shape[0] || shape[0] < 1)
      return invalid(describe(node) + ": its inputs must begin with one batch dimension");
    batch = shape[0];
  }
  ++loops_;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::vector<ValueId> from = inputs;
    const std::string entry = batched ? name + ".batch" + std::to_string(b) : name;
    for (std::size_t i = 0; batched && i < from.size(); ++i) {
      auto row = pick(entry + ".input" + std::to_string(i), from[i], 0, b);
      if (!row) return std::unexpected(row.error());
      from[i] = *row;
    }
    if (batched) suffix_ = suffix + "#b" + std::to_string(b);
    auto made = scan(node, entry, std::move(from));
    if (!made) return std::unexpected(made.error());
    results.push_back(std::move(*made));
  }
  --loops_;
  suffix_ = suffix;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == no_value) continue;
    const std::string own = counted(name, i, node.outputs.size());
    const ValueId to = begin(node.outputs[i]);
    std::vector<ValueId> rows;
    for (const auto& result : results) rows.push_back(result[i]);
    const std::string where = describe(node) + ": output " + std::to_string(i);
    if (auto ok = batched ? stack(where, own, rows, to) : same(own, rows[0], to); !ok) return ok;
  }
  return {};
}

// One run over sequences: the states at its end, and what it gave at each step, stacked.
Result<std::vector<ValueId>> Specializer::scan(const Node& node, const std::string& name,
                                               std::vector<ValueId> inputs) {
  const Subgraph& body = node.subgraphs[0];
  const std::int64_t wanted = node.integer("num_scan_inputs", 0);
  if (wanted < 1 || wanted > static_cast<std::int64_t>(inputs.size()))
    return invalid(describe(node) + ": num_scan_inputs is " + std::to_string(wanted) + ", of " +
                   std::to_string(inputs.size()) + " inputs");
  const auto sequences = static_cast<std::size_t>(wanted);
  const std::size_t states = inputs.size() - sequences;
  if (node.outputs.size() < states)
    return invalid(describe(node) + ": it has " + std::to_string(node.outputs.size()) + " outputs, and " +
                   std::to_string(states) + " states");
  // Element i of a list, 0 where there is none.
  const auto listed = [&](std::string_view attribute, std::size_t i, std::size_t of) -> Result<std::int64_t> {
    const auto list = node.integers(attribute);
    if (!list.empty() && list.size() != of)
      return invalid(describe(node) + ": " + std::string(attribute) + " must have " + std::to_string(of) +
                     " elements");
    return list.empty() ? 0 : list[i];
  };
  std::int64_t steps = -1;
  std::vector<std::int64_t> axes, backwards;
  for (std::size_t k = 0; k < sequences; ++k) {
    const Shape& shape = type_of(inputs[states + k]).shape;
    const auto rank = static_cast<std::int64_t>(shape.size());
    auto axis = listed("scan_input_axes", k, sequences),
         direction = listed("scan_input_directions", k, sequences);
    if (!axis) return std::unexpected(axis.error());
    if (!direction) return std::unexpected(direction.error());
    if (*axis < -rank || *axis >= rank)
      return invalid(describe(node) + ": axis " + std::to_string(*axis) + " is out of range for " +
                     to_text(shape));
    axes.push_back(*axis < 0 ? *axis + rank : *axis);
    backwards.push_back(*direction);
    const std::int64_t extent = shape[static_cast<std::size_t>(axes.back())];
    if (steps >= 0 && extent != steps)
      return invalid(describe(node) + ": its sequences have " + std::to_string(steps) + " and " +
                     std::to_string(extent) + " elements");
    steps = extent;
  }
  if (steps > most_iterations)
    return fail(ErrorCode::unsupported, describe(node) + ": it has " + std::to_string(steps) +
                                            " steps; it is unrolled, for at most " +
                                            std::to_string(most_iterations));
  std::vector<std::vector<ValueId>> scans(node.outputs.size() - states);
  const std::string suffix = suffix_;
  for (std::int64_t i = 0; i < steps; ++i) {
    if (auto ok = spend(node, 1 + (body.inputs.size() + body.outputs.size()) / 16); !ok)
      return std::unexpected(ok.error());
    suffix_ = suffix + "#" + std::to_string(i);
    for (std::size_t k = 0; k < states; ++k) now_[body.inputs[k].index()] = inputs[k];
    for (std::size_t k = 0; k < sequences; ++k) {
      auto element = pick(name + ".step" + std::to_string(i) + "." + std::to_string(k), inputs[states + k],
                          axes[k], backwards[k] != 0 ? steps - 1 - i : i);
      if (!element) return std::unexpected(element.error());
      now_[body.inputs[states + k].index()] = *element;
    }
    if (auto ok = enter_body(body); !ok) return std::unexpected(ok.error());
    for (std::size_t k = 0; k < states; ++k) {
      const ValueId next = now(body.outputs[k]);
      if (split(next) != nullptr)
        return fail(ErrorCode::unsupported, describe(node) + ": its state " + std::to_string(k) +
                                                " has unlike shapes in the branches of an If");
      if (type_of(next) != type_of(inputs[k]))
        return invalid(describe(node) + ": its state " + std::to_string(k) + " is " +
                       type_text(type_of(inputs[k])) + " before step " + std::to_string(i) + ", but " +
                       type_text(type_of(next)) + " after it");
      inputs[k] = next;
    }
    for (std::size_t k = 0; k < scans.size(); ++k) scans[k].push_back(now(body.outputs[states + k]));
  }
  suffix_ = suffix;
  std::vector<TensorType> none;  // of what a step would give, where there is no step
  if (steps == 0 && !scans.empty()) {
    for (std::size_t k = 0; k < states; ++k) now_[body.inputs[k].index()] = inputs[k];
    for (std::size_t k = 0; k < sequences; ++k) {
      const ValueId element = new_value(name + ".step." + std::to_string(k));
      TensorType type = type_of(inputs[states + k]);
      type.shape.erase(type.shape.begin() + axes[k]);
      graph_.value(element).type = std::move(type);
      now_[body.inputs[states + k].index()] = element;
    }
    auto types = body_types(node, body);
    if (!types) return std::unexpected(types.error());
    none = std::move(*types);
  }
  std::vector<ValueId> out(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(states));
  for (std::size_t k = 0; k < scans.size(); ++k) {
    auto axis = listed("scan_output_axes", k, scans.size()),
         direction = listed("scan_output_directions", k, scans.size());
    if (!axis) return std::unexpected(axis.error());
    if (!direction) return std::unexpected(direction.error());
    if (*direction != 0) std::ranges::reverse(scans[k]);
    const std::string own = name + ".scan" + std::to_string(k);
    out.push_back(new_value(own));
    const std::string where = describe(node) + ": scan output " + std::to_string(k);
    if (auto ok = none.empty() ? stack(where, own, scans[k], out.back(), *axis)
                               : stack_none(where, none[states + k], out.back(), *axis);
        !ok)
      return std::unexpected(ok.error());
  }
  return out;
}

// `to` has one element along a new axis for each iteration's value.
Result<> Specializer::stack(const std::string& where, const std::string& name,
                            std::span<const ValueId> values, ValueId to, std::int64_t axis) {
  CARILLON_ASSERT(!values.empty());
  Node all{.name = name, .op = "Concat", .outputs = {to}};
  const auto rank = static_cast<std::int64_t>(type_of(values[0]).shape.size()) + 1;
  if (axis < -rank || axis >= rank)
    return invalid(where + ": axis " + std::to_string(axis) + " is out of range for " + std::to_string(rank) +
                   " dimensions");
  all.attributes.insert_or_assign("axis", Attribute{axis < 0 ? axis + rank : axis});
  const std::int64_t front[] = {axis < 0 ? axis + rank : axis};
  const ValueId axes = new_value(name + ".axes");
  set_constant(axes, Tensor::of_i64({1}, front));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (split(values[i]) != nullptr)
      return fail(ErrorCode::unsupported, where +
                                              " has unlike shapes in the branches of an If, in iteration " +
                                              std::to_string(i) + ": iterations must give one shape");
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

// The same of no iterations, each of which would give an `element`.
Result<> Specializer::stack_none(const std::string& where, const TensorType& element, ValueId to,
                                 std::int64_t axis) {
  const auto rank = static_cast<std::int64_t>(element.shape.size()) + 1;
  if (axis < -rank || axis >= rank)
    return invalid(where + ": axis " + std::to_string(axis) + " is out of range for " + std::to_string(rank) +
                   " dimensions");
  TensorType type = element;
  type.shape.insert(type.shape.begin() + (axis < 0 ? axis + rank : axis), 0);
  set_constant(to, Tensor(std::move(type)));
  return {};
}

}  // namespace carillon::graph
