#include "carillon/share/client/allocator.h"

#include <algorithm>

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "carillon/share/client/attach.h"
#include "carillon/share/client/client.h"
#include "carillon/share/client/lane.h"

namespace carillon::share::client {
namespace {

constexpr std::size_t large = 64 * 1024;

struct Reals {
  int (*posix_memalign)(void**, std::size_t, std::size_t);
  void* (*aligned_alloc)(std::size_t, std::size_t);
  void* (*memalign)(std::size_t, std::size_t);
  void* (*malloc)(std::size_t);
  void* (*realloc)(void*, std::size_t);
  void (*free)(void*);
  std::size_t (*malloc_usable_size)(void*);
};
constinit Reals reals{};

// Both heaps lie in one range, so that free() tells in one comparison that a block is not ours.
constinit std::uintptr_t range_start = 0;
constinit std::size_t range_bytes = 0;

template <typename F>
void resolve(F& to, const char* name) {
  if (void* found = dlsym(RTLD_NEXT, name)) memcpy(&to, &found, sizeof to);
}

__attribute__((noinline, cold)) void resolve_all() {
  Reals found{};
  resolve(found.posix_memalign, "posix_memalign");
  resolve(found.aligned_alloc, "aligned_alloc");
  resolve(found.memalign, "memalign");
  resolve(found.malloc, "malloc");
  resolve(found.realloc, "realloc");
  resolve(found.malloc_usable_size, "malloc_usable_size");
  resolve(found.free, "free");
  reals = found;
}

bool ours(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) - range_start < range_bytes;
}

void note_peak() {
  const std::uint64_t live = me.own.live() + me.lane.live();
  if (live > me.peak) me.peak = live;
}

enum class Took : std::uint8_t { block, elsewhere, failed };

Took take(std::size_t bytes, void** out) {
  Locked locked;
  Heap* heap = &me.own;
  Heap::Block* b = nullptr;
  std::uint32_t key = 0, iteration = 0;
  if (trains && me.in_lane && !me.on_device) {
    key = me.survivors.key(bytes);
    iteration = me.survivors.iteration();
    if (me.plant || !me.survivors.expected(key)) {
      b = me.lane.take(bytes, Heap::State::shared);
      if (!b && ask_for(me.lane_bytes - me.lane.tail() + bytes)) b = me.lane.take(bytes, Heap::State::shared);
      if (!b && me.is_ended) return Took::failed;
      if (b) {
        heap = &me.lane;
        ++me.counts.lane_blocks;
      }
    }
  }
  if (!b) {
    b = me.own.take(bytes, Heap::State::own);
    if (!b) return Took::elsewhere;
    const std::uint64_t taken = std::uint64_t{b->pages} * page_bytes;
    me.dirty -= std::min(me.dirty, taken);
  }
  b->key = key;
  b->iteration = iteration;
  note_peak();
  *out = heap->address(*b);
  return Took::block;
}

void give(void* p) {
  Locked locked;
  if (Heap::Block* b = me.lane.find(p)) {
    const bool had_own = b->state == Heap::State::own;
    const std::size_t start = std::size_t{b->start} * page_bytes,
                      end = start + std::size_t{b->pages} * page_bytes;
    me.lane.give(b);
    if (had_own) map_lane(start, end);
    return;
  }
  Heap::Block* b = me.own.find(p);
  if (!b) {
    because("free() of an address within a block: the program's memory is damaged");
    tell();
    abort();
  }
  if (b->iteration && b->iteration == me.survivors.iteration()) me.survivors.died(b->key);
  const std::size_t bytes = std::size_t{b->pages} * page_bytes;
  std::byte* const at = me.own.address(*b);
  me.own.give(b);
  // As malloc does, keep some of what is free, and give the rest back.
  me.dirty += bytes;
  if (me.dirty > (std::uint64_t{64} << 20U) + me.own.live() / 2) {
    madvise(at, bytes, MADV_DONTNEED);
    me.dirty -= bytes;
  }
}

std::size_t usable(void* p) {
  Locked locked;
  Heap::Block* b = me.lane.find(p);
  if (!b) b = me.own.find(p);
  return b ? b->asked : 0;
}

// Whether a request is one for the heaps; out: the block, or nullptr where there is no memory.
bool from_heaps(std::size_t alignment, std::size_t bytes, void** out) {
  if (bytes < large || !me.prepared || alignment > page_bytes || bytes > me.own.bytes()) return false;
  *out = nullptr;
  return take(bytes, out) != Took::elsewhere;
}

__attribute__((constructor)) void find_libc() {
  if (!reals.free) resolve_all();
}

}  // namespace

bool start_heaps() {
  for (std::size_t half = std::size_t{1} << 38U; half >= std::size_t{1} << 30U; half /= 2) {
    void* range = mmap(nullptr, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    auto* base = static_cast<std::byte*>(range);
    if (mmap(base, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED ||
        !me.own.start(base, half) || !me.lane.start(base + half, half)) {
      munmap(range, 2 * half);
      continue;
    }
    me.own.set_limit(half);
    range_start = reinterpret_cast<std::uintptr_t>(range);
    range_bytes = 2 * half;
    return true;
  }
  return false;
}

}  // namespace carillon::share::client

using namespace carillon::share::client;

#define CARILLON_OUT extern "C" __attribute__((visibility("default")))

CARILLON_OUT int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  if (void* p = nullptr; from_heaps(alignment, bytes, &p)) {
    if (!p) return ENOMEM;
    *out = p;
    return 0;
  }
  if (!reals.posix_memalign) resolve_all();
  return reals.posix_memalign(out, alignment, bytes);
}

CARILLON_OUT void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  if (void* p = nullptr; from_heaps(alignment, bytes, &p)) {
    if (!p) errno = ENOMEM;
    return p;
  }
  if (!reals.aligned_alloc) resolve_all();
  return reals.aligned_alloc(alignment, bytes);
}

CARILLON_OUT void* memalign(std::size_t alignment, std::size_t bytes) {
  if (void* p = nullptr; from_heaps(alignment, bytes, &p)) {
    if (!p) errno = ENOMEM;
    return p;
  }
  if (!reals.memalign) resolve_all();
  return reals.memalign(alignment, bytes);
}

CARILLON_OUT void free(void* p) {
  if (__builtin_expect(ours(p), 0)) {
    const int before = errno;
    give(p);
    errno = before;
    return;
  }
  if (!reals.free) resolve_all();
  reals.free(p);
}

CARILLON_OUT void* realloc(void* p, std::size_t bytes) {
  if (!reals.realloc) resolve_all();
  if (!ours(p)) return reals.realloc(p, bytes);
  const std::size_t had = usable(p);
  if (bytes == 0) {
    give(p);
    return nullptr;
  }
  void* to = reals.malloc(bytes);
  if (!to) return nullptr;
  memcpy(to, p, std::min(had, bytes));
  give(p);
  return to;
}

CARILLON_OUT void* reallocarray(void* p, std::size_t many, std::size_t bytes) {
  std::size_t all = 0;
  if (__builtin_mul_overflow(many, bytes, &all)) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc(p, all);
}

CARILLON_OUT std::size_t malloc_usable_size(void* p) {
  if (!reals.malloc_usable_size) resolve_all();
  return ours(p) ? usable(p) : reals.malloc_usable_size(p);
}
