#include "carillon/server/cuda_device.h"

#include <atomic>
#include <charconv>
#include <string_view>
#include <utility>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/driver/real.h"
#include "carillon/engine/cuda/library/plain.h"
#include "carillon/engine/cuda/memory/cuda_memory.h"
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
    if (there_.exchange(true))
      return invalid("--device " + std::string(emulated_name) + ": there is one such device a process");
    auto host = std::make_shared<EmulatedHost>();
    return std::shared_ptr<const cuda::Driver>(host, &host->driver_);
  }

 private:
  static inline std::atomic<bool> there_{false};
  cuda::Emulated device_;
  cuda::Driver driver_;
};

// What keeps the program from using a CUDA device: the machine, as far as that goes, and then the program
// itself.
Error why_not(const std::string& device) {
  int ordinal = 0;
  if (const std::size_t colon = device.find(':'); colon != std::string::npos) {
    const char* const end = device.data() + device.size();
    const auto [read, error] = std::from_chars(device.data() + colon + 1, end, ordinal);
    if (error != std::errc() || read != end || ordinal < 0)
      return {ErrorCode::invalid_argument,
              "--device: '" + device + "' is not a device: after 'cuda:' comes its number, from 0"};
  }
  const auto driver = cuda::open_driver();
  if (!driver) return {driver.error().code, "--device " + device + ": " + driver.error().message};
  const auto facts = cuda::find_device(*driver, ordinal);
  if (!facts) return {facts.error().code, "--device " + device + ": " + facts.error().message};
  return {ErrorCode::unsupported, "--device " + device + ": it is " + facts->name +
                                      ", and this version makes no plans for GPUs yet; there are cpu, "
                                      "emulated:PROFILE and cuda-emulated"};
}

}  // namespace

bool is_cuda(const std::string& device) {
  return device == "cuda" || device.starts_with("cuda:") || device == emulated_name;
}

Result<CudaDevice> make_cuda_device(const std::string& device) {
  if (device != emulated_name) return std::unexpected(why_not(device));
  auto driver = EmulatedHost::make();
  if (!driver) return std::unexpected(driver.error());
  auto library = cuda::make_plain_library(*driver);
  if (!library) return in_context("--device " + device, library.error());
  auto engine = cuda::make_cuda_engine(*driver, 0, "emulated", std::move(*library), {});
  if (!engine) return in_context("--device " + device, engine.error());
  return CudaDevice{
      .engine = std::move(*engine),
      .description = device + ": a CUDA device in this process, whose kernels the host computes",
      .make_memory = [driver = *driver](std::uint64_t pages, Bytes io,
                                        Bytes workspace) -> Result<std::unique_ptr<engine::DeviceMemory>> {
        return cuda::CudaMemory::make(driver, 0, {.pages = pages, .io = io, .workspace = workspace});
      }};
}

}  // namespace carillon::server
