#pragma once

#include <memory>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/cuda/plan/device.h"
#include "carillon/engine/stream.h"

namespace carillon::engine::cuda {

// The streams of EXEC on a device. One thread launches for all of them and asks, again and again while
// anything is under way, whether it has ended.
//
// - A plan that is to be stopped soon (CudaPlan::divided) has as many segments with the device as take no
// longer than `bound` together, or one, so that the device does not wait for the host between two; evict()
// keeps the rest back, and tells what runs to end (Lane) where one segment is there alone: what is cut must
// find what it reads.
// - Any other plan is with the device as a whole as soon as it is launched; Client::committed() says so, and
// what is launched then runs right behind it.
// - A real-time plan that leaves room (CudaPlan::whole_device) runs in its part of the device; best-effort
// runs then go on in the rest: from the next segment on, and kernels of ours that run all over the device
// end.
//
// - A segment is captured when its plan is made ready (CudaPlan::prepare()), or when it is first launched for
// other memory or in another part.
//
// A run's pacer is not heeded: shares of a device are parts of it.
class Streams {
 public:
  // `bound`: see above; what best-effort runs have with the device, at most.
  Streams(std::shared_ptr<const Device> device, Duration bound);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Its launches are of plans and states of this device, the states' lanes each of one stream. Those that are
  // there at a time have one clock. May outlive this.
  std::unique_ptr<engine::Stream> make(const StreamOptions& options);

 private:
  class Shared;
  class One;
  std::shared_ptr<const Device> device_;
  Duration bound_;
  std::weak_ptr<Shared> shared_;  // as long as there are streams
};

}  // namespace carillon::engine::cuda
