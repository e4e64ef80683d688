#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "carillon/base/assert.h"

namespace carillon::controller {

// The newest of records that are numbered from 1: each has the place of the one that is `capacity` older.
// Writers never wait, for readers or for each other; readers never see half a record. Nothing is allocated
// after the start. All from any thread.
//
// A sequence lock for each place, odd while it is written. The record's words are atomic themselves, so that
// reading what is being written is defined (and then thrown away).
template <typename Record>
class RecordRing {
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) % sizeof(std::uint64_t) == 0);

 public:
  explicit RecordRing(std::size_t capacity)
      : capacity_(capacity), places_(std::make_unique<Place[]>(capacity)) {
    CARILLON_ASSERT(capacity > 0);
  }

  std::size_t capacity() const { return capacity_; }

  // Its first `bytes` alone, where the rest means nothing. Of one number from one thread at a time. Lost
  // where the place has a newer record, or where another is just being written there.
  void put(std::uint64_t number, const Record& record, std::size_t bytes = sizeof(Record)) {
    Place& place = places_[number % capacity_];
    std::uint64_t version = place.version.load(std::memory_order_relaxed);
    if (version % 2 != 0 || !place.version.compare_exchange_strong(
                                version, version + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return;
    if (place.number.load(std::memory_order_relaxed) <= number) {
      const std::size_t words = std::min(words_of_record, (bytes + word - 1) / word);
      std::array<std::uint64_t, words_of_record> copy;
      std::memcpy(copy.data(), &record, words * word);
      // Each of them releases the odd version: who reads a new word finds out that it was written.
      place.number.store(number, std::memory_order_release);
      for (std::size_t i = 0; i < words; ++i) place.words[i].store(copy[i], std::memory_order_release);
    }
    place.version.store(version + 2, std::memory_order_release);
  }

  // Whether it is there. One that is being written all the time is not.
  bool get(std::uint64_t number, Record& out) const {
    if (number == 0) return false;
    const Place& place = places_[number % capacity_];
    constexpr int tries = 1000;
    for (int i = 0; i < tries; ++i) {
      const std::uint64_t before = place.version.load(std::memory_order_acquire);
      if (before % 2 != 0) continue;
      const std::uint64_t there = place.number.load(std::memory_order_acquire);
      std::array<std::uint64_t, words_of_record> copy;
      if (there == number)
        for (std::size_t w = 0; w < words_of_record; ++w)
          copy[w] = place.words[w].load(std::memory_order_acquire);
      if (place.version.load(std::memory_order_relaxed) != before) continue;
      if (there != number) return false;
      std::memcpy(static_cast<void*>(&out), copy.data(), sizeof out);
      return true;
    }
    return false;
  }

 private:
  static constexpr std::size_t word = sizeof(std::uint64_t);
  static constexpr std::size_t words_of_record = sizeof(Record) / word;
  struct Place {
    std::atomic<std::uint64_t> version{0};
    std::atomic<std::uint64_t> number{0};
    std::array<std::atomic<std::uint64_t>, words_of_record> words{};
  };

  std::size_t capacity_;
  std::unique_ptr<Place[]> places_;
};

}  // namespace carillon::controller
