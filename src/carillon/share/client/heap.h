#pragma once

#include <cstddef>
#include <cstdint>

// Places for large blocks in a range of addresses. All it knows of a block lies outside of the range, whose pages
// others may overwrite. Takes its own memory from the kernel, never from malloc: it stands below malloc.
//
// Not thread-safe. A block is found, split and joined in constant time: free blocks lie in bins, eight to each
// power of two (as in TLSF); within a bin the first few are tried for the closest fit.
namespace carillon::share::client {

inline constexpr std::size_t page_bytes = 4096;

class Heap {
 public:
  // gone: not usable, beyond limit(). shared: live, in pages that others will have. own: live, in pages of its own
  enum class State : std::uint8_t { none, gone, free, shared, own };

  struct Block {
    std::uint32_t start, pages;     // in pages of the range
    std::uint32_t before, after;    // neighbours by address; 0: none
    std::uint32_t previous, next;   // of a bin's, or the live shared ones', list; 0: none
    std::uint32_t key, iteration;   // the caller's
    std::uint64_t asked;            // bytes
    State state;
    bool written;                   // of a free one: it was live, and its pages may still be there
  };

  // All of the range is gone. False: the kernel gives no memory for the tables.
  bool start(std::byte* base, std::size_t bytes);

  std::byte* base() const { return base_; }
  std::size_t bytes() const { return std::size_t{pages_} * page_bytes; }
  bool has(const void* p) const {
    return reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(base_) < bytes();
  }
  std::byte* address(const Block& b) const { return base_ + std::size_t{b.start} * page_bytes; }

  // A block of `bytes`, in `state` shared or own; nullptr where there is no room.
  Block* take(std::size_t bytes, State state);
  // The live block that begins at `p`; nullptr for anything else.
  Block* find(const void* p);
  void give(Block* block);
  // A shared block has pages of its own now.
  void make_own(Block* block);
  // Calls f(address, bytes) for each free block that was live since the last time: its pages are of no use.
  template <typename F>
  void each_written(F f) {
    for (Block* b = first(); b; b = after(*b)) {
      if (b->state != State::free || !b->written) continue;
      b->written = false;
      f(address(*b), std::size_t{b->pages} * page_bytes);
    }
  }

  // How much of the range, from its start, can be taken. Live blocks beyond it stay until given back.
  void set_limit(std::size_t bytes);
  std::size_t limit() const { return std::size_t{limit_} * page_bytes; }
  // Free bytes at the very end of the limit: a block of n needs limit() - tail() + n.
  std::size_t tail() const;

  std::uint64_t live() const { return live_; }            // bytes of live blocks, in whole pages
  std::uint64_t live_shared() const { return shared_; }
  Block* first_shared() { return at(shared_head_); }
  Block* next_shared(const Block& b) { return at(b.next); }
  Block* first() { return at(head_); }
  Block* after(const Block& b) { return at(b.after); }

 private:
  Block* at(std::uint32_t index) { return index ? &blocks_[index] : nullptr; }
  std::uint32_t number(const Block* b) const { return static_cast<std::uint32_t>(b - blocks_); }
  Block* fresh();
  void forget(Block* b);
  Block* split(Block* b, std::uint32_t pages);  // the rest, without a state
  Block* settle(Block* b);                      // free, or gone, and joined with its like
  Block* join(Block* b);
  void link(Block* b, std::uint32_t& head);
  void unlink(Block* b, std::uint32_t& head);
  void put(Block* b);
  void pull(Block* b);

  static constexpr std::uint32_t bins = 32 * 8;
  static std::uint32_t bin_of(std::uint32_t pages);

  std::byte* base_ = nullptr;
  std::uint32_t pages_ = 0, limit_ = 0;
  Block* blocks_ = nullptr;
  std::uint32_t* by_page_ = nullptr;  // the block that starts there
  std::uint32_t used_ = 1, most_ = 0, spare_ = 0, head_ = 0, shared_head_ = 0;
  std::uint64_t live_ = 0, shared_ = 0;
  std::uint32_t bin_[bins] = {};
  std::uint64_t filled_[bins / 64] = {};
};

}  // namespace carillon::share::client
