#include "carillon/cli/kernel_times.h"

#include <algorithm>
#include <string>
#include <utility>

#include "carillon/engine/made_up.h"
#include "carillon/engine/zero_operands.h"

namespace carillon::cli {
namespace {

// Of each kernel the mean of several runs on `team`.
Result<std::vector<Duration>> time_kernels(const engine::CompiledModel& model, const engine::Plan& plan,
                                           engine::Team* team, const std::byte* weights,
                                           const KernelTimesOptions& options, const Clock& clock) {
  engine::ZeroOperands operands(plan, weights, team);
  const auto count = static_cast<std::size_t>(plan.kernels());
  std::vector<Duration> each(count), sum(count, Duration{0});
  engine::MadeUpChoice choice;
  const auto warm =
      engine::measure_on_made_up({.fill = [&](int way) { operands.fill(way); },
                                  .run =
                                      [&] {
                                        return plan.run({0, plan.kernels()}, operands.binding(), each);
                                      },
                                  .usable = [&] { return model.usable(); },
                                  .now = [&] { return clock.now(); },
                                  .faults = &operands.faults()},
                                 1, choice, nullptr);
  if (!warm) return std::unexpected(warm.error());
  const TimePoint end = clock.now() + options.at_most;
  int runs = 0;
  do {
    if (auto done = plan.run({0, plan.kernels()}, operands.binding(), each); !done)
      return std::unexpected(done.error());
    for (std::size_t k = 0; k < count; ++k) sum[k] += each[k];
  } while (++runs < options.repeats && clock.now() < end);
  for (Duration& time : sum) time /= runs;
  return sum;
}

}  // namespace

Result<std::vector<profile::KernelTimes>> measure_kernels(engine::Engine& engine,
                                                          const engine::CompiledModel& model,
                                                          const KernelTimesOptions& options,
                                                          const Clock& clock) {
  auto weights = engine::zero_block(model.weights());
  if (auto written = model.write_weights(0, weights.bytes().first(model.weights().count)); !written)
    return std::unexpected(written.error());
  std::vector<std::int64_t> lengths(model.lengths().begin(), model.lengths().end());
  if (lengths.empty()) lengths.push_back(0);
  std::vector<profile::KernelTimes> all;
  for (const std::int64_t length : lengths)
    for (const int batch : model.batch_sizes()) {
      const engine::Plan& plan = *model.plan(batch, length);
      const std::size_t first = all.size();
      for (int k = 0; k < plan.kernels(); ++k)
        all.push_back({.batch = batch,
                       .name = std::string(plan.kernel_name(k)),
                       .length = length,
                       .parts = plan.kernel_parts(k)});
      for (int width = 1; width <= options.threads; ++width) {
        auto team = engine.make_team({.threads = width});
        if (!team) return std::unexpected(team.error());
        const auto times = time_kernels(model, plan, team->get(), weights.bytes().data(), options, clock);
        if (!times)
          return in_context("batch " + std::to_string(batch) + " on " + std::to_string(width) + " threads",
                            times.error());
        for (std::size_t k = 0; k < times->size(); ++k) {
          all[first + k].by_width.push_back((*times)[k]);
          all[first + k].mean = (*times)[k];
        }
      }
    }
  return all;
}

}  // namespace carillon::cli
