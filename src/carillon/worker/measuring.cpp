#include "carillon/worker/measuring.h"

#include <string>
#include <utility>

#include "carillon/engine/pacer.h"
#include "carillon/worker/guarded.h"

namespace carillon::worker {
namespace {

constexpr Window any_time{TimePoint::min(), TimePoint::max()};

std::string name_of(ModelId id) {
  return "model " + std::to_string(id.value);
}

std::string pages_lack(const HostModel& host, std::uint64_t free) {
  return std::to_string(host.range.pages) + " pages, and " + std::to_string(free) + " are free";
}

}  // namespace

template <typename Command>
std::optional<ActionResult> Measuring::perform(Command command) {
  const std::uint32_t life = subject_.life();
  const std::lock_guard one(one_load_);
  if (subject_.life() != life) return std::nullopt;  // it ended while another waited
  std::unique_lock lock(mutex_);
  command.id = {first_own + count_++};
  awaited_.emplace(command.id, std::nullopt);
  lock.unlock();
  const bool taken = worker_.submit(command);
  lock.lock();
  if (taken) told_.wait(lock, [&] { return awaited_.at(command.id).has_value() || subject_.life() != life; });
  return std::move(awaited_.extract(command.id).mapped());
}

void Measuring::told(const ActionResult& result) {
  {
    const std::lock_guard lock(mutex_);
    const auto waits = awaited_.find(result.id);
    if (waits == awaited_.end()) return;  // not any more
    waits->second = result;
  }
  told_.notify_all();
}

void Measuring::life_ended() {
  {
    const std::lock_guard lock(mutex_);  // nobody is between a look at the life and the wait
  }
  told_.notify_all();
}

Result<std::vector<Duration>> Measuring::load(ModelId id, int repeats) {
  const HostModel* host = subject_.find(id);
  if (host == nullptr) return fail(ErrorCode::not_found, name_of(id) + " is not registered");
  if (repeats < 1) return invalid("at least one measurement is needed, not " + std::to_string(repeats));
  if (!subject_.absent(id))
    return fail(ErrorCode::unavailable, name_of(id) + " is in use: unload it before measuring its LOAD");
  std::vector<Duration> durations;
  for (int i = 0; i < repeats; ++i) {
    const auto loaded = perform(LoadCommand{.id = {}, .model = id, .window = any_time});
    if (!loaded) return fail(ErrorCode::unavailable, "the worker stops, or its device is gone");
    if (loaded->status == schedule::ActionStatus::no_memory)
      return fail(ErrorCode::resource_exhausted,
                  name_of(id) + " needs " + pages_lack(*host, worker_.free_pages()));
    if (loaded->status != schedule::ActionStatus::success) return fail(ErrorCode::unavailable, loaded->error);
    durations.push_back(loaded->times.exec_end - loaded->times.exec_start);
    perform(UnloadCommand{.id = {}, .model = id});
  }
  return durations;
}

Result<std::vector<Duration>> Measuring::exec(ModelId id, int batch, int repeats, std::int64_t length,
                                              std::string* refused) {
  HostModel* host = subject_.find(id);
  const std::string name = name_of(id);
  if (host == nullptr) return fail(ErrorCode::not_found, name + " is not registered");
  std::pair<PlanLayout*, std::shared_ptr<SizedPlans>> found{nullptr, nullptr};
  if (host->compiled->open() && length > 0)
    found = host->sized(batch, length);
  else
    found.first = host->layout(batch, length);
  PlanLayout* const layout = found.first;
  if (layout == nullptr || layout->length != length)
    return fail(ErrorCode::not_found, name + " has no plan for a batch of " + std::to_string(batch) +
                                          (length > 0 ? " at length " + std::to_string(length) : ""));
  if (repeats < 1) return invalid("at least one measurement is needed, not " + std::to_string(repeats));
  const bool brought = subject_.absent(id);  // loaded here, so to be unloaded here
  if (brought) {
    const auto loaded = perform(LoadCommand{.id = {}, .model = id, .window = any_time});
    if (!loaded) return fail(ErrorCode::unavailable, "the worker stops, or its device is gone");
    if (loaded->status != schedule::ActionStatus::success)
      return fail(ErrorCode::resource_exhausted,
                  name + " cannot be loaded: it needs " + pages_lack(*host, worker_.free_pages()));
  }
  Result<std::vector<Duration>> durations;
  engine::MadeUpChoice choice;
  {
    const std::lock_guard lock(mutex_);
    choice = choices_[id];
  }
  graph::Faults faults;
  faults.results_unwanted = true;
  const auto measure = [&](const engine::Binding& binding, const Subject::Fill& fill) {
    engine::Pacer pacer(share_);
    const auto run = [&] {
      return guarded([&] {
        return layout->plan->run({0, layout->plan->kernels()}, binding, {}, nullptr, &pacer);
      });
    };
    durations = engine::measure_on_made_up({.fill = fill,
                                            .run = run,
                                            .usable = [&] { return host->compiled->usable(); },
                                            .now = [&] { return clock_.now(); },
                                            .faults = &faults},
                                           repeats, choice, refused);
  };
  const Result<> ran = subject_.between_runs(id, *layout, faults, measure);
  {
    const std::lock_guard lock(mutex_);
    choices_[id] = choice;
  }
  if (brought) perform(UnloadCommand{.id = {}, .model = id});
  if (!ran) return std::unexpected(ran.error());
  if (!durations) return in_context(name, durations.error());
  return durations;
}

}  // namespace carillon::worker
