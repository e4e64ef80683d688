#pragma once

#include <cstdint>
#include <optional>

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "carillon/base/cpu_time.h"

namespace carillon::cli {

// Instructions of this thread, where the system lets them be counted.
class InstructionCounter {
 public:
  InstructionCounter() {
    perf_event_attr attributes{};
    attributes.type = PERF_TYPE_HARDWARE;
    attributes.size = sizeof(attributes);
    attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
    attributes.exclude_kernel = 1;
    attributes.exclude_hv = 1;
    descriptor_ = static_cast<int>(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0UL));
  }
  ~InstructionCounter() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  InstructionCounter(const InstructionCounter&) = delete;
  InstructionCounter& operator=(const InstructionCounter&) = delete;

  std::optional<std::uint64_t> now() const {
    std::uint64_t count = 0;
    if (descriptor_ < 0 || read(descriptor_, &count, sizeof(count)) != sizeof(count)) return std::nullopt;
    return count;
  }

 private:
  int descriptor_ = -1;
};

struct Cost {
  double ns = 0;
  std::optional<double> instructions;
};

template <typename Do>
Cost measure(int times, const InstructionCounter& counter, Do&& once) {
  for (int i = 0; i < times / 10; ++i) once();
  const int counted = times - times / 10;
  const auto instructions = counter.now();
  const Duration from = thread_cpu_time();
  for (int i = 0; i < counted; ++i) once();
  const Duration took = thread_cpu_time() - from;
  Cost cost{.ns = static_cast<double>(took.count()) / counted, .instructions = std::nullopt};
  if (const auto after = counter.now(); instructions && after)
    cost.instructions = static_cast<double>(*after - *instructions) / counted;
  return cost;
}

}  // namespace carillon::cli
