#include "carillon/base/processors.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include <sched.h>
#include <unistd.h>

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

std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

std::optional<std::int64_t> number(std::string_view word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return value;
}

bool lists(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const std::string_view one = names.substr(0, names.find(','));
    if (one == name) return true;
    names.remove_prefix(std::min(names.size(), one.size() + 1));
  }
  return false;
}

// Spaces and the like in paths of mountinfo: "\040".
std::string unescaped(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '7'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && digit(text[i + 1]) && digit(text[i + 2]) &&
        digit(text[i + 3])) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
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

std::vector<QuotaGroup> quota_groups(std::string_view self_cgroup, std::string_view mountinfo) {
  std::vector<QuotaGroup> groups;
  while (!self_cgroup.empty()) {  // "0::/a/b", or "5:cpu,cpuacct:/a/b" in version 1
    std::string_view line = next_line(self_cgroup);
    const std::size_t first = line.find(':'), second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && !lists(controllers, "cpu")) continue;
    const fs::path group(line.substr(second + 1));

    // "36 35 98:0 /ROOT /MOUNTED options optional... - TYPE SOURCE OPTIONS"
    for (std::string_view left = mountinfo; !left.empty();) {
      std::string_view mount = next_line(left);
      for (int i = 0; i < 3; ++i) next_word(mount);
      const fs::path shown(unescaped(next_word(mount))), at(unescaped(next_word(mount)));
      const std::size_t dash = mount.find(" - ");
      if (dash == mount.npos) continue;
      mount.remove_prefix(dash + 3);
      const std::string_view type = next_word(mount);
      next_word(mount);
      if (v2 ? type != "cgroup2" : type != "cgroup" || !lists(next_word(mount), "cpu")) continue;
      fs::path below = group.lexically_relative(shown);
      // A group that is not shown here: its quota is what the mount says.
      if (below.empty() || *below.begin() == "..") below = ".";
      for (;; below = below.parent_path()) {
        const bool top = below.empty() || below == ".";
        groups.push_back({top ? at : at / below, v2});
        if (top) break;
      }
      break;
    }
  }
  return groups;
}

ProcessorLimits processor_limits(const fs::path& root, int allowed) {
  ProcessorLimits limits{.allowed = allowed > 0 ? allowed : allowed_processors()};
  for (const QuotaGroup& group :
       quota_groups(text_of(root / "proc/self/cgroup"), text_of(root / "proc/self/mountinfo"))) {
    const fs::path folder = root / group.folder.relative_path();
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
