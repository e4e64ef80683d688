#include "carillon/cli/device_options.h"

#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "carillon/cli/choice.h"
#include "carillon/cli/headings.h"

namespace carillon::cli {
namespace {

void add_memory_options(CLI::App& command, server::DeviceArguments& arguments) {
  command
      .add_option(
          "--threads", arguments.threads,
          "Threads that run kernels. 0: as many as the process may keep busy (by its set of processors and "
          "its control groups' quotas); 'serve' follows changes, and uses fewer while other work takes "
          "processors")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option(
          "--page-cache", arguments.page_cache,
          "Memory of each device for weights, at least 16MiB (default 2 GiB, or less where the memory "
          "is little: 'serve --memory'; of a GPU three quarters of what is free there)")
      ->group(heading::memory);
  command
      .add_option(
          "--io-cache", arguments.io_cache,
          "Memory of each device for inputs and outputs (default 256 MiB, or less where the memory is "
          "little)")
      ->group(heading::memory);
  command
      .add_option("--workspace", arguments.workspace,
                  "Memory of each stream of a device for what kernels hand on (default 512 MiB, or less "
                  "where the memory is little)")
      ->group(heading::memory);
  static const std::map<std::string, bool> places{{"apart", true}, {"inside", false}};
  command
      .add_option(
          "--second-engine", arguments.second_engine_apart,
          "Where models run that only OpenVINO or onnxruntime can: apart, each in a process of its own, "
          "so that none ends the server, or inside the server, which saves some memory and microseconds")
      ->transform(one_of(places))
      ->default_str("apart");
  command
      .add_option(
          "--choose-kernels", arguments.choose_kernels,
          "Seconds for which the kernels of a model are measured while it is loaded, all batch sizes "
          "together, where there are several ways to run them, such as 1; 0: fixed rules decide, and a "
          "model is run in the same way every time")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  command.add_option("--kernel-choices", arguments.kernel_choices,
                     "File that keeps what was chosen, so that the next start measures nothing again; made "
                     "where it is missing, replaced where it is damaged or another machine's");
  add_cuda_options(command, arguments);
  command.add_flag(
      "--real-time", arguments.real_time,
      "Ask for real-time priority and pinned threads (needs CAP_SYS_NICE); refused, it goes on without");
}

}  // namespace

std::vector<CLI::Option*> add_cuda_options(CLI::App& command, server::DeviceArguments& arguments) {
  return {
      command.add_option("--cuda-libraries", arguments.cuda_libraries,
                         "Folder of NVIDIA's libraries (libcudnn.so.9, libcublasLt.so.13, libnvrtc.so.13); "
                         "without it: where the loader finds them, then packages of the virtual environment "
                         "and of CARILLON_SITE_PACKAGES"),
      command
          .add_option("--cuda-number", arguments.cuda_number,
                      "What f32 values are stored as on cuda devices, between a model's inputs and outputs: "
                      "f32, tf32 (f32 whose products may be rounded), f16 or bf16; a model's parameter "
                      "precision stands above it")
          ->check(CLI::IsMember({"f32", "tf32", "f16", "bf16"}))
          ->capture_default_str(),
      command
          .add_option("--cuda-longest-kernel", arguments.cuda_longest_kernel_us,
                      "Microseconds: batch sizes of best-effort models with a longer kernel are left out on "
                      "cuda devices, as a real-time request may have to wait for it")
          ->check(CLI::Range(1.0, 1e7))
          ->capture_default_str(),
      command.add_flag("!--no-cuda-parts", arguments.cuda_parts,
                       "Real-time runs have all of a cuda device: best effort ends for each of them, where "
                       "else it may go on in what they leave")};
}

void add_device_options(CLI::App& command, server::DeviceArguments& arguments) {
  command
      .add_option(
          "--device", arguments.device,
          "cpu; cuda or cuda:N, an NVIDIA GPU; emulated:FILE: time passes by a profile file and outputs are "
          "zeros; cuda-emulated: a CUDA device in this process, whose kernels the host computes; "
          "cuda-emulated:TABLE: one that takes the time that a table of steps says (docs/cuda.md), and "
          "computes nothing")
      ->capture_default_str();
  add_memory_options(command, arguments);
}

void add_devices_options(CLI::App& command, server::DevicesArguments& arguments) {
  command
      .add_option(
          "--device", arguments.devices,
          "cpu (the default); cuda or cuda:N, an NVIDIA GPU, cuda:0,1,3: several; emulated:FILE: time passes "
          "by a profile file and outputs are zeros; cuda-emulated: a CUDA device in this process, whose "
          "kernels the host computes; cuda-emulated:TABLE: one that takes the time that a table of steps "
          "says, and computes nothing, such as cuda-emulated:profiles/h100_mobilenetv2.json*8; with *N: N "
          "of these. May be given several times: one worker each, numbered from 0 in the order given")
      ->allow_extra_args(false);
  command
      .add_option(
          "--emulated-faults", arguments.faults,
          "Outages of emulated devices, to see what becomes of requests: kill=D@T[+L] (runs of device "
          "D fail from time T on, for time L or for ever) and hang=D@T[+L] (they do not come back), "
          "separated by commas; times such as 5s or 250ms, from when the server is ready. A cuda-emulated "
          "device can only be lost for good: kill=D@T")
      ->allow_extra_args(false);
  add_memory_options(command, arguments.each);
}

}  // namespace carillon::cli
