#include "carillon/worker/slots.h"

#include <algorithm>
#include <string>
#include <utility>

#include "carillon/base/bytes.h"

namespace carillon::worker {
namespace {

// Of a model that makes plans of larger batches later: the rows run by as few as there are now, in their
// order.
void divide_by_larger(InferSlot& action, std::size_t batch) {
  const std::shared_ptr<SizedPlans> larger = batch > 1 ? action.host->larger() : nullptr;
  std::uint64_t io = 0;
  for (std::size_t first = 0; first < batch;) {
    InferSlot::Part& part = action.parts[static_cast<std::size_t>(action.part_count++)];
    part = {.layout = action.host->layouts.data(), .first = static_cast<int>(first), .io = io};
    if (larger != nullptr)
      for (PlanLayout& layout : larger->layouts)
        if (static_cast<std::size_t>(layout.batch) <= batch - first) {
          part.layout = &layout;
          part.holds = larger;
        }
    io = round_up(io + part.layout->io_bytes, 64);
    first += static_cast<std::size_t>(part.layout->batch);
  }
}

// Chooses the plans for the action's rows; what is wrong, where there are none.
std::string choose_plans(InferSlot& action) {
  action.let_go();
  action.part_count = 0;
  if (action.host == nullptr) return "model " + std::to_string(action.model.value) + " is not registered";
  const auto no_plan = [&](int batch, std::int64_t length) {
    return "model " + std::to_string(action.model.value) + " has no plan for a batch of " +
           std::to_string(batch) +
           (length == 0                     ? ""
            : action.host->compiled->open() ? " of size " + std::to_string(length)
                                            : " at length " + std::to_string(length));
  };
  if (action.batch < 1 || action.batch > max_batch) return no_plan(action.batch, 0);
  const auto batch = static_cast<std::size_t>(action.batch);
  for (std::size_t i = 0; i < batch; ++i) action.order[i] = static_cast<std::uint8_t>(i);
  const auto length_of = [&](std::size_t i) { return action.rows[action.order[i]].length; };
  const bool open = action.host->compiled->open();
  const bool varies = open || action.host->varies();
  using Found = std::pair<PlanLayout*, std::shared_ptr<SizedPlans>>;
  const auto find = [&](int rows, std::int64_t length) -> Found {
    if (open && length > 0) return action.host->sized(rows, length);
    return {action.host->layout(rows, length), nullptr};
  };
  if (action.host->compiled->makes_later()) {
    divide_by_larger(action, batch);
    return {};
  }
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < batch && varies; ++i) {
    if (length_of(i) < (open ? 0 : 1)) return "row " + std::to_string(i) + " does not say its length";
    longest = std::max(longest, length_of(i));
  }
  if (auto [whole, holds] = find(action.batch, longest);
      whole != nullptr &&
      (!varies || action.host->compiled->pads() ||
       std::ranges::all_of(std::span(action.rows).first(batch),
                           [&](const RowBuffers& row) { return row.length == longest; }))) {
    action.parts[0] = {.layout = whole, .holds = std::move(holds)};
    action.part_count = 1;
    return {};
  }
  if (!varies || action.host->compiled->pads()) return no_plan(action.batch, longest);
  std::ranges::sort(std::span(action.order).first(batch), {}, [&](std::uint8_t row) {
    return std::pair{action.rows[row].length, row};
  });
  std::uint64_t io = 0;
  for (std::size_t first = 0; first < batch;) {
    std::size_t alike = 1;
    while (first + alike < batch && length_of(first + alike) == length_of(first)) ++alike;
    Found found;
    for (; alike > 0 && found.first == nullptr; --alike)
      found = find(static_cast<int>(alike), length_of(first));
    PlanLayout* const layout = found.first;
    if (layout == nullptr) return no_plan(1, length_of(first));
    action.parts[static_cast<std::size_t>(action.part_count++)] = {
        .layout = layout, .first = static_cast<int>(first), .io = io, .holds = std::move(found.second)};
    io = round_up(io + layout->io_bytes, 64);
    first += static_cast<std::size_t>(layout->batch);
  }
  return {};
}

// Empty where the action can be carried out.
std::string wrong_with(const InferSlot& action) {
  const PlanLayout& layout = *action.parts.front().layout;  // all take the same number of tensors
  for (int row = 0; row < action.batch; ++row) {
    const RowBuffers& buffers = action.rows[static_cast<std::size_t>(row)];
    const auto check = [&](const char* what, const auto& pointers, const std::vector<TensorPlace>& places,
                           bool all) {
      std::string wrong;
      if (pointers.size() != places.size())
        wrong = "row " + std::to_string(row) + " has " + std::to_string(pointers.size()) + " " + what +
                ", and the model " + std::to_string(places.size());
      else
        for (std::size_t i = 0; all && i < places.size() && wrong.empty(); ++i)
          if (pointers[i] == nullptr && places[i].row_bytes > 0)
            wrong = "row " + std::to_string(row) + " has no memory for number " + std::to_string(i) +
                    " of its " + what;
      return wrong;
    };
    if (std::string wrong = check("inputs", buffers.inputs, layout.inputs, true); !wrong.empty())
      return wrong;
    if (std::string wrong = check("outputs", buffers.outputs, layout.outputs, false); !wrong.empty())
      return wrong;
  }
  return {};
}

}  // namespace

std::string divide(InferSlot& action) {
  std::string wrong = choose_plans(action);
  return wrong.empty() ? wrong_with(action) : wrong;
}

std::uint64_t io_bytes(const InferSlot& action) {
  const InferSlot::Part& last = action.all_parts().back();
  return last.io + last.layout->io_bytes;
}

void gather(const InferSlot& action) {
  for (const InferSlot::Part& part : action.all_parts())
    for (std::size_t i = 0; i < part.layout->inputs.size(); ++i) {
      const TensorPlace& place = part.layout->inputs[i];
      std::byte* to = action.io + part.io + place.offset;
      for (int row = 0; row < part.layout->batch; ++row, to += place.row_bytes)
        put_row(place, action.row(part, row).length, action.row(part, row).inputs[i], to);
    }
}

void scatter(const InferSlot& action) {
  for (const InferSlot::Part& part : action.all_parts())
    for (std::size_t i = 0; i < part.layout->outputs.size(); ++i) {
      const TensorPlace& place = part.layout->outputs[i];
      const std::byte* from = action.io + part.io + place.offset;
      for (int row = 0; row < part.layout->batch; ++row, from += place.row_bytes)
        if (std::byte* const to = action.row(part, row).outputs[i];
            to != nullptr && !action.is_bad(action.place(part, row)))
          take_row(place, action.row(part, row).length, from, to);
    }
}

}  // namespace carillon::worker
