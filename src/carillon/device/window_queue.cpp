#include "carillon/device/window_queue.h"

#include <algorithm>

namespace carillon::device {

WindowQueue::WindowQueue(std::size_t capacity, std::size_t reserved) : capacity_(capacity) {
  heap_.reserve(std::min(capacity, reserved));
}

bool WindowQueue::push(const Entry& entry) {
  if (heap_.size() == capacity_) return false;
  heap_.push_back(entry);
  std::ranges::push_heap(heap_, after);
  return true;
}

Entry WindowQueue::pop() {
  std::ranges::pop_heap(heap_, after);
  const Entry entry = heap_.back();
  heap_.pop_back();
  return entry;
}

bool WindowQueue::remove(std::uint32_t slot) {
  const auto found = std::ranges::find(heap_, slot, &Entry::slot);
  if (found == heap_.end()) return false;
  *found = heap_.back();
  heap_.pop_back();
  std::ranges::make_heap(heap_, after);
  return true;
}

Decision WindowQueue::next(TimePoint now) {
  if (heap_.empty()) return {.kind = Decision::Kind::idle};
  const Window& window = heap_.front().window;
  const bool hopeless = window.latest < std::max(now, window.earliest);
  if (!hopeless && now < window.earliest) return {.kind = Decision::Kind::wait_until, .at = window.earliest};
  return {.kind = hopeless ? Decision::Kind::refuse : Decision::Kind::run, .entry = pop()};
}

}  // namespace carillon::device
