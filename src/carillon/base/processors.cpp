#include "carillon/base/processors.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>
#include <unistd.h>

#include "carillon/base/control_groups.h"
#include "carillon/base/cpu_time.h"

namespace carillon {
namespace {

namespace fs = std::filesystem;

// More than any machine has: what a number beyond it means is not known.
constexpr double most_processors = 1 << 20;
constexpr int most_set_bits = 1 << 16;

std::string_view next_word(std::string_view& text) {
  constexpr std::string_view blanks = " \t\n";
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(blanks)));
  const std::string_view word = text.substr(0, text.find_first_of(blanks));
  text.remove_prefix(word.size());
  return word;
}

std::optional<std::int64_t> number(std::string_view word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return value;
}

}  // namespace

std::vector<int> allowed_processors() {
  std::vector<int> out;
  for (int bits = CPU_SETSIZE; bits <= most_set_bits; bits *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(bits));
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(bits));
    const bool told = sched_getaffinity(getpid(), size, set) == 0;
    const bool too_small = !told && errno == EINVAL;
    for (int i = 0; told && i < bits; ++i)
      if (CPU_ISSET_S(static_cast<std::size_t>(i), size, set)) out.push_back(i);
    CPU_FREE(set);
    if (!too_small) break;
  }
  return out;
}

namespace {

int count_of(const std::vector<int>& allowed) {
  if (!allowed.empty()) return static_cast<int>(allowed.size());
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

int ProcessorLimits::usable() const {
  if (!quota) return std::max(1, allowed);
  return std::clamp(static_cast<int>(std::ceil(*quota - 1e-6)), 1, std::max(1, allowed));
}

std::string to_text(const ProcessorLimits& limits) {
  const int usable = limits.usable();
  std::string text = std::to_string(usable) + (usable == 1 ? " processor" : " processors") + " may be used (";
  if (limits.quota) {
    char quota[32];
    std::snprintf(quota, sizeof quota, "%.3g", *limits.quota);
    text += "a quota of " + std::string(quota) + " in " + limits.quota_file + "; ";
  }
  return text + "the process may run on " + std::to_string(limits.allowed) + ")";
}

std::optional<double> quota_of(std::string_view cpu_max) {
  const std::string_view quota = next_word(cpu_max), period = next_word(cpu_max);
  return quota_of(quota, period);
}

std::optional<double> quota_of(std::string_view quota, std::string_view period) {
  const auto most = number(next_word(quota)), of = number(next_word(period));
  if (!most || !of || *most <= 0 || *of <= 0) return std::nullopt;
  const double processors = static_cast<double>(*most) / static_cast<double>(*of);
  if (processors > most_processors) return std::nullopt;
  return processors;
}

ProcessorLimits processor_limits(const fs::path& root, int allowed) {
  ProcessorLimits limits{.allowed = allowed > 0 ? allowed : count_of(allowed_processors())};
  for (const ControlGroup& group : control_groups("cpu", root)) {
    const fs::path& folder = group.folder;
    const fs::path file = folder / (group.v2 ? "cpu.max" : "cpu.cfs_quota_us");
    const auto quota =
        group.v2 ? quota_of(text_of(file)) : quota_of(text_of(file), text_of(folder / "cpu.cfs_period_us"));
    if (!quota || (limits.quota && *limits.quota <= *quota)) continue;
    limits.quota = quota;
    limits.quota_file = file.string();
  }
  return limits;
}

int usable_processors() {
  return processor_limits().usable();
}

std::optional<Duration> idle_time(std::string_view proc_stat, const std::vector<int>& of) {
  std::int64_t ticks = 0;
  std::size_t found = 0;
  for (std::string_view left = proc_stat; !left.empty();) {
    std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    std::string_view name = next_word(line);
    if (!name.starts_with("cpu")) continue;
    name.remove_prefix(3);
    const auto which = number(name);
    if (!which || std::ranges::find(of, *which) == of.end()) continue;
    // user nice system idle iowait
    std::array<std::int64_t, 5> times{};
    for (std::int64_t& time : times) {
      const auto told = number(next_word(line));
      if (!told || *told < 0) return std::nullopt;
      time = *told;
    }
    ticks += times[3] + times[4];
    ++found;
  }
  if (found < of.size()) return std::nullopt;
  static const std::int64_t per_second = std::max<std::int64_t>(1, sysconf(_SC_CLK_TCK));
  return std::chrono::seconds{ticks / per_second} +
         Duration{std::chrono::seconds{1}} * (ticks % per_second) / per_second;
}

double OthersUse::look(std::vector<int> of) {
  Times now{.wall = read_clock(CLOCK_MONOTONIC),
            .idle = {},
            .own = process_cpu_time(),
            .processors = std::move(of)};
  now.idle = idle_time(text_of("/proc/stat"), now.processors);
  return look(std::move(now));
}

double OthersUse::look(Times now) {
  const std::optional<Times> before = std::exchange(before_, now);
  if (!before || !before->idle || !now.idle || now.processors.empty() ||
      before->processors != now.processors || now.wall <= before->wall)
    return 0;
  const auto count = static_cast<double>(now.processors.size());
  const double wall = to_seconds(now.wall - before->wall);
  const double used =
      count * wall - to_seconds(*now.idle - *before->idle) - to_seconds(now.own - before->own);
  return std::clamp(used / wall, 0.0, count);
}

bool UsableProcessors::look() {
  std::vector<int> allowed = allowed_processors();
  ProcessorLimits limits = processor_limits("/", count_of(allowed));
  return set(std::move(limits), others_.look(std::move(allowed)));
}

bool UsableProcessors::set(ProcessorLimits limits, double taken_by_others) {
  limits_ = std::move(limits);
  free_.store(std::max(0.0, limits_.allowed - taken_by_others), std::memory_order_relaxed);
  return now_.exchange(limits_.usable(), std::memory_order_relaxed) != limits_.usable();
}

}  // namespace carillon
