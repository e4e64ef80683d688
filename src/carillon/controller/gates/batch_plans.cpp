#include "carillon/controller/gates/batch_plans.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <pthread.h>

#include "carillon/base/assert.h"
#include "carillon/base/heap.h"
#include "carillon/controller/gates/low_priority.h"
#include "carillon/profile/batch_line.h"

namespace carillon::controller {
namespace {

using schedule::BatchProfile;

// How often to look whether what ran by plans that were dropped has ended.
constexpr auto look_again = std::chrono::milliseconds{20};
// So long a model that is loaded waits for memory that such runs hold.
constexpr auto runs_end_within = std::chrono::milliseconds{500};
// The maker's share of the time while the device does not idle.
constexpr double least_share = 0.01;
// The allocator gives back what is free after so many models, and when there is nothing more to do.
constexpr std::size_t trim_after = 16;

// What batches take where those of `sizes` (ascending, the first is 1) have plans and take what the line
// through both of `ends` says: any other runs as the fewest of these.
std::vector<BatchProfile> times_by(const std::vector<BatchProfile>& seeds, const std::vector<int>& sizes,
                                   const std::array<BatchProfile, 2>& ends) {
  std::vector<BatchProfile> out = seeds;
  for (BatchProfile& each : out) {
    Duration sum{0};
    for (int left = each.batch; left > 0;) {
      const int size = *std::prev(std::ranges::upper_bound(sizes, left));
      sum += profile::on_batch_line(ends, size, &BatchProfile::batch, &BatchProfile::exec);
      left -= size;
    }
    each.exec = sum;
  }
  return out;
}

// Nobody knows what the plans take. Times that are told anew count as others, so that what runs show of these
// plans is forgotten with them.
std::vector<BatchProfile> unmeasured(std::vector<BatchProfile> seeds) {
  for (BatchProfile& each : seeds)
    if (each.batch > 1) each.exec = std::max(Duration{1}, each.exec - Duration{1});
  return seeds;
}

std::int64_t ns_of(TimePoint time) {
  return time.time_since_epoch().count();
}

}  // namespace

BatchPlans::BatchPlans(BatchPlanOptions options, const Clock& clock, Tell tell)
    : options_(std::move(options)), clock_(clock), tell_(std::move(tell)) {
  models_.reserve(worker::most_models);
  if (options_.memory != nullptr)
    options_.memory->set_reclaim([this](Bytes needed) { return reclaim(needed); });
}

BatchPlans::~BatchPlans() {
  stop();
  if (options_.memory != nullptr) options_.memory->set_reclaim({});
}

void BatchPlans::add_model(ModelId id, std::string name, const engine::CompiledModel& compiled,
                           std::vector<BatchProfile> seeds) {
  CARILLON_ASSERT(id.index() < worker::most_models && !seeds.empty());
  const std::lock_guard lock(mutex_);
  models_.resize(id.index() + 1);
  if (!compiled.makes_later() || seeds.size() < 2) return;
  CARILLON_ASSERT(seeds.front().batch == 1);
  auto model = std::make_unique<Model>();
  model->name = std::move(name);
  model->compiled = &compiled;
  model->seeds = std::move(seeds);
  models_[id.index()] = std::move(model);
  ++counts_.models;
  wake_.notify_one();
}

void BatchPlans::remove_model(ModelId id) {
  Lock lock(mutex_);
  Model* const model = models_[id.index()].get();
  if (model == nullptr || model->compiled == nullptr) return;
  changed_.wait(lock, [&] { return !model->busy; });
  if (model->state == State::complete) {
    --counts_.complete;
    counts_.memory = counts_.memory - model->memory;
  }
  --counts_.models;
  std::erase(dropped_, id);
  model->charge.reset();
  model->state = State::never;
  model->nothing_to_ask = true;
  model->compiled = nullptr;  // it stays, as batches that come too late look it up
}

void BatchPlans::start(worker::Worker& worker) {
  const std::lock_guard lock(mutex_);
  worker_ = &worker;
  running_ = true;
  thread_ = std::thread([this] { run(); });
}

void BatchPlans::stop() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
    ended_ = true;
    wake_.notify_one();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void BatchPlans::set_loading(bool loading) {
  const std::lock_guard lock(mutex_);
  loading_ = loading;
  wake_.notify_one();
}

void BatchPlans::sent(ModelId id, int batch) {
  if (batch < 2) return;
  Model* const model = models_[id.index()].get();
  if (model == nullptr) return;
  const std::int64_t now = ns_of(clock_.now());
  model->used.store(now, std::memory_order_relaxed);
  if (now < model->not_before.load(std::memory_order_relaxed)) return;
  if (model->nothing_to_ask.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  asked_.push_back(id);
  wake_.notify_one();
}

BatchPlans::Counts BatchPlans::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void BatchPlans::run() {
  pthread_setname_np(pthread_self(), "carillon-plans");
  Lock lock(mutex_);
  while (running_) {
    sweep(lock);
    if (!running_) break;
    const TimePoint now = clock_.now();
    const bool rests = now < rests_until_;
    if (const auto id = rests ? std::nullopt : next_asked()) {
      make(*id, true, lock);
    } else if (const auto other = rests ? std::nullopt : next_to_fill()) {
      make(*other, false, lock);
    } else if (made_since_trim_ > 0 && !rests) {
      trim(lock);
    } else if (!dropped_.empty()) {
      wake_.wait_for(lock, look_again);
    } else if (rests) {
      wake_.wait_for(lock, rests_until_ - now);
    } else {
      wake_.wait(lock);
    }
  }
}

// With the lock, as is what follows but for what says otherwise.
std::optional<ModelId> BatchPlans::next_asked() {
  const auto state_of = [&](ModelId id) { return models_[id.index()]->state; };
  // A model whose dropped plans still run waits until these have gone; any other has its plans, or gets none.
  std::erase_if(
      asked_, [&](ModelId id) { return state_of(id) != State::one_plan && state_of(id) != State::dropped; });
  const auto next = std::ranges::find(asked_, State::one_plan, state_of);
  if (next == asked_.end()) return std::nullopt;
  const ModelId out = *next;
  asked_.erase(next);
  return out;
}

std::optional<ModelId> BatchPlans::next_to_fill() {
  if (loading_) return std::nullopt;
  for (; next_to_fill_ < models_.size(); ++next_to_fill_)
    if (const auto& model = models_[next_to_fill_]; model != nullptr && model->state == State::one_plan)
      return ModelId{static_cast<std::uint32_t>(next_to_fill_++)};
  return std::nullopt;
}

void BatchPlans::make(ModelId id, bool urgent, Lock& lock) {
  Model& model = *models_[id.index()];
  model.state = State::making;
  model.busy = making_ = true;
  ended_ = false;
  const TimePoint began = clock_.now();
  lock.unlock();
  auto made = plans_of(model, urgent);
  const Result<> added = made ? add(id, model, *std::move(made)) : std::unexpected(made.error());
  lock.lock();
  model.busy = making_ = false;
  ++made_since_trim_;
  changed_.notify_all();
  rest_after(began);
  if (added) {
    if (made_since_trim_ >= trim_after) trim(lock);
    return;
  }
  const ErrorCode code = added.error().code;
  if (code == ErrorCode::cancelled) {  // a model that is loaded goes first
    model.state = State::one_plan;
    model.nothing_to_ask = urgent;
    if (urgent)
      asked_.push_front(id);
    else
      next_to_fill_ = std::min(next_to_fill_, id.index());
    return;
  }
  // What goes wrong may pass, but for what is so with this model.
  const bool lasts = code == ErrorCode::unavailable || code == ErrorCode::unsupported ||
                     code == ErrorCode::invalid_argument || code == ErrorCode::not_found;
  model.state = lasts ? State::never : State::one_plan;
  if (code == ErrorCode::resource_exhausted) ++counts_.refused;
  if (urgent) model.not_before = ns_of(clock_.now() + options_.kept);
  model.nothing_to_ask = lasts;
  if (lasts && options_.note)
    options_.note(model.name + ": its batches run row after row: " + added.error().message);
}

// How busy the device is shows since the last look, which was at the end of the plans before these.
void BatchPlans::rest_after(TimePoint began) {
  if (!options_.busy) return;
  const TimePoint now = clock_.now();
  const Duration busy = options_.busy();
  const double idle = 1 - to_seconds(busy - busy_then_) / to_seconds(std::max(now - looked_at_, Duration{1}));
  looked_at_ = now;
  busy_then_ = busy;
  const double share = std::clamp(idle * std::max(idle, 0.0), least_share, 1.0);
  rests_until_ = std::max(rests_until_, now + from_seconds(to_seconds(now - began) * (1 / share - 1)));
}

// Without the lock.
Result<BatchPlans::Made> BatchPlans::plans_of(const Model& model, bool urgent) {
  Made out;
  try {
    const engine::CompiledModel& compiled = *model.compiled;
    std::vector<int> larger;
    for (const BatchProfile& each : model.seeds)
      if (each.batch > 1) larger.push_back(each.batch);
    if (options_.memory != nullptr) {
      // Each plan takes about as much as that of batch size 1. While they are made the model is read and
      // packed, and then measured, with its weights and the largest plan's memory once more.
      const engine::Plan* const one = compiled.plan(1);
      const Bytes plans{compiled.memory().plans.count * larger.size()};
      const Bytes run{one->workspace().count * static_cast<std::uint64_t>(larger.back())};
      auto taken = take(model, plans + run + Bytes{3 * compiled.weights().count}, urgent);
      if (!taken) return std::unexpected(taken.error());
      out.charge.emplace(*std::move(taken));
    }
    auto made = of_low_priority([&] { return compiled.make_plans({}, larger, &ended_); });
    if (!made) return std::unexpected(made.error());
    out.plans = *std::move(made);
    if (options_.measure) {
      auto measured = options_.measure(compiled, *out.plans.back(), ended_);
      if (!measured) return std::unexpected(measured.error());
      out.largest_takes = *measured;
    }
  } catch (const std::exception& error) {
    return fail(ErrorCode::resource_exhausted, error.what());
  }
  if (ended_) return fail(ErrorCode::cancelled, "its plans are not wanted any more");
  return out;
}

// Without the lock. Gives them to the worker, and tells what batches take then.
Result<> BatchPlans::add(ModelId id, Model& model, Made made) {
  std::vector<int> sizes{1};
  std::vector<Bytes> takes;
  for (const auto& plan : made.plans) {
    sizes.push_back(plan->batch());
    takes.push_back(plan->memory());
  }
  const std::array ends{model.seeds.front(), BatchProfile{.batch = sizes.back(),
                                                          .exec = made.largest_takes.value_or(Duration{1})}};
  const auto count = worker_->add_batches(id, std::move(made.plans));
  if (!count) return std::unexpected(count.error());
  // At once: what runs by them is not to be taken for what ran without them.
  const Lock lock(mutex_);
  sizes.resize(1 + *count);
  tell_(id, made.largest_takes ? times_by(model.seeds, sizes, ends) : unmeasured(model.seeds));
  model.memory = {};
  for (std::size_t i = 0; i < *count; ++i) model.memory = model.memory + takes[i];
  if (made.charge) {
    // There was more room for it; what there is too much of all the same, the next model takes back.
    (void)made.charge->settle({.plans = model.memory, .weights = {}, .processes = {}}, {},
                              MemoryAccount::Reclaims::nothing);
    model.charge.emplace(*std::move(made.charge));
  }
  model.state = State::complete;
  ++counts_.complete;
  ++counts_.made;
  counts_.memory = counts_.memory + model.memory;
  return {};
}

// Without the lock.
Result<MemoryAccount::Charge> BatchPlans::take(const Model& model, Bytes needed, bool urgent) {
  for (;;) {
    auto taken = options_.memory->take(model.name, {.memory = needed}, MemoryAccount::Reclaims::nothing);
    if (taken || !urgent) return taken;
    const Bytes left = options_.memory->left();
    if (!drop_unused(needed - std::min(needed, left))) return taken;
  }
}

bool BatchPlans::is_unused(const Model& model) const {
  return clock_.now() - TimePoint{Duration{model.used.load(std::memory_order_relaxed)}} >= options_.kept;
}

// Without the lock. Plans that no batch ran by for the longest, until so much is free; false where all that
// no batch ran by lately are not enough, and stay.
bool BatchPlans::drop_unused(Bytes needed) {
  Lock lock(mutex_);
  Bytes unused;
  for (const auto& model : models_)
    if (model != nullptr && model->state == State::complete && is_unused(*model))
      unused = unused + model->memory;
  if (unused < needed || needed == Bytes{}) return false;
  for (Bytes dropped; dropped < needed;) {
    const auto oldest = oldest_complete();
    if (!oldest || !is_unused(*models_[oldest->index()])) return false;
    dropped = dropped + drop(*oldest, lock);
  }
  sweep(lock);
  return dropped_.empty();
}

// Without the lock.
bool BatchPlans::reclaim(Bytes needed) {
  Lock lock(mutex_);
  if (!running_) return false;
  rests_until_ = std::max(rests_until_, clock_.now() + options_.rest);
  // What is just being made has memory, too.
  if (making_) {
    ended_ = true;
    changed_.wait(lock, [&] { return !making_; });
    return true;
  }
  Bytes dropped;
  while (dropped < needed) {
    const auto oldest = oldest_complete();
    if (!oldest) break;
    dropped = dropped + drop(*oldest, lock);
  }
  if (dropped == Bytes{}) return false;
  // Until what ran by them has ended.
  for (const TimePoint end = clock_.now() + runs_end_within;;) {
    sweep(lock);
    if (dropped_.empty() || clock_.now() >= end) break;
    changed_.wait_for(lock, look_again);
  }
  trim(lock);
  return true;
}

std::optional<ModelId> BatchPlans::oldest_complete() const {
  std::optional<ModelId> out;
  std::int64_t since = 0;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i] == nullptr || models_[i]->state != State::complete || models_[i]->busy) continue;
    const std::int64_t used = models_[i]->used.load(std::memory_order_relaxed);
    if (out && used >= since) continue;
    out = ModelId{static_cast<std::uint32_t>(i)};
    since = used;
  }
  return out;
}

