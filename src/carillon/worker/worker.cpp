#include "carillon/worker/worker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/worker/executor.h"
#include "carillon/worker/host_model.h"
#include "carillon/worker/io_cache.h"
#include "carillon/worker/memory.h"
#include "carillon/worker/page_cache.h"
#include "carillon/worker/placement.h"
#include "carillon/worker/slot_pool.h"

namespace carillon::worker {
namespace {

using schedule::ActionStatus;

constexpr Window any_time{TimePoint::min(), TimePoint::max()};
constexpr std::uint32_t none = 0xffffffffU;
// Rows of a batch with bad data are run by themselves for so long: less than after what a device counts as
// hung.
constexpr Duration alone_at_most = 500ms;

struct LoadSlot {  // or UNLOAD
  std::uint32_t life = 0;
  bool unload = false;
  Entry entry;
  ModelId model;
  ActionTimes times;
  std::uint32_t next_parked = none;
};

struct InferSlot {
  ActionId id;
  std::uint32_t life = 0;
  ModelId model;
  Window window;
  int batch = 0;
  std::array<RowBuffers, max_batch> rows;
  HostModel* host = nullptr;  // this and the rest: from INPUT on
  // Plans that run one after the other: one, but for rows of different lengths that must not be padded.
  // parts[i] takes the rows order[first, first + its batch).
  struct Part {
    PlanLayout* layout = nullptr;
    int first = 0;
    std::uint64_t io = 0;  // from io.data
  };
  std::array<Part, max_batch> parts;
  int part_count = 0;
  std::array<std::uint8_t, max_batch> order;
  IoCache::Piece io;

  std::span<const Part> all_parts() const {
    return std::span(parts).first(static_cast<std::size_t>(part_count));
  }
  int place(const Part& part, int i) const { return order[static_cast<std::size_t>(part.first + i)]; }
  const RowBuffers& row(const Part& part, int i) const {
    return rows[static_cast<std::size_t>(place(part, i))];
  }
  std::vector<BadRow> bad_rows;
  bool odd_time = false;
  bool is_bad(int place) const { return std::ranges::find(bad_rows, place, &BadRow::row) != bad_rows.end(); }
  ActionTimes times;
};

// Steps that were never reached take the time of the one before.
void fill_forward(ActionTimes& times) {
  TimePoint last = times.received;
  for (TimePoint* step : {&times.input_start, &times.input_end, &times.exec_start, &times.exec_end,
                          &times.output_start, &times.output_end}) {
    if (*step == TimePoint{}) *step = last;
    last = *step;
  }
}

// What an engine's own words are worth: it may throw where it fails.
template <typename Call>
Result<> guarded(const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return fail(ErrorCode::unavailable, error.what());
  } catch (...) {
    return fail(ErrorCode::unavailable, "the engine threw what is no std::exception");
  }
}

class WorkerImpl final : public Worker {
 public:
  WorkerImpl(const Options& options, const Clock& clock, ResultSink& sink, std::unique_ptr<PageCache> pages,
             Arena io, Arena workspace, std::vector<std::string> notes)
      : clock_(clock),
        sink_(sink),
        workspace_(std::move(workspace)),
        pages_(std::move(pages)),
        io_(std::move(io)),
        notes_(std::move(notes)),
        models_(std::make_unique<HostModel[]>(options.max_models)),
        max_models_(options.max_models),
        pacer_(options.share),
        probe_(options.probe),
        loads_(options.queue),
        infers_(options.queue),
        load_(options.queue, clock, on_load_, options.spin),
        input_(options.queue, clock, on_input_, options.spin),
        exec_(options.queue, clock, on_exec_, options.spin),
        output_(options.queue, clock, on_output_, options.spin) {}

  // Each executor stops before those that it hands actions to, and before what its actions wait for.
  ~WorkerImpl() override {
    input_.stop(Executor::Pending::abandon);
    exec_.stop(Executor::Pending::abandon);
    load_.stop(Executor::Pending::abandon);
    output_.stop(Executor::Pending::run);  // these have run: only their copies are missing
  }

  Result<> start(const Options& options);

