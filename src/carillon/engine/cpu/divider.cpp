#include "carillon/engine/cpu/divider.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

namespace carillon::engine::cpu {

// A primitive with memory that it runs on.
struct Divider::Trial {
  const dnnl::primitive* primitive = nullptr;
  Arena* arena = nullptr;
  std::unordered_map<int, dnnl::memory> arguments;
  dnnl::stream stream;
};

Arena& Divider::arena(int parts) {
  std::unique_ptr<Arena>& found = arenas_[parts];
  if (!found) found = std::make_unique<Arena>(parts);
  return *found;
}

Duration Divider::time(Trial& trial) {
  Duration took{0};
  trial.arena->execute([&] {
    const auto start = std::chrono::steady_clock::now();
    trial.primitive->execute(trial.stream, trial.arguments);
    took = std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - start);
  });
  return took;
}

Divider::Choice Divider::choose(Made made, int parts, const std::vector<DnnlKernel::Argument>& arguments,
                                const std::function<std::optional<Made>()>& again) {
  const auto room = [this](std::size_t operand, std::uint64_t size) {
    while (memory_.size() <= operand) memory_.emplace_back();
    HostBlock& block = memory_[operand];
    if (block.bytes().size() < size) block.append(size - block.bytes().size());
    return block.bytes().data();
  };
  const auto trial = [&](const Made& tried, int in_parts) {
    Trial prepared{.primitive = &tried.primitive,
                   .arena = &arena(in_parts),
                   .arguments = {},
                   .stream = dnnl::stream(engine_)};
    for (std::size_t i = 0; i < arguments.size(); ++i)
      prepared.arguments.emplace(
          arguments[i].id,
          dnnl::memory(arguments[i].desc, engine_, room(i + 1, arguments[i].desc.get_size())));
    if (!tried.scratchpad.is_zero() && tried.scratchpad.get_size() > 0)
      prepared.arguments.emplace(
          DNNL_ARG_SCRATCHPAD,
          dnnl::memory(tried.scratchpad, engine_, room(0, tried.scratchpad.get_size())));
    time(prepared);  // touches the memory, fills caches
    return prepared;
  };
  Trial first = trial(made, parts);
  const Duration rough = std::min(time(first), time(first));
  const auto worth = std::min<std::int64_t>(most_parts, rough / least_part);
  for (int tried = worth < 2 ? 0 : static_cast<int>(std::bit_floor(static_cast<std::uint64_t>(worth)));
       tried > parts; tried /= 2) {
    std::optional<Made> other;
    arena(tried).execute([&] {
      try {
        other = again();
      } catch (const dnnl::error&) {
        other.reset();  // not for so many parts
      }
    });
    if (!other || other->implementation != made.implementation) continue;
    Trial second = trial(*other, tried);
    first = trial(made, parts);  // the scratchpads' memory may have moved
    Duration best = Duration::max(), best_other = Duration::max(), spent{0};
    for (int round = 0; round < 4 || (round < 40 && spent < std::chrono::milliseconds{30}); ++round) {
      const Duration one = time(first), two = time(second);
      best = std::min(best, one);
      best_other = std::min(best_other, two);
      spent += one + two;
    }
    if (best_other <= from_ns(static_cast<double>(best.count()) * (1 + cost_)))
      return {.made = std::move(*other), .parts = tried};
  }
  return {.made = std::move(made), .parts = parts};
}

}  // namespace carillon::engine::cpu
