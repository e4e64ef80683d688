#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace carillon::ledger {

// A hash table from ids to values: open addressing with linear probing, no allocation an entry. It cannot be
// iterated, so nothing can come to depend on the order of its entries. A pointer to a value is good until the
// next insert or erase.
template <typename Key, typename Value>
class IdMap {
 public:
  std::size_t size() const { return size_; }

  Value* find(Key key) {
    if (slots_.empty()) return nullptr;
    for (std::size_t i = home(key); slots_[i]; i = next(i))
      if (slots_[i]->first == key) return &slots_[i]->second;
    return nullptr;
  }
  const Value* find(Key key) const { return const_cast<IdMap*>(this)->find(key); }

  // False where the key is there already (then nothing changes).
  template <typename V = Value>
  bool insert(Key key, V&& value) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    std::size_t i = home(key);
    for (; slots_[i]; i = next(i))
      if (slots_[i]->first == key) return false;
    slots_[i].emplace(key, std::forward<V>(value));
    ++size_;
    return true;
  }

  // Takes the value out; none where the key is not there.
  std::optional<Value> erase(Key key) {
    if (slots_.empty()) return std::nullopt;
    std::size_t i = home(key);
    for (; slots_[i]; i = next(i))
      if (slots_[i]->first == key) break;
    if (!slots_[i]) return std::nullopt;
    std::optional<Value> taken(std::move(slots_[i]->second));
    slots_[i].reset();
    --size_;
    // Entries behind the hole move up, unless their home lies after it.
    for (std::size_t j = next(i); slots_[j]; j = next(j)) {
      const std::size_t from_home = (j - home(slots_[j]->first)) & (slots_.size() - 1);
      const std::size_t from_hole = (j - i) & (slots_.size() - 1);
      if (from_home < from_hole) continue;
      slots_[i] = std::move(slots_[j]);
      slots_[j].reset();
      i = j;
    }
    return taken;
  }

 private:
  std::size_t home(Key key) const {
    return static_cast<std::size_t>((static_cast<std::uint64_t>(key.value) * 0x9e3779b97f4a7c15ULL) >> 20) &
           (slots_.size() - 1);
  }
  std::size_t next(std::size_t i) const { return (i + 1) & (slots_.size() - 1); }
  void grow() {
    std::vector<std::optional<std::pair<Key, Value>>> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (auto& slot : old)
      if (slot) insert(slot->first, std::move(slot->second));
  }

  std::vector<std::optional<std::pair<Key, Value>>> slots_;
  std::size_t size_ = 0;
};

}  // namespace carillon::ledger
