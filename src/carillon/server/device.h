#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/processors.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/cuda/stream/splits.h"
#include "carillon/engine/emulated/breaker.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/imported_memory.h"
#include "carillon/engine/reading_engine.h"
#include "carillon/server/memory_plan.h"
#include "carillon/worker/worker.h"

namespace carillon::engine::cuda {
class Nvml;  // cuda/driver/nvml.h
}

namespace carillon::engine {
class WeightFiles;
}

namespace carillon::server {

// The device as the command line describes it; shared by serve and profile.
struct DeviceArguments {
  std::string device = "cpu";
  std::string page_cache;  // sizes as text; empty: the default
  std::string io_cache;
  std::string workspace;
  int threads = 0;  // of kernels; 0: as many as `processors` says, or usable_processors()
  // With it, and `threads` 0, teams of threads follow it while they run. Whoever has it looks now and then.
  std::shared_ptr<UsableProcessors> processors{};
  bool real_time = false;
  // Seconds for which a model's kernels are measured while it is made ready, where there are several ways to
  // run them, and the file that keeps what was chosen (empty: this process's memory). 0: rules alone decide.
  double choose_kernels = 0;
  std::string kernel_choices;
  // Where a CPU's packed weights are kept; nullptr: in memory.
  std::shared_ptr<engine::WeightFiles> weights{};
  // Of cuda devices: where NVIDIA's libraries are (empty: where the loader and Pythons have them), and what
  // f32 is stored as between a model's inputs and outputs: f32, tf32, f16 or bf16.
  std::string cuda_libraries;
  std::string cuda_number = "f32";
  double cuda_longest_kernel_us = 100;  // of best-effort models: engine::cuda::CudaOptions::longest_kernel
  bool cuda_parts = true;               // real-time runs may have a part of the device
  engine::cuda::Share cuda_share{};     // of the device
  // Models of other engines are each in a process of their own; else in the server's.
  bool second_engine_apart = true;
  // After how long a device that reports nothing counts as one that hangs, at the least; 0: never. Runs in
  // processes of their own are given up before that.
  Duration hangs_after{0};
  // What becomes of these processes, for people; from any thread.
  std::function<void(const std::string&)> warn{};
  // A stream for each class of requests (worker::Options::classes); of cpu only. The numbers are heeded only
  // then.
  bool classes = false;
  // Of cuda-emulated:TABLE: nobody waits for what its work takes; Device::clock says how far its time is.
  bool virtual_time = false;
  int best_effort_streams = 0;  // 0: one a core
  int real_time_threads = 0;    // 0: all
  // What a server has planned for its devices, of the host's memory; none: what is available is divided for
  // this device alone.
  std::optional<MemoryPlan> memory{};
  // What a process of a second engine may come to have; none: 7/8 of what is available.
  std::optional<Bytes> process_memory{};
};

// The sizes that the arguments name. Errors name the option.
struct GivenSizes {
  std::optional<Bytes> page_cache, io_cache, workspace;
};
Result<GivenSizes> given_sizes(const DeviceArguments& arguments);

// What of the device is this host's memory. Errors as of make_device().
Result<HostShare> host_share(const DeviceArguments& arguments);

struct Device {
  std::shared_ptr<engine::Engine> engine;
  // For models that the first cannot run: the one that is asked first in front.
  std::vector<std::shared_ptr<engine::ReadingEngine>> others;
  std::shared_ptr<engine::Breaker> breaker;  // of an emulated:FILE; else null
  std::function<void(TimePoint)> lose_at;    // of an emulated CUDA device, which stays lost; else empty
  std::shared_ptr<const Clock> clock;        // by which its worker goes, where its time is virtual; else null
  worker::Options worker;
  std::string description;  // "cpu: AMD EPYC, 2 threads"
  std::string gpu_uuid;     // of a GPU whose figures `nvml` tells; else empty
  std::shared_ptr<const engine::cuda::Nvml> nvml;
  // Of a CUDA device: what clients lend there, and CUDA's number of it; else null.
  std::shared_ptr<engine::MemoryImporter> importer;
  int ordinal = 0;
  std::string notice;  // what whoever runs it should know; empty: nothing
};

// What GPUs are doing, as metrics in Prometheus' format; from any thread.
std::string gpu_metrics(
    std::span<const std::pair<std::string, std::shared_ptr<const engine::cuda::Nvml>>> gpus);

// Those of `device`, as whoever loads models wants them.
std::vector<engine::ReadingEngine*> others_of(const Device& device);

// Errors name the option. `clock` outlives the engine and all that it makes.
Result<Device> make_device(const DeviceArguments& arguments, const Clock& clock);

// What a worker takes of memory, for people: all streams' workspaces, not one of them.
std::string memory_text(const worker::Options& worker);

// `share_pct` in (0, 100] percent of that device, behind the first `from_pct`. Of the CPU as many threads as
// it needs, held to their part of the share, whichever they are; of a GPU those of its processors.
Result<Device> make_share(const DeviceArguments& arguments, double from_pct, double share_pct,
                          const Clock& clock);

}  // namespace carillon::server
