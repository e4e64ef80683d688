#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::device {

// One action as its executor sees it. Entries are taken in order of (order, id). `order` is window.earliest,
// save where a step starts at once: then window.earliest is TimePoint::min() and `order` says who goes first.
struct Entry {
  TimePoint order;
  ActionId id;
  Window window;
  std::uint32_t slot = 0;  // the owner's: where the rest of the action lies
};

// What an executor is to do now.
struct Decision {
  enum class Kind : std::uint8_t {
    run,         // `entry` has left the queue: start it
    refuse,      // `entry` has left the queue: its window has closed, or never opens
    wait_until,  // nothing to do before `at`, unless something is pushed
    idle         // the queue is empty
  };
  Kind kind = Kind::idle;
  Entry entry{};
  TimePoint at{};
};

// The window logic of an executor (Clockwork, section 4.4), with no clock and no thread: a bounded queue that
// is strict about the order. An entry that may start already waits behind one with a smaller key that may
// not: the schedule is the controller's, and to overtake would be to choose. Not thread-safe; allocates only
// when made (see below). push() and next() are O(log n).
class WindowQueue {
 public:
  // Room for `capacity` entries, of which `reserved` are taken at once: beyond these push() may allocate.
  explicit WindowQueue(std::size_t capacity) : WindowQueue(capacity, capacity) {}
  WindowQueue(std::size_t capacity, std::size_t reserved);

  bool push(const Entry& entry);  // false where the queue is full
  // Decides for time `now`. Both ends of a window belong to it: an entry runs at `latest`, and not a
  // nanosecond later. A window that ends before it begins is refused at once.
  Decision next(TimePoint now);
  void clear() { heap_.clear(); }
  // Takes out the entry of that slot; false where there is none. O(size).
  bool remove(std::uint32_t slot);
  // The first of those that `wanted` says; nullptr for none. O(size).
  template <typename Wanted>
  const Entry* find_first(Wanted&& wanted) const {
    const Entry* first = nullptr;
    for (const Entry& entry : heap_)
      if (wanted(entry) && (first == nullptr || before(entry, *first))) first = &entry;
    return first;
  }

  const Entry& front() const { return heap_.front(); }  // requires size() > 0
  std::size_t size() const { return heap_.size(); }
  std::size_t capacity() const { return capacity_; }

 private:
  Entry pop();  // the first; requires one
  static bool before(const Entry& a, const Entry& b) {
    return a.order != b.order ? a.order < b.order : a.id < b.id;
  }
  // For the standard heap, whose front is the largest.
  static bool after(const Entry& a, const Entry& b) { return before(b, a); }

  std::size_t capacity_;
  std::vector<Entry> heap_;  // binary heap, the smallest (order, id) first
};

}  // namespace carillon::device