  Result<> add_model(ModelId id, std::shared_ptr<const engine::CompiledModel> model) override;
  Result<> has_room(const engine::CompiledModel& model) const override {
    if (auto enough = enough_pages(model); !enough) return enough;
    const auto layouts = lay_out(model, workspace_.size(), io_.capacity());
    return layouts ? Result<>{} : std::unexpected(layouts.error());
  }
  bool submit(const LoadCommand& command) override;
  bool submit(const UnloadCommand& command) override;
  bool submit(const InferCommand& command) override;
  void stop(ActionId id) override;
  std::uint32_t retire() override;
  void probe() override;
  bool busy() const override { return exec_busy_.load() || load_busy_.load(); }
  std::uint64_t total_pages() const override { return pages_->total_pages(); }
  std::uint64_t free_pages() const override { return pages_->free_pages(); }
  Result<std::vector<Duration>> measure_exec(ModelId id, int batch, int repeats,
                                             std::int64_t length) override;
  Result<std::vector<Duration>> measure_load(ModelId id, int repeats) override;
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  // One executor's way into the worker.
  struct Step final : Executor::Handler {
    using Start = void (WorkerImpl::*)(std::uint32_t slot, TimePoint now);
    using End = void (WorkerImpl::*)(std::uint32_t slot, ActionStatus status, std::string error);
    Step(WorkerImpl& owner, Start start, End end) : worker(owner), on_start(start), on_end(end) {}
    void run(const Entry& entry, TimePoint now) override { (worker.*on_start)(entry.slot, now); }
    void refuse(const Entry& entry, TimePoint) override {
      (worker.*on_end)(entry.slot, ActionStatus::too_late, {});
    }
    void abandon(const Entry& entry) override {
      (worker.*on_end)(entry.slot, ActionStatus::failed, "the worker stops");
    }
    WorkerImpl& worker;
    Start on_start;
    End on_end;
  };

  HostModel* find(ModelId id) {
    return id.index() < model_count_.load(std::memory_order_acquire) ? &models_[id.index()] : nullptr;
  }
  std::string unknown(ModelId id) const { return "model " + std::to_string(id.value) + " is not registered"; }

  Result<> enough_pages(const engine::CompiledModel& model) const;
  bool submit_load(bool unload, ActionId id, ModelId model, TimePoint order, Window window);
  void run_load_or_unload(std::uint32_t slot, TimePoint now);
  void run_load(std::uint32_t slot, HostModel& host);
  void run_unload(std::uint32_t slot, HostModel& host);
  void park(std::uint32_t slot, HostModel& host);
  PageCache::Outcome copy_weights(HostModel& host);
  void end_load(std::uint32_t slot, ActionStatus status, std::string error);

  void run_input(std::uint32_t slot, TimePoint now);
  std::string divide(InferSlot& action) const;
  std::string wrong_with(const InferSlot& action) const;
  void run_exec(std::uint32_t slot, TimePoint now);
  bool over(std::uint32_t life) const { return life != life_.load(); }
  void tell(const ActionResult& result);
  void probe_device(std::uint32_t life);
  void empty_memory();
  bool begin_exec(HostModel& host);
  void finish_exec(HostModel& host);
  Result<> run_plan(HostModel& host, PlanLayout& layout, std::byte* io, engine::StopSignal* stop,
                    graph::Faults& faults);
  Result<bool> run_part(InferSlot& action, const InferSlot::Part& part);
  Result<bool> run_each(InferSlot& action, const InferSlot::Part& part);
  void run_output(std::uint32_t slot, TimePoint now);
  void end_infer(std::uint32_t slot, ActionStatus status, std::string error) {
    end_infer(slot, status, std::move(error), false);
  }
  void end_infer(std::uint32_t slot, ActionStatus status, std::string error, bool device_lost);

  const Clock& clock_;
  ResultSink& sink_;
  Arena workspace_;
  std::unique_ptr<PageCache> pages_;
  IoCache io_;
  std::vector<std::string> notes_;

  std::mutex adding_;  // one add_model() at a time
  std::unique_ptr<HostModel[]> models_;
  std::size_t max_models_;
  engine::Pacer pacer_;
  std::function<Result<>()> probe_;
  std::mutex telling_;  // of the sink, and of the end of a life
  std::atomic<std::uint32_t> life_{0};
  std::atomic<bool> exec_busy_{false}, load_busy_{false};
  std::atomic<std::size_t> model_count_{0};
  std::mutex state_;  // of all models: held for a few instructions

  // INFERs to be stopped, by id + 1, the oldest written over; and the one that runs.
  std::mutex stopping_;
  std::array<std::atomic<std::uint64_t>, 64> stops_{};
  std::atomic<std::uint32_t> next_stop_{0};
  std::atomic<std::uint64_t> running_{0};
  engine::StopSignal signal_;
  graph::Faults faults_;  // of the run, EXEC's

