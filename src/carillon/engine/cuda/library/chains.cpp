#include "carillon/engine/cuda/library/chains.h"

#include <map>
#include <span>
#include <string>
#include <utility>

#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/kernels/chain_source.h"
#include "carillon/engine/cuda/library/code_cache.h"
#include "carillon/engine/cuda/library/nvrtc.h"

namespace carillon::engine::cuda {

namespace {

// A module of a device, whose context stays as long as it does.
class ChainModule {
 public:
  ChainModule(std::shared_ptr<const Driver> driver, DeviceNumber device)
      : driver_(std::move(driver)), context_(*driver_, device) {}
  ~ChainModule() {
    if (module_ == nullptr) return;
    const InContext current(*driver_, context_.context());
    (void)driver_->module_unload(module_);
  }
  ChainModule(const ChainModule&) = delete;
  ChainModule& operator=(const ChainModule&) = delete;

  static Result<std::shared_ptr<const ChainKernel>> load(const std::shared_ptr<const Driver>& driver,
                                                         DeviceNumber device, const void* image) {
    auto module = std::make_shared<ChainModule>(driver, device);
    auto kernel = std::make_shared<ChainKernel>();
    Status status = module->context_.status();
    if (status == done) {
      const InContext current(*driver, module->context_.context());
      status = driver->module_load(&module->module_, image);
      if (status == done)
        status = driver->module_function(&kernel->function, module->module_, kernels::chain_symbol);
    }
    if (status != done)
      return fail(is_lost(status) ? ErrorCode::unavailable : ErrorCode::internal,
                  "the code of a chain is not loaded: " + name_of(*driver, status));
    kernel->module = std::move(module);
    return kernel;
  }

 private:
  std::shared_ptr<const Driver> driver_;
  RetainedContext context_;
  Module module_ = nullptr;
};

class InterpretedChains final : public ChainLibrary {
 public:
  explicit InterpretedChains(std::shared_ptr<const ChainKernel> kernel) : kernel_(std::move(kernel)) {}
  Result<std::shared_ptr<const ChainKernel>> kernel(const kernels::Chain&) override { return kernel_; }

 private:
  std::shared_ptr<const ChainKernel> kernel_;
};

class CompiledChains final : public ChainLibrary {
 public:
  CompiledChains(std::shared_ptr<const Driver> driver, DeviceNumber device,
                 std::shared_ptr<const Nvrtc> compiler, std::shared_ptr<CodeCache> kept)
      : driver_(std::move(driver)), device_(device), compiler_(std::move(compiler)), kept_(std::move(kept)) {}

  Result<std::shared_ptr<const ChainKernel>> kernel(const kernels::Chain& chain) override {
    std::string source = kernels::chain_source(chain);
    if (const auto found = made_.find(source); found != made_.end()) return found->second;
    auto made = make(source);
    if (!made && made.error().code == ErrorCode::unavailable) return made;
    return made_.emplace(std::move(source), std::move(made)).first->second;
  }

 private:
  Result<std::shared_ptr<const ChainKernel>> make(const std::string& source) const {
    if (const auto code = kept_->find(source)) {
      auto loaded = ChainModule::load(driver_, device_, code->data());
      if (loaded || loaded.error().code == ErrorCode::unavailable) return loaded;
    }
    const auto compiled = compiler_->compile(source);
    if (!compiled) return std::unexpected(compiled.error());
    auto loaded = ChainModule::load(driver_, device_, compiled->cubin.data());
    if (loaded) kept_->keep(source, compiled->cubin);
    return loaded;
  }

  std::shared_ptr<const Driver> driver_;
  DeviceNumber device_;
  std::shared_ptr<const Nvrtc> compiler_;
  std::shared_ptr<CodeCache> kept_;
  std::map<std::string, Result<std::shared_ptr<const ChainKernel>>> made_;  // by source
};

// max(a + b, 0) of f16.
kernels::Chain small_chain() {
  using kernels::Type;
  kernels::Chain chain{};
  chain.operand_count = 2;
  chain.step_count = 1;
  chain.pack = 8;
  for (int i = 0; i < 2; ++i) chain.operands[i] = {Type::f16, kernels::Chain::Reading::dense, 0};
  chain.steps[0] = {.kind = kernels::Chain::Step::Kind::arithmetic,
                    .type = Type::f16,
                    .result = Type::f16,
                    .op = kernels::Op::add,
                    .activation = kernels::Activation::relu,
                    .low = 0,
                    .high = 0,
                    .comparison = {},
                    .of = {0, 1, 0}};
  return chain;
}

}  // namespace

Result<std::unique_ptr<ChainLibrary>> make_interpreted_chains(std::shared_ptr<const Driver> driver,
                                                              DeviceNumber device) {
  auto loaded = ChainModule::load(driver, device, "emulated");
  if (!loaded) return std::unexpected(loaded.error());
  return std::make_unique<InterpretedChains>(std::move(*loaded));
}

Result<std::unique_ptr<ChainLibrary>> make_compiled_chains(std::shared_ptr<const Driver> driver,
                                                           DeviceNumber device,
                                                           std::shared_ptr<const Nvrtc> compiler,
                                                           std::shared_ptr<CodeCache> kept) {
  auto made =
      std::make_unique<CompiledChains>(std::move(driver), device, std::move(compiler), std::move(kept));
  if (auto tried = made->kernel(small_chain()); !tried) return std::unexpected(tried.error());
  return made;
}

}  // namespace carillon::engine::cuda
