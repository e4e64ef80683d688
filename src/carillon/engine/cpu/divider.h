#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/cpu/plan.h"
#include "carillon/engine/cpu/weight_store.h"

namespace carillon::engine::cpu {

// How long kernels take in a run, undivided and divided.
struct KernelTimes {
  struct Option {
    int parts = 1;
    Duration time{0};
  };
  std::vector<Option> options;  // the first is undivided; then from few parts to many
};

// Which option each kernel gets, so that all together take at most `budget` longer than undivided. What is
// bought first is what shortens most, for its price, the square of the time that a stop at a random moment
// waits for the end of a part: longest parts weigh most.
std::vector<std::size_t> choose_options(std::span<const KernelTimes> kernels, Duration budget);

// Into how many parts each kernel of a plan is divided, so that a run can be stopped inside it. What that
// costs depends on what a kernel finds in the caches, so whole runs are measured: of the plan as it is, and
// of some whose kernels are all divided into parts of about one length. Used while compiling, from one
// thread.
class Divider {
 public:
  static constexpr int most_parts = 2048;

  // Makes the same plan with kernel k divided into parts[k] parts, if it can be (0: as it is when undivided).
  using Make = std::function<Result<PlanParts>(const std::vector<int>& parts)>;

  // `cost`: in [0, 1], of a run's time on one thread. Kernels shorter than twice `least_part` are left as
  // they are.
  Divider(const dnnl::engine& engine, double cost, Duration least_part)
      : engine_(engine), cost_(cost), least_part_(least_part) {}

  // Divides the kernels that run where all inputs are zeros within `cost` of such a run, the others within
  // `cost` of their own time. `make({})` made `whole`; weights are where `weights` is now. Throws
  // dnnl::error.
  Result<PlanParts> divide(PlanParts whole, const Make& make,
                           const std::function<const std::byte*()>& weights);

 private:
  dnnl::engine engine_;
  double cost_;
  Duration least_part_;
};

}  // namespace carillon::engine::cpu
