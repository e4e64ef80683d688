#include "carillon/share/client/heap.h"

#include <sys/mman.h>

#include <bit>

namespace carillon::share::client {
namespace {

void* table(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

}  // namespace

std::uint32_t Heap::bin_of(std::uint32_t pages) {
  if (pages < 8) return pages;
  const auto log = static_cast<std::uint32_t>(std::bit_width(pages)) - 1;
  return (log - 2) * 8 + ((pages >> (log - 3)) & 7U);
}

bool Heap::start(std::byte* base, std::size_t bytes) {
  const std::size_t pages = bytes / page_bytes;
  most_ = 1U << 20U;
  blocks_ = static_cast<Block*>(table(sizeof(Block) * most_));
  by_page_ = static_cast<std::uint32_t*>(table(sizeof(std::uint32_t) * pages));
  if (!blocks_ || !by_page_) return false;
  base_ = base;
  pages_ = static_cast<std::uint32_t>(pages);
  Block* all = fresh();
  all->start = 0;
  all->pages = pages_;
  all->state = State::gone;
  head_ = number(all);
  return true;
}

Heap::Block* Heap::fresh() {
  std::uint32_t index = spare_;
  if (index)
    spare_ = blocks_[index].next;
  else if (used_ < most_)
    index = used_++;
  else
    return nullptr;
  blocks_[index] = Block{};
  return &blocks_[index];
}

void Heap::forget(Block* b) {
  b->state = State::none;
  b->next = spare_;
  spare_ = number(b);
}

void Heap::link(Block* b, std::uint32_t& head) {
  b->previous = 0;
  b->next = head;
  if (head) blocks_[head].previous = number(b);
  head = number(b);
}

void Heap::unlink(Block* b, std::uint32_t& head) {
  if (b->previous)
    blocks_[b->previous].next = b->next;
  else
    head = b->next;
  if (b->next) blocks_[b->next].previous = b->previous;
}

void Heap::put(Block* b) {
  const std::uint32_t bin = bin_of(b->pages);
  link(b, bin_[bin]);
  filled_[bin / 64] |= std::uint64_t{1} << (bin % 64);
}

void Heap::pull(Block* b) {
  const std::uint32_t bin = bin_of(b->pages);
  unlink(b, bin_[bin]);
  if (!bin_[bin]) filled_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
}

Heap::Block* Heap::split(Block* b, std::uint32_t pages) {
  Block* rest = fresh();
  if (!rest) return nullptr;
  rest->start = b->start + pages;
  rest->pages = b->pages - pages;
  rest->before = number(b);
  rest->after = b->after;
  rest->written = b->written;
  if (rest->after) blocks_[rest->after].before = number(rest);
  b->after = number(rest);
  b->pages = pages;
  return rest;
}

Heap::Block* Heap::join(Block* b) {
  if (Block* left = at(b->before); left && left->state == b->state) {
    if (left->state == State::free) pull(left);
    left->pages += b->pages;
    left->written |= b->written;
    left->after = b->after;
    if (b->after) blocks_[b->after].before = number(left);
    forget(b);
    b = left;
  }
  if (Block* right = at(b->after); right && right->state == b->state) {
    if (right->state == State::free) pull(right);
    b->pages += right->pages;
    b->written |= right->written;
    b->after = right->after;
    if (b->after) blocks_[b->after].before = number(b);
    forget(right);
  }
  return b;
}

// `b` is in no list.
Heap::Block* Heap::settle(Block* b) {
  if (b->start < limit_ && b->start + b->pages > limit_) {
    if (Block* rest = split(b, limit_ - b->start)) {
      rest->state = State::gone;
      join(rest);
    } else {  // no table left: rather lose it than hand out what is not there
      b->state = State::gone;
      return b;
    }
  }
  b->state = b->start < limit_ ? State::free : State::gone;
  b = join(b);
  if (b->state == State::free) put(b);
  return b;
}

Heap::Block* Heap::take(std::size_t bytes, State state) {
  const std::size_t wanted = (bytes + page_bytes - 1) / page_bytes;
  if (wanted == 0 || wanted > limit_) return nullptr;
  const auto pages = static_cast<std::uint32_t>(wanted);
  Block* best = nullptr;
  const std::uint32_t bin = bin_of(pages);
  int tries = 16;
  for (Block* b = at(bin_[bin]); b && tries > 0; b = at(b->next), --tries)
    if (b->pages >= pages && (!best || b->pages < best->pages)) best = b;
  for (std::uint32_t i = bin + 1; !best && i < bins; i = (i / 64 + 1) * 64) {
    const std::uint64_t set = filled_[i / 64] >> (i % 64);
    if (set) best = at(bin_[i + static_cast<std::uint32_t>(std::countr_zero(set))]);
  }
  // More than `tries` in its own bin, none larger: go through all of them rather than fail.
  if (!best)
    for (Block* b = at(bin_[bin]); b && !best; b = at(b->next))
      if (b->pages >= pages) best = b;
  if (!best) return nullptr;
  pull(best);
  if (best->pages > pages)
    if (Block* rest = split(best, pages)) {
      rest->state = State::free;
      put(rest);
    }
  best->state = state;
  best->asked = bytes;
  by_page_[best->start] = number(best);
  live_ += std::uint64_t{best->pages} * page_bytes;
  if (state == State::shared) {
    shared_ += std::uint64_t{best->pages} * page_bytes;
    link(best, shared_head_);
  }
  return best;
}

Heap::Block* Heap::find(const void* p) {
  if (!has(p)) return nullptr;
  const std::size_t offset = static_cast<std::size_t>(static_cast<const std::byte*>(p) - base_);
  if (offset % page_bytes) return nullptr;
  Block* b = at(by_page_[offset / page_bytes]);
  return b && b->start == offset / page_bytes && (b->state == State::shared || b->state == State::own) ? b : nullptr;
}

void Heap::make_own(Block* b) {
  unlink(b, shared_head_);
  shared_ -= std::uint64_t{b->pages} * page_bytes;
  b->state = State::own;
}

void Heap::give(Block* b) {
  if (b->state == State::shared) make_own(b);
  live_ -= std::uint64_t{b->pages} * page_bytes;
  by_page_[b->start] = 0;
  b->written = true;
  settle(b);
}

void Heap::set_limit(std::size_t bytes) {
  const std::size_t pages = bytes / page_bytes;
  limit_ = pages < pages_ ? static_cast<std::uint32_t>(pages) : pages_;
  for (Block* b = first(); b; b = after(*b)) {
    if (b->state == State::free)
      pull(b);
    else if (b->state != State::gone)
      continue;
    b->state = State::none;
    b = settle(b);
    // settle() may have joined what comes next; go on after it.
  }
}

std::size_t Heap::tail() const {
  // The last free block ends at the limit only where nothing live lies across it.
  for (std::uint32_t i = head_; i; i = blocks_[i].after)
    if (blocks_[i].state == State::free && blocks_[i].start + blocks_[i].pages == limit_)
      return std::size_t{blocks_[i].pages} * page_bytes;
  return 0;
}

}  // namespace carillon::share::client
