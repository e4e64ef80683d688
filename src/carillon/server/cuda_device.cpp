#include "carillon/server/cuda_device.h"

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/driver/nvml.h"
#include "carillon/engine/cuda/library/plain.h"
#include "carillon/engine/cuda/memory/cuda_memory.h"
#include "carillon/engine/cuda/open.h"
#include "carillon/engine/cuda/plan/cuda_engine.h"

namespace carillon::server {

namespace {

namespace cuda = engine::cuda;

constexpr std::string_view emulated_name = "cuda-emulated";

// The emulated device of the process, for as long as anything of it lives.
class EmulatedHost {
 public:
  EmulatedHost() : device_({.memory = std::uint64_t{80} << 30}), driver_(cuda::Emulated::table()) {
    cuda::know_kernels(device_);
    (void)driver_.init(0);
  }
  ~EmulatedHost() { there_ = false; }
  EmulatedHost(const EmulatedHost&) = delete;
  EmulatedHost& operator=(const EmulatedHost&) = delete;

  static Result<std::shared_ptr<const cuda::Driver>> make() {
    if (there_.exchange(true)) return invalid("there is one such device a process");
    auto host = std::make_shared<EmulatedHost>();
    return std::shared_ptr<const cuda::Driver>(host, &host->driver_);
  }

 private:
  static inline std::atomic<bool> there_{false};
  cuda::Emulated device_;
  cuda::Driver driver_;
};

Result<int> ordinal_of(const std::string& device) {
  int ordinal = 0;
  if (const std::size_t colon = device.find(':'); colon != std::string::npos) {
    const char* const end = device.data() + device.size();
    const auto [read, error] = std::from_chars(device.data() + colon + 1, end, ordinal);
    if (error != std::errc() || read != end || ordinal < 0)
      return invalid("'" + device + "' is not a device: after 'cuda:' comes its number, from 0");
  }
  return ordinal;
}

Result<cuda::Number> number_of(const std::string& name) {
  for (const auto each : {cuda::Number::f32, cuda::Number::tf32, cuda::Number::f16, cuda::Number::bf16})
    if (name == cuda::name_of(each)) return each;
  return invalid("--cuda-number '" + name + "' is not f32, tf32, f16 or bf16");
}

auto maker_of_memory(const std::shared_ptr<const cuda::Driver>& driver, cuda::DeviceNumber device) {
  return [driver, device](std::uint64_t pages, Bytes io,
                          Bytes workspace) -> Result<std::unique_ptr<engine::DeviceMemory>> {
    return cuda::CudaMemory::make(driver, device, {.pages = pages, .io = io, .workspace = workspace});
  };
}

Result<CudaDevice> make_emulated(const std::string& name, cuda::Number number) {
  auto driver = EmulatedHost::make();
  if (!driver) return std::unexpected(driver.error());
  auto library = cuda::make_plain_library(*driver);
  if (!library) return std::unexpected(library.error());
  auto engine = cuda::make_cuda_engine(*driver, 0, "emulated", std::move(*library), {.number = number});
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
                    .description = fmt::format("{}: {}, {} with {}", arguments.device, opened->facts.name,
                                               cuda::name_of(number), opened->libraries),
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
  const auto number = number_of(arguments.number);
  if (!number) return std::unexpected(number.error());
  if (arguments.device == emulated_name) {
    auto made = make_emulated(arguments.device, *number);
    return made ? std::move(made) : in_context(where, made.error());
  }
  const auto ordinal = ordinal_of(arguments.device);
  if (!ordinal) return in_context(where, ordinal.error());
  auto made = make_real(arguments, *ordinal, *number);
  return made ? std::move(made) : in_context(where, made.error());
}

}  // namespace carillon::server
