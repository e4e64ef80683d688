#include "carillon/cli/serve/memory.h"

#include <algorithm>
#include <string>
#include <thread>

#include <spdlog/spdlog.h>
#include <unistd.h>

#include "carillon/base/resident_memory.h"
#include "carillon/cli/commands.h"
#include "carillon/repository/repository.h"

namespace carillon::cli::serving {
namespace {

std::uint64_t cores() {
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

Bytes beside_caches() {
  return mib(368) + mib(16) * cores();
}

Bytes of_frontends() {
  return mib(224) + mib(16) * cores();
}

int threads_of_frontends(const Arguments& arguments) {
  return 21 + 2 * static_cast<int>(cores()) + arguments.http_threads;
}

std::expected<Memory, std::pair<int, Error>> plan_memory_of(const Arguments& arguments, bool weights_stay) {
  const auto usage = [](Error error) { return std::unexpected(std::pair(exit_usage, std::move(error))); };
  auto bound = memory_bound(arguments.memory);
  if (!bound)
    return std::unexpected(std::pair(arguments.memory == "auto" ? exit_failure : exit_usage, bound.error()));
  const auto sizes = server::given_sizes(arguments.devices.each);
  if (!sizes) return usage(sizes.error());
  const auto doors = given_door_sizes(arguments.doors);
  if (!doors) return usage(doors.error());
  server::MemoryWanted wanted{.bound = bound->bytes,
                              .named = bound->named,
                              .cores = static_cast<unsigned>(cores()),
                              .devices = {},
                              .page_cache = sizes->page_cache,
                              .io_cache = sizes->io_cache,
                              .workspace = sizes->workspace,
                              .inflight = doors->inflight,
                              .body = doors->body};
  if (!arguments.sizes_memory.empty()) {
    const auto read = parse_bytes(arguments.sizes_memory);
    if (!read) return usage(in_context("--sizes-memory", read.error()).error());
    wanted.sizes = *read;
  }
  Memory out{.bound = *std::move(bound), .plan = {}, .account = {}, .host_pages = {}};
  // The workloads of a plan have caches of their own, out of what models have.
  // A cluster's frontend has no devices.
  if (arguments.plan.empty() && !(arguments.models.empty() && arguments.files.empty())) {
    const auto devices = server::list_devices(arguments.devices);
    if (!devices) return usage(devices.error());
    for (const server::DeviceArguments& device : *devices) {
      const auto share = server::host_share(device);
      if (!share) return usage(share.error());
      wanted.devices.push_back(*share);
      out.host_pages.push_back(share->caches > 0 ? page_size : Bytes{});
    }
    if (const auto entries = repository::read_repository(
            arguments.models, {.follow_links = arguments.follow_links, .files = arguments.files});
        entries) {
      const KnownModels known = known_models(
          *entries, {.stay = weights_stay,
                     .later = !arguments.plans_at_once && arguments.profile.empty() && !arguments.stop_cost &&
                              arguments.devices.each.choose_kernels == 0 && devices->size() == 1 &&
                              devices->front().device == "cpu"});
      wanted.largest_weights = known.largest_weights;
      wanted.known_models = known.memory;
      wanted.known_measured = known.measured;
      // Scripts that train here have a part of it, and other models may come.
      if (arguments.control == server::ModelControlMode::none && arguments.train.socket.empty())
        wanted.all_weights = known.all_weights;
    }
  }
  auto plan = server::plan_memory(wanted);
  if (!plan) return usage(plan.error());
  out.plan = *std::move(plan);
  out.account = make_account(out.bound, wanted, out.plan);
  spdlog::info("memory: at most {} ({}): {}", to_text(out.bound.bytes), out.bound.from, out.plan.text());
  if (out.bound.given && out.bound.limit > Bytes{} && out.bound.limit < out.bound.bytes)
    spdlog::warn("{} is more than the {} that there are", out.bound.named, to_text(out.bound.limit));
  return out;
}

void heed_pages(const server::DeviceGroup& group, Memory& memory) {
  for (std::size_t i = 0; i < std::min(memory.host_pages.size(), group.devices.size()); ++i)
    if (memory.host_pages[i] > Bytes{}) memory.host_pages[i] = group.devices[i].worker.page;
}

frontend::LookAtMemory look_at(const Memory& memory) {
  return [bound = memory.bound.bytes, plan = memory.plan, account = memory.account,
          host_pages = memory.host_pages](const controller::ServerStatistics& statistics) {
    Bytes pages;
    for (std::size_t i = 0; i < std::min(host_pages.size(), statistics.devices.size()); ++i)
      pages = pages + host_pages[i] * (statistics.devices[i].pages_total - statistics.devices[i].pages_free);
    const MemoryAccount::Counts counts = account->counts();
    return frontend::MemoryFigures{.limit = bound,
                                   .resident = resident_of_tree(::getpid()),
                                   .parts = {{"libraries", plan.libraries},
                                             {"weights", pages + counts.taken.weights},
                                             {"tensors", plan.io_caches},
                                             {"workspace", plan.workspaces},
                                             {"plans", counts.taken.plans},
                                             {"sizes", Bytes{statistics.sizes_bytes}},
                                             {"processes", counts.taken.processes},
                                             {"loading", counts.loading}}};
  };
}

}  // namespace carillon::cli::serving
