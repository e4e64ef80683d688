#include "carillon/server/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/prctl.h>

#include "carillon/engine/cuda/driver/nvml.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/library/plain.h"
#include "carillon/engine/cuda/memory/cuda_memory.h"
#include "carillon/engine/cuda/memory/ipc_memory.h"
#include "carillon/engine/cuda/open.h"
#include "carillon/engine/cuda/plan/cuda_engine.h"
#include "carillon/engine/cuda/table/step_table.h"

namespace carillon::server {

namespace {

namespace cuda = engine::cuda;

constexpr std::string_view emulated_name = "cuda-emulated", table_prefix = "cuda-emulated:";

// The driver of the process's emulated devices, for as long as anything of any of them lives.
std::shared_ptr<cuda::EmulatedHost> emulated_host() {
  static std::mutex mutex;
  static std::weak_ptr<cuda::EmulatedHost> the_one;
  const std::lock_guard lock(mutex);
  auto host = the_one.lock();
  if (host == nullptr)
    the_one = host = std::make_shared<cuda::EmulatedHost>(cuda::EmulatedOptions{.devices = 0});
  return host;
}

// The time that passes on emulated devices.
class EmulatedClock final : public Clock {
 public:
  explicit EmulatedClock(std::shared_ptr<const cuda::EmulatedHost> host) : host_(std::move(host)) {}
  TimePoint now() const override { return TimePoint{host_->device.now()}; }

 private:
  std::shared_ptr<const cuda::EmulatedHost> host_;
};

// Sleeps for as long as timers are exact, and gives way to others for the rest: runs may be short beside what
// timers are late by, and are not to be shorter than their table says.
void wait_until(const Clock& clock, TimePoint until) {
  constexpr Duration latest = 200us;  // beyond it, it was not the timer
  thread_local Duration usual = [] {
    (void)::prctl(PR_SET_TIMERSLACK, 1UL);
    return Duration{10us};
  }();
  if (const Duration time = until - clock.now() - usual; time > Duration{0}) {
    std::this_thread::sleep_for(time);
    usual += (std::clamp(clock.now() - (until - usual), Duration{0}, latest) - usual) / 16;
  }
  while (clock.now() < until) std::this_thread::yield();
}

auto maker_of_memory(const std::shared_ptr<const cuda::Driver>& driver, cuda::DeviceNumber device) {
  return [driver, device](std::uint64_t pages, Bytes io,
                          Bytes workspace) -> Result<std::unique_ptr<engine::DeviceMemory>> {
    return cuda::CudaMemory::make(driver, device, {.pages = pages, .io = io, .workspace = workspace});
  };
}

// What makes a device the table's.
void take_table(const cuda::StepTable& table, const Clock* clock, cuda::EmulatedOptions& options) {
  options.name = table.device;
  options.processors = table.processors;
  options.memory = table.memory;
  options.bytes_per_second = table.bus_bytes_per_s;
  options.memory_bytes_per_second = table.memory_bytes_per_s;
  options.copy = from_ns(1e3 * table.copy_us);
  options.computes = false;
  if (clock == nullptr) return;
  const TimePoint start = clock->now();
  options.time = [clock, start] { return clock->now() - start; };
  options.wait = [clock, start](Duration until) { wait_until(*clock, start + until); };
}

Result<CudaDevice> make_emulated(const CudaArguments& arguments, cuda::Number number) {
  cuda::EmulatedOptions options{.memory = std::uint64_t{80} << 30};
  std::optional<cuda::StepTable> table;
  if (arguments.device.starts_with(table_prefix)) {
    auto read = cuda::read_step_table(arguments.device.substr(table_prefix.size()));
    if (!read) return std::unexpected(read.error());
    table = std::move(*read);
    take_table(*table, arguments.clock, options);
  }
  const auto lost_from = std::make_shared<std::atomic<TimePoint>>(TimePoint::max());
  options.fails = [lost_from] {
    const TimePoint from = lost_from->load(std::memory_order_relaxed);
    return from != TimePoint::max() && SteadyClock().now() >= from;
  };
  const auto host = emulated_host();
  const std::shared_ptr<const cuda::Driver> driver(host, &host->driver);
  const cuda::DeviceNumber device = host->device.add_device(std::move(options));
  auto library = cuda::make_plain_library(driver, device);
  if (!library) return std::unexpected(library.error());
  CudaDevice made{
      .engine = {},
      .description = arguments.device + ": a CUDA device in this process, whose kernels the host computes",
      .notice = {},
      .uuid = {},
      .nvml = {},
      .free = {},
      .computes = !table,
      .clock = {},
      .lose_at = [lost_from](TimePoint from) { *lost_from = from; },
      .make_memory = maker_of_memory(driver, device),
      .ordinal = device,
      .importer = cuda::make_importer(driver, device)};
  cuda::CudaOptions engine_options{.number = number,
                                   .longest_kernel = arguments.longest_kernel,
                                   .splits = arguments.parts,
                                   .share = arguments.share};
  if (table) {
    made.description = fmt::format("{}: {}, {}, by a table of its steps' times; outputs are zeros",
                                   arguments.device, table->device, cuda::name_of(number));
    made.free = Bytes{table->memory};
    if (arguments.clock == nullptr) made.clock = std::make_shared<EmulatedClock>(host);
    *library = cuda::fusing_as(*table, std::move(*library));
    engine_options.times = cuda::times_by(std::move(*table), arguments.device.substr(table_prefix.size()));
  }
  auto chains = cuda::make_interpreted_chains(driver, device);
  if (!chains) return std::unexpected(chains.error());
  auto engine = cuda::make_cuda_engine(driver, device, "emulated", std::move(*library), engine_options,
                                       std::move(*chains));
  if (!engine) return std::unexpected(engine.error());
  made.engine = std::move(*engine);
  return made;
}

Result<CudaDevice> make_real(const CudaArguments& arguments, int ordinal, cuda::Number number) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  auto opened = cuda::open_device({.driver = arguments.driver,
                                   .ordinal = ordinal,
                                   .libraries = arguments.libraries,
                                   .choices = arguments.choices,
                                   .engine = {.number = number,
                                              .longest_kernel = arguments.longest_kernel,
                                              .splits = arguments.parts,
                                              .share = arguments.share}});
  if (!opened) return std::unexpected(opened.error());
  cuda::Uuid raw;
  std::string uuid, notice = std::move(opened->notice);
  if (opened->driver->device_uuid(&raw, opened->facts.device) == cuda::done) uuid = cuda::to_text(raw);
  auto nvml = cuda::Nvml::open();
  if (!nvml)
    notice += (notice.empty() ? "" : "; ") + ("there will be no metrics of the GPU: " + nvml.error().message);
  return CudaDevice{.engine = std::move(opened->engine),
                    .description = fmt::format("{}: {}, {} with {}{}", arguments.device, opened->facts.name,
                                               cuda::name_of(number), opened->libraries,
                                               opened->chains.empty() ? "" : ", chains by " + opened->chains),
                    .notice = std::move(notice),
                    .uuid = std::move(uuid),
                    .nvml = nvml ? *nvml : nullptr,
                    .free = opened->free,
                    .clock = {},
                    .lose_at = {},
                    .make_memory = maker_of_memory(opened->driver, opened->facts.device),
                    .ordinal = ordinal,
                    .importer = cuda::make_importer(opened->driver, opened->facts.device)};
}

}  // namespace

