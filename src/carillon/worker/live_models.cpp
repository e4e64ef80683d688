#include <cstring>

#include "carillon/base/assert.h"
#include "carillon/engine/made_up.h"
#include "carillon/worker/live.h"

namespace carillon::worker {

Result<> LiveWorker::add_model(ModelId id, std::shared_ptr<const engine::CompiledModel> model) {
  const std::lock_guard lock(adding_);
  const std::string context = "model " + std::to_string(id.value);
  const std::size_t count = model_count_.load(std::memory_order_relaxed);
  if (model == nullptr) return invalid(context + ": nothing was given");
  if (id.index() != count)
    return invalid(context + ": ids are dense and ascending: the next is " + std::to_string(count));
  if (count == max_models_)
    return fail(ErrorCode::resource_exhausted, context + ": the worker holds " + std::to_string(count) +
                                                   " models already, as many as it may");
  if (auto enough = enough_pages(*model); !enough) return in_context(context, enough.error());
  auto layouts = lay_out(*model, workspace_, memory_->io_size(), execs_.size());
  if (!layouts) return in_context(context, layouts.error());
  if (auto room = prepare_workspace(*layouts); !room) return in_context(context, room.error());
  auto range = memory_->reserve(pages_for(model->weights(), page()));
  if (!range) return in_context(context, range.error());

  const StreamSet streams = streams_of(Class::normal);
  if (auto made = make_states(*layouts, run_places(), streams, range->data); !made) {
    memory_->release(*range);
    return in_context(context, made.error());
  }

  HostModel& host = models_[count];
  host.compiled = std::move(model);
  host.layouts = std::move(*layouts);
  host.range = *range;
  host.streams = streams;
  {
    const std::lock_guard core(mutex_);
    core_.add_model(id, host.range.pages);
  }
  model_count_.store(count + 1, std::memory_order_release);
  return {};
}

// Whose states make a request of the class run at once. Those of a device's own streams are all made, as
// they are made with the device at rest (graphs are captured).
StreamSet LiveWorker::streams_of(Class cls) const {
  StreamSet out = 0;
  for (std::size_t i = 0; i < execs_.size(); ++i)
    if (execs_.size() == 1 || execs_[i]->on_device || execs_[i]->cls == cls) out |= StreamSet{1} << i;
  return out;
}

Result<> LiveWorker::expect(ModelId id, Class cls) {
  const std::lock_guard lock(adding_);
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr);
  host->streams |= streams_of(cls);
  return make_states(host->layouts, run_places(), host->streams, host->range.data);
}

// The first run of a stream is where its workspace begins, and so is each that no other waits beside.
std::vector<RunPlace> LiveWorker::run_places() const {
  std::vector<RunPlace> out;
  for (std::size_t i = 0; i < execs_.size(); ++i)
    out.push_back({execs_[i]->team.get(), memory_->workspace(i * workspace_.count)});
  return out;
}

// The memory that one run of these plans works in is there before the first: of the normal stream, and of the
// real-time one. Two kinds of runs may still wait for memory: a run beside another that waits to resume, and
// best-effort runs.
Result<> LiveWorker::prepare_workspace(std::span<const PlanLayout> layouts) {
  if (!populate_) return {};
  std::uint64_t most = 0;
  for (const PlanLayout& layout : layouts) most = std::max(most, layout.plan->workspace().count);
  const std::lock_guard lock(preparing_);
  if (most <= prepared_) return {};
  const std::uint64_t streams = classes_.count() > 1 ? 2 : 1;
  for (std::uint64_t stream = 0; stream < streams; ++stream)
    if (auto room = memory_->prepare_workspace(stream * workspace_.count, {most}); !room) return room;
  prepared_ = most;
  return {};
}

void LiveWorker::take_back(ModelId id) {
  const std::lock_guard lock(adding_);
  const std::size_t count = model_count_.load(std::memory_order_relaxed);
  CARILLON_ASSERT(count > 0 && id.index() == count - 1);
  HostModel& host = models_[id.index()];
  model_count_.store(count - 1, std::memory_order_release);
  {
    const std::lock_guard core(mutex_);
    core_.take_back(id);
  }
  memory_->release(host.range);
  host.range = {};
  host.layouts.clear();
  host.compiled.reset();
  host.streams = 0;
}

Result<Worker::AddedSize> LiveWorker::add_size(ModelId id, std::int64_t size,
                                               std::span<const std::int64_t> extents,
                                               std::span<const int> batches) {
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr && host->compiled->open() && size >= 1 && !batches.empty());
  host->sweep();
  auto made = host->compiled->make_plans(extents, batches, &sizes_ended_);
  if (!made) return std::unexpected(made.error());
  const engine::Plan& first = *made->front();
  AddedSize out{.outputs = {}, .effort = first.effort(), .memory = {}};
  for (const graph::TensorSpec& output : first.outputs()) out.outputs.push_back(output.shape);
  for (const auto& plan : *made) out.memory.count += plan->memory().count;
  if (auto added = take_over(*host, size, *std::move(made)); !added) return std::unexpected(added.error());
  return out;
}

