#include "carillon/cli/bench/device.h"

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/cli/bench/cost.h"
#include "carillon/cli/bench/sharing.h"
#include "carillon/cli/commands.h"
#include "carillon/device/core.h"

namespace carillon::cli {
namespace {

// A core whose executors are done with what they are told as soon as they are told it.
class Bench {
 public:
  explicit Bench(const DeviceLoad& load)
      : load_(load),
        core_({.pages = 1024,
               .io = mib(64),
               .workspace = mib(64),
               .queue = static_cast<std::size_t>(load.waiting) + 64,
               .reserved = static_cast<std::size_t>(load.waiting) + 64}) {
    out_.reserve(64);
    for (int m = 0; m < load.models; ++m) {
      const ModelId id{static_cast<std::uint32_t>(m)};
      core_.add_model(id, 4);
      load_model(id);
    }
  }

  // One more INFER comes, and the one that runs ends: the queue keeps its length.
  void infer() {
    submit_infer();
    end();
  }
  // What runs is ended before its next kernel, and resumes at once, as it is the first in line.
  void evict_and_resume() {
    const device::Slot running = *core_.running(device::first_stream);
    core_.evict(core_.id(running), device::After::resume, TimePoint::min(), now_, out_);
    settle();
    core_.ended(running, 1, false, ++now_, out_);
    settle();
  }
  void reload() {
    const ModelId id{static_cast<std::uint32_t>(load_.models)};
    load_model(id);
    core_.submit(device::UnloadAction{{next_++}, id}, now_, out_);
    settle();
  }
  void prepare() {
    for (int i = 0; i <= load_.waiting; ++i) submit_infer();
    core_.add_model(ModelId{static_cast<std::uint32_t>(load_.models)}, 4);
  }
  std::uint64_t reports() const { return reports_; }

 private:
  void submit_infer() {
    now_ += 1us;
    const auto model = static_cast<std::uint32_t>(next_ % static_cast<std::uint64_t>(load_.models));
    core_.submit(device::InferAction{.id = {next_++}, .model = {model}, .window = {now_, now_ + 1s}}, now_,
                 out_);
    settle();
  }
  void end() {
    now_ += 1us;
    core_.ended(*core_.running(device::first_stream), 100, false, now_, out_);
    settle();
  }
  void load_model(ModelId id) {
    core_.submit(device::LoadAction{{next_++}, id, {TimePoint::min(), TimePoint::max()}}, now_, out_);
    settle();
  }
  void settle() {
    using Kind = device::Command::Kind;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const device::Command command = out_[i];
      switch (command.kind) {
        case Kind::wake:
          core_.turn(command.executor, now_, out_);
          break;
        case Kind::gather:
          core_.take_io(command.slot, 600'000);
          core_.gathered(command.slot, {.kernels = 100, .workspace = 4'000'000}, now_, out_);
          break;
        case Kind::scatter:
          core_.scattered(command.slot, now_, out_);
          break;
        case Kind::copy:
          core_.copied(command.slot, true, now_, out_);
          break;
        case Kind::unmap:
          core_.unmapped(command.slot, now_, out_);
          break;
        case Kind::report:
          ++reports_;
          break;
        case Kind::launch:
        case Kind::evict:
          break;  // ends when the benchmark says so
      }
    }
    out_.clear();
  }

  const DeviceLoad& load_;
  device::Core core_;
  device::Commands out_;
  TimePoint now_{1s};
  std::uint64_t next_ = 0;
  std::uint64_t reports_ = 0;
};

}  // namespace

int bench_device(const DeviceLoad& load) {
  Bench bench(load);
  bench.prepare();
  const InstructionCounter counter;
  const struct {
    const char* name;
    const char* what;
    int actions;  // that one turn of the measurement is
    Cost cost;
  } rows[] = {
      {"infer", "an INFER, from its receipt to its report", 1,
       measure(load.actions, counter, [&] { bench.infer(); })},
      {"evict", "an eviction, and the resumption", 1,
       measure(load.actions, counter, [&] { bench.evict_and_resume(); })},
      {"load", "a LOAD, or an UNLOAD, of four pages", 2,
       measure(load.actions / 4, counter, [&] { bench.reload(); })},
  };
  nlohmann::ordered_json json;
  json["models"] = load.models;
  json["waiting"] = load.waiting;
  json["reports"] = bench.reports();
  if (!load.json) fmt::print("{:<44}{:>12}{:>16}\n", "the device core's part of", "ns", "instructions");
  for (const auto& row : rows) {
    const double ns = row.cost.ns / row.actions;
    auto& entry = json[row.name];
    entry["ns_per_action"] = ns;
    entry["instructions_per_action"] = nullptr;
    std::string instructions = "not counted";
    if (row.cost.instructions) {
      entry["instructions_per_action"] = *row.cost.instructions / row.actions;
      instructions = fmt::format("{:.0f}", *row.cost.instructions / row.actions);
    }
    if (!load.json) fmt::print("{:<44}{:>12.1f}{:>16}\n", row.what, ns, instructions);
  }
  json["sharing"] = bench_sharing(load.json);
  if (load.json) fmt::print("{}\n", json.dump(2));
  if (!load.json && !counter.now())
    fmt::print(
        "The system does not let instructions be counted here (perf_event_open); valgrind --tool=callgrind "
        "does.\n");
  return exit_success;
}

}  // namespace carillon::cli
