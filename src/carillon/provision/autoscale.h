#pragma once

namespace carillon::provision {

struct AutoscaleAdvice {
  int add_devices = 0;
  int release_devices = 0;
  double bad_rate = 0;       // requests that were not answered on time, as a share of all
  double idle_fraction = 0;  // device time that nothing ran, as a share of all
};

// How many devices a cluster of `devices` should gain or could lose (Symphony, section 3.5): where the bad
// rate r is above `threshold`, N*r/(1-r) more (with 1-r held at a half, so at most 2N); else N*f fewer for an
// idle fraction f, but never all of them. Shares are in [0, 1]. A pure function.
AutoscaleAdvice autoscale_advice(int devices, double bad_rate, double idle_fraction, double threshold = 0.01);

}  // namespace carillon::provision
