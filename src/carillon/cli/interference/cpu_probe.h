#pragma once

#include <memory>

#include "carillon/cli/interference/probe.h"
#include "carillon/repository/repository.h"
#include "carillon/server/device.h"

namespace carillon::cli {

struct CpuProbeOptions {
  server::DeviceArguments device;
  Duration at_least = std::chrono::milliseconds{500};  // that a configuration runs
  int repeats = 5;                                     // of each model at least; >= 1
};

// Measures on this machine. A model with a share runs as 'serve --plan' runs it: on a worker of its own with
// as many threads as its share of the device's cores needs, held to the share by its pacer. Frequency, power
// and cache use come from CpuSensors; cache use is in percent of the misses of a thread that streams through
// memory.
//
// Takes the models of the repository that have a config, can be compiled, and do not vary in length; others
// are told of through `tell`. `clock` outlives the probe.
Result<std::unique_ptr<InterferenceProbe>> make_cpu_probe(
    std::vector<repository::RepositoryEntry> models, CpuProbeOptions options, const Clock& clock,
    const std::function<void(const std::string&)>& tell);

}  // namespace carillon::cli
