#include "carillon/cli/kernel_times.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "carillon/graph/faults.h"
#include "carillon/graph/tensor.h"

namespace carillon::cli {
namespace {

// Zeros, at an address that plans want.
graph::Tensor block(std::uint64_t size) {
  graph::Tensor made(
      {graph::DataType::u8, {static_cast<std::int64_t>(std::max<std::uint64_t>(size, 1))}});
  std::memset(made.bytes().data(), 0, made.bytes().size());
  return made;
}

std::vector<graph::Tensor> tensors(std::span<const graph::TensorSpec> specs) {
  std::vector<graph::Tensor> made;
  for (const graph::TensorSpec& spec : specs)
    made.push_back(block(graph::TensorType{spec.type, spec.shape}.bytes().count));
  return made;
}

// Of each kernel the mean of several runs on `team`.
Result<std::vector<Duration>> time_kernels(const engine::Plan& plan, engine::Team* team,
                                           const std::byte* weights, const KernelTimesOptions& options,
                                           const Clock& clock) {
  auto inputs = tensors(plan.inputs()), outputs = tensors(plan.outputs());
  auto workspace = block(plan.workspace().count);
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (auto& tensor : inputs) from.push_back(tensor.bytes().data());
  for (auto& tensor : outputs) to.push_back(tensor.bytes().data());
  const auto state = plan.make_state(team);
  graph::Faults faults;
  faults.results_unwanted = true;  // zeros may well be bad data
  const engine::Binding binding{.inputs = from,
                                .outputs = to,
                                .workspace = workspace.bytes().data(),
                                .weights = weights,
                                .faults = &faults,
                                .state = state.get()};
  const auto count = static_cast<std::size_t>(plan.kernels());
  std::vector<Duration> each(count), sum(count, Duration{0});
  if (auto warm = plan.run({0, plan.kernels()}, binding, each); !warm) return std::unexpected(warm.error());
  const TimePoint end = clock.now() + options.at_most;
  int runs = 0;
  do {
    faults.clear();
    if (auto done = plan.run({0, plan.kernels()}, binding, each); !done)
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
  auto weights = block(model.weights().count);
  model.write_weights(0, weights.bytes().first(model.weights().count));
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
        const auto times = time_kernels(plan, team->get(), weights.bytes().data(), options, clock);
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
