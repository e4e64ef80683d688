#include "carillon/frontend/admin/host.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

namespace carillon::frontend {
namespace {

std::string file_text(const char* file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The next number, which is taken off `text`.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

// Of a line "NAME:   123 kB".
std::optional<std::uint64_t> bytes_of(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos || (at > 0 && text[at - 1] != '\n')) return std::nullopt;
  std::string_view rest = text.substr(at + name.size());
  const auto kib = take_number(rest);
  if (!kib) return std::nullopt;
  return *kib * 1024;
}

Duration of(const timeval& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
}

}  // namespace

std::optional<ProcessorTicks> parse_stat(std::string_view text) {
  if (!text.starts_with("cpu ")) return std::nullopt;
  std::string_view line = text.substr(4, text.find('\n') - 4);
  // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user and nice already.
  ProcessorTicks ticks;
  for (int i = 0; i < 8; ++i) {
    const auto value = take_number(line);
    if (!value) return i >= 4 ? std::optional(ticks) : std::nullopt;
    ticks.total += *value;
    if (i != 3 && i != 4) ticks.busy += *value;
  }
  return ticks;
}

std::optional<HostStatistics> parse_meminfo(std::string_view text) {
  const auto total = bytes_of(text, "MemTotal:");
  const auto available = bytes_of(text, "MemAvailable:");
  if (!total || !available) return std::nullopt;
  return HostStatistics{
      .utilization = {}, .memory_total = *total, .memory_used = *total - std::min(*total, *available)};
}

std::optional<HostStatistics> HostWatch::look() {
  auto out = parse_meminfo(file_text("/proc/meminfo"));
  if (!out) return out;
  const auto ticks = parse_stat(file_text("/proc/stat"));
  const std::lock_guard lock(mutex_);
  // Between two looks that follow at once no tick may have passed.
  if (ticks && (!last_ || ticks->total > last_->total)) {
    if (last_)
      utilization_ = std::clamp(static_cast<double>(ticks->busy - std::min(ticks->busy, last_->busy)) /
                                    static_cast<double>(ticks->total - last_->total),
                                0.0, 1.0);
    last_ = ticks;
  }
  out->utilization = utilization_;
  return out;
}

std::optional<ProcessStatistics> process_statistics() {
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) != 0) return std::nullopt;
  const std::string pages = file_text("/proc/self/statm");
  std::string_view rest = pages;
  (void)take_number(rest);
  const auto resident = take_number(rest);
  if (!resident) return std::nullopt;
  return ProcessStatistics{.cpu = of(used.ru_utime) + of(used.ru_stime),
                           .resident = *resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))};
}

}  // namespace carillon::frontend
