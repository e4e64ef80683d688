#include "carillon/worker/placement.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include <pthread.h>
#include <sched.h>

namespace carillon::worker {
namespace {

constexpr int transfer_priority = 20;
constexpr int urgent_priority = 15;
constexpr int exec_priority = 10;
constexpr int load_priority = 5;

}  // namespace

Placements place_executors(std::span<const int> cores, int exec_threads, bool real_time,
                           const std::optional<device::ClassStreams>& classes, bool idle) {
  Placements places;
  const int have = static_cast<int>(cores.size());
  const int kernels = exec_threads == 0 ? have : std::min(exec_threads, have);
  if (classes && classes->count() > 1) {
    const std::span<const int> units = cores.last(static_cast<std::size_t>(kernels));
    for (int i = 0; i < classes->best_effort; ++i)
      places.best_effort.push_back(
          {.cores = {units[static_cast<std::size_t>(i) % units.size()]}, .idle = idle});
    if (const int wanted = classes->real_time_units; wanted > 0 && wanted < kernels)
      places.urgent.cores.assign(units.begin(), units.begin() + wanted);
  }
  if (!real_time) return places;
  const std::string counts = std::to_string(kernels) + " of " + std::to_string(have) + " cores run kernels";

  places.input.priority = places.output.priority = transfer_priority;
  if (have > kernels) {
    const std::vector<int> rest(cores.begin(), cores.end() - kernels);
    places.exec = {.priority = exec_priority, .cores = {cores.end() - kernels, cores.end()}};
    places.urgent.priority = urgent_priority;
    if (places.urgent.cores.empty()) places.urgent.cores = places.exec.cores;
    places.load.cores = places.input.cores = places.output.cores = rest;
  } else {
    places.notes.push_back("real time: EXEC keeps normal priority and is not pinned: " + counts +
                           ", and the network needs one");
  }
  if (have > kernels + 1)
    places.load.priority = load_priority;
  else
    places.notes.push_back("real time: LOAD keeps normal priority: " + counts + ", and two more are needed");
  return places;
}

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  } else {  // more cores than the set holds
    for (unsigned core = 0; core < std::max(1U, std::thread::hardware_concurrency()); ++core)
      cores.push_back(static_cast<int>(core));
  }
  return cores;
}

void apply(const Placement& placement, const std::string& who, std::vector<std::string>& notes) {
  if (!placement.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : placement.cores)
      if (core < CPU_SETSIZE) CPU_SET(core, &set);
    if (const int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set); error != 0)
      notes.push_back("real time: " + who + " is not pinned: " + std::strerror(error));
  }
  if (placement.idle) {
    const sched_param parameters{};
    if (const int error = pthread_setschedparam(pthread_self(), SCHED_IDLE, &parameters); error != 0)
      notes.push_back("best effort: " + who + " keeps normal priority: " + std::strerror(error));
  }
  if (placement.priority > 0) {
    sched_param parameters{};
    parameters.sched_priority = placement.priority;
    if (const int error = pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameters); error != 0)
      notes.push_back("real time: " + who + " keeps normal priority: " + std::strerror(error) +
                      " (CAP_SYS_NICE, or RLIMIT_RTPRIO of at least " + std::to_string(placement.priority) +
                      ", is needed)");
  }
}

bool raise_priority() {
  return raise_priority(pthread_self());
}

bool raise_priority(std::thread::native_handle_type thread) {
  const sched_param parameters{};
  return pthread_setschedparam(thread, SCHED_OTHER, &parameters) == 0;
}

void lower_priority(const Placement& placement) {
  const sched_param parameters{};
  if (placement.idle) pthread_setschedparam(pthread_self(), SCHED_IDLE, &parameters);
}

}  // namespace carillon::worker
