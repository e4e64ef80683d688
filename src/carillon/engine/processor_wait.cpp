#include "carillon/engine/processor_wait.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "carillon/base/descriptor.h"

namespace carillon::engine {
namespace {

// Words that blanks part; nothing where there are no more.
class Words {
 public:
  explicit Words(std::string_view text) : rest_(text) {}
  std::optional<std::string_view> next() {
    const auto begin = rest_.find_first_not_of(" \n");
    if (begin == std::string_view::npos) return std::nullopt;
    rest_.remove_prefix(begin);
    const std::string_view word = rest_.substr(0, rest_.find_first_of(" \n"));
    rest_.remove_prefix(word.size());
    return word;
  }
  std::optional<std::int64_t> number() {
    const auto word = next();
    if (!word) return std::nullopt;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word->data(), word->data() + word->size(), value);
    if (error != std::errc{} || end != word->data() + word->size() || value < 0) return std::nullopt;
    return value;
  }
  bool skip(int words) {
    for (int i = 0; i < words; ++i)
      if (!next()) return false;
    return true;
  }

 private:
  std::string_view rest_;
};

std::string read_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) return {};
  std::array<char, 1024> room{};
  const ssize_t got = ::read(file.number(), room.data(), room.size());
  return got <= 0 ? std::string() : std::string(room.data(), static_cast<std::size_t>(got));
}

std::string folder_of(pid_t process) {
  return "/proc/" + (process == 0 ? std::string("self") : std::to_string(process)) + "/task/";
}

}  // namespace

Duration wait_between(const ThreadTimes& before, const ThreadTimes& after, Duration passed) {
  const Duration idle = passed - std::clamp(after.ran - before.ran, Duration{0}, passed);
  return after.runnable ? idle : std::clamp(after.waited - before.waited, Duration{0}, idle);
}

std::optional<ThreadTimes> parse_times(std::string_view schedstat, std::string_view stat) {
  // The thread's name stands in brackets, and may have any in it.
  const auto name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  Words fields(stat.substr(name_end + 1));
  const auto state = fields.next();
  if (!state) return std::nullopt;
  ThreadTimes out{.runnable = *state == "R"};
  Words counted(schedstat);
  const auto ran = counted.number(), waited = counted.number();
  if (ran && waited) {
    out.ran = Duration{*ran};
    out.waited = Duration{*waited};
    return out;
  }
  // Fields 14 and 15 of proc(5): what it ran as itself, and in the system, in ticks.
  if (!fields.skip(10)) return std::nullopt;
  const auto user = fields.number(), system = fields.number();
  const long ticks = ::sysconf(_SC_CLK_TCK);
  constexpr std::int64_t most = std::int64_t{1} << 40;
  if (!user || !system || *user > most || *system > most || ticks <= 0) return std::nullopt;
  out.ran = (*user + *system) * (Duration(std::chrono::seconds{1}) / ticks);
  return out;
}

Duration ProcessorWait::longest(std::span<const pid_t> threads, TimePoint now) {
  const Duration passed = looked_ == TimePoint::min() ? Duration{0} : now - looked_;
  Duration longest{0};
  seeing_.clear();
  for (const pid_t thread : threads) {
    const std::string at = folder_of(process_) + std::to_string(thread);
    const auto times = parse_times(read_file(at + "/schedstat"), read_file(at + "/stat"));
    if (!times) continue;
    if (const auto before = seen_.find(thread); before != seen_.end())
      longest = std::max(longest, wait_between(before->second, *times, passed));
    seeing_.emplace(thread, *times);
  }
  std::swap(seen_, seeing_);
  looked_ = now;
  return longest;
}

Duration ProcessorWait::longest_of_all(TimePoint now) {
  std::vector<pid_t> threads;
  if (DIR* const folder = ::opendir(folder_of(process_).c_str())) {
    while (const dirent* const entry = ::readdir(folder)) {
      const std::string_view name = entry->d_name;
      pid_t thread = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), thread);
      if (error == std::errc{} && end == name.data() + name.size()) threads.push_back(thread);
    }
    ::closedir(folder);
  }
  return longest(threads, now);
}

}  // namespace carillon::engine
