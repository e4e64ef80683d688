// libcuda.so.1, libcudnn.so.9, libcublasLt.so.13 and libnvrtc.so.13 in one: two emulated devices, and
// stand-ins for the libraries that give what they are told to plain kernels; chains are interpreted, whatever
// code was made of them. For rehearsals of what else takes a GPU; x86-64 only.
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/library/plain.h"
#include "carillon/engine/cuda/testing/fake_libraries.h"
#include "carillon/engine/cuda/testing/fake_nvrtc.h"

// A function that jumps to where its slot says.
#define CARILLON_EXPORT(symbol)                                                                    \
  extern "C" {                                                                                     \
  __attribute__((visibility("hidden"))) void* slot_##symbol = nullptr;                             \
  }                                                                                                \
  asm(".text\n.globl " #symbol "\n.type " #symbol ",@function\n" #symbol ":\n  movq slot_" #symbol \
      "(%rip), %rax\n  jmp *%rax\n");

#define CARILLON_EXPORT_DRIVER(member, symbol, arguments) CARILLON_EXPORT(symbol)
CARILLON_CUDA_DRIVER(CARILLON_EXPORT_DRIVER)
#define CARILLON_EXPORT_LIBRARY(member, symbol, result, arguments) CARILLON_EXPORT(symbol)
CARILLON_CUDNN_FUNCTIONS(CARILLON_EXPORT_LIBRARY)
CARILLON_CUBLASLT_FUNCTIONS(CARILLON_EXPORT_LIBRARY)
CARILLON_NVRTC_FUNCTIONS(CARILLON_EXPORT_DRIVER)
CARILLON_EXPORT(nvrtcGetErrorString)

namespace carillon::engine::cuda {
namespace {

// The plain library of each device: that of the context that is current is asked.
class ByContext final : public MathLibrary {
 public:
  explicit ByContext(const Driver& driver) : driver_(driver) {}
  // For the device whose context is current: the program has it so when it asks for cuDNN's handle.
  bool prepare() {
    const std::lock_guard lock(mutex_);
    const Context current = here();
    if (libraries_.contains(current)) return true;
    int devices = 0;
    (void)driver_.device_count(&devices);
    for (int i = 0; i < devices; ++i) {
      Context of = nullptr;
      if (driver_.context_retain(&of, i) != done) return false;
      (void)driver_.context_release(i);
      if (of != current) continue;
      auto made = make_plain_library(std::shared_ptr<const Driver>(std::shared_ptr<void>(), &driver_), i);
      if (made) libraries_.emplace(current, std::move(*made));
      return made.has_value();
    }
    return false;
  }
  // With CARILLON_STANDIN_FORGETS_RELU in the environment wrong, so that who looks for wrong steps has one.
  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    Convolution as = spec;
    as.relu = spec.relu && std::getenv("CARILLON_STANDIN_FORGETS_RELU") == nullptr;
    return library().convolution(as);
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    return library().product(spec);
  }

 private:
  Context here() const {
    Context current = nullptr;
    if (driver_.context_pop(&current) == done) (void)driver_.context_push(current);
    return current;
  }
  MathLibrary& library() {
    const std::lock_guard lock(mutex_);
    return *libraries_.at(here());
  }

  const Driver& driver_;
  std::mutex mutex_;
  std::map<Context, std::unique_ptr<MathLibrary>> libraries_;
};

struct StandIn {
  Emulated device{{.name = "stand-in GPU", .devices = 2, .memory = std::uint64_t{16} << 30}};
  Driver table = Emulated::table();
  ByContext plain{table};
};
StandIn* the_one = nullptr;

dnn::Status create_dnn(dnn::Handle* out) {
  if (!the_one->plain.prepare()) return 1;
  testing::computing() = &the_one->plain;
  return testing::fake_dnn().create(out);
}

template <typename F>
void put(void*& slot, F function) {
  static_assert(sizeof slot == sizeof function);
  std::memcpy(&slot, &function, sizeof slot);
}

__attribute__((constructor)) void fill_slots() {
  the_one = new StandIn;  // for as long as the process
  know_kernels(the_one->device);
#define CARILLON_FILL(member, symbol, arguments) put(slot_##symbol, the_one->table.member);
  CARILLON_CUDA_DRIVER(CARILLON_FILL)
  dnn::Api cudnn = testing::fake_dnn();
  cudnn.create = create_dnn;
  const blas::Api cublaslt = testing::fake_blas();
#define CARILLON_FILL_DNN(member, symbol, result, arguments) put(slot_##symbol, cudnn.member);
  CARILLON_CUDNN_FUNCTIONS(CARILLON_FILL_DNN)
#define CARILLON_FILL_BLAS(member, symbol, result, arguments) put(slot_##symbol, cublaslt.member);
  CARILLON_CUBLASLT_FUNCTIONS(CARILLON_FILL_BLAS)
  const rtc::Api nvrtc = testing::fake_nvrtc();
#define CARILLON_FILL_NVRTC(member, symbol, arguments) put(slot_##symbol, nvrtc.member);
  CARILLON_NVRTC_FUNCTIONS(CARILLON_FILL_NVRTC)
  put(slot_nvrtcGetErrorString, nvrtc.error_name);
}

}  // namespace
}  // namespace carillon::engine::cuda
