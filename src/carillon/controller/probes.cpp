#include "carillon/controller/probes.h"

#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {

void Probes::offer(const InferCall& call, AppId app) {
  if (options_.share <= 0 || random_.uniform() >= options_.share || rows_.size() >= options_.backlog) return;
  const auto rows = static_cast<std::size_t>(call.rows);
  std::size_t bytes = 0;
  for (const auto& input : call.inputs) bytes += input.size() / rows;
  for (const auto& output : call.outputs) bytes += output.size() / rows;
  if (bytes > options_.largest_row) return;
  Row& row = rows_.emplace_back(Row{.model = call.model, .app = app, .length = call.length});
  for (const auto& input : call.inputs) {
    const auto size = static_cast<std::ptrdiff_t>(input.size() / rows);
    row.inputs.emplace_back(input.begin(), input.begin() + size);
  }
  for (const auto& output : call.outputs) row.outputs.emplace_back(output.size() / rows);
  for (const auto& input : row.inputs) row.from.push_back(input.data());
  for (auto& output : row.outputs) row.to.push_back(output.data());
}

void Probes::begin(DeviceId device, Window window, worker::InferCommand& command) {
  CARILLON_ASSERT(waiting());
  const Row& row = rows_.front();
  running_ = Running{.id = {mark | next_++}, .device = device};
  command.id = running_->id;
  command.model = row.model;
  command.window = window;
  command.batch = 1;
  command.rows[0] = {row.from, row.to, row.length};
}

std::optional<Probes::Sample> Probes::end(const worker::ActionResult& result) {
  CARILLON_ASSERT(running_ && result.id == running_->id);
  running_.reset();
  Row& row = rows_.front();
  std::optional<Sample> sample;
  if (result.status == schedule::ActionStatus::success)
    sample = Sample{row.model, row.app, result.times.exec_end - result.times.exec_start};
  else if ((result.status == schedule::ActionStatus::stopped ||
            result.status == schedule::ActionStatus::too_late) &&
           ++row.attempts < options_.attempts)
    return std::nullopt;
  rows_.pop_front();
  return sample;
}

}  // namespace carillon::controller
