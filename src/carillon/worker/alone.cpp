#include "carillon/worker/alone.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace carillon::worker {

PlanLayout& alone_layout(const InferSlot& action) {
  if (const auto& part = action.now(); part.holds != nullptr && part.holds->size > 0)
    return part.holds->layouts.front();
  // Batches ascend.
  return *std::ranges::find(action.host->layouts, action.now().layout->length, &PlanLayout::length);
}

bool next_alone(InferSlot& action, TimePoint now, std::byte* io) {
  const InferSlot::Part& part = action.now();
  const PlanLayout& all = *part.layout;
  const PlanLayout& alone = alone_layout(action);
  for (; action.alone.row < all.batch; ++action.alone.row) {
    const int row = action.alone.row;
    if (action.row(part, row).deadline <= now || now - action.times.exec_start > alone_at_most) {
      action.bad_rows.push_back(
          {action.place(part, row),
           {ErrorCode::deadline_exceeded,
            "another request of its batch had data that the model cannot use, and there was no time left to "
            "run this one by itself"}});
      continue;
    }
    for (std::size_t i = 0; i < all.inputs.size(); ++i) {
      const std::uint64_t bytes = all.inputs[i].row_bytes;
      const std::byte* from =
          action.io + part.io + all.inputs[i].offset + static_cast<std::uint64_t>(row) * bytes;
      for (int copy = 0; copy < alone.batch && bytes > 0; ++copy)
        std::memcpy(io + alone.inputs[i].offset + static_cast<std::uint64_t>(copy) * bytes, from, bytes);
    }
    action.faults.clear();
    return true;
  }
  return false;
}

void end_alone(InferSlot& action, const Result<>& done, const std::byte* io) {
  const InferSlot::Part& part = action.now();
  const PlanLayout& all = *part.layout;
  const PlanLayout& alone = alone_layout(action);
  const int row = action.alone.row++;
  if (!done || !action.faults.empty()) {
    action.bad_rows.push_back(
        {action.place(part, row), done ? action.faults.all().front().error : done.error()});
    return;
  }
  for (std::size_t i = 0; i < all.outputs.size(); ++i)
    if (const std::uint64_t bytes = all.outputs[i].row_bytes; bytes > 0)
      std::memcpy(action.io + part.io + all.outputs[i].offset + static_cast<std::uint64_t>(row) * bytes,
                  io + alone.outputs[i].offset, bytes);
}

}  // namespace carillon::worker
