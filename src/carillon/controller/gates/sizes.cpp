#include "carillon/controller/gates/sizes.h"

#include <algorithm>
#include <string>
#include <utility>

#include <pthread.h>

#include "carillon/base/assert.h"
#include "carillon/controller/gates/low_priority.h"

namespace carillon::controller {
namespace {

constexpr std::size_t remembered_times = 4;

// Of one row.
graph::Shape row_shape(graph::Shape shape, bool batched) {
  if (batched && !shape.empty()) shape.front() = 1;
  return shape;
}

}  // namespace

Sizes::Sizes(const SizeOptions& options, const Clock& clock, Goes goes)
    : options_(options), clock_(clock), goes_(std::move(goes)) {
  models_.reserve(worker::most_models);
}

Sizes::~Sizes() {
  stop();
}

void Sizes::add_model(ModelId id, const engine::CompiledModel& compiled, bool batched) {
  CARILLON_ASSERT(id.index() < worker::most_models);
  const std::lock_guard lock(mutex_);
  models_.resize(id.index() + 1);
  if (!compiled.open()) return;
  auto model = std::make_unique<Model>();
  model->reference.assign(compiled.reference().begin(), compiled.reference().end());
  model->batch_sizes.assign(compiled.batch_sizes().begin(), compiled.batch_sizes().end());
  model->batched = batched;
  model->one_plan = compiled.has_one_plan() && model->batch_sizes.size() > 1;
  const engine::Plan* plan = compiled.plan(model->batch_sizes.front());
  CARILLON_ASSERT(plan != nullptr);
  auto size = std::make_shared<Size>();
  for (const graph::TensorSpec& output : plan->outputs())
    size->outputs.push_back(row_shape(output.shape, batched));
  size->effort = plan->effort();
  model->at_reference = std::move(size);
  models_[id.index()] = std::move(model);
  if (running_ && !thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void Sizes::remove_model(ModelId id) {
  std::vector<Waiting> left;
  {
    std::unique_lock lock(mutex_);
    std::erase_if(queue_, [&](const Job& job) { return job.model == id; });
    // It stays, as calls that come too late look it up.
    Model* const model = models_[id.index()].get();
    if (model != nullptr) model->gone = true;
    made_one_.wait(lock, [&] { return making_ != id; });
    if (model != nullptr) {
      for (auto& [extents, entry] : model->entries)
        std::ranges::move(std::exchange(entry.waiting, {}), std::back_inserter(left));
      for (const auto& [extents, entry] : model->entries) memory_.count -= entry.memory.count;
      model->entries.clear();
    }
  }
  for (Waiting& each : left)
    goes_(std::move(each), fail(ErrorCode::not_found, "the model is not served any more"), std::nullopt);
}

void Sizes::start(std::vector<worker::Worker*> workers) {
  const std::lock_guard lock(mutex_);
  workers_ = std::move(workers);
  running_ = true;
  if (std::ranges::all_of(models_, [](const auto& model) { return model == nullptr; })) return;
  thread_ = std::thread([this] { run(); });
}

void Sizes::stop() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
    wake_.notify_one();
  }
  for (worker::Worker* worker : workers_) worker->end_sizes();
  if (thread_.joinable()) thread_.join();
  workers_.clear();  // they may be gone when it is stopped again
  std::vector<Waiting> left;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& model : models_)
      if (model != nullptr)
        for (auto& [extents, entry] : model->entries)
          std::ranges::move(std::exchange(entry.waiting, {}), std::back_inserter(left));
    queue_.clear();
  }
  for (Waiting& each : left)
    goes_(std::move(each), fail(ErrorCode::unavailable, "the server is not serving now"), std::nullopt);
}

