#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/controller/core.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/testing/scripted_scheduler.h"
#include "carillon/worker/worker.h"

// Stand-ins for a scheduler and a worker, for the controller's tests: both do as the test says.
namespace carillon::controller::testing {

using schedule::testing::ScriptedScheduler;

// What an INFER that succeeds does here: each output byte is the row's input byte plus one.
inline void answer_rows(const worker::InferCommand& infer, std::size_t row_bytes) {
  for (int b = 0; b < infer.batch; ++b) {
    const worker::RowBuffers& row = infer.rows[static_cast<std::size_t>(b)];
    for (std::size_t i = 0; i < row_bytes; ++i)
      row.outputs[0][i] = static_cast<std::byte>(std::to_integer<unsigned>(row.inputs[0][i]) + 1U);
  }
}

// Whether the INFER reads or writes memory of `call`.
inline bool touches(const worker::InferCommand& infer, const InferCall& call) {
  const auto inside = [](const std::byte* at, const std::vector<std::byte>& buffer) {
    return !std::less<>{}(at, buffer.data()) && std::less<>{}(at, buffer.data() + buffer.size());
  };
  for (int b = 0; b < infer.batch; ++b) {
    const worker::RowBuffers& row = infer.rows[static_cast<std::size_t>(b)];
    if (inside(row.outputs[0], call.outputs[0]) || inside(row.inputs[0], call.inputs[0])) return true;
  }
  return false;
}

// Holds every action until the test ends it. An INFER that succeeds writes each output byte as the row's
// input byte plus one, through the pointers it was given.
class HeldWorker : public worker::Worker {
 public:
  struct Held {
    schedule::ActionKind kind{};
    worker::InferCommand infer;
  };

  Result<> add_model(ModelId, std::shared_ptr<const engine::CompiledModel>) override { return {}; }
  Result<> has_room(const engine::CompiledModel&) const override { return {}; }
  bool submit(const worker::LoadCommand& command) override {
    held[command.id].kind = schedule::ActionKind::load;
    return true;
  }
  bool submit(const worker::UnloadCommand& command) override {
    held[command.id].kind = schedule::ActionKind::unload;
    return true;
  }
  bool submit(const worker::InferCommand& command) override {
    CARILLON_ASSERT(!held.contains(command.id));
    held[command.id] = {schedule::ActionKind::infer, command};
    return true;
  }
  wire::Credit credit() const override {
    return full ? wire::Credit{.infers = 0, .loads = 0} : wire::Credit{};
  }
  void preempt(ActionId, TimePoint) override {}
  bool cancel(ActionId) override { return false; }
  void stop(ActionId id) override { stopped.push_back(id); }
  std::uint32_t retire() override {
    held.clear();
    return ++life;
  }
  void probe() override { ++probes; }
  bool busy() const override { return false; }
  std::uint64_t total_pages() const override { return 100; }
  std::uint64_t free_pages() const override { return 60; }
  Result<std::vector<Duration>> measure_exec(ModelId, int, int, std::int64_t, std::string*) override {
    return std::vector<Duration>{};
  }
  Result<std::vector<Duration>> measure_load(ModelId, int) override { return std::vector<Duration>{}; }
  const std::vector<std::string>& notes() const override { return notes_; }

  // Ends `id`: the result to hand to the core. EXEC takes `took` and ends at `end`.
  worker::ActionResult end(ActionId id, schedule::ActionStatus status, TimePoint end,
                           Duration took = std::chrono::milliseconds{1}, std::string error = {}) {
    const auto found = held.find(id);
    CARILLON_ASSERT(found != held.end());
    const Held& action = found->second;
    if (action.kind == schedule::ActionKind::infer && status == schedule::ActionStatus::success)
      answer_rows(action.infer, row_bytes);
    held.erase(found);
    worker::ActionResult out{
        .id = id, .status = status, .times = {}, .error = std::move(error), .life = life, .device = device};
    worker::ActionTimes& t = out.times;
    t.received = t.input_start = t.input_end = t.exec_start = end - took;
    t.exec_end = t.output_start = t.output_end = end;
    return out;
  }

  // Whether an action that is under way reads or writes memory of `call`.
  bool uses(const InferCall& call) const {
    for (const auto& [id, action] : held) {
      if (action.kind == schedule::ActionKind::infer && touches(action.infer, call)) return true;
    }
    return false;
  }

  std::map<ActionId, Held> held;
  std::vector<ActionId> stopped;
  std::uint32_t life = 0;
  int probes = 0;
  DeviceId device{};
  bool full = false;
  std::size_t row_bytes = 4;

 private:
  std::vector<std::string> notes_;
};

inline ServedModel served(std::uint32_t id, std::size_t row_bytes = 4) {
  ServedModel model;
  model.info = {.id = {id},
                .name = "model" + std::to_string(id),
                .pages = 1,
                .load = std::chrono::milliseconds{2},
                .batches = {{1, std::chrono::milliseconds{1}}, {2, std::chrono::milliseconds{2}}}};
  model.input_row_bytes = {{row_bytes}};
  model.output_row_bytes = {{row_bytes}};
  return model;
}

// A call whose every input byte tells its row: row r is filled with `fill` + r.
inline std::unique_ptr<InferCall> call_of(ModelId model, int rows, TimePoint arrival,
                                          TimePoint deadline = TimePoint::max(), unsigned fill = 10,
                                          std::size_t row_bytes = 4) {
  auto call = std::make_unique<InferCall>();
  call->model = model;
  call->rows = rows;
  call->arrival = arrival;
  call->deadline = deadline;
  const std::size_t bytes = row_bytes * static_cast<std::size_t>(rows);
  call->inputs.emplace_back(bytes);
  call->outputs.emplace_back(bytes);
  for (std::size_t i = 0; i < bytes; ++i) call->inputs[0][i] = static_cast<std::byte>(fill + i / row_bytes);
  return call;
}

// Whether every row of a succeeded call is the input plus one.
inline bool is_right(const InferCall& call) {
  for (std::size_t i = 0; i < call.inputs[0].size(); ++i)
    if (std::to_integer<unsigned>(call.outputs[0][i]) !=
        ((std::to_integer<unsigned>(call.inputs[0][i]) + 1U) & 0xffU))
      return false;
  return true;
}

}  // namespace carillon::controller::testing
