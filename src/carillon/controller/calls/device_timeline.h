#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/action.h"
#include "carillon/workload/request.h"

namespace carillon::controller {

// A value that one thread replaces and any number read: a writer never waits, and a reader that met a writer
// gets nothing.
template <typename T>
class SharedSlot {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint64_t) == 0);
  using Words = std::array<std::uint64_t, sizeof(T) / sizeof(std::uint64_t)>;

 public:
  // From one thread.
  void put(const T& value) {
    const std::uint64_t turn = turn_.load(std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_relaxed);  // odd: being written
    const Words words = std::bit_cast<Words>(value);
    // Each is a release, so that whoever sees a new word sees the odd turn, too. (A fence would do, but
    // ThreadSanitizer knows none.)
    for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_release);
    turn_.store(turn + 2, std::memory_order_release);
  }
  std::optional<T> get() const {
    const std::uint64_t before = turn_.load(std::memory_order_acquire);
    if (before % 2 != 0) return std::nullopt;
    Words words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (turn_.load(std::memory_order_relaxed) != before) return std::nullopt;
    return std::bit_cast<T>(words);
  }

 private:
  std::atomic<std::uint64_t> turn_{0};
  std::array<std::atomic<std::uint64_t>, sizeof(T) / sizeof(std::uint64_t)> words_{};
};

// One LOAD or INFER, as far as it is known.
struct TimelineAction {
  std::uint64_t number = 0;  // among those that have ended, from 0
  ActionId id;
  std::uint32_t device = 0;
  std::uint32_t model = 0;  // its place in ServerStatistics::models
  std::uint32_t batch = 0;  // rows; 0: LOAD
  schedule::ActionKind kind{};
  schedule::ActionStatus status{};
  Class cls{};
  std::uint8_t open = 0;  // under way: the times are those of its window then
  TimePoint input_begin, input_end;
  TimePoint exec_begin, exec_end;  // or LOAD's copy; equal where nothing ran
  TimePoint output_begin, output_end;
  Duration predicted{0};  // of EXEC or the copy, as the scheduler expected it
};

// What the devices of one controller did last, and have under way, for people who look at it. All its memory
// is taken at once. One thread writes, without a lock and without waiting; any thread reads.
class DeviceTimeline {
 public:
  // Keeps the last `size` actions that ended. 0: nothing at all.
  explicit DeviceTimeline(std::size_t size) : ended_(size), open_(size > 0 ? most_open : 0) {}

  // --- The writer.
  // An action was handed to its device: `place` is nobody else's until it ends. Of the first `most_open`
  // places it is shown that they are under way.
  void begin(std::size_t place, TimelineAction action) {
    if (place >= open_.size()) return;
    action.open = 1;
    open_[place].put(action);
  }
  // It ended, as `action` tells; the number is given here.
  void end(std::size_t place, TimelineAction action) {
    forget(place);
    if (ended_.empty()) return;
    action.number = count_.load(std::memory_order_relaxed);
    ended_[action.number % ended_.size()].put(action);
    count_.store(action.number + 1, std::memory_order_release);
  }
  // It went with its device, or was not taken.
  void forget(std::size_t place) {
    if (place < open_.size()) open_[place].put({});
  }

  // --- Readers.
  bool keeps() const { return !ended_.empty(); }
  // How many have ended so far: the number of the next.
  std::uint64_t count() const { return count_.load(std::memory_order_acquire); }
  // Appends those with the numbers [from, to), in order, as far as they are still there.
  void read(std::uint64_t from, std::uint64_t to, std::vector<TimelineAction>& out) const;
  // Appends those that are under way, those of one device in the order in which they may start.
  void read_open(std::vector<TimelineAction>& out) const;

  static constexpr std::size_t most_open = 512;

 private:
  std::vector<SharedSlot<TimelineAction>> ended_;  // by number, around and around
  std::vector<SharedSlot<TimelineAction>> open_;
  std::atomic<std::uint64_t> count_{0};
};

// A timeline as a part of what a service tells: its numbers of devices and models begin at these places of
// ServerStatistics.
struct TimelinePart {
  const DeviceTimeline* timeline = nullptr;
  std::uint32_t first_device = 0;
  std::uint32_t first_model = 0;
};

}  // namespace carillon::controller