// What its plans take. Its charge ends with the last of them, in sweep().
Bytes BatchPlans::drop(ModelId id, Lock& lock) {
  Model& model = *models_[id.index()];
  tell_(id, model.seeds);
  model.state = State::dropped;
  model.busy = true;
  --counts_.complete;
  ++counts_.dropped;
  const Bytes memory = std::exchange(model.memory, {});
  counts_.memory = counts_.memory - memory;
  lock.unlock();
  worker_->remove_batches(id);
  lock.lock();
  model.busy = false;
  model.nothing_to_ask = false;
  dropped_.push_back(id);
  changed_.notify_all();
  return memory;
}

// Those whose plans no run holds any more may have plans again.
void BatchPlans::sweep(Lock& lock) {
  const std::vector<ModelId> waiting = dropped_;
  for (const ModelId id : waiting) {
    Model& model = *models_[id.index()];
    if (model.state != State::dropped || model.busy) continue;
    model.busy = true;
    lock.unlock();
    const bool gone = worker_->sweep(id);
    lock.lock();
    model.busy = false;
    changed_.notify_all();
    if (!gone) continue;
    model.state = State::one_plan;
    model.charge.reset();
    std::erase(dropped_, id);
  }
}

void BatchPlans::trim(Lock& lock) {
  made_since_trim_ = 0;
  lock.unlock();
  trim_heap();
  lock.lock();
}

}  // namespace carillon::controller