  SlotPool<LoadSlot> loads_;
  SlotPool<InferSlot> infers_;
  Step on_load_{*this, &WorkerImpl::run_load_or_unload, &WorkerImpl::end_load};
  Step on_input_{*this, &WorkerImpl::run_input, &WorkerImpl::end_infer};
  Step on_exec_{*this, &WorkerImpl::run_exec, &WorkerImpl::end_infer};
  Step on_output_{*this, &WorkerImpl::run_output, &WorkerImpl::end_infer};
  Executor load_, input_, exec_, output_;
};

Result<> WorkerImpl::start(const Options& options) {
  const Placements places = place_executors(usable_cores(), options.exec_threads, options.real_time);
  notes_.insert(notes_.end(), places.notes.begin(), places.notes.end());
  const struct {
    Executor& executor;
    const Placement& placement;
    const char* name;
  } executors[] = {{load_, places.load, "carillon-load"},
                   {input_, places.input, "carillon-input"},
                   {exec_, places.exec, "carillon-exec"},
                   {output_, places.output, "carillon-output"}};
  for (const auto& [executor, placement, name] : executors) {
    if (auto started = executor.start(name); !started) return started;
    executor.call([&] { apply(placement, name, notes_); });
  }
  return {};
}

Result<> WorkerImpl::add_model(ModelId id, std::shared_ptr<const engine::CompiledModel> model) {
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
  auto layouts = lay_out(*model, workspace_.size(), io_.capacity());
  if (!layouts) return in_context(context, layouts.error());
  auto range = pages_->reserve(model->weights());
  if (!range) return in_context(context, range.error());

  HostModel& host = models_[count];
  host.compiled = std::move(model);
  host.layouts = std::move(*layouts);
  host.range = std::move(*range);
  model_count_.store(count + 1, std::memory_order_release);
  return {};
}

Result<> WorkerImpl::enough_pages(const engine::CompiledModel& model) const {
  const std::uint64_t needed = pages_for(model.weights());
  if (needed <= total_pages()) return {};
  return fail(ErrorCode::resource_exhausted,
              to_text(model.weights()) + " of weights need " + std::to_string(needed) +
                  " pages of 16 MiB, and the page cache has " + std::to_string(total_pages()));
}

// --- LOAD and UNLOAD: one thread, so that pages are taken and returned in the order of the queue.

bool WorkerImpl::submit(const LoadCommand& command) {
  // Never level with an UNLOAD: that goes first.
  const TimePoint order = std::max(command.window.earliest, TimePoint::min() + Duration{1});
  return submit_load(false, command.id, command.model, order, command.window);
}

bool WorkerImpl::submit(const UnloadCommand& command) {
  return submit_load(true, command.id, command.model, TimePoint::min(), any_time);
}

bool WorkerImpl::submit_load(bool unload, ActionId id, ModelId model, TimePoint order, Window window) {
  const std::uint32_t slot = loads_.take();
  if (slot == none) return false;
  loads_[slot] = {.life = life_.load(),
                  .unload = unload,
                  .entry = {.order = order, .id = id, .window = window, .slot = slot},
                  .model = model,
                  .times = {.received = clock_.now()}};
  if (load_.push(loads_[slot].entry)) return true;
  loads_.give_back(slot);
  return false;
}

void WorkerImpl::run_load_or_unload(std::uint32_t slot, TimePoint now) {
  LoadSlot& action = loads_[slot];
  if (over(action.life)) return end_load(slot, ActionStatus::failed, {});
  action.times.exec_start = now;
  HostModel* host = find(action.model);
  if (host == nullptr)
    end_load(slot, ActionStatus::failed, unknown(action.model));
  else if (action.unload)
    run_unload(slot, *host);
  else
    run_load(slot, *host);
}

void WorkerImpl::run_load(std::uint32_t slot, HostModel& host) {
  bool loaded = false;
  {
    const std::lock_guard lock(state_);
    loaded = host.loaded;
    if (!loaded && host.executing) return park(slot, host);  // behind the UNLOAD that waits there
  }
  if (loaded)
    return end_load(slot, ActionStatus::failed,
                    "model " + std::to_string(loads_[slot].model.value) + " is loaded already");
  if (host.range.mapped()) {
    // Its UNLOAD has left the parking this instant and is in the queue, ahead of this.
    if (!load_.push(loads_[slot].entry)) end_load(slot, ActionStatus::failed, "the worker stops");
    return;
  }
  switch (copy_weights(host)) {
    case PageCache::Outcome::mapped: {
      {
        const std::lock_guard lock(state_);
        host.loaded = true;
      }
      return end_load(slot, ActionStatus::success, {});
    }
    case PageCache::Outcome::no_pages:
      return end_load(slot, ActionStatus::no_memory, {});
    case PageCache::Outcome::refused:
      return end_load(slot, ActionStatus::failed,
                      std::string("the system refused to map the pages: ") + std::strerror(errno));
  }
}

PageCache::Outcome WorkerImpl::copy_weights(HostModel& host) {
  const PageCache::Outcome outcome = pages_->map(host.range);
  if (outcome != PageCache::Outcome::mapped) return outcome;
  const std::uint64_t size = host.compiled->weights().count;
  load_busy_ = true;
  for (std::uint64_t at = 0; at < size; at += page_size.count)
    host.compiled->write_weights(at, {host.range.data() + at, std::min(page_size.count, size - at)});
  load_busy_ = false;
  return outcome;
}

void WorkerImpl::run_unload(std::uint32_t slot, HostModel& host) {
  {
    const std::lock_guard lock(state_);
    host.loaded = false;  // whatever EXEC comes now is refused
    if (host.executing) return park(slot, host);
  }
  if (host.range.mapped()) pages_->unmap(host.range);
  end_load(slot, ActionStatus::success, {});
}

// Requires state_. The action goes back to the queue when the model's EXEC is over.
void WorkerImpl::park(std::uint32_t slot, HostModel& host) {
  loads_[slot].next_parked = none;
  (host.first_parked == none ? host.first_parked : loads_[host.last_parked].next_parked) = slot;
  host.last_parked = slot;
}

void WorkerImpl::end_load(std::uint32_t slot, ActionStatus status, std::string error) {
  LoadSlot& action = loads_[slot];
  ActionResult result{action.entry.id, status, action.times, std::move(error), false, action.life};
  if (result.times.exec_start != TimePoint{}) result.times.exec_end = clock_.now();
  fill_forward(result.times);
  loads_.give_back(slot);  // first, so that whoever hears of the result finds room
  tell(result);
}

void WorkerImpl::tell(const ActionResult& result) {
  const std::lock_guard lock(telling_);
  if (!over(result.life)) sink_.on_result(result);
}

// --- INFER: INPUT, EXEC, OUTPUT. A slot passes from thread to thread through their queues; there are as many
// slots as a queue has places, so none of them is ever full.

bool WorkerImpl::submit(const InferCommand& command) {
  const std::uint32_t slot = infers_.take();
  if (slot == none) return false;
  InferSlot& action = infers_[slot];
  action.id = command.id;
  action.life = life_.load();
  action.model = command.model;
  action.window = command.window;
  action.batch = command.batch;
  if (command.batch > 0 && command.batch <= max_batch)
    std::copy_n(command.rows.begin(), command.batch, action.rows.begin());
  action.io = {};
  action.bad_rows.clear();
  action.odd_time = false;
  action.times = {.received = clock_.now()};
  // At once, the most urgent first; what cannot be in time any more is not even copied.
  const Entry entry{.order = command.window.earliest,
                    .id = command.id,
                    .window = {TimePoint::min(), command.window.latest},
                    .slot = slot};
  if (input_.push(entry)) return true;
  infers_.give_back(slot);
  return false;
}

void WorkerImpl::run_input(std::uint32_t slot, TimePoint now) {
  InferSlot& action = infers_[slot];
  if (over(action.life)) return end_infer(slot, ActionStatus::failed, {});
  action.times.input_start = now;
  action.host = find(action.model);
  std::string wrong = divide(action);
  if (wrong.empty()) wrong = wrong_with(action);
  if (!wrong.empty()) return end_infer(slot, ActionStatus::failed, std::move(wrong));
  std::uint64_t io_bytes = 0;
  for (const InferSlot::Part& part : action.all_parts()) io_bytes = part.io + part.layout->io_bytes;
  action.io = io_.allocate(io_bytes);
  if (action.io.data == nullptr) return end_infer(slot, ActionStatus::no_memory, {});
  for (const InferSlot::Part& part : action.all_parts())
    for (std::size_t i = 0; i < part.layout->inputs.size(); ++i) {
      const TensorPlace& place = part.layout->inputs[i];
      std::byte* to = action.io.data + part.io + place.offset;
      for (int row = 0; row < part.layout->batch; ++row, to += place.row_bytes)
        put_row(place, action.row(part, row).length, action.row(part, row).inputs[i], to);
    }
  action.times.input_end = clock_.now();
  if (!exec_.push({.order = action.window.earliest, .id = action.id, .window = action.window, .slot = slot}))
    end_infer(slot, ActionStatus::failed, "the worker stops");
}

// Chooses the plans for the action's rows; what is wrong, where there are none.
std::string WorkerImpl::divide(InferSlot& action) const {
  action.part_count = 0;
  if (action.host == nullptr) return unknown(action.model);
  const auto no_plan = [&](int batch, std::int64_t length) {
    return "model " + std::to_string(action.model.value) + " has no plan for a batch of " +
           std::to_string(batch) + (length > 0 ? " at length " + std::to_string(length) : "");
  };
  if (action.batch < 1 || action.batch > max_batch) return no_plan(action.batch, 0);
  const auto batch = static_cast<std::size_t>(action.batch);
  for (std::size_t i = 0; i < batch; ++i) action.order[i] = static_cast<std::uint8_t>(i);
  const auto length_of = [&](std::size_t i) { return action.rows[action.order[i]].length; };
  const bool varies = action.host->varies();
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < batch && varies; ++i) {
    if (length_of(i) < 1) return "row " + std::to_string(i) + " does not say its length";
    longest = std::max(longest, length_of(i));
  }
  if (PlanLayout* whole = action.host->layout(action.batch, longest);
      whole != nullptr &&
      (!varies || action.host->compiled->pads() ||
       std::ranges::all_of(std::span(action.rows).first(batch),
                           [&](const RowBuffers& row) { return row.length == longest; }))) {
    action.parts[0] = {.layout = whole};
    action.part_count = 1;
    return {};
  }
  if (!varies || action.host->compiled->pads()) return no_plan(action.batch, longest);
  std::ranges::sort(std::span(action.order).first(batch), {}, [&](std::uint8_t row) {
    return std::pair{action.rows[row].length, row};
  });
  std::uint64_t io = 0;
  for (std::size_t first = 0; first < batch;) {
    std::size_t alike = 1;
    while (first + alike < batch && length_of(first + alike) == length_of(first)) ++alike;
    PlanLayout* layout = nullptr;
    for (; alike > 0 && layout == nullptr; --alike)
      layout = action.host->layout(static_cast<int>(alike), length_of(first));
    if (layout == nullptr) return no_plan(1, length_of(first));
    action.parts[static_cast<std::size_t>(action.part_count++)] = {
        .layout = layout, .first = static_cast<int>(first), .io = io};
    io = round_up(io + layout->io_bytes, 64);
    first += static_cast<std::size_t>(layout->batch);
  }
  return {};
}

