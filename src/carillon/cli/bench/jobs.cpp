#include "carillon/cli/bench/jobs.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/cli/commands.h"
#include "carillon/device/lanes/job_sharing.h"

namespace carillon::cli {
namespace {

using device::JobCommand;
using device::JobEvent;
using device::JobId;
using device::JobMemory;

constexpr double capacity_mb = 16'000;

struct JobsFigures {
  std::uint64_t events = 0, commands = 0, grants = 0, iterations = 0, ended = 0, most_lanes = 0;
  double seconds = 0;
};

// Jobs and the device they have, in virtual time, around a core.
class JobsWorld {
 public:
  JobsWorld(std::unique_ptr<device::JobSharing> core, const JobsLoad& load)
      : core_(std::move(core)), random_(load.seed), jobs_(static_cast<std::size_t>(load.jobs)) {
    for (std::uint32_t i = 0; i < jobs_.size(); ++i) come(i);
  }

  void step() {
    if (ends_.empty() || core_wake_ <= ends_.top().first) {
      CARILLON_ASSERT(core_wake_ != TimePoint::max());
      now_ = std::max(now_, core_wake_);
      return tell(device::JobWake{});
    }
    const auto [at, index] = ends_.top();
    ends_.pop();
    now_ = std::max(now_, at);
    Job& job = jobs_[index];
    ++figures.iterations;
    if (--job.left == 0) {
      ++figures.ended;
      tell(device::JobGone{{index}});
      return come(index);
    }
    const bool stopped = job.recalled;
    job.running = !stopped;
    job.recalled = false;
    if (!stopped) ends_.emplace(now_ + job.iteration, index);
    tell(device::IterationEnded{.job = {index},
                                .stopped = stopped,
                                .busy = job.iteration,
                                .memory = job.memory,
                                .remaining = job.iteration * job.left});
  }

  JobsFigures figures;

 private:
  struct Job {
    Duration iteration{0};
    int left = 0;
    JobMemory memory;
    bool running = false, recalled = false;
  };

  void come(std::uint32_t index) {
    Job& job = jobs_[index];
    job = {.iteration = 5ms + 45us * static_cast<int>(random_.below(1000)),
           .left = 50 + static_cast<int>(random_.below(500)),
           .memory = {mib(10 + random_.below(70)), mib(50 + random_.below(350))}};
    tell(device::JobCame{{index},
                         {.persistent = job.memory.persistent,
                          .ephemeral = job.memory.ephemeral,
                          .remaining = job.iteration * job.left}});
  }

  void tell(const JobEvent& event) {
    commands_.clear();
    core_wake_ = core_->on(event, now_, commands_);
    ++figures.events;
    figures.commands += commands_.size();
    figures.most_lanes = std::max<std::uint64_t>(figures.most_lanes, core_->lanes().lanes());
    // What comes of it is told after all of it is carried out.
    std::vector<std::uint32_t> ready;
    for (const JobCommand& command : commands_) {
      Job* const job = command.job.value < jobs_.size() ? &jobs_[command.job.value] : nullptr;
      switch (command.kind) {
        case JobCommand::Kind::admit: ready.push_back(command.job.value); break;
        case JobCommand::Kind::grant:
          ++figures.grants;
          job->running = true;
          ends_.emplace(now_ + job->iteration, command.job.value);
          break;
        case JobCommand::Kind::recall: job->recalled = true; break;
        case JobCommand::Kind::refuse:
        case JobCommand::Kind::evict: CARILLON_ASSERT(false); break;
        default: break;
      }
    }
    for (const std::uint32_t index : ready)
      if (!jobs_[index].running) tell(device::IterationEnded{.job = {index}, .stopped = true, .iterations = 0});
  }

  const std::unique_ptr<device::JobSharing> core_;
  Random random_;
  std::vector<Job> jobs_;
  using End = std::pair<TimePoint, std::uint32_t>;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  device::JobCommands commands_;
  TimePoint now_{Duration{0}}, core_wake_ = TimePoint::max();
};

Result<JobsFigures> measure_jobs(const std::string& policy, const JobsLoad& load) {
  device::JobOptions options;
  options.capacity = Bytes{static_cast<std::uint64_t>(capacity_mb * 1e6)};
  options.most_jobs = static_cast<std::size_t>(load.jobs) + 1;
  auto core = device::make_job_sharing(policy, options);
  if (!core) return std::unexpected(core.error());
  JobsWorld world(std::move(*core), load);
  while (world.figures.events < load.events / 10) world.step();
  const JobsFigures before = world.figures;
  const auto from = std::chrono::steady_clock::now();
  while (world.figures.events < load.events) world.step();
  JobsFigures out = world.figures;
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  out.events -= before.events;
  out.commands -= before.commands;
  out.grants -= before.grants;
  out.iterations -= before.iterations;
  out.ended -= before.ended;
  return out;
}

}  // namespace

int bench_jobs(const JobsLoad& load) {
  std::vector<std::string> policies = load.policies;
  if (policies == std::vector<std::string>{"all"})
    policies.assign(device::job_policy_names().begin(), device::job_policy_names().end());
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!load.json)
    fmt::print("{:<10}{:>8}{:>14}{:>12}{:>14}{:>12}{:>10}{:>10}\n", "policy", "jobs", "events/s", "ns/event", "iterations",
               "grants", "ended", "lanes");
  for (const std::string& policy : policies) {
    const auto m = measure_jobs(policy, load);
    if (!m) {
      fmt::print(stderr, "carillon bench jobs: {}\n", m.error().message);
      return exit_usage;
    }
    const auto events = static_cast<double>(m->events);
    all.push_back({{"scheduler", policy},
                   {"jobs", load.jobs},
                   {"seed", load.seed},
                   {"events", m->events},
                   {"events_per_s", events / m->seconds},
                   {"ns_per_event", m->seconds * 1e9 / events},
                   {"commands", m->commands},
                   {"iterations", m->iterations},
                   {"grants", m->grants},
                   {"ended", m->ended},
                   {"most_lanes", m->most_lanes}});
    if (load.json) continue;
    fmt::print("{:<10}{:>8}{:>14.0f}{:>12.1f}{:>14}{:>12}{:>10}{:>10}\n", policy, load.jobs, events / m->seconds,
               m->seconds * 1e9 / events, m->iterations, m->grants, m->ended, m->most_lanes);
    std::fflush(stdout);
  }
  if (load.json)
    fmt::print("{}\n", (all.size() > 1 ? nlohmann::ordered_json{{"runs", all}} : all.front()).dump(2));
  return exit_success;
}

}  // namespace carillon::cli
