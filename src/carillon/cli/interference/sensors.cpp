#include "carillon/cli/interference/sensors.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <system_error>

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace carillon::cli {
namespace {

namespace fs = std::filesystem;

std::optional<double> read_number(const fs::path& file) {
  std::ifstream in(file);
  double value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

// The folders in `parent` whose names begin so, sorted.
std::vector<fs::path> folders(const fs::path& parent, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(parent, failure))
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

}  // namespace

CpuSensors::CpuSensors(const fs::path& root, bool counters) {
  find_frequency(root);
  find_power(root);
  if (!counters) {
    missing_.push_back("cache: performance counters are not asked for");
  } else if (const int error = open_counters(); error != 0) {
    missing_.push_back(
        std::string("cache: no counter of cache misses (perf_event_open: ") + std::strerror(error) +
        (error == EACCES || error == EPERM ? "; it needs CAP_PERFMON or kernel.perf_event_paranoid <= 2)"
                                           : ")"));
  } else {
    counts_ = true;
    close_counters();
  }
}

CpuSensors::~CpuSensors() {
  close_counters();
}

void CpuSensors::find_frequency(const fs::path& root) {
  for (const fs::path& cpu : folders(root / "sys/devices/system/cpu", "cpu")) {
    const auto now = cpu / "cpufreq/scaling_cur_freq";
    if (!read_number(now)) continue;
    frequencies_.push_back(now);
    if (const auto most = read_number(cpu / "cpufreq/cpuinfo_max_freq"))
      max_frequency_ = std::max(max_frequency_.value_or(0), *most / 1000);
  }
  if (frequencies_.empty())
    missing_.push_back("frequency: no cpufreq/scaling_cur_freq under /sys/devices/system/cpu");
}

void CpuSensors::find_power(const fs::path& root) {
  bool there = false;
  for (const fs::path& zone : folders(root / "sys/class/powercap", "intel-rapl:")) {
    // "intel-rapl:0" is a package, "intel-rapl:0:1" a part of it.
    if (std::ranges::count(zone.filename().string(), ':') != 1) continue;
    there = true;
    Package package{.energy = zone / "energy_uj"};
    if (!read_number(package.energy)) continue;
    package.range = read_number(zone / "max_energy_range_uj").value_or(0);
    packages_.push_back(package);
    if (const auto cap = read_number(zone / "constraint_0_power_limit_uw"); cap && *cap > 0)
      power_cap_ = power_cap_.value_or(0) + *cap / 1e6;
  }
  if (packages_.empty())
    missing_.push_back(there ? "power: energy_uj under /sys/class/powercap cannot be read (it needs root)"
                             : "power: no RAPL package under /sys/class/powercap");
}

int CpuSensors::open_counters() {
  for (const fs::path& task : folders("/proc/self/task", "")) {
    const std::string name = task.filename().string();
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec != std::errc{}) continue;
    perf_event_attr attributes{};
    attributes.type = PERF_TYPE_HARDWARE;
    attributes.size = sizeof attributes;
    attributes.config = PERF_COUNT_HW_CACHE_MISSES;
    attributes.inherit = 1;
    attributes.exclude_kernel = 1;  // what unprivileged programs may count
    attributes.exclude_hv = 1;
    const long opened = syscall(SYS_perf_event_open, &attributes, thread, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (opened >= 0) {
      counters_.push_back(static_cast<int>(opened));
    } else if (errno != ESRCH) {  // a thread that has just ended
      const int error = errno;
      close_counters();
      return error;
    }
  }
  return 0;
}

void CpuSensors::close_counters() {
  for (const int each : counters_) close(each);
  counters_.clear();
}

std::optional<double> CpuSensors::misses() const {
  if (counters_.empty()) return std::nullopt;
  double sum = 0;
  for (const int each : counters_) {
    std::uint64_t count = 0;
    if (read(each, &count, sizeof count) != sizeof count) return std::nullopt;
    sum += static_cast<double>(count);
  }
  return sum;
}

void CpuSensors::start(TimePoint now) {
  started_ = now;
  for (Package& package : packages_) package.at_start = read_number(package.energy).value_or(0);
  close_counters();
  if (counts_) open_counters();
}

CpuSensors::Reading CpuSensors::stop(TimePoint now) {
  const double seconds = std::max(1e-9, to_seconds(now - started_));
  Reading reading;
  double joules = 0;
  for (const Package& package : packages_) {
    double used = read_number(package.energy).value_or(0) - package.at_start;
    if (used < 0) used += package.range;
    joules += used / 1e6;
  }
  if (!packages_.empty()) reading.power_w = std::max(0.0, joules / seconds);
  double sum = 0;
  std::size_t count = 0;
  for (const fs::path& file : frequencies_)
    if (const auto kilohertz = read_number(file); kilohertz && *kilohertz > 0)
      sum += *kilohertz / 1000, ++count;
  if (count > 0) reading.frequency_mhz = sum / static_cast<double>(count);
  if (const auto now_misses = misses()) reading.misses_per_second = *now_misses / seconds;
  close_counters();
  return reading;
}

}  // namespace carillon::cli