bool is_cuda(const std::string& device) {
  return device == "cuda" || device.starts_with("cuda:") || device == emulated_name ||
         device.starts_with(table_prefix);
}

Result<std::vector<std::string>> cuda_devices_of(const std::string& device) {
  if (device == "cuda") return std::vector<std::string>{"cuda:0"};
  constexpr std::string_view right =
      "after 'cuda:' come numbers of devices, from 0, with commas between them";
  std::vector<std::string> out;
  for (std::string_view rest = std::string_view(device).substr(5);;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view number = rest.substr(0, comma);
    if (number.empty())
      return invalid(fmt::format("'{}' is not a device: a number is missing {}; {}", device,
                                 out.empty() ? "after 'cuda:'" : "beside a comma", right));
    int value = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc::result_out_of_range)
      return invalid(fmt::format("'{}' is not a device: {} is larger than any device's number; {}", device,
                                 number, right));
    if (error != std::errc{} || end != number.data() + number.size() || value < 0)
      return invalid(
          fmt::format("'{}' is not a device: '{}' is not a number of one; {}", device, number, right));
    out.push_back(fmt::format("cuda:{}", value));
    if (comma == rest.size()) return out;
    rest.remove_prefix(comma + 1);
  }
}

Result<CudaDevice> make_cuda_device(const CudaArguments& arguments) {
  const std::string where = "--device " + arguments.device;
  const auto number = cuda::number_named(arguments.number);
  if (!number) return invalid("--cuda-number '" + arguments.number + "' is not f32, tf32, f16 or bf16");
  if (arguments.device == emulated_name || arguments.device.starts_with(table_prefix)) {
    auto made = make_emulated(arguments, *number);
    return made ? std::move(made) : in_context(where, made.error());
  }
  const auto listed = cuda_devices_of(arguments.device);
  if (!listed) return in_context(where, listed.error());
  if (listed->size() > 1) return invalid(where + ": this takes one device; several are for 'carillon serve'");
  const auto ordinal = cuda::device_in(listed->front());
  auto made = make_real(arguments, *ordinal, *number);
  return made ? std::move(made) : in_context(where, made.error());
}

}  // namespace carillon::server
