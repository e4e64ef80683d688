#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/kernels/kernels.h"
#include "carillon/engine/cuda/stream/splits.h"

namespace carillon::engine::cuda {

// The device as plans and states of runs see it; lives as long as any of them.
class Device {
 public:
  Device(std::shared_ptr<const Driver> owned, DeviceNumber number)
      : driver(*owned), owned_(std::move(owned)), number_(number) {}
  ~Device() {
    if (context_ == nullptr) return;
    {
      const Current current(*this);
      splits_.reset();
      if (module_ != nullptr) (void)driver.module_unload(module_);
    }
    (void)driver.context_release(number_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // `splits`: whether the device is divided, too (Splits).
  Result<> prepare(const void* image, bool splits, const Share& share = {}) {
    if (auto kept = check(driver.context_retain(&context_, number_), "its context"); !kept) return kept;
    const Current current(*this);
    if (auto loaded = check(driver.module_load(&module_, image), "loading our kernels"); !loaded)
      return loaded;
    for (const kernels::Kernel& each : kernels::all()) {
      Function function = nullptr;
      const std::string symbol(each.symbol);
      if (auto found = check(driver.module_function(&function, module_, symbol.c_str()), "kernel " + symbol);
          !found)
        return found;
      functions_.emplace(&each, function);
    }
    int processors = 0;
    if (auto asked =
            check(driver.device_attribute(&processors, attribute_processors, number_), "its attributes");
        !asked)
      return asked;
    processors_ = static_cast<unsigned>(std::max(1, processors));
    if (splits || !share.whole()) splits_.emplace(driver, number_, share);
    // The documents are not plain on what of the primary context green ones take: it is tried.
    const bool no_group = !share.whole() && splits_->context({}) == nullptr;
    if (splits_ && !no_group)
      if (auto tried = try_parts(); !tried) {
        undivided_ = tried.error().message;
        splits_.reset();
      }
    if (!share.whole() && (!splits_ || splits_->context({}) == nullptr)) return cannot_be_divided(share);
    return {};
  }

  // This device's context, current on this thread.
  class Current : public InContext {
   public:
    explicit Current(const Device& device) : InContext(device.driver, device.context_) {}
  };

  Result<> check(Status status, const std::string& what) const {
    if (status == done) return {};
    const bool lost = is_lost(status);
    return fail(lost ? ErrorCode::unavailable : ErrorCode::internal,
                "cuda:" + std::to_string(number_) +
                    (lost ? ": the device is lost until the server is started again: " : ": ") + what + ": " +
                    cuda::name_of(driver, status));
  }

  // `params`: of the kernel's, copied.
  Result<> launch(const kernels::Launch& launch, void* params, Stream stream, const std::string& what) const {
    return this->launch(functions_.at(launch.kernel), launch, params, stream, what);
  }
  // Another function, as that.
  Result<> launch(Function function, const kernels::Launch& launch, void* params, Stream stream,
                  const std::string& what) const {
    void* parameters[] = {params};
    return check(driver.launch(function, launch.grid, 1, 1, launch.block, 1, 1, 0, stream,
                               static_cast<void**>(parameters), nullptr),
                 what);
  }
  // Which there are none of where it is not divided.
  const Splits* splits() const { return splits_ ? &*splits_ : nullptr; }
  // Why a device is not divided that was to be; empty: it is, or was not to be.
  const std::string& undivided() const { return undivided_; }
  // Has the contexts of a pair of the splits made (Splits::prepare()).
  bool prepare_pair(int pair) const { return splits_->prepare(pair); }
  unsigned processors() const { return processors_; }
  // Of a part; 0: it is all of the device.
  unsigned processors_of(const Part& part) const {
    return splits_ && splits_->context(part) != nullptr ? splits_->processors(part) : 0;
  }
  // What is measured by events around the launch of a graph of one kernel, and is none of the kernel's.
  // Measured once; the device's context is current.
  Result<Duration> launch_time() const;
  // A kernel's time of such a measurement; not below what one takes that does nothing (0.9 us on an H100).
  static Duration without_launch(Duration measured, Duration launch) {
    constexpr Duration shortest = std::chrono::nanoseconds{900};
    return std::max(measured - launch, std::min(measured, shortest));
  }
  DeviceNumber number() const { return number_; }

  const Driver& driver;

 private:
  Result<> cannot_be_divided(const Share& share) const {
    const std::string device = "cuda:" + std::to_string(number_);
    const std::size_t groups = splits_ ? splits_->groups() : 0;
    if (groups < 2) return fail(ErrorCode::unsupported, device + " cannot be divided");
    return fail(
        ErrorCode::unsupported,
        fmt::format("{} has {} groups of processors to give, and {:g}% of them from {:g}% on is none: a "
                    "share is {:g}% at least",
                    device, groups, 100 * (share.to - share.from), 100 * share.from,
                    100.0 / static_cast<double>(groups)));
  }
  // Whether an event, and a kernel that is captured and launched, of the primary context go into a stream of
  // a green one. Errors say what does not.
  Result<> try_parts();

  std::shared_ptr<const Driver> owned_;
  DeviceNumber number_;
  mutable std::mutex measuring_;
  mutable std::optional<Duration> launch_time_;
  Context context_ = nullptr;
  Module module_ = nullptr;
  std::map<const kernels::Kernel*, Function> functions_;
  unsigned processors_ = 1;
  std::string undivided_;
  mutable std::optional<Splits> splits_;  // pairs are prepared while models are compiled
};

inline Address address(const void* at) {
  return reinterpret_cast<Address>(at);
}

}  // namespace carillon::engine::cuda
