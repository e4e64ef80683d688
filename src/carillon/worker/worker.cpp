#include "carillon/worker/worker.h"

#include <string>
#include <tuple>
#include <utility>

#include "carillon/engine/host/host_memory.h"
#include "carillon/engine/host/memory.h"
#include "carillon/worker/live.h"
#include "carillon/worker/measuring.h"

namespace carillon::worker {
namespace {

Result<> check(const Options& options) {
  const Bytes most = gib(1ULL << 16);
  for (const auto& [name, size, least] :
       {std::tuple{"page_cache", options.page_cache, options.page},
        std::tuple{"io_cache", options.io_cache, Bytes{device::RangeLedger::granule}},
        std::tuple{"workspace", options.workspace, Bytes{1}}})
    if (size < least || size > most)
      return invalid(std::string(name) + " is " + to_text(size) + ": it must be at least " + to_text(least) +
                     " and at most " + to_text(most));
  if (options.queue < 1 || options.queue > 65536)
    return invalid("queue is " + std::to_string(options.queue) + ": it must be 1 to 65536 actions");
  if (options.max_models < 1 || options.max_models > (1U << 20))
    return invalid("max_models is " + std::to_string(options.max_models) + ": it must be 1 to 1048576");
  if (!(options.share > 0 && options.share <= 1))
    return invalid("share is " + std::to_string(options.share) + ": it must be above 0 and at most 1");
  if (const auto& classes = options.classes) {
    const int units = classes->units;
    if (units < 1 || units > 64)
      return invalid("classes: " + std::to_string(units) + " units: there can be 1 to 64");
    if (classes->best_effort < 1 || classes->best_effort > most_best_effort)
      return invalid("classes: " + std::to_string(classes->best_effort) +
                     " best-effort streams: there can be 1 to " + std::to_string(most_best_effort));
    if (classes->best_effort > units)
      return invalid("classes: " + std::to_string(classes->best_effort) + " best-effort streams on " +
                     std::to_string(units) + " units: there can be one a unit");
    if (classes->real_time_units < 0 || classes->real_time_units > units)
      return invalid("classes: real-time runs cannot use " + std::to_string(classes->real_time_units) +
                     " of " + std::to_string(units) + " units");
  }
  if (options.exec_threads < 0 || options.exec_threads > 4096)
    return invalid("exec_threads is " + std::to_string(options.exec_threads) +
                   ": it must be 0 (all cores) to 4096");
  const auto available = engine::available_memory();
  if (!available) return std::unexpected(available.error());
  const Bytes slots{(options.queue + Measuring::loads_at_a_time) * (sizeof(InferSlot) + sizeof(LoadSlot)) +
                    options.max_models * sizeof(HostModel)};
  const bool by_class = options.classes && options.classes->count() > 1;
  // Of a device's own memory the host has the inputs and outputs only.
  const Bytes needed = options.make_memory ? options.io_cache + slots
                                           : options.page_cache + options.io_cache +
                                                 options.workspace * (by_class ? 2U : 1U) + slots;
  if (options.populate && needed > *available)
    return fail(ErrorCode::resource_exhausted,
                "the worker may come to take " + to_text(needed) + " (page cache " +
                    to_text(options.page_cache) + ", I/O cache " + to_text(options.io_cache) +
                    ", workspace " + to_text(options.workspace) + (by_class ? ", twice" : "") + "), and " +
                    to_text(*available) + " are available: make them smaller");
  return {};
}

}  // namespace

Result<std::unique_ptr<Worker>> make_worker(const Options& options, const Clock& clock, ResultSink& results) {
  if (auto checked = check(options); !checked) return in_context("worker", checked.error());
  std::vector<std::string> notes;
  const Bytes page = options.make_memory ? page_size : options.page;
  const std::uint64_t count = options.page_cache.count / page.count;
  if (page * count < options.page_cache)
    notes.push_back("page cache: " + to_text(page * count) + " of " + to_text(options.page_cache) +
                    " are used: whole pages of " + to_text(page));
  const bool classes = options.classes && options.classes->count() > 1;
  const Bytes workspace = LiveWorker::workspace_of(options);
  const engine::HostMemory::Sizes sizes{
      .pages = count,
      .page = page,
      .io = options.io_cache,
      .workspace = workspace * (classes ? 2U : 1U),
      .spare_workspace = workspace * (classes ? static_cast<unsigned>(options.classes->best_effort) : 0U),
      .used = options.populate};
  using Made = Result<std::unique_ptr<engine::DeviceMemory>>;
  Made memory = options.make_memory
                    ? options.make_memory(sizes.pages, sizes.io, sizes.workspace + sizes.spare_workspace)
                    : Made(engine::HostMemory::make(sizes, notes));
  if (!memory) return in_context("worker", memory.error());
  auto io = HostIo::make(**memory, notes);
  if (!io) return in_context("worker", io.error());
  auto worker = std::make_unique<LiveWorker>(options, clock, results, std::move(*memory), std::move(*io),
                                             std::move(notes));
  if (auto started = worker->start(options); !started) return in_context("worker", started.error());
  return worker;
}

}  // namespace carillon::worker