// Empty where the action can be carried out.
std::string WorkerImpl::wrong_with(const InferSlot& action) const {
  const PlanLayout& layout = *action.parts.front().layout;  // all take the same number of tensors
  for (int row = 0; row < action.batch; ++row) {
    const RowBuffers& buffers = action.rows[static_cast<std::size_t>(row)];
    const auto check = [&](const char* what, const auto& pointers, const std::vector<TensorPlace>& places) {
      std::string wrong;
      if (pointers.size() != places.size())
        wrong = "row " + std::to_string(row) + " has " + std::to_string(pointers.size()) + " " + what +
                ", and the model " + std::to_string(places.size());
      else
        for (std::size_t i = 0; i < places.size() && wrong.empty(); ++i)
          if (pointers[i] == nullptr && places[i].row_bytes > 0)
            wrong = "row " + std::to_string(row) + " has no memory for number " + std::to_string(i) +
                    " of its " + what;
      return wrong;
    };
    if (std::string wrong = check("inputs", buffers.inputs, layout.inputs); !wrong.empty()) return wrong;
    if (std::string wrong = check("outputs", buffers.outputs, layout.outputs); !wrong.empty()) return wrong;
  }
  return {};
}

bool WorkerImpl::begin_exec(HostModel& host) {
  const std::lock_guard lock(state_);
  if (!host.loaded && host.range.pages() > 0) return false;
  host.executing = true;
  return true;
}