bool Sizes::submit(Waiting& waiting) {
  const ModelId id = waiting.call->model;
  Model& model = *models_[id.index()];
  InferCall& call = *waiting.call;
  if (call.extents == model.reference) {
    ask_reference(model, call);
    return true;
  }
  Result<> refused;
  std::optional<Duration> would_take;
  {
    const std::lock_guard lock(mutex_);
    if (!running_) {
      refused = fail(ErrorCode::unavailable, "the server is not serving now");
    } else if (model.gone) {
      refused = fail(ErrorCode::not_found, "the model is not served any more");
    } else {
      const auto found = model.entries.find(call.extents);
      if (found == model.entries.end() && queue_.size() >= options_.most_queued) {
        refused = fail(ErrorCode::resource_exhausted,
                       "plans for " + std::to_string(queue_.size()) +
                           " other sizes of inputs are to be made first; try again later");
      } else {
        Entry& entry = found != model.entries.end() ? found->second : model.entries[call.extents];
        if (found == model.entries.end()) {
          queue_.push_back({id, call.extents});
          wake_.notify_one();
        }
        entry.used = ++ticks_;
        ++entry.calls;
        if (entry.state == Entry::State::ready) {
          call.size = entry.size;
          call.length = entry.size->number;
          if (entry.calls == 2) wake_.notify_one();  // worth plans for all batch sizes
          return true;
        }
        const TimePoint now = clock_.now();
        const Duration takes = model.took.empty() ? Duration{0} : *std::ranges::max_element(model.took);
        if (entry.state == Entry::State::failed) {
          refused = std::unexpected(entry.error);
        } else if (waiting.deadline != TimePoint::max() && saturating_add(now, takes) > waiting.deadline) {
          refused = fail(ErrorCode::deadline_exceeded,
                         "no plan is ready for inputs of this size, and to make one takes about " +
                             std::to_string(takes / std::chrono::milliseconds{1}) +
                             " ms, longer than there is; it is being made for later requests");
          would_take = now + takes - call.arrival;
        } else {
          entry.waiting.push_back(std::move(waiting));
          return false;
        }
      }
    }
  }
  goes_(std::move(waiting), std::move(refused), would_take);
  return false;
}

// There is always a plan of one row.
void Sizes::ask_reference(Model& model, InferCall& call) {
  call.size = model.at_reference;
  if (!model.one_plan) return;
  const std::lock_guard lock(mutex_);
  const auto found = model.entries.find(model.reference);
  if (found == model.entries.end()) {
    if (++model.reference_calls == model.reference_worth) wake_.notify_one();
  } else if (Entry& entry = found->second; entry.state == Entry::State::ready) {
    entry.used = ++ticks_;
    call.size = entry.size;
    call.length = entry.size->number;
  }
}

void Sizes::cancel(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  for (const auto& model : models_)
    if (model != nullptr)
      for (auto& [extents, entry] : model->entries)
        if (std::ranges::find(entry.waiting, ticket, &Waiting::ticket) != entry.waiting.end())
          cancelled_.push_back(ticket);
}

Sizes::Counts Sizes::counts() const {
  const std::lock_guard lock(mutex_);
  Counts out{.ready = 0, .waiting = 0, .made = made_, .memory = memory_};
  for (const auto& model : models_) {
    if (model == nullptr) continue;
    for (const auto& [extents, entry] : model->entries) {
      out.ready += entry.state == Entry::State::ready ? 1 : 0;
      out.waiting += entry.waiting.size();
    }
  }
  return out;
}

void Sizes::run() {
  pthread_setname_np(pthread_self(), "carillon-sizes");
  lower_priority();
  std::unique_lock lock(mutex_);
  while (running_) {
    if (!queue_.empty()) {
      const Job job = std::move(queue_.front());
      queue_.pop_front();
      make(job, lock);
    } else if (const auto job = next_whole()) {
      Model& model = *models_[job->model.index()];
      if (model.entries.contains(job->extents)) {
        make_whole(*job, lock);
      } else {
        model.reference_worth = 2 * std::max(model.reference_worth, model.reference_calls);
        Entry& entry = model.entries[job->extents];
        entry.used = ++ticks_;
        entry.calls = model.reference_calls;
        make(*job, lock);
      }
    } else {
      wake_.wait(lock);
      continue;
    }
    making_.reset();
    made_one_.notify_all();
  }
}

