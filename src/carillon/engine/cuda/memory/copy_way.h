#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>

#include "carillon/engine/cuda/driver/driver.h"

namespace carillon::engine::cuda {

// One way of the bus: copies by a stream of its own, one after the other. What does not lie in pinned memory
// of the host goes through two pieces of it, so that the host fills one while the other goes. Large copies
// are divided, so that those of other streams come between. Used with the device's context current; in() and
// out() from any thread, once prepare() has succeeded.
class CopyWay {
 public:
  // What goes through pinned memory at a time: long beside what a copy takes to begin, short beside a page.
  static constexpr std::uint64_t piece = std::uint64_t{1} << 20;
  // What goes at a time where all is pinned; with two of them under way a copy of another stream waits for 76
  // us at a bus's 55 GB/s.
  static constexpr std::uint64_t pinned_piece = std::uint64_t{2} << 20;

  explicit CopyWay(const Driver& driver) : driver_(driver) {}
  CopyWay(const CopyWay&) = delete;
  CopyWay& operator=(const CopyWay&) = delete;

  // Where a step fails, `what` is that, and the next call goes on with it. `direct`: all that will be copied
  // is pinned.
  Status prepare(const char*& what, bool direct = false) {
    Status status = done;
    for (Slot& slot : slots_) {
      what = "pinned memory of the host";
      if (!direct && slot.pinned == nullptr)
        if (status = driver_.host_allocate(&slot.pinned, piece, host_is_mapped); status != done) {
          slot.pinned = nullptr;
          return status;
        }
      what = "an event for copies";
      if (slot.event == nullptr)
        if (status = driver_.event_create(&slot.event, event_without_time); status != done) {
          slot.event = nullptr;
          return status;
        }
    }
    what = "a stream for copies";
    if (stream_ != nullptr) return done;
    status = driver_.stream_create(&stream_, stream_beside_the_default, 0);
    if (status != done) stream_ = nullptr;
    return status;
  }
  void give_back() {
    if (stream_ != nullptr) (void)driver_.stream_destroy(stream_);
    for (Slot& slot : slots_) {
      if (slot.event != nullptr) (void)driver_.event_destroy(slot.event);
      if (slot.pinned != nullptr) (void)driver_.host_free(slot.pinned);
      slot = {};
    }
    stream_ = nullptr;
  }

  // Blocks until it is done, or a piece of it failed and no other is under way. `pinned`: all of `from` is.
  Status in(Address to, std::span<const std::byte> from, bool pinned = false) {
    return pieces(from.size(), pinned, [&](Slot& slot, std::uint64_t at, std::uint64_t bytes) {
      if (!pinned) std::memcpy(slot.pinned, from.data() + at, bytes);
      return driver_.copy_in(to + at, pinned ? from.data() + at : slot.pinned, bytes, stream_);
    });
  }
  Status out(std::span<std::byte> to, Address from, bool pinned = false) {
    return pieces(to.size(), pinned, [&](Slot& slot, std::uint64_t at, std::uint64_t bytes) {
      if (!pinned) slot.to = to.subspan(at, bytes);
      return driver_.copy_out(pinned ? to.data() + at : slot.pinned, from + at, bytes, stream_);
    });
  }

 private:
  // Two of them take turns.
  struct Slot {
    void* pinned = nullptr;
    Event event = nullptr;
    bool under_way = false;
    std::span<std::byte> to{};  // where what came into it goes
  };

  Status wait(Slot& slot) {
    const auto to = std::exchange(slot.to, {});
    if (!std::exchange(slot.under_way, false)) return done;
    const Status status = driver_.event_synchronize(slot.event);
    if (status == done && !to.empty()) std::memcpy(to.data(), slot.pinned, to.size());
    return status;
  }

  template <typename Copy>
  Status pieces(std::uint64_t all, bool pinned, const Copy& copy) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t step = pinned ? pinned_piece : piece;
    Status status = done;
    std::size_t turn = 0;
    for (std::uint64_t at = 0; status == done && at < all; at += step, ++turn) {
      Slot& slot = slots_[turn % slots_.size()];
      status = wait(slot);
      if (status == done) status = copy(slot, at, std::min<std::uint64_t>(step, all - at));
      if (status == done) status = driver_.event_record(slot.event, stream_);
      slot.under_way = status == done;
    }
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (const Status ended = wait(slots_[(turn + i) % slots_.size()]); status == done) status = ended;
    if (status != done)
      (void)driver_.stream_synchronize(stream_);  // a copy may be under way that no event tells of
    return status;
  }

  const Driver& driver_;
  std::mutex mutex_;
  Stream stream_ = nullptr;
  std::array<Slot, 2> slots_{};
};

}  // namespace carillon::engine::cuda
