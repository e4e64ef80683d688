#include "carillon/server/device.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include <unistd.h>

#include "carillon/base/resident_memory.h"
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

Result<std::optional<Bytes>> size_of(const char* option, const std::string& text, Bytes least) {
  if (text.empty()) return std::nullopt;
  const auto size = parse_bytes(text);
  if (!size) return in_context(option, size.error());
  if (*size < least) return invalid(std::string(option) + ": " + text + " is less than " + to_text(least));
  return *size;
}

constexpr std::string_view emulated = "emulated:", emulated_cuda = "cuda-emulated";

// Whether it computes in memory of this host.
bool is_host(const DeviceArguments& arguments) {
  return arguments.device == "cpu" || arguments.device == emulated_cuda;
}

int threads_of(const DeviceArguments& arguments) {
  if (arguments.threads != 0) return arguments.threads;
  return arguments.processors != nullptr ? arguments.processors->now() : usable_processors();
}

engine::second::ApartOptions processes_of(const DeviceArguments& arguments) {
  engine::second::ApartOptions options;
  options.tell = arguments.warn;
  options.process.memory = arguments.process_memory;
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

// None where a device has one stream for all.
Result<std::optional<device::ClassStreams>> streams_of(const DeviceArguments& arguments, int threads) {
  if (!arguments.classes || (arguments.device != "cpu" && !is_cuda(arguments.device))) return std::nullopt;
  DeviceArguments wanted = arguments;
  // A GPU's stream is for all of its processors: one for best effort leaves none of them idle.
  if (is_cuda(arguments.device) && wanted.best_effort_streams == 0) wanted.best_effort_streams = 1;
  if (is_cuda(arguments.device) && wanted.real_time_threads != 0)
    return invalid(
        "--real-time-threads: of cpu devices only; on a GPU what real-time runs leave to others is "
        "measured");
  auto classes = classes_of(wanted, threads);
  if (!classes) return std::unexpected(classes.error());
  // A GPU's streams have all of it, but where it is divided: what real-time runs use, and what they leave.
  if (is_cuda(arguments.device)) classes->units = 2;
  return *classes;
}

// Of the host's memory, where there is a plan, and of what nobody planned.
Result<> size_caches(const DeviceArguments& arguments, worker::Options& worker) {
  const auto given = given_sizes(arguments);
  if (!given) return std::unexpected(given.error());
  std::optional<MemoryPlan> plan = arguments.memory;
  const auto share = host_share(arguments);
  if (!share) return std::unexpected(share.error());
  if (!plan)
    if (const auto available = engine::available_memory(); available) {  // else the worker says what is wrong
      const Bytes bound = *available + resident_memory(::getpid());
      auto made = plan_memory({.bound = bound,
                               .named = "the memory that is available, " + to_text(bound) + ",",
                               .cores = std::max(1U, std::thread::hardware_concurrency()),
                               .devices = {*share},
                               .serves = false,
                               .page_cache = given->page_cache,
                               .io_cache = given->io_cache,
                               .workspace = given->workspace});
      if (!made) return std::unexpected(made.error());
      plan = *made;
    }
  worker.io_cache = mib(256);
  if (plan && share->tensors > 0) worker.io_cache = plan->io_cache;
  if (plan && share->caches > 0) worker.page_cache = plan->page_cache;
  if (plan && share->streams > 0) worker.workspace = plan->workspace;
  worker.page_cache = given->page_cache.value_or(worker.page_cache);
  worker.io_cache = given->io_cache.value_or(worker.io_cache);
  worker.workspace = given->workspace.value_or(worker.workspace);
  return {};
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

Result<GivenSizes> given_sizes(const DeviceArguments& arguments) {
  const auto pages = size_of("--page-cache", arguments.page_cache, page_size);
  if (!pages) return std::unexpected(pages.error());
  const auto io = size_of("--io-cache", arguments.io_cache, kib(64));
  if (!io) return std::unexpected(io.error());
  const auto workspace = size_of("--workspace", arguments.workspace, kib(64));
  if (!workspace) return std::unexpected(workspace.error());
  return GivenSizes{.page_cache = *pages, .io_cache = *io, .workspace = *workspace};
}

Result<HostShare> host_share(const DeviceArguments& arguments) {
  const auto classes = streams_of(arguments, threads_of(arguments));
  if (!classes) return std::unexpected(classes.error());
  if (arguments.device.starts_with(emulated) || arguments.device.starts_with("cuda-emulated:"))
    return HostShare{};  // computes nothing
  // What lies on a device is mirrored here.
  if (!is_host(arguments)) return HostShare{.tensors = 1};
  return HostShare{.caches = 1,
                   .tensors = arguments.device == "cpu" ? 1U : 2U,
                   .streams = *classes ? (*classes)->count() : 1U};
}

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
  if (auto sized = size_caches(arguments, device.worker); !sized) return std::unexpected(sized.error());
  const int threads = threads_of(arguments);
  device.worker.exec_threads = threads;
  device.worker.real_time = arguments.real_time;

  auto classes = streams_of(arguments, threads);
  if (!classes) return std::unexpected(classes.error());
  device.worker.classes = *classes;
  // The host's threads only launch: who waits for a processor there keeps the device waiting.
  if (device.worker.classes && is_cuda(arguments.device)) device.worker.best_effort_idle = false;

  if (arguments.device == "cpu") {
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
