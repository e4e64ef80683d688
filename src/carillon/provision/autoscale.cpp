#include "carillon/provision/autoscale.h"

#include <algorithm>
#include <cmath>

namespace carillon::provision {

AutoscaleAdvice autoscale_advice(int devices, double bad_rate, double idle_fraction, double threshold) {
  AutoscaleAdvice advice{.bad_rate = bad_rate, .idle_fraction = idle_fraction};
  if (bad_rate > threshold) {
    // Beyond a half, r/(1-r) says more about the reach of the formula than about the need; the next look will
    // tell.
    const double more = devices * bad_rate / std::max(0.5, 1 - bad_rate);
    advice.add_devices = std::max(1, static_cast<int>(std::ceil(more - 1e-9)));
  } else {
    advice.release_devices =
        std::clamp(static_cast<int>(std::floor(devices * idle_fraction + 1e-9)), 0, std::max(0, devices - 1));
  }
  return advice;
}

}  // namespace carillon::provision
