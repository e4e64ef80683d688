#include "carillon/controller/models/measure_aside.h"

#include <algorithm>
#include <chrono>

#include "carillon/base/processors.h"
#include "carillon/engine/host/memory.h"
#include "carillon/engine/zero_operands.h"

namespace carillon::controller {
namespace {

template <typename Body>
Result<Duration> timed(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  if (auto done = body(); !done) return std::unexpected(done.error());
  return std::max<Duration>(Duration{1}, std::chrono::steady_clock::now() - begin);
}

}  // namespace

AsideWatch::AsideWatch(engine::Engine& engine, const engine::CompiledModel& model, int threads)
    : engine_(engine), model_(model), threads_(threads > 0 ? threads : usable_processors()) {}

// The weights once more, for as long as it is measured.
Result<> AsideWatch::prepare() {
  if (weights_) return {};
  if (const auto left = engine::available_memory(); left && left->count < model_.weights().count)
    return fail(ErrorCode::resource_exhausted, "to measure it takes " + to_text(model_.weights()) +
                                                   ", and the machine has " + to_text(*left) + " left");
  auto team = engine_.make_team({.threads = threads_});
  if (!team) return std::unexpected(team.error());
  team_ = std::move(*team);
  weights_.emplace(engine::zero_block(model_.weights()));
  auto written = model_.write_weights(0, weights_->bytes().first(model_.weights().count));
  if (!written) weights_.reset();
  return written;
}

Result<std::vector<Duration>> AsideWatch::exec(int batch, int repeats, std::int64_t length,
                                               std::string* refused) {
  const engine::Plan* plan = model_.plan(batch, length);
  if (plan == nullptr && model_.spare() != nullptr && model_.spare()->batch() == batch) plan = model_.spare();
  if (plan == nullptr)
    return fail(ErrorCode::internal, "there is no plan for batch " + std::to_string(batch));
  return exec(*plan, repeats, refused);
}

Result<std::vector<Duration>> AsideWatch::exec(const engine::Plan& plan, int repeats, std::string* refused) {
  if (auto own = engine_.measure(model_, plan, repeats)) return std::move(*own);
  if (auto ready = prepare(); !ready) return std::unexpected(ready.error());
  engine::ZeroOperands operands(plan, weights_->bytes().data(), team_.get());
  return engine::measure_on_made_up(
      {.fill = [&](int way) { operands.fill(way); },
       .run =
           [&] {
             return plan.run({0, plan.kernels()}, operands.binding(), {});
           },
       .usable = [&] { return model_.usable(); },
       .now = [] { return TimePoint{std::chrono::steady_clock::now().time_since_epoch()}; },
       .faults = &operands.faults()},
      repeats, choice_, refused);
}

Result<std::vector<Duration>> AsideWatch::load(int repeats) {
  if (auto ready = prepare(); !ready) return std::unexpected(ready.error());
  const std::uint64_t pages = pages_for(model_.weights());
  if (pages == 0) return std::vector<Duration>(static_cast<std::size_t>(repeats), Duration{1});
  constexpr std::uint64_t measured = 4;  // 64 MiB: some ten milliseconds
  const std::uint64_t bytes = std::min(model_.weights().count, measured * page_size.count);
  const double all = static_cast<double>(model_.weights().count) / static_cast<double>(bytes);
  std::vector<Duration> out;
  for (int i = 0; i < repeats; ++i) {
    const auto took = timed([&] { return model_.write_weights(0, weights_->bytes().first(bytes)); });
    if (!took) return std::unexpected(took.error());
    out.push_back(from_ns(static_cast<double>(took->count()) * all));
  }
  return out;
}

Result<std::optional<Duration>> measure_later(engine::Engine& engine, const engine::CompiledModel& model,
                                              const engine::Plan& plan, int threads,
                                              const std::atomic<bool>& ended) {
  constexpr Duration long_run = std::chrono::milliseconds{200};
  constexpr int repeats = 3;  // after one that warms up
  AsideWatch watch(engine, model, threads);
  std::string refused;
  std::optional<Duration> least;
  for (int i = 0; i <= repeats && !ended && (i == 0 || *least < long_run); ++i) {
    const auto took = watch.exec(plan, 1, &refused);
    if (!took) return std::unexpected(took.error());
    if (!refused.empty()) return std::nullopt;
    least = i <= 1 ? took->front() : std::min(*least, took->front());
  }
  return ended ? std::nullopt : least;
}

}  // namespace carillon::controller