Result<std::size_t> LiveWorker::add_batches(ModelId id,
                                            std::vector<std::unique_ptr<const engine::Plan>> plans) {
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr && host->compiled->makes_later() && !plans.empty());
  host->sweep();
  for (;; plans.pop_back()) {
    const auto fits = lay_out(*host->compiled, 0, plans, workspace_, memory_->io_size(), 0);
    if (fits) break;
    if (fits.error().code != ErrorCode::resource_exhausted) return std::unexpected(fits.error());
    if (plans.size() == 1) return fail(ErrorCode::unsupported, fits.error().message);
  }
  const std::size_t count = plans.size();
  if (auto taken = take_over(*host, 0, std::move(plans)); !taken) return std::unexpected(taken.error());
  return count;
}

// Plans that were made later.
Result<> LiveWorker::take_over(HostModel& host, std::int64_t size,
                               std::vector<std::unique_ptr<const engine::Plan>> plans) {
  auto layouts = lay_out(*host.compiled, size, plans, workspace_, memory_->io_size(), execs_.size());
  if (!layouts) return std::unexpected(layouts.error());
  if (auto room = prepare_workspace(*layouts); !room) return room;
  auto added = std::make_shared<SizedPlans>(size, std::move(plans), std::move(*layouts));
  if (auto made = make_states(added->layouts, run_places(), host.streams, host.range.data); !made)
    return made;
  const std::lock_guard lock(host.sizes_mutex);
  host.sizes.push_back(std::move(added));
  return {};
}

void LiveWorker::remove_model(ModelId id) {
  const std::lock_guard lock(adding_);
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr);
  {
    const std::lock_guard core(mutex_);
    CARILLON_ASSERT(core_.pages(id).empty());
  }
  host->gone.store(true, std::memory_order_release);
  memory_->release(std::exchange(host->range, {}));
  host->layouts.clear();
  {
    const std::lock_guard sizes(host->sizes_mutex);
    host->sizes.clear();
    host->leaving.clear();
  }
  host->compiled.reset();
}

void LiveWorker::remove_later(ModelId id, std::int64_t size) {
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr);
  {
    const std::lock_guard lock(host->sizes_mutex);
    for (auto& each : host->sizes)
      if (each->size == size) host->leaving.push_back(std::move(each));
    std::erase(host->sizes, nullptr);
  }
  host->sweep();
}

Result<> LiveWorker::enough_pages(const engine::CompiledModel& model) const {
  const std::uint64_t needed = pages_for(model.weights(), page());
  if (needed <= total_pages()) return {};
  return fail(ErrorCode::resource_exhausted, to_text(model.weights()) + " of weights need " +
                                                 std::to_string(needed) + " pages of " + to_text(page()) +
                                                 ", and the page cache has " + std::to_string(total_pages()));
}

// --- Measuring

Result<> LiveWorker::between_runs(ModelId id, PlanLayout& layout, graph::Faults& faults,
                                  const std::function<void(const engine::Binding&, const Fill&)>& act) {
  const std::uint64_t needed = layout.plan->workspace().count;
  device::RangeLedger::Piece io, workspace;
  bool held = false;
  {
    const std::lock_guard lock(mutex_);
    io = core_.borrow_io(layout.io_bytes);
    if (needed > 0) workspace = core_.borrow_workspace(needed);
    held = core_.hold(id);
  }
  const std::string name = "model " + std::to_string(id.value);
  Result<> ran;
  if (!io.there() || (needed > 0 && !workspace.there()))
    ran =
        fail(ErrorCode::resource_exhausted, name + ": the I/O cache has no room; requests are being served");
  else if (!held)
    ran = fail(ErrorCode::unavailable, name + " was unloaded meanwhile");
  else if (!first().call([&] {
             std::memset(io_.at(io.offset()), 0, layout.io_bytes);
             io_.in(io.offset(), layout.io_bytes);
             const auto fill = [&](int way) {
               for (std::size_t i = 0; i < layout.inputs.size(); ++i) {
                 const TensorPlace& place = layout.inputs[i];
                 engine::make_up(way, i, layout.plan->inputs()[i].type,
                                 {io_.at(io.offset() + place.offset),
                                  place.row_bytes * static_cast<std::uint64_t>(layout.batch)});
               }
               io_.in(io.offset(), layout.io_bytes);
             };
             act(bind(*execs_.front(), *find(id), layout, io.offset(), workspace.offset(), faults), fill);
           }))
    ran = fail(ErrorCode::unavailable, "the worker stops");
  drive(nobody, [&](TimePoint now) {
    if (io.there()) core_.return_io(io);
    if (workspace.there()) core_.return_workspace(workspace);
    if (held) core_.let_go(id, now, out_);
    return TimePoint::max();
  });
  return ran;
}

}  // namespace carillon::worker
