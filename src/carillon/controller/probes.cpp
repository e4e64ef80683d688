#include "carillon/controller/probes.h"

#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {

void Probes::offer(const InferCall& call, AppId app) {
  if (!queue_.chosen()) return;
  const auto rows = static_cast<std::size_t>(call.rows);
  std::size_t bytes = 0;
  for (const auto& input : call.inputs) bytes += input.size() / rows;
  for (const auto& output : call.outputs) bytes += output.size() / rows;
  if (bytes > largest_row_) return;
  Row row{.model = call.model, .app = app, .length = call.length};
  for (const auto& input : call.inputs) {
    const auto size = static_cast<std::ptrdiff_t>(input.size() / rows);
    row.inputs.emplace_back(input.begin(), input.begin() + size);
  }
  for (const auto& output : call.outputs) row.outputs.emplace_back(output.size() / rows);
  for (const auto& input : row.inputs) row.from.push_back(input.data());
  for (auto& output : row.outputs) row.to.push_back(output.data());
  queue_.keep(std::move(row));
}

void Probes::begin(DeviceId device, Window window, worker::InferCommand& command) {
  command.id = queue_.begin(device);
  const Row& row = queue_.next();
  command.model = row.model;
  command.window = window;
  command.batch = 1;
  command.rows[0] = {row.from, row.to, row.length};
}

std::optional<Probes::Sample> Probes::end(const worker::ActionResult& result) {
  CARILLON_ASSERT(queue_.running() && result.id == queue_.action());
  const auto row = queue_.end(result.status);
  if (!row) return std::nullopt;
  return Sample{row->model, row->app, result.times.ran()};
}

}  // namespace carillon::controller
