#include "carillon/engine/cuda/memory/scratch.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/engine/cuda/driver/bounded_wait.h"
#include "carillon/engine/cuda/kernels/number.h"

namespace carillon::engine::cuda {
namespace {

constexpr std::size_t count = 32768;

// The exponents of f16 are small ones of f32 and bf16, so that none is infinite or no number.
const std::vector<std::uint16_t>& numbers() {
  static const std::vector<std::uint16_t> made = [] {
    Random random(3);
    std::vector<std::uint16_t> out(count);
    for (std::uint16_t& each : out)
      each = kernels::from_float<kernels::Half>(static_cast<float>(random.normal())).bits;
    return out;
  }();
  return made;
}

}  // namespace

Status fill_with_numbers(const Driver& driver, Address at, std::uint64_t bytes, Stream stream,
                         Duration longest) {
  void* pinned = nullptr;
  std::uint64_t there = std::min<std::uint64_t>(bytes, count * sizeof(std::uint16_t));
  Status status = driver.host_allocate(&pinned, count * sizeof(std::uint16_t), 0);
  if (status != done) return status;
  std::ranges::copy(numbers(), static_cast<std::uint16_t*>(pinned));
  status = driver.copy_in(at, pinned, there, stream);
  while (status == done && there < bytes) {
    const std::uint64_t next = std::min(there, bytes - there);
    status = driver.copy(at + there, at, next, stream);
    there += next;
  }
  const Status waited = wait_for(driver, stream, longest);
  if (waited == not_ready) return waited;
  (void)driver.host_free(pinned);
  return status == done ? waited : status;
}

}  // namespace carillon::engine::cuda
