#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "carillon/base/time.h"

namespace carillon::frontend {

// Of the machine, as far as the system tells; in a container still the machine's.
struct HostStatistics {
  std::optional<double> utilization;  // of all processors since the last look, 0 to 1; none: nobody knows yet
  std::uint64_t memory_total = 0;     // bytes
  std::uint64_t memory_used = 0;
};

// Of this program.
struct ProcessStatistics {
  Duration cpu{0};
  std::uint64_t resident = 0;  // bytes
};
std::optional<ProcessStatistics> process_statistics();

// What all processors have done since the machine's start, in ticks (proc(5), /proc/stat).
struct ProcessorTicks {
  std::uint64_t busy = 0;
  std::uint64_t total = 0;
};
std::optional<ProcessorTicks> parse_stat(std::string_view text);
// /proc/meminfo; utilization is left out.
std::optional<HostStatistics> parse_meminfo(std::string_view text);

// Looks at the machine. Safe from any thread.
class HostWatch {
 public:
  std::optional<HostStatistics> look();

 private:
  std::mutex mutex_;
  std::optional<ProcessorTicks> last_;
  std::optional<double> utilization_;
};

}  // namespace carillon::frontend
