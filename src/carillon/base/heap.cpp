#include "carillon/base/heap.h"

#include <atomic>

#include <malloc.h>

namespace carillon {
namespace {

std::atomic<bool> ends = false;

}  // namespace

void trim_heap() {
  if (!ends.load(std::memory_order_relaxed)) ::malloc_trim(0);
}

void stop_trimming_heap() {
  ends.store(true, std::memory_order_relaxed);
}

}  // namespace carillon
