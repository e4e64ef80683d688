#include <algorithm>
#include <memory>
#include <utility>

#include "carillon/graph/shape_inference.h"
#include "carillon/graph/specializer.h"

namespace carillon::graph {
namespace {

// Of contents that may decide extents: lists of extents, indices and the like.
constexpr std::int64_t most_contents = 1024;

// Bytes of results that are found at load: what may be more is left to run time, where an engine plans for
// it.
constexpr std::uint64_t most_decided = std::uint64_t{64} << 20;

std::uint64_t all_dimensions(std::size_t rank) {
  return rank >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << rank) - 1;
}

// Nearly the least: operators fit together there as they do at other extents, which at 0 they may not.
std::int64_t nearly_least(std::int64_t most) {
  return most > 1 ? 1 : 0;
}

// What the node makes of operands whose contents are all known, or whose types say it; else nothing.
Result<std::vector<SharedTensor>> contents_of(const Node& node, LateCall& call,
                                              std::span<const SharedTensor> inputs) {
  std::vector<SharedTensor> out(node.outputs.size());
  const bool types_alone = node.op == "Shape" || node.op == "Size";
  for (std::size_t i = 0; i < inputs.size() && !types_alone; ++i)
    if (node.inputs[i] != no_value && inputs[i] == nullptr) return out;
  if (decides_extents(node.op)) return out;
  std::vector<std::shared_ptr<Tensor>> made(out.size());
  std::vector<std::byte*> to(out.size(), nullptr);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (node.outputs[i] == no_value) continue;
    if (call.results()[i].elements() > most_contents) return out;
    made[i] = std::make_shared<Tensor>(call.results()[i]);
    to[i] = made[i]->bytes().data();
  }
  std::vector<const std::byte*> from;
  for (const SharedTensor& input : inputs) from.push_back(input == nullptr ? nullptr : input->bytes().data());
  if (auto ran = call.run(from, to); !ran) return std::unexpected(ran.error());
  std::ranges::move(made, out.begin());
  return out;
}

}  // namespace

const Specializer::Supposed* Specializer::supposed(ValueId id) const {
  const auto found = supposed_.find(id);
  return found == supposed_.end() ? nullptr : &found->second;
}

bool Specializer::needs_bounds(const Node& node) const {
  return decides_extents(node.op) ||
         (!supposed_.empty() && std::ranges::any_of(node.inputs, [this](ValueId id) {
           return id != no_value && supposed(id) != nullptr;
         }));
}

// Of an operator that decides extents: makes constants of its results where all that it reads is known.
Result<bool> Specializer::decide_now(const Node& node) {
  if (!decides_extents(node.op) || !std::ranges::all_of(node.inputs, [this](ValueId id) {
        return id == no_value || graph_.is_constant(id);
      }))
    return false;
  LateCall call(node);
  std::vector<const std::byte*> from;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const bool there = node.inputs[i] != no_value;
    from.push_back(there ? graph_.value(node.inputs[i]).constant->bytes().data() : nullptr);
    if (there) call.set(i, type_of(node.inputs[i]), graph_.value(node.inputs[i]).constant);
  }
  auto types = call.infer();
  if (!types) return std::unexpected(types.error());
  std::uint64_t bytes = 0;
  for (const TensorType& type : *types) bytes += type.bytes().count;
  // Which boxes overlap takes as long as there are pairs of them.
  if (bytes > most_decided || node.op == "NonMaxSuppression") return false;
  std::vector<std::optional<Tensor>> room;
  std::vector<std::byte*> to;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    room.emplace_back();
    if (node.outputs[i] != no_value) room[i].emplace(call.results()[i]);
    to.push_back(room[i] ? room[i]->bytes().data() : nullptr);
  }
  if (auto ran = call.run(from, to); !ran) return std::unexpected(ran.error());
  for (std::size_t i = 0; i < room.size(); ++i) {
    if (!room[i]) continue;
    Tensor found(call.results()[i]);
    std::ranges::copy(room[i]->bytes().first(found.bytes().size()), found.bytes().begin());
    set_constant(node.outputs[i], std::move(found));
  }
  return true;
}

// Types the node with the most, and with nearly the least, that its operands' extents can be, and keeps it
// for run time, when they are known.
Result<> Specializer::enter_bounded(Node node) {
  auto decided = decide_now(node);
  if (!decided) return std::unexpected(decided.error());
  if (*decided) return {};
  LateCall at_most(node), at_least(node);
  std::vector<SharedTensor> contents(node.inputs.size()), least_contents(node.inputs.size());
  std::vector<std::int64_t> looked_at;
  bool least_known = true;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    if (id == no_value) continue;
    const Value& value = graph_.value(id);
    const Supposed* known = supposed(id);
    contents[i] = known == nullptr ? value.constant : known->contents;
    least_contents[i] = known == nullptr ? value.constant : known->least_contents;
    if (known != nullptr && known->contents != nullptr) looked_at.push_back(static_cast<std::int64_t>(i));
    at_most.set(i, value.type, contents[i]);
    if (known != nullptr && !known->least)
      least_known = false;
    else
      at_least.set(i, known == nullptr ? value.type : *known->least, least_contents[i]);
  }
  auto most = at_most.infer();
  if (!most) return in_context("where data decide extents, at the most that they can be", most.error());
  least_known = least_known && at_least.infer().has_value();
  std::vector<SharedTensor> made(node.outputs.size()), least_made(node.outputs.size());
  if (auto found = contents_of(node, at_most, contents)) made = std::move(*found);
  if (least_known)
    if (auto found = contents_of(node, at_least, least_contents)) least_made = std::move(*found);

  std::vector<std::int64_t> dimensions(node.outputs.size(), 0);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId id = node.outputs[i];
    if (id == no_value) continue;
    const TensorType type = at_most.results()[i];
    graph_.value(id).type = type;
    Supposed result{.contents = made[i], .least_contents = least_made[i]};
    if (least_known) result.least = at_least.results()[i];
    if (result.least && result.least->shape.size() != type.shape.size())
      return fail(ErrorCode::unsupported,
                  describe(node) + ": how many dimensions its result has depends on data");
    std::uint64_t bounded = decides_extents(node.op) ? decided_dimensions(node, i, type.shape.size()) : 0;
    for (std::size_t d = 0; d < type.shape.size(); ++d) {
      if (result.least && (bounded >> d & 1) != 0) result.least->shape[d] = nearly_least(type.shape[d]);
      if (result.least && result.least->shape[d] != type.shape[d]) bounded |= std::uint64_t{1} << d;
    }
    if (!result.least) bounded = all_dimensions(type.shape.size());
    result.dimensions = bounded;
    dimensions[i] = static_cast<std::int64_t>(bounded);
    if (bounded != 0 || result.contents != nullptr) supposed_.insert_or_assign(id, std::move(result));
  }
  node.attributes.insert_or_assign(std::string(bounded_operator), Attribute{node.op});
  node.attributes.insert_or_assign(std::string(bounded_dimensions), Attribute{std::move(dimensions)});
  node.attributes.insert_or_assign(std::string(bounded_contents), Attribute{std::move(looked_at)});
  node.op = bounded_node;
  node.guard = guard_;
  graph_.nodes.push_back(std::move(node));
  return {};
}

}  // namespace carillon::graph