// Whether there is room for one more in that state; of those that nobody uses the oldest goes. With the lock.
bool Sizes::make_room(Model& model, ModelId id, Entry::State state, std::size_t most) {
  const auto in_state = [&](const auto& each) { return each.second.state == state; };
  if (static_cast<std::size_t>(std::ranges::count_if(model.entries, in_state)) < most) return true;
  auto oldest = model.entries.end();
  for (auto each = model.entries.begin(); each != model.entries.end(); ++each)
    if (in_state(*each) && (each->second.size == nullptr || each->second.size.use_count() == 1) &&
        (oldest == model.entries.end() || each->second.used < oldest->second.used))
      oldest = each;
  if (oldest == model.entries.end()) return false;
  forget(model, id, oldest);
  return true;
}

// The same for what plans of all models take. With the lock.
bool Sizes::make_memory(Bytes needed) {
  while (memory_.count + needed.count > options_.memory.count) {
    std::size_t of = models_.size();
    Entries::iterator oldest;
    for (std::size_t i = 0; i < models_.size(); ++i) {
      if (models_[i] == nullptr || models_[i]->gone) continue;
      for (auto each = models_[i]->entries.begin(); each != models_[i]->entries.end(); ++each)
        if (each->second.state == Entry::State::ready && each->second.size.use_count() == 1 &&
            (of == models_.size() || each->second.used < oldest->second.used)) {
          of = i;
          oldest = each;
        }
    }
    if (of == models_.size()) return false;
    forget(*models_[of], ModelId{static_cast<std::uint32_t>(of)}, oldest);
  }
  return true;
}

// With the lock.
void Sizes::forget(Model& model, ModelId id, Entries::iterator entry) {
  if (entry->second.size != nullptr)
    for (worker::Worker* worker : workers_) worker->remove_size(id, entry->second.size->number);
  memory_.count -= entry->second.memory.count;
  model.entries.erase(entry);
}

// On all of them, or on none.
Result<worker::Worker::AddedSize> Sizes::add_to_workers(ModelId id, std::int64_t number,
                                                        const graph::Extents& extents,
                                                        const std::vector<int>& batches) {
  Result<worker::Worker::AddedSize> added = worker::Worker::AddedSize{};
  Bytes memory;
  for (worker::Worker* worker : workers_) {
    added = worker->add_size(id, number, extents, batches);
    if (added) {
      memory.count += added->memory.count;
      continue;
    }
    for (worker::Worker* other : workers_) {
      if (other == worker) break;
      other->remove_size(id, number);
    }
    return added;
  }
  added->memory = memory;
  return added;
}

void Sizes::make(const Job& job, std::unique_lock<std::mutex>& lock) {
  Model& model = *models_[job.model.index()];
  const std::int64_t number = ++numbers_;
  making_ = job.model;
  lock.unlock();
  const TimePoint began = clock_.now();
  auto added = add_to_workers(job.model, number, job.extents, {model.batch_sizes.front()});
  const Duration took = clock_.now() - began;
  if (added && added->memory.count > options_.memory.count) {
    for (worker::Worker* worker : workers_) worker->remove_size(job.model, number);
    added = fail(ErrorCode::resource_exhausted, "its plan takes " + to_text(added->memory) +
                                                    " of memory, and plans for all sizes may take " +
                                                    to_text(options_.memory));
  }
  lock.lock();
  Entry& entry = model.entries[job.extents];
  std::vector<Waiting> waiting = std::exchange(entry.waiting, {});
  Result<> result;
  if (added) {
    ++made_;
    // Calls at the reference do not wait for theirs.
    if (!(model.one_plan && job.extents == model.reference)) model.took.push_back(took);
    if (model.took.size() > remembered_times) model.took.pop_front();
    if (make_room(model, job.model, Entry::State::ready, options_.most) && make_memory(added->memory)) {
      memory_.count += added->memory.count;
      auto size = std::make_shared<Size>();
      size->number = number;
      size->effort = added->effort;
      for (graph::Shape& shape : added->outputs)
        size->outputs.push_back(row_shape(std::move(shape), model.batched));
      entry.state = Entry::State::ready;
      entry.whole = model.batch_sizes.size() == 1;
      entry.memory = added->memory;
      entry.size = std::move(size);
      for (Waiting& each : waiting) {
        each.call->size = entry.size;
        each.call->length = number;
      }
    } else {
      result = fail(ErrorCode::resource_exhausted,
                    "requests of other sizes of inputs are under way, of as many as plans are kept for (" +
                        std::to_string(options_.most) + " of a model, " + to_text(options_.memory) +
                        " of memory for all)");
      model.entries.erase(job.extents);
    }
  } else if (!running_) {
    result = fail(ErrorCode::unavailable, "the server is not serving now");
    model.entries.erase(job.extents);
  } else {
    Error error = added.error();
    const bool passes = error.code == ErrorCode::internal;
    if (error.code == ErrorCode::resource_exhausted || error.code == ErrorCode::unsupported)
      error.code = ErrorCode::invalid_argument;  // it is the request's size that asks for so much
    error.message = "inputs of this size do not fit the model: " + error.message;
    result = std::unexpected(error);
    entry.error = std::move(error);
    if (!passes && make_room(model, job.model, Entry::State::failed, options_.most_tried))
      entry.state = Entry::State::failed;
    else
      model.entries.erase(job.extents);
  }
  const bool drop = added && !result;
  lock.unlock();
  if (drop)
    for (worker::Worker* worker : workers_) worker->remove_size(job.model, number);
  settle(std::move(waiting), result);
  lock.lock();
}