void WorkerImpl::finish_exec(HostModel& host) {
  const std::lock_guard lock(state_);
  host.executing = false;
  for (std::uint32_t slot = std::exchange(host.first_parked, none); slot != none;) {
    // Once pushed the slot may end on the LOAD thread and be used anew.
    const std::uint32_t next = loads_[slot].next_parked;
    const bool pushed = load_.push(loads_[slot].entry);
    CARILLON_ASSERT(pushed);  // LOAD stops after EXEC, and has a place for each slot
    slot = next;
  }
}

Result<> WorkerImpl::run_plan(HostModel& host, PlanLayout& layout, std::byte* io, engine::StopSignal* stop,
                              graph::Faults& faults) {
  for (std::size_t i = 0; i < layout.inputs.size(); ++i)
    layout.input_pointers[i] = io + layout.inputs[i].offset;
  for (std::size_t i = 0; i < layout.outputs.size(); ++i)
    layout.output_pointers[i] = io + layout.outputs[i].offset;
  return layout.plan->run({0, layout.plan->kernels()},
                          {.inputs = layout.input_pointers,
                           .outputs = layout.output_pointers,
                           .workspace = workspace_.data(),
                           .weights = host.range.data(),
                           .faults = &faults},
                          {}, stop);
}

// Runs a part of the action, and notes its bad rows. False: it was stopped.
Result<bool> WorkerImpl::run_part(InferSlot& action, const InferSlot::Part& part) {
  faults_.clear();
  signal_.next = part.layout->plan->kernels();
  const Result<> done = guarded(
      [&] { return run_plan(*action.host, *part.layout, action.io.data + part.io, &signal_, faults_); });
  if (!done && done.error().code != ErrorCode::invalid_argument) return std::unexpected(done.error());
  if (signal_.next < part.layout->plan->kernels()) return false;
  if (done && faults_.of(graph::Faults::unknown) == nullptr) {
    for (const graph::Fault& fault : faults_.all())
      action.bad_rows.push_back({action.place(part, fault.row), fault.error});
    return true;
  }
  action.odd_time = true;
  if (part.layout->batch > 1) return run_each(action, part);
  action.bad_rows.push_back({action.place(part, 0), done ? faults_.all().front().error : done.error()});
  return true;
}

