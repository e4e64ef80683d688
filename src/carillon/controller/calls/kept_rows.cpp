#include "carillon/controller/calls/kept_rows.h"

namespace carillon::controller {

void KeptRows::answered(RequestId request, const InferCall& call, std::size_t row) {
  const auto found = rows_.find(request.value);
  if (found == rows_.end() || found->second.kept) return;
  const auto rows = static_cast<std::size_t>(call.rows);
  std::size_t bytes = 0;
  for (const auto& input : call.inputs) bytes += input.size() / rows;
  for (const auto& output : call.outputs) bytes += output.size() / rows;
  if (bytes > largest_) {
    rows_.erase(found);
    return;
  }
  Row& kept = found->second;
  kept.kept = true;
  kept.model = call.model;
  kept.length = call.length;
  for (const auto& input : call.inputs) {
    const auto size = static_cast<std::ptrdiff_t>(input.size() / rows);
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(row) * size;
    kept.inputs.emplace_back(begin, begin + size);
  }
  for (const auto& output : call.outputs) kept.outputs.emplace_back(output.size() / rows);
  for (const auto& input : kept.inputs) kept.from.push_back(input.data());
  for (auto& output : kept.outputs) kept.to.push_back(output.data());
}

void KeptRows::gone(RequestId request) {
  const auto found = rows_.find(request.value);
  if (found != rows_.end() && !found->second.kept) rows_.erase(found);
}

bool KeptRows::run(RequestId request, ActionId id, Window window, worker::InferCommand& command) {
  const auto found = rows_.find(request.value);
  if (found == rows_.end() || !found->second.kept) return false;
  const Row& row = found->second;
  command.id = id;
  command.model = row.model;
  command.window = window;
  command.batch = 1;
  command.cls = Class::normal;  // of which it tells what they take
  command.rows[0] = {row.from, row.to, row.length};
  return true;
}

}  // namespace carillon::controller
