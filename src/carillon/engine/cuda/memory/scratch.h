#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "carillon/base/bytes.h"
#include "carillon/base/time.h"
#include "carillon/engine/cuda/driver/driver.h"

namespace carillon::engine::cuda {

// Puts random numbers there, in a stream: normally distributed where they are read as f16; read as bf16 or
// f32 of either sign and below 1,024. Kernels whose data are zeros are faster than with others. Waits until
// that is done, as wait_for() does; not_ready: what it uses is still in use.
Status fill_with_numbers(const Driver& driver, Address at, std::uint64_t bytes, Stream stream,
                         Duration longest = Duration{0});

// Memory of the device for as long as it lives, in the context that is current.
class Scratch {
 public:
  Scratch(const Driver& driver, DeviceNumber device) : driver_(driver), device_(device) {}
  ~Scratch() {
    if (mapped_) (void)driver_.unmap(at_, bytes_);
    if (memory_ != 0) (void)driver_.release(memory_);
    if (at_ != 0) (void)driver_.unreserve(at_, bytes_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status take(std::uint64_t bytes) {
    Properties properties;
    properties.location.id = device_;
    std::size_t unit = 0;
    if (const Status status = driver_.granularity(&unit, &properties, smallest_granularity); status != done)
      return status;
    bytes_ = round_up(std::max<std::uint64_t>(bytes, 1), std::max<std::size_t>(unit, 1));
    if (const Status status = driver_.reserve(&at_, bytes_, 0, 0, 0); status != done) return status;
    if (const Status status = driver_.create(&memory_, bytes_, &properties, 0); status != done) return status;
    if (const Status status = driver_.map(at_, bytes_, 0, memory_, 0); status != done) return status;
    mapped_ = true;
    Access access;
    access.location.id = device_;
    return driver_.set_access(at_, bytes_, &access, 1);
  }
  // To work that does not end: it stays as long as the process.
  void leave() {
    at_ = 0;
    memory_ = 0;
    mapped_ = false;
  }
  Address at() const { return at_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  const Driver& driver_;
  DeviceNumber device_;
  Address at_ = 0;
  Handle memory_ = 0;
  std::uint64_t bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace carillon::engine::cuda