// Some row of the part has bad data, and nobody knows which: runs each by itself, and takes its outputs to
// where the part's lie. False: it was stopped.
Result<bool> WorkerImpl::run_each(InferSlot& action, const InferSlot::Part& part) {
  HostModel& host = *action.host;
  PlanLayout& all = *part.layout;
  // Batches ascend. Where there is none of one row, the row fills the least there is.
  PlanLayout& alone = *std::ranges::find(host.layouts, all.length, &PlanLayout::length);
  const IoCache::Piece io = io_.allocate(alone.io_bytes);
  if (io.data == nullptr)
    return fail(ErrorCode::resource_exhausted,
                "a row of the batch has bad data, and the I/O cache has no room to find out which");
  std::byte* const whole = action.io.data + part.io;
  Result<bool> ran = true;
  for (int row = 0; row < all.batch && ran && *ran; ++row) {
    const int place = action.place(part, row);
    const auto at = static_cast<std::uint64_t>(row);
    const TimePoint now = clock_.now();
    if (action.row(part, row).deadline <= now || now - action.times.exec_start > alone_at_most) {
      action.bad_rows.push_back(
          {place,
           {ErrorCode::deadline_exceeded,
            "another request of its batch had data that the model cannot use, and there was no time left to "
            "run this one by itself"}});
      continue;
    }
    for (std::size_t i = 0; i < all.inputs.size(); ++i) {
      const std::uint64_t bytes = all.inputs[i].row_bytes;
      for (int copy = 0; copy < alone.batch && bytes > 0; ++copy)
        std::memcpy(io.data + alone.inputs[i].offset + static_cast<std::uint64_t>(copy) * bytes,
                    whole + all.inputs[i].offset + at * bytes, bytes);
    }
    faults_.clear();
    signal_.next = alone.plan->kernels();
    const Result<> done = guarded([&] { return run_plan(host, alone, io.data, &signal_, faults_); });
    if (!done && done.error().code != ErrorCode::invalid_argument) {
      ran = std::unexpected(done.error());
    } else if (signal_.next < alone.plan->kernels() || over(action.life)) {
      ran = false;
    } else if (!done || !faults_.empty()) {
      action.bad_rows.push_back({place, done ? faults_.all().front().error : done.error()});
    } else {
      for (std::size_t i = 0; i < all.outputs.size(); ++i)
        if (const std::uint64_t bytes = all.outputs[i].row_bytes; bytes > 0)
          std::memcpy(whole + all.outputs[i].offset + at * bytes, io.data + alone.outputs[i].offset, bytes);
    }
  }
  io_.release(io);
  return ran;
}

void WorkerImpl::run_exec(std::uint32_t slot, TimePoint now) {
  InferSlot& action = infers_[slot];
  if (over(action.life)) return end_infer(slot, ActionStatus::failed, {});
  HostModel& host = *action.host;
  // The order against stop(): one of the two sees what the other wrote.
  signal_.run = action.id.value + 1;
  signal_.pacer = &pacer_;
  running_.store(signal_.run);
  for (const auto& stopped : stops_)
    if (stopped.load() == signal_.run) return end_infer(slot, ActionStatus::stopped, {});
  if (!begin_exec(host)) return end_infer(slot, ActionStatus::not_loaded, {});
  action.times.exec_start = now;
  exec_busy_ = true;
  Result<bool> done = true;
  for (const InferSlot::Part& part : action.all_parts())
    if (done = run_part(action, part); !done || !*done) break;
  exec_busy_ = false;
  action.times.exec_end = clock_.now();
  finish_exec(host);
  running_.store(0);
  if (done && !*done) return end_infer(slot, ActionStatus::stopped, {});
  if (!done) {
    const bool lost = done.error().code == ErrorCode::unavailable;
    return end_infer(slot, ActionStatus::failed, std::move(done.error().message), lost);
  }
  const bool pushed =
      output_.push({.order = action.window.earliest, .id = action.id, .window = any_time, .slot = slot});
  CARILLON_ASSERT(pushed);  // OUTPUT stops after EXEC, and has a place for each slot
}

void WorkerImpl::stop(ActionId id) {
  const std::uint64_t number = id.value + 1;
  const std::lock_guard lock(stopping_);  // one after another, or an older wish could replace a newer
  stops_[next_stop_.fetch_add(1) % stops_.size()].store(number);
  if (running_.load() == number) signal_.wanted.store(number);
}

