#include "carillon/frontend/memory/parse_room.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::frontend {

std::unique_ptr<ParseRoom::Admission> ParseRoom::admit(std::size_t bytes, std::size_t held) {
  const std::size_t wanted = std::min(bytes, room_.most_beside(held + left_to_others_));
  const std::lock_guard lock(mutex_);
  if (wanted > room_.bytes() && !room_.grow(wanted - room_.bytes())) return nullptr;
  admitted_.insert(wanted);
  return std::make_unique<Admission>(shared_from_this(), wanted);
}

void ParseRoom::leave(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = admitted_.find(bytes);
  CARILLON_ASSERT(at != admitted_.end());
  admitted_.erase(at);
  room_.shrink_to(admitted_.empty() ? 0 : *admitted_.rbegin());
}

std::unique_ptr<ParseRoom::Turn> ParseRoom::wait() {
  std::unique_lock lock(mutex_);
  free_.wait(lock, [this] { return !taken_; });
  taken_ = true;
  return std::make_unique<Turn>(*this);
}

void ParseRoom::end_turn() {
  {
    const std::lock_guard lock(mutex_);
    taken_ = false;
  }
  free_.notify_one();
}

}  // namespace carillon::frontend
