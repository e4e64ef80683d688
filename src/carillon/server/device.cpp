#include "carillon/server/device.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <mutex>

#include "carillon/engine/cpu/candidates.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cuda/driver/nvml.h"
#include "carillon/engine/emulated/emulated_engine.h"
#include "carillon/engine/host/memory.h"
#include "carillon/engine/onnxruntime/onnxruntime.h"
#include "carillon/engine/openvino/openvino.h"
#include "carillon/engine/second/second_engine.h"
#include "carillon/profile/profile.h"
#include "carillon/server/cuda_device.h"
#include "carillon/worker/placement.h"

namespace carillon::server {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown";
}

Result<> read_size(const char* option, const std::string& text, Bytes least, Bytes& into) {
  if (text.empty()) return {};
  const auto size = parse_bytes(text);
  if (!size) return in_context(option, size.error());
  if (*size < least) return invalid(std::string(option) + ": " + text + " is less than " + to_text(least));
  into = *size;
  return {};
}

int threads_of(const DeviceArguments& arguments) {
  if (arguments.threads != 0) return arguments.threads;
  return arguments.processors != nullptr ? arguments.processors->now() : usable_processors();
}

engine::second::ApartOptions processes_of(const DeviceArguments& arguments) {
  engine::second::ApartOptions options;
  options.tell = arguments.warn;
  // With time to spare for the end of the process: what hangs is then that model's trouble, and not the
  // device's.
  if (arguments.hangs_after > Duration{0}) options.runs.least = arguments.hangs_after / 4 * 3;
  return options;
}

Result<device::ClassStreams> classes_of(const DeviceArguments& arguments, int threads) {
  const int cores = static_cast<int>(worker::usable_cores().size());
  const int most = std::min({threads, cores, worker::most_best_effort});
  device::ClassStreams classes{.units = std::min({threads, cores, 64}),
                               .real_time_units = arguments.real_time_threads,
                               .best_effort = most};
  if (arguments.best_effort_streams != 0) classes.best_effort = arguments.best_effort_streams;
  if (classes.best_effort < 1 || classes.best_effort > most)
    return invalid("--best-effort-streams " + std::to_string(arguments.best_effort_streams) +
                   ": each has a core of its own, so there can be 1 to " + std::to_string(most) + " here");
  if (classes.real_time_units < 0 || classes.real_time_units > classes.units)
    return invalid("--real-time-threads " + std::to_string(arguments.real_time_threads) +
                   ": it must be 0 (all) to " + std::to_string(classes.units) + " here");
  return classes;
}

// Where little memory is available, the caches whose size nobody named leave a part of it for what requests
// and answers take, for plans, and for libraries: 5/16 at least.
void shrink_to_fit(worker::Options& worker, const DeviceArguments& arguments) {
  const auto available = engine::available_memory();
  if (!available) return;  // making the worker says what is wrong
  const auto shrink = [&](const std::string& named, Bytes& size, std::uint64_t divisor, Bytes unit) {
    if (named.empty())
      size = std::max(unit, std::min(size, Bytes{available->count / divisor / unit.count * unit.count}));
  };
  const auto streams = static_cast<std::uint64_t>(worker.classes ? worker.classes->count() : 1);
  shrink(arguments.page_cache, worker.page_cache, 2, page_size);
  shrink(arguments.workspace, worker.workspace, 8 * streams, mib(1));
  shrink(arguments.io_cache, worker.io_cache, 16, mib(1));
}

// One for each file, and one without, so that all devices of the process share them. `problem`: what is wrong
// with the file, told once.
std::shared_ptr<engine::KernelChoices> choices_of(const std::string& file, std::string& problem) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<engine::KernelChoices>> made;
  const std::lock_guard lock(mutex);
  auto& choices = made[file];
  if (choices == nullptr)
    choices = file.empty()
                  ? std::make_shared<engine::KernelChoices>()
                  : std::make_shared<engine::KernelChoices>(file, engine::cpu::choices_header(), &problem);
  return choices;
}

}  // namespace

