#include "carillon/server/cuda_device.h"

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/driver/real.h"
#include "carillon/engine/cuda/kernels/kernels.h"
#include "carillon/engine/cuda/library/cublaslt.h"
#include "carillon/engine/cuda/library/cudnn.h"
#include "carillon/engine/cuda/library/measured.h"
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
                    .free = {},
                    .make_memory = maker_of_memory(*driver, 0)};
}

// A device's primary context, current on this thread, for as long as it lives.
class Current {
 public:
  Current(const cuda::Driver& driver, cuda::DeviceNumber device) : driver_(driver), device_(device) {
    status_ = driver.context_retain(&context_, device);
    if (status_ == cuda::done) status_ = driver.context_push(context_);
  }
  ~Current() {
    cuda::Context popped = nullptr;
    if (status_ == cuda::done) (void)driver_.context_pop(&popped);
    if (context_ != nullptr) (void)driver_.context_release(device_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  cuda::Status status() const { return status_; }

 private:
  const cuda::Driver& driver_;
  cuda::DeviceNumber device_;
  cuda::Context context_ = nullptr;
  cuda::Status status_;
};

Result<CudaDevice> make_real(const CudaArguments& arguments, int ordinal, cuda::Number number) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  auto opened = cuda::open_driver(arguments.driver);
  if (!opened) return std::unexpected(opened.error());
  const auto driver = std::make_shared<const cuda::Driver>(*opened);
  const auto facts = cuda::find_device(*driver, ordinal);
  if (!facts) return std::unexpected(facts.error());
  const std::span<const std::byte> image = cuda::kernels::fatbin();
  if (image.empty())
    return fail(ErrorCode::unsupported,
                "it is " + facts->name +
                    ", and this program was built without kernels for GPUs: build it with "
                    "`cmake --preset cuda`, which needs nvcc 13");
  const auto sites = cuda::known_site_packages();
  const auto cudnn = cuda::open_library(cuda::cudnn, arguments.libraries, sites);
  if (!cudnn) return std::unexpected(cudnn.error());
  const auto cublaslt = cuda::open_library(cuda::cublaslt, arguments.libraries, sites);
  if (!cublaslt) return std::unexpected(cublaslt.error());
  const auto dnn = cuda::dnn::find_api(*cudnn);
  if (!dnn) return std::unexpected(dnn.error());
  const auto blas = cuda::blas::find_api(*cublaslt);
  if (!blas) return std::unexpected(blas.error());
  const Current current(*driver, facts->device);
  if (current.status() != cuda::done)
    return fail(ErrorCode::unavailable,
                facts->name + " cannot be used: " + cuda::name_of(*driver, current.status()));
  auto convolutions = cuda::make_cudnn(*dnn);
  if (!convolutions) return std::unexpected(convolutions.error());
  auto products = cuda::make_cublaslt(*blas);
  if (!products) return std::unexpected(products.error());

  CudaDevice device;
  std::size_t left = 0, all = 0;
  if (driver->memory_info(&left, &all) == cuda::done) device.free = Bytes{left};
  std::string file = arguments.choices;
  if (!file.empty()) file += ".cuda-" + std::to_string(ordinal);
  int version = 0;
  (void)driver->driver_version(&version);
  const std::string header = fmt::format(
      "carillon kernel choices 1; {}; {}.{}; {} processors; driver {}; {}; {}", facts->name, facts->major,
      facts->minor, facts->processors, version, (*convolutions)->version(), (*products)->version());
  auto choices = file.empty() ? std::make_shared<engine::KernelChoices>()
                              : std::make_shared<engine::KernelChoices>(file, header, &device.notice);
  if (!device.notice.empty()) device.notice += "; it is not heeded, and written anew";
  device.description = fmt::format("{}: {}, {} with {} and {}", arguments.device, facts->name,
                                   cuda::name_of(number), (*convolutions)->version(), (*products)->version());
  auto library =
      cuda::make_measured_library(std::move(*convolutions), std::move(*products), std::move(choices),
                                  {.timer = cuda::time_on(driver, facts->device)});
  auto engine =
      cuda::make_cuda_engine(driver, facts->device, image.data(), std::move(library), {.number = number});
  if (!engine) return std::unexpected(engine.error());
  device.engine = std::move(*engine);
  device.make_memory = maker_of_memory(driver, facts->device);
  return device;
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
