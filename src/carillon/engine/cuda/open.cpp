#include "carillon/engine/cuda/open.h"

#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/kernels/kernels.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/library/code_cache.h"
#include "carillon/engine/cuda/library/cublaslt.h"
#include "carillon/engine/cuda/library/cudnn.h"
#include "carillon/engine/cuda/library/measured.h"
#include "carillon/engine/cuda/library/nvrtc.h"
#include "carillon/engine/kernel_choices.h"

namespace carillon::engine::cuda {

namespace {

void add_notice(OpenedDevice& device, const std::string& notice) {
  if (!device.notice.empty() && !notice.empty()) device.notice += "; ";
  device.notice += notice;
}

Result<std::unique_ptr<ChainLibrary>> open_chains(const OpenOptions& options,
                                                  const std::vector<std::filesystem::path>& sites,
                                                  OpenedDevice& device) {
  auto compiler = Nvrtc::open(options.libraries, sites, architecture_of(device.facts));
  if (!compiler) return std::unexpected(compiler.error());
  auto kept = std::make_shared<CodeCache>();
  if (!options.choices.empty()) {
    std::string problem;
    kept = std::make_shared<CodeCache>(fmt::format("{}.cuda-{}.code", options.choices, options.ordinal),
                                       fmt::format("carillon chain code 1; {}; {}", (*compiler)->version(),
                                                   fmt::join((*compiler)->options(), " ")),
                                       &problem);
    add_notice(device, problem);
  }
  const std::string version = (*compiler)->version();
  auto chains =
      make_compiled_chains(device.driver, device.facts.device, std::move(*compiler), std::move(kept));
  if (chains) device.chains = version;
  return chains;
}

}  // namespace

Result<OpenedDevice> open_device(const OpenOptions& options) {
  auto opened = open_driver(options.driver);
  if (!opened) return std::unexpected(opened.error());
  OpenedDevice device;
  device.driver = std::make_shared<const Driver>(options.watch ? options.watch(*opened) : *opened);
  const Driver& driver = *device.driver;
  auto facts = find_device(driver, options.ordinal);
  if (!facts) return std::unexpected(facts.error());
  device.facts = *facts;
  const std::span<const std::byte> image = kernels::fatbin();
  if (image.empty())
    return fail(ErrorCode::unsupported,
                "it is " + facts->name +
                    ", and this program was built without kernels for GPUs: build it with "
                    "`cmake --preset cuda`, which needs nvcc 13");
  const auto sites = known_site_packages();
  const auto dnn_library = open_library(cudnn, options.libraries, sites);
  if (!dnn_library) return std::unexpected(dnn_library.error());
  const auto blas_library = open_library(cublaslt, options.libraries, sites);
  if (!blas_library) return std::unexpected(blas_library.error());
  const auto dnn = dnn::find_api(*dnn_library);
  if (!dnn) return std::unexpected(dnn.error());
  const auto blas = blas::find_api(*blas_library);
  if (!blas) return std::unexpected(blas.error());
  const InPrimaryContext current(driver, facts->device);
  if (current.status() != done)
    return fail(ErrorCode::unavailable,
                facts->name + " cannot be used: " + name_of(driver, current.status()));
  int version = 0;
  (void)driver.driver_version(&version);
  std::shared_ptr<CodeCache> plans;
  if (!options.choices.empty()) {
    std::string problem;
    const std::size_t cudnn_version = dnn->version();
    plans = std::make_shared<CodeCache>(
        fmt::format("{}.cuda-{}.plans", options.choices, options.ordinal),
        fmt::format("carillon cuDNN plans 1; {}; {}.{}; {} processors; driver {}; cuDNN {}", facts->name,
                    facts->major, facts->minor, facts->processors, version, cudnn_version),
        &problem, "plans of cuDNN");
    add_notice(device, problem);
  }
  auto convolutions = make_cudnn(*dnn, std::move(plans));
  if (!convolutions) return std::unexpected(convolutions.error());
  auto products = make_cublaslt(*blas);
  if (!products) return std::unexpected(products.error());

  std::size_t left = 0, all = 0;
  if (driver.memory_info(&left, &all) == done) device.free = Bytes{left};
  device.libraries = fmt::format("{} and {}", (*convolutions)->version(), (*products)->version());
  const std::string header =
      fmt::format("carillon kernel choices 1; {}; {}.{}; {} processors; driver {}; {}", facts->name,
                  facts->major, facts->minor, facts->processors, version, device.libraries);
  auto choices = options.choices.empty() ? std::make_shared<KernelChoices>()
                                         : std::make_shared<KernelChoices>(
                                               fmt::format("{}.cuda-{}", options.choices, options.ordinal),
                                               header, &device.notice);
  CudaOptions engine_options = options.engine;
  if (engine_options.choices == nullptr) engine_options.choices = choices;
  const auto undivided = std::make_shared<std::string>();
  engine_options.notice = undivided;
  // To compile takes seconds of each load: only where what comes of it is kept.
  const MeasuredOptions usual;
  const int most_compiled = options.choices.empty() ? 0 : usual.most_compiled;
  auto library = make_measured_library(std::move(*convolutions), std::move(*products), std::move(choices),
                                       {.most_compiled = most_compiled,
                                        .timer = time_on(device.driver, facts->device),
                                        .copy_timer = time_copies_on(device.driver, facts->device),
                                        .first_launch = first_launch_on(device.driver, facts->device)});
  if (options.around) library = options.around(std::move(library));
  auto chains = open_chains(options, sites, device);
  if (!chains) add_notice(device, "elementwise steps run as a kernel each: " + chains.error().message);
  auto engine = make_cuda_engine(device.driver, facts->device, image.data(), std::move(library),
                                 engine_options, chains ? std::move(*chains) : nullptr);
  if (!engine) return std::unexpected(engine.error());
  device.engine = std::move(*engine);
  add_notice(device, *undivided);
  return device;
}

}  // namespace carillon::engine::cuda
