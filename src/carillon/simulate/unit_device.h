#pragma once

#include <cstdint>

#include "carillon/base/time.h"

namespace carillon::simulate {

// How a simulated device of compute units differs from an ideal one. The times are those that REEF's paper gives
// for an AMD MI50 where it gives them (sections 4.1, 7.3 and figure 14).
struct UnitDeviceOptions {
  // From the launch into a stream that has nothing until its kernel may start; hidden where the stream runs.
  Duration dispatch{2'000};
  // An eviction: the host's queue is emptied, and each kernel that waits in the device's queue is fetched to be
  // dismissed, one after the other; the queues of `pipes` streams at a time.
  Duration reset_host{3'000};
  Duration dismiss{8'000};
  int pipes = 4;
  Duration kill{3'000};  // then what runs is killed
  // A kernel that starts while kernels of other streams run takes so much longer (REEF, section 5.1: about 1%).
  double interference = 0.01;
  // Standard deviation of a round's time, relative to it.
  double noise = 0;
};

}  // namespace carillon::simulate
