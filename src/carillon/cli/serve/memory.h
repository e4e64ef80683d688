#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/memory_account.h"
#include "carillon/base/result.h"
#include "carillon/cli/memory_bound.h"
#include "carillon/cli/serve/arguments.h"
#include "carillon/frontend/memory/memory_figures.h"
#include "carillon/server/devices.h"
#include "carillon/server/memory_plan.h"

namespace carillon::cli::serving {

// By the machine's processors, as libraries start their threads. What they take beside the caches, measured
// on two cores with room to spare: threads with 8 MiB of stack each, gRPC, oneDNN. Where they do not get it
// they end the process, so it is looked for before.
Bytes beside_caches();
Bytes of_frontends();
int threads_of_frontends(const Arguments& arguments);

// Bound, parts, and the account of the part that is the models'.
struct Memory {
  MemoryBound bound;
  server::MemoryPlan plan;
  std::shared_ptr<MemoryAccount> account;
  // By device, how large the pages of its page cache are; 0: they are no memory of this host.
  std::vector<Bytes> host_pages;
};

// `weights_stay`: those of a CPU's models, as there is no store. Errors with the status that they end with.
std::expected<Memory, std::pair<int, Error>> plan_memory_of(const Arguments& arguments, bool weights_stay);

// The devices are made, and say how large their pages are.
void heed_pages(const server::DeviceGroup& group, Memory& memory);

// Of the parts now, for metrics.
frontend::LookAtMemory look_at(const Memory& memory);

}  // namespace carillon::cli::serving
