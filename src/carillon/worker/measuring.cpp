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
  std::unique_lock lock(mutex_);
  command.id = {first_own + count_++};
  lock.unlock();
  if (!worker_.submit(command)) return std::nullopt;
  lock.lock();
  told_.wait(lock, [&] { return results_.contains(command.id) || subject_.life() != life; });
  auto result = results_.extract(command.id);
  if (result.empty()) return std::nullopt;
  return std::move(result.mapped());
}

void Measuring::told(const ActionResult& result) {
  {
    const std::lock_guard lock(mutex_);
    results_.emplace(result.id, result);
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

Result<std::vector<Duration>> Measuring::exec(ModelId id, int batch, int repeats, std::int64_t length) {
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
  std::vector<Duration> durations;
  Result<> done;
  graph::Faults faults;
  faults.results_unwanted = true;  // zeros may well be bad data: as a divisor, for one
  const Result<> ran = subject_.between_runs(id, *layout, faults, [&](const engine::Binding& binding) {
    engine::Pacer pacer(share_);
    for (int i = 0; i < repeats && done; ++i) {
      const TimePoint start = clock_.now();
      done = guarded([&] {
        return layout->plan->run({0, layout->plan->kernels()}, binding, {}, nullptr, &pacer);
      });
      durations.push_back(clock_.now() - start);
    }
  });
  if (brought) perform(UnloadCommand{.id = {}, .model = id});
  if (!ran) return std::unexpected(ran.error());
  if (!done) return in_context(name, done.error());
  return durations;
}

}  // namespace carillon::worker