void WorkerImpl::run_output(std::uint32_t slot, TimePoint now) {
  InferSlot& action = infers_[slot];
  if (over(action.life)) return end_infer(slot, ActionStatus::failed, {});
  action.times.output_start = now;
  for (const InferSlot::Part& part : action.all_parts())
    for (std::size_t i = 0; i < part.layout->outputs.size(); ++i) {
      const TensorPlace& place = part.layout->outputs[i];
      const std::byte* from = action.io.data + part.io + place.offset;
      for (int row = 0; row < part.layout->batch; ++row, from += place.row_bytes)
        if (!action.is_bad(action.place(part, row)))
          take_row(place, action.row(part, row).length, from, action.row(part, row).outputs[i]);
    }
  action.times.output_end = clock_.now();
  end_infer(slot, ActionStatus::success, {});
}

void WorkerImpl::end_infer(std::uint32_t slot, ActionStatus status, std::string error, bool device_lost) {
  InferSlot& action = infers_[slot];
  if (action.io.data != nullptr) io_.release(action.io);
  ActionResult result{.id = action.id,
                      .status = status,
                      .times = action.times,
                      .error = std::move(error),
                      .device_lost = device_lost,
                      .life = action.life};
  fill_forward(result.times);
  if (status == ActionStatus::success) {
    result.bad_rows = std::exchange(action.bad_rows, {});
    result.odd_time = action.odd_time;
  }
  infers_.give_back(slot);
  tell(result);
}

// --- The end of a life

std::uint32_t WorkerImpl::retire() {
  std::uint32_t next = 0;
  {
    const std::lock_guard lock(telling_);
    next = life_.load() + 1;
    life_.store(next);
  }
  if (const std::uint64_t running = running_.load(); running != 0) signal_.wanted.store(running);
  for (Executor* executor : {&input_, &exec_, &load_, &output_}) executor->clear();
  // What passes a row has seen the life before it ended, or never begins: one turn each, and it is done.
  input_.call([] {});
  output_.call([] {});
  return next;
}

void WorkerImpl::probe() {
  exec_.post([this, life = life_.load()] { probe_device(life); });
}

void WorkerImpl::probe_device(std::uint32_t life) {
  exec_busy_ = true;
  const Result<> found = probe_ ? guarded(probe_) : Result<>{};
  exec_busy_ = false;
  const auto report = [this, life, found] {
    const std::lock_guard lock(telling_);
    if (!over(life)) sink_.on_probe({found, life});
  };
  if (!found) return report();
  load_.clear();  // what EXEC has handed back
  load_.post([this, report] {
    empty_memory();
    report();
  });
}

// On the LOAD thread, while EXEC is at rest.
void WorkerImpl::empty_memory() {
  const std::size_t count = model_count_.load();
  for (std::size_t i = 0; i < count; ++i) {
    HostModel& host = models_[i];
    {
      const std::lock_guard lock(state_);
      host.loaded = false;
    }
    if (host.range.mapped()) pages_->unmap(host.range);
  }
}

// --- Profiling

Result<std::vector<Duration>> WorkerImpl::measure_load(ModelId id, int repeats) {
  HostModel* host = find(id);
  if (host == nullptr) return fail(ErrorCode::not_found, unknown(id));
  if (repeats < 1) return invalid("at least one measurement is needed, not " + std::to_string(repeats));
  Result<std::vector<Duration>> durations;
  const bool ran = load_.call([&] {
    {
      const std::lock_guard lock(state_);
      if (host->executing || host->loaded) {
        durations = fail(ErrorCode::unavailable, "model " + std::to_string(id.value) +
                                                     " is in use: unload it before measuring its LOAD");
        return;
      }
    }
    for (int i = 0; i < repeats && durations; ++i) {
      const TimePoint start = clock_.now();
      if (copy_weights(*host) != PageCache::Outcome::mapped) {
        durations =
            fail(ErrorCode::resource_exhausted, "model " + std::to_string(id.value) + " needs " +
                                                    std::to_string(host->range.pages()) + " pages, and " +
                                                    std::to_string(free_pages()) + " are free");
        return;
      }
      durations->push_back(clock_.now() - start);
      pages_->unmap(host->range);
    }
  });
  if (!ran) return fail(ErrorCode::unavailable, "the worker stops");
  return durations;
}

