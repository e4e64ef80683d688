#include "carillon/cli/disb/local_worker.h"

#include <algorithm>
#include <string>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/statistics.h"
#include "carillon/graph/bounded.h"

namespace carillon::cli {
namespace {

std::uint64_t row_bytes(const engine::Plan& plan) {
  std::uint64_t bytes = 0;
  for (const auto tensors : {plan.inputs(), plan.outputs()})
    for (const graph::TensorSpec& tensor : tensors)
      bytes += round_up(graph::memory_of(tensor.type, tensor.shape).count, 64);
  return bytes;
}

}  // namespace

void size_memory(worker::Options& options, std::span<const LocalModel> models, std::size_t rows) {
  std::uint64_t pages = 0, workspace = 0, io = 0;
  for (const LocalModel& model : models) {
    pages += pages_for(model.compiled->weights());
    // All its plans are laid out, though rows of one length are run.
    const auto lengths = model.compiled->lengths();
    for (std::size_t i = 0; i < std::max<std::size_t>(1, lengths.size()); ++i) {
      const engine::Plan& plan = *model.compiled->plan(1, lengths.empty() ? 0 : lengths[i]);
      workspace = std::max(workspace, plan.workspace().count);
      io = std::max(io, row_bytes(plan));
    }
  }
  options.page_cache = page_size * std::max<std::uint64_t>(1, pages);
  options.workspace = Bytes{round_up(std::max<std::uint64_t>(workspace, 1), mib(2).count)};
  // Twice: pieces of different sizes leave gaps.
  options.io_cache = Bytes{round_up(2 * io * std::max<std::size_t>(1, rows), mib(2).count)};
}

Result<std::unique_ptr<LocalWorker>> LocalWorker::make(const worker::Options& options,
                                                       std::span<const LocalModel> models,
                                                       const Clock& clock) {
  std::uint64_t pages = 0;
  for (const LocalModel& model : models) pages += pages_for(model.compiled->weights());
  if (pages * page_size.count > options.page_cache.count)
    return fail(ErrorCode::resource_exhausted, "the weights of " + std::to_string(models.size()) +
                                                   " models need " + to_text(page_size * pages) +
                                                   " in pages of 16 MiB, and the page cache has " +
                                                   to_text(options.page_cache) + ": raise --page-cache");
  std::unique_ptr<LocalWorker> local(new LocalWorker(models));
  auto worker = worker::make_worker(options, clock, *local);
  if (!worker) return std::unexpected(worker.error());
  local->worker_ = std::move(*worker);
  for (std::size_t i = 0; i < models.size(); ++i)
    if (auto added = local->worker_->add_model(ModelId{static_cast<std::uint32_t>(i)}, models[i].compiled);
        !added)
      return in_context(models[i].name, added.error());
  return local;
}

Result<Duration> LocalWorker::alone(std::size_t model, Duration at_most) {
  CARILLON_ASSERT(model < models_.size());
  const ModelId id{static_cast<std::uint32_t>(model)};
  const auto warm = worker_->measure_exec(id, 1, 2, models_[model].length);
  if (!warm) return in_context(models_[model].name, warm.error());
  const Duration takes = std::max(Duration{1}, warm->back());
  const int repeats = static_cast<int>(std::clamp<std::int64_t>(at_most / takes, 3, 10'000));
  auto times = worker_->measure_exec(id, 1, repeats, models_[model].length);
  if (!times) return in_context(models_[model].name, times.error());
  return std::max(Duration{1}, percentile(*times, 0.5));
}

Result<> LocalWorker::load() {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const bool taken = worker_->submit(worker::LoadCommand{.id = {first_load + i},
                                                           .model = {static_cast<std::uint32_t>(i)},
                                                           .window = {TimePoint{}, TimePoint::max()}});
    if (!taken) return fail(ErrorCode::internal, "the worker takes no LOAD");
  }
  std::unique_lock lock(mutex_);
  told_.wait(lock, [this] { return loaded_.size() == models_.size(); });
  for (const worker::ActionResult& result : loaded_)
    if (result.status != device::ActionStatus::success)
      return fail(ErrorCode::internal, "loading " + models_[result.id.value - first_load].name + ": " +
                                           std::string(device::name_of(result.status)) +
                                           (result.error.empty() ? "" : ": " + result.error));
  return {};
}

void LocalWorker::on_result(const worker::ActionResult& result) {
  if (result.id.value < first_load) {
    if (listener_) listener_(result);
    return;
  }
  const std::lock_guard lock(mutex_);
  loaded_.push_back(result);
  told_.notify_all();
}

}  // namespace carillon::cli
