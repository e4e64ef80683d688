#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>

#include "carillon/engine/cuda/driver/driver.h"

namespace carillon::engine::cuda {

// One way of the bus: copies by a stream of its own, one after the other, through pinned memory of the host.
// Used with the device's context current; in() and out() from any thread, once prepare() has succeeded.
class CopyWay {
 public:
  // What goes through pinned memory at a time: long beside what a copy takes to begin, short beside a page.
  static constexpr std::uint64_t piece = std::uint64_t{1} << 20;

  explicit CopyWay(const Driver& driver) : driver_(driver) {}
  CopyWay(const CopyWay&) = delete;
  CopyWay& operator=(const CopyWay&) = delete;

  // Where a step fails, `what` is that, and the next call goes on with it.
  Status prepare(const char*& what) {
    what = "pinned memory of the host";
    if (pinned_ == nullptr)
      if (const Status status = driver_.host_allocate(&pinned_, piece, host_is_mapped); status != done) {
        pinned_ = nullptr;
        return status;
      }
    what = "a stream for copies";
    if (stream_ != nullptr) return done;
    const Status status = driver_.stream_create(&stream_, stream_beside_the_default, 0);
    if (status != done) stream_ = nullptr;
    return status;
  }
  void give_back() {
    if (stream_ != nullptr) (void)driver_.stream_destroy(stream_);
    if (pinned_ != nullptr) (void)driver_.host_free(pinned_);
  }

  // Blocks until it is done, or a piece of it failed. `pinned`: all of `from` is, and goes at once.
  Status in(Address to, std::span<const std::byte> from, bool pinned = false) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t step = pinned ? from.size() : piece;
    Status status = done;
    for (std::uint64_t at = 0; status == done && at < from.size(); at += step) {
      const std::uint64_t bytes = std::min<std::uint64_t>(step, from.size() - at);
      if (!pinned) std::memcpy(pinned_, from.data() + at, bytes);
      status = driver_.copy_in(to + at, pinned ? from.data() : pinned_, bytes, stream_);
      if (status == done) status = driver_.stream_synchronize(stream_);
    }
    return status;
  }
  Status out(std::span<std::byte> to, Address from) {
    const std::lock_guard lock(mutex_);
    Status status = done;
    for (std::uint64_t at = 0; status == done && at < to.size(); at += piece) {
      const std::uint64_t bytes = std::min<std::uint64_t>(piece, to.size() - at);
      status = driver_.copy_out(pinned_, from + at, bytes, stream_);
      if (status == done) status = driver_.stream_synchronize(stream_);
      if (status == done) std::memcpy(to.data() + at, pinned_, bytes);
    }
    return status;
  }

 private:
  const Driver& driver_;
  std::mutex mutex_;
  Stream stream_ = nullptr;
  void* pinned_ = nullptr;
};

}  // namespace carillon::engine::cuda