void Sizes::settle(std::vector<Waiting> waiting, const Result<>& result) {
  for (Waiting& each : waiting) {
    bool gone = false;
    {
      const std::lock_guard lock(mutex_);
      gone = std::erase(cancelled_, each.ticket) > 0;
    }
    if (gone)
      goes_(std::move(each), fail(ErrorCode::cancelled, "the client has gone"), std::nullopt);
    else
      goes_(std::move(each), result, std::nullopt);
  }
}

std::optional<Sizes::Job> Sizes::next_whole() const {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i] == nullptr) continue;
    const Model& model = *models_[i];
    const ModelId id{static_cast<std::uint32_t>(i)};
    for (const auto& [extents, entry] : model.entries)
      if (entry.state == Entry::State::ready && !entry.whole && entry.calls > 1 &&
          memory_.count + entry.memory.count <= options_.memory.count)
        return Job{id, extents};
    if (model.one_plan && !model.gone && model.reference_calls >= model.reference_worth &&
        !model.entries.contains(model.reference))
      return Job{id, model.reference};
  }
  return std::nullopt;
}

void Sizes::make_whole(const Job& job, std::unique_lock<std::mutex>& lock) {
  Model& model = *models_[job.model.index()];
  Entry& entry = model.entries[job.extents];
  const std::shared_ptr<const Size> size = entry.size;  // stays meanwhile
  entry.whole = true;                                   // tried once
  making_ = job.model;
  lock.unlock();
  for (std::size_t b = 1; b < model.batch_sizes.size(); ++b) {
    // A batch that does not fit is none; larger ones do not either.
    bool fits = true;
    Bytes memory;
    for (worker::Worker* worker : workers_) {
      const auto added = worker->add_size(job.model, size->number, job.extents, {&model.batch_sizes[b], 1});
      fits = added.has_value() && fits;
      if (added) memory.count += added->memory.count;
    }
    lock.lock();
    entry.memory.count += memory.count;
    memory_.count += memory.count;
    // It is there already: one that is larger than the first was is the last.
    if (memory_.count > options_.memory.count) {
      fits = false;
      (void)make_memory({});
    }
    const bool urgent = !running_ || !queue_.empty();
    if (urgent && running_ && fits && b + 1 < model.batch_sizes.size()) {
      // Calls wait for another size: that first.
      const Job other = std::move(queue_.front());
      queue_.pop_front();
      make(other, lock);
      if (model.gone) return;  // it went meanwhile
      making_ = job.model;
    }
    if (!running_ || !fits) return;
    lock.unlock();
  }
  lock.lock();
}

}  // namespace carillon::controller
