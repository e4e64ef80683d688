#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "carillon/engine/cuda/kernels/kernel.h"
#include "carillon/engine/cuda/kernels/kernels.h"

// What a kernel's entry in the table is made of: which bytes it touches, and how many blocks it takes.
namespace carillon::engine::cuda::kernels {

class Accesses {
 public:
  Accesses(std::vector<Bytes>& reads, std::vector<Bytes>& writes) : reads_(reads), writes_(writes) {}

  void read(const void* at, std::int64_t count, std::size_t size) { add(reads_, at, 0, count, size); }
  void write(const void* at, std::int64_t count, std::size_t size) { add(writes_, at, 0, count, size); }
  void read(const void* at, std::span<const std::int64_t> extents, std::span<const std::int64_t> strides,
            std::size_t size) {
    strided(reads_, at, extents, strides, size);
  }
  void write(const void* at, std::span<const std::int64_t> extents, std::span<const std::int64_t> strides,
             std::size_t size) {
    strided(writes_, at, extents, strides, size);
  }

 private:
  static void add(std::vector<Bytes>& to, const void* at, std::int64_t first, std::int64_t count,
                  std::size_t size) {
    if (at == nullptr || count <= 0) return;
    to.push_back({static_cast<const std::byte*>(at) + first * static_cast<std::int64_t>(size),
                  static_cast<std::size_t>(count) * size});
  }
  // Each run of elements that lie side by side, so that gaps between them are nobody's; where there are more
  // than are worth telling apart, from the first byte to the last.
  static void strided(std::vector<Bytes>& to, const void* at, std::span<const std::int64_t> extents,
                      std::span<const std::int64_t> strides, std::size_t size) {
    struct Axis {
      std::int64_t step, extent;
    };
    std::vector<Axis> axes;
    std::int64_t first = 0, last = 0, runs = 1, run = 1;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] == 0) return;
      const std::int64_t reach = (extents[i] - 1) * strides[i];
      (reach < 0 ? first : last) += reach;
      if (reach != 0) axes.push_back({std::abs(strides[i]), extents[i]});
    }
    std::ranges::sort(axes, {}, &Axis::step);
    std::size_t inner = 0;
    for (; inner < axes.size() && axes[inner].step <= run; ++inner)
      run = std::max(run, axes[inner].step * (axes[inner].extent - 1) + run);
    constexpr std::int64_t most_runs = std::int64_t{1} << 16;
    for (std::size_t i = inner; i < axes.size(); ++i) runs = std::min(runs * axes[i].extent, most_runs + 1);
    if (runs > most_runs) return add(to, at, first, last - first + 1, size);
    for (std::int64_t r = 0; r < runs; ++r) {
      std::int64_t begin = first, rest = r;
      for (std::size_t i = inner; i < axes.size(); rest /= axes[i].extent, ++i)
        begin += rest % axes[i].extent * axes[i].step;
      add(to, at, begin, run, size);
    }
  }

  std::vector<Bytes>& reads_;
  std::vector<Bytes>& writes_;
};

inline std::vector<std::int64_t> extents_of(const std::uint32_t* extents, int rank) {
  return {extents, extents + rank};
}
inline std::span<const std::int64_t> strides_of(const std::int64_t* strides, int rank) {
  return {strides, static_cast<std::size_t>(rank)};
}
inline Launch launch_in_tiles(const Kernel& kernel, std::int64_t tiles, unsigned processors) {
  constexpr std::int64_t blocks_a_processor = 8;
  return {&kernel, static_cast<unsigned>(std::min(tiles, blocks_a_processor * processors)), block_threads};
}

}  // namespace carillon::engine::cuda::kernels
