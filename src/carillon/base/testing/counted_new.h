// Counts every operator new of the process while `counting` is set: for one source of a test program of its
// own.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

bool counting = false;
std::uint64_t allocations = 0;

}  // namespace

// Not inlined, or GCC takes the pair of new and free() for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations += counting ? 1 : 0;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
