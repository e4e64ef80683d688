#include "carillon/server/cuda_device.h"

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "carillon/engine/cuda/driver/nvml.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/library/plain.h"
#include "carillon/engine/cuda/memory/cuda_memory.h"
#include "carillon/engine/cuda/open.h"
#include "carillon/engine/cuda/plan/cuda_engine.h"

namespace carillon::server {

namespace {

namespace cuda = engine::cuda;

constexpr std::string_view emulated_name = "cuda-emulated";

// The emulated device of the process, for as long as anything of it lives.
class TheEmulated : public cuda::EmulatedHost {
 public:
  TheEmulated() : EmulatedHost({.memory = std::uint64_t{80} << 30}) {}
  ~TheEmulated() { there_ = false; }
  TheEmulated(const TheEmulated&) = delete;
  TheEmulated& operator=(const TheEmulated&) = delete;

  static Result<std::shared_ptr<const cuda::Driver>> make() {
    if (there_.exchange(true)) return invalid("there is one such device a process");
    auto host = std::make_shared<TheEmulated>();
    return std::shared_ptr<const cuda::Driver>(host, &host->driver);
  }

 private:
  static inline std::atomic<bool> there_{false};
};

auto maker_of_memory(const std::shared_ptr<const cuda::Driver>& driver, cuda::DeviceNumber device) {
  return [driver, device](std::uint64_t pages, Bytes io,
                          Bytes workspace) -> Result<std::unique_ptr<engine::DeviceMemory>> {
    return cuda::CudaMemory::make(driver, device, {.pages = pages, .io = io, .workspace = workspace});
  };
}

Result<CudaDevice> make_emulated(const std::string& name, cuda::Number number) {
  auto driver = TheEmulated::make();
  if (!driver) return std::unexpected(driver.error());
  auto library = cuda::make_plain_library(*driver);
  if (!library) return std::unexpected(library.error());
  auto chains = cuda::make_interpreted_chains(*driver, 0);
  if (!chains) return std::unexpected(chains.error());
  auto engine = cuda::make_cuda_engine(*driver, 0, "emulated", std::move(*library), {.number = number},
                                       std::move(*chains));
  if (!engine) return std::unexpected(engine.error());
  return CudaDevice{.engine = std::move(*engine),
                    .description = name + ": a CUDA device in this process, whose kernels the host computes",
                    .notice = {},
                    .uuid = {},
                    .nvml = {},
                    .free = {},
                    .make_memory = maker_of_memory(*driver, 0)};
}

Result<CudaDevice> make_real(const CudaArguments& arguments, int ordinal, cuda::Number number) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  auto opened = cuda::open_device({.driver = arguments.driver,
                                   .ordinal = ordinal,
                                   .libraries = arguments.libraries,
                                   .choices = arguments.choices,
                                   .engine = {.number = number}});
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
                    .make_memory = maker_of_memory(opened->driver, opened->facts.device)};
}

}  // namespace

bool is_cuda(const std::string& device) {
  return device == "cuda" || device.starts_with("cuda:") || device == emulated_name;
}

Result<CudaDevice> make_cuda_device(const CudaArguments& arguments) {
  const std::string where = "--device " + arguments.device;
  const auto number = cuda::number_named(arguments.number);
  if (!number) return invalid("--cuda-number '" + arguments.number + "' is not f32, tf32, f16 or bf16");
  if (arguments.device == emulated_name) {
    auto made = make_emulated(arguments.device, *number);
    return made ? std::move(made) : in_context(where, made.error());
  }
  const auto ordinal = cuda::device_in(arguments.device);
  if (!ordinal)
    return invalid(where + ": '" + arguments.device +
                   "' is not a device: after 'cuda:' comes its number, from 0");
  auto made = make_real(arguments, *ordinal, *number);
  return made ? std::move(made) : in_context(where, made.error());
}

}  // namespace carillon::server
