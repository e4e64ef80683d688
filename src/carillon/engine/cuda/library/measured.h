#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/cuda/library/way.h"
#include "carillon/engine/kernel_choices.h"

namespace carillon::engine::cuda {

// How long a call takes, on a device that does nothing else.
using CallTimer = std::function<Result<Duration>(const Call& call, const CallBytes& bytes)>;

// A timer on the device whose context is current where it is asked: memory for what the call takes and gives
// for as long as that, a graph of `repeats` of it, launched four times, of which the first warms up and the
// least of the others counts. Fails where there is no memory for it, where the call cannot be captured or the
// device is lost.
// It is launched once outside of a capture before: drivers load kernels when they are first launched, which a
// capture may not allow.
inline constexpr int timer_repeats = 8;
//
// A launch that has not ended after `longest` stays on the device, with the memory that it had: unavailable,
// with the call's name.
inline constexpr Duration longest_trial = std::chrono::seconds{10};
CallTimer time_on(std::shared_ptr<const Driver> driver, DeviceNumber device,
                  Duration longest = longest_trial);
// Likewise of a copy on the device.
std::function<Result<Duration>(std::uint64_t bytes)> time_copies_on(std::shared_ptr<const Driver> driver,
                                                                    DeviceNumber device,
                                                                    Duration longest = longest_trial);
// That first launch alone, for calls whose choice was kept.
std::function<Result<>(const Call& call, const CallBytes& bytes)> first_launch_on(
    std::shared_ptr<const Driver> driver, DeviceNumber device, Duration longest = longest_trial);

// Of the ways that `convolutions` and `products` know: as `choices` has it; else the fastest of the first
// `most_measured`, which `choices` is told; else, where none could be measured, the first that can be made
// ready, which is not kept. Calls for the same work are the same call.
//
// Libraries put the likely ones first: measuring further ones costs every load for what it seldom finds.
//
// Of a convolution of one pixel by one the products' ways compete, too (as_product), `most_others` of them.
// Ways that compile come last in what cuDNN 9.19 lists, and compete beside those: `most_compiled` of them, as
// long as those of one model (until compiled()) have not taken `longest_compiling` together. What is under
// way then is not ended. A convolution with a bias, residual or ReLU, or a product with an activation, is
// said to fuse (MathLibrary::fuses) where it takes no longer than the same without the last of these and what
// a kernel needs at least that does the rest: to read and write its result once. That is kept as a choice,
// too.
//
// Images of fewer than 8 channels in f16 or bf16 are padded to 4 or 8 (MathLibrary::channels_for) where the
// convolution is then faster by more than a copy of the padded images takes: tensor cores take whole groups
// of channels. That is kept likewise.
struct MeasuredOptions {
  int most_measured = 12;
  int most_others = 4;
  int most_compiled = 2;
  Duration longest_compiling = std::chrono::seconds{5};
  CallTimer timer{};  // none: nothing is measured
  std::function<Result<Duration>(std::uint64_t bytes)>
      copy_timer{};  // of a copy on the device; none: all fuse
  // Before a call whose choice was kept is given out; where it fails, all are measured anew. None: nothing.
  std::function<Result<>(const Call& call, const CallBytes& bytes)> first_launch{};
};
std::unique_ptr<MathLibrary> make_measured_library(std::unique_ptr<Ways> convolutions,
                                                   std::unique_ptr<Ways> products,
                                                   std::shared_ptr<KernelChoices> choices,
                                                   const MeasuredOptions& options);

}  // namespace carillon::engine::cuda
