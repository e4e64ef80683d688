#include "carillon/worker/window_queue.h"

#include <algorithm>
#include <tuple>

namespace carillon::worker {
namespace {

// For the standard heap, whose front is the largest.
bool after(const Entry& a, const Entry& b) {
  return std::tie(a.order, a.id) > std::tie(b.order, b.id);
}

}  // namespace

WindowQueue::WindowQueue(std::size_t capacity) : capacity_(capacity) {
  heap_.reserve(capacity);
}

bool WindowQueue::push(const Entry& entry) {
  if (heap_.size() == capacity_) return false;
  heap_.push_back(entry);
  std::ranges::push_heap(heap_, after);
  return true;
}

bool WindowQueue::pop(Entry& entry) {
  if (heap_.empty()) return false;
  std::ranges::pop_heap(heap_, after);
  entry = heap_.back();
  heap_.pop_back();
  return true;
}

Decision WindowQueue::next(TimePoint now) {
  if (heap_.empty()) return {.kind = Decision::Kind::idle};
  const Window& window = heap_.front().window;
  const bool hopeless = window.latest < std::max(now, window.earliest);
  if (!hopeless && now < window.earliest) return {.kind = Decision::Kind::wait_until, .at = window.earliest};
  Decision decision{.kind = hopeless ? Decision::Kind::refuse : Decision::Kind::run};
  pop(decision.entry);
  return decision;
}

}  // namespace carillon::worker
