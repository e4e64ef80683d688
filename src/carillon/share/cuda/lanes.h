#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/share/cuda/driver.h"
#include "carillon/share/lane_memory.h"

// Lanes of a CUDA device's memory. A lane is physical memory in pieces of one size, each a handle of the
// driver's virtual memory management (cuMemCreate) that jobs get as a file descriptor, import and map where
// they like. The broker maps none of it, and runs nothing on the device.
namespace carillon::share::cuda {

// The driver maps and unmaps whole handles only, so that a piece is what a job can replace by memory of its
// own when something in it outlives its iteration. Smaller: less is copied, and kept, for that; larger: fewer
// descriptors and calls for a lane. 32 MiB is 16 granules of today's GPUs, and 2,560 pieces of 80 GB.
inline constexpr Bytes usual_piece = mib(32);

// Device `ordinal` of the driver (CUDA_VISIBLE_DEVICES counts). `driver`: a test's; left out: the machine's.
// Errors: `unavailable` where there is no driver or no such device; `unsupported` where the device cannot do
// it.
Result<std::shared_ptr<LaneSource>> open_lanes(int ordinal, Bytes piece = usual_piece,
                                               const std::optional<Driver>& driver = {});

}  // namespace carillon::share::cuda
