#include "carillon/controller/batch_plans.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <malloc.h>
#include <pthread.h>

#include "carillon/base/assert.h"
#include "carillon/controller/low_priority.h"
#include "carillon/profile/batch_line.h"

namespace carillon::controller {
namespace {

using schedule::BatchProfile;

// How often to look whether what ran by plans that were dropped has ended.
constexpr auto look_again = std::chrono::milliseconds{100};
// Nothing is made for so long after a model that is loaded wanted the memory: more of them may come.
constexpr auto rest = std::chrono::seconds{1};

// What batches take where those of `sizes` (ascending) have plans and take what the line through both of
// `ends` says: any other runs as the fewest of these.
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
  CARILLON_ASSERT(id.index() < worker::most_models);
  const std::lock_guard lock(mutex_);
  models_.resize(id.index() + 1);
  if (!compiled.makes_later() || seeds.size() < 2) return;
  auto model = std::make_unique<Model>();
  model->name = std::move(name);
  model->compiled = &compiled;
  model->seeds = std::move(seeds);
  models_[id.index()] = std::move(model);
  ++counts_.models;
  wake_.notify_one();
}

void BatchPlans::remove_model(ModelId id) {
  std::unique_lock lock(mutex_);
  Model* const model = models_[id.index()].get();
  if (model == nullptr || model->compiled == nullptr) return;
  made_one_.wait(lock, [&] { return making_ != id; });
  if (model->state == State::whole) {
    --counts_.whole;
    counts_.memory = counts_.memory - model->memory;
  }
  --counts_.models;
  model->charge.reset();
  model->state = State::never;
  model->compiled = nullptr;  // it stays, as batches that come too late look it up
  std::erase(leaving_, id);
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
  const TimePoint now = clock_.now();
  model->used.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  if (now.time_since_epoch().count() < model->not_before.load(std::memory_order_relaxed)) return;
  if (model->asked.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  if (model->state != State::few) return;
  asked_.push_back(id);
  wake_.notify_one();
}

BatchPlans::Counts BatchPlans::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void BatchPlans::run() {
  pthread_setname_np(pthread_self(), "carillon-plans");
  std::unique_lock lock(mutex_);
  while (running_) {
    std::erase_if(leaving_, [&](ModelId id) { return worker_->remove_batches(id); });
    if (const TimePoint now = clock_.now(); now < rests_until_) {
      wake_.wait_for(lock, std::min(rests_until_ - now, Duration{look_again}));
    } else if (const auto id = next_asked()) {
      make(*id, true, lock);
    } else if (const auto other = next_to_fill()) {
      make(*other, false, lock);
    } else if (leaving_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, look_again);
    }
  }
}

// With the lock, as is what follows but for what says otherwise.
std::optional<ModelId> BatchPlans::next_asked() {
  while (!asked_.empty()) {
    const ModelId id = asked_.front();
    asked_.pop_front();
    if (models_[id.index()]->state == State::few) return id;
  }
  return std::nullopt;
}

std::optional<ModelId> BatchPlans::next_to_fill() {
  if (loading_) return std::nullopt;
  for (; next_to_fill_ < models_.size(); ++next_to_fill_)
    if (const auto& model = models_[next_to_fill_]; model != nullptr && model->state == State::few)
      return ModelId{static_cast<std::uint32_t>(next_to_fill_++)};
  return std::nullopt;
}

void BatchPlans::make(ModelId id, bool urgent, std::unique_lock<std::mutex>& lock) {
  Model& model = *models_[id.index()];
  model.state = State::making;
  making_ = id;
  lock.unlock();
  auto made = make_room_and_plans(model, id, urgent);
  // What it was read into, and plans that made room.
  ::malloc_trim(0);
  lock.lock();
  making_.reset();
  made_one_.notify_all();
  if (made) {
    model.state = State::whole;
    if (made->charge) model.charge.emplace(*std::move(made->charge));
    model.memory = made->memory;
    model.asked = true;  // what is sent asks for nothing
    ++counts_.whole;
    ++counts_.made;
    counts_.memory = counts_.memory + made->memory;
    if (!made->times.empty()) tell_(id, std::move(made->times));
    return;
  }
  // For want of memory: later there may be some.
  const bool passes = made.error().code == ErrorCode::resource_exhausted;
  model.state = passes ? State::few : State::never;
  model.not_before = (clock_.now() + options_.kept).time_since_epoch().count();
  model.asked = false;
  if (!passes && running_ && options_.note)
    options_.note(model.name + ": its batches run row after row: " + made.error().message);
}

// Without the lock.
Result<BatchPlans::Made> BatchPlans::make_room_and_plans(const Model& model, ModelId id, bool urgent) {
  Made out;
  try {
    const engine::CompiledModel& compiled = *model.compiled;
    std::vector<int> batches;
    for (const BatchProfile& each : model.seeds) batches.push_back(each.batch);
    const std::vector<int> larger(batches.begin() + 1, batches.end());
    // A plan of a larger batch takes about as much as that of the smallest. While they are made the model is
    // read and packed, and then measured.
    const Bytes plans{compiled.memory().plans.count * larger.size()};
    if (options_.memory != nullptr) {
      auto taken = take(model, {.memory = plans + Bytes{3 * compiled.weights().count}}, urgent);
      if (!taken) return std::unexpected(taken.error());
      out.charge.emplace(*std::move(taken));
    }
    auto made = of_low_priority([&] { return compiled.make_plans({}, larger, &ended_); });
    if (!made) return std::unexpected(made.error());
    for (const auto& plan : *made) out.memory = out.memory + plan->memory();
    if (out.charge) {
      // There was more room for it than it takes, but for very small models.
      const auto settle = [&] {
        return out.charge->settle({.plans = out.memory, .weights = {}, .processes = {}}, {},
                                  MemoryAccount::Reclaims::nothing);
      };
      auto fits = settle();
      while (!fits && urgent && drop_unused()) fits = settle();
      if (!fits) return std::unexpected(fits.error());
    }
    const engine::Plan& largest = *made->back();
    std::optional<Duration> took;
    if (options_.measure) {
      auto measured = options_.measure(compiled, largest);
      if (!measured) return std::unexpected(measured.error());
      took = *measured;
    }
    const BatchProfile most{.batch = largest.batch(), .exec = took.value_or(Duration{0})};
    const auto added = worker_->add_batches(id, *std::move(made));
    if (!added) return std::unexpected(added.error());
    batches.resize(1 + *added);
    if (took) out.times = times_by(model.seeds, batches, {model.seeds.front(), most});
  } catch (const std::exception& error) {
    return fail(ErrorCode::resource_exhausted, error.what());
  }
  return out;
}

// Without the lock.
Result<MemoryAccount::Charge> BatchPlans::take(const Model& model, const ModelNeed& need, bool urgent) {
  for (;;) {
    auto taken = options_.memory->take(model.name, need, MemoryAccount::Reclaims::nothing);
    if (taken || !urgent || !drop_unused()) return taken;
  }
}

// Without the lock. Those that no batch ran by for the longest; false where there are none.
bool BatchPlans::drop_unused() {
  const std::lock_guard lock(mutex_);
  const auto oldest = oldest_whole();
  if (!oldest) return false;
  const TimePoint used{Duration{models_[oldest->index()]->used.load(std::memory_order_relaxed)}};
  if (clock_.now() - used < options_.kept) return false;
  drop(*oldest);
  return true;
}

bool BatchPlans::reclaim(Bytes needed) {
  Bytes dropped;
  {
    std::unique_lock lock(mutex_);
    if (!running_) return false;
    rests_until_ = clock_.now() + rest;
    while (dropped < needed) {
      const auto oldest = oldest_whole();
      if (!oldest) break;
      dropped = dropped + models_[oldest->index()]->memory;
      drop(*oldest);
    }
    // What is just being made has memory, too.
    if (dropped == Bytes{} && making_) {
      made_one_.wait(lock, [&] { return !making_; });
      return true;
    }
  }
  if (dropped == Bytes{}) return false;
  ::malloc_trim(0);
  return true;
}

std::optional<ModelId> BatchPlans::oldest_whole() const {
  std::optional<ModelId> out;
  std::int64_t since = 0;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i] == nullptr || models_[i]->state != State::whole) continue;
    const std::int64_t used = models_[i]->used.load(std::memory_order_relaxed);
    if (out && used >= since) continue;
    out = ModelId{static_cast<std::uint32_t>(i)};
    since = used;
  }
  return out;
}

void BatchPlans::drop(ModelId id) {
  Model& model = *models_[id.index()];
  tell_(id, model.seeds);
  if (!worker_->remove_batches(id)) {
    leaving_.push_back(id);
    wake_.notify_one();
  }
  model.state = State::few;
  model.charge.reset();
  model.asked = false;
  --counts_.whole;
  ++counts_.dropped;
  counts_.memory = counts_.memory - std::exchange(model.memory, {});
}

}  // namespace carillon::controller
