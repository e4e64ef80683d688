#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "carillon/ledger/id_map.h"

namespace carillon::ledger {

// Values by ids that come in sequence and go in about that order: a ring, where the low bits of an id say
// which slot. A value that is still there when its slot is needed again moves aside, into a hash table. O(1);
// allocates nothing while no more values are there than ever were. References are good until the next open().
template <typename Key, typename Value>
class IdRing {
 public:
  std::size_t size() const { return size_; }

  Value* find(Key key) {
    Slot& slot = slot_of(key);
    if (slot.key == key) return &slot.value;
    return aside_.size() > 0 ? aside_.find(key) : nullptr;
  }
  const Value* find(Key key) const { return const_cast<IdRing*>(this)->find(key); }

  // The value is as whoever had its place left it.
  Value& open(Key key) {
    close(key);
    if (slot_of(key).key != nobody && 2 * size_ > slots_.size()) grow();
    Slot& slot = slot_of(key);
    if (slot.key != nobody) aside_.insert(slot.key, std::move(slot.value));
    slot.key = key;
    ++size_;
    return slot.value;
  }
  // If it is there.
  void close(Key key) {
    Slot& slot = slot_of(key);
    if (slot.key == key)
      slot.key = nobody;
    else if (aside_.size() == 0 || !aside_.erase(key))
      return;
    --size_;
  }

 private:
  static constexpr Key nobody{~std::uint64_t{0}};
  struct Slot {
    Key key = nobody;
    Value value{};
  };
  Slot& slot_of(Key key) { return slots_[static_cast<std::size_t>(key.value) & mask_]; }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (Slot& slot : old)
      if (slot.key != nobody) slot_of(slot.key) = std::move(slot);
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two
  std::size_t mask_ = slots_.size() - 1;             // kept, as a size of slots costs a multiplication
  IdMap<Key, Value> aside_;
  std::size_t size_ = 0;
};

}  // namespace carillon::ledger
