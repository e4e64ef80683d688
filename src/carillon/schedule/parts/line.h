#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::schedule::parts {

// Requests by deadline, then by id. They lie in chunks of a few dozen, so the next is beside the last and
// most come and go at an end. insert(), erase() and lower_bound() cost O(log n), and rarely O(n / 64) moved
// pointers. Not thread-safe.
class Line {
 public:
  using Entry = std::pair<TimePoint, RequestId>;

 private:
  static constexpr std::size_t capacity = 64;
  struct Chunk {
    std::uint16_t from = 0, to = 0;
    std::array<Entry, capacity> entries;
  };

 public:
  class const_iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Entry;
    using difference_type = std::ptrdiff_t;
    using pointer = const Entry*;
    using reference = const Entry&;

    const_iterator() = default;
    const Entry& operator*() const { return line_->chunks_[chunk_]->entries[at_]; }
    const Entry* operator->() const { return &**this; }
    const_iterator& operator++() {
      if (++at_ == line_->chunks_[chunk_]->to) *this = line_->start_of(chunk_ + 1);
      return *this;
    }
    const_iterator operator++(int) {
      const const_iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const const_iterator& a, const const_iterator& b) {
      return a.chunk_ == b.chunk_ && a.at_ == b.at_;
    }

   private:
    friend class Line;
    const_iterator(const Line* line, std::size_t chunk, std::size_t at)
        : line_(line), chunk_(static_cast<std::uint32_t>(chunk)), at_(static_cast<std::uint32_t>(at)) {}
    const Line* line_ = nullptr;
    std::uint32_t chunk_ = 0, at_ = 0;
  };

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const_iterator begin() const { return start_of(0); }
  const_iterator end() const { return {this, chunks_.size(), 0}; }
  const Entry& back() const { return chunks_.back()->entries[chunks_.back()->to - 1U]; }

  const_iterator lower_bound(const Entry& entry) const {
    if (chunks_.empty()) return end();
    const Chunk& first = *chunks_.front();
    if (!(first.entries[first.from] < entry)) return begin();
    const std::size_t chunk = chunk_of(entry);
    const Chunk& c = *chunks_[chunk];
    const std::size_t at = place_in(c, entry);
    return at == c.to ? start_of(chunk + 1) : const_iterator(this, chunk, at);
  }
  // Those from a place on, but no more than `most`; and the place behind them. O(most / 64).
  std::size_t count_from(const_iterator from, std::size_t most) const {
    std::size_t count = 0, at = from.at_;
    for (std::size_t i = from.chunk_; i < chunks_.size() && count < most; ++i) {
      count += chunks_[i]->to - at;
      if (i + 1 < chunks_.size()) at = chunks_[i + 1]->from;
    }
    return std::min(count, most);
  }
  const_iterator after(const_iterator from, std::size_t rows) const {
    for (std::size_t i = from.chunk_, at = from.at_; i < chunks_.size(); ++i) {
      if (at + rows < chunks_[i]->to) return {this, i, at + rows};
      rows -= chunks_[i]->to - at;
      if (i + 1 < chunks_.size()) at = chunks_[i + 1]->from;
    }
    return end();
  }

  // It is not there yet. True: it is the first now.
  bool insert(const Entry& entry) {
    ++size_;
    if (!chunks_.empty()) {
      Chunk& last = *chunks_.back();
      if (last.to < capacity && last.entries[last.to - 1U] < entry) {  // mostly
        last.entries[last.to++] = entry;
        return false;
      }
    }
    return insert_anywhere(entry);
  }
  // False: it is not there.
  bool erase(const Entry& entry) {
    const const_iterator found = lower_bound(entry);
    if (found == end() || *found != entry) return false;
    erase_from(found, 1, [](const Entry&) {});
    return true;
  }
  // Erases so many from a place on, which are there, and calls went(entry) for each.
  template <typename Went>
  void erase_from(const_iterator from, std::size_t count, Went&& went) {
    size_ -= count;
    std::size_t chunk = from.chunk_, at = from.at_;
    while (count > 0) {
      Chunk& c = *chunks_[chunk];
      const std::size_t here = std::min(count, c.to - at);
      for (std::size_t i = at; i < at + here; ++i) went(c.entries[i]);
      if (at == c.from) {
        c.from = static_cast<std::uint16_t>(at + here);
      } else {
        std::copy(c.entries.begin() + static_cast<std::ptrdiff_t>(at + here), c.entries.begin() + c.to,
                  c.entries.begin() + static_cast<std::ptrdiff_t>(at));
        c.to = static_cast<std::uint16_t>(c.to - here);
      }
      count -= here;
      if (c.from == c.to)
        chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk));
      else
        ++chunk;
      if (count > 0) at = chunks_[chunk]->from;
    }
  }

 private:
  const_iterator start_of(std::size_t chunk) const {
    return {this, chunk, chunk < chunks_.size() ? chunks_[chunk]->from : 0U};
  }
  bool insert_anywhere(const Entry& entry) {
    if (chunks_.empty()) chunks_.push_back(std::make_unique<Chunk>());
    std::size_t chunk = chunk_of(entry);
    if (full(*chunks_[chunk])) {
      auto later = std::make_unique<Chunk>();
      Chunk& c = *chunks_[chunk];
      const bool last = chunk + 1 == chunks_.size() && c.entries[capacity - 1] < entry;
      if (!last) {
        std::copy(c.entries.begin() + capacity / 2, c.entries.end(), later->entries.begin());
        later->to = capacity / 2;
        c.to = capacity / 2;
      }
      const bool goes_later = last || later->entries[0] < entry;
      chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk) + 1, std::move(later));
      chunk += goes_later ? 1 : 0;
    }
    Chunk& c = *chunks_[chunk];
    if (c.to == capacity) {
      std::copy(c.entries.begin() + c.from, c.entries.end(), c.entries.begin());
      c.to = static_cast<std::uint16_t>(c.to - c.from);
      c.from = 0;
    }
    std::size_t at = c.to++;
    for (; at > c.from && entry < c.entries[at - 1]; --at) c.entries[at] = c.entries[at - 1];
    c.entries[at] = entry;
    return chunk == 0 && at == c.from;
  }
  static bool full(const Chunk& chunk) { return chunk.from == 0 && chunk.to == capacity; }
  // The last that begins before the entry, or the first.
  std::size_t chunk_of(const Entry& entry) const {
    const Chunk& last = *chunks_.back();
    if (chunks_.size() == 1 || last.entries[last.from] < entry) return chunks_.size() - 1;
    const auto above = std::partition_point(chunks_.begin(), chunks_.end(),
                                            [&](const auto& c) { return c->entries[c->from] < entry; });
    return above == chunks_.begin() ? 0 : static_cast<std::size_t>(above - chunks_.begin()) - 1;
  }
  static std::size_t place_in(const Chunk& c, const Entry& entry) {
    return static_cast<std::size_t>(
        std::lower_bound(c.entries.begin() + c.from, c.entries.begin() + c.to, entry) - c.entries.begin());
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;  // none is empty
  std::size_t size_ = 0;
};

}  // namespace carillon::schedule::parts
