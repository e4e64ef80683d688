#include "carillon/base/processors.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include "carillon/base/control_groups.h"

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

// Those that the process's first thread may run on: threads that are pinned know only their own.
int allowed_processors() {
  for (int bits = CPU_SETSIZE; bits <= most_set_bits; bits *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(bits));
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(bits));
    const bool told = sched_getaffinity(getpid(), size, set) == 0;
    const bool too_small = !told && errno == EINVAL;
    const int count = told ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
    if (!too_small) break;
  }
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
  ProcessorLimits limits{.allowed = allowed > 0 ? allowed : allowed_processors()};
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

bool UsableProcessors::set(ProcessorLimits limits) {
  limits_ = std::move(limits);
  return now_.exchange(limits_.usable(), std::memory_order_relaxed) != limits_.usable();
}

}  // namespace carillon