std::string gpu_metrics(
    std::span<const std::pair<std::string, std::shared_ptr<const engine::cuda::Nvml>>> gpus) {
  std::vector<std::pair<std::string, engine::cuda::GpuFigures>> told;
  for (const auto& [uuid, nvml] : gpus)
    if (auto figures = nvml->look(uuid)) told.emplace_back(uuid, *figures);
  return engine::cuda::metrics_text(told);
}

std::vector<engine::ReadingEngine*> others_of(const Device& device) {
  std::vector<engine::ReadingEngine*> out;
  for (const auto& other : device.others) out.push_back(other.get());
  return out;
}

std::string memory_text(const worker::Options& worker) {
  std::string text = "page cache " + to_text(worker.page_cache) + ", I/O cache " + to_text(worker.io_cache);
  if (!worker.classes || worker.classes->count() == 1)
    return text + ", workspace " + to_text(worker.workspace);
  const auto streams = static_cast<unsigned>(worker.classes->count());
  return text + ", workspaces " + std::to_string(streams) + " of " + to_text(worker.workspace);
}

Result<Device> make_device(const DeviceArguments& arguments, const Clock& clock) {
  Device device;
  device.worker.io_cache = mib(256);
  if (auto read = read_size("--page-cache", arguments.page_cache, page_size, device.worker.page_cache); !read)
    return std::unexpected(read.error());
  if (auto read = read_size("--io-cache", arguments.io_cache, kib(64), device.worker.io_cache); !read)
    return std::unexpected(read.error());
  if (auto read = read_size("--workspace", arguments.workspace, kib(64), device.worker.workspace); !read)
    return std::unexpected(read.error());
  const int threads = threads_of(arguments);
  device.worker.exec_threads = threads;
  device.worker.real_time = arguments.real_time;

  if (arguments.classes && (arguments.device == "cpu" || is_cuda(arguments.device))) {
    DeviceArguments wanted = arguments;
    // A GPU's stream is for all of its processors: one for best effort leaves none of them idle.
    if (is_cuda(arguments.device) && wanted.best_effort_streams == 0) wanted.best_effort_streams = 1;
    if (is_cuda(arguments.device) && wanted.real_time_threads != 0)
      return invalid(
          "--real-time-threads: of cpu devices only; on a GPU what real-time runs leave to others is "
          "measured");
    auto classes = classes_of(wanted, threads);
    if (!classes) return std::unexpected(classes.error());
    device.worker.classes = *classes;
    // A GPU's streams have all of it, but where it is divided: what real-time runs use, and what they leave.
    if (is_cuda(arguments.device)) device.worker.classes->units = 2;
    // The host's threads only launch: who waits for a processor there keeps the device waiting.
    if (is_cuda(arguments.device)) device.worker.best_effort_idle = false;
  }

  static constexpr std::string_view emulated = "emulated:";
  if (arguments.device == "cpu") {
    shrink_to_fit(device.worker, arguments);
    std::string problem;
    device.engine =
        engine::make_cpu_engine({.threads = threads,
                                 .choose_for = from_seconds(arguments.choose_kernels),
                                 .choices = choices_of(arguments.kernel_choices, problem),
                                 // A number that somebody gave stays as it is.
                                 .processors = arguments.threads == 0 ? arguments.processors : nullptr,
                                 .weights = arguments.weights});
    device.notice = problem;
    for (const engine::second::Kind* kind : {&engine::openvino, &engine::onnxruntime})
      device.others.push_back(engine::make_second_engine(*kind, {.threads = threads,
                                                                 .module = {},
                                                                 .apart = arguments.second_engine_apart,
                                                                 .workspace = device.worker.workspace,
                                                                 .processes = processes_of(arguments)}));
    device.description = "cpu: " + cpu_name() + ", " + std::to_string(threads) + " threads";
  } else if (arguments.device.starts_with(emulated)) {
    const std::string file = arguments.device.substr(emulated.size());
    auto profile = profile::read_profile(file);
    if (!profile) return in_context("--device", profile.error());
    engine::EmulatedOptions emulation;
    for (const profile::ModelProfile& model : profile->models) {
      engine::EmulatedModel& into = emulation.models[model.name];
      into.weights = model.weights;
      into.load = model.load.p50;
      for (const profile::BatchTimes& times : model.batches) into.execution[times.batch] = times.exec.p50;
      for (const profile::LengthTimes& at : model.lengths)
        for (const profile::BatchTimes& times : at.batches)
          into.by_length[at.length][times.batch] = times.exec.p50;
    }
    device.breaker = emulation.breaker = std::make_shared<engine::Breaker>(clock);
    device.engine = engine::make_emulated_engine(std::move(emulation), clock);
    device.description = arguments.device;
    // Its plans compute nothing and its weights are never read; and many may share a few cores.
    device.worker.populate = false;
    device.worker.spin = Duration{0};
  } else if (is_cuda(arguments.device)) {
    auto made = make_cuda_device({.device = arguments.device,
                                  .libraries = arguments.cuda_libraries,
                                  .number = arguments.cuda_number,
                                  .choices = arguments.kernel_choices,
                                  .longest_kernel = from_ns(1e3 * arguments.cuda_longest_kernel_us),
                                  .parts = arguments.cuda_parts,
                                  .share = arguments.cuda_share,
                                  .driver = {},
                                  .clock = arguments.virtual_time ? nullptr : &clock});
    if (!made) return std::unexpected(made.error());
    device.notice = std::move(made->notice);
    device.gpu_uuid = std::move(made->uuid);
    device.nvml = std::move(made->nvml);
    // The device's memory is not shared with the host: what nobody else has of it is for weights, but for a
    // quarter.
    if (arguments.page_cache.empty() && made->free)
      device.worker.page_cache = Bytes{made->free->count / 4 * 3 / page_size.count * page_size.count};
    device.engine = std::move(made->engine);
    device.worker.make_stream = [engine = device.engine](const engine::StreamOptions& wanted) {
      return engine->make_stream(wanted);
    };
    device.description = std::move(made->description);
    device.worker.make_memory = std::move(made->make_memory);
    device.importer = std::move(made->importer);
    device.ordinal = made->ordinal;
    device.lose_at = std::move(made->lose_at);
    device.clock = std::move(made->clock);
    if (!made->computes) {
      device.worker.populate = false;
      device.worker.spin = Duration{0};
    }
  } else {
    return invalid(
        "--device: '" + arguments.device +
        "' is not a device; there are cpu, emulated:PROFILE, cuda:N, cuda-emulated and cuda-emulated:TABLE" +
        (arguments.device.find('*') == std::string::npos ? ""
                                                         : "; several, by '*', are for 'carillon serve'"));
  }
  device.worker.probe = [engine = device.engine] { return engine->probe(); };
  device.worker.make_team = [engine = device.engine](const engine::TeamOptions& wanted) {
    return engine->make_team(wanted);
  };
  return device;
}

Result<Device> make_share(const DeviceArguments& arguments, double from_pct, double share_pct,
                          const Clock& clock) {
  const double cores = share_pct / 100 * threads_of(arguments);
  DeviceArguments own = arguments;
  if (is_cuda(arguments.device)) {
    // Plans' sums are of decimal numbers.
    own.cuda_share = {.from = from_pct / 100, .to = std::min(1.0, (from_pct + share_pct) / 100 + 1e-9)};
    return make_device(own, clock);
  }
  own.threads = std::max(1, static_cast<int>(std::ceil(cores - 1e-9)));
  auto device = make_device(own, clock);
  if (device) device->worker.share = std::min(1.0, cores / own.threads);
  return device;
}

}  // namespace carillon::server
