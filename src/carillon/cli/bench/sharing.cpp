#include "carillon/cli/bench/sharing.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "carillon/base/random.h"
#include "carillon/research/sharing/sharing.h"
#include "carillon/research/unit_device.h"

namespace carillon::cli {
namespace {

using research::Queue;
using research::ShareCommand;

constexpr int shared_units = 60;

struct Call {
  enum class Kind : std::uint8_t { submit, ended, evicted };
  // What it asks for: a real-time run's coming; a choice beside one; a launch where none is; the others.
  enum class Asks : std::uint8_t { preemption, selection, launch, other };
  Kind kind{};
  Asks asks{};
  Queue queue = 0;
  research::RunSpec spec;
  TimePoint at;
};

// As on the MI50: a few hundred short kernels, most narrower than the device.
research::KernelPlan plan(Random& random, int length) {
  std::vector<research::KernelShape> kernels;
  for (int k = 0; k < length; ++k) {
    research::KernelShape kernel{.blocks = 1 + static_cast<int>(random.below(100)), .rounds = {}};
    Duration round = 1us * (10 + random.below(90));
    for (int depth = 0; depth < 16; ++depth, round += 2us) kernel.rounds.push_back(round);
    kernels.push_back(std::move(kernel));
  }
  return research::KernelPlan(kernels, shared_units);
}

struct SharedDevice {
  std::unique_ptr<research::Sharing> sharing;
  Queue real_time = 0;
  std::vector<Queue> best_effort;
};

SharedDevice make(int queues) {
  SharedDevice world;
  research::SharingOptions options;
  options.units = shared_units;
  world.sharing = std::move(*research::make_sharing("reef", options));
  Random random(1);
  for (int p = 0; p < 6; ++p) world.sharing->add_plan(plan(random, p == 0 ? 40 : 200));
  world.real_time = world.sharing->add_queue(Class::real_time);
  for (int q = 0; q < queues; ++q) world.best_effort.push_back(world.sharing->add_queue(Class::best_effort));
  return world;
}

TimePoint make_call(research::Sharing& sharing, const Call& call, research::ShareCommands& out) {
  switch (call.kind) {
    case Call::Kind::submit:
      return sharing.submit(call.queue, call.spec, call.at, out);
    case Call::Kind::ended:
      return sharing.ended(call.queue, call.at, out);
    case Call::Kind::evicted:
      return sharing.evicted(call.queue, call.at, out);
  }
  return TimePoint::max();
}

// A second in which each best-effort queue always has a run, and a real-time one comes every 10 ms.
std::vector<Call> record(int queues) {
  SharedDevice world = make(queues);
  research::UnitDevice device(shared_units, world.sharing->queues(), {}, 1);
  std::vector<Call> calls;
  research::ShareCommands out;
  std::vector<Queue> again = world.best_effort;
  std::uint64_t runs = 0;
  const auto call = [&](Call made) {
    const bool real_time = world.sharing->real_time();
    if (made.kind == Call::Kind::submit && made.queue == world.real_time) {
      made.asks = real_time ? Call::Asks::other : Call::Asks::preemption;
    } else if (made.kind == Call::Kind::ended && made.queue != world.real_time) {
      made.asks = real_time ? Call::Asks::selection : Call::Asks::launch;
    } else {
      made.asks = Call::Asks::other;
    }
    calls.push_back(made);
    make_call(*world.sharing, made, out);
    for (const ShareCommand& command : out) {
      if (command.kind == ShareCommand::Kind::launch) {
        const research::KernelPlan& plan = world.sharing->plan(command.plan);
        device.launch(command, plan.rounds(plan.kernel(command.kernel)), made.at);
      } else if (command.kind == ShareCommand::Kind::evict) {
        device.evict(command.queue, command.kill, made.at);
      } else if (command.queue != world.real_time) {
        again.push_back(command.queue);
      }
    }
    out.clear();
  };
  TimePoint next_real_time = TimePoint{} + 5ms;
  const auto submit = [&](Queue queue, TimePoint at) {
    const auto plan = static_cast<std::uint32_t>(queue == world.real_time ? 0 : 1 + queue % 5);
    call({.kind = Call::Kind::submit,
          .asks = {},
          .queue = queue,
          .spec = {.run = runs++, .plan = plan, .deadline = at},
          .at = at});
  };
  for (TimePoint now{}; now < TimePoint{} + 1s; now = std::min(device.next(), next_real_time)) {
    if (now == next_real_time) {
      if (!world.sharing->full(world.real_time)) submit(world.real_time, now);
      next_real_time += 10ms;
    } else if (device.next() == now) {
      if (const auto event = device.step()) {
        const bool ended = event->kind == research::UnitDevice::Event::Kind::ended;
        call({.kind = ended ? Call::Kind::ended : Call::Kind::evicted,
              .asks = {},
              .queue = event->queue,
              .spec = {},
              .at = now});
      }
    }
    while (!again.empty()) {
      const Queue queue = again.back();
      again.pop_back();
      submit(queue, now);
    }
  }
  return calls;
}

struct Took {
  std::size_t calls = 0;
  double mean_ns = 0, median_ns = 0, p99_ns = 0;
};

std::array<Took, 4> replay(int queues, const std::vector<Call>& calls) {
  using Ticks = std::chrono::steady_clock;
  std::array<std::vector<double>, 4> times;
  for (auto& kind : times) kind.reserve(calls.size());
  // What reading the clock takes itself.
  std::vector<double> empty(1'001);
  for (double& time : empty) {
    const auto from = Ticks::now();
    time = std::chrono::duration<double, std::nano>(Ticks::now() - from).count();
  }
  std::ranges::nth_element(empty, empty.begin() + 500);
  SharedDevice world = make(queues);
  research::ShareCommands out;
  out.reserve(4096);
  for (const Call& call : calls) {
    out.clear();
    const auto from = Ticks::now();
    make_call(*world.sharing, call, out);
    const auto took = std::chrono::duration<double, std::nano>(Ticks::now() - from).count();
    times[static_cast<std::size_t>(call.asks)].push_back(std::max(0.0, took - empty[500]));
  }
  std::array<Took, 4> result;
  for (std::size_t kind = 0; kind < times.size(); ++kind) {
    auto& all = times[kind];
    if (all.empty()) continue;
    std::ranges::sort(all);
    // A thread that is put aside for a moment is not what a decision takes.
    const std::size_t counted = all.size() - all.size() / 1000;
    double sum = 0;
    for (std::size_t i = 0; i < counted; ++i) sum += all[i];
    result[kind] = {.calls = all.size(),
                    .mean_ns = sum / static_cast<double>(counted),
                    .median_ns = all[all.size() / 2],
                    .p99_ns = all[all.size() - 1 - all.size() / 100]};
  }
  return result;
}

}  // namespace

nlohmann::ordered_json bench_sharing(bool quiet) {
  nlohmann::ordered_json json;
  if (!quiet)
    fmt::print("\n{:<44}{:>12}{:>12}{:>12}{:>12}\n", "which kernels run beside which", "calls", "mean ns",
               "median ns", "p99 ns");
  for (const int queues : {5, 50}) {
    const auto took = replay(queues, record(queues));
    const struct {
      const char* name;
      const char* what;
      Call::Asks asks;
    } rows[] = {{"preemption", "a real-time run comes", Call::Asks::preemption},
                {"selection", "a choice beside real-time kernels", Call::Asks::selection},
                {"launch", "a launch where there are none", Call::Asks::launch}};
    auto& entry = json[std::to_string(queues)];
    for (const auto& row : rows) {
      const Took& of = took[static_cast<std::size_t>(row.asks)];
      entry[row.name] = {
          {"calls", of.calls}, {"mean_ns", of.mean_ns}, {"median_ns", of.median_ns}, {"p99_ns", of.p99_ns}};
      if (!quiet)
        fmt::print("{:<44}{:>12}{:>12.1f}{:>12.1f}{:>12.1f}\n",
                   fmt::format("{}, {} queues", row.what, queues), of.calls, of.mean_ns, of.median_ns,
                   of.p99_ns);
    }
  }
  return json;
}

}  // namespace carillon::cli