Result<std::vector<Duration>> WorkerImpl::measure_exec(ModelId id, int batch, int repeats,
                                                       std::int64_t length) {
  HostModel* host = find(id);
  if (host == nullptr) return fail(ErrorCode::not_found, unknown(id));
  PlanLayout* layout = host->layout(batch, length);
  const std::string name = "model " + std::to_string(id.value);
  if (layout == nullptr || layout->length != length)
    return fail(ErrorCode::not_found, name + " has no plan for a batch of " + std::to_string(batch) +
                                          (length > 0 ? " at length " + std::to_string(length) : ""));
  if (repeats < 1) return invalid("at least one measurement is needed, not " + std::to_string(repeats));
  const IoCache::Piece io = io_.allocate(layout->io_bytes);
  if (io.data == nullptr)
    return fail(ErrorCode::resource_exhausted,
                name + ": the I/O cache has no room; requests are being served");
  std::memset(io.data, 0, layout->io_bytes);

  bool brought = false;  // loaded here, so to be unloaded here
  Result<std::vector<Duration>> durations;
  const bool ready = load_.call([&] {
    {
      const std::lock_guard lock(state_);
      if (host->loaded) return;
    }
    if (host->range.mapped() || copy_weights(*host) != PageCache::Outcome::mapped) {
      durations = fail(ErrorCode::resource_exhausted,
                       name + " cannot be loaded: it needs " + std::to_string(host->range.pages()) +
                           " pages, and " + std::to_string(free_pages()) + " are free");
      return;
    }
    const std::lock_guard lock(state_);
    brought = host->loaded = true;
  });
  const bool ran = ready && durations && exec_.call([&] {
    if (!begin_exec(*host)) {
      durations = fail(ErrorCode::unavailable, name + " was unloaded meanwhile");
      return;
    }
    graph::Faults faults;
    faults.results_unwanted = true;  // zeros may well be bad data: as a divisor, for one
    for (int i = 0; i < repeats; ++i) {
      const TimePoint start = clock_.now();
      engine::StopSignal paced{.pacer = &pacer_};
      const Result<> done = run_plan(*host, *layout, io.data, &paced, faults);
      const TimePoint end = clock_.now();
      if (!done) {
        durations = in_context(name, done.error());
        break;
      }
      durations->push_back(end - start);
    }
    finish_exec(*host);
  });
  io_.release(io);
  if (brought)
    load_.call([&] {
      {
        const std::lock_guard lock(state_);
        if (host->executing) return;  // somebody serves it after all: it stays
        host->loaded = false;
      }
      if (host->range.mapped()) pages_->unmap(host->range);
    });
  if (!ran && durations) return fail(ErrorCode::unavailable, "the worker stops");
  return durations;
}

Result<> check(const Options& options) {
  const Bytes most = gib(1ULL << 16);
  for (const auto& [name, size, least] : {std::tuple{"page_cache", options.page_cache, page_size},
                                          std::tuple{"io_cache", options.io_cache, Bytes{IoCache::granule}},
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
  if (options.exec_threads < 0 || options.exec_threads > 4096)
    return invalid("exec_threads is " + std::to_string(options.exec_threads) +
                   ": it must be 0 (all cores) to 4096");
  const auto available = available_memory();
  if (!available) return std::unexpected(available.error());
  const Bytes slots{options.queue * (sizeof(InferSlot) + sizeof(LoadSlot)) +
                    options.max_models * sizeof(HostModel)};
  const Bytes needed = options.page_cache + options.io_cache + options.workspace + slots;
  if (options.populate && needed > *available)
    return fail(ErrorCode::resource_exhausted,
                "the worker would take " + to_text(needed) + " (page cache " + to_text(options.page_cache) +
                    ", I/O cache " + to_text(options.io_cache) + ", workspace " + to_text(options.workspace) +
                    "), and " + to_text(*available) + " are available: make them smaller");
  return {};
}

}  // namespace

Result<std::unique_ptr<Worker>> make_worker(const Options& options, const Clock& clock, ResultSink& results) {
  if (auto checked = check(options); !checked) return in_context("worker", checked.error());
  std::vector<std::string> notes;
  const std::uint64_t count = options.page_cache.count / page_size.count;
  if (page_size * count < options.page_cache)
    notes.push_back("page cache: " + to_text(page_size * count) + " of " + to_text(options.page_cache) +
                    " are used: whole pages of 16 MiB");
  auto pages = PageCache::make(count, notes, options.populate);
  if (!pages) return in_context("worker", pages.error());
  auto io = Arena::take(options.io_cache, "I/O cache", notes, options.populate);
  if (!io) return in_context("worker", io.error());
  auto workspace = Arena::take(options.workspace, "workspace", notes, options.populate);
  if (!workspace) return in_context("worker", workspace.error());
  auto worker = std::make_unique<WorkerImpl>(options, clock, results, std::move(*pages), std::move(*io),
                                             std::move(*workspace), std::move(notes));
  if (auto started = worker->start(options); !started) return in_context("worker", started.error());
  return worker;
}

}  // namespace carillon::worker
